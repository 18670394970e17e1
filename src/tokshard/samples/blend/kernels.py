"""The compiled loops of the order of a blend.

Plain functions for :func:`tokshard.storage.compilation.compiled`; each has a twin in numpy with the
same result where it is used. Room for intermediate results is passed, to be allocated once.
"""

# ruff: noqa: C901, FURB136, PLR0912, PLR0913, PLR0915, PLR0917 - a kernel calls no function, so it
# is long and takes much; and a maximum by comparison compiles to one instruction, where max() asks for NaN
from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

FEW_CLASSES = 40
"""Up to so many classes of sources are compared at every step; more are narrowed down in blocks."""


def blend_few(
    weights: NDArray[np.float64],
    limits: NDArray[np.float64],
    counts: NDArray[np.float64],
    first: int,
    dataset_index: NDArray[np.int16],
    dataset_sample_index: NDArray[np.int64],
) -> None:
    """Make the next samples of a blend of few sources, all of which are compared at each step.

    Args:
        weights: The weight of each source.
        limits: How many samples each has, or infinity.
        counts: How many are drawn of each; infinite once all of them are. Changed in place.
        first: The number of the first step.
        dataset_index: The sources drawn; written.
        dataset_sample_index: The sample of each; written.
    """
    for at in range(dataset_index.size):
        step = max(float(first + at), 1.0)
        winner = 0
        best = weights[0] * step - counts[0]
        for source in range(1, weights.size):
            lag = weights[source] * step - counts[source]
            if lag > best:
                best = lag
                winner = source
        dataset_index[at] = winner
        dataset_sample_index[at] = np.int64(counts[winner])
        counts[winner] += 1.0
        if counts[winner] == limits[winner]:
            counts[winner] = np.inf


def blend_steps(
    weights: NDArray[np.float64],
    limits: NDArray[np.float64],
    counts: NDArray[np.float64],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    members: NDArray[np.int64],
    heads: NDArray[np.int64],
    left: int,
    width: NDArray[np.float64],
    first: int,
    dataset_index: NDArray[np.int16],
    dataset_sample_index: NDArray[np.int64],
    scratch: NDArray[np.float64],
    chosen: NDArray[np.int64],
) -> int:
    """Make the next samples of a blend: at each step the source that lags most, the first of equals.

    Sources of equal weight and limit form a class and are drawn in turns, in order, because between
    two of them the one with fewer draws lags more and the first of equals wins: so a class is one
    competitor, with the number of draws of its next member.

    With many classes only few can win soon. Let L classes lag by ``bound`` or more at the start of a
    block of L steps. Each step draws one of them at most, so at every step one of them is left that has
    lagged ever more, at least as fast as the lightest of them grows. A class that cannot keep up with
    that line cannot win within the block, and is not looked at. Rounding is covered by a margin far above
    it: who is left out cannot win, and who competes is compared exactly as in the plain loop.

    Args:
        weights: The weight of each class; changed in place as classes are used up.
        limits: How many samples each of its sources has, or infinity; changed likewise.
        counts: The draws of the next member of each class; changed in place.
        starts: Where the members of each class begin in ``members``.
        ends: Where they end.
        members: The sources by class, ascending within each.
        heads: The place in ``members`` of each class's next member; changed in place.
        left: How many classes are not used up. They stand first in all arrays of classes, in order.
        width: How far below the greatest lag the last bound was, to search from; changed in place.
        first: The number of the first step.
        dataset_index: The sources drawn; written.
        dataset_sample_index: The sample of each; written.
        scratch: Room for three rows of 8 numbers more than classes.
        chosen: Room for as many numbers as a row.

    Returns:
        How many classes are not used up now.
    """
    # Eight comparisons at a time: a plain loop takes 1.2 times as long with 64 sources and 1.4 times with
    # 1,000 (`scripts/bench indices`).
    shared = members.size > weights.size
    one, eight = np.uint64(1), np.uint64(8)  # unsigned: an index that cannot be negative costs no check
    lag, weight, count = scratch[0], scratch[1], scratch[2]
    bits = lag.view(np.int64)
    heaviest = 1.0
    for place in range(left):
        heaviest = max(heaviest, weights[place])
    size = dataset_index.size
    done = 0
    while done < size:
        steps = size - done
        rivals = 0
        if left > FEW_CLASSES and first + done > 1:
            x = float(first + done)
            for place in range(left):
                lag[place] = weights[place] * x - counts[place]
            # The greatest lag, as an integer of the same order: that is what compiles to vectors.
            key = np.int64(-(2**63))
            for place in range(left):
                value = bits[place]
                key = max(key, value ^ ((value >> np.int64(63)) & np.int64(2**63 - 1)))
            bits[left] = key ^ ((key >> np.int64(63)) & np.int64(2**63 - 1))
            greatest = lag[left]
            # Longer blocks compare more classes at each step, but pay for all classes less often.
            fewest, most = (16, 64) if left > 256 else (8, 24)
            reaching = 0
            for _ in range(12):
                bound = greatest - width[0]
                reaching = 0
                for place in range(left):
                    reaching += lag[place] >= bound
                if reaching < fewest and reaching < left:
                    width[0] *= 2.0
                elif reaching > most:
                    width[0] = max(width[0] * 0.5, 2.0**-40)  # from 0 it would never widen again
                else:
                    break
            bound = greatest - width[0]
            reaching = 0
            lightest = np.inf
            for place in range(left):
                if lag[place] >= bound:
                    reaching += 1
                    lightest = min(lightest, weights[place])
            steps = min(steps, reaching)
            bound -= heaviest * (x + steps) * 2.0**-48
            for place in range(left):
                chosen[rivals] = place
                rivals += lag[place] + max(0.0, weights[place] - lightest) * steps >= bound
        else:
            if left > FEW_CLASSES:
                steps = 1
            for place in range(left):
                chosen[place] = place
            rivals = left
        for place in range(rivals):
            weight[place] = weights[chosen[place]]
            count[place] = counts[chosen[place]]
        rounds = (rivals + 7) // 8
        for place in range(rivals, 8 * rounds):
            weight[place] = 0.0
            count[place] = np.inf
        for at in range(done, done + steps):
            x = max(float(first + at), 1.0)
            b0 = b1 = b2 = b3 = b4 = b5 = b6 = b7 = -np.inf
            p0 = np.uint64(0)
            for _ in range(rounds):
                p1 = p0 + one
                p2 = p1 + one
                p3 = p2 + one
                p4 = p3 + one
                p5 = p4 + one
                p6 = p5 + one
                p7 = p6 + one
                v0 = weight[p0] * x - count[p0]
                v1 = weight[p1] * x - count[p1]
                v2 = weight[p2] * x - count[p2]
                v3 = weight[p3] * x - count[p3]
                v4 = weight[p4] * x - count[p4]
                v5 = weight[p5] * x - count[p5]
                v6 = weight[p6] * x - count[p6]
                v7 = weight[p7] * x - count[p7]
                lag[p0] = v0
                lag[p1] = v1
                lag[p2] = v2
                lag[p3] = v3
                lag[p4] = v4
                lag[p5] = v5
                lag[p6] = v6
                lag[p7] = v7
                b0 = v0 if v0 > b0 else b0
                b1 = v1 if v1 > b1 else b1
                b2 = v2 if v2 > b2 else b2
                b3 = v3 if v3 > b3 else b3
                b4 = v4 if v4 > b4 else b4
                b5 = v5 if v5 > b5 else b5
                b6 = v6 if v6 > b6 else b6
                b7 = v7 if v7 > b7 else b7
                p0 += eight
            b0 = b1 if b1 > b0 else b0
            b2 = b3 if b3 > b2 else b2
            b4 = b5 if b5 > b4 else b4
            b6 = b7 if b7 > b6 else b6
            b0 = b2 if b2 > b0 else b0
            b4 = b6 if b6 > b4 else b4
            best = b4 if b4 > b0 else b0
            p0 = np.uint64(0)
            while lag[p0] != best:
                p0 += one
            winner = np.int64(p0)
            place = chosen[winner]
            head = heads[place]
            if shared:
                # Classes follow their first members, but of equals the first next member wins.
                for other in range(rivals):
                    if lag[other] == best and members[heads[chosen[other]]] < members[head]:
                        winner = np.int64(other)
                        place = chosen[other]
                        head = heads[place]
            dataset_index[at] = members[head]
            dataset_sample_index[at] = np.int64(count[winner])
            head += 1
            if head == ends[place]:
                head = starts[place]
                count[winner] += 1.0
                counts[place] += 1.0
            heads[place] = head
            if counts[place] == limits[place]:
                left -= 1
                for behind in range(place, left):
                    weights[behind] = weights[behind + 1]
                    limits[behind] = limits[behind + 1]
                    counts[behind] = counts[behind + 1]
                    starts[behind] = starts[behind + 1]
                    ends[behind] = ends[behind + 1]
                    heads[behind] = heads[behind + 1]
                steps = at + 1 - done
                break
        done += steps
    return left
