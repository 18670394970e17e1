"""Parser of launch commands of Megatron training jobs.

Three forms of text are understood: shell text (a command with its wrappers, a launch script, or bare
arguments), the block of arguments that Megatron prints when it starts, and a JSON object of arguments.
Arguments that do not concern data are skipped.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from tokshard.core.strict_json import parse_json_object
from tokshard.errors import UsageError
from tokshard.preflight.launch.arguments import LaunchArguments
from tokshard.preflight.launch.shellwords import Word, read_commands

_FLAG, _ONE, _LIST = "flag", "one", "list"

# Attributes that are not called as their options.
_ALIASES = {"special_tokens": "tokenizer_special_tokens", "metadata_path": "tokenizer_metadata"}

# Attributes that no option of Megatron sets.
_NO_OPTIONS = frozenset({"notes", "unseen", "world_size", "iteration", "is_completed"})

_LOG_LINE = re.compile(r"(?:^|[\s\]:|])([a-z][a-z0-9_]*) \.{2,} (.*)$")
_OPTION_WITH_VALUE = re.compile(r"--[a-z][a-z0-9-]*=")
_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")
_ARGUMENTS_NAME = re.compile(r"ARG|OPT|FLAG|@", re.IGNORECASE)
_ALL_WORDS = re.compile(r"\$[@*]|\$\{[@*]\}|\$\{[A-Za-z_][A-Za-z0-9_]*\[[@*]\]\}")
_LAUNCHERS = frozenset({"torchrun", "torch.distributed.run", "torch.distributed.launch"})


def read_launch(text: str) -> LaunchArguments:
    """Read a launch command, a launch script, bare arguments, a log, or a JSON object of arguments.

    Raises:
        UsageError: It has no data arguments, or an invalid one.

    Example:
        >>> read_launch("torchrun --nproc-per-node 8 pretrain_gpt.py --data-path a b --seed=7").data_path
        ('a', 'b')
    """
    if text.lstrip().startswith("{"):
        return _from_values(parse_json_object(text.encode("utf-8", "backslashreplace"), "the arguments"))
    lines = [match for line in text.splitlines() if (match := _LOG_LINE.search(line))]
    printed: dict[str, str] = {match[1]: match[2] for match in lines}
    if "seq_length" in printed or "data_path" in printed:
        return _from_values({name: _literal(value.strip()) for name, value in printed.items()})
    return read_launch_words(_choose(read_commands(text)))


def read_launch_words(words: Sequence[Word | str]) -> LaunchArguments:
    """Read the words of one launch command, as a shell would pass them.

    Raises:
        UsageError: An argument cannot be read, or nothing is about data.
    """
    command = [_typed(word) if isinstance(word, str) else word for word in words]
    inner = [at for at, word in enumerate(command) if ".py " in word.text]
    if inner:  # for example: srun bash -c "torchrun ... pretrain_gpt.py ..."
        command = command[: inner[0]] + _choose(read_commands(command[inner[0]].text))
    start = next((at + 1 for at, word in enumerate(command) if _is_program(word)), None)
    if start is None:
        start = next((at for at, word in enumerate(command) if word.text.startswith("--")), len(command))
    values, notes, unseen = _parse(command[start:])
    if not values:
        raise UsageError(
            "no argument of a Megatron training job found in the text",
            hint="paste the whole command with the values of its variables, or pass a file that contains it",
        )
    return replace(
        LaunchArguments(**values),
        world_size=_world_size(command[:start]),
        notes=tuple(notes),
        unseen=tuple(dict.fromkeys(unseen)),
    )


def _kinds() -> Mapping[str, str]:
    kinds = {}
    for field in fields(LaunchArguments):
        if field.name not in _NO_OPTIONS:
            text = str(field.type)
            kinds[field.name] = _FLAG if text == "bool" else _LIST if text.startswith("tuple") else _ONE
    return kinds


_KINDS = _kinds()
_ATTRIBUTES = frozenset(field.name for field in fields(LaunchArguments)) - {
    "notes",
    "unseen",
    "is_completed",
}
_TYPES = {field.name: str(field.type) for field in fields(LaunchArguments)}


def _option(word: Word) -> str | None:
    if not word.text.startswith("--"):
        return None
    name = word.text[2:].partition("=")[0]
    attribute = name.replace("-", "_")
    return attribute if attribute in _KINDS and "_" not in name else None


def _choose(commands: Sequence[tuple[Word, ...]]) -> list[Word]:
    # The most arguments about data count; bare arguments may fill many lines.
    if commands and commands[0][0].text.startswith("--"):
        return [word for command in commands for word in command]
    return list(max(commands, key=lambda words: sum(_option(word) is not None for word in words), default=()))


def _is_program(word: Word) -> bool:
    return word.text.endswith(".py") and not word.text.startswith("-")


def _typed(word: str) -> Word:
    # A pasted ``"$@"`` that no shell has replaced is marked.
    bare = word[1:-1] if len(word) > 1 and word[0] == word[-1] == '"' else word
    return Word(bare, (bare,)) if _ALL_WORDS.fullmatch(bare) else Word(word)


def _parse(words: Sequence[Word]) -> tuple[dict[str, Any], list[str], list[str]]:
    # Of an option given twice the last one counts, as for argparse.
    values: dict[str, Any] = {}
    notes, unseen = [], []
    for at, word in enumerate(words):
        attribute = _option(word)
        if attribute is not None:
            values[attribute] = _value(attribute, list(_operands(words, at)))
        elif _holds_all_words(word):
            unseen.append(word.text)
        elif _may_hide_arguments(words, at):
            notes.append(f"{word.text} is not set in the text: its arguments are not checked")
        elif word.text.startswith("--") and word.text[2:].partition("=")[0].replace("-", "_") in _KINDS:
            notes.append(f"{word.text} is spelled with underscores, which Megatron does not accept")
    return values, notes, unseen


def _holds_all_words(word: Word) -> bool:
    # A script's own arguments, or an array that the text does not set.
    return word.unknown == (word.text,) and _ALL_WORDS.fullmatch(word.text) is not None


def _may_hide_arguments(words: Sequence[Word], at: int) -> bool:
    word, before = words[at], words[at - 1].text if at else ""
    if not word.unknown or word.text != word.unknown[0]:
        return False
    return _ARGUMENTS_NAME.search(word.text) is not None or not before.startswith("--") or "=" in before


def _operands(words: Sequence[Word], at: int) -> Iterator[Word]:
    name, separator, value = words[at].text.partition("=")
    if separator:
        yield Word(value, words[at].unknown)
        return
    for number, word in enumerate(words[at + 1 :]):
        if _is_option(word.text) or (number and _holds_all_words(word)):
            return
        yield word
        if _KINDS[name[2:].replace("-", "_")] != _LIST:
            return


def _is_option(text: str) -> bool:
    # As argparse decides: not a lone hyphen, a negative number, or a text with blanks.
    if _OPTION_WITH_VALUE.match(text):
        return True
    return len(text) > 1 and text[0] == "-" and " " not in text and not _NEGATIVE_NUMBER.fullmatch(text)


def _value(attribute: str, words: list[Word]) -> Any:
    option = "--" + attribute.replace("_", "-")
    for word in words:
        if word.unknown and _KINDS[attribute] != _FLAG:
            raise UsageError(
                f"cannot read {option}: the text does not set {word.unknown[0]}, got {word.text!r}",
                hint="paste the command with its values (`bash -x script` prints it), or the block of "
                "arguments that the job prints when it starts",
            )
    if _KINDS[attribute] == _FLAG:
        return True
    if _KINDS[attribute] == _LIST:
        return tuple(word.text for word in words)
    if not words:
        raise UsageError(f"{option} requires a value")
    return _converted(attribute, words[0].text)


def _converted(attribute: str, text: str) -> Any:
    option = "--" + attribute.replace("_", "-")
    if _TYPES[attribute].startswith("int"):
        return _integer(option, text)
    if _TYPES[attribute].startswith("float"):
        try:
            return float(text)
        except ValueError:
            raise UsageError(f"{option} must be a number, got {text!r}") from None
    return text


def _integer(option: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(
            f"{option} must be an integer, got {text!r}",
            hint="write all digits: Megatron does not accept 1e6 or 1M here",
        ) from None


def _world_size(wrapper: Sequence[Word]) -> int | None:
    # Nodes times processes per node, or the processes of srun and mpirun.
    found: dict[str, str] = {}
    for word, following in zip(wrapper, (*wrapper[1:], Word("")), strict=False):
        name, separator, value = word.text.partition("=")
        found[name.lstrip("-").replace("_", "-") if name.startswith("-") else name] = (
            value if separator else following.text
        )
    names = {word.text.rsplit("/", 1)[-1] for word in wrapper}
    if names & _LAUNCHERS:
        return _product(found.get("nnodes", "1"), found.get("nproc-per-node", "1"))
    if "WORLD_SIZE" in found:
        return _product(found["WORLD_SIZE"])
    if "srun" in names:
        total = found.get("ntasks", found.get("n"))
        nodes, per_node = found.get("nodes", found.get("N")), found.get("ntasks-per-node")
        if total is not None:
            return _product(total)
        return _product(nodes, per_node) if nodes and per_node else None
    if names & {"mpirun", "mpiexec"}:
        return _product(found.get("np", found.get("n", "")))
    return None


def _product(*numbers: str) -> int | None:
    result = 1
    for number in numbers:
        if not number.isdecimal() or int(number) < 1:
            return None
        result *= int(number)
    return result


def _literal(text: str) -> Any:
    # Megatron printed the value with ``str``; what is not a literal is a text.
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return text


def _from_values(values: Mapping[str, Any]) -> LaunchArguments:
    # None and unknown names count as not given.
    given: dict[str, Any] = {}
    for name, value in values.items():
        attribute = _ALIASES.get(name, name)
        if attribute in _ATTRIBUTES and value is not None:
            given[attribute] = _checked(attribute, value)
    if values.get("no_data_sharding") is None and values.get("data_sharding") is False:
        given["no_data_sharding"] = True
    if not given:
        raise UsageError("no argument of a Megatron training job found in the text")
    return LaunchArguments(**given, is_completed=True)


def _checked(attribute: str, value: Any) -> Any:
    wanted = _TYPES[attribute]
    if wanted.startswith("tuple") and isinstance(value, list | tuple):
        return tuple(map(str, value))
    if wanted.startswith("str") and isinstance(value, list | tuple):  # phase_transition_iterations, parsed
        return ",".join(map(str, value))
    if wanted == "bool" and isinstance(value, bool):
        return value
    if wanted.startswith("int") and type(value) is int:
        return value
    if wanted.startswith("float") and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if wanted.startswith("str") and not isinstance(value, bool | dict):
        return str(value)
    raise UsageError(f"{attribute} must be {wanted.partition(' |')[0]}, got {value!r}")
