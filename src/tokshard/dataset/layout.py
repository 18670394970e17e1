"""Format of ``.idx`` files, and the checked table of their content.

All numbers are little endian and packed, so the arrays after the 34-byte header are unaligned.
``S`` is the number of sequences and ``D`` the number of documents **plus one**::

    offset         type     field
    0              9 bytes  magic                "MMIDIDX", two zero bytes
    9              u64      version              1
    17             u8       dtype_code           see DType
    18             u64      sequence_count       S
    26             u64      document_count       D
    34             i32[S]   sequence_lengths     tokens of each sequence
    34+4S          i64[S]   sequence_pointers    byte offset of each sequence in .bin
    34+12S         i64[D]   document_indices     0, then the number of sequences up to each document's end
    34+12S+8D      i8[S]    sequence_modes       in multimodal datasets only; nothing marks their presence

The ``.bin`` file consists of the tokens of all sequences in order, and nothing else. The format is
Megatron Core's; its own reader checks the magic, the version and the last document index.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

import numpy as np

from tokshard.errors import InputError, IntegrityError, UsageError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

Buffer = bytes | bytearray | memoryview | mmap.mmap

MAGIC = b"MMIDIDX\x00\x00"
OLD_MAGIC = b"TNTIDX\x00\x00"
VERSION = 1
HEADER_BYTES = 34
VERSION_OFFSET = 9
DTYPE_CODE_OFFSET = 17
DOCUMENT_COUNT_OFFSET = 26

MAX_LENGTH = 2**31 - 1
MAX_POINTER_BYTES = 2**63 - 1

# Entries checked at once. The working arrays of one chunk (about 4 MB) then stay in the cache, and a
# chunk's sum of byte sizes stays far below 2**63 whatever the lengths claim.
CHUNK_ENTRIES = 1 << 17

UINT16_VOCABULARY_LIMIT = 65500

_HEADER = struct.Struct("<9sQBQQ")


class Column(Protocol):
    """A column of an index, in memory or in a file; its slices are arrays."""

    def __getitem__(self, wanted: slice, /) -> NDArray[Any]: ...


_INDEX_HINT = "copy the .bin and .idx again from their source, or rebuild the dataset: the .idx is damaged"
_PAIR_HINT = "copy both files again, or rebuild the dataset: the .bin is truncated or belongs to another .idx"


class DType(Enum):
    """The dtypes of tokens with their codes in ``.idx`` files, as in Megatron Core's class of this name.

    Floating-point codes belong to the format and can be read; no command makes anything of such datasets,
    because token ids are integers.

    Example:
        >>> DType.code_from_dtype("uint16"), DType.dtype_from_code(4), DType.size(np.uint16)
        (8, <class 'numpy.int32'>, 2)
    """

    uint8 = 1
    int8 = 2
    int16 = 3
    int32 = 4
    int64 = 5
    float64 = 6
    float32 = 7
    uint16 = 8

    @classmethod
    def code_from_dtype(cls, value: DTypeLike) -> int:
        """Return the code of a dtype, or raise UsageError if it has none."""
        wanted = np.dtype(value)
        for code, known in DTYPES.items():
            if known == wanted:
                return code
        raise UsageError(f"dtype must be one of {', '.join(cls.__members__)}, got {wanted}")

    @classmethod
    def dtype_from_code(cls, value: int) -> type[np.number[Any]]:
        """Return the NumPy type of a code, or raise ValueError if there is no such code."""
        return DTYPES[cls(value).value].type

    @classmethod
    def size(cls, key: int | DTypeLike) -> int:
        """Return the bytes of a token of a dtype or code.

        Raises:
            ValueError: The format does not have it.
        """
        code = cls(key).value if isinstance(key, int) else cls.code_from_dtype(key)
        return DTYPES[code].itemsize

    @staticmethod
    def optimal_dtype(cardinality: int | None) -> type[np.uint16 | np.int32]:
        """Return the dtype that Megatron's preprocessing chooses for a vocabulary.

        It is uint16 below 65,500 entries (with added tokens, without padding) and int32 otherwise; the limit
        is Megatron's, 36 below the capacity of uint16.

        Args:
            cardinality: The size of the vocabulary, or None if it is unknown.

        Example:
            >>> DType.optimal_dtype(65499), DType.optimal_dtype(65500), DType.optimal_dtype(None)
            (<class 'numpy.uint16'>, <class 'numpy.int32'>, <class 'numpy.int32'>)
        """
        is_small = cardinality is not None and cardinality < UINT16_VOCABULARY_LIMIT
        return np.uint16 if is_small else np.int32


DTYPES: Mapping[int, np.dtype[Any]] = MappingProxyType(
    {member.value: np.dtype(member.name).newbyteorder("<") for member in DType}
)
"""The little-endian dtype of each code."""


def choose_dtype(vocab_size: int, max_token_id: int, choice: str = "auto") -> Literal["uint16", "int32"]:
    """Return the dtype of tokens, ``"uint16"`` or ``"int32"``.

    ``"auto"`` is Megatron's rule, except that ids which do not fit uint16 (a vocabulary with gaps) get int32,
    where Megatron's writer would fail.

    Raises:
        UsageError: The dtype asked for cannot hold the ids.
    """
    fits = max_token_id < 2**16
    if choice == "uint16" and not fits:
        raise UsageError(
            f"--dtype uint16 cannot hold the token id {max_token_id} of this vocabulary",
            hint="use --dtype auto",
        )
    if choice == "auto":
        choice = DType.optimal_dtype(vocab_size).__name__ if fits else "int32"
    return "uint16" if choice == "uint16" else "int32"


def require_integers(dtype: np.dtype[Any], path_prefix: str) -> None:
    """Raise InputError if tokens of a dtype cannot be token ids."""
    if dtype.kind not in "iu":
        raise InputError(
            f"the tokens of {path_prefix} must be integers, got {dtype.name}",
            hint="tokenize the text again: the files have numbers of another kind",
        )


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """The first 34 bytes of an ``.idx`` file."""

    dtype: np.dtype[Any]
    sequence_count: int
    document_count: int

    @property
    def pointers_offset(self) -> int:
        """The byte offset of ``sequence_pointers``."""
        return HEADER_BYTES + 4 * self.sequence_count

    @property
    def documents_offset(self) -> int:
        """The byte offset of ``document_indices``."""
        return HEADER_BYTES + 12 * self.sequence_count

    @property
    def modes_offset(self) -> int:
        """The byte offset of ``sequence_modes``, or the file's size without modes."""
        return self.documents_offset + 8 * (self.document_count + 1)

    def index_bytes(self, *, multimodal: bool) -> int:
        """Return the exact size of the ``.idx`` file in bytes."""
        return self.modes_offset + (self.sequence_count if multimodal else 0)

    def to_bytes(self) -> bytes:
        """Return the header as stored in the file."""
        return _HEADER.pack(
            MAGIC, VERSION, DType.code_from_dtype(self.dtype), self.sequence_count, self.document_count + 1
        )


def read_header(buffer: Buffer, *, path: str = "the index") -> IndexHeader:
    """Read only the header, for callers that need only the counts.

    The counts are unchecked: only :meth:`IndexTable.from_buffer` compares them with the size of the file.

    Raises:
        IntegrityError: It is not an index of version 1, or the dtype code or a count is invalid.
    """
    if len(buffer) < HEADER_BYTES:
        raise IntegrityError(
            f"{path} must have at least {HEADER_BYTES} bytes, got {len(buffer)}",
            path=path,
            field="header",
            offset=len(buffer),
            hint=_INDEX_HINT,
        )
    magic, version, code, sequences, boundaries = _HEADER.unpack_from(buffer)
    if magic.startswith(OLD_MAGIC):
        raise IntegrityError(
            f"{path} must be an index of Megatron's mmap format (MMIDIDX), got the old lazy or cached format "
            "of Megatron and fairseq (TNTIDX)",
            path=path,
            field="format",
            offset=0,
            hint="tokenize the text again with tokshard tokenize, or with --dataset-impl mmap in the old "
            "Megatron-LM",
        )
    if magic != MAGIC:
        raise IntegrityError(
            f"{path} must begin with {MAGIC!r}, got {magic!r}",
            path=path,
            field="magic",
            offset=0,
            hint="check the path: this is not the .idx file of an indexed dataset, or it is damaged",
        )
    if version != VERSION:
        raise _header_error(path, "version", version, VERSION_OFFSET, f"it must be {VERSION}")
    if code not in DTYPES:
        raise _header_error(
            path, "dtype_code", code, DTYPE_CODE_OFFSET, f"it must be from 1 to {max(DTYPES)}"
        )
    if boundaries < 1:
        detail = "it counts the boundaries of documents and must be at least 1"
        raise _header_error(path, "document_count", boundaries, DOCUMENT_COUNT_OFFSET, detail)
    return IndexHeader(DTYPES[code], sequences, boundaries - 1)


@dataclass(frozen=True, slots=True, eq=False)
class IndexTable:
    """The index of a dataset. Instances are consistent, also with the size of the ``.bin`` file.

    The arrays are read-only, usually unaligned views of the buffer, which they keep alive.

    Attributes:
        sequence_lengths: int32 of shape (S,): tokens of each sequence, none negative.
        sequence_pointers: int64 of shape (S,): the running sum of lengths times the item size, from 0.
        document_indices: int64 of shape (documents + 1,): from 0 to S, never decreasing. Document ``i``
            consists of the sequences ``document_indices[i]`` up to ``document_indices[i + 1]``.
        sequence_modes: int8 of shape (S,), or None if the dataset is not multimodal.
        token_count: The number of tokens of all sequences.
    """

    dtype: np.dtype[Any]
    sequence_lengths: NDArray[np.int32]
    sequence_pointers: NDArray[np.int64]
    document_indices: NDArray[np.int64]
    sequence_modes: NDArray[np.int8] | None
    token_count: int

    @classmethod
    def from_buffer(cls, buffer: Buffer, *, bin_bytes: int, multimodal: bool, path: str) -> Self:
        """Check a whole ``.idx`` file and return its table.

        One pass over the file; the extra memory is that of one chunk (about 10 MB), whatever the file's
        size and counts. The checks cannot detect changes that result in another well-formed dataset: a
        moved boundary between documents, a changed mode, a dtype code exchanged for one of the same width
        (or any, if there are no tokens). Only a digest detects these. The file does not record whether it
        is multimodal.

        Raises:
            IntegrityError: The data is inconsistent; names the field and the byte offset of the first wrong
                entry.
        """
        header = read_header(buffer, path=path)
        check_size(header, len(buffer), multimodal=multimodal, path=path)
        sequences, documents = header.sequence_count, header.document_count
        modes = None
        if multimodal:
            modes = _array(buffer, np.dtype("i1"), sequences, header.modes_offset)
        lengths = _array(buffer, np.dtype("<i4"), sequences, HEADER_BYTES)
        pointers = _array(buffer, np.dtype("<i8"), sequences, header.pointers_offset)
        indices = _array(buffer, np.dtype("<i8"), documents + 1, header.documents_offset)
        check_sequences(header, lengths, pointers, bin_bytes, path)
        check_documents(header, indices, path)
        tokens = bin_bytes // header.dtype.itemsize
        return cls(header.dtype, lengths, pointers, indices, modes, tokens)

    @property
    def sequence_count(self) -> int:
        """The number of sequences."""
        return len(self.sequence_lengths)

    @property
    def document_count(self) -> int:
        """The number of documents."""
        return len(self.document_indices) - 1

    def first_token(self, sequence: int) -> int:
        """Return the number of tokens before a sequence; for ``sequence == S`` the total."""
        if sequence < self.sequence_count:
            return int(self.sequence_pointers[sequence]) // self.dtype.itemsize
        return self.token_count


def _array(buffer: Buffer, dtype: np.dtype[Any], count: int, offset: int) -> NDArray[Any]:
    array = np.frombuffer(buffer, dtype=dtype, count=count, offset=offset)
    array.flags.writeable = False
    return array


def _header_error(path: str, field: str, value: int, offset: int, detail: str) -> IntegrityError:
    message = f"{path}: {field} at byte {offset} is {value}; {detail}"
    return IntegrityError(message, path=path, field=field, offset=offset, hint=_INDEX_HINT)


def check_size(header: IndexHeader, size: int, *, multimodal: bool, path: str) -> None:
    """Check the size of an index, in Python integers, which do not overflow."""
    expected = header.index_bytes(multimodal=multimodal)
    if size == expected:
        return
    hint = _INDEX_HINT
    text = (
        f"{path} must have {expected} bytes by its header "
        f"({header.sequence_count} sequences, {header.document_count} documents), got {size}"
    )
    if size == header.index_bytes(multimodal=not multimodal):
        if multimodal:
            text = f"{path} must be a multimodal index, got a text index by its size, which includes no modes"
            hint = "omit --multimodal, in Python the argument multimodal"
        else:
            text = f"{path} must be a text index, got a multimodal index by its size, which includes modes"
            hint = (
                "pass --multimodal to tokshard inspect or merge, in Python the argument multimodal; other "
                "commands read text datasets"
            )
    raise IntegrityError(text, path=path, field="size", offset=min(size, expected), hint=hint)


def check_sequences(
    header: IndexHeader, lengths: Column, pointers: Column, bin_bytes: int, path: str
) -> None:
    """Check the lengths and pointers of all sequences against each other and the size of the ``.bin``."""
    # A start beyond 2**63 would wrap, but the previous sequence ends beyond the limit and is found first.
    limit = min(bin_bytes, MAX_POINTER_BYTES)
    begin = 0
    for first in range(0, header.sequence_count, CHUNK_ENTRIES):
        piece = lengths[first : first + CHUNK_ENTRIES]
        begins = pointers[first : first + CHUNK_ENTRIES]
        sizes = piece.astype(np.int64) * header.dtype.itemsize
        ends = sizes.cumsum()
        wrong = begins != ends - sizes + begin
        wrong |= ends > limit - begin
        wrong |= piece < 0
        if wrong.any():
            at = int(wrong.argmax())
            start = begin + int(ends[at] - sizes[at])
            raise _sequence_error(
                header, first + at, int(piece[at]), int(begins[at]), start, bin_bytes=bin_bytes, path=path
            )
        begin += int(ends[-1])
    if begin != bin_bytes:
        raise IntegrityError(
            f"{path}: the .bin must have {begin} bytes, where the last sequence ends, got {bin_bytes}",
            path=path,
            field="bin_bytes",
            offset=max(HEADER_BYTES, header.pointers_offset - 4),
            hint="copy both files again, or rebuild the dataset: .bin and .idx do not match",
        )


def _sequence_error(
    header: IndexHeader, sequence: int, length: int, pointer: int, start: int, *, bin_bytes: int, path: str
) -> IntegrityError:
    field, offset, hint = "sequence_lengths", HEADER_BYTES + 4 * sequence, _INDEX_HINT
    if length < 0:
        text = f"the length of sequence {sequence} must not be negative, got {length}"
    elif pointer != start:
        field, offset = "sequence_pointers", header.pointers_offset + 8 * sequence
        text = (
            f"the pointer of sequence {sequence} must be {start}, where the previous one ends, got {pointer}"
        )
    else:
        end, hint = start + length * header.dtype.itemsize, _PAIR_HINT
        text = f"sequence {sequence} ({length} tokens) ends at byte {end} of the .bin, which has {bin_bytes}"
    return IntegrityError(
        f"{path} at byte {offset}: {text}", path=path, field=field, offset=offset, hint=hint
    )


def check_documents(header: IndexHeader, indices: Column, path: str) -> None:
    """Check the document indices against each other and the number of sequences."""
    sequences = header.sequence_count
    first_index, last_index = int(indices[:1][0]), int(indices[header.document_count :][0])
    if first_index != 0:
        raise _document_error(path, header, 0, f"document_indices must begin with 0, got {first_index}")
    for first in range(0, header.document_count, CHUNK_ENTRIES):
        piece = indices[first : first + CHUNK_ENTRIES + 1]
        wrong = (piece[1:] < piece[:-1]) | (piece[1:] > sequences)
        if wrong.any():
            at = int(wrong.argmax())
            text = (
                f"the end of document {first + at} must be from {piece[at]}, its start, to {sequences}, "
                f"the number of sequences, got {piece[at + 1]}"
            )
            raise _document_error(path, header, first + at + 1, text)
    if last_index != sequences:
        text = f"the last document must end at sequence {sequences}, got {last_index}"
        raise _document_error(path, header, header.document_count, text)


def _document_error(path: str, header: IndexHeader, entry: int, text: str) -> IntegrityError:
    offset = header.documents_offset + 8 * entry
    message = f"{path} at byte {offset}: {text}"
    return IntegrityError(message, path=path, field="document_indices", offset=offset, hint=_INDEX_HINT)
