"""A crash campaign for plans: one is written, killed or failed at each of its storage calls in turn.

This is a program as well as a module, because it forks: it must be a process without threads.

    python plan_campaign.py '{"workdir": ..., "mode": "kill", ...}'

It makes a blend and a plan of it once, and writes the plan that is tried once, to count its storage calls
and to learn the right bytes. Then, for each k, it writes that plan in a fresh directory with the k-th call
failing in the chosen way, looks at what is left as a loader and ``verify`` do, writes it again, and
compares. It prints one JSON object: how many points were tried and what went wrong at which.
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

from support.replanned_plans import continued, write_blend
from tokshard.checks.commands.verify import verify
from tokshard.checks.verify.options import VerifyOptions
from tokshard.errors import MissingFileError, TokshardError
from tokshard.ranks.discovery import RequestedSamples, open_sources
from tokshard.ranks.options import ShardPlanOptions
from tokshard.ranks.plan import Plan, read_plan
from tokshard.ranks.planning import plan_shards
from tokshard.ranks.publication import LOCK_NAME, write_plan
from tokshard.ranks.ranks import read_rank

OUTPUT = "new"
RANKS = 4


@dataclass
class PlanJob:
    """What to try.

    Attributes:
        workdir: Where to make the directories.
        mode: As in :class:`campaign.Job`.
        kind: ``"plan"``; ``"replan"``, in another world; or ``"reweighted"``, with another blend.
        replacing: Whether an older plan of more ranks is there, to be replaced.
        control: ``module:function`` that breaks the implementation before it runs, or None.
        only: Calls that count; all by default.
        step: Try every step-th call.
        stop_at_failure: Whether one failure is enough.
    """

    workdir: str
    mode: str = "kill"
    kind: str = "plan"
    replacing: bool = False
    control: str | None = None
    only: list[str] = field(default_factory=lambda: list(campaign.WRITING_CALLS))
    step: int = 1
    stop_at_failure: bool = False

    def hooks(self) -> campaign.Job:
        return campaign.Job("", [], "", [], mode=self.mode, control=self.control, only=self.only)


def planned(ranks: int) -> Plan:
    options = ShardPlanOptions(sources=("../mix",), output="plan", world_size=ranks, global_batch_size=8)
    return plan_shards(open_sources(["../mix"], RequestedSamples()), options)


def make(job: PlanJob) -> None:
    """Plan what the job wants, and write it."""
    if job.kind == "plan":
        plan = planned(RANKS)
    else:
        blend = "0.2 ../web 0.8 ../code" if job.kind == "reweighted" else None
        plan = continued(read_plan("../old"), 40, RANKS // 2, output=OUTPUT, blend=blend)
    write_plan(plan, OUTPUT, force=job.replacing)


Child = Callable[[Callable[[], int]], int]


def written(job: PlanJob, hook: Callable[[], None], child: Child = campaign.in_child) -> int:
    """Write the plan in a forked process; return its exit status."""

    def action() -> int:
        hook()
        try:
            make(job)
        except TokshardError as error:
            print(error, file=sys.stderr)
            return error.exit_code
        return 0

    return child(action)


def prepare(job: PlanJob) -> None:
    """Make the datasets, their blend, and a plan to go on from or to replace."""
    shutil.rmtree(job.workdir, ignore_errors=True)
    os.makedirs(job.workdir)
    os.chdir(job.workdir)
    tokens = {"web": 700, "code": 400}
    write_blend(Path(), {"web": 0.7, "code": 0.3}, 100, tokens=tokens, name="mix")
    os.mkdir("here")
    os.chdir("here")
    write_plan(planned(RANKS), "../old")


def fresh(job: PlanJob) -> None:
    shutil.rmtree("../here")
    os.mkdir("../here")
    os.chdir("../here")
    if job.replacing:
        write_plan(planned(2 * RANKS), OUTPUT)


def contents() -> dict[str, bytes]:
    """Return all files of the output but the lock."""
    if not os.path.isdir(OUTPUT):
        return {}
    return {path.name: path.read_bytes() for path in Path(OUTPUT).iterdir() if path.name != LOCK_NAME}


def judge(new: dict[str, bytes], old: dict[str, bytes]) -> str | None:
    """Say what is wrong with what a crash left; None if it is no plan, the old one, or the new one."""
    found = contents()
    if "plan.json" not in found:
        for rank in range(2 * RANKS):
            try:
                read_rank(os.path.join(OUTPUT, f"rank-{rank:05d}.json"))
            except MissingFileError:
                continue
            return f"rank {rank} can be read, and there is no plan"
        return None
    for whole in (new, old):
        if whole and {name: found.get(name) for name in whole} == whole:
            findings = verify(VerifyOptions(path=OUTPUT, workers=1)).findings
            return f"verify finds {findings}" if any(finding.is_problem for finding in findings) else None
    return f"there is a plan, but neither the old nor the new one: {sorted(found)}"


def try_point(job: PlanJob, k: int, new: dict[str, bytes], old: dict[str, bytes]) -> str | None:
    """Fail the k-th call, judge, write again, compare; return what is wrong, or None."""
    fresh(job)
    status = written(job, campaign.failing_hook(job.hooks(), k))
    expected = {"kill": -signal.SIGKILL, "half": -signal.SIGKILL}.get(job.mode, 7)
    if status != expected:
        return f"exit status {status}: {Path('stderr.txt').read_text()[-800:]}"
    if (wrong := judge(new, old)) is not None:
        return wrong
    if (status := written(job, lambda: campaign.apply_control(job.control))) != 0:
        return f"the second run ended with {status}: {Path('stderr.txt').read_text()[-800:]}"
    if (found := contents()) != new:
        return f"the second run left other files: {sorted(set(found.items()) ^ set(new.items()))}"
    return None


def run(job: PlanJob) -> dict[str, Any]:
    """Run the campaign; return how many points were tried and the failures."""
    prepare(job)
    fresh(job)
    old = contents()
    if written(job, campaign.failing_hook(job.hooks(), 0), campaign.load_for) != 0:
        raise RuntimeError(Path("stderr.txt").read_text())
    new = contents()
    return campaign.try_points(job, lambda k: try_point(job, k, new, old))


if __name__ == "__main__":
    print(json.dumps(run(PlanJob(**json.loads(sys.argv[1])))))
