"""Boundaries at which the text of a document can be cut, proven from the definition of a tokenizer.

Each part of a tokenizer must allow it:

* **Added tokens**: none is at the boundary.
* **Normalizer**: it changes the two characters at the boundary regardless of each other, or not at all.
* **Pre-tokenizer**: it has a boundary there in every context. The known patterns never match across the end
  of a word (a letter, digit or punctuation mark before a space; a letter or digit before a line break, or
  before punctuation except an apostrophe; a letter before a digit), look no further ahead, and never back.
* **Model**: where no pre-tokenizer splits, no token of the vocabulary occurs across the boundary. Merges of a
  BPE model cannot cross it then, and those on one side do not depend on the other.

A Unigram model adds up scores of all tokens from the beginning of a text: with rounding, its choice can
depend on all of it, so only the pre-tokenizer can prove a boundary.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Final

from tokshard.core.strict_json import dump_json
from tokshard.tokenizer import metaspace
from tokshard.tokenizer.definition import Tokenizer
from tokshard.tokenizer.files import parse_object
from tokshard.tokenizer.huggingface import (
    COMPONENT_DEFAULTS,
    SPLITS_SPECIAL_TOKENS,
    byte_alphabet,
    components,
    model_type,
)
from tokshard.tokenizer.metaspace import REPLACEMENT
from tokshard.tokenizer.pieces import Boundaries, VocabularyRule, folded
from tokshard.tokenizer.sentencepiece_files import (
    SentencePieceSettings,
    sentencepiece_processor,
    sentencepiece_settings,
)
from tokshard.tokenizer.structure import KANA_AND_IDEOGRAPHS_PATTERN, KNOWN_PATTERNS
from tokshard.tokenizer.tiktoken_files import (
    GPT2_PATTERN,
    MEGATRON_PATTERNS,
    TIKTOKEN_CL100K_PATTERN,
    encoding_of_name,
)

_PATTERNS: Final = KNOWN_PATTERNS | {TIKTOKEN_CL100K_PATTERN, *MEGATRON_PATTERNS.values()}
# These split nothing at the ends of words; they do not match across them either.
_PARTIAL_PATTERNS: Final = {r"\p{N}", r"\p{N}{1,3}", KANA_AND_IDEOGRAPHS_PATTERN}
# A run of ideographs that is cut in two is two such runs. Patterns that tell upper from lower case split the
# letters behind it by those before it.
_RUN_PATTERNS: Final = {pattern for pattern in _PATTERNS if r"\p{Lu}" not in pattern}

_BEFORE_SPACE: Final = re.compile(r"\S(?= )")
_WORD_END: Final = re.compile(r"\S(?= )|[^\W_](?=\n|[^\w\s'])|[^\W\d_](?=[0-9])")
_ANYTHING: Final = re.compile(r".(?=.)", re.DOTALL)
_NO_SPACE: Final = re.compile(rf"[^\s{REPLACEMENT}](?=[^\s{REPLACEMENT}])")
_IDEOGRAPH: Final = re.compile(r"[\u4e00-\u9fa5](?=[\u4e00-\u9fa5])")
# These two marks are not changed by NFKC either.
_CHINESE: Final = re.compile(r"[\u4e00-\u9fa5\u3001\u3002](?=[\u4e00-\u9fa5\u3001\u3002])")
_SPACE_INSIDE: Final = re.compile(rf"[^ {REPLACEMENT}][ {REPLACEMENT}]")
_BYTE_TOKENS: Final = frozenset(f"<0x{byte:02X}>" for byte in range(256))


def boundaries_of(tokenizer: Tokenizer) -> Boundaries | None:
    """Return the boundaries at words that are proven for a tokenizer; None if its parts are not known."""
    match tokenizer.kind:
        case "bytes":
            return Boundaries(None)
        case "null":
            return Boundaries(re.compile(r"[0-9](?= )"), takes_space=True)
        case "huggingface":
            return boundaries_of_definition(parse_object(tokenizer.definition, str(tokenizer.path)))
        case "tiktoken":
            encoding = encoding_of_name(tokenizer.definition, str(tokenizer.name), str(tokenizer.path))
            special = tuple(encoding.special_tokens) if encoding.special_text else ()
            return Boundaries(_WORD_END, added_tokens=special) if encoding.pattern in _PATTERNS else None
        case "sentencepiece":
            return _of_sentencepiece(tokenizer)


def vocabulary_rule_of(tokenizer: Tokenizer) -> VocabularyRule | None:
    """Return the rule for boundaries that the vocabulary of a tokenizer proves; None if there is none.

    It takes more time and memory than :func:`boundaries_of`, which must have returned something.
    """
    match tokenizer.kind:
        case "bytes":
            return VocabularyRule(_ANYTHING, [], 0, lambda text, _: text, 0)
        case "null":
            return None
        case "huggingface":
            return _rule_of_definition(parse_object(tokenizer.definition, str(tokenizer.path)))
        case "tiktoken":
            return _rule_of_tiktoken(tokenizer)
        case "sentencepiece":
            return _rule_of_sentencepiece(tokenizer)


def without_prefix(tokenizer: Tokenizer) -> Tokenizer:
    """Return the same tokenizer, except that it puts no space in front of texts."""
    if tokenizer.kind == "sentencepiece":
        definition = SentencePieceSettings.without_prefix(tokenizer.definition)
    else:
        parsed = parse_object(tokenizer.definition, str(tokenizer.path))
        if metaspace.is_metaspace(parsed):
            part = parsed["pre_tokenizer"]
            kept = {key: part[key] for key in ("type", "replacement", "split") if key in part}
            parsed["pre_tokenizer"] = {**kept, "prepend_scheme": "never"}
        else:
            steps = components(parsed["normalizer"], "normalizers")
            others = [step for step in steps if step["type"] != "Prepend"]
            parsed["normalizer"] = {"type": "Sequence", "normalizers": others}
        definition = dump_json(parsed)
    return replace(tokenizer, definition=definition, sha256=sha256(definition).hexdigest())


# tokenizer.json


@dataclass(slots=True)
class _Steps:
    """What the normalizers and pre-tokenizers of a definition do.

    Attributes:
        patterns: Known patterns that split.
        splits_at_spaces: Whether white space ends a piece; or else whether marks of spaces begin one.
        marks_spaces: Whether spaces become U+2581.
        takes_space: Whether a space is put in front of each text.
        keeps_characters: Whether characters other than spaces are not changed.
        needs_space: Whether a piece must begin with a space, as something is put in front of it otherwise.
    """

    patterns: set[str]
    splits_at_spaces: bool = False
    splits_at_marks: bool = False
    marks_spaces: bool = False
    takes_space: bool = False
    keeps_characters: bool = True
    needs_space: bool = False
    is_byte_level: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing was recorded."""
        return self == _Steps(set())

    @property
    def splits(self) -> bool:
        """Whether a pre-tokenizer splits at the ends of words."""
        return (
            self.splits_at_spaces
            or self.splits_at_marks
            or (bool(self.patterns - _PARTIAL_PATTERNS) and not self.marks_spaces)
        )

    def add_normalizer(self, step: Mapping[str, Any]) -> bool:
        """Record a normalizer; return whether it is known."""
        match step:
            case {"type": "Prepend", "prepend": metaspace.REPLACEMENT} if not self.marks_spaces:
                self.takes_space = True
            case {"type": "Replace", "pattern": {"String": " "}, "content": metaspace.REPLACEMENT}:
                self.marks_spaces = True
            case {"type": "NFC" | "NFKC" | "Lowercase"}:
                self.keeps_characters = False
            case {"type": "BertNormalizer" | "NFD" | "NFKD" | "StripAccents"}:
                self.keeps_characters, self.needs_space = False, True
            case _:
                return False
        return True

    def add_pre_tokenizer(self, step: Mapping[str, Any]) -> bool:
        """Record a pre-tokenizer; return whether it is known."""
        if self.is_byte_level:  # it changes all characters
            return bool(step["type"] == "Digits")
        match step:
            case {"type": "Digits"}:
                pass
            case {"type": "ByteLevel"} if not self.marks_spaces:
                settings = {**COMPONENT_DEFAULTS["ByteLevel"], **step}
                self.is_byte_level = True
                self.needs_space |= settings["add_prefix_space"]
                self.patterns |= {GPT2_PATTERN} if settings["use_regex"] else set()
            case {"type": "Split", "pattern": {"Regex": str(pattern)}, "behavior": str(behavior)}:
                # With everything else removed, what is matched is kept as by Isolated.
                inverted = step.get("invert", False)
                keeps = (behavior, inverted) in {("Isolated", False), ("Removed", True)}
                self.patterns.add(pattern)
                return pattern in _PATTERNS and keeps
            case {"type": "Split", "pattern": {"String": " "}} if self.marks_spaces:
                pass  # there are none left
            case {"type": "Whitespace" | "WhitespaceSplit" | "BertPreTokenizer"}:
                self.splits_at_spaces = self.needs_space = True
            case {"type": "Metaspace", "replacement": metaspace.REPLACEMENT} if self.is_empty:
                settings = {**COMPONENT_DEFAULTS["Metaspace"], **step}
                self.marks_spaces = True
                self.takes_space = settings["prepend_scheme"] != "never"
                self.splits_at_marks = settings["split"]
            case _:
                return False
        return True


def boundaries_of_definition(definition: dict[str, Any]) -> Boundaries | None:
    """Return the boundaries of a parsed ``tokenizer.json``; see :func:`boundaries_of`."""
    steps = _steps_of(definition)
    if steps is None:
        return None
    words: re.Pattern[str] | None = _WORD_END
    if steps.marks_spaces or steps.needs_space:
        words = _BEFORE_SPACE
    if not steps.splits and not _has_no_space_in_words(definition, steps):
        words = None
    added = {
        token["content"]: token.get("normalized", True) for token in definition.get("added_tokens") or ()
    }
    return Boundaries(
        words,
        steps.takes_space,
        tuple(token for token, is_normalized in added.items() if token and not is_normalized),
        tuple(folded(token) for token, is_normalized in added.items() if token and is_normalized),
    )


def _steps_of(definition: Mapping[str, Any]) -> _Steps | None:
    steps = _Steps(set())
    normalizers = list(components(definition.get("normalizer"), "normalizers"))
    pre_tokenizers = list(components(definition.get("pre_tokenizer"), "pretokenizers"))
    known = [*map(steps.add_normalizer, normalizers), *map(steps.add_pre_tokenizer, pre_tokenizers)]
    if not all(known) or (steps.takes_space and not steps.marks_spaces) or definition["model"].get("dropout"):
        return None
    return steps


def _model_of_characters(definition: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a BPE model that merges nothing but the characters of a text, in any place alike."""
    if model_type(definition["model"]) != "BPE":
        return None
    model = {**COMPONENT_DEFAULTS["BPE"], **definition["model"]}
    if model["continuing_subword_prefix"] or model["end_of_word_suffix"]:
        return None
    substitutes = _BYTE_TOKENS | {model["unk_token"]}
    merges = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
    return model if all(map(substitutes.isdisjoint, merges)) else None


def _has_no_space_in_words(definition: Mapping[str, Any], steps: _Steps) -> bool:
    # A mark of a space that is known keeps unknown characters apart, too.
    model = _model_of_characters(definition)
    return (
        model is not None
        and steps.marks_spaces
        and not model["ignore_merges"]
        and REPLACEMENT in model["vocab"]
        and not any(map(_SPACE_INSIDE.search, model["vocab"]))
    )


def _rule_of_definition(definition: dict[str, Any]) -> VocabularyRule | None:
    steps = _steps_of(definition)
    model = _model_of_characters(definition)
    if steps is None or model is None or definition.get(SPLITS_SPECIAL_TOKENS):
        return None
    tokens = model["vocab"]
    longest = max(map(len, tokens))
    if steps.is_byte_level:
        alphabet = byte_alphabet()
        is_covered = tokens.keys() >= set(alphabet)
        if steps.needs_space or not steps.patterns or steps.patterns - _RUN_PATTERNS or not is_covered:
            return None
        table = dict(enumerate(alphabet))
        return VocabularyRule(
            _IDEOGRAPH,
            sorted(tokens),
            longest,
            lambda text, _: text.encode().decode("latin-1").translate(table),
            longest,
            run=_run(longest) if model["ignore_merges"] else 0,
        )
    if steps.splits_at_spaces or steps.patterns or not steps.marks_spaces or not steps.keeps_characters:
        return None
    if model["ignore_merges"]:
        return None
    knows_all = model["byte_fallback"] and tokens.keys() >= _BYTE_TOKENS
    # The text behind an added token may get a space in front, too, and normalized tokens may begin with one.
    added = (definition.get("added_tokens") or ()) if steps.takes_space else ()
    return VocabularyRule(
        _NO_SPACE,
        sorted(tokens),
        longest,
        lambda text, _: text.replace(" ", REPLACEMENT),
        longest,
        known=None if knows_all else frozenset(token for token in tokens if len(token) == 1),
        forbidden=tuple(token["content"] for token in added if token["content"]),
    )


def _run(longest: int) -> int:
    # Whole pieces of a pre-tokenizer are looked up before they are merged: those at a boundary must be longer
    # than any token, in ideographs of three bytes.
    return longest // 3 + 1


# tiktoken


def _rule_of_tiktoken(tokenizer: Tokenizer) -> VocabularyRule | None:
    encoding = encoding_of_name(tokenizer.definition, str(tokenizer.name), str(tokenizer.path))
    if encoding.pattern not in _RUN_PATTERNS:
        return None
    tokens = sorted(encoding.ranks)
    longest = max(map(len, tokens))
    return VocabularyRule(
        _IDEOGRAPH, tokens, longest, lambda text, _: text.encode(), longest, run=_run(longest)
    )


# SentencePiece


def _of_sentencepiece(tokenizer: Tokenizer) -> Boundaries | None:
    settings = sentencepiece_settings(tokenizer.definition)
    if not settings.is_bpe or not settings.marks_spaces:
        return None
    _, pieces = _processor_and_pieces(tokenizer)
    loses_space = settings.removes_spaces and not settings.adds_space
    is_joined = REPLACEMENT not in pieces or any(map(_SPACE_INSIDE.search, pieces))
    return Boundaries(None if loses_space or is_joined else _BEFORE_SPACE, settings.adds_space)


def _rule_of_sentencepiece(tokenizer: Tokenizer) -> VocabularyRule:
    settings = sentencepiece_settings(tokenizer.definition)
    processor, pieces = _processor_and_pieces(tokenizer)
    longest = max(map(len, pieces))

    def converted(text: str, is_before: bool) -> str:  # noqa: FBT001 - as declared
        normal = str(processor.normalize(text))
        return normal[1:] if settings.adds_space and not is_before else normal

    knows_all = settings.byte_fallback and _BYTE_TOKENS.issubset(pieces)
    return VocabularyRule(
        _CHINESE if settings.changes_characters else _NO_SPACE,
        sorted(pieces),
        longest,
        converted,
        4 * longest,  # normalization can remove characters
        known=None if knows_all else frozenset(piece for piece in pieces if len(piece) == 1),
    )


def _processor_and_pieces(tokenizer: Tokenizer) -> tuple[Any, list[str]]:
    processor = sentencepiece_processor(tokenizer.definition, str(tokenizer.path))
    return processor, [processor.id_to_piece(index) for index in range(processor.vocab_size())]
