import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.index_cache.support import (
    lengths_lists,
    slow_document_index,
    slow_sample_index,
    slow_shuffle_index,
)
from tokshard.errors import InputError, UsageError
from tokshard.gpt_index.index import GPTDatasetIndex


@given(
    lengths=lengths_lists(),
    cut=st.integers(0, 6),
    length=st.integers(1, 10),
    wanted=st.integers(0, 40),
    seed=st.integers(0, 2**32 - 1),
    extra=st.booleans(),
)
@settings(deadline=None)
def test_the_three_arrays_come_from_one_stream(lengths, cut, length, wanted, seed, extra):
    sequences = range(min(cut, len(lengths) - 1), len(lengths))
    if sum(lengths[sequences.start :]) == 0:
        sequences = range(len(lengths))
    index = GPTDatasetIndex.build(
        np.array(lengths, np.int32),
        sequences,
        sequence_length=length,
        seed=seed,
        num_samples=wanted,
        extra_token=extra,
    )
    plan, random = index.plan, np.random.RandomState(seed)
    order = slow_document_index(sequences, plan.epochs, random, separate=plan.separate_final_epoch)
    assert index.document_index.tolist() == order
    rows = slow_sample_index(lengths, order, plan.samples, length, extra)
    assert index.sample_index.tolist() == [list(row) for row in rows]
    border = plan.samples_before_final if plan.separate_final_epoch else plan.samples
    assert index.shuffle_index.tolist() == slow_shuffle_index(plan.samples, random, border)
    assert len(index) == plan.samples >= wanted


def test_a_large_index_has_the_bits_of_small_steps(monkeypatch):
    lengths = np.random.RandomState(0).randint(0, 40, 600_000).astype(np.int32)
    arguments = {"sequence_length": 64, "seed": 1234, "num_samples": 200_000}
    large = GPTDatasetIndex.build(lengths, range(600_000), **arguments)
    assert large.plan.documents > 10**6
    monkeypatch.setattr("tokshard.gpt_index.shuffling.WORTH_COMPILING", 10**9)
    monkeypatch.setattr("tokshard.gpt_index.indices.WORTH_COMPILING", 10**9)
    small = GPTDatasetIndex.build(lengths, range(600_000), **arguments)
    for name in ("document_index", "sample_index", "shuffle_index"):
        assert (getattr(large, name) == getattr(small, name)).all()


@pytest.mark.parametrize("sequences", [range(4), range(-1, 2), range(0, 3, 2)])
def test_sequences_outside_the_data_set_are_refused(sequences):
    with pytest.raises(UsageError, match="the dataset has 3 sequences"):
        GPTDatasetIndex.build(np.ones(3, np.int32), sequences, sequence_length=1, seed=1, num_samples=0)


def test_an_empty_split_is_refused():
    with pytest.raises(InputError, match="holds no sequence"):
        GPTDatasetIndex.build(np.ones(3, np.int32), range(3, 3), sequence_length=1, seed=1, num_samples=0)


def test_the_tokens_of_an_epoch_do_not_overflow():
    lengths = np.full(3, 2**31 - 1, np.int32)
    index = GPTDatasetIndex.build(lengths, range(3), sequence_length=2**30, seed=1, num_samples=None)
    assert index.plan.tokens_per_epoch == 3 * (2**31 - 1)
    assert index.sample_index.tolist() == [list(row) for row in slow_rows(lengths.tolist(), index)]


def slow_rows(lengths, index):
    """Like the slow twin, but without a list of all tokens."""
    rows = [(0, 0)]
    for row in range(1, len(index) + 1):
        position, token = 0, row * index.plan.sequence_length
        while token >= lengths[index.document_index[position]]:
            token -= lengths[index.document_index[position]]
            position += 1
        rows.append((position, token))
    return rows
