"""Finding numbers in arrays against a plain look at every entry."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.traced import write_dataset
from tokshard.checks.trace.sequence_table import BLOCK, SequenceTable, find, find_in_blocks, pairs, spread
from tokshard.errors import IntegrityError

# Neighbours, and numbers whose low bits are the same: the table of low bits cannot tell them apart.
numbers = st.integers(0, 40) | st.integers(0, 40).map(lambda number: number << 16 | 5)


@given(
    st.lists(numbers, max_size=60),
    st.sets(numbers, max_size=12) | st.integers(0, 30).map(lambda first: set(range(first, first + 5))),
    st.sampled_from(["int32", "uint32", "int64"]),
)
def test_every_place_of_every_number_is_found(values, wanted, dtype):
    ascending = np.array(sorted(wanted), np.int64)
    places, which = find(np.array(values, dtype), ascending)
    assert list(zip(places.tolist(), ascending[which].tolist(), strict=True)) == [
        (place, value) for place, value in enumerate(values) if value in wanted
    ]


@pytest.mark.parametrize("wanted", [[2**40], [2**40, 2**40 + 1], [5, 2**40], [2**31, 2**31 + 5]])
def test_numbers_that_the_array_cannot_hold_are_not_in_it(wanted):
    for dtype in ("int32", "uint32", "int64"):
        limits = np.iinfo(dtype)
        array = np.array([0, 5, limits.min, limits.max, limits.max // 2], dtype)
        places, _ = find(array, np.array(wanted, np.int64))
        assert places.tolist() == [place for place, value in enumerate(array.tolist()) if value in wanted]


def test_places_count_through_all_blocks():
    at = np.array([0, BLOCK - 1, BLOCK, 2 * BLOCK + 7])
    array = np.zeros(2 * BLOCK + 8, np.int32)
    for wanted in ([3], [3, 70003]):
        array[at] = wanted[-1]
        places, which = find_in_blocks(len(array), lambda first, stop: array[first:stop], np.array(wanted))
        assert places.tolist() == at.tolist()
        assert set(which.tolist()) == {len(wanted) - 1}


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)), max_size=8))
def test_ranges_are_spread_one_after_the_other(ranges):
    firsts, counts = np.array(ranges, np.int64).reshape(-1, 2).T
    owners, found = spread(firsts, counts)
    assert list(zip(owners.tolist(), found.tolist(), strict=True)) == [
        (owner, number)
        for owner, (first, count) in enumerate(ranges)
        for number in range(first, first + count)
    ]


@given(st.lists(st.integers(0, 4), max_size=9), st.lists(st.integers(0, 4), max_size=9))
def test_pairs_are_all_that_share_a_key(left, right):
    found = pairs(np.array(left, np.int64), np.array(right, np.int64), 5)
    assert list(zip(*(side.tolist() for side in found), strict=True)) == [
        (i, j) for j, key in enumerate(right) for i, same in enumerate(left) if same == key
    ]


def first_tokens(prefix, sequences):
    numbers = np.array(sequences, np.int64)
    tokens = SequenceTable(prefix).tokens(numbers, np.zeros_like(numbers), np.ones_like(numbers))
    return [ids.tolist() for ids in tokens]


def test_tokens_are_read_where_the_sequences_before_end(tmp_path):
    prefix = write_dataset(str(tmp_path / "d"), [[2], [3], [1], [4]])
    assert first_tokens(prefix, [3, 0, 2]) == [[6], [0], [5]]
    assert first_tokens(prefix, []) == []
    index = tmp_path / "d.idx"
    content = index.read_bytes()
    pointers = 34 + 4 * 4
    index.write_bytes(content[: pointers + 8] + (12).to_bytes(8, "little") + content[pointers + 16 :])
    assert first_tokens(prefix, [0]) == [[0]]
    with pytest.raises(IntegrityError, match="sequence_pointers is inconsistent"):
        first_tokens(prefix, [1])


@pytest.mark.parametrize("size", [36, 44])
def test_tokens_of_a_bin_of_another_size_are_not_read(tmp_path, size):
    prefix = write_dataset(str(tmp_path / "d"), [[2], [3], [1], [4]])
    content = (tmp_path / "d.bin").read_bytes().ljust(size, b"\0")
    (tmp_path / "d.bin").write_bytes(content[:size])
    with pytest.raises(IntegrityError, match=rf"d.bin must have 40 bytes by its .idx, got {size}"):
        first_tokens(prefix, [0])
