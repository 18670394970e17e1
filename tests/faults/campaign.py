"""A crash campaign: one command killed, or failed, at each of its storage calls in turn.

This is a program as well as a module, because it forks: it must be a process without threads.

    python campaign.py '{"workdir": ..., "arguments": [...], ...}'

It runs the command once to count its storage calls and to learn the right bytes. Then, for each k, it
runs the command in a fresh directory with the k-th call failing in the chosen way, judges what is left
on disk, runs the same command again, and compares. It prints one JSON object: how many points were
tried and what went wrong at which.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib
import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WRITING_CALLS = (
    "create",
    "open_for_append",
    "write",
    "copy_range",
    "truncate",
    "fsync",
    "fsync_directory",
    "close",
    "link",
    "replace",
    "make_directory",
    "make_private_directory",
    "unlink",
    "remove_directory",
)


SIDECARS = (
    "manifest.json",
    "units.jsonl",
    "provenance.bin",
    "rejected.jsonl",
    "order.bin",
    "pieces.jsonl",
)


@dataclass
class Job:
    """What to try.

    Attributes:
        workdir: Where to make the fresh directories.
        arguments: The command line after ``tokshard``; ``{in}`` stands for the input directory.
        inputs: The directory with the inputs.
        prefixes: The output prefixes, relative to a fresh directory.
        mode: ``"kill"``, ``"half"`` (kill in the middle of a write), ``"enospc"`` or ``"eio"``.
        prepare: Arguments of a command that makes an older output first, or None.
        control: ``module:function`` that breaks the implementation before it runs, or None.
        only: Calls that count; all by default.
        step: Try every step-th call.
        stop_at_failure: Whether one failure is enough.
    """

    workdir: str
    arguments: list[str]
    inputs: str
    prefixes: list[str]
    mode: str = "kill"
    prepare: list[str] | None = None
    control: str | None = None
    only: list[str] = field(default_factory=lambda: list(WRITING_CALLS))
    step: int = 1
    stop_at_failure: bool = False


def in_child(action: Callable[[], int | None]) -> int:
    """Run an action in a forked process; return its exit status, negative for a signal."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 0)
            os.dup2(null, 1)
            os.dup2(os.open("stderr.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), 2)
            code = action() or 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        except BaseException:  # a traceback is what the report needs
            import traceback

            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    status = os.waitpid(pid, 0)[1]
    return os.waitstatus_to_exitcode(status)


def run_command(arguments: list[str], inputs: str, *, hook: Callable[[], None] | None = None) -> int:
    """Run tokshard with these arguments in a forked process, in the current directory."""
    return in_child(lambda: command(arguments, inputs, hook))


def command(arguments: list[str], inputs: str, hook: Callable[[], None] | None) -> None:
    """Run tokshard in this process, which is good for nothing else afterwards."""
    from tokshard.cli import main
    from tokshard.dataset.merge import documents, options, shuffle, shuffled_output, staging
    from tokshard.text.tokenize import assembly, encoder

    assembly.CHECKPOINT_UNITS = 3  # several checkpoints in a small run
    staging.CHECKPOINT_BYTES = 700
    options.MIN_MEMORY_BYTES, documents.CHUNK_BYTES = 1, 200
    shuffle.CHECKPOINT_BYTES, shuffled_output.PIECE_BYTES = 700, 500
    original = encoder.UnitEncoder.encode

    def traced(self: Any, task: Any) -> Any:
        with open("encoded.txt", "a") as log:
            log.write(f"{task.key.part_name}\n")
        return original(self, task)

    encoder.UnitEncoder.encode = traced
    if hook:
        hook()
    sys.argv = ["tokshard", *(word.replace("{in}", inputs) for word in arguments)]
    main.main()


def failing_hook(job: Job, k: int) -> Callable[[], None]:
    """Return what makes the k-th counted storage call fail; k = 0 only counts."""

    def hook() -> None:
        from tokshard.errors import StorageError
        from tokshard.storage import syscalls

        count, turn = 0, threading.Lock()

        def wrap(name: str) -> None:
            original = getattr(syscalls, name)

            def wrapped(*arguments: Any) -> Any:
                nonlocal count
                if name in job.only:
                    with turn:  # checkpoints are made in another thread
                        count += 1
                        mine = count
                        if k == 0:
                            Path("count.txt").write_text(str(count))
                    if mine == k:
                        if job.mode != "kill" and name == "write":
                            data = bytes(memoryview(arguments[1]).cast("B"))
                            os.write(arguments[0], data[: len(data) // 2])
                        if job.mode != "kill" and name == "copy_range":
                            source, target, offset, size, path = arguments
                            original(source, target, offset, size // 2, path)
                        if job.mode in {"kill", "half"}:
                            os.kill(os.getpid(), signal.SIGKILL)
                        number = errno.ENOSPC if job.mode == "enospc" else errno.EIO
                        cause = OSError(number, os.strerror(number))
                        raise StorageError(name, str(arguments[-1]), cause) from cause
                return original(*arguments)

            setattr(syscalls, name, wrapped)

        for name in WRITING_CALLS:
            wrap(name)
        apply_control(job.control)

    return hook


def apply_control(control: str | None) -> None:
    """Break the implementation on purpose."""
    if control:
        sys.path.insert(0, str(Path(__file__).parent))
        module, _, function = control.partition(":")
        getattr(importlib.import_module(module), function)()


def digest(path: str) -> str | None:
    """Return a file's digest, or None if it is absent."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except FileNotFoundError:
        return None


Output = dict[str, str | None]


def outputs(prefixes: list[str]) -> list[Output]:
    """Return the digests of everything that is published, per prefix."""
    found = []
    for prefix in prefixes:
        sidecars = f"{prefix}.tokshard"
        files = {"bin": digest(f"{prefix}.bin"), "idx": digest(f"{prefix}.idx")}
        for name in SIDECARS:
            files[name] = digest(os.path.join(sidecars, name))
        found.append(files)
    return found


def judge(found: list[Output], new: list[Output], old: list[Output] | None) -> str | None:
    """Say what is wrong with what a crash left; None if it is absent, old and whole, or new and whole."""
    for k, files in enumerate(found):
        whole = [new[k]] + ([old[k]] if old else [])
        if files["manifest.json"] is not None:
            if files not in whole:
                return f"output {k} has a manifest but is neither the old nor the new dataset"
        elif files["bin"] is not None and files["idx"] is not None:
            pairs = [(dataset["bin"], dataset["idx"]) for dataset in whole]
            if (files["bin"], files["idx"]) not in pairs:
                return f"output {k}: .bin and .idx stand side by side and do not belong together"
    return None


def finished_units(prefix: str) -> set[str]:
    """Return the names of the parts that a killed run has committed (in parts/ or at a checkpoint)."""
    work = Path(f"{prefix}.tokshard/work")
    finished = {path.name for path in (work / "parts").glob("*.part")}
    covered: list[str] = []
    journal = work / "units.jsonl"
    if journal.exists():
        for line in journal.read_bytes().splitlines(keepends=True):
            if not line.endswith(b"\n"):
                break
            found = json.loads(line)
            if "checkpoint" in found:
                finished |= set(covered)
            else:
                header = found["entry"]["header"]
                covered.append(f"{header['file']:06d}-{header['unit']:09d}.part")
    return finished


def encoded_units() -> list[str]:
    """Return the names of the units that were encoded since the log was removed."""
    log = Path("encoded.txt")
    return log.read_text().split() if log.exists() else []


def fresh(job: Job) -> None:
    """Begin in an empty directory, with the older output if one is wanted."""
    shutil.rmtree(job.workdir, ignore_errors=True)
    os.makedirs(job.workdir)
    os.chdir(job.workdir)
    if job.prepare and run_command(job.prepare, job.inputs) != 0:
        raise RuntimeError(Path("stderr.txt").read_text())


def leftovers() -> list[str]:
    """Return temporary files and work directories that should not be there after success."""
    return [
        str(path)
        for path in Path().rglob("*")
        if path.name.endswith(".tokshard-tmp") or path.name in {"work", "kept", "lock"}
    ]


def try_point(job: Job, k: int, new: list[Output], old: list[Output] | None) -> str | None:
    """Fail the k-th call, judge, run again, compare; return what is wrong, or None."""
    fresh(job)
    status = run_command(job.arguments, job.inputs, hook=failing_hook(job, k))
    expected = {"kill": -signal.SIGKILL, "half": -signal.SIGKILL}.get(job.mode, 7)
    if status != expected:
        return f"exit status {status}: {Path('stderr.txt').read_text()[-800:]}"
    if (wrong := judge(outputs(job.prefixes), new, old)) is not None:
        return wrong
    before = finished_units(job.prefixes[0])
    Path("encoded.txt").unlink(missing_ok=True)
    status = run_command(job.arguments, job.inputs, hook=lambda: apply_control(job.control))
    if status != 0:
        return f"the second run ended with {status}: {Path('stderr.txt').read_text()[-800:]}"
    if outputs(job.prefixes) != new:
        return "the second run left other bytes than an undisturbed one"
    if redone := before & set(encoded_units()):
        return f"the second run redid finished units: {sorted(redone)}"
    if left := leftovers():
        return f"the second run left {left}"
    return None


def load_for(action: Callable[[], int | None]) -> int:
    """Load what an action loads once, before the forks: it would be most of the time of each.

    The action is done in a forked process, in the current directory.

    Returns:
        Its exit status.
    """

    def listing() -> int | None:
        try:
            return action()
        finally:
            Path("modules.txt").write_text("\n".join(sys.modules))

    status = in_child(listing)
    for module in Path("modules.txt").read_text().split():
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    if threading.active_count() > 1:
        raise RuntimeError("there are threads, which do not survive a fork")
    return status


def run(job: Job) -> dict[str, Any]:
    """Run the campaign; return how many points were tried and the failures."""
    fresh(job)
    old = outputs(job.prefixes) if job.prepare else None
    if load_for(lambda: command(job.arguments, job.inputs, failing_hook(job, 0))) != 0:
        raise RuntimeError(Path("stderr.txt").read_text())
    new = outputs(job.prefixes)
    return try_points(job, lambda k: try_point(job, k, new, old))


def try_points(job: Any, attempt: Callable[[int], str | None]) -> dict[str, Any]:
    """Fail at each of the calls that were counted; return how many were tried and the failures.

    Args:
        job: The job of any campaign: it has ``step``, ``stop_at_failure`` and ``workdir``, which is removed.
        attempt: Fails at one call, and says what is wrong then, or None.
    """
    total = int(Path("count.txt").read_text())
    failures = {}
    points = range(1, total + 1, job.step)
    # One failure is found soonest from the end: that is where things are published.
    for k in reversed(points) if job.stop_at_failure else points:
        if (wrong := attempt(k)) is not None:
            failures[k] = wrong
            if job.stop_at_failure:
                break
    os.chdir("/")
    shutil.rmtree(job.workdir, ignore_errors=True)
    return {"calls": total, "points": len(points), "failures": failures}


if __name__ == "__main__":
    print(json.dumps(run(Job(**json.loads(sys.argv[1])))))
