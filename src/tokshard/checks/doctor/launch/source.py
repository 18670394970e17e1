"""The launch commands of a job, from a file, a command, or the call of a script."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace

from tokshard.checks.doctor.launch.launch import Launch
from tokshard.checks.doctor.launch.text import read_launch_words, read_launches
from tokshard.checks.doctor.options import DoctorOptions
from tokshard.errors import MissingFileError
from tokshard.storage.small_files import read_small_file

_SHELLS = frozenset({"bash", "sh", "sbatch"})
_OPERATORS = frozenset(";&|<>$`(){}\n")


_SCRIPT_HINT = "pass a file with the launch command, or the command itself"


def read_job(options: DoctorOptions) -> tuple[Launch, ...]:
    """Return the launch commands that options name.

    Raises:
        UsageError: The text contains no launch command.
        InputError: A file cannot be read.
    """
    launches = _launches(options)
    if options.iteration is None:
        return launches
    return tuple(
        replace(launch, arguments=replace(launch.arguments, iteration=options.iteration))
        for launch in launches
    )


def _launches(options: DoctorOptions) -> tuple[Launch, ...]:
    variables = dict(options.variables)
    call = script_call(options.launch)
    if call is not None:
        path, *parameters = call
        return _read_file(path, parameters, variables)
    if isinstance(options.launch, tuple):
        return read_launch_words(options.launch, variables)
    text = os.fspath(options.launch)
    if is_file(options.launch):
        return _read_file(text, None, variables)
    if "\n" not in text and " " not in text.strip():
        raise MissingFileError(
            f"launch script not found: {text}",
            path=text,
            hint=_SCRIPT_HINT,
        )
    return read_launches(text, variables=variables)


def is_file(launch: str | os.PathLike[str] | tuple[str, ...]) -> bool:
    """Return whether this is the path of a file, and no text."""
    return not isinstance(launch, tuple) and "\n" not in os.fspath(launch) and os.path.lexists(launch)


def script_call(launch: str | os.PathLike[str] | tuple[str, ...]) -> list[str] | None:
    """Return the path and the parameters if this is the call of a script, in words or in one text, else None.

    Example:
        >>> script_call("torchrun pretrain_gpt.py --seed 1") is None
        True
    """
    if isinstance(launch, tuple):
        words: Sequence[str] = launch
    elif is_file(launch) or _OPERATORS & set(os.fspath(launch)):
        return None
    else:
        try:
            words = shlex.split(os.fspath(launch))
        except ValueError:
            return None
    if len(words) > 1 and words[0] in _SHELLS:
        words = words[1:]
    return list(words) if words and os.path.isfile(words[0]) and not words[0].endswith(".py") else None


def _read_file(path: str, parameters: list[str] | None, variables: dict[str, str]) -> tuple[Launch, ...]:
    content = read_small_file(path, "launch script", passed=True, hint=_SCRIPT_HINT)
    text = content.decode("utf-8", "surrogateescape")
    return read_launches(text, parameters=parameters, variables=variables, path=path)
