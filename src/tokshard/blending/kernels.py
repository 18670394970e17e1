"""The compiled loops of blending: the order of a blend, and what a source's samples cover.

Plain functions for :func:`tokshard.storage.compilation.compiled`; each has a twin in numpy with the
same result where it is used. Room for intermediate results is passed, because a cached kernel cannot
allocate memory.
"""

# ruff: noqa: C901, FURB136, PLR0912, PLR0913, PLR0915, PLR0917 - a kernel calls no function, so it
# is long and takes much; and a maximum by comparison compiles to one instruction, where max() asks for NaN
from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tokshard.blending.lanes import draw_steps
from tokshard.gpt_index.shuffling import BLOCK

if TYPE_CHECKING:
    from numpy.typing import NDArray

FEW_CLASSES = 40
"""Up to so many classes of sources are compared at every step; more are narrowed down in blocks."""


def blend_few(
    weights: NDArray[np.float64],
    limits: NDArray[np.int64],
    draws: NDArray[np.int64],
    first: int,
    dataset_index: NDArray[np.int16],
    dataset_sample_index: NDArray[np.int64],
    lanes: NDArray[np.float64],
    sources: NDArray[np.int64],
    winners: NDArray[np.int64],
) -> None:
    """Make the next samples of a blend of at most 64 sources, all of which are compared at each step.

    Args:
        weights: The weight of each source.
        limits: How many samples each has.
        draws: How many are drawn of each; changed in place.
        first: The number of the first step.
        dataset_index: The sources drawn; written.
        dataset_sample_index: The sample of each; written.
        lanes: Room for two rows of 64 numbers.
        sources: Room for 64 numbers.
        winners: Room for the steps that are made at once.
    """
    weight, count = lanes[0], lanes[1]
    done = 0
    while done < dataset_index.size:
        # Up to the step that can use up a source: it is left out from then on.
        steps = min(dataset_index.size - done, winners.size)
        left = 0
        for source in range(weights.size):
            if draws[source] < limits[source]:
                steps = min(steps, limits[source] - draws[source])
                weight[left] = weights[source]
                count[left] = draws[source]
                sources[left] = source
                left += 1
        width = 8
        while width < left:
            width *= 2
        for lane in range(left, width):
            weight[lane] = 0.0
            count[lane] = np.inf
        draw_steps(weight, count, first + done, steps, winners, width)
        for step in range(steps):
            source = sources[winners[step]]
            dataset_index[done + step] = source
            dataset_sample_index[done + step] = draws[source]
            draws[source] += 1
        done += steps


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


def cover_once(
    ahead: NDArray[np.int64],
    lengths: NDArray[np.int32],
    documents: NDArray[np.int32],
    first: int,
    seen: NDArray[np.uint8],
    drawn: NDArray[np.uint8],
    sequence_length: int,
    token: int,
    totals: NDArray[np.int64],
) -> int:
    """Count what :func:`cover_documents` counts where each document appears once, in one pass.

    Args:
        ahead: Room for :data:`BLOCK` lengths.
        lengths: The tokens of all documents of the dataset.
        documents: A piece of the document index.
        first: The first document of the split.
        seen: How often each document of the split has appeared, modulo 256; brought forward in place.
        drawn: For each sample, in the order of the stream, whether it is drawn.
        sequence_length: The tokens of a sample.
        token: How many tokens lie before the piece.
        totals: See :func:`cover_documents`.

    Returns:
        How many tokens lie before the end of the piece.
    """
    sample = token // sequence_length
    end = (sample + 1) * sequence_length
    for begin in range(0, documents.size, BLOCK):
        count = min(BLOCK, documents.size - begin)
        for k in range(count):
            document = documents[begin + k]
            ahead[k] = lengths[document]
            seen[document - first] += 1
        for k in range(count):
            if ahead[k] == 0:
                continue
            behind = token + ahead[k]
            if token >= end:
                sample += 1
                end += sequence_length
            now = sample < drawn.size and drawn[sample] != 0
            some = now
            whole = now
            while end < behind:
                sample += 1
                end += sequence_length
                now = sample < drawn.size and drawn[sample] != 0
                some = some or now
                whole = whole and now
            token = behind
            totals[0] += some
            totals[1] = min(totals[1], np.int64(some))
            totals[2] = max(totals[2], np.int64(some))
            totals[3] = min(totals[3], np.int64(whole))
            totals[4] = max(totals[4], np.int64(some))
    return token


def place_documents(
    lengths: NDArray[np.int32],
    document_index: NDArray[np.int32],
    first: int,
    places: NDArray[np.int64],
    seen: NDArray[np.int64],
) -> int:
    """Find where some documents stand in the stream of tokens that a document index makes.

    Args:
        lengths: The tokens of all documents of the dataset.
        document_index: The documents in the order of the stream.
        first: The first of the documents wanted; they are as many as ``places`` has rows.
        places: For each of them the token at which each of its appearances begins; written.
        seen: How many appearances there are; written.

    Returns:
        The tokens of the stream.
    """
    wanted = places.shape[0]
    at = 0
    for entry in range(document_index.size):
        document = document_index[entry]
        row = document - first
        if 0 <= row < wanted:
            if seen[row] < places.shape[1]:
                places[row, seen[row]] = at
            seen[row] += 1
        at += lengths[document]
    return at


def cover_documents(
    lengths: NDArray[np.int32],
    first: int,
    places: NDArray[np.int64],
    drawn: NDArray[np.uint8],
    sequence_length: int,
    totals: NDArray[np.int64],
    events: NDArray[np.int64],
) -> None:
    """Count how often documents and their tokens are in samples that are drawn.

    A token is in the sample that its place in the stream falls into; places behind the last sample are in
    none. A document counts once for each of its appearances of which any token is drawn.

    Args:
        lengths: The tokens of all documents of the dataset.
        first: The first of the documents to look at; they are as many as ``places`` has rows.
        places: For each of them the token at which each of its appearances begins.
        drawn: For each sample, in the order of the stream, whether it is drawn.
        sequence_length: The tokens of a sample.
        totals: Documents drawn at all, then the least and the most that a document is drawn, then the
            least and the most that a token is. Brought forward in place.
        events: Room for a number for each sample that the longest document can touch in an epoch, and one
            more, for all epochs.
    """
    epochs = places.shape[1]
    for row in range(places.shape[0]):
        length = np.int64(lengths[first + row])
        if length == 0:
            continue
        whole = True
        for epoch in range(epochs):
            begin = places[row, epoch] // sequence_length
            end = (places[row, epoch] + length - 1) // sequence_length
            whole = whole and end < drawn.size
            for sample in range(begin, min(end + 1, drawn.size)):
                whole = whole and drawn[sample] != 0
        documents = least = most = epochs
        if not whole:
            # Where does which appearance begin (odd) or cease (even) to be drawn? Sort and sweep.
            found = 0
            documents = 0
            for epoch in range(epochs):
                begin = places[row, epoch]
                sample = begin // sequence_length
                before = False
                touched = False
                while sample * sequence_length < begin + length:
                    now = sample < drawn.size and drawn[sample] != 0
                    if now != before:
                        events[found] = max(sample * sequence_length - begin, 0) * 2 + now
                        found += 1
                    touched = touched or now
                    before = now
                    sample += 1
                documents += touched
            gap = found
            while gap > 1:  # Shell's sort
                gap = max(gap * 5 // 11, 1)
                for event in range(gap, found):
                    value = events[event]
                    place = event
                    while place >= gap and events[place - gap] > value:
                        events[place] = events[place - gap]
                        place -= gap
                    events[place] = value
            level = 0
            least = epochs
            most = 0
            if found == 0 or events[0] > 1:
                least = 0
            for event in range(found):
                level += 1 if events[event] & 1 else -1
                if event + 1 == found or events[event + 1] >> 1 != events[event] >> 1:
                    least = min(least, level)
                    most = max(most, level)
        totals[0] += documents > 0
        totals[1] = min(totals[1], documents)
        totals[2] = max(totals[2], documents)
        totals[3] = min(totals[3], least)
        totals[4] = max(totals[4], most)
