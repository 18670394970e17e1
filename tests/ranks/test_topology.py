"""Coordinates, needs and context slices."""

import itertools
import random

import numpy as np
import pytest

from support.assignments import topology_of
from tokshard.core.codec import decode, encode
from tokshard.errors import IntegrityError, UsageError
from tokshard.ranks.topology import FIELDS, Topology, context_slices


def plain_groups(sizes, order, name):
    """All groups of ranks that differ in one dimension only, in the order of that dimension."""
    names = [*order.split("-"), *(other for other in sizes if other not in order.split("-"))]
    shape = [sizes[other] for other in reversed(names)]
    grid = np.arange(int(np.prod(shape))).reshape(shape)
    return np.moveaxis(grid, len(names) - 1 - names.index(name), -1).reshape(-1, sizes[name]).tolist()


def random_topologies(count):
    generator = random.Random(4)
    orders = ["-".join(names) for names in itertools.permutations(["tp", "cp", "ep", "dp", "pp"])]
    found = []
    while len(found) < count:
        tensor, context, data, pipeline = (generator.choice([1, 1, 2, 3, 4]) for _ in range(4))
        ranks = tensor * context * data * pipeline
        found.append(topology_of(ranks, tensor, pipeline, context, generator.choice(orders)))
    return found


def test_coordinates_are_the_places_in_the_groups_of_each_dimension():
    for topology in random_topologies(200):
        sizes = {
            "tp": topology.tensor_parallel,
            "cp": topology.context_parallel,
            "ep": 1,
            "dp": topology.data_parallel,
        }
        sizes["pp"] = topology.pipeline_parallel
        for name in ("tp", "cp", "dp", "pp"):
            for group in plain_groups(sizes, topology.rank_order, name):
                places = [getattr(topology.coordinates(rank), name) for rank in group]
                assert places == list(range(len(group)))


def test_expert_parallelism_in_the_order_changes_no_coordinates():
    plain = topology_of(16, tensor=2, pipeline=2, context=2, order="tp-cp-dp-pp")
    for order in ("tp-cp-ep-dp-pp", "ep-tp-cp-dp-pp", "tp-cp-dp-pp-ep"):
        topology = topology_of(16, tensor=2, pipeline=2, context=2, order=order)
        assert [topology.coordinates(rank) for rank in range(16)] == [
            plain.coordinates(rank) for rank in range(16)
        ]


def test_only_the_first_tensor_rank_of_the_outer_stages_reads():
    topology = topology_of(24, tensor=2, pipeline=3, context=2)
    for rank in range(24):
        place = topology.coordinates(rank)
        expected = {
            0: ("tokens", "position_ids", "attention_mask"),
            2: ("labels", "loss_mask", "attention_mask"),
        }
        assert topology.needs(rank) == (expected.get(place.pp, ()) if place.tp == 0 else ())
        with_boundaries = topology.needs(rank, boundaries=True)
        assert with_boundaries == ((*topology.needs(rank), "cu_seqlens") if place.tp == 0 else ())


def test_one_stage_or_multi_token_prediction_needs_every_field():
    every = tuple(field for field in FIELDS if field != "cu_seqlens")
    assert topology_of(4, tensor=2).needs(2) == every
    topology = topology_of(4, pipeline=4, mtp_stages=(1, 3))
    assert [topology.needs(rank) for rank in range(4)] == [topology.needs(0), every, (), every]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"world_size": 12, "tensor": 5},
            "the world size must be divisible by tensor x pipeline x context = 5",
        ),
        ({"world_size": 0}, "world_size must be at least 1, got 0"),
        ({"world_size": 8, "context": -2}, "context_parallel must be at least 1, got -2"),
        ({"world_size": 8, "order": "tp-dp-xx"}, "'tp-dp-xx'"),
        ({"world_size": 8, "order": "tp-dp-tp"}, "at most once"),
        (
            {"world_size": 8, "context": 2, "order": "tp-dp-pp"},
            "must contain cp, whose size is 2",
        ),
        ({"world_size": 8, "pipeline": 2, "mtp_stages": (2,)}, "from 0 to 1, got 2"),
    ],
)
def test_sizes_that_make_no_grid_are_usage_errors(options, said):
    with pytest.raises(UsageError, match=said):
        topology_of(**options)


def test_there_is_no_rank_outside_the_world():
    for rank in (-1, 8):
        with pytest.raises(IndexError, match="0 to 7"):
            topology_of(8).coordinates(rank)


@pytest.mark.parametrize("context", [1, 2, 3, 8])
def test_context_slices_cover_a_sequence_once_and_balance_causal_work(context):
    length = 2 * context * 3
    parts = [
        np.concatenate([np.arange(length)[part] for part in context_slices(length, context, cp)])
        for cp in range(context)
    ]
    assert sorted(np.concatenate(parts).tolist()) == list(range(length))
    assert len({int(part.sum()) for part in parts}) == 1
    assert parts[0][0] == 0
    assert parts[0][-1] == length - 1


@pytest.mark.parametrize(("length", "context", "cp"), [(6, 2, 0), (8, 2, 2), (8, 2, -1), (8, 0, 0)])
def test_sequences_that_cannot_be_cut_are_usage_errors(length, context, cp):
    with pytest.raises(UsageError):
        context_slices(length, context, cp)


def test_topologies_survive_json():
    topology = topology_of(16, 2, 2, 2, "tp-cp-ep-dp-pp", (0, 1))
    assert decode(Topology, encode(topology), "plan.json") == topology


@pytest.mark.parametrize(
    "change",
    [
        {"world_size": "8"},
        {"tensor": 3},
        {"order": 5},
        {"mtp_stages": 1},
        {"mtp_stages": ["a"]},
        {"more": 1},
        {"pipeline": 1.0},
        {"tensor": None},
        {"context": True},
    ],
)
def test_json_that_is_no_topology_is_an_integrity_error(change):
    with pytest.raises(IntegrityError, match=r"plan\.json"):
        decode(Topology, encode(topology_of(8)) | change, "plan.json")
    with pytest.raises(IntegrityError):
        decode(Topology, [], "plan.json")
