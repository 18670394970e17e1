"""P62: torchdata's StatefulDataLoader reads a plan, and its states resume it."""

import pytest

from support.consumers import SAMPLES, STOPS, blocks, check, needed, run, trained
from tokshard.errors import ResumeMismatchError
from tokshard.loader import RankLoader
from tokshard.loader.torch import PlanDataset, PlanSampler

needed("torch", "torchdata.stateful_dataloader")
pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("workers", [2, 0])
def test_the_block_of_the_page_reads_and_resumes(workdir, expected, workers):
    (code,) = blocks("torchdata")
    assert "num_workers=2" in code
    code = code.replace("num_workers=2", f"num_workers={workers}")
    check([trained(code, stop) for stop in STOPS], expected[0])


def batches_of(plan):
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader = RankLoader.open(plan, rank=0)
    return StatefulDataLoader(PlanDataset(loader), sampler=PlanSampler(loader), batch_size=None)


def test_a_state_fits_its_plan_and_the_plan_that_continues_it(workdir, expected):
    batches = batches_of("plan")
    iterator = iter(batches)
    for _ in range(10):
        next(iterator)
    state = batches.state_dict()
    assert state["_sampler_iter_state"]["consumed_samples"] == 80
    two = "--data-parallel 2 --micro-batch-size 4 --mode contiguous"
    run(f"tokshard shard-plan mix {two} -o other", workdir)
    run("tokshard replan plan --consumed-samples 80 --data-parallel 1 -o next", workdir)
    other = batches_of("other")
    other.load_state_dict(state)
    with pytest.raises(ResumeMismatchError, match="belongs to plan"):
        next(iter(other))
    continued = batches_of("next")
    continued.load_state_dict(state)
    assert sum(len(batch["tokens"]) for batch in continued) == SAMPLES - 80
