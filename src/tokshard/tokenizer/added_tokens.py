"""Special and added tokens, as the files beside ``tokenizer.json`` name them and as the library adds them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tokshard.tokenizer.files import token_text
from tokshard.tokenizer.transformers_classes import UnloadableError

_SURROGATE: Final = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Token:
    """An added token.

    Attributes:
        normalized: Whether it is matched in normalized text; None for the default of the library, which
            depends on ``special``.
    """

    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool | None = None
    special: bool = False

    @classmethod
    def parse(cls, value: Any, **flags: bool) -> Token:
        """Return the token that a JSON object describes; ``flags`` override those of the object.

        Raises:
            UnloadableError: It has no content.
        """
        if not isinstance(value, Mapping) or not isinstance(value.get("content"), str):
            raise UnloadableError("a token of it has no content")
        names = ("single_word", "lstrip", "rstrip", "normalized", "special")
        known = {name: bool(value[name]) for name in names if value.get(name) is not None}
        return cls(value["content"], **{**known, **flags})

    @property
    def resolved(self) -> Token:
        """The same token with the default of ``normalized`` filled in."""
        return replace(self, normalized=self.is_normalized)

    @property
    def is_normalized(self) -> bool:
        """``normalized``, or the library's default."""
        return not self.special if self.normalized is None else self.normalized


NamedToken = str | Token
"""A token as a setting names it: by its text alone, or with its flags."""


def decoded(value: Any) -> Any:
    """Return a value of the configuration; an object whose ``__type`` is AddedToken becomes a token."""
    if isinstance(value, dict) and value.get("__type") == "AddedToken":
        return Token.parse(value)
    return value


def named_token(value: Any, setting: str) -> NamedToken:
    """Return the token that a value of the configuration names.

    Raises:
        UnloadableError: It names none.
    """
    token = decoded(value)
    if not isinstance(token, (str, Token)):
        raise UnloadableError(f"a token of its {setting} is neither text nor a token")
    return token


def text_of(value: Any) -> str | None:
    """Return the text of a token in any of its forms; None if the value is not a token."""
    return value.content if isinstance(value, Token) else token_text(value)


class AddedTokens:
    """The added tokens of the library: contents with their flags, in the order of their ids.

    A token can be added again with other flags. ``keeps_first``: whether it is then still matched before or
    after normalization as it was at first, as in versions of the library below 0.23.
    """

    def __init__(self, tokens: Iterable[Token], *, keeps_first: bool = False) -> None:
        self.tokens: dict[str, Token] = {}
        self._keeps_first = keeps_first
        # Whether a token was normalized: when it first became special, and each time before that.
        self._special: dict[str, bool] = {}
        self._ordinary: dict[str, set[bool]] = {}
        for token in tokens:
            self.add(token)

    def add(self, token: Token) -> None:
        """Add a token, or change the flags of the token with the same content.

        Raises:
            UnloadableError: The library cannot represent its content.
        """
        content, normalized = token.content, token.is_normalized
        if not content:
            return
        if not content.isprintable() and _SURROGATE.search(content):
            raise UnloadableError(f"its token {content!r} has half of a surrogate pair")
        if token.special:
            self._special.setdefault(content, normalized)
        if content not in self._special:
            self._ordinary.setdefault(content, set()).add(normalized)
        self.tokens[content] = token.resolved

    def __contains__(self, token: Token) -> bool:
        return self.tokens.get(token.content) == token.resolved

    def matched(self) -> Iterator[Token]:
        """Yield the tokens with the flags by which they are matched in texts."""
        for content, token in self.tokens.items():
            normalized = all(self._passes(content)) if self._keeps_first else token.normalized
            # A token that was special once stays special, in every version.
            yield replace(token, normalized=normalized, special=content in self._special)

    def matched_twice(self) -> list[str]:
        """Return the tokens that are matched both before and after normalization."""
        return [content for content in self.tokens if self._keeps_first and len(self._passes(content)) > 1]

    def _passes(self, content: str) -> set[bool]:
        special = {self._special[content]} if content in self._special else set()
        return special | self._ordinary.get(content, set())
