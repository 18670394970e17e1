"""The data source of Grain, without Grain: its protocol, pickles, and the recognition of sharding."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from support.loader_plans import open_plan, plan_for, same, source_of
from tokshard.errors import UsageError
from tokshard.loader import BatchOptions
from tokshard.loader.grain import PlanSource, data_loader
from tokshard.sharding.topology import Topology


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    directory = tmp_path_factory.mktemp("plan")
    source = source_of(directory, datasets=2, documents=40, weights=[0.6, 0.4], size=24)
    return plan_for(directory, source=source, topology=Topology(2), mode="cyclic", epochs=2)


def test_items_are_the_micro_batches_of_a_rank(plan):
    for rank in (0, 1):
        source = PlanSource(open_plan(plan, rank))
        expected = list(open_plan(plan, rank))
        assert len(source) == len(expected) == 12
        for number in (5, 0, 11):
            assert same(source[number], expected[number])
        assert source.loader.position == 0
        for number in (-1, 12):
            with pytest.raises(IndexError, match="micro-batch must be from 0 to 11"):
                source[number]


def test_threads_share_a_source(plan):
    """Grain reads with several threads, out of order, also where only one dataset may be open."""
    expected = list(open_plan(plan))
    source = PlanSource(open_plan(plan, max_open_files=6))
    numbers = [number * 5 % len(expected) for number in range(10 * len(expected))]
    with ThreadPoolExecutor(8) as threads:
        for number, batch in zip(numbers, threads.map(source.__getitem__, numbers), strict=True):
            assert same(batch, expected[number])


def test_a_pickle_has_the_path_and_the_settings_and_no_data(plan):
    options = BatchOptions(document_ids=True)
    source = PlanSource(open_plan(plan, 1, options=options, max_open_files=12))
    source[3]
    data = pickle.dumps(source)
    assert len(data) < 2000
    assert str(plan).encode() in data
    copy = pickle.loads(data)
    assert repr(copy) == repr(source)
    assert copy.loader.rank == 1
    assert copy.loader.options == options
    assert same(copy[3], source[3])


def test_a_source_that_was_not_opened_by_path_is_not_sent(plan):
    loader = open_plan(plan)
    other = type(loader)(loader.plan, 0)
    with pytest.raises(UsageError, match="only a loader opened by path"):
        pickle.dumps(PlanSource(other))


def test_the_name_in_checkpoints_is_that_of_the_data(plan, tmp_path):
    """Grain compares it: it is the same for every rank, and for another path of the plan."""
    moved = tmp_path / "moved"
    moved.symlink_to(plan)
    names = {repr(PlanSource(open_plan(path, rank))) for path in (plan, moved) for rank in (0, 1)}
    assert names == {
        f"PlanSource(plan_id={open_plan(plan).plan_id!r}, stream='train', micro_batches=12)",
    }


def test_a_loader_in_the_middle_is_refused(plan):
    loader = open_plan(plan)
    next(loader)
    with pytest.raises(UsageError, match=r"must be at micro-batch 0, got 1: Grain's iterators"):
        PlanSource(loader)


class Reader:
    """What Grain's loader looks like from a source: an object with options, some calls away."""

    def __init__(self, source, shards, *, shuffle=False):
        self._source = source
        self._shard_options = SimpleNamespace(shard_index=0, shard_count=shards)
        self._sampler = SimpleNamespace(_shuffle=shuffle)

    def item(self, number):
        return read(self._source, number)


def read(items, number):
    return items[number]


def test_sharding_by_grain_is_refused_at_the_first_item(plan):
    source = PlanSource(open_plan(plan))
    assert same(Reader(source, 1).item(2), source[2])
    with pytest.raises(UsageError, match="shard_options must have 1 shard, got 2") as failure:
        Reader(source, 2).item(0)
    assert "PlanSource(RankLoader.open(PLAN, rank=N))" in failure.value.hint
    with pytest.raises(UsageError, match="SimpleNamespace must not shuffle"):
        Reader(source, 1, shuffle=True).item(0)


@pytest.mark.parametrize("name", ["sampler", "shard_options", "data_source"])
def test_the_data_loader_takes_no_option_that_picks_samples(plan, name):
    with pytest.raises(UsageError, match=f"{name}=Reader is not supported by the data loader of a plan"):
        data_loader(PlanSource(open_plan(plan)), **{name: Reader(None, 1)})
