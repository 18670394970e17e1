"""State of a shell script at one point: its variables, parameters and functions."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any

from tokshard.checks.doctor.shell.syntax import ShellText
from tokshard.checks.doctor.shell.values import (
    Piece,
    Value,
    Variable,
    Word,
    distinct,
    known,
    scalar,
    text_of,
    undecided_variable,
    unknown_variable,
)
from tokshard.errors import UsageError
from tokshard.storage.reading import read_small_file

_LAUNCHER = re.compile(r"WORLD_SIZE|PET_\w+")
# They set up tools, and no arguments of a job.
_HARMLESS = re.compile(
    r"(?:^|/)(?:\.?bashrc|\.?bash_profile|\.?profile|activate|conda\.sh|setvars\.sh|modules\.sh|bash)$"
)

# The work that one script may cause, in about half a microsecond: pieces of values also take memory.
_MAX_WORK = 7_000_000
_WORK_OF_STATEMENT = 50
_WORK_OF_PIECE = 16
_WORK_OF_TEXT = 12_000  # a process of the parser
_LONG_TEXT = 100_000  # characters of a text within the script, of which one more is as much work as a piece
_TREE_BYTES = 10  # of a syntax tree, in a microsecond
_CHARACTERS = 32  # of values, in a microsecond
_LONG = 1_000_000  # characters of a value that take much memory

UNKNOWN_OUTPUT: Value = (Piece("", is_unknown=True),)
"""The output of a command that is not run."""

Branch = Callable[["State"], Any]


@dataclass(frozen=True, slots=True)
class ShellCommand:
    """A command that a script runs.

    Attributes:
        words: Its words, after those of the wrappers that run it (such as ``srun bash -c``).
        wrappers: The words of the wrappers.
        line: The line of the script, from 1.
        scheduler: The known variables of the job scheduler, and exported ones that launchers read.
        conditions: For each undecided condition under which it runs, the expansions that decide it;
            none if the other branches end the script.
        directory: The current directory; None if it is unknown.
    """

    words: tuple[Word, ...]
    wrappers: tuple[Word, ...]
    line: int
    scheduler: tuple[tuple[str, str], ...] = ()
    conditions: tuple[Sequence[str], ...] = ()
    directory: str | None = None


@dataclass(frozen=True, slots=True)
class ShellReading:
    """Result of reading a script.

    Attributes:
        commands: The commands that it runs, in order.
        unread: Scripts that it runs or sources and that do not exist on this machine.
        problems: Variables that are not set although ``set -u`` is in effect, and whose name is one typing
            mistake away from the name of another: the line, the name, and the near name.
    """

    commands: tuple[ShellCommand, ...]
    unread: tuple[str, ...] = ()
    problems: tuple[tuple[int, str, str], ...] = ()


@dataclass(slots=True)
class State:
    """The state of a script at one point.

    Attributes:
        saved: The variables that the current function declares as its own, with their values outside of it;
            None outside of functions.
        flow: The command that ended it: exit, return, break or continue.
        has_unknown_source: Whether the script has read commands from a file that does not exist on this
            machine and that may have set any variable.
        requires_set: Whether ``set -u`` is in effect.
        output: The output of the current command substitution; None outside of them.
    """

    run: ScriptRun
    variables: dict[str, Variable] = field(default_factory=dict)
    exported: frozenset[str] = frozenset()
    parameters: tuple[Value, ...] | None = None  # None if they are unknown
    # Several bodies if an undecided condition decides which of them counts, None for no function.
    functions: dict[str, tuple[Branch | None, ...]] = field(default_factory=dict)
    saved: dict[str, Variable | None] | None = None
    flow: str | None = None
    has_unknown_source: bool = False
    requires_set: bool = False
    output: Value | None = None

    def fork(self) -> State:
        """Return a copy that can be changed independently."""
        self.run.spend(2 * len(self.variables))
        saved = None if self.saved is None else dict(self.saved)
        return replace(self, variables=dict(self.variables), functions=dict(self.functions), saved=saved)

    def assign(self, name: str, variable: Variable) -> None:
        """Set a variable."""
        self.run.names[name] = None
        if name in self.run.aliased:
            variable = unknown_variable(name, ("`declare -n`",))
        elif name == "PWD" and variable != self.variables.get(name):
            variable = unknown_variable(name, ("`PWD=`",))  # it is not the current directory
        self.variables[name] = variable

    def export(self, name: str, text: str) -> None:
        """Set a variable that commands inherit."""
        self.assign(name, (known(text),))
        self.exported |= {name}

    def restore(self, variables: Mapping[str, Variable | None]) -> None:
        """Set variables to earlier values, None if they were not set."""
        for name, variable in variables.items():
            if variable is None:
                self.variables.pop(name, None)
            else:
                self.variables[name] = variable

    def forget(self, names: Iterable[str], reasons: tuple[str, ...]) -> None:
        """Make variables unknown."""
        for name in names:
            self.assign(name, unknown_variable(name, reasons))

    @property
    def directory(self) -> str | None:
        """The current directory; None if it is unknown."""
        return text_of(scalar(self.variables.get("PWD"), "PWD")) or None

    def enter(self, directory: str | None, reasons: tuple[str, ...] = ()) -> None:
        """Change the current directory, for the reasons why it is unknown."""
        self.forget(["OLDPWD", "PWD"], reasons)
        if directory is not None:
            self.variables["PWD"] = (known(directory),)

    def print(self, value: Value) -> None:
        """Add to the output of the current command substitution."""
        if self.output is not None:
            self.run.spend_on(value)
            self.output += value

    def scheduler(self) -> tuple[tuple[str, str], ...]:
        """Return the known variables of the job scheduler, and exported ones that launchers read."""
        self.run.spend(len(self.variables) // 10)
        texts = dict[str, str | None]()
        for name, variable in self.variables.items():
            if name.startswith("SLURM_") or (name in self.exported and _LAUNCHER.fullmatch(name)):
                texts[name] = text_of(scalar(variable, name))
        return tuple((name, text) for name, text in sorted(texts.items()) if text)

    def changed_since(self, before: State) -> set[str]:
        """Return the names of the variables that differ from those of an earlier state."""
        names = self.variables.keys() | before.variables.keys()
        return {name for name in names if self.variables.get(name) != before.variables.get(name)}

    def join(self, ends: Sequence[State], reasons: tuple[str, ...]) -> None:
        """Continue after one of several ends that does not end the script: what differs is unknown."""
        staying = [end for end in ends if end.flow is None]
        leaving = [end for end in ends if end.flow not in (None, "exit")]
        if leaving and not staying:
            staying = [leaving.pop()]
        self.run.left += [(end, reasons) for end in leaving]
        ends = staying or ends[:1]
        first = ends[0]
        for attribute in fields(self):
            setattr(self, attribute.name, getattr(first, attribute.name))
        if len(ends) == 1:
            return
        self.variables = _joined([end.variables for end in ends], reasons)
        if self.saved is not None:
            self.saved = _joined([end.saved or {} for end in ends], reasons)
        for name in {name for end in ends for name in end.functions}:
            bodies = (body for end in ends for body in end.functions.get(name, (None,)))
            self.functions[name] = tuple(dict.fromkeys(bodies))
        self.exported = frozenset().union(*(end.exported for end in ends))
        self.has_unknown_source = any(end.has_unknown_source for end in ends)
        self.requires_set = all(end.requires_set for end in ends)
        if any(end.parameters != first.parameters for end in ends):
            self.parameters = None
        if any(end.output != first.output for end in ends):
            self.output = UNKNOWN_OUTPUT


@dataclass(slots=True)
class ScriptRun:
    """State that all texts of a script share while it is read.

    Attributes:
        directory: The directory of the script; None if it is not a file.
        given: The names of the variables that the caller sets.
        conditions: For each undecided condition around the current statement, the expansions that decide it.
        left: The states in which an undecided branch has left a loop or a function, with what decides it.
        running: The files of the scripts that run at the current statement; "" for texts.
        written: The files that the script writes.
        aliased: The variables that others refer to, as of ``declare -n``: they are unknown.
        unset: The variables that are not set although ``set -u`` is in effect, and the lines of their uses.
        line: The line of the current statement of the script itself.
    """

    directory: str | None
    given: frozenset[str]
    commands: list[ShellCommand] = field(default_factory=list)
    conditions: list[list[str]] = field(default_factory=list)
    left: list[tuple[State, tuple[str, ...]]] = field(default_factory=list)
    running: list[str] = field(default_factory=list)
    written: set[str] = field(default_factory=set)
    unread: dict[str, None] = field(default_factory=dict)
    texts: dict[str, ShellText] = field(default_factory=dict)
    names: dict[str, None] = field(default_factory=dict)
    aliased: set[str] = field(default_factory=set)
    unset: dict[str, int] = field(default_factory=dict)
    line: int = 1
    work: int = 0

    def spend(self, work: int = _WORK_OF_STATEMENT) -> None:
        """Count work, by default that of a statement.

        Raises:
            UsageError: The script causes too much work.
        """
        self.work += work
        if self.work > _MAX_WORK:
            raise UsageError(
                "the launch script runs too many commands, or makes too long values",
                hint="pass the command that starts the job alone",
            )

    def spend_on(self, *values: Value) -> None:
        """Count the work of making values."""
        for value in values:
            characters = sum(len(piece.text) for piece in value)
            work = characters // _CHARACTERS + max(0, characters - _LONG) // 4
            self.spend(_WORK_OF_PIECE * (len(value) + 1) + work)

    def parsed(self, text: str) -> ShellText:
        """Return a text that the script runs; each is parsed once."""
        if text not in self.texts:
            self.spend(_WORK_OF_TEXT + _WORK_OF_PIECE * max(0, len(text) - _LONG_TEXT))
            parsed = self.texts[text] = ShellText(text)
            self.spend(parsed.size // _TREE_BYTES)
        return self.texts[text]

    @contextmanager
    def catching(self, flows: Sequence[str], state: State, leave: Branch | None = None) -> Iterator[None]:
        """Continue a state after statements that some flows leave; `leave` is called with each end."""
        outer = self.left
        self.left = []
        yield
        ends = [state.fork()]
        reasons = list[str]()
        for end, decisive in self.left:
            if end.flow in flows:
                ends.append(end)
                reasons += decisive
            else:
                outer.append((end, decisive))
        self.left = outer
        for end in ends:
            end.flow = None if end.flow in flows else end.flow
            if leave is not None:
                leave(end)
        state.join(ends, distinct(reasons))

    def file(self, path: str, directory: str | None) -> str | None:
        """Return the file of a path relative to a directory or to the script; None if it does not exist."""
        if self.directory is None:
            return None
        files = [os.path.join(parent, path) for parent in (directory, self.directory) if parent is not None]
        return next((os.path.realpath(file) for file in files if os.path.isfile(file)), None)

    def content(self, path: str, directory: str | None) -> str | None:
        """Return the content of a script that the script runs or sources; None if it does not exist."""
        file = self.file(path, directory)
        if path in self.written or file in self.running:
            return None  # it was read where it is written or started
        if file is not None:
            return read_small_file(file, "script").decode("utf-8", "replace")
        if not _HARMLESS.search(path):
            self.unread[path] = None
        return None


def _joined(ends: Sequence[Mapping[str, Any]], reasons: tuple[str, ...]) -> dict[str, Any]:
    joined = dict(ends[0])
    for name in {name for end in ends for name in end}:
        variables = [end.get(name) for end in ends]
        if any(name not in end for end in ends) or variables.count(variables[0]) < len(ends):
            joined[name] = undecided_variable(name, variables, reasons)
    return joined
