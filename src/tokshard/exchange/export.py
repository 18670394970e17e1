"""The export job: from an opened source to a published directory."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokshard.core.codec import TOOL, Amount, Count, Document
from tokshard.core.formatting import counted, listed, size, throughput
from tokshard.core.presentation import Section, outcome, planned
from tokshard.core.progress import Progress, ProgressUpdate, reporting
from tokshard.dataset.fingerprint import unchanged
from tokshard.dataset.outputs import BuildAction
from tokshard.errors import UsageError
from tokshard.exchange.directory import ExportDirectory, OutputState, other_files
from tokshard.exchange.format import (
    ChosenDtype,
    ExportedFile,
    ExportParameters,
    Format,
    KnownSource,
    Stage,
    all_formats,
    choose_dtype,
    format_of,
)
from tokshard.exchange.manifest import ExportManifest, SourceKind
from tokshard.exchange.options import ExportOptions
from tokshard.exchange.source import OpenSource, open_source
from tokshard.storage.digest import UNSEALED, sealed
from tokshard.storage.lock import lock_mode
from tokshard.storage.paths import strip_data_suffix

if TYPE_CHECKING:
    import numpy as np

_SHOWN_FILES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportReport(Document):
    """An export, and what :func:`tokshard.export` did."""

    SCHEMA = "tokshard.export-report/2"

    output: str
    source: str
    action: BuildAction
    parameters: ExportParameters
    kind: SourceKind
    manifest: ExportManifest | None = None
    state: OutputState | None = None
    dtype_detail: str
    records: Count
    source_tokens: Count
    files: Count
    shards: Count | None = None
    size_bytes: Count | None = None
    seconds: Amount
    warnings: tuple[str, ...] = ()

    def sections(self) -> list[Section]:
        """Return what was done, or would be done, for people."""
        manifest = self.manifest
        parameters = self.parameters
        records = counted(self.records, "document" if self.kind == "dataset" else "sample")
        files = counted(self.files, "file")
        documents = ""
        if manifest is None:
            source = f"{self.source} ({self.kind}, {records}"
            limit = f"shards of {counted(parameters.shard_tokens, 'token')}"
            if parameters.bos_id is not None:
                eod = "none" if parameters.eod_id is None else str(parameters.eod_id)
                documents = f"BOS token {parameters.bos_id} before, EOD token left out: {eod}"
            facts = [
                ("source", f"{source}, {counted(self.source_tokens, 'token')})"),
                ("format", f"{parameters.format}, {files}, {limit}"),
                ("dtype", f"{parameters.dtype}: {self.dtype_detail}"),
                ("documents", documents),
                ("output", f"{self.output} ({self.state})"),
            ]
            return [planned(facts)]
        dtype = manifest.parameters.dtype
        tokens = counted(manifest.tokens, "token")
        written = f"{self.output} ({files}, {size(manifest.size_bytes)}: {records}, {tokens} of {dtype})"
        if manifest.tokens_added or manifest.tokens_left_out:
            left_out = counted(manifest.tokens_left_out, "EOD token")
            added = counted(manifest.tokens_added, "BOS token")
            documents = f"{added} added before them, {left_out} left out after them"
        facts = [("dtype", f"{dtype}: {self.dtype_detail}"), ("documents", documents)]
        speed = throughput(self.seconds, manifest.size_bytes, manifest.tokens)
        return [
            outcome(self.action, [written], facts, speed, [f"tokshard verify {shlex.quote(self.output)}"])
        ]


def export(
    options: ExportOptions, *, dry_run: bool = False, progress: Progress | None = None
) -> ExportReport:
    """Write the documents of a dataset, or samples in training order, in the format of another trainer.

    The token files have the bytes that the format's own writer makes from the same ids. Files get their names
    when all are complete, and the manifest, ``.tokshard/export.json``, last; an export that was interrupted
    starts again. Memory does not depend on the size of the source.

    Args:
        options: The source, the format, the output and the options.
        dry_run: Whether to plan the export without writing anything.
        progress: Receives the progress.

    Raises:
        UsageError: The options do not fit the source.
        MissingExtraError: The format needs a package that is not installed.
        InputError: The source is missing, changed during the export, or has ids that do not fit the dtype.
        IntegrityError: The source is damaged.
        OutputExistsError: The output exists and ``force`` is not set.
        LockedError: Another process is writing this output.
        StorageError: A read or write failed.

    Example:
        >>> report = export(ExportOptions(source="out/web", to="olmo", output="out/olmo"))  # doctest: +SKIP
        >>> report.files  # doctest: +SKIP
        2
    """
    started = time.monotonic()
    with lock_mode(options.lock), reporting(progress) as listener:
        listener.start("reading indexes")
        job = _prepare(options)
        if dry_run:
            return _report(job, "planned", started)
        with unchanged(job.source.prefixes) as check_source:
            manifest = job.output.up_to_date()
            if manifest is not None:
                return _report(job, "found", started, manifest)
            with job.output.locked():
                manifest = None if options.force else job.output.finished()
                if manifest is not None:
                    return _report(job, "found", started, manifest)
                manifest = _written(job, listener, check_source)
            return _report(job, "written", started, manifest)


@dataclass(frozen=True, slots=True)
class _ExportJob:
    options: ExportOptions
    source: OpenSource
    dtype: ChosenDtype
    parameters: ExportParameters
    form: Format
    output: ExportDirectory


def _prepare(options: ExportOptions) -> _ExportJob:
    kind = format_of(options.to)
    if options.samples and kind.NO_SAMPLES is not None:
        others = [name for name, form in all_formats().items() if form.NO_SAMPLES is None]
        raise UsageError(
            f"samples cannot be exported to {options.to}: {kind.NO_SAMPLES}",
            hint=f"export the documents, or the samples --to {', '.join(others[:-1])} or {others[-1]}",
        )
    source = open_source(options)
    dtype = choose_dtype(
        source.records,
        kind.DTYPES,
        requested=options.dtype,
        vocab_size=options.vocab_size or source.id_limit,
    )
    parameters = _parameters(options, source, dtype.dtype)
    form = kind(source.records, parameters)
    output = ExportDirectory(options.directory, parameters, source.description, force=options.force)
    return _ExportJob(options, source, dtype, parameters, form, output)


def _parameters(options: ExportOptions, source: OpenSource, dtype: np.dtype[Any]) -> ExportParameters:
    form = format_of(options.to)
    limit = options.shard_tokens or form.SHARD_TOKENS
    if options.shard_size is not None:
        limit = max(1, options.shard_size // dtype.itemsize)
    name = options.name or (options.split if form.IS_NAMED_AS_SPLIT else None) or form.DEFAULT_NAME
    path = os.fspath(options.source)
    return ExportParameters(
        format=options.to,
        dtype=dtype.name,
        name=name or os.path.basename(strip_data_suffix(path).rstrip("/")) or "tokens",
        shard_tokens=limit,
        last_label=source.last_label,
        pad_id=options.pad_id,
        **form.parameters(options, KnownSource(path, dtype, source.tokenizer, source.tokenizer_path)),
    )


def _written(job: _ExportJob, progress: Progress, check_source: Callable[[], None]) -> ExportManifest:
    """Write all files and publish them."""
    output = job.output
    output.refuse_existing()
    with Stage(output.work) as stage:
        added = _write_files(job, stage, progress)
    manifest = _manifest(job, added, tuple(sorted(stage.files, key=lambda file: file.name)))
    check_source()
    output.refuse_sources(manifest, job.source.prefixes)
    output.publish(manifest)
    return manifest


def _write_files(job: _ExportJob, stage: Stage, progress: Progress) -> int:
    records = job.source.records
    itemsize = job.dtype.dtype.itemsize
    done = 0
    progress.start("exporting", records.tokens * itemsize)

    def advance(tokens: int) -> None:
        nonlocal done
        # Some formats read the end twice.
        done = min(done + tokens, records.tokens)
        progress.update(ProgressUpdate(done * itemsize, tokens=done))

    records.listener = advance
    return job.form.export(stage)


def _manifest(job: _ExportJob, added: int, files: tuple[ExportedFile, ...]) -> ExportManifest:
    records = job.source.records
    tokens = sum(file.tokens or 0 for file in files)
    return sealed(
        ExportManifest(
            tool=TOOL,
            parameters=job.parameters,
            source=job.source.description,
            tokenizer=job.source.tokenizer.identity,
            records=records.count,
            tokens=tokens,
            tokens_added=added,
            tokens_left_out=records.tokens + added - tokens,
            files=files,
            seal=UNSEALED,
        )
    )


def _report(
    job: _ExportJob, action: BuildAction, started: float, manifest: ExportManifest | None = None
) -> ExportReport:
    # No manifest means a dry run.
    records = job.source.records
    return ExportReport(
        output=job.options.directory,
        source=os.fspath(job.options.source),
        action=action,
        parameters=job.parameters,
        kind=job.source.description.kind,
        manifest=manifest,
        state=job.output.state() if manifest is None else None,
        dtype_detail=job.dtype.reason,
        records=records.count,
        source_tokens=records.tokens,
        files=job.form.count_files() if manifest is None else len(manifest.files),
        shards=manifest.shards if manifest else None,
        size_bytes=manifest.size_bytes if manifest else None,
        seconds=time.monotonic() - started,
        warnings=tuple(_warnings(job, manifest)) if manifest else (),
    )


def _warnings(job: _ExportJob, manifest: ExportManifest) -> Iterator[str]:
    parameters = manifest.parameters
    warning = format_of(parameters.format).warning(parameters, manifest.shards, manifest.tokens)
    if warning is not None:
        yield warning
    if others := other_files(job.options.directory, manifest):
        yield (
            f"{job.options.directory} has {counted(len(others), 'file')} that readers of the format read, "
            f"too: {listed(others, _SHOWN_FILES)}"
        )
