"""P62: Grain reads a plan through `__getitem__`, with threads and processes, and resumes by its states."""

import pytest

from support.consumers import STOPS, blocks, check, needed, trained
from tokshard.loader import RankLoader

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


def test_the_loader_has_the_protocol_of_grain(workdir):
    import grain

    assert isinstance(RankLoader.open("plan", rank=0), grain.sources.RandomAccessDataSource)


def test_loaders_without_sharding_read_all(workdir):
    import grain

    # As in a job of one JAX process.
    sharding = grain.sharding.ShardByJaxProcess()
    assert sharding.shard_count == 1
    source = RankLoader.open("plan", rank=0)
    loader = grain.load(source, num_epochs=1, shard_options=sharding)
    assert sum(len(batch["tokens"]) for batch in loader) == 4 * len(source)


def test_a_state_fits_the_rank_and_the_plan_that_it_was_saved_for(workdir):
    import grain

    def batches(rank):
        loader = RankLoader.open("plan", rank=rank)
        sampler = grain.samplers.SequentialSampler(len(loader), shard_options=grain.sharding.NoSharding())
        return iter(grain.DataLoader(data_source=loader, sampler=sampler))

    first = batches(0)
    next(first)
    again = batches(0)
    again.set_state(first.get_state())
    assert (next(again)["tokens"] == RankLoader.open("plan", rank=0)[1]["tokens"]).all()
    with pytest.raises(ValueError, match="DataSource in checkpoint does not match"):
        batches(1).set_state(first.get_state())
