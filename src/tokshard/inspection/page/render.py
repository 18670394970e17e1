"""From an inspected thing to its page."""

from __future__ import annotations

from tokshard.inspection.blends import BlendSummary
from tokshard.inspection.caches import CacheSummary
from tokshard.inspection.datasets import DatasetSummary
from tokshard.inspection.facts import tokenizer_facts
from tokshard.inspection.frequencies import TokenFrequencies
from tokshard.inspection.indexes import IndexSummary
from tokshard.inspection.job import Summary
from tokshard.inspection.page.datasets import dataset_sections
from tokshard.inspection.page.document import facts, page, section
from tokshard.inspection.page.findings import Verification, findings_section
from tokshard.inspection.page.markup import Markup
from tokshard.inspection.page.mixtures import blend_sections, cache_sections, index_sections
from tokshard.inspection.page.plans import plan_sections, rank_sections
from tokshard.inspection.plans import PlanSummary, RankSummary
from tokshard.inspection.readgrid import ReadGrid
from tokshard.inspection.tokenizers import TokenizerSummary


def render(
    thing: str,
    summary: Summary,
    *,
    frequencies: TokenFrequencies | None = None,
    grids: dict[str, ReadGrid | None] | None = None,
    verification: Verification | None = None,
) -> str:
    """Return the page of a thing.

    Args:
        thing: What the user calls it.
        summary: What it is.
        frequencies: How often tokens occur, for a dataset.
        grids: What ranks begin with at steps, for the streams of a plan.
        verification: What a verification has found.
    """
    kind, sections = _sections(summary, frequencies, grids or {})
    if verification is not None:
        sections.insert(1, findings_section(verification))
    return page(thing, kind, sections)


def _sections(  # noqa: PLR0911 - one for each kind
    summary: Summary, frequencies: TokenFrequencies | None, grids: dict[str, ReadGrid | None]
) -> tuple[str, list[Markup]]:
    match summary:
        case DatasetSummary():
            return "indexed dataset", dataset_sections(summary, frequencies)
        case TokenizerSummary():
            return "tokenizer", [section("What it is", facts(tokenizer_facts(summary)))]
        case CacheSummary():
            return "cache of indexes", cache_sections(summary)
        case IndexSummary():
            return "cached index", index_sections(summary)
        case BlendSummary():
            return "blend", blend_sections(summary)
        case PlanSummary():
            return "shard plan", plan_sections(summary, grids)
        case RankSummary():
            return "rank of a shard plan", rank_sections(summary)
