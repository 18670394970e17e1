"""Best-fit decreasing: whole documents packed into samples, as an index that Megatron reads.

A sample is a **pack** of whole documents. A document of more than S tokens (S is the sequence length) fills
samples of its own, and its remainder of 1 to S tokens begins a pack. The packs of an epoch are those of
best-fit decreasing (Johnson 1973; used for training by Ding et al. 2024, "Fewer Truncations Improve Language
Modeling"): the remainders open a pack each; then all other documents, the longest first, go into the pack
with the least free space in which they fit. Among packs with equal space, the pack that reached this space
first is chosen. A document that fits into no pack opens a new one.

The result depends on the lengths only through the number of documents of each length. Therefore the packer
works on runs of equal documents and groups of equal packs, every epoch has the same number of samples, and
documents of equal length are interchangeable: an epoch shuffles all documents, and documents of equal length
are packed in that order. Within a pack, the remainder comes first and the others follow in the shuffled
order. The samples of an epoch are shuffled as in Megatron, and never mixed with other epochs.

The arrays of an index express that as follows. The document index lists the documents with at least one
token, pack by pack. The rows of the sample index are the beginnings of packs, preceded by those of the full
samples of the document that the pack begins with. An additional document at the end is the position of the
last row: Megatron reads one token of it, as the last label.
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

# Documents handled at once: temporary arrays are small, and signals are handled between calls of the kernel.
_PIECE = 1 << 18


@dataclass(frozen=True, slots=True, eq=False)
class EpochPacks:
    """The packs of an epoch, without the documents in them.

    Attributes:
        sequences: The numbers of the split's sequences; each is a document.
        sequence_length: The tokens of a sample, without the extra one.
        packing: The options.
        counts: The number of documents of each key: int64 of shape (2 * sequence_length + 1,). A key is the
            room that a document takes (1 to sequence_length), plus the sequence length for a remainder.
        runs: int64 of shape (runs, 3), see :func:`best_fit`.
        packs: The number of packs.
        size: The size of the split.
    """

    sequences: range
    sequence_length: int
    packing: Packing
    counts: NDArray[np.int64]
    runs: NDArray[np.int64]
    packs: int
    size: SplitSize

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
            >>> packs.size.packed.samples, packs.documents, packs.runs.tolist()
            (3, 4, [[0, 1, 1], [0, 1, 1], [1, 1, 1], [1, 1, 1]])
        """
        packing.check_sequence_length(sequence_length)
        counts = np.zeros(2 * sequence_length + 1, np.int64)
        tokens = 0
        for start in range(sequences.start, sequences.stop, _PIECE):
            piece = lengths[start : min(start + _PIECE, sequences.stop)].astype(np.int64)
            np.add.at(counts, _keys(piece[piece > 0], sequence_length), 1)
            tokens += int(piece.sum())
        padded_counts = counts
        if packing.pad_multiple is not None:
            # A key is also the length of a document with this key.
            keys = np.flatnonzero(counts)
            padded_counts = np.zeros_like(counts)
            np.add.at(padded_counts, _keys(keys, sequence_length, packing.pad_multiple), counts[keys])
        runs, packs = best_fit(padded_counts, sequence_length, packing.max_documents)
        packed = _packed_epoch(counts, tokens, sequence_length, packing, packs) if packs else None
        size = SplitSize(len(sequences), tokens, packed)
        return cls(sequences, sequence_length, packing, padded_counts, runs, packs, size)

    @property
    def documents(self) -> int:
        """The documents with at least one token."""
        return int(self.counts.sum())

    def pack_of_documents(self) -> NDArray[np.int32]:
        """Return the pack of each document, ordered by decreasing key: int32 of shape (documents,)."""
        packs = np.empty(self.documents, np.int32)
        start = 0
        for first, count, documents in self.runs.tolist():
            stop = start + count * documents
            run = packs[start:stop].reshape(count, documents)
            run[:] = np.arange(first, first + count, dtype=np.int32)[:, None]
            start = stop
        return packs


def _keys(lengths: NDArray[Any], size: int, multiple: int = 1) -> NDArray[Any]:
    """Return the key of each document of at least one token, see :class:`EpochPacks`."""
    rooms = (lengths - 1) % size + 1
    padded = (rooms + multiple - 1) // multiple * multiple
    keys: NDArray[Any] = padded + size * (lengths > size)
    return keys


def _packed_epoch(
    counts: NDArray[np.int64], tokens: int, size: int, packing: Packing, packs: int
) -> PackedEpoch:
    """Return the numbers of an epoch, given the number of documents of each key without padding.

    Concatenation cuts the tokens every ``size`` tokens. Documents begin at multiples of ``step``, the
    greatest common divisor of the size and all lengths. If all multiples below the size are equally likely,
    a document of at most ``size`` tokens is cut with probability (length - step) / size, and a longer one
    always.
    """
    keys = np.flatnonzero(counts)
    step = int(np.gcd.reduce(keys, initial=size))
    # Python integers: the squares of lengths times documents can exceed 64 bits.
    short = [(length, int(counts[length])) for length in keys[keys <= size].tolist()]
    short_documents = sum(documents for _, documents in short)
    short_tokens = sum(length * documents for length, documents in short)
    short_cuts = sum((length - step) * documents for length, documents in short)
    short_cut_tokens = sum(length * (length - step) * documents for length, documents in short)
    remainder_tokens = int(counts[size + 1 :] @ np.arange(1, size + 1))
    documents = int(counts.sum())
    return PackedEpoch(
        packing=packing,
        documents=documents,
        samples=packs + (tokens - short_tokens - remainder_tokens) // size,
        cut_documents=documents - short_documents,
        cut_tokens=tokens - short_tokens,
        concat_cut_documents=documents - short_documents + round(short_cuts / size),
        concat_cut_tokens=tokens - short_tokens + round(short_cut_tokens / size),
    )


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
    """Check that no document of a dataset consists of several sequences, which would be packed separately.

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

    Peak memory is the result, and 12 bytes per document and 8 per pack of an epoch.

    Args:
        lengths: The tokens of all sequences of the dataset: int32 of shape (sequences,).
        packs: The packs of an epoch.
        plan: The plan of the index.
        stream: The stream of the index's seed; it must be unused.

    Returns:
        The document index, int32 of shape (documents * epochs + 1,); the sample index, int32 or int64 of
        shape (samples + 1, 2); and the shuffle index, uint32 or int64 of shape (samples,).
    """
    samples_per_epoch = plan.samples // plan.epochs
    documents = np.empty(plan.documents, np.int32)
    rows: NDArray[Any] = np.empty((plan.samples + 1, 2), sample_index_dtype(plan.documents))
    order: NDArray[Any] = np.empty(plan.samples, shuffle_index_dtype(plan.samples))
    pack_of_documents = packs.pack_of_documents()
    starts = np.zeros(packs.packs + 1, np.int32)  # the first document of each pack, in an epoch
    np.cumsum(np.bincount(pack_of_documents), out=starts[1:])
    for epoch in range(plan.epochs):
        position = epoch * packs.documents
        row = epoch * samples_per_epoch
        epoch_documents = documents[position : position + packs.documents]
        _place(lengths, packs, stream, pack_of_documents, starts, epoch_documents)
        epoch_rows = rows[row : row + samples_per_epoch]
        _write_rows(lengths, epoch_documents, starts, packs.sequence_length, position, epoch_rows)
        samples = order[row : row + samples_per_epoch]
        samples[:] = np.arange(row, row + samples_per_epoch)
        stream.shuffle(samples)
    documents[-1] = documents[0]
    rows[-1] = len(documents) - 1, 0
    return documents, rows, order


def _place(
    lengths: NDArray[np.int32],
    packs: EpochPacks,
    stream: ShuffleStream,
    pack_of_documents: NDArray[np.int32],
    starts: NDArray[np.int32],
    result: NDArray[np.int32],
) -> None:
    """Write the shuffled documents with at least one token to ``result``, pack by pack."""
    size = packs.sequence_length
    multiple = packs.packing.pad_multiple or 1
    sequences = packs.sequences
    pieces = [
        np.flatnonzero(lengths[start : min(start + _PIECE, sequences.stop)]).astype(np.int32) + start
        for start in range(sequences.start, sequences.stop, _PIECE)
    ]
    shuffled = np.concatenate(pieces)
    if len(shuffled) != len(result):
        raise InputError("the lengths of the dataset have changed while its index was built")
    del pieces
    stream.shuffle(shuffled)
    if len(shuffled) < WORTH_COMPILING or not has_numba():
        keys = _keys(lengths[shuffled].astype(np.int64), size, multiple)
        # Sort by decreasing key. A stable sort keeps the shuffled order of equal keys.
        packs_of_shuffled = np.empty(len(shuffled), np.int64)
        packs_of_shuffled[np.argsort(-keys, kind="stable")] = pack_of_documents
        # Sort by pack, remainders first. A stable sort keeps the shuffled order within a pack.
        result[:] = shuffled[np.argsort(2 * packs_of_shuffled + (keys <= size), kind="stable")]
        return
    kernel = compiled(_place_documents)
    # The number of documents with larger keys is the first position of a key in pack_of_documents.
    next_of_key = packs.documents - packs.counts.cumsum()
    next_in_pack = starts[:-1].copy()
    next_in_pack[: int(packs.counts[size + 1 :].sum())] += 1  # the first packs begin with a remainder
    for start in range(0, len(shuffled), _PIECE):
        documents = shuffled[start : start + _PIECE]
        keys = _keys(lengths[documents].astype(np.int64), size, multiple)
        kernel(documents, keys, size, next_of_key, pack_of_documents, next_in_pack, starts, result)


def _place_documents(
    documents: NDArray[np.int32],
    keys: NDArray[np.int64],
    size: int,
    next_of_key: NDArray[np.int64],
    pack_of_documents: NDArray[np.int32],
    next_in_pack: NDArray[np.int32],
    starts: NDArray[np.int32],
    result: NDArray[np.int32],
) -> None:
    """Write the next shuffled documents to their packs; ``scripts/bench packing`` measures the speed.

    ``next_of_key``, the position of the next document of each key in ``pack_of_documents``, and
    ``next_in_pack``, the next free position of each pack after its remainder, are changed in place.
    """
    for k in range(len(documents)):
        key = keys[k]
        pack = pack_of_documents[next_of_key[key]]
        next_of_key[key] += 1
        if key > size:
            result[starts[pack]] = documents[k]
        else:
            result[next_in_pack[pack]] = documents[k]
            next_in_pack[pack] += 1


def _write_rows(
    lengths: NDArray[np.int32],
    documents: NDArray[np.int32],
    starts: NDArray[np.int32],
    size: int,
    position: int,
    rows: NDArray[Any],
) -> None:
    """Write the rows of an epoch whose documents begin at a position of the document index."""
    row = 0
    for first in range(0, len(starts) - 1, _PIECE):
        pack_starts = starts[first : min(first + _PIECE, len(starts) - 1)].astype(np.int64)
        # A pack has a row for each full sample of its first document, and one more.
        pack_rows = (lengths[documents[pack_starts]].astype(np.int64) - 1) // size + 1
        stops = row + pack_rows.cumsum()
        stop = int(stops[-1])
        rows[row:stop, 0] = (pack_starts + position).repeat(pack_rows)
        # The rows of a pack are S tokens apart.
        rows[row:stop, 1] = (np.arange(row, stop) - (stops - pack_rows).repeat(pack_rows)) * size
        row = stop
