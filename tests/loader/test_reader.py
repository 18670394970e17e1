import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.assignments import topology_of
from support.loader_plans import open_plan, plan_for, same, source_of
from tokshard.errors import MissingFileError
from tokshard.loader.reader import FILES_PER_SHARD, Readahead, Shard
from tokshard.ranks import sources as source_module
from tokshard.samples.index.samples import GPTSamples


@pytest.mark.parametrize("readahead", [0, 1, 3])
@pytest.mark.parametrize("capacity", [1, 2, 20])
@pytest.mark.parametrize("kind", ["index", "documents"])
def test_contiguous_reading_opens_each_dataset_once_in_an_epoch(
    tmp_path, monkeypatch, readahead, capacity, kind
):
    source = source_of(tmp_path, datasets=8, documents=14, kind=kind)
    options = {"mode": "contiguous", "shuffle": "shards", "epochs": 1}
    path = plan_for(tmp_path, source=source, topology=topology_of(2), **options)
    plain = [list(open_plan(path, rank, readahead=0)) for rank in range(2)]
    opened = []
    original = source_module.DatasetReference.open_dataset

    def recording(reference, **arguments):
        opened.append(reference.path_prefix)
        return original(reference, **arguments)

    monkeypatch.setattr(source_module.DatasetReference, "open_dataset", recording)
    for rank in range(2):
        opened.clear()
        before = set(threading.enumerate())
        loader = open_plan(path, rank, readahead=readahead, max_open_files=capacity * FILES_PER_SHARD)
        assert all(map(same, loader, plain[rank]))
        del loader
        for thread in set(threading.enumerate()) - before:
            thread.join()  # or it might open files for the next one
        assert len(opened) == len(set(opened))
        assert 3 < len(opened) < 8


def test_extents_are_where_the_tokens_of_a_sample_lie(tmp_path):
    (reference,) = source_of(tmp_path, documents=60).datasets
    dataset = reference.open_dataset()
    samples = GPTSamples(dataset, reference.open_index())
    shard = Shard(dataset, samples)
    content = np.fromfile(f"{reference.path_prefix}.bin", np.uint16)
    order = np.random.RandomState(1).permutation(len(samples))
    expected = [samples.read(number).tokens.tolist() for number in order]
    firsts, sizes = shard.extents(order)
    assert len(firsts) == sum(len(samples.read(number).lengths) for number in order)
    assert tokens(content, firsts, sizes) == [token for text in expected for token in text]
    documents = Shard(dataset, None)
    order = np.arange(dataset.document_count)[::-1]
    expected = [dataset.document_tokens(number).tolist() for number in order]
    assert tokens(content, *documents.extents(order)) == [token for text in expected for token in text]
    shard.read_ahead(np.array([0, 1]))


def tokens(content, firsts, sizes):
    extents = zip(firsts.tolist(), sizes.tolist(), strict=True)
    return [token for first, size in extents for token in content[first // 2 : (first + size) // 2].tolist()]


class Advice:
    """Collects what is advised, and can wait for it."""

    def __init__(self, fails=()):
        self.seen, self.fails, self.changed = [], set(fails), threading.Condition()

    def __call__(self, numbers):
        with self.changed:
            self.seen += numbers
            self.changed.notify_all()
        if self.fails & set(numbers):
            raise MissingFileError("gone", path="x")

    def wait_for(self, count):
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.seen) >= count, 240), self.seen


@settings(max_examples=60, deadline=None)
@given(jumps=st.lists(st.integers(0, 30), min_size=1, max_size=4), ahead=st.integers(1, 4))
def test_what_comes_next_is_advised_once_and_in_order(jumps, ahead):
    advice = Advice()
    readahead = Readahead(advice, ahead, 30)
    expected, reached = [], 0
    for start in jumps:
        for number in range(start, min(start + 5, 30)):
            if not number + 1 <= reached <= number + 1 + ahead:
                reached = number + 1
            if reached - number - 1 <= ahead // 2:
                expected += range(reached, min(number + 1 + ahead, 30))
                reached = number + 1 + ahead
            readahead.follow(number)
            assert (
                ahead // 2 <= len([micro_batch for micro_batch in expected if micro_batch > number])
                or number + ahead >= 30
            )
    advice.wait_for(len(expected))
    assert advice.seen == expected


def test_a_failure_ahead_is_left_to_the_reader():
    advice = Advice(fails=[1, 2])
    readahead = Readahead(advice, 3, 10)
    readahead.follow(0)
    advice.wait_for(3)
    readahead.follow(2)
    advice.wait_for(5)
    assert advice.seen == [1, 2, 3, 4, 5]


def test_nothing_is_started_for_nothing_ahead():
    before = set(threading.enumerate())
    readahead = Readahead(Advice(), 0, 10)
    readahead.follow(0)
    assert set(threading.enumerate()) <= before
