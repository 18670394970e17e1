"""Consumption order: every mode against lists of micro-batches, its inverse, its JSON, and continuation."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import slow_samplers
from support.assignments import everything, planned, stream_of
from support.sample_sources import document_source
from tokshard.core.codec import decode, encode
from tokshard.errors import IntegrityError, UsageError
from tokshard.ranks.choices import Shuffling
from tokshard.ranks.consumption import ConsumptionOrder, EpochRange, available_steps
from tokshard.ranks.continuation import continue_order
from tokshard.ranks.links import Interleave
from tokshard.ranks.modes import ReadingMode
from tokshard.ranks.schedule import BatchSchedule
from tokshard.ranks.shuffles import shuffle_links

MODES = ["single", "sequential", "contiguous", "chunked"]
KINDS = [*((mode, True) for mode in [*MODES, "cyclic"]), ("cyclic", False)]
SCHEDULE = "0:8 40:16 130:24"


def order_of(total, ranks, size, **options):
    stream = stream_of(document_source([total]), data_parallel=ranks, micro_batch_size=size, **options)
    return stream.order


def numbers_of(order):
    return np.arange(order.samples)


# The slow twin


def slow_epoch(ids, mode, ranks, size, per_rank):
    """List (id, whether it is padding) of an epoch, micro-batch by micro-batch and rank by rank."""
    if mode == "single":
        read = [(sample, False) for sample in ids[: per_rank * ranks]]
        return read + [(ids[-1], True)] * (per_rank * ranks - len(read))
    run = len(ids) // ranks if per_rank * ranks <= len(ids) else -(-len(ids) // ranks)
    rows = []
    for rank in range(ranks):
        own = ids[rank::ranks] if mode == "sequential" else ids[rank * run : (rank + 1) * run]
        repeated = own[-1] if own and mode != "sequential" else ids[-1]
        rows.append(
            [(sample, False) for sample in own[:per_rank]] + [(repeated, True)] * (per_rank - len(own))
        )
    return in_consumption_order(rows, size)


def in_consumption_order(rows, size):
    return [
        row[first + place] for first in range(0, len(rows[0]), size) for row in rows for place in range(size)
    ]


def slow_cyclic(total, epoch, ranks, size, sharded):
    active = total - total % (ranks * size)
    rows = [
        [
            (sample, False)
            for batch in slow_samplers.cyclic_sampler(total, epoch * active, size, rank, ranks, sharded, True)
            for sample in batch
        ]
        for rank in range(ranks)
    ]
    return in_consumption_order(rows, size)


def slow_steps(order, size_at):
    """List (step, rank, row) of all numbers."""
    places, consumed = [], order.consumed_samples
    for step in range(order.steps):
        micro_batches = size_at(consumed) // order.group
        places += [
            (step, rank, micro_batch * order.micro_batch_size + row)
            for micro_batch in range(micro_batches)
            for rank in range(order.ranks)
            for row in range(order.micro_batch_size)
        ]
        consumed += micro_batches * order.group
    return places


@st.composite
def orders(draw):
    """Return an order, and what it must read: (epoch, id, whether it is padding) of each number."""
    ranks, size = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    group = ranks * size
    total = draw(st.integers(group, 6 * group + 5))
    mode, sharded = draw(st.sampled_from(KINDS))
    pads = mode != "cyclic" and draw(st.booleans())
    epochs = draw(st.integers(1, 3))
    grows = draw(st.booleans())
    batch = group * draw(st.integers(1, max(1, total // group)))
    options = {"mode": mode, "epochs": epochs, "tail": "pad" if pads else "drop"}
    if mode == "cyclic":
        options |= {"data_sharding": sharded, "equal_counts": True}
    shuffle = "none" if mode == "cyclic" else draw(st.sampled_from(["none", "samples", "windows:3:2"]))
    if grows:
        options["step_batch_size_schedule"] = f"0:{group} {draw(st.integers(1, 2 * total))}:{batch}"
    else:
        options["global_batch_size"] = batch
    order = order_of(total, ranks, size, shuffle=shuffle, shuffle_per_epoch=True, **options)
    unit = group if grows or mode == "cyclic" else batch
    per_rank = (-(-total // unit) if pads else total // unit) * unit // ranks
    expected = []
    for epoch in range(epochs):
        positions = np.arange(total)
        for link in shuffle_links(Shuffling.parse(shuffle), total, 1234):
            positions = link.forward(positions, epoch)
        read = slow_epoch(positions.tolist(), mode, ranks, size, per_rank)
        if mode == "cyclic":
            read = slow_cyclic(total, epoch, ranks, size, sharded)
        expected += [(epoch, *each) for each in read]
    return order, expected


@given(orders())
def test_every_mode_reads_what_lists_of_micro_batches_say(case):
    order, expected = case
    numbers = numbers_of(order)
    left = len(expected) - order.samples
    assert 0 <= left < order.schedule.size_at(order.consumed_after(order.steps))
    expected = expected[: order.samples]
    read = (order.epochs(numbers), order.ids(numbers), order.repeated(numbers))
    assert list(zip(*map(np.ndarray.tolist, read), strict=True)) == expected
    found = order.reads(numbers)
    places = slow_steps(order, order.schedule.size_at)
    columns = (found.step, found.rank, found.row)
    assert list(zip(*map(np.ndarray.tolist, columns), strict=True)) == places
    for rank in range(order.ranks):
        own = [number for number, (_, reader, _) in enumerate(places) if reader == rank]
        assert order.numbers(rank, 0, order.samples_per_rank).tolist() == own
    some = numbers[::-3]
    assert order.ids(some).tolist() == [expected[number][1] for number in some.tolist()]


@given(orders())
def test_every_id_is_found_where_it_is_read_first(case):
    order, expected = case
    total = order.epoch_ranges[0].total
    places = {}
    for number, (epoch, sample, is_padding) in enumerate(expected[: order.samples]):
        if not is_padding:
            assert places.setdefault((epoch, sample), number) == number
    for epoch in range(order.epoch_ranges[-1].epochs):
        found = order.find(np.arange(total), epoch).tolist()
        assert found == [places.get((epoch, sample), -1) for sample in range(total)]


@given(orders(), st.data())
def test_the_samples_before_a_number_in_its_epoch_are_its_position(case, data):
    order, expected = case
    number = data.draw(st.integers(0, order.samples - 1))
    epoch, position = order.point(number)
    assert epoch == expected[number][0]
    assert position == number - [each[0] for each in expected].index(epoch)


# Parts of it


@pytest.mark.parametrize(("mode", "sharded"), KINDS)
def test_a_plan_that_starts_in_the_middle_is_the_end_of_the_whole_one(mode, sharded):
    options = {"mode": mode, "epochs": 3} | ({} if mode != "cyclic" else {"data_sharding": sharded})
    whole = order_of(203, 4, 2, equal_counts=mode == "cyclic", **options)
    late = order_of(203, 4, 2, equal_counts=mode == "cyclic", consumed_samples=9 * 8, **options)
    assert late.steps == whole.steps - 9
    assert late.consumed_after(3) == whole.consumed_after(12)
    assert late.ids(numbers_of(late)).tolist() == whole.ids(numbers_of(whole)).tolist()[72:]
    for epoch in range(3):
        before, after = (order.find(np.arange(203), epoch) for order in (whole, late))
        assert np.array_equal(after, np.where(before >= 72, before - 72, -1))


def test_epochs_are_shuffled_each_in_its_own_order():
    order = order_of(64, 2, 4, shuffle="samples", shuffle_per_epoch=True, epochs=3)
    epochs = order.ids(numbers_of(order)).reshape(3, 64)
    assert all(sorted(epoch.tolist()) == list(range(64)) for epoch in epochs)
    assert len({tuple(epoch.tolist()) for epoch in epochs}) == 3


@pytest.mark.parametrize("mode", MODES)
def test_padding_is_reported_as_it_is_read(mode):
    for samples in range(1, 70, 3):
        order = order_of(samples, 3, 2, mode=mode, tail="pad")
        ids, padding = order.ids(numbers_of(order)), order.repeated(numbers_of(order))
        assert sorted(ids[~padding].tolist()) == list(range(samples))
        first = order.epoch_ranges[0].first_repeated
        assert not padding[:first].any()
        assert (order.epoch_ranges[0].repeated, order.epoch_ranges[0].dropped) == (padding.sum(), 0)


def test_full_validation_of_few_samples_is_padding_for_most_ranks():
    sources = {"valid": document_source([3], name="valid")}
    order = planned(sources, data_parallel=7, full_validation=True).streams["valid"].order
    assert order.ids(numbers_of(order)).tolist() == [0, 1, 2, 0, 1, 2, 0]
    assert order.repeated(numbers_of(order)).tolist() == [False] * 3 + [True] * 4


def test_ranks_and_steps_that_are_not_there_are_index_errors():
    order = order_of(100, 2, 4)
    calls = [
        lambda: order.numbers(2, 0, 1),
        lambda: order.numbers(-1, 0, 1),
        lambda: order.numbers(0, 45, 4),
        lambda: order.numbers(0, -1, 1),
        lambda: order.numbers(0, 1, -1),
        lambda: order.first_number(13),
        lambda: order.first_number(-1),
        lambda: order.find(np.array([0]), 1),
    ]
    assert order.steps == 12
    for call in calls:
        with pytest.raises(IndexError):
            call()


def test_a_step_starts_at_its_count_of_consumed_samples():
    order = order_of(203, 2, 2, step_batch_size_schedule=SCHEDULE, consumed_samples=16)
    counts = [order.consumed_after(step) for step in range(order.steps + 1)]
    assert counts[:5] == [16, 24, 32, 40, 56]
    assert [order.step_at(count) for count in counts] == list(range(order.steps + 1))
    for count in (15, 17, counts[-1] + 8):
        with pytest.raises(UsageError, match=str(count)):
            order.step_at(count)


def test_parts_that_do_not_fit_are_usage_errors():
    schedule = BatchSchedule.constant(8)
    good = EpochRange(100, (Interleave(100, 2, 4, 0, 96, "last"),), 96, 0, 1)
    order = ConsumptionOrder(2, 4, schedule, 12, 0, 0, (good,))
    twelves = BatchSchedule.constant(12)
    wrong = [
        lambda: replace(order, epoch_ranges=()),
        lambda: replace(order, steps=13),
        lambda: replace(order, steps=-1),
        lambda: replace(order, micro_batch_size=5, schedule=BatchSchedule.constant(10)),
        lambda: replace(order, schedule=twelves),
        lambda: replace(order, ranks=5),
        lambda: replace(order, skipped=4),
        lambda: replace(order, epoch_ranges=(good, good)),
        lambda: replace(order, epoch_ranges=(replace(good, epochs=None), replace(good, first_epoch=9))),
        lambda: replace(good, total=99),
        lambda: replace(good, epochs=0),
        lambda: replace(good, read=0),
    ]
    for make in wrong:
        with pytest.raises(UsageError):
            make()
    assert available_steps((good,), 8, schedule) == 12


def test_orders_survive_json_and_other_json_is_an_integrity_error():
    order = order_of(203, 4, 2, mode="cyclic", epochs=5, step_batch_size_schedule=SCHEDULE)
    value = json.loads(json.dumps(encode(order)))
    assert decode(ConsumptionOrder, value, "plan.json") == order
    epochs = value["epoch_ranges"][0]
    wrong = [
        None,
        {},
        value | {"more": 1},
        value | {"epoch_ranges": {}},
        value | {"epoch_ranges": [None]},
        value | {"steps": "5"},
        value | {"steps": 10**9},
        value | {"epoch_ranges": [epochs | {"epochs": "x"}]},
        value | {"schedule": None},
        value | {"epoch_ranges": [epochs | {"epochs": 0}]},
        value | {"epoch_ranges": [epochs | {"links": None}]},
        value | {"micro_batch_size": 0},
        value | {"ranks": 3},
    ]
    for case in wrong:
        with pytest.raises(IntegrityError, match=r"plan\.json"):
            decode(ConsumptionOrder, case, "plan.json")


# Continuation

WORLDS = [1, 2, 3, 4, 6, 8, 12, 16, 24, 48]
SAMPLES = 48 * 11 + 29


def gone_on(order, step, ranks, size, mode, **options):
    """Return what is left after a step, for other ranks; the batch is a micro-batch of each or as given."""
    batch = options.pop("batch", ranks * size)
    consumed = order.consumed_after(step)
    return continue_order(
        order,
        order.point(order.first_number(step)),
        consumed,
        ReadingMode(ranks, size, batch, mode),
        BatchSchedule.constant(batch),
        **options,
    )


@pytest.mark.parametrize("mode", ["single", "contiguous", "chunked", "cyclic"])
def test_the_global_order_survives_any_change_of_world(mode):
    # Batches of 48 in worlds of its divisors, stopped after k of them. Of each two of the three (world, stop,
    # other world), all combinations occur.
    shuffle = "none" if mode == "cyclic" else "samples"
    for number, ranks in enumerate(WORLDS):
        order = order_of(SAMPLES, ranks, 1, mode=mode, global_batch_size=48, shuffle=shuffle)
        batches = order.ids(numbers_of(order)[: 11 * 48]).reshape(11, 48)
        for turn, stop in enumerate((1, 2, 3, 5, 10, 11)):
            for other in (WORLDS[place] for place in range(len(WORLDS)) if (number + place) % 5 == turn):
                if stop == 11:
                    with pytest.raises(UsageError, match=r"\(29\) are fewer than one batch of 48"):
                        gone_on(order, stop, other, 1, mode, batch=48)
                    continue
                after = gone_on(order, stop, other, 1, mode, batch=48)
                assert after.steps == 11 - stop
                resumed = after.ids(numbers_of(after)).reshape(after.steps, 48)
                assert np.array_equal(resumed, batches[stop:])


@pytest.mark.parametrize("mode", [*MODES, "cyclic"])
def test_stopping_on_24_going_on_on_16_and_then_on_48_reads_every_sample_once(mode):
    for size, (first, second, third) in itertools.product((1, 2), [(24, 16, 48), (48, 24, 16), (5, 7, 3)]):
        for redistributes in (True, False):
            order = order_of(1000, first, size, mode=mode, shuffle="none" if mode == "cyclic" else "samples")
            read = []
            for ranks, steps in ((second, 3), (third, 2), (None, order.steps)):
                stop = order.first_number(min(steps, order.steps))
                if ranks is None:
                    stop = order.samples
                read += order.ids(np.arange(stop)).tolist()
                if ranks is not None:
                    order = gone_on(order, steps, ranks, size, mode, redistributes=redistributes)
            last = order.epoch_ranges[0]
            dropped = last.ids(np.arange(last.read, last.positions), last.first_epoch).tolist()
            assert sorted([*read, *dropped]) == list(range(1000))
            assert len(dropped) < third * size


def test_what_is_left_of_a_later_epoch_comes_before_the_epochs_after_it():
    order = order_of(203, 4, 2, mode="chunked", epochs=5, shuffle="samples")
    after = gone_on(order, 25 * 2 + 7, 2, 2, "chunked")
    epochs = [(each.first_epoch, each.epochs) for each in after.epoch_ranges]
    assert epochs == [(2, 1), (3, 2)]
    assert after.skipped == 7 * 8
    at_boundary = gone_on(order, 50, 2, 2, "chunked")
    assert [(each.first_epoch, each.epochs) for each in at_boundary.epoch_ranges] == [(2, 3)]
    assert at_boundary.skipped == 0
    assert gone_on(order, 124, 1, 1, "single").steps == 11
    with pytest.raises(UsageError, match=r"\(3\) are fewer than one batch of 4"):
        gone_on(order, 125, 2, 2, "chunked")


def test_dealing_again_then_whole_epochs_are_one_order():
    order = order_of(100, 4, 2, mode="contiguous", epochs=3, shuffle="samples")
    after = gone_on(order, 5, 3, 2, "contiguous", redistributes=True)
    read = order.ids(np.arange(40)).tolist()
    count = after.epoch_ranges[0].read
    first = after.ids(np.arange(count)).tolist()
    assert len(first) == len(set(first)) == 60
    assert set(first) == set(range(100)) - set(read)
    second = after.ids(np.arange(count, count + 96)).tolist()
    assert len(set(second)) == 96
    assert after.find(np.array(second[:7]), 1).tolist() == list(range(count, count + 7))


def test_a_padded_plan_of_runs_continues_only_without_its_order():
    order = order_of(101, 4, 2, mode="chunked", tail="pad")
    with pytest.raises(UsageError, match="repeats samples cannot be replanned") as caught:
        gone_on(order, 3, 2, 2, "single")
    assert caught.value.hint == (
        "pass --mode contiguous or --mode chunked, which distribute the unread samples"
    )
    after = gone_on(order, 3, 2, 2, "contiguous", redistributes=True)
    assert after.epoch_ranges[0].total - 24 == after.epoch_ranges[0].positions


def test_a_trillion_samples_over_a_thousand_ranks_are_a_few_numbers():
    total = 10**12 + 7
    for mode, sharded in KINDS:
        options = {"mode": mode, "global_batch_size": 4096, "steps": 400_000}
        if mode == "cyclic":
            # Its permutation of an epoch is computed whole, for 1,024 ranks of a block each or for all.
            options |= {"data_sharding": sharded, "equal_counts": True}
        else:
            options |= {"shuffle": "windows", "epochs": 2}
        order = order_of(total, 1024, 1, **options)
        assert len(json.dumps(encode(order))) < 2000
        after = gone_on(order, 100_000, 512, 1, mode, batch=4096)
        assert len(json.dumps(encode(after))) < 3000
        if mode != "cyclic":
            numbers = np.arange(9) * 50_000 * 1024 + 1000
            found = order.find(order.ids(numbers), 0)
            assert found.tolist() == numbers.tolist()
            assert order.reads(numbers).rank.tolist() == [1000] * 9
            assert order.reads(numbers).step.tolist() == (np.arange(9) * 12_500).tolist()


def test_all_ranks_read_all_numbers():
    order = order_of(97, 3, 2, mode="contiguous")
    assert sorted(everything(order).ravel().tolist()) == sorted(order.ids(numbers_of(order)).tolist())
