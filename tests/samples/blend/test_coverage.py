from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.blends import covered
from tokshard.errors import IntegrityError
from tokshard.samples.blend import coverage
from tokshard.samples.blend.coverage import measure_coverage, measure_packed_coverage
from tokshard.samples.index.index import GPTDatasetIndex
from tokshard.samples.index.packing import Packing


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


@given(case=indexes(), at_once=st.sampled_from([1, 5, 1 << 16]))
@settings(max_examples=150, deadline=None)
def test_documents_and_tokens_are_counted_as_one_by_one(case, at_once):
    lengths, index, draws = case
    arguments = (lengths, index.document_index, index.shuffle_index, draws, index.plan.sequence_length)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coverage, "_ENTRIES_AT_ONCE", at_once)
        found = measure_coverage(*arguments)
    right = covered(
        lengths.tolist(), index.document_index.tolist(), index.shuffle_index.tolist(), *arguments[3:]
    )
    assert {name: getattr(found, name) for name in right} == right
    assert found.tokens_per_epoch == index.plan.tokens_per_epoch


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
    assert seen.tokens == 10


@pytest.mark.parametrize(
    ("document_index", "shuffle_index", "draws"),
    [
        ([], [0], 1),
        ([0, 5], [0], 1),
        ([-1, 0], [0], 1),
        ([0, 0, 0, 1], [0], 1),
        ([0, 1, 1], [0], 1),
        ([0, 1, *[0] * 256], [0], 1),
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
    with_tokens = [d for d in split if lengths[d]]
    assert found == coverage.SourceCoverage(
        documents=len(with_tokens),
        documents_drawn=len(of_documents),
        document_least=min(of_documents[d] for d in with_tokens),
        document_most=max(of_documents[d] for d in with_tokens),
        tokens=tokens.total(),
        tokens_per_epoch=int(lengths[list(split)].sum()),
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


@pytest.mark.parametrize("documents", [[1, 1], [0, 1, 0]])
def test_a_packed_index_with_an_empty_document_is_refused(documents):
    rows, shuffled = np.zeros((len(documents), 2), np.int32), np.zeros(2, np.uint32)
    with pytest.raises(IntegrityError, match="once per epoch"):
        measure_packed_coverage(
            np.array([4, 0], np.int32), np.array(documents, np.int32), rows, shuffled, 1, 4
        )
