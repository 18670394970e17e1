import json
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from support.index_cache.cache_support import contents, saved
from support.interleaving import interleaved
from tokshard.errors import IntegrityError, LockedError, OutputExistsError, StorageError
from tokshard.gpt_index.epochs import plan_epochs
from tokshard.index_cache.cache import Cache, blend_specs, examine, gpt_specs, load
from tokshard.index_cache.description import BlendedDescription, GPTDatasetDescription
from tokshard.index_cache.npy import ArraySpec
from tokshard.index_cache.provision import Wanted, provide, write
from tokshard.index_cache.sidecar import Origin
from tokshard.storage import syscalls
from tokshard.storage.digest import content_digest
from tokshard.storage.lock import WriterLock

SOURCE = GPTDatasetDescription("data/web", 4, "valid", 1234, 8, None, None, {"class": "T"})
BLEND = BlendedDescription((SOURCE,), "valid", (1.0,), 6)
ARRAYS = {
    "dataset_index": np.array([0, 0, 0, 0, 0, 0], np.int16),
    "dataset_sample_index": np.arange(6, dtype=np.int64),
}
ORIGIN = Origin(dataset={"bin_bytes": 8, "fingerprint": "ab"}, options={"extra": True}, counts={"samples": 6})


@pytest.fixture
def wanted(tmp_path):
    entry = Cache(str(tmp_path / "cache")).blended_files(BLEND)
    return Wanted(entry, blend_specs(BLEND), ORIGIN, "the valid blend")


def make():
    return ARRAYS


def state(wanted, *, digests=True):
    return wanted.examine(digests=digests).state


def test_names_are_megatrons_and_ours_beside_them():
    entry = Cache("c/d").gpt_files(SOURCE)
    stem = f"c/d/{SOURCE.hash()}-GPTDataset-valid-"
    names = ("description.txt", "document_index.npy", "sample_index.npy", "shuffle_index.npy")
    assert entry.megatron_files == tuple(stem + name for name in names)
    assert entry.sidecar_path == stem + "tokshard.json"
    assert entry.hash == SOURCE.hash()
    blend = Cache("").blended_files(BLEND)
    names = ("description.txt", "dataset_index.npy", "dataset_sample_index.npy")
    stem = f"{BLEND.hash()}-BlendedDataset-valid-"
    assert blend.megatron_files == tuple(stem + name for name in names)


def test_files_hold_what_megatron_would_write(wanted):
    assert provide(wanted, make) == "built"
    entry = wanted.entry
    found = contents(entry.directory)
    assert found.pop(f"{entry.stem}-description.txt") == BLEND.text().encode()
    for name, array in ARRAYS.items():
        assert found.pop(f"{entry.stem}-{name}.npy") == saved(array)
    sidecar = json.loads(found.pop(f"{entry.stem}-tokshard.json"))
    assert not found
    assert sidecar["schema"] == "tokshard.cache/1"
    assert sidecar["dataset"] == ORIGIN.dataset
    content = saved(ARRAYS["dataset_index"])
    assert sidecar["files"]["dataset_index.npy"] == {
        "bytes": len(content),
        "xxh3_128": content_digest(content),
    }
    assert {name: array.tolist() for name, array in load(entry).items()} == {
        name: array.tolist() for name, array in ARRAYS.items()
    }


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


def test_the_description_appears_last_and_disappears_first(wanted, monkeypatch):
    events = []
    replace, unlink = syscalls.replace, syscalls.unlink
    monkeypatch.setattr(syscalls, "replace", lambda a, b: (replace(a, b), events.append(("appears", b))))

    def unlinked(path):
        if os.path.exists(path):
            events.append(("disappears", path))
        unlink(path)

    monkeypatch.setattr(syscalls, "unlink", unlinked)
    entry = wanted.entry
    arrays = [("appears", entry.array_path(name)) for name in entry.arrays]
    ends = [("appears", entry.sidecar_path), ("appears", entry.description_path)]
    assert provide(wanted, make) == "built"
    assert events == [*arrays, *ends, ("disappears", entry.lock_path)]
    events.clear()
    Path(entry.description_path).write_text("{}")
    assert provide(wanted, make, rebuild=True) == "rebuilt"
    begins = [("disappears", entry.description_path), ("disappears", entry.sidecar_path)]
    assert events == [*begins, *arrays, *ends, ("disappears", entry.lock_path)]


def test_a_fresh_entry_is_found_and_nothing_is_written(wanted, monkeypatch):
    provide(wanted, make)
    for name in ("create", "open_for_append", "replace", "unlink", "make_directory"):
        monkeypatch.setattr(syscalls, name, lambda *_: pytest.fail("a write"))
    assert provide(wanted, lambda: pytest.fail("built again")) == "found"
    assert state(wanted) == "fresh"


def test_any_missing_file_of_megatrons_makes_the_entry_missing_and_is_built_anew(wanted):
    assert wanted.examine().state == "missing"
    provide(wanted, make)
    whole = contents(wanted.entry.directory)
    for path in wanted.entry.megatron_files:
        os.unlink(path)
        found = wanted.examine()
        assert found.state == "missing"
        assert os.path.basename(path) in found.reason
        assert provide(wanted, make) == "built"
        assert contents(wanted.entry.directory) == whole


def refused(wanted, error, match):
    before = contents(wanted.entry.directory)
    with pytest.raises(error, match=match) as caught:
        provide(wanted, make)
    assert "--rebuild" in caught.value.hint
    assert contents(wanted.entry.directory) == before
    assert provide(wanted, make, rebuild=True) == "rebuilt"
    assert state(wanted) == "fresh"


def test_every_truncation_of_every_file_is_seen_without_reading_it_whole(wanted):
    provide(wanted, make)
    entry = wanted.entry
    for path in (*entry.megatron_files, entry.sidecar_path):
        content = Path(path).read_bytes()
        sizes = range(len(content)) if path.endswith(".npy") else range(0, len(content), 7)
        for size in (*sizes, len(content) - 1):
            Path(path).write_bytes(content[:size])
            # The last byte of the sidecar is its newline, which nothing depends on.
            expected = "fresh" if path == entry.sidecar_path and size == len(content) - 1 else "damaged"
            assert state(wanted, digests=False) == expected, (path, size)
        Path(path).write_bytes(content)
        assert state(wanted) == "fresh"
    Path(entry.array_path("dataset_index")).write_bytes(b"")
    refused(wanted, IntegrityError, "the valid blend in .* is damaged: .*dataset_index.npy")


def test_every_flipped_byte_of_an_array_or_the_description_is_seen_by_the_digests(wanted):
    provide(wanted, make)
    for path in wanted.entry.megatron_files:
        content = Path(path).read_bytes()
        for place in range(len(content)):
            changed = bytearray(content)
            changed[place] ^= 1 << (place % 8)
            Path(path).write_bytes(changed)
            assert state(wanted) == "damaged", (path, place)
        Path(path).write_bytes(content)
    assert state(wanted) == "fresh"


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        "[]",
        '{"schema": "tokshard.cache/2"}',
        '{"schema": "tokshard.cache/1"}',
        '{"schema": "tokshard.cache/1", "schema": "tokshard.cache/1"}',
        "\xff",
    ],
)
def test_a_sidecar_that_cannot_be_read_is_damage(wanted, content):
    provide(wanted, make)
    Path(wanted.entry.sidecar_path).write_text(content, encoding="latin-1")
    refused(wanted, IntegrityError, "tokshard.json")


@pytest.mark.parametrize("change", ["extra", "missing", "type", "entry", "no digest", "another digest"])
def test_a_sidecar_with_other_fields_is_damage(wanted, change):
    provide(wanted, make)
    path = Path(wanted.entry.sidecar_path)
    value = json.loads(path.read_text())
    files = value["files"]
    if change == "extra":
        value["more"] = 1
    elif change == "missing":
        del value["options"]
    elif change == "type":
        value["files"] = [files]
    elif change == "entry":
        files["dataset_index.npy"] = 5
    elif change == "no digest":
        del files["dataset_index.npy"]
    else:
        files["dataset_index.npy"]["xxh3_128"] = "0" * 32
    path.write_text(json.dumps(value))
    assert state(wanted) == "damaged"


def changed_origin(wanted, **changes):
    fields = {name: getattr(ORIGIN, name) for name in ("dataset", "options", "counts")}
    return Wanted(wanted.entry, wanted.specs, Origin(**{**fields, **changes}), wanted.name)


def test_another_content_of_the_data_set_is_stale_by_name(wanted):
    provide(wanted, make)
    other = changed_origin(wanted, dataset={"bin_bytes": 9, "fingerprint": "ab"})
    refused(other, OutputExistsError, "another content of the dataset: its bin_bytes was 8 and is 9")
    assert state(wanted) == "stale"


def test_another_option_outside_the_hash_is_stale_by_name(wanted):
    provide(wanted, make)
    other = changed_origin(wanted, options={"extra": False})
    refused(other, OutputExistsError, "was made with extra=True, and not with extra=False")


def test_a_manifest_that_comes_or_goes_makes_nothing_stale(wanted):
    provide(wanted, make)
    assert state(changed_origin(wanted, dataset={"bin_bytes": 8})) == "fresh"
    known = {"bin_bytes": 8, "fingerprint": "ab", "bin_pieces_xxh3_128": "cd"}
    assert state(changed_origin(wanted, dataset=known)) == "fresh"


def as_megatron(wanted, arrays):
    os.makedirs(wanted.entry.directory)
    Path(wanted.entry.description_path).write_text(wanted.entry.text)
    for name, array in arrays.items():
        Path(wanted.entry.array_path(name)).write_bytes(saved(array))


def test_a_cache_of_megatrons_is_foreign_until_it_is_verified(wanted):
    as_megatron(wanted, ARRAYS)
    before = contents(wanted.entry.directory)
    assert state(wanted) == state(wanted, digests=False) == "foreign"
    assert provide(wanted, make) == "verified"
    assert state(wanted) == "fresh"
    after = contents(wanted.entry.directory)
    assert set(after) - set(before) == {os.path.basename(wanted.entry.sidecar_path)}
    assert before.items() <= after.items()


def test_a_cache_of_megatrons_that_is_wrong_is_not_adopted(wanted):
    wrong = {**ARRAYS, "dataset_sample_index": ARRAYS["dataset_sample_index"][::-1]}
    as_megatron(wanted, wrong)
    refused(wanted, IntegrityError, "was not made by tokshard, and is not what it should be")


def test_a_cache_of_megatrons_is_replaced_on_request(wanted):
    as_megatron(wanted, ARRAYS)
    assert provide(wanted, make, rebuild=True) == "rebuilt"
    assert state(wanted) == "fresh"


def test_a_cache_of_megatrons_that_does_not_fit_is_stale(wanted):
    as_megatron(wanted, {name: array[:5] for name, array in ARRAYS.items()})
    refused(
        wanted, OutputExistsError, r"dataset_index.npy is int16 of shape \(5,\), but int16 of shape \(6,\)"
    )


def test_what_killed_writers_left_is_removed_and_what_others_have_stays(wanted):
    entry = wanted.entry
    os.makedirs(entry.directory)
    ours = [f".{entry.stem}-dataset_index.npy.4711-0.tokshard-tmp", f"{entry.stem}-tokshard.lock"]
    strangers = [".other-index.npy.4711-0.tokshard-tmp", f".{entry.stem}-dataset_index.npy.tmp", "notes.txt"]
    for name in ours + strangers:
        Path(entry.directory, name).write_text("x")
    provide(wanted, make)
    left = set(contents(entry.directory))
    assert not left & set(ours)
    assert set(strangers) <= left


def test_a_lock_that_was_left_beside_a_fresh_entry_is_removed(wanted):
    provide(wanted, make)
    Path(wanted.entry.lock_path).write_text("{}")
    assert provide(wanted, make) == "found"
    assert not os.path.exists(wanted.entry.lock_path)


def test_the_wait_for_another_writer_is_bounded_and_can_be_given_up(wanted):
    os.makedirs(wanted.entry.directory)
    with WriterLock(wanted.entry.lock_path):
        with pytest.raises(LockedError, match="another process is writing"):
            provide(wanted, make, wait_seconds=0.2)

        def give_up(seconds):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            provide(wanted, make, pause=give_up)
    assert provide(wanted, make) == "built"


def test_what_another_writer_has_made_meanwhile_is_found(wanted):
    os.makedirs(wanted.entry.directory)
    other = WriterLock(wanted.entry.lock_path)
    other.__enter__()

    def finish(seconds):
        write(wanted.entry, ARRAYS, ORIGIN)
        other.__exit__(None, None, None)

    assert provide(wanted, lambda: pytest.fail("built twice"), pause=finish) == "found"


def replace(wanted):
    write(wanted.entry, ARRAYS, ORIGIN)


def begin_to_replace(wanted):
    """Replace an entry as a process does that is killed before it has written what comes last."""
    replace(wanted)
    os.unlink(wanted.entry.description_path)
    os.unlink(wanted.entry.sidecar_path)


@pytest.mark.parametrize(
    ("disturb", "allowed"),
    [(replace, {"stale", "missing", "fresh"}), (begin_to_replace, {"stale", "missing"})],
)
@pytest.mark.parametrize("size", [6, 7], ids=["of the same sizes", "of other sizes"])
def test_an_entry_that_is_replaced_while_it_is_examined_is_never_damaged(wanted, disturb, allowed, size):
    old = {name: np.resize(array[::-1], size) for name, array in ARRAYS.items()}
    older = changed_origin(wanted, dataset={"bin_bytes": 9}).origin
    found = Counter(
        interleaved(
            lambda: state(wanted),
            lambda: disturb(wanted),
            inside=("index_cache/cache.py", "index_cache/npy.py", "index_cache/sidecar.py"),
            prepare=lambda: write(wanted.entry, old, older),
        )
    )
    assert set(found) == allowed
    assert found.total() > 50


# The lock, header and data of two arrays, the sidecar, the description.
@pytest.mark.parametrize("failing", range(1, 8))
def test_a_file_that_cannot_be_written_leaves_nothing_that_looks_whole(wanted, failing, monkeypatch):
    provide(wanted, make)
    count = 0
    original = syscalls.write

    def failing_write(descriptor, buffer, path):
        nonlocal count
        count += 1
        if count == failing:
            raise StorageError("write", path, OSError(28, "No space left on device"))
        original(descriptor, buffer, path)

    other = changed_origin(wanted, options={"extra": False})
    with monkeypatch.context() as patch:
        patch.setattr(syscalls, "write", failing_write)
        with pytest.raises(StorageError, match="No space left"):
            provide(other, make, rebuild=True)
    assert state(other) == ("stale" if failing == 1 else "missing")
    assert not [name for name in os.listdir(wanted.entry.directory) if name.startswith(".")]
    provide(other, make, rebuild=True)
    assert state(other) == "fresh"


def test_a_directory_in_place_of_a_file_is_a_named_error(wanted):
    os.makedirs(wanted.entry.array_path("dataset_index"))
    assert examine(wanted.entry, wanted.specs, ORIGIN, digests=True).state == "missing"
    with pytest.raises(StorageError, match=r"dataset_index\.npy"):
        provide(wanted, make)
