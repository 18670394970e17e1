"""Draws from sources that stand anywhere: against queues of samples."""

import random

import numpy as np
import pytest

from tokshard.errors import UsageError
from tokshard.sharding.intervals import Intervals
from tokshard.sharding.replan import reweighting
from tokshard.sharding.replan.laps import OpenLap, Standing
from tokshard.sharding.replan.reweighting import mix


def random_standing(generator):
    samples, lap = generator.randint(1, 12), generator.randint(0, 2)
    laps = []
    for _ in range(generator.randint(0, 2)):
        unread = sorted(generator.sample(range(samples), generator.randint(1, samples)))
        laps.append(OpenLap(lap, Intervals.of_members(np.array(unread))))
        lap += generator.randint(1, 2)
    return Standing(samples, tuple(laps), lap)


def members(intervals):
    return intervals.nth(np.arange(intervals.count)).tolist()


@pytest.mark.parametrize("block", [7, 1 << 22])
def test_sources_are_drawn_from_where_they_stand_and_then_lap_by_lap(monkeypatch, block):
    monkeypatch.setattr(reweighting, "_BLOCK", block)
    for seed in range(60):
        generator = random.Random(seed)
        standings = [random_standing(generator) for _ in range(generator.randint(1, 4))]
        weights = [generator.random() + 0.01 for _ in standings]
        total = generator.randint(1, 200)
        mixed = mix(weights, standings, total, seed)
        laps = mixed.laps.of(np.arange(total), mixed.dataset_index)
        drawn = [[] for _ in standings]
        for source, lap, sample in zip(
            mixed.dataset_index.tolist(), laps.tolist(), mixed.dataset_sample_index.tolist(), strict=True
        ):
            drawn[source].append((lap, sample))
        assert [len(one) for one in drawn] == mixed.draws.tolist()
        for standing, found in zip(standings, drawn, strict=True):
            queue = [(one.lap, sample) for one in standing.laps for sample in members(one.unread)]
            assert found[: len(queue)] == queue[: len(found)]
            later = found[len(queue) :]
            for number in range(0, len(later), standing.samples):
                lap = later[number : number + standing.samples]
                assert {one for one, _ in lap} == {standing.next_lap + number // standing.samples}
                assert len({sample for _, sample in lap}) == len(lap)
                assert {sample for _, sample in lap} <= set(range(standing.samples))


def test_laps_are_orders_of_their_own():
    one = Standing(1000, (), 3)
    draws = np.arange(2000)
    first = one.samples_of(draws, seed=1, source=0)
    assert not np.array_equal(first[:1000], first[1000:])
    assert not np.array_equal(first, one.samples_of(draws, seed=2, source=0))
    assert not np.array_equal(first, one.samples_of(draws, seed=1, source=1))
    later = Standing(1000, (), 4)
    assert np.array_equal(first[1000:], later.samples_of(draws[:1000], seed=1, source=0))
    # Frozen: a plan that was written must be read the same for ever.
    assert first[:6].tolist() == [180, 622, 637, 554, 906, 985]


def test_nothing_to_draw_is_refused():
    with pytest.raises(UsageError, match="no sample is left"):
        mix([1.0], [Standing.untouched(5)], 0, 1)
    with pytest.raises(UsageError, match="has no sample"):
        mix([1.0, 1.0], [Standing.untouched(5), Standing.untouched(0)], 3, 1)
