"""The orders whose results are frozen: twenty (seed, length) pairs for each algorithm."""

import numpy as np

from tokshard.core.keyed_orders import sorted_order
from tokshard.ranks.links import Bucketing
from tokshard.ranks.permutation import forward_swaps, inside_out
from tokshard.ranks.shuffles import BlockShuffle, DatasetShuffle, Shuffle

SEEDS = (0, 1, 1234, 2**32 - 1, 2**40 + 7)
LENGTHS = (10, 1000, 4097, 100_000)
PAIRS = [(seed, length) for seed in SEEDS for length in LENGTHS]


def torch_short(seed, length):
    return forward_swaps(length, seed)


def torch_long(seed, length):
    return inside_out(length, seed)


def sorted_keys(seed, length):
    return sorted_order(length, seed)


def samples(seed, length):
    return Shuffle(length, length, seed, per_epoch=True).forward(np.arange(min(length, 1000)), epoch=1)


def windows(seed, length):
    return Shuffle(length, 257, seed, per_epoch=True).forward(np.arange(min(length, 1000)), epoch=1)


def whole_blocks(seed, length):
    return BlockShuffle(length, 7, seed, per_epoch=True).forward(np.arange(min(length, 1000)), epoch=1)


def shards(seed, length):
    return DatasetShuffle((1,) * length, seed, per_epoch=True).order(epoch=1)


def bucketing(seed, length):
    keys = np.arange(length) * 7919 % 64
    return Bucketing(length, 128, 8, seed, per_epoch=True).by_keys(
        np.arange(min(length, 1000)), 1, keys.__getitem__
    )


ORDERS = {
    "torch.randperm/1 below 214748364": torch_short,
    "torch.randperm/1 from 214748364 on": torch_long,
    "tokshard.sorted/1": sorted_keys,
    "tokshard.sorted/1 of shards": shards,
    "tokshard.feistel/1 of samples": samples,
    "tokshard.feistel/1 of windows": windows,
    "tokshard.feistel/1 of whole blocks": whole_blocks,
    "tokshard.bucketing/1": bucketing,
}
