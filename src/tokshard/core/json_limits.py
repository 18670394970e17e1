"""Limits on the structure of JSON, checked before a parser creates objects.

A parser needs 30 to 300 bytes for each value, which may be two bytes of text. The structure is counted
without parsing, in memory that does not depend on the content, and only up to the limit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Literal, NamedTuple

from tokshard.core.formatting import count, counted

_BLOCK_BYTES = 1 << 16

# Possessive, and with an optional end, so that no content takes more than linear time or any memory: a
# string without an end is taken for the rest of the content, where the parser stops, too.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_WHOLE_STRINGS = re.compile(rb'(?:[^"]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+', re.DOTALL)
_WHITESPACE = b" \t\r\n"
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")


class JsonExcess(NamedTuple):
    """A limit that a JSON text exceeds."""

    limit: Literal["depth", "containers", "values"]
    message: str
    """The limit in words: ``have at most 2,000,000 keys and values``."""


@dataclass(frozen=True, slots=True)
class JsonLimits:
    """Limits on the structure of a JSON text.

    Attributes:
        containers: The most arrays and objects.
        values: The most values, arrays and objects included, and keys of objects.
        depth: The most arrays and objects around a value; None if the parser limits it.
    """

    containers: int
    values: int
    depth: int | None = None

    def excess(self, content: bytes) -> JsonExcess | None:
        """Return the first limit that a JSON text exceeds, or None.

        Time is linear in the size of ``content`` and ends at the limit; memory is a constant. A text that
        is not JSON has a result, too.

        Example:
            >>> JsonLimits(containers=4, values=8, depth=2).excess(b'{"a": [1, 2], "b": "[[["}')
            >>> JsonLimits(containers=4, values=8, depth=1).excess(b'{"a": [1, 2]}').message
            'be nested at most 1 level deep'
        """
        opened = content.count(b"[") + content.count(b"{")
        most_depth = opened if self.depth is None else self.depth
        if opened <= min(most_depth, self.containers) and opened + _separators(content) < self.values:
            return None  # also with the brackets in strings
        depth = containers = 0
        values = 1
        held = b""
        for piece in chain(_without_strings(content), (b'"',)):  # the last one follows an open bracket
            outline = held + piece
            # An opening bracket at the end of a piece may have nothing in it.
            held = outline[-1:] if outline[-1:] in (b"[", b"{") else b""
            outline = outline[: len(outline) - len(held)]
            opened = outline.count(b"[") + outline.count(b"{")
            containers += opened
            values += opened + _separators(outline) - outline.count(b"[]") - outline.count(b"{}")
            if containers > self.containers:
                return JsonExcess("containers", f"have at most {count(self.containers)} arrays and objects")
            if values > self.values:
                return JsonExcess("values", f"have at most {count(self.values)} keys and values")
            if self.depth is None:
                continue
            for bracket in outline.translate(None, delete=_NOT_BRACKETS):
                depth += 1 if bracket in b"[{" else -1
                if depth > self.depth:
                    return JsonExcess("depth", f"be nested at most {counted(self.depth, 'level')} deep")
        return None


def _separators(text: bytes) -> int:
    return text.count(b",") + text.count(b":")


def _without_strings(content: bytes) -> Iterator[bytes]:
    # Pieces of the content without white space, each string replaced by a quotation mark.
    position = 0
    while position < len(content):
        match = _WHOLE_STRINGS.match(content, position, position + _BLOCK_BYTES)
        end = match.end() if match else position
        if end > position:
            yield _STRING.sub(b'"', content[position:end]).translate(None, delete=_WHITESPACE)
        else:
            string = _STRING.match(content, position)
            end = string.end() if string else len(content)
            yield b'"'
        position = end
