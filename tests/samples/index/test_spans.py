from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from support.index_twins import lengths_lists
from support.plain_datasets import Plain
from tokshard.dataset.reader import IndexedDataset
from tokshard.errors import InputError, IntegrityError
from tokshard.samples.index.index import GPTDatasetIndex
from tokshard.samples.index.spans import SampleSpans, document_extents

ARGUMENTS = st.fixed_dictionaries(
    {
        "num_samples": st.integers(0, 30),
        "sequence_length": st.integers(1, 12),
        "extra_token": st.booleans(),
        "drop_last_partial": st.booleans(),
        "seed": st.integers(0, 3),
    }
)


@st.composite
def indexes(draw):
    lengths = np.array([*draw(lengths_lists()), 1], np.int32)
    try:
        return GPTDatasetIndex.build(lengths, range(len(lengths)), **draw(ARGUMENTS)), lengths
    except InputError:  # an empty sequence is read last, see test_indices
        reject()


def slow_spans(index, lengths, sample):
    """The nonempty spans of a sample, found token by token: (position, sequence, first, count)."""
    tokens = [
        (position, sequence, token)
        for position, sequence in enumerate(index.document_index.tolist())
        for token in range(lengths[sequence])
    ]
    plan, row = index.plan, int(index.shuffle_index[sample])
    begin = row * plan.sequence_length
    spans = []
    for position, sequence, token in tokens[begin : begin + plan.sample_tokens]:
        if spans and spans[-1][0] == position:
            spans[-1][3] += 1
        else:
            spans.append([position, sequence, token, 1])
    return [tuple(span) for span in spans]


def as_tuples(spans):
    columns = (spans.owners, spans.sequences, spans.firsts, spans.counts)
    assert all(column.dtype == np.int64 for column in columns)
    return list(zip(*(column.tolist() for column in columns), strict=True))


@given(indexes(), st.data())
@settings(deadline=None)
def test_spans_of_samples_are_those_found_token_by_token(built, data):
    index, lengths = built
    spans = SampleSpans(index, lengths)
    numbers = st.integers(0, len(index) - 1)
    samples = data.draw(st.lists(numbers, max_size=8)) if len(index) else []
    found = spans.of_samples(np.array(samples, np.int64))
    expected = [
        (owner, *span[1:])
        for owner, sample in enumerate(samples)
        for span in slow_spans(index, lengths, sample)
    ]
    assert as_tuples(found.nonempty()) == expected
    for owner, sample in enumerate(samples):
        sequences, first, counts, tokens = spans.of_sample(sample)
        assert tokens == sum(counts)
        mine = [span[1:] for span in as_tuples(found) if span[0] == owner]
        firsts = [first, *[0] * (len(counts) - 1)]
        assert mine == list(zip(sequences.tolist(), firsts, counts, strict=True))


@given(indexes(), st.data())
@settings(deadline=None)
def test_spans_of_positions_are_those_of_all_samples_that_read_them(built, data):
    index, lengths = built
    positions = data.draw(st.lists(st.integers(0, index.plan.documents - 1), unique=True, max_size=8))
    row_of = index.shuffle_index.tolist()
    expected = sorted(
        (positions.index(span[0]), row_of[sample], *span[1:])
        for sample in range(len(index))
        for span in slow_spans(index, lengths, sample)
        if span[0] in positions
    )
    found = SampleSpans(index, lengths).of_positions(np.array(positions, np.int64))
    assert as_tuples(found) == [span[1:] for span in expected]


@given(indexes(), st.data())
@settings(deadline=None, max_examples=300)
def test_the_two_ways_to_spans_of_samples_refuse_the_same_damage(built, data):
    index, lengths = built
    if not len(index):
        reject()
    name = data.draw(st.sampled_from(["document_index", "sample_index", "shuffle_index"]))
    damaged = getattr(index, name).astype(np.int64)
    damaged.flat[data.draw(st.integers(0, damaged.size - 1))] = data.draw(st.integers(-12, 40))
    spans = SampleSpans(replace(index, **{name: damaged}), lengths)
    for sample in range(len(index)):
        counts = counts_or_refusal(lambda k=sample: spans.of_sample(k)[2])
        assert counts_or_refusal(lambda k=sample: spans.of_samples(np.array([k])).counts.tolist()) == counts
        assert isinstance(counts, list) or counts == f"sample {sample} of the index does not fit its dataset"


def counts_or_refusal(read):
    try:
        return read()
    except IntegrityError as error:
        return str(error)


def test_positions_of_a_damaged_index_are_refused():
    lengths = np.array([3, 7], np.int32)
    index = GPTDatasetIndex.build(lengths, range(2), sequence_length=4, seed=0, num_samples=None)
    for rows in ([[0, 9], [1, 1], [1, 5]], [[0, 0], [1, 9], [1, 5]]):
        spans = SampleSpans(replace(index, sample_index=np.array(rows)), lengths)
        with pytest.raises(IntegrityError, match="row 0 of the index does not fit its dataset"):
            spans.of_positions(np.arange(2))


def test_shapes_that_contradict_the_plan_are_refused():
    lengths = np.array([3, 7], np.int32)
    index = GPTDatasetIndex.build(lengths, range(2), sequence_length=4, seed=0, num_samples=None)
    with pytest.raises(IntegrityError, match="the arrays of the index must have the shapes"):
        SampleSpans(replace(index, document_index=np.array([0])), lengths)


@given(st.lists(st.lists(st.integers(0, 5), max_size=4), max_size=5))
@settings(deadline=None)
def test_extents_are_the_bytes_of_the_tokens(tmp_path_factory, documents):
    prefix = tmp_path_factory.mktemp("extents") / "data"
    numbers = iter(range(1000))
    sequences = [[[next(numbers) for _ in range(length)] for length in document] for document in documents]
    Plain("uint16", sequences).write(str(prefix))
    content = prefix.with_suffix(".bin").read_bytes()
    dataset = IndexedDataset(str(prefix))
    firsts, sizes = document_extents(dataset.index, np.arange(len(documents)))
    for document, first, size in zip(sequences, firsts.tolist(), sizes.tolist(), strict=True):
        expected = [token for sequence in document for token in sequence]
        assert np.frombuffer(content[first : first + size], "<u2").tolist() == expected
    lengths = dataset.sequence_lengths
    if lengths.sum() > 2:
        plan = {"sequence_length": 2, "seed": 1, "num_samples": None}
        index = GPTDatasetIndex.build(lengths, range(len(lengths)), **plan)
        spans = SampleSpans(index, lengths).of_samples(np.arange(len(index)))
        flat = [sequence for document in sequences for sequence in document]
        for sequence, first, count, byte, size in zip(
            spans.sequences, spans.firsts, spans.counts, *spans.extents(dataset.index), strict=True
        ):
            expected = flat[sequence][first : first + count]
            assert np.frombuffer(content[byte : byte + size], "<u2").tolist() == expected
