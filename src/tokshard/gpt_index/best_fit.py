"""Best-fit decreasing: whole documents packed into samples, as an index that Megatron reads.

A sample is a **pack** of whole documents. A document of more than S tokens (S is the sequence length) fills
samples of its own, and its remainder of 1 to S tokens begins a pack. The packs of an epoch are those of
best-fit decreasing (Johnson 1973; used for training by Ding et al. 2024, "Fewer Truncations Improve Language
Modeling"): the remainders open a pack each; then all other documents, the longest first, go into the pack
with the least free space in which they fit. Of packs with equal space, the one that has had it for longest is
chosen; if a document fits nowhere, it opens a pack.

The result depends on the lengths only through the number of documents of each length. Therefore
:func:`best_fit` works on whole runs of equal documents and equal packs, every epoch has the same number of
samples, and documents of equal length are interchangeable: an epoch shuffles all documents, and documents of
equal length take their places in that order. Within a pack, the remainder comes first and the others follow
in the shuffled order. The samples of an epoch are shuffled as in Megatron, and never mixed with other epochs.

The arrays of an index express that as follows. The document index lists the documents with at least one
token, pack by pack. The rows of the sample index are the beginnings of packs, preceded by those of the full
samples of the document that the pack begins with. An additional document at the end is the position of the
last row: Megatron reads one token of it, as the last label.

The compiled kernel is kept for its speed: ``scripts/bench packing`` measures it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tokshard.core.compilation import WORTH_COMPILING, compiled, has_numba
from tokshard.errors import InputError
from tokshard.gpt_index.arrays import sample_index_dtype, shuffle_index_dtype
from tokshard.gpt_index.epochs import EpochPlan, SplitSize
from tokshard.gpt_index.packing import PackedEpoch, Packing

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.gpt_index.shuffling import ShuffleStream

# Documents handled at once by numpy, and by a kernel (below a second, so that signals are handled between).
_PIECE = 1 << 18
_COMPILED_PIECE = 1 << 22

_BLOCK = 1024


@dataclass(frozen=True, slots=True, eq=False)
class EpochPacks:
    """The packs of an epoch, without the documents in them.

    Documents are ordered by decreasing *key*: the remainders by size, then the whole documents by size. A
    run gives ``each`` documents of that order to each of ``packs`` consecutive packs from ``first`` on.

    Attributes:
        sequences: The numbers of the split's sequences; each is a document.
        sequence_length: The tokens of a sample, without the extra one.
        packing: The options.
        counts: The number of documents of each key: int64 of shape (2 * sequence_length + 1,). A key is the
            room that a document takes (1 to sequence_length), plus the sequence length for a remainder.
        unpadded_counts: The same as if ``pad_multiple`` was not given: rooms are tokens.
        runs: int64 of shape (runs, 3): first, packs, each.
        packs: The number of packs.
        full_samples: The samples that a longer document fills alone.
        tokens: The tokens of the epoch.
    """

    sequences: range
    sequence_length: int
    packing: Packing
    counts: NDArray[np.int64]
    unpadded_counts: NDArray[np.int64]
    runs: NDArray[np.int64]
    packs: int
    full_samples: int
    tokens: int

    @classmethod
    def of(
        cls, lengths: NDArray[np.int32], sequences: range, sequence_length: int, packing: Packing
    ) -> EpochPacks:
        """Pack the documents of a split.

        Args:
            lengths: The tokens of all sequences of the dataset: int32 of shape (sequences,).
            sequences: The numbers of the split's sequences; each is a document.
            sequence_length: The tokens of a sample, without the extra one.
            packing: The options.

        Raises:
            UsageError: The sequence length is out of range.

        Example:
            >>> packs = EpochPacks.of(np.array([3, 5, 4, 9, 0], np.int32), range(5), 8, Packing())
            >>> packs.samples, packs.documents, packs.documents_per_sample().tolist()
            (3, 4, [0, 1, 2])
        """
        packing.check_sequence_length(sequence_length)
        unpadded = np.zeros(2 * sequence_length + 1, np.int64)
        full, tokens = 0, 0
        for first in range(sequences.start, sequences.stop, _PIECE):
            piece = lengths[first : min(first + _PIECE, sequences.stop)].astype(np.int64)
            unpadded += np.bincount(_unpadded_keys(piece, sequence_length), minlength=len(unpadded))
            full += int((np.maximum(piece - 1, 0) // sequence_length).sum())
            tokens += int(piece.sum())
        unpadded[0] = 0
        counts = unpadded
        if packing.pad_multiple is not None:
            keys = np.flatnonzero(unpadded)
            counts = np.zeros_like(unpadded)
            np.add.at(counts, _padded(keys, sequence_length, packing), unpadded[keys])
        runs, packs = best_fit(counts, sequence_length, packing.max_documents)
        return cls(sequences, sequence_length, packing, counts, unpadded, runs, packs, full, tokens)

    @property
    def documents(self) -> int:
        """The documents with at least one token."""
        return int(self.counts.sum())

    @property
    def remainders(self) -> int:
        """The documents that are longer than a sample."""
        return int(self.counts[self.sequence_length + 1 :].sum())

    @property
    def samples(self) -> int:
        """The samples of the epoch."""
        return self.packs + self.full_samples

    @property
    def size(self) -> SplitSize:
        """The size of the split, without a report."""
        packed = None
        if self.packs:
            packed = PackedEpoch(packing=self.packing, documents=self.documents, samples=self.samples)
        return SplitSize(len(self.sequences), self.tokens, packed)

    def pack_sizes(self) -> NDArray[np.int32]:
        """Return the number of documents in each pack: int32 of shape (packs,)."""
        sizes = np.zeros(self.packs, np.int32)
        for first, packs, each in self.runs.tolist():
            sizes[first : first + packs] += each
        return sizes

    def documents_per_sample(self) -> NDArray[np.int64]:
        """Return the number of samples with 0, 1, 2, ... documents; int64."""
        found = np.bincount(self.pack_sizes(), minlength=2)
        found[1] += self.full_samples
        return found

    def packs_of_documents(self) -> NDArray[np.int32]:
        """Return the pack of each document, ordered by decreasing key: int32 of shape (documents,)."""
        result = np.empty(self.documents, np.int32)
        done = 0
        for first, packs, each in self.runs.tolist():
            numbers = np.arange(first, first + packs, dtype=np.int32)
            result[done : done + packs * each] = numbers if each == 1 else numbers.repeat(each)
            done += packs * each
        return result


def check_documents(edges: NDArray[np.int64], path_prefix: str) -> None:
    """Check that no document of a dataset consists of several sequences: these would be packed one by one.

    Args:
        edges: The first sequence of each document, and the end of the last: int64 of shape (documents + 1,).
        path_prefix: The dataset, for the message.

    Raises:
        InputError: A document has several sequences.
    """
    for first in range(0, len(edges) - 1, _PIECE):
        sequences: NDArray[Any] = np.diff(edges[first : first + _PIECE + 1])
        if sequences.max() > 1:
            document = first + int(np.argmax(sequences > 1))
            raise InputError(
                f"--pack best-fit requires one sequence per document: document {document:,} of {path_prefix} "
                f"has {int(sequences[document - first]):,}",
                hint="tokenize the texts without splitting them into sentences, or use --pack concat",
            )


def best_fit(counts: NDArray[np.int64], size: int, most: int | None) -> tuple[NDArray[np.int64], int]:
    """Pack documents by best-fit decreasing, by runs of equal documents and equal packs.

    Args:
        counts: The number of documents of each key, see :class:`EpochPacks`.
        size: The room of a pack.
        most: Documents of a pack at most; None for any number.

    Returns:
        The runs, see :class:`EpochPacks`, and the number of packs.

    Example:
        >>> counts = np.zeros(17, np.int64)
        >>> counts[[5, 4, 3]] = 2, 1, 2  # rooms of 5, 5, 4, 3 and 3 tokens
        >>> runs, packs = best_fit(counts, 8, None)
        >>> runs.tolist(), packs
        ([[0, 2, 1], [2, 1, 1], [0, 2, 1]], 3)
    """
    limit = int(counts.sum()) if most is None else most
    runs: list[tuple[int, int, int]] = []
    open_packs = _OpenPacks(limit)
    opened = 0
    for key in np.flatnonzero(counts)[::-1].tolist():
        left = int(counts[key])
        if key > size:
            runs.append((opened, left, 1))
            open_packs.put(_EqualPacks(opened, left, 1), size - (key - size))
            opened += left
        while left and key <= size:
            group, space = open_packs.take(key)
            if group is None:
                each = min(size // key, limit)
                group, space = _EqualPacks(opened, -(-left // each), 0), size
                opened += group.packs
            each = min(space // key, limit - group.documents)
            filled = min(group.packs, left // each)
            # The documents that are left go into one more pack, and the others of the group stay as they are.
            last = min(group.packs - filled, 1, left - filled * each)
            open_packs.put_back(group.part(filled + last, group.packs), space)
            for first, stop, documents in ((0, filled, each), (filled, filled + last, left - filled * each)):
                if first < stop:
                    runs.append((group.first + first, stop - first, documents))
                    open_packs.put(group.part(first, stop, documents), space - documents * key)
            left = 0 if last else left - filled * each
    return np.array(runs, np.int64).reshape(-1, 3), opened


class _EqualPacks(NamedTuple):
    # Consecutive packs with the same free space and the same number of documents.
    first: int
    packs: int
    documents: int

    def part(self, start: int, stop: int, more: int = 0) -> _EqualPacks:
        return _EqualPacks(self.first + start, stop - start, self.documents + more)


class _OpenPacks:
    # Groups of packs by free space, and those of equal space in the order in which they got it.
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._groups: dict[int, deque[_EqualPacks]] = {}
        self._spaces: list[int] = []  # ascending

    def take(self, room: int) -> tuple[_EqualPacks | None, int]:
        place = bisect_left(self._spaces, room)
        if place == len(self._spaces):
            return None, 0
        space = self._spaces[place]
        groups = self._groups[space]
        group = groups.popleft()
        if not groups:
            del self._spaces[place], self._groups[space]
        return group, space

    def put_back(self, group: _EqualPacks, space: int) -> None:
        if group.packs:
            self._of(space).appendleft(group)

    def put(self, group: _EqualPacks, space: int) -> None:
        if not space or group.documents == self._limit:
            return
        groups = self._of(space)
        groups.append(group)

    def _of(self, space: int) -> deque[_EqualPacks]:
        if space not in self._groups:
            self._groups[space] = deque()
            insort(self._spaces, space)
        return self._groups[space]


def build_packed_index(
    lengths: NDArray[np.int32], packs: EpochPacks, plan: EpochPlan, stream: ShuffleStream
) -> tuple[NDArray[np.int32], NDArray[np.int32] | NDArray[np.int64], NDArray[np.uint32] | NDArray[np.int64]]:
    """Build the arrays of an index of packed samples.

    Peak memory is the result, and for an epoch 8 bytes per document and 12 per sample.

    Args:
        lengths: The tokens of all sequences of the dataset: int32 of shape (sequences,).
        packs: The packs of an epoch.
        plan: The plan of the index.
        stream: The stream of the index's seed; it must be unused.

    Returns:
        The document index, int32 of shape (documents * epochs + 1,); the sample index, int32 or int64 of
        shape (samples + 1, 2); and the shuffle index, uint32 or int64 of shape (samples,).
    """
    size = packs.sequence_length
    documents = np.empty(plan.documents, np.int32)
    rows: NDArray[Any] = np.empty((plan.samples + 1, 2), sample_index_dtype(plan.documents))
    order: NDArray[Any] = np.empty(plan.samples, shuffle_index_dtype(plan.samples))
    starts = np.zeros(packs.packs + 1, np.int64)
    np.cumsum(packs.pack_sizes(), out=starts[1:])
    pack_of = packs.packs_of_documents()
    for epoch in range(plan.epochs):
        first, row = epoch * packs.documents, epoch * packs.samples
        here = documents[first : first + packs.documents]
        shuffled = _documents_with_tokens(lengths, packs)
        stream.shuffle(shuffled)
        _place(lengths, shuffled, packs, pack_of, starts, here)
        _write_rows(lengths, here, starts, size, first, rows[row : row + packs.samples])
        samples = order[row : row + packs.samples]
        samples[:] = np.arange(row, row + packs.samples)
        stream.shuffle(samples)
    documents[-1] = documents[0]
    rows[-1] = len(documents) - 1, 0
    return documents, rows, order


def _unpadded_keys(lengths: NDArray[Any], size: int) -> NDArray[Any]:
    # The key of each document, see EpochPacks, as if it was not padded; 0 for one without tokens.
    longer = lengths > size
    keys: NDArray[Any] = np.where(longer, (lengths - 1) % size + 1 + size, lengths)
    return keys


def _padded(keys: NDArray[Any], size: int, packing: Packing) -> NDArray[Any]:
    multiple = packing.pad_multiple or 1
    before = (keys > size) * size
    padded: NDArray[Any] = (keys - before + multiple - 1) // multiple * multiple + before
    return padded


def _documents_with_tokens(lengths: NDArray[np.int32], packs: EpochPacks) -> NDArray[np.int32]:
    sequences, count = packs.sequences, packs.documents
    result = np.empty(count, np.int32)
    done = 0
    for first in range(sequences.start, sequences.stop, _PIECE):
        found = np.flatnonzero(lengths[first : min(first + _PIECE, sequences.stop)])
        result[done : done + len(found)] = found + first
        done += len(found)
    if done != count:
        raise InputError("the lengths of the dataset have changed while its index was built")
    return result


def _place(
    lengths: NDArray[np.int32],
    shuffled: NDArray[np.int32],
    packs: EpochPacks,
    pack_of: NDArray[np.int32],
    starts: NDArray[np.int64],
    result: NDArray[np.int32],
) -> None:
    # Writes the documents of each pack to its places in ``result``.
    size = packs.sequence_length
    if len(shuffled) < WORTH_COMPILING or not has_numba():
        keys = _padded(_unpadded_keys(lengths[shuffled].astype(np.int64), size), size, packs.packing)
        by_key = np.argsort(-keys, kind="stable")
        which = np.empty(len(shuffled), np.int64)
        which[by_key] = pack_of
        # Remainders come first in their packs.
        result[:] = shuffled[np.argsort(2 * which + (keys <= size), kind="stable")]
        return
    kernel = compiled(place_documents)
    next_of_key = np.zeros(len(packs.counts), np.int64)
    next_of_key[:-1] = packs.counts[:0:-1].cumsum()[::-1]
    next_in_pack = starts[:-1].copy()
    next_in_pack[: packs.remainders] += 1
    for first in range(0, len(shuffled), _COMPILED_PIECE):
        kernel(
            lengths,
            shuffled[first : first + _COMPILED_PIECE],
            size,
            packs.packing.pad_multiple or 1,
            pack_of,
            starts,
            next_of_key,
            next_in_pack,
            result,
        )


def place_documents(  # noqa: PLR0913, PLR0917 - a kernel has no objects
    lengths: NDArray[np.int32],
    shuffled: NDArray[np.int32],
    size: int,
    multiple: int,
    pack_of: NDArray[np.int32],
    starts: NDArray[np.int64],
    next_of_key: NDArray[np.int64],
    next_in_pack: NDArray[np.int64],
    result: NDArray[np.int32],
) -> None:
    """Write documents to their places in the document index of an epoch.

    Args:
        lengths: The tokens of each sequence of the dataset.
        shuffled: The documents, in shuffled order.
        size: The sequence length.
        multiple: The room of each document is a multiple of this many tokens.
        pack_of: The pack of each document, ordered by decreasing key.
        starts: The first place of each pack.
        next_of_key: The next entry of ``pack_of`` for a document of each key; changed in place.
        next_in_pack: The next free place of each pack, after that of a remainder; changed in place.
        result: The document index of the epoch, changed in place.
    """
    keys = np.empty(_BLOCK, np.int64)
    packs = np.empty(_BLOCK, np.int64)
    for begin in range(0, len(shuffled), _BLOCK):
        count = min(_BLOCK, len(shuffled) - begin)
        # One kind of memory access per loop, so that many are under way at once.
        for k in range(count):
            keys[k] = lengths[shuffled[begin + k]]
        for k in range(count):
            room = keys[k]
            longer = room > size
            if longer:
                room = (room - 1) % size + 1
            room = (room + multiple - 1) // multiple * multiple
            key = room + size if longer else room
            keys[k] = key
            packs[k] = pack_of[next_of_key[key]]
            next_of_key[key] += 1
        for k in range(count):
            if keys[k] > size:
                result[starts[packs[k]]] = shuffled[begin + k]
            else:
                place = next_in_pack[packs[k]]
                next_in_pack[packs[k]] = place + 1
                result[place] = shuffled[begin + k]


def _write_rows(
    lengths: NDArray[np.int32],
    documents: NDArray[np.int32],
    starts: NDArray[np.int64],
    size: int,
    position: int,
    rows: NDArray[Any],
) -> None:
    # Writes the rows of an epoch whose documents begin at a position of the document index.
    row = 0
    for first in range(0, len(starts) - 1, _PIECE):
        begins = starts[first : min(first + _PIECE, len(starts) - 1)]
        samples = (lengths[documents[begins]].astype(np.int64) - 1) // size + 1
        stops = samples.cumsum()
        which = np.arange(len(begins)).repeat(samples)
        stop = row + len(which)
        rows[row:stop, 0] = (begins + position)[which]
        rows[row:stop, 1] = (np.arange(len(which)) - (stops - samples)[which]) * size
        row = stop
