"""Orders: chains of links, their inverses and their JSON."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokshard.ranks.intervals import Intervals
from tokshard.ranks.layouts import Blocked, Striped
from tokshard.ranks.order import (
    MAX_TRANSFORMS,
    Bucketing,
    ConsumptionOrder,
    SampleOrder,
    Selection,
)

from support import slow_samplers
from tokshard.core.codec import decode, encode
from tokshard.errors import IntegrityError, UsageError
from tokshard.ranks.permutation import torch_randperm
from tokshard.ranks.shuffles import BlockShuffle, ShardShuffle, Shuffle, TorchPermutation

KEYS = np.arange(120) * 37 % 23
LONGEST = SampleOrder(
    120,
    (
        BlockShuffle(70, 16, 5, per_epoch=True),
        Shuffle(70, 16, 5, per_epoch=True),
        Selection(100, ((3, 33), (50, 90))),
        ConsumptionOrder(Blocked(100, 3, 32, 32, "last"), 4),
        Selection(120, ((0, 60), (80, 120))),
        Bucketing(120, 40, 8, 2, per_epoch=True),
        Shuffle(120, 120, 9, per_epoch=True),
        BlockShuffle(120, 7, 9, per_epoch=True),
        ShardShuffle((50, 0, 40, 30), 1, per_epoch=True),
        TorchPermutation(120, 39, 3),
    ),
)


@pytest.mark.parametrize("epoch", [0, 1, 7])
@pytest.mark.parametrize("number", range(len(LONGEST.transforms) + 1))
def test_every_chain_reads_each_of_its_ids_once_and_finds_it_back(number, epoch):
    order = SampleOrder(120, LONGEST.transforms[number:])
    ids = order.ids(np.arange(order.samples), epoch, KEYS.__getitem__)
    assert len(set(ids.tolist())) == order.samples
    assert ids.min() >= 0
    assert ids.max() < 120
    back = order.positions(np.arange(120), epoch, KEYS.__getitem__)
    assert np.array_equal(back[ids], np.arange(order.samples))
    assert (back >= 0).sum() == order.samples


def test_chains_survive_json():
    assert decode(SampleOrder, encode(LONGEST), "plan.json") == LONGEST


def test_the_torch_link_permutes_each_block_alike():
    ids = SampleOrder(11, (TorchPermutation(11, 5, 2),)).ids(np.arange(11), 3)
    order = torch_randperm(5, 3)
    assert ids.tolist() == [*order.tolist(), *(5 + order).tolist(), 10]


def test_the_read_order_is_micro_batch_by_micro_batch_then_rank_by_rank_then_what_is_dropped():
    link = ConsumptionOrder(Blocked(11, 2, 5, 4, "last"), 2)
    assert link.forward(np.arange(11), 0).tolist() == [0, 1, 5, 6, 2, 3, 7, 8, 4, 9, 10]
    striped = ConsumptionOrder(Striped(9, 2, 1, 4, "last"), 2)
    assert striped.forward(np.arange(9), 0).tolist() == [0, 2, 1, 3, 4, 6, 5, 7, 8]


def test_the_rest_of_a_rest_is_one_selection():
    order = SampleOrder(100, (Shuffle(100, 100, 1, per_epoch=True),))
    once = order.rest(Intervals.of([(20, 60), (70, 100)]))
    twice = once.rest(Intervals.of([(10, 50)]))
    assert len(twice.transforms) == 2
    places = np.concatenate([np.arange(30, 60), np.arange(70, 80)])
    assert np.array_equal(twice.ids(np.arange(40), 4), order.ids(places, 4))
    assert order.rest(Intervals.of([(0, 100)])) is order


@pytest.mark.parametrize(
    "make",
    [
        lambda: SampleOrder(0, ()),
        lambda: SampleOrder(10, (Shuffle(9, 9, 0, per_epoch=True),)),
        lambda: SampleOrder(
            10,
            (Selection(10, ((0, 5),)), Shuffle(10, 5, 0, per_epoch=True), Shuffle(5, 5, 0, per_epoch=True)),
        ),
        lambda: SampleOrder(10, (Shuffle(10, 10, 0, per_epoch=True),) * (MAX_TRANSFORMS + 1)),
        lambda: Selection(10, ()),
        lambda: Selection(10, ((5, 11),)),
        lambda: Shuffle(0, 1, 0, per_epoch=True),
        lambda: BlockShuffle(10, 0, 0, per_epoch=True),
        lambda: BlockShuffle(0, 1, 0, per_epoch=True),
        lambda: ShardShuffle((), 0, per_epoch=True),
        lambda: ShardShuffle((3, -1), 0, per_epoch=True),
        lambda: TorchPermutation(10, 6, 2),
        lambda: TorchPermutation(10, 0, 2),
        lambda: ConsumptionOrder(Blocked(10, 3, 4, 4, "last"), 2),
        lambda: ConsumptionOrder(Blocked(10, 3, 3, 3, "last"), 2),
        lambda: SampleOrder(10, ()).rest(Intervals.of([])),
    ],
)
def test_links_that_do_not_fit_are_usage_errors(make):
    with pytest.raises(UsageError):
        make()


def test_bucketing_without_sort_keys_is_a_usage_error():
    with pytest.raises(UsageError, match="sort keys"):
        LONGEST.ids(np.arange(3), 0)


GOOD = encode(SampleOrder(10, (Shuffle(10, 10, 0, per_epoch=True),)))
BLOCKS = encode(SampleOrder(10, (BlockShuffle(10, 3, 0, per_epoch=True),)))
SHARDS = encode(SampleOrder(10, (ShardShuffle((4, 6), 0, per_epoch=True),)))
READ = encode(SampleOrder(10, (ConsumptionOrder(Blocked(10, 2, 5, 4, "last"), 2),)))


@pytest.mark.parametrize(
    ("order", "change"),
    [
        (GOOD, {"transform": "sort"}),
        (GOOD, {"samples": 9}),
        (GOOD, {"window": 1.5}),
        (GOOD, {"per_epoch": 1}),
        (GOOD, {"more": 1}),
        (GOOD, {"algorithm": "tokshard.feistel/2"}),
        (GOOD, {"algorithm": None}),
        (GOOD, {"seed": "1"}),
        (GOOD, {"seed": True}),
        (GOOD, {"window": 0}),
        (BLOCKS, {"block": 0}),
        (BLOCKS, {"window": 3}),
        (BLOCKS, {"algorithm": "tokshard.feistel/2"}),
        (SHARDS, {"shard_samples": [4, "6"]}),
        (SHARDS, {"shard_samples": 10}),
        (SHARDS, {"shard_samples": [4, 7]}),
        (READ, {"layout": []}),
        (READ, {"micro_batch_size": 3}),
    ],
)
def test_json_that_is_no_link_is_an_integrity_error(order, change):
    changed = order | {"transforms": [order["transforms"][0] | change]}
    with pytest.raises(IntegrityError, match=r"plan\.json"):
        decode(SampleOrder, changed, "plan.json")


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"samples": 3},
        {"samples": "3", "transforms": []},
        {"samples": 3, "transforms": {}},
        {"samples": 0, "transforms": []},
        {"samples": 3, "transforms": [None]},
    ],
)
def test_json_that_is_no_order_is_an_integrity_error(value):
    with pytest.raises(IntegrityError, match=r"plan\.json"):
        decode(SampleOrder, value, "plan.json")


def test_another_algorithm_names_both():
    changed = GOOD | {"transforms": [GOOD["transforms"][0] | {"algorithm": "tokshard.feistel/9"}]}
    with pytest.raises(IntegrityError, match=r"'tokshard\.feistel/1', got 'tokshard\.feistel/9'") as caught:
        decode(SampleOrder, changed, "plan.json")
    assert "upgrade tokshard" in caught.value.hint


@given(
    st.integers(1, 300), st.integers(1, 6), st.integers(1, 8), st.integers(0, 9), st.integers(0, 3), st.data()
)
def test_windows_are_sorted_but_for_packs_and_members(samples, pack, packs, seed, epoch, data):
    keys = np.array(data.draw(st.lists(st.integers(0, 20), min_size=samples, max_size=samples)))
    bucketing = Bucketing(samples, pack * packs, pack, seed, per_epoch=True)
    order = bucketing.forward(np.arange(samples), epoch, keys.__getitem__)
    for start in range(0, samples, bucketing.buffer):
        window = order[start : start + bucketing.buffer]
        assert sorted(window.tolist()) == list(range(start, min(start + bucketing.buffer, samples)))
        assert slow_samplers.bucketed(keys, pack, window.tolist())
    back = bucketing.inverse(order, epoch, keys.__getitem__)
    assert np.array_equal(back, np.arange(samples))


@given(st.lists(st.integers(0, 199), min_size=1, max_size=30), st.integers(0, 5))
def test_the_order_does_not_depend_on_what_is_asked_for_and_when(places, epoch):
    keys = np.arange(200) * 31 % 17
    bucketing = Bucketing(200, 48, 8, seed=3, per_epoch=True)
    whole = bucketing.forward(np.arange(200), epoch, keys.__getitem__)
    assert np.array_equal(bucketing.forward(np.array(places), epoch, keys.__getitem__), whole[places])


def test_ties_packs_and_members_are_reshuffled_by_window_epoch_and_seed():
    keys = np.repeat(np.arange(4), 32)
    bucketing = Bucketing(256, 128, 16, seed=3, per_epoch=True)
    orders = [bucketing.window_order(keys, epoch, window) for epoch in range(2) for window in range(2)]
    orders.append(Bucketing(256, 128, 16, seed=4, per_epoch=True).window_order(keys, 0, 0))
    assert len({tuple(order.tolist()) for order in orders}) == 5
    assert np.diff(keys[orders[0]][::16]).min() < 0, "packs come in random order"
    assert np.diff(orders[0][:16]).min() < 0, "members come in random order"
    fixed = Bucketing(256, 128, 16, seed=3, per_epoch=False)
    assert np.array_equal(fixed.window_order(keys, 1, 0), fixed.window_order(keys, 0, 0))


def test_only_the_windows_asked_for_are_looked_at():
    asked = []

    def key_of(positions):
        asked.extend(positions.tolist())
        return positions % 7

    Bucketing(10**9, 64, 8, seed=0, per_epoch=True).forward(np.array([640, 700, 645]), 0, key_of)
    assert sorted(set(asked)) == list(range(640, 704))


@pytest.mark.parametrize(("buffer", "pack"), [(10, 4), (0, 4), (8, 0)])
def test_a_buffer_that_is_no_multiple_of_the_pack_is_refused(buffer, pack):
    with pytest.raises(UsageError, match=f"got a buffer of {buffer} samples and a pack of {pack}"):
        Bucketing(100, buffer, pack, seed=0, per_epoch=True)
