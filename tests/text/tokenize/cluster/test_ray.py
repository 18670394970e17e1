"""On a real Ray cluster: two nodes, one of which shares no file system with the other for some paths."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from support.command_line import json_of, tokshard
from support.tokenize_runs import TOKENIZER, run_tokenize, write_jsonl
from tokshard import errors
from tokshard.text.tokenize.cluster.connection import Connection
from tokshard.text.tokenize.cluster.options import RayOptions
from tokshard.text.tokenize.cluster.task import perform
from tokshard.version import __version__

pytestmark = [
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install ray"),
    pytest.mark.timeout(900),
]

SCRIPT = Path(__file__).parents[4] / "scripts/ray_cluster"
WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "and", "does", "not", "look"]
HOST = socket.gethostname()
PATIENCE_SECONDS = 240.0
# Only the second node has so many CPUs.
FOREIGN_CPUS = 3


class Nodes:
    """The cluster of this module: a head of two CPUs, and a node for which `hidden` is another directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.hidden = directory / "hidden"
        self.hidden.mkdir()
        self.foreign = 0
        self.hides = can_hide()
        self.script("start", "--nodes", "1")
        self.address = (directory / "ray/address").read_text()

    def script(self, verb, *arguments, env=None):
        command = [sys.executable, SCRIPT, verb, self.directory / "ray", *arguments]
        done = subprocess.run(
            command, env={**os.environ, **(env or {})}, capture_output=True, text=True, check=False
        )
        logs = "".join(path.read_text() for path in (self.directory / "ray").glob("*.log"))
        assert done.returncode == 0, done.stderr + logs

    def need_foreign(self):
        """Start the second node, if a test has killed it."""
        if not self.foreign:
            self.foreign = len(list((self.directory / "ray").glob("node-*.log")))
            hide = ["--hide", self.hidden] if self.hides else []
            self.script("add", "--cpus", str(FOREIGN_CPUS), *hide, env={"TMPDIR": str(self.scratch)})

    @property
    def scratch(self):
        return self.hidden if self.hides else Path(tempfile.gettempdir())

    def kill_foreign(self):
        self.script("kill", str(self.foreign))
        self.foreign = 0

    def executor(self, **options):
        return RayOptions(ray_address=self.address, **options)

    def command(self):
        return "--executor", "ray", "--ray-address", self.address


def can_hide():
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def nodes():
    # A short path: sockets lie below it.
    with tempfile.TemporaryDirectory(prefix="ts") as directory:
        found = None
        try:
            found = Nodes(Path(directory))
            found.need_foreign()
            yield found
        finally:
            command = [sys.executable, SCRIPT, "stop", Path(directory) / "ray"]
            subprocess.run(command, capture_output=True, check=True)


@pytest.fixture
def traffic(monkeypatch):
    """What goes to the cluster and comes back, while it does."""
    return Traffic(monkeypatch)


class Traffic:
    def __init__(self, monkeypatch):
        self.clear()
        self.began = lambda place: None
        submit, wait = Connection.submit, Connection.wait

        def submitting(connection, number, label, arguments):
            self.submitted[label] += 1
            submit(connection, number, label, arguments)

        def waiting(connection):
            message = wait(connection)
            if message is not None and "progress" not in message.get("answer", {"progress": None}):
                self.answers.append(message["answer"])
            if message is not None and "lost" in message:
                self.losses.append(message["number"])
            if message is not None and "ended" in message:
                self.ended.add(message["number"])
            if message is not None and "began" in message:
                self.begun[message["number"]] = message["began"]["pid"]
                self.began(message["began"])
            return message

        monkeypatch.setattr(Connection, "submit", submitting)
        monkeypatch.setattr(Connection, "wait", waiting)

    def clear(self):
        self.submitted: Counter[str] = Counter()
        self.answers: list[dict] = []
        self.begun: dict[int, int] = {}
        self.ended: set[int] = set()
        self.losses: list[int] = []


def corpus(path, documents, *, words=40):
    records = [
        {"text": " ".join(WORDS[(n * k) % len(WORDS)] for k in range(words)), "n": n}
        for n in range(documents)
    ]
    return write_jsonl(path, records)


def inputs_of_all_kinds(directory, documents=300, words=40):
    """Make a plain file, a compressed one and a table, of many units each."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    plain, packed, table = directory / "a.jsonl", directory / "b.jsonl", directory / "c.parquet"
    corpus(plain, documents, words=words)
    corpus(packed, documents, words=words + 3)
    subprocess.run(["gzip", "-n", packed], check=True)
    texts = [f"row {n} " + " ".join(WORDS) for n in range(200)]
    pq.write_table(pa.table({"text": texts}), table, row_group_size=20)
    return [str(plain), f"{packed}.gz", str(table)]


def tokenize(inputs, output, executor=None, **options):
    settings = {"tokenizer": TOKENIZER, "encoder": "reference", "unit_size": 4000, **options}
    return run_tokenize(inputs, str(output), executor=executor, **settings)


def files_of(prefix):
    """Return all files of a dataset and its sidecars, by their names."""
    prefix = Path(prefix)
    sidecars = sorted(Path(f"{prefix}.tokshard").rglob("*"))
    paths = [Path(f"{prefix}.bin"), Path(f"{prefix}.idx"), *(path for path in sidecars if path.is_file())]
    return {path.relative_to(prefix.parent).as_posix(): path.read_bytes() for path in paths}


def test_all_kinds_of_input_give_the_bytes_of_a_local_run(nodes, tmp_path, traffic, capfd):
    inputs = inputs_of_all_kinds(tmp_path)
    expected = tokenize(inputs, tmp_path / "local/out")
    report = tokenize(inputs, tmp_path / "ray/out", nodes.executor())
    assert files_of(tmp_path / "ray/out") == files_of(tmp_path / "local/out")
    assert report.outputs[0].dataset == expected.outputs[0].dataset
    assert report.outputs[0].dataset.units == len(traffic.answers) > 30
    assert max(traffic.submitted.values()) == 1
    assert not any("file" in answer for answer in traffic.answers), "both nodes see the work directory"
    assert capfd.readouterr() == ("", ""), "what Ray prints is not ours to print"


def test_a_subset_stops_at_its_limit_with_the_bytes_of_a_local_run(nodes, tmp_path):
    inputs = inputs_of_all_kinds(tmp_path)
    options = {"sample": 0.6, "holdout": 0.3, "limit": 40}
    tokenize(inputs, tmp_path / "local/out", **options)
    tokenize(inputs, tmp_path / "ray/out", nodes.executor(), **options)
    for split in ("out_train", "out_valid"):
        assert files_of(tmp_path / "ray" / split) == files_of(tmp_path / "local" / split)


def test_a_node_that_does_not_see_the_work_directory_hands_its_parts_back(nodes, tmp_path, traffic):
    if not nodes.hides:
        pytest.skip("this user cannot make mount namespaces")
    inputs = inputs_of_all_kinds(tmp_path)
    tokenize(inputs, tmp_path / "local/out")
    nodes.need_foreign()
    report = tokenize(inputs, nodes.hidden / "out", nodes.executor(ray_cpus_per_task=FOREIGN_CPUS))
    assert files_of(nodes.hidden / "out") == files_of(tmp_path / "local/out")
    assert [answer["file"] for answer in traffic.answers if "file" in answer] != []
    assert sum("file" in answer for answer in traffic.answers) == report.outputs[0].dataset.units


def test_what_is_wrong_on_a_node_is_said_with_its_name(nodes, tmp_path):
    if not nodes.hides:
        pytest.skip("this user cannot make mount namespaces")
    nodes.need_foreign()
    there = nodes.executor(ray_cpus_per_task=FOREIGN_CPUS)
    with pytest.raises(errors.InputError, match=f"not found on the node {HOST}"):
        tokenize(corpus(nodes.hidden / "unseen.jsonl", 9), tmp_path / "unseen", there)
    big = corpus(tmp_path / "big.jsonl", 10, words=100_000)
    output = nodes.hidden / "big"
    with pytest.raises(errors.StorageError, match=f"on the node {HOST}: No space") as caught:
        tokenize(big, output, there, unit_size=1 << 30)
    assert (caught.value.exit_code, "finished work is kept" in caught.value.hint) == (7, True)
    assert tokenize(big, output, unit_size=1 << 30).counts.documents == 10


# Interrupts itself at the third finished unit, however fast the others come.
INTERRUPTED = """
import os, signal
from tokshard.text.tokenize.cluster.connection import Connection
wait, answers = Connection.wait, []
def waiting(connection, *arguments):
    message = wait(connection, *arguments)
    if message and "outcome" in message.get("answer", ()):
        answers.append(message)
        if len(answers) == 3:
            os.kill(os.getpid(), signal.SIGINT)
    return message
Connection.wait = waiting
from tokshard.cli.main import main
main()
"""


def test_a_stopped_run_is_resumed_without_ray(nodes, tmp_path):
    source = corpus(tmp_path / "in.jsonl", 400)
    options = ("--tokenizer", TOKENIZER, "--unit-size", "1kB", "--encoder", "reference")
    run = subprocess.Popen(
        [
            *(sys.executable, "-c", INTERRUPTED),
            *("tokenize", source, "-o", tmp_path / "out", *options, *nodes.command(), "--workers", "1", "-q"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    parts = tmp_path / "out.tokshard/work/parts"
    said, complained = run.communicate(timeout=PATIENCE_SECONDS)
    assert (run.returncode, said) == (130, ""), complained
    assert [line.partition(":")[0] for line in complained.splitlines()] == ["error", "hint"], complained
    assert "resume with: tokshard tokenize" in complained
    assert not list(parts.glob("incoming-*"))
    resumed = json_of(tokshard("tokenize", source, "-o", tmp_path / "out", *options, "--json", "-q"))
    assert resumed["units_reused"] > 0
    assert tokshard("tokenize", source, "-o", tmp_path / "local/out", *options).returncode == 0
    assert files_of(tmp_path / "out") == files_of(tmp_path / "local/out")


def test_work_that_is_lost_too_often_is_named(nodes, tmp_path, traffic):
    # One task, which takes long enough for being killed in it.
    source = corpus(tmp_path / "in.jsonl", 2000, words=400)
    traffic.began = lambda place: kill(place["pid"], signal.SIGKILL)
    with pytest.raises(
        errors.WorkerError, match=r"unit [0-9]+ of .*in\.jsonl was lost on the node"
    ) as caught:
        tokenize(source, tmp_path / "out", nodes.executor(ray_retries=0, tasks=1), unit_size=1 << 30)
    assert caught.value.exit_code == 8
    assert "finished work is kept" in caught.value.hint
    tokenize(source, tmp_path / "out", unit_size=1 << 30)
    tokenize(source, tmp_path / "local/out", unit_size=1 << 30)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "local/out")


def test_a_lost_node_costs_only_its_unfinished_units(nodes, tmp_path, traffic):
    # Each unit takes long enough for its node to be stopped in the middle of it.
    inputs = inputs_of_all_kinds(tmp_path, documents=150, words=4000)
    tokenize(inputs, tmp_path / "local/out", unit_size=150_000)
    nodes.need_foreign()
    # What only that node can do: afterwards it has a worker that needs no time to start.
    few = corpus(tmp_path / "few.jsonl", 3)
    tokenize(few, tmp_path / "few/out", nodes.executor(ray_cpus_per_task=FOREIGN_CPUS))
    traffic.clear()
    held = Held(nodes, traffic)
    report = tokenize(inputs, tmp_path / "ray/out", nodes.executor(), unit_size=150_000)
    held.end()
    assert files_of(tmp_path / "ray/out") == files_of(tmp_path / "local/out")
    encoded = Counter(tuple(answer["outcome"]["key"].values()) for answer in traffic.answers)
    assert len(encoded) == report.outputs[0].dataset.units
    assert max(encoded.values()) == 1, "nothing that had been answered was encoded again"
    assert traffic.losses, "the node had been given something"
    assert len(traffic.begun.keys() & traffic.losses) <= FOREIGN_CPUS, "what was being encoded there"


class Held:
    """Stops the workers of the second node in the middle of a task, and kills it when nothing goes on."""

    def __init__(self, nodes, traffic):
        self.nodes = nodes
        self.traffic = traffic
        self.thread = None
        self.is_killed = False
        traffic.began = self.began

    def began(self, place):
        is_watching = self.thread is not None and self.thread.is_alive()
        if not is_watching and not self.is_killed and place["pid"] in set(self.workers()):
            self.stop()
            self.thread = threading.Thread(target=self.kill_if_busy)
            self.thread.start()

    def stop(self):
        """Stop the workers of the node; return them."""
        found = set(self.workers())
        for pid in found:
            kill(pid, signal.SIGSTOP)
        return found

    def kill_if_busy(self):
        before, since = -1, time.monotonic()
        while time.monotonic() - since < 2:
            stopped = self.stop()
            if before != len(self.traffic.answers):
                before, since = len(self.traffic.answers), time.monotonic()
            time.sleep(0.02)
        busy = {number for number, pid in dict(self.traffic.begun).items() if pid in stopped}
        if busy - self.traffic.ended:
            self.is_killed = True
            self.nodes.kill_foreign()
        else:
            for pid in stopped:
                kill(pid, signal.SIGCONT)

    def workers(self):
        mark = f"TOKSHARD_RAY_NODE={self.nodes.directory / 'ray'}:{self.nodes.foreign}".encode()
        for name in filter(str.isdecimal, os.listdir("/proc")):
            with suppress(OSError):  # it has just ended
                command = Path(f"/proc/{name}/cmdline").read_bytes()
                if command.startswith(b"ray::") and mark in Path(f"/proc/{name}/environ").read_bytes():
                    yield int(name)

    def end(self):
        if self.thread is not None:
            self.thread.join()


def kill(pid, number):
    with suppress(ProcessLookupError):
        os.kill(pid, number)


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


REFUSED = {
    "client": ("in.jsonl --executor ray --ray-address ray://h:10001", "Ray Client"),
    "no port": ("in.jsonl --executor ray --ray-address head", "must be 'auto' or HOST:PORT"),
    "no ray": ("in.jsonl --ray-retries 2", "--ray-retries requires --executor ray"),
    "cpus": ("in.jsonl --executor ray --ray-cpus-per-task 0", "must be a positive number"),
    "part of a cpu": ("in.jsonl --executor ray --ray-cpus-per-task 1.5", "must be an integer if above 1"),
    "retries": ("in.jsonl --executor ray --ray-retries -1", "must be at least 0"),
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


def test_another_version_on_a_node_is_refused():
    call = {"version": "0.0.1", "function": "tokshard.text.tokenize.workers.node:encode", "arguments": {}}
    answers = [json.loads(message) for message, _ in perform(json.dumps(call).encode(), b"")]
    assert answers[0]["began"]["pid"] == os.getpid()
    assert answers[1:] == [{"refused": f"the node {HOST} must have tokshard 0.0.1, got {__version__}"}]
