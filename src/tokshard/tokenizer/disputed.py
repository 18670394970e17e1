"""Texts that the fast encoder leaves to the reference, because the libraries may differ there.

They classify, lowercase and normalize characters by tables of different versions of Unicode, and treat some
texts differently that look like tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Self

from tokshard.tokenizer import huggingface_library
from tokshard.tokenizer.huggingface import components
from tokshard.tokenizer.metaspace import REPLACEMENT

# fastokens' regular expressions treat this character as white space; Unicode and the reference do not,
# since 2013.
DISPUTED_CHARACTER: Final = "\u180e"

# The reference takes LATIN SMALL LETTER LONG S for an s in patterns that ignore case, as in (?i:'s);
# fastokens does not. It is the only other case of a letter of these patterns.
_LONG_S: Final = "\u017f"

# The characters for which fastokens 0.3.5 and `tokenizers` 1.0.0rc3 split (\p{L}, \p{M}, \p{N}, \s) or
# normalize (NFC) differently: those that Unicode added with version 17, and the combining
# marks that it added since version 9. fastokens and 0.22 and 0.23 agree on them.
_SINCE_VERSION_1: Final = (
    "\u07fd\u088f\u0897-\u089f\u08ca-\u08d3\u09fe\u0c3c\u0c5c\u0cdc\u0d3b\u0d3c\u0eba\u1715\u180e"
    "\u1abf-\u1add\u1ae0-\u1aeb\u1df6-\u1dfa\ua7ce\ua7cf\ua7d2\ua7d4\ua7f1\ua82c\U00010940-\U00010959"
    "\U00010d24-\U00010d27\U00010d69-\U00010d6d\U00010eab\U00010eac\U00010ec5-\U00010ec7"
    "\U00010efa\U00010efb\U00010efd-\U00010eff\U00010f46-\U00010f50\U00010f82-\U00010f85\U00011070"
    "\U0001133b\U000113ce-\U000113d0\U0001145e\U00011839\U0001183a\U0001193d\U0001193e\U00011943"
    "\U000119e0\U00011a34\U00011a47\U00011a99\U00011b60-\U00011b67\U00011d42\U00011d44\U00011d45"
    "\U00011d97\U00011db0-\U00011ddb\U00011de0-\U00011de9\U00011f41\U00011f42\U0001612f"
    "\U00016ea0-\U00016eb8\U00016ebb-\U00016ed3\U00016ff0-\U00016ff6\U000187f8-\U000187ff"
    "\U00018d09-\U00018d1e\U00018d80-\U00018df2\U0001e08f\U0001e130-\U0001e136\U0001e2ae"
    "\U0001e2ec-\U0001e2ef\U0001e4ec-\U0001e4ef\U0001e5ee\U0001e5ef\U0001e6c0-\U0001e6de"
    "\U0001e6e0-\U0001e6f5\U0001e6fe\U0001e6ff\U0002b73a-\U0002b73f\U0002cea2-\U0002cead"
    "\U000323b0-\U00033479"
)


@dataclass(frozen=True, slots=True)
class Disputes:
    """Properties of a definition by which disputed texts are recognized.

    Attributes:
        has_patterns: Whether regular expressions split texts.
        ignores_case: Whether one of them ignores case.
        tokens: Tokens that fastokens recognizes although a character of them is no token.
    """

    has_patterns: bool
    ignores_case: bool
    tokens: tuple[str, ...]

    @classmethod
    def of(cls, definition: dict[str, Any]) -> Self:
        """Return those of a definition."""
        parts = components(definition.get("pre_tokenizer"), "pretokenizers")
        sources = [str(part["pattern"].get("Regex", "")) for part in parts if part["type"] == "Split"]
        fallback = definition["model"].get("byte_fallback")
        return cls(
            has_patterns=any(sources),
            ignores_case=any("(?i:" in source for source in sources),
            tokens=tuple(_tokens_of_unknown_characters(definition)) if fallback else (),
        )

    def recognizer(self) -> Callable[[str], bool] | None:
        """Return the function that recognizes disputed texts; None if there are none."""
        tests = list(self._tests())
        return (lambda text: any(test(text) for test in tests)) if tests else None

    def _tests(self) -> Iterator[Callable[[str], bool]]:
        if huggingface_library.is_version_1():
            search = re.compile(f"[{_SINCE_VERSION_1}]").search
            yield lambda text: not text.isascii() and search(text) is not None
        elif self.has_patterns:
            yield lambda text: DISPUTED_CHARACTER in text
        if self.ignores_case:
            # Searching for two characters takes as long as encoding a tenth of the text.
            yield lambda text: _LONG_S in text and f"'{_LONG_S}" in text
        if self.tokens:
            pattern = "|".join(map(re.escape, self.tokens)).replace(REPLACEMENT, f"[ {REPLACEMENT}]")
            tokens = re.compile(pattern)
            yield lambda text: tokens.search(text) is not None


def disputed(definition: dict[str, Any]) -> Callable[[str], bool] | None:
    """Return the function that recognizes disputed texts; None if this definition has none."""
    return Disputes.of(definition).recognizer()


def _tokens_of_unknown_characters(definition: dict[str, Any]) -> list[str]:
    # With byte fallback, fastokens takes text that spells a token for that token, even if one of its
    # characters is no token, as <0x0A> in a vocabulary without x. In the reference such a character becomes
    # bytes, and merges alone make tokens.
    vocabulary = definition["model"]["vocab"]
    unknown = set().union(*vocabulary) - vocabulary.keys()
    return [token for token in vocabulary if len(token) > 1 and not unknown.isdisjoint(token)]
