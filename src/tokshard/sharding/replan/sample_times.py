"""How often the samples of each dataset were read, and are still to be read, when a plan stops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from tokshard.errors import UsageError
from tokshard.sharding.assignment import Assignment
from tokshard.sharding.history import SourceCount, StreamProof
from tokshard.sharding.intervals import Intervals
from tokshard.sharding.locator import Locator
from tokshard.sharding.replan.remainder import Remainder
from tokshard.sharding.replan.source_progress import by_source, index_samples

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.sharding.order import KeyOf

    Times = tuple[NDArray[np.int16], ...]

_EARLIER, _READ, _UNREAD = range(3)
_MOST = np.iinfo(np.int16).max


@dataclass(frozen=True, slots=True, eq=False)
class SampleTimes:
    """Times that samples are read, from the epoch under way on.

    In the epoch under way each sample of the stream is read by plans before the stopped one, read by the
    stopped one, or unread. In each epoch after it all of them are unread.

    Attributes:
        epoch: The epoch under way.
        epochs_left: The epochs after it that the stopped plan has; of a plan without end, those that its
            steps begin.
        earlier: Times that plans before the stopped one have read each sample: for each dataset int16 of
            shape (samples of its index,).
        read: Times that the stopped plan has read it in this epoch.
        unread: Times that it is unread in this epoch.
    """

    epoch: int
    epochs_left: int
    earlier: Times
    read: Times
    unread: Times

    @classmethod
    def after(cls, stopped: Assignment, step: int, locator: Locator, key_of: KeyOf | None = None) -> Self:
        """Return the times after some steps.

        Looks at every id of the stream once, in blocks; memory is a byte for each id, and six for each
        sample of the indexes.

        Raises:
            UsageError: The samples are documents, which have no index; or there are too many epochs.
            IntegrityError: The arrays of a blend are damaged.
        """
        source = locator.source
        remainder = Remainder.after(stopped, step, keep_order=False)
        epoch = remainder.epoch
        order = next(each.order for each in stopped.epoch_ranges if each.has_epoch(epoch))
        # A plan that begins in the middle of an epoch leaves out what earlier ones have read.
        state = np.full(source.total, _EARLIER, np.int8)
        for part, name in ((order, _READ), (remainder.order, _UNREAD)):
            if part is not None:
                for block in Intervals.of([(0, part.samples)]).blocks():
                    state[part.ids(block, epoch, key_of)] = name
        times = [[np.zeros(samples, np.int16) for samples in index_samples(source)] for _ in range(3)]
        for block in Intervals.of([(0, source.total)]).blocks():
            datasets, samples = locator.locate(block)
            for number, places in by_source(datasets):
                for name, of_state in enumerate(times):
                    here = places[state[block[places]] == name]
                    np.add.at(of_state[number], samples[here], 1)
        left = _epochs_left(stopped, remainder)
        if left >= _MOST:
            raise UsageError(
                f"the plan has {left:,} epochs left, more than a change of the sequence length can include",
                hint="pass --steps and plan fewer epochs",
            )
        return cls(epoch, left, *map(tuple, times))

    def of_epoch(self, number: int) -> NDArray[np.int16]:
        """Return the times that the samples of a dataset are read in each epoch."""
        return self.earlier[number] + self.read[number] + self.unread[number]

    def left(self, number: int) -> NDArray[np.int32]:
        """Return the times that the samples of a dataset are still to be read."""
        return self.unread[number] + self.of_epoch(number).astype(np.int32) * self.epochs_left

    def epochs_of_remainder(self, number: int) -> int:
        """Return the epochs in which the tokens after the last sample of a dataset are still to be read.

        They belong to the stream if it has every sample of the index once; of a blend that draws only some
        samples they are no part.
        """
        return 1 + self.epochs_left if bool((self.of_epoch(number) == 1).all()) else 0

    def proof(self) -> StreamProof:
        """Return the counts of the samples of each dataset."""
        counts = []
        for number in range(len(self.unread)):
            earlier, read, unread = (
                int(times[number].sum(dtype=np.int64)) for times in (self.earlier, self.read, self.unread)
            )
            samples = earlier + read + unread
            counts.append(SourceCount(samples, earlier, read, unread, 0, samples * self.epochs_left))
        return StreamProof(self.epoch, tuple(counts))


def _epochs_left(stopped: Assignment, remainder: Remainder) -> int:
    left = 0
    for epoch_range in remainder.following:
        if epoch_range.epochs is not None:
            left += epoch_range.epochs
            continue
        # Without an end: the epochs that the steps begin.
        before = sum(each.per_rank for each in stopped.epoch_ranges[:-1])
        begun = -(-(stopped.samples_per_rank + stopped.skipped - before) // epoch_range.per_epoch)
        left += max(stopped.epoch_ranges[-1].first_epoch + begun - epoch_range.first_epoch, 0)
    return left
