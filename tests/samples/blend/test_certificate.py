import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.blends import deviations
from tokshard.errors import IntegrityError
from tokshard.samples.blend.certificate import measure_weight_errors
from tokshard.samples.blend.order import build_blending_indices, normalize


@given(weights=st.lists(st.floats(0.01, 1), min_size=1, max_size=8), size=st.integers(0, 300))
@settings(max_examples=60, deadline=None)
def test_deviations_are_those_of_every_prefix(weights, size):
    shares = normalize(weights)
    arrays = build_blending_indices(shares, size)
    drift = measure_weight_errors(*arrays, shares, [size] * len(shares))
    lag, lead = deviations(arrays[0].tolist(), shares)
    np.testing.assert_allclose(drift.lag, lag, atol=1e-9)
    np.testing.assert_allclose(drift.lead, lead, atol=1e-9)
    assert drift.draws.tolist() == [arrays[0].tolist().count(source) for source in range(len(shares))]
    assert drift.out_of_range == 0


def test_many_small_sources_make_a_deviation_above_one():
    shares = normalize([0.9, *[0.002] * 50])
    drift = measure_weight_errors(*build_blending_indices(shares, 5000), shares, [5000] * 51)
    assert 1.75 < max(drift.lag) < 1.85


def test_draws_out_of_range_are_counted():
    arrays = np.array([0, 1, 0, 0], np.int16), np.array([0, 0, 1, 2])
    assert measure_weight_errors(*arrays, [0.75, 0.25], [2, 1]).out_of_range == 1
    with pytest.raises(IntegrityError, match="must hold source numbers below 1"):
        measure_weight_errors(*arrays, [1.0], [9])
