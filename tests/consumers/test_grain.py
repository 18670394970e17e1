"""P62: Grain reads a plan with threads and processes, resumes by its states, and must not shard it."""

import pytest

from support.consumers import STOPS, blocks, check, needed, trained
from tokshard.errors import UsageError
from tokshard.loader import RankLoader
from tokshard.loader.grain import PlanSource, data_loader

needed("grain")
pytestmark = pytest.mark.oracle


def test_the_block_of_the_page_reads_and_resumes(workdir, expected):
    """With processes it is resumed once: each is a new interpreter."""
    code = blocks("Grain")[0]
    check([trained(code, stop) for stop in (7, None)], expected[0])


def test_the_block_of_the_page_reads_and_resumes_with_threads(workdir, expected):
    code = blocks("Grain")[0]
    assert "worker_count=2" in code
    code = code.replace("worker_count=2", "worker_count=0")
    check([trained(code, stop) for stop in STOPS], expected[0])


def test_the_block_of_map_datasets_reads_and_resumes(workdir, expected):
    code = blocks("Grain")[1].replace("rank=0", "rank=1")
    check([trained(code, stop) for stop in STOPS], expected[1])


@pytest.fixture
def source(workdir):
    return PlanSource(RankLoader.open("plan", rank=0))


def test_the_source_has_the_protocol_of_grain(source):
    import grain

    assert isinstance(source, grain.sources.RandomAccessDataSource)


@pytest.mark.parametrize("workers", [0, 1])
def test_sharding_by_grain_is_refused(source, workers):
    import grain

    shards = grain.sharding.ShardOptions(shard_index=0, shard_count=2)
    sampler = grain.samplers.IndexSampler(len(source), shard_options=shards, num_epochs=1)
    loader = grain.DataLoader(data_source=source, sampler=sampler, worker_count=workers)
    with pytest.raises(UsageError, match="shard_options must have 1 shard, got 2"):
        next(iter(loader))


def test_shards_and_shuffles_of_all_kinds_are_refused(source):
    import grain

    shards = grain.sharding.ShardOptions(shard_index=1, shard_count=3)
    sequential = grain.samplers.SequentialSampler(len(source))
    shuffled = grain.samplers.IndexSampler(len(source), shuffle=True, seed=1, num_epochs=1)
    none = grain.sharding.NoSharding()
    loaders = {
        "got 3": grain.load(source, num_epochs=1, shard_options=shards),
        "3: the": grain.DataLoader(data_source=source, sampler=sequential, shard_options=shards),
        "IndexSampler must not shuffle": grain.load(source, num_epochs=1, shuffle=True, seed=1),
        "must not": grain.DataLoader(data_source=source, sampler=shuffled, shard_options=none),
    }
    for message, loader in loaders.items():
        with pytest.raises(UsageError, match=message):
            next(iter(loader))
    with pytest.raises(UsageError, match="shard_options=ShardOptions is not supported"):
        data_loader(source, shard_options=shards)


def test_loaders_without_sharding_read_all(source):
    import grain

    # As in a job of one JAX process.
    sharding = grain.sharding.ShardByJaxProcess()
    assert sharding.shard_count == 1
    loader = grain.load(source, num_epochs=1, shard_options=sharding)
    assert sum(len(batch["tokens"]) for batch in loader) == 4 * len(source)


def test_a_state_fits_every_rank_of_its_plan_and_no_other_stream(source):
    state = iter(data_loader(source))
    next(state)
    other = PlanSource(RankLoader.open("plan", rank=1))
    iterator = iter(data_loader(other))
    iterator.set_state(state.get_state())
    assert (next(iterator)["tokens"] == other[1]["tokens"]).all()
    with pytest.raises(ValueError, match="DataSource in checkpoint does not match"):
        iterator.set_state(state.get_state().replace(source.loader.plan_id.encode(), b"another"))
