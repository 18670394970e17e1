"""Commands of the shell itself that change its state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokshard.preflight.shell.state import Flow, State
from tokshard.preflight.shell.values import Variable, Word, value_of

# They change no variables, and run nothing.
_SILENT = frozenset({"echo", "printf", "cd", "pushd", "popd", "module", "ulimit", "umask", "wait", "trap"})


_FLOWS: Mapping[str, Flow] = {
    "exit": "exit",
    "return": "return",
    "break": "break",
    "continue": "continue",
}


@dataclass(frozen=True, slots=True)
class Done:
    """The end of a command: success, failure, or None if that is unknown."""

    outcome: bool | None


def run_builtin(words: Sequence[Word], text: str | None, state: State) -> Done | None:
    """Run a command of the shell itself; None if it is not one.

    Args:
        words: The command.
        text: Its here-document, if it has one.
        state: The state of the script, which the command changes.
    """
    name, operands = words[0].text, words[1:]
    if name in ("true", "false", ":"):
        return Done(name != "false")
    if name in _FLOWS:
        state.flow = _FLOWS[name]
    elif name == "set":
        _set_parameters(operands, state)
    elif name == "shift":
        return Done(_shift(operands, state))
    elif name == "unset":
        for word in operands:
            _unset(word.text, state)
    elif name in ("read", "mapfile", "readarray", "getopts"):
        _read(operands, text, state)
    elif name not in _SILENT:
        return None
    elif [word.text for word in operands[:1]] == ["-v"]:  # printf
        state.forget(word.text for word in operands[1:2])
    return Done(None)


def _unset(text: str, state: State) -> None:
    name, bracket, key = text.partition("[")
    found = state.lookup(name)
    if bracket and found is not None and not found.is_unknown:
        kept = {other: value for other, value in found.elements.items() if other != key.rstrip("]")}
        state.assign(name, Variable(kept))
        return
    state.assign(name, Variable())
    state.exported -= {name}


def _read(operands: Sequence[Word], text: str | None, state: State) -> None:
    names = [word.text for word in operands if word.text.isidentifier()]
    state.forget(names)
    if text is not None and len(names) == 1 and Word("-d") in operands:
        # read -d '' NAME <<END: the whole text
        state.assign(names[0], Variable.of(text.strip()))


def _set_parameters(operands: Sequence[Word], state: State) -> None:
    if Word("--") not in operands:
        return
    words = operands[list(operands).index(Word("--")) + 1 :]
    is_open = any(word.is_open for word in words)
    state.set_parameters(None if is_open else tuple(map(value_of, words)))


def _shift(operands: Sequence[Word], state: State) -> bool | None:
    count = operands[0].text if operands else "1"
    if state.parameters is None or not count.isdecimal():
        state.set_parameters(None)
        return None
    if int(count) > len(state.parameters):
        return False
    state.set_parameters(state.parameters[int(count) :])
    return True
