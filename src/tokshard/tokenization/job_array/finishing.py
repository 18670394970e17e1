"""Putting together what the tasks of a job array have encoded, once nothing lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tokshard.core.progress import Progress
from tokshard.dataset.build_run import BuildResult, BuildRun
from tokshard.dataset.publication import is_sealed
from tokshard.errors import UnfinishedError
from tokshard.tokenization.encoded_unit import Placements
from tokshard.tokenization.encoder import EncodingSpec
from tokshard.tokenization.encoding import encode_missing
from tokshard.tokenization.job_array.shares import Deal
from tokshard.tokenization.job_array.survey import Lack, Survey
from tokshard.tokenization.preparation import TokenizeJob
from tokshard.tokenization.workers.executor import Events
from tokshard.tokenization.workers.feed import Feed
from tokshard.tokenization.workspace import Workspace

CHECKING = "checking"
"""What the holder of a lock does who may still find that there is work for others."""

_ASSEMBLING = "assembling"
_SHOWN = 20


def finished_output(job: TokenizeJob) -> BuildResult | None:
    """Return the output if it is at its place, made by an equal plan. Unlike elsewhere, ``force`` spares it.

    A task that comes late must not take what the others have just published for something to replace.
    """
    return job.build_spec.finished(job.build_spec.destinations)


def waits_for_upload(job: TokenizeJob) -> bool:
    """Tell whether the output has been put together, and lies where it is staged for a store."""
    return job.delivery is not None and job.build_spec.finished(job.build_spec.prefixes) is not None


def is_begun(workspace: Workspace) -> bool:
    """Tell whether there is unfinished work, be it only to be published."""
    return workspace.earlier_plan() is not None or is_sealed(workspace.directory)


def finish(
    job: TokenizeJob, tasks: int | None, progress: Progress, *, is_complete: bool = False
) -> BuildResult:
    """Put the outputs together and publish them.

    Args:
        job: The run.
        tasks: How many tasks the array had, to name those to run again; None if that is not known.
        progress: Who is told of the progress.
        is_complete: Whether it has been seen already that every unit has a part.

    Raises:
        UnfinishedError: A unit has no finished part.
        ResumeMismatchError: The unfinished run was started with another plan.
        LockedError: Another process is at work on the output.
    """
    workspace = Workspace(job.prefix)
    if not workspace.has_leftovers() and (done := finished_output(job)) is not None:
        return done
    with job.locked(purpose=CHECKING) as locks:
        if not is_begun(workspace) and (done := finished_output(job)) is not None:
            return done
        _check_plan(job, workspace)
        if not is_complete and not is_sealed(workspace.directory) and is_begun(workspace):
            _check_finished(job, workspace, tasks)
        for lock in locks:
            lock.turn_to(_ASSEMBLING)
        nobody = _Nobody(lambda: _check_finished(job, workspace, tasks))
        with BuildRun(job.build_spec, workspace) as run:
            built = run.recover()
            if built is None:
                built = run.publish(encode_missing(job, workspace, nobody, progress))
            return run.deliver(built, progress)


def _check_plan(job: TokenizeJob, workspace: Workspace) -> None:
    """Check that there is work of the same plan.

    Raises:
        UnfinishedError: There is none.
        ResumeMismatchError: It was started with another plan.
    """
    earlier = workspace.earlier_plan()
    if earlier is not None:
        replace(job.build_spec, force=False).may_resume(earlier)
    elif not is_sealed(workspace.directory) and not waits_for_upload(job):
        raise UnfinishedError(
            f"no task has begun to make {job.build_spec.destinations[0]}: there is no {workspace.directory}",
            hint="run the tasks first, with the same inputs and options and --array-task I/N",
        )


class _Nobody:
    """An executor that encodes nothing: it is asked only if a part has turned out to be damaged."""

    def __init__(self, complain: Callable[[], None]) -> None:
        self._complain = complain

    def run(
        self,
        spec: EncodingSpec,  # noqa: ARG002 - the signature of executors
        parts_directory: str,  # noqa: ARG002
        feed: Feed,  # noqa: ARG002
        placements: Placements | None,  # noqa: ARG002
    ) -> Events:
        self._complain()
        yield from ()


def _check_finished(job: TokenizeJob, workspace: Workspace, tasks: int | None) -> None:
    """Check that every unit has a part.

    Raises:
        UnfinishedError: One has none.
    """
    lacks = list(Survey(job, workspace).lacks(read_footers=True))
    if not lacks:
        return
    again = None
    hint = "run the tasks again, all of them or any number; --tasks N says which of N are concerned"
    if tasks is not None:
        deal = Deal(job.files, tasks, job.options.unit_bytes)
        again = tuple(sorted(set[int]().union(*(lack.tasks(deal) for lack in lacks))))
        hint = f"run task {_numbers(again)} of {tasks} again, then --finish"
    missing = tuple(
        {"input": lack.path, "units": list(lack.units), "open_from": lack.open_from} for lack in lacks
    )
    raise UnfinishedError(_described(lacks), missing=missing, tasks=again, hint=hint)


def _described(lacks: Sequence[Lack]) -> str:
    """Say what lacks in one sentence, which names no more than some of it."""
    count = sum(len(lack.units) for lack in lacks)
    least = "at least " if any(lack.open_from is not None for lack in lacks) else ""
    left = _SHOWN
    places = []
    for lack in lacks:
        runs = [str(first) if first == last else f"{first} to {last}" for first, last in _runs(lack.units)]
        if lack.open_from is not None:
            runs.append(f"whatever comes from {lack.open_from} on")
        if left <= 0:
            places.append("and more")
            break
        more = " and more" if len(runs) > left else ""
        places.append(f"{', '.join(runs[:left])}{more} of {lack.path}")
        left -= len(runs)
    return f"{least}{max(count, 1)} of the units lack a finished part: {'; '.join(places)}"


def _numbers(tasks: Sequence[int]) -> str:
    """Return numbers of tasks as Slurm takes them.

    Example:
        >>> _numbers([0, 3, 4, 5])
        '0,3-5'
    """
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in _runs(tasks))


def _runs(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and last of each run of consecutive numbers."""
    first = previous = None
    for number in numbers:
        if first is None or previous is None:
            first = number
        elif number != previous + 1:
            yield first, previous
            first = number
        previous = number
    if first is not None and previous is not None:
        yield first, previous
