"""P5, P1c, P2, P3: workers and the main process killed, stopped, interrupted and failing."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from faults.processes import (
    ANSWER_SECONDS,
    HERE,
    TOKENIZER,
    Run,
    answer_to_a_killed_worker,
    clear,
    finished_units,
    make_corpus,
    output,
    scratch_directory,
)
from support.file_faults import open_descriptors
from support.tokenize_runs import run_tokenize
from tokshard.core.progress import ProgressUpdate, SilentProgress
from tokshard.errors import WorkerError
from tokshard.text.tokenize.workers.pool import ProcessPool

KILLS = int(os.environ.get("TOKSHARD_KILLS", "3"))
SEED = int(os.environ.get("TOKSHARD_SEED", "1"))

UNIT_SIZE = "12000"
COMMON = ["-o", "out/x", "--tokenizer", str(TOKENIZER), "--encoder", "fast", "--no-progress"]
# Just too large for being encoded in the main process.
TOKENIZE = ["tokenize", "corpus.jsonl", *COMMON, "--workers", "2", "--unit-size", UNIT_SIZE]
INLINE = ["tokenize", "small.jsonl", *COMMON]
PIPED = ["tokenize", "pipe", *COMMON]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    with scratch_directory(tmp_path_factory.getbasetemp()) as directory:
        make_corpus(directory / "corpus.jsonl", 4.3)
        make_corpus(directory / "small.jsonl", 0.5)
        os.mkfifo(directory / "pipe")
        yield directory


@pytest.fixture
def directory(corpus):
    yield corpus
    clear(corpus)


def logging(directory: Path, **shim: str) -> dict[str, str]:
    return {"TOKSHARD_SHIM_LOG": str(directory / "begun.txt"), **shim}


def never_finishing(directory: Path, kind: str = "workers") -> dict[str, str]:
    """Let a run come to no end: one of its units is never finished."""
    if kind == "inline":
        return logging(directory, TOKSHARD_SHIM="hold", TOKSHARD_SHIM_UNIT="0", TOKSHARD_SHIM_MAIN="yes")
    return logging(directory, TOKSHARD_SHIM="hold", TOKSHARD_SHIM_UNIT="40")


def output_of(directory: Path) -> dict:
    return output(directory / "out/x")


@pytest.fixture(scope="module")
def undisturbed(corpus):
    """The right bytes, by one worker."""
    run = Run([*TOKENIZE[:-4], "--workers", "1", "--unit-size", UNIT_SIZE], corpus).start()
    assert run.end()[0] == 0
    right = output_of(corpus)
    clear(corpus)
    return right


@pytest.fixture(scope="module")
def undisturbed_inline(corpus):
    assert Run(INLINE, corpus).start().end()[0] == 0
    right = output_of(corpus)
    clear(corpus)
    return right


def parts_of(directory: Path) -> dict[str, tuple[int, int]]:
    found = {}
    for path in (directory / "out/x.tokshard/work/parts").glob("*.part"):
        status = path.stat()
        found[path.name] = (status.st_ino, status.st_mtime_ns)
    return found


class Chain:
    """A run that is killed and resumed again and again, and what must hold all the while."""

    def __init__(self, directory: Path, right: dict) -> None:
        self.directory = directory
        self.right = right
        self.begin()

    def begin(self) -> None:
        clear(self.directory)
        self.finished: set[str] = set()
        self.parts: dict[str, tuple[int, int]] = {}
        self.log = self.directory / "begun.txt"

    def start(self) -> Run:
        self.log.unlink(missing_ok=True)
        return Run(TOKENIZE, self.directory, logging(self.directory)).start()

    def check_killed(self) -> None:
        """Nothing is there under the final names, and what was finished has been left alone."""
        if (
            output_of(self.directory)["manifest.json"] is not None
        ):  # it was killed when it had published everything
            self.check_finished()
            return
        self._check_not_redone()
        parts = parts_of(self.directory)
        assert {name: parts[name] for name in parts.keys() & self.parts.keys()} == {
            name: self.parts[name] for name in parts.keys() & self.parts.keys()
        }
        finished = finished_units(self.directory / "out/x")
        assert finished >= self.finished
        self.finished, self.parts = finished, parts

    def check_finished(self) -> None:
        assert output_of(self.directory) == self.right
        self._check_not_redone()
        self.begin()

    def _check_not_redone(self) -> None:
        begun = self.log.read_text().split()[::2] if self.log.exists() else []
        assert not self.finished & set(begun)


def test_a_killed_worker_is_named_and_the_run_resumes(directory, undisturbed, record_property):
    record_property("seed", SEED)
    rng = random.Random(SEED)
    chain = Chain(directory, undisturbed)
    kills = 0
    while kills < KILLS:
        run = chain.start()
        if workers := run.wait_for_workers(rng.choice([1, 2])):
            time.sleep(rng.uniform(0, 0.8))
        answer = answer_to_a_killed_worker(run, rng.choice(workers)) if workers else "finished"
        assert answer in {"named", "finished"}, f"seed {SEED}, kill {kills}: {answer}"
        if answer == "named":
            kills += 1
            chain.check_killed()
        else:
            chain.check_finished()
    assert chain.start().end()[0] == 0
    chain.check_finished()


def test_kill_dash_nine_of_the_main_process_takes_the_workers_along(directory, undisturbed, record_property):
    record_property("seed", SEED)
    rng = random.Random(SEED + 1)
    chain = Chain(directory, undisturbed)
    kills = 0
    while kills < KILLS:
        run = chain.start()
        run.wait_for_workers(rng.choice([0, 1, 2, 2]))
        time.sleep(rng.uniform(0, 0.8))
        run.process.kill()
        status, _ = run.end(ANSWER_SECONDS)
        assert run.gone(), f"seed {SEED}, kill {kills}: workers are left over"
        if status == -signal.SIGKILL:
            kills += 1
            chain.check_killed()
        else:
            chain.check_finished()
    assert chain.start().end()[0] == 0
    chain.check_finished()


# The k-th call of each worker. A unit takes six writes.
CALLS = [
    *((call, "kill") for call in ("create 2", "write 2", "write 8", "close 2", "replace 2")),
    *((call, "full") for call in ("create 2", "write 2", "write 8")),
]
ANSWERS = {"kill": (8, "SIGKILL"), "full": (7, "No space left")}


def test_workers_killed_or_out_of_space_at_each_of_their_calls_lose_nothing_finished(directory, undisturbed):
    log = directory / "begun.txt"
    finished: set[str] = set()
    for call, what in CALLS:
        log.unlink(missing_ok=True)
        run = Run(TOKENIZE, directory, logging(directory, TOKSHARD_SHIM_CALL=f"{call} {what}")).start()
        found, stderr = run.end()
        status, words = ANSWERS[what]
        assert (found, words in stderr) == (status, True), f"{call} {what}: {stderr}"
        assert not finished & set(log.read_text().split()[::2])
        assert finished <= finished_units(directory / "out/x")
        finished = finished_units(directory / "out/x")
    assert finished
    log.unlink()
    assert Run(TOKENIZE, directory, logging(directory)).start().end()[0] == 0
    assert not finished & set(log.read_text().split()[::2])
    assert output_of(directory) == undisturbed


def test_a_runner_by_pool_is_caught(directory):
    program = [sys.executable, str(HERE / "controls/pool_runner.py")]
    run = Run(["corpus.jsonl", "out/parts"], directory, {"TOKENIZER": str(TOKENIZER)}, program).start()
    run.wait_for_path("holder")
    holder = int((directory / "holder").read_text())
    assert answer_to_a_killed_worker(run, holder, patience_seconds=8) == "hangs"


class AtFirstUpdate(SilentProgress):
    """Does something as soon as the first batch is encoded."""

    def __init__(self, action) -> None:
        self.action = action

    def update(self, progress: ProgressUpdate) -> None:
        action, self.action = self.action, lambda: None
        action()


def tokenize_here(directory: Path, executor: ProcessPool, action=lambda: None):
    return run_tokenize(
        str(directory / "corpus.jsonl"),
        str(directory / "out/x"),
        executor=executor,
        progress=AtFirstUpdate(action),
        tokenizer=str(TOKENIZER),
        encoder="fast",
        unit_size=int(UNIT_SIZE),
    )


def children() -> set[int]:
    """The child processes of this one, the dead that nobody has waited for included."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            found.add(int(path.parent.name))
    return found


def first_pid(executor: ProcessPool) -> int:
    """The process of a worker that has begun, which is not always the first that was ordered."""
    return next(worker.pid for worker in executor.start().workers if worker.pid)


def test_a_stopped_worker_is_taken_for_dead(directory):
    executor = ProcessPool(2)
    before = children()

    def stop() -> None:
        os.kill(first_pid(executor), signal.SIGSTOP)
        executor._silence_seconds = 2.5

    # On a busy machine it may be the other one, which has not even started.
    with pytest.raises(WorkerError, match=r"worker process .* has not answered for 2.5 s at unit \d+ of "):
        tokenize_here(directory, executor, stop)
    assert children() <= before


def test_a_stopped_parent_of_the_workers_is_taken_for_dead(directory):
    executor = ProcessPool(2, silence_seconds=2.5)
    before = children()
    os.kill(executor.start().pid, signal.SIGSTOP)
    with pytest.raises(WorkerError, match=r"ordered has not answered for 2.5 s at unit 0"):
        tokenize_here(directory, executor)
    assert children() <= before


def test_a_killed_parent_of_the_workers_is_named_and_takes_them_along(directory):
    executor = ProcessPool(2)
    before = children()
    group = executor.start().pid

    with pytest.raises(WorkerError, match=f"the parent process {group} of the workers was killed by SIGKILL"):
        tokenize_here(directory, executor, lambda: os.kill(group, signal.SIGKILL))
    assert children() <= before
    deadline = time.monotonic() + ANSWER_SECONDS
    while exists(group):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def exists(group: int) -> bool:
    """Whether a living process belongs to a group."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, found = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(found) == group and state not in "ZX":
            return True
    return False


def test_kill_dash_nine_of_the_main_process_takes_a_stopped_worker_along(directory):
    run = Run(TOKENIZE, directory, never_finishing(directory)).start()
    run.wait_for_encoders(2)
    first, *_ = (directory / "begun.txt").read_text().split()[1::2]
    os.kill(int(first), signal.SIGSTOP)
    run.process.kill()
    run.end()
    assert run.gone()


def test_failed_runs_leave_nothing_behind_in_the_process_and_the_executor_may_be_used_again(directory):
    executor = ProcessPool(2)
    before = children()

    def kill() -> None:
        os.kill(first_pid(executor), signal.SIGKILL)

    def fail_again() -> tuple[set, set]:
        with pytest.raises(WorkerError, match="SIGKILL"):
            tokenize_here(directory, executor, kill)
        return open_descriptors(), set(threading.enumerate())

    first = fail_again()
    second = fail_again()
    assert all(map(set.issubset, second, first))  # what earlier tests left may go meanwhile
    assert children() <= before
    assert tokenize_here(directory, executor).counts.documents > 0
    assert open_descriptors() <= first[0]
    assert set(threading.enumerate()) <= first[1]


SUSPENDED = """
import sys
from tokshard import TokenizeOptions, tokenize
from tokshard.core.progress import SilentProgress
from tokshard.text.tokenize.workers.pool import ProcessPool
executor = ProcessPool(2)
class Begun(SilentProgress):
    def update(self, progress):
        executor._silence_seconds = 10  # not while the forkserver starts, which says nothing
options = TokenizeOptions(
    inputs="corpus.jsonl", output="out/x", tokenizer=sys.argv[1], encoder="fast", unit_size=12000
)
tokenize(options, executor=executor, progress=Begun())
"""


def test_a_main_process_that_was_suspended_does_not_blame_the_workers(directory, undisturbed):
    program = [sys.executable, "-c", SUSPENDED]
    run = Run([str(TOKENIZER)], directory, logging(directory), program).start()
    run.wait_for_encoders(2)
    run.process.send_signal(signal.SIGSTOP)
    time.sleep(11)
    run.process.send_signal(signal.SIGCONT)
    assert run.end() == (0, "")
    assert {**output_of(directory), "manifest.json": ""} == {**undisturbed, "manifest.json": ""}


def stderr_of_cancelled(run: Run, status: int) -> str:
    """Return what it said; the end must come in good time, and no process may be left."""
    found, stderr = run.end(ANSWER_SECONDS)
    assert found == status, stderr
    assert run.gone()
    return stderr


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("kind", ["workers", "inline", "fifo"])
def test_a_signal_ends_the_run_in_order(directory, request, number, status, kind):
    arguments = {"workers": TOKENIZE, "inline": INLINE, "fifo": PIPED}[kind]
    if kind == "fifo":
        run = Run(arguments, directory).start()
        run.wait_for_path("out/x.tokshard/work/parts")
    else:
        run = Run(arguments, directory, never_finishing(directory, kind)).start()
        run.wait_for_encoders(2 if kind == "workers" else 1)
    run.process.send_signal(number)
    stderr = stderr_of_cancelled(run, status)
    assert "error: stopped; finished work is kept" in stderr
    assert f"hint: resume with: tokshard {' '.join(arguments)}\n" in stderr
    assert "Traceback" not in stderr
    if kind != "fifo" and number == signal.SIGINT:
        right = request.getfixturevalue("undisturbed" if kind == "workers" else "undisturbed_inline")
        assert Run(arguments, directory).start().end()[0] == 0
        assert output_of(directory) == right


def test_ctrl_c_of_a_terminal_reaches_the_whole_group_once(directory):
    run = Run(TOKENIZE, directory, never_finishing(directory)).start()
    run.wait_for_workers(2)
    os.killpg(run.process.pid, signal.SIGINT)
    assert "error: stopped" in stderr_of_cancelled(run, 130)


def test_a_batch_system_may_terminate_all_processes_at_once(directory):
    run = Run(TOKENIZE, directory, never_finishing(directory)).start()
    run.wait_for_encoders(2)
    workers = run.workers()
    for pid in [*workers, run.process.pid]:
        os.kill(pid, signal.SIGTERM)
    assert "error: stopped" in stderr_of_cancelled(run, 143)


def test_ctrl_c_twice(directory, undisturbed):
    run = Run(TOKENIZE, directory, never_finishing(directory)).start()
    run.wait_for_workers(2)
    run.process.send_signal(signal.SIGINT)
    time.sleep(0.002)
    if run.process.poll() is None:
        run.process.send_signal(signal.SIGINT)
    status, stderr = run.end(ANSWER_SECONDS)
    # When Python has begun to end, it hands signals to the system; a shell calls both ends 130.
    assert status in {130, -signal.SIGINT}
    assert "Traceback" not in stderr
    assert run.gone()
    assert Run(TOKENIZE, directory).start().end()[0] == 0
    assert output_of(directory) == undisturbed


MISBEHAVIOURS = {
    "raise": (70, "ZeroDivisionError: a bug in the worker"),
    "abort": (8, "was killed by SIGABRT at unit 5 of corpus.jsonl"),
    "exit": (8, "ended with status 3 at unit 5 of corpus.jsonl"),
    "cut": (8, "ended with status 3 at unit 5 of corpus.jsonl"),
    "garble": (8, "sent an unreadable message at unit 5 of corpus.jsonl"),
}


@pytest.mark.parametrize("what", MISBEHAVIOURS)
def test_a_worker_that_fails_is_understood(directory, what):
    status, words = MISBEHAVIOURS[what]
    run = Run(TOKENIZE, directory, {"TOKSHARD_SHIM": what, "TOKSHARD_SHIM_UNIT": "5"}).start()
    found, stderr = run.end()
    assert found == status
    assert words in stderr
    assert ("Traceback" in stderr) == (what == "raise")
    assert run.gone()


SCRIPT = """
import json, sys
import tokshard
report = tokshard.tokenize(
    tokshard.TokenizeOptions(inputs="corpus.jsonl", output="out/x", workers=2, encoder="reference")
)
print(json.dumps([__name__, report.counts.documents]))
"""


@pytest.mark.parametrize("how", ["plain", "isolated", "stdin"])
def test_a_script_needs_no_main_guard(directory, how):
    script = directory / "script.py"
    script.write_text(SCRIPT)
    interpreter = [sys.executable, *({"isolated": ["-I"]}.get(how, []))]
    done = subprocess.run(
        [*interpreter, "-" if how == "stdin" else str(script)],
        cwd=directory,
        input=SCRIPT if how == "stdin" else "",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    name, documents = json.loads(done.stdout)
    assert name == "__main__"
    assert documents == sum(1 for _ in (directory / "corpus.jsonl").open("rb"))


def test_a_system_that_allows_no_process_is_named(directory):
    limited = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (12, 12)); "
    program = [sys.executable, "-c", limited + "from tokshard.cli.main import main; main()"]
    status, stderr = Run([*TOKENIZE, "--workers", "40"], directory, program=program).start().end()
    assert status == 8
    assert "error: cannot start a worker process: Too many open files" in stderr
