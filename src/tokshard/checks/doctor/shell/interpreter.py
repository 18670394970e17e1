"""Commands that a shell script runs, found without running it.

Assignments, conditions, loops, functions and here-documents are followed as bash follows them, as far as
values are known. There is one path through a script: after a condition whose outcome is unknown, what its
branches set differently is unknown, and the commands in them are marked with the condition.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tokshard.checks.doctor.shell import commands
from tokshard.checks.doctor.shell.builtins import output_of, parameters_of, run_builtin
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
from tokshard.checks.doctor.shell.state import (
    UNKNOWN_OUTPUT,
    Branch,
    ScriptRun,
    ShellCommand,
    ShellReading,
    State,
)
from tokshard.checks.doctor.shell.syntax import Node, ShellText, SyntaxProblemError, assigned_names, too_deep
from tokshard.checks.doctor.shell.values import (
    Value,
    Variable,
    Word,
    distinct,
    known,
    merged,
    reasons_of,
    scalar,
    script_of,
    text_of,
    unknown,
    value_of,
    value_of_script,
    word_of,
    written_text,
)
from tokshard.core.near_names import near_name

_PROGRAM = re.compile(r"\.py(\s|$)")
_MAX_ROUNDS = 1_000
_SETS_U = re.compile(r"#!\s*/\S*sh\s+-[a-z]*u")


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
    given = dict(variables or {})
    run = ScriptRun(None if path is None else os.path.dirname(os.path.abspath(path)), frozenset(given))
    state = State(run, parameters=None if parameters is None else tuple(map(known, parameters)))
    script = run.texts[text] = ShellText(text)
    directory = given.get("PWD", _current_directory())
    state.requires_set = _SETS_U.match(text) is not None
    for name, value in {"HOME": os.path.expanduser("~"), **given}.items():
        state.export(name, value)
    state.enter(directory)
    state.exported |= {"PWD"}
    directives = commands.directives_of(text)
    if directives:
        if "SLURM_SUBMIT_DIR" not in given:
            state.export("SLURM_SUBMIT_DIR", directory)
        if any(map(commands.CHANGES_DIRECTORY.match, directives)):
            state.enter(None, ("`#SBATCH --chdir`",))
    run.running.append("" if path is None else os.path.realpath(path))
    if path is not None and not directives:  # a job scheduler copies the script
        state.variables |= dict.fromkeys(("0", "BASH_SOURCE"), (known(path),))
    run.names.clear()
    try:
        _Interpreter(run, script).all_statements(state)
    except RecursionError:
        raise too_deep() from None
    names = [*assigned_names(script.statements), *run.names]
    problems = [(line, name, near) for name, line in run.unset.items() if (near := near_name(name, names))]
    return ShellReading(tuple(run.commands), tuple(run.unread), tuple(problems))


def _current_directory() -> str:
    """Return the current directory as a shell names it, with symbolic links."""
    path = os.environ.get("PWD", "")
    is_current = os.path.isabs(path) and os.path.isdir(path) and os.path.samefile(path, ".")
    return path if is_current else os.getcwd()


@dataclass(slots=True)
class _Interpreter:
    """Reader of one text.

    Attributes:
        run: The state that it shares with the other texts of the script.
        text: The text.
        wrappers: The words of the commands that run it.
        outer_line: The line of the command that runs it; None for the script itself.
        options: The options of ``sbatch``, which override its directives.
    """

    run: ScriptRun
    text: ShellText
    wrappers: tuple[Word, ...] = ()
    outer_line: int | None = None
    options: tuple[str, ...] = ()

    def all_statements(self, state: State) -> None:
        """Run the text."""
        options = [*commands.directives_of(self.text.text), *self.options]
        for name, value in commands.variables_of_options(options):
            if name not in self.run.given:
                state.export(name, value)
        self._statements(self.text.statements, state)

    def _statements(self, statements: Sequence[Node], state: State) -> ExitStatus:
        outcome = ExitStatus(True)
        for statement in statements:
            if state.flow is not None:
                break
            outcome = self._statement(statement, state)
        return outcome

    def _statement(self, statement: Node, state: State) -> ExitStatus:
        self.run.spend()
        self.run.line = self.outer_line or statement["Pos"][1]
        output = state.output
        if statement.get("Background"):
            outcome = self._alone(partial(self._command, statement), state)
        else:
            outcome = self._command(statement, state)
        if output is not None and statement.get("Redirs"):
            redirections = [part for part in statement["Redirs"] if "Hdoc" not in part]
            written = "".join(map(self.text.written, redirections)).replace(" ", "")
            if commands.DROPS_OUTPUT.fullmatch(written):
                state.output = output
            elif not commands.KEEPS_OUTPUT.fullmatch(written):
                state.output = UNKNOWN_OUTPUT
        if outcome is None:
            outcome = ExitStatus.of_program(self.text.written(statement))
        return outcome.negated() if statement.get("Negated") else outcome

    def _command(  # noqa: C901, PLR0911, PLR0912 - a table
        self, statement: Node, state: State
    ) -> ExitStatus | None:
        command = statement.get("Cmd") or {}
        match command.get("Type"):
            case None:
                if statement.get("Redirs"):
                    state.print(UNKNOWN_OUTPUT)  # $(<FILE)
                return ExitStatus(True)
            case "CallExpr":
                return self._call(statement, state)
            case "ArithmCmd" | "LetClause":
                return self._numbers(command.get("Exprs") or [command["X"]], state)
            case "BinaryCmd":
                return self._binary(command, state)
            case "Block":
                return self._statements(command.get("Stmts", ()), state)
            case "CaseClause":
                self._case(command, state)
            case "DeclClause":
                self._declaration(command, state)
            case "ForClause":
                self._for(command, state)
            case "FuncDecl":
                # A function without a name is one of zsh.
                name = (command.get("Name") or {}).get("Value", "")
                state.functions[name] = (partial(self._statement, command["Body"]),)
            case "IfClause":
                self._if(command, state)
            case "Subshell":
                return self._alone(partial(self._statements, command.get("Stmts", ())), state)
            case "TestClause":
                return condition_of_test(command["X"], self._expander(state))
            case "TimeClause":
                return self._branch(command.get("Stmt"), state)
            case "WhileClause":
                self._while(command, state)
            case _:
                state.print(UNKNOWN_OUTPUT)
        return None

    def _expander(self, state: State) -> Expander:
        return Expander(self.text, state, self._substitute)

    def _substitute(self, part: Node, state: State) -> Value:
        """Return the output of a command substitution."""
        line = self.run.line
        inner = replace(state.fork(), output=())
        self._alone(partial(self._statements, part.get("Stmts", ())), inner)
        self.run.line = line
        if inner.output is None or UNKNOWN_OUTPUT[0] in inner.output:
            return unknown(self.text.written(part))
        output = merged(inner.output)
        if output and not output[-1].is_unknown:
            return (*output[:-1], *known(output[-1].text.rstrip("\n")))
        return output

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
        outcomes = list[ExitStatus | None]()
        staying = list[list[str]]()
        ends = [state.fork() for _ in branches]
        for branch, end in zip(branches, ends, strict=True):
            mark = list(reasons)
            self.run.conditions.append(mark)
            outcomes.append(branch(end))
            self.run.conditions.pop()
            if end.flow is None:
                staying.append(mark)
        if len(staying) == 1:
            # The others end the script or the function, as checks do: this one is what it is for.
            staying[0].clear()
        state.join(ends, reasons)
        return outcomes

    def _if(self, command: Node, state: State) -> None:
        outcome = self._statements(command.get("Cond", ()), state)  # none of an else
        branches = command["Then"], command.get("Else")
        if outcome.empty is not None:
            self.run.spend((command["End"][0] - command["Pos"][0]) // 4)
        decided = takes_first(outcome, *branches)
        if decided is None:
            self._undecided(outcome.reasons, [partial(self._branch, branch) for branch in branches], state)
        elif state.flow is None:
            self._branch(branches[0] if decided else branches[1], state)

    def _binary(self, command: Node, state: State) -> ExitStatus | None:
        operator, other = command["Op"], command["Y"]
        if operator not in ("&&", "||"):
            output = state.output
            self._alone(partial(self._statement, command["X"]), state)
            state.output = output
            self._alone(partial(self._statement, other), state)
            return None
        is_and = operator == "&&"
        combine = both if is_and else either
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

    def _numbers(self, nodes: Sequence[Node], state: State) -> ExitStatus:
        """Evaluate arithmetic expressions; the last one decides, and none succeeds."""
        value = known("1")
        for node in nodes:
            value = self._expander(state).number(node, self.text.written(node))
        text = text_of(value)
        return ExitStatus(None, reasons_of(value)) if text is None else ExitStatus(int(text) != 0)

    def _case(self, command: Node, state: State) -> None:
        if any(item.get("Op", ";;") != ";;" for item in command.get("Items", ())):
            state.forget(assigned_names(command), ("`;&` in `case`",))
            state.print(UNKNOWN_OUTPUT)
            return
        expander = self._expander(state)
        subject = expander.value(command["Word"])
        reasons = reasons_of(subject)
        branches = list[Branch]()
        for item in command.get("Items", ()):
            patterns = [expander.pattern(pattern) for pattern in item["Patterns"]]
            self.run.spend(len(patterns) * (5 + len(written_text(subject)) // 32))
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
        loop = command["Loop"]
        if loop["Type"] == "CStyleLoop":
            init, condition, step = (list(filter(None, [loop.get(key)])) for key in ("Init", "Cond", "Post"))
            self._numbers(init, state)
            holds = partial(self._numbers, condition)
            self._loop(command["Do"], state, holds, partial(self._numbers, step))
            return
        name = loop["Name"].get("Value", "")
        if isinstance(loop.get("InPos"), tuple):
            words = self._expander(state).words(loop.get("Items", ()))
        elif state.parameters is None:
            words = [Word("$@", ("$@",), True)]
        else:
            words = list(map(word_of, state.parameters))
        is_unknown = any(word.is_open for word in words) or len(words) > _MAX_ROUNDS or command.get("Select")
        reasons = distinct(reason for word in words for reason in word.unknown) or ("`for`",)
        remaining = iter(words)

        def has_word(state: State) -> ExitStatus:
            if is_unknown:
                state.forget([name], reasons)
                return ExitStatus(None, reasons)
            word = next(remaining, None)
            if word is not None:
                state.assign(name, (value_of(word),))
            return ExitStatus(word is not None)

        self._loop(command["Do"], state, has_word)

    def _while(self, command: Node, state: State) -> None:
        def holds(state: State) -> ExitStatus:
            outcome = self._statements(command["Cond"], state)
            return outcome.negated() if command.get("Until") else outcome

        self._loop(command["Do"], state, holds)

    def _loop(
        self,
        body: Sequence[Node],
        state: State,
        holds: Callable[[State], ExitStatus],
        step: Branch = lambda _: None,
    ) -> None:
        """Run a loop as long as a condition holds, with a step after each round."""
        outcome = ExitStatus(True)
        with self.run.catching(("break",), state):
            for _ in range(_MAX_ROUNDS + 1):
                outcome = holds(state) if state.flow is None else ExitStatus(False)
                if not outcome.succeeds:
                    break
                with self.run.catching(("continue",), state):
                    self._statements(body, state)
                if state.flow is None:
                    step(state)
            if outcome.succeeds is not False and state.flow is None:
                self._unknown_rounds(body, state, outcome.reasons or ("a loop",), holds, step)

    def _unknown_rounds(
        self, body: Sequence[Node], state: State, reasons: tuple[str, ...], holds: Branch, step: Branch
    ) -> None:
        """Run a loop any number of times: what a round, or its condition or step, may assign is unknown."""
        start = len(self.run.commands)
        forgotten = set[str]()
        while True:
            end = state.fork()
            with self.run.catching(("break", "continue"), end):
                holds(end)
                self._statements(body, end)
                step(end)
            changed = end.changed_since(state) - forgotten
            if not changed and (state.parameters is None or end.parameters == state.parameters):
                break
            del self.run.commands[start:]
            state.forget(changed, reasons)
            forgotten |= changed
            if end.parameters != state.parameters:
                state.parameters = None
        state.join([state.fork(), end], reasons)

    # Commands

    def _alone(self, branch: Branch, state: State) -> ExitStatus | None:
        """Run a branch in a shell of its own: only its commands, output and exit status count."""
        with self.run.catching((), state):
            inner = state.fork()
            outcome: ExitStatus | None = branch(inner)
            has_left = bool(self.run.left)
            self.run.left.clear()
        state.output = UNKNOWN_OUTPUT if has_left and state.output is not None else inner.output
        return ExitStatus(None, ("`exit`",)) if has_left or inner.flow is not None else outcome

    def _declaration(self, command: Node, state: State) -> None:
        kind = command["Variant"]["Value"]
        options = "x" if kind == "export" else ""
        for argument in command.get("Args", ()):
            if "Name" not in argument:
                options += written_text(self._expander(state).value(argument.get("Value")))
                continue
            name = argument["Name"].get("Value", "")
            if set(options) & set("Ailnu"):  # their assignments change the value
                if "n" in options:  # another name of a variable
                    target = text_of(self._expander(state).value(argument.get("Value")))
                    self.run.aliased |= set(state.variables) if target is None else {target}
                    state.forget(self.run.aliased, ())
                state.forget([name], (f"`{kind} {options}`",))
                continue
            is_local = kind not in ("export", "readonly") and "g" not in options
            if is_local and state.saved is not None and name not in state.saved:
                state.saved[name] = state.variables.get(name)
                if argument.get("Naked"):
                    state.assign(name, ())
            if not argument.get("Naked"):
                self._expander(state).assign(argument)
            if "x" in options:
                state.exported |= {name}
        if "p" in options:
            state.print(UNKNOWN_OUTPUT)

    def _call(self, statement: Node, state: State) -> ExitStatus | None:
        command = statement["Cmd"]
        expander = self._expander(state)
        words = expander.words(command.get("Args", ()))
        text = self._here_text(statement, state) if statement.get("Redirs") else None
        saved = dict[str, Variable | None]()
        for assignment in command.get("Assigns", ()):
            name = assignment["Name"].get("Value", "")
            saved.setdefault(name, state.variables.get(name))
            expander.assign(assignment)
        if not words:
            return ExitStatus(True)
        exported = state.exported
        state.exported |= saved.keys()
        outcome = self._simple(words, text, saved, state)
        state.restore(saved)
        state.exported -= saved.keys() - exported
        return outcome

    def _simple(
        self, words: Sequence[Word], text: str | None, assigned: Iterable[str], state: State
    ) -> ExitStatus | None:
        """Run a simple command with its own variables."""
        name = words[0].text
        if name in ("[", "test"):
            values = list(map(value_of, words[1:]))
            return condition_of_words(values[:-1] if name == "[" else values)
        outcome = ExitStatus.of_program(" ".join(word.text for word in words))
        outcome = replace(outcome, is_program=name not in commands.TESTS)
        if name in state.functions:
            calls = [partial(self._call_function, body, words) for body in state.functions[name]]
            if len(calls) == 1:
                return calls[0](state)
            self._undecided((f"`{name}`",), calls, state)
            return outcome
        while name in ("exec", "command", "builtin") and len(words) > 1 and words[1].text[:1] != "-":
            words = words[1:]
            name = words[0].text
        if name == "eval":
            script = " ".join(script_of(value_of(word)) for word in words[1:])
            self._same_shell(script, state)
        elif name in ("source", "."):
            self._source(words[1:], state)
        elif (status := run_builtin(words, text, state)) is not None:
            return status
        elif state.output is not None:
            state.print(output_of(words, text, state))
        else:
            values = [(*known(f"{name}="), *scalar(state.variables.get(name), name)) for name in assigned]
            self._external([*map(word_of, values), *words], text, state)
        return outcome

    def _call_function(self, body: Branch | None, words: Sequence[Word], state: State) -> ExitStatus | None:
        outer = state.parameters
        saved = state.saved
        state.parameters = parameters_of(words[1:])
        state.saved = {}

        def leave(end: State) -> None:
            end.restore(end.saved or {})
            end.parameters = outer
            end.saved = saved

        with self.run.catching(("return",), state, leave):
            outcome: ExitStatus | None = None if body is None else body(state)
            is_sure = state.flow is None and not self.run.left
        # A function that returns early often says by its status that a check failed.
        return outcome if is_sure else ExitStatus(None, (f"`{words[0].text}`",))

    def _source(self, operands: Sequence[Word], state: State) -> None:
        path = operands[0].text if operands else ""
        text = self.run.content(path, state.directory)
        if text is None:
            state.has_unknown_source = True
            return
        source = state.variables.get("BASH_SOURCE")
        parameters = state.parameters
        state.variables["BASH_SOURCE"] = (known(path),)
        if operands[1:]:
            state.parameters = parameters_of(operands[1:])
        with self.run.catching(("return",), state):
            self._same_shell(text, state)
        state.restore({"BASH_SOURCE": source})
        if operands[1:]:
            state.parameters = parameters

    def _here_text(self, statement: Node, state: State) -> str | None:
        """Return the here-document or here-string of a statement, and record the file that it becomes."""
        text = target = None
        inner = state.fork()
        expander = self._expander(inner)
        for redirection in statement.get("Redirs", ()):
            operator = redirection["Op"]
            if operator in ("<<", "<<-"):
                text = script_of(expander.here_document(redirection.get("Hdoc") or {}))
                text = text if operator == "<<" else re.sub(r"^\t+", "", text, flags=re.MULTILINE)
            elif operator == "<<<":
                text = script_of(expander.value(redirection["Word"])) + "\n"
            elif operator in (">", ">|", "&>"):
                target = written_text(expander.value(redirection["Word"]))
        if text is not None and target is not None:
            self.run.written.add(target)
        # Only commands of the shell itself keep what is assigned there, as in $((N++)).
        state.forget(inner.changed_since(state), ("`<<`",))
        return text

    def _external(self, words: Sequence[Word], text: str | None, state: State) -> None:
        """Run a command that is not the shell's own; it may run a shell again."""
        runner = commands.program_at(words, commands.RUNNERS)
        if (nested := commands.nested_text(words)) is not None:
            shell, script, parameters = nested
            self._nested(script_of(value_of(script)), words[:shell], state, parameters)
        elif runner is not None and text is not None:
            parameters = [word for word in words[runner + 1 :] if word.text != "-s"]
            self._nested(text, words[:runner], state, parameters)
        elif text is not None and words[0].text in ("cat", "tee") and _PROGRAM.search(text):
            # A script that is written to a file is a job of its own, whoever starts it.
            given = {name: state.variables.get(name, ()) for name in (*self.run.given, "PWD")}
            self._alone(partial(self._same_shell, text), State(self.run, given))
        elif self._runs_file(words, runner, state):
            return
        elif not any(word.text in ("xargs", "parallel") for word in words[:2]):
            self._record(words, state)  # with xargs, each input makes another command

    def _runs_file(self, words: Sequence[Word], runner: int | None, state: State) -> bool:
        """Run the script file that a command starts; return False if it starts none that can be read."""
        if words[0].text in commands.FILE_TOOLS:
            return False
        for at, word in enumerate(words):
            is_operand = runner is not None or not at or not words[at - 1].text.startswith("-")
            if not is_operand or not commands.IS_SCRIPT.search(word.text):
                continue
            if runner is not None and self.run.file(word.text, state.directory) in self.run.running:
                self.run.unread[word.text] = None
            if (content := self.run.content(word.text, state.directory)) is not None:
                self._nested(content, words[:at], state, words[at + 1 :], word.text)
                return True
        return False

    def _record(self, words: Sequence[Word], state: State) -> None:
        context = state.scheduler(), tuple(self.run.conditions), state.directory
        self.run.commands.append(ShellCommand(tuple(words), self.wrappers, self.run.line, *context))

    def _reader(self, text: str, wrappers: Sequence[Word] = ()) -> _Interpreter | None:
        """Return the reader of a text that the script runs; None if it is not a shell script."""
        try:
            script = self.run.parsed(text)
        except SyntaxProblemError:
            return None
        return _Interpreter(self.run, script, (*self.wrappers, *wrappers), self.run.line)

    def _same_shell(self, text: str, state: State) -> None:
        if (inner := self._reader(text)) is not None:
            inner.all_statements(state)

    def _nested(
        self,
        text: str,
        wrappers: Sequence[Word],
        state: State,
        parameters: Sequence[Word] = (),
        path: str | None = None,
    ) -> None:
        """Run the text of a shell that a command starts: only exported variables and commands are shared."""
        inner = self._reader(text, wrappers)
        if inner is None:  # it is a text for another program
            self._record((*wrappers, Word(written_text(value_of_script(text)))), state)
            return
        exported = {name: value for name, value in state.variables.items() if name in state.exported}
        child = State(self.run, exported, state.exported, parameters_of(parameters))
        has_options = any(commands.CHANGES_DIRECTORY.match(word.text) for word in wrappers)
        if has_options or commands.program_at(wrappers, commands.ELSEWHERE) is not None:
            child.restore(dict.fromkeys(({"PWD", "HOME"} - self.run.given), None))
        for name, value in commands.assignments_of(wrappers):
            child.assign(name, (value,))
            child.exported |= {name}
        if commands.program_at(wrappers, commands.BATCH) is not None:
            inner.options = tuple(word.text for word in wrappers)
        elif path is not None:
            child.variables |= dict.fromkeys(("0", "BASH_SOURCE"), (known(path),))
        self.run.running.append((path and self.run.file(path, state.directory)) or "")
        self._alone(inner.all_statements, child)
        self.run.running.pop()
