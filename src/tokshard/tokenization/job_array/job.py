"""A run that the tasks of a job array share: each encodes its units, and the last puts all together.

All tasks hold the writer lock together; whoever makes the plan, assembles or publishes holds it alone.
A task gives the lock up before it looks whether everything is finished. So the one that gives it up last
sees all parts, and nobody who is still at work stands in its way: somebody always puts them together.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from tokshard.core.progress import Progress, SilentProgress
from tokshard.dataset.build_run import BuildResult, recover
from tokshard.errors import LockedError, UsageError
from tokshard.storage.lock import Holder, holder_of
from tokshard.tokenization.job import make_report
from tokshard.tokenization.job_array.finishing import (
    CHECKING,
    finish,
    finished_output,
    is_begun,
    waits_for_upload,
)
from tokshard.tokenization.job_array.report import ArrayReport, ArrayState
from tokshard.tokenization.job_array.share import Share
from tokshard.tokenization.job_array.survey import Survey
from tokshard.tokenization.job_array.task import ArrayTask
from tokshard.tokenization.preparation import TokenizeJob, prepare
from tokshard.tokenization.report import TokenizeReport
from tokshard.tokenization.workers.executor import Executor
from tokshard.tokenization.workspace import Workspace

_LOOK_AGAIN_SECONDS = 0.1
_LOOKS_IN_SILENCE = 30


def tokenize_share(
    inputs: str | Sequence[str],
    output: str | None = None,
    *,
    task: ArrayTask,
    finish: bool = True,
    executor: Executor | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> ArrayReport:
    """Encode one task's share of the units into the work directory that all tasks of a job array share.

    Which units are a task's depends on the inputs and the number of tasks alone. Finished units are
    never encoded again, whoever has made them, so the number of tasks may change from one try to the
    next, and a task that was killed is simply run again. The bytes are those of
    :func:`tokshard.tokenize_corpus`.

    Args:
        inputs: As of :func:`tokshard.tokenize_corpus`; none of them a pipe.
        output: Path prefix of the output, on a file system that all tasks see.
        task: Which task this is.
        finish: Whether the task that finds all units finished puts the output together.
        executor: Where to encode; by default worker processes, or this process for a small share.
        progress: Who is told of the progress.
        **options: As of :func:`tokshard.tokenize_corpus`, without ``resume``. ``force`` replaces an
            output, or the unfinished work, of another plan.

    Returns:
        What was done.

    Raises:
        TokshardError: As :func:`tokshard.tokenize_corpus`. What other tasks have finished is kept.
        UnfinishedError: All units seemed finished, but a part is damaged.
    """
    attempt = _Attempt(prepare(inputs, output, options), task, progress or SilentProgress())
    return attempt.run(executor, finish=finish)


def finish_tokenization(
    inputs: str | Sequence[str],
    output: str | None = None,
    *,
    tasks: int | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> TokenizeReport:
    """Put together what the tasks of a job array have encoded; see :func:`tokenize_share`.

    Args:
        inputs: As of :func:`tokenize_share`.
        output: As of :func:`tokenize_share`.
        tasks: How many tasks the array had, so that those to run again can be named.
        progress: Who is told of the progress.
        **options: As of :func:`tokenize_share`.

    Returns:
        What was written.

    Raises:
        UnfinishedError: A unit has no finished part; the error says which.
        LockedError: Tasks are at work, or another process writes this output.
        TokshardError: As :func:`tokshard.tokenize_corpus`.
    """
    started = time.monotonic()
    job = _shareable(prepare(inputs, output, options))
    return make_report(job, finish(job, tasks, progress or SilentProgress()), started)


def _shareable(job: TokenizeJob) -> TokenizeJob:
    if not job.repeatable:
        raise UsageError(
            "a pipe can be read once, by one process: its units cannot be dealt to tasks",
            hint="write it to a file that all tasks see",
        )
    if not job.options.resume:
        raise UsageError(
            "--no-resume would throw away what other tasks have finished",
            hint="leave it out; --force starts over if the unfinished run was another one",
        )
    if job.delivery is not None and job.options.staging is None:
        raise UsageError(
            f"the tasks need a common place to make {job.delivery.url} in before it is uploaded",
            hint="name a directory that all of them see: --staging DIR",
        )
    return job


class _Attempt:
    """One try of one task."""

    def __init__(self, job: TokenizeJob, task: ArrayTask, progress: Progress) -> None:
        self._started = time.monotonic()
        self._job = _shareable(job)
        self._task = task
        self._progress = progress
        self._workspace = Workspace(job.prefix)
        self._seen: Holder | None = None
        self._looks = 0

    def run(self, executor: Executor | None, *, finish: bool) -> ArrayReport:
        share = None
        while share is None and not waits_for_upload(self._job):
            if not self._workspace.has_leftovers() and (done := finished_output(self._job)) is not None:
                return self._report("up-to-date", produced=done)
            try:
                share = self._encode(executor)
                if share is None:
                    self._begin()
            except LockedError as error:
                if (holder := self._who_does_all(error)) is not None:
                    return self._report("elsewhere", holder=holder)
                time.sleep(_LOOK_AGAIN_SECONDS)
        produced = self._publish(share) if finish else None
        state: ArrayState = "encoded" if produced is None else "published"
        return self._report(state, share=share, produced=produced)

    def _encode(self, executor: Executor | None) -> Share | None:
        """Encode the share; None if there is no plan to go by yet, or one that is to be replaced."""
        with self._job.locked(shared=True, purpose=f"task {self._task}"):
            earlier = self._workspace.earlier_plan()
            if earlier is None or not self._job.build_spec.may_resume(earlier):
                return None
            share = Share(self._job, self._workspace, self._task, self._progress)
            share.encode(executor)
            return share

    def _begin(self) -> None:
        """Write the plan, or publish what waits for it, unless the output was made meanwhile."""
        with self._job.locked(purpose=CHECKING):
            there = waits_for_upload(self._job) or finished_output(self._job) is not None
            if is_begun(self._workspace) or not there:
                recover(self._job.build_spec, self._workspace)

    def _who_does_all(self, error: LockedError) -> str | None:
        """Look at who stands in the way: None to try again, or the process that does what is left to do.

        Raises:
            LockedError: It does something else.
        """
        holder = holder_of(self._workspace.lock)
        self._looks = self._looks + 1 if holder == self._seen else 0
        self._seen = holder
        # The text of a lock may be that of an earlier holder for a moment.
        if holder is None or self._looks == 0:
            return None
        if self._looks == _LOOKS_IN_SILENCE:
            self._progress.message(f"waiting for {holder.process}, which looks at what is finished")
        earlier = self._workspace.earlier_plan()
        if earlier is not None and earlier.differences(self._job.plan):
            raise error
        return None if holder.shared or holder.purpose == CHECKING or earlier is None else holder.process

    def _publish(self, share: Share | None) -> BuildResult | None:
        """Put the output together if every unit is finished and nobody else is at it."""
        if share is not None and not Survey(self._job, self._workspace).is_complete():
            return None
        try:
            produced = finish(self._job, self._task.count, self._progress, is_complete=True)
        except LockedError:
            return None
        return None if produced.up_to_date else produced  # somebody was quicker

    def _report(
        self,
        state: ArrayState,
        *,
        holder: str | None = None,
        share: Share | None = None,
        produced: BuildResult | None = None,
    ) -> ArrayReport:
        return ArrayReport(
            task=self._task.index,
            tasks=self._task.count,
            state=state,
            holder=holder,
            units=share.encoded_units if share else 0,
            units_resumed=share.resumed if share else 0,
            documents=share.documents if share else 0,
            tokens=share.tokens if share else 0,
            result=make_report(self._job, produced, self._started) if produced else None,
            seconds=time.monotonic() - self._started,
        )
