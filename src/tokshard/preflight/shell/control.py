"""Control flow of shell scripts: lists, conditions, loops and subshells.

A condition that depends on something unknown makes two states. Such a loop makes unknown what it assigns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tokshard.errors import UsageError
from tokshard.preflight.shell.commands import RUNNERS, program_at
from tokshard.preflight.shell.conditions import Condition, condition_of_test
from tokshard.preflight.shell.expansion import Expander, matches
from tokshard.preflight.shell.state import State, join, merge, without_one_decision
from tokshard.preflight.shell.syntax import Node, ShellText
from tokshard.preflight.shell.values import Value, Variable, Word, text_of, value_of, word_of, written_text

_MAX_PATHS = 32
_MAX_STEPS = 50_000
_MAX_ROUNDS = 1_000
_MAX_DEPTH = 20
_ASSIGNED = "assigned"  # a field added to the nodes of the syntax tree

Outcomes = list[tuple[State, bool | None]]
"""The states after a statement, each with its exit status: success, failure, or unknown."""


@dataclass(slots=True)
class Run:
    """The limits and the environment that all texts of one script share.

    Attributes:
        directory: The directory of the script; None if it is not a file.
        given: The names of the variables that the caller sets.
        unread: Scripts that the script runs or sources and that are not here.
    """

    directory: str | None
    given: frozenset[str]
    unread: dict[str, None] = field(default_factory=dict)
    steps: int = 0
    depth: int = 0

    @contextmanager
    def deeper(self) -> Iterator[None]:
        """Count the depth of calls."""
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise UsageError(
                f"the launch script calls itself more than {_MAX_DEPTH} times",
                hint="pass the command that starts the job alone",
            )
        try:
            yield
        finally:
            self.depth -= 1

    def step(self) -> None:
        """Count a statement."""
        self.steps += 1
        if self.steps > _MAX_STEPS:
            raise UsageError(
                f"the launch script runs more than {_MAX_STEPS:,} commands, which is too many to follow",
                hint="pass the command that starts the job alone",
            )


@dataclass(slots=True)
class ControlFlow(ABC):
    """Reader of the statements of one text.

    Attributes:
        run: What it shares with the other texts.
        text: The text.
    """

    run: Run
    text: ShellText

    @abstractmethod
    def call(self, statement: Node, state: State) -> Outcomes:
        """Run a simple command."""

    @abstractmethod
    def define(self, command: Node, state: State) -> list[State]:
        """Define a function."""

    @abstractmethod
    def here_text(self, statement: Node, state: State) -> str | None:
        """Return the here-document of a statement, if it has one."""

    @abstractmethod
    def nested(
        self, text: str, words: Sequence[Word], statement: Node, state: State, parameters: Sequence[Word] = ()
    ) -> list[State]:
        """Run the text of a shell that a command starts."""

    def statements(self, statements: Iterable[Node], states: list[State]) -> list[State]:
        """Run statements in each of several states."""
        for statement in statements:
            if all(state.flow for state in states):
                break
            before = len(states)
            states = [
                after
                for state in states
                for after in ([state] if state.flow else [s for s, _ in self._statement(statement, state)])
            ]
            if len(states) > before:
                states = _limited(states)
        return states

    def _statement(self, statement: Node, state: State) -> Outcomes:
        """Run a statement; return the states after it with its outcome, None if it is unknown."""
        self.run.step()
        command = statement.get("Cmd")
        if command is None:
            return [(state, True)]
        kind = command["Type"]
        if kind == "CallExpr":
            outcomes = self.call(statement, state)
        elif kind == "BinaryCmd":
            outcomes = self._binary(command, state)
        elif kind == "TestClause":
            condition = condition_of_test(command["X"], self.expander(state))
            outcomes = self.fork(condition, self.text.written(command), state)
        elif kind == "ArithmCmd":
            outcomes = self._arithmetic(command, state)
        else:
            handlers: dict[str, Callable[[Node, State], list[State]]] = {
                "IfClause": self._if,
                "CaseClause": self._case,
                "ForClause": self._for,
                "WhileClause": self._while,
                "Block": lambda node, state: self.statements(node.get("Stmts", ()), [state]),
                "Subshell": self._subshell,
                "FuncDecl": self.define,
                "DeclClause": self._declaration,
                "LetClause": self._let,
                "TimeClause": self._time,
            }
            handler = handlers.get(kind)
            outcomes = [(state, None)] if handler is None else [(s, None) for s in handler(command, state)]
        if statement.get("Negated"):
            return [(after, None if outcome is None else not outcome) for after, outcome in outcomes]
        return outcomes

    def expander(self, state: State) -> Expander:
        """Return the expander of the words of this text."""
        return Expander(self.text, state)

    def _decided(self, statements: Sequence[Node], state: State) -> list[tuple[State, bool]]:
        """Run the statements of a condition; where the outcome is unknown, both are possible."""
        *first, last = statements
        decided: list[tuple[State, bool]] = []
        for before in self.statements(first, [state]):
            for after, outcome in self._statement(last, before):
                if outcome is None:
                    written = self.text.written(last).rstrip("; ")
                    decided += self._both((written,), written, after)
                else:
                    decided.append((after, outcome))
        return decided

    @staticmethod
    def _both(key: tuple[str, ...], written: str, state: State) -> list[tuple[State, bool]]:
        label = " ".join(written.split())
        holds = state.fork(branches=(*state.branches, label), assumed={**state.assumed, key: True})
        fails = state.fork(branches=(*state.branches, f"not {label}"), assumed={**state.assumed, key: False})
        return [(holds, True), (fails, False)]

    def fork(self, condition: Condition, written: str, state: State) -> Outcomes:
        """Return the states in which a condition holds and does not, as far as both are possible."""
        outcome = condition.outcome
        if outcome is None:
            outcome = state.assumed.get(condition.key)
        if outcome is not None:
            return [(state, outcome)]
        (holds, _), (fails, _) = self._both(condition.key, written, state)
        if condition.binds is not None:
            name, value = condition.binds
            chosen = fails if condition.is_negated else holds
            chosen.bound[name] = value
        return [(holds, True), (fails, False)]

    def _binary(self, command: Node, state: State) -> Outcomes:
        operator = command["Op"]
        if operator not in ("&&", "||"):
            return self._pipe(command, state)
        results: Outcomes = []
        for after, outcome in self._statement(command["X"], state):
            # A command is expected to succeed.
            succeeded = outcome is not False
            if after.flow is None and succeeded == (operator == "&&"):
                results += self._statement(command["Y"], after)
            else:
                results.append((after, outcome))
        return results

    def _pipe(self, command: Node, state: State) -> Outcomes:
        # Both sides run in shells of their own: only their commands count.
        text = self.here_text(command["X"], state)
        shell = (command["Y"].get("Cmd") or {}).get("Args")
        if text is not None and shell:
            words = self.expander(state.fork()).words(shell)
            if program_at(words, RUNNERS) is not None:
                return [(after, None) for after in self.nested(text, words, command, state)]
        states = [state]
        for side in ("X", "Y"):
            states = [
                before.follow(after)
                for before in states
                for after, _ in self._statement(command[side], before.fork())
            ]
        return [(after, None) for after in merge(states)]

    def _arithmetic(self, command: Node, state: State) -> Outcomes:
        value = self.expander(state).arithmetic(command["X"])
        outcome = None if value is None else value != 0
        return self.fork(Condition(outcome, (self.text.written(command),)), self.text.written(command), state)

    def _if(self, command: Node, state: State) -> list[State]:
        done: list[State] = []
        for after, holds in self._decided(command["Cond"], state):
            if holds:
                done += self.statements(command["Then"], [after])
            elif (other := command.get("Else")) is None:
                done.append(after)
            elif "Cond" in other:
                done += self._if(other, after)
            else:
                done += self.statements(other["Then"], [after])
        return merge([_with_optional(after, command) for after in done])

    def _case(self, command: Node, state: State) -> list[State]:
        subject = self.expander(state).value(command["Word"])
        text = text_of(subject)
        open_states, done = [state], []
        for item in command.get("Items", ()):
            patterns = [self.expander(state).value(pattern) for pattern in item["Patterns"]]
            written = "|".join(self.text.written(pattern) for pattern in item["Patterns"])
            label = f"case {self.text.written(command['Word'])} in {written})"
            key = (written_text(subject), written)
            next_open = []
            for before in open_states:
                outcome = _matches_any(text, patterns)
                if outcome is None:
                    outcome = before.assumed.get(key)
                choices: list[tuple[State, bool]] = (
                    self._both(key, label, before) if outcome is None else [(before, outcome)]
                )
                for after, holds in choices:
                    if holds:
                        # The items before it need no mention.
                        branches = (*state.branches, *(after.branches[-1:] if outcome is None else ()))
                        done += self.statements(item.get("Stmts", ()), [after.fork(branches=branches)])
                    else:
                        next_open.append(after)
            open_states = next_open
        return merge([_with_optional(after, command) for after in (*done, *open_states)])

    def _for(self, command: Node, state: State) -> list[State]:
        loop = command["Loop"]
        if loop["Type"] == "CStyleLoop":
            return self._c_for(command, loop, state)
        name = loop["Name"].get("Value", "")
        expander = self.expander(state)
        if (loop.get("InPos") or {}).get("Line"):
            words = expander.words(loop.get("Items", ()))
        else:
            parameters = state.parameters
            words = [Word("$@", ("$@",), True)] if parameters is None else list(map(word_of, parameters))
        if any(word.is_open for word in words) or len(words) > _MAX_ROUNDS:
            return self._unknown_rounds(command["Do"], state, {name})
        states = [state]
        for word in words:
            for current in states:
                if current.flow is None:
                    value = value_of(word)
                    current.assign(name, Variable.of(value))
            states = self._round(command["Do"], states)
        return _after_loop(states)

    def _c_for(self, command: Node, loop: Node, state: State) -> list[State]:
        def holds(state: State) -> Outcomes:
            value = self.expander(state).arithmetic(loop["Cond"]) if "Cond" in loop else None
            return [(state, None if value is None else value != 0)]

        if "Init" in loop:
            self.expander(state).arithmetic(loop["Init"])
        return self._rounds(command["Do"], state, holds, loop.get("Post"))

    def _while(self, command: Node, state: State) -> list[State]:
        def holds(state: State) -> Outcomes:
            outcomes = self._statement(command["Cond"][-1], state)
            return [(s, None if o is None else o != bool(command.get("Until"))) for s, o in outcomes]

        return self._rounds(command["Do"], state, holds, condition=command["Cond"])

    def _rounds(
        self,
        statements: Sequence[Node],
        state: State,
        holds: Callable[[State], Outcomes],
        post: Node | None = None,
        condition: Sequence[Node] = (),
    ) -> list[State]:
        """Run a loop as long as its condition holds; if that is unknown, what the loop assigns is too."""
        states, done = [state.fork()], list[State]()
        for _ in range(_MAX_ROUNDS):
            decided = [holds(before) for before in states]
            if any(len(outcomes) > 1 or outcomes[0][1] is None for outcomes in decided):
                return self._unknown_rounds([*condition, *statements], state, set())
            done += [after for [(after, outcome)] in decided if not outcome]
            after = self._round(statements, [after for [(after, outcome)] in decided if outcome])
            done += [one for one in after if one.flow]
            states = _limited([one for one in after if not one.flow])
            if not states:
                return _after_loop(done)
            if post is not None:
                for before in states:
                    self.expander(before).arithmetic(post)
        return self._unknown_rounds([*condition, *statements], state, set())

    def _round(self, statements: Sequence[Node], states: list[State]) -> list[State]:
        after = self.statements(statements, states)
        for state in after:
            if state.flow == "continue":
                state.flow = None
        return merge(after)

    def _unknown_rounds(self, statements: Sequence[Node], state: State, names: set[str]) -> list[State]:
        # What any round may assign is unknown before the first one, and after the last.
        before = state.fork()
        before.forget(names)
        tried = self.statements(statements, [before.fork()])
        for after in tried:
            names |= after.changed_since(before)
        shifts = any(after.parameters != before.parameters for after in tried)
        before.forget(names)
        if shifts:
            before.set_parameters(None)
        ended = self.statements(statements, [before.fork()])
        for after in ended:
            if after.flow != "exit":
                after.flow = None
        return [join([before, *ended])]

    def _subshell(self, command: Node, state: State) -> list[State]:
        inner = self.statements(command.get("Stmts", ()), [state.fork()])
        return merge([state.follow(after) for after in inner])

    def _declaration(self, command: Node, state: State) -> list[State]:
        kind = command["Variant"]["Value"]
        exports, is_local = kind == "export", kind in ("local", "declare", "typeset")
        for argument in command.get("Args", ()):
            if "Name" not in argument:
                options = written_text(self.expander(state).value(argument.get("Value")))
                exports, is_local = exports or "x" in options, is_local and "g" not in options
                continue
            name = argument["Name"].get("Value", "")
            if is_local:
                state.declare(name, is_assigned=not argument.get("Naked"))
            if not argument.get("Naked"):
                self.expander(state).assign(argument)
            if exports:
                state.exported |= {name}
        return [state]

    def _let(self, command: Node, state: State) -> list[State]:
        for expression in command.get("Exprs", ()):
            self.expander(state).arithmetic(expression)
        return [state]

    def _time(self, command: Node, state: State) -> list[State]:
        inner = command.get("Stmt")
        return [state] if inner is None else [after for after, _ in self._statement(inner, state)]


def _matches_any(text: str | None, patterns: Sequence[Value]) -> bool | None:
    found = [text_of(pattern) for pattern in patterns]
    if "*" in found:
        return True
    if text is None or None in found:
        return None
    return any(matches(text, pattern or "") for pattern in found)


def _with_optional(state: State, command: Node) -> State:
    # The environment is assumed to set no variable that another branch sets, unless a condition asks for it.
    if _ASSIGNED not in command:
        command[_ASSIGNED] = frozenset(_assigned(command))
    names = {name for name in command[_ASSIGNED] if name not in state.variables and name not in state.bound}
    if names:
        asked = " ".join(" ".join(key) for key in state.assumed)
        for name in names:
            if name not in asked:
                state.variables[name] = Variable(is_unknown=True, is_optional=True)
    return state


def _assigned(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for item in node:
            yield from _assigned(item)
    elif isinstance(node, dict):
        if "Name" in node and ("Value" in node or "Array" in node) and isinstance(node["Name"], dict):
            yield node["Name"].get("Value", "")
        for value in node.values():
            if isinstance(value, dict | list):
                yield from _assigned(value)


def _after_loop(states: list[State]) -> list[State]:
    for state in states:
        if state.flow in ("break", "continue"):
            state.flow = None
    return merge(states)


def _limited(states: list[State]) -> list[State]:
    limited = merge(states)
    while len(limited) > _MAX_PATHS:
        limited = without_one_decision(limited)
    return limited
