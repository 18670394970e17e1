"""What an unmodified Megatron does with a blend that has a source with a packed index."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from oracle.packs import (
    Packed,
    S,
    check_sample,
    entry_of,
    found,
    packed_source,
    random_lengths,
    start,
    write_documents,
)
from oracle.reference import Megatron, items

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module")
def megatron():
    return Megatron()


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """Run in a directory of its own: prefixes are relative, as their text is in the names of the files."""
    monkeypatch.chdir(tmp_path)


WEIGHTS = (0.7, 0.3)
SIZE = 40


def asked(weight, size):
    """Return the samples of a source that Megatron asks for, with its surplus."""
    return math.ceil(math.ceil(size * weight) * 1.005)


def blended(megatron, weights, size, *, epochs=3, split="1", lazy=None):
    """Start a job on a packed and a concatenated source twice; return the blend and the packs."""
    prefixes = ["data/packed", "data/plain"]
    num_samples = None if weights is None else asked(weights[0], size)
    lengths = random_lengths(np.random.RandomState(1), S, 20)
    packed = packed_source(prefixes[0], lengths, S, num_samples=num_samples, epochs=epochs, split=split)
    write_documents(prefixes[1], [7, 2, 30, 5, 11], first=40_000)
    blend = (prefixes, weights and list(weights))
    job = {"blend": blend} if split else {"blend_per_split": [blend, None, None]}
    start(megatron, S, [size, 0, 0] if weights else [size, None, None], **job)
    dataset = found(megatron, S, [size, 0, 0] if weights else [size, None, None], **job, **(lazy or {}))[0]
    return dataset, packed


def drawn(dataset, packed):
    """Return source and sample at each place of a blend, after comparing the samples with their packs."""
    samples = packed.shuffled()
    pairs = []
    for place in range(len(dataset)):
        source, sample = int(dataset.dataset_index[place]), int(dataset.dataset_sample_index[place])
        pairs.append((source, sample))
        item = items(dataset, place)
        if source == 0:
            check_sample(item, samples[sample], S)
        else:
            assert item.tokens.min() >= 40_000
            assert item.loss_mask.all()
    return pairs


def test_a_blend_by_weights_draws_packs(megatron):
    """A blend of a packed and a concatenated source has its weights in samples, of which some are short."""
    dataset, packed = blended(megatron, WEIGHTS, SIZE)
    pairs = drawn(dataset, packed)
    assert len(pairs) == SIZE == dataset.size
    counted = Counter(source for source, _ in pairs)
    assert counted[0] == 28
    assert [sample for source, sample in pairs if source == 0] == list(range(28))
    assert len(packed.order) >= asked(WEIGHTS[0], SIZE)


@pytest.mark.parametrize("size", [None, 5, 1000])
def test_a_blend_without_weights_draws_each_pack_once(megatron, size):
    """Its weights, which name its files, are the samples of its sources; for a packed one, its packs."""
    dataset, packed = blended(megatron, None, size, epochs=1)
    pairs = drawn(dataset, packed)
    plain = (7 + 2 + 30 + 5 + 11 - 1) // S
    total = len(packed.order) + plain
    assert len(set(pairs)) == len(pairs) == min(total, size or total)
    if size is None:
        assert dataset.weights == [len(packed.order), plain]


def test_a_blend_that_draws_more_than_the_packs(megatron):
    """It is an IndexError: where Megatron builds the blend, or, in a cached blend, at the missing sample."""
    with pytest.raises(IndexError, match="oversamples"):
        blended(megatron, WEIGHTS, SIZE, epochs=1)
    dataset, packed = blended(megatron, WEIGHTS, SIZE)
    few = Packed(packed.documents, S, packed.epochs[:1], packed.order[: len(packed.order) // 3])
    few.write(entry_of("data/packed", S, asked(WEIGHTS[0], SIZE)))
    dataset = found(megatron, S, [SIZE, 0, 0], blend=(["data/packed", "data/plain"], list(WEIGHTS)))[0]
    with pytest.raises(IndexError):
        drawn(dataset, few)


@pytest.mark.parametrize("weights", [WEIGHTS, None], ids=["weights", "exhaustive"])
def test_fast_cache_load_reads_packs(megatron, weights):
    """``fast_cache_load``, which looks for no file before it reads it, changes nothing."""
    lazy = {"fast_cache_load": True}
    dataset, packed = blended(megatron, weights, SIZE if weights else None, split=None, lazy=lazy)
    assert len(drawn(dataset, packed)) == (SIZE if weights else len(packed.order) + 6)


def test_deferred_blends(megatron):
    """With ``defer_npy_index_mmap`` a blend by weights reads packs: the length of a source is used nowhere.

    One without weights is named after the recomputed lengths, so that its files are not found.
    """
    lazy = {"defer_npy_index_mmap": True}
    dataset, packed = blended(megatron, WEIGHTS, SIZE, lazy=lazy)
    assert len(dataset) == SIZE
    assert dataset[0]["dataset_id"] in {0, 1}
    drawn(dataset, packed)
    dataset, packed = blended(megatron, None, None, epochs=1, lazy=lazy)
    assert len(dataset) < len(packed.order) + 6
    with pytest.raises(FileNotFoundError):
        dataset[0]
