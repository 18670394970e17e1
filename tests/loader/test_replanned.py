"""A run that stopped goes on in another world by a plan made for it: its state fits, and nothing is lost."""

import os

import pytest

from support.loader_plans import open_plan, plan_for, source_of
from tokshard.errors import ResumeMismatchError
from tokshard.sharding.plan import read_plan
from tokshard.sharding.publication import write_plan
from tokshard.sharding.replan.job import ReplanRequest, continue_plan
from tokshard.sharding.topology import Topology


@pytest.fixture(scope="module")
def blend(tmp_path_factory):
    directory = tmp_path_factory.mktemp("replanned")
    return directory, source_of(directory, datasets=3, documents=180, weights=[0.5, 0.3, 0.2], size=192)


@pytest.mark.parametrize("mode", ["single", "cyclic", "contiguous", "sequential", "chunked"])
def test_a_state_goes_on_in_the_plan_that_was_made_for_it(blend, mode):
    directory, source = blend
    path = plan_for(directory, source=source, topology=Topology(6), micro=1, batch=24, mode=mode)
    consumed, seen = 0, []
    state = None
    for ranks, steps in ((6, 3), (4, 2), (12, 3)):
        if state is not None:
            target = os.path.join(directory, f"{mode}-{ranks}")
            request = ReplanRequest(consumed_samples=consumed, topology=Topology(ranks))
            write_plan(continue_plan(read_plan(path), request, target), target)
            with pytest.raises(ResumeMismatchError, match="goes on from"):
                open_plan(target, 0).load_state_dict(state | {"consumed_samples": consumed - 24})
            path = target
        loaders = [open_plan(path, rank) for rank in range(ranks)]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
            assert loader.consumed_samples == consumed
            for _ in range(loader.micro_batches(steps - 1).stop):
                seen += loader.sample_ids(loader.position)
                next(loader)
        state, consumed = loaders[-1].state_dict(), loaders[-1].consumed_samples
        assert consumed == len(seen)
    assert sorted(seen) == list(range(192))
