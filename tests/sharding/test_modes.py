"""Modes: Megatron's sampler orders, shuffles and tails by name."""

import numpy as np
import pytest

from support import slow_samplers
from support.assignments import World, assignment_of, everything
from tokshard.errors import UsageError
from tokshard.sharding.intervals import Intervals
from tokshard.sharding.order import SampleOrder
from tokshard.sharding.plan import MODES, SHUFFLES
from tokshard.sharding.planning import cyclic_order, layout_of, shuffle_links


def test_single_reads_in_the_order_of_the_pretraining_sampler():
    for generator, total, size, ranks in slow_samplers.random_worlds(300, seed=1):
        consumed = generator.randint(0, total - size * ranks)
        unread = SampleOrder(total).rest(Intervals.of([(consumed, total)]))
        plan = assignment_of("single", unread, World(ranks, size), consumed_samples=consumed)
        for rank in range(ranks):
            read = plan.ids(rank, 0, plan.samples_per_rank).reshape(-1, size).tolist()
            assert read == slow_samplers.single_sampler(total, consumed, size, rank, ranks)


@pytest.mark.parametrize("sharded", [True, False])
def test_cyclic_reads_in_the_order_of_the_random_sampler(sharded):
    compared = ragged = 0
    for generator, total, size, ranks in slow_samplers.random_worlds(420, seed=2):
        world = World(ranks, size)
        rounds = total // world.group
        consumed = generator.randint(0, 3 * rounds) * world.group
        expected = [
            [
                batch
                for epoch in range(3)
                for batch in sampler(total, consumed, epoch, size, rank, ranks, sharded)
            ]
            for rank in range(ranks)
        ]
        counts = {
            len(slow_samplers.cyclic_sampler(total, 0, size, rank, ranks, sharded)) for rank in range(ranks)
        }
        if len(counts) > 1:
            ragged += 1
            with pytest.raises(UsageError, match="it hangs"):
                cyclic_order(total, world, sharded=sharded)
            continue
        order = cyclic_order(total, world, sharded=sharded)
        options = {"consumed_samples": consumed, "skipped": consumed // ranks}
        plan = assignment_of("cyclic", order, world, sharded=sharded, epochs=6, **options)
        for rank, batches in enumerate(expected):
            read = plan.ids(rank, 0, min(plan.samples_per_rank, len(batches) * size)).reshape(-1, size)
            assert read.tolist() == batches[: len(read)]
        compared += 1
    assert compared >= 300
    assert bool(ragged) == (not sharded)


def sampler(total, consumed, epoch, size, rank, ranks, sharded):
    """What the sampler yields in the epoch of a position, or in one of the next from its start."""
    active = total - total % (size * ranks)
    start = consumed if epoch == 0 else (consumed // active + epoch) * active
    return slow_samplers.cyclic_sampler(total, start, size, rank, ranks, sharded)


def test_the_ragged_case_has_equal_counts_where_they_are_asked_for():
    for _, total, size, ranks in slow_samplers.random_worlds(200, seed=3):
        world = World(ranks, size)
        order = cyclic_order(total, world, sharded=False, faithful=False)
        plan = assignment_of("cyclic", order, world, sharded=False)
        for rank in range(ranks):
            read = plan.ids(rank, 0, plan.samples_per_rank).reshape(-1, size).tolist()
            assert read == slow_samplers.cyclic_sampler(
                total, 0, size, rank, ranks, sharded=False, truncated=True
            )


def test_the_ragged_case_of_22_samples_is_named():
    with pytest.raises(UsageError, match="some ranks 4 and others 3 micro-batches of 22 samples"):
        cyclic_order(22, World(3, 2), sharded=False)


def test_contiguous_ranks_read_runs_of_neighbours():
    plan = assignment_of("contiguous", SampleOrder(11), World(3, 1))
    assert everything(plan)[:, :, 0].T.tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert plan.tail(0).to_json_value() == [[9, 11]]


@pytest.mark.parametrize("kind", SHUFFLES)
def test_shuffles_read_every_sample_once_and_differ_by_seed_and_epoch(kind):
    sizes = (40, 1, 0, 77, 82)
    links = shuffle_links(kind, 200, 7, shard_sizes=sizes, block=50)
    order = SampleOrder(200, links)
    orders = [order.ids(np.arange(200), epoch) for epoch in range(3)]
    for epoch, ids in enumerate(orders):
        assert np.array_equal(np.sort(ids), np.arange(200))
        assert np.array_equal(order.positions(ids, epoch), np.arange(200))
    other = SampleOrder(200, shuffle_links(kind, 200, 8, shard_sizes=sizes, block=50))
    once = SampleOrder(200, shuffle_links(kind, 200, 7, shard_sizes=sizes, block=50, per_epoch=False))
    assert np.array_equal(once.ids(np.arange(200), 5), orders[0])
    if kind == "none":
        assert orders[0].tolist() == list(range(200))
    else:
        seen = {tuple(ids.tolist()) for ids in [*orders, other.ids(np.arange(200), 0)]}
        # Four orders of four shards that are not empty may meet by chance; those of samples cannot.
        assert len(seen) >= (2 if kind == "shards" else 4)


def test_shuffled_shards_keep_their_samples_in_order_and_together():
    ids = SampleOrder(60, shuffle_links("shards", 60, 3, shard_sizes=(10, 20, 0, 30))).ids(np.arange(60), 0)
    starts = [place for place in range(60) if place == 0 or ids[place] != ids[place - 1] + 1]
    assert {int(ids[place]) for place in starts} <= {0, 10, 30}
    assert ids.tolist() != list(range(60))


def test_blocks_shuffle_within_blocks_of_the_shard_order():
    sizes = (30, 30, 30, 30)
    by_shard = SampleOrder(120, shuffle_links("shards", 120, 4, shard_sizes=sizes)).ids(np.arange(120), 2)
    by_block = SampleOrder(120, shuffle_links("blocks", 120, 4, shard_sizes=sizes, block=40)).ids(
        np.arange(120), 2
    )
    for start in range(0, 120, 40):
        block = slice(start, start + 40)
        assert sorted(by_block[block].tolist()) == sorted(by_shard[block].tolist())
        assert by_block[block].tolist() != by_shard[block].tolist()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: layout_of("random", 10, World(1, 1)), "single, cyclic, contiguous"),
        (lambda: layout_of("single", 10, World(1, 1), tail="cut"), "drop, pad, error"),
        (
            lambda: layout_of("single", 10, World(3, 1), tail="error"),
            "10 samples do not fill batches of 3: 1 ",
        ),
        (lambda: layout_of("single", 5, World(3, 2)), "5 samples do not fill one batch of 6"),
        (lambda: layout_of("cyclic", 50, World(3, 2), tail="pad"), "cannot pad"),
        (lambda: layout_of("full-validation", 5, World(3, 2)), "one sample a rank"),
        (lambda: World(3, 2, 16), "the batch of 16 samples is not divisible .* = 2 x 3 = 6"),
        (lambda: World(0, 2), "0 data-parallel ranks"),
        (lambda: shuffle_links("all", 10, 0), "none, shards, samples, blocks"),
        (lambda: shuffle_links("shards", 10, 0, shard_sizes=(4, 5)), "hold 9 samples, not 10"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(call, said):
    with pytest.raises(UsageError, match=said):
        call()


def test_the_tail_is_measured_by_the_batch():
    world = World(ranks=2, micro_batch_size=2, batch=12)
    for mode in MODES[:5]:
        layout = layout_of(mode, 35, world)
        assert layout.samples_per_rank == 12
        assert layout.dropped().count == 11
    assert layout_of("single", 35, world, tail="pad").samples_per_rank == 18
