"""The plan of a merge: everything that determines its bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TypeVar

from tokshard.dataset.merge.inputs import MergeInput
from tokshard.dataset.plan import BuildPlan, MergeParameters, TokenizerIdentity
from tokshard.errors import InputError

T = TypeVar("T")

_NOT_IDENTITY = frozenset({"name"})
_SHOWN = 16


def make_plan(inputs: Sequence[MergeInput], *, multimodal: bool, allow_tokenizer_mismatch: bool) -> BuildPlan:
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
    options = [one.manifest.options if one.manifest else None for one in inputs]
    parameters = MergeParameters(
        inputs=tuple(one.prefix for one in inputs),
        multimodal=multimodal,
        eod_id=common([part.eod_id if part else None for part in options]),
        append_eod=common([part.append_eod if part else None for part in options]),
    )
    return BuildPlan(
        inputs=tuple(one.source for one in inputs),
        tokenizer=inputs[0].tokenizer if known else None,
        options=parameters,
    )


def tokenizer_mismatch(inputs: Sequence[MergeInput]) -> str | None:
    """Say which two inputs were made with different tokenizers; None if those that are known agree."""
    known = [(one.prefix, one.tokenizer) for one in inputs if one.tokenizer]
    for prefix, tokenizer in known[1:]:
        if differing := _differences(known[0][1], tokenizer):
            return f"{known[0][0]} and {prefix} were made with different tokenizers: {differing}"
    return None


def common(values: Sequence[T | None]) -> T | None:
    """Return the value that all inputs have, or None if it is not known of all or differs."""
    return values[0] if len(set(values)) == 1 else None


def _differences(first: TokenizerIdentity, other: TokenizerIdentity) -> str:
    before, after = asdict(first), asdict(other)
    return ", ".join(
        f"{name} {_short(before[name])} and {_short(after[name])}"
        for name in before
        if name not in _NOT_IDENTITY and before[name] != after[name]
    )


def _short(value: object) -> str:
    text = str(value)
    return f"{text[:_SHOWN]}..." if len(text) > _SHOWN else text
