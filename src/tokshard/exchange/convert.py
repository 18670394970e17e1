"""The conversion job: from token files to a published dataset."""

from __future__ import annotations

import os
import shlex
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import numpy as np

from tokshard.core.codec import TOOL, Positive
from tokshard.core.formatting import counted, listed, size, throughput
from tokshard.core.presentation import Section, outcome, planned
from tokshard.core.progress import Progress, reporting
from tokshard.dataset.concatenate import Concatenation, input_records, stage_manifest
from tokshard.dataset.layout import choose_dtype
from tokshard.dataset.manifest import DatasetRecord, Manifest
from tokshard.dataset.outputs import BuildAction, Outputs
from tokshard.dataset.parameters import Build, ConvertParameters, SourceDtype
from tokshard.dataset.report import BuildReport, DatasetProduct
from tokshard.dataset.source import InputFile
from tokshard.dataset.tokenizer_identity import TokenizerIdentity, compare, tokenizer_name
from tokshard.errors import InputError, MissingFileError, StorageError, TokenizerMismatchError, UsageError
from tokshard.exchange.documents import STREAMS, ConvertedDocuments
from tokshard.exchange.format import format_of
from tokshard.exchange.manifest import ExportManifest, check_sizes, read_export
from tokshard.exchange.options import ConvertOptions
from tokshard.exchange.reading import LocalFile, TokenFile, TokenReader
from tokshard.storage import fs, paths
from tokshard.storage.digest import UNSEALED, sealed
from tokshard.storage.lock import lock_mode
from tokshard.text.corpus.files import check_unchanged
from tokshard.text.tokenizer.definition import load_tokenizer

_SHOWN_FILES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertReport(BuildReport):
    """The dataset that :func:`tokshard.convert` wrote, found up to date, or would write."""

    SCHEMA = "tokshard.convert/2"

    output: DatasetProduct
    options: ConvertParameters
    file_count: Positive
    files: tuple[TokenFile, ...] | None = None

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
        facts = [("tokenizer", tokenizer), ("documents", self._endings())]
        speed = throughput(self.seconds, output.size_bytes, output.tokens, " written")
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
        StorageError: A read or write failed.

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
            return _report(job, None, "planned", started)
        (manifest,), action = job.outputs.stage_and_publish(
            lambda directory: _stage(job, directory, listener)
        )
        return _report(job, manifest, action, started)


@dataclass(frozen=True, slots=True)
class _Conversion:
    parameters: ConvertParameters
    files: tuple[TokenFile, ...]
    highest: int
    tokenizer_path: str | None
    outputs: Outputs
    reader: TokenReader
    warnings: tuple[str, ...]

    @property
    def sources(self) -> list[LocalFile]:
        """The inputs in the order of the manifest."""
        return [source for file in self.files for source in file.inputs]


def _prepare(options: ConvertOptions) -> _Conversion:
    prefix = options.output_prefix
    reader = format_of(options.format).READER
    assert reader is not None  # noqa: S101 - a test compares TokenFormat with the formats that have a reader
    source_dtype = options.source_dtype
    if source_dtype is not None and reader.HAS_HEADER:
        raise UsageError(
            f"--source-dtype does not apply to {options.format} files: their header tells the dtype",
            hint="omit --source-dtype",
        )
    exported = _export_of(options)
    recorded = None if exported is None else exported.parameters
    identity, tokenizer_path = _tokenizer(options, exported)
    split = options.split or ("train" if exported is None else "all")
    names, warnings = _find_files(options.source_names, reader, split)
    if source_dtype is None and recorded is not None and not reader.HAS_HEADER:
        source_dtype = cast("SourceDtype", recorded.dtype)
    is_recorded = recorded is not None and source_dtype in {None, recorded.dtype}
    files = reader.open(names, source_dtype, is_recorded=is_recorded)
    _refuse_output(files, prefix)
    # The size of the vocabulary and the largest id.
    vocabulary = None
    if identity is not None:
        vocabulary = (identity.vocab_size, identity.max_token_id)
    elif options.vocab_size is not None:
        vocabulary = (options.vocab_size, options.vocab_size - 1)
    dtype = _dtype(options, vocabulary, files)
    known_eod_id = _first(recorded.eod_id if recorded else None, identity.eod_id if identity else None)
    eod_id = _first(options.eod_id, known_eod_id)
    bos_id = None
    if reader.BEGINS_WITH_BOS:
        bos_id = _first(options.bos_id, recorded.bos_id if recorded else None, known_eod_id)
        if bos_id is None:
            raise UsageError(
                "--bos-id is required: the token that begins each document",
                hint="pass --bos-id 50256 for the GPT-2 tokenizer of nanogpt, or the --tokenizer of the "
                "tokens",
            )
    parameters = ConvertParameters(
        format=options.format,
        dtype=dtype,
        source_dtype=source_dtype,
        bos=options.bos if reader.BEGINS_WITH_BOS else None,
        bos_id=bos_id,
        eod_id=_first(eod_id, bos_id),
    )
    highest = int(np.iinfo(dtype).max)
    if vocabulary is not None:
        highest = min(highest, vocabulary[1])
    _check_ids(parameters, highest, files)
    build = Build(
        inputs=tuple(source.state for file in files for source in file.inputs),
        tokenizer=identity,
        options=parameters,
    )
    return _Conversion(
        parameters=parameters,
        files=files,
        highest=highest,
        tokenizer_path=tokenizer_path,
        outputs=Outputs(build, (prefix,), options.force),
        reader=reader,
        warnings=(*warnings, *_warnings(files, parameters, reader)),
    )


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _find_files(names: Sequence[str], reader: TokenReader, split: str) -> tuple[list[str], list[str]]:
    """Return the token files that the arguments name (files, directories and globs), and warnings.

    Raises:
        InputError: A glob or directory has no token file, or a path is remote.
        MissingFileError: A file does not exist.
    """
    found: list[str] = []
    warnings: list[str] = []
    for name in names:
        fs.refuse_remote(name, "convert requires local files")
        if "\0" in name:
            raise InputError(f"invalid path {name!r}: it contains a NUL character")
        if os.path.isdir(name):
            inside = _token_files([os.path.join(name, each) for each in _list(name)], reader, f"in {name}")
            chosen = reader.chosen(name, inside, split)
            found += chosen
            if len(chosen) < len(inside):
                warnings.append(
                    f"{name}: {len(inside) - len(chosen)} of {len(inside)} files are not {split} files and "
                    "were skipped"
                )
        elif paths.is_glob(name):
            found += _token_files(fs.glob(name), reader, f"matches {name}")
        elif not fs.lexists(name):
            is_dataset = fs.lexists(paths.idx_path(name))
            hint = "pass token files of another trainer: this is an indexed dataset" if is_dataset else None
            raise MissingFileError(f"file not found: {name}", path=name, hint=hint)
        else:
            found.append(name)
    times = Counter(map(os.path.realpath, found))
    repeated = [path for path in dict.fromkeys(found) if times[os.path.realpath(path)] > 1]
    if repeated:
        warnings.append(
            f"{listed(repeated, _SHOWN_FILES)}: passed twice, so their documents are in the output twice"
        )
    return found, warnings


def _list(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError as error:
        raise StorageError("list", directory, error) from error


def _token_files(files: Sequence[str], reader: TokenReader, where: str) -> list[str]:
    found = reader.token_files([path for path in files if fs.isfile(path)])
    if not found:
        raise InputError(
            f"no {reader.name} file ({reader.suffix}) {where}",
            hint="pass the directory with the token files, or a quoted glob of these",
        )
    return found


def _export_of(options: ConvertOptions) -> ExportManifest | None:
    """Return the manifest of an export of tokshard, if that is the source."""
    directory = options.source_names[0]
    if len(options.source_names) > 1 or not os.path.isdir(directory):
        return None
    manifest = read_export(directory)
    if manifest is None or manifest.parameters.format != options.format:
        return None
    check_sizes(directory, manifest)
    return manifest


def _tokenizer(
    options: ConvertOptions, exported: ExportManifest | None
) -> tuple[TokenizerIdentity | None, str | None]:
    """Return the tokenizer of the tokens, and the file that defines it if the user named it."""
    recorded = None if exported is None else exported.tokenizer
    if options.tokenizer is None:
        return recorded if options.vocab_size is None else None, None
    tokenizer = load_tokenizer(options.tokenizer, need_eod=False)
    if exported is not None and (found := compare(recorded, tokenizer.identity)).verdict == "different":
        raise TokenizerMismatchError(
            f"--tokenizer {options.tokenizer} is not the tokenizer of {options.source_names[0]}: "
            f"{', '.join(found.details)}",
            hint="omit --tokenizer: the export records its own",
        )
    return tokenizer.identity, tokenizer.path


def _dtype(
    options: ConvertOptions, vocabulary: tuple[int, int] | None, files: Sequence[TokenFile]
) -> Literal["uint16", "int32"]:
    if vocabulary is not None:
        return choose_dtype(*vocabulary, options.dtype)
    if options.dtype != "auto":
        return options.dtype
    return "uint16" if all(file.token_dtype.itemsize <= 2 for file in files) else "int32"


def _check_ids(parameters: ConvertParameters, highest: int, files: Sequence[TokenFile]) -> None:
    for name, value in (("--bos-id", parameters.bos_id), ("--eod-id", parameters.eod_id)):
        if value is not None and value > highest:
            raise UsageError(
                f"{name} must be at most {highest}, the largest id, got {value}",
                hint="pass an id of the vocabulary of these tokens",
            )
    without = [file.path for file in files if file.boundaries is None]
    if parameters.bos is None and parameters.eod_id is None and without:
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


def _warnings(files: Sequence[TokenFile], parameters: ConvertParameters, reader: TokenReader) -> list[str]:
    found = []
    file = next((file for file in files if file.tokens), None)
    if file is None:
        found.append("the source has no tokens: Megatron cannot train on the output")
    elif parameters.bos is not None:
        first = int(file.read(InputFile(file.path), 0, 1)[0])
        if first != parameters.bos_id:
            found.append(
                f"{files[0].path} begins inside a document: its first token is {first}, not the BOS token "
                f"{parameters.bos_id}; what precedes the first BOS token becomes a document"
            )
    suffix = reader.MASKS_SUFFIX
    masks = [file.path for file in files if suffix and fs.lexists(file.path + suffix)]
    if masks:
        found.append(f"{counted(len(masks), 'loss mask')} not converted: {listed(masks, _SHOWN_FILES)}")
    return found


def _stage(job: _Conversion, directory: str, progress: Progress) -> Manifest:
    """Write the files of the dataset into the staging directory; return its manifest."""
    parameters = job.parameters
    build = job.outputs.build
    documents = ConvertedDocuments(job.reader, job.files, parameters, job.highest, progress)
    with Concatenation(directory, STREAMS) as output:
        progress.start(
            "converting", sum(file.tokens for file in job.files) * np.dtype(parameters.dtype).itemsize
        )
        output.append(documents)
        progress.start("writing the index")
        files = output.finish(dtype=parameters.dtype)
    counts = output.counts
    has_eod = None
    if parameters.eod_id is not None and counts.sequences:
        has_eod = documents.ended == counts.sequences
    manifest = sealed(
        Manifest(
            tool=TOOL,
            fingerprint=build.fingerprint,
            dataset=DatasetRecord(
                dtype=parameters.dtype, multimodal=False, field=None, units=documents.units
            ),
            counts=counts,
            files=files,
            tokenizer=build.tokenizer,
            options=replace(parameters, append_eod=has_eod),
            inputs=input_records(job.sources, output.units()),
            tokenizer_path=job.tokenizer_path,
            seal=UNSEALED,
        )
    )
    stage_manifest(directory, manifest)
    check_unchanged(job.sources)
    return manifest


def _report(
    job: _Conversion, manifest: Manifest | None, action: BuildAction, started: float
) -> ConvertReport:
    """Return the report of a conversion; without a manifest, of a dry run."""
    (prefix,) = job.outputs.prefixes
    parameters = job.parameters
    warnings = job.warnings
    output = DatasetProduct(prefix, job.outputs.build.tokenizer)
    if manifest is not None:
        output = DatasetProduct.of(prefix, manifest)
        parameters = replace(parameters, append_eod=manifest.options.append_eod)
        if manifest.counts.documents == 1:
            warnings += _warnings_of_one_document(job, ends_with_eod=bool(parameters.append_eod))
    return ConvertReport(
        action=action,
        state=job.outputs.state_of_new() if manifest is None else None,
        output=output,
        options=parameters,
        file_count=len(job.files),
        files=job.files if manifest is None else None,
        seconds=time.monotonic() - started,
        warnings=warnings,
    )


def _warnings_of_one_document(job: _Conversion, *, ends_with_eod: bool) -> tuple[str, ...]:
    single = "the source has a single document"
    if job.parameters.bos is not None:
        return (f"{single}: the BOS token {job.parameters.bos_id} begins no other one",)
    if not ends_with_eod and any(file.boundaries is None for file in job.files):
        return (f"{single}: no token is the EOD token {job.parameters.eod_id}, or --source-dtype is wrong",)
    return ()
