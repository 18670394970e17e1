"""The launch commands of a job, from a file, a command, or the call of a script."""

from __future__ import annotations

import os

from tokshard.errors import MissingFileError
from tokshard.preflight.launch.launch import Launch
from tokshard.preflight.launch.text import read_launch_words, read_launches
from tokshard.preflight.options import DoctorOptions
from tokshard.storage.small_files import read_small_file


def read_job(options: DoctorOptions) -> tuple[Launch, ...]:
    """Return the launch commands that options name.

    Raises:
        UsageError: The text contains no launch command.
        InputError: A file cannot be read.
    """
    variables = dict(options.variables)
    if isinstance(options.launch, tuple):
        first, *parameters = options.launch
        if _is_script(first):
            return _read_file(first, parameters, variables)
        return read_launch_words(options.launch, variables)
    text = os.fspath(options.launch)
    if "\n" not in text and os.path.lexists(text):
        return _read_file(text, None, variables)
    if "\n" not in text and " " not in text.strip():
        raise MissingFileError(
            f"launch script not found: {text}",
            path=text,
            hint="pass a file with the launch command, or the command itself",
        )
    return read_launches(text, variables=variables)


def _is_script(word: str) -> bool:
    return os.path.isfile(word) and not word.endswith(".py")


def _read_file(path: str, parameters: list[str] | None, variables: dict[str, str]) -> tuple[Launch, ...]:
    text = read_small_file(path, "launch script").decode("utf-8", "surrogateescape")
    return read_launches(text, parameters=parameters, variables=variables, path=path)
