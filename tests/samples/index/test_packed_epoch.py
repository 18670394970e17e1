"""P52: numbers of packed epochs equal counts, and expected cuts those of concatenated indexes."""

from __future__ import annotations

from math import gcd

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokshard.samples.index.best_fit import EpochPacks
from tokshard.samples.index.index import GPTDatasetIndex
from tokshard.samples.index.packing import Packing


def packed_epoch(lengths, size, packing=None):
    lengths = np.array(lengths, np.int32)
    return EpochPacks.of(lengths, range(len(lengths)), size, packing or Packing()).size.packed


@st.composite
def cases(draw):
    multiple = draw(st.sampled_from([None, 1, 2, 3]))
    size = draw(st.integers(1, 10)) * (multiple or 1)
    factor = draw(st.integers(1, 4))  # lengths with a common divisor
    lengths = [factor * n for n in draw(st.lists(st.integers(0, 2 * size), min_size=1, max_size=12))]
    packing = Packing(max_documents=draw(st.sampled_from([None, 1, 2, 3])), pad_multiple=multiple)
    return lengths, size, packing


def cuts(lengths, size, first):
    """Return the numbers of documents that are cut if samples begin at token ``first`` and every ``size``."""
    cut, start = [], 0
    for number, length in enumerate(lengths):
        if any((token - first) % size == 0 for token in range(start + 1, start + length)):
            cut.append(number)
        start += length
    return cut


@given(case=cases())
def test_expected_cuts_are_the_average_over_all_positions_where_samples_can_begin(case):
    lengths, size, packing = case
    if not any(lengths):
        return
    packed = packed_epoch(lengths, size, packing)
    cut = [cuts(lengths, size, first) for first in range(0, size, gcd(size, *lengths))]
    # The numbers are rounded to whole documents and tokens.
    assert packed.concat_cut_documents == pytest.approx(np.mean([len(numbers) for numbers in cut]), abs=0.5)
    tokens = [sum(lengths[number] for number in numbers) for numbers in cut]
    assert packed.concat_cut_tokens == pytest.approx(np.mean(tokens), abs=0.5)


@given(case=cases())
def test_numbers_of_an_epoch_equal_counts_of_its_documents(case):
    lengths, size, packing = case
    packed = packed_epoch(lengths, size, packing)
    if not any(lengths):
        assert packed is None
        return
    longer = [length for length in lengths if length > size]
    assert (packed.cut_documents, packed.cut_tokens) == (len(longer), sum(longer))
    assert (packed.packing, packed.documents) == (packing, sum(map(bool, lengths)))


LENGTHS = {
    "log-normal": lambda draw: np.exp(draw.normal(3, 1.2, 400)).astype(np.int32) + 1,
    "mostly-longer": lambda draw: draw.randint(1, 400, 400).astype(np.int32),
    "few-values": lambda draw: draw.choice([24, 40, 56], 400).astype(np.int32),
    "multiples-of-16": lambda draw: 16 * draw.randint(1, 8, 400).astype(np.int32),
    "all-full": lambda draw: np.full(400, 64, np.int32),
}


@pytest.mark.parametrize("kind", LENGTHS)
def test_expected_cuts_are_those_of_real_concatenated_indexes(kind):
    """40 seeds of Megatron's indexes: the mean of the counted cuts is within 1% of the expectation."""
    size, seeds = 64, 40
    lengths = LENGTHS[kind](np.random.RandomState(7))
    expected = packed_epoch(lengths, size)
    documents, tokens = [], []
    for seed in range(seeds):
        index = GPTDatasetIndex.build(
            lengths, range(len(lengths)), sequence_length=size, seed=seed, num_samples=None
        )
        rows = index.sample_index[1:]
        cut = index.document_index[np.unique(rows[rows[:, 1] > 0, 0])]
        documents.append(len(cut))
        tokens.append(int(lengths[cut].sum()))
    assert np.mean(documents) == pytest.approx(expected.concat_cut_documents, rel=0.01, abs=0.5)
    assert np.mean(tokens) == pytest.approx(expected.concat_cut_tokens, rel=0.01, abs=0.5 * size)
    if kind == "all-full":
        assert (expected.concat_cut_documents, expected.concat_cut_tokens) == (0, 0)
