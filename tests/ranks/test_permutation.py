"""torch.randperm without torch, and the orders that are frozen for ever."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import frozen_orders, slow_samplers
from support.assignments import digest, golden
from tokshard.errors import UsageError
from tokshard.ranks import permutation
from tokshard.storage.compilation import WORTH_COMPILING


@given(st.integers(0, 700), st.integers(0, 2**64 - 1))
def test_short_lengths_are_the_swaps_of_the_published_twister(length, seed):
    assert permutation.torch_randperm(length, seed).tolist() == slow_samplers.forward_swaps(length, seed)


@given(st.integers(0, 700), st.integers(0, 2**64 - 1))
def test_long_lengths_are_the_inside_out_shuffle_of_word_pairs(length, seed):
    assert permutation.inside_out(length, seed).tolist() == slow_samplers.inside_out(length, seed)


def test_the_word_is_chosen_by_the_length_where_torch_does(monkeypatch):
    assert permutation.INSIDE_OUT_LENGTH == 214_748_364
    monkeypatch.setattr(permutation, "INSIDE_OUT_LENGTH", 100)
    assert permutation.torch_randperm(99, 5).tolist() == slow_samplers.forward_swaps(99, 5)
    assert permutation.torch_randperm(100, 5).tolist() == slow_samplers.inside_out(100, 5)


@pytest.mark.parametrize("shuffle", [permutation.forward_swaps, permutation.inside_out])
@pytest.mark.parametrize("chunk", [1 << 20, 4096])
def test_compiled_and_plain_loops_give_the_same(monkeypatch, shuffle, chunk):
    length = WORTH_COMPILING + 12_345
    compiled = shuffle(length, 99)
    monkeypatch.setattr(permutation, "has_numba", lambda: False)
    monkeypatch.setattr(permutation, "_CHUNK", chunk)
    assert np.array_equal(shuffle(length, 99), compiled)
    assert np.array_equal(np.sort(compiled), np.arange(length))


def test_a_negative_length_is_refused():
    with pytest.raises(UsageError, match="-1"):
        permutation.torch_randperm(-1, 0)


@pytest.mark.parametrize("name", frozen_orders.ORDERS)
def test_the_orders_are_those_of_all_time(name):
    kept = golden()[name]
    assert len(kept) == len(frozen_orders.PAIRS) == 20
    for seed, length in frozen_orders.PAIRS:
        assert digest(frozen_orders.ORDERS[name](seed, length)) == kept[f"seed {seed}, length {length}"]
