"""Which task a process is: as it is told, and as the variables of schedulers say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokshard.text.tokenize.job_array.options import ArrayTask

from tokshard.errors import UsageError


def slurm(task, first, last, step, count):
    names = {"ID": task, "MIN": first, "MAX": last, "STEP": step, "COUNT": count}
    return {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in names.items()}


@pytest.mark.parametrize(
    ("text", "environment", "index", "count"),
    [
        ("0/1", {}, 0, 1),
        ("7/8", slurm(0, 0, 3, 1, 4), 7, 8),  # what is said is not asked for
        ("auto", slurm(0, 0, 7, 1, 8), 0, 8),
        ("auto", slurm(8, 1, 8, 1, 8), 7, 8),
        ("auto", slurm(6, 0, 8, 2, 5), 3, 5),
        ("auto", slurm(3, 3, 3, 1, 1), 0, 1),
        ("auto", {**slurm(2, 0, 3, 1, 4), "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, 2, 4),
        ("auto/8", slurm(5, 1, 7, 1, 3), 5, 8),
        ("auto", {"SLURM_PROCID": "3", "SLURM_NTASKS": "4"}, 3, 4),
        ("auto", {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "PMI_RANK": "0", "PMI_SIZE": "1"}, 3, 4),
        ("auto/5", {"JOB_COMPLETION_INDEX": "4"}, 4, 5),
        ("auto", {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, 1, 2),
        ("auto", {"PMI_RANK": "0", "PMI_SIZE": "64"}, 0, 64),
        ("auto/2", {"PMI_RANK": "1", "PMI_SIZE": "64"}, 1, 2),
    ],
)
def test_the_task_is_found(text, environment, index, count):
    assert ArrayTask.parse(text, environment) == ArrayTask(index, count)


@pytest.mark.parametrize(
    ("text", "environment", "message"),
    [
        ("8/8", {}, "tasks are numbered from 0, the last is 7/8"),
        ("0/0", {}, "the number of tasks must be at least 1"),
        *((text, {}, "must be I/N, auto or auto/N") for text in ("", "3", "1/", "-1/8", "auto/", "a/b")),
        ("1 / 8", {}, "must be I/N"),
        ("1/9999999999", {}, "must be I/N"),
        ("auto", {}, "none of SLURM_ARRAY_TASK_ID, SLURM_PROCID, JOB_COMPLETION_INDEX, OMPI_"),
        ("auto", {"JOB_COMPLETION_INDEX": "2"}, "Kubernetes does not set the number of tasks"),
        ("auto", {"SLURM_PROCID": "0"}, "SLURM_NTASKS is not set"),
        ("auto", {"PMI_RANK": "zero", "PMI_SIZE": "1"}, "PMI_RANK is 'zero', which is not a number"),
        ("auto", {"PMI_RANK": "4", "PMI_SIZE": "4"}, "numbered from 0, the last is 3/4"),
        ("auto/8", slurm(8, 1, 8, 1, 8), "numbered from 0, the last is 7/8"),
        ("auto", slurm(5, 1, 7, 1, 3), "not evenly spaced (3 of them from 1 to 7)"),
        ("auto", slurm(5, 3, 5, 1, 2), "not evenly spaced"),
        ("auto", slurm(5, 0, 8, 0, 5), "not evenly spaced"),
        ("auto", {"SLURM_ARRAY_TASK_ID": "1"}, "SLURM_ARRAY_TASK_MIN is not set"),
    ],
)
def test_what_names_no_task_is_refused(text, environment, message):
    with pytest.raises(UsageError) as caught:
        ArrayTask.parse(text, environment)
    assert message in str(caught.value)
    assert caught.value.hint


@given(first=st.integers(0, 50), step=st.integers(1, 9), count=st.integers(1, 30))
def test_the_tasks_of_a_slurm_array_are_all_shares(first, step, count):
    last = first + step * (count - 1)
    found = [
        ArrayTask.parse("auto", slurm(task, first, last, step, count))
        for task in range(first, last + 1, step)
    ]
    assert found == [ArrayTask(index, count) for index in range(count)]
