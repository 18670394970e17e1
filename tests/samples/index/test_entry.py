from pathlib import Path

import numpy as np

from tokshard.samples.index.description import BlendedDescription, GPTDatasetDescription
from tokshard.samples.index.entry import CacheEntry
from tokshard.samples.index.epochs import plan_epochs
from tokshard.samples.index.npy import ArraySpec
from tokshard.samples.index.packing import Packing
from tokshard.samples.index.sidecar import Sidecar, blend_specs, gpt_specs
from tokshard.storage.digest import FileRecord

SOURCE = GPTDatasetDescription("data/web", 4, "valid", 1234, 8, None, None, {"class": "T"})
BLEND = BlendedDescription((SOURCE,), "valid", (1.0,), 6)


def test_names_are_megatrons_and_ours_beside_them():
    entry = CacheEntry.of(SOURCE, "c/d")
    stem = f"c/d/{SOURCE.hash()}-GPTDataset-valid-"
    names = ("description.txt", "document_index.npy", "sample_index.npy", "shuffle_index.npy")
    assert entry.megatron_files == tuple(stem + name for name in names)
    assert entry.sidecar_path == stem + "tokshard.json"
    assert entry.hash == SOURCE.hash()
    blend = CacheEntry.of(BLEND, "")
    names = ("description.txt", "dataset_index.npy", "dataset_sample_index.npy")
    stem = f"{BLEND.hash()}-BlendedDataset-valid-"
    assert blend.megatron_files == tuple(stem + name for name in names)


def test_dtypes_change_where_megatrons_do():
    def plan(sequences, samples):
        return plan_epochs(
            sequences=sequences,
            tokens_per_epoch=samples + 1,
            sequence_length=1,
            num_samples=None,
        )

    last = gpt_specs(plan(2**31 - 1, 2**32 - 3))
    assert last["sample_index"] == ArraySpec(np.dtype("<i4"), (2**32 - 2, 2))
    assert last["shuffle_index"] == ArraySpec(np.dtype("<u4"), (2**32 - 3,))
    first = gpt_specs(plan(2**31 - 1, 2**32 - 2))
    assert first["shuffle_index"] == ArraySpec(np.dtype("<i8"), (2**32 - 2,))
    twice = plan_epochs(sequences=2**30, tokens_per_epoch=2**30, sequence_length=1, num_samples=2**31 - 1)
    assert gpt_specs(twice)["document_index"] == ArraySpec(np.dtype("<i4"), (2**31,))
    assert gpt_specs(twice)["sample_index"].dtype == np.dtype("<i8")


def test_an_exhaustive_blend_has_the_sum_of_its_weights():
    exhaustive = BlendedDescription((SOURCE, SOURCE), "valid", (3, 4), None)
    assert blend_specs(exhaustive.samples)["dataset_index"] == ArraySpec(np.dtype("<i2"), (7,))


def test_a_sidecar_of_version_1_is_read_and_written_back_byte_for_byte():
    path = Path(__file__).parents[2] / "golden" / "formats" / "cache-2.json"
    sidecar = Sidecar.read(str(path))
    assert sidecar.origin.plan.extra_token
    assert not sidecar.origin.plan.drop_last_partial
    assert sidecar.files["sample_index.npy"] == FileRecord(440, "4b" * 16)
    assert sidecar.to_bytes() == path.read_bytes()


def test_a_sidecar_with_tokenizers_is_read_and_written_back_byte_for_byte():
    path = Path(__file__).parents[2] / "golden" / "formats" / "cache-2-tokenizers.json"
    sidecar = Sidecar.read(str(path))
    assert sidecar.origin.tokenizer.identity.vocab_size == 4096
    assert sidecar.tokenizer_mismatches[0].second.names == ("data/code",)
    assert sidecar.to_bytes() == path.read_bytes()


def test_a_sidecar_of_packed_samples_is_read_and_written_back_byte_for_byte():
    path = Path(__file__).parents[2] / "golden" / "formats" / "cache-2-packed.json"
    sidecar = Sidecar.read(str(path))
    assert sidecar.origin.plan.packing == Packing(max_documents=8, pad_multiple=4)
    packed = sidecar.origin.plan.packed
    assert (packed.samples, packed.concat_cut_documents) == (6, 3)
    assert sidecar.to_bytes() == path.read_bytes()


def test_the_entry_of_a_file_is_known_by_its_name():
    entry = CacheEntry.of(SOURCE, "c/d")
    for path in (*entry.megatron_files, entry.sidecar_path, entry.lock_path):
        assert CacheEntry.of_file(path) == entry
    assert (entry.is_blend, entry.split, entry.hash) == (False, "valid", SOURCE.hash())
    assert CacheEntry.of_file(f"c/d/{entry.stem}.npy") is None
    assert CacheEntry.of_file(f"c/d/x{entry.stem}-description.txt") is None
