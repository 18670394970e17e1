"""Running the real command on a corpus that keeps several workers busy, and watching its processes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support import forked_commands

HERE = Path(__file__).parent
SAMPLE_DATA = HERE.parent.parent / "sample_data"
TOKENIZER = SAMPLE_DATA / "tokenizer.json"
COMMAND = [sys.executable, "-c", "from tokshard.cli.main import main; main()"]

# What does not answer for so long hangs. The answer takes less than a second, but machines may be busy.
ANSWER_SECONDS = 60.0
START_SECONDS = 120.0
ROOM_BYTES = 1 << 30
_MARK = "TOKSHARD_TEST_RUN"


def make_corpus(path: Path, megabytes: float) -> Path:
    """Repeat the sample data, so that no unit has the text of another."""
    lines = [
        line for name in ("stories", "manuals") for line in (SAMPLE_DATA / f"{name}.jsonl").open("rb") if line
    ]
    size = number = 0
    with path.open("wb") as file:
        while size < megabytes * 1e6:
            line = lines[number % len(lines)].replace(b'"text": "', b'"text": "%d ' % number, 1)
            size += file.write(line)
            number += 1
    return path


@contextlib.contextmanager
def scratch_directory(otherwise: Path) -> Iterator[Path]:
    """Make a directory for many files, on a memory file system if there is room: fsync is free there."""
    memory = Path("/dev/shm")
    roomy = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > ROOM_BYTES
    directory = tempfile.mkdtemp(prefix="tokshard-", dir=memory if roomy else otherwise)
    try:
        yield Path(directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def campaign(*words: object) -> Any:
    """Run the program of the crash table; return what it prints with --json."""
    done = forked_commands.run([*map(str, words)], program=HERE.parent / "crash_table.py")
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return json.loads(done.stdout) if "--json" in words else None


def digest(path: str | Path) -> str | None:
    """Return a file's digest, or None if it is absent."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except FileNotFoundError:
        return None


def output(prefix: str | Path) -> dict[str, str | None]:
    """Return the digests of everything that is published under a prefix."""
    sidecars = (
        "manifest.json",
        "units.jsonl",
        "provenance.bin",
        "rejected.jsonl",
        "order.bin",
        "pieces.jsonl",
    )
    files = {name: digest(f"{prefix}.{name}") for name in ("bin", "idx")}
    return files | {name: digest(f"{prefix}.tokshard/{name}") for name in sidecars}


def finished_units(prefix: str | Path) -> set[str]:
    """Return the names of the parts that an unfinished run has: in parts/, or appended at a checkpoint."""
    work = Path(f"{prefix}.tokshard/work")
    finished = {path.name for path in (work / "parts").glob("*.part")}
    covered: list[str] = []
    journal = work / "journal.jsonl"
    for line in journal.read_bytes().splitlines(keepends=True) if journal.exists() else []:
        if not line.endswith(b"\n"):
            break
        entry = json.loads(line)
        if "header" in entry:
            covered.append(entry["header"]["name"])
        else:
            finished |= set(covered)
    return finished


@dataclass
class Run:
    """One command under way.

    Attributes:
        arguments: The command line after ``tokshard``.
        directory: Where it runs.
        shim: What workers do, see shim/sitecustomize.py, as environment variables.
        program: What to run with these arguments.
    """

    arguments: list[str]
    directory: Path
    shim: dict[str, str] = field(default_factory=dict)
    program: list[str] = field(default_factory=lambda: COMMAND)
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def start(self) -> Run:
        path = os.pathsep.join(filter(None, [str(HERE / "shim"), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": path, _MARK: self.mark, **self.shim}
        self.process = subprocess.Popen(
            [*self.program, *self.arguments],
            cwd=self.directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # as a shell's foreground job: a process group of its own
        )
        return self

    def alive(self) -> list[int]:
        """Return the processes of this run that exist, the dead that nobody has waited for left out."""
        return [int(path.name) for path in Path("/proc").glob("[0-9]*") if self._is_ours(path)]

    def _is_ours(self, path: Path) -> bool:
        try:
            return f"{_MARK}={self.mark}".encode() in (path / "environ").read_bytes()
        except OSError:
            return False

    def workers(self) -> list[int]:
        """Return the workers and the process that forks them."""
        return [pid for pid in self.alive() if pid != self.process.pid]

    def wait_for_workers(self, count: int) -> list[int]:
        """Wait until so many workers live, or the run has ended; return them."""
        deadline = time.monotonic() + START_SECONDS
        while len(found := self.workers()) < count and self.process.poll() is None:
            assert time.monotonic() < deadline, "the workers did not start"
            time.sleep(0.01)
        return found

    def wait_for_encoders(self, count: int) -> None:
        """Wait until so many processes have begun to encode, by the shim's log."""
        log = Path(self.shim["TOKSHARD_SHIM_LOG"])
        deadline = time.monotonic() + START_SECONDS
        while not log.exists() or len(set(log.read_text().split()[1::2])) < count:
            assert self.process.poll() is None, self.process.communicate()[1]
            assert time.monotonic() < deadline, f"{count} encoders did not start"
            time.sleep(0.005)

    def wait_for_path(self, path: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not (self.directory / path).exists():
            assert self.process.poll() is None, self.process.communicate()[1]
            assert time.monotonic() < deadline, f"{path} did not appear"
            time.sleep(0.005)

    def end(self, seconds: float = 600.0) -> tuple[int, str]:
        """Wait for the end; return the exit status and stderr.

        Raises:
            subprocess.TimeoutExpired: It hangs.
        """
        try:
            _, stderr = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.clean_up()
            raise
        return self.process.returncode, stderr

    def gone(self) -> bool:
        """Tell whether, after a while at the latest, no process of the run is left."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while self.alive():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def clean_up(self) -> None:
        for pid in self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.communicate()


def answer_to_a_killed_worker(run: Run, pid: int, patience_seconds: float = ANSWER_SECONDS) -> str:
    """Kill a worker; return ``"finished"``, ``"named"``, ``"hangs"``, or what is wrong with the answer."""
    with contextlib.suppress(ProcessLookupError):  # it has finished its work already
        os.kill(pid, signal.SIGKILL)
    try:
        status, stderr = run.end(patience_seconds)
    except subprocess.TimeoutExpired:
        return "hangs"
    if status == 0:
        return "finished"
    named = re.search(
        r"error: (?:worker process (\d+) was killed by SIGKILL .*(?:at unit \d+ of \S+|while it waited)"
        r"|the parent process (\d+) of the workers was killed by SIGKILL)",
        stderr,
    )
    if status != 8 or not named or int(named[1] or named[2]) != pid or "hint: " not in stderr:
        return f"exit status {status}: {stderr}"
    return "named" if run.gone() else "processes are left over"


def clear(directory: Path) -> None:
    shutil.rmtree(directory / "out", ignore_errors=True)
    (directory / "begun.txt").unlink(missing_ok=True)
