"""The token files of each format: header, dtype and boundaries, checked before anything is written."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tokshard.core.formatting import counted
from tokshard.dataset.parameters import SourceDtype, TokenFormat
from tokshard.dataset.source import InputFile
from tokshard.errors import InputError, IntegrityError, UsageError
from tokshard.exchange import datatrove, nanogpt, olmo
from tokshard.exchange.conversion.boundaries import last_end
from tokshard.exchange.conversion.files import BoundaryFile, TokenFile, state_of
from tokshard.storage import fs

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
            token = np.empty(1, file.dtype)
            InputFile(file.path).read_into(token.data.cast("B"), file.header_bytes)
            return int(token[0])
    return None


def _nanogpt(path: str) -> TokenFile:
    state = state_of(path)
    content = bytearray(min(state.size_bytes, nanogpt.HEADER_BYTES))
    InputFile(path).read_into(memoryview(content), 0)
    header = nanogpt.Header.parse(bytes(content), path)
    wanted = nanogpt.HEADER_BYTES + header.tokens * header.dtype.itemsize
    if wanted != state.size_bytes:
        raise _damaged(
            path,
            f"must have {wanted} bytes by its header ({counted(header.tokens, 'token')} of "
            f"{header.dtype.name}), got {state.size_bytes}",
            offset=min(wanted, state.size_bytes),
        )
    return TokenFile(state, header.dtype, nanogpt.HEADER_BYTES, header.tokens)


def _check_width(file: TokenFile) -> None:
    # Every second word of uint32 tokens is zero, or below 16 if an id is above 65535 and all are below 2**20.
    if file.dtype.itemsize > 2 or file.tokens < _LEAST_TOKENS:
        return
    data, tokens, low, high = InputFile(file.path), 0, 0, 0
    while tokens < min(file.tokens, _WIDTH_TOKENS):
        block = np.empty(min(file.tokens - tokens, _WIDTH_BLOCK_TOKENS), file.dtype)
        data.read_into(block.data.cast("B"), file.header_bytes + tokens * file.dtype.itemsize)
        tokens += len(block)
        low, high = max(low, int(block[::2].max())), max(high, int(block[1::2].max(initial=0)))
        if high and not (tokens >= _LEAST_LARGE_TOKENS and high < 16 and low >= 256):
            return
    bits = 8 * file.dtype.itemsize
    wider = f"uint{2 * bits}"
    raise InputError(
        f"the tokens of {file.path} must be {file.dtype.name}, got {wider}: every second of its first "
        f"{tokens} {bits}-bit words is {f'at most {high}' if high else 'zero'}",
        hint=f"pass --source-dtype {wider}"
        if not file.header_bytes
        else f"cut off the wrong header: tail -c +{file.header_bytes + 1} {shlex.quote(file.path)} > "
        f"tokens.npy, and convert tokens.npy with --from olmo --source-dtype {wider} --eod-id ID",
    )


def _olmo(paths: Sequence[str], given: str | None) -> tuple[TokenFile, ...]:
    for path in paths:
        _refuse_numpy_header(path)
    dtype = _given(given) or _dtype_from_boundaries(paths, olmo.boundary_path, "gzip", (1, 2, 4, 8))
    unknown = [
        path for path in paths if dtype is None or (given is None and _is_bare(path, olmo.boundary_path))
    ]
    if dtype is None or unknown:
        raise _unknown_dtype(
            unknown[0], f"it has no header, and {olmo.boundary_path(unknown[0])} is missing or empty"
        )
    return tuple(_plain(path, dtype, _beside(olmo.boundary_path(path), "gzip")) for path in paths)


def _refuse_numpy_header(path: str) -> None:
    size = state_of(path).size_bytes
    head = bytearray(min(size, len(_NUMPY_MAGIC)))
    InputFile(path).read_into(memoryview(head), 0)
    if bytes(head) == _NUMPY_MAGIC:
        raise InputError(
            f"{path} has the header of numpy.save; files of OLMo-core are raw tokens without a header",
            hint='write its tokens again with open("raw.npy", "wb").write(numpy.load("'
            + path
            + '").tobytes())',
        )


def _datatrove(paths: Sequence[str], given: str | None) -> tuple[TokenFile, ...]:
    if given not in {None, *(dtypes := datatrove.DatatroveFormat.DTYPES)}:
        raise UsageError(
            f"--source-dtype must be one of {', '.join(dtypes)} for datatrove, got {given!r}",
            hint="pass the dtype in which datatrove wrote these tokens, or omit --source-dtype",
        )
    recorded = {path: _metadata(path) for path in paths}
    dtype = _given(given) or _dtype_from_boundaries(paths, _index_path, "none", (2, 4))
    sizes = {size for size, _ in filter(None, recorded.values())}
    if dtype is None and len(sizes) > 1:
        small, large = (
            next(p for p in paths if (found := recorded[p]) and found[0] == size) for size in (2, 4)
        )
        raise InputError(
            f"all files must have the same dtype: by their metadata, the tokens of {small} have 2 bytes, and "
            f"those of {large} 4",
            hint="convert each dtype by itself with --dtype int32, and merge the datasets",
        )
    if dtype is None and len(sizes) == 1:
        dtype = _given(f"uint{8 * sizes.pop()}")
    unknown = [
        path
        for path in paths
        if dtype is None or (given is None and not recorded[path] and _is_bare(path, _index_path))
    ]
    if dtype is None or unknown:
        raise _unknown_dtype(unknown[0], f"it has no {_index_path(unknown[0])} and no metadata")
    files = tuple(_plain(path, dtype, _beside(_index_path(path), "none")) for path in paths)
    for file in files:
        _check_metadata(file, recorded[file.path])
    return files


def _index_path(path: str) -> str:
    return path.removesuffix(datatrove.TOKENS_SUFFIX) + datatrove.INDEX_SUFFIX


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


def _check_metadata(file: TokenFile, recorded: tuple[int, int] | None) -> None:
    if recorded is not None and recorded != (file.dtype.itemsize, file.tokens):
        raise IntegrityError(
            f"{file.path} must have {counted(recorded[1], 'token')} of {recorded[0]} bytes by its metadata, "
            f"got {counted(file.tokens, 'token')} of {file.dtype.itemsize} bytes",
            path=file.path,
            hint=_COPY_HINT,
        )


def _given(name: str | None) -> np.dtype[Any] | None:
    return None if name is None else np.dtype(name).newbyteorder("<")


def _is_bare(path: str, name_of: Callable[[str], str]) -> bool:
    # Whether nothing beside the file tells the dtype of its tokens.
    return state_of(path).size_bytes > 0 and not fs.isfile(name_of(path))


def _unknown_dtype(path: str, reason: str) -> InputError:
    return InputError(
        f"the dtype of the tokens of {path} is unknown: {reason}",
        hint="pass --source-dtype uint16 or uint32, the dtype in which these tokens were written",
    )


def _beside(path: str, compression: Any) -> BoundaryFile | None:
    return BoundaryFile(state_of(path), compression) if fs.isfile(path) else None


def _dtype_from_boundaries(
    paths: Sequence[str], name_of: Callable[[str], str], compression: str, itemsizes: tuple[int, ...]
) -> np.dtype[Any] | None:
    # From the first file whose last document ends behind its first token.
    for path in paths:
        boundaries = name_of(path)
        if not fs.isfile(boundaries):
            continue
        size = state_of(path).size_bytes
        if not (end := last_end(boundaries, compression, size)):
            continue
        itemsize, rest = divmod(size, end)
        if rest == 0 and itemsize in itemsizes:
            return np.dtype(f"<u{itemsize}")
        raise IntegrityError(
            f"{path} has {size} bytes, which are not tokens of "
            f"{' or '.join(map(str, itemsizes))} bytes: the last document in {boundaries} ends at token "
            f"{end}",
            path=path,
            hint="copy both files again: one is truncated, or they do not belong together",
        )
    return None


def _plain(path: str, dtype: np.dtype[Any], boundaries: BoundaryFile | None) -> TokenFile:
    state = state_of(path)
    tokens, rest = divmod(state.size_bytes, dtype.itemsize)
    if rest:
        raise _damaged(
            path,
            f"must have {dtype.itemsize} bytes for each token ({dtype.name}), got {state.size_bytes} bytes",
            offset=tokens * dtype.itemsize,
            hint="copy the file again: it is truncated, or pass another --source-dtype",
        )
    return TokenFile(state, dtype, 0, tokens, boundaries)


def _damaged(path: str, text: str, *, offset: int | None = None, hint: str = _COPY_HINT) -> IntegrityError:
    return IntegrityError(f"{path} {text}", path=path, offset=offset, hint=hint)
