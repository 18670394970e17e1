"""The conversion job: from token files to a published dataset, resumable at any time."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from tokshard.core.codec import Count, Positive, Record
from tokshard.core.formatting import counted, listed, size, throughput, tokenizer_name
from tokshard.core.presentation import Section, outcome, planned
from tokshard.core.progress import Progress, reporting
from tokshard.dataset.build_run import BuildResult, BuildRun, BuildSpec
from tokshard.dataset.layout import optimal_dtype
from tokshard.dataset.parameters import BuildPlan, ConvertParameters, SourceDtype, TokenFileInput
from tokshard.dataset.report import BuildReport, DatasetProduct
from tokshard.dataset.tokenizer_identity import TokenizerIdentity, compare
from tokshard.dataset.workdir import WorkDirectory
from tokshard.errors import TokenizerMismatchError, UsageError
from tokshard.exchange.conversion.conversion import IdLimit, TokenConversion
from tokshard.exchange.conversion.files import TokenFile, all_states, check_unchanged, find_files
from tokshard.exchange.conversion.opening import first_token, open_files
from tokshard.exchange.conversion.options import ConvertOptions
from tokshard.exchange.conversion.splitting import SplitAtBos, SplitAtBoundaries, Splitter
from tokshard.exchange.conversion.staging import stage
from tokshard.exchange.manifest import ExportManifest, check_sizes, read_export
from tokshard.storage import fs
from tokshard.storage.lock import lock_mode
from tokshard.text.tokenizer.definition import load_tokenizer

_SHOWN_FILES = 3


@dataclass(frozen=True, slots=True)
class SourceFile(Record):
    """A token file of a conversion."""

    source: TokenFileInput
    dtype: str
    tokens: Count
    boundaries: str | None

    def __str__(self) -> str:
        documents = f", documents in {self.boundaries}" if self.boundaries else ""
        return f"{self.source.path} ({counted(self.tokens, 'token')} of {self.dtype}{documents})"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertReport(BuildReport):
    """The dataset that :func:`tokshard.convert` wrote, found up to date, or would write."""

    SCHEMA = "tokshard.convert/2"

    output: DatasetProduct
    options: ConvertParameters
    file_count: Positive
    files: tuple[SourceFile, ...] | None = None
    bytes_resumed: Count | None = None

    def sections(self) -> list[Section]:
        """Return what was done, or would be done, for people."""
        output, files = self.output, self.files or ()
        known = output.tokenizer
        tokenizer = "unknown: --tokenizer records it" if known is None else tokenizer_name(known)
        if self.action == "planned":
            tokens = counted(sum(file.tokens for file in files), "token")
            size_bytes = sum(file.source.size_bytes for file in files)
            facts = [
                ("source", f"{counted(len(files), 'file')}, {tokens}, {size(size_bytes)}"),
                ("documents", self._rule()),
                ("output", f"{output.path_prefix} ({self.state}), {self.options.dtype}"),
                ("tokenizer", tokenizer),
            ]
            return [planned(facts, [str(file) for file in files])]
        reused = f"{size(self.bytes_resumed)} converted by an earlier run" if self.bytes_resumed else ""
        facts = [("reused", reused), ("tokenizer", tokenizer), ("documents", self._endings())]
        speed = throughput(self.seconds, output.size_bytes, output.tokens)
        time_text = f"{counted(self.file_count, f'{self.options.format} file')} in {speed}"
        next_step = f"tokshard inspect {shlex.quote(output.path_prefix)}"
        return [outcome(self.action, [output.describe()], facts, time_text, [next_step])]

    def _rule(self) -> str:
        options = self.options
        if options.bos == "move":
            return (
                f"BOS token {options.bos_id} before them is replaced by EOD token {options.eod_id} after them"
            )
        if options.bos is not None:
            return (
                f"BOS token {options.bos_id} before them is {'kept' if options.bos == 'keep' else 'dropped'}"
            )
        if all(file.boundaries for file in self.files or ()):
            return "end as listed beside the tokens"
        return f"end with EOD token {options.eod_id} where no file lists them"

    def _endings(self) -> str:
        options = self.options
        if options.append_eod is None:
            return "the EOD token is unknown" if options.eod_id is None else "none has tokens"
        return f"{'all' if options.append_eod else 'not all'} end with the EOD token {options.eod_id}"


def convert(
    options: ConvertOptions, *, dry_run: bool = False, progress: Progress | None = None
) -> ConvertReport:
    """Convert token files of another trainer into an indexed dataset, without encoding anything again.

    The documents are those of the source, in its order: of nanogpt files they begin at BOS tokens, of the
    others they end where the files beside the tokens say, or after EOD tokens. Memory does not depend on the
    size of the source.

    Args:
        options: The sources, the output and the options.
        dry_run: Check the sources and plan the conversion, but write nothing.
        progress: Receives the progress.

    Raises:
        UsageError: An option is missing, or contradicts another one.
        InputError: A file is missing, its dtype is unknown, or an id is outside of the vocabulary.
        TokenizerError: The tokenizer cannot be read.
        TokenizerMismatchError: It is not the one of the export.
        IntegrityError: A file is damaged or truncated, or contradicts the boundaries of its documents.
        OutputExistsError: The output exists and ``force`` is not set.
        LockedError: Another process is writing this output.
        StorageError: A read or write failed. Converted tokens are kept.

    Example:
        >>> options = ConvertOptions(sources="fineweb10B", format="nanogpt", output="out/web", bos_id=50256)
        >>> report = convert(options)  # doctest: +SKIP
        >>> report.options.append_eod  # doctest: +SKIP
        True
    """
    started = time.monotonic()
    with lock_mode(options.lock), reporting(progress) as listener:
        listener.start("reading headers")
        job = _prepare(options)
        if dry_run:
            return _report(job, None, started)
        result = job.spec.up_to_date(job.work)
        if result is None:
            with job.work.locked(), BuildRun(job.spec, job.work) as run:
                result = run.recover()
                if result is None:
                    result = run.publish(_stage(job, listener))
        return _report(job, result, started)


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    # What is known about the ids: from the tokenizer, the size, or the manifest of an export.
    identity: TokenizerIdentity | None = None
    path: str | None = None
    size: int | None = None
    highest: int | None = None
    eod_id: int | None = None
    bos_id: int | None = None


@dataclass(frozen=True, slots=True)
class _Conversion:
    parameters: ConvertParameters
    files: tuple[TokenFile, ...]
    limit: IdLimit
    vocabulary: _Vocabulary
    spec: BuildSpec
    work: WorkDirectory
    warnings: tuple[str, ...]


def _prepare(options: ConvertOptions) -> _Conversion:
    prefix = options.output_prefix
    exported = _export_of(options)
    vocabulary = _vocabulary(options, exported)
    split = options.split or ("train" if exported is None else "all")
    found = find_files(options.source_names, options.format, split)
    source_dtype = options.source_dtype
    if source_dtype is None and exported is not None and options.format != "nanogpt":
        source_dtype = cast("SourceDtype", exported.parameters.dtype)
    is_recorded = exported is not None and source_dtype in {None, exported.parameters.dtype}
    files = open_files(found.paths, options.format, source_dtype, is_recorded=is_recorded)
    _refuse_output(files, prefix)
    limit = _limit(options, vocabulary, files)
    parameters = ConvertParameters(
        format=options.format,
        dtype="uint16" if limit.dtype.itemsize == 2 else "int32",
        source_dtype=source_dtype,
        bos=options.bos if options.format == "nanogpt" else None,
        bos_id=_bos_id(options, vocabulary) if options.format == "nanogpt" else None,
        eod_id=limit.eod_id,
    )
    _check_ids(parameters, limit, files)
    plan = BuildPlan(all_states(files), vocabulary.identity, parameters)
    return _Conversion(
        parameters=parameters,
        files=files,
        limit=limit,
        vocabulary=vocabulary,
        spec=BuildSpec(plan=plan, prefixes=(prefix,), resume=options.resume, force=options.force),
        work=WorkDirectory(prefix),
        warnings=(*found.warnings, *_warnings(files, parameters)),
    )


def _export_of(options: ConvertOptions) -> ExportManifest | None:
    # The manifest of an export of tokshard, if that is the source.
    directory = options.source_names[0]
    if len(options.source_names) > 1 or not os.path.isdir(directory):
        return None
    manifest = read_export(directory)
    if manifest is None or manifest.parameters.format != options.format:
        return None
    check_sizes(directory, manifest)
    return manifest


def _vocabulary(options: ConvertOptions, exported: ExportManifest | None) -> _Vocabulary:
    recorded = exported.parameters if exported is not None else None
    bos_id = recorded.bos_id if recorded is not None else None
    if options.tokenizer is not None:
        tokenizer = load_tokenizer(options.tokenizer, need_eod=False)
        identity, path = tokenizer.identity, tokenizer.path
        if exported is not None and (found := compare(exported.tokenizer, identity)).verdict == "different":
            raise TokenizerMismatchError(
                f"--tokenizer {options.tokenizer} is not the tokenizer of {options.source_names[0]}: "
                f"{', '.join(found.details)}",
                hint="omit --tokenizer: the export records its own",
            )
    elif exported is not None and exported.tokenizer is not None and options.vocab_size is None:
        identity, path = exported.tokenizer, None
    else:
        size = options.vocab_size
        highest = None if size is None else size - 1
        eod_id = recorded.eod_id if recorded is not None else None
        return _Vocabulary(size=size, highest=highest, eod_id=eod_id, bos_id=bos_id)
    eod_id = recorded.eod_id if recorded is not None and recorded.eod_id is not None else identity.eod_id
    return _Vocabulary(identity, path, identity.vocab_size, identity.max_token_id, eod_id, bos_id)


def _bos_id(options: ConvertOptions, vocabulary: _Vocabulary) -> int:
    for known in (options.bos_id, vocabulary.bos_id, vocabulary.eod_id):
        if known is not None:
            return known
    raise UsageError(
        "--bos-id is required: the token that begins each document",
        hint="pass --bos-id 50256 for the GPT-2 tokenizer of nanogpt, or the --tokenizer of the tokens",
    )


def _limit(options: ConvertOptions, vocabulary: _Vocabulary, files: Sequence[TokenFile]) -> IdLimit:
    dtype = _dtype(options, vocabulary, files)
    capacity = int(np.iinfo(dtype).max)
    eod_id = vocabulary.eod_id if options.eod_id is None else options.eod_id
    if eod_id is None and options.format == "nanogpt":
        eod_id = _bos_id(options, vocabulary)
    highest = capacity if vocabulary.highest is None else min(vocabulary.highest, capacity)
    return IdLimit(highest, dtype, eod_id)


def _dtype(
    options: ConvertOptions, vocabulary: _Vocabulary, files: Sequence[TokenFile]
) -> np.dtype[np.uint16] | np.dtype[np.int32]:
    uint16, int32 = np.dtype("<u2"), np.dtype("<i4")
    highest = vocabulary.highest
    if options.dtype != "auto":
        if options.dtype == "uint16" and highest is not None and highest > 65535:
            raise UsageError(
                f"--dtype uint16 cannot hold the token id {highest} of this vocabulary",
                hint="use --dtype auto",
            )
        return uint16 if options.dtype == "uint16" else int32
    if highest is None:
        return uint16 if all(file.dtype.itemsize <= 2 for file in files) else int32
    fits = highest <= 65535 and optimal_dtype(vocabulary.size).name == "uint16"
    return uint16 if fits else int32


def _check_ids(parameters: ConvertParameters, limit: IdLimit, files: Sequence[TokenFile]) -> None:
    for name, value in (("--bos-id", parameters.bos_id), ("--eod-id", parameters.eod_id)):
        if value is not None and value > limit.highest:
            raise UsageError(
                f"{name} must be at most {limit.highest}, the largest id, got {value}",
                hint="pass an id of the vocabulary of these tokens",
            )
    without = [file.path for file in files if file.boundaries is None]
    if parameters.format != "nanogpt" and parameters.eod_id is None and without:
        raise UsageError(
            f"--eod-id is required: {listed(without, _SHOWN_FILES)} "
            f"{'has' if len(without) == 1 else 'have'} no boundaries of documents",
            hint="pass the id of the token that ends each document, or the --tokenizer of the tokens",
        )


def _refuse_output(files: Sequence[TokenFile], prefix: str) -> None:
    outputs = {fs.realpath(prefix + suffix) for suffix in (".bin", ".idx")}
    for file in files:
        if fs.realpath(file.path) in outputs:
            raise UsageError(
                f"--output {prefix} would replace the source {file.path}", hint="pass another --output"
            )


def _warnings(files: Sequence[TokenFile], parameters: ConvertParameters) -> list[str]:
    found = []
    if not any(file.tokens for file in files):
        found.append("the source has no tokens: Megatron cannot train on the output")
    first = first_token(files) if parameters.format == "nanogpt" else None
    if first is not None and first != parameters.bos_id:
        found.append(
            f"{files[0].path} begins inside a document: its first token is {first}, not the BOS token "
            f"{parameters.bos_id}; what precedes the first BOS token becomes a document"
        )
    masks = [file.path for file in files if fs.lexists(f"{file.path}.loss")]
    if parameters.format == "datatrove" and masks:
        found.append(f"{counted(len(masks), 'loss mask')} not converted: {listed(masks, _SHOWN_FILES)}")
    return found


def _splitter(parameters: ConvertParameters) -> Splitter:
    if parameters.bos is None or parameters.bos_id is None:
        return SplitAtBoundaries(parameters.eod_id)
    eod_id = parameters.bos_id if parameters.eod_id is None else parameters.eod_id
    return SplitAtBos(parameters.bos_id, eod_id, parameters.bos)


def _stage(job: _Conversion, progress: Progress) -> BuildResult:
    conversion = TokenConversion(
        job.work.directory, job.files, _splitter(job.parameters), job.limit, progress
    )
    try:
        total = sum(file.tokens * file.dtype.itemsize for file in job.files)
        progress.start("converting", total, conversion.resumed_bytes)
        conversion.run()
    finally:
        conversion.close()
    progress.start("writing the index")
    manifest = stage(
        job.work.directory,
        job.files,
        conversion.entries,
        job.spec.plan,
        job.parameters,
        job.vocabulary.path,
    )
    check_unchanged(job.files)
    return BuildResult((manifest,), conversion.resumed_bytes)


def _report(job: _Conversion, result: BuildResult | None, started: float) -> ConvertReport:
    # No result means a dry run.
    prefix, parameters, warnings = job.work.prefix, job.parameters, job.warnings
    if result is None:
        output = DatasetProduct(prefix, job.vocabulary.identity)
    else:
        (manifest,) = result.manifests
        output = DatasetProduct.of(prefix, manifest)
        parameters = replace(parameters, append_eod=manifest.options.append_eod)
        if parameters.bos is not None and manifest.dataset.documents == 1:
            warnings += (
                f"the source has a single document: the BOS token {parameters.bos_id} begins no other one",
            )
    files = (
        SourceFile(
            file.state,
            file.dtype.name,
            file.tokens,
            file.boundaries.state.path if file.boundaries is not None else None,
        )
        for file in job.files
    )
    return ConvertReport(
        action="planned" if result is None else result.action,
        state=job.spec.state(job.work) if result is None else None,
        output=output,
        options=parameters,
        file_count=len(job.files),
        files=tuple(files) if result is None else None,
        bytes_resumed=result.resumed if result else None,
        seconds=time.monotonic() - started,
        warnings=warnings,
    )
