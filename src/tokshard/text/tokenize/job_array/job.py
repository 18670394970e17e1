"""A tokenize run that the tasks of a job array share: each encodes its units, and the last one assembles.

All tasks hold the writer lock together; whoever makes the plan, assembles or publishes holds it alone.
A task releases the lock before it looks whether everything is finished. So the task that releases it last
sees all parts, and nobody who is still at work stands in its way: one of them always assembles the output.

Without locks (``lock="none"``) tasks cannot tell who is last, nor remove what others may be using: a work
directory appears with its plan in one rename, tasks only add parts to it, and a later run assembles them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

from tokshard.core.formatting import consecutive, counted
from tokshard.core.progress import Progress, reporting
from tokshard.dataset.build_run import BuildResult, BuildRun, recover
from tokshard.dataset.workdir import is_sealed
from tokshard.errors import LockedError, OutputExistsError, StorageError, UnfinishedError, UsageError
from tokshard.storage.lock import Holder, holder_of, lock_mode
from tokshard.text.tokenize.discovery import discover_inputs
from tokshard.text.tokenize.job import TokenizeJob, Workspace, prepare_job
from tokshard.text.tokenize.job_array.options import ArrayTask, refuse_limits
from tokshard.text.tokenize.job_array.shards import MissingUnits, TaskShard, UnitAssignment, WorkStatus
from tokshard.text.tokenize.options import TokenizeOptions
from tokshard.text.tokenize.report import ArrayTaskReport, ArrayTaskState, TokenizeReport
from tokshard.text.tokenize.run import encode_and_stage, make_report
from tokshard.text.tokenize.workers.executor import Events, Executor

_LOOK_AGAIN_SECONDS = 0.1
_LOOKS_IN_SILENCE = 30
# The purposes of a lock. Who checks may still find that there is work for others.
_CHECKING = "checking"
_ASSEMBLING = "assembling"
_SHOWN = 20


def tokenize_array_task(
    options: TokenizeOptions,
    task: ArrayTask,
    *,
    finish: bool = True,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> ArrayTaskReport:
    """Encode one task's shard of the units into the work directory that all tasks of a job array share.

    Which units are a task's depends on the inputs and the number of tasks alone. Finished units are
    never encoded again, whoever has made them, so the number of tasks may change from one try to the
    next, and a task that was killed is simply run again. The bytes are those of
    :func:`tokshard.tokenize`.

    Args:
        options: The options, equal for all tasks; no input is a pipe, the output is on a file system that
            all tasks see, and ``resume`` is True. ``force`` replaces an output that was made from other
            inputs or options.
        task: The task.
        finish: Whether the task that finds all units finished assembles and publishes the output. With
            ``lock="none"`` no task does, see :func:`finish_tokenize`.
        executor: The executor; by default worker processes, or this process for a small shard.
        progress: Gets the progress.

    Raises:
        TokshardError: See :func:`tokshard.tokenize`. What other tasks have finished is kept.
        UnfinishedError: All units seemed finished, but a part is damaged.
    """
    refuse_limits(options)
    with lock_mode(options.lock), reporting(progress) as listener:
        job = _shareable_job(options, listener)
        return _Attempt(job, task, listener).run(executor, finish=finish)


def finish_tokenize(
    options: TokenizeOptions, *, tasks: int | None = None, progress: Progress | None = None
) -> TokenizeReport:
    """Assemble and publish what the tasks of a job array have encoded; see :func:`tokenize_array_task`.

    Args:
        options: The options of the tasks.
        tasks: Number of tasks of the array, so that the error names those to run again.
        progress: Gets the progress.

    Raises:
        UnfinishedError: A unit has no finished part; the error names it.
        LockedError: Tasks are at work, or another process writes this output.
        TokshardError: See :func:`tokshard.tokenize`.
    """
    started = time.monotonic()
    with lock_mode(options.lock), reporting(progress) as listener:
        job = _shareable_job(options, listener)
        return make_report(job, _finish(job, tasks, listener), started)


def _shareable_job(options: TokenizeOptions, progress: Progress) -> TokenizeJob:
    progress.start("scanning inputs")
    inputs = discover_inputs(options, progress.message)
    progress.start("loading the tokenizer")
    job = prepare_job(options, *inputs)
    progress.start("checking earlier work")
    if not job.plan.is_repeatable:
        raise UsageError(
            "a pipe can be read only once, by one process: its units cannot be assigned to tasks",
            hint="write it to a file that all tasks can read",
        )
    if not options.resume:
        raise UsageError(
            "--no-resume would remove the finished units of other tasks",
            hint="omit --no-resume: units of other inputs or options are not reused",
        )
    if job.delivery is not None and options.local_dir is None:
        raise UsageError(
            f"the tasks require a shared directory in which {job.delivery.url} is built before its upload",
            hint="pass --local-dir DIR, a directory that all tasks share",
        )
    return job


class _Attempt:
    def __init__(self, job: TokenizeJob, task: ArrayTask, progress: Progress) -> None:
        self._started = time.monotonic()
        self._job = job
        self._task = task
        self._progress = progress
        self._workspace = job.workspace
        self._is_locked = job.options.lock != "none"
        self._seen: Holder | None = None
        self._looks = 0

    def run(self, executor: Executor | None, *, finish: bool) -> ArrayTaskReport:
        try:
            return self._run(executor, finish=finish)
        except BaseException:
            if not self._is_locked:
                raise
            # What no task has finished a unit of is removed, unless other tasks are at work.
            with suppress(LockedError, StorageError), self._job.locked(purpose=_CHECKING):
                if self._workspace.earlier_plan() == self._job.plan:
                    self._workspace.remove_unless_finished_work()
            raise

    def _run(self, executor: Executor | None, *, finish: bool) -> ArrayTaskReport:
        shard = None
        while shard is None and not _waits_for_upload(self._job):
            if not self._workspace.has_leftovers() and (done := _finished_output(self._job)) is not None:
                return self._report("up-to-date", produced=done)
            try:
                shard = self._encode(executor)
                if shard is None:
                    self._begin()
            except LockedError as error:
                if (holder := self._who_does_all(error)) is not None:
                    return self._report("elsewhere", holder=holder)
                time.sleep(_LOOK_AGAIN_SECONDS)
        produced = self._publish(shard) if finish and self._is_locked else None
        state: ArrayTaskState = "encoded" if produced is None else "published"
        return self._report(state, shard=shard, produced=produced)

    def _encode(self, executor: Executor | None) -> TaskShard | None:
        # None if this plan is not begun, or another one is the current one.
        with self._job.locked(shared=True, purpose=f"task {self._task}"):
            if self._workspace.earlier_plan() != self._job.plan:
                return None
            shard = TaskShard(self._job, self._task, self._progress)
            shard.encode(executor)
            return shard

    def _begin(self) -> None:
        if not self._is_locked:
            self._begin_together()
            return
        with self._job.locked(purpose=_CHECKING):
            there = _waits_for_upload(self._job) or _finished_output(self._job) is not None
            if _is_begun(self._workspace) or self._workspace.kept() or not there:
                recover(self._job.build, self._workspace)

    def _begin_together(self) -> None:
        job = self._job
        job.build.refuse_existing(job.build.destinations)
        if not self._workspace.begin_together(job.plan):
            raise OutputExistsError(
                f"{self._workspace.directory} contains unfinished work of other inputs or options, and "
                "without locks a task cannot tell whether another task is using it",
                hint="run the command of the tasks once with --discard-work instead of --array-task",
            )

    def _who_does_all(self, error: LockedError) -> str | None:
        # None means: try again.
        holder = holder_of(self._workspace.lock)
        self._looks = self._looks + 1 if holder == self._seen else 0
        self._seen = holder
        # The text of a lock may be that of an earlier holder for a moment.
        if holder is None or self._looks == 0:
            return None
        if self._looks == _LOOKS_IN_SILENCE:
            self._progress.message(f"waiting for {holder.process}, which checks the finished units")
        earlier = self._workspace.earlier_plan()
        if earlier is not None and earlier != self._job.plan:
            raise error
        return None if holder.shared or holder.purpose == _CHECKING or earlier is None else holder.process

    def _publish(self, shard: TaskShard | None) -> BuildResult | None:
        if shard is not None and not WorkStatus(self._job).is_complete():
            return None
        try:
            produced = _finish(self._job, self._task.count, self._progress, is_complete=True)
        except LockedError:
            return None
        return None if produced.up_to_date else produced  # another task published first

    def _report(
        self,
        state: ArrayTaskState,
        *,
        holder: str | None = None,
        shard: TaskShard | None = None,
        produced: BuildResult | None = None,
    ) -> ArrayTaskReport:
        return ArrayTaskReport(
            task=self._task.index,
            tasks=self._task.count,
            state=state,
            holder=holder,
            units=shard.encoded_units if shard else 0,
            units_reused=shard.resumed if shard else 0,
            documents=shard.documents if shard else 0,
            tokens=shard.tokens if shard else 0,
            result=make_report(self._job, produced, self._started) if produced else None,
            seconds=time.monotonic() - self._started,
        )


# Assembling


def _finished_output(job: TokenizeJob) -> BuildResult | None:
    # Unlike elsewhere, `force` spares the output: a task that comes late must not replace what the others
    # have just published.
    return job.build.finished(job.build.destinations)


def _waits_for_upload(job: TokenizeJob) -> bool:
    return job.delivery is not None and job.build.finished(job.build.prefixes) is not None


def _is_begun(workspace: Workspace) -> bool:
    return workspace.earlier_plan() is not None or is_sealed(workspace.directory)


def _finish(
    job: TokenizeJob, tasks: int | None, progress: Progress, *, is_complete: bool = False
) -> BuildResult:
    workspace = job.workspace
    if not workspace.has_leftovers() and (done := _finished_output(job)) is not None:
        return done
    with job.locked(purpose=_CHECKING) as locks:
        if not _is_begun(workspace) and (done := _finished_output(job)) is not None:
            return done
        _require_tasks(job)
        # With limits, the last units may be missing.
        is_limited = job.options.has_limits
        if not is_complete and not is_limited and not is_sealed(workspace.directory) and _is_begun(workspace):
            _check_finished(job, tasks)
        for lock in locks:
            lock.turn_to(_ASSEMBLING)
        with BuildRun(job.build, workspace) as run:
            built = run.recover()
            if built is None:
                built = run.publish(encode_and_stage(job, _NoExecutor(job, tasks), progress))
            return run.deliver(built, progress)


def _require_tasks(job: TokenizeJob) -> None:
    workspace = job.workspace
    workspace.sweep()
    workspace.refuse_older()
    if is_sealed(workspace.directory) or _waits_for_upload(job) or workspace.take_up(job.plan):
        return
    message = f"no task has begun to make {job.build.destinations[0]} with these inputs and options"
    found = [
        f"the work in {workspace.sidecars} is of others: {'; '.join(map(str, plan.differences(job.plan)))}"
        for plan in workspace.earlier_plans()[:1]
    ]
    raise UnfinishedError(
        "; ".join([message, *found]),
        hint="run the tasks first, with the same inputs and options and --array-task I/N",
    )


class _NoExecutor:
    # Asked only if a part has turned out to be damaged.
    def __init__(self, job: TokenizeJob, tasks: int | None) -> None:
        self._job = job
        self._tasks = tasks

    def run(self, *_: object) -> Events:
        _check_finished(self._job, self._tasks)
        yield from ()


def _check_finished(job: TokenizeJob, tasks: int | None) -> None:
    missing = list(WorkStatus(job).missing(read_footers=True))
    if not missing:
        return
    again = None
    hint = "run the tasks again, with any number of tasks; --tasks N lists the unfinished ones of N tasks"
    if tasks is not None:
        assignment = UnitAssignment(job.files, tasks, job.options.unit_size)
        again = tuple(sorted(set[int]().union(*(units.tasks(assignment) for units in missing))))
        hint = f"run task {_numbers(again)} of {tasks} again, then --finish"
    listed = tuple(
        {"input": units.path, "units": list(units.units), "open_from": units.open_from} for units in missing
    )
    raise UnfinishedError(_described(missing), missing=listed, tasks=again, hint=hint)


def _described(missing: Sequence[MissingUnits]) -> str:
    count = sum(len(entry.units) for entry in missing)
    least = "at least " if any(entry.open_from is not None for entry in missing) else ""
    left = _SHOWN
    places = []
    for entry in missing:
        runs = [
            str(first) if first == last else f"{first} to {last}" for first, last in consecutive(entry.units)
        ]
        if entry.open_from is not None:
            runs.append(f"all from {entry.open_from} on")
        if left <= 0:
            places.append("and more")
            break
        more = " and more" if len(runs) > left else ""
        places.append(f"{', '.join(runs[:left])}{more} of {entry.path}")
        left -= len(runs)
    verb = "is" if count <= 1 else "are"
    return f"{least}{counted(max(count, 1), 'unit')} {verb} not finished: {'; '.join(places)}"


def _numbers(tasks: Sequence[int]) -> str:
    """Return numbers of tasks as Slurm takes them.

    Example:
        >>> _numbers([0, 3, 4, 5])
        '0,3-5'
    """
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in consecutive(tasks))
