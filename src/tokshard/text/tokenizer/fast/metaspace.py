"""Metaspace pre-tokenizers, rewritten as normalizers, which the fast encoder supports.

``Metaspace`` turns spaces into U+2581, puts one in front, and (if it splits) begins a piece at each.
Normalizers ``Prepend`` and ``Replace`` and a ``Split`` at U+2581 do the same except that

* Metaspace puts nothing in front of a text that begins with a space or U+2581 already;
* with ``prepend_scheme`` ``first`` it puts nothing in front of the sections after an added token, and
  with ``always`` it looks at each section's own beginning.

Documents with either are outside the domain in which the two are equal. To find them costs one check of each
text's first character and one table look-up for each token.
"""

from __future__ import annotations

from typing import Any, Final

REPLACEMENT: Final = "\u2581"
_SCHEMES: Final = ("always", "first", "never")


def is_metaspace(definition: dict[str, Any]) -> bool:
    """Return whether a tokenizer.json's pre-tokenizer is a Metaspace."""
    part = definition.get("pre_tokenizer")
    return isinstance(part, dict) and part.get("type") == "Metaspace"


def prepends(definition: dict[str, Any]) -> bool:
    """Return whether a definition's Metaspace puts U+2581 in front of texts."""
    return bool(definition["pre_tokenizer"].get("prepend_scheme", "always") != "never")


def rewritten(definition: dict[str, Any]) -> dict[str, Any] | None:
    """Return a definition without its Metaspace that is the same function inside the domain.

    Returns:
        The new definition, or None if the Metaspace is of a form whose meaning is not known or follows a
        normalizer. Added tokens are matched in the raw text, as they are where no normalizer exists.
    """
    if definition.get("normalizer") not in (None, {"type": "Sequence", "normalizers": []}):
        return None
    splits = _splits(definition["pre_tokenizer"])
    if splits is None:
        return None
    normalizers: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": " "}, "content": REPLACEMENT}
    ]
    if prepends(definition):
        normalizers.insert(0, {"type": "Prepend", "prepend": REPLACEMENT})
    split = {
        "type": "Split",
        "pattern": {"String": REPLACEMENT},
        "behavior": "MergedWithNext",
        "invert": False,
    }
    return {
        **definition,
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": split if splits else None,
        "added_tokens": [{**token, "normalized": False} for token in definition.get("added_tokens") or []],
    }


def _splits(part: dict[str, Any]) -> bool | None:
    # None if the form is not known. A file without ``split`` splits, and one of before 2024 has
    # ``add_prefix_space`` (and ``str_rep``) instead of ``prepend_scheme``; ``tokenizers`` refuses files where
    # the two contradict each other.
    match part:
        case {"type": "Metaspace", "replacement": "\u2581", **rest}:
            splits = rest.pop("split", True)
            scheme = rest.pop("prepend_scheme", "always")
            prefix = rest.pop("add_prefix_space", None)
            known = rest.pop("str_rep", REPLACEMENT) == REPLACEMENT and not rest
            agreed = prefix in (None, True) or (prefix is False and scheme == "never")
            if known and agreed and scheme in _SCHEMES and isinstance(splits, bool):
                return splits
    return None
