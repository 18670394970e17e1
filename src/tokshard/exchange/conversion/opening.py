"""The token files of each format: header, dtype and boundaries, checked before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tokshard.core.formatting import counted
from tokshard.dataset.source import InputFile
from tokshard.errors import InputError, IntegrityError
from tokshard.exchange.conversion.boundaries import last_end
from tokshard.exchange.conversion.files import BoundaryFile, TokenFile, state_of
from tokshard.exchange.conversion.options import ConvertOptions
from tokshard.storage import fs

NANOGPT_HEADER_BYTES = 1024
_NANOGPT_DTYPES: dict[tuple[int, int], np.dtype[Any]] = {
    (20240520, 1): np.dtype("<u2"),
    (20240801, 7): np.dtype("<u4"),
}
_AUTOMODEL = (278895051, 1)
_NUMPY_MAGIC = b"\x93NUMPY"
_COPY_HINT = "copy the file again from its source: it is truncated or damaged"


def open_files(
    paths: Sequence[str], options: ConvertOptions, vocab_size: int | None
) -> tuple[TokenFile, ...]:
    """Open each file once, and check what can be checked without reading it.

    Raises:
        MissingFileError: A file does not exist.
        InputError: The dtype of the tokens is unknown.
        IntegrityError: A header is invalid or contradicts the size of the file.
        StorageError: A file cannot be read.
    """
    if options.format == "nanogpt":
        return tuple(map(_nanogpt, paths))
    if options.format == "olmo":
        return _olmo(paths, options.source_dtype, vocab_size)
    return _datatrove(paths, options.source_dtype, vocab_size)


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
    header = np.zeros(NANOGPT_HEADER_BYTES // 4, "<i4")
    if state.size_bytes < NANOGPT_HEADER_BYTES:
        raise _damaged(
            path, f"must have a header of {NANOGPT_HEADER_BYTES} bytes, got {state.size_bytes} bytes"
        )
    InputFile(path).read_into(header.data.cast("B"), 0)
    magic, version, tokens, itemsize = header[:4].tolist()
    if magic not in {20240520, 20240801, _AUTOMODEL[0]}:
        raise _damaged(
            path,
            f"must begin with the magic number 20240520 or {_AUTOMODEL[0]}, got {magic}",
            hint="check the path: this is not a token file of nanogpt, or it is damaged",
            offset=0,
        )
    dtype: np.dtype[Any] | None = _NANOGPT_DTYPES.get((magic, version))
    if (magic, version) == _AUTOMODEL:
        if itemsize not in {2, 4}:
            raise _damaged(
                path, f"must have an item size of 2 or 4 bytes at byte 12, got {itemsize}", offset=12
            )
        dtype = np.dtype(f"<u{itemsize}")
    if dtype is None:
        raise _damaged(path, f"has the version {version}, which is not known", offset=4)
    wanted = NANOGPT_HEADER_BYTES + tokens * dtype.itemsize
    if tokens < 0 or wanted != state.size_bytes:
        raise _damaged(
            path,
            f"must have {wanted} bytes by its header ({counted(tokens, 'token')} of {dtype.name}), "
            f"got {state.size_bytes}",
            offset=min(max(wanted, 0), state.size_bytes),
        )
    return TokenFile(state, dtype, NANOGPT_HEADER_BYTES, tokens)


def _olmo(paths: Sequence[str], given: str | None, vocab_size: int | None) -> tuple[TokenFile, ...]:
    def boundaries_of(path: str) -> str:
        return path.removesuffix(".npy") + ".csv.gz"

    for path in paths:
        _refuse_numpy_header(path)
    dtype = _given(given) or _dtype_from_boundaries(paths, boundaries_of, "gzip", (1, 2, 4, 8))
    if dtype is None and vocab_size is not None:
        dtype = np.min_scalar_type(vocab_size - 1).newbyteorder("<")
    if dtype is None:
        raise InputError(
            f"the dtype of the tokens of {paths[0]} is unknown: it has no header, and there is no "
            f"{boundaries_of(paths[0])}",
            hint="pass --source-dtype uint16 or uint32, or the --tokenizer of the tokens",
        )
    return tuple(_plain(path, dtype, _beside(boundaries_of(path), "gzip")) for path in paths)


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


def _datatrove(paths: Sequence[str], given: str | None, vocab_size: int | None) -> tuple[TokenFile, ...]:
    def boundaries_of(path: str) -> str:
        return path + ".index"

    recorded = {path: _metadata(path) for path in paths}
    dtype = _given(given) or _dtype_from_boundaries(paths, boundaries_of, "none", (2, 4))
    sizes = {size for size, _ in filter(None, recorded.values())}
    if dtype is None and len(sizes) == 1:
        dtype = _given(f"uint{8 * sizes.pop()}")
    if dtype is None and vocab_size is not None:
        dtype = np.dtype("<u2" if vocab_size <= 65535 else "<u4")
    if dtype is None:
        raise InputError(
            f"the dtype of the tokens of {paths[0]} is unknown: it has no {boundaries_of(paths[0])} and no "
            "metadata",
            hint="pass --source-dtype uint16 or uint32, or the --tokenizer of the tokens",
        )
    files = tuple(_plain(path, dtype, _beside(boundaries_of(path), "none")) for path in paths)
    for file in files:
        _check_metadata(file, recorded[file.path])
    return files


def _metadata(path: str) -> tuple[int, int] | None:
    # Item size and number of tokens, from the lines "NAME|ITEMSIZE", "TOKENS" and a rounded number.
    name = path + ".metadata"
    if not fs.isfile(name):
        return None
    with fs.open_file(name) as file:
        lines = file.read(1 << 20).decode("utf-8", "replace").split("\n")
    size = lines[0].rpartition("|")[2]
    if len(lines) < 2 or size not in {"2", "4"} or not (lines[1].isascii() and lines[1].isdigit()):
        raise IntegrityError(
            f"{name} must have the lines NAME|2 or NAME|4, and the number of tokens, got {lines[:2]}",
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


def _beside(path: str, compression: Any) -> BoundaryFile | None:
    return BoundaryFile(state_of(path), compression) if fs.isfile(path) else None


def _dtype_from_boundaries(
    paths: Sequence[str], name_of: Callable[[str], str], compression: str, itemsizes: tuple[int, ...]
) -> np.dtype[Any] | None:
    # From the first file whose last document ends behind its first token.
    for path in paths:
        boundaries = name_of(path)
        if not fs.isfile(boundaries) or not (end := last_end(boundaries, compression)):
            continue
        itemsize, rest = divmod(state_of(path).size_bytes, end)
        if rest == 0 and itemsize in itemsizes:
            return np.dtype(f"<u{itemsize}")
        raise IntegrityError(
            f"{path} has {state_of(path).size_bytes} bytes, which are not tokens of "
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
