"""P52: the report of packed samples: every number is counted one by one, and cuts also in real indexes."""

from __future__ import annotations

import itertools
from math import gcd

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokshard.samples.index.best_fit import EpochPacks
from tokshard.samples.index.index import GPTDatasetIndex
from tokshard.samples.index.packing import Packing
from tokshard.samples.index.packing_report import PackingReport


def report_of(lengths, size, packing=None, *, extra_token=True):
    lengths = np.array(lengths, np.int32)
    packs = EpochPacks.of(lengths, range(len(lengths)), size, packing or Packing())
    return PackingReport.of(packs, extra_token=extra_token)


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
    found, start = [], 0
    for number, length in enumerate(lengths):
        if any((token - first) % size == 0 for token in range(start + 1, start + length)):
            found.append(number)
        start += length
    return found


@given(case=cases())
def test_the_expected_cuts_are_the_average_over_all_places_where_samples_can_begin(case):
    lengths, size, packing = case
    if not any(lengths):
        return
    found = report_of(lengths, size, packing).concat
    common = gcd(size, *lengths)
    cut = [cuts(lengths, size, first) for first in range(0, size, common)]
    assert found.cut_documents == pytest.approx(np.mean([len(each) for each in cut]))
    tokens = [sum(lengths[number] for number in each) for each in cut]
    assert found.cut_tokens == pytest.approx(np.mean(tokens))


@given(case=cases(), extra=st.booleans())
def test_the_numbers_are_those_of_the_documents(case, extra):
    lengths, size, packing = case
    if not any(lengths):
        return
    report = report_of(lengths, size, packing, extra_token=extra)
    longer = [length for length in lengths if length > size]
    assert (report.cut_documents, report.cut_tokens) == (len(longer), sum(longer))
    assert (report.documents, report.tokens) == (sum(map(bool, lengths)), sum(lengths))
    assert report.samples * size == report.tokens + report.padding_tokens
    assert report.fill == report.tokens / (report.samples * size)
    assert report.concat.samples == max(0, sum(lengths) - extra) // size
    assert report.documents_per_sample.count == report.samples
    full = sum((length - 1) // size for length in longer)
    assert report.documents_per_sample.total == report.documents + full


def fewest_packs(sizes, remainders, room, most):
    """Return the fewest packs, by trying all; each of the first ``remainders`` sizes opens one."""
    for packs in itertools.count(remainders):
        for places in itertools.product(range(packs), repeat=len(sizes) - remainders):
            used = [*range(remainders), *places]
            loads = [sum(s for s, p in zip(sizes, used, strict=True) if p == pack) for pack in range(packs)]
            if all(load <= room for load in loads) and all(used.count(p) <= most for p in range(packs)):
                return packs
    raise AssertionError


@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=5),
    size=st.sampled_from([6, 8]),
    most=st.integers(1, 3),
    multiple=st.sampled_from([1, 2]),
)
def test_no_packing_has_fewer_samples_than_the_minimum(lengths, size, most, multiple):
    report = report_of(lengths, size, Packing(max_documents=most, pad_multiple=multiple))
    lengths = sorted(lengths, reverse=True)
    rooms = [-(-((n - 1) % size + 1) // multiple) * multiple for n in lengths]
    full, longer = sum((n - 1) // size for n in lengths), sum(n > size for n in lengths)
    fewest = full + fewest_packs(rooms, longer, size, most)
    assert report.minimum_samples <= fewest <= report.samples


def test_the_minimum_is_that_of_the_tightest_limit():
    assert report_of([8, 8, 3, 5], 8).minimum_samples == 3
    assert report_of([9, 9, 9], 8).minimum_samples == 3 + 3  # each remainder of 1 token begins a pack
    assert report_of([1] * 6, 8, Packing(max_documents=2)).minimum_samples == 3
    assert report_of([1] * 6, 8, Packing(pad_multiple=4)).minimum_samples == 3


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
    expected = report_of(lengths, size).concat
    documents, tokens = [], []
    for seed in range(seeds):
        index = GPTDatasetIndex.build(
            lengths, range(len(lengths)), sequence_length=size, seed=seed, num_samples=None
        )
        rows = index.sample_index[1:]
        cut = index.document_index[np.unique(rows[rows[:, 1] > 0, 0])]
        documents.append(len(cut))
        tokens.append(int(lengths[cut].sum()))
        assert len(index) == expected.samples
    assert np.mean(documents) == pytest.approx(expected.cut_documents, rel=0.01, abs=0.5)
    assert np.mean(tokens) == pytest.approx(expected.cut_tokens, rel=0.01, abs=0.5 * size)
    if kind == "all-full":
        assert (expected.cut_documents, expected.cut_tokens) == (0, 0)
