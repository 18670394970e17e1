"""Keyed orders: bijections with inverses, spread evenly, and different for different keys."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokshard.core.keyed_orders import MAX_LENGTH, ROUNDS, Bijection, derive_key, mix, sorted_order, subkeys
from tokshard.errors import UsageError

MASK = 2**64 - 1
KEYS = st.integers(0, MASK)


def plain_mix(word):
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & MASK
    word = (word ^ word >> 27) * 0x94D049BB133111EB & MASK
    return word ^ word >> 31


def plain_forward(element, length, key):
    """The definition of tokshard.feistel/1."""
    low_size = math.isqrt(length - 1) + 1
    high_size = -(-length // low_size)
    while True:
        high, low = divmod(element, low_size)
        for number in range(ROUNDS):
            round_key = plain_mix(key + (number + 1) * 0x9E3779B97F4A7C15 & MASK)
            if number % 2 == 0:
                low = (low + (plain_mix(high + round_key & MASK) >> 32) * low_size // 2**32) % low_size
            else:
                high = (high + (plain_mix(low + round_key & MASK) >> 32) * high_size // 2**32) % high_size
        element = high * low_size + low
        if element < length:
            return element


def key_array(key):
    return np.full(1, key, dtype=np.uint64)


def test_mix_gives_the_published_stream_of_splitmix64():
    seeds = np.array([0x9E3779B97F4A7C15, 2 * 0x9E3779B97F4A7C15 % 2**64], dtype=np.uint64)
    assert mix(seeds).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]


@given(st.integers(1, 5000) | st.integers(1, MAX_LENGTH), KEYS, st.data())
def test_the_bijection_is_its_definition_and_can_be_inverted(length, key, data):
    elements = data.draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=20))
    found = Bijection(length).forward(np.array(elements), key_array(key))
    assert found.tolist() == [plain_forward(element, length, key) for element in elements]
    assert Bijection(length).inverse(found, key_array(key)).tolist() == elements


def test_the_bijection_is_one_for_every_small_length():
    for length in [*range(1, 300), 1023, 1024, 1025, 65_537]:
        found = Bijection(length).forward(np.arange(length), key_array(length * 77))
        assert np.array_equal(np.sort(found), np.arange(length))


def test_each_element_may_have_its_own_key():
    keys = subkeys(5, np.arange(40))
    together = Bijection(1000).forward(np.arange(40), keys)
    alone = [
        int(Bijection(1000).forward(np.array([place]), keys[place : place + 1])[0]) for place in range(40)
    ]
    assert together.tolist() == alone
    assert Bijection(1000).inverse(together, keys).tolist() == list(range(40))


@pytest.mark.parametrize("length", [0, -1, MAX_LENGTH + 1])
def test_lengths_out_of_bounds_are_refused(length):
    with pytest.raises(UsageError, match=str(length)):
        Bijection(length)


def test_every_order_of_five_comes_about_equally_often():
    trials = 24_000
    keys = np.repeat(subkeys(1, np.arange(trials)), 5)
    orders = Bijection(5).forward(np.tile(np.arange(5), trials), keys).reshape(trials, 5)
    counts = Counter(map(tuple, orders.tolist()))
    assert len(counts) == 120
    assert min(counts.values()) > 120
    assert max(counts.values()) < 280


def test_neighbours_of_a_million_are_spread_evenly():
    found = Bijection(10**6).forward(np.arange(64_000), key_array(3))
    bins = np.bincount(found // 15_625, minlength=64)
    # 63 degrees of freedom, sampled without replacement: about 59, and never far from it.
    assert 20 < float(((bins - 1000) ** 2 / 1000).sum()) < 120
    assert abs(np.corrcoef(found[1:], found[:-1])[0, 1]) < 0.02


@given(st.integers(0, 300), KEYS)
def test_the_sorted_order_is_one_of_all_elements(length, key):
    assert sorted(sorted_order(length, key).tolist()) == list(range(length))


def test_keys_differ_by_purpose_seed_and_epoch():
    keys = {
        derive_key(purpose, seed, epoch) for purpose in "ab" for seed in (0, 1, 11) for epoch in (0, 1, 2)
    }
    assert len(keys) == 18
