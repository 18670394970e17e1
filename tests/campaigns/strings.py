"""Random strings of many kinds for tokenizers."""

from __future__ import annotations

import importlib
import json
import random
import sys
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from support.tokenizer_definitions import ATOMS

SAMPLE_DATA = Path(__file__).parents[2] / "sample_data"
_SPACES = (*" \t\n\r\x0b\x0c\x85\xa0\u2003\u2028\u202f\u3000\u200b\ufeff", "  ", "\r\n", "\n\n", "    ")
_CODE = (
    *(
        "def ",
        "return ",
        "self.",
        "x",
        "i",
        "0x",
        "1e-9",
        "==",
        "!=",
        "->",
        "::",
        "&&",
        "//",
        "/*",
        "*/",
        "#",
    ),
    *(
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        ";",
        ",",
        ":",
        "\n",
        "\n    ",
        "\n\t",
        '"',
        "'",
        "\\n",
        "%s",
        "${",
        "<T>",
    ),
    *("camelCase", "snake_case", "CONST_NAME", "__init__", "std", "http://", "@", "0", "42", " = ", " < "),
)
_WORDS = (
    "the",
    " of",
    " And",
    "I",
    " don",
    "Hello",
    " world",
    "THE",
    "iOS",
    "éa",
    " naïve",
    "ß",
    "ИЛИ",
    " или",
)
_APOSTROPHES = (*"'’`´", "'s", "'S", "'t", "'re", "'VE", "'ll", "'ſ", "''", " '", "n't", "'s't", "'D", "’ll")
_DIGITS = (
    *"0123456789",
    "٣",
    "²",
    "½",
    "Ⅻ",
    "𝟘",
    "４",
    ".",
    ",",
    "-",
    "1234567890",
    "000",
    " 7",
    "3.14",
    "1e5",
)
_MARKS = (
    *"\u0301\u0323\u0345\u05b0\u064b\u093c\u094d\u20dd\ufe0f\u200d\u3099",
    "\U0001d165",
    "e",
    "a",
    "क",
    " ",
)
_CJK = (
    *"中国人一不的日本語がのカタナ、。！",
    "한국어",
    "각",
    "ᄀ",
    "ᅡ",
    "豈",
    "𠀀",
    "龥",
    "\u9fff",
    "\u3000",
    "ｱ",
    "Ａ",
)
_EMOJI = (
    *"😀👩👨👧🏽🇫🇷❤🏳🌈✊",
    "\u200d",
    "\ufe0f",
    "👩\u200d👩\u200d👧",
    "🏳️\u200d🌈",
    "1️⃣",
    "\u20e3",
    " ",
    "a",
)


def _characters() -> dict[str, list[str]]:
    """Return some characters of each general category of Unicode."""
    found: dict[str, list[str]] = {}
    for point in range(sys.maxunicode + 1):
        # All of the first planes' busy parts, and a few of the large uniform blocks.
        if 0xD800 <= point < 0xE000 or (point > 0x3400 and point % 37 and not 0xFE00 <= point < 0x10600):
            continue
        found.setdefault(unicodedata.category(chr(point)), []).append(chr(point))
    return found


def texts_of(path: str | None) -> list[str]:
    """Return texts of a JSONL file (plain or .zst), or those of sample_data."""
    if path is None:
        lines = [
            line for name in ("stories", "manuals") for line in (SAMPLE_DATA / f"{name}.jsonl").open("rb")
        ]
    elif path.endswith(".zst"):
        lines = _zstd().decompress(Path(path).read_bytes()).splitlines()
    else:
        lines = Path(path).read_bytes().splitlines()
    return [text for line in lines[:20_000] if (text := json.loads(line)["text"])]


def _zstd() -> Any:
    """Return the module of the standard library, or the package that brings it to earlier versions."""
    try:
        return importlib.import_module("compression.zstd")
    except ImportError:
        return importlib.import_module("backports.zstd")


class Strings:
    """Draws strings for a tokenizer.

    Args:
        definition: The content of its ``tokenizer.json``.
        texts: Real texts.
    """

    def __init__(self, definition: dict[str, Any], texts: Sequence[str]) -> None:
        self._categories = list(_characters().values())
        self._texts = texts
        self._added = [token["content"] for token in definition.get("added_tokens") or ()] or ["<s>"]
        self._tokens = [_shown(token) for token in definition["model"]["vocab"]]
        mixed = (*ATOMS, *_SPACES, *_CODE, *_WORDS, *_APOSTROPHES, *_DIGITS, *_MARKS, *_CJK, *_EMOJI)
        self._kinds: list[Callable[[random.Random], str]] = [
            _drawn(ATOMS, 12),
            _drawn((*_SPACES, *_SPACES, *_WORDS), 10),
            _drawn(_CODE, 10),
            _drawn((*_WORDS, *_APOSTROPHES), 8),
            _drawn((*_DIGITS, *_DIGITS, *_WORDS), 12),
            _drawn((*_MARKS, *_WORDS), 14),
            _drawn(_CJK, 12),
            _drawn(_EMOJI, 10),
            _drawn(mixed, 10),
            self._of_categories,
            self._near_added,
            self._of_tokens,
            self._of_tokens,
            self._real,
            self._changed,
            self._changed,
        ]

    def draw(self, chance: random.Random, count: int) -> Iterator[str]:
        for kind in chance.choices(self._kinds, k=count):
            yield kind(chance)

    def _of_categories(self, chance: random.Random) -> str:
        few = chance.choices(self._categories, k=3)
        return "".join(chance.choice(chance.choice(few)) for _ in range(chance.randint(1, 12)))

    def _near_added(self, chance: random.Random) -> str:
        """An added token, whole or with a change, between other text."""
        token = chance.choice(self._added)
        place = chance.randrange(len(token))
        changed = (
            token,
            token,
            token[:place] + token[place + 1 :],
            token[:place] + chance.choice(ATOMS) + token[place:],
            token.swapcase(),
            token + token,
            token[:place] + token,
        )
        return chance.choice(ATOMS) + chance.choice(changed) + chance.choice((*_SPACES, *_WORDS, ""))

    def _of_tokens(self, chance: random.Random) -> str:
        return "".join(chance.choices(self._tokens, k=chance.randint(1, 6)))

    def _real(self, chance: random.Random) -> str:
        text = chance.choice(self._texts)
        begin = chance.randrange(len(text))
        return text[begin : begin + chance.randint(5, 60)]

    def _changed(self, chance: random.Random) -> str:
        """Real text with some characters removed, replaced or inserted."""
        text = self._real(chance)
        for _ in range(chance.randint(1, 3)):
            place = chance.randrange(len(text) + 1)
            text = text[:place] + chance.choice(("", *ATOMS)) + text[place + chance.randint(0, 1) :]
        return text


def _drawn(atoms: Sequence[str], most: int) -> Callable[[random.Random], str]:
    return lambda chance: "".join(chance.choices(atoms, k=chance.randint(1, most)))


def _byte_table() -> dict[str, int]:
    from tokshard.text.tokenizer.huggingface import byte_alphabet

    return {character: byte for byte, character in enumerate(byte_alphabet())}


_BYTES: dict[str, int] = {}


def _shown(token: str) -> str:
    """Return about the text of a token of the vocabulary; bytes that are no text become U+FFFD."""
    if not _BYTES:
        _BYTES.update(_byte_table())
    if all(character in _BYTES for character in token) and not token.isascii():
        return bytes(_BYTES[character] for character in token).decode(errors="replace")
    return token.replace("▁", " ")
