"""Builder of indexed datasets with the interface and output of Megatron Core's builder."""

from __future__ import annotations

import os
from array import array
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tokshard.dataset import layout
from tokshard.dataset.index_file import differences, write_index
from tokshard.dataset.reader import IndexedDataset
from tokshard.errors import InputError, UsageError
from tokshard.storage import syscalls
from tokshard.storage.files import AtomicFile

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray


def integer_array(values: Any, dtype: np.dtype[Any], what: str) -> NDArray[Any]:
    """Return ``values`` as a flat, contiguous array of an integer dtype.

    ``values``: integers as a list, a numpy array, a torch tensor in main memory, or anything else that
    numpy accepts; of any shape, read in C order. Not copied if it already has the dtype.

    Raises:
        UsageError: They are not integers (an empty array may have any dtype), or one is out of the range
            of ``dtype``. It is also a ValueError.

    Example:
        >>> integer_array([1, 2, 65535], np.dtype("u2"), "tokens")
        array([    1,     2, 65535], dtype=uint16)
    """
    try:
        array = np.asarray(values).reshape(-1)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"{what} must be integers: {error}") from error
    if array.size == 0:
        return np.empty(0, dtype)
    if array.dtype.kind not in "iu":
        raise UsageError(f"{what} must be 64-bit integers, got {array.dtype}")
    if not np.can_cast(array.dtype, dtype, "safe"):
        _check_range(array, dtype, what)
    return np.ascontiguousarray(array, dtype=dtype)


def _check_range(array: NDArray[Any], dtype: np.dtype[Any], what: str) -> None:
    limits = np.iinfo(dtype)
    if limits.min <= int(array.min()) and int(array.max()) <= limits.max:
        return
    for position, value in enumerate(array.tolist()):
        if not limits.min <= value <= limits.max:
            raise UsageError(
                f"{what} must be from {limits.min} to {limits.max} ({dtype.name}), got {value} at position "
                f"{position}",
                hint="choose the dtype by the vocabulary size: tokshard.DType.optimal_dtype",
            )


WRITE_BUFFER_BYTES = 1 << 20

_MODE = np.dtype("i1")
_LENGTH = np.dtype("<i4")


class IndexedDatasetBuilder:
    """Writes a dataset document by document.

    Values that cannot be stored raise an error. Tokens go to a temporary file next to ``bin_path``;
    :meth:`finalize` publishes both files, complete and fsynced, the ``.bin`` first and the ``.idx`` last.
    Memory: 12 bytes per sequence and document.

    Use it as a context manager: an exception removes the temporary file, and a normal exit without
    :meth:`finalize` removes it and raises. If used without ``with``, an abandoned builder leaves the
    temporary file, which the next builder of the same process replaces. Only one builder at a time may
    write to a path.

    Args:
        bin_path: The ``.bin`` file. :meth:`finalize` replaces an existing one.
        dtype: The dtype of the tokens, an integer type of the format.
        multimodal: Whether each sequence has a mode.

    Attributes:
        sequence_lengths: The number of tokens of each sequence so far.
        document_indices: 0, then the number of sequences up to the end of each document so far.
        sequence_modes: The mode of each sequence so far, or None if not multimodal.

    Raises:
        UsageError: The dtype is invalid.
        StorageError: The temporary file cannot be created.

    Example::

        with IndexedDatasetBuilder("data/web.bin", dtype=DType.optimal_dtype(vocab_size)) as builder:
            builder.add_document([17, 4, 2], [3])
            builder.finalize("data/web.idx")
    """

    def __init__(
        self,
        bin_path: str | os.PathLike[str],
        dtype: DTypeLike = np.int32,
        multimodal: bool = False,  # noqa: FBT001, FBT002 - Megatron's signature
    ) -> None:
        self.bin_path = os.fspath(bin_path)
        self.dtype = layout.DTYPES[layout.DType.code_from_dtype(dtype)]
        if self.dtype.kind not in "iu":
            raise UsageError(f"dtype must be an integer type, got {self.dtype.name}")
        self.multimodal = multimodal
        self.sequence_lengths = array("i")
        self.document_indices = array("q", [0])
        self.sequence_modes = array("b") if multimodal else None
        self._buffer = bytearray()
        self._file: AtomicFile | None = AtomicFile(self.bin_path).__enter__()

    def __repr__(self) -> str:
        state = "open" if self._file is not None else "closed"
        return (
            f"IndexedDatasetBuilder({self.bin_path!r}, {state}, dtype={self.dtype.name}, "
            f"documents={len(self.document_indices) - 1}, sequences={len(self.sequence_lengths)})"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        unfinished = self._file is not None
        self.discard()
        if unfinished and kind is None:
            raise UsageError(
                f"the builder of {self.bin_path} was closed without finalize(): nothing was written"
            )

    def add_item(self, tensor: Any, mode: int = 0) -> None:
        """Add a sequence to the current document; :meth:`end_document` ends it.

        Args:
            tensor: The tokens: integers in a list, an array or a torch tensor in main memory.
            mode: The mode, -128 to 127, in a multimodal dataset.

        Raises:
            UsageError: A value cannot be stored, or the builder is finished.
            StorageError: The write failed; the builder is closed and nothing was written.
        """
        self._require_open()
        tokens = integer_array(tensor, self.dtype, "tokens")
        if tokens.size > layout.MAX_LENGTH:
            raise UsageError(
                f"a sequence must have at most {layout.MAX_LENGTH:,} tokens, got {tokens.size:,}"
            )
        modes = self._checked_modes([mode] if self.multimodal or mode else None, 1)
        self._add(tokens, np.array([tokens.size], _LENGTH), modes)

    def end_document(self) -> None:
        """End the current document; it may have no sequences."""
        self._require_open()
        self.document_indices.append(len(self.sequence_lengths))

    def add_document(self, tensor: Any, lengths: Any, modes: Any = None) -> None:
        """Add a complete document.

        Args:
            tensor: The tokens of all sequences, as in :meth:`add_item`.
            lengths: The number of tokens of each sequence; empty for a document without sequences.
            modes: The mode of each sequence in a multimodal dataset; None for all zero.

        Raises:
            UsageError: A value cannot be stored, the lengths are negative or do not sum to the tokens,
                ``modes`` has another length, a document of :meth:`add_item` has not ended, or the builder
                is closed.
            StorageError: The write failed; the builder is closed and nothing was written.
        """
        self._require_closed_document("add_document")
        tokens = integer_array(tensor, self.dtype, "tokens")
        sizes = integer_array(lengths, _LENGTH, "lengths")
        total = int(sizes.sum(dtype=np.int64))
        if (sizes < 0).any() or total != tokens.size:
            raise UsageError(
                f"lengths of document {len(self.document_indices) - 1} must be non-negative and sum to "
                f"its {tokens.size} tokens, got sum {total} and minimum {sizes.min(initial=0)}"
            )
        self._add(tokens, sizes, self._checked_modes(modes, sizes.size))
        self.end_document()

    def add_index(self, path_prefix: str | os.PathLike[str]) -> None:
        """Add all documents of another dataset; it is checked completely before anything is copied.

        Args:
            path_prefix: The path without ``.bin`` and ``.idx``.

        Raises:
            InputError: It does not exist, or has another dtype.
            IntegrityError: It is damaged, or its ``.bin`` is truncated during the copy.
            UsageError: A document of :meth:`add_item` has not ended, or the builder is closed.
            StorageError: The write failed; the builder is closed and nothing was written.
        """
        self._require_closed_document("add_index")
        source = IndexedDataset(path_prefix, multimodal=self.multimodal, mmap=False)
        if source.dtype != self.dtype:
            raise InputError(
                f"the dtype of {source.path_prefix} must be {self.dtype.name} like that of {self.bin_path}, "
                f"got {source.dtype.name}",
                hint="tokenize one of them again: only datasets with the same dtype can be merged",
            )
        try:
            for block in source.token_blocks():
                self._write(block)
        except BaseException:
            self.discard()
            raise
        index = source.index
        sequences = len(self.sequence_lengths)
        self.sequence_lengths.frombytes(index.sequence_lengths.tobytes())
        self.document_indices.frombytes((index.document_indices[1:] + sequences).tobytes())
        if self.sequence_modes is not None and index.sequence_modes is not None:
            self.sequence_modes.frombytes(index.sequence_modes.tobytes())

    def finalize(self, idx_path: str | os.PathLike[str]) -> None:
        """Write the index and publish both files.

        An existing index is removed before the new ``.bin`` is published, so that a crash in between leaves
        no dataset, and never new tokens with an old index.

        Args:
            idx_path: The ``.idx`` file.

        Raises:
            UsageError: Sequences of :meth:`add_item` are not in a document, or the builder is closed.
            StorageError: The write failed; the builder is closed.
        """
        self._require_closed_document("finalize")
        path = os.fspath(idx_path)
        try:
            self._flush()
            with AtomicFile(path) as index_file:
                self._write_index(index_file)
                if os.path.lexists(path):
                    syscalls.unlink(path)
                    syscalls.fsync_directory(os.path.dirname(path))
                self._require_open().__exit__(None, None, None)
        except BaseException:
            self.discard()
            raise
        self._file = None

    def discard(self) -> None:
        """Remove the temporary file and close the builder; does nothing if it is closed."""
        file, self._file = self._file, None
        self._buffer.clear()
        if file is not None:
            file.discard()

    def _write_index(self, file: AtomicFile) -> None:
        lengths = np.frombuffer(self.sequence_lengths, dtype=np.intc)
        indices = np.frombuffer(self.document_indices, dtype=np.int64)
        modes = None if self.sequence_modes is None else np.frombuffer(self.sequence_modes, dtype=np.int8)
        write_index(
            file,
            dtype=self.dtype,
            sequence_count=len(lengths),
            document_count=len(indices) - 1,
            lengths=lambda: [lengths],
            sequences_per_document=lambda: differences(indices, len(indices)),
            modes=None if modes is None else lambda: [modes],
        )

    def _add(self, tokens: NDArray[Any], lengths: NDArray[Any], modes: NDArray[Any]) -> None:
        self._write(tokens)
        self.sequence_lengths.frombytes(lengths.tobytes())
        if self.sequence_modes is not None:
            self.sequence_modes.frombytes(modes.tobytes())

    def _write(self, tokens: NDArray[Any]) -> None:
        # Small arrays are buffered: a system call is more expensive.
        if tokens.nbytes < WRITE_BUFFER_BYTES:
            self._buffer += tokens.tobytes()
            if len(self._buffer) >= WRITE_BUFFER_BYTES:
                self._flush()
        else:
            self._flush()
            self._write_through(tokens.data.cast("B"))

    def _flush(self) -> None:
        self._write_through(memoryview(bytes(self._buffer)))
        self._buffer.clear()

    def _write_through(self, buffer: memoryview) -> None:
        try:
            self._require_open().write(buffer)
        except BaseException:
            self.discard()
            raise

    def _checked_modes(self, modes: Any, count: int) -> NDArray[Any]:
        if not self.multimodal:
            if modes is not None:
                raise UsageError(
                    f"modes require a multimodal dataset, but {self.bin_path} is not multimodal",
                    hint="create the builder with multimodal=True",
                )
            return np.empty(0, _MODE)
        if modes is None:
            return np.zeros(count, _MODE)
        values = integer_array(modes, _MODE, "modes")
        if values.size != count:
            raise UsageError(
                f"modes must have one entry for each of the {count} sequences, got {values.size}"
            )
        return values

    def _require_open(self) -> AtomicFile:
        if self._file is None:
            raise UsageError(f"the builder of {self.bin_path} is closed")
        return self._file

    def _require_closed_document(self, method: str) -> None:
        self._require_open()
        if open_sequences := len(self.sequence_lengths) - self.document_indices[-1]:
            raise UsageError(
                f"{method}: {open_sequences} sequences of add_item() are not in a document",
                hint="call end_document() first",
            )
