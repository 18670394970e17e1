"""Job arrays: tasks encode units into one work directory, and ``--finish`` makes the dataset of them.

A task decides alone which units are its own, by the inputs and the number of tasks. All tasks share the
writer lock. Whoever begins the work, or makes the dataset, holds it alone. Tasks only add parts, so they can
run in any order and again.
"""

from __future__ import annotations

import heapq
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import closing, nullcontext
from itertools import accumulate, chain
from typing import Any, Literal

from tokshard.core.formatting import consecutive, counted, listed
from tokshard.core.progress import Progress, reporting
from tokshard.dataset.run import Run
from tokshard.errors import LockedError, UnfinishedError, UsageError
from tokshard.storage.lock import lock_mode
from tokshard.storage.paths import is_remote
from tokshard.storage.reading import iter_blocks
from tokshard.storage.scratch import scratch_directory
from tokshard.text.corpus.files import CorpusFile, check_unchanged, content_bytes
from tokshard.text.corpus.planning import plan_units
from tokshard.text.tokenize.assembly import EncodedOutputs
from tokshard.text.tokenize.discovery import discover_inputs
from tokshard.text.tokenize.job import TokenizeJob, prepare_job
from tokshard.text.tokenize.options import ArrayTask, TokenizeOptions
from tokshard.text.tokenize.part import ENCODED_CONTENT, AppendedUnit, UnitKey, appended_units, part_headers
from tokshard.text.tokenize.report import ArrayTaskReport, TokenizeReport
from tokshard.text.tokenize.run import EncodingProgress, chosen_executor, encode_and_stage, make_report
from tokshard.text.tokenize.workers.executor import Events, Executor
from tokshard.text.tokenize.workers.feed import Feed

_TRIES = 100
_PAUSE_SECONDS = 0.1
_SHOWN = 20


class TaskUnits:
    """The units of one task: of a compressed input all or none, of others every N-th.

    Compressed inputs are assigned by size, the largest first, to the task that has the least.

    Attributes:
        streams: The numbers of the inputs that only one process can read.
        own_streams: Those of the task.
    """

    def __init__(self, task: ArrayTask, files: Sequence[CorpusFile], unit_bytes: int) -> None:
        self._task = task
        sizes = [file.size_bytes or 0 for file in files]
        self.streams = {number for number, file in enumerate(files) if file.is_stream}
        self.own_streams = set()
        loads = [(0, index) for index in range(task.count)]
        for number in sorted(self.streams, key=lambda number: (-sizes[number], number)):
            load, index = heapq.heappop(loads)
            heapq.heappush(loads, (load + sizes[number], index))
            if index == task.index:
                self.own_streams.add(number)
        # The number of the first unit of each input among the units of all inputs, about.
        self._first_units = [0, *accumulate(max(1, -(-size // unit_bytes)) for size in sizes)]

    def __contains__(self, key: UnitKey) -> bool:
        if key.file in self.streams:
            return key.file in self.own_streams
        return (self._first_units[key.file] + key.index) % self._task.count == self._task.index


def tokenize_array_task(
    options: TokenizeOptions,
    task: ArrayTask,
    *,
    executor: Executor | None = None,
    progress: Progress | None = None,
) -> ArrayTaskReport:
    """Encode one task's share of the units into the work directory that all tasks of a job array share.

    Finished units are never encoded again, whoever has made them, so a task that was killed is simply run
    again, also with another number of tasks. :func:`finish_tokenize` makes the dataset, with the bytes of
    :func:`tokshard.tokenize`.

    Args:
        options: The options, equal for all tasks; no input is a pipe, and the output is on a file system that
            all tasks see.
        task: The task.
        executor: The executor; by default worker processes, or this process for a small share.
        progress: Receives the progress.

    Raises:
        TokshardError: See :func:`tokshard.tokenize`. What tasks have finished is kept.
    """
    started = time.monotonic()
    with lock_mode(options.lock), reporting(progress) as listener:
        job = _shareable_job(options, listener)
        run = job.run()
        tries_left = _TRIES
        while True:
            if not os.path.lexists(run.directory) and job.outputs.finished() is not None:
                return _report(task, "up-to-date", started)
            try:
                with job.outputs.locked(shared=True):
                    if run.is_continued(run.earlier_job()):
                        encoding = _TaskEncoding(job, run, task, listener)
                        encoding.encode(executor)
                        return _report(task, "encoded", started, encoding)
                if _begin(job, run):
                    return _report(task, "up-to-date", started)
            except LockedError:
                tries_left -= 1
                if not tries_left:
                    raise
                time.sleep(_PAUSE_SECONDS)


def _begin(job: TokenizeJob, run: Run[AppendedUnit]) -> bool:
    """Make the work directory, unless the outputs exist already: then return True."""
    if job.options.lock == "none":  # another task may do the same
        job.outputs.refuse_existing()
        run.begin_shared(job.count_finished)
        return False
    with job.outputs.locked():
        if run.recover() is not None:
            return True
        run.begin(job.count_finished)
        return False


def finish_tokenize(options: TokenizeOptions, *, progress: Progress | None = None) -> TokenizeReport:
    """Make the dataset of what the tasks of a job array have encoded; see :func:`tokenize_array_task`.

    Args:
        options: The options of the tasks.
        progress: Receives the progress.

    Raises:
        UnfinishedError: A unit has no finished part; the error names it.
        LockedError: Tasks are at work, or another process writes this output.
        TokshardError: See :func:`tokshard.tokenize`.
    """
    started = time.monotonic()
    with lock_mode(options.lock), reporting(progress) as listener:
        job = _shareable_job(options, listener)
        if (done := job.outputs.up_to_date()) is not None:
            return make_report(job, EncodedOutputs(done, is_found=True), started)
        with job.outputs.locked():
            run = job.run()
            if (done := run.recover()) is not None:
                return make_report(job, EncodedOutputs(done, is_found=True), started)
            earlier = run.earlier_job()
            if not run.is_continued(earlier):
                reason = "" if earlier is None else f": {'; '.join(earlier.differences(run.job))}"
                raise UnfinishedError(
                    f"no task has begun to make {job.prefixes[0]} with these options{reason}",
                    hint="run the tasks first, with the same inputs and options and --array-task I/N",
                )
            run.begin(job.count_finished)
            # Before units are removed: inputs can be missing by mistake.
            _check_finished(job, run)
            try:
                result = encode_and_stage(job, run, _NoExecutor(job, run), listener)
                run.publish(result.manifests)
            finally:
                run.close()
        return make_report(job, result, started)


def _shareable_job(options: TokenizeOptions, progress: Progress) -> TokenizeJob:
    for name, value in (("--limit", options.limit), ("--max-tokens", options.max_tokens)):
        if value is not None:
            raise UsageError(
                f"{name} cannot be applied by the tasks of a job array, which encode units independently",
                hint="pass --sample to the tasks and to --finish",
            )
    if is_remote(options.prefix):
        raise UsageError(
            f"the tasks of a job array require an --output on a shared file system, got {options.prefix}",
            hint="tokenize to a shared directory, and upload the finished files with the tool of the store",
        )
    if not options.resume:
        raise UsageError(
            "--no-resume would remove the finished units of other tasks",
            hint="omit --no-resume: units of other inputs are not used",
        )
    progress.start("scanning inputs")
    inputs = discover_inputs(options, progress.message)
    progress.start("loading the tokenizer")
    job = prepare_job(options, *inputs)
    if not job.build.is_repeatable:
        raise UsageError(
            "a pipe can be read only once, by one process: its units cannot be assigned to tasks",
            hint="write it to a file that all tasks can read",
        )
    return job


class _TaskEncoding:
    """The encoding of the units of one task; it removes nothing, which another task may be writing."""

    def __init__(self, job: TokenizeJob, run: Run[AppendedUnit], task: ArrayTask, progress: Progress) -> None:
        self._job = job
        self._run = run
        self._progress = progress
        self._task = task
        self._units = TaskUnits(task, job.files, job.options.unit_size)
        self._finished: set[UnitKey] = set()
        self.done = EncodingProgress(ENCODED_CONTENT[job.encoder.name])
        self.encoded = 0
        last_units: dict[int, int] = {}
        appended = (unit.header for unit in appended_units(run.directory))
        for header in chain(appended, part_headers(run.parts, verify=self._is_own)):
            key = job.part_names.key(header.name)
            is_usable = self._is_own(header.name) and header.encoder in job.accepted_encoders
            if key is not None and is_usable and key not in self._finished:
                self._finished.add(key)
                self.done.add_finished(header)
                if header.last:
                    last_units[key.file] = key.index
        self.reused = len(self._finished)
        # A compressed input would be decompressed for nothing.
        self._finished_streams = {
            number
            for number in self._units.own_streams & last_units.keys()
            if all(UnitKey(number, index) in self._finished for index in range(last_units[number]))
        }

    def _is_own(self, name: str) -> bool:
        key = self._job.part_names.key(name)
        return key is not None and key in self._units

    def encode(self, executor: Executor | None) -> None:
        """Encode the units of the task that are not finished."""
        job, others = self._job, self._units.streams - self._units.own_streams
        mine = [number for number in range(len(job.files)) if number not in others | self._finished_streams]
        files = [job.files[number] for number in mine]
        tasks = self._task.count
        share = sum(content_bytes([file]) // (1 if file.is_stream else tasks) for file in files)
        total = sum((file.size_bytes or 0) // (1 if file.is_stream else tasks) for file in files)
        with (
            chosen_executor(executor, share, job.options, files=len(files)) as chosen,
            scratch_directory() if self._units.own_streams else nullcontext("") as raw,
            Feed(
                job.files,
                mine,
                max_document_bytes=job.parameters.max_document_bytes,
                names=job.part_names,
                raw_directory=raw,
                is_done=lambda key: key not in self._units or key in self._finished,
                fields=job.reading.fields,
                streams=job.workers,
            ) as feed,
            closing(chosen.run(job.encoding(), self._run.parts, feed)) as events,
        ):
            for outcome in self.done.outcomes(events, total, self._progress):
                if (record := outcome.refused) is not None:
                    file = job.files[outcome.key.file]
                    raise job.error_policy.refuse(file.path, _line_of(file, record.offset), record)
                self.encoded += 1
        check_unchanged(files)


def _report(
    task: ArrayTask,
    state: Literal["encoded", "up-to-date"],
    started: float,
    encoding: _TaskEncoding | None = None,
) -> ArrayTaskReport:
    return ArrayTaskReport(
        task=task.index,
        tasks=task.count,
        state=state,
        units=encoding.encoded if encoding else 0,
        units_reused=encoding.reused if encoding else 0,
        documents=encoding.done.encoded_documents if encoding else 0,
        tokens=encoding.done.encoded_tokens if encoding else 0,
        seconds=time.monotonic() - started,
    )


def _check_finished(job: TokenizeJob, run: Run[AppendedUnit]) -> None:
    """Raise UnfinishedError if a unit has no part. Damage is found later, when parts are read."""
    finished: dict[int, set[int]] = defaultdict(set)
    ended: set[int] = set()
    appended = (unit.header for unit in appended_units(run.directory))
    for header in chain(appended, part_headers(run.parts)):
        key = job.part_names.key(header.name)
        if key is not None and header.encoder in job.accepted_encoders:
            finished[key.file].add(key.index)
            ended |= {key.file} if header.last else set()
    missing: list[dict[str, Any]] = []
    for number, file in enumerate(job.files):
        count_of_known = max(finished[number], default=-1) + 1
        # Up to the last unit, or to the one after those that are known.
        indices: Iterable[int] = range(count_of_known if number in ended else count_of_known + 1)
        if number not in ended and not file.is_stream:
            indices = (unit.index for unit in plan_units(number, file, job.options.unit_size))
        if units := [index for index in indices if index not in finished[number]]:
            missing.append({"input": file.path, "units": units})
    if not missing:
        return
    count = sum(len(entry["units"]) for entry in missing)
    units_of_inputs = [_units_of_input(entry["input"], entry["units"]) for entry in missing[:_SHOWN]]
    if len(missing) > _SHOWN:
        units_of_inputs.append(f"and {counted(len(missing) - _SHOWN, 'more input')}")
    verb = "is" if count == 1 else "are"
    raise UnfinishedError(
        f"{counted(count, 'unit')} {verb} not finished: {'; '.join(units_of_inputs)}",
        missing=tuple(missing),
        hint="run the array tasks again with the same options (finished units are kept), then --finish",
    )


class _NoExecutor:
    """Executor of ``--finish``: units whose parts are damaged are an error."""

    def __init__(self, job: TokenizeJob, run: Run[AppendedUnit]) -> None:
        self._job = job
        self._run = run

    def run(self, *_: object) -> Events:
        """Raise UnfinishedError: damaged parts were removed."""
        _check_finished(self._job, self._run)
        yield from ()


def _units_of_input(path: str, units: list[int]) -> str:
    runs = [str(first) if first == last else f"{first} to {last}" for first, last in consecutive(units)]
    return f"{listed(runs, _SHOWN)} of {path}"


def _line_of(file: CorpusFile, offset: int) -> int | None:
    # None for a compressed or remote input: nobody has counted the lines before the unit.
    if not file.has_lines:
        return offset + 1
    if file.is_stream or is_remote(file.path):
        return None
    return 1 + sum(block.count(b"\n") for block in iter_blocks(file.path, 0, offset))
