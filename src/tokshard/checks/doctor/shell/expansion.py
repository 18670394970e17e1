"""Expansion of shell words: variables, arithmetic, and the output of commands."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from tokshard.checks.doctor.shell.arithmetic import value_of_arithmetic
from tokshard.checks.doctor.shell.braces import expand_braces
from tokshard.checks.doctor.shell.state import State
from tokshard.checks.doctor.shell.syntax import Node, ShellText
from tokshard.checks.doctor.shell.values import (
    Fields,
    Piece,
    Value,
    Variable,
    Word,
    closed,
    is_open,
    joined_values,
    known,
    merged,
    reasons_of,
    text_of,
    unknown,
    value_of,
    value_of_script,
    word_of,
    written_text,
)

_GLOB = re.compile(r"[*?]")
_OTHER_PATTERN = re.compile(r"\[\^|\[\[|\\|[@+?*!]\(")
_PATTERN = re.compile(r"[*?\[\\(]")
_ALL = frozenset("@*")
_SPECIAL = frozenset("?$!-_")
# After an assignment or a colon, bash may expand it as well.
_TILDE = re.compile(r"(?:^|[:=])~")
_ANSI_ESCAPE = re.compile(r"\\([nt\\'])")
_ANSI = {"n": "\n", "t": "\t"}
_MIN_NAME = 3
_MAX_UNSET = 20
# Schedulers, launchers and logins set these variables.
_OF_ENVIRONMENT = re.compile(
    r"(?:SLURM|PBS|LSB|OMPI|PMI|PMIX|CUDA|NCCL|ROCR|HIP|CONDA|HF|WANDB|MASTER|LOCAL|NODE|WORLD|GROUP|KUBERNETES)_\w+"
    r"|RANK|NNODES|NPROC\w*|USER|LOGNAME|HOST|HOSTNAME|HOSTFILE|PATH|PYTHONPATH|SHELL|TMPDIR|SCRATCH|WORK|UID"
)
_DEFAULTS = frozenset({":-", "-", ":=", "=", ":+", "+", ":?", "?"})
_ENDS = frozenset({"%", "%%", "#", "##"})
_CASES: Mapping[str, Callable[[str], str]] = {"^^": str.upper, ",,": str.lower}


class _Quotes(NamedTuple):
    """How a part of a word is quoted.

    Attributes:
        escapes: A backslash and the characters that it quotes.
        is_split: Whether expansions are split at blanks.
        is_text_split: Whether text is split as well.
    """

    escapes: re.Pattern[str]
    is_split: bool = False
    is_text_split: bool = False


_ASSIGNED = _Quotes(re.compile(r"\\\n|\\(.)", re.DOTALL))
_BARE = _ASSIGNED._replace(is_split=True)
_REPLACING = _BARE._replace(is_text_split=True)  # a word within ${X:-...}
_QUOTED = _Quotes(re.compile(r'\\\n|\\([$`"\\])'))
_DOCUMENT = _Quotes(re.compile(r"\\\n|\\([$`\\])"))


class Expander:
    """Expansion of the words of a script in one state of it.

    Args:
        text: The script.
        state: The state; assignments within expansions change it.
        substitute: A function that returns the output of a command substitution.
    """

    def __init__(self, text: ShellText, state: State, substitute: Callable[[Node, State], Value]) -> None:
        self._text = text
        self._state = state
        self._substitute = substitute

    def words(self, nodes: Sequence[Node]) -> list[Word]:
        """Return the words that word nodes become, after splitting."""
        words: list[Word] = []
        for node in nodes:
            variants = expand_braces(node.get("Parts", ()), self._state.run.spend)
            if variants is None:
                words.append(word_of((Piece(self._text.written(node), True, True, ("`{...}`",)),)))
            for parts in variants or ():
                words += map(word_of, self._fields(parts, _BARE).values())
        return words

    def value(self, node: Node | None) -> Value:
        """Return the value of a word that is not split, as on the right of an assignment."""
        return joined_values(self._fields((node or {}).get("Parts", ()), _ASSIGNED).values())

    def pattern(self, node: Node | None) -> Value:
        """Return the value of a pattern, in which quoted characters stand for themselves as in ``[*]``."""
        value: Value = ()
        for part in (node or {}).get("Parts", ()):
            added = self.value({"Parts": [part]})
            if part["Type"] in ("SglQuoted", "DblQuoted"):
                added = tuple(
                    piece._replace(text=re.sub(r"[*?[]", r"[\g<0>]", piece.text)) for piece in added
                )
            elif part["Type"] == "Lit" and re.search(r"\\[*?[\\(]|~", part.get("Value", "")):
                added = unknown(self._text.written(part))
            value += added
        return merged(value)

    def here_document(self, node: Node) -> Value:
        """Return the text of a here-document: as between double quotes, but quotes are characters."""
        return joined_values(self._fields(node.get("Parts", ()), _DOCUMENT).values())

    def _fields(self, parts: Sequence[Node], quotes: _Quotes) -> Fields:
        fields = Fields()
        self._add_parts(fields, parts, quotes)
        return fields

    def _add_parts(self, fields: Fields, parts: Sequence[Node], quotes: _Quotes) -> None:
        for number, part in enumerate(parts):
            kind = part["Type"]
            text = part.get("Value", "")
            if kind == "Lit":
                # With an expansion before the first slash, ~ is a character.
                is_home = not number and (text.startswith("~/") or (text == "~" and len(parts) == 1))
                self._add_literal(fields, text, quotes, is_home=is_home)
            elif kind == "SglQuoted":
                if quotes.escapes is not _BARE.escapes:  # a quote between double quotes, as in "${A:-'b'}"
                    text = f"'{text}'"
                value = value_of_script(text)
                if part.get("Dollar"):
                    is_plain = "\\" not in _ANSI_ESCAPE.sub("", text)
                    text = _ANSI_ESCAPE.sub(lambda match: _ANSI.get(match[1], match[1]), text)
                    value = value_of_script(text) if is_plain else unknown(self._text.written(part))
                self._add(fields, value)
            elif kind == "DblQuoted":
                inner = part.get("Parts", ())
                if len(inner) != 1 or inner[0]["Type"] != "ParamExp" or _index_of(inner[0]) not in _ALL:
                    fields.add(())  # without elements, "${ARRAY[@]}" is no word at all
                self._add_parts(fields, inner, _QUOTED)
            elif kind == "ParamExp":
                self._add_parameter(fields, part, quotes)
            elif kind == "ArithmExp":
                self._add(fields, self.number(part["X"], self._text.written(part)))
            elif kind == "CmdSubst":
                self._add(fields, self._substitute(part, self._state), is_split=quotes.is_split)
            else:
                self._add(fields, unknown(self._text.written(part)))

    def _add(self, fields: Fields, value: Value, *, is_split: bool = False) -> None:
        self._state.run.spend_on(value)
        if not is_split:
            fields.add(closed(value))
            return
        self._state.run.spend(8 * len(written_text(value)))
        if self._state.variables.get("IFS"):
            value = unknown(written_text(value), reasons_of(value) or ("`IFS`",)) if value else ()
        fields.add_split(value)

    def _add_literal(self, fields: Fields, raw: str, quotes: _Quotes, *, is_home: bool) -> None:
        text = quotes.escapes.sub(lambda match: match[1] or "", raw)
        value = known(text)
        if quotes.escapes is _BARE.escapes:
            home = self._state.variables.get("HOME")
            is_pattern = quotes.is_split and _GLOB.search(re.sub(r"\\.", "", raw))
            if is_home and home:
                value = (*home[0], *known(text[1:]))
            elif is_pattern or _TILDE.search(raw) or (quotes.is_text_split and "\\" in raw):
                value = unknown(text)  # the files that match, and the homes of other users
        self._add(fields, value, is_split=quotes.is_text_split)

    def _add_parameter(self, fields: Fields, part: Node, quotes: _Quotes) -> None:
        values = self._parameter(part)
        if isinstance(values, dict):  # a word that replaces the value
            self._add_parts(fields, values.get("Parts", ()), _REPLACING if quotes.is_split else quotes)
        elif quotes.is_split:
            for number, value in enumerate(values):
                if number:
                    fields.cut()
                self._add(fields, value, is_split=True)
        else:
            self._state.run.spend_on(*values)
            # An unknown "$*" is taken for further arguments as well.
            is_list = _index_of(part) == "@" or self._variable(part["Param"].get("Value", "")) is None
            fields.add(*(map(_opened, values) if is_list else [joined_values(values)]))

    def _parameter(self, part: Node) -> Sequence[Value] | Node:  # noqa: PLR0911 - one for each kind
        """Return the values of a parameter expansion, or the word that replaces them."""
        name = part["Param"].get("Value", "")
        operation = part.get("Exp") or {}
        kind = operation.get("Op", "")
        written = self._text.written(part)
        is_list = _index_of(part) in _ALL
        variable = self._variable(name)
        values = () if variable is None else self._selected(part, variable, written)
        pieces = [piece for value in values for piece in value]
        failed = unknown(written, reasons_of(*values) or (f"a changed value of `{name}`",))
        if part.get("Excl") and not is_list:
            return [failed]
        is_undecided = any(piece.is_open or piece.choices for piece in pieces)
        if kind in _DEFAULTS and name not in _SPECIAL:
            word: Node = operation.get("Word") or {}
            # The environment is assumed to set no variable for which the script has another value.
            is_empty = not values or (":" in kind and not pieces)
            has_text = any(not piece.is_unknown for piece in pieces)
            if "+" in kind and pieces and not has_text and (":" in kind or is_undecided):
                return [failed]
            if "+" in kind:
                return {} if is_empty else word
            if is_empty and "?" not in kind:
                if "=" in kind:
                    self._state.assign(name, (self.value(word),))
                return word
        if variable is None:
            if not operation:
                self._note_unset(name)
            nested = value_of_script(f"${{{name}}}")  # of the text that this one is nested in
            return [nested if text_of(nested) is None else (Piece(written, True, is_list),)]
        is_changed = any(part.get(change) for change in ("Slice", "Repl", "Width", "Length", "Excl"))
        if not is_changed and (not operation or (kind in _DEFAULTS and not is_undecided)):
            return values
        if is_undecided or (is_list and part.get("Slice")):
            return [tuple(piece._replace(is_open=is_list) for piece in failed)]
        if is_list and (part.get("Length") or part.get("Excl")):
            keys = [known(str(key)) for key in range(len(values) + 1)]
            return keys[:-1] if part.get("Excl") else keys[-1:]
        return [
            known(text) if (text := self._changed(part, value)) is not None else failed for value in values
        ]

    def _note_unset(self, name: str) -> None:
        """Note a variable that is not set under ``set -u``, if the script certainly comes here."""
        state = self._state
        run = self._state.run
        is_certain = not (state.has_unknown_source or run.conditions or run.left or state.output is not None)
        is_name = name.isidentifier() and len(name) >= _MIN_NAME and not _OF_ENVIRONMENT.fullmatch(name)
        if state.requires_set and is_certain and is_name and len(run.unset) < _MAX_UNSET:
            run.unset.setdefault(name, run.line)

    def _variable(self, name: str) -> Variable | None:
        """Return a variable or parameter, None if it is not set here."""
        parameters = self._state.parameters
        if name in _ALL or name == "#" or (name.isdecimal() and name != "0"):
            if parameters is None or name in _ALL:
                return parameters
            return parameters[int(name) - 1 : int(name)] if name != "#" else (known(str(len(parameters))),)
        return None if name in _SPECIAL else self._state.variables.get(name)

    def _selected(self, part: Node, variable: Variable, written: str) -> Sequence[Value]:
        """Return the elements that the index selects."""
        if _index_of(part) == "*" and self._state.variables.get("IFS"):
            return [unknown(written)]
        if _index_of(part) in _ALL:
            return variable
        number = known("0") if part.get("Index") is None else self.number(part["Index"], written)
        text = text_of(number)
        if text is None or int(text) < 0 or is_open(variable):
            return [unknown(written, reasons_of(*variable) if is_open(variable) else reasons_of(number))]
        return variable[int(text) : int(text) + 1]

    def _changed(self, part: Node, value: Value) -> str | None:
        """Return the text of an expansion that changes a value; None if it is unknown."""
        operation = part.get("Exp") or {}
        kind = operation.get("Op", "")
        text = text_of(value)
        if text is not None and kind in _ENDS:
            return _cut(text, text_of(self.pattern(operation.get("Word"))) or "", kind)
        if text is None or not text.isascii():
            return None  # the locale decides
        if kind in _CASES and not operation.get("Word"):
            return _CASES[kind](text)
        if part.get("Repl"):
            return self._replaced(text, part["Repl"])
        return str(len(text)) if part.get("Length") else None

    def _replaced(self, text: str, node: Node) -> str | None:
        old = text_of(self.value(node["Orig"]))
        new = text_of(self.value(node.get("With")))
        if not old or old[0] in "#%" or _PATTERN.search(old) or new is None or re.search(r"[&\\]", new):
            return None
        count = text.count(old) if node.get("All") else 1
        self._state.run.spend(count * (1 + len(new) // 32))
        return text.replace(old, new, count)

    def number(self, node: Node, written: str) -> Value:
        """Return the value of an arithmetic expression."""
        return value_of_arithmetic(node, written, self._state, self.value)

    def assign(self, assignment: Node) -> None:
        """Run an assignment."""
        state = self._state
        name = assignment["Name"].get("Value", "")
        is_appended = bool(assignment.get("Append"))
        before = state.variables.get(name, ())
        if is_appended and name not in state.variables and state.has_unknown_source:
            # The environment is assumed to set no variable that the script sets, but a file may do so.
            before = ((Piece(f"${{{name}[@]}}", is_unknown=True, is_open=True),),)
        if assignment.get("Array") is not None:
            elements = assignment["Array"].get("Elems", ())
            added = tuple(map(value_of, self.words([item["Value"] for item in elements if "Value" in item])))
            state.assign(name, (*before, *added) if is_appended else added)
            if any(item.get("Index") is not None for item in elements):
                state.forget([name], (f"`{name}=([...]=...)`",))
            return
        value = self.value(assignment.get("Value"))
        if (index := assignment.get("Index")) is not None:
            self.number(index, "")  # for its assignments
        if index is not None or (len(before) > 1 and is_open(before)):
            state.forget([name], reasons_of(*before) or (f"`{name}[...]=`",))
            return
        if is_appended:
            value = (*before, ())[0] + value
            state.run.spend_on(value)
        state.assign(name, (value, *before[1:]))


def _cut(text: str, pattern: str, kind: str) -> str | None:
    """Remove a literal text, or up to or from one (``#*TEXT``, ``%TEXT*``); None for other patterns."""
    is_start = kind[0] == "#"
    literal = pattern.removeprefix("*") if is_start else pattern.removesuffix("*")
    if not literal or _PATTERN.search(literal):
        return None
    if literal == pattern:
        return text.removeprefix(pattern) if is_start else text.removesuffix(pattern)
    before, separator, after = text.partition(literal) if kind in ("#", "%%") else text.rpartition(literal)
    return text if not separator else after if is_start else before


def _opened(value: Value) -> Value:
    # Of an undecided list, any number of elements may be there.
    return tuple(piece._replace(is_open=piece.is_open or bool(piece.choices)) for piece in value)


def _index_of(part: Node) -> str:
    """Return the literal index of an expansion: @ or * for a list."""
    name = part["Param"].get("Value", "")
    if name in _ALL:
        return str(name)
    index = part.get("Index") or {}
    parts = index.get("Parts", ())
    return str(parts[0].get("Value", "")) if len(parts) == 1 and parts[0]["Type"] == "Lit" else ""


def matches(text: str, pattern: str) -> bool | None:
    """Return whether a text matches a pattern as a whole; None if Python reads the pattern otherwise."""
    return None if _OTHER_PATTERN.search(pattern) else fnmatchcase(text, pattern)
