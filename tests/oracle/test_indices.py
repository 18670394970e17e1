"""The index of one dataset against Megatron's GPTDataset: the same names, bytes and samples."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from oracle.comparison import EQUAL, campaign
from oracle.configurations import random_configuration
from oracle.reference import Megatron
from oracle.support import shared
from tokshard.samples.index.index import GPTDatasetIndex

pytestmark = pytest.mark.oracle

ROUNDS, CONFIGURATIONS = 6, 25


@pytest.fixture(scope="module")
def megatron():
    return Megatron()


@pytest.mark.parametrize("part", shared(ROUNDS))
def test_files_are_equal_found_and_read_alike(tmp_path, megatron, part, record_property):
    numbers = range(part * CONFIGURATIONS, (part + 1) * CONFIGURATIONS)
    counts = campaign((random_configuration("single", number) for number in numbers), megatron, tmp_path)
    print(dict(counts))
    record_property("results", dict(counts))
    assert counts.total() == CONFIGURATIONS
    assert counts[EQUAL] > CONFIGURATIONS // 2


class Lengths:
    """A dataset of which only the lengths are known."""

    def __init__(self, lengths, path_prefix):
        self.sequence_lengths, self.path_prefix = lengths, str(path_prefix)


def megatron_index(megatron, lengths, directory, *, first=0, name="train", num_samples=None, **options):
    """Return Megatron's three arrays for the sequences from ``first`` on."""
    from megatron.core.datasets.utils import Split

    config = SimpleNamespace(
        random_seed=options["seed"],
        sequence_length=options["sequence_length"],
        split=None,
        split_matrix=None,
        tokenizer=SimpleNamespace(unique_identifiers={}, eod=0),
        path_to_cache=str(directory),
        fast_cache_load=False,
        defer_npy_index_mmap=False,
        mock=False,
        allow_ambiguous_pad_tokens=False,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        drop_last_partial_validation_sequence=options["drop_last_partial"],
        add_extra_token_to_sequence=options["extra_token"],
    )
    indices = np.arange(first, len(lengths), dtype=np.int32)
    dataset = megatron.dataset(Lengths(lengths, directory), "x", indices, num_samples, Split[name], config)
    return dataset.document_index, dataset.sample_index, dataset.shuffle_index


def equal_arrays(index: GPTDatasetIndex, expected) -> None:
    for found, array in zip(
        (index.document_index, index.sample_index, index.shuffle_index), expected, strict=True
    ):
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        assert np.array_equal(found, array)


@pytest.mark.parametrize("epochs", [None, 1.0, 1.5, 1.95])
def test_many_documents_are_equal(tmp_path, megatron, epochs):
    """Enough of them for the compiled kernels: more than a million entries of each array."""
    lengths = np.random.RandomState(1).randint(0, 60, size=1_200_000, dtype=np.int32)
    sequences = range(77_777, len(lengths))
    options = {"sequence_length": 21, "seed": 7, "extra_token": True, "drop_last_partial": True}
    samples = epochs and int(epochs * (int(lengths[77_777:].sum()) - 1)) // 21
    expected = megatron_index(megatron, lengths, tmp_path, first=77_777, num_samples=samples, **options)
    equal_arrays(GPTDatasetIndex.build(lengths, sequences, num_samples=samples, **options), expected)


def test_partial_samples_are_counted_in_single_precision(tmp_path, megatron):
    """Billions of tokens, where Megatron loses a sample or adds one of nothing but padding."""
    differences = []
    for seed in range(40):
        draw = np.random.RandomState(seed)
        lengths = draw.randint(1, 4_000_000, size=draw.randint(20, 2000), dtype=np.int32)
        options = {
            "sequence_length": int(draw.randint(3_000, 30_000)),
            "seed": seed,
            "extra_token": seed % 3 != 0,
            "drop_last_partial": False,
        }
        # A few tokens more or less than whole samples, where the rounding decides.
        lengths[-1] += draw.randint(-40, 40) - lengths.sum(dtype=np.int64) % options["sequence_length"]
        lengths[-1] += 0 if lengths[-1] > 0 else options["sequence_length"] * 2
        samples = None if seed % 2 else int(lengths.sum(dtype=np.int64)) * 2 // options["sequence_length"]
        expected = megatron_index(
            megatron, lengths, tmp_path / str(seed), name="valid", num_samples=samples, **options
        )
        index = GPTDatasetIndex.build(lengths, range(len(lengths)), num_samples=samples, **options)
        equal_arrays(index, expected)
        differences.append(index.plan.samples - index.plan.exact_samples)
    assert min(differences) < 0 < max(differences)
