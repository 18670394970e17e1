import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.blends import exhaustive, greedy
from tokshard.errors import UsageError
from tokshard.samples.blend import kernels
from tokshard.samples.blend.order import (
    CompiledOrder,
    FewSourcesOrder,
    PlainOrder,
    blend_blocks,
    build,
    build_blending_indices,
    build_exhaustive_blending_indices,
    count_draws,
    normalize,
)
from tokshard.storage.compilation import has_numba

needs_numba = pytest.mark.skipif(not has_numba(), reason="numba is not installed")


def families():
    """Weights of many kinds: random, equal, nearly so, round, of a power law, tiny beside large."""
    positive = st.floats(1e-9, 1e9)
    count = st.integers(1, 400)
    seed = st.integers(0, 2**32 - 1)
    return st.one_of(
        st.lists(positive, min_size=1, max_size=40),
        st.builds(lambda n, s: np.random.RandomState(s).uniform(0.01, 1, n), count, seed),
        st.builds(np.ones, count),
        st.builds(
            lambda n, s, e: 1 + e * np.random.RandomState(s).uniform(0, 1, n),
            count,
            seed,
            st.sampled_from([1e-15, 1e-9, 1e-3]),
        ),
        st.builds(lambda n, e: 1 / np.arange(1.0, n + 1) ** e, count, st.sampled_from([0.5, 1.0, 2.0])),
        st.builds(lambda n, k: 1.0 + np.arange(n) % k, count, st.integers(1, 200)),
        st.builds(lambda n, s: np.r_[9.0 * n, np.random.RandomState(s).uniform(0, 1, n) + 1e-6], count, seed),
        st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.4]), min_size=1, max_size=300),
    )


def compiled_orders(weights, limits=None):
    """Each compiled order."""
    return [CompiledOrder(weights, limits), FewSourcesOrder(weights, limits)]


def assert_same(found, right):
    for array, expected in zip(found, right, strict=True):
        np.testing.assert_array_equal(array, expected)


@given(weights=families(), size=st.integers(0, 600))
@settings(max_examples=60, deadline=None)
def test_the_twin_in_numpy_makes_the_order_of_the_definition(weights, size):
    shares = np.array(normalize(list(weights)))
    assert_same(build(PlainOrder(shares, None), size), greedy(shares.tolist(), size))


@needs_numba
@given(weights=families(), size=st.integers(0, 3000), scale=st.sampled_from([None, 1.0, 3.0, 1e-4]))
@settings(max_examples=150, deadline=None)
@example(weights=np.ones(300), size=3000, scale=None)
@example(weights=np.r_[900.0, np.full(50, 2.0)], size=3000, scale=None)
@example(weights=1.0 + np.arange(300) % 150, size=3000, scale=None)
def test_the_compiled_order_is_that_of_the_twin(weights, size, scale):
    shares = np.array(normalize(list(weights))) * (scale or 1.0)
    for order in compiled_orders(shares):
        assert_same(build(order, size), build(PlainOrder(shares, None), size))


@needs_numba
@pytest.mark.parametrize("sources", [1, 2, 7, 8, 9, 16, 17, 32, 33, 63, 64])
@pytest.mark.parametrize("kind", ["random", "equal", "round", "power", "tiny and huge"])
def test_few_sources_are_drawn_as_by_the_twin(sources, kind):
    random = np.random.RandomState(sources)
    weights = {
        "random": random.uniform(0.01, 1, sources),
        "equal": np.ones(sources),
        "round": random.choice([0.1, 0.2, 0.3, 0.5], sources),
        "power": 1 / np.arange(1.0, sources + 1),
        "tiny and huge": 10.0 ** random.uniform(-12, 12, sources),
    }[kind]
    shares = np.array(normalize(list(weights)))
    right = build(PlainOrder(shares, None), 4000)
    assert_same(build(FewSourcesOrder(shares, None), 4000), right)
    limits = random.randint(1, 60, sources)
    total = int(limits.sum())
    right = build(PlainOrder(shares, limits), total)
    assert_same(build(FewSourcesOrder(shares, limits), total), right)


@needs_numba
@pytest.mark.parametrize("name", ["random", "near", "tiny spread", "steps", "power", "heavy", "few"])
def test_long_orders_of_many_sources_are_equal(name):
    random = np.random.RandomState(7).uniform(0, 1, 300)
    weights = {
        "random": random + 1e-3,
        "near": 1 + 0.01 * random,
        "tiny spread": 1 + 1e-9 * random,
        "steps": np.arange(1.0, 301),
        "power": 1 / np.arange(1.0, 301),
        "heavy": np.r_[2000, random],
        "few": np.array([0.1, 0.2, 0.3, 0.4]),
    }[name]
    shares = np.array(normalize(list(weights)))
    right = build(PlainOrder(shares, None), 60_000)
    for order in compiled_orders(shares):
        assert_same(build(order, 60_000), right)


@given(sizes=st.lists(st.integers(1, 30), min_size=1, max_size=30))
@settings(max_examples=60, deadline=None)
def test_the_exhaustive_twin_makes_the_order_of_the_definition(sizes):
    assert_same(build_exhaustive_blending_indices(sizes), exhaustive(sizes))


def limits():
    seed, count = st.integers(0, 2**32 - 1), st.integers(1, 400)
    return st.one_of(
        st.lists(st.integers(1, 60), min_size=1, max_size=80),
        st.builds(lambda n, s: np.random.RandomState(s).randint(1, 40, n).tolist(), count, seed),
        st.builds(
            lambda n, s: np.random.RandomState(s).randint(1000, 1010, n % 20 + 1).tolist(), count, seed
        ),
        st.builds(lambda n, s: np.random.RandomState(s).permutation(n + 1)[:n].clip(1).tolist(), count, seed),
    )


@needs_numba
@given(sizes=limits())
@settings(max_examples=80, deadline=None)
@example(sizes=list(range(1, 301)))
@example(sizes=[20] * 300)
def test_the_compiled_exhaustive_order_is_that_of_the_twin(sizes):
    counts, total = np.array(sizes, np.int64), sum(sizes)
    weights = counts / float(total)
    right = build(PlainOrder(weights, counts), total)
    for order in compiled_orders(weights, counts):
        assert_same(build(order, total), right)
    assert_same([np.bincount(right[0])], [counts])


@needs_numba
@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("block", [1, 7, 1000])
@pytest.mark.parametrize(("kind", "sources"), [(CompiledOrder, 200), (FewSourcesOrder, 64)])
def test_blocks_of_any_size_make_the_same_order(block, limited, kind, sources):
    weights = np.array(normalize(np.arange(1.0, sources + 1)))
    sizes = np.arange(50, sources + 50) if limited else None
    whole = build(kind(weights, sizes), 3000)
    order = kind(weights, sizes)
    pieces = [(first.copy(), second.copy()) for first, second in blend_blocks(order, 3000, block)]
    assert_same([np.concatenate(side) for side in zip(*pieces, strict=True)], whole)
    np.testing.assert_array_equal(order.draws(), np.bincount(whole[0], minlength=sources))
    np.testing.assert_array_equal(count_draws(PlainOrder(weights, sizes), 3000), order.draws())


@needs_numba
def test_the_search_in_blocks_is_what_the_tests_reach():
    assert kernels.FEW_CLASSES < 300


@needs_numba
def test_large_orders_are_compiled_and_small_ones_are_not():
    small, large = ([1 / 3, 2 / 3], 50_000), ([1 / 3, 2 / 3], 100_000)
    assert_same([side[:50_000] for side in build_blending_indices(*large)], build_blending_indices(*small))


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
    "weights", [[], [0.0, 1.0], [-1.0], [float("nan")], [float("inf")], [[1.0]], [1e-9] * 32_767]
)
def test_weights_that_cannot_be_are_refused(weights):
    with pytest.raises(UsageError):
        build_blending_indices(weights, 1)


def test_the_last_source_that_int16_can_number_is_drawn():
    order, _ = build_blending_indices(np.full(32_766, 1 / 32_766), 5)
    assert order.tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(UsageError, match="32766"):
        build_exhaustive_blending_indices([1] * 32_767)


@pytest.mark.parametrize("sizes", [[], [0], [1, 0], [-1, 5], [2**53, 1]])
def test_sizes_that_cannot_be_are_refused(sizes):
    with pytest.raises(UsageError):
        build_exhaustive_blending_indices(sizes)


def test_a_negative_size_is_refused():
    with pytest.raises(UsageError, match="-1"):
        build_blending_indices([1.0], -1)
