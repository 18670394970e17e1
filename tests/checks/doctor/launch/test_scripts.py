"""The expected readings of launch scripts are what real bash passes to the program."""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import stat
import subprocess
from dataclasses import fields
from functools import cache

import pytest
import yaml

from support.launch_scripts import SCRIPTS, load_all
from tokshard.checks.doctor.launch.arguments import LaunchArguments
from tokshard.checks.doctor.launch.rules import check_arguments
from tokshard.core.findings import Finding

BASH = shutil.which("bash") or "/bin/bash"
ALL = load_all()
SHELL = [script for script in ALL if script.path.suffix != ".log"]

# Neither an option nor a value of the text.
NOT_READ = {"unknown", "unseen", "problems", "is_completed"}
FIELDS = {field.name: field for field in fields(LaunchArguments) if field.name not in NOT_READ}
KINDS = {name: str(field.type).partition(" |")[0] for name, field in FIELDS.items()}

RECORDERS = ("torchrun", "python", "python3", "deepspeed")
WRAPPERS = (
    *("apptainer", "docker", "env", "mpirun", "nohup", "nsys", "numactl", "podman", "singularity", "srun"),
    *("stdbuf", "taskset", "timeout"),
)
SILENT = (
    *("chmod", "clear", "conda", "cp", "date", "find", "hostname", "mkdir", "module", "nvidia-smi", "pip"),
    *("rm", "rsync", "scancel", "scontrol", "shuf", "sleep", "wandb"),
)
REAL = ("basename", "cat", "dirname", "expr", "sh")

# Each recorded command is one line of words in hexadecimal, appended at once.
RECORD = r"""#!{bash}
words=$(printf '%s\0' "${{0##*/}}" "$@" | {od} -An -v -tx1)
printf '%s\n' "${{words//[[:space:]]/}}" >>"$RECORDS"
"""
# The wrapped command begins at the first word that is a command here; assignments are exported.
WRAP = r"""#!{bash}
while (($#)); do
    if [[ $1 != */* ]] && type -P -- "$1" >/dev/null; then exec "$@"; fi
    if [[ $1 == *.sh && -f $1 ]]; then exec {bash} "$@"; fi
    if [[ $1 =~ ^[A-Za-z_][A-Za-z0-9_]*= ]]; then export "$1"; fi
    shift
done
"""
SBATCH = r"""#!{bash}
for word; do
    case $word in
        --wrap=*) exec {bash} -c "${{word#--wrap=}}" ;;
        -*) shift ;;
        *) exec {bash} "$@" ;;
    esac
done
exec {bash} -s
"""


@pytest.fixture(scope="module")
def commands(tmp_path_factory):
    """Return a directory of stub commands, as the only one on PATH."""
    directory = tmp_path_factory.mktemp("commands")
    od = shutil.which("od")

    def write(name, text):
        path = directory / name
        path.write_text(text.format(bash=BASH, od=od))
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    for name in RECORDERS:
        write(name, RECORD)
    for name in WRAPPERS:
        write(name, WRAP)
    for name in SILENT:
        write(name, "#!{bash}\n")
    write("tee", "#!{bash}\nexec cat\n")
    write("sbatch", SBATCH)
    for name in REAL:
        (directory / name).symlink_to(shutil.which(name))
    (directory / "bash").symlink_to(BASH)
    return directory


def executed(script, environment, commands, directory):
    """Return the recorded commands of a script, also of its background jobs."""
    directory.mkdir()
    path = script.path
    if path.suffix == ".txt":  # what `bash -x` prints
        path = directory / "trace.sh"
        path.write_text(re.sub(r"^\++ ", "", script.path.read_text(), flags=re.MULTILINE))
    records = directory / "records"
    records.touch()
    # All processes of the script inherit the pipe, and so it ends with the last of them.
    reading, writing = os.pipe()
    process = subprocess.run(
        [BASH, path, *script.parameters],
        env={"PATH": str(commands), "RECORDS": str(records), **script.set, **environment},
        cwd=script.set.get("PWD", directory),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        pass_fds=[writing],
        timeout=60,
        check=False,
    )
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        pipe.read()
    lines = records.read_text().splitlines()
    found = [bytes.fromhex(line).decode().split("\0")[:-1] for line in lines]
    return found, process.stderr.decode()


@cache
def twin():
    """Return a parser with Megatron's options about data; a missing value is None."""
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    for name, kind in KINDS.items():
        if name not in ("world_size", "iteration"):
            how = {"bool": {"action": "store_true"}, "tuple[str, ...]": {"nargs": "*"}}
            parser.add_argument(
                "--" + name.replace("_", "-"), default=argparse.SUPPRESS, **how.get(kind, {"nargs": "?"})
            )
    parser.add_argument("--yaml-cfg")
    return parser


def typed(name, value):
    kind = KINDS[name]
    if kind == "tuple[str, ...]":
        return tuple(map(str, value))
    if kind in ("int", "float") and value is not None:
        try:
            return {"int": int, "float": float}[kind](value)
        except ValueError:
            return value  # the value contains an unknown variable
    return value


def of_mapping(values):
    """Return the values of nested sections that are given; Megatron splits a data path at blanks."""
    found = {}
    for name, value in values.items():
        if isinstance(value, dict):
            found |= of_mapping(value)
        elif name in KINDS and value is not None and value is not False:
            split = KINDS[name].startswith("tuple") and isinstance(value, str)
            found[name] = typed(name, value.split() if split else value)
    return found


def launches(script, programs, recorded, directory):
    """Yield the values of each recorded command of a training program."""
    for words in recorded:
        at = next((at for at, word in enumerate(words) if word.endswith(".py")), None)
        if at is not None and words[at].rpartition("/")[2] in programs:
            options, _ = twin().parse_known_args(words[at + 1 :])
            values = vars(options)
            if (name := values.pop("yaml_cfg")) is not None:  # replaces all options
                values = of_mapping(yaml.safe_load((SCRIPTS / name).read_text()))
            yield {name: typed(name, value) for name, value in values.items()}


def passed(script, environment, commands, directory):
    programs = {job.program for job in script.jobs}
    recorded, errors = executed(script, environment, commands, directory)
    return list(launches(script, programs, recorded, directory)), errors


@pytest.mark.parametrize("script", SHELL, ids=str)
def test_bash_passes_the_values_that_are_expected(script, commands, tmp_path):
    """Each environment makes bash run the jobs that name it, in their order, and no others."""
    environments = []
    for job in script.jobs:
        environments += [environment for environment in job.bash if environment not in environments]
    seen = [set() for _ in script.jobs]
    for number, environment in enumerate(environments):
        jobs = [at for at, job in enumerate(script.jobs) if environment in job.bash]
        found, errors = passed(script, environment, commands, tmp_path / str(number))
        assert len(found) == len(jobs), errors
        for at, values in zip(jobs, found, strict=True):
            expected = {name: value for name, value in script.jobs[at].read.items() if name != "world_size"}
            assert {name: values.get(name) for name in expected} == expected
            seen[at] |= values.keys()
    # No argument is left out of the expectation, and no other one is in it.
    assert seen == [{*job.read, *job.unknown} - {"world_size"} for job in script.jobs]


@pytest.mark.parametrize("script", [s for s in SHELL if any(j.unknown for j in s.jobs)], ids=str)
def test_unknown_values_depend_on_the_variables_that_are_named(script, commands, tmp_path):
    """Another value of the variable in the environment is another value of the argument."""
    for number, job in enumerate(script.jobs):
        names = {name: re.fullmatch(r"\$\{?(\w+)\}?", text) for name, text in job.unknown.items()}
        names = {name: match[1] for name, match in names.items() if match and name != "world_size"}
        environment = job.bash[0]
        variables = {name for name in names.values() if not name.isdecimal() and name not in environment}
        changed = {**environment, **dict.fromkeys(variables, "7919")}
        before, _ = passed(script, environment, commands, tmp_path / f"{number}a")
        after, _ = passed(script, changed, commands, tmp_path / f"{number}b")
        same = [other for other in script.jobs if environment in other.bash]
        at = next(at for at, other in enumerate(same) if other is job)
        for name, variable in names.items():
            if variable in variables:
                assert after[at][name] != before[at][name], name


@pytest.mark.parametrize("script", [script for script in ALL if script.path.suffix == ".log"], ids=str)
def test_logs_print_the_values_that_are_expected(script):
    """All printed values about data are expected, except None and False."""
    found = {}
    for name, text in re.findall(r"(\w+) \.{2,} (.*)$", script.path.read_text(), re.MULTILINE):
        is_text = KINDS.get(name, "str") == "str" and text != "None"
        found[name] = text if is_text else ast.literal_eval(text)
    (job,) = script.jobs
    assert job.read == of_mapping(found)


@pytest.mark.parametrize("script", ALL, ids=str)
def test_expectations_are_complete(script):
    """Names are fields, values have their types, and expansions are written in the script."""
    text = script.path.read_text()
    assert script.about
    for job in script.jobs:
        assert not set(job.read) & set(job.unknown)
        assert {*job.read, *job.unknown} <= set(FIELDS)
        for name, value in job.read.items():
            assert type(value).__name__ == KINDS[name].partition("[")[0]
            assert value is not False
        expansions = (part for unknown in job.unknown.values() for part in unknown.split(" and "))
        assert all(expansion in text for expansion in (*expansions, *job.hidden))


@pytest.mark.parametrize("script", ALL, ids=str)
def test_errors_follow_from_the_arguments(script):
    """The arguments that a script determines are enough to find its errors, and sizes are consistent."""
    for job in script.jobs:
        findings = check_arguments(LaunchArguments(**job.read, is_completed=job.program is None))
        found = {
            finding.code
            for finding in findings
            if isinstance(finding, Finding) and finding.severity == "error"
        }
        assert {*job.errors} <= found
        assert {"batch-size", "world-size", "context-parallel"} & found <= {*job.errors}
