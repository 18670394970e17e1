"""On a real Ray cluster: a head of one CPU, and nodes of three, which can be killed."""

from __future__ import annotations

import gzip
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from support import ray_nodes
from support.command_line import json_of, tokshard
from support.tokenize_runs import TOKENIZER, job_of, run_tokenize, write_jsonl
from support.unit_feeds import Fed
from tokshard import errors
from tokshard.core.progress import ProgressUpdate, SilentProgress
from tokshard.text.tokenize.encoder import BatchProgress, Outcome
from tokshard.text.tokenize.part import PartReader, UnitKey
from tokshard.text.tokenize.workers import ray_cluster
from tokshard.text.tokenize.workers.ray import _calls, encode_on_node
from tokshard.text.tokenize.workers.ray_cluster import RayOptions
from tokshard.version import __version__

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install ray")
pytestmark = pytest.mark.timeout(300)

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "and", "does", "not", "look"]
HOST = socket.gethostname()
PATIENCE_SECONDS = 120.0


class Nodes:
    """A cluster with one node of three CPUs, and as many more as are added."""

    def __init__(self, directory: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, ray_nodes.__file__, directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.address = self._process.stdout.readline().strip()
        assert self.address, "the cluster did not start"
        self._count = 0
        self.add()

    def add(self) -> None:
        self.tell("add 3")
        self._count += 1

    def kill(self) -> None:
        """Kill the newest node but one."""
        self.tell(f"kill {self._count - 2}")

    def tell(self, line: str) -> None:
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n", line

    def end(self) -> None:
        self._process.stdin.close()
        self._process.wait(PATIENCE_SECONDS)

    @property
    def options(self) -> RayOptions:
        return RayOptions(ray_address=self.address, ray_cpus_per_task=3)


@contextmanager
def cluster():
    # A short path: sockets lie below it.
    with tempfile.TemporaryDirectory(prefix="ts", ignore_cleanup_errors=True) as directory:
        nodes = Nodes(directory)
        try:
            yield nodes
        finally:
            nodes.end()


@pytest.fixture(scope="module")
def nodes():
    with cluster() as found:
        yield found


def corpus(path: Path, documents: int, *, words: int = 40) -> str:
    texts = [" ".join(WORDS[(n * k) % len(WORDS)] for k in range(words)) for n in range(documents)]
    write_jsonl(path, [{"text": text} for text in texts])
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(path.read_bytes(), 1, mtime=0))
    return str(path)


def inputs_of_all_kinds(directory: Path) -> list[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = directory / "c.parquet"
    texts = [f"row {n} " + " ".join(WORDS) for n in range(200)]
    pq.write_table(pa.table({"text": texts}), table, row_group_size=50)
    plain, packed = directory / "a.jsonl", directory / "b.jsonl.gz"
    return [corpus(plain, 100), corpus(packed, 100, words=43), str(table)]


def tokenize(inputs, output, executor=None, **options):
    settings = {"tokenizer": TOKENIZER, "encoder": "reference", "unit_size": 8000, **options}
    return run_tokenize(inputs, str(output), executor=executor, **settings)


def files_of(prefix) -> dict[str, bytes]:
    """Return all files of a dataset and its sidecars, by their names."""
    prefix = Path(prefix)
    sidecars = sorted(Path(f"{prefix}.tokshard").rglob("*"))
    paths = [Path(f"{prefix}.bin"), Path(f"{prefix}.idx"), *(path for path in sidecars if path.is_file())]
    return {path.relative_to(prefix.parent).as_posix(): path.read_bytes() for path in paths}


@needs_ray
def test_all_kinds_of_input_give_the_bytes_of_a_local_run(nodes, tmp_path, capfd, monkeypatch):
    inputs = inputs_of_all_kinds(tmp_path)
    monkeypatch.chdir(tmp_path)  # nodes are elsewhere
    inputs = [os.path.relpath(path) for path in inputs]
    expected = tokenize(inputs, "local/out")
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    report = tokenize(inputs, "ray/out", nodes.options)
    assert files_of("ray/out") == files_of("local/out")
    assert report.outputs[0].dataset == expected.outputs[0].dataset
    assert capfd.readouterr() == ("", ""), "what Ray prints is not ours to print"
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers


@needs_ray
def test_a_subset_stops_at_its_limit_with_the_bytes_of_a_local_run(nodes, tmp_path):
    inputs = inputs_of_all_kinds(tmp_path)
    options = {"sample": 0.6, "holdout": 0.3, "limit": 40}
    tokenize(inputs, tmp_path / "local/out", **options)
    tokenize(inputs, tmp_path / "ray/out", nodes.options, **options)
    for split in ("out_train", "out_valid"):
        assert files_of(tmp_path / "ray" / split) == files_of(tmp_path / "local" / split)


def processes_at(unit: str) -> list[int]:
    """Return the processes of Ray that encode a unit: its tasks are named so."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):  # it has just ended
            if Path(f"/proc/{name}/cmdline").read_bytes().startswith(f"ray::{unit}".encode()):
                found.append(int(name))
    return found


def in_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


class Documents(SilentProgress):
    """How many documents were reported."""

    def __init__(self) -> None:
        self.count = 0

    def update(self, progress: ProgressUpdate) -> None:
        self.count = progress.documents


@needs_ray
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_unit_that_is_lost_with_its_node_is_encoded_on_another_one(nodes, tmp_path, name):
    source = corpus(tmp_path / name, 60)
    tokenize(source, tmp_path / "local/out")
    unit = f"unit 0 of {source}"
    killed = []

    def kill() -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (encoding := processes_at(unit)):
            assert time.monotonic() < deadline
        killed.extend(encoding)
        os.kill(encoding[0], signal.SIGSTOP)
        nodes.add()
        nodes.kill()

    # As soon as the task is known to run; one that Ray has just forked is at rest for a moment.
    killer = in_thread(kill)
    documents = Documents()
    tokenize(source, tmp_path / "ray/out", nodes.options, progress=documents)
    killer.join()
    assert killed
    assert files_of(tmp_path / "ray/out") == files_of(tmp_path / "local/out")
    assert documents.count == 60, "nothing is counted twice"


@needs_ray
def test_a_unit_that_is_lost_again_and_again_is_named(nodes, tmp_path):
    source = corpus(tmp_path / "in.jsonl", 5000, words=400)
    unit = f"unit 0 of {source}"
    is_over = threading.Event()

    def kill() -> None:
        while not is_over.is_set():
            for pid in processes_at(unit):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    killer = in_thread(kill)
    with pytest.raises(
        errors.WorkerError, match=rf"unit 0 of {source} was lost 4 times: The worker"
    ) as caught:
        tokenize(source, tmp_path / "out", nodes.options, unit_size=1 << 30)
    is_over.set()
    killer.join()
    assert caught.value.exit_code == 8
    assert "finished work is kept" in caught.value.hint


# Interrupts itself at the third finished unit, however fast the others come.
INTERRUPTED = """
import os, signal
from tokshard.text.tokenize.workers import ray
original, seen = ray._result, []
def result(*arguments):
    seen.append(original(*arguments))
    if len(seen) == 3:
        os.kill(os.getpid(), signal.SIGINT)
    return seen[-1]
ray._result = result
from tokshard.cli.main import main
main()
"""


@needs_ray
def test_a_stopped_run_is_resumed_without_ray(nodes, tmp_path):
    source = corpus(tmp_path / "in.jsonl", 100)
    options = ("--tokenizer", TOKENIZER, "--unit-size", "1kB", "--encoder", "reference")
    done = subprocess.run(
        [
            *(sys.executable, "-c", INTERRUPTED, "tokenize", source, "-o", tmp_path / "out", *options),
            *("--executor", "ray", "--ray-address", nodes.address, "-q"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert (done.returncode, done.stdout) == (130, ""), done.stderr
    assert [line.partition(":")[0] for line in done.stderr.splitlines()] == ["error", "hint"], done.stderr
    assert "resume with: tokshard tokenize" in done.stderr
    resumed = json_of(tokshard("tokenize", source, "-o", tmp_path / "out", *options, "--json", "-q"))
    assert resumed["units_reused"] > 0
    assert tokshard("tokenize", source, "-o", tmp_path / "local/out", *options).returncode == 0
    assert files_of(tmp_path / "out") == files_of(tmp_path / "local/out")


@needs_ray
def test_more_cpus_than_a_node_has_are_refused(nodes, tmp_path):
    source = corpus(tmp_path / "in.jsonl", 3)
    options = replace(nodes.options, ray_cpus_per_task=4)
    with pytest.raises(
        errors.UsageError, match="--ray-cpus-per-task must be at most 3, the CPUs of the largest"
    ):
        tokenize(source, tmp_path / "out", options)


@needs_ray
def test_a_head_that_is_lost_ends_the_run(tmp_path):
    source = corpus(tmp_path / "in.jsonl", 5000, words=400)
    with cluster() as nodes:
        address = ["--executor", "ray", "--ray-address", nodes.address]
        command = [sys.executable, "-m", "tokshard", "tokenize", source, "-o", tmp_path / "out", *address]
        run = subprocess.Popen([*command, "--unit-size", "1GB", "-q"], stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not processes_at(f"unit 0 of {source}"):
            assert time.monotonic() < deadline
        os.kill(processes_at(f"unit 0 of {source}")[0], signal.SIGSTOP)
        nodes.tell("lose")
        _, complained = run.communicate(timeout=PATIENCE_SECONDS)
    assert run.returncode == 8, complained
    assert f"error: cannot use the Ray cluster at {nodes.address}: no response from " in complained


# Without a cluster


class Calls:
    """What a run on a cluster would call for some files, called here."""

    def __init__(self, folder: Path, paths: list[Path], *, done=frozenset(), unit_bytes=100) -> None:
        self.parts = folder / "parts"
        self.parts.mkdir()
        self.spec = job_of(list(map(str, paths)), str(folder / "out"), tokenizer=TOKENIZER).encoding()
        fed = Fed(paths, folder / "raw", unit_bytes=unit_bytes, done=done)
        self.names = fed.names
        self.calls = list(_calls(fed.feed, fed.feed.leave_streams()))

    def events(self, *, version: str = __version__) -> list:
        job = version, self.spec, str(self.parts)
        return [event for _, *arguments in self.calls for event in encode_on_node(job, *arguments)]


@pytest.fixture
def paths(tmp_path):
    return [Path(corpus(tmp_path / name, 12)) for name in ("a.jsonl", "b.jsonl.gz", "c.jsonl")]


def test_each_unit_that_is_not_done_is_encoded_once_in_order(tmp_path, paths):
    done = frozenset({UnitKey(0, 2), UnitKey(1, 0), UnitKey(1, 1)})
    calls = Calls(tmp_path, paths, done=done, unit_bytes=1000)
    names = [name for name, *_ in calls.calls]
    assert names[:3] == [f"unit 0 of {paths[0]}", f"unit 1 of {paths[0]}", f"unit 2 of {paths[1]}"]
    events = calls.events()
    keys = [event.key for event in events if isinstance(event, Outcome)]
    assert keys == sorted({UnitKey(n, i) for n in range(3) for i in range(3)} - done)
    assert sum(event.input_bytes for event in events if isinstance(event, BatchProgress)) > 0
    for key in keys:
        with PartReader(str(calls.parts / calls.names.of(key))) as part:
            part.verify()
            assert part.header.name == calls.names.of(key)


def message_of(events: list) -> str:
    assert isinstance(events[-1], errors.TokshardError)
    return f"{events[-1].exit_code}: {events[-1]}; {events[-1].hint}"


def test_what_is_wrong_on_a_node_is_said_with_its_name(tmp_path, paths):
    calls = Calls(tmp_path, paths[:1])
    with paths[0].open("ab") as file:
        file.write(b"\n")
    assert f"bytes on the node {HOST}, but" in message_of(calls.events())
    paths[0].unlink()
    found = message_of(calls.events())
    assert found.startswith(f"3: cannot read {paths[0]} on the node {HOST}: No such file")
    assert "store them on a shared file system" in found


def test_a_node_that_does_not_see_or_cannot_write_the_output_is_named(tmp_path, paths, monkeypatch):
    calls = Calls(tmp_path, paths[:1])
    calls.parts.rename(tmp_path / "away")
    found = message_of(calls.events())
    assert found.startswith(f"3: cannot read {calls.parts} on the node {HOST}: No such file")
    calls.parts.write_text("no directory")
    assert f"(on the node {HOST})" in message_of(calls.events())


def test_another_version_on_a_node_is_refused(tmp_path, paths):
    found = message_of(Calls(tmp_path, paths[:1]).events(version="0.0.1"))
    assert (
        f"8: the node {HOST} must have tokshard 0.0.1, got {__version__}; install the same version" in found
    )


def test_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    feed = Fed([tmp_path / "pipe"], tmp_path / "raw").feed
    with pytest.raises(errors.UsageError, match="only by this process"):
        feed.leave_streams()


def test_a_cluster_that_is_not_there_is_said_at_once(tmp_path):
    source = corpus(tmp_path / "in.jsonl", 3)
    with socket.socket() as silent:  # it keeps the port, and does not listen
        silent.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        done = tokshard("tokenize", source, "--executor", "ray", "--ray-address", address, "-q", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (8, "")
    assert f"error: cannot use the Ray cluster at {address}: no response from {address}" in done.stderr
    assert "hint: start a cluster (ray start --head)" in done.stderr
    assert tokshard("tokenize", source, "-q", cwd=tmp_path).returncode == 0


def wait_for_ever(*_, **__):
    threading.Event().wait()


def fail(*_, **__):
    raise ConnectionError("Could not find any running Ray instance. Please specify the one to connect to")


@pytest.mark.parametrize(
    ("init", "reason"),
    [(wait_for_ever, "no response within 0.1 s"), (fail, "Could not find any running Ray instance")],
)
def test_a_cluster_that_ray_does_not_find_or_waits_for_is_said(monkeypatch, init, reason):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=init))
    monkeypatch.setattr(ray_cluster, "_CONNECT_SECONDS", 0.1)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(errors.WorkerError, match=f"cannot use the Ray cluster at auto: {reason}") as caught:
        RayOptions().connect()
    assert "start a cluster" in caught.value.hint


def test_ray_that_is_not_installed_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(errors.MissingExtraError, match="--executor ray requires ray, which is not installed"):
        RayOptions().connect()


REFUSED = {
    "client": ("in.jsonl --executor ray --ray-address ray://h:10001", "Ray Client"),
    "no port": ("in.jsonl --executor ray --ray-address head", "must be 'auto' or HOST:PORT"),
    "no ray": ("in.jsonl --ray-cpus-per-task 2", "--ray-cpus-per-task requires --executor ray"),
    "cpus": ("in.jsonl --executor ray --ray-cpus-per-task 0", "must be a positive number"),
    "part of a cpu": ("in.jsonl --executor ray --ray-cpus-per-task 1.5", "must be an integer if above 1"),
    "workers": ("in.jsonl --executor ray --workers 2", "--workers cannot be used with --executor ray"),
    "array": (
        "in.jsonl --executor ray --array-task 0/2",
        "--executor ray cannot be used with --array-task",
    ),
    "pipe": ("- -o out --executor ray", "the input - can be read only by this process"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_meant_is_refused(name, tmp_path):
    corpus(tmp_path / "in.jsonl", 3)
    words, message = REFUSED[name]
    done = tokshard("tokenize", *words.split(), cwd=tmp_path)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
