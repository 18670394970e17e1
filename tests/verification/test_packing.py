import numpy as np
import pytest

from tokshard.gpt_index.index import GPTDatasetIndex
from tokshard.gpt_index.packing import Packing
from tokshard.verification.packing import packing_problems

# Packs of 8 tokens: documents 0 to 6; the remainder of document 1 (2 tokens) comes first in its pack.
LENGTHS = np.array([8, 10, 0, 3, 3, 5, 1], np.int32)


def arrays_of(lengths, packing, epochs):
    index = GPTDatasetIndex.build(
        lengths,
        range(len(lengths)),
        sequence_length=8,
        seed=3,
        num_samples=(epochs - 1) * 5 + 1,
        packing=packing,
    )
    names = ("document_index", "sample_index", "shuffle_index")
    return {name: getattr(index, name).copy() for name in names}, index.plan


def problems(arrays, plan):
    return list(packing_problems(arrays, LENGTHS, range(len(LENGTHS)), plan))


@pytest.mark.parametrize("packing", [Packing(), Packing(max_documents=2), Packing(pad_multiple=2)])
@pytest.mark.parametrize("epochs", [1, 3])
def test_built_arrays_keep_all_guarantees(packing, epochs):
    assert problems(*arrays_of(LENGTHS, packing, epochs)) == []


def position_of(arrays, document):
    return int(np.flatnonzero(arrays["document_index"] == document)[0])


def row_at(arrays, document, offset=0):
    return arrays["sample_index"].tolist().index([position_of(arrays, document), offset])


def twice(arrays):
    arrays["document_index"][position_of(arrays, 6)] = 3
    return "epoch 0 must read each of 6 documents with tokens once"


def empty_document(arrays):
    arrays["document_index"][position_of(arrays, 6)] = 2
    return "epoch 0 must read each of 6 documents with tokens once"


def used_twice(arrays):
    arrays["shuffle_index"][0] = arrays["shuffle_index"][1]
    return "epoch 0 must use each of its samples once"


def skipped_tokens(arrays):
    arrays["sample_index"][0] = arrays["sample_index"][1]
    return "epoch 0: samples must follow each other, with 1 to 8 tokens each"


def long_sample(arrays):
    arrays["sample_index"][1] = arrays["sample_index"][2]
    return "epoch 0: samples must follow each other, with 1 to 8 tokens each"


def cut_document(arrays):
    # A part of document 0 goes to the sample before it, or to its own.
    arrays["document_index"][:-1] = [0, 1, 3, 4, 5, 6]
    arrays["sample_index"][:] = [[0, 0], [1, 0], [1, 7], [3, 2], [6, 0]]
    return "epoch 0: a document must not be cut but at multiples of 8 tokens"


def late_long_document(arrays):
    arrays["document_index"][:-1] = [3, 1, 0, 4, 5, 6]
    arrays["sample_index"][:] = [[0, 0], [1, 8], [2, 0], [3, 0], [6, 0]]
    return "epoch 0: samples must follow each other, with 1 to 8 tokens each"


def beyond_the_document(arrays):
    arrays["sample_index"][row_at(arrays, 1, 8), 1] = 16
    return "epoch 0: each sample must begin at a token of a document of its epoch"


def no_closing_row(arrays):
    arrays["sample_index"][-1, 1] = 1
    return "the last row must be the beginning of the last entry of the document index, which has tokens"


def closed_by_an_empty_document(arrays):
    arrays["document_index"][-1] = 2
    return "the last row must be the beginning of the last entry of the document index, which has tokens"


@pytest.mark.parametrize(
    "change",
    [
        twice,
        empty_document,
        used_twice,
        skipped_tokens,
        long_sample,
        cut_document,
        late_long_document,
        beyond_the_document,
        no_closing_row,
        closed_by_an_empty_document,
    ],
)
def test_changes_that_break_a_guarantee_are_found(change):
    arrays, plan = arrays_of(LENGTHS, Packing(), 1)
    expected = change(arrays)
    assert expected in problems(arrays, plan)


def test_a_long_document_must_begin_a_sample():
    lengths = np.array([8, 16], np.int32)
    arrays, plan = arrays_of(lengths, Packing(), 1)
    arrays["document_index"][:] = [0, 1, 0]
    arrays["sample_index"][:] = [[0, 0], [1, 0], [1, 8], [2, 0]]
    assert list(packing_problems(arrays, lengths, range(2), plan)) == []
    shorter = np.array([4, 20], np.int32)  # 4 tokens of the second document fill the first sample
    arrays["sample_index"][:] = [[0, 0], [1, 8], [1, 16], [2, 0]]
    (problem,) = packing_problems(arrays, shorter, range(2), plan)
    assert problem == "epoch 0: samples must follow each other, with 1 to 8 tokens each"


@pytest.mark.parametrize(
    ("packing", "message"),
    [
        (Packing(max_documents=2), "epoch 0: a sample must have at most 2 documents"),
        (
            Packing(pad_multiple=4),
            "epoch 0: the documents of a sample, padded to multiples of 4, must have room in it",
        ),
    ],
)
def test_limits_of_the_packing(packing, message):
    arrays, plan = arrays_of(LENGTHS, Packing(), 1)
    _, limited = arrays_of(LENGTHS, packing, 1)
    with_limits = type(plan)(
        **{name: getattr(plan, name) for name in plan.__slots__}
        | {
            "packed": type(plan.packed)(
                packing=packing, documents=plan.packed.documents, samples=plan.packed.samples
            )
        }
    )
    assert limited.packed.samples >= plan.packed.samples
    assert problems(arrays, with_limits) == [message]
