"""Encodings of the library `tiktoken`: their files, patterns and special tokens."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tokshard.errors import TokenizerError
from tokshard.tokenizer.vocabulary import Vocabulary

_EOD: Final = "<|endoftext|>"


def tiktoken_ranks(definition: bytes, path: str) -> dict[bytes, int]:
    """Return the byte sequences of a ``.tiktoken`` file and their ids."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(definition.splitlines(), start=1):
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error) as error:
            raise TokenizerError(
                f"{path}:{number} is not a base64 string and an id: {line[:40]!r}",
                hint="fetch the file again: it is damaged, or not a tiktoken file",
            ) from error
    if not ranks:
        raise TokenizerError(f"the tiktoken file {path} is empty")
    return ranks


def tiktoken_vocabulary(definition: bytes, path: str) -> Vocabulary:
    """Return the vocabulary of a ``.tiktoken`` file, whose name selects the encoding."""
    name = os.path.basename(path).removesuffix(".tiktoken")
    if name not in TIKTOKEN_ENCODINGS:
        raise TokenizerError(
            f"unknown tiktoken encoding: {path}",
            hint=f"rename the file to one of {', '.join(TIKTOKEN_ENCODINGS)} (.tiktoken): the name selects "
            "the pattern that splits text",
        )
    special = TIKTOKEN_ENCODINGS[name].special_tokens
    ranks = tiktoken_ranks(definition, path)
    # An EOD can be named by the text of a special token or by any id; ordinary tokens are bytes.
    ids = {f"<rank {rank}>": rank for rank in ranks.values()} | dict(special)
    return Vocabulary(ids, special, max(ids.values()) + 1, _EOD, name)


# The regular expressions by which published tokenizers split text


@dataclass(frozen=True, slots=True)
class TiktokenEncoding:
    """Pattern and special tokens of an encoding, which a ``.tiktoken`` file does not contain."""

    pattern: str
    special_tokens: Mapping[str, int]


_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
GPT2_PATTERN: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K_PATTERN: Final = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K_PATTERN: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# tiktoken's own form of it differs: white space that ends a text is one piece even after a line break.
_TIKTOKEN_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
_R50K = TiktokenEncoding(GPT2_PATTERN, {"<|endoftext|>": 50256})
TIKTOKEN_ENCODINGS: Final[Mapping[str, TiktokenEncoding]] = {
    "r50k_base": _R50K,
    "gpt2": _R50K,
    "p50k_base": _R50K,
    "cl100k_base": TiktokenEncoding(
        _TIKTOKEN_CL100K,
        {
            "<|endoftext|>": 100257,
            "<|fim_prefix|>": 100258,
            "<|fim_middle|>": 100259,
            "<|fim_suffix|>": 100260,
            "<|endofprompt|>": 100276,
        },
    ),
    "o200k_base": TiktokenEncoding(O200K_PATTERN, {"<|endoftext|>": 199999, "<|endofprompt|>": 200018}),
}
