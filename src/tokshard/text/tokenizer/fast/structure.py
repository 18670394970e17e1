"""The tokenizer.json files that the fast encoder supports.

An allow-list. It contains the parts for which fastokens 0.3.5 and ``tokenizers`` 0.23 gave equal tokens on
every code point in several contexts and on random texts. Other parts are refused, with the reason, and the
reference encoder is used. docs/explanation/exactness.md lists the comparisons.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Final

from tokshard.text.tokenizer.fast import metaspace
from tokshard.text.tokenizer.huggingface import (
    added_token_ids,
    byte_alphabet,
    components,
    template_ids,
)
from tokshard.text.tokenizer.tiktoken_files import (
    CL100K_PATTERN,
    GPT2_PATTERN,
    O200K_PATTERN,
    QWEN3_5_PATTERN,
    QWEN_PATTERN,
)

_TOP_KEYS: Final = """
    version truncation padding added_tokens normalizer pre_tokenizer post_processor decoder model
"""
_TOKEN_KEYS: Final = {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}
_MODEL_KEYS: Final = """
    type dropout unk_token continuing_subword_prefix end_of_word_suffix fuse_unk byte_fallback ignore_merges
    vocab merges
"""
_BEHAVIORS: Final = ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")

# fastokens' regular expressions treat this character as white space; Unicode and the reference do not,
# since 2013.
DISPUTED_CHARACTER: Final = "\u180e"

# The reference takes LATIN SMALL LETTER LONG S for an s in patterns that ignore case, as in (?i:'s);
# fastokens does not. It is the only other case of a letter of these patterns.
_LONG_S: Final = "\u017f"

# Published patterns: GPT-2; cl100k and Llama 3; o200k; Qwen 2 and 3; Qwen 3.5; Mistral's tekken; digits
# alone; the three of DeepSeek V3.
_TEKKEN = O200K_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}").replace(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "")
_KANA_AND_IDEOGRAPHS = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
KNOWN_PATTERNS: Final = frozenset(
    {
        GPT2_PATTERN,
        CL100K_PATTERN,
        O200K_PATTERN,
        QWEN_PATTERN,
        QWEN3_5_PATTERN,
        _TEKKEN,
        r"\p{N}",
        r"\p{N}{1,3}",
        _KANA_AND_IDEOGRAPHS,
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
        "|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*"
        r"|\s*[" + "\r\n" + r"]+|\s+(?!\S)|\s+",
    }
)


def refusal(definition: dict[str, Any], *, special_tokens: bool) -> str | None:
    """Return why the fast encoder must not encode with a tokenizer, or None if it may.

    Example:
        >>> refusal({"version": "1.0", "model": {"type": "WordPiece"}}, special_tokens=False)
        'the model WordPiece'
    """
    if unknown := set(definition).difference(_TOP_KEYS.split()):
        return f"the field {min(unknown)}"
    if definition.get("version", "1.0") != "1.0":
        return f"the version {definition['version']!r}"
    if metaspace.is_metaspace(definition):
        rewritten = metaspace.rewritten(definition)
        if rewritten is None:
            return "this form of the pre-tokenizer Metaspace"
        definition = rewritten
    return (
        _model_refusal(definition)
        or _steps_refusal(definition.get("normalizer"), "normalizers", _normalizer_refusal)
        or _steps_refusal(definition.get("pre_tokenizer"), "pretokenizers", _pre_tokenizer_refusal)
        or _coverage_refusal(definition)
        or _added_tokens_refusal(definition)
        or _post_processor_refusal(definition, special_tokens=special_tokens)
    )


def simplified(definition: dict[str, Any], *, special_tokens: bool) -> dict[str, Any]:
    """Return the form of a definition that the fast encoder loads; :func:`refusal` must accept it.

    It has no decoder, truncation and padding, which do not affect ids, and no post-processor unless it
    applies. A definition without a normalizer, but with normalized and other added tokens, gets a normalizer
    that does nothing: only then does fastokens match them in two passes, as ``tokenizers`` does. Merges are
    written in the older form where possible, which fastokens reads in two thirds of the time.
    """
    if metaspace.is_metaspace(definition):
        definition = metaspace.rewritten(definition) or definition
    kinds = {token["normalized"] for token in definition.get("added_tokens") or []}
    normalizer = definition.get("normalizer")
    if normalizer is None and len(kinds) > 1:
        normalizer = {"type": "Sequence", "normalizers": []}
    return {
        **definition,
        "model": {**definition["model"], "merges": _joined(definition["model"]["merges"])},
        "normalizer": normalizer,
        "post_processor": definition.get("post_processor") if special_tokens else None,
        "decoder": None,
        "truncation": None,
        "padding": None,
    }


def _joined(merges: list[Any]) -> list[Any]:
    # Merges stay lists if a token of them has a space in it.
    if not merges or isinstance(merges[0], str):
        return merges
    joined = [" ".join(pair) for pair in merges]
    return joined if "".join(joined).count(" ") == len(joined) else merges


def _name(part: Any) -> str:
    name = part.get("type") if isinstance(part, dict) else None
    return name if isinstance(name, str) else "of unknown form"


def _steps_refusal(part: Any, key: str, step_refusal: Callable[[Any], str | None]) -> str | None:
    """Return why a part is refused; ``key``: the key of the members of a Sequence."""
    match part:
        case None:
            return None
        case {"type": "Sequence", **rest} if set(rest) == {key} and isinstance(part[key], list):
            steps = part[key]
            reasons = ("a gap" if step is None else _steps_refusal(step, key, step_refusal) for step in steps)
            return next(filter(None, reasons), None)
    return step_refusal(part)


def _model_refusal(definition: dict[str, Any]) -> str | None:
    model = definition.get("model")
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE":
        return f"the model {_name(model)}"
    if unknown := set(model).difference(_MODEL_KEYS.split()):
        return f"the field model.{min(unknown)}"
    if model.get("dropout") not in (None, 0):
        return f"a dropout of {model['dropout']}"
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(key) not in (None, ""):
            return f"a {key}"
    flags = (model.get(key, False) for key in ("fuse_unk", "byte_fallback", "ignore_merges"))
    if not all(isinstance(flag, bool) for flag in flags):
        return "flags of the model that are not true or false"
    return _vocabulary_refusal(model.get("vocab")) or _merges_refusal(model.get("merges"))


def _vocabulary_refusal(vocabulary: Any) -> str | None:
    if not isinstance(vocabulary, dict) or "" in vocabulary:
        return "a vocabulary of unknown form"
    if sorted(vocabulary.values()) != list(range(len(vocabulary))):
        return "a vocabulary whose ids have gaps or repeat"
    return None


def _merges_refusal(merges: Any) -> str | None:
    if isinstance(merges, list):
        if all(isinstance(merge, str) and merge.count(" ") == 1 for merge in merges):
            # Old files may contain the comment of merges.txt, which only tokenizers skips.
            commented = any(merge.startswith("#version") for merge in merges)
            return "merges with comments" if commented else None
        if all(isinstance(merge, list) and list(map(type, merge)) == [str, str] for merge in merges):
            return None
    return "merges of unknown form"


def _normalizer_refusal(part: Any) -> str | None:
    match part:
        case {"type": "NFC" | "Lowercase", **rest} if not rest:
            return None
        case {"type": "Prepend", "prepend": str(text), **rest}:
            known = bool(text) and not rest
        case {"type": "Replace", "pattern": {"String": str(old), **other}, "content": str(text), **rest}:
            known = bool(old) and not other and not rest
        case _:
            return f"the normalizer {_name(part)}"
    if known and DISPUTED_CHARACTER not in text:
        return None
    return f"this form of the normalizer {_name(part)}"


def _pre_tokenizer_refusal(part: Any) -> str | None:
    match part:
        case {"type": "Digits", "individual_digits": bool(), **rest} if not rest:
            return None
        case {"type": "ByteLevel", "add_prefix_space": bool(), "trim_offsets": bool(), **rest}:
            known = set(rest) <= {"use_regex"} and isinstance(rest.get("use_regex", True), bool)
        case {"type": "Split", "pattern": dict(pattern), "behavior": str(behavior), "invert": bool(), **rest}:
            known = not rest and behavior in _BEHAVIORS
            if known and (reason := _pattern_refusal(pattern)):
                return reason
        case _:
            return f"the pre-tokenizer {_name(part)}"
    return None if known else f"this form of the pre-tokenizer {_name(part)}"


def _pattern_refusal(pattern: dict[str, Any]) -> str | None:
    match pattern:
        case {"String": str(text), **rest} if text and not rest:
            return None
        case {"Regex": str(source), **rest} if not rest:
            return None if source in KNOWN_PATTERNS else f"the pattern {source!r}"
    return "this form of a pattern"


def _coverage_refusal(definition: dict[str, Any]) -> str | None:
    # Every text must be encodable: the encoders treat other texts differently.
    model = definition["model"]
    vocabulary = model["vocab"]
    steps = components(definition.get("pre_tokenizer"), "pretokenizers")
    if any(step["type"] == "ByteLevel" for step in steps):
        covered = all(character in vocabulary for character in byte_alphabet())
        return None if covered else "a byte-level vocabulary without all 256 bytes"
    unknown = model.get("unk_token")
    substitutes = {f"<0x{byte:02X}>" for byte in range(256)}
    if model.get("byte_fallback", False):
        if not substitutes <= vocabulary.keys():
            return "a byte fallback without all 256 bytes"
    elif not isinstance(unknown, str) or unknown not in vocabulary:
        return "a vocabulary with neither bytes nor an unknown token"
    # Substitutes for characters missing from the vocabulary are merged only by tokenizers.
    substitutes.add(unknown or "")
    for merge in model["merges"]:
        if not substitutes.isdisjoint(merge.split(" ") if isinstance(merge, str) else merge):
            return f"the merge {merge!r} of substitutes for unknown characters"
    return None


def _added_tokens_refusal(definition: dict[str, Any]) -> str | None:
    tokens = definition.get("added_tokens") or []
    for token in tokens:
        if not isinstance(token, dict) or set(token) != _TOKEN_KEYS or not isinstance(token["content"], str):
            return "an added token of unknown form"
        for flag in ("single_word", "lstrip", "rstrip"):
            if token[flag] is not False:
                return f"the added token {token['content']!r} with {flag}"
        if not token["content"] or type(token["normalized"]) is not bool:
            return "an added token of unknown form"
    contents = [token["content"] for token in tokens]
    if len(set(contents)) < len(contents):
        return "an added token that occurs twice"
    ids = added_token_ids(definition["model"], contents)
    for token in tokens:
        if token["id"] != ids[token["content"]]:
            return (
                f"the added token {token['content']!r} with the id {token['id']}, "
                f"for which tokenizers takes {ids[token['content']]}"
            )
    # Of two tokens with the same normalized text, tokenizers itself finds one by chance.
    folded = [_folded(token["content"]) for token in tokens if token["normalized"]]
    return "added tokens that normalize to the same text" if len(set(folded)) < len(folded) else None


def _folded(content: str) -> str:
    # Equal for two tokens whenever a known normalizer could make them equal.
    return unicodedata.normalize("NFC", content).lower().replace(" ", metaspace.REPLACEMENT)


def _post_processor_refusal(definition: dict[str, Any], *, special_tokens: bool) -> str | None:
    known_ids = set(definition["model"]["vocab"].values())
    known_ids |= {token["id"] for token in definition.get("added_tokens") or []}
    templates = []

    def step_refusal(step: Any) -> str | None:
        match step:
            case {"type": "ByteLevel"}:
                return None
            case {"type": "BertProcessing" | "RobertaProcessing"} if not special_tokens:
                return None
            case {"type": "TemplateProcessing", "special_tokens": dict(named)}:
                templates.append(step)
                ids = template_ids(step) if len(templates) == 1 else None
                has_names = all(
                    isinstance(token, dict) and token.get("id") == name for name, token in named.items()
                )
                is_known = ids is not None and has_names and known_ids.issuperset(chain(*ids))
                return None if is_known else "this form of the post-processor TemplateProcessing"
        return f"the post-processor {_name(step)}"

    return _steps_refusal(definition.get("post_processor"), "processors", step_refusal)


# Texts that are left to the reference


def disputed(definition: dict[str, Any]) -> Callable[[str], bool] | None:
    """Return the function that recognizes texts that are left to the reference; None if there are none.

    The libraries classify, lowercase and normalize characters by tables of different versions of Unicode, and
    treat some texts differently that look like tokens. ``definition``: a supported one.
    """
    tests = list(_tests(definition))
    return (lambda text: any(test(text) for test in tests)) if tests else None


def _tests(definition: dict[str, Any]) -> Iterator[Callable[[str], bool]]:
    mark = metaspace.REPLACEMENT
    if metaspace.is_metaspace(definition) and metaspace.prepends(definition):
        yield lambda text: text.startswith((" ", mark))
    parts = components(definition.get("pre_tokenizer"), "pretokenizers")
    patterns = [str(part["pattern"].get("Regex", "")) for part in parts if part["type"] == "Split"]
    if any(patterns):
        yield lambda text: DISPUTED_CHARACTER in text
    if any("(?i:" in pattern for pattern in patterns):
        # Searching for two characters takes as long as encoding a tenth of the text.
        yield lambda text: _LONG_S in text and f"'{_LONG_S}" in text
    fallback = definition["model"].get("byte_fallback")
    if names := _tokens_of_unknown_characters(definition) if fallback else []:
        pattern = "|".join(map(re.escape, names)).replace(mark, f"[ {mark}]")
        tokens = re.compile(pattern)
        yield lambda text: tokens.search(text) is not None


def _tokens_of_unknown_characters(definition: dict[str, Any]) -> list[str]:
    """Return the tokens with a character that is no token, as <0x0A> in a vocabulary without x.

    With byte fallback, fastokens takes text that spells such a token for the token. In the reference the
    character becomes bytes, and merges alone make tokens.
    """
    vocabulary = definition["model"]["vocab"]
    unknown = set().union(*vocabulary) - vocabulary.keys()
    return [token for token in vocabulary if len(token) > 1 and not unknown.isdisjoint(token)]
