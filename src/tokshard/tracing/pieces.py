"""The pieces of documents that samples are made of, asked from both sides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokshard.errors import IntegrityError
from tokshard.gpt_index.index import GPTDatasetIndex
from tokshard.tracing.scanning import find, spread
from tokshard.tracing.sequences import SequenceTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Pieces of sequences, none of them empty: int64 arrays of one shape.

    Attributes:
        samples: The sample that each is a piece of.
        sequences: The sequence that it is a piece of.
        firsts: Its first token, counted in the sequence.
        stops: The first token after it.
    """

    samples: Integers
    sequences: Integers
    firsts: Integers
    stops: Integers


def pieces_of(index: GPTDatasetIndex, table: SequenceTable, sample: int) -> Pieces:
    """Return the pieces of a sample, in order, with its extra token; padding is none.

    Args:
        index: The index of the samples.
        table: The sequences of its dataset.
        sample: A sample of the index.

    Raises:
        IntegrityError: The index does not fit the dataset.
    """
    check_shapes(index)
    rows, place = np.asarray(index.sample_index), int(index.shuffle_index[sample])
    if not 0 <= place < len(rows) - 1:
        raise _mismatch(f"sample {sample} is row {place} of the sample index, which has {len(rows) - 1}")
    begin, end = int(rows[place, 0]), int(rows[place + 1, 0])
    positions = np.arange(begin, end + 1, dtype=np.int64)
    if begin < 0 or end < begin or end >= len(index.document_index):
        raise _mismatch(f"sample {sample} reaches from place {begin} to {end} of the document index")
    sequences = np.asarray(index.document_index)[begin : end + 1].astype(np.int64)
    found = _cut(index, table, np.full(positions.shape, place, np.int64), positions, sequences)
    return Pieces(np.full(found.samples.shape, sample, np.int64), found.sequences, found.firsts, found.stops)


def pieces_with(index: GPTDatasetIndex, table: SequenceTable, sequences: Integers) -> Pieces:
    """Return all pieces of some sequences in all samples.

    The document index and the shuffle index are each looked through once, in blocks; nothing is kept but
    what is found.

    Args:
        index: The index of the samples.
        table: The sequences of its dataset.
        sequences: Numbers of sequences: int64, ascending, each once.

    Raises:
        IntegrityError: The index does not fit the dataset.
    """
    check_shapes(index)
    positions, which = find(index.document_index, sequences)
    places = np.asarray(index.sample_index)[:, 0]
    # Needles of another type would make numpy copy the whole column.
    needles = positions.astype(places.dtype)
    firsts = np.searchsorted(places[1:], needles, side="left")
    lasts = np.searchsorted(places[:-1], needles, side="right") - 1
    owners, rows = spread(firsts.astype(np.int64), np.maximum(lasts - firsts + 1, 0))
    found = _cut(index, table, rows, positions[owners], sequences[which[owners]])
    return Pieces(_samples_of(index, found.samples), found.sequences, found.firsts, found.stops)


def check_shapes(index: GPTDatasetIndex) -> None:
    """Check that the arrays of an index have the shapes that follow from its numbers.

    Raises:
        IntegrityError: They have not.
    """
    plan = index.plan
    shapes = (index.document_index.shape, index.sample_index.shape, index.shuffle_index.shape)
    expected = ((plan.documents,), (plan.samples + 1, 2), (plan.samples,))
    if shapes != expected:
        raise _mismatch(f"its arrays have the shapes {shapes}, not {expected}")


def _cut(
    index: GPTDatasetIndex, table: SequenceTable, rows: Integers, positions: Integers, sequences: Integers
) -> Pieces:
    """Return what rows of the sample index have of the sequences at places of the document index."""
    sample_index = np.asarray(index.sample_index)
    begins, ends = sample_index[rows].astype(np.int64), sample_index[rows + 1].astype(np.int64)
    lengths = table.lengths(sequences)
    firsts = np.where(begins[:, 0] == positions, begins[:, 1], 0)
    stops = np.where(ends[:, 0] == positions, ends[:, 1] + index.plan.extra_token, lengths)
    if ((firsts < 0) | (stops > lengths)).any():
        raise _mismatch("a sample reaches beyond the end of a sequence")
    some = stops > firsts
    return Pieces(rows[some], sequences[some], firsts[some], stops[some])


def _samples_of(index: GPTDatasetIndex, rows: Integers) -> Integers:
    """Return the sample that each row of the sample index is."""
    wanted, places = np.unique(rows, return_inverse=True)
    samples, which = find(index.shuffle_index, wanted)
    if samples.size != wanted.size:
        raise _mismatch("its shuffle index does not hold every sample once")
    of_row = np.empty(wanted.size, np.int64)
    of_row[which] = samples
    return of_row[places]


def _mismatch(problem: str) -> IntegrityError:
    return IntegrityError(
        f"the index of samples does not fit its dataset: {problem}",
        field="sample_index",
        hint="the index was made from other data, or is damaged: build it again",
    )
