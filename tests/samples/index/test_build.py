import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from support.index_caches import contents, saved
from support.interleaving import interleaved
from tokshard.core.codec import encode
from tokshard.dataset.fingerprint import DatasetFingerprint
from tokshard.errors import IntegrityError, LockedError, OutputExistsError, StorageError
from tokshard.samples.index.build import build_or_reuse, write
from tokshard.samples.index.description import BlendedDescription, GPTDatasetDescription
from tokshard.samples.index.entry import CacheEntry
from tokshard.samples.index.epochs import plan_epochs
from tokshard.samples.index.examination import CacheTarget, examine
from tokshard.samples.index.sidecar import IndexOrigin, blend_specs
from tokshard.storage import syscalls
from tokshard.storage.digest import content_digest
from tokshard.storage.lock import WriterLock

SOURCE = GPTDatasetDescription("data/web", 4, "valid", 1234, 8, None, None, {"class": "T"})
BLEND = BlendedDescription((SOURCE,), "valid", (1.0,), 6)
ARRAYS = {
    "dataset_index": np.array([0, 0, 0, 0, 0, 0], np.int16),
    "dataset_sample_index": np.arange(6, dtype=np.int64),
}
FINGERPRINT = DatasetFingerprint(bin_bytes=8, idx_bytes=5, manifest_fingerprint="ab" * 32)
ORIGIN = IndexOrigin(
    dataset=FINGERPRINT,
    plan=plan_epochs(sequences=1, tokens_per_epoch=7, sequence_length=1, num_samples=None),
)


@pytest.fixture
def target(tmp_path):
    return CacheTarget(
        entry=CacheEntry.of(BLEND, str(tmp_path / "cache")),
        description=BLEND,
        label="the valid blend",
        specs=blend_specs(BLEND.samples),
        origin=ORIGIN,
    )


def make():
    return ARRAYS


def condition(target, *, digests=True):
    examination = target.examine(digests=digests)
    return "damaged" if examination.is_damaged else examination.condition


def test_files_hold_what_megatron_would_write(target):
    assert build_or_reuse(target, make) == "built"
    entry = target.entry
    found = contents(entry.directory)
    assert found.pop(f"{entry.stem}-description.txt") == BLEND.text().encode()
    for name, array in ARRAYS.items():
        assert found.pop(f"{entry.stem}-{name}.npy") == saved(array)
    sidecar = json.loads(found.pop(f"{entry.stem}-tokshard.json"))
    assert not found
    assert sidecar["schema"] == "tokshard.cache/2"
    assert sidecar["origin"] == encode(ORIGIN)
    content = saved(ARRAYS["dataset_index"])
    assert sidecar["files"]["dataset_index.npy"] == {
        "size_bytes": len(content),
        "xxh3_128": content_digest(content),
    }
    assert {name: array.tolist() for name, array in entry.load().items()} == {
        name: array.tolist() for name, array in ARRAYS.items()
    }


def test_the_description_appears_last_and_disappears_first(target, monkeypatch):
    events = []
    move, unlink = syscalls.replace, syscalls.unlink
    monkeypatch.setattr(syscalls, "replace", lambda a, b: (move(a, b), events.append(("appears", b))))

    def unlinked(path):
        if os.path.exists(path):
            events.append(("disappears", path))
        unlink(path)

    monkeypatch.setattr(syscalls, "unlink", unlinked)
    entry = target.entry
    arrays = [("appears", entry.array_path(name)) for name in entry.arrays]
    ends = [("appears", entry.sidecar_path), ("appears", entry.description_path)]
    assert build_or_reuse(target, make) == "built"
    assert events == [*arrays, *ends, ("disappears", entry.lock_path)]
    events.clear()
    Path(entry.description_path).write_text("{}")
    assert build_or_reuse(target, make, rebuild=True) == "rebuilt"
    begins = [("disappears", entry.description_path), ("disappears", entry.sidecar_path)]
    assert events == [*begins, *arrays, *ends, ("disappears", entry.lock_path)]


def test_a_fresh_entry_is_found_and_nothing_is_written(target, monkeypatch):
    build_or_reuse(target, make)
    for name in ("create", "open_for_append", "replace", "unlink", "make_directory"):
        monkeypatch.setattr(syscalls, name, lambda *_: pytest.fail("a write"))
    assert build_or_reuse(target, lambda: pytest.fail("built again")) == "found"
    assert condition(target) == "fresh"


def test_any_missing_file_of_megatrons_makes_the_entry_missing_and_is_rebuilt(target):
    assert target.examine().condition == "missing"
    build_or_reuse(target, make)
    whole = contents(target.entry.directory)
    for path in target.entry.megatron_files:
        os.unlink(path)
        found = target.examine()
        assert found.condition == "missing"
        assert os.path.basename(path) in found.reason
        assert build_or_reuse(target, make) == "built"
        assert contents(target.entry.directory) == whole


def refused(target, error, match):
    before = contents(target.entry.directory)
    with pytest.raises(error, match=match) as caught:
        build_or_reuse(target, make)
    assert "--rebuild" in caught.value.hint
    assert contents(target.entry.directory) == before
    assert build_or_reuse(target, make, rebuild=True) == "rebuilt"
    assert condition(target) == "fresh"


def test_every_truncation_of_every_file_is_seen_without_reading_it_whole(target):
    build_or_reuse(target, make)
    entry = target.entry
    for path in (*entry.megatron_files, entry.sidecar_path):
        content = Path(path).read_bytes()
        sizes = range(len(content)) if path.endswith(".npy") else range(0, len(content), 7)
        for size in (*sizes, len(content) - 1):
            Path(path).write_bytes(content[:size])
            # The last byte of the sidecar is its newline, which nothing depends on.
            expected = "fresh" if path == entry.sidecar_path and size == len(content) - 1 else "damaged"
            assert condition(target, digests=False) == expected, (path, size)
        Path(path).write_bytes(content)
        assert condition(target) == "fresh"
    Path(entry.array_path("dataset_index")).write_bytes(b"")
    refused(target, IntegrityError, "the valid blend in .* is damaged: .*dataset_index.npy")


def test_every_flipped_byte_of_an_array_or_the_description_is_seen_by_the_digests(target):
    build_or_reuse(target, make)
    for path in target.entry.megatron_files:
        content = Path(path).read_bytes()
        for place in range(len(content)):
            changed = bytearray(content)
            changed[place] ^= 1 << (place % 8)
            Path(path).write_bytes(changed)
            assert condition(target) == "damaged", (path, place)
        Path(path).write_bytes(content)
    assert condition(target) == "fresh"


@pytest.mark.parametrize(
    "content",
    [
        "{}",
        "[]",
        '{"schema": "tokshard.cache/2"}',
        '{"schema": "tokshard.cache/3"}',
        '{"schema": "tokshard.cache/2", "schema": "tokshard.cache/2"}',
        "\xff",
    ],
)
def test_a_sidecar_that_cannot_be_read_is_damage(target, content):
    build_or_reuse(target, make)
    Path(target.entry.sidecar_path).write_text(content, encoding="latin-1")
    refused(target, IntegrityError, "tokshard.json")


@pytest.mark.parametrize("change", ["extra", "missing", "type", "entry", "no digest", "another digest"])
def test_a_sidecar_with_other_fields_is_damage(target, change):
    build_or_reuse(target, make)
    path = Path(target.entry.sidecar_path)
    value = json.loads(path.read_text())
    files = value["files"]
    if change == "extra":
        value["more"] = 1
    elif change == "missing":
        del value["origin"]
    elif change == "type":
        value["files"] = [files]
    elif change == "entry":
        files["dataset_index.npy"] = 5
    elif change == "no digest":
        del files["dataset_index.npy"]
    else:
        files["dataset_index.npy"]["xxh3_128"] = "0" * 32
    path.write_text(json.dumps(value))
    assert condition(target) == "damaged"


def changed_origin(target, **changes):
    return replace(target, origin=replace(ORIGIN, **changes))


def test_another_content_of_the_dataset_is_stale_by_name(target):
    build_or_reuse(target, make)
    other = changed_origin(target, dataset=replace(FINGERPRINT, bin_bytes=9))
    refused(other, OutputExistsError, "other content of the dataset: bin_bytes was 8 and is now 9")
    assert condition(target) == "differs"


@pytest.mark.parametrize(
    ("attribute", "option"),
    [
        ("extra_token", "add_extra_token_to_sequence"),
        ("drop_last_partial", "drop_last_partial_sequence"),
    ],
)
def test_another_option_outside_the_hash_is_stale_by_name(target, attribute, option):
    build_or_reuse(target, make)
    other = changed_origin(target, plan=replace(ORIGIN.plan, **{attribute: False}))
    refused(other, OutputExistsError, f"was built with {option}=True instead of {option}=False")


def test_a_manifest_that_comes_or_goes_makes_nothing_stale(target):
    build_or_reuse(target, make)
    without = DatasetFingerprint(bin_bytes=8, idx_bytes=5)
    assert condition(changed_origin(target, dataset=without)) == "fresh"
    known = replace(FINGERPRINT, bin_pieces_xxh3_128="cd" * 16)
    assert condition(changed_origin(target, dataset=known)) == "fresh"


def as_megatron(target, arrays):
    os.makedirs(target.entry.directory)
    Path(target.entry.description_path).write_text(target.description.text())
    for name, array in arrays.items():
        Path(target.entry.array_path(name)).write_bytes(saved(array))


def test_a_cache_of_megatrons_is_left_alone_and_replaced_on_request(target):
    as_megatron(target, ARRAYS)
    assert condition(target) == condition(target, digests=False) == "differs"
    assert target.examine().is_unverified
    refused(target, OutputExistsError, "was not built by tokshard: its content is unverified")


def test_a_cache_of_megatrons_that_does_not_fit_is_stale(target):
    as_megatron(target, {name: array[:5] for name, array in ARRAYS.items()})
    refused(
        target,
        OutputExistsError,
        r"dataset_index.npy must be int16 of shape \(6,\), got int16 of shape \(5,\)",
    )


def test_what_killed_writers_left_is_removed_and_what_others_have_stays(target):
    entry = target.entry
    os.makedirs(entry.directory)
    ours = [f".{entry.stem}-dataset_index.npy.4711-0.tokshard-tmp", f"{entry.stem}-tokshard.lock"]
    strangers = [".other-index.npy.4711-0.tokshard-tmp", f".{entry.stem}-dataset_index.npy.tmp", "notes.txt"]
    for name in ours + strangers:
        Path(entry.directory, name).write_text("x")
    build_or_reuse(target, make)
    left = set(contents(entry.directory))
    assert not left & set(ours)
    assert set(strangers) <= left


def test_a_lock_that_was_left_beside_a_fresh_entry_is_removed(target):
    build_or_reuse(target, make)
    Path(target.entry.lock_path).write_text("{}")
    assert build_or_reuse(target, make) == "found"
    assert not os.path.exists(target.entry.lock_path)


def test_the_wait_for_another_writer_is_bounded_and_can_be_interrupted(target):
    os.makedirs(target.entry.directory)
    with WriterLock(target.entry.lock_path):
        with pytest.raises(LockedError, match="another process is writing"):
            build_or_reuse(target, make, wait_seconds=0.2)

        def give_up(seconds):
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            build_or_reuse(target, make, pause=give_up)
    assert build_or_reuse(target, make) == "built"


def test_what_another_writer_has_made_meanwhile_is_found(target):
    os.makedirs(target.entry.directory)
    other = WriterLock(target.entry.lock_path)
    other.__enter__()

    def finish(seconds):
        write(target, ARRAYS)
        other.__exit__(None, None, None)

    assert build_or_reuse(target, lambda: pytest.fail("built twice"), pause=finish) == "found"


def replace_entry(target):
    write(target, ARRAYS)


def begin_to_replace(target):
    """Replace an entry as a process does that is killed before it has written what comes last."""
    replace_entry(target)
    os.unlink(target.entry.description_path)
    os.unlink(target.entry.sidecar_path)


@pytest.mark.parametrize(
    ("disturb", "allowed"),
    [(replace_entry, {"differs", "missing", "fresh"}), (begin_to_replace, {"differs", "missing"})],
)
@pytest.mark.parametrize("size", [6, 7], ids=["of the same sizes", "of other sizes"])
def test_an_entry_that_is_replaced_while_it_is_examined_is_never_damaged(target, disturb, allowed, size):
    old = {name: np.resize(array[::-1], size) for name, array in ARRAYS.items()}
    older = changed_origin(target, dataset=replace(FINGERPRINT, bin_bytes=9))
    found = Counter(
        interleaved(
            lambda: condition(target),
            lambda: disturb(target),
            inside=("samples/index/entry.py", "samples/index/examination.py", "samples/index/npy.py"),
            prepare=lambda: write(older, old),
        )
    )
    assert set(found) == allowed
    assert found.total() > 50


# The lock, header and data of two arrays, the sidecar, the description.
@pytest.mark.parametrize("failing", range(1, 8))
def test_a_file_that_cannot_be_written_leaves_nothing_that_looks_whole(target, failing, monkeypatch):
    build_or_reuse(target, make)
    count = 0
    original = syscalls.write

    def failing_write(descriptor, buffer, path):
        nonlocal count
        count += 1
        if count == failing:
            raise StorageError("write", path, OSError(28, "No space left on device"))
        original(descriptor, buffer, path)

    other = changed_origin(target, plan=replace(ORIGIN.plan, extra_token=False))
    with monkeypatch.context() as patch:
        patch.setattr(syscalls, "write", failing_write)
        with pytest.raises(StorageError, match="No space left"):
            build_or_reuse(other, make, rebuild=True)
    assert condition(other) == ("differs" if failing == 1 else "missing")
    assert not [name for name in os.listdir(target.entry.directory) if name.startswith(".")]
    build_or_reuse(other, make, rebuild=True)
    assert condition(other) == "fresh"


def test_a_directory_in_place_of_a_file_is_a_named_error(target):
    os.makedirs(target.entry.array_path("dataset_index"))
    assert examine(target.entry, target, digests=True).condition == "missing"
    with pytest.raises(StorageError, match=r"dataset_index\.npy"):
        build_or_reuse(target, make)
