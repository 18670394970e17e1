"""A crash campaign for index caches: a build killed, or failed, at each of its storage calls in turn.

This is a program as well as a module, because it forks: it must be a process without threads.

    python index_campaign.py '{"workdir": ..., "mode": "kill", ...}'

It builds two indexes once to count its storage calls and to learn the right bytes. Then, for each k, it
builds them in a fresh directory with the k-th call failing in the chosen way, judges what is left with
Megatron's eyes (a cache is taken for good if its files exist) and with ours, builds again, and compares.
It prints one JSON object: how many points were tried and what went wrong at which.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import campaign

sys.path.insert(0, str(Path(__file__).parent.parent))

from support.index_caches import (
    LENGTHS,
    build_requests,
    conditions,
    contents,
    entry_for,
    request_for,
    write_dataset,
)
from tokshard.errors import TokshardError

CACHE = "cache"
OLDER = LENGTHS[::-1]


@dataclass
class IndexJob:
    """What to try.

    Attributes:
        workdir: Where to make the fresh directories.
        mode: As in :class:`campaign.Job`.
        replacing: Whether an older cache of another content of the dataset is there, to be replaced.
        control: ``module:function`` that breaks the implementation before it runs, or None.
        only: Calls that count; all by default.
        step: Try every step-th call.
        stop_at_failure: Whether one failure is enough.
    """

    workdir: str
    mode: str = "kill"
    replacing: bool = False
    control: str | None = None
    only: list[str] = field(default_factory=lambda: list(campaign.WRITING_CALLS))
    step: int = 1
    stop_at_failure: bool = False

    def hooks(self) -> campaign.Job:
        return campaign.Job("", [], "", [], mode=self.mode, control=self.control, only=self.only)


def requests() -> list[Any]:
    return [request_for("web", split_name=name) for name in ("train", "valid")]


Child = Callable[[Callable[[], int]], int]


def build(job: IndexJob, hook: Callable[[], None] | None = None, child: Child = campaign.in_child) -> int:
    """Build the indexes in a forked process; return its exit status."""

    def action() -> int:
        if hook:
            hook()
        try:
            build_requests(requests(), cache_directory=CACHE, workers=1, rebuild=job.replacing)
        except TokshardError as error:
            print(error, file=sys.stderr)
            return error.exit_code
        return 0

    return child(action)


def fresh(job: IndexJob) -> None:
    """Begin in an empty directory, with a cache of other lengths if it is to be replaced."""
    shutil.rmtree(job.workdir, ignore_errors=True)
    os.makedirs(job.workdir)
    os.chdir(job.workdir)
    if job.replacing:
        write_dataset("./web", OLDER)
        if build(job) != 0:
            raise RuntimeError(Path("stderr.txt").read_text())
    write_dataset("./web", LENGTHS)


def cached() -> dict[str, bytes]:
    return contents(CACHE) if os.path.isdir(CACHE) else {}


def judge(job: IndexJob, new: dict[str, bytes], old: dict[str, bytes]) -> str | None:
    """Say what is wrong with what a crash left; None if every entry is absent, old and whole, or new."""
    found = cached()
    for request in requests():
        files = [os.path.basename(path) for path in entry_for(request, CACHE).megatron_files]
        if all(name in found for name in files):
            whole = [{name: cache_files.get(name) for name in files} for cache_files in (new, old)]
            if {name: found[name] for name in files} not in whole:
                return f"{request.split_name}: all of Megatron's files are there and do not belong together"
    allowed = {"fresh", "missing"} | ({"stale"} if job.replacing else set())
    states = list(conditions(requests(), cache_directory=CACHE).values())
    return None if set(states) <= allowed else f"the states are {states}"


def try_point(job: IndexJob, k: int, new: dict[str, bytes], old: dict[str, bytes]) -> str | None:
    """Fail the k-th call, judge, build again, compare; return what is wrong, or None."""
    fresh(job)
    status = build(job, campaign.failing_hook(job.hooks(), k))
    expected = {"kill": -signal.SIGKILL, "half": -signal.SIGKILL}.get(job.mode, 7)
    if status != expected:
        return f"exit status {status}: {Path('stderr.txt').read_text()[-800:]}"
    if (wrong := judge(job, new, old)) is not None:
        return wrong
    if (status := build(job, lambda: campaign.apply_control(job.control))) != 0:
        return f"the second build ended with {status}: {Path('stderr.txt').read_text()[-800:]}"
    if (found := cached()) != new:
        return f"the second build left other files: {sorted(set(found.items()) ^ set(new.items()))}"
    return None


def run(job: IndexJob) -> dict[str, Any]:
    """Run the campaign; return how many points were tried and the failures."""
    fresh(job)
    old = cached()
    if build(job, campaign.failing_hook(job.hooks(), 0), campaign.load_for) != 0:
        raise RuntimeError(Path("stderr.txt").read_text())
    new = cached()
    return campaign.try_points(job, lambda k: try_point(job, k, new, old))


if __name__ == "__main__":
    print(json.dumps(run(IndexJob(**json.loads(sys.argv[1])))))
