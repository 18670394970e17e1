"""Placement: each unit's place is the sum of the sizes before it, in whatever order they become known."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from tokshard.tokenization.encoded_unit import HeldUnit, Placement, Placements
from tokshard.tokenization.part import UnitKey

files = st.lists(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=4), max_size=4
)


@given(files=files, begin=st.tuples(st.integers(0, 9), st.integers(0, 9)), data=st.data())
def test_places_are_running_sums(files, begin, data):
    units = [
        HeldUnit(UnitKey(number, index), index == len(sizes) - 1, size)
        for number, sizes in enumerate(files)
        for index, size in enumerate(sizes)
    ]
    paths = ("0.bin", "1.bin")
    columns = [accumulate([unit.sizes[k] for unit in units], initial=begin[k]) for k in range(2)]
    expected = [
        Placement(unit.key, paths, offsets)
        for unit, offsets in zip(units, zip(*columns, strict=True), strict=False)
    ]
    placement = Placements(UnitKey(0, 0), paths, begin)
    found, known = [], set()
    for unit in data.draw(st.permutations(units)):
        found += placement.locate(unit)
        known.add(unit.key)
        # As many as are known from the beginning without a gap, and no more.
        first_gap = next((n for n, one in enumerate(units) if one.key not in known), len(units))
        assert found == expected[:first_gap]
    assert found == expected
