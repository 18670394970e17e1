"""Reader of Megatron indexed datasets; everything is checked on opening."""

from __future__ import annotations

import errno
import operator
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.dataset.layout import IndexTable
from tokshard.dataset.source import (
    DataFile,
    FileTokens,
    InputFile,
    MappedTokens,
    Tokens,
    TokenSource,
    open_data,
)
from tokshard.errors import InputError, MissingFileError, StorageError, UsageError
from tokshard.storage.fs import exists
from tokshard.storage.paths import bin_path, idx_path, is_remote, strip_data_suffix

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.storage.remote.objects import RemoteStatus

BLOCK_BYTES = 1 << 22

_OPENING_TRIES = 100
_REMOTE_OPENING_TRIES = 10


class IndexedDataset:
    """A dataset on disk as a read-only sequence of token arrays.

    It behaves like Megatron Core's class of this name for valid data. If the files are inconsistent, opening
    raises instead of reading wrong tokens later. Opening makes one pass over the ``.idx`` file (20 bytes per
    sequence and document, mapped, not copied).

    Args:
        path_prefix: The path of the pair of files without ``.bin`` and ``.idx``, or its URL: then the
            ``.idx`` file is read into memory, and tokens are read by range requests.
        multimodal: Whether each sequence has a mode; items are then pairs (tokens, mode).
        mmap: Whether to map the ``.bin`` file. Mapped tokens are read-only views without a copy, which
            stay valid after the dataset object is gone; but if another program truncates the file while
            it is mapped, this process dies with SIGBUS. Without mmap every access reads a new, writable
            array, and truncation is an error. The ``.idx`` file is mapped in both cases. Remote tokens are
            never mapped.

    Raises:
        MissingFileError: One or both files do not exist.
        InputError: One of them is not a regular file.
        IntegrityError: See :meth:`tokshard.dataset.layout.IndexTable.from_buffer`.
        StorageError: A file cannot be read.

    Example::

        dataset = IndexedDataset("data/web")
        first = dataset[0]                     # all tokens of sequence 0
        few = dataset.get(0, offset=5, length=10)
        text = dataset.document_tokens(7)      # all tokens of document 7
    """

    def __init__(
        self,
        path_prefix: str | os.PathLike[str],
        multimodal: bool = False,  # noqa: FBT001, FBT002 - Megatron's signature
        mmap: bool = True,  # noqa: FBT001, FBT002 - Megatron's signature
    ) -> None:
        self.path_prefix = os.fspath(path_prefix)
        self.multimodal = multimodal
        bin_file, index_file = open_pair(self.path_prefix)
        self.index = IndexTable.from_buffer(
            index_file.map(), bin_bytes=bin_file.size_bytes, multimodal=multimodal, path=index_file.path
        )
        self.bin_state = bin_file.state()
        self.mmap = mmap and isinstance(bin_file, InputFile)
        self._tokens: TokenSource = FileTokens(bin_file, self.index.dtype)
        if mmap and isinstance(bin_file, InputFile):
            self._tokens = MappedTokens(bin_file, self.index.dtype)

    def __reduce__(self) -> tuple[type[IndexedDataset], tuple[str, bool, bool]]:
        # Processes exchange plain values; the receiver opens and checks the files again.
        return type(self), (self.path_prefix, self.multimodal, self.mmap)

    def __repr__(self) -> str:
        index = self.index
        return (
            f"IndexedDataset({self.path_prefix!r}: {index.token_count} {index.dtype.name} tokens, "
            f"{index.sequence_count} sequences, {index.document_count} documents)"
        )

    def __len__(self) -> int:
        return self.index.sequence_count

    def __getitem__(self, idx: int | np.integer[Any] | slice) -> Any:
        """Return a sequence, or a list of the sequences of a contiguous slice.

        Args:
            idx: The number of a sequence, from the end if negative, or a slice of step 1.

        Returns:
            For a number: the tokens, with the dataset's dtype; with their int8 mode if multimodal. For a
            slice: a list of such arrays; with the int8 array of their modes if multimodal.

        Raises:
            IndexError: The sequence does not exist.
            UsageError: The step of the slice is not 1. It is also a ValueError.
            TypeError: ``idx`` is neither a number nor a slice.
        """
        if isinstance(idx, slice):
            return self._slice(idx)
        sequence = _position(idx, len(self), "sequence")
        index = self.index
        tokens = self._tokens.read(index.first_token(sequence), int(index.sequence_lengths[sequence]))
        return self._with_mode(tokens, sequence)

    def get(self, idx: int | np.integer[Any], offset: int = 0, length: int | None = None) -> Any:
        """Return a part of a sequence.

        Args:
            idx: The number of the sequence, from the end if negative.
            offset: The first token of the part, from the beginning of the sequence.
            length: The number of tokens; None for all remaining ones.

        Returns:
            The tokens; with the int8 mode of the sequence if multimodal.

        Raises:
            IndexError: The sequence does not exist, or is too short.
        """
        sequence = _position(idx, len(self), "sequence")
        available = int(self.index.sequence_lengths[sequence])
        offset = operator.index(offset)
        count = available - offset if length is None else operator.index(length)
        if offset < 0 or count < 0 or offset + count > available:
            raise IndexError(
                f"{self.path_prefix}: offset {offset} and length {length} exceed sequence {sequence}, "
                f"which has {available} tokens"
            )
        tokens = self._tokens.read(self.index.first_token(sequence) + offset, count)
        return self._with_mode(tokens, sequence)

    def document_tokens(self, document: int | np.integer[Any]) -> Tokens:
        """Return the tokens of all sequences of a document; a document may have none.

        Args:
            document: The number of the document, from the end if negative.

        Raises:
            IndexError: The document does not exist.
        """
        position = _position(document, self.document_count, "document")
        first, last = (int(self.document_indices[position + side]) for side in (0, 1))
        begin = self.index.first_token(first)
        return self._tokens.read(begin, self.index.first_token(last) - begin)

    def token_blocks(self, block_bytes: int = BLOCK_BYTES) -> Iterator[Tokens]:
        """Yield all tokens in order, in pieces of about ``block_bytes``, for copies and scans."""
        block_tokens = max(1, block_bytes // self.dtype.itemsize)
        total = self.index.token_count
        return (
            self._tokens.read(first, min(block_tokens, total - first))
            for first in range(0, total, block_tokens)
        )

    @property
    def mapped_tokens(self) -> Tokens | None:
        """All tokens of the ``.bin`` file as a view of its map; None if it is not mapped."""
        if not isinstance(self._tokens, MappedTokens):
            return None
        return self._tokens.read(0, self.index.token_count)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the tokens."""
        return self.index.dtype

    @property
    def document_count(self) -> int:
        """The number of documents."""
        return self.index.document_count

    @property
    def sequence_lengths(self) -> NDArray[np.int32]:
        """The tokens of each sequence: int32 of shape (sequences,)."""
        return self.index.sequence_lengths

    @property
    def document_indices(self) -> NDArray[np.int64]:
        """The boundaries of documents: int64 of shape (documents + 1,), from 0 to the sequence count."""
        return self.index.document_indices

    def get_document_indices(self) -> NDArray[np.int64]:
        """Return :attr:`document_indices`, as Megatron Core's method of this name."""
        return self.document_indices

    @property
    def sequence_modes(self) -> NDArray[np.int8] | None:
        """The mode of each sequence: int8 of shape (sequences,), or None if not multimodal."""
        return self.index.sequence_modes

    @staticmethod
    def exists(path_prefix: str | os.PathLike[str]) -> bool:
        """Return whether both files exist; they are not opened."""
        prefix = os.fspath(path_prefix)
        return exists(idx_path(prefix)) and exists(bin_path(prefix))

    def _slice(self, wanted: slice) -> Any:
        start, stop, step = wanted.indices(len(self))
        if step != 1:
            raise UsageError(f"{self.path_prefix}: the step of a slice must be 1, got {step}")
        stop = max(start, stop)
        begin = self.index.first_token(start)
        tokens = self._tokens.read(begin, self.index.first_token(stop) - begin)
        ends = np.cumsum(self.sequence_lengths[start:stop], dtype=np.int64)
        sequences = np.split(tokens, ends)[:-1]
        modes = self.index.sequence_modes
        return sequences if modes is None else (sequences, modes[start:stop])

    def _with_mode(self, tokens: Tokens, sequence: int) -> Any:
        modes = self.index.sequence_modes
        return tokens if modes is None else (tokens, modes[sequence])


def _position(index: int | np.integer[Any], count: int, noun: str) -> int:
    position = operator.index(index)
    if not -count <= position < count:
        raise IndexError(f"{noun} {position} not found (the dataset has {count})")
    return position % count


def open_pair(path_prefix: str) -> tuple[DataFile, InputFile]:
    """Open the ``.bin`` and ``.idx`` files of a dataset, both of the same version if it is being replaced.

    A process that replaces a dataset removes the old ``.idx`` before it renames or uploads the new ``.bin``.

    Raises:
        MissingFileError: One or both files do not exist.
        InputError: One of them is not a regular file.
        StorageError: One of them cannot be opened.
    """
    for tries_left in reversed(range(_OPENING_TRIES)):
        try:
            paths = bin_path(path_prefix), idx_path(path_prefix)
            known = _remote_pair(*paths) if is_remote(path_prefix) else (None, None)
            pair = open_data(paths[0], known[0]), InputFile(paths[1], known[1])
        except (MissingFileError, StorageError) as error:
            require_files(path_prefix)
            if tries_left == 0 or getattr(error, "errno", None) != errno.ENOENT:
                raise
        else:
            if tries_left == 0 or not isinstance(pair[0], InputFile) or pair[0].is_in_place():
                break
    return pair


def _remote_pair(bin_url: str, idx_url: str) -> tuple[RemoteStatus, RemoteStatus]:
    """Return the statuses of two objects of one version of a dataset.

    The versions belong together if both objects still have them when both are known.
    """
    from tokshard.storage.remote.objects import status

    for _ in range(_REMOTE_OPENING_TRIES):
        pair = status(bin_url), status(idx_url)
        if (status(bin_url), status(idx_url)) == pair:
            return pair
    raise InputError(
        f"cannot read one version of {bin_url} and {idx_url}: they are being replaced again and again",
        hint="run the command again when no process writes to them",
    )


def require_files(path_prefix: str) -> None:
    """Raise MissingFileError unless both files of a dataset exist."""
    missing = [path for path in (idx_path(path_prefix), bin_path(path_prefix)) if not exists(path)]
    if not missing:
        return
    from tokshard.dataset.products import dataset_hint  # only for this message

    meant = strip_data_suffix(path_prefix)
    if meant != path_prefix and IndexedDataset.exists(meant):
        hint = f"pass the path prefix: {meant}"
    elif (found := dataset_hint(path_prefix)) is not None:
        hint = found
    elif len(missing) == 1:
        hint = "finish the run that builds the dataset, or copy both files again"
    else:
        hint = "pass the path prefix of a .bin and .idx pair, without the suffixes"
    raise MissingFileError(
        f"dataset not found: {path_prefix} ({' and '.join(missing)} missing)", path=missing[0], hint=hint
    )
