"""Where a source stands when a mixture is weighted anew, and what each further draw from it is.

The index of a source is frozen: its samples keep their numbers, because another size would shuffle them
anew. The first draws after a stop are the samples that are unread in the lap under way, in ascending
order; when these are used up, new laps begin, each a keyed order of all samples of the source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from tokshard.errors import IntegrityError
from tokshard.sharding.feistel import FEISTEL_ALGORITHM, Bijection, derive_key, subkeys
from tokshard.sharding.intervals import Intervals

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

LAP_ALGORITHM = f"{FEISTEL_ALGORITHM}:lap"
"""The frozen name of the order of a lap."""


@dataclass(frozen=True, slots=True)
class OpenLap:
    """A lap that was begun.

    Attributes:
        lap: Its number; the first of a source is 0.
        unread: The samples of the source that it has not reached, one or more.
    """

    lap: int
    unread: Intervals


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a source stands.

    Attributes:
        samples: The samples of its index.
        laps: The laps that are neither complete nor to come, ascending. Ranks that read different parts of
            a plan can have begun a lap before another one is complete.
        next_lap: The number of the first lap that was not begun.

    Example:
        >>> standing = Standing(4, (OpenLap(0, Intervals.of([(1, 2), (3, 4)])),), next_lap=1)
        >>> draws = np.arange(10)
        >>> samples = standing.samples_of(draws, seed=7, source=0)
        >>> samples[:2].tolist(), sorted(samples[2:6].tolist()), sorted(samples[6:].tolist())
        ([1, 3], [0, 1, 2, 3], [0, 1, 2, 3])
    """

    samples: int
    laps: tuple[OpenLap, ...]
    next_lap: int

    @classmethod
    def untouched(cls, samples: int) -> Self:
        """Return the standing of a source that nobody has read: its first lap is that of its index."""
        return cls(samples, (OpenLap(0, Intervals.of([(0, samples)])),) if samples else (), 1)

    @property
    def supply(self) -> int:
        """The draws before a new lap begins."""
        return sum(one.unread.count for one in self.laps)

    @property
    def ends(self) -> Integers:
        """The number of draws after which each open lap is complete."""
        return np.cumsum([one.unread.count for one in self.laps], dtype=np.int64)

    def samples_of(self, draws: Integers, seed: int, source: int) -> Integers:
        """Return the sample of each draw.

        Args:
            draws: int64 of shape ``(n,)``.
            seed: The seed of new laps.
            source: The number of the source, which makes the laps of each different.
        """
        result = np.empty(draws.shape, dtype=np.int64)
        begin = 0
        for one in self.laps:
            here = (draws >= begin) & (draws < begin + one.unread.count)
            result[here] = one.unread.nth(draws[here] - begin)
            begin += one.unread.count
        late = draws >= begin
        laps, places = np.divmod(draws[late] - begin, self.samples)
        found = np.empty(places.shape, dtype=np.int64)
        for lap in np.unique(laps):
            key = lap_key(seed, self.next_lap + int(lap), source)
            of_lap = laps == lap
            found[of_lap] = Bijection(self.samples).forward(places[of_lap], key)
        result[late] = found
        return result

    def lap_starts(self, draws: int) -> list[tuple[int, int]]:
        """Return pairs (lap, first draw) of all laps that some draws touch."""
        starts = np.append(0, self.ends)[:-1].tolist()
        pairs = list(zip([one.lap for one in self.laps], starts, strict=True))
        later = range(self.supply, draws, self.samples)
        pairs += [(self.next_lap + number, first) for number, first in enumerate(later)]
        return [(lap, first) for lap, first in pairs if first < draws]


def lap_key(seed: int, lap: int, source: int) -> NDArray[np.uint64]:
    """Return the key of the order of one lap of one source, uint64 of shape ``(1,)``."""
    return subkeys(derive_key(LAP_ALGORITHM, seed, lap), np.array([source], dtype=np.int64))


@dataclass(frozen=True, slots=True, eq=False)
class LapTable:
    """Which lap of its source each sample of a plan belongs to.

    Attributes:
        rows: int64 of shape ``(k, 3)``: source, lap, and the first sample of the plan that is in it; sorted
            by source and first sample. Each source that is drawn has a row.
        total: The samples of the plan.
    """

    rows: Integers
    total: int

    @classmethod
    def checked(cls, rows: Integers, total: int, path: str) -> Self:
        """Return the table of rows that were read from a file.

        Raises:
            IntegrityError: They are not sorted, or out of range.
        """
        good = rows.ndim == 2 and rows.shape[1] == 3 and rows.dtype == np.int64
        if good and rows.size:
            good = bool(rows.min() >= 0 and rows[:, 2].max() < total)
            sources, laps, firsts = np.diff(rows, axis=0).T
            good = good and bool(np.all((sources > 0) | ((sources == 0) & (laps > 0) & (firsts > 0))))
        if not good:
            raise IntegrityError(f"{path}: the laps are not in order, or out of range", path=path)
        return cls(rows, total)

    def of(self, ids: Integers, sources: NDArray[np.integer]) -> Integers:
        """Return the lap of each sample, given its number in the plan and its source."""
        keys = self.rows[:, 0] * self.total + self.rows[:, 2]
        wanted = sources.astype(np.int64) * self.total + ids
        laps: Integers = self.rows[:, 1][np.searchsorted(keys, wanted, side="right") - 1]
        return laps
