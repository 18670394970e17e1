"""Building a dataset document by document, with the surface and the bytes of Megatron Core's builder."""

from __future__ import annotations

import os
from array import array
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tokshard.dataset import layout
from tokshard.dataset.index_file import write_index
from tokshard.dataset.reader import IndexedDataset
from tokshard.errors import InputError, UsageError
from tokshard.storage import syscalls
from tokshard.storage.files import AtomicFile

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray


def integer_array(values: Any, dtype: np.dtype[Any], what: str) -> NDArray[Any]:
    """Return ``values`` as a flat, contiguous array of an integer dtype.

    ``values``: integers as a list, a numpy array, a torch tensor in main memory, or anything else that
    numpy takes; of any shape, read in C order. Not copied where it has the dtype already.

    Raises:
        UsageError: They are no integers (an empty array may have any dtype), or one is outside the
            range of ``dtype``. It is a ValueError too.

    Example:
        >>> integer_array([1, 2, 65535], np.dtype("u2"), "tokens")
        array([    1,     2, 65535], dtype=uint16)
    """
    try:
        array = np.asarray(values).reshape(-1)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"the {what} cannot be made an array of integers: {error}") from error
    if array.size == 0:
        return np.empty(0, dtype)
    if array.dtype.kind not in "iu":
        raise UsageError(f"the {what} must be integers that fit 64 bits, not values of type {array.dtype}")
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
                f"the {what} hold {value} at position {position}, "
                f"outside the range {limits.min} to {limits.max} of {dtype.name}",
                hint="for tokens, choose the dtype by the vocabulary: tokshard.dataset.layout.optimal_dtype",
            )


WRITE_BUFFER_BYTES = 1 << 20

_MODE = np.dtype("i1")
_LENGTH = np.dtype("<i4")


class IndexedDatasetBuilder:
    """Write a dataset document by document.

    What cannot be stored is refused instead of wrapped or trusted. The tokens go to a temporary file
    beside ``bin_path``; only :meth:`finalize` gives the files their names, complete and forced to the
    disk, the ``.bin`` first and the ``.idx`` last. Memory: 12 bytes for each sequence and document.

    Use it as a context manager: leaving by an exception removes the temporary file, and leaving without
    :meth:`finalize` does so too and raises. Without that, a builder that is dropped leaves the
    temporary file, which the next builder of the same process replaces. One builder at a time may
    write to a path.

    Args:
        bin_path: The ``.bin`` file. One that exists is replaced by :meth:`finalize`.
        dtype: The dtype of the tokens, an integer type of the format.
        multimodal: Whether each sequence has a mode.

    Raises:
        UsageError: The dtype cannot be used.
        StorageError: The temporary file cannot be made.

    Example::

        with IndexedDatasetBuilder("data/web.bin", dtype=optimal_dtype(vocab_size)) as builder:
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
        self.dtype = layout.DTYPES[layout.dtype_code(dtype)]
        if self.dtype.kind not in "iu":
            raise UsageError(f"tokens are integers, and cannot be written as {self.dtype.name}")
        self.multimodal = multimodal
        self._lengths = array("i")
        self._sequences_per_document = array("q")
        self._modes = array("b")
        self._open_sequences = 0
        self._buffer = bytearray()
        self._file: AtomicFile | None = AtomicFile(self.bin_path).__enter__()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        unfinished = self._file is not None
        self.discard()
        if unfinished and kind is None:
            raise UsageError(
                f"the builder of {self.bin_path} was left without finalize(), nothing is written"
            )

    def add_item(self, tensor: Any, mode: int = 0) -> None:
        """Add one sequence to the document that :meth:`end_document` will close.

        Args:
            tensor: Its tokens: integers in a list, an array or a torch tensor in main memory.
            mode: Its mode, -128 to 127, in a multimodal dataset.

        Raises:
            UsageError: A value cannot be stored, or the builder is finished.
            StorageError: The disk refuses; the builder is then finished, with nothing written.
        """
        self._require_open()
        tokens = integer_array(tensor, self.dtype, "tokens")
        if tokens.size > layout.MAX_LENGTH:
            raise UsageError(f"a sequence of {tokens.size} tokens is longer than {layout.MAX_LENGTH}")
        modes = self._checked_modes([mode] if self.multimodal or mode else None, 1)
        self._write(tokens)
        self._lengths.append(tokens.size)
        self._modes.frombytes(modes.tobytes())
        self._open_sequences += 1

    def end_document(self) -> None:
        """Close the document of the sequences added by :meth:`add_item`, of which there may be none."""
        self._require_open()
        self._sequences_per_document.append(self._open_sequences)
        self._open_sequences = 0

    def add_document(self, tensor: Any, lengths: Any, modes: Any = None) -> None:
        """Add a whole document.

        Args:
            tensor: The tokens of all its sequences, as in :meth:`add_item`.
            lengths: The tokens of each sequence; empty for a document without sequences.
            modes: The mode of each sequence in a multimodal dataset; None for all zero.

        Raises:
            UsageError: A value cannot be stored, the lengths are negative or do not sum to the tokens,
                there is not one mode for each sequence, a document of :meth:`add_item` is not closed,
                or the builder is finished.
            StorageError: The disk refuses; the builder is then finished, with nothing written.
        """
        self._require_closed_document("add_document")
        tokens = integer_array(tensor, self.dtype, "tokens")
        sizes = integer_array(lengths, _LENGTH, "lengths")
        total = int(sizes.sum(dtype=np.int64))
        if (sizes < 0).any() or total != tokens.size:
            raise UsageError(
                f"the lengths of document {len(self._sequences_per_document)} sum to {total}, "
                f"the smallest being {sizes.min(initial=0)}, but it has {tokens.size} tokens"
            )
        mode_bytes = self._checked_modes(modes, sizes.size).tobytes()
        self._write(tokens)
        self._lengths.frombytes(sizes.tobytes())
        self._modes.frombytes(mode_bytes)
        self._sequences_per_document.append(sizes.size)

    def add_index(self, path_prefix: str | os.PathLike[str]) -> None:
        """Add all documents of another dataset, which is checked completely before anything is copied.

        Args:
            path_prefix: Its path without ``.bin`` and ``.idx``.

        Raises:
            InputError: It is not there, or has another dtype.
            IntegrityError: It is damaged, or its ``.bin`` is cut short while it is copied.
            UsageError: A document of :meth:`add_item` is not closed, or the builder is finished.
            StorageError: The disk refuses; the builder is then finished, with nothing written.
        """
        self._require_closed_document("add_index")
        source = IndexedDataset(path_prefix, multimodal=self.multimodal, mmap=False)
        if source.dtype != self.dtype:
            raise InputError(
                f"{source.path_prefix} has {source.dtype.name} tokens, "
                f"but {self.bin_path} is written with {self.dtype.name}",
                hint="only datasets of one dtype can be put together; tokenize one of them again",
            )
        try:
            for block in source.token_blocks():
                self._write(block)
        except BaseException:
            self.discard()
            raise
        index = source.index
        self._lengths.frombytes(index.sequence_lengths.tobytes())
        self._sequences_per_document.frombytes(np.diff(index.document_indices).tobytes())
        if index.sequence_modes is not None:
            self._modes.frombytes(index.sequence_modes.tobytes())

    def finalize(self, idx_path: str | os.PathLike[str]) -> None:
        """Write the index and publish both files.

        An index that exists is removed before the new ``.bin`` takes its name, so that a crash in
        between leaves no dataset and never new tokens under an old index.

        Args:
            idx_path: The ``.idx`` file.

        Raises:
            UsageError: Sequences of :meth:`add_item` are in no document, or the builder is finished.
            StorageError: The disk refuses; the builder is then finished.
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
        """Remove what is written and finish; nothing happens to a builder that is finished."""
        file, self._file = self._file, None
        self._buffer.clear()
        if file is not None:
            file.discard()

    def _write_index(self, file: AtomicFile) -> None:
        lengths = np.frombuffer(self._lengths, dtype=np.intc)
        documents = np.frombuffer(self._sequences_per_document, dtype=np.int64)
        modes = np.frombuffer(self._modes, dtype=np.int8)
        write_index(
            file,
            dtype=self.dtype,
            sequence_count=len(lengths),
            document_count=len(documents),
            lengths=lambda: [lengths],
            sequences_per_document=lambda: [documents],
            modes=(lambda: [modes]) if self.multimodal else None,
        )

    def _write(self, tokens: NDArray[Any]) -> None:
        # Small arrays are collected: a system call costs more than they do.
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
                    f"modes were given, but {self.bin_path} is not multimodal",
                    hint="make the builder with multimodal=True",
                )
            return np.empty(0, _MODE)
        if modes is None:
            return np.zeros(count, _MODE)
        values = integer_array(modes, _MODE, "modes")
        if values.size != count:
            raise UsageError(f"{values.size} modes were given for {count} sequences")
        return values

    def _require_open(self) -> AtomicFile:
        if self._file is None:
            raise UsageError(f"the builder of {self.bin_path} is finished and takes nothing more")
        return self._file

    def _require_closed_document(self, method: str) -> None:
        self._require_open()
        if self._open_sequences:
            raise UsageError(
                f"{method}: {self._open_sequences} sequences of add_item are in no document yet",
                hint="call end_document() first",
            )
