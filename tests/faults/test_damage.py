"""Unfinished runs whose files were damaged, replaced by links, or removed by half."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from pathlib import Path

import pytest

from faults.campaign import finished_units, outputs
from support.tokenize_runs import run_tokenize
from tokshard.core.progress import ProgressUpdate, SilentProgress
from tokshard.errors import (
    IntegrityError,
    LockedError,
    OutputExistsError,
    StorageError,
)
from tokshard.storage import syscalls
from tokshard.storage.digest import content_digest
from tokshard.text.tokenize import assembly
from tokshard.text.tokenize import part as part_module
from tokshard.text.tokenize.job import Workspace

WORK = "out/x.tokshard/work"


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(assembly, "CHECKPOINT_UNITS", 3)
    lines = [json.dumps({"text": f"document {i}" * (i % 5), "title": f"{i}"}) for i in range(40)]
    lines[7] = "{"
    Path("corpus.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path


def tokenize(**options):
    return run_tokenize("corpus.jsonl", "out/x", unit_size=300, on_error="skip", **options)


def unfinished(monkeypatch, last="units"):
    """Break off a run when all units are in the assembly, or when the work directory has been sealed."""
    with broken_off(monkeypatch, last), pytest.raises(KeyboardInterrupt):
        tokenize()


@contextmanager
def broken_off(monkeypatch, last):
    original = syscalls.replace

    def stopping(source, target):
        if last == "units" and target.endswith("work/0.idx"):
            raise KeyboardInterrupt
        original(source, target)
        if target.endswith("work/publish.json"):
            raise KeyboardInterrupt

    with monkeypatch.context() as context:
        context.setattr(syscalls, "replace", stopping)
        yield


def expected_outputs():
    """Make the right outputs, note their bytes, and remove them."""
    tokenize()
    found = outputs(["out/x"])
    remove_outputs()
    return found


def remove_outputs():
    for name in ("x.bin", "x.idx", *(f"x.tokshard/{name}" for name in os.listdir("out/x.tokshard"))):
        Path("out", name).unlink()


def test_a_journal_damaged_anywhere(directory, monkeypatch):
    expected = expected_outputs()
    unfinished(monkeypatch)
    journal = Path(WORK, "units.jsonl")
    size, redone = journal.stat().st_size, set()
    for position in range(5, size, size // 16):
        if position > 5:
            remove_outputs()
            unfinished(monkeypatch)
        content = bytearray(journal.read_bytes())
        content[position] ^= 1
        journal.write_bytes(content)
        report = tokenize()
        redone.add(report.outputs[0].dataset.units - report.units_reused)
        assert outputs(["out/x"]) == expected, position
    assert 0 in redone or len(redone) > 2


def test_a_journal_cut_anywhere_or_gone(directory, monkeypatch):
    expected = expected_outputs()
    unfinished(monkeypatch)
    journal = Path(WORK, "units.jsonl")
    for size in range(0, journal.stat().st_size, 700):
        os.truncate(journal, size)
        tokenize()
        assert outputs(["out/x"]) == expected, size
        remove_outputs()
        unfinished(monkeypatch)
    journal.unlink()
    tokenize()
    assert outputs(["out/x"]) == expected


def test_a_stream_shorter_than_the_journal_says(directory, monkeypatch):
    expected = expected_outputs()
    unfinished(monkeypatch)
    os.truncate(f"{WORK}/0.bin", 10)
    tokenize()
    assert outputs(["out/x"]) == expected


class StopsAfter(SilentProgress):
    """Stops the run at its n-th update."""

    def __init__(self, count: int) -> None:
        self.count = count

    def update(self, state: ProgressUpdate) -> None:
        self.count -= 1
        if self.count < 0:
            raise KeyboardInterrupt


@pytest.fixture
def stop(directory, monkeypatch):
    """Stop a run halfway; return how many units are finished, and the right outputs."""

    def stop(checkpoint_units):
        expected = expected_outputs()
        monkeypatch.setattr(assembly, "CHECKPOINT_UNITS", checkpoint_units)
        with pytest.raises(KeyboardInterrupt):
            tokenize(progress=StopsAfter(10))
        finished = finished_units("out/x")
        assert len(finished) == 5
        return len(finished), expected

    return stop


@pytest.mark.parametrize(
    ("damage", "checkpoint_units"),
    [(damage, units) for damage in ("flip", "cut", "longer") for units in (3, 256)] + [("gone", 256)],
)
def test_tokens_behind_the_checkpoint_count_for_nothing(stop, damage, checkpoint_units):
    finished, expected = stop(checkpoint_units)
    covered = 0
    for _, checkpoint in assembly.read_assembled(WORK, frozenset({"reference"})):
        covered = checkpoint.sizes["0.bin"]
    assert (covered > 0) == (checkpoint_units == 3)
    tokens = Path(WORK, "0.bin")
    content = tokens.read_bytes()
    assert len(content) > covered
    behind = {"flip": bytes(255 - byte for byte in content[covered:]), "longer": content[covered:] + content}
    tokens.write_bytes(content[:covered] + behind.get(damage, b""))
    if damage == "gone":
        tokens.unlink()
    assert tokenize().units_reused == finished
    assert outputs(["out/x"]) == expected


def flip_a_token(path):
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)


def change_the_version(path):
    path.write_bytes(path.read_bytes()[:-1] + b"1")


def take_the_tokens_out(path):
    """Make the part one of an earlier tokshard, whose workers wrote tokens to their place in 0.bin."""
    content = path.read_bytes()
    length, _, _ = part_module._TAIL.unpack(content[-part_module._TAIL.size :])
    end = len(content) - part_module._TAIL.size - length
    footer = json.loads(content[end : end + length])
    tokens = footer["streams"].pop("tokens.0")
    size = sum(size for _, size in tokens["extents"])
    footer["placed"] = {"tokens.0": {"offset": 80, "size_bytes": size, "xxh3_128": tokens["xxh3_128"]}}
    changed = json.dumps(footer, separators=(",", ":")).encode()
    digest = bytes.fromhex(content_digest(changed))
    tail = part_module._TAIL.pack(len(changed), digest, part_module._MAGIC)
    path.write_bytes(content[:end] + changed + tail)


@pytest.mark.parametrize("damage", [Path.unlink, flip_a_token, change_the_version, take_the_tokens_out])
def test_a_damaged_part_is_made_again_and_no_others(stop, damage):
    finished, expected = stop(256)
    _, second, *_ = sorted(Path(WORK, "parts").glob("*.part"))
    damage(second)
    assert tokenize().units_reused == finished - 1
    assert outputs(["out/x"]) == expected


@pytest.mark.parametrize("checkpoint_units", [3, 256])
def test_a_run_of_another_version_is_resumed_from_its_checkpoint(stop, checkpoint_units):
    _, expected = stop(checkpoint_units)
    for path in Path(WORK, "parts").glob("*.part"):
        take_the_tokens_out(path)
    with Path(WORK, "0.bin").open("ab") as file:
        file.write(bytes(1000))
    assert tokenize().units_reused == (3 if checkpoint_units == 3 else 0)
    assert outputs(["out/x"]) == expected


EMPTY_PLAN = {"schema": "tokshard.tokenize-plan/1", "inputs": [], "tokenizer": {}, "options": {}}
WRONG_PARTS = [{}, {"inputs": 3}, {"inputs": [3]}, {"inputs": None}, {"tokenizer": []}, {"options": "x"}]
DAMAGED_PLANS = [
    *(b"", b"{", b"[]", b"\xff", b"{}", b"[" * 1000, b'{"schema": "tokshard.tokenize-plan/0", "inputs": 3}'),
    *(json.dumps({**EMPTY_PLAN, **wrong}).encode() for wrong in WRONG_PARTS),
]


@pytest.mark.parametrize("content", DAMAGED_PLANS)
@pytest.mark.parametrize("last", ["units", "seal"])
def test_the_work_of_a_damaged_plan_is_done_again(directory, monkeypatch, content, last):
    expected = expected_outputs()
    unfinished(monkeypatch, last)
    Path(WORK, "plan.json").write_bytes(content)
    report = tokenize()
    assert report.units_reused == 0
    assert outputs(["out/x"]) == expected


DAMAGED_SEALS = [
    *(b"", b"{}", b"[]", b'{"schema": "tokshard.publication/2"}'),
    b'{"schema": "tokshard.publication/3", "outputs": [["bin"]]}',
    *(
        json.dumps({"schema": "tokshard.publication/2", "outputs": wrong}).encode()
        for wrong in (3, [], [3], [[3]], [[["a"]]], [["../y"]], [[], []])
    ),
]


@pytest.mark.parametrize("content", DAMAGED_SEALS)
def test_a_damaged_seal_publishes_nothing(directory, monkeypatch, content):
    expected = expected_outputs()
    unfinished(monkeypatch, "seal")
    Path(WORK, "publish.json").write_bytes(content)
    with pytest.raises(IntegrityError, match=r"publish\.json is damaged") as caught:
        tokenize()
    assert "--no-resume" in caught.value.hint
    assert sorted(os.listdir("out")) == ["x.tokshard"]
    tokenize(resume=False)
    assert outputs(["out/x"]) == expected


@pytest.mark.parametrize("last", ["units", "seal"])
def test_a_removal_broken_off_at_any_call_leaves_nothing_to_resume_wrongly(directory, monkeypatch, last):
    expected = expected_outputs()
    k, ended = 0, False
    while not ended:
        k += 1
        unfinished(monkeypatch, last)
        ended = remove_until(monkeypatch, k)
        tokenize()
        assert outputs(["out/x"]) == expected, k
        remove_outputs()
    assert k > 10


def remove_until(monkeypatch, k):
    """Remove the work directory with the k-th call failing; return whether there were fewer calls."""
    count = 0

    def failing(original):
        def wrapped(path):
            nonlocal count
            count += 1
            if count == k:
                raise KeyboardInterrupt
            original(path)

        return wrapped

    with monkeypatch.context() as context:
        for name in ("unlink", "remove_directory"):
            context.setattr(syscalls, name, failing(getattr(syscalls, name)))
        try:
            Workspace("out/x").remove()
        except KeyboardInterrupt:
            return False
    return True


@pytest.mark.parametrize("link", ["out/x.tokshard", WORK])
@pytest.mark.parametrize("options", [{}, {"resume": False}, {"force": True}])
def test_links_in_the_place_of_our_directories_are_refused(directory, link, options):
    theirs = directory / "theirs"
    for name in ("work/plan.json", "plan.json", "parts/a.part", "raw/b.jsonl", ".x.1-1.tokshard-tmp"):
        (theirs / name).parent.mkdir(parents=True, exist_ok=True)
        (theirs / name).write_bytes(b"{}")
    before = sorted(theirs.rglob("*"))
    Path(link).parent.mkdir(parents=True)
    Path(link).symlink_to(theirs)
    with pytest.raises(OutputExistsError, match="is a symbolic link") as caught:
        tokenize(**options)
    assert link in str(caught.value)
    assert sorted(theirs.rglob("*")) == before
    assert Path(link).is_symlink()


def test_a_link_in_the_place_of_a_second_output_is_refused_and_the_work_is_kept(directory):
    theirs = directory / "theirs"
    theirs.mkdir()
    Path("out").mkdir()
    Path("out/x_title_document.tokshard").symlink_to(theirs)
    both = {"fields": ("text", "title")}
    with pytest.raises(OutputExistsError, match="is a symbolic link"):
        tokenize(**both)
    assert os.listdir(theirs) == []
    Path("out/x_title_document.tokshard").unlink()
    assert tokenize(**both).outputs[1].counts.documents == 39
    assert os.path.isfile("out/x_title_document.tokshard/manifest.json")


@pytest.mark.parametrize("name", ["parts", "raw"])
def test_links_in_the_work_directory_go_and_are_not_followed(directory, monkeypatch, name):
    expected = expected_outputs()
    unfinished(monkeypatch)
    theirs = directory / "theirs"
    theirs.mkdir()
    (theirs / "000000-000000000.part").write_bytes(b"theirs")
    (theirs / ".x.1-1.tokshard-tmp").write_bytes(b"theirs")
    os.rename(f"{WORK}/{name}", "away")
    Path(WORK, name).symlink_to(theirs)
    tokenize()
    assert outputs(["out/x"]) == expected
    assert sorted(os.listdir(theirs)) == [".x.1-1.tokshard-tmp", "000000-000000000.part"]


def test_replacing_leaves_no_sidecar_of_the_old_dataset(directory):
    tokenize()
    assert sorted(os.listdir("out/x.tokshard")) == [
        "manifest.json",
        "provenance.bin",
        "rejected.jsonl",
        "units.jsonl",
    ]
    lines = Path("corpus.jsonl").read_text().splitlines(keepends=True)
    Path("corpus.jsonl").write_text("".join(line for line in lines if line != "{\n"))
    tokenize(force=True, provenance=False)
    assert sorted(os.listdir("out/x.tokshard")) == ["manifest.json", "units.jsonl"]


def test_the_old_index_is_gone_for_good_before_new_tokens_get_their_name(directory, monkeypatch):
    tokenize()
    done = []
    for name in ("unlink", "replace", "fsync_directory"):
        original = getattr(syscalls, name)
        monkeypatch.setattr(
            syscalls, name, lambda *a, name=name, original=original: (done.append((name, *a)), original(*a))
        )
    tokenize(force=True, dtype="int32")
    removed = done.index(("unlink", "out/x.idx"))
    named = done.index(("replace", f"{WORK}/0.bin", "out/x.bin"))
    manifest = done.index(("unlink", "out/x.tokshard/manifest.json"))
    assert ("fsync_directory", "out") in done[removed:named]
    assert ("fsync_directory", "out/x.tokshard") in done[manifest:removed]


@pytest.mark.parametrize(
    "prefix", ["o[x]*?", os.fsdecode(b"o\xff"), "new/deep/x", "./a/../x", "a b\nc", "-x"]
)
def test_odd_prefixes_and_odd_input_names(directory, monkeypatch, prefix):
    odd = Path(os.fsdecode(b"in\xff.jsonl"))
    odd.write_bytes(Path("corpus.jsonl").read_bytes())
    Path("a").mkdir()
    options = {"unit_size": 300, "on_error": "skip"}
    with broken_off(monkeypatch, "units"), pytest.raises(KeyboardInterrupt):
        run_tokenize(str(odd), prefix, **options)
    assert run_tokenize(str(odd), prefix, **options).units_reused > 5
    assert run_tokenize(str(odd), prefix, **options).action == "found"
    assert os.path.isfile(f"{prefix}.bin")
    assert os.path.isfile(f"{prefix}.idx")


def test_the_directory_of_a_failed_run_is_removed_only_if_unused(directory):
    workspace = Workspace("out/x")
    with workspace.locked():
        for _ in range(2):
            with pytest.raises(LockedError):
                tokenize()
            assert os.path.exists(workspace.lock)
        Path("out/x.tokshard/note").touch()
    assert os.listdir("out/x.tokshard") == ["note"]
    Path("out/x.tokshard/note").unlink()
    with workspace.locked():
        pass
    assert os.listdir("out") == []


@pytest.mark.parametrize("name", ["lock", "manifest.json"])
def test_a_directory_in_the_place_of_a_file_of_ours_is_an_error_of_the_storage(directory, name):
    Path("out/x.tokshard", name, "theirs").mkdir(parents=True)
    with pytest.raises(StorageError, match="Is a directory"):
        tokenize()
    assert os.listdir(f"out/x.tokshard/{name}") == ["theirs"]
