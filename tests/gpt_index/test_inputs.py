"""Input tokens of rows against a list of all tokens of the stream."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tokshard.errors import InputError, IntegrityError, UsageError
from tokshard.gpt_index.index import GPTDatasetIndex
from tokshard.gpt_index.inputs import InputTokens
from tokshard.gpt_index.packing import Packing


def build(lengths, *, samples=None, sequence_length=4, extra=True, drop=True, packing=None):
    lengths = np.array(lengths, np.int32)
    return lengths, GPTDatasetIndex.build(
        lengths,
        range(len(lengths)),
        sequence_length=sequence_length,
        seed=5,
        num_samples=samples,
        extra_token=extra,
        drop_last_partial=drop,
        packing=packing,
    )


def stream_of(lengths, index):
    """List (position, sequence, token) of the stream."""
    return [
        (position, int(sequence), token)
        for position, sequence in enumerate(index.document_index)
        for token in range(lengths[sequence])
    ]


def slow_pieces(stream, inputs, times):
    """Return the pieces by the definition: runs of wanted tokens of one position, level by level."""
    found = []
    for level in range(1, max(times, default=0) + 1):
        previous = None
        for (position, sequence, token), row in zip(stream, inputs, strict=True):
            if times[row] < level:
                previous = None
                continue
            if previous == (position, token - 1):
                found[-1][2] += 1
            else:
                found.append([sequence, token, 1])
            previous = (position, token)
    return [tuple(piece) for piece in found]


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_pieces_are_the_input_tokens_of_rows(data):
    lengths = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=8))
    length, extra = data.draw(st.integers(1, 7)), data.draw(st.booleans())
    samples = data.draw(st.none() | st.integers(0, 20))
    drop = data.draw(st.booleans())
    assume(sum(lengths))
    try:
        lengths, index = build(lengths, samples=samples, sequence_length=length, extra=extra, drop=drop)
    except (InputError, UsageError):
        return
    inputs, stream = InputTokens(index, lengths), stream_of(lengths, index)
    count = len(index)
    # The remainder is what no sample has as an input: the row of each token follows from its number.
    end = count * length if drop else len(stream) - extra
    rows = [min(place // length, count) if place < end else count for place in range(len(stream))]
    tokens = np.bincount(rows, minlength=count + 1)
    assert inputs.of_rows().tolist() == tokens.tolist()
    times = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    tail = data.draw(st.integers(0, 2))
    by_row = inputs.by_row(np.array(times, np.int32), tail)
    expected = [0] * count + [tail]
    for sample, row in enumerate(index.shuffle_index.tolist()):
        expected[row] = times[sample]
    assert by_row.tolist() == expected
    pieces = inputs.pieces(by_row)
    found = zip(pieces.sequences.tolist(), pieces.firsts.tolist(), pieces.counts.tolist(), strict=True)
    assert list(found) == slow_pieces(stream, rows, expected)
    assert pieces.tokens == int((tokens * by_row).sum())


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_packed_rows_are_whole_documents_or_full_parts_of_long_ones(data):
    lengths = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=8))
    assume(sum(lengths))
    length, samples = data.draw(st.integers(1, 7)), data.draw(st.none() | st.integers(0, 20))
    lengths, index = build(lengths, samples=samples, sequence_length=length, packing=Packing())
    inputs, stream = (
        InputTokens(index, lengths),
        stream_of(lengths, index)[: -lengths[index.document_index[-1]]],
    )
    bounds = index.sample_index.tolist()
    rows = [max(row for row, (p, o) in enumerate(bounds) if (p, o) <= (at, token)) for at, _, token in stream]
    assert max(rows) < len(index)
    tokens = np.bincount(rows, minlength=len(index) + 1)
    assert inputs.of_rows().tolist() == tokens.tolist()
    assert tokens[-1] == 0
    times = data.draw(st.lists(st.integers(0, 2), min_size=len(index), max_size=len(index)))
    pieces = inputs.pieces(np.array([*times, 1], np.int32))
    found = zip(pieces.sequences.tolist(), pieces.firsts.tolist(), pieces.counts.tolist(), strict=True)
    assert list(found) == slow_pieces(stream, rows, [*times, 1])


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("document_index", 1, 9),
        ("document_index", 0, -1),
        ("sample_index", (1, 0), 9),
        ("sample_index", (1, 1), 99),
        ("sample_index", (1, 1), -1),
        ("sample_index", (2, 0), 1),
        ("shuffle_index", 0, 9),
        ("shuffle_index", 0, 1),
    ],
)
def test_an_index_of_other_data_is_refused(name, place, value):
    lengths, index = build([3, 5, 4, 6], samples=4)
    array = getattr(index, name).astype(np.int64)
    assert array[place] != value
    array[place] = value
    with pytest.raises(IntegrityError, match="the index does not fit"):
        inputs = InputTokens(replace(index, **{name: array}), lengths)
        inputs.of_rows()
        times = inputs.by_row(np.ones(len(index), np.int32))
        times[0] = 0
        inputs.pieces(times)
