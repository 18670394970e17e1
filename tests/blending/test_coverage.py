from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.blends import covered
from tokshard.blending import coverage, kernels
from tokshard.blending.coverage import measure_coverage, measure_packed_coverage
from tokshard.errors import IntegrityError
from tokshard.gpt_index.index import GPTDatasetIndex
from tokshard.gpt_index.packing import Packing
from tokshard.storage.compilation import compiled, has_numba


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
    before = coverage._PLACES_AT_ONCE
    coverage._PLACES_AT_ONCE = places
    try:
        found = measure_coverage(*arguments)
    finally:
        coverage._PLACES_AT_ONCE = before
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
        events = np.empty((80 + 3) * index.plan.epochs, np.int64)
        tokens = choose(kernels.place_documents)(lengths, index.document_index, first, places, seen)
        choose(kernels.cover_documents)(
            lengths, first, places, drawn, index.plan.sequence_length, totals, events
        )
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
    before, results = coverage._ENTRIES_OF_A_CALL, []
    coverage._ENTRIES_OF_A_CALL = pieces
    try:
        for cover in (coverage._cover_once, coverage._cover):
            for choose in (compiled, lambda kernel: kernel):
                totals = np.array([0, 99, 0, 99, 0])
                split = range(first, first + count)
                cover(lengths, documents, split, drawn, index.plan.sequence_length, totals, choose)
                results.append(totals.tolist())
    finally:
        coverage._ENTRIES_OF_A_CALL = before
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
        patch.setattr(coverage, "_DOCUMENTS_AT_ONCE", at_once)
        found = measure_packed_coverage(
            lengths, index.document_index, index.sample_index, index.shuffle_index, draws, size
        )
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
    everything = [(d, t) for d in split for t in range(lengths[d])]
    with_tokens = [d for d in split if lengths[d]]
    assert found == coverage.SourceCoverage(
        documents=len(with_tokens),
        documents_drawn=len(of_documents),
        document_least=min(of_documents[d] for d in with_tokens),
        document_most=max(of_documents[d] for d in with_tokens),
        token_least=min(tokens[token] for token in everything),
        token_most=max(tokens[token] for token in everything),
        tokens=tokens.total(),
        tokens_per_epoch=len(everything),
    )


@pytest.mark.parametrize(
    ("documents", "rows", "shuffled"),
    [
        ([0, 1, 0], [[0, 0], [2, 0]], [5]),  # no such sample
        ([0, 0, 0], [[0, 0], [2, 0]], [0]),  # a document twice
        ([0, 1, 1, 0], [[0, 0], [3, 0]], [0]),  # a document missing in the second epoch
        ([0, 1, 0], [[1, 0], [2, 0]], [0]),  # a document before the first sample
    ],
)
def test_packed_arrays_that_contradict_each_other_are_refused(documents, rows, shuffled):
    with pytest.raises(IntegrityError):
        measure_packed_coverage(
            np.array([4, 4], np.int32),
            np.array(documents, np.int32),
            np.array(rows, np.int32),
            np.array(shuffled, np.uint32),
            1,
            8,
        )
