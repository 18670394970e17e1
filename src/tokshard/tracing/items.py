"""What a user wants to follow: a line of a file, a place in it, or a document of a dataset."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, NoReturn

from tokshard.errors import InputError, UsageError
from tokshard.storage.paths import strip_data_suffix

Kind = Literal["line", "offset", "document"]

_FORM = re.compile(r"(.+)([:@#])([0-9]{1,18})", re.DOTALL)
_KINDS: dict[str, Kind] = {":": "line", "@": "offset", "#": "document"}
_HINT = "write FILE:LINE (lines from 1), FILE@OFFSET (bytes from 0; rows of tables) or PREFIX#DOCUMENT"


@dataclass(frozen=True, slots=True)
class Item:
    """One thing to follow.

    Attributes:
        text: As the user wrote it.
        kind: What the number counts: lines from 1; bytes of the decompressed file, or rows of a table,
            from 0; documents of a dataset from 0.
        path: The file, or the path prefix of the dataset.
        number: The number.
    """

    text: str
    kind: Kind
    path: str
    number: int


def parse_item(text: str) -> Item:
    """Return what ``FILE:LINE``, ``FILE@OFFSET`` or ``PREFIX#DOCUMENT`` means.

    Raises:
        UsageError: It is none of these.

    Example:
        >>> parse_item("web.jsonl:17").kind, parse_item("out/web#3").number
        ('line', 3)
    """
    found = _FORM.fullmatch(text)
    if found is None:
        _refuse(f"{text!r} names no line, no place in a file and no document")
    path, mark, digits = found.groups()
    kind, number = _KINDS[mark], int(digits)
    if kind == "line" and number == 0:
        _refuse(f"{text!r} names line 0, but the first line of a file is 1")
    return Item(text, kind, strip_data_suffix(path) if kind == "document" else path, number)


def read_items(path: str) -> list[Item]:
    """Read a list: one item a line; lines that are blank or begin with ``# `` are passed over.

    Raises:
        InputError: It cannot be read, or holds nothing.
        UsageError: A line is no item.
    """
    try:
        with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="\n") as file:
            lines = [line.strip() for line in file]
    except OSError as error:
        raise InputError(f"cannot read the list {path}: {error.strerror}") from error
    items = []
    for number, line in enumerate(lines, 1):
        if line and line != "#" and not line.startswith("# "):
            try:
                items.append(parse_item(line))
            except UsageError as error:
                raise UsageError(f"{path}:{number}: {error.message}", hint=error.hint) from None
    if not items:
        raise InputError(f"the list {path} names nothing", hint=_HINT)
    return items


def _refuse(problem: str) -> NoReturn:
    raise UsageError(problem, hint=_HINT)
