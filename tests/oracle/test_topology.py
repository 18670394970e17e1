"""Places of ranks and slices of sequences against megatron-core's."""

from __future__ import annotations

import inspect
import itertools
import random
from types import SimpleNamespace

import numpy as np
import pytest

from oracle.support import megatron_or_skip
from support.assignments import topology_of
from tokshard.errors import UsageError
from tokshard.ranks.topology import DIMENSIONS, context_slices

pytestmark = pytest.mark.oracle

TOPOLOGIES = 600
WORLD_LIMIT = 192
ORDERS = ["-".join(names) for count in range(1, 6) for names in itertools.permutations(DIMENSIONS, count)]
FULL_ORDERS = [order for order in ORDERS if order.count("-") == 4]


@pytest.fixture(scope="module")
def parallel_state():
    megatron_or_skip()
    from megatron.core import parallel_state

    return parallel_state


def random_sizes(generator):
    """Return sizes, not all of which make a grid, and an order, from which a dimension may be missing."""
    tensor, context, data, pipeline = (generator.choice([1, 1, 2, 3, 4]) for _ in range(4))
    return SimpleNamespace(
        world=tensor * context * data * pipeline,
        tensor=tensor,
        context=context,
        data=data,
        pipeline=pipeline,
        order=generator.choice(ORDERS if generator.random() < 0.3 else FULL_ORDERS),
    )


def rank_generator(parallel_state, sizes):
    """Return the generator that ``initialize_model_parallel`` makes, or None where Megatron stops."""
    try:
        return parallel_state.RankGenerator(
            tp=sizes.tensor, ep=1, dp=sizes.data, pp=sizes.pipeline, cp=sizes.context, order=sizes.order
        )
    except RuntimeError:
        return None


def places_in(groups):
    return {rank: place for group in groups for place, rank in enumerate(group)}


def test_coordinates_are_the_places_in_the_groups_of_the_rank_generator(parallel_state):
    generator = random.Random(21)
    made = refused = 0
    while made < TOPOLOGIES:
        sizes = random_sizes(generator)
        if sizes.world > WORLD_LIMIT:
            continue
        expected = rank_generator(parallel_state, sizes)
        arguments = (sizes.world, sizes.tensor, sizes.pipeline, sizes.context, sizes.order)
        if expected is None:
            with pytest.raises(UsageError):
                topology_of(*arguments)
            refused += 1
            continue
        topology = topology_of(*arguments)
        assert topology.data_parallel == sizes.data
        ranks = range(sizes.world)
        for name in ("tp", "cp", "dp", "pp"):
            found = {rank: getattr(topology.coordinates(rank), name) for rank in ranks}
            assert found == places_in(expected.get_ranks(name))
        made += 1
    assert refused > 50


class Group:
    """Stands for one rank's view of a process group that is not there."""

    def __init__(self, size, rank):
        self.size, self.rank = (lambda: size), (lambda: rank)


def megatrons_slice(batch, group):
    from megatron.core.utils import get_batch_on_this_cp_rank

    newer = "is_hybrid_cp" in inspect.signature(get_batch_on_this_cp_rank).parameters
    options = {"is_hybrid_cp": False} if newer else {}
    return get_batch_on_this_cp_rank(batch, cp_group=group, **options)


def test_context_slices_are_those_of_get_batch_on_this_cp_rank(parallel_state, monkeypatch):
    import torch

    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group: group.size())
    monkeypatch.setattr(torch.distributed, "get_rank", lambda group: group.rank())
    generator = random.Random(22)
    for _ in range(200):
        context, samples = generator.randint(1, 9), generator.randint(1, 3)
        length = 2 * context * generator.randint(1, 6)
        tokens = np.arange(samples * length).reshape(samples, length)
        mask = np.arange(samples * length * length).reshape(samples, 1, length, length)
        for cp in range(context):
            batch = {"tokens": torch.tensor(tokens), "attention_mask": torch.tensor(mask), "labels": None}
            expected = megatrons_slice(batch, Group(context, cp))
            slices = context_slices(length, context, cp)
            found = np.concatenate([tokens[:, part] for part in slices], axis=1)
            assert np.array_equal(found, expected["tokens"].numpy())
            found = np.concatenate([mask[:, :, part] for part in slices], axis=2)
            assert np.array_equal(found, expected["attention_mask"].numpy())
            assert expected["labels"] is None
