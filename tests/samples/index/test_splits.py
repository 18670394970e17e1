import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokshard.core import megatron_rules
from tokshard.errors import UsageError
from tokshard.samples.index.splits import SPLITS, parse_split, whole_split


def test_the_default_is_the_string_that_megatron_hashes():
    split = parse_split(megatron_rules.SPLIT)
    assert split.text == "969, 30, 1"
    assert repr(split.matrix_json()) == "[[0, 0.969], [0.969, 0.999], [0.999, 1.0]]"


@pytest.mark.parametrize(
    ("text", "matrix"),
    [
        ("1", [[0, 1.0], None, None]),
        ("99,1", [[0, 0.99], [0.99, 1.0], None]),
        ("99,1,0", [[0, 0.99], [0.99, 1.0], None]),
        ("0,0,5", [None, None, [0.0, 1.0]]),
        ("0,1,1", [None, [0.0, 0.5], [0.5, 1.0]]),
        (" 98 1 1 ", [[0, 0.98], [0.98, 0.99], [0.99, 1.0]]),
        ("98/1/1,", [[0, 0.98], [0.98, 0.99], [0.99, 1.0]]),
        (".5,5.,0.5", [[0, 0.08333333333333333], [0.08333333333333333, 0.9166666666666667]]),
        ("1,1,1", [[0, 0.3333333333333333], [0.3333333333333333, 0.6666666666666666]]),
    ],
)
def test_the_matrix_has_megatrons_floats(text, matrix):
    split = parse_split(text)
    assert split.text == text
    assert repr(split.matrix_json()[: len(matrix)]) == repr(matrix)


@pytest.mark.parametrize(
    ("text", "reading"),
    [
        ("99,-1,2", "would read 99, 1, 2"),
        ("1e2,1", "would read 1, 2, 1"),
        ("+99,1", "would read 99, 1"),
        ("99,,1", "would read 99, 1"),
        (",99", "would read 99"),
        ("train 99", "would read 99"),
        ("99%,1%", "would read 99, 1"),
        ("1.2.3", "would read 1.2.3"),
        (".", "would read ."),
        ("1_000,1", "would read 1, 000, 1"),
        ("١,1", "would read 1"),
        ("nan,1", "would read 1"),
        ("1,1,1,1", "expected at most 3 numbers, got 4 (1, 1, 1, 1)"),
        ("1e1e1e1", "expected at most 3 numbers, got 4"),
        ("", "no number found"),
        ("inf", "no number found"),
        ("-", "no number found"),
        ("0", "positive and finite, got 0"),
        ("0,0.0,0", "positive and finite, got 0"),
        ("9" * 400, "positive and finite, got inf"),
    ],
)
def test_what_would_be_misread_is_refused_with_the_reading(text, reading):
    with pytest.raises(UsageError, match=re.escape(reading)) as caught:
        parse_split(text)
    assert caught.value.hint


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=3).filter(any), st.integers(0, 10**7))
def test_the_ranges_are_disjoint_cover_everything_and_have_their_shares(weights, count):
    ranges = parse_split(",".join(map(str, weights))).ranges(count)
    weights += [0] * (3 - len(weights))
    assert [numbers is None for numbers in ranges] == [weight == 0 for weight in weights]
    end = 0
    for numbers, weight in zip(ranges, weights, strict=True):
        if numbers is not None:
            assert (numbers.start, numbers.step) == (end, 1)
            assert abs(len(numbers) - Fraction(weight, sum(weights)) * count) <= 1
            end = numbers.stop
    assert end == count


def test_halves_round_to_even_numbers():
    assert parse_split("1,1").ranges(5) == (range(2), range(2, 5), None)
    assert parse_split("1,1").ranges(7) == (range(4), range(4, 7), None)


def test_a_share_can_round_to_an_empty_range():
    train, valid, test = parse_split("99,1,0").ranges(10)
    assert (train, valid, test) == (range(10), range(10, 10), None)


def test_a_dataset_of_one_split_has_no_split_string_to_hash():
    for name in SPLITS:
        split = whole_split(name)
        assert split.text is None
        assert split.matrix_json() is None
        ranges = dict(zip(SPLITS, split.ranges(7), strict=True))
        assert ranges.pop(name) == range(7)
        assert set(ranges.values()) == {None}
    with pytest.raises(UsageError, match="split must be one of train, valid, test, got 'dev'"):
        whole_split("dev")


@pytest.mark.parametrize("text", ["9" * 100_000 + "x", "1," * 50_000])
def test_long_text_is_refused_at_once_with_a_short_message(text):
    with pytest.raises(UsageError, match=r"it has 100,00[01] characters") as refused:
        parse_split(text)
    assert len(refused.value.message) < 200
