"""The launch commands of a job, from a file, a command, or the call of a script."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import replace

from tokshard.checks.doctor.launch.launch import Launch
from tokshard.checks.doctor.launch.text import read_launch_words, read_launches
from tokshard.checks.doctor.near_paths import near_path
from tokshard.checks.doctor.options import DoctorOptions
from tokshard.errors import MissingFileError
from tokshard.storage.reading import read_small_file

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
    words = options.launch_words
    if (call := script_call(words)) is not None:
        path, *parameters = call
        return _read_file(path, parameters, variables)
    if len(words) != 1 or _is_option(words[0]):
        return read_launch_words(words, variables)
    (text,) = words
    if is_file(text):
        return _read_file(text, None, variables)
    if "\n" not in text and " " not in text.strip():
        near = near_path(text)
        hint = _SCRIPT_HINT if near is None else f"did you mean {near}?"
        raise MissingFileError(f"launch script not found: {text}", path=text, hint=hint)
    return read_launches(text, variables=variables)


def with_environment(options: DoctorOptions) -> DoctorOptions:
    """Return options with the ``WORLD_SIZE`` of the environment if doctor replaces a program in a script."""
    words = options.launch_words
    is_program = re.match(r"--|(?:.*/)?python[0-9.]*$|.*\.py$", words[0]) is not None
    is_replacement = is_program and (len(words) != 1 or _is_option(words[0]))
    size = os.environ.get("WORLD_SIZE")
    if not is_replacement or size is None or "WORLD_SIZE" in dict(options.variables):
        return options
    return replace(options, variables=(*options.variables, ("WORLD_SIZE", size)))


def _is_option(text: str) -> bool:
    return text.startswith("--") and not re.search(r"\s", text)


def is_file(text: str) -> bool:
    """Return whether a text is the path of a file, not a command."""
    return "\n" not in text and os.path.lexists(text)


def script_call(words: tuple[str, ...]) -> list[str] | None:
    """Return the path and the parameters of the script that words or a text call, or None.

    Example:
        >>> script_call(("torchrun pretrain_gpt.py --seed 1",)) is None
        True
    """
    called = list(words)
    if len(words) == 1:
        (text,) = words
        if is_file(text) or _OPERATORS & set(text):
            return None
        try:
            called = shlex.split(text)
        except ValueError:
            return None
    if len(called) > 1 and called[0] in _SHELLS:
        called = called[1:]
    return called if called and os.path.isfile(called[0]) and not called[0].endswith(".py") else None


def _read_file(path: str, parameters: list[str] | None, variables: dict[str, str]) -> tuple[Launch, ...]:
    content = read_small_file(path, "launch script", passed=True, hint=_SCRIPT_HINT)
    text = content.decode("utf-8", "surrogateescape")
    return read_launches(text, parameters=parameters, variables=variables, path=path)
