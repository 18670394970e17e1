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
    script_of,
    text_of,
    unknown_variable,
    value_of,
    value_of_script,
    written_text,
)

_SILENT = frozenset({"module", "wait", "trap"})  # They change no variables, and print nothing.
_FORMAT = re.compile(r"%[sd%]|\\[nt]|[^%\\]+|.", re.DOTALL)
_CHARACTERS = {"%%": "%", r"\n": "\n", r"\t": "\t"}
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,8})")


def run_builtin(  # noqa: C901, PLR0912 - a table
    words: Sequence[Word], text: str | None, state: State
) -> ExitStatus | None:
    """Run a command of the shell itself; None if it is not one.

    Args:
        words: The command.
        text: Its here-document or here-string, as of ``script_of``, if it has one.
        state: The state of the script, which the command changes.
    """
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
            if directory is not None and [word.text for word in operands] == ["-P"]:
                directory = os.path.realpath(directory)
            state.print(UNKNOWN_OUTPUT if directory is None else known(f"{directory}\n"))
        case "echo":
            state.print(_echoed(list(map(value_of, operands))))
        case "printf":
            _print_formatted(list(map(value_of, operands)), state)
        case "umask" | "ulimit":
            state.print(UNKNOWN_OUTPUT)
        case _ if name not in _SILENT:
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


def _read(  # noqa: C901, PLR0912 - the options decide
    name: str, operands: Sequence[Word], script: str | None, state: State
) -> None:
    """Set the variables of ``read`` and ``mapfile``: they are unknown unless the text is."""
    takes_operand = "dnNptui" if name == "read" else "dnOsucC"
    flags = ""
    names = list[str]()
    pending = ""
    for word in operands:
        if pending:
            pending = ""
        elif word.text.startswith("-"):
            flags += word.text[1:]
            pending = flags[-1:] if flags[-1:] in takes_operand else ""
        elif word.text.isidentifier():
            names.append(word.text)
    value = value_of_script(script or "")
    names = names or ["REPLY" if name == "read" else "MAPFILE"]
    state.forget(names, reasons_of(value) or (f"`{name}`",))
    text = text_of(value)
    if script is None or (text is not None and "\\" in text and name == "read" and "r" not in flags):
        return
    if name == "read" and set(flags) <= set("rd") and "d" in flags and Word("") in operands:
        if len(names) == 1 and not state.variables.get("IFS"):  # read -d '' NAME <<END: the whole text
            state.assign(names[0], (value_of_script(script_of(value).strip(" \t\n")),))
        return
    lines = [] if text is None else text.split("\n")
    state.run.spend(6 * len(text or ""))
    if name in ("mapfile", "readarray") and flags == "t" and len(names) == 1:
        if text is not None:
            state.assign(names[0], tuple(map(known, lines[:-1])))
    elif name == "read" and set(flags) <= set("ra") and lines:
        is_array = "a" in flags
        separators = text_of(state.variables["IFS"][0]) if state.variables.get("IFS") else " \t\n"
        fields = _fields(lines[0], separators, 0 if is_array else len(names))
        if fields is not None and is_array and len(names) == 1:
            state.assign(names[0], tuple(map(known, filter(None, fields) if fields == [""] else fields)))
        elif fields is not None and not is_array:
            for number, variable in enumerate(names):
                state.assign(variable, (known("".join(fields[number : number + 1])),))


def _fields(line: str, separators: str | None, count: int) -> list[str] | None:
    """Return the fields of a line, at most ``count`` unless it is 0; None if they are unknown."""
    if separators is not None and set(separators) == set(" \t\n"):
        line = line.strip(" \t")
        return [line] if count == 1 else re.split(r"[ \t]+", line, maxsplit=max(count - 1, 0))
    if separators == "":
        return [line]
    if separators is None or len(separators) > 1 or separators.isspace() or line.endswith(separators):
        return None
    return line.split(separators, count - 1)


def _change_directory(name: str, operands: Sequence[Word], state: State) -> None:
    options = [word.text for word in operands if word.text in ("--", "-L", "-P", "-e")]
    words = [word for word in operands if word.text not in options]
    reasons = distinct(reason for word in words for reason in word.unknown) or (f"`{name}`",)
    target = None if words and (words[0].unknown or len(words) > 1) else words[0].text if words else ""
    directory = None
    if name == "popd":
        directory = state.pushed[-1] if state.pushed and not words else None
        state.pushed = state.pushed[:-1]
        target = None
    elif name == "pushd":
        state.pushed += (state.directory,)
        target = target or None
    elif not words or target == "-":
        target = text_of(scalar(state.variables.get("OLDPWD" if words else "HOME", ()), "")) or None
    is_searched = any(state.variables.get("CDPATH", ())) and not (target or "").startswith(("/", "."))
    is_relative = target is not None and not os.path.isabs(target)
    if target is not None and not is_searched and not (is_relative and state.directory is None):
        directory = os.path.normpath(os.path.join(state.directory or "/", target))
        directory = os.path.realpath(directory) if "-P" in options else directory
    state.enter(directory, reasons)
    if name != "cd" or Word("-") in words or is_searched:
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


def _print_formatted(values: list[Value], state: State) -> None:
    """Run ``printf``."""
    texts = list(map(written_text, values[:2]))
    variable = texts[1] if texts[:1] == ["-v"] and len(texts) > 1 else None
    values = values[0 if variable is None else 2 :]
    printed = _formatted(values[1:] if values and written_text(values[0]) == "--" else values, state)
    if variable is None:
        state.print(printed)
    elif printed == UNKNOWN_OUTPUT or not variable.isidentifier():
        state.forget([variable.partition("[")[0]], ("`printf`",))
    else:
        state.assign(variable, (printed,))


def _formatted(values: Sequence[Value], state: State) -> Value:
    """Return the output of ``printf``, which repeats its format for all values."""
    form = text_of(values[0]) if values else None
    tokens = _FORMAT.findall(form or "")
    if form is None or form.startswith("-") or any(token in ("%", "\\") for token in tokens):
        return UNKNOWN_OUTPUT
    operands = list(values[1:])
    fields = sum(token in ("%s", "%d") for token in tokens)
    rounds = max(1, -(-len(operands) // fields)) if fields else 1
    state.run.spend(rounds * (len(form) + len(tokens)))
    remaining = iter(operands)
    printed: list[Value] = []
    for token in tokens * rounds:
        if token not in ("%s", "%d"):
            printed.append(known(_CHARACTERS.get(token, token)))
            continue
        value = next(remaining, ())
        if token == "%d":  # noqa: S105 - a format
            value = value or known("0")
            if not _NUMBER.fullmatch(text_of(value) or ""):
                return UNKNOWN_OUTPUT
        printed.append(value)
    state.run.spend_on(*printed)
    return tuple(piece for value in printed for piece in value)


def output_of(words: Sequence[Word], text: str | None, state: State) -> Value:
    """Return the output of a program, as far as it is known without running it."""
    program = words[0].text
    operands = [text_of(value_of(word)) for word in words[1:]]
    texts = [operand for operand in operands if operand is not None]
    if program == "cat" and not operands and text is not None:
        return value_of_script(text)
    if program in ("readlink", "realpath"):
        options = {option for option in texts if option.startswith("-")}
        if options <= {"--", "-f", "-e", "-m"} and (program == "realpath" or options - {"--"}):
            texts = [option for option in texts if option not in options]
            program = "realpath"
    elif texts[:1] == ["--"]:
        texts = texts[1:]
    if None in operands or any(option.startswith("-") for option in texts):
        return UNKNOWN_OUTPUT
    output = None
    match program, *texts:
        case "dirname", path:
            output = os.path.dirname(path.rstrip("/")) or ("/" if path.startswith("/") else ".")
        case "realpath", path if os.path.isabs(path) or state.directory is not None:
            output = os.path.realpath(os.path.join(state.directory or "/", path))
        case ("basename", path) | ("basename", path, _):
            base = os.path.basename(path.rstrip("/")) or path[:1]
            output = base if [base] == texts[1:] else base.removesuffix("".join(texts[1:]))
        case "expr", one, sign, other:
            output = calculated(sign, one, other)
        case ("seq", last) | ("seq", _, last) if all(map(_NUMBER.fullmatch, texts)):
            numbers = range(int(texts[0]) if len(texts) > 1 else 1, int(last) + 1)
            state.run.spend(len(numbers))
            output = "\n".join(map(str, numbers))
    return UNKNOWN_OUTPUT if output is None else known(f"{output}\n")
