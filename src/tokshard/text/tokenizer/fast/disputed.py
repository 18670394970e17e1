"""Texts that the fast encoder leaves to the reference, because the libraries may differ there.

They classify, lowercase and normalize characters by tables of different versions of Unicode, and treat some
texts differently that look like tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from tokshard.text.tokenizer.fast.metaspace import REPLACEMENT, is_metaspace, prepends
from tokshard.text.tokenizer.huggingface import components

# fastokens' regular expressions treat this character as white space; Unicode and the reference do not,
# since 2013.
DISPUTED_CHARACTER: Final = "\u180e"

# The reference takes LATIN SMALL LETTER LONG S for an s in patterns that ignore case, as in (?i:'s);
# fastokens does not. It is the only other case of a letter of these patterns.
_LONG_S: Final = "\u017f"


def disputed(definition: dict[str, Any]) -> Callable[[str], bool] | None:
    """Return the function that recognizes disputed texts; None if this supported definition has none."""
    tests = list(_tests(definition))
    return (lambda text: any(test(text) for test in tests)) if tests else None


def _tests(definition: dict[str, Any]) -> Iterator[Callable[[str], bool]]:
    if is_metaspace(definition) and prepends(definition):
        yield lambda text: text.startswith((" ", REPLACEMENT))
    parts = components(definition.get("pre_tokenizer"), "pretokenizers")
    patterns = [str(part["pattern"].get("Regex", "")) for part in parts if part["type"] == "Split"]
    if any(patterns):
        yield lambda text: DISPUTED_CHARACTER in text
    if any("(?i:" in pattern for pattern in patterns):
        # Searching for two characters takes as long as encoding a tenth of the text.
        yield lambda text: _LONG_S in text and f"'{_LONG_S}" in text
    fallback = definition["model"].get("byte_fallback")
    if names := _tokens_of_unknown_characters(definition) if fallback else []:
        pattern = "|".join(map(re.escape, names)).replace(REPLACEMENT, f"[ {REPLACEMENT}]")
        tokens = re.compile(pattern)
        yield lambda text: tokens.search(text) is not None


def _tokens_of_unknown_characters(definition: dict[str, Any]) -> list[str]:
    # With byte fallback, fastokens takes text that spells a token for that token, even if one of its
    # characters is no token, as <0x0A> in a vocabulary without x. In the reference such a character becomes
    # bytes, and merges alone make tokens.
    vocabulary = definition["model"]["vocab"]
    unknown = set().union(*vocabulary) - vocabulary.keys()
    return [token for token in vocabulary if len(token) > 1 and not unknown.isdisjoint(token)]
