"""Token frequencies against counting one by one."""

from __future__ import annotations

import struct
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokshard import IndexedDataset, IndexedDatasetBuilder
from tokshard.checks.inspect import frequencies
from tokshard.checks.inspect.frequencies import COUNTED_IDS, count_tokens
from tokshard.text.tokenizer.definition import load_tokenizer


def dataset_of(directory, tokens, dtype=np.int32):
    with IndexedDatasetBuilder(str(directory / "x.bin"), dtype=dtype) as builder:
        builder.add_document(tokens, [len(tokens)])
        builder.finalize(str(directory / "x.idx"))
    return IndexedDataset(str(directory / "x"))


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("frequencies")


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(-3, 60) | st.sampled_from([COUNTED_IDS - 1, COUNTED_IDS, 2**31 - 1]), max_size=300)
)
def test_all_tokens_are_counted(directory, tokens):
    found = count_tokens(dataset_of(directory, tokens))
    twin = Counter(token for token in tokens if 0 <= token < COUNTED_IDS)
    assert (found.tokens, found.counted, found.share) == (len(tokens), len(tokens), 1.0)
    assert found.outside == len(tokens) - twin.total()
    assert found.distinct == len(twin)
    descending = sorted(twin.items(), key=lambda pair: (-pair[1], pair[0]))
    ascending = sorted(twin.items(), key=lambda pair: (pair[1], pair[0]))
    assert [(token.id, token.count) for token in found.head] == descending[:20]
    # No token is in both lists.
    assert [(token.id, token.count) for token in found.tail] == ascending[: min(20, max(0, len(twin) - 20))]
    assert all(times == descending[rank - 1][1] for rank, times in found.curve)
    if twin:
        assert [rank for rank, _ in (found.curve[0], found.curve[-1])] == [1, len(twin)]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64", "uint16"])
def test_every_type_of_integers_is_counted(directory, dtype):
    found = count_tokens(dataset_of(directory, [1, 5, 5, 100], dtype=np.dtype(dtype)))
    assert [(token.id, token.count, token.text) for token in found.head] == [
        (5, 2, None),
        (1, 1, None),
        (100, 1, None),
    ]


@pytest.mark.parametrize(("code", "dtype"), [(6, "<f8"), (7, "<f4")])
def test_numbers_that_are_no_tokens_are_not_counted(directory, code, dtype):
    itemsize = np.dtype(dtype).itemsize
    (directory / "x.bin").write_bytes(np.array([1, 2], dtype).tobytes())
    index = struct.pack("<9sQBQQ2i2q3q", b"MMIDIDX\x00\x00", 1, code, 2, 3, 1, 1, 0, itemsize, 0, 1, 2)
    (directory / "x.idx").write_bytes(index)
    dataset = IndexedDataset(str(directory / "x"))
    assert dataset.dtype == dtype
    assert count_tokens(dataset) is None


def test_of_a_large_dataset_every_nth_block_is_counted(directory, monkeypatch):
    monkeypatch.setattr(frequencies, "_BLOCK_TOKENS", 10)
    tokens = [number // 10 for number in range(1005)]
    dataset = dataset_of(directory, tokens)
    for limit, step in ((1005, 1), (1004, 2), (500, 3), (100, 11), (1, 1005)):
        found = count_tokens(dataset, limit=limit)
        twin = [token for token in tokens if token % step == 0]
        assert (found.counted, found.distinct) == (len(twin), len(set(twin)))
        assert found.share == len(twin) / 1005
        assert found.counted <= limit + 10


def test_tokens_are_shown_by_the_tokenizer(directory):
    found = count_tokens(
        dataset_of(directory, [65, 65, 66, 900]), tokenizer=load_tokenizer(None), vocabulary=257
    )
    # 900 is no token of it: it is listed all the same.
    assert [(token.id, token.text) for token in found.head] == [(65, "A"), (66, "B"), (900, None)]
    assert found.vocabulary == 257


def test_no_id_makes_it_take_more_memory_than_stated(directory):
    dataset = dataset_of(directory, [2**31 - 1, COUNTED_IDS - 1, 0])
    tracemalloc.start()
    try:
        count_tokens(dataset)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # The counters, and copies of as many while they are sorted.
    assert peak < 8 * COUNTED_IDS * 8
