"""Bucketing: similar lengths together, each sample once, any position at any time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import slow_samplers
from tokshard.errors import UsageError
from tokshard.sharding.order import Bucketing


@given(
    st.integers(1, 300), st.integers(1, 6), st.integers(1, 8), st.integers(0, 9), st.integers(0, 3), st.data()
)
def test_windows_are_sorted_but_for_packs_and_members(samples, pack, packs, seed, epoch, data):
    keys = np.array(data.draw(st.lists(st.integers(0, 20), min_size=samples, max_size=samples)))
    bucketing = Bucketing(samples, pack * packs, pack, seed)
    order = bucketing.forward(np.arange(samples), epoch, keys.__getitem__)
    for start in range(0, samples, bucketing.buffer):
        window = order[start : start + bucketing.buffer]
        assert sorted(window.tolist()) == list(range(start, min(start + bucketing.buffer, samples)))
        assert slow_samplers.bucketed(keys, pack, window.tolist())
    back = bucketing.inverse(order, epoch, keys.__getitem__)
    assert np.array_equal(back, np.arange(samples))


@given(st.lists(st.integers(0, 199), min_size=1, max_size=30), st.integers(0, 5))
def test_the_order_does_not_depend_on_what_is_asked_for_and_when(places, epoch):
    keys = np.arange(200) * 31 % 17
    bucketing = Bucketing(200, 48, 8, seed=3)
    whole = bucketing.forward(np.arange(200), epoch, keys.__getitem__)
    assert np.array_equal(bucketing.forward(np.array(places), epoch, keys.__getitem__), whole[places])


def test_ties_packs_and_members_are_shuffled_anew_by_window_epoch_and_seed():
    keys = np.repeat(np.arange(4), 32)
    bucketing = Bucketing(256, 128, 16, seed=3)
    orders = [bucketing.window_order(keys, epoch, window) for epoch in range(2) for window in range(2)]
    orders.append(Bucketing(256, 128, 16, seed=4).window_order(keys, 0, 0))
    assert len({tuple(order.tolist()) for order in orders}) == 5
    assert np.diff(keys[orders[0]][::16]).min() < 0, "packs come in random order"
    assert np.diff(orders[0][:16]).min() < 0, "members come in random order"
    fixed = Bucketing(256, 128, 16, seed=3, per_epoch=False)
    assert np.array_equal(fixed.window_order(keys, 1, 0), fixed.window_order(keys, 0, 0))


def test_only_the_windows_asked_for_are_looked_at():
    asked = []

    def key_of(positions):
        asked.extend(positions.tolist())
        return positions % 7

    Bucketing(10**9, 64, 8, seed=0).forward(np.array([640, 700, 645]), 0, key_of)
    assert sorted(set(asked)) == list(range(640, 704))


@pytest.mark.parametrize(("buffer", "pack"), [(10, 4), (0, 4), (8, 0)])
def test_a_buffer_that_is_no_multiple_of_the_pack_is_refused(buffer, pack):
    with pytest.raises(UsageError, match=f"buffer of {buffer} samples"):
        Bucketing(100, buffer, pack, seed=0)
