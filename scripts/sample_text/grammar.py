"""Prose from templates: a language is a TOML file of word lists (slots) and themes of sentences."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sample_text.chance import Chance

LANGUAGES = Path(__file__).parent / "languages"
_SLOT = re.compile(r"\{(\w+)\}")
_SENTENCE_START = re.compile(r'(^|^["\n]|\s")(\w)')


@dataclass(frozen=True, slots=True)
class Theme:
    """What one kind of text is made of: first sentences, sentences in any order, last sentences."""

    opening: Sequence[str]
    body: Sequence[str]
    closing: Sequence[str]


@dataclass(frozen=True, slots=True)
class Language:
    """One file of ``languages/``; ``joiner`` stands between sentences."""

    lang: str
    joiner: str
    headline: Sequence[str]
    slots: Mapping[str, Sequence[str]]
    themes: Sequence[Theme]

    def words(self, text: str) -> int:
        """Count words; a language without spaces counts two characters as one."""
        return len(text.split()) if self.joiner else len(text) // 2


def load_language(name: str) -> Language:
    """Read ``languages/NAME.toml``."""
    table = tomllib.loads((LANGUAGES / f"{name}.toml").read_text(encoding="utf-8"))
    themes = [Theme(**theme) for theme in table.pop("themes").values()]
    return Language(**table, themes=themes)


class Writer:
    """Writes one document; slots with a capital letter keep their first value throughout."""

    def __init__(self, language: Language, chance: Chance) -> None:
        self._language = language
        self._chance = chance
        self._kept: dict[str, str] = {}

    def headline(self) -> str:
        """Return a document of a few words."""
        return self._sentence(self._chance.pick(self._language.headline))

    def document(self, words: int, chapter_words: int = 600) -> str:
        """Return running text of about ``words`` words; a long one has chapters of different themes."""
        themes = self._chance.shuffled(self._language.themes)
        count = 1 + words // chapter_words
        chapters = [self._chapter(themes[i % len(themes)], words // count) for i in range(count)]
        return "\n\n\n".join(chapters)

    def _chapter(self, theme: Theme, words: int) -> str:
        paragraphs = [[self._sentence(self._chance.pick(theme.opening))]]
        written = self._language.words(paragraphs[0][0])
        limit = self._chance.between(3, 7)
        deck: list[str] = []
        while written < words:
            deck = deck or self._chance.shuffled(theme.body)
            sentence = self._sentence(deck.pop())
            written += self._language.words(sentence)
            if len(paragraphs[-1]) >= limit:
                paragraphs.append([])
                limit = self._chance.between(3, 7)
            paragraphs[-1].append(sentence)
        if words > 60:
            paragraphs.append([self._sentence(self._chance.pick(theme.closing))])
        joined = (self._language.joiner.join(paragraph) for paragraph in paragraphs)
        # A line of a chat begins with a line break of its own.
        return "\n\n".join(paragraph.replace(" \n", "\n").strip() for paragraph in joined)

    def _sentence(self, template: str) -> str:
        used: set[str] = set()
        text = template
        while _SLOT.search(text):
            text = _SLOT.sub(lambda slot: self._value(slot[1], used), text)
        return _SENTENCE_START.sub(lambda start: start[1] + start[2].upper(), text)

    def _value(self, slot: str, used: set[str]) -> str:
        if slot in self._kept:
            return self._kept[slot]
        values = self._language.slots[slot]
        fresh = [value for value in values if value not in used] or list(values)
        value = self._chance.pick(fresh)
        used.add(value)
        if slot[0].isupper():
            self._kept[slot] = value
        return value
