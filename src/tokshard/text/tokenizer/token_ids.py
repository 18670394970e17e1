"""The null tokenizer, for text that consists of token ids already: ``null:N`` has the ids 0 to N - 1.

It is that of Megatron's NullTokenizer: ids are separated by single spaces, and the last id ends documents
unless another is chosen. Megatron also stores ids outside the vocabulary; here they are errors.
"""

from __future__ import annotations

import re
from typing import Final

from tokshard.errors import TokenizerError
from tokshard.text.tokenizer.vocabulary import Vocabulary

NULL_PREFIX: Final = "null:"
_MOST_IDS: Final = 2**31
_NUMBER: Final = re.compile(r"[0-9]{1,10}")
_SHOWN_CHARACTERS: Final = 40
_CHECKED_CHARACTERS: Final = 1 << 17


def null_vocabulary(argument: str, eod: str | None) -> Vocabulary:
    """Return the vocabulary of a null tokenizer; of its ids only the largest and the EOD token.

    Args:
        argument: ``null:N``.
        eod: The id that ends documents; None for the last one.

    Raises:
        TokenizerError: N is not a number that int32 can hold, or the id is not in the vocabulary.
    """
    number = argument.removeprefix(NULL_PREFIX)
    if not _NUMBER.fullmatch(number) or not 0 < int(number) <= _MOST_IDS:
        raise TokenizerError(
            f"the vocabulary size of a null tokenizer must be from 1 to {_MOST_IDS:,}, got {number!r}",
            hint=f"pass --tokenizer {NULL_PREFIX}N with the number of ids, for example {NULL_PREFIX}50257",
        )
    size = int(number)
    if eod is not None and (not _NUMBER.fullmatch(eod) or int(eod) >= size):
        raise TokenizerError(
            f"the EOD token of {NULL_PREFIX}{size} must be an id below {size}, got {eod!r}",
            hint="pass --eod ID, or a larger vocabulary size",
        )
    eod_id = size - 1 if eod is None else int(eod)
    ids = {str(index): index for index in (size - 1, eod_id)}
    definition = f"text is token ids below {size}".encode()
    return Vocabulary(
        "null", definition, ids, (), size, declared_eod=str(eod_id), prefix_ids=(), suffix_ids=()
    )


def parse_token_ids(text: str, size: int) -> list[int]:
    """Return the token ids in a text.

    Raises:
        ValueError: It is something else, or an id is not in the vocabulary; the message names it.

    Example:
        >>> parse_token_ids("5 0 17", 50257)
        [5, 0, 17]
    """
    ids = []
    for word in text.split(" "):
        try:
            ids.append(int(word))
        except ValueError:
            shown = word[:_SHOWN_CHARACTERS]
            raise ValueError(
                f"the text must be token ids separated by single spaces, got {shown!r}"
            ) from None
    if not 0 <= min(ids) <= max(ids) < size:
        wrong = next(each for each in ids if not 0 <= each < size)
        raise ValueError(f"the token id {wrong} is outside the vocabulary of {size:,} ids")
    return ids


def check_token_ids(text: str, size: int) -> None:
    """Check that :func:`parse_token_ids` accepts a text, in little memory.

    Raises:
        ValueError: It does not; the message is that of the first part that is wrong.
    """
    begin = 0
    while (end := text.find(" ", begin + _CHECKED_CHARACTERS)) >= 0:
        parse_token_ids(text[begin:end], size)
        begin = end + 1
    parse_token_ids(text[begin:], size)
