"""Source 1: running text in thirteen languages."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from typing import Any

from sample_text.chance import Chance
from sample_text.grammar import Language, Writer, load_language

# How many documents of each language; English is the main one.
DOCUMENTS = {
    "english": 230,
    "german": 24,
    "french": 24,
    "spanish": 20,
    "polish": 16,
    "greek": 14,
    "russian": 18,
    "arabic": 14,
    "hebrew": 12,
    "hindi": 12,
    "chinese": 18,
    "japanese": 14,
    "korean": 14,
}
# Quantiles (0 %, 10 %, ..., 100 %) of words per document: a long tail, like the web.
ENGLISH_WORDS = (3, 18, 40, 65, 90, 120, 160, 215, 300, 520, 3000)
OTHER_WORDS = (3, 16, 34, 52, 72, 94, 120, 156, 205, 300, 560)
HEADLINE_WORDS = 12
# These also write some documents with combining marks in place of composed letters.
DECOMPOSED = {"french", "polish", "german"}


def story_records() -> Iterator[dict[str, Any]]:
    """Yield the records of source 1: id, text, lang, in a mixed order."""
    names = [name for name, count in DOCUMENTS.items() for _ in range(count)]
    languages = {name: load_language(name) for name in DOCUMENTS}
    for number, name in enumerate(Chance("stories").shuffled(names), start=1):
        language = languages[name]
        text = _text(language, name, Chance(f"story {number}"))
        yield {"id": f"story-{number:04}", "text": text, "lang": language.lang}


def _text(language: Language, name: str, chance: Chance) -> str:
    words = chance.by_quantiles(ENGLISH_WORDS if name == "english" else OTHER_WORDS)
    writer = Writer(language, chance)
    text = writer.headline() if words < HEADLINE_WORDS else writer.document(words)
    if name in DECOMPOSED and chance.often(0.25):
        return unicodedata.normalize("NFD", text)
    return text
