"""The files of a conversion: expanded from the arguments, in the order in which they are read."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokshard.core.formatting import listed
from tokshard.dataset.parameters import Compression, TokenFileInput, TokenFormat
from tokshard.errors import InputError, MissingFileError, StorageError
from tokshard.exchange.conversion.options import ShardSplit
from tokshard.exchange.writers import FORMATS
from tokshard.storage import fs, paths

if TYPE_CHECKING:
    import numpy as np

_LABEL_MASKS = "labels_mask"
_SHOWN = 3
# The number is that of a series which validation and training files share.
_SPLIT_WORD = re.compile(r"(?:^|(?<=_))(train|val)_(?=\d+\.bin$)")


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A file of tokens.

    Attributes:
        state: Its size and modification time, which must not change until the conversion ends.
        dtype: The dtype of its tokens.
        header_bytes: The bytes before the tokens.
        tokens: The number of tokens.
        boundaries: The file with the ends of its documents, if there is one.
    """

    state: TokenFileInput
    dtype: np.dtype[Any]
    header_bytes: int
    tokens: int
    boundaries: BoundaryFile | None = None

    @property
    def path(self) -> str:
        """Its path."""
        return self.state.path


@dataclass(frozen=True, slots=True)
class BoundaryFile:
    """A file with the boundaries of the documents of a token file."""

    state: TokenFileInput
    compression: Compression


@dataclass(frozen=True, slots=True)
class FoundFiles:
    """The token files of a conversion, in order, and what the user should know about them."""

    paths: tuple[str, ...]
    warnings: tuple[str, ...]


def find_files(names: Sequence[str], kind: TokenFormat, split: ShardSplit) -> FoundFiles:
    """Return the token files that the arguments name: files, directories and globs.

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
            found += _in_directory(name, kind, split, warnings)
        elif paths.is_glob(name):
            matches = [path for path in fs.glob(name) if fs.isfile(path)]
            found += _ordered(_tokens(matches, kind, name), kind)
        elif not fs.lexists(name):
            is_dataset = fs.lexists(paths.idx_path(name))
            hint = "pass token files of another trainer: this is an indexed dataset" if is_dataset else None
            raise MissingFileError(f"file not found: {name}", path=name, hint=hint)
        else:
            found.append(name)
    real = [os.path.realpath(path) for path in found]
    if len(set(real)) < len(real):
        times = Counter(real)
        twice = list(dict.fromkeys(path for number, path in enumerate(found) if times[real[number]] > 1))
        warnings.append(f"{listed(twice, _SHOWN)}: passed twice, so their documents are in the output twice")
    return FoundFiles(tuple(found), tuple(warnings))


def _in_directory(directory: str, kind: TokenFormat, split: ShardSplit, warnings: list[str]) -> list[str]:
    try:
        names = os.listdir(directory)
    except OSError as error:
        raise StorageError("list", directory, error) from error
    inside = [path for name in names if fs.isfile(path := os.path.join(directory, name))]
    inside = _tokens(inside, kind, directory)
    if kind != "nanogpt" or split == "all":
        return _ordered(inside, kind)
    words = {path: _SPLIT_WORD.search(os.path.basename(path)) for path in inside}
    chosen = [path for path, word in words.items() if word is not None and word[1] == split]
    if not any(words.values()):
        chosen = inside
    if not chosen:
        raise InputError(
            f"no {split} file of nanogpt in {directory}",
            hint="pass --split train, --split val or --split all, or the files themselves",
        )
    others = len(inside) - len(chosen)
    if others:
        warnings.append(
            f"{directory}: {others} of {len(inside)} files are not {split} files and were skipped"
        )
    return _ordered(chosen, kind)


def _tokens(found: list[str], kind: TokenFormat, where: str) -> list[str]:
    suffix = FORMATS[kind].SUFFIXES[0]
    tokens = [path for path in found if path.endswith(suffix)]
    if kind == "olmo":
        tokens = [path for path in tokens if not os.path.basename(path).startswith(_LABEL_MASKS)]
    if kind == "nanogpt":  # not the .bin of an indexed dataset, such as an earlier output
        tokens = [path for path in tokens if not fs.lexists(paths.idx_path(path.removesuffix(suffix)))]
    if not tokens:
        raise InputError(
            f"no {kind} file ({suffix}) in {where}"
            if os.path.isdir(where)
            else f"no {kind} file ({suffix}) matches {where}",
            hint="pass the directory with the token files, or a quoted glob of these",
        )
    return tokens


def _ordered(found: list[str], kind: TokenFormat) -> list[str]:
    def key(path: str) -> Any:
        directory, name = os.path.split(path)
        return paths.natural_key(os.path.join(directory, _SPLIT_WORD.sub("", name)))

    return sorted(found, key=key if kind == "nanogpt" else paths.natural_key)


def state_of(path: str) -> TokenFileInput:
    """Return the state of a file that must not change during the conversion.

    Raises:
        MissingFileError: It does not exist.
        StorageError: It cannot be read.
    """
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        raise MissingFileError(f"file not found: {path}", path=path) from None
    except OSError as error:
        raise StorageError("read", path, error) from error
    return TokenFileInput(path, status.st_size, status.st_mtime_ns)


def all_states(files: Sequence[TokenFile]) -> tuple[TokenFileInput, ...]:
    """Return the inputs of a conversion in the order of the manifest: each file, then its boundaries."""
    return tuple(
        state
        for file in files
        for state in (file.state, *([file.boundaries.state] if file.boundaries else ()))
    )


def check_unchanged(files: Sequence[TokenFile]) -> None:
    """Raise InputError if a file has changed since it was opened for the conversion."""
    for state in all_states(files):
        if state_of(state.path) != state:
            raise InputError(
                f"{state.path} changed during the conversion",
                hint="run again with --no-resume when no process writes the file",
            )
