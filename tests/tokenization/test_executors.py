import hashlib
import json
import os
import queue
import subprocess
import tarfile
import threading
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenization.feeding import PATIENCE_SECONDS, Fed
from tokenization.jobs import TOKENIZER, write_jsonl
from tokshard import errors
from tokshard.corpus.units import LineUnit
from tokshard.tokenization.encoder import Outcome, Task
from tokshard.tokenization.execution import messages
from tokshard.tokenization.execution.inline import InlineExecutor
from tokshard.tokenization.execution.messages import WorkerCrashError, error_from_json, error_to_json
from tokshard.tokenization.execution.processes import ProcessExecutor, _Worker
from tokshard.tokenization.preparation import prepare

EXECUTORS = {"inline": InlineExecutor, "one": lambda: ProcessExecutor(1), "three": lambda: ProcessExecutor(3)}


class Notes:
    """A listener that notes what it is told, and may have enough of it."""

    def __init__(self, patience: int | None = None) -> None:
        self.outcomes: list[Outcome] = []
        self.progress = [0, 0, 0]
        self.patience = patience

    def encoded(self, content_bytes: int, documents: int, tokens: int) -> None:
        self.progress = [
            a + b for a, b in zip(self.progress, (content_bytes, documents, tokens), strict=True)
        ]

    def finished(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        if len(self.outcomes) == self.patience:
            raise KeyError("enough")


class Work:
    """Inputs, a recipe for them, and a directory for the parts."""

    def __init__(self, folder: Path, paths: list[Path], **options) -> None:
        self.folder = folder
        self.paths = paths
        self.parts = folder / "parts"
        self.recipe = prepare([str(path) for path in paths], "x", options).recipe()

    def run(self, executor, listener=None, recipe=None, **options) -> dict[str, str]:
        """Run; return the digests of the parts."""
        for path in self.parts.glob("*"):
            path.unlink()
        self.parts.mkdir(exist_ok=True)

        def make_feed(wake):
            fed = Fed(self.paths, self.folder / "raw", **options)
            fed.feed._wake = wake
            return fed.feed

        executor.run(recipe or self.recipe, str(self.parts), make_feed, listener or Notes())
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in self.parts.iterdir()}


@pytest.fixture
def work(tmp_path):
    paths = [tmp_path / f"{name}.jsonl" for name in "abc"]
    for number, path in enumerate(paths):
        write_jsonl(path, [{"text": f"{number} {line} " + "word " * (line % 9)} for line in range(40)])
    subprocess.run(["gzip", "-n", str(paths[1])], check=True)
    paths[1] = paths[1].with_suffix(".jsonl.gz")
    return Work(tmp_path, paths, tokenizer=TOKENIZER, engine="reference")


@pytest.mark.parametrize("name", EXECUTORS)
def test_every_unit_becomes_the_same_part_once(work, name):
    expected = work.run(InlineExecutor(), unit_bytes=500)
    notes = Notes()
    assert work.run(EXECUTORS[name](), notes, unit_bytes=500) == expected
    assert sorted(outcome.key.part_name for outcome in notes.outcomes) == sorted(expected)
    assert notes.progress[1] == 120
    assert sum(outcome.input_bytes for outcome in notes.outcomes) == sum(
        path.stat().st_size for path in work.paths
    )
    assert not os.listdir(work.folder / "raw")


def test_an_executor_may_be_used_again(work):
    executor = ProcessExecutor(2)
    assert work.run(executor, unit_bytes=2000) == work.run(executor, unit_bytes=2000)
    with pytest.raises(KeyError, match="enough"):
        work.run(executor, Notes(1), unit_bytes=2000)
    assert len(work.run(executor, unit_bytes=2000)) == 3


def test_no_more_workers_are_started_than_there_are_units(work, monkeypatch):
    started = count()
    original = _Worker.start
    monkeypatch.setattr(_Worker, "start", lambda *arguments: (next(started), original(*arguments))[1])
    assert len(work.run(ProcessExecutor(5), unit_bytes=1 << 20)) == 3
    assert next(started) <= 3


@pytest.mark.parametrize("name", EXECUTORS)
def test_what_the_listener_raises_ends_the_run(work, name):
    executor = EXECUTORS[name]()
    threads = threading.active_count()
    with pytest.raises(KeyError, match="enough"):
        work.run(executor, Notes(2), unit_bytes=500)
    assert not getattr(executor, "_workers", [])
    assert threading.active_count() == threads


@pytest.mark.parametrize("name", EXECUTORS)
def test_an_input_that_cannot_be_read_ends_the_run(work, name):
    with tarfile.open(work.paths[1], "w:gz") as archive:
        archive.add(work.paths[0], "a.jsonl")
    executor = EXECUTORS[name]()
    with pytest.raises(errors.InputError, match=r"b\.jsonl\.gz is a tar archive"):
        work.run(executor, unit_bytes=500)
    assert not getattr(executor, "_workers", [])


@pytest.mark.parametrize("name", EXECUTORS)
def test_a_tokenizer_changed_meanwhile_ends_the_run(work, name):
    with Path(TOKENIZER).open("rb") as file:
        other = work.folder / "tokenizer.json"
        other.write_bytes(file.read().replace(b"word", b"drow", 1) + b" ")
    recipe = type(work.recipe).from_json({**work.recipe.to_json(), "tokenizer": str(other)})
    with pytest.raises(errors.TokenizerError, match="was changed during the run"):
        work.run(EXECUTORS[name](), recipe=recipe)


@pytest.mark.parametrize("name", EXECUTORS)
def test_a_disk_that_refuses_ends_the_run(work, name):
    class Blocking(Notes):
        def finished(self, outcome: Outcome) -> None:
            super().finished(outcome)
            if work.parts.exists():
                work.parts.rename(work.folder / "away")

    with pytest.raises(errors.StorageError, match=r"cannot (create|rename) .*parts"):
        work.run(EXECUTORS[name](), Blocking(), unit_bytes=500)


TEXT = st.text(max_size=20)
ERRORS = st.one_of(
    *(
        st.builds(kind, TEXT, hint=st.none() | TEXT)
        for kind in (
            errors.UsageError,
            errors.InputError,
            errors.TokenizerError,
            errors.IntegrityError,
            errors.EngineMismatchError,
        )
    ),
    st.builds(
        lambda action, path, number: errors.StorageError(action, path, OSError(number, os.strerror(number))),
        TEXT,
        TEXT,
        st.integers(1, 100),
    ),
)


@given(error=ERRORS)
def test_errors_survive_the_way_to_the_job(error):
    arrived = error_from_json(json.loads(messages.to_line(error_to_json(error))))
    assert type(arrived) is type(error)
    assert (arrived.message, arrived.hint, arrived.exit_code) == (error.message, error.hint, error.exit_code)


@pytest.mark.parametrize("error", [ZeroDivisionError("a bug"), MemoryError(), SystemExit(3)])
def test_what_is_no_error_on_purpose_arrives_as_a_crash_with_its_traceback(error):
    arrived = error_from_json(error_to_json(error))
    assert type(arrived) is WorkerCrashError
    assert type(error).__name__ in str(arrived)


@given(
    elided=st.lists(st.tuples(st.integers(0, 2**60), st.integers(1, 2**60)), max_size=3),
    name=st.text(st.characters(codec="utf-8") | st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF)),
    numbers=st.tuples(*[st.integers(0, 2**62)] * 5),
)
def test_tasks_survive_the_way_to_the_worker(elided, name, numbers):
    file, index, begin, end, below = numbers
    unit = LineUnit(file, index, True, name, begin, end, elided=tuple(elided), stream_error=name)
    task = Task(unit, name, below)
    line = messages.to_line(messages.task_to_json(task))
    assert line.count(b"\n") == 1
    assert messages.task_from_json(json.loads(line)) == task


def worker_of(program: str) -> tuple[_Worker, queue.Queue]:
    """A worker that is a shell script, listened to."""
    process = subprocess.Popen(["sh", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    worker = _Worker(process)
    events: queue.Queue = queue.Queue()
    worker.listener = threading.Thread(target=worker.listen, args=(events,), daemon=True)
    worker.listener.start()
    return worker, events


def test_a_worker_that_dies_in_the_middle_of_a_word_is_dead():
    worker, events = worker_of("""printf '{"alive": true}\\n{"outcome": {"key'; kill -9 $$""")
    assert events.get(timeout=PATIENCE_SECONDS) == (worker, {"alive": True})
    assert events.get(timeout=PATIENCE_SECONDS) == (worker, None)
    worker.close()
    assert "was killed by SIGKILL" in worker.death().message


def test_a_worker_that_does_not_listen_any_more_is_no_error_of_its_own():
    worker, events = worker_of("exec 0<&-; exit 3")
    assert events.get(timeout=PATIENCE_SECONDS) == (worker, None)
    worker.send(b"x" * 100_000 + b"\n")
    worker.send(b"x\n")
    worker.close()
    assert "ended with status 3 while it waited for work" in worker.death().message
