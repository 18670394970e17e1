"""Expansion of shell words: variables, arithmetic, and the output of simple commands."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from tokshard.checks.doctor.shell.arithmetic import calculated, value_of_arithmetic
from tokshard.checks.doctor.shell.braces import expand_braces
from tokshard.checks.doctor.shell.state import State
from tokshard.checks.doctor.shell.syntax import Node, ShellText, assigned_names
from tokshard.checks.doctor.shell.values import (
    Fields,
    Piece,
    Value,
    Variable,
    Word,
    distinct,
    is_open,
    joined_values,
    known,
    reasons_of,
    scalar,
    script_of,
    text_of,
    undecided,
    unknown,
    value_of,
    value_of_script,
    word_of,
)

_GLOB = re.compile(r"[*?]")
_OTHER_PATTERN = re.compile(r"\[\^|\[\[|\\|[@+?*!]\(")
_PLAIN = re.compile(r"[^\\*?{~]+")
_ALL = frozenset("@*")
_SPECIAL = frozenset("?$!-_")
_ESCAPED = re.compile(r"\\\n|\\(.)", re.DOTALL)
_ESCAPED_IN_QUOTES = re.compile(r'\\\n|\\([$`"\\])')
_ESCAPED_IN_DOCUMENT = re.compile(r"\\\n|\\([$`\\])")


class Expander:
    """Expansion of the words of a script in one state of it.

    Args:
        text: The script.
        state: The state; assignments within expansions change it.
    """

    def __init__(self, text: ShellText, state: State) -> None:
        self._text = text
        self._state = state
        self._needed: list[str] = []  # the reasons why the last expansion is unknown

    def words(self, nodes: Sequence[Node]) -> list[Word]:
        """Return the words that word nodes become, after splitting."""
        words: list[Word] = []
        for node in nodes:
            if (plain := _plain_word(node.get("Parts", ()))) is not None:
                words.append(plain)
            else:
                words += (word for fields in self._fields(node) for word in fields.words())
        return words

    def values(self, nodes: Sequence[Node]) -> list[Value]:
        """Return the values of the words that word nodes become."""
        return [value_of(word) for word in self.words(nodes)]

    def value(self, node: Node | None) -> Value:
        """Return the value of a word that is not split, as on the right of an assignment."""
        if node is None:
            return ()
        fields = Fields()
        self._add_parts(fields, node.get("Parts", ()), quoted=True, escapes=_ESCAPED)
        return joined_values(fields.values())

    def here_document(self, node: Node) -> Value:
        """Return the text of a here-document: as between double quotes, but quotes are characters."""
        fields = Fields()
        self._add_parts(fields, node.get("Parts", ()), quoted=True, escapes=_ESCAPED_IN_DOCUMENT)
        return joined_values(fields.values())

    def _fields(self, node: Node) -> Iterator[Fields]:
        words = expand_braces(node.get("Parts", ()))
        if words is None:
            fields = Fields()
            fields.add_open(Piece(self._text.written(node), is_unknown=True, reasons=("`{...}`",)))
            yield fields
        for parts in words or ():
            fields = Fields(has_separators=self._has_separators())
            self._add_parts(fields, parts, quoted=False, escapes=_ESCAPED)
            yield fields

    def _has_separators(self) -> bool:
        variable = self._state.variables.get("IFS")
        text = text_of(variable[0]) if variable else None
        return text is not None and set(text) != set(" \t\n")

    def _add_parts(
        self, fields: Fields, parts: Sequence[Node], *, quoted: bool, escapes: re.Pattern[str]
    ) -> None:
        for number, part in enumerate(parts):
            kind = part["Type"]
            if kind == "Lit":
                self._add_literal(fields, part, quoted=quoted, escapes=escapes, is_first=not number)
            elif kind == "SglQuoted":
                text = part.get("Value", "")
                if escapes is not _ESCAPED:  # a quote between double quotes, as in "${A:-'b'}"
                    text = f"'{text}'"
                fields.add(value_of_script(_ansi(text) if part.get("Dollar") else text))
            elif kind == "DblQuoted":
                if not self._is_empty_list(part):
                    fields.add(())
                self._add_parts(fields, part.get("Parts", ()), quoted=True, escapes=_ESCAPED_IN_QUOTES)
            elif kind == "ParamExp":
                self._add_parameter(fields, part, quoted=quoted, escapes=escapes)
            elif kind == "ArithmExp":
                fields.add(self.number(part["X"], self._text.written(part)))
            elif kind == "CmdSubst":
                output = self._output(part)
                value = unknown(self._text.written(part)) if output is None else output
                (fields.add if quoted else fields.add_split)(value)
            else:
                fields.add(unknown(self._text.written(part)))

    @staticmethod
    def _is_empty_list(part: Node) -> bool:
        # "${ARRAY[@]}" without elements is no word at all.
        parts = part.get("Parts", ())
        return len(parts) == 1 and parts[0]["Type"] == "ParamExp" and _is_list(parts[0])

    def _add_literal(
        self, fields: Fields, part: Node, *, quoted: bool, escapes: re.Pattern[str], is_first: bool
    ) -> None:
        raw = part.get("Value", "")
        text = escapes.sub(lambda match: match[1] or "", raw)
        is_home = is_first and raw.startswith("~")
        is_pattern = not quoted and _GLOB.search(raw.replace("\\*", "").replace("\\?", ""))
        # Home directories and the files that match are not known.
        fields.add(unknown(text) if escapes is _ESCAPED and (is_home or is_pattern) else known(text))

    def _add_parameter(self, fields: Fields, part: Node, *, quoted: bool, escapes: re.Pattern[str]) -> None:
        written = self._text.written(part)
        if (word := self._replacement(part)) is not None:
            for inner in word.get("Parts", ()):
                if inner["Type"] == "Lit" and not quoted and "\\" not in inner.get("Value", ""):
                    fields.add_split(known(inner.get("Value", "")))
                else:
                    self._add_parts(fields, [inner], quoted=quoted, escapes=escapes)
            return
        values = self._parameter(part)
        is_list = _is_list(part)
        if values is None:
            piece = self._unknown(part, written)
            if is_list or not quoted:
                fields.add_open(piece)
            else:
                fields.add((piece,))
        elif not quoted:
            for number, value in enumerate(values):
                if number:
                    fields.cut()
                fields.add_split(value)
        elif is_list and _index_of(part) == "*":
            fields.add(joined_values(values))
        else:
            fields.add_list(map(_opened, values) if is_list else values)

    def _unknown(self, part: Node, written: str) -> Piece:
        name = part["Param"].get("Value", "")
        if (pieces := value_of_script(f"${{{name}}}")) and pieces[0].is_unknown:
            return pieces[0]  # of the text that this one is nested in
        return Piece(written, True, reasons=distinct(self._needed))

    def _replacement(self, part: Node) -> Node | None:
        """Return the word that a parameter expansion has for a variable that is not set, or is."""
        operation, name = part.get("Exp"), part["Param"].get("Value", "")
        if operation is None or operation["Op"] not in _DEFAULTS or part.get("Excl") or part.get("Length"):
            return None
        kind, variable = operation["Op"], self._variable(name)
        # The environment is assumed to set no variable for which the script has another value.
        is_missing = variable is None or not variable
        is_unset = is_missing and name not in _SPECIAL
        values = self._selected(part, variable)
        if values is None and not is_unset:
            return None
        uses_word = is_unset or not values or (":" in kind and not any(values))
        unknown_pieces = [piece for value in values or () for piece in value if piece.is_unknown]
        may_be_unset = any(":" in kind or piece.choices for piece in unknown_pieces)
        if values and "+" in kind and may_be_unset and not any(map(_has_text, values)):
            return None
        word: Node = operation.get("Word") or {}
        if "+" in kind:
            return {} if uses_word else word
        if not uses_word or "?" in kind:
            return None
        if "=" in kind:
            self._state.assign(name, (self.value(word),))
        return word

    def _parameter(self, part: Node) -> Sequence[Value] | None:  # noqa: PLR0911 - one for each change
        """Return the values of a parameter expansion; None if they are unknown."""
        self._needed.clear()
        variable = self._variable(part["Param"].get("Value", ""))
        values = self._selected(part, variable)
        operation, has_many = part.get("Exp"), _is_list(part)
        is_text_changed = operation is not None and operation["Op"] not in (*_DEFAULTS, "%", "%%", "#", "##")
        is_name_or_length = not has_many and (part.get("Excl") or part.get("Length"))
        if is_text_changed or is_name_or_length or any(part.get(change) for change in _RARE):
            # No value of the variable makes this known.
            self._needed[:] = [f"a changed value of `{part['Param'].get('Value', '')}`"]
            return None
        if variable is None or values is None:
            return None
        self._needed += reasons_of(*values)
        if part.get("Excl") or part.get("Length"):
            keys = [known(str(key)) for key in range(len(values) + 1)]
            return None if is_open(values) else keys[:-1] if part.get("Excl") else keys[-1:]
        if operation is None:
            return values
        if "+" in operation["Op"]:
            scripts = ["", script_of(self.value(operation.get("Word")))]
            return [(undecided(self._text.written(part), scripts, reasons_of(*values)),)]
        if any(piece.is_open or piece.choices for value in values for piece in value):
            return None
        if operation["Op"] in _DEFAULTS:
            return values
        return [
            self._cut(operation, value, unknown(self._text.written(part), self._needed)) for value in values
        ]

    def _variable(self, name: str) -> Variable | None:
        parameters = self._state.parameters
        if name in _SPECIAL:
            return None
        if name == "0" or (name not in _ALL and name != "#" and not name.isdecimal()):
            return self._state.variables.get(name)
        if parameters is None:
            return None
        if name.isdecimal():
            return parameters[int(name) - 1 : int(name)]
        return (known(str(len(parameters))),) if name == "#" else parameters

    def _selected(self, part: Node, variable: Variable | None) -> Sequence[Value] | None:
        # The elements that the index selects; None if the variable is not set here or unknown.
        if _index_of(part) == "*" and self._has_separators():
            return None
        if variable is None or _is_list(part):
            return variable
        if is_open(variable):
            self._needed += reasons_of(*variable)
            return None
        index = 0 if part.get("Index") is None else self.arithmetic(part["Index"])
        return None if index is None or index < 0 else variable[index : index + 1]

    def _cut(self, operation: Node, value: Value, written: Value) -> Value:
        text, pattern, kind = text_of(value), text_of(self.value(operation.get("Word"))), operation["Op"]
        if text is None or pattern is None:
            return written
        ends = range(len(text) + 1)
        cuts = ends if kind in ("%%", "#") else reversed(ends)
        for cut in cuts:
            part, rest = (text[:cut], text[cut:]) if kind.startswith("#") else (text[cut:], text[:cut])
            is_match = matches(part, pattern)
            if is_match is None:
                return written
            if is_match:
                return known(rest)
        return value

    def number(self, node: Node, written: str) -> Value:
        """Return the value of an arithmetic expression; the variables that it assigns become unknown."""
        if names := set(assigned_names(node)):
            self._state.forget(names, _NOT_COMPUTED)
            return unknown(written, _NOT_COMPUTED)
        return value_of_arithmetic(node, written, self._operand)

    def _operand(self, node: Node) -> Value:
        value = self.value(node)
        name = text_of(value) or ""
        return scalar(self._state.variables.get(name), name) if name.isidentifier() else value

    def arithmetic(self, node: Node) -> int | None:
        """Return the value of an arithmetic expression; None if it is unknown."""
        value = self.number(node, "")
        self._needed += reasons_of(value)
        return None if (text := text_of(value)) is None else int(text)

    def assign(self, assignment: Node) -> None:
        """Run an assignment."""
        state = self._state
        name = assignment["Name"].get("Value", "")
        before = state.variables.get(name, ())
        if assignment.get("Append") and name not in state.variables and state.has_unknown_source:
            # The environment is assumed to set no variable that the script sets, but a file may do so.
            before = ((Piece(f"${{{name}[@]}}", is_unknown=True, is_open=True),),)
        if assignment.get("Array") is not None:
            elements = assignment["Array"].get("Elems", ())
            added = tuple(self.values([element["Value"] for element in elements if "Value" in element]))
            if any(element.get("Index") is not None for element in elements):
                state.forget([name], (f"`{name}=([...]=...)`",))
            else:
                state.assign(name, (*before, *added) if assignment.get("Append") else added)
            return
        value = self.value(assignment.get("Value"))
        self._needed.clear()
        index = 0 if len(before) < 2 or not is_open(before) else -1
        if (node := assignment.get("Index")) is not None:
            number = None if is_open(before) else self.arithmetic(node)
            index = -1 if number is None else number
        if not 0 <= index <= len(before):
            # Also an element after a gap, which is rare.
            reasons = (*self._needed, *reasons_of(*before))
            state.forget([name], reasons or (f"`{name}[...]=`",))
            return
        if assignment.get("Append"):
            value = (*before, ())[index] + value
        state.assign(name, (*before[:index], value, *before[index + 1 :]))

    def _output(self, part: Node) -> Value | None:
        """Return the output of a command substitution; None if only running it would tell."""
        statements = part.get("Stmts", ())
        command = statements[0].get("Cmd") or {} if len(statements) == 1 else {}
        if command.get("Op") == "&&":  # $(cd DIRECTORY && pwd)
            changes, prints = (self.values(command[side].get("Cmd", {}).get("Args", ())) for side in "XY")
            target = text_of(changes[1]) if len(changes) == 2 and text_of(changes[0]) == "cd" else None
            is_printed = [text_of(word) for word in prints[:1]] == ["pwd"]
            return known(os.path.abspath(target)) if target and is_printed else None
        if command.get("Type") != "CallExpr" or not command.get("Args"):
            return None
        redirections = statements[0].get("Redirs", ())
        if redirections:
            is_document = redirections[0]["Op"] in ("<<", "<<-") and self._text.written(command) == "cat"
            return _without_newlines(self.here_document(redirections[0]["Hdoc"])) if is_document else None
        first, *operands = self.values(command["Args"])
        output = _output_of(text_of(first) or "", operands)
        return None if output is None else _without_newlines(output)


def _plain_word(parts: Sequence[Node]) -> Word | None:
    """Return the word that a literal is in every state; None for other words."""
    text = parts[0].get("Value", "") if len(parts) == 1 and parts[0]["Type"] == "Lit" else ""
    return word_of(known(text)) if _PLAIN.fullmatch(text) else None


_DEFAULTS = frozenset({":-", "-", ":=", "=", ":+", "+", ":?", "?"})
_RARE = ("Slice", "Repl", "Width")  # changes of a value that are not done here
_NOT_COMPUTED = ("`((...))`",)


def _opened(value: Value) -> Value:
    # Of an undecided list, any number of elements may be there.
    return tuple(piece._replace(is_open=piece.is_open or bool(piece.choices)) for piece in value)


def _has_text(value: Value) -> bool:
    return any(piece.text and not piece.is_unknown for piece in value)


def _is_list(part: Node) -> bool:
    return _index_of(part) in _ALL


def _index_of(part: Node) -> str:
    name = part["Param"].get("Value", "")
    if name in _ALL:
        return str(name)
    index = part.get("Index") or {}
    parts = index.get("Parts", ())
    return str(parts[0].get("Value", "")) if len(parts) == 1 and parts[0]["Type"] == "Lit" else ""


def _output_of(program: str, operands: Sequence[Value]) -> Value | None:
    """Return the output of a program; None if only running it would tell."""
    texts = [text for value in operands if (text := text_of(value)) is not None]
    if program == "echo":
        return joined_values(operands[1:] if texts[:1] == ["-n"] or texts[:1] == ["-e"] else operands)
    if len(texts) < len(operands) or any(text.startswith("-") for text in texts):
        return None
    output = None
    match program, *texts:
        case "dirname", path:
            output = os.path.dirname(path.rstrip("/")) or "."
        case "realpath", path:
            output = os.path.abspath(path)
        case "basename", path, *suffix:
            name = os.path.basename(path.rstrip("/"))
            output = name if [name] == suffix else name.removesuffix("".join(suffix[:1]))
        case "expr", one, operator, other:
            output = calculated(operator, one, other)
    return None if output is None else known(output)


def matches(text: str, pattern: str) -> bool | None:
    """Return whether a text matches a pattern as a whole; None if Python reads the pattern otherwise."""
    return None if _OTHER_PATTERN.search(pattern) else fnmatchcase(text, pattern)


def _without_newlines(value: Value) -> Value:
    if value and not value[-1].is_unknown:
        return (*value[:-1], *known(value[-1].text.rstrip("\n")))
    return value


def _ansi(text: str) -> str:
    simple = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "e": "\033", "a": "\a"}
    return re.sub(r"\\(.)", lambda match: simple.get(match[1], match[0]), text, flags=re.DOTALL)
