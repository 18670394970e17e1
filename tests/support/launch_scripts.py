"""Launch scripts of training jobs with their expected readings, in tests/checks/doctor/launch/scripts.

NAME.json beside NAME.sh (or .log, .txt) contains:

- ``about``: family and quirks in one sentence.
- ``parameters``, ``set``: positional parameters, and variables that the user sets.
- ``jobs``: launch commands in the order of the text.

A job contains:

- ``program``: base name of the program; null for a log.
- ``read``: arguments about data that the text determines, by fields of LaunchArguments.
- ``unknown``: arguments about data that are passed with an undetermined value, or may be passed, and the
  expansions, as written where they enter the script, that decide it. Also ``world_size`` if there is a
  launcher.
- ``hidden``: expansions of whole words that may contain more arguments.
- ``errors``: codes of errors that can be found in the arguments alone.
- ``bash``: environments with which bash executes this job (Slurm's variables, the sides of branches).

A variable that neither the script nor ``set`` defines is unknown, but ``${X:-default}`` is the default.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokshard.checks.doctor.launch.launch import Launch
from tokshard.checks.doctor.launch.text import read_launches

SCRIPTS = Path(__file__).parents[1] / "checks/doctor/launch/scripts"


@dataclass(frozen=True, slots=True)
class Job:
    """Expected reading of one launch command."""

    program: str | None
    read: dict[str, Any]
    unknown: dict[str, str] | None = None
    hidden: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    bash: tuple[dict[str, str], ...] = ({},)


@dataclass(frozen=True, slots=True)
class Script:
    """A launch script, log or trace with its expected readings."""

    path: Path
    about: str
    parameters: tuple[str, ...]
    set: dict[str, str]
    jobs: tuple[Job, ...]

    def __str__(self) -> str:
        return self.path.stem


def _tuples(values: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def _job(values: dict[str, Any]) -> Job:
    given = {**_tuples(values), "read": _tuples(values["read"])}
    return Job(**{**given, "unknown": values.get("unknown", {})})


def load(expectations: Path) -> Script:
    """Load NAME.json and find its script."""
    values = json.loads(expectations.read_text())
    (path,) = (
        path for suffix in (".sh", ".log", ".txt") if (path := expectations.with_suffix(suffix)).exists()
    )
    jobs = tuple(_job(job) for job in values.pop("jobs"))
    return Script(path, values["about"], tuple(values["parameters"]), values["set"], jobs)


def read(script: Script) -> tuple[Launch, ...]:
    """Read a script as ``tokshard doctor`` does, with its parameters and variables."""
    return read_launches(
        script.path.read_text(),
        parameters=script.parameters or None,
        variables=script.set,
        path=str(script.path),
    )


def load_all() -> list[Script]:
    """Load all scripts, sorted by name."""
    return [load(path) for path in sorted(SCRIPTS.glob("*.json"))]
