"""scripts/bench packing: the packers that it compares keep the rules, and it counts cut documents."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.benchmarks import benchmark_modules
from tokshard.samples.index.index import GPTDatasetIndex
from tokshard.samples.index.packing import Packing
from tokshard.samples.index.spans import SampleSpans


@pytest.fixture(scope="module")
def benchmarks():
    with benchmark_modules("packing", "packers") as modules, pytest.MonkeyPatch.context() as patch:
        patch.setattr(modules["packers"], "compiled", lambda kernel: kernel)
        yield modules


SIZE = 10
LENGTHS = st.lists(st.integers(0, SIZE) | st.integers(0, 4 * SIZE), min_size=1, max_size=40)


def slow_first_fit(lengths):
    full = [SIZE for length in lengths for _ in range((length - 1) // SIZE) if length > SIZE]
    packs = sorted(((length - 1) % SIZE + 1 for length in lengths if length > SIZE), reverse=True)
    for length in sorted((length for length in lengths if 0 < length <= SIZE), reverse=True):
        fits = [k for k, used in enumerate(packs) if used + length <= SIZE]
        packs = packs if fits else [*packs, 0]
        packs[fits[0] if fits else -1] += length
    return len(full) + len(packs)


@given(lengths=LENGTHS)
def test_the_packers_that_are_compared_keep_the_rules(benchmarks, lengths):
    packers, array = benchmarks["packers"], np.array(lengths, np.int32)
    packed = packers.plan(array, SIZE, Packing()).size.packed
    samples = packed.samples if packed else 0
    assert packers.first_fit(array, SIZE) == slow_first_fit(lengths)
    assert packers.sorted_containers(array, SIZE) == samples
    assert packers.least_samples(array, SIZE) <= min(samples, slow_first_fit(lengths))


@given(lengths=LENGTHS, packing=st.sampled_from([None, Packing()]))
def test_cut_documents_are_those_that_a_single_sample_does_not_contain(benchmarks, lengths, packing):
    array = np.array([*lengths, SIZE + 1], np.int32)
    index = GPTDatasetIndex.build(
        array, range(len(array)), sequence_length=SIZE, seed=1, num_samples=None, packing=packing
    )
    spans = SampleSpans(index, array).of_samples(np.arange(len(index)))
    whole, inputs = set(), Counter()
    for sample in range(len(index)):
        left = SIZE  # the last label is no input
        for place in np.flatnonzero(spans.owners == sample):
            document, count = int(spans.sequences[place]), min(int(spans.counts[place]), left)
            left -= count
            inputs[document] += count
            whole |= {document} if count == array[document] else set()
    expected = {document for document, count in inputs.items() if count} - whole
    tokens = sum(int(array[document]) for document in expected)
    assert benchmarks["packing"].cut(index, array) == (len(expected), tokens)


def test_tables_of_a_small_run(benchmarks, capsys):
    packing = benchmarks["packing"]
    packing.fill({"three documents": np.array([9, 5, 3], np.int32)}, [8])
    packing.main(["--tables", "peers", "--scale", "0.0002", "--rounds", "1"])
    lines = capsys.readouterr().out.splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert rows[3][:7] == ["three documents", "8", "3", "3", "3", "70.83%", "70.83%"]
    assert rows[3][7:] == ["66.7%, 82.4%", "33.3%, 52.9%"]
    header = next(row for row in rows if row[0] == "200 documents")
    found = {row[0]: row[header.index("samples")] for row in rows[rows.index(header) + 2 :] if len(row) > 1}
    assert [*found] == ["sortedcontainers", "tokshard, the whole index", "tokshard, packs only"]
    assert len({*found.values()}) == 1
