"""The plan of a merge: everything that determines its bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokshard.dataset.merge.inputs import MergeInput
from tokshard.dataset.plan import Plan
from tokshard.errors import InputError

PLAN_SCHEMA = "tokshard.merge-plan/1"

_NOT_IDENTITY = frozenset({"name"})
_SHOWN = 16


def make_plan(inputs: Sequence[MergeInput], *, multimodal: bool, allow_tokenizer_mismatch: bool) -> Plan:
    """Return the plan for these inputs.

    Raises:
        InputError: Two of them were made with different tokenizers, and that is not allowed.
    """
    mismatch = tokenizer_mismatch(inputs)
    if mismatch and not allow_tokenizer_mismatch:
        raise InputError(
            mismatch,
            hint="an id means different text in each; --allow-tokenizer-mismatch merges them all the same",
        )
    known = all(one.tokenizer for one in inputs) and not mismatch
    return Plan(
        schema=PLAN_SCHEMA,
        inputs=tuple(one.plan_entry() for one in inputs),
        tokenizer=inputs[0].tokenizer if known else {},
        options={"multimodal": multimodal, "eod": common_option(inputs, "eod")},
    )


def tokenizer_mismatch(inputs: Sequence[MergeInput]) -> str | None:
    """Say which two inputs were made with different tokenizers; None if those that are known agree."""
    known = [one for one in inputs if one.tokenizer]
    for other in known[1:]:
        differing = _differences(known[0].tokenizer, other.tokenizer)
        if differing:
            return f"{known[0].prefix} and {other.prefix} were made with different tokenizers: {differing}"
    return None


def common_option(inputs: Sequence[MergeInput], name: str) -> Any:
    """Return an option that all inputs were made with, or None if it is not known of all or differs."""
    found = {one.manifest.options.get(name) if one.manifest else None for one in inputs}
    return found.pop() if len(found) == 1 else None


def _differences(first: dict[str, Any], other: dict[str, Any]) -> str:
    names = [name for name in first | other if name not in _NOT_IDENTITY]
    return ", ".join(
        f"{name} {_short(first.get(name))} and {_short(other.get(name))}"
        for name in names
        if first.get(name) != other.get(name)
    )


def _short(value: object) -> str:
    text = str(value)
    return f"{text[:_SHOWN]}..." if len(text) > _SHOWN else text
