"""Layouts: every sample exactly once, or exactly the stated drop and padding, for all small worlds."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokshard.ranks.layouts import Blocked, Layout, Striped, repeats

from support.assignments import World
from tokshard.core.codec import decode, encode
from tokshard.errors import IntegrityError, UsageError
from tokshard.ranks.modes import layout_of

KINDS = [("single", 3), ("sequential", 1), ("chunked", 2), ("contiguous", 1), ("full-validation", 1)]
SAMPLES = [*range(1, 41), *range(47, 201, 17), 192, 199, 200]


def table(layout):
    """Positions of all ranks: shape (ranks, samples_per_rank)."""
    local = np.arange(layout.samples_per_rank)
    return layout.at(np.arange(layout.ranks)[:, None], np.broadcast_to(local, (layout.ranks, local.size)))


def check(layout):
    """Check that a layout reads each position once, but for what it says itself."""
    found = table(layout)
    ranks, local = layout.locate(np.arange(layout.samples))
    read = ranks >= 0
    assert np.array_equal(found[ranks[read], local[read]], np.flatnonzero(read))
    dropped = layout.dropped()
    assert np.array_equal(dropped.index(np.arange(layout.samples)) >= 0, ~read)
    assert set(found.ravel().tolist()) == set(np.flatnonzero(read).tolist())
    again = sum(count for _, _, count in repeats(layout))
    assert found.size == read.sum() + again
    for rank, first, count in repeats(layout):
        assert first + count == layout.samples_per_rank
        assert first == layout.owned(rank)
    assert sum(layout.owned(rank) for rank in range(layout.ranks)) == read.sum()


TAILS = [(*kind, tail) for kind in KINDS[:4] for tail in ("drop", "pad")]


@pytest.mark.parametrize(("mode", "size", "tail"), [*TAILS, (*KINDS[4], "pad")])
def test_every_sample_is_read_once_or_dropped_or_repeated_as_stated(mode, size, tail):
    checked = 0
    for ranks in range(1, 17):
        world = World(ranks, size)
        for samples in SAMPLES:
            try:
                layout = layout_of(mode, samples, world, tail=tail)
            except UsageError:
                assert tail == "drop"
                assert samples < world.group
                continue
            check(layout)
            dropped = layout.dropped().count
            assert dropped == {"drop": samples % world.group}.get(tail, 0)
            if tail == "pad" and mode != "full-validation":
                assert layout.samples_per_rank == -(-samples // world.group) * size
            checked += 1
    assert checked > 40


def test_padding_repeats_the_last_sample_or_begins_again():
    assert table(layout_of("sequential", 5, World(4, 1), tail="pad")).tolist() == [
        [0, 4],
        [1, 4],
        [2, 4],
        [3, 4],
    ]
    assert table(layout_of("chunked", 10, World(3, 2), tail="pad")).tolist() == [
        [0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 9, 9],
    ]  # fmt: skip
    assert table(layout_of("full-validation", 5, World(4, 1))).tolist() == [[0, 4], [1, 1], [2, 2], [3, 3]]
    assert table(layout_of("full-validation", 2, World(5, 1))).tolist() == [[0], [1], [0], [1], [0]]


SIZES = st.integers(1, 10**9)


@given(SIZES, st.integers(1, 5000), st.integers(1, 64), st.sampled_from(KINDS[:4]), st.data())
def test_positions_and_locations_agree_at_any_size(samples, ranks, size, kind, data):
    world = World(ranks, size)
    tail = data.draw(st.sampled_from(["drop", "pad"] if samples >= world.group else ["pad"]))
    layout = layout_of(kind[0], samples, world, tail=tail)
    positions = np.array(data.draw(st.lists(st.integers(0, samples - 1), min_size=1, max_size=20)))
    found, local = layout.locate(positions)
    read = found >= 0
    assert np.array_equal(layout.at(found[read], local[read]), positions[read])
    assert np.array_equal(layout.dropped().index(positions) >= 0, ~read)
    rank = data.draw(st.integers(0, ranks - 1))
    own = layout.owned(rank)
    if own:
        first = data.draw(st.integers(0, own - 1))
        count = min(own - first, 50)
        back_rank, back = layout.locate(layout.positions(rank, first, count))
        assert set(back_rank.tolist()) == {rank}
        assert back.tolist() == list(range(first, first + count))
    if tail == "drop":
        assert layout.dropped().count == samples % world.group


@pytest.mark.parametrize(
    "layout", [Striped(100, 3, 2, 32, "last"), Blocked(100, 3, 33, 32, "last"), Blocked(7, 4, 2, 2, "last")]
)
def test_indices_past_the_end_are_index_errors(layout):
    last = layout.samples_per_rank
    assert layout.positions(1, last, 0).size == 0
    for rank, first, count in [
        (1, last, 1),
        (1, 0, last + 1),
        (1, -1, 1),
        (3 + layout.ranks, 0, 1),
        (-1, 0, 1),
        (1, 0, -1),
    ]:
        with pytest.raises(IndexError):
            layout.positions(rank, first, count)


@pytest.mark.parametrize("mode", ["single", "sequential", "contiguous", "chunked"])
@pytest.mark.parametrize("tail", ["drop", "pad"])
def test_what_was_consumed_is_what_the_first_local_indices_read(mode, tail):
    for ranks in (1, 2, 5):
        for samples in range(2 * ranks, 60, 3):
            layout = layout_of(mode, samples, World(ranks, 2), tail=tail)
            owned = np.array([layout.owned(rank) for rank in range(ranks)])[:, None]
            found = table(layout)
            first_time = np.arange(found.shape[1]) < owned
            for local in range(0, layout.samples_per_rank + 1, 2):
                consumed = layout.consumed(local)
                read = found[:, :local][first_time[:, :local]]
                assert consumed.nth(np.arange(consumed.count)).tolist() == sorted(read.tolist())


def test_a_cut_stripe_has_no_consumed_set():
    with pytest.raises(UsageError, match="stripe"):
        Striped(100, 3, 4, 32, "last").consumed(6)


@pytest.mark.parametrize(
    "layout", [Striped(10, 2, 1, 5, "first"), Blocked(10, 2, 5, 5, "last"), Striped(9, 2, 2, 4, "last")]
)
def test_layouts_survive_json(layout):
    assert decode(Layout, encode(layout), "plan.json") == layout


@pytest.mark.parametrize(
    "change",
    [
        {"layout": "round"},
        {"samples": 0},
        {"data_parallel": "2"},
        {"width": 3},
        {"samples_per_rank": 1.5},
        {"more": 1},
        {"repeat": "middle"},
        {"samples_per_rank": 0},
        {"samples_per_rank": None},
        {"data_parallel": True},
        {"width": 0},
    ],
)
def test_json_that_is_no_layout_is_an_integrity_error(change):
    with pytest.raises(IntegrityError, match=r"plan\.json"):
        decode(Layout, encode(Striped(10, 2, 1, 5, "last")) | change, "plan.json")
    for value in (None, [], {"layout": "blocked"}):
        with pytest.raises(IntegrityError):
            decode(Layout, value, "plan.json")
