"""The proof in tokens that a plan of another sequence length continues the one before it.

Tokens are counted where they are inputs of samples; the last label of a sample is the first input of the
next one. The counts are made with the views (:func:`count_tokens`), stored in the history of the plan, and
verified by counting again from the files, and by comparing where in the ``.bin`` the tokens are that were
read, that are planned, and that there are (:func:`token_problems`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from tokshard.gpt_index.inputs import InputTokens, TokenPieces
from tokshard.sharding.history import InputTokenCount, SequenceLengthChange, StoppedStream
from tokshard.sharding.locator import Locator, open_sort_key
from tokshard.sharding.replan.sample_times import SampleTimes
from tokshard.storage.paths import idx_path

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.dataset.layout import IndexTable
    from tokshard.sharding.sources import DatasetReference

    Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class DatasetTokens:
    """The input tokens of a dataset of a stopped plan, by the rows of its index.

    Attributes:
        table: Its sequences.
        inputs: The inputs of its index.
        whole: Times that each row is read in the epoch under way and those after it; the last row is the
            remainder of the index.
        read: Times that each row was read in the epoch under way.
        left: Times that each row is still to be read.
        counts: Tokens in all, read by earlier plans, read by the stopped plan, and unread.
    """

    table: IndexTable
    inputs: InputTokens
    whole: NDArray[np.int32]
    read: NDArray[np.int32]
    left: NDArray[np.int32]
    counts: tuple[int, int, int, int]

    @classmethod
    def of(cls, reference: DatasetReference, times: SampleTimes, number: int) -> Self:
        """Count the tokens of a dataset, given the times that its samples are read.

        Raises:
            MissingFileError, IntegrityError: A file of the dataset or its index is missing, has changed, or
                is damaged.
        """
        table = reference.open_dataset().index
        inputs = InputTokens(reference.open_index(), table.sequence_lengths, path=idx_path(reference.prefix))
        remainder = times.epochs_of_remainder(number)
        earlier = inputs.by_row(times.earlier[number].astype(np.int32))
        stopped = inputs.by_row(times.read[number].astype(np.int32))
        left = inputs.by_row(times.left(number), remainder)
        tokens = inputs.of_rows()
        whole = inputs.by_row(times.of_epoch(number).astype(np.int32) * (1 + times.epochs_left), remainder)
        counts = tuple(int((tokens * part).sum()) for part in (whole, earlier, stopped, left))
        return cls(table, inputs, whole, earlier + stopped, left, counts)  # type: ignore[arg-type] # they are 4

    @property
    def unread(self) -> TokenPieces:
        """The pieces of sequences that are unread."""
        return self.inputs.pieces(self.left)

    def edges(self, pieces: TokenPieces) -> tuple[Integers, Integers]:
        """Return the first byte of pieces in the ``.bin``, and the one after the last."""
        itemsize = self.table.dtype.itemsize
        firsts = pieces.pointers(self.table.sequence_pointers, itemsize)
        return firsts, firsts + pieces.counts.astype(np.int64) * itemsize


def count_tokens(counts: tuple[int, int, int, int], view: DatasetReference | None) -> InputTokenCount:
    """Return the counts of a dataset, given the view of its unread tokens with the index over it.

    Raises:
        MissingFileError, IntegrityError: A file of the view or its index is missing, has changed, or is
            damaged.
    """
    tokens, earlier, read, unread = counts
    if view is None:
        return InputTokenCount(tokens, earlier, read, 0, unread, None)
    lengths = view.open_dataset().sequence_lengths
    planned = InputTokens(view.open_index(), lengths, path=idx_path(view.prefix)).of_rows()[:-1]
    remainder = int(lengths.sum(dtype=np.int64)) - int(planned.sum())
    return InputTokenCount(tokens, earlier, read, int(planned.sum()), remainder, view)


def token_problems(stop: StoppedStream, change: SequenceLengthChange) -> Iterator[tuple[bool, str]]:
    """Verify the proof of a change of the sequence length from the files.

    Yields:
        Pairs: whether tokens are lost or planned twice (else a count is wrong), and a sentence.

    Raises:
        MissingFileError, IntegrityError: A file is missing, has changed, or is damaged.
    """
    source = change.source
    key_of = None if change.sort_key is None else open_sort_key(source, change.sort_key)
    times = SampleTimes.after(stop.assignment, stop.step, Locator(source), key_of)
    if (times.proof(), times.epochs_left) != (stop.proof, change.epochs_left):
        yield False, f"the proof records {stop.proof.total}, but the count is {times.proof().total}"
    for number, (reference, recorded) in enumerate(zip(source.datasets, change.tokens, strict=True)):
        found = DatasetTokens.of(reference, times, number)
        counted = count_tokens(found.counts, recorded.view)
        if counted != recorded:
            yield False, f"{reference.prefix}: the proof records {recorded}, but the count is {counted}"
        if not counted.adds_up:
            yield True, f"{reference.prefix}: the counts of its tokens do not add up: {counted}"
        if recorded.view is not None:
            place = first_difference(found, recorded.view)
            if place is not None:
                text = "are not read exactly once, by the stopped plan or from the view"
                yield True, f"{reference.prefix}: the tokens from byte {place} of the .bin on {text}"


def first_difference(found: DatasetTokens, view: DatasetReference) -> int | None:
    """Return the first byte of a dataset that is read and planned other times than it should be.

    The pieces that were read and those of the view must cover the ``.bin`` exactly as all rows together do:
    then they begin where those end or begin, equally often.

    Returns:
        The byte; None if there is none.
    """
    shown = view.open_dataset().index
    whole = found.edges(found.inputs.pieces(found.whole))
    read = found.edges(found.inputs.pieces(found.read))
    firsts = shown.sequence_pointers
    planned = firsts, firsts + shown.sequence_lengths.astype(np.int64) * shown.dtype.itemsize
    up = np.concatenate((read[0], planned[0], whole[1]))
    down = np.concatenate((read[1], planned[1], whole[0]))
    up.sort()
    down.sort()
    shorter = min(up.size, down.size)
    wrong = np.flatnonzero(up[:shorter] != down[:shorter])
    if not wrong.size:
        return None
    return int(min(up[wrong[0]], down[wrong[0]]))
