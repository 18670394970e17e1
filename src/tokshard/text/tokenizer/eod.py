"""The choice of the end-of-document (EOD) token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tokshard.errors import TokenizerError
from tokshard.text.tokenizer.vocabulary import Vocabulary

_SHOWN_TOKENS: Final = 8
_MOST_DIGITS: Final = 10  # of an unsigned 32-bit number; Python refuses to convert thousands

# Names that mean "end of document" in published vocabularies. Names that end a turn of a conversation
# are left out on purpose.
KNOWN_EODS: Final = (
    "<|endoftext|>",
    "</s>",
    "<|end_of_text|>",
    "<eos>",
    "<|eot|>",
    "[EOS]",
    "<EOS>",
    "<|eos|>",
    "<eod>",
    "<|end▁of▁sentence|>",
    "<｜end▁of▁sentence｜>",  # noqa: RUF001 - the published name has full-width bars
)


def choose_eod(
    vocabulary: Vocabulary, wanted: str | None, path: str, *, need_eod: bool
) -> tuple[int | None, str | None]:
    """Return id and text of the EOD token; None if none is needed and none can be chosen.

    Args:
        vocabulary: The tokens.
        wanted: What the user names: an id, or the text of a token.
        path: The tokenizer, for messages.
        need_eod: Whether to raise an error if none can be chosen. A wrong ``wanted`` is always an error.

    Raises:
        TokenizerError: See above.
    """
    # Known names are looked for among the added tokens first: vocabularies learn ordinary tokens such as
    # ``</s>`` from web text, where it ends struck-out text in HTML (Qwen 2 has it).
    ids, declared = vocabulary.ids, vocabulary.declared_eod
    if wanted is not None:
        return _named_eod(ids, wanted, path)
    if declared is not None and declared in ids:
        return ids[declared], declared
    found = [name for name in KNOWN_EODS if name in vocabulary.added]
    found = found or [name for name in KNOWN_EODS if name in ids]
    if declared is None and len(found) == 1:
        return ids[found[0]], found[0]
    if not need_eod:
        return None, None
    if declared is not None:
        problem = f"declares the end-of-document token {declared!r}, which its vocabulary does not have"
    elif found:
        problem = f"has several tokens that could end a document: {', '.join(found)}"
    else:
        problem = "has no token that is known to end a document" + _lookalikes(ids)
    raise TokenizerError(
        f"the tokenizer {path} {problem}",
        hint="pass --eod TOKEN (its text or its id), or --no-append-eod",
    )


def _lookalikes(ids: Mapping[str, int]) -> str:
    marks = {"<": ">", "[": "]"}
    names = [name for name in ids if len(name) > 2 and marks.get(name[0]) == name[-1]]
    names = [name for name in names if not name.startswith(("<0x", "<rank "))][:_SHOWN_TOKENS]
    return f"; candidates are {', '.join(names)}" if names else ""


def _named_eod(ids: Mapping[str, int], wanted: str, path: str) -> tuple[int, str]:
    if wanted.isascii() and wanted.isdigit():
        # A token whose text is a number never ends documents, so a number is an id.
        number = int(wanted) if len(wanted) <= _MOST_DIGITS else -1
        for token, index in ids.items():
            if index == number:
                return index, token
        raise TokenizerError(
            f"the tokenizer {path} has no token with the id {wanted} (from --eod)",
            hint=f"pass an id of the vocabulary; the largest is {max(ids.values(), default=-1)}",
        )
    if wanted in ids:
        return ids[wanted], wanted
    close = [name for name in KNOWN_EODS if name in ids]
    raise TokenizerError(
        f"the tokenizer {path} has no token {wanted!r} (from --eod)",
        hint="pass " + " or ".join(f"--eod '{name}'" for name in close)
        if close
        else "pass the text of a token of the vocabulary, or an id",
    )
