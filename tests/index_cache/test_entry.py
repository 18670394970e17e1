from pathlib import Path

import numpy as np
import pytest

from support.index_caches import LENGTHS, entry_for, request_for, write_as_megatron, write_dataset
from tokshard.gpt_index.epochs import plan_epochs
from tokshard.index_cache.description import BlendedDescription, GPTDatasetDescription
from tokshard.index_cache.entry import CacheEntry, Sidecar, blend_specs, examine, gpt_specs
from tokshard.index_cache.job import build_requests
from tokshard.index_cache.npy import ArraySpec
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
    assert blend_specs(exhaustive)["dataset_index"] == ArraySpec(np.dtype("<i2"), (7,))


def test_a_sidecar_of_version_1_is_read_and_written_back_byte_for_byte():
    path = Path(__file__).parents[1] / "golden" / "formats" / "cache-1.json"
    sidecar = Sidecar.read(str(path))
    assert sidecar.origin.extra_token
    assert not sidecar.origin.drop_last_partial
    assert sidecar.files["sample_index.npy"] == FileRecord(440, "4b" * 16)
    assert sidecar.to_bytes() == path.read_bytes()


def test_a_sidecar_with_tokenizers_is_read_and_written_back_byte_for_byte():
    path = Path(__file__).parents[1] / "golden" / "formats" / "cache-1-tokenizers.json"
    sidecar = Sidecar.read(str(path))
    assert sidecar.origin.tokenizer.identity.vocab_size == 4096
    assert sidecar.tokenizer_mismatches[0].second.names == ("data/code",)
    assert sidecar.to_bytes() == path.read_bytes()


def test_the_entry_of_a_file_is_known_by_its_name():
    entry = CacheEntry.of(SOURCE, "c/d")
    for path in (*entry.megatron_files, entry.sidecar_path, entry.lock_path):
        assert CacheEntry.of_file(path) == entry
    assert (entry.is_blend, entry.split, entry.hash) == (False, "valid", SOURCE.hash())
    assert CacheEntry.of_file(f"c/d/{entry.stem}.npy") is None
    assert CacheEntry.of_file(f"c/d/x{entry.stem}-description.txt") is None


@pytest.fixture
def entry(tmp_path):
    prefix = write_dataset(str(tmp_path / "data/web"))
    (outcome,) = build_requests([request_for(prefix)], cache_directory=str(tmp_path / "cache"))
    return outcome.entry


def kinds(entry):
    return [problem.kind for problem in examine(entry).problems]


def test_an_entry_is_examined_by_itself(entry, tmp_path):
    found = examine(entry, digests=True)
    assert (found.condition, found.detail, found.problems) == ("complete", "is complete", ())
    assert found.sidecar == Sidecar.read(entry.sidecar_path)
    assert CacheEntry.of(found.description, entry.directory) == entry
    for name in entry.arrays:
        assert found.specs[name] == ArraySpec.of(entry.load()[name])
    foreign = write_as_megatron(request_for("data/web"), LENGTHS, str(tmp_path / "other"))
    assert (examine(foreign).condition, examine(foreign).sidecar) == ("complete", None)
    absent = examine(entry_for(request_for("x", seed=5), tmp_path))
    assert (absent.condition, absent.detail) == ("missing", "does not exist")


def test_each_kind_of_damage_is_named(entry):
    description, array = Path(entry.description_path), Path(entry.array_path("shuffle_index"))
    text, content = description.read_text(), array.read_bytes()
    description.write_text(text.replace('"random_seed": 1234', '"random_seed": 1235'))
    assert kinds(entry) == ["name"]
    description.write_text(text[:-1])
    assert kinds(entry) == ["description"]
    description.write_text(text)
    array.write_bytes(content[:-4])
    assert kinds(entry) == ["array"]
    np.save(array, entry_array(content)[:-1])
    assert kinds(entry) == ["array", "shape"]
    array.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert kinds(entry) == []
    assert [problem.kind for problem in examine(entry, digests=True).problems] == ["digest"]
    assert examine(entry, digests=True).condition == "damaged"
    array.write_bytes(content)
    sidecar = Path(entry.sidecar_path)
    known = sidecar.read_text()
    sidecar.write_text(known.replace(entry.hash, "0" * 32))
    assert kinds(entry) == ["sidecar"]
    sidecar.write_text(known.replace("shuffle_index.npy", "other_index.npy"))
    assert kinds(entry) == ["sidecar"]


def entry_array(content):
    return np.frombuffer(content[128:], np.uint32)
