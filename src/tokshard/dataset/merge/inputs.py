"""Inputs of a merge: expanded from the arguments, and checked completely before anything is written."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tokshard.core.formatting import listed
from tokshard.dataset.counts import NO_COUNTS, Counts
from tokshard.dataset.directories import is_in_sidecar
from tokshard.dataset.fingerprint import unchanged
from tokshard.dataset.index_file import IndexColumns, read_header
from tokshard.dataset.layout import MAX_POINTER_BYTES, IndexHeader
from tokshard.dataset.manifest import (
    UNKNOWN_ENCODER,
    DatasetRecord,
    Manifest,
    check_sizes,
    manifest_path,
    read_manifest,
)
from tokshard.dataset.products import dataset_hint
from tokshard.dataset.reader import require_files
from tokshard.dataset.recorded_tokenizers import DatasetTokenizer
from tokshard.dataset.source import InputFile
from tokshard.errors import InputError, IntegrityError, MissingFileError, UsageError
from tokshard.storage import fs, paths
from tokshard.storage.digest import FileState
from tokshard.storage.paths import bin_path, idx_path

_SHOWN_NAMES = 5


def expand(arguments: Sequence[str], output: str = "") -> tuple[str, ...]:
    """Return the path prefixes that the arguments name, in the order of the arguments.

    An argument is the prefix of a dataset, one of its files, or a glob of either. The matches of a glob are
    in natural order, and never include the output. A shell expands ``part-*`` to all files of each dataset:
    different files of one dataset name it once. The same argument twice names it twice.

    Raises:
        InputError: A glob matches no dataset.
        UsageError: The output is among the inputs.

    Example:
        >>> expand(["a.bin", "a.idx", "b", "b"], "out")
        ('a', 'b', 'b')
    """
    spellings: Counter[str] = Counter()
    times: Counter[str] = Counter()
    prefixes = []
    for spelling in (found for argument in arguments for found in _expand_glob(argument, output)):
        prefix = paths.strip_data_suffix(spelling)
        spellings[spelling] += 1
        if spellings[spelling] > times[prefix]:
            times[prefix] += 1
            prefixes.append(prefix)
    _refuse_output(prefixes, output)
    return tuple(prefixes)


def named_twice(prefixes: Sequence[str]) -> list[str]:
    """Return the prefixes that name the same dataset as an earlier one."""
    seen: set[str] = set()
    found = []
    for prefix in prefixes:
        real = os.path.realpath(idx_path(prefix))
        if real in seen:
            found.append(prefix)
        seen.add(real)
    return found


def _expand_glob(argument: str, output: str) -> Iterator[str]:
    if "\0" in argument:
        raise InputError(f"invalid path {argument!r}: it contains a NUL character")
    is_prefix = any(fs.lexists(path(argument)) for path in (bin_path, idx_path))
    if is_prefix or not paths.is_glob(argument):
        yield argument
        return
    suffixes = (paths.BIN_SUFFIX, paths.IDX_SUFFIX, paths.SIDECAR_SUFFIX)
    named = [path for path in fs.glob(argument) if path.endswith(suffixes)]
    named += [path for suffix in suffixes for path in fs.glob(argument + suffix)]
    prefixes = {paths.strip_data_suffix(path) for path in named if not is_in_sidecar(path, argument)}
    if output:  # the real path of no output is the current directory, which can have the name of a dataset
        prefixes -= {prefix for prefix in prefixes if os.path.realpath(prefix) == os.path.realpath(output)}
    if not prefixes:
        raise InputError(f"no dataset matches {argument}", hint=_hint_of_glob(argument))
    yield from sorted(prefixes, key=paths.natural_key)


def _hint_of_glob(pattern: str) -> str:
    """Return the hint about a glob without a match: the content of its directory."""
    pair = "pass the path prefix of a .bin and .idx pair"
    if paths.is_remote(pattern):
        return pair
    directory = os.path.dirname(pattern)
    while paths.is_glob(directory):
        directory = os.path.dirname(directory)
    directory = directory or os.curdir
    try:
        names = sorted(os.listdir(directory), key=paths.natural_key)
    except OSError as error:
        return f"{pair}; cannot list {directory}: {error.strerror}"
    return dataset_hint(directory) or f"{pair}; {directory} has {listed(names, _SHOWN_NAMES) or 'no files'}"


def _refuse_output(prefixes: Sequence[str], output: str) -> None:
    outputs = {os.path.realpath(path(output)) for path in (bin_path, idx_path)}
    for prefix in prefixes:
        if outputs & {os.path.realpath(path(prefix)) for path in (bin_path, idx_path)}:
            raise UsageError(
                f"--output {output} is one of the inputs",
                hint="pass another --output; a quoted glob skips the output",
            )


@dataclass(frozen=True, slots=True)
class MergeInput:
    """A checked dataset to be merged: its complete index is valid.

    Attributes:
        states: The states of its files and its manifest, which must not change until the merge ends.
        record: The properties in the manifest, or those that the index shows.
        counts: The counts in the manifest, or those that the index shows.
        manifest: The manifest, or None for a dataset written by another program.
    """

    prefix: str
    header: IndexHeader
    bin_bytes: int
    states: tuple[FileState, ...]
    record: DatasetRecord
    counts: Counts
    manifest: Manifest | None

    @property
    def tokenizer(self) -> DatasetTokenizer:
        """Its tokenizer, as far as it is known."""
        return self.manifest.dataset_tokenizer if self.manifest else DatasetTokenizer()

    @property
    def has_provenance(self) -> bool:
        """True if the origin of its documents is known."""
        return self.manifest is not None and self.manifest.files.provenance is not None

    @property
    def is_shuffled(self) -> bool:
        """True if its documents are in another order than its units."""
        return self.manifest is not None and self.manifest.files.order is not None

    def columns(self, *, multimodal: bool) -> IndexColumns:
        """Open the index again; it is closed when the columns are dropped."""
        return IndexColumns(idx_path(self.prefix), multimodal=multimodal)

    def check_unchanged(self) -> None:
        """Raise InputError if a size or modification time has changed since the input was checked."""
        if _states(self.prefix) != self.states:
            raise InputError(
                f"{self.prefix} changed during the merge",
                hint="run the same command again when no process writes the dataset",
            )


def read_input(prefix: str, *, multimodal: bool) -> MergeInput:
    """Open one dataset, check all of it but the tokens themselves, and close it.

    Raises:
        MissingFileError: One of its files does not exist.
        InputError: ``multimodal`` does not match the dataset, or the dataset changed.
        IntegrityError: It is damaged, truncated, or contradicts its manifest.
        StorageError: It cannot be read.
    """
    require_files(prefix)
    with unchanged([prefix]):
        states = _states(prefix)
        bin_bytes = states[0].size_bytes or 0
        manifest = read_manifest(prefix)
        _refuse_other_kind(prefix, multimodal=multimodal)
        columns = IndexColumns(idx_path(prefix), multimodal=multimodal).checked(bin_bytes)
        header = columns.header
        record = DatasetRecord(dtype=header.dtype.name, multimodal=multimodal, field=None, units=1)
        counts = replace(
            NO_COUNTS,
            records=header.document_count,
            documents=header.document_count,
            content_bytes=bin_bytes,
            sequences=header.sequence_count,
            tokens=bin_bytes // header.dtype.itemsize,
            empty_documents=sum(int((piece == 0).sum()) for piece in columns.sequences_per_document()),
            longest_sequence=max(
                (int(piece.max()) for piece in columns.sequence_lengths.pieces()), default=0
            ),
            encoders={UNKNOWN_ENCODER: header.document_count},
        )
        if manifest is not None:
            check_sizes(prefix, manifest)
            _check_manifest(prefix, manifest, record, counts)
            record = manifest.dataset
            counts = manifest.counts
        return MergeInput(prefix, header, bin_bytes, states, record, counts, manifest)


def check_together(inputs: Sequence[MergeInput]) -> None:
    """Check that the inputs can be merged."""
    first = inputs[0]
    for other in inputs:
        if other.header.dtype != first.header.dtype:
            raise InputError(
                f"all inputs must have the same dtype, got {first.header.dtype.name} ({first.prefix}) and "
                f"{other.header.dtype.name} ({other.prefix})",
                hint="tokenize again with the same --dtype for all, such as --dtype int32",
            )
    total = sum(dataset.bin_bytes for dataset in inputs)
    if total > MAX_POINTER_BYTES:
        raise InputError(f"the inputs have {total:,} bytes of tokens, more than the index can address")


def _states(prefix: str) -> tuple[FileState, ...]:
    # Of the .bin file, the .idx file and the manifest, if there is one.
    files = [bin_path(prefix), idx_path(prefix)]
    if fs.lexists(manifest_path(prefix)):
        files.append(manifest_path(prefix))
    try:
        return tuple(map(FileState.of, files))
    except MissingFileError as error:
        raise MissingFileError(
            f"{error.message} (it was removed during the merge)", path=error.filename
        ) from None


def _refuse_other_kind(prefix: str, *, multimodal: bool) -> None:
    # Only the size of an index shows whether it has modes, unless there are no sequences.
    file = InputFile(idx_path(prefix))
    header = read_header(file)
    if (
        file.size_bytes
        == header.index_bytes(multimodal=not multimodal)
        != header.index_bytes(multimodal=multimodal)
    ):
        is_now, flag = ("has no modes", "without") if multimodal else ("is multimodal", "with")
        raise InputError(
            f"cannot merge text and multimodal datasets: {prefix} {is_now}",
            hint=f"merge {flag} --multimodal if all inputs are of this kind",
        )


def _check_manifest(prefix: str, manifest: Manifest, record: DatasetRecord, counts: Counts) -> None:
    names = ("documents", "sequences", "tokens", "empty_documents", "longest_sequence")
    checked = [(f"counts.{name}", getattr(manifest.counts, name), getattr(counts, name)) for name in names]
    for field, expected, value in (*checked, ("dataset.dtype", manifest.dataset.dtype, record.dtype)):
        if value != expected:
            name = field.partition(".")[2]
            raise IntegrityError(
                f"{prefix}: {name} must be {expected!r} by its manifest, got {value}",
                path=prefix,
                field=field,
                hint="rebuild the dataset: it changed after tokshard wrote it",
            )
