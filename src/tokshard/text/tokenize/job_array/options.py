"""Options of job arrays: the tasks of an array share one tokenize run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, Self

from tokshard.core.codec import Positive
from tokshard.core.options import Option, Options
from tokshard.errors import UsageError
from tokshard.text.tokenize.cluster.options import CLUSTER
from tokshard.text.tokenize.options import TokenizeOptions

_AUTO = "auto"
_EXAMPLE = "pass for example --array-task 0/8"
# Variables with the number of a task and the number of tasks, which Kubernetes does not set.
_RANKS = (
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("JOB_COMPLETION_INDEX", None),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)
_SLURM_ARRAY = "SLURM_ARRAY_TASK_ID"

_rare = partial(Option, group="Job arrays", is_rare=True)


@dataclass(frozen=True, kw_only=True)
class DistributionOptions(Options):
    """Options of ``tokshard tokenize`` that divide a run among machines.

    Raises:
        UsageError: An option is invalid, or options cannot be used together.
    """

    array_task: Annotated[
        str | None,
        _rare(
            "Encode share I of N, from 0/N. With auto, read the numbers from Slurm, Kubernetes or MPI.",
            metavar="I/N|auto|auto/N",
        ),
    ] = None
    finish: Annotated[
        bool | None,
        _rare(
            "Only assemble the output from the parts that tasks encoded, or leave that to a later --finish. "
            "Without either, the last task assembles the output, except with --lock none."
        ),
    ] = None
    tasks: Annotated[
        Positive | None, _rare("With --finish: the job array has N tasks.", requires="finish=True")
    ] = None
    executor: Annotated[
        Literal["local", "ray"],
        Option(
            "Run on this machine or on a Ray cluster.",
            group=CLUSTER,
            is_rare=True,
            excludes=("array_task", "finish", "tasks"),
        ),
    ] = "local"

    def _validate(self) -> None:
        if self.array_task is not None and self.finish:
            raise UsageError(
                "--array-task cannot be used with --finish",
                hint="run the tasks first, then the same command with --finish instead of --array-task",
            )
        if self.finish is False and self.array_task is None:
            raise UsageError("--no-finish requires --array-task", hint=_EXAMPLE)


def refuse_limits(options: TokenizeOptions) -> None:
    """Raise UsageError if the tasks of an array have limits: none of them knows the units of the others."""
    for name, value in (("--limit", options.limit), ("--max-tokens", options.max_tokens)):
        if value is not None:
            raise UsageError(
                f"{name} cannot be applied by the tasks of a job array, which encode units independently",
                hint=f"pass --no-finish and no {name} to the tasks, then {name} with --finish; or pass "
                "--sample to the tasks",
            )


@dataclass(frozen=True)
class ArrayTask:
    """One task of a job array.

    Attributes:
        index: Number of the task, from 0.
        count: Number of tasks.

    Raises:
        UsageError: There is no such task.
    """

    index: int
    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UsageError(f"--array-task {self}: the number of tasks must be at least 1", hint=_EXAMPLE)
        if not 0 <= self.index < self.count:
            raise UsageError(
                f"--array-task {self}: tasks are numbered from 0, the last is {self.count - 1}/{self.count}",
                hint="number the array from 0, for example with Slurm's --array=0-7",
            )

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @classmethod
    def parse(cls, text: str, environment: Mapping[str, str]) -> Self:
        """Return the task that ``--array-task`` names.

        Args:
            text: ``I/N``; or ``auto`` to read the scheduler's variables; or ``auto/N``, which takes only the
                number of the task from them, as it is.
            environment: The variables.

        Raises:
            UsageError: It names none, or the variables have no usable values.

        Example:
            >>> ArrayTask.parse("3/8", {})
            ArrayTask(index=3, count=8)
            >>> ArrayTask.parse("auto", {"SLURM_PROCID": "1", "SLURM_NTASKS": "4"})
            ArrayTask(index=1, count=4)
        """
        found = re.fullmatch(rf"([0-9]{{1,9}}|{_AUTO})/([0-9]{{1,9}})|{_AUTO}", text)
        if found is None:
            raise UsageError(f"--array-task must be I/N, auto or auto/N, got {text!r}", hint=_EXAMPLE)
        count = int(found[2]) if found[2] else None
        if found[1] and found[1] != _AUTO and count is not None:
            return cls(int(found[1]), count)
        return cls(*_from_environment(environment, count))


def _from_environment(environment: Mapping[str, str], count: int | None) -> tuple[int, int]:
    if _SLURM_ARRAY in environment:
        return _from_slurm_array(environment, count)
    for index_name, count_name in _RANKS:
        if index_name not in environment:
            continue
        index = _number(environment, index_name)
        if count is not None:
            return index, count
        if count_name is None:
            raise UsageError(
                "--array-task auto: Kubernetes does not set the number of tasks",
                hint="pass --array-task auto/N, where N is the number of completions of the job",
            )
        return index, _number(environment, count_name)
    names = ", ".join([_SLURM_ARRAY, *(name for name, _ in _RANKS)])
    raise UsageError(
        f"--array-task auto: cannot determine the task number, because none of {names} is set",
        hint=_EXAMPLE,
    )


def _from_slurm_array(environment: Mapping[str, str], count: int | None) -> tuple[int, int]:
    # The ids of an array need not begin at 0: the task is counted among them; with a count, its id is taken.
    task_id = _number(environment, _SLURM_ARRAY)
    if count is not None:
        return task_id, count
    first, last, step, tasks = (
        _number(environment, f"SLURM_ARRAY_TASK_{name}") for name in ("MIN", "MAX", "STEP", "COUNT")
    )
    if step < 1 or first + step * (tasks - 1) != last or (task_id - first) % step:
        raise UsageError(
            f"--array-task auto: the ids of this Slurm array are not evenly spaced ({tasks} of them from "
            f"{first} to {last}), so the number of task {task_id} is unknown",
            hint="submit a range (finished units are skipped), or pass --array-task auto/N, which uses the "
            "id as I",
        )
    return (task_id - first) // step, tasks


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "")
    if not re.fullmatch("[0-9]{1,9}", text):
        raise UsageError(
            f"--array-task auto: {name} is {text!r}, which is not a number"
            if text
            else f"--array-task auto: {name} is not set, so the number of tasks is unknown",
            hint="pass --array-task auto/N",
        )
    return int(text)
