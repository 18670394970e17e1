"""Discovery of inputs: files, globs, directories, lists and standard input."""

from __future__ import annotations

import glob
import io
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import NamedTuple

from tokshard.core.background import in_order
from tokshard.core.formatting import counted, listed
from tokshard.dataset.manifest import SourceFile
from tokshard.dataset.parameters import TextFormat
from tokshard.errors import InputError, StorageError, TokshardError, UsageError
from tokshard.storage.paths import GLOB_CHARACTERS, SIDECAR_SUFFIX, is_glob, is_remote, natural_key
from tokshard.storage.reading import irregular_kind, open_file, open_passed
from tokshard.storage.remote import objects
from tokshard.text.corpus.content import HEAD_BYTES, Content, identify, refuse_utf16
from tokshard.text.corpus.formats import (
    DATA_NAME,
    FORMATS,
    HINT_NAMES,
    NAME_WITH_HEADER,
    PACKED,
    format_named,
)
from tokshard.text.corpus.hub_datasets import HubDatasets
from tokshard.text.corpus.saved_dataset import SavedDatasets, is_intermediate

STDIN = "-"
# Files that Hugging Face's datasets library writes next to its data.
_METADATA_NAMES = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json"}
_SUFFIX = re.compile(rf"(?<=.)\.[^.]+{PACKED}", re.IGNORECASE)
_SHOWN_KINDS = 6
LOOKS_AT_ONCE = 16
"""Inputs that are opened at the same time, to look at their beginnings."""
_COMPRESSED_TO_PLAIN = 8
_LARGE_BYTES = 1 << 62
_HINT_SPELLING = "check the path; relative paths start at the current directory"


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusFile(SourceFile):
    """One input.

    Attributes:
        path: As the user passed it; ``"-"`` is standard input.
        size_bytes: Size in bytes, or None for a stream (standard input, a named pipe).
        mtime_ns: Modification time, or None for a stream.
        version: Version of an object in a store (its ETag, for example); None otherwise.
        compression: Compression. A stream has the first format and compression ``"none"`` until it is read.
    """

    format: TextFormat

    @property
    def source(self) -> SourceFile:
        """The input as it is recorded."""
        return SourceFile(**{field.name: getattr(self, field.name) for field in fields(SourceFile)})

    @property
    def has_lines(self) -> bool:
        """True if its records are lines, with byte offsets; False for a table, whose rows are numbered."""
        return format_named(self.format).has_lines

    @property
    def is_stream(self) -> bool:
        """True if it can only be read sequentially, by one process."""
        return self.size_bytes is None or self.compression != "none"


class _Search(NamedTuple):
    hub: HubDatasets
    saved: SavedDatasets
    tell: Callable[[str], None]


def discover(
    arguments: Sequence[str],
    hub: HubDatasets | None = None,
    *,
    split: str | None = None,
    tell: Callable[[str], None] = lambda _text: None,
) -> tuple[CorpusFile, ...]:
    """Return the inputs that the arguments name, in the order of the arguments.

    An argument is a file, a glob (also with ``**``), a directory (searched recursively for names such as
    ``*.jsonl.zst``), ``@list.txt`` (one argument per line, comment lines begin with ``#``) or ``-``. Files of
    a glob or directory are in natural order: ``part-2`` before ``part-10``. All but ``-`` can be URLs. URLs
    of the Hugging Face Hub are read at the commits that ``hub`` chooses. A directory that ``save_to_disk``
    wrote is the files of ``split``. ``tell`` receives messages for the user, such as the files of a directory
    that are left out.

    Raises:
        InputError: An input does not exist, cannot be read, or cannot contain records.
        StorageError: A store does not answer.
        UsageError: The same file is passed twice, or no input is passed.

    Example:
        >>> [file.path for file in discover(["-"])]
        ['-']
    """
    search = _Search(hub or HubDatasets(), SavedDatasets(split, tell), tell)
    entries = [entry for argument in arguments for entry in _entries(argument)]
    paths = [path for entry in entries for path in _expand(entry, search)]
    search.hub.check_used(split_is_used=search.saved.is_used)
    if not paths:
        raise UsageError("an input is required", hint="pass files, directories, globs, @list.txt or -")
    _refuse_twice(paths)
    # Requests to a store have a high latency, unlike those to a local disk.
    remote_ones = in_order(
        (partial(_describe_object, url) for url in filter(is_remote, paths)), LOOKS_AT_ONCE
    )
    return tuple(next(remote_ones) if is_remote(path) else _describe(path) for path in paths)


def _entries(argument: str) -> list[str]:
    """Return an argument, or the arguments in a list of them."""
    if not argument.startswith("@"):
        return [argument]
    path = argument[1:]
    try:
        with io.TextIOWrapper(open_passed(path), encoding="utf-8-sig", errors="surrogateescape") as file:
            lines = [line.strip() for line in file]
    except TokshardError:
        raise
    except OSError as error:
        raise InputError(f"cannot read the list {path}: {error.strerror}", hint=_HINT_SPELLING) from error
    entries = [line for line in lines if line and not line.startswith("#")]
    if not entries:
        raise InputError(f"the list {path} contains no inputs", hint="write one path per line")
    return entries


def _expand(argument: str, search: _Search) -> list[str]:
    if "\0" in argument:
        raise InputError(
            f"paths must not contain NUL characters, got {argument[:40]!r}",
            hint="check the list of inputs: it must be a text file with one path per line",
        )
    files = search.hub.files(argument, partial(_files_of, search=search))
    return _files_of(argument, search) if files is None else files


def _files_of(argument: str, search: _Search) -> list[str]:
    """Return the files that a path, a glob, a directory, or a URL of one of these names."""
    if argument == STDIN:
        return [argument]
    if is_remote(argument):
        has_pattern = GLOB_CHARACTERS.search(argument) and not argument.startswith(("http://", "https://"))
        if has_pattern and not objects.exists(argument):
            return _matches(argument, objects.glob(argument), search)
        is_directory = argument.endswith("/") or (
            not DATA_NAME.search(argument) and objects.is_directory(argument)
        )
    elif is_glob(argument):
        return _matches(argument, glob.glob(argument, recursive=True), search)
    else:
        is_directory = os.path.isdir(argument)
    return _files_in(argument, search) if is_directory else [argument]


def _matches(pattern: str, paths: list[str], search: _Search) -> list[str]:
    directories = set() if is_remote(pattern) else {path for path in paths if os.path.isdir(path)}
    files = [path for path in paths if path not in directories and not _is_marker(path)]
    files = _without_results(files, pattern, search)
    if files:
        _refuse_special(files)
        return sorted(files, key=natural_key)
    if is_remote(pattern):
        raise InputError(
            f"no objects match {pattern}", hint="check the URL, and that the credentials allow listing"
        )
    if directories:
        raise InputError(
            f"{pattern} matches directories but no files",
            hint="pass the directories themselves, or end the glob with /**/*.jsonl",
        )
    raise InputError(f"no files match {pattern}", hint=_HINT_SPELLING)


def _is_marker(path: str) -> bool:
    name = os.path.basename(path)
    return name.startswith("_") and not DATA_NAME.search(name)


def _without_results(paths: list[str], pattern: str, search: _Search) -> list[str]:
    """Return the paths that no program wrote as a result of data nearby, unless the pattern names these."""
    existing = set(paths)
    kept = [
        path
        for path in paths
        if (SIDECAR_SUFFIX in pattern or f"{SIDECAR_SUFFIX}/" not in path)
        and ("cache-" in pattern or is_remote(path) or not is_intermediate(path))
        and (os.path.basename(path) in pattern or not _is_metadata(path, existing))
    ]
    if len(kept) < len(paths):
        results = counted(len(paths) - len(kept), "file")
        search.tell(
            f"left out of {pattern}: {results} in *{SIDECAR_SUFFIX}/, or metadata and cache-*.arrow of a "
            "saved dataset"
        )
    return kept


def _is_metadata(path: str, existing: set[str]) -> bool:
    directory, _, name = path.rpartition("/")
    is_state = name == "state.json" and f"{directory}/dataset_info.json" in existing
    return is_state or name in _METADATA_NAMES


def _files_in(directory: str, search: _Search) -> list[str]:
    if directory.rstrip("/").endswith(SIDECAR_SUFFIX):
        raise InputError(
            f"{directory} is part of a tokenized dataset",
            hint="pass the raw text instead; `tokshard inspect` shows datasets",
        )
    left_out: Counter[str] = Counter()
    found = sorted(_below(directory, left_out), key=natural_key)
    runs = search.saved.select(found)
    if runs is not None:
        runs.sort(key=lambda run: natural_key(run[0]))
        found = [path for run in runs for path in run]
    left_out.update(name for path in found if (name := os.path.basename(path)) in _METADATA_NAMES)
    found = [path for path in found if os.path.basename(path) not in _METADATA_NAMES]
    if left_out:
        kinds = [f"{number} {kind}" for kind, number in sorted(left_out.items())]
        search.tell(
            f"left out of {directory}: {listed(kinds, _SHOWN_KINDS)}; to read a file, pass its path or a glob"
        )
    if not found:
        raise InputError(f"the directory {directory} contains no inputs", hint=HINT_NAMES)
    _refuse_special(found)
    return found


def _refuse_special(paths: Sequence[str]) -> None:
    # A pipe that nobody passed may have no writer, and reading it would wait for ever.
    for path in paths:
        if is_remote(path):
            continue
        with suppress(OSError):  # reported when the file is described
            mode = os.stat(path).st_mode
            if not stat.S_ISREG(mode):
                raise InputError(
                    f"cannot read {path}: it is {irregular_kind(mode)}, not a regular file",
                    hint="remove it, or, to read a pipe, pass its own path",
                )


def _below(directory: str, left_out: Counter[str]) -> Iterator[str]:
    """Yield the files below a directory that are read; count the kinds of the others, except hidden ones."""
    base = directory.rstrip("/") + "/"
    skipped: set[tuple[str, ...]] = set()
    for path in objects.walk(base) if is_remote(directory) else _walk(directory, frozenset()):
        *parents, name = path.removeprefix(base).split("/")
        depth = next((depth for depth, parent in enumerate(parents) if _is_skipped(parent)), None)
        if depth is not None:
            skipped.add(tuple(parents[: depth + 1]))
        elif _is_read(name, left_out):
            yield path
    left_out.update(f"{name}/" for *_, name in skipped if not name.startswith("."))


def _walk(directory: str, above: frozenset[str]) -> Iterator[str]:
    """Yield the files below a directory, and skipped directories with a slash at the end."""
    # Symbolic links are followed, except cycles.
    real = os.path.realpath(directory)
    if real in above:
        return
    try:
        names = os.listdir(directory)
    except OSError as error:
        raise InputError(f"cannot list the directory {directory}: {error.strerror}") from error
    for name in names:
        path = os.path.join(directory, name)
        if not os.path.isdir(path):
            yield path
        elif _is_skipped(name):
            yield f"{path}/"
        else:
            yield from _walk(path, above | {real})


def _is_skipped(directory_name: str) -> bool:
    return directory_name.startswith((".", "_")) or directory_name.endswith(SIDECAR_SUFFIX)


def _is_read(name: str, left_out: Counter[str]) -> bool:
    """Return whether a file of a directory is read; count its kind otherwise, unless it is hidden."""
    if name.startswith(".") or _is_marker(name):
        return False
    if name.startswith("_"):
        left_out[name] += 1
        return False
    if not DATA_NAME.search(name):
        suffix = _SUFFIX.search(name)
        left_out[suffix[0] if suffix else name] += 1
        return False
    return True


def _refuse_twice(paths: Sequence[str]) -> None:
    seen: dict[str, str] = {}
    for path in paths:
        identity = path if path == STDIN or is_remote(path) else os.path.realpath(path)
        if identity in seen:
            also = f" (first as {seen[identity]})" if seen[identity] != path else ""
            name = "standard input" if path == STDIN else path
            raise UsageError(f"{name} is passed twice{also}", hint="pass each input once")
        seen[identity] = path


def _describe(path: str) -> CorpusFile:
    stream = CorpusFile(path=path, size_bytes=None, mtime_ns=None, format=FORMATS[0].name, compression="none")
    if path == STDIN:
        return stream
    try:
        status = os.stat(path)
        if stat.S_ISFIFO(status.st_mode):
            return stream
        if not stat.S_ISREG(status.st_mode):
            raise InputError(
                f"{path} must be a file or a pipe",
                hint="pipe the data into the command and pass - as the input",
            )
        with open_file(path) as file:
            content = _content(file.read(HEAD_BYTES), path)
    except FileNotFoundError as error:
        raise InputError(f"input not found: {path}", hint=_HINT_SPELLING) from error
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}", hint="check the permissions of the file"
        ) from error
    return replace(stream, size_bytes=status.st_size, mtime_ns=status.st_mtime_ns, **content._asdict())


def _describe_object(url: str) -> CorpusFile:
    status = objects.status(url)
    content = _content(objects.RemoteFile(url, status).read(0, HEAD_BYTES), url)
    return CorpusFile(path=url, **status._asdict(), **content._asdict())


def _content(head: bytes, path: str) -> Content:
    if not head and (suffix := NAME_WITH_HEADER.search(path)):
        raise InputError(
            f"{path} is empty, but a {suffix[0]} file has at least a header",
            hint=f"fetch {path} again, or remove it from the inputs",
            reason="empty-file",
        )
    refuse_utf16(head, path)
    return identify(head, path)


def check_unchanged(files: Sequence[SourceFile]) -> None:
    """Check that inputs have not changed since their states were taken.

    Raises:
        InputError: An input was changed or removed.
        StorageError: A store does not answer.
    """
    for file in files:
        if file.size_bytes is not None and not is_remote(file.path):
            _check_state(file)
    remote = (partial(_check_state, file) for file in files if is_remote(file.path))
    for _ in in_order(remote, LOOKS_AT_ONCE):
        pass


def _check_state(file: SourceFile) -> None:
    now: tuple[int, int | None, str | None]
    try:
        if is_remote(file.path):
            now = objects.status(file.path)
        else:
            status = os.stat(file.path)
            now = (status.st_size, status.st_mtime_ns, None)
    except StorageError:
        raise
    except OSError as error:
        raise InputError(f"{file.path} was removed while it was read: {error.strerror or error}") from error
    if now != (file.size_bytes, file.mtime_ns, file.version):
        raise InputError(
            f"{file.path} was changed while it was read",
            hint="run the command again when no other process writes to the input",
        )


def content_bytes(files: Sequence[CorpusFile]) -> int:
    """Return the estimated size of inputs after decompression; streams of unknown size count as large."""
    return sum(
        (_LARGE_BYTES if file.size_bytes is None else file.size_bytes)
        * (1 if file.compression == "none" else _COMPRESSED_TO_PLAIN)
        for file in files
    )
