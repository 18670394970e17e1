import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.blends import exhaustive, greedy
from tokshard.errors import UsageError
from tokshard.samples.blend import order as order_module
from tokshard.samples.blend.order import (
    BlendOrder,
    build_blending_indices,
    build_exhaustive_blending_indices,
    normalize,
)
from tokshard.storage.compilation import has_numba

IMPLEMENTATIONS = [
    pytest.param(math.inf, id="numpy"),
    pytest.param(
        0, id="compiled", marks=pytest.mark.skipif(not has_numba(), reason="numba is not installed")
    ),
]
"""Thresholds that select an implementation for every size."""


@pytest.fixture(params=IMPLEMENTATIONS, scope="module")
def implementation(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order_module, "_WORTH_COMPILING_STEPS", request.param)
        yield


def seeded(size, seed, low=0.01, high=1.0):
    return np.random.RandomState(seed).uniform(low, high, size)


def families():
    """Weights of many kinds: random, equal, nearly equal, round, of a power law, one large and many tiny."""
    count = st.integers(1, 400)
    seed = st.integers(0, 2**32 - 1)
    spread = st.sampled_from([1e-15, 1e-9, 1e-3])
    return st.one_of(
        st.lists(st.floats(1e-9, 1e9), min_size=1, max_size=40),
        st.builds(seeded, count, seed),
        st.builds(np.ones, count),
        st.builds(lambda size, number, width: 1 + width * seeded(size, number), count, seed, spread),
        st.builds(
            lambda size, power: 1 / np.arange(1.0, size + 1) ** power, count, st.sampled_from([0.5, 2])
        ),
        st.builds(lambda size, period: 1.0 + np.arange(size) % period, count, st.integers(1, 200)),
        st.builds(lambda size, number: np.r_[9.0 * size, seeded(size, number, 1e-6)], count, seed),
        st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.4]), min_size=1, max_size=300),
    )


def assert_same(arrays, expected):
    for array, right in zip(arrays, expected, strict=True):
        np.testing.assert_array_equal(array, right)


@given(weights=families(), size=st.integers(0, 600), scale=st.sampled_from([1.0, 3.0, 1e-4]))
@settings(max_examples=60, deadline=None)
def test_orders_equal_the_definition(implementation, weights, size, scale):
    shares = np.array(normalize(list(weights))) * scale
    assert_same(build_blending_indices(shares, size), greedy(shares.tolist(), size))


@given(
    sizes=st.one_of(
        st.lists(st.integers(1, 60), min_size=1, max_size=30),
        st.builds(lambda count, size: [size] * count, st.integers(1, 100), st.integers(1, 10)),
        st.builds(lambda seed: np.random.RandomState(seed).permutation(40) + 1, st.integers(0, 1000)),
    )
)
@settings(max_examples=60, deadline=None)
def test_exhaustive_orders_equal_the_definition(implementation, sizes):
    assert_same(build_exhaustive_blending_indices(sizes), exhaustive([int(size) for size in sizes]))


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("block", [1, 7, 1000, 5000])
@pytest.mark.parametrize("lags_of_a_call", [1, 64 * 30, 1 << 26])
def test_blocks_of_any_size_make_the_same_order(implementation, monkeypatch, block, limited, lags_of_a_call):
    sizes = np.arange(10, 74)
    weights, size = (sizes, None) if limited else (normalize(sizes), int(sizes.sum()))
    expected = BlendOrder(weights, size).build()
    monkeypatch.setattr(order_module, "_LAGS_OF_A_CALL", lags_of_a_call)
    order = BlendOrder(weights, size)
    pieces = [(first.copy(), second.copy()) for first, second in order.blocks(block)]
    assert_same([np.concatenate(side) for side in zip(*pieces, strict=True)], expected)
    np.testing.assert_array_equal(order.draws, np.bincount(expected[0]))
    assert order.size == len(expected[0])


@pytest.mark.skipif(not has_numba(), reason="numba is not installed")
@pytest.mark.parametrize("name", ["random", "near", "tiny spread", "steps", "power", "heavy", "few"])
def test_long_orders_are_the_same_compiled_and_with_numpy(monkeypatch, name):
    random = seeded(300, 7)
    weights = {
        "random": random,
        "near": 1 + 0.01 * random,
        "tiny spread": 1 + 1e-9 * random,
        "steps": np.arange(1.0, 301),
        "power": 1 / np.arange(1.0, 301),
        "heavy": np.r_[2000, random],
        "few": np.array([0.1, 0.2, 0.3, 0.4]),
    }[name]
    shares = normalize(weights.tolist())
    monkeypatch.setattr(order_module, "_WORTH_COMPILING_STEPS", 60_001 * 2)
    with_numpy = build_blending_indices(shares, 60_000)
    monkeypatch.setattr(order_module, "_WORTH_COMPILING_STEPS", 0)
    assert_same(build_blending_indices(shares, 60_000), with_numpy)


@pytest.mark.skipif(not has_numba(), reason="numba is not installed")
@pytest.mark.parametrize(("size", "imports"), [(90_000, False), (100_000, True)])
def test_only_large_orders_import_numba(size, imports):
    code = (
        "import sys; from tokshard.samples.blend.order import BlendOrder; "
        f"BlendOrder([0.5, 0.5], {size}).fill(*BlendOrder([1.0], 1).build()); print('numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(imports)


def test_the_arrays_have_megatrons_dtypes():
    for arrays in (build_blending_indices([0.5, 0.5], 3), build_exhaustive_blending_indices([1, 2])):
        assert [array.dtype for array in arrays] == [np.int16, np.int64]


@given(weight=st.floats(0.01, 0.99), size=st.integers(1, 500))
def test_two_sources_never_deviate_by_a_whole_sample(weight, size):
    shares = normalize([weight, 1 - weight])
    order, samples = build_blending_indices(shares, size)
    for step, (source, sample) in enumerate(zip(order.tolist(), samples.tolist(), strict=True)):
        assert abs(shares[source] * (step + 1) - (sample + 1)) < 1


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([], "between 1 and 32766 sources .* got 0"),
        ([[1.0]], "between 1 and 32766 sources"),
        ([1e-9] * 32_767, "between 1 and 32766 sources .* got 32767"),
        ([0.0, 1.0], "weight of source 0 must be a positive number, got 0"),
        ([1.0, -1.0], "weight of source 1 must be a positive number, got -1"),
        ([float("nan")], "must be a positive number, got nan"),
        ([float("inf")], "must be a positive number, got inf"),
    ],
)
def test_invalid_weights_are_refused(weights, message):
    with pytest.raises(UsageError, match=message):
        build_blending_indices(weights, 1)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([], "between 1 and 32766 sources .* got 0"),
        ([1] * 32_767, "between 1 and 32766 sources .* got 32767"),
        ([1, 0], "size of source 1 must be a positive number, got 0"),
        ([-1, 5], "size of source 0 must be a positive number, got -1"),
        ([2**53, 1], r"size of a blend must be between 0 and 2\^53, got 9007199254740993"),
    ],
)
def test_invalid_sizes_are_refused(sizes, message):
    with pytest.raises(UsageError, match=message):
        build_exhaustive_blending_indices(sizes)


@pytest.mark.parametrize("size", [-1, 2**53 + 1])
def test_blends_of_invalid_size_are_refused(size):
    with pytest.raises(UsageError, match=rf"size of a blend must be between 0 and 2\^53, got {size}"):
        build_blending_indices([1.0], size)


def test_as_many_sources_as_int16_numbers_are_drawn():
    order, _ = build_blending_indices(np.full(32_766, 1 / 32_766), 5)
    assert order.tolist() == [0, 1, 2, 3, 4]
