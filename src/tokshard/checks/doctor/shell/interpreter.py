"""Commands that a shell script runs, found without running it.

Assignments, conditions, loops, functions and here-documents are followed as bash follows them, as far as
values are known. There is one path through a script: after a condition whose outcome is unknown, what its
branches set differently is unknown, and the commands in them are marked with the condition.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tokshard.checks.doctor.shell.commands import (
    BATCH,
    IS_SCRIPT,
    RUNNERS,
    TESTS,
    assignments_of,
    nested_text,
    parameters_of,
    program_at,
    run_builtin,
    variables_of_directives,
    variables_of_options,
)
from tokshard.checks.doctor.shell.conditions import (
    ExitStatus,
    both,
    condition_of_test,
    condition_of_words,
    either,
    matches_any,
    takes_first,
)
from tokshard.checks.doctor.shell.expansion import Expander
from tokshard.checks.doctor.shell.state import Branch, ScriptRun, ShellCommand, ShellReading, State
from tokshard.checks.doctor.shell.syntax import Node, ShellText, assigned_names, too_deep
from tokshard.checks.doctor.shell.values import (
    Variable,
    Word,
    distinct,
    known,
    reasons_of,
    script_of,
    text_of,
    value_of,
    value_of_script,
    word_of,
    written_text,
)
from tokshard.errors import UsageError

_PROGRAM = re.compile(r"\.py(\s|$)")
_MAX_ROUNDS = 1_000
_MAX_WHILE_ROUNDS = 100


def read_shell(
    text: str,
    *,
    parameters: Sequence[str] | None = None,
    variables: Mapping[str, str] | None = None,
    path: str | None = None,
) -> ShellReading:
    """Return the commands that a shell script runs.

    Args:
        text: The script.
        parameters: Its positional parameters; None if they are unknown.
        variables: Variables of its environment; all others are unknown.
        path: The file of the script: scripts that it runs are read from its directory.

    Raises:
        UsageError: It is not a shell script, or runs too many commands to follow.

    Example:
        >>> reading = read_shell("N=2; if [ $N = 2 ]; then run --n $N 'a b'; fi")
        >>> [[word.text for word in command.words] for command in reading.commands]
        [['run', '--n', '2', 'a b']]
    """
    given: dict[str, Variable] = {name: (known(value),) for name, value in (variables or {}).items()}
    state = State(
        variables=given,
        exported=frozenset(given),
        parameters=None if parameters is None else tuple(map(known, parameters)),
    )
    script = ShellText(text)
    run = ScriptRun(None if path is None else os.path.dirname(os.path.abspath(path)), frozenset(given))
    if path is not None and not any(variables_of_directives(text)):  # a job scheduler copies the script
        state.variables |= dict.fromkeys(("0", "BASH_SOURCE"), (known(path),))
    try:
        _Interpreter(run, script).all_statements(state)
    except RecursionError:
        raise too_deep() from None
    return ShellReading(tuple(run.commands), tuple(run.unread))


@dataclass(slots=True)
class _Interpreter:
    """Reader of one text.

    Attributes:
        run: What it shares with the other texts of the script.
        text: The text.
        wrappers: The words of the commands that run it.
        outer_line: The line of the command that runs it; None for the script itself.
        line: The line of the current statement in the script itself.
        options: The variables of the options of ``sbatch``, which override its directives.
    """

    run: ScriptRun
    text: ShellText
    wrappers: tuple[Word, ...] = ()
    outer_line: int | None = None
    line: int = 1
    options: Mapping[str, str] = field(default_factory=dict)

    def all_statements(self, state: State) -> None:
        """Run the text."""
        for name, value in {**dict(variables_of_directives(self.text.text)), **self.options}.items():
            if name not in self.run.given:
                state.assign(name, (known(value),))
                state.exported |= {name}
        self._statements(self.text.statements, state)

    def _statements(self, statements: Sequence[Node], state: State) -> ExitStatus:
        outcome = ExitStatus(True)
        for statement in statements:
            if state.flow is not None:
                break
            outcome = self._statement(statement, state)
        return outcome

    def _statement(self, statement: Node, state: State) -> ExitStatus:
        self.run.step()
        self.line = self.outer_line or statement["Pos"]["Line"]
        if (command := statement.get("Cmd")) is None:
            return ExitStatus(True)
        kind = command["Type"]
        if kind == "CallExpr":
            outcome = self._call(statement, state)
        else:
            handlers: dict[str, Callable[[Node, State], ExitStatus | None]] = {
                "ArithmCmd": self._arithmetic,
                "BinaryCmd": self._binary,
                "Block": lambda node, state: self._branch(node.get("Stmts"), state),
                "CaseClause": self._case,
                "DeclClause": self._declaration,
                "ForClause": self._for,
                "FuncDecl": self._define,
                "IfClause": self._if,
                "LetClause": lambda node, state: state.forget(assigned_names(node), ("`let`",)),
                "Subshell": lambda node, state: self._alone(
                    partial(self._statements, node.get("Stmts", ())), state
                ),
                "TestClause": lambda node, state: condition_of_test(node["X"], self._expander(state)),
                "TimeClause": lambda node, state: self._branch(node.get("Stmt"), state),
                "WhileClause": self._while,
            }
            outcome = handlers[kind](command, state) if kind in handlers else None
        if outcome is None:
            outcome = ExitStatus.of_program(self.text.written(statement))
        return outcome.negated() if statement.get("Negated") else outcome

    def _expander(self, state: State) -> Expander:
        return Expander(self.text, state)

    # Conditions

    def _branch(self, node: Any, state: State) -> ExitStatus:
        """Run statements, one statement, or the rest of an ``if``; None for nothing."""
        if isinstance(node, list):
            return self._statements(node, state)
        if node and "Then" in node:
            self._if(node, state)
        elif node:
            return self._statement(node, state)
        return ExitStatus(True)

    def _undecided(
        self, reasons: tuple[str, ...], branches: Sequence[Branch], state: State
    ) -> list[ExitStatus | None]:
        """Run the branches of an undecided condition, each from the same state, and return their outcomes."""
        outcomes, ends = list[ExitStatus | None](), [state.fork() for _ in branches]
        marks = [list(reasons) for _ in branches]
        for branch, end, mark in zip(branches, ends, marks, strict=True):
            self.run.conditions.append(mark)
            outcomes.append(branch(end))
            self.run.conditions.pop()
        staying = [mark for end, mark in zip(ends, marks, strict=True) if end.flow is None]
        if len(staying) == 1:
            # The others end the script or the function, as checks do: this one is what it is for.
            staying[0].clear()
        self.run.settle(ends, reasons, state)
        return outcomes

    def _if(self, command: Node, state: State) -> None:
        outcome = self._statements(command.get("Cond", ()), state)  # none of an else
        branches = command["Then"], command.get("Else")
        decided = takes_first(outcome, *branches)
        if state.flow is not None:
            return
        if decided is None:
            self._undecided(outcome.reasons, [partial(self._branch, branch) for branch in branches], state)
        else:
            self._branch(branches[0] if decided else branches[1], state)

    def _binary(self, command: Node, state: State) -> ExitStatus | None:
        operator, other = command["Op"], command["Y"]
        if operator not in ("&&", "||"):
            for side in ("X", "Y"):
                self._alone(partial(self._statement, command[side]), state)
            return None
        is_and, combine = operator == "&&", both if operator == "&&" else either
        branches = (other, None) if is_and else (None, other)
        one = self._statement(command["X"], state)
        # A command is expected to succeed.
        decided = True if one.is_program else takes_first(one, *branches)
        if state.flow is not None or decided is (not is_and):
            return one
        if decided is None:
            runs = [partial(self._branch, branch) for branch in branches]
            outcomes = self._undecided(one.reasons, runs, state)
            return combine(one, outcomes[0 if is_and else 1] or one)
        return combine(one, self._statement(other, state))

    def _arithmetic(self, node: Node, state: State) -> ExitStatus:
        value = self._expander(state).number(node["X"], self.text.written(node["X"]))
        text = text_of(value)
        return ExitStatus(None, reasons_of(value)) if text is None else ExitStatus(int(text) != 0)

    def _case(self, command: Node, state: State) -> None:
        if any(item.get("Op", ";;") != ";;" for item in command.get("Items", ())):
            state.forget(assigned_names(command), ("`;&` in `case`",))
            return
        expander = self._expander(state)
        subject = expander.value(command["Word"])
        reasons, branches = reasons_of(subject), list[Branch]()
        for item in command.get("Items", ()):
            patterns = [expander.value(pattern) for pattern in item["Patterns"]]
            outcome = matches_any(text_of(subject), patterns)
            if outcome is not False:
                branches.append(partial(self._branch, item.get("Stmts")))
                reasons = distinct(reasons + reasons_of(*patterns))
            if outcome:
                break
        else:
            branches.append(partial(self._branch, None))
        if len(branches) == 1:
            branches[0](state)
        else:
            self._undecided(reasons or (f"`case {self.text.written(command['Word'])}`",), branches, state)

    # Loops

    def _for(self, command: Node, state: State) -> None:
        loop, expander = command["Loop"], self._expander(state)
        if loop["Type"] == "CStyleLoop":
            why = ("`for ((...))`",)
            state.forget(assigned_names(loop), why)
            self._unknown_rounds(command["Do"], state, why)
            return
        name = loop["Name"].get("Value", "")
        if (loop.get("InPos") or {}).get("Line"):
            words = expander.words(loop.get("Items", ()))
        elif state.parameters is None:
            words = [Word("$@", ("$@",), True)]
        else:
            words = list(map(word_of, state.parameters))
        if any(word.is_open for word in words) or len(words) > _MAX_ROUNDS or command.get("Select"):
            reasons = distinct(reason for word in words for reason in word.unknown) or ("`for`",)
            state.forget([name], reasons)
            self._unknown_rounds(command["Do"], state, reasons)
            return
        with self.run.catching(("break", "continue"), state):
            for word in words:
                if state.flow is None:
                    state.assign(name, (value_of(word),))
                    self._round(command["Do"], state)

    def _while(self, command: Node, state: State) -> None:
        def holds(state: State) -> ExitStatus:
            outcome = self._statements(command["Cond"], state)
            return outcome.negated() if command.get("Until") else outcome

        outcome = ExitStatus(None)
        with self.run.catching(("break", "continue"), state):
            for _ in range(_MAX_WHILE_ROUNDS):
                outcome = holds(state)
                if not outcome.succeeds or state.flow is not None:
                    break
                self._round(command["Do"], state)
            if outcome.succeeds is not False and state.flow is None:
                self._unknown_rounds(command["Do"], state, outcome.reasons or ("`while`",), holds)

    def _round(self, statements: Sequence[Node], state: State) -> None:
        with self.run.catching(("continue",), state):
            self._statements(statements, state)

    def _unknown_rounds(
        self, statements: Sequence[Node], state: State, reasons: tuple[str, ...], before: Branch | None = None
    ) -> None:
        """Run a loop any number of times: what a round, or ``before`` it, may assign is unknown."""
        start, forgotten = len(self.run.commands), set[str]()
        while True:
            end = state.fork()
            with self.run.catching(("break", "continue"), end):
                if before is not None:
                    before(end)
                self._statements(statements, end)
            changed = end.changed_since(state) - forgotten
            if not changed and (state.parameters is None or end.parameters == state.parameters):
                break
            del self.run.commands[start:]
            state.forget(changed, reasons)
            forgotten |= changed
            if end.parameters != state.parameters:
                state.parameters = None
        self.run.settle([state.fork(), end], reasons, state)

    # Commands

    def _alone(self, branch: Branch, state: State) -> ExitStatus | None:
        """Run a branch in a shell of its own: only its commands and its exit status count."""
        with self.run.catching((), state):
            inner = state.fork()
            outcome: ExitStatus | None = branch(inner)
            is_sure = inner.flow is None and not self.run.left
            self.run.left.clear()
        return outcome if is_sure else ExitStatus(None, ("`exit`",))

    def _declaration(self, command: Node, state: State) -> None:
        kind = command["Variant"]["Value"]
        exports, is_local = kind == "export", kind in ("local", "declare", "typeset")
        is_associative = False
        for argument in command.get("Args", ()):
            if "Name" not in argument:
                options = written_text(self._expander(state).value(argument.get("Value")))
                exports, is_local = exports or "x" in options, is_local and "g" not in options
                is_associative = "A" in options
                continue
            name = argument["Name"].get("Value", "")
            if is_associative:
                state.forget([name], ("`declare -A`",))
                continue
            if is_local:
                state.declare(name, is_assigned=not argument.get("Naked"))
            if not argument.get("Naked"):
                self._expander(state).assign(argument)
            if exports:
                state.exported |= {name}

    def _define(self, command: Node, state: State) -> None:
        body = (partial(self._branch, command["Body"]),)
        names = (command.get("Name"), *command.get("Names", ()))
        state.functions |= {name.get("Value", ""): body for name in names if name is not None}

    def _call(self, statement: Node, state: State) -> ExitStatus | None:
        command = statement["Cmd"]
        if not command.get("Args"):
            for assignment in command.get("Assigns", ()):
                self._expander(state).assign(assignment)
            return ExitStatus(True)
        words = self._expander(state).words(command["Args"])
        text = self._here_text(statement, state)
        if not words:
            return ExitStatus(True)
        name = words[0].text
        if name in ("[", "test"):
            values = list(map(value_of, words[1:]))
            return condition_of_words(values[:-1] if name == "[" else values)
        if name in state.functions:
            calls = [partial(self._call_function, body, words) for body in state.functions[name]]
            if len(calls) == 1:
                return calls[0](state)
            self._undecided((f"`{name}`",), calls, state)
        elif (status := run_builtin(words, text, state)) is not None:
            return status
        else:
            self._program(words, text, statement, state)
        outcome = ExitStatus.of_program(" ".join(word.text for word in words))
        return replace(outcome, is_program=name not in TESTS)

    def _call_function(self, body: Branch | None, words: Sequence[Word], state: State) -> ExitStatus | None:
        outer, saved = state.parameters, state.saved
        state.parameters, state.saved = parameters_of(words[1:]), {}

        def leave(end: State) -> None:
            for name, variable in (end.saved or {}).items():
                if variable is None:
                    end.variables.pop(name, None)
                else:
                    end.assign(name, variable)
            end.parameters, end.saved = outer, saved

        with self.run.catching(("return",), state, leave):
            outcome: ExitStatus | None = None if body is None else body(state)
            is_sure = state.flow is None and not self.run.left
        # A function that returns early often says by its status that a check failed.
        return outcome if is_sure else ExitStatus(None, (f"`{words[0].text}`",))

    def _program(self, words: Sequence[Word], text: str | None, statement: Node, state: State) -> None:
        name = words[0].text
        if name == "eval":
            self._same_shell(" ".join(script_of(value_of(word)) for word in words[1:]), state)
            return
        if name in ("source", "."):
            sourced = self.run.content(words[1].text) if len(words) > 1 else None
            if sourced is None:
                state.has_unknown_source = True
            else:
                self._same_shell(sourced, state)
            return
        if name in ("exec", "command", "builtin") and len(words) > 1:
            words = words[1:]
        assigned = [
            Word(f"{a['Name'].get('Value', '')}={written_text(self._expander(state).value(a.get('Value')))}")
            for a in statement["Cmd"].get("Assigns", ())
            if not a.get("Array")
        ]
        self._external([*assigned, *words], text, state)

    def _here_text(self, statement: Node, state: State) -> str | None:
        """Return the here-document of a statement, and record the file that it is written to."""
        command = statement.get("Cmd") or {}
        text = target = None
        for redirection in statement.get("Redirs", ()):
            expander = self._expander(state)
            if redirection["Op"] in ("<<", "<<-"):
                text = script_of(expander.here_document(redirection.get("Hdoc") or {}))
                if redirection["Op"] == "<<-":
                    text = re.sub(r"^\t+", "", text, flags=re.MULTILINE)
            elif redirection["Op"] in (">", ">|", "&>"):
                target = written_text(expander.value(redirection["Word"]))
        if text is not None and target is not None and command.get("Type") == "CallExpr":
            self.run.written.add(target)
        return text

    def _external(self, words: Sequence[Word], text: str | None, state: State) -> None:
        """Run a command that is not the shell's own; it may run a shell again."""
        nested = nested_text(words)
        if nested is not None:
            shell, script, parameters = nested
            self._nested(script_of(value_of(script)), words[:shell], state, parameters)
            return
        runner = program_at(words, RUNNERS)
        if runner is not None and text is not None:
            parameters = [word for word in words[runner + 1 :] if word.text != "-s"]
            self._nested(text, words[:runner], state, parameters)
            return
        if text is not None and words[0].text in ("cat", "tee") and _PROGRAM.search(text):
            # A script that is written to a file is a job of its own, whoever starts it.
            if (inner := self._reader(text)) is not None:
                given = {name: state.variables.get(name, ()) for name in self.run.given}
                self._alone(lambda _: inner.all_statements(State(given)), state)
            return
        for at, word in enumerate(words):
            is_operand = runner is not None or not at or not words[at - 1].text.startswith("-")
            if (
                IS_SCRIPT.search(word.text)
                and is_operand
                and (content := self.run.content(word.text)) is not None
            ):
                self._nested(content, words[:at], state, words[at + 1 :])
                return
        if any(word.text in ("xargs", "parallel") for word in words[:2]):
            return  # each input makes another command
        self._record(words, state)

    def _record(self, words: Sequence[Word], state: State) -> None:
        context = state.scheduler(), tuple(self.run.conditions)
        self.run.commands.append(ShellCommand(tuple(words), self.wrappers, self.line, *context))

    def _reader(self, text: str, wrappers: Sequence[Word] = ()) -> _Interpreter | None:
        """Return the reader of a text that the script runs; None if it is not a shell script."""
        try:
            script = ShellText(text)
        except UsageError:
            return None
        return _Interpreter(self.run, script, (*self.wrappers, *wrappers), self.line)

    def _same_shell(self, text: str, state: State) -> None:
        if (inner := self._reader(text)) is not None:
            inner.all_statements(state)

    def _nested(
        self, text: str, wrappers: Sequence[Word], state: State, parameters: Sequence[Word] = ()
    ) -> None:
        """Run the text of a shell that a command starts: only exported variables and commands are shared."""
        inner = self._reader(text, wrappers)
        if inner is None:  # it is a text for another program
            self._record((*wrappers, Word(written_text(value_of_script(text)))), state)
            return
        exported = {name: value for name, value in state.variables.items() if name in state.exported}
        child = State(exported, state.exported, parameters_of(parameters))
        for name, value in assignments_of(wrappers):
            child.assign(name, (value,))
            child.exported |= {name}
        if program_at(wrappers, BATCH) is not None:
            inner.options = dict(variables_of_options([word.text for word in wrappers]))
        self._alone(lambda _: inner.all_statements(child), state)
