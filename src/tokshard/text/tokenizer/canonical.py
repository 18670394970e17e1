"""The canonical form of a tokenizer's definition: equal for all files that give the same ids by design.

A tokenizer's file changes when it is saved again: merges are pairs or strings, defaults are written or left
out, options get newer names, and keys another order. The canonical form has none of these differences, and no
parts that change no id (decoders, truncation, padding, offsets). It is compared by its digest.
"""

from __future__ import annotations

import base64
from hashlib import sha256
from itertools import chain
from typing import Any, Final

from tokshard.text.tokenizer.huggingface import (
    COMPONENT_DEFAULTS,
    added_token_ids,
    components,
    has_all_bytes,
    model_type,
    splits_into_bytes,
    template_ids,
)
from tokshard.text.tokenizer.tiktoken_files import TiktokenEncoding

_WITHOUT_EFFECT: Final = {"trim_offsets", "str_rep"}
_FLAGS: Final = ("single_word", "lstrip", "rstrip", "normalized", "special")


def huggingface_digest(parsed: dict[str, Any]) -> str:
    """Return the SHA-256 of the canonical form of a parsed ``tokenizer.json``.

    Example:
        >>> model = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}}
        >>> old, new = {"merges": ["a b"]}, {"merges": [["a", "b"]], "byte_fallback": False}
        >>> huggingface_digest({"model": model | old}) == huggingface_digest({"model": model | new})
        True
    """
    template = template_ids(parsed.get("post_processor"))
    form = {
        "kind": "huggingface",
        "model": _model(parsed["model"]),
        "added_tokens": _added_tokens(parsed),
        "post_processor": parsed.get("post_processor") if template is None else template,
    }
    return _digest({**form, **_steps(parsed)})


def behavior(parsed: dict[str, Any]) -> dict[str, Any]:
    """Return the options of the model and the steps before it, in a form to compare.

    Options without effect are left out, such as the unknown token of a vocabulary with all bytes, so
    definitions with different digests can have equal behavior.
    """
    options = _options(parsed["model"])
    vocabulary = parsed["model"].get("vocab")
    if isinstance(vocabulary, dict) and has_all_bytes(parsed, vocabulary):
        for name in ("unk_token", "fuse_unk"):
            options.pop(name, None)
        if splits_into_bytes(parsed):
            options.pop("byte_fallback", None)
    return {"model": options, **_steps(parsed)}


def _steps(parsed: dict[str, Any]) -> dict[str, Any]:
    return {
        "normalizer": _component(parsed.get("normalizer"), "normalizers"),
        "pre_tokenizer": _component(parsed.get("pre_tokenizer"), "pretokenizers"),
    }


def tiktoken_digest(encoding: TiktokenEncoding) -> str:
    """Return the SHA-256 of the canonical form of a tiktoken encoding."""
    form: dict[str, Any] = {
        "kind": "tiktoken",
        "ranks": sorted((rank, base64.b64encode(token).decode()) for token, rank in encoding.ranks.items()),
        "pattern": encoding.pattern,
        "special_tokens": dict(encoding.special_tokens),
    }
    if encoding.special_text:
        form["special_text"] = True
    return _digest(form)


def content_digest(kind: str, content: bytes) -> str:
    """Return the SHA-256 of a definition that has one form only."""
    return _digest({"kind": kind, "content": sha256(content).hexdigest()})


def _digest(value: dict[str, Any]) -> str:
    import orjson

    return sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)).hexdigest()


def _options(model: dict[str, Any]) -> dict[str, Any]:
    kind = model_type(model)
    plain = {key: value for key, value in model.items() if key not in ("type", "vocab", "merges")}
    if kind == "BPE":
        for name in ("continuing_subword_prefix", "end_of_word_suffix"):
            plain[name] = plain.get(name) or None
    return {"type": kind, **_without_defaults(kind, plain)}


def _model(model: dict[str, Any]) -> dict[str, Any]:
    result = _options(model)
    vocabulary = model.get("vocab")
    result["vocab"] = _in_id_order(vocabulary) if isinstance(vocabulary, dict) else vocabulary
    if (merges := model.get("merges")) is not None:
        result["merges"] = _flat_merges(merges)
    return result


# Both are written without tuples and lists for each token, which would double the time to load a tokenizer.


def _in_id_order(vocabulary: dict[str, int]) -> list[Any]:
    ids = list(vocabulary.values())
    if ids == list(range(len(ids))):
        return list(vocabulary)
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    ids.sort()
    return tokens if ids == list(range(len(ids))) else [tokens, ids]


def _flat_merges(merges: Any) -> Any:
    kinds = set(map(type, merges)) if isinstance(merges, list) else set()
    if kinds == {str}:  # the older form: two tokens and a space
        return " ".join(merges).split(" ")
    if kinds == {list}:
        return list(chain.from_iterable(merges))
    return merges


def _added_tokens(parsed: dict[str, Any]) -> list[list[Any]]:
    tokens = [token for token in parsed.get("added_tokens") or [] if token.get("content")]
    ids = added_token_ids(parsed["model"], [token["content"] for token in tokens])
    flags = {token["content"]: [bool(token.get(flag)) for flag in _FLAGS] for token in tokens}
    return sorted([index, content, *flags[content]] for content, index in ids.items())


def _component(part: Any, key: str) -> Any:
    parts = [_without_older_names(inner) for inner in components(part, key)]
    return parts[0] if len(parts) == 1 else parts or None


def _without_older_names(part: dict[str, Any]) -> dict[str, Any]:
    kind = str(part.get("type"))
    plain = {key: value for key, value in part.items() if key not in _WITHOUT_EFFECT and key != "type"}
    if kind == "Metaspace" and (prefix := plain.pop("add_prefix_space", None)) is not None:
        plain.setdefault("prepend_scheme", "always" if prefix else "never")
    return {"type": kind, **_without_defaults(kind, plain)}


def _without_defaults(kind: str, values: dict[str, Any]) -> dict[str, Any]:
    defaults = COMPONENT_DEFAULTS.get(kind, {})
    return {key: value for key, value in values.items() if key not in defaults or value != defaults[key]}
