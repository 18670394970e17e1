"""The order in which ranks read against Megatron's samplers, and the permutation against torch."""

from __future__ import annotations

import os
import random
from itertools import chain, cycle, islice

import numpy as np
import pytest

from oracle.samplers import MegatronSamplers, TwinSamplers, cyclic
from oracle.support import is_one_of_several, megatron_or_skip, skip_unless_first
from support.assignments import everything, planned, stream_of
from support.sample_sources import document_source
from support.slow_samplers import random_worlds
from tokshard.errors import UsageError
from tokshard.ranks.permutation import INSIDE_OUT_LENGTH, torch_randperm

pytestmark = pytest.mark.oracle

WORLDS = 320


@pytest.fixture(scope="module")
def megatron():
    """Megatron's own samplers; without them skip."""
    megatron_or_skip()
    if not MegatronSamplers.are_installed():
        pytest.skip("this megatron-core comes without megatron.training: slow twins stand for its samplers")
    return MegatronSamplers()


@pytest.fixture(scope="module")
def samplers():
    """What the orders are compared with: Megatron's own, or twins where no Megatron comes with them."""
    megatron_or_skip()
    if MegatronSamplers.are_installed():
        return MegatronSamplers()
    if is_one_of_several():
        pytest.skip("the run with a newer Megatron compares with its own samplers")
    return TwinSamplers()


def order_of(total, ranks, size, **options):
    stream = stream_of(document_source([total]), data_parallel=ranks, micro_batch_size=size, **options)
    return stream.order


def micro_batches_of(order):
    """Return the micro-batches of each rank."""
    return everything(order).reshape(order.ranks, -1, order.micro_batch_size).tolist()


def steps_of(order, rank):
    """Return what a rank reads: the micro-batches of each step."""
    batches = micro_batches_of(order)[rank]
    first = [order.first_number(step) // order.group for step in range(order.steps + 1)]
    return [batches[first[step] : first[step + 1]] for step in range(order.steps)]


def test_single_is_the_pretraining_sampler(samplers):
    for generator, total, size, ranks in random_worlds(WORLDS, seed=11):
        consumed = generator.randint(0, total - size * ranks)
        order = order_of(total, ranks, size, consumed_samples=consumed)
        for rank in range(ranks):
            expected = samplers.single(total, consumed, size, rank, ranks)
            assert steps_of(order, rank) == [[batch] for batch in expected]


def test_global_batches_are_those_of_the_hybrid_sampler(samplers):
    for generator, total, size, ranks in random_worlds(WORLDS, seed=12, limit=4):
        rounds = generator.randint(1, total // (size * ranks))
        batch = size * ranks * rounds
        consumed = generator.randint(0, total - batch)
        order = order_of(total, ranks, size, global_batch_size=batch, consumed_samples=consumed)
        for rank in range(ranks):
            steps = [list(chain(*step)) for step in steps_of(order, rank)]
            assert steps == samplers.global_batches(total, consumed, size, batch, rank, ranks)


@pytest.mark.parametrize("sharded", [True, False])
def test_cyclic_is_the_random_sampler_over_epochs(samplers, sharded):
    compared = ragged = 0
    for generator, total, size, ranks in random_worlds(WORLDS if sharded else 450, seed=13):
        worlds = [(total, size, rank, ranks, sharded) for rank in range(ranks)]
        epoch = [len(samplers.cyclic_epoch(total, 0, *world[1:])[0]) for world in worlds]
        options = {"mode": "cyclic", "data_sharding": sharded}
        if len(set(epoch)) > 1:
            with pytest.raises(UsageError, match=f"some ranks {max(epoch)} and others {min(epoch)} micro"):
                order_of(total, ranks, size, **options)
            ragged += 1
            continue
        consumed = generator.randrange(3 * epoch[0]) * ranks * size
        order = order_of(total, ranks, size, epochs=5, consumed_samples=consumed, **options)
        assert order.steps == 5 * epoch[0] - consumed // (ranks * size)
        for read, world in zip(micro_batches_of(order), worlds, strict=True):
            assert read == cyclic(samplers, world, consumed, order.steps)
        compared += 1
    assert compared >= 300
    assert bool(ragged) == (not sharded)


# Ranks, micro batch size, micro-batches of a step.
SMALL_WORLDS = [(1, 2, 4), (2, 3, 3), (3, 2, 2), (4, 1, 5), (5, 4, 1)]


def every_rest(batch):
    """Return all numbers of samples from one batch to one more than two batches."""
    return range(batch, 2 * batch + 2)


def in_steps(batches, rounds):
    """Return the whole steps of some micro-batches."""
    return [batches[first : first + rounds] for first in range(0, len(batches) - rounds + 1, rounds)]


@pytest.mark.parametrize(("ranks", "size", "rounds"), SMALL_WORLDS)
def test_single_is_megatrons_for_every_rest_of_a_batch(samplers, ranks, size, rounds):
    group = ranks * size
    batch = group * rounds
    for total in every_rest(batch):
        for consumed in range(0, total - batch + 1, group):
            options = {"data_parallel": ranks, "micro_batch_size": size, "global_batch_size": batch}
            order = stream_of(document_source([total]), consumed_samples=consumed, **options).order
            for rank in range(ranks):
                steps = steps_of(order, rank)
                batches = samplers.single(total, consumed, size, rank, ranks)
                assert steps == in_steps(batches, rounds)
                whole = samplers.global_batches(total, consumed, size, batch, rank, ranks)
                assert [list(chain(*step)) for step in steps] == whole


@pytest.mark.parametrize("sharded", [True, False])
@pytest.mark.parametrize(("ranks", "size", "rounds"), SMALL_WORLDS)
def test_cyclic_is_megatrons_for_every_rest_of_a_batch(samplers, ranks, size, rounds, sharded):
    group = ranks * size
    options = {"data_parallel": ranks, "micro_batch_size": size, "mode": "cyclic", "data_sharding": sharded}
    for total in every_rest(group * rounds):
        source = document_source([total])
        worlds = [(total, size, rank, ranks, sharded) for rank in range(ranks)]
        epoch = [samplers.cyclic_epoch(total, 0, *world[1:])[0] for world in worlds]
        fewest = min(map(len, epoch))
        if len(set(map(len, epoch))) > 1:
            with pytest.raises(UsageError, match="some ranks"):
                stream_of(source, **options)
            order = stream_of(source, equal_counts=True, **options).order
            for rank in range(ranks):
                assert steps_of(order, rank) == in_steps(epoch[rank][:fewest], 1)
            continue
        # Through the ends of two epochs, which are within steps where they are no multiple of a batch.
        steps = 3 * fewest // rounds
        for consumed in range(0, group * fewest, group):
            batches = {"global_batch_size": group * rounds, "consumed_samples": consumed, "steps": steps}
            order = stream_of(source, **options, **batches).order
            for rank, world in enumerate(worlds):
                expected = cyclic(samplers, world, consumed, steps * rounds)
                assert steps_of(order, rank) == in_steps(expected, rounds)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_full_validation_is_megatrons_for_every_rest_of_a_batch(samplers, ranks):
    for total in every_rest(ranks):
        sources = {"valid": document_source([total], name="valid")}
        order = planned(sources, data_parallel=ranks, full_validation=True).streams["valid"].order
        expected = [samplers.full_validation(total, rank, ranks) for rank in range(ranks)]
        longest = max(map(len, expected))
        for rank, batches in enumerate(expected):
            assert steps_of(order, rank) == [[batch] for batch in islice(cycle(batches), longest)]


# Documents, ranks, micro batch size, micro-batches of a step.
@pytest.mark.parametrize(("total", "ranks", "size", "rounds"), [(359, 5, 4, 3), (97, 2, 3, 4), (60, 3, 1, 5)])
def test_a_plan_after_any_number_of_consumed_samples_has_all_steps_of_megatron(
    samplers, total, ranks, size, rounds
):
    batch, group = ranks * size * rounds, ranks * size

    def order_after(mode, consumed, **options):
        options |= {"mode": mode, "consumed_samples": consumed, "global_batch_size": batch}
        return order_of(total, ranks, size, **options)

    for consumed in range(total):
        whole = [samplers.global_batches(total, consumed, size, batch, rank, ranks) for rank in range(ranks)]
        if not whole[0]:
            with pytest.raises(UsageError):
                order_after("single", consumed)
            continue
        order = order_after("single", consumed)
        for rank in range(ranks):
            batches = samplers.single(total, consumed, size, rank, ranks)
            steps = in_steps(batches, rounds)
            assert steps_of(order, rank) == steps
            assert [list(chain(*step)) for step in steps] == whole[rank]
    for sharded in (True, False):
        worlds = [(total, size, rank, ranks, sharded) for rank in range(ranks)]
        if len({len(samplers.cyclic_epoch(total, 0, *world[1:])[0]) for world in worlds}) > 1:
            continue
        for consumed in range(0, 2 * batch, group):
            order = order_after("cyclic", consumed, data_sharding=sharded, steps=4)
            for rank, world in enumerate(worlds):
                batches = cyclic(samplers, world, consumed, 4 * rounds)
                assert steps_of(order, rank) == in_steps(batches, rounds)


def test_full_validation_goes_round_as_megatrons_iterators_do(samplers):
    generator = random.Random(14)
    for _ in range(WORLDS):
        ranks = generator.randint(1, 9)
        total = generator.randint(ranks, 12 * ranks)
        sources = {"valid": document_source([total], name="valid")}
        order = planned(sources, data_parallel=ranks, full_validation=True).streams["valid"].order
        expected = [samplers.full_validation(total, rank, ranks) for rank in range(ranks)]
        assert order.steps == max(map(len, expected))
        for read, batches in zip(micro_batches_of(order), expected, strict=True):
            assert read == list(islice(cycle(batches), order.steps))


def test_the_twins_are_megatrons_samplers(megatron):
    """They stand for Megatron where it comes without its samplers, and in tests that need no Megatron."""
    twins = TwinSamplers()
    for generator, total, size, ranks in random_worlds(WORLDS, seed=15):
        group = size * ranks
        consumed = generator.randrange(total)
        started = generator.randrange(3 * (total // group)) * group
        batch = group * generator.randint(1, 4)
        for rank in range(ranks):
            world = (size, rank, ranks)
            assert twins.single(total, consumed, *world) == megatron.single(total, consumed, *world)
            for sharded in (True, False):
                found, expected = (
                    implementation.cyclic_epoch(total, started, *world, sharded)
                    for implementation in (twins, megatron)
                )
                assert found == expected
            options = (total, rank, ranks)
            assert twins.full_validation(*options) == megatron.full_validation(*options)
            options = (total, consumed, size, batch, rank, ranks)
            assert twins.global_batches(*options) == megatron.global_batches(*options)


def torchs(length, seed):
    import torch

    generator = torch.Generator()
    generator.manual_seed(seed)
    return torch.randperm(length, generator=generator).numpy()


def test_the_permutation_is_torchs():
    megatron_or_skip()
    skip_unless_first()
    generator = random.Random(16)
    lengths = [0, 1, 2, 3, 623, 624, 625, *(generator.randrange(5_000) for _ in range(400))]
    # Enough for the compiled loop, and for more than one chunk of words.
    for length in [*lengths, 2**20, 2**20 + 1, 3_000_001]:
        seed = generator.choice([0, 1, 2**32 + 5, generator.randrange(2**32), generator.randrange(2**63)])
        assert np.array_equal(torch_randperm(length, seed), torchs(length, seed))


@pytest.mark.skipif("TOKSHARD_ORACLE_LONG" not in os.environ, reason="a minute and 4 GB of memory")
@pytest.mark.parametrize("length", [INSIDE_OUT_LENGTH - 1, INSIDE_OUT_LENGTH])
def test_the_permutation_changes_its_algorithm_where_torch_does(length):
    megatron_or_skip()
    assert np.array_equal(torch_randperm(length, 3), torchs(length, 3))
