"""The files of a conversion: expanded from the arguments, in the order in which they are read."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokshard.core.codec import Count, Record
from tokshard.core.formatting import counted, listed
from tokshard.dataset.manifest import SourceFile
from tokshard.dataset.parameters import TokenFormat
from tokshard.errors import InputError, MissingFileError, StorageError
from tokshard.exchange.conversion.options import ShardSplit
from tokshard.exchange.writers import FORMATS
from tokshard.storage import fs, paths

_LABEL_MASKS = "labels_mask"
_SHOWN = 3
# The number is that of a series which validation and training files share.
_SPLIT_WORD = re.compile(r"(?:^|(?<=_))(train|val)_(?=\d+\.bin$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFile(SourceFile):
    """A file of a conversion, which must not change until the conversion ends."""

    size_bytes: Count


@dataclass(frozen=True, slots=True)
class TokenFile(Record):
    """A file of tokens.

    Attributes:
        source: The file.
        dtype: Dtype of its tokens, by NumPy's name; they are little endian.
        header_bytes: Bytes before the tokens.
        tokens: Number of tokens, which fill the rest of the file.
        boundaries: File with the ends of its documents. Absent if there is none.
    """

    source: LocalFile
    dtype: str
    header_bytes: Count
    tokens: Count
    boundaries: LocalFile | None = None

    @property
    def path(self) -> str:
        """Its path."""
        return self.source.path

    @property
    def token_dtype(self) -> np.dtype[Any]:
        """The dtype of its tokens."""
        return np.dtype(self.dtype).newbyteorder("<")

    @property
    def token_bytes(self) -> int:
        """Size of its tokens in bytes."""
        return self.source.size_bytes - self.header_bytes

    @property
    def inputs(self) -> tuple[LocalFile, ...]:
        """The inputs of the manifest: the file, then its boundaries."""
        return (self.source,) if self.boundaries is None else (self.source, self.boundaries)

    def __str__(self) -> str:
        documents = f", documents in {self.boundaries.path}" if self.boundaries else ""
        return f"{self.path} ({counted(self.tokens, 'token')} of {self.dtype}{documents})"


def find_files(
    names: Sequence[str], kind: TokenFormat, split: ShardSplit
) -> tuple[tuple[str, ...], tuple[str, ...]]:
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
    real_paths = {path: os.path.realpath(path) for path in found}
    times = Counter(real_paths[path] for path in found)
    repeated = [path for path, real in real_paths.items() if times[real] > 1]
    if repeated:
        warnings.append(
            f"{listed(repeated, _SHOWN)}: passed twice, so their documents are in the output twice"
        )
    return tuple(found), tuple(warnings)


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
