"""Links and chains of them: bijections of positions, their inverses and their JSON."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support import slow_samplers
from tokshard.core.codec import decode, encode
from tokshard.errors import IntegrityError, UsageError
from tokshard.ranks.consumption import _MAX_LINKS, EpochRange
from tokshard.ranks.links import Bucketing, Interleave, Skip
from tokshard.ranks.permutation import torch_randperm
from tokshard.ranks.shuffles import BlockShuffle, DatasetShuffle, Shuffle, TorchPermutation

KEYS = np.arange(120) * 37 % 23
LONGEST = (
    Interleave(90, 3, 2, 0, 90, "last"),
    BlockShuffle(90, 16, 5, per_epoch=True),
    Shuffle(90, 16, 5, per_epoch=True),
    Skip(90, 10),
    Interleave(100, 3, 4, 33, 96, "last"),
    Skip(100, 20),
    Bucketing(120, 40, 8, 2, per_epoch=True),
    Shuffle(120, 120, 9, per_epoch=True),
    BlockShuffle(120, 7, 9, per_epoch=True),
    DatasetShuffle((50, 0, 40, 30), 1, per_epoch=True),
    TorchPermutation(120, 39, 3),
)


def chain_of(total, *links, read=None):
    """Return an epoch of a chain of links, all of which is read."""
    samples = links[0].samples if links else total
    return EpochRange(total, links, read or samples, 0, None)


@pytest.mark.parametrize("epoch", [0, 1, 7])
@pytest.mark.parametrize("number", range(len(LONGEST) + 1))
def test_every_chain_reads_each_of_its_ids_once_and_finds_it_back(number, epoch):
    chain = chain_of(120, *LONGEST[number:])
    ids = chain.ids(np.arange(chain.positions), epoch, KEYS.__getitem__)
    assert len(set(ids.tolist())) == chain.positions
    assert ids.min() >= 0
    assert ids.max() < 120
    back = chain.find(np.arange(120), epoch, KEYS.__getitem__)
    assert np.array_equal(back[ids], np.arange(chain.positions))
    assert (back >= 0).sum() == chain.positions


def test_chains_survive_json():
    chain = chain_of(120, *LONGEST)
    assert decode(EpochRange, encode(chain), "plan.json") == chain


def test_the_torch_link_permutes_each_block_alike():
    ids = TorchPermutation(11, 5, 2).forward(np.arange(11), 3)
    order = torch_randperm(5, 3)
    assert ids.tolist() == [*order.tolist(), *(5 + order).tolist(), 10]


def test_ranks_read_in_turn_micro_batch_by_micro_batch_and_then_comes_what_they_drop():
    assert Interleave(11, 2, 2, 5, 8, "last").forward(np.arange(11), 0).tolist() == [
        *(0, 1, 5, 6, 2, 3, 7, 8),
        *(4, 9, 10),
    ]
    assert Interleave(9, 2, 2, 0, 8, "last").forward(np.arange(9), 0).tolist() == [0, 2, 1, 3, 4, 6, 5, 7, 8]


def test_the_rest_of_a_rest_skips_twice():
    shuffle = Shuffle(100, 100, 1, per_epoch=True)
    twice = chain_of(100, Skip(30, 50), Skip(80, 20), shuffle)
    assert np.array_equal(twice.ids(np.arange(30), 4), shuffle.forward(np.arange(70, 100), 4))


@st.composite
def interleaves(draw):
    """Return links of every mode that has one, with any number of read samples."""
    ranks = draw(st.integers(1, 6))
    size = draw(st.integers(1, 4))
    total = draw(st.integers(1, 90))
    run = draw(st.sampled_from([0, total // ranks, -(-total // ranks)]))
    read = draw(st.integers(1, 30)) * ranks * size
    return Interleave(total, ranks, size, run, read, draw(st.sampled_from(["first", "last"])))


def owned_by(link, rank):
    """List the positions of a rank, and what it repeats after them."""
    every = list(range(link.total))
    if link.run:
        own = every[rank * link.run : (rank + 1) * link.run]
        return own, own[-1] if own else every[-1]
    return every[rank :: link.ranks], rank % link.total if link.padding == "first" else every[-1]


def listed(link):
    """List (position, whether it is repeated) of what all ranks read, micro-batch by micro-batch."""
    local = link.read // link.ranks
    ranks = []
    for rank in range(link.ranks):
        own, repeated = owned_by(link, rank)
        ranks.append([(place, False) for place in own[:local]] + [(repeated, True)] * (local - len(own)))
    return [
        ranks[rank][first + row]
        for first in range(0, local, link.micro_batch_size)
        for rank in range(link.ranks)
        for row in range(link.micro_batch_size)
    ]


@given(interleaves())
def test_interleaving_is_what_the_ranks_read_and_then_the_rest_in_order(link):
    read = listed(link)
    own = [position for position, is_repeated in read if not is_repeated]
    rest = sorted(set(range(link.total)) - set(own))
    assert (link.distinct, link.samples) == (len(own), len(read) + len(rest))
    assert not any(is_repeated for _, is_repeated in read[: link.first_repeated])
    order = [position for position, _ in read] + rest
    assert link.forward(np.arange(link.samples), 0).tolist() == order
    places = {position: place for place, position in enumerate(order) if place >= len(read)}
    places |= {position: place for place, (position, is_repeated) in enumerate(read) if not is_repeated}
    assert link.inverse(np.arange(link.total), 0).tolist() == [places[each] for each in range(link.total)]


@pytest.mark.parametrize(
    "make",
    [
        lambda: chain_of(0, read=1),
        lambda: chain_of(10, Shuffle(9, 9, 0, per_epoch=True)),
        lambda: chain_of(10, Shuffle(4, 4, 0, per_epoch=True), Shuffle(5, 5, 0, per_epoch=True), Skip(5, 5)),
        lambda: chain_of(10, *(Shuffle(10, 10, 0, per_epoch=True),) * (_MAX_LINKS + 1)),
        lambda: Skip(0, 3),
        lambda: Skip(3, -1),
        lambda: Shuffle(0, 1, 0, per_epoch=True),
        lambda: BlockShuffle(10, 0, 0, per_epoch=True),
        lambda: BlockShuffle(0, 1, 0, per_epoch=True),
        lambda: DatasetShuffle((), 0, per_epoch=True),
        lambda: DatasetShuffle((3, -1), 0, per_epoch=True),
        lambda: TorchPermutation(10, 6, 2),
        lambda: TorchPermutation(10, 0, 2),
        lambda: Interleave(10, 3, 2, 4, 10, "last"),
        lambda: Interleave(10, 3, 2, -1, 6, "last"),
        lambda: Interleave(10, 3, 2, 3, 6, "middle"),
    ],
)
def test_links_that_do_not_fit_are_usage_errors(make):
    with pytest.raises(UsageError):
        make()


def test_bucketing_without_sort_keys_is_a_usage_error():
    for read in (EpochRange.ids, EpochRange.find):
        with pytest.raises(UsageError, match="requires the sort keys"):
            read(chain_of(120, *LONGEST), np.arange(3), 0)


GOOD = encode(chain_of(10, Shuffle(10, 10, 0, per_epoch=True)))
BLOCKS = encode(chain_of(10, BlockShuffle(10, 3, 0, per_epoch=True)))
DATASETS = encode(chain_of(10, DatasetShuffle((4, 6), 0, per_epoch=True)))
OWNED = encode(chain_of(10, Interleave(10, 2, 2, 5, 8, "last")))
SKIPPED = encode(chain_of(10, Skip(4, 6)))


@pytest.mark.parametrize(
    ("chain", "change"),
    [
        (GOOD, {"link": "sort"}),
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
        (DATASETS, {"sizes": [4, "6"]}),
        (DATASETS, {"sizes": 10}),
        (DATASETS, {"sizes": [4, 7]}),
        (OWNED, {"total": 11}),
        (OWNED, {"micro_batch_size": 3}),
        (OWNED, {"ranks": 0}),
        (OWNED, {"ranks": True}),
        (OWNED, {"run": 2.5}),
        (OWNED, {"run": None}),
        (OWNED, {"padding": "middle"}),
        (SKIPPED, {"first": -1}),
        (SKIPPED, {"samples": 5}),
    ],
)
def test_json_that_is_no_link_is_an_integrity_error(chain, change):
    with pytest.raises(IntegrityError, match=r"plan\.json"):
        decode(EpochRange, chain | {"links": [chain["links"][0] | change]}, "plan.json")


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        GOOD | {"total": "10"},
        GOOD | {"total": 0},
        GOOD | {"links": {}},
        GOOD | {"links": [None]},
        GOOD | {"read": 0},
        GOOD | {"epochs": 0},
        GOOD | {"more": 1},
    ],
)
def test_json_that_is_no_chain_is_an_integrity_error(value):
    with pytest.raises(IntegrityError, match=r"plan\.json"):
        decode(EpochRange, value, "plan.json")


def test_another_algorithm_names_both():
    changed = GOOD | {"links": [GOOD["links"][0] | {"algorithm": "tokshard.feistel/9"}]}
    with pytest.raises(IntegrityError, match=r"'tokshard\.feistel/1', got 'tokshard\.feistel/9'") as caught:
        decode(EpochRange, changed, "plan.json")
    assert "upgrade tokshard" in caught.value.hint


@given(
    st.integers(1, 300), st.integers(1, 6), st.integers(1, 8), st.integers(0, 9), st.integers(0, 3), st.data()
)
def test_windows_are_sorted_but_for_packs_and_members(samples, pack, packs, seed, epoch, data):
    keys = np.array(data.draw(st.lists(st.integers(0, 20), min_size=samples, max_size=samples)))
    bucketing = Bucketing(samples, pack * packs, pack, seed, per_epoch=True)
    order = bucketing.by_keys(np.arange(samples), epoch, keys.__getitem__)
    for start in range(0, samples, bucketing.buffer):
        window = order[start : start + bucketing.buffer]
        assert sorted(window.tolist()) == list(range(start, min(start + bucketing.buffer, samples)))
        assert slow_samplers.bucketed(keys, pack, window.tolist())
    back = bucketing.by_keys(order, epoch, keys.__getitem__, inverse=True)
    assert np.array_equal(back, np.arange(samples))


@given(st.lists(st.integers(0, 199), min_size=1, max_size=30), st.integers(0, 5))
def test_the_order_does_not_depend_on_what_is_asked_for_and_when(places, epoch):
    keys = np.arange(200) * 31 % 17
    bucketing = Bucketing(200, 48, 8, seed=3, per_epoch=True)
    whole = bucketing.by_keys(np.arange(200), epoch, keys.__getitem__)
    assert np.array_equal(bucketing.by_keys(np.array(places), epoch, keys.__getitem__), whole[places])


def test_ties_packs_and_members_are_reshuffled_by_window_epoch_and_seed():
    keys = np.repeat(np.arange(4), 32)

    def windows(seed, epoch, *, per_epoch=True):
        bucketing = Bucketing(256, 128, 16, seed, per_epoch=per_epoch)
        order = bucketing.by_keys(np.arange(256), epoch, lambda positions: keys[positions % 128])
        return (order.reshape(2, 128) - [[0], [128]]).tolist()

    orders = [*windows(3, 0), *windows(3, 1), windows(4, 0)[0]]
    assert len(set(map(tuple, orders))) == 5
    assert np.diff(keys[orders[0]][::16]).min() < 0, "packs come in random order"
    assert np.diff(orders[0][:16]).min() < 0, "members come in random order"
    assert windows(3, 1, per_epoch=False) == windows(3, 0, per_epoch=False)


def test_only_the_windows_asked_for_are_looked_at():
    asked = []

    def key_of(positions):
        asked.extend(positions.tolist())
        return positions % 7

    Bucketing(10**9, 64, 8, seed=0, per_epoch=True).by_keys(np.array([640, 700, 645]), 0, key_of)
    assert sorted(set(asked)) == list(range(640, 704))


@pytest.mark.parametrize(("buffer", "pack"), [(10, 4), (0, 4), (8, 0)])
def test_a_buffer_that_is_no_multiple_of_the_pack_is_refused(buffer, pack):
    with pytest.raises(UsageError, match=f"got a buffer of {buffer} samples and a pack of {pack}"):
        Bucketing(100, buffer, pack, seed=0, per_epoch=True)
