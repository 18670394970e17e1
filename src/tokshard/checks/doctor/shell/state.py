"""State of a shell script at one place: its variables, parameters and functions."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any

from tokshard.checks.doctor.shell.values import (
    Value,
    Variable,
    Word,
    distinct,
    scalar,
    text_of,
    undecided_variable,
    unknown_variable,
)
from tokshard.errors import UsageError
from tokshard.storage.reading import read_small_file

_LAUNCHER = re.compile(r"WORLD_SIZE|PET_\w+")

# Of a variable: a loop may double it in each round.
_MAX_CHARACTERS = 1 << 20
_SIZE_OF_UNKNOWN = 16

# They set up tools, and no arguments of a job.
_HARMLESS = re.compile(
    r"(?:^|/)(?:\.?bashrc|\.?bash_profile|\.?profile|activate|conda\.sh|setvars\.sh|modules\.sh|bash)$"
)
_MAX_STEPS = 50_000

_MISSING = object()

Branch = Callable[["State"], Any]


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """A command that a script runs.

    Attributes:
        words: Its words, after those of the wrappers that run it (such as ``srun bash -c``).
        wrappers: The words of the wrappers.
        line: The line of the script, from 1.
        scheduler: The variables of the job scheduler that are known at this place.
        conditions: For each undecided condition under which it runs, the expansions that decide it;
            none if the other branches end the script.
    """

    words: tuple[Word, ...]
    wrappers: tuple[Word, ...]
    line: int
    scheduler: tuple[tuple[str, str], ...] = ()
    conditions: tuple[Sequence[str], ...] = ()


@dataclass(frozen=True, slots=True)
class ShellReading:
    """Result of reading a script.

    Attributes:
        commands: The commands that it runs, in order.
        unread: Scripts that it runs or sources and that do not exist on this machine.
        problems: Variables that are not set although ``set -u`` is in effect, and that have the name of
            another but for a typing mistake: the line, the name, and the near name.
    """

    commands: tuple[ShellCommand, ...]
    unread: tuple[str, ...] = ()
    problems: tuple[tuple[int, str, str], ...] = ()


@dataclass(slots=True)
class State:
    """The state of a script at one place.

    Attributes:
        variables: The variables that are set.
        exported: The names of those that commands inherit.
        parameters: The positional parameters; None if they are unknown.
        functions: The bodies of the functions by name: several if an undecided condition decides which of
            them counts, None where the function is not defined.
        saved: The variables that the current function declares as its own, with their values outside of it;
            None outside of functions.
        flow: The command that ended it: exit, return, break or continue.
        has_unknown_source: Whether the script has read commands from a file that cannot be read here, which
            may have set any variable.
    """

    variables: dict[str, Variable] = field(default_factory=dict)
    exported: frozenset[str] = frozenset()
    parameters: tuple[Value, ...] | None = None
    functions: dict[str, tuple[Branch | None, ...]] = field(default_factory=dict)
    saved: dict[str, Variable | None] | None = None
    flow: str | None = None
    has_unknown_source: bool = False

    def fork(self) -> State:
        """Return a copy that can be changed independently."""
        saved = None if self.saved is None else dict(self.saved)
        return replace(self, variables=dict(self.variables), functions=dict(self.functions), saved=saved)

    def assign(self, name: str, variable: Variable) -> None:
        """Set a variable."""
        pieces = (piece for value in variable for piece in value)
        size = sum(_SIZE_OF_UNKNOWN if piece.is_unknown else len(piece.text) for piece in pieces)
        if size > _MAX_CHARACTERS:
            variable = unknown_variable(name, (f"`{name}=...`",))
        self.variables[name] = variable

    def declare(self, name: str, *, is_assigned: bool) -> None:
        """Make a variable one of the current function; its new value may be made of the one outside."""
        if self.saved is not None and name not in self.saved:
            self.saved[name] = self.variables.get(name)
            if not is_assigned:
                self.assign(name, ())

    def forget(self, names: Iterable[str], reasons: tuple[str, ...]) -> None:
        """Make variables unknown."""
        for name in names:
            self.assign(name, unknown_variable(name, reasons))

    def scheduler(self) -> tuple[tuple[str, str], ...]:
        """Return the known variables of the job scheduler, and exported ones that launchers read."""
        found = []
        for name, variable in sorted(self.variables.items()):
            if name.startswith("SLURM_") or (name in self.exported and _LAUNCHER.fullmatch(name)):
                text = text_of(scalar(variable, name))
                if text:
                    found.append((name, text))
        return tuple(found)

    def changed_since(self, before: State) -> set[str]:
        """Return the names of the variables that differ from those of an earlier state."""
        names = self.variables.keys() | before.variables.keys()
        return {name for name in names if self.variables.get(name) != before.variables.get(name)}

    def join(self, ends: Sequence[State], reasons: tuple[str, ...]) -> None:
        """Become the state after one of several ends: what differs between them is unknown.

        Args:
            ends: The alternatives.
            reasons: The expansions that decide between them.
        """
        first = ends[0]
        for f in fields(self):
            setattr(self, f.name, getattr(first, f.name))
        self.variables = _joined([end.variables for end in ends], reasons)
        if self.saved is not None:
            self.saved = _joined([end.saved or {} for end in ends], reasons)
        for name in {name for end in ends for name in end.functions}:
            bodies = (body for end in ends for body in end.functions.get(name, (None,)))
            self.functions[name] = tuple(dict.fromkeys(bodies))
        if any(end.parameters != first.parameters for end in ends):
            self.parameters = None
        self.exported = frozenset().union(*(end.exported for end in ends))
        self.has_unknown_source = any(end.has_unknown_source for end in ends)


@dataclass(slots=True)
class ScriptRun:
    """A script as far as it is read: what all its texts share.

    Attributes:
        directory: The directory of the script; None if it is not a file.
        given: The names of the variables that the caller sets.
        commands: The commands so far.
        conditions: For each undecided condition around the current statement, the expansions that decide it.
        left: The states in which an undecided branch has left a loop or a function, with what decides it.
        written: The files that the script writes.
        unread: Scripts that the script runs or sources and that are not here.
    """

    directory: str | None
    given: frozenset[str]
    commands: list[ShellCommand] = field(default_factory=list)
    conditions: list[list[str]] = field(default_factory=list)
    left: list[tuple[State, tuple[str, ...]]] = field(default_factory=list)
    written: set[str] = field(default_factory=set)
    unread: dict[str, None] = field(default_factory=dict)
    steps: int = 0

    def step(self) -> None:
        """Count a statement."""
        self.steps += 1
        if self.steps > _MAX_STEPS:
            raise UsageError(
                f"the launch script runs more than {_MAX_STEPS:,} commands, which is too many to follow",
                hint="pass the command that starts the job alone",
            )

    def settle(self, ends: Sequence[State], reasons: tuple[str, ...], state: State) -> None:
        """Continue a state after one of several ends of it. A branch that ends the script is not taken."""
        staying = [end for end in ends if end.flow is None]
        leaving = [end for end in ends if end.flow not in (None, "exit")]
        if not staying:
            staying, leaving = leaving[-1:] or list(ends[:1]), leaving[:-1]
        self.left += [(end, reasons) for end in leaving]
        state.join(staying, reasons)

    @contextmanager
    def catching(self, flows: Collection[str], state: State, leave: Branch | None = None) -> Iterator[None]:
        """Continue a state after statements that it may leave by one of several flows.

        Args:
            flows: The flows that end here.
            state: The state.
            leave: A function that is called with each state at its end.
        """
        outer, self.left = self.left, []
        yield
        caught = [(end, reasons) for end, reasons in self.left if end.flow in flows]
        self.left = [*outer, *((end, reasons) for end, reasons in self.left if end.flow not in flows)]
        ends = [state.fork(), *(end for end, _ in caught)] if caught else [state]
        for end in ends:
            end.flow = None if end.flow in flows else end.flow
            if leave is not None:
                leave(end)
        if caught:
            self.settle(ends, distinct(reason for _, reasons in caught for reason in reasons), state)

    def content(self, path: str) -> str | None:
        """Return the content of a script that the script runs or sources; None if it is not here."""
        if path in self.written:
            return None  # it was read where it is written
        # The path is relative to the script, or as $0 to the directory in which doctor runs.
        places = [os.path.join(self.directory, path), path] if self.directory is not None else []
        file = next(filter(os.path.isfile, places), None)
        if file is None:
            if not _HARMLESS.search(path):
                self.unread[path] = None
            return None
        return read_small_file(file, "script").decode("utf-8", "replace")


def _joined(ends: Sequence[Mapping[str, Any]], reasons: tuple[str, ...]) -> dict[str, Any]:
    joined = dict(ends[0])
    for name in {name for end in ends for name in end}:
        values = [end.get(name, _MISSING) for end in ends]
        if any(value is not values[0] and value != values[0] for value in values):
            variables = [None if value is _MISSING else value for value in values]
            joined[name] = undecided_variable(name, variables, reasons)
    return joined
