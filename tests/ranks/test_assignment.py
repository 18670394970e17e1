"""Assignments: steps, ids, their inverse, epochs, tails, and resuming on another world."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from tokshard.ranks.assignment import Assignment, EpochRange, available_steps
from tokshard.ranks.intervals import Intervals
from tokshard.ranks.layouts import Striped
from tokshard.ranks.order import SampleOrder
from tokshard.ranks.replan.remainder import Remainder

from support.assignments import World, assignment_of, everything, order_of
from tokshard.core.codec import decode, encode
from tokshard.errors import IntegrityError, UsageError
from tokshard.ranks.modes import cyclic_order, layout_of, shuffle_links
from tokshard.ranks.schedule import BatchSchedule

KINDS = [
    ("single", True),
    ("sequential", True),
    ("cyclic", True),
    ("cyclic", False),
    ("contiguous", True),
    ("chunked", True),
]
SCHEDULE = BatchSchedule.parse("0:8 40:16 130:24")


@pytest.mark.parametrize(("mode", "sharded"), KINDS)
@pytest.mark.parametrize("schedule", [BatchSchedule.constant(8), SCHEDULE])
def test_every_id_is_located_where_it_is_read(mode, sharded, schedule):
    world = World(ranks=4, micro_batch_size=2)
    order = order_of(mode, 203, world, sharded=sharded, links=shuffle_links("samples", 203, 5))
    plan = assignment_of(mode, order, world, sharded=sharded, epochs=3, schedule=schedule)
    read_at = {}
    for rank, step in itertools.product(range(4), range(plan.steps)):
        batches = plan.step_ids(rank, step)
        assert batches.shape == (plan.timeline.batch_size(step) // plan.timeline.group, 2)
        for slot, sample in enumerate(batches.ravel().tolist()):
            epoch = (plan.first_local(step) + slot) // 50
            assert read_at.setdefault((epoch, sample), (rank, step, slot)) == (rank, step, slot)
    for epoch in range(3):
        found = plan.locate(np.arange(203), epoch)
        for sample in range(203):
            expected = read_at.get((epoch, sample), (-1, -1, -1))
            assert (found.rank[sample], found.step[sample], found.row[sample]) == expected
    assert len({sample for epoch, sample in read_at if epoch == 0}) == 200
    assert sorted({sample for epoch, sample in read_at if epoch == 0} | members(plan.tail(0))) == list(
        range(203)
    )


def members(intervals):
    return set(intervals.nth(np.arange(intervals.count)).tolist())


@pytest.mark.parametrize(("mode", "sharded"), KINDS)
def test_a_plan_that_starts_in_the_middle_is_the_end_of_the_whole_one(mode, sharded):
    world = World(ranks=4, micro_batch_size=2)
    order = order_of(mode, 203, world, sharded=sharded)
    whole = assignment_of(mode, order, world, sharded=sharded, epochs=3)
    late = assignment_of(mode, order, world, sharded=sharded, epochs=3, consumed_samples=9 * 8, skipped=9 * 2)
    assert late.steps == whole.steps - 9
    assert late.consumed_after(3) == whole.consumed_after(12)
    assert np.array_equal(everything(late), everything(whole)[9:])
    for epoch in range(3):
        before, after = (plan.locate(np.arange(203), epoch) for plan in (whole, late))
        still = before.step >= 9
        assert np.array_equal(after.rank, np.where(still, before.rank, -1))
        assert np.array_equal(after.step, np.where(still, before.step - 9, -1))
        assert np.array_equal(after.row, np.where(still, before.row, -1))
    assert Remainder.after(late, 2).seen == Remainder.after(whole, 11).seen


def test_epochs_are_shuffled_each_in_its_own_order():
    plan = assignment_of("single", SampleOrder(64, shuffle_links("samples", 64, 1)), World(2, 4), epochs=3)
    epochs = everything(plan).reshape(3, 64)
    assert all(sorted(epoch.tolist()) == list(range(64)) for epoch in epochs)
    assert len({tuple(epoch.tolist()) for epoch in epochs}) == 3


@pytest.mark.parametrize("mode", ["single", "sequential", "contiguous", "chunked"])
def test_padding_is_reported_as_it_is_read(mode):
    for samples in range(1, 70, 3):
        plan = assignment_of(mode, SampleOrder(samples, ()), World(3, 2), tail="pad")
        local = np.tile(np.arange(plan.samples_per_rank), 3)
        ranks = np.repeat(np.arange(3), plan.samples_per_rank)
        ids, padding = plan.at(ranks, local), plan.repeated(ranks, local)
        assert sorted(ids[~padding].tolist()) == list(range(samples))
        again, times = plan.repeats(0)
        assert dict(zip(again.tolist(), times.tolist(), strict=True)) == {
            sample: ids[padding].tolist().count(sample) for sample in set(ids[padding].tolist())
        }
        assert plan.tail(0).count == 0


def test_ranks_and_steps_that_are_not_there_are_index_errors():
    plan = assignment_of("single", SampleOrder(100, ()), World(2, 4))
    calls = [
        lambda: plan.ids(2, 0, 1),
        lambda: plan.ids(-1, 0, 1),
        lambda: plan.ids(0, 45, 4),
        lambda: plan.ids(0, -1, 1),
        lambda: plan.step_ids(0, 12),
        lambda: plan.step_ids(0, -1),
        lambda: plan.first_local(13),
        lambda: plan.locate(np.array([0]), 1),
        lambda: plan.tail(1),
    ]
    assert plan.steps == 12
    for call in calls:
        with pytest.raises(IndexError):
            call()


def test_parts_that_do_not_fit_are_usage_errors():
    order, schedule = SampleOrder(100, ()), BatchSchedule.constant(8)
    good = EpochRange(order, Striped(100, 2, 4, 48, "last"), 0, 1)
    four_ranks = Striped(100, 4, 4, 24, "last")
    wrong = [
        lambda: Assignment((), 4, schedule, 1, 0, 0),
        lambda: Assignment((good,), 4, schedule, 13, 0, 0),
        lambda: Assignment((good,), 5, BatchSchedule.constant(10), 1, 0, 0),
        lambda: Assignment((good,), 4, BatchSchedule.constant(12), 1, 0, 0),
        lambda: Assignment((good, replace(good, layout=four_ranks, first_epoch=1)), 4, schedule, 1, 0, 0),
        lambda: Assignment((good, good), 4, schedule, 1, 0, 0),
        lambda: Assignment((replace(good, epochs=None), replace(good, first_epoch=9)), 4, schedule, 1, 0, 0),
        lambda: Assignment((good,), 4, schedule, -1, 0, 0),
        lambda: EpochRange(order, Striped(99, 2, 4, 48, "last"), 0, 1),
        lambda: EpochRange(order, good.layout, 0, 0),
    ]
    for make in wrong:
        with pytest.raises(UsageError):
            make()
    assert available_steps((good,), 4, schedule) == 12


def test_assignments_survive_json_and_other_json_is_an_integrity_error():
    world = World(4, 2)
    plan = assignment_of("cyclic", cyclic_order(203, world, sharded=True), world, epochs=5, schedule=SCHEDULE)
    value = json.loads(json.dumps(encode(plan)))
    assert decode(Assignment, value, "plan.json") == plan
    epoch_range = value["epoch_ranges"][0]
    wrong = [
        None,
        {},
        value | {"more": 1},
        value | {"epoch_ranges": {}},
        value | {"epoch_ranges": [None]},
        value | {"steps": "5"},
        value | {"steps": 10**9},
        value | {"epoch_ranges": [epoch_range | {"epochs": "x"}]},
        value | {"batch_schedule": None},
        value | {"epoch_ranges": [epoch_range | {"epochs": 0}]},
        value | {"epoch_ranges": [epoch_range | {"order": None}]},
        value | {"micro_batch_size": 0},
    ]
    for case in wrong:
        with pytest.raises(IntegrityError, match=r"plan\.json"):
            decode(Assignment, case, "plan.json")


WORLDS = [1, 2, 3, 4, 6, 8, 12, 16, 24, 48]
SAMPLES = 48 * 11 + 29


@pytest.mark.parametrize("mode", ["single", "contiguous", "chunked", "cyclic"])
def test_the_global_order_survives_any_change_of_world(mode):
    # Batches of 48 in worlds of its divisors, stopped after k of them. Of each two of the three (world, stop,
    # other world), all combinations occur.
    for number, ranks in enumerate(WORLDS):
        world = World(ranks, 1, 48)
        order = order_of(mode, SAMPLES, world, links=shuffle_links("samples", SAMPLES, 3))
        plan = assignment_of(mode, order, world)
        batches = everything(plan).reshape(plan.steps, 48)
        for turn, stop in enumerate((1, 2, 3, 5, plan.steps - 1, plan.steps)):
            rest = Remainder.after(plan, stop)
            assert rest.seen.count == stop * 48
            assert rest.unread == rest.seen.complement(SAMPLES)
            if stop == plan.steps:
                assert rest.order.samples == SAMPLES % 48
                continue
            for other in (WORLDS[place] for place in range(len(WORLDS)) if (number + place) % 5 == turn):
                after = assignment_of("single", rest.order, World(other, 1, 48), consumed_samples=stop * 48)
                assert after.steps == plan.steps - stop
                resumed = everything(after).reshape(after.steps, 48)
                assert np.array_equal(resumed, batches[stop:])


@pytest.mark.parametrize("mode", ["single", "sequential", "contiguous", "chunked", "cyclic"])
def test_stopping_on_24_going_on_on_16_and_then_on_48_reads_every_sample_once(mode):
    for size, (first, second, third) in itertools.product((1, 2), [(24, 16, 48), (48, 24, 16), (5, 7, 3)]):
        for keep_order in (True, False):
            left, seen, epoch = None, [], 0
            for ranks, steps in ((first, 3), (second, 2), (third, None)):
                world = World(ranks, size)
                if left is None:
                    left = order_of(mode, 1000, world, links=shuffle_links("samples", 1000, 3))
                going_on = "contiguous" if mode == "cyclic" and seen else mode
                plan = assignment_of(going_on, left, world, first_epoch=epoch)
                stop = plan.steps if steps is None else steps
                seen += everything(plan)[:stop].ravel().tolist()
                rest = Remainder.after(plan, stop, keep_order=keep_order)
                assert rest.seen.count + rest.unread.count == plan.epoch_ranges[0].order.samples
                left = rest.order
            unread = left.ids(np.arange(left.samples), epoch).tolist() if left else []
            assert sorted([*seen, *unread]) == list(range(1000))
            assert len(unread) < third * size


def test_a_remainder_in_a_later_epoch_leaves_the_epochs_after_it():
    world = World(4, 2)
    order = SampleOrder(203, shuffle_links("samples", 203, 1))
    plan = assignment_of("chunked", order, world, epochs=5)
    rest = Remainder.after(plan, 25 * 2 + 7)
    assert rest.epoch == 2
    assert rest.seen.count == 7 * 8
    assert rest.unread.count == 203 - 56
    assert [(epoch_range.first_epoch, epoch_range.epochs) for epoch_range in rest.following] == [(3, 2)]
    at_boundary = Remainder.after(plan, 50)
    assert at_boundary.epoch == 2
    assert at_boundary.order == order
    assert at_boundary.seen == Intervals.of([])
    done = Remainder.after(plan, 125)
    assert done.epoch == 4
    assert done.unread.count == 3
    assert done.following == ()
    assert members(plan.tail(4)) == set(done.order.ids(np.arange(3), 4).tolist())


def test_a_remainder_then_whole_epochs_are_one_assignment():
    world = World(3, 2)
    order = SampleOrder(100, shuffle_links("samples", 100, 1))
    plan = assignment_of("contiguous", order, World(4, 2), epochs=3)
    rest = Remainder.after(plan, 5, keep_order=False)
    epoch_ranges = (
        EpochRange(rest.order, layout_of("contiguous", rest.order.samples, world), rest.epoch, 1),
        EpochRange(order, layout_of("contiguous", 100, world), rest.epoch + 1, 2),
    )
    schedule = BatchSchedule.constant(6)
    after = Assignment(epoch_ranges, 2, schedule, available_steps(epoch_ranges, 2, schedule, 40), 40, 0)
    seen = everything(plan)[:5].ravel().tolist()
    local = epoch_ranges[0].per_epoch
    first = np.concatenate([after.ids(rank, 0, local) for rank in range(3)]).tolist()
    assert sorted([*seen, *first, *members(after.tail(0))]) == list(range(100))
    second = np.concatenate([after.ids(rank, local, 32) for rank in range(3)]).tolist()
    assert sorted([*second, *members(after.tail(1))]) == list(range(100))
    assert after.locate(np.array(second[:3]), 1).step.tolist() == [local // 2, local // 2, local // 2 + 1]


def test_a_padded_blocked_plan_continues_only_without_its_order():
    plan = assignment_of("chunked", SampleOrder(101, ()), World(4, 2), tail="pad")
    with pytest.raises(UsageError, match="repeats samples"):
        Remainder.after(plan, 3)
    assert Remainder.after(plan, 3, keep_order=False).unread.count == 101 - 24


def test_a_billion_samples_over_a_thousand_ranks_are_a_few_numbers():
    world = World(1024, 1, 4096)
    links = (
        *shuffle_links("windows", 10**9 + 7, 5),
        *shuffle_links("shards", 10**9 + 7, 5, shard_sizes=(10**9, 7)),
    )
    for mode, sharded in KINDS:
        order = order_of(mode, 10**9 + 7, world, sharded=sharded, links=links)
        epochs = None if mode == "cyclic" else 2
        layout = layout_of(mode, order.samples, world, sharded=sharded)
        epoch_range, schedule = EpochRange(order, layout, 0, epochs), BatchSchedule.constant(4096)
        plan = Assignment((epoch_range,), 1, schedule, 400_000, 0, 0)
        assert len(json.dumps(encode(plan))) < 2000
        rest = Remainder.after(plan, 100_000)
        assert rest.seen.count == 100_000 * 4096
        assert rest.seen.count + rest.unread.count == 10**9 + 7
        assert len(json.dumps(encode(rest.order))) < 3000
        if mode != "cyclic":
            ids = plan.at(np.full(9, 1000), np.arange(9) * 50_000)
            found = plan.locate(ids, 0)
            assert found.rank.tolist() == [1000] * 9
            assert found.step.tolist() == (np.arange(9) * 12_500).tolist()
