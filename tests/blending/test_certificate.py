import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.blends import covered, deviations
from tokshard.blending import certificate, kernels
from tokshard.blending.certificate import measure_weight_errors
from tokshard.blending.coverage import measure_coverage
from tokshard.blending.order import build_blending_indices, normalize
from tokshard.core.compilation import compiled, has_numba
from tokshard.errors import IntegrityError
from tokshard.gpt_index.index import GPTDatasetIndex


@st.composite
def indexes(draw):
    lengths = np.array(draw(st.lists(st.integers(0, 30), min_size=1, max_size=12)), np.int32)
    lengths[draw(st.integers(0, len(lengths) - 1))] += 40
    first = draw(st.integers(0, len(lengths) - 1))
    part = range(first, len(lengths)) if lengths[first:].sum() > 40 else range(len(lengths))
    index = GPTDatasetIndex.build(
        lengths,
        part,
        sequence_length=draw(st.integers(1, 20)),
        seed=draw(st.integers(0, 99)),
        num_samples=draw(st.integers(0, 60)),
    )
    return lengths, index, draw(st.integers(0, len(index)))


@given(case=indexes(), places=st.sampled_from([1, 5, 1 << 22]))
@settings(max_examples=150, deadline=None)
def test_documents_and_tokens_are_counted_as_one_by_one(case, places):
    lengths, index, draws = case
    arguments = (lengths, index.document_index, index.shuffle_index, draws, index.plan.sequence_length)
    before = certificate._PLACES_AT_ONCE
    certificate._PLACES_AT_ONCE = places
    try:
        found = measure_coverage(*arguments)
    finally:
        certificate._PLACES_AT_ONCE = before
    right = covered(
        lengths.tolist(), index.document_index.tolist(), index.shuffle_index.tolist(), *arguments[3:]
    )
    assert {name: getattr(found, name) for name in right} == right
    assert found.tokens_per_epoch == index.plan.tokens_per_epoch


@pytest.mark.skipif(not has_numba(), reason="numba is not installed")
@given(case=indexes())
@settings(max_examples=40, deadline=None)
def test_the_compiled_count_is_that_of_its_twin(case):
    lengths, index, draws = case
    drawn = np.zeros(len(index), np.uint8)
    drawn[index.shuffle_index[:draws]] = 1
    results = []
    for choose in (compiled, lambda kernel: kernel):
        first, last = index.document_index.min(), index.document_index.max()
        places = np.zeros((last - first + 1, index.plan.epochs), np.int64)
        seen, totals = np.zeros(len(places), np.int64), np.array([0, 99, 0, 99, 0])
        tokens = choose(kernels.place_documents)(lengths, index.document_index, first, places, seen)
        choose(kernels.cover_documents)(lengths, first, places, drawn, index.plan.sequence_length, totals)
        results.append((tokens, places.tolist(), seen.tolist(), totals.tolist()))
    assert results[0] == results[1]
    assert results[0][0] == index.plan.tokens


@pytest.mark.skipif(not has_numba(), reason="numba is not installed")
@given(case=indexes(), pieces=st.sampled_from([1, 3, 1 << 22]))
@settings(max_examples=60, deadline=None)
def test_one_pass_over_one_epoch_counts_as_all_passes_do(case, pieces):
    lengths, index, draws = case
    documents = index.document_index
    first, count = int(documents.min()), int(documents.max() - documents.min() + 1)
    _, once = np.unique(documents, return_index=True)
    documents = documents[np.sort(once)]
    samples = int(lengths[documents].sum()) // index.plan.sequence_length
    drawn = (np.random.RandomState(draws).random_sample(samples) < 0.7).astype(np.uint8)
    before, results = certificate._ENTRIES_OF_A_CALL, []
    certificate._ENTRIES_OF_A_CALL = pieces
    try:
        for cover in (certificate._cover_once, certificate._cover):
            for choose in (compiled, lambda kernel: kernel):
                totals = np.array([0, 99, 0, 99, 0])
                split = range(first, first + count)
                cover(lengths, documents, split, drawn, index.plan.sequence_length, totals, choose)
                results.append(totals.tolist())
    finally:
        certificate._ENTRIES_OF_A_CALL = before
    assert results[1:] == results[:1] * 3


def test_a_kept_partial_sample_counts_its_own_tokens_only():
    index = GPTDatasetIndex.build(
        np.array([10], np.int32),
        range(1),
        sequence_length=4,
        seed=1,
        num_samples=None,
        drop_last_partial=False,
    )
    assert len(index) == 3
    seen = measure_coverage(np.array([10], np.int32), index.document_index, index.shuffle_index, 3, 4)
    assert (seen.tokens, seen.token_least, seen.token_most) == (10, 1, 1)


@pytest.mark.parametrize(
    ("document_index", "shuffle_index", "draws"),
    [
        ([], [0], 1),
        ([0, 5], [0], 1),
        ([-1, 0], [0], 1),
        ([0, 0, 0, 1], [0], 1),
        ([0, 1], [0, 7], 2),
        ([0, 1], [0], 2),
    ],
)
def test_arrays_that_contradict_each_other_are_refused(document_index, shuffle_index, draws):
    with pytest.raises(IntegrityError):
        measure_coverage(
            np.array([4, 4], np.int32),
            np.array(document_index, np.int32),
            np.array(shuffle_index, np.int64),
            draws,
            4,
        )


@given(weights=st.lists(st.floats(0.01, 1), min_size=1, max_size=8), size=st.integers(0, 300))
@settings(max_examples=60, deadline=None)
def test_deviations_are_those_of_every_prefix(weights, size):
    shares = normalize(weights)
    arrays = build_blending_indices(shares, size)
    drift = measure_weight_errors(*arrays, shares, [size] * len(shares))
    lag, lead = deviations(arrays[0].tolist(), shares)
    np.testing.assert_allclose(drift.lag, lag, atol=1e-9)
    np.testing.assert_allclose(drift.lead, lead, atol=1e-9)
    assert max(drift.curve, default=0) == pytest.approx(max([*lag, *lead]), abs=1e-9)
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
