"""The tokenize job: its inputs, tokenizer, build, outputs and encoder, before the first unit is encoded."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from tokshard.core.codec import encode
from tokshard.core.json_text import dump_json
from tokshard.core.options import recorded
from tokshard.dataset.delivery import Delivery, delivery_to
from tokshard.dataset.layout import choose_dtype
from tokshard.dataset.outputs import Outputs
from tokshard.dataset.parameters import Build, HubDatasetRecord, TokenizeParameters
from tokshard.dataset.run import Run, RunJob
from tokshard.dataset.tokenizer_identity import TokenizerIdentity
from tokshard.errors import BadRecordError, InputError, UsageError
from tokshard.storage import fs, paths
from tokshard.text.corpus.files import CorpusFile
from tokshard.text.corpus.hints import hint_for
from tokshard.text.corpus.record_format import Reading
from tokshard.text.corpus.rejection import RejectedRecord
from tokshard.text.tokenize.choice import EncoderDecision, EncodingChoice, choose_encoding
from tokshard.text.tokenize.encoder import EncodingSpec, reading_of
from tokshard.text.tokenize.options import TokenizeOptions
from tokshard.text.tokenize.part import AppendedUnit, PartNames, appended_units, part_headers
from tokshard.text.tokenizer.definition import Tokenizer

# The manifest adds counts and a digest to each input's entry, and must stay readable (64 MiB).
_RESULT_BYTES_OF_INPUT = 640
_MAX_INPUTS_BYTES = 48 << 20


@dataclass(frozen=True, slots=True)
class ErrorPolicy:
    """Policy for rejected records.

    Attributes:
        max_errors: With ``skip``: more rejected records than this are an error. If None, no limit.
    """

    skip: bool
    max_errors: int | None

    @property
    def limit(self) -> int | None:
        """Largest tolerable number of rejected records, or None without a limit."""
        return self.max_errors if self.skip else 0

    def refuse(self, path: str, line: int | None, record: RejectedRecord) -> InputError:
        """Return the error for a rejected record that is one too many; see :class:`BadRecordError`."""
        error = bad_record(path, line, record)
        if not self.skip:
            return error
        return InputError(
            f"--max-errors {self.max_errors} exceeded; the next rejected record is {error.message}",
            hint="raise --max-errors, or fix the input; finished work is kept",
        )


def bad_record(path: str, line: int | None, record: RejectedRecord) -> BadRecordError:
    """Return the error for a rejected record."""
    return BadRecordError(
        path,
        line=line,
        offset=record.offset,
        reason=record.reason,
        detail=record.detail,
        excerpt=record.excerpt,
        hint=hint_for(path, line, record),
    )


@dataclass(frozen=True, slots=True)
class TokenizeJob:
    """Facts of a run that are known before the first unit is encoded.

    Attributes:
        parameters: The options that determine the bytes.
        prefix: The local path prefix of the run.
        part_names: The names of the parts of its units.
        prefixes: The local path prefix of each output.
        hub_datasets: Datasets of the Hugging Face Hub among the inputs.
        delivery: Where the outputs are uploaded to; None for local outputs.
    """

    files: tuple[CorpusFile, ...]
    options: TokenizeOptions
    tokenizer: Tokenizer
    parameters: TokenizeParameters
    build: Build
    part_names: PartNames
    prefix: str
    prefixes: tuple[str, ...]
    encoder: EncoderDecision
    hub_datasets: tuple[HubDatasetRecord, ...] | None = None
    delivery: Delivery | None = None

    @property
    def template_ids(self) -> tuple[int, ...]:
        """The ids that the tokenizer adds to each text."""
        return self.tokenizer.identity.template_ids if self.options.special_tokens else ()

    @property
    def reading(self) -> Reading:
        """The part of the records that is read."""
        return reading_of(self.tokenizer.identity, self.parameters)

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
        if self.encoder.name == "none":
            return frozenset({"none"})
        return frozenset({"reference"} if self.options.encoder == "reference" else {"reference", "fast"})

    @property
    def error_policy(self) -> ErrorPolicy:
        """Policy for rejected records."""
        return ErrorPolicy(self.options.on_error == "skip", self.options.max_errors)

    @property
    def outputs(self) -> Outputs:
        """The local outputs."""
        return Outputs(self.build, self.prefixes, self.options.force, self.accepted_encoders, self.prefix)

    @property
    def destinations(self) -> Outputs:
        """The outputs as the user named them: paths or URLs."""
        if self.delivery is None:
            return self.outputs
        return replace(self.outputs, prefixes=tuple(map(self.delivery.url_of, self.prefixes)))

    def run(self) -> Run[AppendedUnit]:
        """Return the resumable run; the caller holds the locks of the outputs."""
        job = RunJob(tokenizer=self.build.tokenizer, options=self.parameters, hub_datasets=self.hub_datasets)
        return Run(self.outputs, job, AppendedUnit)

    def count_finished(self) -> int:
        """Return the number of finished units in the work directory, with any inputs and options."""
        return len({*finished_units(self.outputs.work, self.accepted_encoders)})

    def has_finished(self) -> bool:
        """Return whether the work directory has a finished unit; fast with any number of them."""
        return any(finished_units(self.outputs.work, self.accepted_encoders))

    def encoding(self) -> EncodingSpec:
        """Return the specification by which units become parts.

        Workers may read the tokenizer's definition from the work directory, which must exist.
        """
        tokenizer = self.tokenizer
        return EncodingSpec(
            tokenizer=tokenizer.definition_path(self.outputs.work),
            tokenizer_sha256=tokenizer.sha256,
            tokenizer_identity=tokenizer.identity,
            parameters=self.parameters,
            encoder=self.encoder.name,
            fallback=self.options.encoder != "fast",
            # With a limit, the assembly decides which bad records count.
            max_rejected=None if self.options.has_limits else self.error_policy.limit,
            unknown_id=tokenizer.unknown_id,
            drops_characters=tokenizer.drops_characters,
        )


def prepare_job(
    options: TokenizeOptions,
    files: tuple[CorpusFile, ...],
    hub_datasets: tuple[HubDatasetRecord, ...] | None = None,
    *,
    choice: EncodingChoice | None = None,
) -> TokenizeJob:
    """Read the tokenizer, unless ``choice`` has it, and make the job.

    Raises:
        UsageError: An option does not fit the inputs or the tokenizer.
        InputError: The tokenizer cannot be read.
    """
    delivery = delivery_to(options.prefix)
    prefix = options.prefix if delivery is None else delivery.prefix
    for local_or_final in {options.prefix, prefix}:
        _refuse_inputs_among_outputs(files, options.output_prefixes(local_or_final))
    choice = choice or choose_encoding(options, files)
    tokenizer = choice.tokenizer
    is_unknown = choice.vocab_size is not None and not options.names_tokenizer
    parameters = recorded(
        TokenizeParameters,
        options,
        eod_id=tokenizer.identity.eod_id,
        dtype=choose_dtype(tokenizer.identity.vocab_size, tokenizer.identity.max_token_id, options.dtype),
        max_document_bytes=choice.max_document_bytes,
        vocab_size=choice.vocab_size,
    )
    return TokenizeJob(
        files=files,
        options=options,
        tokenizer=tokenizer,
        parameters=parameters,
        build=make_build(files, None if is_unknown else tokenizer.identity, parameters),
        part_names=PartNames(files, parameters),
        prefix=prefix,
        prefixes=options.output_prefixes(prefix),
        encoder=choice.encoder,
        hub_datasets=hub_datasets,
        delivery=delivery,
    )


def make_build(
    files: Sequence[CorpusFile], tokenizer: TokenizerIdentity | None, parameters: TokenizeParameters
) -> Build:
    """Return what determines the bytes; raise UsageError for more inputs than a manifest can list."""
    listed_bytes = len(dump_json([encode(file) for file in files]))
    if listed_bytes + _RESULT_BYTES_OF_INPUT * len(files) > _MAX_INPUTS_BYTES:
        raise UsageError(
            f"{len(files):,} inputs are too many for the manifest of one dataset",
            hint="make several datasets and merge them: tokshard merge A B -o OUT",
        )
    states = tuple(file.state for file in files)
    return Build(inputs=states, tokenizer=tokenizer, options=parameters)


def finished_units(work: str, encoders: Collection[str]) -> Iterator[str]:
    """Yield the names of the finished units in a work directory that accepted encoders made.

    Those are the appended units of the journal, and the parts. Their content is not checked. Units of
    rejected records need no encoding, and do not count.
    """
    headers = chain((unit.header for unit in appended_units(work)), part_headers(os.path.join(work, "parts")))
    return (header.name for header in headers if header.documents and header.encoder in encoders)


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
