"""What is known of a tokenize job before its first unit: inputs, tokenizer, plan, outputs and engine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from tokshard.corpus.files import CorpusFile, discover
from tokshard.dataset.build_run import BuildSpec
from tokshard.dataset.delivery import Delivery, delivery_to
from tokshard.dataset.plan import BuildPlan, TokenizeParameters
from tokshard.errors import UsageError
from tokshard.storage import fs, paths
from tokshard.storage.lock import WriterLock
from tokshard.tokenization.assembly import ErrorPolicy
from tokshard.tokenization.encoder import EncoderName, EncodingSpec
from tokshard.tokenization.options import TokenizeOptions, output_prefix
from tokshard.tokenization.plan import make_parameters, make_plan
from tokshard.tokenization.workspace import Workspace
from tokshard.tokenizer.definition import Tokenizer, load_tokenizer
from tokshard.tokenizer.encoders import fast_encoder_refusal
from tokshard.tokenizer.equivalence import FIRST_BYTES

_LARGE_BYTES = 1 << 62


@dataclass(frozen=True, slots=True)
class EngineDecision:
    """The engine that will encode, and why it is not the fast one; None if it is."""

    name: EncoderName
    reason: str | None


@dataclass(frozen=True, slots=True)
class TokenizeJob:
    """Everything that is known before the first unit."""

    files: tuple[CorpusFile, ...]
    options: TokenizeOptions
    tokenizer: Tokenizer
    parameters: TokenizeParameters
    plan: BuildPlan
    prefix: str
    prefixes: tuple[str, ...]
    engine: EngineDecision
    delivery: Delivery | None = None

    @property
    def workers(self) -> int:
        """How many worker processes may run at once."""
        return self.options.workers or len(os.sched_getaffinity(0))

    @property
    def accepted_engines(self) -> frozenset[str]:
        """Engines whose finished units may stay."""
        return frozenset({"reference"} if self.options.engine == "reference" else {"reference", "fast"})

    @property
    def repeatable(self) -> bool:
        """Whether all inputs can be read again."""
        return all(file.size_bytes is not None for file in self.files)

    @property
    def build_spec(self) -> BuildSpec:
        """The outputs to build, and what may be reused or replaced."""
        return BuildSpec(
            plan=self.plan,
            prefixes=self.prefixes,
            resume=self.options.resume,
            force=self.options.force,
            encoders=self.accepted_engines,
            delivery=self.delivery,
        )

    @contextmanager
    def locked(self, *, shared: bool = False, purpose: str = "") -> Iterator[list[WriterLock]]:
        """Hold the writer locks of all outputs.

        Args:
            shared: Whether others who share them may hold them, too.
            purpose: What the holder does, for those who ask.

        Raises:
            LockedError: Another process writes one of the outputs.
        """
        with ExitStack() as locks:
            if self.delivery is not None:
                locks.callback(self.delivery.remove_empty)
            # An output PREFIX_<field>_document is also the output of a run that was given that prefix.
            yield [
                locks.enter_context(Workspace(prefix).locked(shared=shared, purpose=purpose))
                for prefix in sorted({self.prefix, *self.prefixes})
            ]

    def spec(self) -> EncodingSpec:
        """Return how units become parts."""
        options = self.options
        return EncodingSpec(
            tokenizer=self.tokenizer.path,
            tokenizer_identity=self.tokenizer.identity,
            special_tokens=options.special_tokens,
            eod_id=self.tokenizer.eod_id,
            append_eod=options.append_eod,
            fields=options.fields,
            dtype=self.parameters.dtype,
            encoder=self.engine.name,
            fallback=options.engine != "fast",
            max_document_bytes=options.max_document_bytes,
            max_rejected=ErrorPolicy(options.on_error == "skip", options.max_errors).limit,
            offsets=options.provenance,
        )


def prepare(
    inputs: str | Sequence[str],
    output: str | None,
    options: dict[str, Any],
    *,
    discovered: Callable[[Sequence[CorpusFile], TokenizeOptions], None] = lambda *_: None,
) -> TokenizeJob:
    """Look at the inputs and the tokenizer; the arguments are those of ``tokenize_corpus``.

    Args:
        inputs: See there.
        output: See there.
        options: See there.
        discovered: Called when the inputs and options are known, before the tokenizer is read.

    Raises:
        UsageError: An option cannot be meant.
        InputError: An input or the tokenizer cannot be read.
    """
    try:
        checked = TokenizeOptions(**options)
    except TypeError as error:
        raise UsageError(f"tokenize_corpus: {error}") from error
    names = [inputs] if isinstance(inputs, str) else list(inputs)
    if not names:
        raise UsageError("no input is given", hint="name files, globs, directories, @list.txt or - for stdin")
    place = output_prefix(names, output)
    delivery = delivery_to(place, staging=checked.staging, keep=checked.keep_staging)
    prefix = place if delivery is None else delivery.prefix
    files = discover(names)
    for one in (place, prefix):
        _refuse_inputs_among_outputs(files, checked.output_prefixes(one))
    discovered(files, checked)
    tokenizer = load_tokenizer(checked.tokenizer, eod=checked.eod, need_eod=checked.append_eod)
    parameters = make_parameters(tokenizer, checked)
    plan = make_plan(files, tokenizer, parameters)
    engine = _choose_engine(files, tokenizer, checked)
    prefixes = checked.output_prefixes(prefix)
    return TokenizeJob(files, checked, tokenizer, parameters, plan, prefix, prefixes, engine, delivery)


def _refuse_inputs_among_outputs(files: Sequence[CorpusFile], prefixes: Sequence[str]) -> None:
    for prefix in prefixes:
        outputs = {fs.realpath(path(prefix)) for path in (paths.bin_path, paths.idx_path)}
        sidecars = os.path.join(fs.realpath(paths.sidecar_directory(prefix)), "")
        for file in files:
            place = fs.realpath(file.path)
            if place in outputs or place.startswith(sidecars):
                raise UsageError(
                    f"the input {file.path} is one of the files that the run would write",
                    hint="choose another --output",
                )


def _choose_engine(
    files: Sequence[CorpusFile], tokenizer: Tokenizer, options: TokenizeOptions
) -> EngineDecision:
    if options.engine == "reference":
        return EngineDecision("reference", "asked for")
    reason = fast_encoder_refusal(tokenizer, special_tokens=options.special_tokens)
    if options.engine == "fast":
        if reason is not None:
            raise UsageError(
                f"--engine fast cannot encode with this tokenizer: {reason}", hint="use --engine auto"
            )
        return EngineDecision("fast", None)
    if reason is None and plain_bytes(files) <= FIRST_BYTES:
        reason = "the corpus is no larger than the sample that would be compared"
    return EngineDecision("reference" if reason else "fast", reason)


def plain_bytes(files: Sequence[CorpusFile]) -> int:
    """Estimate the size of the inputs after decompression; streams are taken for large."""
    return sum(_LARGE_BYTES if file.plain_bytes is None else file.plain_bytes for file in files)
