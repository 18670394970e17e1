"""Reading shell text without running it: its commands, with the variables that the text itself sets.

Launch scripts collect arguments in variables and arrays. What they assign is put in where it is used;
what only a shell can know (a variable set elsewhere, a command's output, ``$1``) stays as written, and
the word that holds it says so. Conditions, loops and functions are not followed: every assignment
counts, in the order of the text.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tokshard.errors import UsageError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=")
_DECLARATIONS = frozenset({"export", "local", "declare", "readonly", "typeset"})
_ENDS = " \t\r\n;&|()<>"
_BRACED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\[[@*]\])?(?::?[-=](.*))?", re.DOTALL)

_OPERATIONS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command.

    Attributes:
        text: The word after expansion.
        unknown: The expansions in it that only a shell can do, as they are written.
    """

    text: str
    unknown: tuple[str, ...] = ()


def read_commands(text: str) -> list[tuple[Word, ...]]:
    """Return the words of each command of a shell text; assignments and redirections are left out.

    Raises:
        UsageError: A quote or bracket is not closed.

    Example:
        >>> [[word.text for word in command] for command in read_commands("N=2; run --n $N 'a b'")]
        [['run', '--n', '2', 'a b']]
    """
    return _Reader(text).read()


@dataclass(slots=True)
class _Fields:
    # One run of characters becomes more than one word where an expansion is split.
    done: list[Word] = field(default_factory=list)
    text: str = ""
    unknown: tuple[str, ...] = ()
    present: bool = False

    def add(self, text: str) -> None:
        self.text += text
        self.present = True

    def add_unknown(self, written: str) -> None:
        self.add(written)
        self.unknown += (written,)

    def cut(self) -> None:
        if self.present:
            self.done.append(Word(self.text, self.unknown))
        self.text, self.unknown, self.present = "", (), False

    def add_words(self, words: tuple[Word, ...]) -> None:
        for number, word in enumerate(words):
            if number:
                self.cut()
            self.add(word.text)
            self.unknown += word.unknown

    def add_split(self, word: Word) -> None:
        if word.unknown:
            self.add(word.text)
            self.unknown += word.unknown
            return
        pieces = word.text.split()
        if not pieces or word.text[0].isspace():
            self.cut()
        self.add_words(tuple(map(Word, pieces)))
        if pieces and word.text[-1].isspace():
            self.cut()


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._variables: dict[str, tuple[Word, ...]] = {}

    def read(self) -> list[tuple[Word, ...]]:
        commands: list[tuple[Word, ...]] = []
        words: list[Word] = []
        while self._at < len(self._text):
            character = self._peek()
            if character in "\n;&|()":
                self._at += 1
                commands.append(tuple(words))
                words = []
            elif character in "<>":
                self._redirection()
            elif not self._blank() and not self._assignment(words):
                words += self._word()
        return [command for command in (*commands, tuple(words)) if command]

    def _peek(self, count: int = 1) -> str:
        return self._text[self._at : self._at + count]

    def _blank(self) -> bool:
        if self._peek() in " \t\r":
            self._at += 1
        elif self._peek(2) == "\\\n" or self._peek(3) == "\\\r\n":
            self._at = self._text.index("\n", self._at) + 1
        elif self._peek() == "#":
            end = self._text.find("\n", self._at)
            self._at = len(self._text) if end < 0 else end
        else:
            return False
        return True

    def _redirection(self) -> None:
        while self._peek() and self._peek() in "<>&":
            self._at += 1
        while self._at < len(self._text) and self._blank():
            pass
        if self._peek() and self._peek() not in _ENDS:
            self._word()

    def _assignment(self, words: list[Word]) -> bool:
        match = _ASSIGNMENT.match(self._text, self._at)
        declares = bool(words) and words[0].text in _DECLARATIONS
        if match is None or not (declares or not words):
            return False
        self._at = match.end()
        name, appends = match.groups()
        before = self._variables.get(name, ()) if appends else ()
        if self._peek() == "(":
            self._at += 1
            self._variables[name] = before + self._array(name)
            return True
        value = self._word(split=False) if self._peek() and self._peek() not in _ENDS else []
        parts = before + tuple(value)
        unknown = tuple(name for part in parts for name in part.unknown)
        self._variables[name] = (Word("".join(part.text for part in parts), unknown),)
        return True

    def _array(self, name: str) -> tuple[Word, ...]:
        words: list[Word] = []
        while self._peek() != ")":
            if self._at >= len(self._text):
                raise UsageError(f"unclosed array {name}=(")
            if self._peek() == "\n":
                self._at += 1
            elif not self._blank():
                if self._peek() in _ENDS:
                    raise UsageError(f"unquoted {self._peek()!r} in the array {name}=(")
                words += self._word()
        self._at += 1
        return tuple(words)

    def _word(self, *, split: bool = True) -> list[Word]:
        fields = _Fields()
        if number := re.compile(r"[0-9]+(?=[<>])").match(self._text, self._at):
            self._at = number.end()
            return []
        while self._at < len(self._text) and self._peek() not in _ENDS:
            character = self._peek()
            if character == "\\":
                fields.add("" if self._peek(2) == "\\\n" else self._peek(2)[1:])
                self._at += 2
            elif character == "'":
                fields.add(self._until("'"))
            elif character == '"':
                self._quoted(fields)
            elif character in "$`":
                self._expansion(fields, split=split)
            else:
                fields.add(character)
                self._at += 1
        fields.cut()
        return fields.done

    def _until(self, quote: str) -> str:
        end = self._text.find(quote, self._at + 1)
        if end < 0:
            raise UsageError(f"unclosed {quote} before {self._text[self._at + 1 :][:40]!r}")
        inside = self._text[self._at + 1 : end]
        self._at = end + 1
        return inside

    def _quoted(self, fields: _Fields) -> None:
        start = self._at
        fields.add("")
        self._at += 1
        while self._peek() != '"':
            if self._at >= len(self._text):
                raise UsageError(f'unclosed " before {self._text[start + 1 :][:40]!r}')
            if self._peek() == "\\" and self._peek(2)[1:] in tuple('"$`\\\n'):
                fields.add("" if self._peek(2) == "\\\n" else self._peek(2)[1:])
                self._at += 2
            elif self._peek() in "$`":
                self._expansion(fields, split=False)
            else:
                fields.add(self._peek())
                self._at += 1
        self._at += 1

    def _expansion(self, fields: _Fields, *, split: bool) -> None:
        start = self._at
        if self._peek() == "`":
            self._until("`")
            fields.add_unknown(self._text[start : self._at])
        elif self._peek(2) == "$'":
            self._at += 1
            fields.add(self._until("'"))
        elif self._peek(2) in ("$(", "${"):
            inside = self._bracketed()
            written = self._text[start : self._at]
            if written.startswith("${"):
                self._put(fields, self._braced(inside), written, split=split)
            elif (value := self._arithmetic(inside)) is not None:
                fields.add(str(value))
            else:
                fields.add_unknown(written)
        elif name := _NAME.match(self._text, self._at + 1):
            self._at = name.end()
            self._put(
                fields, self._variables.get(name.group(), ())[:1] or None, "$" + name.group(), split=split
            )
        elif re.match(r"[0-9@*#?$!-]", self._peek(2)[1:]):
            self._at += 2
            fields.add_unknown(self._text[start : self._at])
        else:
            fields.add("$")
            self._at += 1

    @staticmethod
    def _put(fields: _Fields, words: tuple[Word, ...] | None, written: str, *, split: bool) -> None:
        if words is None:
            fields.add_unknown(written)
        elif not split:
            fields.add_words(words)
        else:
            for number, word in enumerate(words):
                if number:
                    fields.cut()
                fields.add_split(word)

    def _bracketed(self) -> str:
        opening, start = self._peek(2)[1:], self._at + 2
        closing = {"(": ")", "{": "}"}[opening]
        depth = 0
        for position in range(start - 1, len(self._text)):
            depth += {opening: 1, closing: -1}.get(self._text[position], 0)
            if depth == 0:
                self._at = position + 1
                return self._text[start:position]
        raise UsageError(f"unclosed {opening} before {self._text[start:][:40]!r}")

    def _braced(self, inside: str) -> tuple[Word, ...] | None:
        # None if only a shell knows.
        match = _BRACED.fullmatch(inside)
        if match is None:
            return None
        name, whole, default = match.groups()
        words = self._variables.get(name)
        if words is None:
            return None if default is None else (Word(default.strip("\"'")),)
        return words if whole else words[:1] or (Word(""),)

    def _arithmetic(self, inside: str) -> int | None:
        # None if it is not plain arithmetic.
        if not (inside.startswith("(") and inside.endswith(")")):
            return None
        known = {name: "".join(word.text for word in words) for name, words in self._variables.items()}
        plain = _NAME.sub(
            lambda name: known.get(name.group(), name.group()), re.sub(r"\$\{?(\w+)\}?", r"\1", inside[1:-1])
        )
        try:
            return _evaluate(ast.parse(plain.strip(), mode="eval").body)
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
            return None


def _evaluate(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return _OPERATIONS[type(node.op)](_evaluate(node.left), _evaluate(node.right))
    raise ValueError("not plain arithmetic")
