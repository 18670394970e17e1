from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.blends import covered, deviations
from tokshard.errors import IntegrityError
from tokshard.samples.blend import certificate
from tokshard.samples.blend.certificate import measure_coverage, measure_weight_errors
from tokshard.samples.blend.order import build_blending_indices, normalize
from tokshard.samples.index.index import GPTDatasetIndex
from tokshard.samples.index.packing import Packing


@given(
    weights=st.lists(st.floats(0.01, 1), min_size=1, max_size=8),
    size=st.integers(0, 300),
    at_once=st.sampled_from([1, 7, 1 << 18]),
)
@settings(max_examples=60, deadline=None)
def test_weight_errors_are_the_largest_deviations_over_all_prefixes(weights, size, at_once):
    shares = normalize(weights)
    arrays = build_blending_indices(shares, size)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certificate, "_ENTRIES_AT_ONCE", at_once)
        draws, errors = measure_weight_errors(*arrays, shares)
    np.testing.assert_allclose(errors, deviations(arrays[0].tolist(), shares), atol=1e-9)
    assert draws.tolist() == [arrays[0].tolist().count(source) for source in range(len(shares))]


def test_many_small_sources_make_a_deviation_above_one():
    shares = normalize([0.9, *[0.002] * 50])
    _, errors = measure_weight_errors(*build_blending_indices(shares, 5000), shares)
    assert 1.75 < max(errors) < 1.85


@pytest.mark.parametrize(
    ("sources", "samples", "message"),
    [
        ([0, 1, 0, 2], [0, 0, 1, 0], "dataset_index must hold source numbers below 2"),
        ([0, -1], [0, 0], "dataset_index must hold source numbers below 2"),
        ([0, 1, 0, 0], [0, 0, 1, 3], "dataset_sample_index must number the samples of each source from 0"),
        ([0, 1, 0, 0], [0, 0, 1, 1], "dataset_sample_index must number the samples of each source from 0"),
        ([0, 1, 0], [0, 1, 1], "dataset_sample_index must number the samples of each source from 0"),
    ],
)
def test_orders_with_impossible_draws_are_refused(sources, samples, message):
    with pytest.raises(IntegrityError, match=message):
        measure_weight_errors(np.array(sources, np.int16), np.array(samples), [0.75, 0.25])


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


@given(case=indexes(), at_once=st.sampled_from([1, 5, 1 << 18]))
@settings(max_examples=150, deadline=None)
def test_documents_and_tokens_are_counted_as_one_by_one(case, at_once):
    lengths, index, draws = case
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certificate, "_ENTRIES_AT_ONCE", at_once)
        coverage = measure_coverage(lengths, index, draws)
    assert coverage == covered(
        lengths.tolist(),
        index.document_index.tolist(),
        index.shuffle_index.tolist(),
        draws,
        index.plan.sequence_length,
    )


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
    assert measure_coverage(np.array([10], np.int32), index, 3)["tokens"] == 10


def test_the_coverage_of_a_large_split_stays_as_it_was():
    lengths = np.random.RandomState(3).randint(0, 900, 400_000).astype(np.int32)
    options = {"sequence_length": 512, "seed": 7, "num_samples": 500_000}
    index = GPTDatasetIndex.build(lengths, range(100_000, 400_000), **options)
    names = ("tokens", "documents", "documents_drawn", "document_least", "document_most")
    coverage = measure_coverage(lengths, index, 300_000)
    assert [coverage[name] for name in names] == [153600000, 299659, 280202, 0, 2]
    packed = GPTDatasetIndex.build(
        lengths, range(100_000, 400_000), **options, packing=Packing(max_documents=4)
    )
    coverage = measure_coverage(lengths, packed, 300_000)
    assert [coverage[name] for name in names] == [150959378, 299659, 299659, 1, 2]


ONCE = "document_index must contain every document of its split once per epoch"
DRAWN = "shuffle_index must contain 2 distinct samples"


@pytest.mark.parametrize(
    ("document_index", "shuffle_index", "draws", "message"),
    [
        ([], [0], 1, "document_index must hold document numbers below 2"),
        ([0, 5], [0], 1, "document_index must hold document numbers below 2, got 0 to 5"),
        ([-1, 0], [0], 1, "document_index must hold document numbers below 2, got -1 to 0"),
        ([0, 0, 0, 1], [0], 1, ONCE),
        ([0, 1, 1], [0], 1, ONCE),
        ([0, 1, *[0] * 256], [0], 1, ONCE),
        ([0, 1], [0, 7], 2, DRAWN),
        ([0, 1], [0], 2, DRAWN),
        ([0, 1], [0, 0], 2, DRAWN),
    ],
)
def test_arrays_that_contradict_each_other_are_refused(document_index, shuffle_index, draws, message):
    lengths = np.array([4, 4], np.int32)
    index = GPTDatasetIndex.build(lengths, range(2), sequence_length=4, seed=1, num_samples=None)
    changed = replace(
        index,
        document_index=np.array(document_index, np.int32),
        shuffle_index=np.array(shuffle_index, np.int64),
    )
    with pytest.raises(IntegrityError, match=message):
        measure_coverage(lengths, changed, draws)


@given(
    lengths=st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(any),
    size=st.integers(1, 12),
    num_samples=st.integers(0, 60),
    share=st.floats(0, 1),
    at_once=st.sampled_from([1, 3, 1 << 18]),
)
def test_packed_documents_and_tokens_are_counted_as_one_by_one(lengths, size, num_samples, share, at_once):
    lengths = np.array(lengths, np.int32)
    split = (
        range(len(lengths) // 3, len(lengths)) if lengths[len(lengths) // 3 :].any() else range(len(lengths))
    )
    index = GPTDatasetIndex.build(
        lengths,
        split,
        sequence_length=size,
        seed=1,
        num_samples=num_samples,
        packing=Packing(max_documents=3),
    )
    draws = int(share * len(index))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(certificate, "_ENTRIES_AT_ONCE", at_once)
        coverage = measure_coverage(lengths, index, draws)
    tokens, documents = Counter(), Counter()
    rows = index.sample_index.tolist()
    for row in index.shuffle_index[:draws].tolist():
        (place, offset), (end, _) = rows[row], rows[row + 1]
        left = size
        for position in range(place, max(end, place + 1)):
            document = int(index.document_index[position])
            taken = range(offset, min(int(lengths[document]), offset + left))
            tokens.update((document, token) for token in taken)
            documents[position // index.plan.packed.documents, document] = 1
            left, offset = left - len(taken), 0
    of_documents = Counter(document for _, document in documents)
    with_tokens = [d for d in split if lengths[d]]
    assert coverage == {
        "documents": len(with_tokens),
        "documents_drawn": len(of_documents),
        "document_least": min(of_documents[d] for d in with_tokens),
        "document_most": max(of_documents[d] for d in with_tokens),
        "tokens": tokens.total(),
        "epochs": tokens.total() / int(lengths[list(split)].sum()),
    }


FIRST = "sample_index must begin with the first document of each epoch"


@pytest.mark.parametrize(
    ("lengths", "documents", "rows", "shuffled", "message"),
    [
        ([4, 4], [0, 1, 0], [[0, 0], [2, 0]], [5], "shuffle_index must contain 1 distinct samples of 1"),
        ([4, 4], [0, 0, 0], [[0, 0], [2, 0]], [0], FIRST),  # two epochs in one row
        ([4, 4], [0, 1, 1, 0], [[0, 0], [3, 0]], [0], ONCE),  # a document missing in the second epoch
        ([4, 4], [0, 1, 0], [[1, 0], [2, 0]], [0], FIRST),  # a document before the first row
        ([9, 4], [0, 1, 0], [[0, 0], [2, 0]], [0], FIRST),  # a document of two rows before the second row
        ([4, 4], [0, 1, 0], [[0, 0], [1, 0], [2, 0]], [0], FIRST),  # more rows than samples
        ([4, 0], [1, 1], [[0, 0], [1, 0]], [0], ONCE),  # a document without tokens
        ([4, 0], [0, 1, 0], [[0, 0], [1, 0], [2, 0]], [1, 0], ONCE),  # likewise, in the second epoch
    ],
)
def test_packed_arrays_that_contradict_each_other_are_refused(lengths, documents, rows, shuffled, message):
    packed = GPTDatasetIndex.build(
        np.array([4, 4], np.int32), range(2), sequence_length=8, seed=1, num_samples=None, packing=Packing()
    )
    index = GPTDatasetIndex(
        np.array(documents, np.int32), np.array(rows, np.int32), np.array(shuffled, np.uint32), packed.plan
    )
    with pytest.raises(IntegrityError, match=message):
        measure_coverage(np.array(lengths, np.int32), index, 1)
