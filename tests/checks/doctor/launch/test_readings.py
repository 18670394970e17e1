"""Launch scripts are read as they are expected to be read, with no false error."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace

import pytest

from support.launch_scripts import Job, load_all, read
from tokshard.checks.doctor.launch.arguments import LaunchArguments
from tokshard.checks.doctor.launch.programs import unsupported_data
from tokshard.checks.doctor.launch.rules import check_arguments
from tokshard.core.findings import Finding
from tokshard.errors import UsageError

ALL = load_all()
_NOT_READ = {"unknown", "unseen", "problems", "is_completed"}
NAMES = [field.name for field in fields(LaunchArguments) if field.name not in _NOT_READ]


def arguments(job: Job) -> dict:
    return {
        name: tuple(map(str, value)) if isinstance(value, tuple) else value
        for name, value in job.read.items()
    }


@pytest.mark.parametrize("script", ALL, ids=str)
def test_each_argument_is_read_or_named_as_unknown(script):
    launches = read(script)
    assert [launch.undecided for launch in launches] == [()] * len(script.jobs)
    for launch, job in zip(launches, script.jobs, strict=True):
        found = {name: getattr(launch.arguments, name) for name in NAMES}
        given = {name: value for name, value in found.items() if value is not None and value is not False}
        assert given == arguments(job)
        assert dict(launch.arguments.unknown) == job.unknown
        assert launch.arguments.unseen == job.hidden
        assert (launch.program_name or None) == job.program


@pytest.mark.parametrize("script", ALL, ids=str)
def test_no_error_is_false_and_each_has_a_hint(script):
    for launch, job in zip(read(script), script.jobs, strict=True):
        unsupported = unsupported_data(launch)
        if unsupported is not None and not unsupported.has_other_names_only:
            continue
        results = check_arguments(launch.arguments)
        errors = [r.code for r in results if isinstance(r, Finding) and r.severity == "error"]
        assert errors == list(job.errors)
        assert all(result.hint for result in results)


def test_exclusive_launch_commands_are_refused_until_the_variable_is_set():
    (script,) = (script for script in ALL if str(script) == "multimodal-batch-or-interactive")
    with pytest.raises(UsageError, match=r"line 66 or line 72\): it depends on \$BATCH") as refused:
        read(replace(script, set={}))
    assert refused.value.hint == "pass --set BATCH=VALUE"
    (launch,) = read(replace(script, set={"BATCH": "1"}))
    assert dict(launch.arguments.unknown)["world_size"] == "srun"


def test_at_least_twenty_scripts_cover_most_arguments():
    count = Counter(name for script in ALL for job in script.jobs for name in (*job.read, *job.unknown))
    assert len(ALL) >= 20
    assert sum(count.values()) > 390
    assert {"data_path", "train_data_path", "per_split_data_args_path", "data_args_path", "world_size"} <= {
        *count
    }
