"""Which task of a job array a process is: as the user says, or as the scheduler's variables say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tokshard.errors import UsageError

TASKS_VARIABLE = "TOKSHARD_ARRAY_TASKS"
"""How many tasks a Kubernetes job has: it tells its pods only which one they are."""

_AUTO = "auto"
_EXAMPLE = "for example --array-task 0/8"
# A number of a task, and how many there are; not every scheduler says the second.
_RANKS = (
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("JOB_COMPLETION_INDEX", TASKS_VARIABLE),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)
_SLURM_ARRAY = "SLURM_ARRAY_TASK_ID"


@dataclass(frozen=True, slots=True)
class ArrayTask:
    """One task of a job array.

    Attributes:
        index: Which one, from 0.
        count: How many tasks there are.

    Raises:
        UsageError: There is no such task.
    """

    index: int
    count: int

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UsageError(f"--array-task {self}: there is at least one task", hint=_EXAMPLE)
        if not 0 <= self.index < self.count:
            raise UsageError(
                f"--array-task {self}: tasks are numbered from 0, the last is {self.count - 1}/{self.count}",
                hint="number the array from 0: --array=0-7 of Slurm, for example",
            )

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


def parse_array_task(text: str, environment: Mapping[str, str]) -> ArrayTask:
    """Return the task that ``--array-task`` names.

    Args:
        text: ``I/N``; or ``auto`` to ask the scheduler's variables; or ``auto/N``, which takes only the
            number of the task from them, as it is.
        environment: The variables.

    Raises:
        UsageError: It names none, or the variables say nothing usable.

    Example:
        >>> parse_array_task("3/8", {})
        ArrayTask(index=3, count=8)
        >>> parse_array_task("auto", {"SLURM_PROCID": "1", "SLURM_NTASKS": "4"})
        ArrayTask(index=1, count=4)
    """
    found = re.fullmatch(rf"([0-9]{{1,9}}|{_AUTO})/([0-9]{{1,9}})|{_AUTO}", text)
    if found is None:
        raise UsageError(f"--array-task {text!r} is none of I/N, auto and auto/N", hint=_EXAMPLE)
    count = int(found[2]) if found[2] else None
    if found[1] and found[1] != _AUTO and count is not None:
        return ArrayTask(int(found[1]), count)
    return _from_environment(environment, count)


def _from_environment(environment: Mapping[str, str], count: int | None) -> ArrayTask:
    if _SLURM_ARRAY in environment:
        return _from_slurm_array(environment, count)
    for index_name, count_name in _RANKS:
        if index_name in environment:
            index = _number(environment, index_name)
            return ArrayTask(index, _number(environment, count_name) if count is None else count)
    names = ", ".join([_SLURM_ARRAY, *(name for name, _ in _RANKS)])
    raise UsageError(
        f"--array-task auto: no scheduler has said which task this is; none of {names} is set",
        hint=f"say it yourself, {_EXAMPLE}",
    )


def _from_slurm_array(environment: Mapping[str, str], count: int | None) -> ArrayTask:
    """Count the task among the ids of its array, which need not begin at 0; with a count, take its id."""
    task_id = _number(environment, _SLURM_ARRAY)
    if count is not None:
        return ArrayTask(task_id, count)
    first, last, step, tasks = (
        _number(environment, f"SLURM_ARRAY_TASK_{name}") for name in ("MIN", "MAX", "STEP", "COUNT")
    )
    if step < 1 or first + step * (tasks - 1) != last or (task_id - first) % step:
        raise UsageError(
            f"--array-task auto: the ids of this Slurm array are not evenly spaced ({tasks} of them from "
            f"{first} to {last}), so task {task_id} cannot know which of them it is",
            hint="submit a range: what is finished is skipped; or --array-task auto/N takes the id for I",
        )
    return ArrayTask((task_id - first) // step, tasks)


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "")
    if not re.fullmatch("[0-9]{1,9}", text):
        raise UsageError(
            f"--array-task auto: {name} is {text!r}, which is no number"
            if text
            else f"--array-task auto: {name} is not set, so nobody says how many tasks there are",
            hint="say how many: --array-task auto/N",
        )
    return int(text)
