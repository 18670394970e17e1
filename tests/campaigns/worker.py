"""A process that does some of the cases of a class: ``python -m campaigns.worker '{"class": ...}'``.

It prints its counts as one JSON object.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from campaigns import calls
from campaigns.classes import CLASSES
from campaigns.tally import Campaign, Place, Tally
from faults import children

_MOST_FAILURES = 50
_FEWEST_CASES = 3  # of each process, however short its time


@dataclass(frozen=True)
class Job:
    """What a process does.

    Attributes:
        name: The class.
        worker: The number of this process, of ``workers``.
        seconds: How long; the cases that are under way are finished.
        goal: How many things are tried at most.
        case: The only case, or None for all.
        directory: Where directories may be made.
        tokenizers, texts: As in :class:`campaigns.tally.Place`.
    """

    name: str
    seed: int
    worker: int
    workers: int
    seconds: float
    goal: int
    case: str | None
    directory: str
    tokenizers: str | None
    texts: str | None


def environment(name: str, directory: Path) -> dict[str, str]:
    """Return the environment in which a process of a class must start."""
    tests = Path(__file__).parents[1]
    path = [str(tests), *filter(None, [os.environ.get("PYTHONPATH")])]
    library = calls.environment_with_library(directory) if CLASSES[name].needs_library else {}
    return {**os.environ, **library, "PYTHONPATH": os.pathsep.join(path)}


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    children.set_environment()
    directory = Path(tempfile.mkdtemp(prefix=f"{job.name}-", dir=job.directory))
    for name in ("files", "logs"):
        (directory / name).mkdir()
    place = Place(directory / "files", directory / "logs", job.tokenizers, job.texts)
    tally = Tally()
    start = time.monotonic()
    answer = os.dup(1)
    os.dup2(2, 1)  # what libraries and modules of the tests print is not the answer
    try:
        do(job, place, tally, start)
    except Exception:  # what was counted until then is worth knowing
        tally.failures.append({"case": "", "reason": traceback.format_exc()})
    tally.seconds = time.monotonic() - start
    with open(answer, "w", encoding="utf-8") as file:
        json.dump(tally.to_json(), file)


def do(job: Job, place: Place, tally: Tally, start: float) -> None:
    """Do the control experiments (the first process alone) and the cases."""
    campaign = CLASSES[job.name].campaign()(place)
    if job.case is not None:
        attempt(campaign, job.case, tally)
        return
    if job.worker == 0:
        tally.controls |= dict(campaign.controls())
    for number, case in enumerate(campaign.cases(job.seed, job.worker, job.workers)):
        late = number >= _FEWEST_CASES and time.monotonic() - start > job.seconds
        if (
            late
            or (number >= _FEWEST_CASES and tally.cases >= job.goal)
            or len(tally.failures) >= _MOST_FAILURES
        ):
            break
        attempt(campaign, case, tally)


def attempt(campaign: Campaign, case: str, tally: Tally) -> None:
    try:
        result: Any = campaign.run(case)
    except Exception:
        tally.cases += 1
        tally.outcomes["the campaign failed"] += 1
        tally.failures.append({"case": case, "reason": traceback.format_exc()})
        return
    tally.cases += result.count
    tally.outcomes += result.outcomes
    if result.failure is not None:
        tally.failures.append({"case": case, "reason": result.failure})


if __name__ == "__main__":
    main()
