"""Best-fit decreasing: whole documents packed into samples, as an index that Megatron reads.

A sample is a **pack** of whole documents. A document of more than S tokens (S is the sequence length) fills
samples of its own, and its remainder of 1 to S tokens begins a pack. The packs of an epoch are those of
best-fit decreasing (Johnson 1973; used for training by Ding et al. 2024, "Fewer Truncations Improve Language
Modeling"): the remainders open a pack each; then all other documents, the longest first, go into the pack
with the least free space in which they fit. Of packs with equal space, the one that has had it for longest is
chosen; if a document fits nowhere, it opens a pack.

The result depends on the lengths only through the number of documents of each length. Therefore the packer
works on runs of equal documents and groups of equal packs, every epoch has the same number of samples, and
documents of equal length are interchangeable: an epoch shuffles all documents, and documents of equal length
are packed in that order. Within a pack, the remainder comes first and the others follow in the shuffled
order. The samples of an epoch are shuffled as in Megatron, and never mixed with other epochs.

The arrays of an index express that as follows. The document index lists the documents with at least one
token, pack by pack. The rows of the sample index are the beginnings of packs, preceded by those of the full
samples of the document that the pack begins with. An additional document at the end is the position of the
last row: Megatron reads one token of it, as the last label.

The compiled kernel is kept for its speed: ``scripts/bench packing`` measures it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.errors import InputError
from tokshard.samples.index.arrays import sample_index_dtype, shuffle_index_dtype
from tokshard.samples.index.epoch_plan import EpochPlan
from tokshard.samples.index.epochs import SplitSize
from tokshard.samples.index.packing import PackedEpoch, Packing
from tokshard.storage.compilation import WORTH_COMPILING, compiled, has_numba

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.samples.index.shuffling import ShuffleStream

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
            np.add.at(unpadded, _unpadded_keys(piece, sequence_length), 1)
            full += int(((piece[piece > sequence_length] - 1) // sequence_length).sum())
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
        changes = np.zeros(self.packs + 1, np.int32)
        first, packs, each = self.runs.T
        np.add.at(changes, first, each.astype(np.int32))
        np.subtract.at(changes, first + packs, each.astype(np.int32))
        return np.cumsum(changes[:-1], dtype=np.int32)

    def documents_per_sample(self) -> NDArray[np.int64]:
        """Return the number of samples with 0, 1, 2, ... documents; int64."""
        found = np.bincount(self.pack_sizes(), minlength=2)
        found[1] += self.full_samples
        return found

    def packs_of_documents(self) -> NDArray[np.int32]:
        """Return the pack of each document, ordered by decreasing key: int32 of shape (documents,)."""
        first, packs, each = self.runs.T
        documents = packs * each
        begins = documents.cumsum() - documents
        found: NDArray[Any] = np.arange(self.documents) - begins.repeat(documents)
        found //= each.repeat(documents)
        found += first.repeat(documents)
        return found.astype(np.int32)


def best_fit(
    counts: NDArray[np.int64], size: int, max_documents: int | None
) -> tuple[NDArray[np.int64], int]:
    """Pack documents by best-fit decreasing, a run of equal documents at a time.

    A run places documents of one key into one group of packs. A group consists of consecutive packs with the
    same free space and the same number of documents.

    Args:
        counts: The number of documents of each key, see :class:`EpochPacks`.
        size: The room of a pack.
        max_documents: The maximum number of documents in a pack, or None.

    Returns:
        The runs and the number of packs. A run is (first pack, packs, documents for each of these packs), in
        the order of documents by decreasing key: int64 of shape (runs, 3).

    Example:
        >>> counts = np.zeros(17, np.int64)
        >>> counts[[5, 4, 3]] = 2, 1, 2  # rooms of 5, 5, 4, 3 and 3 tokens
        >>> runs, packs = best_fit(counts, 8, None)
        >>> runs.tolist(), packs
        ([[0, 2, 1], [2, 1, 1], [0, 2, 1]], 3)
    """
    limit = max_documents or int(counts.sum())
    groups: defaultdict[int, deque[tuple[int, int, int]]] = defaultdict(deque)  # by free space, oldest first
    spaces: list[int] = []  # free spaces of the groups, ascending
    runs: list[tuple[int, int, int]] = []
    packs = 0
    for key in np.flatnonzero(counts)[::-1].tolist():
        remaining = int(counts[key])
        is_remainder = key > size
        room = key - size if is_remainder else key
        while remaining:
            slot = len(spaces) if is_remainder else bisect_left(spaces, room)
            opens = slot == len(spaces)
            if opens:
                space = size
                first, count, documents = packs, remaining, 0
            else:
                space = spaces[slot]
                first, count, documents = groups[space].popleft()
            added = 1 if is_remainder else min(space // room, limit - documents, remaining)
            used = min(count, remaining // added)
            if opens:
                packs += used
            elif used < count:
                groups[space].appendleft((first + used, count - used, documents))
            elif not groups[space]:
                del spaces[slot], groups[space]
            runs.append((first, used, added))
            remaining -= used * added
            free = space - added * room
            if free and documents + added < limit:
                if free not in groups:
                    insort(spaces, free)
                groups[free].append((first, used, documents + added))
    return np.array(runs, np.int64).reshape(-1, 3), packs


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


def build_packed_index(
    lengths: NDArray[np.int32], packs: EpochPacks, plan: EpochPlan, stream: ShuffleStream
) -> tuple[NDArray[np.int32], NDArray[np.int32] | NDArray[np.int64], NDArray[np.uint32] | NDArray[np.int64]]:
    """Build the arrays of an index of packed samples.

    Peak memory is the result, and for an epoch 4 bytes per document and 8 per sample.

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
    starts = np.zeros(packs.packs + 1, np.int32)  # of documents, which are numbered by int32
    np.cumsum(packs.pack_sizes(), out=starts[1:])
    for epoch in range(plan.epochs):
        first, row = epoch * packs.documents, epoch * packs.samples
        here = documents[first : first + packs.documents]
        # No name keeps the shuffled documents: they are as large as the document index of the epoch.
        _place(lengths, _shuffled_documents(lengths, packs, stream), packs, starts, here)
        _write_rows(lengths, here, starts, size, first, rows[row : row + packs.samples])
        samples = order[row : row + packs.samples]
        samples[:] = np.arange(row, row + packs.samples)
        stream.shuffle(samples)
    documents[-1] = documents[0]
    rows[-1] = len(documents) - 1, 0
    return documents, rows, order


def _unpadded_keys(lengths: NDArray[Any], size: int) -> NDArray[Any]:
    # The key of each document, see EpochPacks, as if it was not padded; 0 for one without tokens.
    keys: NDArray[Any] = lengths.copy()
    longer = lengths > size
    keys[longer] = (lengths[longer] - 1) % size + 1 + size
    return keys


def _padded(keys: NDArray[Any], size: int, packing: Packing) -> NDArray[Any]:
    multiple = packing.pad_multiple or 1
    before = (keys > size) * size
    padded: NDArray[Any] = (keys - before + multiple - 1) // multiple * multiple + before
    return padded


def _shuffled_documents(
    lengths: NDArray[np.int32], packs: EpochPacks, stream: ShuffleStream
) -> NDArray[np.int32]:
    # The documents with at least one token.
    sequences, count = packs.sequences, packs.documents
    result = np.empty(count, np.int32)
    done = 0
    for first in range(sequences.start, sequences.stop, _PIECE):
        found = np.flatnonzero(lengths[first : min(first + _PIECE, sequences.stop)] != 0)
        result[done : done + len(found)] = found + first
        done += len(found)
    if done != count:
        raise InputError("the lengths of the dataset have changed while its index was built")
    stream.shuffle(result)
    return result


def _place(
    lengths: NDArray[np.int32],
    shuffled: NDArray[np.int32],
    packs: EpochPacks,
    starts: NDArray[np.int32],
    result: NDArray[np.int32],
) -> None:
    # Writes the documents of each pack to its places in ``result``.
    size = packs.sequence_length
    if len(shuffled) < WORTH_COMPILING or not has_numba():
        keys = _padded(_unpadded_keys(lengths[shuffled].astype(np.int64), size), size, packs.packing)
        by_key = np.argsort(-keys, kind="stable")
        which = np.empty(len(shuffled), np.int64)
        which[by_key] = packs.packs_of_documents()
        # Remainders come first in their packs.
        result[:] = shuffled[np.argsort(2 * which + (keys <= size), kind="stable")]
        return
    kernel = compiled(place_documents)
    scratch = np.empty((2, _BLOCK), np.int64)
    stops = packs.runs[:, 1:].prod(axis=1).cumsum()
    keys = np.flatnonzero(packs.counts)[::-1]
    run_of_key = np.zeros(len(packs.counts), np.int32)
    run_of_key[keys[1:]] = stops.searchsorted(packs.counts[keys[:-1]].cumsum(), side="right")
    rest = np.hstack([packs.runs, packs.runs[:, 2:]])
    next_in_pack = starts[:-1].copy()
    next_in_pack[: packs.remainders] += 1
    for first in range(0, len(shuffled), _COMPILED_PIECE):
        kernel(
            lengths,
            shuffled[first : first + _COMPILED_PIECE],
            size,
            packs.packing.pad_multiple or 1,
            run_of_key,
            rest,
            starts,
            next_in_pack,
            result,
            scratch,
        )


def place_documents(  # noqa: PLR0913, PLR0917 - a kernel has no objects
    lengths: NDArray[np.int32],
    shuffled: NDArray[np.int32],
    size: int,
    multiple: int,
    run_of_key: NDArray[np.int32],
    rest: NDArray[np.int64],
    starts: NDArray[np.int32],
    next_in_pack: NDArray[np.int32],
    result: NDArray[np.int32],
    scratch: NDArray[np.int64],
) -> None:
    """Write documents to their places in the document index of an epoch.

    Args:
        lengths: The tokens of each sequence of the dataset.
        shuffled: The documents, in shuffled order.
        size: The sequence length.
        multiple: The room of each document is a multiple of this many tokens.
        run_of_key: The run that takes the next document of each key; changed in place.
        rest: The rest of each run: its next pack, the number of packs, the documents of each, and how many
            the next pack still takes: of shape (runs, 4); changed in place.
        starts: The first place of each pack.
        next_in_pack: The next free place of each pack, after that of a remainder; changed in place.
        result: The document index of the epoch, changed in place.
        scratch: Room for two rows of a block of documents.
    """
    keys, places = scratch[0], scratch[1]  # places are at first packs
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
            if multiple > 1:
                room = (room + multiple - 1) // multiple * multiple
            key = room + size if longer else room
            keys[k] = key
            run = run_of_key[key]
            places[k] = rest[run, 0]
            rest[run, 3] -= 1
            if rest[run, 3] == 0:
                rest[run, 0] += 1
                rest[run, 1] -= 1
                rest[run, 3] = rest[run, 2]
                run_of_key[key] += rest[run, 1] == 0
        for k in range(count):
            pack = places[k]
            if keys[k] > size:
                places[k] = starts[pack]
            else:
                places[k] = next_in_pack[pack]
                next_in_pack[pack] += 1
        for k in range(count):
            result[places[k]] = shuffled[begin + k]


def _write_rows(
    lengths: NDArray[np.int32],
    documents: NDArray[np.int32],
    starts: NDArray[np.int32],
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
        rows[row:stop, 0] = (begins.astype(np.int64) + position)[which]
        rows[row:stop, 1] = (np.arange(len(which)) - (stops - samples)[which]) * size
        row = stop
