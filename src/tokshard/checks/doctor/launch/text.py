"""Reading of the launch commands of Megatron jobs in scripts, commands, logs and files of arguments."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from tokshard.checks.doctor.launch.arguments import LaunchArguments
from tokshard.checks.doctor.launch.launch import Launch, launch_of_words
from tokshard.checks.doctor.launch.options import count_options
from tokshard.checks.doctor.launch.programs import (
    is_other_program,
    is_training_program,
    unchecked_options,
    unsupported_data,
)
from tokshard.checks.doctor.launch.unknown import Unknown
from tokshard.checks.doctor.launch.values import (
    HINT,
    NOTHING,
    launch_of_values,
    printed_values,
    yaml_values,
)
from tokshard.checks.doctor.shell.interpreter import read_shell
from tokshard.checks.doctor.shell.state import ShellCommand, ShellReading
from tokshard.checks.doctor.shell.values import Word
from tokshard.core.findings import Finding
from tokshard.core.json_text import parse_json_object
from tokshard.errors import UsageError
from tokshard.storage.reading import read_small_file

_ALL_WORDS = re.compile(r'("?)(?:\$[@*]|\$\{[@*]\}|\$\{[A-Za-z_][A-Za-z0-9_]*\[[@*]\]\})\1')
_TRACED = re.compile(r"^\++ ", re.MULTILINE)
_JSON = re.compile(r'\s*\{\s*["}]')
_JSON_LINE = re.compile(r'\s*\{\s*"')
_YAML_SUFFIXES = (".yaml", ".yml")
# A command with one of these is the launch of a job.
_DECISIVE = frozenset(
    {"data_path", "data_args_path", "train_data_path", "per_split_data_args_path", "mock_data"}
)
_DECISIVE |= {"train_iters", "train_samples", "global_batch_size", "micro_batch_size"}


def read_launches(
    text: str,
    *,
    parameters: Sequence[str] | None = None,
    variables: Mapping[str, str] | None = None,
    path: str | None = None,
) -> tuple[Launch, ...]:
    """Read a launch script or command, bare arguments, a log, or a JSON or YAML object of arguments.

    Args:
        text: The text.
        parameters: Positional parameters of the script, or None if they are unknown.
        variables: Variables of its environment; all others are unknown.
        path: The file that contains the text.

    Returns:
        The launch commands in the order of the text, without repetitions.

    Raises:
        UsageError: The text contains no launch command, or an unknown value decides which of several runs.
        IntegrityError: The text is JSON with a syntax error.

    Example:
        >>> text = "torchrun --nproc-per-node 8 pretrain_gpt.py --data-path a b --seed=7"
        >>> [launch.arguments.data_path for launch in read_launches(text)]
        [('a', 'b')]
    """
    name = path or "the text"
    _refuse_other_files(text, name)
    if _JSON.match(text):
        content = text.encode("utf-8", "backslashreplace")
        return (launch_of_values(parse_json_object(content, path or "the arguments"), name),)
    if values := printed_values(text):
        return (launch_of_values(values, name),)
    if name.endswith(_YAML_SUFFIXES):
        return (launch_of_values(yaml_values(text, name), name),)
    commands = _traced_commands(text) if _TRACED.search(text) else ()
    reading = ShellReading(commands)
    if not commands:
        reading = read_shell(text, parameters=parameters, variables=variables, path=path)
    return choose_launches(reading, variables or {}, name)


def read_launch_words(words: Sequence[str], variables: Mapping[str, str] | None = None) -> tuple[Launch, ...]:
    """Read the words of one launch command, or of its arguments alone, as a shell passes them.

    Words are literal, but a pasted ``"$@"`` or ``${NAME[@]}`` that no shell has replaced is unknown.

    Raises:
        UsageError: The words contain no launch command.
    """
    if words[0].startswith("--"):
        command = ShellCommand(tuple(map(_literal_word, words)), (), 1)
        return choose_launches(ShellReading((command,)), variables or {}, "the command")
    # A shell may be one of the words: srun bash -c "..."
    text = " ".join(word if _ALL_WORDS.fullmatch(word) else shlex.quote(word) for word in words)
    return choose_launches(read_shell(text, variables=variables), variables or {}, "the command")


def _literal_word(text: str) -> Word:
    if _ALL_WORDS.fullmatch(text) is None:
        return Word(text)
    expansion = text.strip('"')
    return Word(expansion, (expansion,), is_open=True)


def _traced_commands(text: str) -> tuple[ShellCommand, ...]:
    """Return the commands that ``bash -x`` has printed after plus signs, expanded and quoted."""
    lines = text.splitlines()
    traced = (
        line.lstrip("+ ") if _TRACED.match(line) and ".py " in line and " --" in line else ""
        for line in lines
    )
    return read_shell("\n".join(traced)).commands


def choose_launches(reading: ShellReading, variables: Mapping[str, str], name: str) -> tuple[Launch, ...]:
    """Return the launch commands among those that a script runs.

    Raises:
        UsageError: There is no launch command, or an unknown value decides which of several runs.
    """
    commands = reading.commands
    if commands and commands[0].words and commands[0].words[0].text.startswith("--"):
        # A file of options, on one line or on many.
        commands = (ShellCommand(tuple(word for command in commands for word in command.words), (), 1),)
    unset = tuple(_unset_variables(reading))
    distinct: dict[object, Launch] = {}
    for command in commands:
        launch = launch_of_words(command.words, command.wrappers, {**dict(command.scheduler), **variables})
        if not _is_job(launch):
            continue
        reasons = " and ".join(dict.fromkeys(chain.from_iterable(command.conditions)))
        undecided = ((command.line, reasons),) if reasons else ()
        launch = _with_problems(_with_yaml(launch, name), unset)
        launch = replace(launch, line=command.line, undecided=undecided, unread=reading.unread)
        key = (launch.arguments, launch.program_name, unsupported_data(launch), unchecked_options(launch))
        if key not in distinct or (distinct[key].undecided and not undecided):
            distinct[key] = launch
    if not distinct:
        raise UsageError(NOTHING.format(name), hint=HINT)
    launches = sorted(distinct.values(), key=lambda launch: launch.line or 0)
    return _decided(_without_lost_options(launches))


def _decided(launches: list[Launch]) -> tuple[Launch, ...]:
    """Return the launch commands under no undecided condition, or the only launch command.

    Raises:
        UsageError: An undecided condition decides which of several commands runs.
    """
    certain = [launch for launch in launches if not launch.undecided]
    others = tuple(undecided for launch in launches for undecided in launch.undecided)
    if not certain and len(others) > 1:
        reasons = " and ".join(dict.fromkeys(reason for _, reason in others))
        lines = " or ".join(f"line {line}" for line, _ in others)
        message = f"cannot decide which launch command runs ({lines}): it depends on {reasons}"
        undecided = Unknown.depending_on([reasons], message, "pass one of these commands in quotes")
        raise UsageError(message, hint=undecided.hint)
    return tuple(replace(launch, undecided=others) for launch in certain or launches)


def _without_lost_options(launches: Sequence[Launch]) -> list[Launch]:
    """Return launch commands; options after a line without a backslash are a problem of the one before."""
    kept: list[Launch] = []
    for launch in launches:
        if not kept or launch.program is not None or not launch.words[0].text.startswith("--"):
            kept.append(launch)
            continue
        message = (
            f"line {launch.line} begins with {launch.words[0].text}: the shell runs it as another command"
        )
        hint = "end the line before it with a backslash, without spaces after it and without an empty line"
        kept[-1] = _with_problems(kept[-1], (Finding("arguments", "error", message, hint),))
    return kept


def _with_problems(launch: Launch, problems: tuple[Finding, ...]) -> Launch:
    arguments = launch.arguments
    return replace(launch, arguments=replace(arguments, problems=(*arguments.problems, *problems)))


def _unset_variables(reading: ShellReading) -> Iterator[Finding]:
    for line, name, intended in reading.problems:
        message = f"line {line}: ${name} is not set, and set -u stops the script; did you mean ${intended}?"
        yield Finding("unset-variable", "error", message, f"write ${intended}, or pass --set {name}=VALUE")


def _is_job(launch: Launch) -> bool:
    if is_other_program(launch.program_name):
        return False
    names = {name for name in _DECISIVE if getattr(launch.arguments, name) not in (None, False)}
    names |= {name for name, _ in launch.arguments.unknown} & _DECISIVE
    if names or "yaml_cfg" in launch.others:
        return True
    if is_training_program(launch.program_name):
        return bool(count_options(launch.words) or launch.arguments.unseen or unsupported_data(launch))
    return launch.program is None and count_options(launch.words) > 0


def _refuse_other_files(text: str, name: str) -> None:
    lines = [line for line in text.splitlines() if line.strip()][:2]
    kind = None
    if "\0" in text:
        kind = "a binary file"
    elif name.endswith(".py"):
        kind = "a Python program"
    elif lines and all(map(_JSON_LINE.match, lines)) and (len(lines) > 1 or name.endswith(".jsonl")):
        kind = "JSON Lines"
    if kind is not None:
        raise UsageError(f"{name} is {kind}, not a launch script", hint=HINT)


def _with_yaml(launch: Launch, name: str) -> Launch:
    """Return a launch with the arguments of its --yaml-cfg file, which replace all others."""
    path = launch.others.get("yaml_cfg")
    if path is None:
        return launch
    world = launch.arguments.world_size
    unknown = tuple(pair for pair in launch.arguments.unknown if pair[0] == "world_size")
    candidates = (path, os.path.join(os.path.dirname(name), path))
    file = next(filter(os.path.isfile, candidates), None)
    if file is None:
        arguments = LaunchArguments(world_size=world, unknown=unknown, unseen=(path,))
        return replace(launch, arguments=arguments, others={"yaml_cfg": path})
    text = read_small_file(file, "configuration").decode("utf-8", "replace")
    values = launch_of_values(yaml_values(text, file), file)
    arguments = replace(values.arguments, world_size=world, unknown=unknown, is_completed=False)
    return replace(launch, arguments=arguments, others={**values.others, "yaml_cfg": path})
