"""Checking again that a plan goes on where those before it stopped: nothing read twice, nothing lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokshard.errors import TokshardError, UsageError
from tokshard.sharding.assignment import Assignment, Remainder
from tokshard.sharding.locator import Locator, open_sort_key
from tokshard.sharding.order import SampleOrder, Selection
from tokshard.sharding.plan import Plan, Stream
from tokshard.sharding.replan.counting import blocks_of, is_partition
from tokshard.sharding.replan.history import StoppedStream, history_of, stops_of
from tokshard.sharding.replan.proof import prove_remainder, read_positions
from tokshard.sharding.replan.reweighted import recheck_draws

if TYPE_CHECKING:
    from tokshard.sharding.order import KeyOf


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that does not hold.

    Attributes:
        code: A stable code: ``"unreadable"``, ``"not-continued"``, ``"read-twice"``, ``"wrong-count"`` or
            ``"wrong-standing"``.
        field: What in the plan does not hold.
        message: One sentence.
    """

    code: str
    field: str
    message: str


Problem = tuple[str, str]


def recheck(plan: Plan, *, parent: Plan | None = None, deep: bool = False) -> list[Finding]:
    """Check the proofs that a plan carries against the plan itself.

    What was read by each plan of the history, what is read now, and what is left must be disjoint and
    together everything, by arithmetic with intervals; the counts of each dataset are counted anew.

    Args:
        plan: The plan; one that goes on from no other has nothing to check.
        parent: The plan that it goes on from, where it is at hand: then the unread samples of a blend that
            was weighted anew are also found anew from it.
        deep: Whether to look at every planned sample of the epoch under way, and to ask the stopped plan
            whether it has read it.

    Returns:
        All that does not hold; empty if everything does.
    """
    findings: list[Finding] = []
    try:
        history = history_of(plan)
    except TokshardError as error:
        return [Finding("unreadable", "history", error.message)]
    for name, stream in plan.streams.items():
        stops = stops_of(history, name)
        try:
            for place, code, message in _stream_problems(name, stream, stops, parent, deep=deep):
                findings.append(Finding(code, f"history[{place}].streams.{name}", message))
        except TokshardError as error:
            findings.append(Finding("unreadable", f"streams.{name}", error.message))
    return findings


def _stream_problems(
    name: str, stream: Stream, stops: Sequence[StoppedStream], parent: Plan | None, *, deep: bool
) -> Iterator[tuple[int, str, str]]:
    if not stops:
        return
    assignments = [*(one.assignment for one in stops[1:]), stream.assignment]
    for place, (stop, after) in enumerate(zip(stops, assignments, strict=True)):
        if stop.reweighting is None:
            for code, message in continuation_problems(stop.assignment, stop.step, after):
                yield place, code, message
    last, locator = stops[-1], Locator(stream.source)
    key_of = None if stream.sort_key is None else open_sort_key(stream.source, stream.sort_key)
    problems: Iterator[Problem]
    if last.reweighting is not None:
        before = None if parent is None else parent.streams.get(name)
        problems = recheck_draws(stream, last, stops[:-1], before)
    else:
        problems = _remainder_problems(stops, stream.assignment, locator, key_of, deep=deep)
    for code, message in problems:
        yield len(stops) - 1, code, message


def continuation_problems(stopped: Assignment, step: int, after: Assignment) -> Iterator[Problem]:
    """Check by arithmetic that an assignment reads what another one left, once, and the epochs after it."""
    remainder = Remainder.after(stopped, step, keep_order=False)
    epoch = remainder.epoch
    if after.consumed_samples != stopped.consumed_after(step):
        before = stopped.consumed_after(step)
        yield "not-continued", f"it begins at {after.consumed_samples} consumed samples, not {before}"
    if not is_partition([remainder.seen, remainder.unread], remainder.samples):
        yield "read-twice", f"what was read and unread of epoch {epoch} is not everything once"
    whole = after.passes
    if whole[0].first_epoch == epoch:
        if not _is_rest(stopped, step, remainder, whole[0].order):
            yield "read-twice", f"the order of epoch {epoch} is not that of what was unread"
        if whole[0].epochs == 1:
            whole = whole[1:]
    for one in whole:
        known = any(
            before.has_epoch(one.first_epoch)
            and (one.epochs is None or before.has_epoch(one.first_epoch + one.epochs - 1))
            for before in (*remainder.following, *stopped.passes)
        )
        if one.first_epoch < epoch or not known or one.order.samples != one.order.total:
            yield "read-twice", f"epoch {one.first_epoch} is not a whole one that was to come"


def _is_rest(stopped: Assignment, step: int, remainder: Remainder, order: SampleOrder) -> bool:
    """Tell whether an order holds what is unread: in front of what is kept are only permutations."""
    rests = [remainder.order]
    try:
        rests.append(Remainder.after(stopped, step).order)
    except UsageError:
        # A layout that repeats samples: what is unread can only have been dealt out anew.
        rests.append(None)
    for rest in rests:
        if rest is None or rest.total != order.total or rest.samples != order.samples:
            continue
        behind = len(order.links) - len(rest.links)
        fits = behind >= 0 and order.links[behind:] == rest.links
        if fits and not any(isinstance(link, Selection) for link in order.links[:behind]):
            return True
    fresh = not remainder.seen.count and order.samples == order.total == remainder.samples
    return fresh and not any(isinstance(link, Selection) for link in order.links)


def _remainder_problems(
    stops: Sequence[StoppedStream],
    after: Assignment,
    locator: Locator,
    key_of: KeyOf | None,
    *,
    deep: bool,
) -> Iterator[Problem]:
    last = stops[-1]
    before = before_counts(stops[:-1], last.assignment, last.step)
    proof = prove_remainder(last.assignment, last.step, after, locator, before, key_of)
    if proof != last.proof:
        yield "wrong-count", f"the proof says {last.proof.total}, but counted are {proof.total}"
    for number, one in enumerate(proof.sources):
        if not one.adds_up:
            yield "wrong-count", f"dataset {number} does not add up: {one}"
    if deep and after.passes[0].first_epoch == proof.epoch:
        yield from _planned_problems(last.assignment, last.step, after, key_of)


def before_counts(earlier: Sequence[StoppedStream], stopped: Assignment, step: int) -> list[int] | None:
    """Return what plans before the stopped one read of the epoch under way, by dataset.

    Returns:
        What the proof of the stop before counted; None where that was in another epoch, or not at all.
    """
    remainder = Remainder.after(stopped, step, keep_order=False)
    one = stopped.passes[0]
    in_rest = one.first_epoch == remainder.epoch and one.order.samples < one.order.total
    if not in_rest or not earlier or earlier[-1].proof.epoch != remainder.epoch:
        return None
    return [count.before + count.seen for count in earlier[-1].proof.sources]


def _planned_problems(
    stopped: Assignment, step: int, after: Assignment, key_of: KeyOf | None
) -> Iterator[Problem]:
    """Ask the stopped plan of every planned sample whether it has read it, and whether it comes once."""
    one = after.passes[0]
    epoch = one.first_epoch
    order = next(before.order for before in stopped.passes if before.has_epoch(epoch))
    for positions in blocks_of(read_positions(after)):
        ids = one.order.ids(positions, epoch, key_of)
        if not np.array_equal(one.order.positions(ids, epoch, key_of), positions):
            yield "read-twice", "a sample stands at two places of the order"
            return
        steps = stopped.locate(ids, epoch, key_of).step
        known = order.positions(ids, epoch, key_of) >= 0
        wrong = np.flatnonzero(~known | ((steps >= 0) & (steps < step)))
        if wrong.size:
            yield "read-twice", f"sample {int(ids[wrong[0]])} was read before the plan went on"
            return
