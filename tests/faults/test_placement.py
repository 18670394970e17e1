"""P1 to P3, P6: what workers write to its place in the output survives them, and damage to it is seen."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from faults.campaign import finished_units, outputs
from faults.processes import TOKENIZER, Run, clear, make_corpus, scratch_directory
from support.tokenize_runs import run_tokenize
from tokshard.core.progress import ProgressUpdate, SilentProgress
from tokshard.errors import IntegrityError
from tokshard.tokenization.part import PartReader
from tokshard.tokenization.workers.executor import InlineExecutor

UNIT_BYTES = 50_000
SMALL_UNIT_BYTES = 10_000
TOKENIZE = [
    *("tokenize", "corpus.jsonl", "-o", "out/x", "--tokenizer", str(TOKENIZER), "--encoder", "reference"),
    *("--no-progress", "--workers", "2", "--unit-size", str(UNIT_BYTES)),
]
CALLS = [
    *((call, "kill") for call in ("create", "write", "open_existing", "write_at", "close", "replace")),
    *((call, "full") for call in ("create", "write", "write_at")),
]
ANSWERS = {"kill": (8, "SIGKILL"), "full": (7, "No space left")}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    with scratch_directory(tmp_path_factory.getbasetemp()) as directory:
        make_corpus(directory / "corpus.jsonl", 4.3)
        make_corpus(directory / "small.jsonl", 0.4)
        yield directory


@pytest.fixture(scope="module")
def undisturbed(corpus):
    assert Run(TOKENIZE, corpus).start().end()[0] == 0
    right = outputs([str(corpus / "out/x")])
    clear(corpus)
    return right


@pytest.fixture
def directory(corpus, undisturbed):
    yield corpus
    clear(corpus)


def test_workers_killed_or_out_of_space_at_each_of_their_calls_lose_nothing_finished(directory, undisturbed):
    log = directory / "begun.txt"
    finished: set[str] = set()
    for call, what in CALLS:
        log.unlink(missing_ok=True)
        shim = {"TOKSHARD_SHIM_LOG": str(log), "TOKSHARD_SHIM_CALL": f"{call} 2 {what}"}
        found, stderr = Run(TOKENIZE, directory, shim).start().end()
        status, words = ANSWERS[what]
        assert (found, words in stderr) == (status, True), f"{call} {what}: {stderr}"
        assert not finished & set(log.read_text().split()[::2])
        assert finished <= finished_units(str(directory / "out/x"))
        finished = finished_units(str(directory / "out/x"))
    assert any(placed_parts(directory))
    log.unlink()
    assert Run(TOKENIZE, directory, {"TOKSHARD_SHIM_LOG": str(log)}).start().end()[0] == 0
    assert not finished & set(log.read_text().split()[::2])
    assert outputs([str(directory / "out/x")]) == undisturbed


def placed_parts(directory: Path) -> dict[Path, range]:
    """The parts of an unfinished run whose tokens lie in the output, and where."""
    found = {}
    for path in sorted((directory / "out/x.tokshard/work/parts").glob("*.part")):
        with PartReader(str(path)) as part:
            if (place := part.placed("tokens.0")) is not None:
                found[path] = place
    return found


class StopsAfter(SilentProgress):
    """Stops the run at its n-th batch."""

    def __init__(self, count: int) -> None:
        self.count = count

    def update(self, state: ProgressUpdate) -> None:
        self.count -= 1
        if self.count < 0:
            raise KeyboardInterrupt


def tokenize_here(directory: Path, *, stop: int = 10**9, **options):
    return run_tokenize(
        str(directory / "small.jsonl"),
        str(directory / "out/x"),
        executor=InlineExecutor(),
        progress=StopsAfter(stop),
        tokenizer=str(TOKENIZER),
        encoder="reference",
        unit_bytes=SMALL_UNIT_BYTES,
        **options,
    )


@pytest.fixture(scope="module")
def right(corpus):
    tokenize_here(corpus)
    right = outputs([str(corpus / "out/x")])
    clear(corpus)
    return right


@pytest.fixture
def unfinished(corpus, right):
    """A run that was stopped when some units had been placed and none was covered by a checkpoint."""
    with pytest.raises(KeyboardInterrupt):
        tokenize_here(corpus, stop=12)
    parts = placed_parts(corpus)
    assert len(parts) >= 4
    yield corpus, parts
    clear(corpus)


@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_damaged_tokens_are_made_again_and_no_others(unfinished, right, damage):
    directory, parts = unfinished
    tokens = directory / "out/x.tokshard/work/0.bin"
    content = bytearray(tokens.read_bytes())
    *_, before, last = filter(None, parts.values())  # a unit within one long line has no tokens
    if damage == "flip":
        content[before.start] ^= 1
        tokens.write_bytes(content)
    elif damage == "cut":
        tokens.write_bytes(content[: last.stop - 1])
    else:
        tokens.unlink()
    report = tokenize_here(directory)
    empty = sum(not place for place in parts.values())
    assert report.units_resumed == (empty if damage == "gone" else len(parts) - 1)
    assert outputs([str(directory / "out/x")]) == right


def test_what_lies_behind_the_tokens_is_cut_off(unfinished, right):
    directory, _ = unfinished
    with (directory / "out/x.tokshard/work/0.bin").open("r+b") as file:
        file.truncate((directory / "small.jsonl").stat().st_size * 2)
    tokenize_here(directory)
    assert outputs([str(directory / "out/x")]) == right


def test_a_gap_between_finished_units_is_filled(unfinished, right):
    directory, parts = unfinished
    _, second, *_ = parts
    second.unlink()
    with (directory / "out/x.tokshard/work/0.bin").open("r+b") as file:
        file.seek(parts[second].start)
        file.write(bytes(len(parts[second])))
    assert tokenize_here(directory).units_resumed == len(parts) - 1
    assert outputs([str(directory / "out/x")]) == right


def test_tokens_at_another_place_than_theirs_are_never_published(unfinished):
    directory, parts = unfinished
    path = list(parts)[1]
    shift_by_a_token(path, directory / "out/x.tokshard/work/0.bin")
    with pytest.raises(IntegrityError, match="but belong to byte") as caught:
        tokenize_here(directory)
    assert "--no-resume" in caught.value.hint
    assert not (directory / "out/x.bin").exists()
    tokenize_here(directory, resume=False)


def shift_by_a_token(path: Path, tokens: Path) -> None:
    """Change a part and its tokens as a unit before it of another size would have."""
    from tokshard.storage.digest import content_digest
    from tokshard.tokenization.part import _MAGIC, _TAIL

    content = path.read_bytes()
    length, _, _ = _TAIL.unpack(content[-_TAIL.size :])
    end = len(content) - _TAIL.size - length
    footer = json.loads(content[end : end + length])
    entry = footer["placed"]["tokens.0"]
    entry["offset"] += 2
    moved = tokens.read_bytes()[entry["offset"] : entry["offset"] + entry["size_bytes"]]
    entry["xxh3_128"] = content_digest(moved)
    changed = json.dumps(footer, separators=(",", ":")).encode()
    tail = _TAIL.pack(len(changed), bytes.fromhex(content_digest(changed)), _MAGIC)
    path.write_bytes(content[:end] + changed + tail)


def test_a_part_of_another_version_is_made_again(unfinished, right):
    directory, parts = unfinished
    for path in parts:
        shutil.copy(path, path.with_suffix(".old"))
        path.with_suffix(".old").write_bytes(path.read_bytes()[:-1] + b"1")
        path.with_suffix(".old").replace(path)
    assert tokenize_here(directory).units_resumed == 0
    assert outputs([str(directory / "out/x")]) == right
