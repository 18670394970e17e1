"""The proof that a plan continues the one before it: no sample lost, none read twice.

It is made when a plan is replanned (:func:`prove_remainder`, :func:`prove_draws`), stored in the plan's
history, and verified by counting everything again (:func:`verify_replan`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tokshard.errors import IntegrityError, TokshardError, UsageError
from tokshard.sharding.assignment import Assignment
from tokshard.sharding.history import (
    SourceCount,
    StoppedStream,
    StreamProof,
    stops_of,
)
from tokshard.sharding.intervals import BLOCK, Intervals, is_partition
from tokshard.sharding.locator import Locator
from tokshard.sharding.order import SampleOrder, Selection
from tokshard.sharding.plan import Plan, Stream
from tokshard.sharding.replan.remainder import Remainder
from tokshard.sharding.replan.reweighting import open_start, source_progress_of
from tokshard.sharding.replan.source_progress import SourceEpochTable, SourceProgress, by_source_epoch
from tokshard.sharding.sources import SampleSource

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.sharding.order import KeyOf
    from tokshard.sharding.sources import DatasetReference

    Integers = NDArray[np.int64]

ProblemCode = Literal["unreadable", "not-continued", "read-twice", "wrong-count", "wrong-progress"]
Problem = tuple[ProblemCode, str]


@dataclass(frozen=True, slots=True)
class ReplanProblem:
    """Something in a plan's history that does not hold."""

    code: ProblemCode
    field: str
    message: str


def prove_remainder(
    stopped: Assignment,
    step: int,
    after: Assignment,
    locator: Locator,
    before: Sequence[int] | None = None,
    key_of: KeyOf | None = None,
) -> StreamProof:
    """Count which samples of the epoch under way are read, planned and unread.

    The samples are counted by intervals of the ids, or in blocks where an order shuffles them; read and
    planned ones are counted each from its own plan.

    ``before`` counts the samples of each dataset that plans before ``stopped`` read in this epoch; None for
    all that its order leaves out.
    """
    remainder = Remainder.after(stopped, step, keep_order=False)
    epoch = remainder.epoch
    order = next(epoch_range.order for epoch_range in stopped.epoch_ranges if epoch_range.has_epoch(epoch))
    read = count_datasets(locator, order, remainder.seen, epoch, key_of)
    planned, unread = _planned(after, remainder, locator, key_of)
    samples = count_datasets(locator, SampleOrder(order.total), _all(locator.source), epoch)
    if before is None:
        own = Intervals.of([(0, order.samples)])
        earlier = (
            samples - count_datasets(locator, order, own, epoch, key_of) if order.transforms else samples * 0
        )
    else:
        earlier = np.array(before, dtype=np.int64)
    table = np.stack((samples, earlier, read, planned, unread), axis=1).tolist()
    return StreamProof(epoch, tuple(SourceCount(*row) for row in table))


def _planned(
    after: Assignment, remainder: Remainder, locator: Locator, key_of: KeyOf | None
) -> tuple[Integers, Integers]:
    epoch_range = after.epoch_ranges[0]
    epoch = remainder.epoch
    if epoch_range.first_epoch != epoch:
        nothing = np.zeros(len(locator.source.datasets), dtype=np.int64)
        if remainder.order is None:
            return nothing, nothing
        rest = Intervals.of([(0, remainder.order.samples)])
        return nothing, count_datasets(locator, remainder.order, rest, epoch, key_of)
    planned = _read_positions(after)
    unread = planned.complement(epoch_range.order.samples)
    return (
        count_datasets(locator, epoch_range.order, planned, epoch, key_of),
        count_datasets(locator, epoch_range.order, unread, epoch, key_of),
    )


def _read_positions(assignment: Assignment) -> Intervals:
    epoch_range = assignment.epoch_ranges[0]
    local = min(assignment.skipped + assignment.samples_per_rank, epoch_range.per_epoch)
    return epoch_range.layout.consumed(local)


def count_before(earlier: Sequence[StoppedStream], stopped: Assignment, step: int) -> list[int] | None:
    """Count the samples of each dataset that plans before the stopped one read of the epoch under way.

    Returns:
        The counts of the proof of the stop before; None where that was in another epoch, or not at all.
    """
    remainder = Remainder.after(stopped, step, keep_order=False)
    epoch_range = stopped.epoch_ranges[0]
    in_rest = (
        epoch_range.first_epoch == remainder.epoch and epoch_range.order.samples < epoch_range.order.total
    )
    if not in_rest or not earlier or earlier[-1].proof.epoch != remainder.epoch:
        return None
    return [count.read_earlier + count.read for count in earlier[-1].proof.sources]


def prove_draws(locator: Locator, progress: Sequence[SourceProgress], table: SourceEpochTable) -> StreamProof:
    """Count what a re-weighted blend draws of the unread samples of each source, and of new epochs."""
    next_epochs = np.array([of_source.next_epoch for of_source in progress], dtype=np.int64)
    planned, later = np.zeros_like(next_epochs), np.zeros_like(next_epochs)
    for ids in _all(locator.source).blocks():
        datasets, _ = locator.locate(ids)
        is_open = table.of(ids, datasets) < next_epochs[datasets]
        planned += np.bincount(datasets[is_open], minlength=planned.size)
        later += np.bincount(datasets[~is_open], minlength=later.size)
    counts = []
    for of_source, drawn, drawn_later in zip(progress, planned.tolist(), later.tolist(), strict=True):
        samples = of_source.samples * len(of_source.open_epochs)
        counts.append(
            SourceCount(samples, 0, samples - of_source.unread, drawn, of_source.unread - drawn, drawn_later)
        )
    return StreamProof(None, tuple(counts))


def count_datasets(
    locator: Locator, order: SampleOrder, positions: Intervals, epoch: int, key_of: KeyOf | None = None
) -> Integers:
    """Count the samples of each dataset at some positions of an order.

    Where the order is that of the ids it is arithmetic with intervals, or for a blend a count over runs of
    its dataset index; otherwise the samples are looked up block by block.

    Returns:
        int64 of shape (datasets,).
    """
    source = locator.source
    ids = _ids_in_order(order, positions)
    if ids is not None and source.order is None:
        return np.diff(ids.count_below(source.bounds))
    counts = np.zeros(len(source.datasets), dtype=np.int64)
    if ids is not None and source.order is not None:
        dataset_index = source.order.open()["dataset_index"]
        for start, stop in zip(ids.starts.tolist(), ids.stops.tolist(), strict=True):
            for begin in range(start, stop, BLOCK):
                counts += _bincount(dataset_index[begin : min(begin + BLOCK, stop)], counts.size, source)
        return counts
    for block in positions.blocks():
        datasets, _ = locator.locate(order.ids(block, epoch, key_of))
        counts += np.bincount(datasets, minlength=counts.size)
    return counts


def _bincount(datasets: NDArray[Any], count: int, source: SampleSource) -> Integers:
    if datasets.size and (datasets.min() < 0 or datasets.max() >= count):
        path = source.order.path("dataset_index") if source.order else ""
        raise IntegrityError(f"{path} contains a dataset that is not in the blend", path=path)
    return np.bincount(datasets, minlength=count).astype(np.int64)


def _ids_in_order(order: SampleOrder, positions: Intervals) -> Intervals | None:
    # None where the order shuffles them.
    for link in order.transforms:
        if not isinstance(link, Selection):
            return None
        positions = link.kept.select(positions)
    return positions


def _all(source: SampleSource) -> Intervals:
    return Intervals.of([(0, source.total)])


def verify_replan(plan: Plan, *, parent: Plan | None = None, deep: bool = False) -> list[ReplanProblem]:
    """Verify the proofs that a plan carries against the plan itself.

    The samples read by each plan of the history, planned now, and unread must be disjoint and together
    everything, by arithmetic with intervals; the counts of each dataset are counted again.

    Args:
        plan: The plan; one that continues no other has nothing to verify.
        parent: The plan that it continues, where it is at hand: then the unread samples of a re-weighted
            blend are also derived from it again.
        deep: Whether to look at every planned sample of the epoch under way, and to ask the stopped plan
            whether it has read it.

    Returns:
        All that does not hold; empty if everything does.
    """
    problems: list[ReplanProblem] = []
    for name, stream in plan.streams.items():
        before = None if parent is None else parent.streams.get(name)
        try:
            for place, (code, message) in _stream_problems(
                stream, stops_of(plan.history, name), before, deep=deep
            ):
                problems.append(ReplanProblem(code, f"history[{place}].streams.{name}", message))
        except TokshardError as error:
            problems.append(ReplanProblem("unreadable", f"streams.{name}", error.message))
    return problems


def _stream_problems(
    stream: Stream, stops: tuple[StoppedStream, ...], parent: Stream | None, *, deep: bool
) -> Iterator[tuple[int, Problem]]:
    # Yields each problem with the place of its stop in the history.
    if not stops:
        return
    assignments = [*(stop.assignment for stop in stops[1:]), stream.assignment]
    for place, (stop, after) in enumerate(zip(stops, assignments, strict=True)):
        if stop.reweighting is None:
            for problem in continuation_problems(stop.assignment, stop.step, after):
                yield place, problem
    if stops[-1].reweighting is None:
        problems = _remainder_problems(stream, stops, deep=deep)
    else:
        problems = _draw_problems(stream, stops, parent)
    for problem in problems:
        yield len(stops) - 1, problem


def continuation_problems(stopped: Assignment, step: int, after: Assignment) -> Iterator[Problem]:
    """Check by arithmetic that an assignment reads what another one left, once, and the epochs after it."""
    remainder = Remainder.after(stopped, step, keep_order=False)
    epoch = remainder.epoch
    if after.consumed_samples != stopped.consumed_after(step):
        before = stopped.consumed_after(step)
        yield "not-continued", f"it starts at {after.consumed_samples} consumed samples instead of {before}"
    if not is_partition([remainder.seen, remainder.unread], remainder.samples):
        yield "read-twice", f"every sample of epoch {epoch} must be either read or unread, and not both"
    whole = after.epoch_ranges
    if whole[0].first_epoch == epoch:
        if not _is_rest(stopped, step, remainder, whole[0].order):
            yield "read-twice", f"the order of epoch {epoch} differs from the order of its unread samples"
        if whole[0].epochs == 1:
            whole = whole[1:]
    for epoch_range in whole:
        known = any(
            before.has_epoch(epoch_range.first_epoch)
            and (
                epoch_range.epochs is None
                or before.has_epoch(epoch_range.first_epoch + epoch_range.epochs - 1)
            )
            for before in (*remainder.following, *stopped.epoch_ranges)
        )
        if (
            epoch_range.first_epoch < epoch
            or not known
            or epoch_range.order.samples != epoch_range.order.total
        ):
            yield (
                "read-twice",
                f"epoch {epoch_range.first_epoch} is not a complete unread epoch",
            )


def _is_rest(stopped: Assignment, step: int, remainder: Remainder, order: SampleOrder) -> bool:
    # Only permutations may precede the selection.
    rests = [remainder.order]
    try:
        rests.append(Remainder.after(stopped, step).order)
    except UsageError:
        # A layout that repeats samples: what is unread can only have been laid out from its start.
        rests.append(None)
    for rest in rests:
        if rest is None or rest.total != order.total or rest.samples != order.samples:
            continue
        behind = len(order.transforms) - len(rest.transforms)
        fits = behind >= 0 and order.transforms[behind:] == rest.transforms
        if fits and not any(isinstance(link, Selection) for link in order.transforms[:behind]):
            return True
    fresh = not remainder.seen.count and order.samples == order.total == remainder.samples
    return fresh and not any(isinstance(link, Selection) for link in order.transforms)


def _remainder_problems(stream: Stream, stops: Sequence[StoppedStream], *, deep: bool) -> Iterator[Problem]:
    last, after = stops[-1], stream.assignment
    key_of = stream.open_sort_key()
    before = count_before(stops[:-1], last.assignment, last.step)
    proof = prove_remainder(last.assignment, last.step, after, Locator(stream.source), before, key_of)
    if proof != last.proof:
        yield "wrong-count", f"the proof records {last.proof.total}, but the count is {proof.total}"
    for number, count in enumerate(proof.sources):
        if not count.adds_up:
            yield "wrong-count", f"the counts of dataset {number} do not add up: {count}"
    if deep and after.epoch_ranges[0].first_epoch == proof.epoch:
        yield from _planned_problems(last.assignment, last.step, after, key_of)


def _planned_problems(
    stopped: Assignment, step: int, after: Assignment, key_of: KeyOf | None
) -> Iterator[Problem]:
    # The stopped plan itself locates every planned sample, which must be unread and come once.
    epoch_range = after.epoch_ranges[0]
    epoch = epoch_range.first_epoch
    order = next(before.order for before in stopped.epoch_ranges if before.has_epoch(epoch))
    for positions in _read_positions(after).blocks():
        ids = epoch_range.order.ids(positions, epoch, key_of)
        if not np.array_equal(epoch_range.order.positions(ids, epoch, key_of), positions):
            yield "read-twice", "a sample is at two positions in the order"
            return
        steps = stopped.locate(ids, epoch, key_of).step
        known = order.positions(ids, epoch, key_of) >= 0
        wrong = np.flatnonzero(~known | ((steps >= 0) & (steps < step)))
        if wrong.size:
            yield "read-twice", f"sample {int(ids[wrong[0]])} had already been read by an earlier plan"
            return


def _draw_problems(
    stream: Stream, stops: tuple[StoppedStream, ...], parent: Stream | None
) -> Iterator[Problem]:
    stop = stops[-1]
    if stop.reweighting is None:
        return
    locator = Locator(stream.source)
    progress, table = open_start(stream.source, stop.reweighting)
    if stream.assignment.samples_per_rank * stream.assignment.ranks != stream.source.total:
        yield "wrong-count", "the steps do not read every sample of the blend exactly once"
    yield from _repeated(locator, progress, table)
    proof = prove_draws(locator, progress, table)
    if proof != stop.proof or not all(count.adds_up and count.unread >= 0 for count in proof.sources):
        yield "wrong-count", f"the proof records {stop.proof.total}, but the count is {proof.total}"
    if parent is not None:
        known = source_progress_of(parent, stop.step, stops[:-1])
        if not _continues_progress(known, parent.source, progress, stream.source):
            yield "wrong-progress", "the unread samples differ from those that the previous plan left unread"


def _repeated(
    locator: Locator, progress: Sequence[SourceProgress], table: SourceEpochTable
) -> Iterator[Problem]:
    complete: list[set[int]] = [set() for _ in progress]
    unread: dict[tuple[int, int], NDArray[np.bool_]] = {}
    for number, of_source in enumerate(progress):
        for open_epoch in of_source.open_epochs:
            marks = unread[number, open_epoch.epoch] = np.zeros(of_source.samples, dtype=np.bool_)
            for block in open_epoch.unread.blocks():
                marks[block] = True
    for ids in _all(locator.source).blocks():
        datasets, samples = locator.locate(ids)
        for number, epoch, here in by_source_epoch(datasets, table.of(ids, datasets)):
            marks = unread.setdefault((number, epoch), np.ones(progress[number].samples, dtype=np.bool_))
            drawn = samples[here]
            if epoch in complete[number] or not marks[drawn].all() or np.unique(drawn).size != drawn.size:
                yield "read-twice", f"a sample of dataset {number} is read twice in source epoch {epoch}"
                return
            marks[drawn] = False
            if not marks.any():
                # Epochs come one after the other, so that it is enough to remember the last one.
                complete[number] = {epoch}
                del unread[number, epoch]


def _continues_progress(
    known: Sequence[SourceProgress],
    parent: SampleSource,
    progress: Sequence[SourceProgress],
    source: SampleSource,
) -> bool:
    by_index: dict[Any, list[SourceProgress]] = {}
    for reference, of_source in zip(parent.datasets, known, strict=True):
        by_index.setdefault(data_identity_of(reference), []).append(of_source)
    for reference, of_source in zip(source.datasets, progress, strict=True):
        candidates = by_index.get(data_identity_of(reference))
        if candidates and candidates.pop(0) == of_source:
            continue
        if candidates is not None or of_source != SourceProgress.at_start(of_source.samples):
            return False
    return True


def data_identity_of(reference: DatasetReference) -> tuple[object, ...]:
    """Return an identity of the bytes and the index of a dataset, whatever its paths."""
    files = None if reference.index is None else (reference.index.files.hash, reference.index.files.split)
    return (reference.bin, reference.idx, files, reference.packing)  # the hash does not contain the packing
