"""Expansion of shell words: variables, arithmetic, and the output of commands."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase

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
    reasons_of,
    scalar,
    script_of,
    text_of,
    undecided,
    unknown,
    value_of,
    value_of_script,
    word_of,
    written_text,
)

_GLOB = re.compile(r"[*?]")
_OTHER_PATTERN = re.compile(r"\[\^|\[\[|\\|[@+?*!]\(")
_PATTERN = re.compile(r"[*?\[\\(]|^[#%]")
_PLAIN = re.compile(r"[^\\*?{~]+")
_ALL = frozenset("@*")
_SPECIAL = frozenset("?$!-_")
_ESCAPED = re.compile(r"\\\n|\\(.)", re.DOTALL)
_ESCAPED_IN_QUOTES = re.compile(r'\\\n|\\([$`"\\])')
_ESCAPED_IN_DOCUMENT = re.compile(r"\\\n|\\([$`\\])")
_NUMERIC_ESCAPE = re.compile(r"\\[0-7xuUc]")
_MIN_NAME = 3
_MAX_UNSET = 20
_MAX_CUT = 4096
# Schedulers, launchers and logins set these variables.
_OF_ENVIRONMENT = re.compile(
    r"(?:SLURM|PBS|LSB|OMPI|PMI|PMIX|CUDA|NCCL|ROCR|HIP|CONDA|HF|WANDB|MASTER|LOCAL|NODE|WORLD|GROUP|KUBERNETES)_\w+"
    r"|RANK|NNODES|NPROC\w*|USER|LOGNAME|HOST|HOSTNAME|HOSTFILE|PATH|PYTHONPATH|SHELL|TMPDIR|SCRATCH|WORK|UID"
)
_HOME = re.compile(r"~(?:/|$)")
# After an assignment or a colon, bash expands it as well.
_OTHER_HOME = re.compile(r"~|[A-Za-z_]\w*=(?:.*:)?~")
_DEFAULTS = frozenset({":-", "-", ":=", "=", ":+", "+", ":?", "?"})
_ENDS = frozenset({"%", "%%", "#", "##"})
_CASES: dict[str, Callable[[str], str]] = {
    "^^": str.upper,
    ",,": str.lower,
    "^": lambda text: text[:1].upper() + text[1:],
    ",": lambda text: text[:1].lower() + text[1:],
}

Substitute = Callable[[Node, State], Value]
"""Function that returns the output of a command substitution."""


class Expander:
    """Expansion of the words of a script in one state of it.

    Args:
        text: The script.
        state: The state; assignments within expansions change it.
        substitute: A function for command substitutions.
    """

    def __init__(self, text: ShellText, state: State, substitute: Substitute) -> None:
        self._text = text
        self._state = state
        self._substitute = substitute

    def words(self, nodes: Sequence[Node]) -> list[Word]:
        """Return the words that word nodes become, after splitting."""
        words: list[Word] = []
        for node in nodes:
            if (plain := _plain_word(node.get("Parts", ()))) is not None:
                self._state.run.spend_on(plain.value)
                words.append(plain)
            else:
                words += (word_of(value) for fields in self._fields(node) for value in fields.values())
        return words

    def values(self, nodes: Sequence[Node]) -> list[Value]:
        """Return the values of the words that word nodes become."""
        return [value_of(word) for word in self.words(nodes)]

    def value(self, node: Node | None, escapes: re.Pattern[str] = _ESCAPED) -> Value:
        """Return the value of a word that is not split, as on the right of an assignment."""
        fields = Fields()
        self._add_parts(fields, (node or {}).get("Parts", ()), quoted=True, escapes=escapes)
        return joined_values(fields.values())

    def here_document(self, node: Node) -> Value:
        """Return the text of a here-document: as between double quotes, but quotes are characters."""
        return self.value(node, _ESCAPED_IN_DOCUMENT)

    def _fields(self, node: Node) -> Iterator[Fields]:
        words = expand_braces(node.get("Parts", ()), self._state.run.spend)
        if words is None:
            fields = Fields()
            fields.add((Piece(self._text.written(node), True, True, ("`{...}`",)),))
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
                # With an expansion before the first slash, ~ is a character.
                is_first = not number and (len(parts) == 1 or "/" in part.get("Value", ""))
                self._add_literal(fields, part, quoted=quoted, escapes=escapes, is_first=is_first)
            elif kind == "SglQuoted":
                text = part.get("Value", "")
                if escapes is not _ESCAPED:  # a quote between double quotes, as in "${A:-'b'}"
                    text = f"'{text}'"
                is_unknown = part.get("Dollar") and _NUMERIC_ESCAPE.search(text)
                value = value_of_script(_ansi(text) if part.get("Dollar") else text)
                self._add(fields, unknown(self._text.written(part)) if is_unknown else value)
            elif kind == "DblQuoted":
                inner = part.get("Parts", ())
                if len(inner) != 1 or inner[0]["Type"] != "ParamExp" or not _is_list(inner[0]):
                    fields.add(())  # without elements, "${ARRAY[@]}" is no word at all
                self._add_parts(fields, inner, quoted=True, escapes=_ESCAPED_IN_QUOTES)
            elif kind == "ParamExp":
                self._add_parameter(fields, part, quoted=quoted, escapes=escapes)
            elif kind == "ArithmExp":
                self._add(fields, self.number(part["X"], self._text.written(part)))
            elif kind == "CmdSubst":
                self._add(fields, self._substitute(part, self._state), is_split=not quoted)
            else:
                self._add(fields, unknown(self._text.written(part)))

    def _add(self, fields: Fields, value: Value, *, is_split: bool = False) -> None:
        self._state.run.spend_on(value)
        if is_split:
            self._state.run.spend(5 * len(written_text(value)))
            fields.add_split(value)
        else:
            fields.add(closed(value))

    def _add_literal(
        self, fields: Fields, part: Node, *, quoted: bool, escapes: re.Pattern[str], is_first: bool
    ) -> None:
        raw = part.get("Value", "")
        text = escapes.sub(lambda match: match[1] or "", raw)
        home = self._state.variables.get("HOME")
        if escapes is _ESCAPED and is_first and _HOME.match(raw) and home:
            self._add(fields, (*home[0], *known(text[1:])))
            return
        is_pattern = not quoted and _GLOB.search(re.sub(r"\\.", "", raw))
        is_home = (is_first and _OTHER_HOME.match(raw)) or (quoted and ":~" in raw)
        # The files that match, and the homes of other users, are not known.
        is_unknown = escapes is _ESCAPED and (is_pattern or is_home)
        self._add(fields, unknown(text) if is_unknown else known(text))

    def _add_parameter(self, fields: Fields, part: Node, *, quoted: bool, escapes: re.Pattern[str]) -> None:
        values = self._parameter(part)
        is_list = _is_list(part)
        if isinstance(values, dict):  # a word that replaces the value
            for inner in values.get("Parts", ()):
                text = inner.get("Value", "") if inner["Type"] == "Lit" else ""
                if text and not quoted and not re.search(r"[\\*?~]", text):
                    self._add(fields, known(text), is_split=True)
                else:
                    self._add_parts(fields, [inner], quoted=quoted, escapes=escapes)
            return
        if not quoted:
            for number, value in enumerate(values):
                if number:
                    fields.cut()
                self._add(fields, value, is_split=True)
            return
        self._state.run.spend_on(*values)
        if is_list and (_index_of(part) != "*" or self._variable(part["Param"].get("Value", "")) is None):
            fields.add(*map(_opened, values))
        else:
            fields.add(*([joined_values(values)] if is_list else map(closed, values)))

    def _parameter(  # noqa: C901, PLR0911, PLR0912 - one for each kind
        self, part: Node
    ) -> Sequence[Value] | Node:
        """Return the values of a parameter expansion, or the word that replaces them."""
        name = part["Param"].get("Value", "")
        operation = part.get("Exp") or {}
        kind = operation.get("Op", "")
        written = self._text.written(part)
        variable = self._variable(name)
        is_list = _is_list(part)
        if part.get("Excl") and not is_list:
            target = text_of(scalar(variable, name)) or ""
            if part.get("Names") or variable is None or operation or not target.isidentifier():
                return [unknown(written, reasons_of(*variable or ()) or (f"a changed value of `{name}`",))]
            variable = self._variable(target)
        values = self._selected(part, variable, written)
        if kind in _DEFAULTS:
            word: Node = operation.get("Word") or {}
            # The environment is assumed to set no variable for which the script has another value.
            is_unset = not variable and name not in _SPECIAL
            uses_word = is_unset or not values or (":" in kind and not any(values))
            pieces = [piece for value in values or () for piece in value]
            may_be_unset = any(":" in kind or piece.choices for piece in pieces if piece.is_unknown)
            if "+" in kind and values and may_be_unset and not any(map(_has_text, values)):
                scripts = ["", script_of(self.value(word))]
                return [(undecided(written, scripts, reasons_of(*values)),)]
            if "+" in kind:
                return {} if uses_word else word
            if uses_word and (values is not None or is_unset) and "?" not in kind:
                if "=" in kind:
                    self._state.assign(name, (self.value(word),))
                return word
        if values is None:
            if not operation:
                self._note_unset(name)
            nested = value_of_script(f"${{{name}}}")  # of the text that this one is nested in
            is_nested = bool(nested) and nested[0].is_unknown
            return [(nested[0] if is_nested else Piece(written, True, is_list),)]
        if is_list and (part.get("Excl") or part.get("Length")):
            if is_open(values):
                return [(Piece(written, True, bool(part.get("Excl")), reasons_of(*values)),)]
            keys = [known(str(key)) for key in range(len(values) + 1)]
            return keys[:-1] if part.get("Excl") else keys[-1:]
        if not operation and not any(part.get(change) for change in ("Slice", "Repl", "Width", "Length")):
            return values
        if any(piece.is_open or piece.choices for value in values for piece in value):
            return [(Piece(written, True, is_list, reasons_of(*values)),)]
        if kind in _DEFAULTS:
            return values
        if part.get("Slice") and is_list:
            start, count = self._slice(part["Slice"])
            if name in _ALL:  # ${@:0} begins with $0
                start = None if not start else start - 1
            if start is None or start < 0 or (count is not None and count < 0):
                return [(Piece(written, True, True, (f"a changed value of `{name}`",)),)]
            return values[start : None if count is None else start + count]
        return [self._changed(part, value, written) for value in values]

    def _note_unset(self, name: str) -> None:
        """Note a variable that is not set under ``set -u``, if the script certainly comes here."""
        state = self._state
        run = self._state.run
        is_certain = not (state.has_unknown_source or run.conditions or run.left or state.output is not None)
        is_name = name.isidentifier() and len(name) >= _MIN_NAME and not _OF_ENVIRONMENT.fullmatch(name)
        if state.requires_set and is_certain and is_name and len(run.unset) < _MAX_UNSET:
            run.unset.setdefault(name, run.line)

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

    def _selected(self, part: Node, variable: Variable | None, written: str) -> Sequence[Value] | None:
        """Return the elements that the index selects, or None if the variable is not set here."""
        if variable is None:
            return None
        if _index_of(part) == "*" and self._has_separators():
            return [unknown(written)]
        if _is_list(part):
            return variable
        if is_open(variable):
            return [unknown(written, reasons_of(*variable))]
        number = known("0")
        if (index := part.get("Index")) is not None:
            number = self.number(index, written)
        text = text_of(number)
        if text is None or int(text) < 0:
            return [unknown(written, reasons_of(number))]
        return variable[int(text) : int(text) + 1]

    def _changed(self, part: Node, value: Value, written: str) -> Value:
        """Return the value of an expansion that changes a text."""
        name = part["Param"].get("Value", "")
        operation = part.get("Exp") or {}
        text = text_of(value)
        kind = operation.get("Op", "")
        failed = unknown(written, reasons_of(value) or (f"a changed value of `{name}`",))
        if text is None:
            return failed
        result = None
        if kind in _ENDS:
            result = self._cut(text, text_of(self.value(operation.get("Word"))), kind)
        elif not text.isascii():
            pass  # the locale decides
        elif part.get("Length"):
            result = str(len(text))
        elif kind in _CASES:
            result = None if operation.get("Word") else _CASES[kind](text)
        elif part.get("Repl"):
            result = self._replaced(text, part["Repl"])
        elif part.get("Slice"):
            start, count = self._slice(part["Slice"])
            if start is not None:
                start = start if start >= 0 else len(text) + start
                end = len(text) if count is None else count + (start if count >= 0 else len(text))
                result = "" if not 0 <= start <= len(text) else text[start:end] if start <= end else None
        return failed if result is None else known(result)

    def _slice(self, node: Node) -> tuple[int | None, int | None]:
        """Return the start, or None if either number is unknown, and the count, or None if there is none."""
        numbers = [text_of(self.number(node[key], "")) for key in ("Offset", "Length") if node.get(key)]
        if None in numbers or not node.get("Offset"):
            return None, None
        start, *count = (int(number) for number in numbers if number is not None)
        return start, count[0] if count else None

    def _replaced(self, text: str, node: Node) -> str | None:
        old = text_of(self.value(node["Orig"]))
        new = text_of(self.value(node.get("With")))
        if not old or new is None or _PATTERN.search(old) or re.search(r"[&\\]", new):
            return None
        count = text.count(old) if node.get("All") else 1
        self._state.run.spend(count * (1 + len(new) // 32))
        return text.replace(old, new, count)

    def _cut(self, text: str, pattern: str | None, kind: str) -> str | None:
        if pattern is not None and not _PATTERN.search(pattern):
            return text.removeprefix(pattern) if kind[0] == "#" else text.removesuffix(pattern)
        if pattern is None or len(text) > _MAX_CUT or len(pattern) > _MAX_CUT:
            return None
        self._state.run.spend(len(text) * (len(text) * pattern.count("*") // 4096 + 1) + 10 * len(pattern))
        ends = range(len(text) + 1)
        for cut in ends if kind in ("%%", "#") else reversed(ends):
            part, remainder = (text[:cut], text[cut:]) if kind[0] == "#" else (text[cut:], text[:cut])
            is_match = matches(part, pattern)
            if is_match is None:
                return None
            if is_match:
                return remainder
        return text

    def number(self, node: Node, written: str) -> Value:
        """Return the value of an arithmetic expression."""
        return value_of_arithmetic(node, written, self._state, self.value)

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
        number: Value = ()
        index = 0 if len(before) < 2 or not is_open(before) else -1
        if (node := assignment.get("Index")) is not None:
            number = unknown("") if is_open(before) else self.number(node, "")
            text = text_of(number)
            index = -1 if text is None else int(text)
        if not 0 <= index <= len(before):
            # Also an element after a gap, which is rare.
            reasons = tuple(filter(None, reasons_of(number, *before)))
            state.forget([name], reasons or (f"`{name}[...]=`",))
            return
        if assignment.get("Append"):
            value = (*before, ())[index] + value
            state.run.spend_on(value)
        state.assign(name, (*before[:index], value, *before[index + 1 :]))


def _plain_word(parts: Sequence[Node]) -> Word | None:
    """Return the word that a literal is in every state; None for other words."""
    text = parts[0].get("Value", "") if len(parts) == 1 and parts[0]["Type"] == "Lit" else ""
    return word_of(known(text)) if _PLAIN.fullmatch(text) else None


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


def matches(text: str, pattern: str) -> bool | None:
    """Return whether a text matches a pattern as a whole; None if Python reads the pattern otherwise."""
    return None if _OTHER_PATTERN.search(pattern) else fnmatchcase(text, pattern)


def _ansi(text: str) -> str:
    simple = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "e": "\033", "a": "\a"}
    return re.sub(r"\\(.)", lambda match: simple.get(match[1], match[0]), text, flags=re.DOTALL)
