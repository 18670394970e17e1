"""The windowed shuffle: whole blocks in random order, then samples in random order within windows."""

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support import slow_samplers
from tokshard.core.keyed_orders import Bijection, derive_key, subkeys
from tokshard.ranks.choices import Shuffling
from tokshard.ranks.consumption import EpochRange
from tokshard.ranks.shuffles import BlockShuffle, shuffle_links


def windowed(samples, block, window, seed, *, per_epoch=True):
    links = shuffle_links(Shuffling("windows", block, window), samples, seed, per_epoch=per_epoch)
    return EpochRange(samples, links, samples, 0, None)


def shuffled(purpose, seed, epoch):
    """Return a function that permutes a list by the Feistel bijection of a numbered part, or of all."""
    key = derive_key(purpose, seed, epoch)

    def permute(values, number=None):
        keys = np.array([key], np.uint64) if number is None else subkeys(key, np.array([number]))
        places = Bijection(len(values)).forward(np.arange(len(values)), keys)
        return [values[place] for place in places]

    return permute


@settings(max_examples=60)
@given(st.integers(1, 90), st.integers(1, 20), st.integers(1, 5), st.integers(0, 2**40), st.integers(0, 9))
@example(1, 1, 1, 0, 0)
@example(7, 20, 1, 3, 1)  # one block, which is short
@example(13, 4, 2, 3, 1)  # the last block is short
def test_the_windowed_shuffle_is_that_of_lists(samples, block, window, seed, epoch):
    order = windowed(samples, block, window, seed)
    ids = order.ids(np.arange(samples), epoch)
    slow = slow_samplers.windowed(
        samples,
        block,
        window,
        shuffled("tokshard.feistel/1:blocks", seed, epoch),
        shuffled("tokshard.feistel/1:samples", seed, epoch),
    )
    assert ids.tolist() == slow
    assert order.find(ids, epoch).tolist() == list(range(samples))
    some = np.arange(samples)[::-3]
    assert order.ids(some, epoch).tolist() == ids[some].tolist()
    once = windowed(samples, block, window, seed, per_epoch=False)
    assert once.ids(some, epoch).tolist() == order.ids(some, 0).tolist()


def test_every_block_takes_every_place_also_the_short_one():
    shuffle, taken = BlockShuffle(3 * 5 + 2, 5, seed=4, per_epoch=True), set()
    for epoch in range(60):
        ids = shuffle.forward(np.arange(17), epoch)
        starts = [place for place in range(17) if ids[place] % 5 == 0]
        taken |= {(rank, int(ids[place]) // 5) for rank, place in enumerate(starts)}
    assert len(taken) == 4 * 4


def test_a_window_reads_whole_blocks_from_all_over_the_data():
    ids = windowed(10_000, 10, 20, 1).ids(np.arange(10_000), 0)
    for window in ids.reshape(50, 200):
        blocks, counts = np.unique(window // 10, return_counts=True)
        assert counts.tolist() == [10] * 20
        assert blocks.min() < 300
        assert blocks.max() > 700
        assert np.count_nonzero(np.diff(window) == 1) < 5


def test_one_of_trillions_of_samples_is_found_alone():
    order = windowed(10**12 + 7, 256, 4096, 1)
    ids = order.ids(np.array([0, 10**12 + 6, 123_456_789_012]), 3)
    assert order.find(ids, 3).tolist() == [0, 10**12 + 6, 123_456_789_012]
