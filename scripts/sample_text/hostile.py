"""Every kind of bad record among good ones, and what a careful reader makes of each.

The table here is the truth: a line is ``accepted`` (with the value of its text field), ``blank`` (no
record), or rejected with one of the reason codes of ``tokshard tokenize --on-error skip``. A cut record is
``truncated-record`` only at the end of the file; before, it is just ``invalid-json``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

ACCEPTED = "accepted"
BLANK = "blank"
DEEP = 100_000


@dataclass(frozen=True, slots=True)
class HostileLine:
    """One line: its bytes without the newline, what becomes of it, and the text if it is accepted."""

    what: str
    outcome: str
    content: bytes
    text: Any = None


def hostile_lines() -> Iterator[HostileLine]:
    """Yield all lines: after every third one a plain good record, and a cut record at the very end."""
    for number, line in enumerate([*_accepted(), *_malformed(), *_wrong_shape(), *_bad_bytes()], start=1):
        yield line
        if number % 3 == 0:
            text = f"Plain record number {number // 3}: the ferry leaves at noon."
            yield _good("plain", {"id": number, "text": text})
    yield HostileLine(
        "cut without newline at the end of the file", "truncated-record", b'{"id": 99, "text": "The ferr'
    )


def _good(what: str, record: dict[str, Any]) -> HostileLine:
    return HostileLine(what, ACCEPTED, json.dumps(record, ensure_ascii=False).encode(), record["text"])


def _accepted() -> Iterator[HostileLine]:
    yield _good("plain", {"id": 0, "text": "All is well."})
    yield _good("empty text", {"text": ""})
    yield _good("list of strings", {"text": ["First sentence.", "Second sentence."]})
    yield _good(
        "terminal escape sequences", {"text": "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b[2J \x9b1m \r over"}
    )
    yield _good("rich markup", {"text": "[red]not red[/red] [link=https://example.org]x[/link] [/] :smile:"})
    yield _good("direction overrides", {"text": "abc \u202e cba \u2066 x \u2069 \u200f"})
    yield _good("separators that are no line ends", {"text": "a\u2028b\u2029c\x85d\x0be"})
    yield _good("U+FEFF and noncharacters inside the text", {"text": "a\ufeffb \uffff \U0010ffff"})
    yield HostileLine("U+0000 escape", ACCEPTED, rb'{"text": "a\u0000b"}', "a\0b")
    yield HostileLine("surrogate pair escape", ACCEPTED, rb'{"text": "\ud83d\ude00"}', "😀")
    yield HostileLine("escapes", ACCEPTED, rb'{"text": "\" \\ \/ \b\f\n\r\t \u00e9"}', '" \\ / \b\f\n\r\t é')
    yield HostileLine("escaped field name", ACCEPTED, rb'{"t\u0065xt": "found"}', "found")
    yield HostileLine(
        "NaN in another field", ACCEPTED, b'{"score": NaN, "text": "not a number"}', "not a number"
    )
    yield HostileLine("-Infinity elsewhere", ACCEPTED, b'{"text": "far", "s": [-Infinity, 1e999]}', "far")
    yield HostileLine("long integer elsewhere", ACCEPTED, b'{"text": "big", "n": ' + b"7" * 60 + b"}", "big")
    yield HostileLine(
        "duplicate key, the last counts", ACCEPTED, b'{"text": "first", "text": "last"}', "last"
    )
    yield HostileLine(
        "lone surrogate in another field", ACCEPTED, rb'{"id": "\udc00", "text": "fine"}', "fine"
    )
    yield HostileLine("CRLF line", ACCEPTED, b'{"text": "from Windows"}\r', "from Windows")
    yield HostileLine("white space around", ACCEPTED, b' \t{"text" :\t"wide" ,\r"id": 1 } \t', "wide")
    yield HostileLine("200 levels elsewhere", ACCEPTED, _nested(200), "deep")
    yield HostileLine("empty line", BLANK, b"")
    yield HostileLine("line of spaces and tabs", BLANK, b"  \t ")
    yield HostileLine("empty CRLF line", BLANK, b"\r")


def _malformed() -> Iterator[HostileLine]:
    yield HostileLine("prose", "invalid-json", b"This is not JSON.")
    yield HostileLine("single quotes", "invalid-json", b"{'text': 'Python is not JSON'}")
    yield HostileLine("trailing comma", "invalid-json", b'{"text": "a",}')
    yield HostileLine("two records on a line", "invalid-json", b'{"text": "a"} {"text": "b"}')
    yield HostileLine("raw tab in a string", "invalid-json", b'{"text": "a\tb"}')
    yield HostileLine("unknown escape", "invalid-json", rb'{"text": "\x41"}')
    yield HostileLine(
        "broken, with escape sequences", "invalid-json", b'\x1b[31m{"text": \x1b[0m[bold]x[/bold]'
    )
    yield HostileLine("a comment", "invalid-json", b'{"text": "a"} // done')
    yield HostileLine("cut inside the text", "invalid-json", b'{"id": 5, "text": "The rest is mis')
    yield HostileLine("cut after a comma", "invalid-json", b'{"id": 6, "text": "whole",')
    yield HostileLine("array, 100,000 levels", "too-deep", b"[" * DEEP + b"]" * DEEP)


def _wrong_shape() -> Iterator[HostileLine]:
    for content in (b'["text", "a"]', b'"text"', b"42", b"null"):
        yield HostileLine(f"the value {content.decode()}", "not-object", content)
    yield HostileLine("empty object", "field-missing", b"{}")
    yield HostileLine("other capitals", "field-missing", b'{"Text": "a", "TEXT": "b"}')
    yield HostileLine("field one level down", "field-missing", b'{"data": {"text": "a"}}')
    yield HostileLine("null", "field-null", b'{"text": null}')
    yield HostileLine("duplicate key, the last is null", "field-null", b'{"text": "a", "text": null}')
    yield HostileLine("number", "field-type", b'{"text": 3.5}')
    yield HostileLine("boolean", "field-type", b'{"text": false}')
    yield HostileLine("object", "field-type", b'{"text": {"en": "a"}}')
    yield HostileLine("list with a number", "item-type", b'{"text": ["a", 1]}')
    yield HostileLine("list with null", "item-type", b'{"text": [null, "a"]}')
    yield HostileLine("list in a list", "item-type", b'{"text": [["a"], "b"]}')


def _bad_bytes() -> Iterator[HostileLine]:
    for what, content in (
        ("overlong slash", b"\xc0\xaf"),
        ("overlong NUL", b"\xc0\x80"),
        ("encoded surrogate", b"\xed\xa0\x80"),
        ("truncated sequence", b"\xe2\x82"),
        ("stray continuation byte", b"\x80"),
        ("beyond U+10FFFF", b"\xf4\x90\x80\x80"),
        ("Latin-1", b"caf\xe9"),
    ):
        yield HostileLine(what, "invalid-utf8", b'{"text": "' + content + b'"}')
    yield HostileLine("bad bytes in another field", "invalid-utf8", b'{"id": "\xff\xfe", "text": "a"}')
    yield HostileLine(
        "byte order mark in the middle", "byte-order-mark", b'\xef\xbb\xbf{"text": "glued file"}'
    )
    yield HostileLine("raw NUL in the text", "nul-byte", b'{"text": "a\0b"}')
    yield HostileLine("a hole of NULs, as after a power cut", "nul-byte", b"\0" * 64)
    yield HostileLine("lone high surrogate", "lone-surrogate", rb'{"text": "a\ud800b"}')
    yield HostileLine("reversed pair", "lone-surrogate", rb'{"text": "\ude00\ud83d"}')
    yield HostileLine("lone surrogate in a list", "lone-surrogate", rb'{"text": ["a", "\udfff"]}')


def _nested(levels: int) -> bytes:
    return b'{"x": ' + b"[" * levels + b"]" * levels + b', "text": "deep"}'
