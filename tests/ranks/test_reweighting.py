"""Draws from sources after any number of draws, against queues of samples."""

import random

import numpy as np
import pytest

from support.sample_sources import index_source
from tokshard.errors import UsageError
from tokshard.ranks import reweighting
from tokshard.ranks.plan import Reweighting
from tokshard.ranks.reweighting import draw_samples


def drawn_by(record, sizes, samples):
    """List what is drawn of each source."""
    sources, numbers = draw_samples(record, sizes, samples)
    return [numbers[sources == source].tolist() for source in range(len(sizes))]


@pytest.mark.parametrize("block", [7, 1 << 22])
def test_sources_are_drawn_from_their_next_sample_on_and_then_epoch_by_epoch(monkeypatch, block):
    monkeypatch.setattr(reweighting, "_BLOCK", block)
    for seed in range(60):
        generator = random.Random(seed)
        sizes = [generator.randint(1, 12) for _ in range(generator.randint(1, 4))]
        draws = tuple(generator.randint(0, 3 * size) for size in sizes)
        weights = tuple(generator.random() + 0.01 for _ in sizes)
        record = Reweighting(weights, seed, draws, tuple(range(len(sizes))))
        for source, found in enumerate(drawn_by(record, sizes, generator.randint(1, 200))):
            by_epoch = {}
            for number, sample in enumerate(found, draws[source]):
                by_epoch.setdefault(number // sizes[source], []).append(sample)
            first = by_epoch.pop(0, [])
            assert first == list(range(draws[source], sizes[source]))[: len(first)]
            for samples in by_epoch.values():
                assert len(set(samples)) == len(samples)
                assert set(samples) <= set(range(sizes[source]))


def test_a_source_epoch_goes_on_where_the_plan_before_has_stopped():
    whole = Reweighting((1.0,), 7, (0,), (3,))
    (expected,) = drawn_by(whole, [50], 170)
    for stop in (0, 1, 49, 50, 51, 120):
        rest = Reweighting((1.0,), 7, (stop,), (3,))
        assert drawn_by(rest, [50], 170 - stop) == [expected[stop:]]


def test_source_epochs_are_orders_of_their_own():
    def epochs(seed, key):
        return np.reshape(drawn_by(Reweighting((1.0,), seed, (0,), (key,)), [1000], 3000), (3, 1000)).tolist()

    first = epochs(1, 0)
    different = [*first, *epochs(2, 0)[1:], *epochs(1, 1)[1:]]
    assert len(set(map(tuple, different))) == 7
    assert all(sorted(epoch) == list(range(1000)) for epoch in different)
    # Frozen: a plan that was written must be read the same for ever.
    (third,) = drawn_by(Reweighting((1.0,), 1, (3000,), (0,)), [1000], 6)
    assert third == [180, 622, 637, 554, 906, 985]


def test_the_arrays_of_a_reweighted_blend_are_frozen():
    record = Reweighting((0.5, 0.5, 0.0), 7, (2, 0, 3), (0, 1, 2))
    sources, numbers = draw_samples(record, [5, 3, 4], 12)
    assert (sources.dtype, numbers.dtype) == (np.int16, np.int64)
    assert sources.tolist() == [0, 1] * 6
    assert numbers.tolist() == [2, 0, 3, 1, 4, 2, 0, 0, 3, 1, 1, 2]


def test_nothing_to_draw_is_refused():
    with pytest.raises(UsageError, match="no unread samples remain"):
        draw_samples(Reweighting((1.0,), 1, (0,), (0,)), [5], 0)
    with pytest.raises(UsageError, match="source 1 of the new blend has no samples"):
        draw_samples(Reweighting((1.0, 1.0), 1, (0, 0), (0, 1)), [5, 0], 3)


def test_source_epochs_need_the_arrays_of_a_blend():
    record = Reweighting((1.0,), 1, (0,), (0,))
    with pytest.raises(UsageError, match="train was re-weighted, but its source has no blend"):
        reweighting.source_epochs(index_source(5), record)
