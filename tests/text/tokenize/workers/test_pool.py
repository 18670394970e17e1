import hashlib
import os
import pickle
import socket
import subprocess
import tarfile
import threading
import time
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.tokenize_runs import TOKENIZER, job_of, write_jsonl
from support.unit_feeds import PATIENCE_SECONDS, Fed
from tokshard import errors
from tokshard.text.corpus.units import LineUnit
from tokshard.text.tokenize.encoder import BatchProgress, Outcome, Task
from tokshard.text.tokenize.workers.channel import Channel, UnreadableMessageError, WorkerCrashError, sendable
from tokshard.text.tokenize.workers.executor import InlineExecutor
from tokshard.text.tokenize.workers.pool import Processes, ProcessPool

EXECUTORS = {"inline": InlineExecutor, "one": lambda: ProcessPool(1), "three": lambda: ProcessPool(3)}


class Notes:
    """Notes what an executor reports, and may have enough of it."""

    def __init__(self, patience: int | None = None) -> None:
        self.outcomes: list[Outcome] = []
        self.progress = [0, 0, 0, 0]
        self.patience = patience

    def encoded(self, *sizes: int) -> None:
        self.progress = [total + size for total, size in zip(self.progress, sizes, strict=True)]

    def finished(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        if len(self.outcomes) == self.patience:
            raise KeyError("enough")


class Work:
    """Inputs, a specification for them, and a directory for the parts."""

    def __init__(self, folder: Path, paths: list[Path], **options) -> None:
        self.folder = folder
        self.paths = paths
        self.parts = folder / "parts"
        self.spec = job_of([str(path) for path in paths], "x", **options).encoding()

    def run(self, executor, notes=None, spec=None, **options) -> dict[str, str]:
        """Run; return the digests of the parts."""
        for path in self.parts.glob("*"):
            path.unlink()
        self.parts.mkdir(exist_ok=True)

        notes = notes or Notes()
        fed = Fed(self.paths, self.folder / "raw", **options)
        self.names = fed.names
        with (
            fed.feed as feed,
            closing(executor.run(spec or self.spec, str(self.parts), feed)) as events,
        ):
            for event in events:
                if isinstance(event, BatchProgress):
                    notes.encoded(*event)
                else:
                    notes.finished(event)
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in self.parts.iterdir()}


@pytest.fixture
def work(tmp_path):
    paths = [tmp_path / f"{name}.jsonl" for name in "abc"]
    for number, path in enumerate(paths):
        write_jsonl(path, [{"text": f"{number} {line} " + "word " * (line % 9)} for line in range(40)])
    subprocess.run(["gzip", "-n", str(paths[1])], check=True)
    paths[1] = paths[1].with_suffix(".jsonl.gz")
    return Work(tmp_path, paths, tokenizer=TOKENIZER, encoder="reference")


@pytest.mark.parametrize("name", EXECUTORS)
def test_every_unit_becomes_the_same_part_once(work, name):
    expected = work.run(InlineExecutor(), unit_bytes=500)
    notes = Notes()
    assert work.run(EXECUTORS[name](), notes, unit_bytes=500) == expected
    assert sorted(work.names.of(outcome.key) for outcome in notes.outcomes) == sorted(expected)
    assert notes.progress[:2] == [sum(path.stat().st_size for path in work.paths), 120]
    assert not os.listdir(work.folder / "raw")


def test_workers_have_the_memory_of_one_process_and_no_thread_is_there_when_they_are_forked(work):
    class Looking(Notes):
        def encoded(self, *counts: int) -> None:
            super().encoded(*counts)
            forkserver = executor.start()
            deadline = time.monotonic() + PATIENCE_SECONDS
            while (
                len(os.listdir(f"/proc/{forkserver.pid}/task")) > 1
            ):  # one that was joined takes a moment to go
                assert time.monotonic() < deadline
                time.sleep(0.01)
            group = os.getpgid(forkserver.pid)
            assert group == forkserver.pid != os.getpgrp()
            assert {os.getpgid(worker.pid) for worker in forkserver.workers if worker.pid} == {group}

    executor = ProcessPool(2)
    notes = Looking()
    work.run(executor, notes, unit_bytes=500)
    assert notes.progress[1] == 120


def test_a_forkserver_that_is_started_early_is_used_or_ended(work):
    with ProcessPool(2) as executor:
        forkserver = executor.start()
        assert executor.start() is forkserver
    assert not os.path.exists(f"/proc/{forkserver.pid}")
    with ProcessPool(2) as executor:
        forkserver = executor.start()
        assert work.run(executor, unit_bytes=2000) == work.run(InlineExecutor(), unit_bytes=2000)
        assert not os.path.exists(f"/proc/{forkserver.pid}")


def test_a_forkserver_killed_before_it_has_made_its_group_is_named(work, monkeypatch):
    start = subprocess.Popen

    def started_and_killed(*arguments, process_group, **options):
        assert process_group == 0
        process = start(*arguments, **options)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        return process

    monkeypatch.setattr(subprocess, "Popen", started_and_killed)
    with pytest.raises(
        errors.WorkerError, match=r"the parent process \d+ of the workers was killed by SIGKILL"
    ):
        work.run(ProcessPool(1))


def test_an_executor_may_be_used_again(work):
    executor = ProcessPool(2)
    assert work.run(executor, unit_bytes=2000) == work.run(executor, unit_bytes=2000)
    with pytest.raises(KeyError, match="enough"):
        work.run(executor, Notes(1), unit_bytes=2000)
    assert len(work.run(executor, unit_bytes=2000)) == 3


def test_no_more_workers_are_forked_than_there_are_units(work, monkeypatch):
    used = set()
    give = Processes.give

    def noted(processes, worker, task):
        used.add(worker)
        give(processes, worker, task)

    monkeypatch.setattr(Processes, "give", noted)
    assert len(work.run(ProcessPool(5), unit_bytes=1 << 20)) == 3
    assert len(used) <= 3


def test_a_worker_has_a_second_unit_only_while_there_is_one_more_for_each(work, monkeypatch):
    given: list[tuple[int, int]] = []
    give = Processes.give

    def noted(processes, worker, task):
        give(processes, worker, task)
        given.append((len(worker.tasks), min(len(each.tasks) for each in processes.workers)))

    monkeypatch.setattr(Processes, "give", noted)
    assert len(work.run(ProcessPool(2), unit_bytes=500)) > 5
    assert {mine for mine, _ in given} == {1, 2}
    assert all(least >= 1 for mine, least in given if mine == 2), "another one had none"
    assert all(mine == 1 for mine, _ in given[-2:])


@pytest.mark.parametrize("name", EXECUTORS)
def test_an_exception_of_the_consumer_ends_the_run(work, name):
    executor = EXECUTORS[name]()
    threads = set(threading.enumerate())
    with pytest.raises(KeyError, match="enough"):
        work.run(executor, Notes(2), unit_bytes=500)
    assert getattr(executor, "_processes", None) is None
    for thread in set(threading.enumerate()) - threads:
        thread.join(PATIENCE_SECONDS)
    assert set(threading.enumerate()) <= threads  # those of earlier tests may end meanwhile


@pytest.mark.parametrize("name", EXECUTORS)
def test_an_input_that_cannot_be_read_ends_the_run(work, name):
    with tarfile.open(work.paths[1], "w:gz") as archive:
        archive.add(work.paths[0], "a.jsonl")
    executor = EXECUTORS[name]()
    with pytest.raises(errors.InputError, match=r"b\.jsonl\.gz: it contains a tar archive"):
        work.run(executor, unit_bytes=500)
    assert getattr(executor, "_processes", None) is None


@pytest.mark.parametrize("name", EXECUTORS)
def test_a_tokenizer_changed_meanwhile_ends_the_run(work, name):
    with Path(TOKENIZER).open("rb") as file:
        other = work.folder / "tokenizer.json"
        other.write_bytes(file.read().replace(b"word", b"drow", 1) + b" ")
    with pytest.raises(errors.TokenizerError, match="was changed during the run"):
        work.run(EXECUTORS[name](), spec=replace(work.spec, tokenizer=str(other)))


@pytest.mark.parametrize("name", EXECUTORS)
def test_a_disk_that_refuses_ends_the_run(work, name):
    class Blocking(Notes):
        def finished(self, outcome: Outcome) -> None:
            super().finished(outcome)
            if work.parts.exists():
                work.parts.rename(work.folder / "away")

    with pytest.raises(errors.StorageError, match=r"cannot (create|rename) .*parts"):
        work.run(EXECUTORS[name](), Blocking(), unit_bytes=500)


@pytest.mark.parametrize("error", [ZeroDivisionError("a bug"), MemoryError(), SystemExit(3)])
def test_what_is_no_error_on_purpose_arrives_as_a_crash_with_its_traceback(error):
    arrived = pickle.loads(pickle.dumps(sendable(error)))
    assert type(arrived) is WorkerCrashError
    assert type(error).__name__ in str(arrived)


@given(
    elided=st.lists(st.tuples(st.integers(0, 2**60), st.integers(1, 2**60)), max_size=3),
    name=st.text(st.characters(codec="utf-8") | st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF)),
    part=st.text("0123456789abcdef-.part"),
    numbers=st.tuples(*[st.integers(0, 2**62)] * 5),
)
def test_tasks_survive_the_way_to_the_worker(elided, name, part, numbers):
    file, index, begin, end, below = numbers
    unit = LineUnit(file, index, True, name, begin, end, elided=tuple(elided), stream_error=name)
    task = Task(unit, name, part, below)
    one, other = map(Channel, socket.socketpair())
    with one.connection, other.connection:
        one.send(task)
        assert other.receive() == task


def received(*pieces: bytes) -> list:
    """Receive what is sent in these pieces, until the connection ends."""
    ours, theirs = socket.socketpair()

    def send() -> None:
        with theirs:
            for piece in pieces:
                theirs.sendall(piece)

    sending = threading.Thread(target=send)
    sending.start()
    found = []
    with ours:
        try:
            while True:
                found.append(Channel(ours).receive())
        except EOFError:
            return found
        finally:
            sending.join()


def as_sent(message) -> bytes:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        Channel(ours).send(message)
        return theirs.recv(1 << 16)


@given(messages=st.lists(st.text(max_size=9), max_size=4), cuts=st.lists(st.integers(0, 100), max_size=4))
def test_messages_arrive_whole_and_in_order_however_they_are_cut(messages, cuts):
    content = b"".join(map(as_sent, messages))
    places = sorted({0, *(cut for cut in cuts if cut < len(content)), len(content)})
    pieces = [content[begin:end] for begin, end in pairwise(places)]
    assert received(*pieces) == messages


def test_what_is_cut_off_at_the_end_is_no_message():
    assert received(as_sent("first") + as_sent("second")[:-1]) == ["first"]


@pytest.mark.parametrize("content", [b"\0\0\0\4junk", b"\xff" * 9, as_sent("x")[:4] + b"\x80" * 99])
def test_what_is_no_message_is_refused(content):
    with pytest.raises(UnreadableMessageError):
        received(as_sent("first") + content)


def test_a_forkserver_that_does_not_start_is_named(work, monkeypatch):
    start = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda _, **options: start(["sh", "-c", "exit 3"], **options))
    with pytest.raises(errors.WorkerError, match=r"parent process \d+ of the workers ended with status 3"):
        work.run(ProcessPool(2), unit_bytes=500)
