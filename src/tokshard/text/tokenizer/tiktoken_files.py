"""Encodings of the library `tiktoken`: their files, patterns and special tokens.

Three forms of files define one: NAME.tiktoken and the tokenizer.model of Llama 3 (lines of bytes in base64
and their rank), and the JSON of Megatron's TikTokenizer (lists of ranks). None contains the pattern that
splits text: the name of the encoding selects it.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Final, Literal, Self

from tokshard.core.codec import Positive
from tokshard.core.options import Option, Options
from tokshard.errors import TokenizerError
from tokshard.text.tokenizer.files import is_model_file, parse_json
from tokshard.text.tokenizer.vocabulary import Vocabulary

_RANK_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} [0-9]+\r?\n")


@dataclass(frozen=True, slots=True)
class TiktokenEncoding:
    """An encoding.

    Attributes:
        name: Its name, by which another process reads the same file.
        pattern: Regular expression that splits text.
        special_tokens: The ids of the special tokens.
        eod: The special token that ends documents.
        ranks: The ids of all other tokens.
        prefix_ids: Ids before each text with ``--special-tokens``; None if its library defines none.
        special_text: Whether text that spells a special token becomes this token.
    """

    name: str
    pattern: str
    special_tokens: Mapping[str, int]
    eod: str = "<|endoftext|>"
    ranks: Mapping[bytes, int] = field(default_factory=dict, repr=False)
    prefix_ids: tuple[int, ...] | None = None
    special_text: bool = False

    @property
    def vocabulary(self) -> Vocabulary:
        """Its tokens, without the content of its file."""
        # An EOD can be named by the text of a special token or by any id; ordinary tokens are bytes.
        ids = {f"<rank {rank}>": rank for rank in self.ranks.values()} | dict(self.special_tokens)
        return Vocabulary(
            "tiktoken",
            b"",
            ids,
            self.special_tokens,
            max(ids.values()) + 1,
            declared_eod=self.eod,
            name=self.name,
            prefix_ids=self.prefix_ids,
            suffix_ids=None if self.prefix_ids is None else (),
        )


def encoding_of_lines(definition: bytes, path: str) -> TiktokenEncoding | None:
    """Return the encoding in a file of lines; None if it has another form.

    Raises:
        TokenizerError: The encoding is unknown, or the file is damaged.
    """
    if path.endswith(".tiktoken"):
        name = os.path.basename(path).removesuffix(".tiktoken")
        if name not in TIKTOKEN_ENCODINGS:
            raise TokenizerError(
                f"unknown tiktoken encoding: {path}",
                hint="pass the tokenizer.json of the same model; a file of OpenAI must have its own name "
                f"({', '.join(TIKTOKEN_ENCODINGS)}), which selects the pattern that splits text",
            )
        return encoding_of_name(definition, name, path)
    if is_model_file(path) and _RANK_LINE.match(definition):
        return encoding_of_name(definition, _LLAMA3, path)
    return None


def encoding_of_json(
    parsed: Any, path: str, settings: TikTokenizerSettings | None = None
) -> TiktokenEncoding | None:
    """Return the encoding in a parsed JSON file; None if it is no file of an encoding.

    Args:
        parsed: The content.
        path: The file, for messages.
        settings: For the file of a TikTokenizer; None for Megatron's defaults.

    Raises:
        TokenizerError: The file is damaged, or the settings do not fit it.
    """
    match parsed:
        case [{"token_bytes": _}, *_]:
            return _megatron(parsed, settings or TikTokenizerSettings(), path)
        case _:
            return None


def encoding_of_name(definition: bytes, name: str, path: str) -> TiktokenEncoding:
    """Return the encoding of a name in a file: a name that was recorded, or one that the file has.

    Raises:
        TokenizerError: The file is damaged, or not of this encoding.
    """
    if settings := TikTokenizerSettings.of_encoding(name):
        return _megatron(parse_json(definition, path), settings, path)
    ranks = tiktoken_ranks(definition, path)
    if name == _LLAMA3:
        return _llama3(ranks, path)
    known = TIKTOKEN_ENCODINGS[name]
    shared = set(ranks.values()) & set(known.special_tokens.values())
    if shared:
        raise TokenizerError(
            f"{path} has an ordinary token with the id {min(shared)}, which is a special token of {name}",
            hint="fetch the file again: it is damaged, or has the name of another encoding",
        )
    return replace(known, ranks=ranks)


def tiktoken_ranks(definition: bytes, path: str) -> dict[bytes, int]:
    """Return the byte sequences of a file of lines, and their ids."""
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


# The regular expressions by which published tokenizers split text

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
GPT2_PATTERN: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K_PATTERN: Final = (
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_PATTERN: Final = CL100K_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN3_5_PATTERN: Final = QWEN_PATTERN.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(
    r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]"
)
O200K_PATTERN: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# tiktoken's own form of it differs: white space that ends a text is one piece even after a line break.
TIKTOKEN_CL100K_PATTERN: Final = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)


# Files NAME.tiktoken

_R50K = TiktokenEncoding("r50k_base", GPT2_PATTERN, {"<|endoftext|>": 50256})
TIKTOKEN_ENCODINGS: Final[Mapping[str, TiktokenEncoding]] = {
    encoding.name: encoding
    for encoding in (
        _R50K,
        replace(_R50K, name="gpt2"),
        replace(_R50K, name="p50k_base"),
        TiktokenEncoding(
            "cl100k_base",
            TIKTOKEN_CL100K_PATTERN,
            {
                "<|endoftext|>": 100257,
                "<|fim_prefix|>": 100258,
                "<|fim_middle|>": 100259,
                "<|fim_suffix|>": 100260,
                "<|endofprompt|>": 100276,
            },
        ),
        TiktokenEncoding("o200k_base", O200K_PATTERN, {"<|endoftext|>": 199999, "<|endofprompt|>": 200018}),
    )
}


# Files tokenizer.model of Llama 3 to 3.3

_LLAMA3: Final = "llama3"
_LLAMA3_RANKS: Final = 128_000


def _llama3(ranks: Mapping[bytes, int], path: str) -> TiktokenEncoding:
    # Llama 4 and others have files of the same form, with other patterns.
    if len(ranks) != _LLAMA3_RANKS or max(ranks.values()) != _LLAMA3_RANKS - 1:
        raise TokenizerError(
            f"{path} is not the tokenizer.model of Llama 3, which has {_LLAMA3_RANKS:,} tokens, "
            f"got {len(ranks):,}",
            hint="pass the tokenizer.json of the same model",
        )
    # Names of Llama 3; Llama 3.1 gave names to some reserved tokens, with the same ids.
    named = {0: "begin_of_text", 1: "end_of_text", 6: "start_header_id", 7: "end_header_id", 9: "eot_id"}
    special: dict[str, int] = {}
    for n in range(256):
        name = named.get(n, f"reserved_special_token_{n - sum(known < n for known in named)}")
        special[f"<|{name}|>"] = _LLAMA3_RANKS + n
    return TiktokenEncoding(
        _LLAMA3,
        CL100K_PATTERN,
        special,
        "<|end_of_text|>",
        ranks,
        prefix_ids=(special["<|begin_of_text|>"],),
    )


# Files of Megatron's TikTokenizer

TOKENIZER = "Tokenizer"
"""The group of the options that select the tokenizer."""
_MEGATRON_SPECIAL: Final = ("<unk>", "<s>", "</s>", "<mask>", "<pad>", "<cls>", "<sep>")
MEGATRON_PATTERNS: Final[Mapping[str, str]] = {
    "v1": r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    "v2": (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}


_rare = partial(Option, group=TOKENIZER, is_rare=True)


@dataclass(frozen=True, kw_only=True)
class TikTokenizerSettings(Options):
    """Arguments of a Megatron job for its TikTokenizer, whose file does not contain them."""

    tiktoken_pattern: Annotated[
        Literal["v1", "v2"],
        _rare("For the file of a Megatron TikTokenizer: split text with this pattern of Megatron."),
    ] = "v2"
    tiktoken_num_special_tokens: Annotated[
        Positive, _rare("For the file of a Megatron TikTokenizer: reserve N ids for special tokens.")
    ] = 1000
    tiktoken_special_tokens: Annotated[
        tuple[str, ...],
        _rare(
            "For the file of a Megatron TikTokenizer: name its first special tokens.",
            metavar="TOKEN",
            default="Megatron's",
        ),
    ] = _MEGATRON_SPECIAL
    vocab_size: int = 131072  # --vocab-size, which has a second meaning

    @property
    def encoding_name(self) -> str:
        """The name of the encoding; it contains the settings."""
        name = f"TikTokenizer-{self.tiktoken_pattern}-{self.tiktoken_num_special_tokens}-{self.vocab_size}"
        own = self.is_given("tiktoken_special_tokens")
        return name + (f"-{json.dumps(self.tiktoken_special_tokens)}" if own else "")

    @classmethod
    def of_encoding(cls, name: str | None) -> Self | None:
        """Return the settings in the name of an encoding, or None for other names."""
        found = re.fullmatch(r"TikTokenizer-(v[12])-(\d+)-(\d+)(?:-(\[.*\]))?", name or "", re.DOTALL)
        if found is None:
            return None
        return cls(
            tiktoken_pattern="v1" if found[1] == "v1" else "v2",
            tiktoken_num_special_tokens=int(found[2]),
            vocab_size=int(found[3]),
            tiktoken_special_tokens=tuple(json.loads(found[4])) if found[4] else _MEGATRON_SPECIAL,
        )


def _megatron(listed: Any, settings: TikTokenizerSettings, path: str) -> TiktokenEncoding:
    special, size = settings.tiktoken_special_tokens, settings.vocab_size
    reserved = settings.tiktoken_num_special_tokens
    if missing := sorted(set(_MEGATRON_SPECIAL) - set(special)):
        raise TokenizerError(
            f"the special tokens of a TikTokenizer must include {missing[0]}",
            hint=f"pass all of {', '.join(_MEGATRON_SPECIAL)} and your own",
        )
    if not len(special) <= reserved < size:
        raise TokenizerError(
            f"{path} must have at least {len(special)} special tokens and more tokens than those, "
            f"got {reserved} special tokens and a vocabulary of {size}"
        )
    tokens = _listed_tokens(listed, path)
    if size > reserved + len(tokens):
        raise TokenizerError(
            f"{path} has {len(tokens):,} tokens, too few for a vocabulary of {size:,} with {reserved:,} "
            "special tokens"
        )
    # Special tokens have the smallest ids; further tokens of the file are left out.
    names = [*special, *(f"<SPECIAL_{n}>" for n in range(len(special), reserved))]
    ids = {name: index for index, name in enumerate(names)}
    if len(ids) != reserved:
        raise TokenizerError(f"the special tokens of {path} must be unique")
    # Its text_to_ids finds special tokens in text, and adds none.
    return TiktokenEncoding(
        settings.encoding_name,
        MEGATRON_PATTERNS[settings.tiktoken_pattern],
        ids,
        "</s>",
        ranks={token: reserved + n for n, token in enumerate(tokens[: size - reserved])},
        prefix_ids=(),
        special_text=True,
    )


def _listed_tokens(listed: Any, path: str) -> list[bytes]:
    tokens = []
    for index, item in enumerate(listed):
        match item:
            case {"rank": int(rank), "token_bytes": str(encoded)} if rank == index:
                with suppress(binascii.Error, ValueError):
                    tokens.append(base64.b64decode(encoded, validate=True))
        if len(tokens) == index or (index < 256 and tokens[index] != bytes((index,))):
            raise TokenizerError(
                f"token {index} of {path} must have rank {index} and its bytes in base64; the first 256 are "
                f"single bytes",
                hint="fetch the file again: it is damaged, or not a tokenizer",
            )
    if len(set(tokens)) != len(tokens):
        raise TokenizerError(f"{path} has a token twice", hint="fetch the file again: it is damaged")
    return tokens
