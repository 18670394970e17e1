"""The export job: from an opened source to a published directory.

All files are written into ``.tokshard/work/`` and published together, the manifest last: see
:mod:`tokshard.storage.publication`.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tokshard.core.codec import TOOL, Amount, Count, Document
from tokshard.core.formatting import counted, listed, size, throughput
from tokshard.core.presentation import Section, outcome, planned
from tokshard.core.progress import Progress, ProgressUpdate, reporting
from tokshard.dataset.fingerprint import unchanged
from tokshard.dataset.outputs import BuildAction
from tokshard.dataset.products import EXPORT_DIRECTORY, EXPORT_NAME, is_export
from tokshard.errors import IntegrityError, OlderVersionError, OutputExistsError, StorageError, UsageError
from tokshard.exchange.format import Format, Stage, all_formats, format_of
from tokshard.exchange.manifest import ExportManifest, ExportParameters, SourceKind, check_sizes, read_export
from tokshard.exchange.options import ExportOptions, FormatName
from tokshard.exchange.source import OpenSource, open_source
from tokshard.storage import syscalls
from tokshard.storage.digest import UNSEALED, sealed
from tokshard.storage.files import is_same_file, is_temporary, remove_if_empty, write_atomically
from tokshard.storage.lock import WriterLock, lock_mode
from tokshard.storage.paths import bin_path, idx_path, is_remote, strip_data_suffix
from tokshard.storage.publication import publish, refuse_link, staging_directory

OutputState = Literal["new", "up-to-date", "exists"]

_SHOWN_FILES = 3


def has_unfinished_work(directory: str) -> bool:
    """Return whether an export into a directory was interrupted, or is still active."""
    return os.path.isdir(os.path.join(directory, EXPORT_DIRECTORY, "work"))


def other_files(directory: str, manifest: ExportManifest) -> list[str]:
    """Return the names of files beside an export that readers of its format read, too."""
    names = {file.name for file in manifest.files}
    return [name for name in _files_of_format(directory, manifest.parameters.format) if name not in names]


def _files_of_format(directory: str, to: FormatName) -> list[str]:
    """Return the names of the files that readers of a format read."""
    try:
        names = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StorageError("read", directory, error) from error
    return sorted(name for name in names if name.endswith(format_of(to).SUFFIXES) and not is_temporary(name))


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
        speed = throughput(self.seconds, manifest.size_bytes, manifest.tokens, " written")
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
            manifest, action = job.stage_and_publish(listener, check_source)
        return _report(job, action, started, manifest)


@dataclass(frozen=True, slots=True)
class _ExportJob:
    """An export: what is written, and the states of its directory."""

    options: ExportOptions
    source: OpenSource
    dtype_reason: str
    form: Format

    @property
    def path(self) -> str:
        return self.options.directory

    @property
    def work(self) -> str:
        return os.path.join(self.path, EXPORT_DIRECTORY, "work")

    def state(self) -> OutputState:
        """Return the state that a run would start from, for a dry run."""
        try:
            if self._found() is not None:
                return "up-to-date"
        except OutputExistsError:
            return "exists"
        is_new = not (is_export(self.path) or _files_of_format(self.path, self.options.to))
        return "new" if is_new else "exists"

    def stage_and_publish(
        self, progress: Progress, check_source: Callable[[], None]
    ) -> tuple[ExportManifest, BuildAction]:
        """Stage the export and publish it, unless it is there; complete an interrupted publication first."""
        own = os.path.join(self.path, EXPORT_DIRECTORY)
        lock = os.path.join(own, "lock")
        has_leftovers = any(map(os.path.lexists, (self.work, lock)))
        if not has_leftovers and (manifest := self._found()) is not None:
            return manifest, "found"
        if os.path.lexists(self.path) and not os.path.isdir(self.path):
            raise UsageError(f"--output must be a directory, got the file {self.path}")
        refuse_link(own)
        syscalls.make_directory(own)
        try:
            with WriterLock(lock), staging_directory(self.path, self.work, force=self.options.force):
                if (manifest := self._found()) is not None:
                    return manifest, "found"
                manifest = _staged(self, progress)
                check_source()
                _refuse_sources(self, manifest)
                self._publish(manifest)
        finally:
            remove_if_empty(own)
        return manifest, "written"

    def _found(self) -> ExportManifest | None:
        """Return the manifest if the directory holds this export, complete by its sizes; None to write it.

        Raises:
            OutputExistsError: It holds something else that may not be replaced.
            OlderVersionError: The export is of an earlier version, and nobody knows which files to remove.
            IntegrityError: The manifest is damaged, a file is missing, or its size differs.
        """
        try:
            manifest = read_export(self.path)
        except IntegrityError as error:
            if self.options.force and not isinstance(error, OlderVersionError):
                return None
            raise
        if self.options.force:
            return None
        if manifest is not None:
            differences = manifest.differences_from(self.form.parameters, self.source.description)
            if differences:
                raise OutputExistsError(
                    f"{self.path} exists already and was made from other options or data: "
                    f"{'; '.join(differences)}",
                    differences=differences,
                    hint="pass --force to replace it, or choose another --output",
                )
            check_sizes(self.path, manifest)
        elif foreign := _files_of_format(self.path, self.options.to):
            raise OutputExistsError(
                f"{os.path.join(self.path, foreign[0])} exists already and has no manifest: tokshard did not "
                "write it",
                hint="choose an empty directory: readers would read the file, too",
            )
        return manifest

    def _publish(self, manifest: ExportManifest) -> None:
        """Give the staged files their names, the manifest last.

        Raises:
            OutputExistsError: Another program has created a file of the format.
        """
        content = manifest.to_bytes()
        ExportManifest.from_bytes(content, EXPORT_NAME)
        write_atomically(os.path.join(self.work, EXPORT_NAME), content)
        self._found()
        names = {file.name: file.name for file in manifest.files}
        try:
            old = read_export(self.path)
        except IntegrityError:
            old = None  # only --force comes here
        publish(
            self.path,
            self.work,
            names,
            last={EXPORT_NAME: f"{EXPORT_DIRECTORY}/{EXPORT_NAME}"},
            removes=[file.name for file in old.files if file.name not in names] if old else (),
            replaces=self.options.force,
        )


def _prepare(options: ExportOptions) -> _ExportJob:
    kind = format_of(options.to)
    if options.samples and kind.NO_SAMPLES is not None:
        others = [name for name, form in all_formats().items() if form.NO_SAMPLES is None]
        raise UsageError(
            f"samples cannot be exported to {options.to}: {kind.NO_SAMPLES}",
            hint=f"export the documents, or the samples --to {', '.join(others[:-1])} or {others[-1]}",
        )
    source = open_source(options, has_last_label=kind.HAS_LAST_LABEL)
    name, reason = _dtype(options, source, kind.DTYPES)
    dtype = np.dtype(name)
    path = os.fspath(options.source)
    limit = options.shard_tokens or kind.SHARD_TOKENS
    if options.shard_size is not None:
        limit = max(1, options.shard_size // dtype.itemsize)
    own_name = options.name or (options.split if kind.IS_NAMED_AS_SPLIT else None) or kind.DEFAULT_NAME
    parameters = ExportParameters(
        format=options.to,
        dtype=name,
        name=own_name or os.path.basename(strip_data_suffix(path).rstrip("/")) or "tokens",
        shard_tokens=limit,
        last_label=source.last_label,
        pad_id=options.pad_id,
        **kind.added_parameters(options, source, dtype),
    )
    return _ExportJob(
        options,
        source,
        reason,
        kind(source.records, parameters),
    )


def _dtype(options: ExportOptions, source: OpenSource, allowed: Sequence[str]) -> tuple[str, str]:
    """Return the dtype of the output, one of the format's, and the reason for it.

    It is the requested one; else the smallest that holds all ids of the vocabulary; else, if the size of the
    vocabulary is unknown, the smallest that is as wide as the tokens of the records.

    Raises:
        UsageError: The requested dtype is not one of the format's, or none holds the vocabulary.
    """
    if options.dtype is not None:
        if options.dtype not in allowed:
            raise UsageError(f"--dtype must be one of {', '.join(allowed)}, got {options.dtype!r}")
        return options.dtype, "requested by --dtype"
    vocab_size = options.vocab_size or source.id_limit
    if vocab_size is not None:
        for name in allowed:
            if vocab_size - 1 <= int(np.iinfo(name).max):
                return name, f"holds the vocabulary of {vocab_size:,} tokens"
        raise UsageError(
            f"a vocabulary of {vocab_size:,} tokens does not fit {allowed[-1]}, the format's largest dtype"
        )
    own = source.records.token_dtype
    wide = next((name for name in allowed if np.dtype(name).itemsize >= own.itemsize), allowed[-1])
    return wide, f"as wide as the {own.name} tokens: the vocabulary size is unknown"


def _staged(job: _ExportJob, progress: Progress) -> ExportManifest:
    """Write all files into the staging directory; return their manifest."""
    records = job.source.records
    parameters = job.form.parameters
    itemsize = np.dtype(parameters.dtype).itemsize
    done = 0
    progress.start("exporting", records.tokens * itemsize)

    def advance(tokens: int) -> None:
        nonlocal done
        # Some formats read the end twice.
        done = min(done + tokens, records.tokens)
        progress.update(ProgressUpdate(done * itemsize, tokens=done, content=" written"))

    records.listener = advance
    with Stage(job.work) as stage:
        added = job.form.export(stage)
    tokens = sum(file.tokens or 0 for file in stage.files)
    return sealed(
        ExportManifest(
            tool=TOOL,
            parameters=parameters,
            source=job.source.description,
            tokenizer=job.source.tokenizer.identity,
            records=records.count,
            tokens=tokens,
            tokens_added=added,
            tokens_left_out=records.tokens + added - tokens,
            files=tuple(sorted(stage.files, key=lambda file: file.name)),
            seal=UNSEALED,
        )
    )


def _refuse_sources(job: _ExportJob, manifest: ExportManifest) -> None:
    """Raise UsageError if a file of the export would replace a file of a dataset that it is made of."""
    names = {file.name for file in manifest.files}
    for prefix in job.source.prefixes:
        for source in (bin_path(prefix), idx_path(prefix)):
            name = os.path.basename(source)
            if name not in names or is_remote(prefix):
                continue
            if is_same_file(source, os.path.join(job.path, name)):
                raise UsageError(
                    f"--output {job.path} would replace the source {source}",
                    hint="pass another --output or --name",
                )


def _report(
    job: _ExportJob, action: BuildAction, started: float, manifest: ExportManifest | None = None
) -> ExportReport:
    # No manifest means a dry run.
    records = job.source.records
    return ExportReport(
        output=job.path,
        source=os.fspath(job.options.source),
        action=action,
        parameters=job.form.parameters,
        kind=job.source.description.kind,
        manifest=manifest,
        state=job.state() if manifest is None else None,
        dtype_detail=job.dtype_reason,
        records=records.count,
        source_tokens=records.tokens,
        files=job.form.count_files() if manifest is None else len(manifest.files),
        shards=manifest.shards if manifest else None,
        size_bytes=manifest.size_bytes if manifest else None,
        seconds=time.monotonic() - started,
        warnings=tuple(filter(None, _warnings(job, manifest))) if manifest else (),
    )


def _warnings(job: _ExportJob, manifest: ExportManifest) -> Iterator[str | None]:
    yield job.form.warning(manifest.shards, manifest.tokens)
    if others := other_files(job.path, manifest):
        yield (
            f"{job.path} has {counted(len(others), 'file')} that readers of the format read, "
            f"too: {listed(others, _SHOWN_FILES)}"
        )
