"""The token files of each format: header, dtype and boundaries, checked before anything is written."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.core.formatting import counted
from tokshard.dataset.manifest import SourceFile
from tokshard.dataset.parameters import Compression, SourceDtype, TokenFormat
from tokshard.dataset.source import InputFile
from tokshard.errors import InputError, IntegrityError, UsageError
from tokshard.exchange import datatrove, nanogpt, olmo
from tokshard.exchange.conversion.boundaries import last_end
from tokshard.exchange.conversion.files import TokenFile, status_of
from tokshard.storage import fs

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MOST_DIGITS = 18  # fewer than 2**63 tokens
_SHOWN_CHARACTERS = 60
_NUMPY_MAGIC = b"\x93NUMPY"
# Fewer tokens show no pattern: a document of one token may end with EOD token 0.
_LEAST_TOKENS = 4
_LEAST_LARGE_TOKENS = 128
_WIDTH_BLOCK_TOKENS = 1 << 15
_WIDTH_TOKENS = 1 << 19
_COPY_HINT = "copy the file again from its source: it is truncated or damaged"


def open_files(
    paths: Sequence[str], form: TokenFormat, source_dtype: SourceDtype | None, *, is_recorded: bool
) -> tuple[TokenFile, ...]:
    """Open each file once, and check what can be checked without reading all of it.

    Args:
        paths: The files.
        form: Their format.
        source_dtype: The dtype of their tokens; None if boundaries of documents or metadata must tell it.
        is_recorded: Whether the manifest of an export of tokshard records their dtype.

    Raises:
        MissingFileError: A file does not exist.
        UsageError: The format does not have this dtype.
        InputError: The dtype of the tokens is unknown.
        IntegrityError: A header is invalid or contradicts the size of the file.
        StorageError: A file cannot be read.
    """
    if form == "nanogpt":
        files = tuple(map(_nanogpt, paths))
    elif form == "olmo":
        files = _olmo(paths, source_dtype)
    else:
        files = _datatrove(paths, source_dtype)
    if not is_recorded:
        for file in files:
            _check_width(file)
    return files


def first_token(files: Sequence[TokenFile]) -> int | None:
    """Return the first token of all files, or None if there are no tokens."""
    for file in files:
        if file.tokens:
            return int(_tokens(InputFile(file.path), file, 0, 1)[0])
    return None


def _tokens(data: InputFile, file: TokenFile, first: int, count: int) -> NDArray[Any]:
    tokens = np.empty(count, file.token_dtype)
    data.read_into(tokens.data.cast("B"), file.header_bytes + first * tokens.itemsize)
    return tokens


def _head(path: str, size: int) -> bytes:
    content = bytearray(min(status_of(path).st_size, size))
    InputFile(path).read_into(memoryview(content), 0)
    return bytes(content)


def _nanogpt(path: str) -> TokenFile:
    header = nanogpt.Header.parse(_head(path, nanogpt.HEADER_BYTES), path)
    file = _token_file(path, "nanogpt", header.dtype.name, header.tokens, nanogpt.HEADER_BYTES)
    size, wanted = status_of(path).st_size, nanogpt.HEADER_BYTES + file.token_bytes
    if wanted != size:
        raise _damaged(
            path,
            f"must have {wanted} bytes by its header ({counted(header.tokens, 'token')} of "
            f"{header.dtype.name}), got {size}",
            offset=min(wanted, size),
        )
    return file


def _check_width(file: TokenFile) -> None:
    # Every second word of uint32 tokens is zero, or below 16 if an id is above 65535 and all are below 2**20.
    if file.token_dtype.itemsize > 2 or file.tokens < _LEAST_TOKENS:
        return
    data, tokens, low, high = InputFile(file.path), 0, 0, 0
    while tokens < min(file.tokens, _WIDTH_TOKENS):
        block = _tokens(data, file, tokens, min(file.tokens - tokens, _WIDTH_BLOCK_TOKENS))
        tokens += len(block)
        low, high = max(low, int(block[::2].max())), max(high, int(block[1::2].max(initial=0)))
        if high and not (tokens >= _LEAST_LARGE_TOKENS and high < 16 and low >= 256):
            return
    bits = 8 * file.token_dtype.itemsize
    wider = f"uint{2 * bits}"
    raise InputError(
        f"the tokens of {file.path} must be {file.dtype}, got {wider}: every second of its first "
        f"{tokens} {bits}-bit words is {f'at most {high}' if high else 'zero'}",
        hint=f"pass --source-dtype {wider}"
        if not file.header_bytes
        else f"cut off the wrong header: tail -c +{file.header_bytes + 1} {shlex.quote(file.path)} > "
        f"tokens.npy, and convert tokens.npy with --from olmo --source-dtype {wider} --eod-id ID",
    )


@dataclass(frozen=True, slots=True)
class _Headerless:
    """A format of files without a header, whose dtype is told by what is beside them.

    Attributes:
        boundary_path: Returns the path of the file with the boundaries of a token file.
        compression: The compression of that file.
        itemsizes: The possible sizes of a token in bytes.
    """

    form: TokenFormat
    boundary_path: Callable[[str], str]
    compression: Compression
    itemsizes: tuple[int, ...]

    def dtype_from_boundaries(self, paths: Sequence[str]) -> str | None:
        """Return the dtype by the first file whose last document ends behind its first token."""
        for path in paths:
            boundaries = self.boundary_path(path)
            if not fs.isfile(boundaries):
                continue
            size = status_of(path).st_size
            if not (end := last_end(boundaries, self.compression, size)):
                continue
            itemsize, rest = divmod(size, end)
            if rest == 0 and itemsize in self.itemsizes:
                return f"uint{8 * itemsize}"
            raise IntegrityError(
                f"{path} has {size} bytes, which are not tokens of "
                f"{' or '.join(map(str, self.itemsizes))} bytes: the last document in {boundaries} ends at "
                f"token {end}",
                path=path,
                hint="copy both files again: one is truncated, or they do not belong together",
            )
        return None

    def is_bare(self, path: str) -> bool:
        """Return whether a file has tokens, and no file with their boundaries."""
        return status_of(path).st_size > 0 and not fs.isfile(self.boundary_path(path))

    def token_file(self, path: str, dtype: str) -> TokenFile:
        """Return a token file of a dtype, or raise IntegrityError if its last token is incomplete."""
        size, itemsize = status_of(path).st_size, np.dtype(dtype).itemsize
        if size % itemsize:
            raise _damaged(
                path,
                f"must have {itemsize} bytes for each token ({dtype}), got {size} bytes",
                offset=size // itemsize * itemsize,
                hint="copy the file again: it is truncated, or pass another --source-dtype",
            )
        name, boundaries = self.boundary_path(path), None
        if fs.isfile(name):
            status = status_of(name)
            boundaries = SourceFile(
                path=name,
                size_bytes=status.st_size,
                mtime_ns=status.st_mtime_ns,
                format=self.form,
                compression=self.compression,
            )
        return _token_file(path, self.form, dtype, size // itemsize, 0, boundaries)


_OLMO = _Headerless("olmo", olmo.boundary_path, "gzip", (1, 2, 4, 8))
_DATATROVE = _Headerless(
    "datatrove",
    lambda path: path.removesuffix(datatrove.TOKENS_SUFFIX) + datatrove.INDEX_SUFFIX,
    "none",
    (2, 4),
)


def _olmo(paths: Sequence[str], given: str | None) -> tuple[TokenFile, ...]:
    for path in paths:
        if _head(path, len(_NUMPY_MAGIC)) == _NUMPY_MAGIC:
            raise InputError(
                f"{path} has the header of numpy.save; files of OLMo-core are raw tokens without a header",
                hint=f'write its tokens again with open("raw.npy", "wb").write(numpy.load("{path}").tobytes())',
            )
    dtype = given or _OLMO.dtype_from_boundaries(paths)
    for path in paths:
        if dtype is None or (given is None and _OLMO.is_bare(path)):
            raise _unknown_dtype(
                path, f"it has no header, and {olmo.boundary_path(path)} is missing or empty"
            )
    return tuple(_OLMO.token_file(path, str(dtype)) for path in paths)


def _datatrove(paths: Sequence[str], given: str | None) -> tuple[TokenFile, ...]:
    if given not in {None, *(dtypes := datatrove.DatatroveFormat.DTYPES)}:
        raise UsageError(
            f"--source-dtype must be one of {', '.join(dtypes)} for datatrove, got {given!r}",
            hint="pass the dtype in which datatrove wrote these tokens, or omit --source-dtype",
        )
    recorded = {path: _metadata(path) for path in paths}
    dtype = given or _DATATROVE.dtype_from_boundaries(paths)
    if dtype is None:
        paths_by_size = {found[0]: path for path, found in reversed(recorded.items()) if found}
        if len(paths_by_size) > 1:
            raise InputError(
                f"all files must have the same dtype: by their metadata, the tokens of {paths_by_size[2]} "
                f"have 2 bytes, and those of {paths_by_size[4]} 4",
                hint="convert each dtype by itself with --dtype int32, and merge the datasets",
            )
        dtype = next((f"uint{8 * size}" for size in paths_by_size), None)
    for path in paths:
        if dtype is None or (given is None and not recorded[path] and _DATATROVE.is_bare(path)):
            raise _unknown_dtype(path, f"it has no {_DATATROVE.boundary_path(path)} and no metadata")
    files = tuple(_DATATROVE.token_file(path, str(dtype)) for path in paths)
    for file in files:
        found = file.token_dtype.itemsize, file.tokens
        if (wanted := recorded[file.path]) not in {None, found}:
            raise _damaged(
                file.path,
                f"must have {counted(wanted[1], 'token')} of {wanted[0]} bytes by its metadata, "
                f"got {counted(found[1], 'token')} of {found[0]} bytes",
            )
    return files


def _metadata(path: str) -> tuple[int, int] | None:
    # Item size and number of tokens, from the lines "NAME|ITEMSIZE", "TOKENS" and a rounded number.
    name = path.removesuffix(datatrove.TOKENS_SUFFIX) + datatrove.METADATA_SUFFIX
    if not fs.isfile(name):
        return None
    with fs.open_file(name) as file:
        lines = file.read(1 << 20).decode("utf-8", "replace").split("\n")
    size = lines[0].rpartition("|")[2]
    if (
        len(lines) < 2
        or size not in {"2", "4"}
        or not (lines[1].isascii() and lines[1].isdigit())
        or (len(lines[1]) > _MOST_DIGITS)
    ):
        shown = [line[:_SHOWN_CHARACTERS] for line in lines[:2]]
        raise IntegrityError(
            f"{name} must have the lines NAME|2 or NAME|4, and the number of tokens, got {shown}",
            path=name,
            hint="copy the file again, or remove it: the conversion does not need it",
        )
    return int(size), int(lines[1])


def _token_file(
    path: str,
    form: TokenFormat,
    dtype: str,
    tokens: int,
    header_bytes: int,
    boundaries: SourceFile | None = None,
) -> TokenFile:
    status = status_of(path)
    return TokenFile(
        path=path,
        size_bytes=status.st_size,
        mtime_ns=status.st_mtime_ns,
        format=form,
        compression="none",
        dtype=dtype,
        header_bytes=header_bytes,
        tokens=tokens,
        boundaries=boundaries,
    )


def _unknown_dtype(path: str, reason: str) -> InputError:
    return InputError(
        f"the dtype of the tokens of {path} is unknown: {reason}",
        hint="pass --source-dtype uint16 or uint32, the dtype in which these tokens were written",
    )


def _damaged(path: str, text: str, *, offset: int | None = None, hint: str = _COPY_HINT) -> IntegrityError:
    return IntegrityError(f"{path} {text}", path=path, offset=offset, hint=hint)
