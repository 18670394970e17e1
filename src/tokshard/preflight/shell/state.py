"""State of a shell script at one place: variables, parameters, functions and the branches taken so far."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tokshard.preflight.shell.values import Value, Variable, Word, text_of, unknown

_LAUNCHER = re.compile(r"WORLD_SIZE|PET_\w+")
_PARAMETER = re.compile(r"\$\{?#?[0-9@*#]")

# Of a variable: a loop may double it in each round.
_MAX_CHARACTERS = 1 << 20
_MAX_PIECES = 1 << 16

Flow = Literal["exit", "return", "break", "continue"]


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """A command that a script runs.

    Attributes:
        words: Its words, after those of the wrappers that run it (such as ``srun bash -c``).
        wrappers: The words of the wrappers.
        line: The line of the script, from 1.
        scheduler: The variables of the job scheduler that are known at this place.
    """

    words: tuple[Word, ...]
    wrappers: tuple[Word, ...]
    line: int
    scheduler: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class State:
    """The state of a script on one path through its branches.

    Attributes:
        variables: The variables that are set.
        exported: The names of those that commands inherit.
        parameters: The positional parameters; None if they are unknown.
        functions: The functions by name: the text they are in, and their bodies.
        files: The texts that the script writes to files, by the paths as written.
        branches: The undetermined conditions on this path, as written; "not ..." if they do not hold.
        assumed: The outcomes of undetermined conditions, by their operands.
        bound: The values that variables must have on this path, because a condition compares them.
        saved: The variables that the current function declares as its own, with their values outside of it;
            None outside of functions.
        flow: The reason why the following statements do not run.
        commands: The commands so far.
        has_unknown_source: Whether the script has read commands from a file that cannot be read here, which
            may have set any variable.
    """

    variables: dict[str, Variable] = field(default_factory=dict)
    exported: frozenset[str] = frozenset()
    parameters: tuple[Value, ...] | None = None
    functions: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    branches: tuple[str, ...] = ()
    assumed: dict[tuple[str, ...], bool] = field(default_factory=dict)
    bound: dict[str, str] = field(default_factory=dict)
    saved: dict[str, Variable | None] | None = None
    flow: Flow | None = None
    commands: tuple[ShellCommand, ...] = ()
    has_unknown_source: bool = False

    def fork(self, **changes: Any) -> State:
        """Return a copy that can be changed independently."""
        copied = State(
            dict(self.variables),
            self.exported,
            self.parameters,
            dict(self.functions),
            dict(self.files),
            self.branches,
            dict(self.assumed),
            dict(self.bound),
            None if self.saved is None else dict(self.saved),
            self.flow,
            self.commands,
            self.has_unknown_source,
        )
        for name, value in changes.items():
            setattr(copied, name, value)
        return copied

    def assign(self, name: str, variable: Variable) -> None:
        """Set a variable; conditions on its earlier value do not hold any more."""
        pieces = [piece for value in variable.elements.values() for piece in value]
        if len(pieces) > _MAX_PIECES or sum(len(piece.text) for piece in pieces) > _MAX_CHARACTERS:
            variable = Variable(is_unknown=True)
        self.variables[name] = variable
        self.bound.pop(name, None)
        if self.assumed:
            self.assumed = {key: value for key, value in self.assumed.items() if not _mentions(key, name)}

    def set_parameters(self, parameters: tuple[Value, ...] | None) -> None:
        """Set the positional parameters; conditions on earlier ones do not hold any more."""
        self.parameters = parameters
        if self.assumed:
            self.assumed = {key: v for key, v in self.assumed.items() if not _PARAMETER.search(" ".join(key))}

    def follow(self, child: State) -> State:
        """Return this state after a shell of its own: only commands and what was decided are shared."""
        return self.fork(
            commands=child.commands, branches=child.branches, assumed=child.assumed, bound=child.bound
        )

    def declare(self, name: str, *, is_assigned: bool) -> None:
        """Make a variable one of the current function; its new value may be made of the one outside."""
        if self.saved is not None and name not in self.saved:
            self.saved[name] = self.lookup(name)
            if not is_assigned:
                self.assign(name, Variable())

    def forget(self, names: Iterable[str]) -> None:
        """Make variables unknown."""
        for name in names:
            self.assign(name, Variable(is_unknown=True))

    def lookup(self, name: str) -> Variable | None:
        """Return a variable; None if it is not set here."""
        found = self.variables.get(name)
        if found is None and name in self.bound:
            return Variable.of(self.bound[name])
        return found

    def scheduler(self) -> tuple[tuple[str, str], ...]:
        """Return the known variables of the job scheduler, and exported ones that launchers read."""
        found = []
        for name in sorted(self.variables.keys() | self.bound.keys()):
            is_read = name.startswith("SLURM_") or (name in self.exported and _LAUNCHER.fullmatch(name))
            if is_read and (variable := self.lookup(name)) is not None:
                text = text_of(variable.elements.get("0", unknown(name)))
                if text:
                    found.append((name, text))
        return tuple(found)

    def changed_since(self, before: State) -> set[str]:
        """Return the names of the variables that differ from those of an earlier state."""
        pairs = (
            (name, self.variables.get(name), before.variables.get(name))
            for name in self.variables.keys() | before.variables.keys()
        )
        return {name for name, one, other in pairs if one is not other and one != other}


def _mentions(key: tuple[str, ...], name: str) -> bool:
    return any("$" in part and name in part for part in key)


def merge(states: list[State]) -> list[State]:
    """Return the states that differ; conditions that make no difference are dropped."""
    merged: list[State] = []
    for state in states:
        for number, other in enumerate(merged):
            if _same(state, other):
                merged[number] = _common(other, state)
                break
        else:
            merged.append(state)
    return merged


def _same(one: State, other: State) -> bool:
    return (
        one.flow == other.flow
        and one.commands == other.commands
        and one.variables == other.variables
        and one.parameters == other.parameters
        and one.files == other.files
        and one.exported == other.exported
        and one.has_unknown_source == other.has_unknown_source
        and one.functions.keys() == other.functions.keys()
    )


def _common(one: State, other: State) -> State:
    return one.fork(
        branches=tuple(branch for branch in one.branches if branch in other.branches),
        assumed=_shared(one.assumed, other.assumed),
        bound=_shared(one.bound, other.bound),
    )


def _shared(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> dict[Any, Any]:
    return {key: value for key, value in one.items() if key in other and other[key] == value}


def join(states: list[State]) -> State:
    """Return one state for all: variables that differ are unknown, and the commands of all count."""
    # What follows runs only where nothing has ended the script.
    ended = [state for state in states if state.flow == "exit"]
    alive = [state for state in states if state.flow != "exit"] or ended[:1]
    joined = alive[0].fork()
    for state in alive[1:]:
        joined.forget(state.changed_since(joined))
        joined.functions |= state.functions
        joined.files |= state.files
        joined.exported |= state.exported
        joined.has_unknown_source |= state.has_unknown_source
        if state.parameters != joined.parameters:
            joined.set_parameters(None)
        joined = _common(joined, state)
        joined.flow = state.flow if joined.flow == state.flow else None
    commands = (command for state in (*alive, *ended) for command in state.commands)
    joined.commands = tuple(dict.fromkeys(commands))
    return joined


def without_one_decision(states: list[State]) -> list[State]:
    """Return fewer states: those that differ in one condition only, which changes the least, are joined."""
    best: tuple[tuple[int, int], list[list[State]]] | None = None
    for decision in dict.fromkeys(_decision(branch) for state in states for branch in state.branches):
        found: dict[tuple[str, ...], list[State]] = {}
        for state in states:
            others = tuple(branch for branch in state.branches if _decision(branch) != decision)
            found.setdefault(others, []).append(state)
        groups = list(found.values())
        if len(groups) < len(states):
            changed = {
                name: state.variables.get(name)
                for first, *rest in groups
                for state in rest
                for name in state.changed_since(first)
            }
            cost = sum(map(_has_options, changed.values())), len(changed)
            if best is None or cost < best[0]:
                best = cost, groups
    return [join(states)] if best is None else [join(group) for group in best[1]]


def _decision(branch: str) -> str:
    return branch.removeprefix("not ")


def _has_options(variable: Variable | None) -> bool:
    # Options are what a script makes a command of; other values are made known again by a later condition.
    values = () if variable is None else variable.elements.values()
    return any("--" in piece.text for value in values for piece in value)
