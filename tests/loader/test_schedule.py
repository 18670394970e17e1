import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.assignments import topology_of
from support.loader_plans import source_of, stream_of
from tokshard.loader import schedule as schedule_module
from tokshard.loader.schedule import MicroBatchSchedule
from tokshard.ranks.locator import Locator
from tokshard.ranks.schedule import BatchSchedule


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return source_of(tmp_path_factory.mktemp("route"), datasets=3, documents=50)


@settings(max_examples=80, deadline=None)
@given(
    asked=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 3), st.integers(1, 9)), max_size=12),
    chunk=st.sampled_from([1, 3, 8, 1000]),
    rank=st.integers(0, 1),
)
def test_answers_do_not_depend_on_what_was_asked_before(source, asked, chunk, rank):
    order = stream_of(source, topology_of(2), mode="sequential", micro=1, shuffle="samples").order
    locator = Locator(source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule_module, "_CHUNK", chunk)
        schedule = MicroBatchSchedule(order, rank, locator, None)
        expected = order.ids(order.numbers(rank, 0, order.samples_per_rank))
        for start, stride, count in asked:
            for number in range(start, min(start + stride * count, len(schedule)), stride):
                chunk = schedule.chunk(number, 1)
                assert (chunk.first <= number, number < chunk.end) == (True, True)
                row = number - chunk.first
                assert chunk.ids[row] == expected[number]
                located = locator.locate(chunk.ids)
                assert np.array_equal(chunk.datasets, located[0])
                assert np.array_equal(chunk.samples, located[1])


def test_reading_on_looks_up_many_at_once(source, monkeypatch):
    order = stream_of(source, topology_of(1), micro=1).order
    calls = []
    original = type(order).ids

    def counting(self, numbers, key_of=None):
        calls.append(numbers.size)
        return original(self, numbers, key_of)

    monkeypatch.setattr(type(order), "ids", counting)
    schedule = MicroBatchSchedule(order, 0, Locator(source), None)
    for number in range(len(schedule)):
        schedule.chunk(number, 1)
    assert calls == [1, len(schedule) - 1]
    calls.clear()
    jumping = MicroBatchSchedule(order, 0, Locator(source), None)
    jumping.chunk(len(schedule) - 1, 1)
    jumping.chunk(0, 1)
    assert calls == [1, 1]


def test_threads_may_ask_at_the_same_time(source):
    order = stream_of(source, topology_of(1), micro=1, shuffle="samples", epochs=30).order
    schedule = MicroBatchSchedule(order, 0, Locator(source), None)
    expected, wrong = order.ids(order.numbers(0, 0, order.samples_per_rank)), []

    def ask(offset):
        found = []
        for number in range(offset, len(schedule)):
            chunk = schedule.chunk(number, 1)
            found.append(int(chunk.ids[number - chunk.first]))
        wrong.extend(np.flatnonzero(found != expected[offset:]).tolist())

    threads = [threading.Thread(target=ask, args=(offset,)) for offset in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_groups_keep_the_order_of_their_samples(source):
    order = stream_of(source, topology_of(1), micro=8, shuffle="samples").order
    chunk = MicroBatchSchedule(order, 0, Locator(source), None).chunk(0, 8)
    for rows in (range(8), range(3, 7), range(1)):
        groups = chunk.by_dataset(rows)
        assert sorted(row for own in groups.values() for row in own) == list(rows)
        for dataset, own in groups.items():
            assert list(own) == sorted(own)
            assert set(chunk.datasets[list(own)].tolist()) == {dataset}


@settings(max_examples=60, deadline=None)
@given(micro=st.integers(1, 2), skipped=st.integers(0, 3), epochs=st.integers(1, 3), growing=st.booleans())
def test_a_schedule_agrees_with_counting_its_micro_batches(source, micro, skipped, epochs, growing):
    group = 2 * micro
    sizes = f"0:{group} {5 * group}:{3 * group}" if growing else f"0:{2 * group}"
    schedule = BatchSchedule.parse(sizes)
    start = {"skipped": skipped * group, "consumed_samples": skipped * group}
    order = stream_of(
        source, topology_of(2), micro=micro, batch=2 * group, epochs=epochs, schedule=schedule, **start
    ).order
    micro_batches, position, consumed = MicroBatchSchedule(order, 0), 0, order.consumed_samples
    for step in range(order.steps):
        assert micro_batches.start_of_step(step) == position
        for number in range(position, micro_batches.start_of_step(step + 1)):
            assert (number, micro_batches.step(position), micro_batches.consumed(position)) == (
                position,
                step,
                consumed,
            )
            assert micro_batches.at(consumed) == position
            point = divmod(position * group + order.skipped, order.epoch_ranges[0].read)
            assert order.point(position * group) == point
            position, consumed = position + 1, consumed + group
        assert consumed == order.consumed_after(step + 1)
    assert position == len(micro_batches) == micro_batches.at(consumed)
    assert micro_batches.step(position) == order.steps
    assert order.point(position * group)[0] in {
        order.point((position - 1) * group)[0] + last for last in (0, 1)
    }
    assert position * micro == order.samples_per_rank
