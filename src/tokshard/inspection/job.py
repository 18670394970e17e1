"""Inspecting a thing: what it is, and what is in it."""

from __future__ import annotations

from tokshard.inspection.blends import BlendSummary, inspect_blend
from tokshard.inspection.caches import CacheSummary, inspect_cache
from tokshard.inspection.datasets import DatasetSummary, inspect_dataset
from tokshard.inspection.indexes import IndexSummary, inspect_index
from tokshard.inspection.plans import PlanSummary, RankSummary, inspect_plan, inspect_rank
from tokshard.inspection.recognition import recognise
from tokshard.inspection.tokenizers import TokenizerSummary, inspect_tokenizer

Summary = (
    DatasetSummary | TokenizerSummary | CacheSummary | IndexSummary | BlendSummary | PlanSummary | RankSummary
)


def inspect_thing(thing: str, *, multimodal: bool = False) -> Summary:  # noqa: PLR0911 - one for each kind
    """Find out what a path names, and summarise it.

    Args:
        thing: See :func:`tokshard.inspection.recognition.recognise`.
        multimodal: Whether a dataset has modes.

    Raises:
        InputError: It is nothing that can be inspected.
        UsageError: It can be meant in two ways.
        IntegrityError: It is damaged.
        StorageError: It cannot be read.
    """
    found = recognise(thing)
    match found.kind:
        case "dataset":
            return inspect_dataset(found.path, multimodal=multimodal)
        case "tokenizer":
            return inspect_tokenizer(found.path)
        case "cache":
            return inspect_cache(found.path)
        case "index":
            return inspect_index(found.path)
        case "blend":
            return inspect_blend(found.path)
        case "plan":
            return inspect_plan(found.path)
        case "rank":
            return inspect_rank(found.path, None)
