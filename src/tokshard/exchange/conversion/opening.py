"""The token files of each format: header, dtype and boundaries, checked before anything is written."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.core.formatting import counted
from tokshard.dataset.parameters import Compression, SourceDtype, TokenFormat
from tokshard.dataset.source import InputFile
from tokshard.errors import InputError, IntegrityError, UsageError
from tokshard.exchange import datatrove, nanogpt, olmo
from tokshard.exchange.conversion.boundaries import last_end
from tokshard.exchange.conversion.files import LocalFile, TokenFile
from tokshard.storage import fs
from tokshard.storage.reading import open_file

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
# The file next to the tokens with their boundaries: its path, its compression, and the bytes of a token.
_BOUNDARIES: dict[TokenFormat, tuple[Callable[[str], str], Compression, tuple[int, ...]]] = {
    "olmo": (olmo.boundary_path, "gzip", (1, 2, 4, 8)),
    "datatrove": (datatrove.boundary_path, "none", (2, 4)),
}
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
    sources = [LocalFile.of(path, format=form, compression="none") for path in paths]
    is_nanogpt = form == "nanogpt"
    files = tuple(map(_nanogpt, sources)) if is_nanogpt else _headerless(sources, form, source_dtype)
    for file in () if is_recorded else files:
        _check_width(file)
    return files


def first_token(files: Sequence[TokenFile]) -> int | None:
    """Return the first token of all files, or None if there are no tokens."""
    file = next((file for file in files if file.tokens), None)
    return None if file is None else int(_tokens(InputFile(file.path), file, 0, 1)[0])


def _tokens(data: InputFile, file: TokenFile, first: int, count: int) -> NDArray[Any]:
    tokens = np.empty(count, file.token_dtype)
    data.read_into(tokens.data.cast("B"), file.header_bytes + first * tokens.itemsize)
    return tokens


def _head(source: LocalFile, size: int) -> bytes:
    content = bytearray(min(source.size_bytes, size))
    InputFile(source.path).read_into(memoryview(content), 0)
    return bytes(content)


def _nanogpt(source: LocalFile) -> TokenFile:
    header = nanogpt.Header.parse(_head(source, nanogpt.HEADER_BYTES), source.path)
    wanted = nanogpt.HEADER_BYTES + header.tokens * header.dtype.itemsize
    if wanted != source.size_bytes:
        raise _damaged(
            source.path,
            f"must have {wanted} bytes by its header ({counted(header.tokens, 'token')} of "
            f"{header.dtype.name}), got {source.size_bytes}",
            offset=min(wanted, source.size_bytes),
        )
    return TokenFile(source, header.dtype.name, nanogpt.HEADER_BYTES, header.tokens)


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


def _headerless(
    sources: Sequence[LocalFile], form: TokenFormat, given: SourceDtype | None
) -> tuple[TokenFile, ...]:
    """Return files without a header, whose dtype is given, or recorded in the files next to them."""
    boundary_path, compression, itemsizes = _BOUNDARIES[form]
    dtypes = datatrove.DatatroveFormat.DTYPES
    if form == "datatrove" and given not in {None, *dtypes}:
        raise UsageError(
            f"--source-dtype must be one of {', '.join(dtypes)} for datatrove, got {given!r}",
            hint="pass the dtype in which datatrove wrote these tokens, or omit --source-dtype",
        )
    boundaries: dict[str, LocalFile | None] = {}
    metadata: dict[str, tuple[int, int] | None] = {}
    for source in sources:
        path, name = source.path, boundary_path(source.path)
        if form == "olmo" and _head(source, len(_NUMPY_MAGIC)) == _NUMPY_MAGIC:
            raise InputError(
                f"{path} has the header of numpy.save; files of OLMo-core are raw tokens without a header",
                hint='write its tokens again with open("raw.npy", "wb")'
                f'.write(numpy.load("{path}").tobytes())',
            )
        metadata[path] = _metadata(path) if form == "datatrove" else None
        boundaries[path] = (
            LocalFile.of(name, format=form, compression=compression) if fs.isfile(name) else None
        )
    itemsize = (
        np.dtype(given).itemsize
        if given is not None
        else _itemsize_from_boundaries(sources, boundaries, itemsizes) or _itemsize_from_metadata(metadata)
    )
    for source in sources:
        path = source.path
        is_bare = source.size_bytes > 0 and not (boundaries[path] or metadata[path])
        if itemsize is None or (given is None and is_bare):
            reason = (
                f"no {boundary_path(path)} and no metadata"
                if form == "datatrove"
                else f"no header, and {boundary_path(path)} is missing or empty"
            )
            raise InputError(
                f"the dtype of the tokens of {path} is unknown: it has {reason}",
                hint="pass --source-dtype uint16 or uint32, the dtype in which these tokens were written",
            )
    return tuple(
        _headerless_file(source, itemsize or 0, boundaries[source.path], metadata[source.path])
        for source in sources
    )


def _headerless_file(
    source: LocalFile, itemsize: int, boundaries: LocalFile | None, metadata: tuple[int, int] | None
) -> TokenFile:
    dtype = f"uint{8 * itemsize}"
    tokens, rest = divmod(source.size_bytes, itemsize)
    if rest:
        raise _damaged(
            source.path,
            f"must have {itemsize} bytes for each token ({dtype}), got {source.size_bytes} bytes",
            offset=tokens * itemsize,
            hint="copy the file again: it is truncated, or pass another --source-dtype",
        )
    if metadata is not None and metadata != (itemsize, tokens):
        raise _damaged(
            source.path,
            f"must have {counted(metadata[1], 'token')} of {metadata[0]} bytes by its metadata, "
            f"got {counted(tokens, 'token')} of {itemsize} bytes",
        )
    return TokenFile(source, dtype, 0, tokens, boundaries)


def _itemsize_from_boundaries(
    sources: Sequence[LocalFile], boundaries: Mapping[str, LocalFile | None], itemsizes: Sequence[int]
) -> int | None:
    """Return the bytes of a token by the first file whose last document ends behind its first token."""
    for source in sources:
        beside = boundaries[source.path]
        if beside is None or not (end := last_end(beside, source.size_bytes)):
            continue
        itemsize, rest = divmod(source.size_bytes, end)
        if rest == 0 and itemsize in itemsizes:
            return itemsize
        raise IntegrityError(
            f"{source.path} has {source.size_bytes} bytes, which are not tokens of "
            f"{' or '.join(map(str, itemsizes))} bytes: the last document in {beside.path} ends at token "
            f"{end}",
            path=source.path,
            hint="copy both files again: one is truncated, or they do not belong together",
        )
    return None


def _itemsize_from_metadata(metadata: Mapping[str, tuple[int, int] | None]) -> int | None:
    first: dict[int, str] = {}
    for path, found in metadata.items():
        if found is not None:
            first.setdefault(found[0], path)
    if len(first) > 1:
        raise InputError(
            f"all files must have the same dtype: by their metadata, the tokens of {first[2]} have 2 bytes, "
            f"and those of {first[4]} 4",
            hint="convert each dtype by itself with --dtype int32, and merge the datasets",
        )
    return next(iter(first), None)


def _metadata(path: str) -> tuple[int, int] | None:
    # Item size and number of tokens, from the lines "NAME|ITEMSIZE", "TOKENS" and a rounded number.
    name = path.removesuffix(datatrove.TOKENS_SUFFIX) + datatrove.METADATA_SUFFIX
    if not fs.isfile(name):
        return None
    with open_file(name) as file:
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


def _damaged(path: str, text: str, *, offset: int | None = None, hint: str = _COPY_HINT) -> IntegrityError:
    return IntegrityError(f"{path} {text}", path=path, offset=offset, hint=hint)
