"""The tokenize job: its inputs, tokenizer, plan, outputs and encoder, before the first unit is encoded."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain

from tokshard.core.codec import encode
from tokshard.core.json_text import dump_json
from tokshard.core.options import recorded
from tokshard.dataset.build_run import BuildSpec
from tokshard.dataset.delivery import Delivery, delivery_to
from tokshard.dataset.layout import choose_dtype
from tokshard.dataset.plan import BuildPlan, HubDatasetRecord, TokenizeParameters
from tokshard.dataset.workdir import WorkDirectory, plan_in, remove_temporary_files
from tokshard.errors import IntegrityError, UsageError
from tokshard.storage import fs, paths, syscalls
from tokshard.storage.files import remove_tree, tree_bytes
from tokshard.storage.lock import WriterLock
from tokshard.text.corpus.files import CorpusFile
from tokshard.text.corpus.selection import RecordSelection
from tokshard.text.tokenize.assembly import ErrorPolicy, read_assembled
from tokshard.text.tokenize.choice import EncoderDecision, EncodingChoice, choose_encoding
from tokshard.text.tokenize.encoder import EncodingSpec
from tokshard.text.tokenize.options import TokenizeOptions
from tokshard.text.tokenize.part import PartReader, UnitKey, part_headers
from tokshard.text.tokenize.reuse import (
    ALL_ENCODERS,
    finished_units,
    fitting_units,
    has_same_content,
    keep_only,
)
from tokshard.text.tokenizer.definition import Tokenizer

# The manifest adds counts and a digest to each input's entry, and must stay readable (64 MiB).
_RESULT_BYTES_OF_INPUT = 256
_MAX_INPUTS_BYTES = 48 << 20


@dataclass(frozen=True, slots=True)
class Workspace(WorkDirectory):
    """Work directory of a tokenize run, with the parts that its workers commit."""

    @property
    def parts(self) -> str:
        """Directory in which workers commit parts."""
        return os.path.join(self.directory, "parts")

    @property
    def raw(self) -> str:
        """Directory in which decompressed units wait for workers."""
        return os.path.join(self.directory, "raw")

    def make_directories(self) -> None:
        """Make the work directory and those of parts and decompressed units."""
        for directory in (self.directory, self.parts, self.raw):
            syscalls.make_directory(directory)

    def take_up(self, plan: BuildPlan) -> bool:
        """Continue the unfinished run of a plan, or that of one with units that fit it."""
        if WorkDirectory.take_up(self, plan):
            return True
        options = plan.options
        if not (isinstance(options, TokenizeParameters) and plan.is_repeatable):
            return False
        for directory in self.directories():
            earlier = plan_in(directory)
            if earlier is None or not (earlier.is_repeatable and earlier.has_units_of(plan)):
                continue
            with suppress(IntegrityError):
                if fitting := fitting_units(directory, earlier, plan):
                    if directory != self.directory:
                        self.bring_back(directory)
                    keep_only(self.directory, fitting, options)
                    self.write_plan(plan)
                    return True
        return False

    def has_finished_work(self) -> bool:
        """Return whether a finished unit has documents: units of rejected records need no encoding."""
        assembled = (
            unit.header for units, _ in read_assembled(self.directory, ALL_ENCODERS) for unit in units
        )
        try:
            return any(header.counts.documents for header in chain(assembled, part_headers(self.parts)))
        except IntegrityError:  # of another version of tokshard
            return True

    def units_of_other_plans(self) -> KeptUnits:
        """Return the number of finished units of other plans, and their size."""
        directories = self.kept()
        return KeptUnits(sum(map(self.count_units, directories)), sum(map(tree_bytes, directories)))

    def count_units(self, directory: str) -> int:
        """Return the number of finished units in a work directory."""
        try:
            return len(finished_units(directory))
        except IntegrityError:
            return 0

    def part_path(self, key: UnitKey) -> str:
        """Return the path of a unit's part."""
        return os.path.join(self.parts, key.part_name)

    def usable_parts(self, first: UnitKey, encoders: frozenset[str]) -> Iterator[PartReader]:
        """Yield the intact parts from ``first`` on that an accepted encoder made; remove all else."""
        for name in sorted(os.listdir(self.parts)):
            path = os.path.join(self.parts, name)
            # A pipe must not even be opened: that would wait for ever.
            if os.path.isfile(path) and not os.path.islink(path):
                try:
                    with PartReader(path) as part:
                        part.verify()
                        named = part.unit.part_name == name
                        if named and part.unit >= first and part.header.encoder in encoders:
                            yield part
                            continue
                except IntegrityError:
                    pass
            remove_tree(path)

    def sweep(self) -> None:
        """Remove what a killed run may have left half-done: temporary files and decompressed units."""
        WorkDirectory.sweep(self)
        remove_tree(self.raw)
        if os.path.islink(self.parts):
            syscalls.unlink(self.parts)
        remove_temporary_files(self.parts)


@dataclass(frozen=True, slots=True)
class KeptUnits:
    """Finished units of plans with other options or inputs, which are kept until an output is published."""

    units: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class TokenizeJob:
    """Facts of a run that are known before the first unit is encoded.

    Attributes:
        parameters: The options that determine the bytes.
        prefix: The local path prefix of the run.
        prefixes: The local path prefix of each output.
        delivery: Where the outputs are uploaded to; None for local outputs.
    """

    files: tuple[CorpusFile, ...]
    options: TokenizeOptions
    tokenizer: Tokenizer
    parameters: TokenizeParameters
    plan: BuildPlan
    prefix: str
    prefixes: tuple[str, ...]
    encoder: EncoderDecision
    delivery: Delivery | None = None

    @property
    def workspace(self) -> Workspace:
        """The work directory."""
        return Workspace(self.prefix)

    @property
    def input_bytes(self) -> int:
        """Bytes of the inputs on disk; a stream counts as 0."""
        return sum(file.size_bytes or 0 for file in self.files)

    @property
    def workers(self) -> int:
        """Most worker processes."""
        return self.options.workers or len(os.sched_getaffinity(0))

    @property
    def accepted_encoders(self) -> frozenset[str]:
        """Encoders whose finished units may stay."""
        return frozenset({"reference"} if self.options.encoder == "reference" else {"reference", "fast"})

    @property
    def error_policy(self) -> ErrorPolicy:
        """Policy for rejected records."""
        return ErrorPolicy(self.options.on_error == "skip", self.options.max_errors)

    @property
    def build(self) -> BuildSpec:
        """The outputs to build, and what may be reused or replaced."""
        return BuildSpec(
            plan=self.plan,
            prefixes=self.prefixes,
            resume=self.options.resume,
            force=self.options.force,
            encoders=self.accepted_encoders,
            delivery=self.delivery,
            same_content=lambda prefix, manifest: has_same_content(prefix, manifest, self.plan),
        )

    def encoding(self) -> EncodingSpec:
        """Return the specification by which units become parts.

        Workers may read the tokenizer's definition from the work directory, which must exist.
        """
        options = self.options
        return EncodingSpec(
            tokenizer=self.tokenizer.definition_path(self.workspace.directory),
            tokenizer_sha256=self.tokenizer.sha256,
            tokenizer_identity=self.tokenizer.identity,
            special_tokens=options.special_tokens,
            eod_id=self.tokenizer.eod_id,
            append_eod=options.append_eod,
            fields=tuple(options.fields),
            dtype=self.parameters.dtype,
            encoder=self.encoder.name,
            fallback=options.encoder != "fast",
            max_document_bytes=self.parameters.max_document_bytes,
            # With a limit, the assembly decides which bad records count.
            max_rejected=None if options.has_limits else self.error_policy.limit,
            selection=recorded(RecordSelection, self.parameters),
            unknown_id=self.tokenizer.unknown_id,
            drops_characters=self.tokenizer.drops_characters,
        )

    @contextmanager
    def locked(self, *, shared: bool = False, purpose: str = "") -> Iterator[list[WriterLock]]:
        """Hold the writer locks of all outputs; ``purpose`` is shown to others who ask for them."""
        with locked_outputs(
            self.prefix, self.prefixes, self.delivery, shared=shared, purpose=purpose
        ) as locks:
            yield locks


@contextmanager
def locked_outputs(
    prefix: str,
    prefixes: Sequence[str],
    delivery: Delivery | None,
    *,
    shared: bool = False,
    purpose: str = "",
) -> Iterator[list[WriterLock]]:
    """Hold the writer locks of the outputs of a run for ``prefix``."""
    with ExitStack() as locks:
        if delivery is not None:
            locks.callback(delivery.remove_empty)
        # An output PREFIX_<field>_document is also the output of a run that was given that prefix.
        yield [
            locks.enter_context(Workspace(path).locked(shared=shared, purpose=purpose))
            for path in sorted({prefix, *prefixes})
        ]


def prepare_job(
    options: TokenizeOptions,
    files: tuple[CorpusFile, ...],
    hub_datasets: tuple[HubDatasetRecord, ...] | None = None,
    *,
    choice: EncodingChoice | None = None,
) -> TokenizeJob:
    """Read the tokenizer, unless ``choice`` has it, and make the plan.

    Raises:
        UsageError: An option does not fit the inputs or the tokenizer.
        InputError: The tokenizer cannot be read.
    """
    delivery = delivery_to(options.prefix, local_dir=options.local_dir, keep=options.keep_local)
    prefix = options.prefix if delivery is None else delivery.prefix
    for local_or_final in {options.prefix, prefix}:
        _refuse_inputs_among_outputs(files, options.output_prefixes(local_or_final))
    choice = choice or choose_encoding(options, files)
    tokenizer = choice.tokenizer
    parameters = recorded(
        TokenizeParameters,
        options,
        eod_id=tokenizer.eod_id,
        dtype=choose_dtype(tokenizer.vocab_size, tokenizer.max_token_id, options.dtype),
        max_document_bytes=choice.max_document_bytes,
    )
    return TokenizeJob(
        files=files,
        options=options,
        tokenizer=tokenizer,
        parameters=parameters,
        plan=replace(make_plan(files, tokenizer, parameters), hub_datasets=hub_datasets),
        prefix=prefix,
        prefixes=options.output_prefixes(prefix),
        encoder=choice.encoder,
        delivery=delivery,
    )


def make_plan(files: Sequence[CorpusFile], tokenizer: Tokenizer, parameters: TokenizeParameters) -> BuildPlan:
    """Return the plan; raise UsageError if there are more inputs than a manifest can list."""
    inputs = tuple(file.plan_input() for file in files)
    listed_bytes = len(dump_json([encode(source) for source in inputs]))
    if listed_bytes + _RESULT_BYTES_OF_INPUT * len(inputs) > _MAX_INPUTS_BYTES:
        raise UsageError(
            f"{len(inputs):,} inputs are too many for the manifest of one dataset",
            hint="make several datasets and merge them: tokshard merge A B -o OUT",
        )
    return BuildPlan(inputs=inputs, tokenizer=tokenizer.identity, options=parameters)


def _refuse_inputs_among_outputs(files: Sequence[CorpusFile], prefixes: Sequence[str]) -> None:
    for prefix in prefixes:
        outputs = {fs.realpath(path(prefix)) for path in (paths.bin_path, paths.idx_path)}
        sidecars = os.path.join(fs.realpath(paths.sidecar_directory(prefix)), "")
        for file in files:
            path = fs.realpath(file.path)
            if path in outputs or path.startswith(sidecars):
                raise UsageError(
                    f"the input {file.path} would be overwritten by the output",
                    hint="choose another --output",
                )
