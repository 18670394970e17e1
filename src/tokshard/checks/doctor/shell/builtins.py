"""Commands of the shell itself, and the output of simple programs."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from tokshard.checks.doctor.shell.arithmetic import calculated
from tokshard.checks.doctor.shell.conditions import ExitStatus
from tokshard.checks.doctor.shell.state import UNKNOWN_OUTPUT, State
from tokshard.checks.doctor.shell.values import (
    Value,
    Word,
    distinct,
    joined_values,
    known,
    reasons_of,
    scalar,
    text_of,
    unknown_variable,
    value_of,
    value_of_script,
    written_text,
)

_FORMAT = re.compile(r"%[sd%]|\\[nt]|[^%\\]+|.", re.DOTALL)
_CHARACTERS = {"%%": "%", r"\n": "\n", r"\t": "\t"}
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,8})")
_BLANKS = " \t\n"


def run_builtin(  # noqa: C901, PLR0912 - a table
    words: Sequence[Word], text: str | None, state: State
) -> ExitStatus | None:
    """Run a command of the shell itself, with its here-document; None if it is not one."""
    name = words[0].text
    operands = words[1:]
    match name:
        case "true" | "false" | ":":
            return ExitStatus(name != "false")
        case "exit" | "return" | "break" | "continue":
            state.flow = name
        case "set":
            _set(operands, state)
        case "shift":
            return _shift(operands, state)
        case "unset":
            for word in operands:
                variable, bracket, _ = word.text.partition("[")
                state.assign(variable, unknown_variable(variable, ("`unset`",)) if bracket else ())
                state.exported -= {variable}
        case "read" | "mapfile" | "readarray" | "getopts":
            _read(name, operands, text, state)
        case "cd" | "pushd" | "popd":
            _change_directory(name, operands, state)
        case "pwd":
            directory = state.directory
            if directory is not None and Word("-P") in operands:
                directory = os.path.realpath(directory)
            state.print(UNKNOWN_OUTPUT if directory is None else known(f"{directory}\n"))
        case "echo":
            state.print(_echoed(list(map(value_of, operands))))
        case "printf" if operands[:1] == [Word("-v")]:
            state.forget([word.text.partition("[")[0] for word in operands[1:2]], ("`printf -v`",))
        case "printf":
            state.print(_formatted(list(map(value_of, operands)), state))
        case "trap":
            state.print(UNKNOWN_OUTPUT)
        case _:
            return None
    return ExitStatus.of_program(name)


def _set(operands: Sequence[Word], state: State) -> None:
    takes_name = False
    for number, word in enumerate(operands):
        if takes_name and word.text == "nounset":
            state.requires_set = operands[number - 1].text.startswith("-")
        elif word.text == "--" or (not takes_name and not word.text.startswith(("-", "+"))):
            state.parameters = parameters_of(operands[number + (word.text == "--") :])
            return
        elif "u" in word.text and not takes_name:
            state.requires_set = word.text.startswith("-")
        takes_name = not takes_name and word.text.endswith("o")


def parameters_of(words: Sequence[Word]) -> tuple[Value, ...] | None:
    """Return the positional parameters that words become; None if their number is unknown."""
    return None if any(word.is_open for word in words) else tuple(map(value_of, words))


def _shift(operands: Sequence[Word], state: State) -> ExitStatus:
    count = operands[0].text if operands else "1"
    if state.parameters is None or not count.isdecimal():
        state.parameters = None
        return ExitStatus.of_program("shift")
    if int(count) > len(state.parameters):
        return ExitStatus(False)
    state.parameters = state.parameters[int(count) :]
    return ExitStatus(True)


def _read(name: str, operands: Sequence[Word], script: str | None, state: State) -> None:
    """Set the variables of ``read`` and ``mapfile``: unknown unless text and options are plain."""
    flags = "".join(word.text[1:] for word in operands if word.text.startswith("-"))
    names = [word.text for word in operands if word.text.isidentifier()]
    names = names or ["REPLY" if name == "read" else "MAPFILE"]
    value = value_of_script(script or "")
    state.forget(names, reasons_of(value) or (f"`{name}`",))
    text = text_of(value)
    if script is None or name == "getopts":
        return
    separators = text_of(scalar(state.variables.get("IFS") or (known(_BLANKS),), "IFS"))
    if name == "read" and set(flags) == set("rd") and Word("") in operands and len(names) == 1:
        if separators == _BLANKS:  # read -r -d '' NAME <<END: the text
            state.assign(names[0], (value_of_script(script.strip(_BLANKS)),))
        return
    if text is None:
        return
    state.run.spend(6 * len(text))
    lines = text.split("\n")
    if name != "read":
        if flags == "t":
            state.assign(names[0], tuple(map(known, lines[:-1])))
    elif set(flags) <= set("ra") and ("r" in flags or "\\" not in text):
        count = 0 if "a" in flags else len(names)
        fields = _fields(lines[0], separators, count)
        if fields is not None and "a" in flags:
            state.assign(names[0], tuple(map(known, fields if lines[0] else ())))
        elif fields is not None:
            for variable, field in zip(names, [*fields, *[""] * count], strict=False):
                state.assign(variable, (known(field),))


def _fields(line: str, separators: str | None, count: int) -> list[str] | None:
    """Return the fields of a line, at most ``count`` unless it is 0; None if they are unknown."""
    if separators == _BLANKS:
        line = line.strip(" \t")
        return [line] if count == 1 else re.split(r"[ \t]+", line, maxsplit=max(count - 1, 0))
    if separators == "":
        return [line]
    if separators is None or len(separators) > 1 or separators.isspace() or line.endswith(separators):
        return None
    return line.split(separators, count - 1)


def _change_directory(name: str, operands: Sequence[Word], state: State) -> None:
    words = [word for word in operands if word.text not in ("--", "-L", "-P", "-e")]
    reasons = distinct(reason for word in words for reason in word.unknown) or (f"`{name}`",)
    target = text_of(value_of(words[0])) if len(words) == 1 else None
    if not words and name == "cd":
        target = text_of(scalar(state.variables.get("HOME", ()), "HOME")) or None
    is_searched = any(state.variables.get("CDPATH", ())) and not (target or "").startswith(("/", "."))
    if target is None or target == "-" or is_searched or name == "popd":
        directory = None
    elif os.path.isabs(target) or state.directory is not None:
        directory = os.path.normpath(os.path.join(state.directory or "/", target))
        directory = os.path.realpath(directory) if Word("-P") in operands else directory
    else:
        directory = None
    state.enter(directory, reasons)
    if name != "cd" or target == "-" or is_searched:
        state.print(UNKNOWN_OUTPUT)  # the directory


def _echoed(values: Sequence[Value]) -> Value:
    options = ""
    while values and re.fullmatch(r"-[neE]+", written_text(values[0])):
        options += written_text(values[0])
        values = values[1:]
    value = joined_values(values)
    if "e" in options and "\\" in written_text(value):
        return UNKNOWN_OUTPUT
    return value if "n" in options else (*value, *known("\n"))


def _formatted(values: Sequence[Value], state: State) -> Value:
    """Return the output of ``printf``, which repeats its format for all values."""
    form = text_of(values[0]) if values else None
    tokens = _FORMAT.findall(form or "")
    operands = values[1:]
    fields = sum(token in ("%s", "%d") for token in tokens)
    rounds = len(operands) // fields if fields else 1
    is_filled = not fields or (rounds > 0 and rounds * fields == len(operands))
    if form is None or form.startswith("-") or "%" in tokens or "\\" in tokens or not is_filled:
        return UNKNOWN_OUTPUT
    state.run.spend(rounds * (len(form) + len(tokens)))
    remaining = iter(operands)
    printed: list[Value] = []
    for token in tokens * rounds:
        value = next(remaining) if token in ("%s", "%d") else known(_CHARACTERS.get(token, token))
        if token == "%d" and not _NUMBER.fullmatch(text_of(value) or ""):  # noqa: S105 - a format
            return UNKNOWN_OUTPUT
        printed.append(value)
    state.run.spend_on(*printed)
    return tuple(piece for value in printed for piece in value)


def output_of(words: Sequence[Word], text: str | None, state: State) -> Value:
    """Return the output of a program, as far as it is known without running it."""
    if words[0].text == "cat" and len(words) == 1 and text is not None:
        return value_of_script(text)
    texts = [word.text for word in words if word.text != "--"]
    if any(word.unknown for word in words) or texts[-1].startswith("-"):
        return UNKNOWN_OUTPUT
    output = None
    match texts:
        case "dirname", path:
            output = os.path.dirname(path.rstrip("/")) or ("/" if path.startswith("/") else ".")
        case ("realpath", path) | ("realpath", "-e" | "-m", path) | ("readlink", "-f" | "-e" | "-m", path):
            if os.path.isabs(path) or state.directory is not None:
                output = os.path.realpath(os.path.join(state.directory or "/", path))
        case ("basename", path, *suffix) if len(suffix) < 2 and not path.startswith("-"):
            base = os.path.basename(path.rstrip("/")) or path[:1]
            output = base if [base] == suffix else base.removesuffix("".join(suffix))
        case "expr", one, sign, other:
            output = calculated(sign, one, other)
        case "seq", *numbers if len(numbers) < 3 and all(map(_NUMBER.fullmatch, numbers)):
            counted = range(int(numbers[0]) if numbers[1:] else 1, int(numbers[-1]) + 1)
            state.run.spend(len(counted))
            output = "\n".join(map(str, counted))
    return UNKNOWN_OUTPUT if output is None else known(f"{output}\n")
