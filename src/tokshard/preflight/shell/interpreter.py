"""Commands that a shell script runs, found without running it.

Assignments, conditions, loops, functions and here-documents are followed as bash follows them, as far as
values are known.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tokshard.errors import UsageError
from tokshard.preflight.shell.builtins import run_builtin
from tokshard.preflight.shell.commands import (
    BATCH,
    IS_SCRIPT,
    RUNNERS,
    SHELLS,
    assignments_of,
    file_operand,
    nested_text,
    program_at,
    variables_of_directives,
    variables_of_options,
)
from tokshard.preflight.shell.conditions import condition_of_words
from tokshard.preflight.shell.control import ControlFlow, Outcomes, Run
from tokshard.preflight.shell.state import ShellCommand, State, merge
from tokshard.preflight.shell.syntax import Node, ShellText, too_deep
from tokshard.preflight.shell.values import Variable, Word, decoded, known, script_of, value_of, written_text
from tokshard.storage.small_files import read_small_file

_PROGRAM = re.compile(r"\.py(\s|$)")
# They set up tools, and no arguments of a job.
_HARMLESS = re.compile(
    r"(?:^|/)(?:\.?bashrc|\.?bash_profile|\.?profile|activate|conda\.sh|setvars\.sh|modules\.sh|bash)$"
)


@dataclass(frozen=True, slots=True)
class ShellPath:
    """One path through the branches of a script.

    Attributes:
        commands: The commands that it runs, in order.
        branches: The undetermined conditions that lead to it, as written; "not ..." if they do not hold.
        unread: Scripts that the script runs or sources and that are not here.
    """

    commands: tuple[ShellCommand, ...]
    branches: tuple[str, ...]
    unread: tuple[str, ...] = ()


def read_shell(
    text: str,
    *,
    parameters: Sequence[str] | None = None,
    variables: Mapping[str, str] | None = None,
    path: str | None = None,
) -> list[ShellPath]:
    """Return the paths through a shell script, with the commands of each.

    Args:
        text: The script.
        parameters: Its positional parameters; None if they are unknown.
        variables: Variables of its environment; all others are unknown.
        path: The file of the script: scripts that it runs are read from beside it.

    Raises:
        UsageError: It is not a shell script, or runs too many commands to follow.

    Example:
        >>> (path,) = read_shell("N=2; if [ $N = 2 ]; then run --n $N 'a b'; fi")
        >>> [[word.text for word in command.words] for command in path.commands]
        [['run', '--n', '2', 'a b']]
    """
    given = {name: Variable.of(value) for name, value in (variables or {}).items()}
    state = State(
        variables=given,
        exported=frozenset(given),
        parameters=None if parameters is None else tuple(map(known, parameters)),
    )
    script = ShellText(text)
    if path is not None and not any(variables_of_directives(text)):  # a job scheduler copies the script
        state.variables |= dict.fromkeys(("0", "BASH_SOURCE"), Variable.of(path))
    run = Run(None if path is None else os.path.dirname(os.path.abspath(path)), frozenset(given))
    try:
        states = _Interpreter(run, script).all_statements(state)
    except RecursionError:
        raise too_deep() from None
    return [ShellPath(state.commands, state.branches, tuple(run.unread)) for state in merge(states)]


@dataclass(slots=True)
class _Interpreter(ControlFlow):
    wrappers: tuple[Word, ...] = ()
    line: int | None = None  # of the command that runs this text; None for the script itself
    options: Mapping[str, str] = field(default_factory=dict)  # of sbatch, which override its directives

    def all_statements(self, state: State) -> list[State]:
        self._directives(state)
        return self.statements(self.text.statements, [state])

    def _directives(self, state: State) -> None:
        for name, value in {**dict(variables_of_directives(self.text.text)), **self.options}.items():
            if name not in self.run.given:
                state.assign(name, Variable.of(value))
                state.exported |= {name}

    def define(self, command: Node, state: State) -> list[State]:
        for name in (command.get("Name"), *command.get("Names", ())):
            if name is not None:
                state.functions[name.get("Value", "")] = (self, command["Body"])
        return [state]

    def call(self, statement: Node, state: State) -> Outcomes:
        command = statement["Cmd"]
        if not command.get("Args"):
            for assignment in command.get("Assigns", ()):
                self.expander(state).assign(assignment)
            return [(state, True)]
        words = self.expander(state).words(command["Args"])
        text = self.here_text(statement, state)
        if not words:
            return [(state, True)]
        name = words[0].text
        if name in ("[", "test"):
            values = self.expander(state).values(command["Args"])[1:]
            condition = condition_of_words(values[:-1] if name == "[" else values)
            return self.fork(condition, self.text.written(command), state)
        if name not in state.functions and (done := run_builtin(words, text, state)) is not None:
            return [(state, done.outcome)]
        return [(after, None) for after in self._program(words, text, statement, state)]

    def _program(self, words: Sequence[Word], text: str | None, statement: Node, state: State) -> list[State]:
        name = words[0].text
        if name in state.functions:
            return self._call_function(name, words[1:], state)
        if name == "eval":
            return self._same_shell(
                " ".join(script_of(value_of(word)) for word in words[1:]), statement, state
            )
        if name in ("source", "."):
            sourced = self._file(words[1].text, state) if len(words) > 1 else None
            if sourced is not None:
                return self._same_shell(sourced, statement, state)
            state.has_unknown_source = True
            return [state]
        if name in ("exec", "command", "builtin") and len(words) > 1:
            words = words[1:]
        assigned = [
            Word(f"{a['Name'].get('Value', '')}={written_text(self.expander(state).value(a.get('Value')))}")
            for a in statement["Cmd"].get("Assigns", ())
            if not a.get("Array")
        ]
        return self._external([*assigned, *words], text, statement, state)

    def here_text(self, statement: Node, state: State) -> str | None:
        """Return the here-document of a statement, and record the file that it is written to."""
        command = statement.get("Cmd") or {}
        text = target = None
        for redirection in statement.get("Redirs", ()):
            expander = self.expander(state)
            if redirection["Op"] in ("<<", "<<-"):
                text = script_of(expander.here_document(redirection.get("Hdoc") or {}))
                if redirection["Op"] == "<<-":
                    text = re.sub(r"^\t+", "", text, flags=re.MULTILINE)
            elif redirection["Op"] in (">", ">|", "&>"):
                target = written_text(expander.value(redirection["Word"]))
        if text is not None and target is not None and command.get("Type") == "CallExpr":
            state.files[target] = text
        return text

    def _external(
        self, words: Sequence[Word], text: str | None, statement: Node, state: State
    ) -> list[State]:
        """Run a command that is not the shell's own; it may run a shell again."""
        nested = nested_text(words)
        if nested is not None:
            shell, script, parameters = nested
            inner = script_of(value_of(script))
            return self.nested(inner, words[:shell], statement, state, parameters)
        at = program_at(words, RUNNERS)
        if at is not None:
            operands = words[at + 1 :]
            script_at = file_operand(operands)
            if script_at is None:
                content = text
                wrappers, parameters = words[:at], [word for word in operands if word.text != "-s"]
            else:
                content = self._file(operands[script_at].text, state)
                wrappers, parameters = words[: at + 1 + script_at], operands[script_at + 1 :]
            if content is not None:
                is_shell = words[at].text.rsplit("/", 1)[-1] in SHELLS
                wrappers = words[:at] if is_shell else wrappers
                return self.nested(content, wrappers, statement, state, parameters)
        elif text is not None and words[0].text in ("cat", "tee") and _PROGRAM.search(text):
            return self._written_script(text, statement, state)
        for at, word in enumerate(words):
            if IS_SCRIPT.search(word.text) and (not at or not words[at - 1].text.startswith("-")):
                content = self._file(word.text, state)
                if content is not None:
                    return self.nested(content, words[:at], statement, state, words[at + 1 :])
        if any(word.text in ("xargs", "parallel") for word in words[:2]):
            words = [_of_each_input(word) for word in words] + [Word("xargs", ("xargs",), is_open=True)]
        return self._record(words, statement, state)

    def _record(self, words: Sequence[Word], statement: Node, state: State) -> list[State]:
        line = self.line or statement["Pos"]["Line"]
        command = ShellCommand(tuple(words), self.wrappers, line, state.scheduler())
        return [state.fork(commands=(*state.commands, command))]

    def _same_shell(self, text: str, statement: Node, state: State) -> list[State]:
        try:
            script = ShellText(text)
        except UsageError:
            return [state]
        line = self.line or statement["Pos"]["Line"]
        with self.run.deeper():
            return _Interpreter(self.run, script, self.wrappers, line).all_statements(state)

    def _written_script(self, text: str, statement: Node, state: State) -> list[State]:
        # A script that is written to a file is a job of its own, whoever starts it.
        fresh = State(variables={}, files=dict(state.files), commands=state.commands)
        fresh.variables |= {name: state.variables.get(name, Variable()) for name in self.run.given}
        fresh.branches = state.branches
        try:
            inner = _Interpreter(self.run, ShellText(text), self.wrappers, statement["Pos"]["Line"])
        except UsageError:
            return [state]  # not a script
        return merge([state.follow(after) for after in inner.all_statements(fresh)])

    def _file(self, path: str, state: State) -> str | None:
        if path in state.files:
            return None  # it was read where it is written
        if self.run.directory is None or not os.path.isfile(os.path.join(self.run.directory, path)):
            if not _HARMLESS.search(path):
                self.run.unread[path] = None
            return None
        text = read_small_file(os.path.join(self.run.directory, path), "script")
        return text.decode("utf-8", "replace")

    def nested(
        self,
        text: str,
        wrappers: Sequence[Word],
        statement: Node,
        state: State,
        parameters: Sequence[Word] = (),
    ) -> list[State]:
        """Run the text of a shell that a command starts: only exported variables and commands are shared."""
        try:
            script = ShellText(text)
        except UsageError:
            # It is a text for another program.
            return self._record((*wrappers, Word(decoded(text))), statement, state)
        line = self.line or statement["Pos"]["Line"]
        inner = _Interpreter(self.run, script, (*self.wrappers, *wrappers), line)
        child = state.fork(
            variables={n: v for n, v in state.variables.items() if n in state.exported}, functions={}
        )
        child.set_parameters(None if any(map(_is_open, parameters)) else tuple(map(value_of, parameters)))
        for name, value in assignments_of(wrappers):
            child.assign(name, Variable.of(value))
            child.exported |= {name}
        if program_at(wrappers, BATCH) is not None:
            inner.options = dict(variables_of_options([word.text for word in wrappers]))
        with self.run.deeper():
            after = inner.all_statements(child)
        return merge([state.follow(one) for one in after])

    def _call_function(self, name: str, words: Sequence[Word], state: State) -> list[State]:
        interpreter, body = state.functions[name]
        outer, saved = state.parameters, state.saved
        is_open = any(word.is_open for word in words)
        state.set_parameters(None if is_open else tuple(map(value_of, words)))
        state.saved = {}
        with self.run.deeper():
            after = interpreter.statements([body], [state])
        for current in after:
            for own, variable in (current.saved or {}).items():
                if variable is None:
                    current.variables.pop(own, None)
                else:
                    current.assign(own, variable)
            current.set_parameters(outer)
            current.saved = saved
            if current.flow == "return":
                current.flow = None
        return merge(after)


def _is_open(word: Word) -> bool:
    return word.is_open


def _of_each_input(word: Word) -> Word:
    return Word(word.text, (word.text,)) if "{}" in word.text or word.text.startswith(":::") else word
