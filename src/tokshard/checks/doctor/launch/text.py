"""Reading of the launch commands of Megatron jobs in scripts, commands, logs and files of arguments."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from tokshard.checks.doctor.launch.arguments import KINDS, LaunchArguments
from tokshard.checks.doctor.launch.launch import Launch, launch_of_words
from tokshard.checks.doctor.launch.options import count_options
from tokshard.checks.doctor.launch.programs import (
    is_other_program,
    is_training_program,
    unchecked_options,
    unsupported_data,
)
from tokshard.checks.doctor.launch.unknown import Unknown
from tokshard.checks.doctor.shell.interpreter import read_shell
from tokshard.checks.doctor.shell.state import ShellCommand, ShellReading
from tokshard.checks.doctor.shell.values import Word
from tokshard.core.findings import Finding
from tokshard.core.json_text import parse_json_object
from tokshard.errors import UsageError
from tokshard.storage.reading import read_small_file

_ALL_WORDS = re.compile(r'("?)(?:\$[@*]|\$\{[@*]\}|\$\{[A-Za-z_][A-Za-z0-9_]*\[[@*]\]\})\1')
_LOG_LINE = re.compile(r"(?:^|[\s\]:|])([a-z][a-z0-9_]*) \.{2,} (.*)$")
_KINDS = KINDS | {"world_size": "int", "iteration": "int"}
# Names in Megatron's namespace that differ from those of the options.
_ALIASES = {"special_tokens": "tokenizer_special_tokens", "metadata_path": "tokenizer_metadata"}
_IN_SCRIPT = re.compile(r"\s*(?:#|echo |printf )")
_FEWEST_PRINTED = 2
_MAX_COMMAND_CHARACTERS = 1 << 20
_TRACED = re.compile(r"^\++ ", re.MULTILINE)
_SECTIONS = ("model_parallel", "language_model")

# A command with one of these is the launch of a job.
_DECISIVE = frozenset(
    {
        "data_path",
        "data_args_path",
        "train_data_path",
        "per_split_data_args_path",
        "mock_data",
        "train_iters",
        "train_samples",
        "global_batch_size",
        "micro_batch_size",
    }
)
_NOTHING = "no argument of a Megatron training job found in {}"
_HINT = "pass the launch script, or the whole command with the values of its variables"
_SUFFIXES = {
    ".bin": "a file of tokens",
    ".idx": "an index of a dataset",
    ".npy": "an array",
    ".parquet": "a table",
    ".py": "a Python program",
}


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
        parameters: Positional parameters of the script; None if they are unknown.
        variables: Variables of its environment; all others are unknown.
        path: The file that contains the text.

    Returns:
        The launch commands in the order of the text. Where something unknown decides between several, all are
        returned. Those with equal arguments are one.

    Raises:
        UsageError: It contains no launch command.
        IntegrityError: It is JSON with a syntax error.

    Example:
        >>> text = "torchrun --nproc-per-node 8 pretrain_gpt.py --data-path a b --seed=7"
        >>> [launch.arguments.data_path for launch in read_launches(text)]
        [('a', 'b')]
    """
    name = path or "the text"
    _refuse_other_files(text, name)
    if text.lstrip().startswith("{"):
        content = text.encode("utf-8", "backslashreplace")
        return (_of_values(parse_json_object(content, "the arguments" if path is None else path), name),)
    lines = [
        match
        for line in text.splitlines()
        if (match := _LOG_LINE.search(line)) and not _IN_SCRIPT.match(line)
    ]
    printed: dict[str, str] = {match[1]: match[2] for match in lines}
    if len(printed.keys() & _KINDS.keys()) >= _FEWEST_PRINTED:
        return (_of_values({key: _literal(value.strip()) for key, value in printed.items()}, name),)
    if path is not None and path.endswith((".yaml", ".yml")):
        return (_of_yaml(text, name),)
    commands = _of_trace(text) if _TRACED.search(text) else ()
    reading = ShellReading(commands)
    if not commands:
        reading = read_shell(text, parameters=parameters, variables=variables, path=path)
    return choose_launches(reading, variables or {}, name)


def read_launch_words(words: Sequence[str], variables: Mapping[str, str] | None = None) -> tuple[Launch, ...]:
    """Read the words of one launch command, or of its arguments alone, as a shell passes them.

    Words are literal, but a pasted ``"$@"`` or ``${NAME[@]}`` that no shell has replaced is unknown.

    Raises:
        UsageError: It contains no launch command.
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


def _of_trace(text: str) -> tuple[ShellCommand, ...]:
    # ``bash -x`` prints each command after a plus sign, expanded and quoted.
    commands: list[ShellCommand] = []
    for number, line in enumerate(text.splitlines(), 1):
        if _TRACED.match(line) and ".py" in line:
            commands += (replace(command, line=number) for command in read_shell(line.lstrip("+ ")).commands)
    return tuple(commands)


def choose_launches(reading: ShellReading, variables: Mapping[str, str], name: str) -> tuple[Launch, ...]:
    """Return the launch commands among those that a script runs.

    Raises:
        UsageError: There are none, or it is unknown which of several runs.
    """
    commands = reading.commands
    if commands and commands[0].words and commands[0].words[0].text.startswith("--"):
        # A file of options, on one line or on many.
        commands = (ShellCommand(tuple(word for command in commands for word in command.words), (), 1),)
    found: dict[object, Launch] = {}
    unset = tuple(_unset_variables(reading))
    for command in commands:
        launch = launch_of_words(command.words, command.wrappers, {**dict(command.scheduler), **variables})
        if not _is_job(launch):
            continue
        launch = _with_problems(launch, unset)
        reasons = " and ".join(dict.fromkeys(chain.from_iterable(command.conditions)))
        undecided = ((command.line, reasons),) if reasons else ()
        launch = replace(
            _with_yaml(launch, name), line=command.line, undecided=undecided, unread=reading.unread
        )
        key = (launch.arguments, launch.program_name, unsupported_data(launch), unchecked_options(launch))
        if key not in found or (found[key].undecided and not undecided):
            found[key] = launch
    if not found:
        raise UsageError(_NOTHING.format(name), hint=_HINT)
    launches = sorted(found.values(), key=lambda launch: launch.line or 0)
    return _decided(_without_lost_options(launches))


def _decided(launches: list[Launch]) -> tuple[Launch, ...]:
    """Return the launch commands that run under no undecided condition, or the only one.

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
    # A line of options whose line before does not end with a backslash is a command that fails.
    kept: list[Launch] = []
    for launch in launches:
        if not kept or launch.program is not None or not launch.words[0].text.startswith("--"):
            kept.append(launch)
            continue
        problem = Finding(
            "arguments",
            "error",
            f"line {launch.line} begins with {launch.words[0].text}: the shell runs it as another command",
            "end the line before it with a backslash, without spaces after it and without an empty line",
        )
        kept[-1] = _with_problems(kept[-1], (problem,))
    return kept


def _with_problems(launch: Launch, problems: tuple[Finding, ...]) -> Launch:
    arguments = launch.arguments
    return replace(launch, arguments=replace(arguments, problems=(*arguments.problems, *problems)))


def _unset_variables(reading: ShellReading) -> Iterator[Finding]:
    for line, name, intended in reading.problems:
        yield Finding(
            "unset-variable",
            "error",
            f"line {line}: ${name} is not set, and set -u stops the script; did you mean ${intended}?",
            f"write ${intended}, or pass --set {name}=VALUE",
        )


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
    for suffix, kind in _SUFFIXES.items():
        if name.endswith(suffix):
            raise UsageError(f"{name} is {kind}, not a launch script", hint=_HINT)
    lines = [line for line in text.lstrip().splitlines() if line.strip()][:2]
    if "\0" in text:
        raise UsageError(f"{name} is a binary file, not a launch script", hint=_HINT)
    if lines and all(_is_object(line) for line in lines) and (len(lines) > 1 or name.endswith(".jsonl")):
        raise UsageError(
            f"{name} is JSON Lines, not a launch script",
            hint="pass the script that starts the job; to tokenize a corpus, run tokshard tokenize",
        )


def _is_object(line: str) -> bool:
    if not line.lstrip().startswith("{"):
        return False
    if len(line) > _MAX_COMMAND_CHARACTERS:
        return True
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _literal(text: str) -> Any:
    # Megatron printed the value with ``str``; what is not a literal is a text.
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text


def _with_yaml(launch: Launch, name: str) -> Launch:
    """Return a launch with the arguments of its --yaml-cfg file, which replace all others."""
    path = launch.others.get("yaml_cfg")
    if path is None:
        return launch
    world = launch.arguments.world_size
    unknown = tuple(pair for pair in launch.arguments.unknown if pair[0] == "world_size")
    here = os.path.join(os.path.dirname(name), path)
    for candidate in (path, here):
        if os.path.isfile(candidate):
            text = read_small_file(candidate, "configuration").decode("utf-8", "replace")
            values = _of_yaml(text, candidate)
            arguments = replace(values.arguments, world_size=world, unknown=unknown, is_completed=False)
            return replace(launch, arguments=arguments, others={**values.others, "yaml_cfg": path})
    arguments = LaunchArguments(world_size=world, unknown=unknown, unseen=(path,))
    return replace(launch, arguments=arguments, others={"yaml_cfg": path})


def _of_yaml(text: str, name: str) -> Launch:
    import yaml

    try:
        values = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        told = " ".join(str(error).split())
        raise UsageError(f"{name} is not valid YAML: {told}", hint=_HINT) from None
    if not isinstance(values, dict):
        raise UsageError(f"{name} is not a YAML object of arguments", hint=_HINT)
    # Megatron merges two sections into the whole; others stay apart.
    for section in _SECTIONS:
        inner = values.pop(section, None)
        values |= inner if isinstance(inner, dict) else {}
    path = values.get("data_path")
    if isinstance(path, str):
        values["data_path"] = path.split()
    return _of_values({str(key): value for key, value in values.items()}, name)


def _of_values(values: Mapping[str, Any], name: str) -> Launch:
    # None and unknown names count as not given.
    given: dict[str, Any] = {}
    for key, value in values.items():
        attribute = _ALIASES.get(key, key)
        if attribute in _KINDS and value is not None:
            given[attribute] = _checked(attribute, value)
    if values.get("no_data_sharding") is None and values.get("data_sharding") is False:
        given["no_data_sharding"] = True
    if not given:
        raise UsageError(_NOTHING.format(name), hint=_HINT)
    others = {
        key: "" if value is True else str(value)
        for key, value in values.items()
        if _ALIASES.get(key, key) not in _KINDS and value not in (None, False, [])
    }
    return Launch(arguments=LaunchArguments(**given, is_completed=True), others=others)


def _checked(attribute: str, value: Any) -> Any:
    kind = _KINDS[attribute]
    is_list, is_bool = isinstance(value, list | tuple), isinstance(value, bool)
    if kind == "list" and is_list:
        return tuple(map(str, value))
    if kind == "str" and is_list:  # phase_transition_iterations, parsed
        return ",".join(map(str, value))
    if (kind == "bool" and is_bool) or (kind == "int" and type(value) is int):
        return value
    if kind == "float" and isinstance(value, int | float) and not is_bool:
        return float(value)
    if kind == "str" and not isinstance(value, bool | dict):
        return str(value)
    raise UsageError(f"{attribute} must be {kind}, got {value!r}")
