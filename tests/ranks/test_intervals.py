"""Sets of intervals against Python's own sets."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokshard.ranks.intervals import Intervals
from tokshard.ranks.order import Selection

from tokshard.core.codec import decode
from tokshard.errors import IntegrityError, UsageError

MEMBERS = st.sets(st.integers(0, 60))


def of(members):
    return Intervals.of_members(np.array(sorted(members), dtype=np.int64))


@given(MEMBERS)
def test_members_places_and_complement_are_those_of_the_set(members):
    intervals, ordered = of(members), sorted(members)
    assert intervals.count == len(members)
    assert intervals.nth(np.arange(len(members))).tolist() == ordered
    asked = np.arange(70)
    assert intervals.index(asked).tolist() == [ordered.index(m) if m in members else -1 for m in range(70)]
    assert intervals.complement(61) == of(set(range(61)) - members)
    assert Intervals.of(intervals.pairs()) == intervals
    assert all(
        stop < start for (_, stop), (start, _) in zip(intervals.pairs(), intervals.pairs()[1:], strict=False)
    )


@given(MEMBERS, st.data())
def test_a_selection_of_a_selection_is_one_selection(members, data):
    places = data.draw(st.sets(st.sampled_from(range(len(members))))) if members else set()
    ordered = sorted(members)
    assert of(members).select(of(places)) == of({ordered[place] for place in places})


def test_equal_sets_have_equal_hashes():
    first, second = Intervals.of([(0, 2), (2, 5), (7, 7)]), Intervals.of([(0, 5)])
    assert first == second
    assert hash(first) == hash(second)
    assert first != Intervals.of([(0, 4)])
    assert first != "0 to 5"


@pytest.mark.parametrize("pairs", [[(3, 2)], [(0, 3), (2, 5)], [(5, 6), (1, 2)], [(-1, 2)]])
def test_pairs_that_are_no_ascending_intervals_are_refused(pairs):
    with pytest.raises(UsageError):
        Intervals.of(pairs)


@pytest.mark.parametrize(
    "value",
    [
        None,
        3,
        [1],
        [[1]],
        [[1, 2, 3]],
        [["1", 2]],
        [[0, True]],
        [[0, 1.0]],
        [[2, 1]],
        [[0, 1], [1, 2]],
        [[1, 1]],
        [[0, 2**63]],
        {"a": 1},
        [[0, 5], [3, 7]],
    ],
)
def test_json_that_is_no_set_of_intervals_is_an_integrity_error(value):
    with pytest.raises(IntegrityError, match=r"plan\.json"):
        decode(Selection, {"transform": "selection", "selected_from": 100, "selected": value}, "plan.json")


def test_places_past_the_end_are_index_errors():
    for wanted in (lambda some: some.nth(np.array([5])), lambda some: some.nth(np.array([-1]))):
        with pytest.raises(IndexError):
            wanted(Intervals.of([(0, 5)]))
    with pytest.raises(IndexError):
        Intervals.of([(0, 5)]).select(Intervals.of([(3, 6)]))
    with pytest.raises(IndexError):
        Intervals.of([]).nth(np.array([0]))
    with pytest.raises(UsageError):
        Intervals.of([(0, 5)]).complement(4)
