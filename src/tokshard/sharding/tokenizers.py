"""The tokenizers of a plan's data: their agreement, and the part of it that the plan records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from tokshard.dataset.manifest import read_dataset_tokenizer
from tokshard.dataset.tokenizer_agreement import (
    DatasetTokenizer,
    TokenizerMismatch,
    agree,
    common_tokenizer,
)
from tokshard.index_cache.entry import CacheEntry
from tokshard.sharding.plan import Plan, PlanWarning
from tokshard.sharding.sources import DatasetReference, SampleSource


@dataclass(frozen=True, slots=True)
class PlanTokenizers:
    """The tokenizers of a plan's data, as the plan records them.

    Attributes:
        common: The tokenizer of all datasets; None if it is unknown or mixed.
        mismatches: Mismatches that were allowed; None for none.
        warnings: What was not compared, and documents that end or begin differently.
    """

    common: DatasetTokenizer | None = None
    mismatches: tuple[TokenizerMismatch, ...] | None = None
    warnings: tuple[PlanWarning, ...] = ()

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """Return what a plan records."""
        warnings = tuple(warning for warning in plan.warnings if warning.code == "tokenizer")
        return cls(plan.tokenizer, plan.tokenizer_mismatches, warnings)


def agree_on_tokenizers(
    sources: Iterable[SampleSource],
    *,
    recorded: Sequence[TokenizerMismatch] = (),
    continued: Plan | None = None,
    allowed: bool = False,
) -> PlanTokenizers:
    """Compare the tokenizers of all datasets, by their manifests, and with those of a plan that continues.

    Args:
        sources: The sources of all streams.
        recorded: Mismatches that blends record as allowed; these are not refused again.
        continued: The plan that continues, whose data the model has read already.
        allowed: Whether other mismatches are recorded, too, instead of refused.

    Raises:
        TokenizerMismatchError: There is a mismatch that was not allowed.
        IntegrityError: The manifest of a dataset is damaged.
    """
    everything = [dataset for source in sources for dataset in source.datasets]
    prefixes = dict.fromkeys(dataset.prefix for dataset in everything)
    datasets = [(prefix, read_dataset_tokenizer(prefix)) for prefix in prefixes]
    if continued is not None and continued.tokenizer is not None:
        datasets.insert(0, (f"the data of plan {continued.plan_id[:12]}", continued.tokenizer))
    agreement = agree(datasets).accepting(recorded, of_indexes=_mismatches_of_indexes(everything))
    agreement.require(allowed=allowed)
    return PlanTokenizers(
        common_tokenizer([tokenizer for _, tokenizer in datasets]),
        agreement.to_record or None,
        tuple(PlanWarning("tokenizer", detail=note) for note in agreement.notes),
    )


def _mismatches_of_indexes(datasets: Iterable[DatasetReference]) -> tuple[TokenizerMismatch, ...]:
    files = [dataset.index.files for dataset in datasets if dataset.index is not None]
    entries = dict.fromkeys(
        CacheEntry(each.directory, f"{each.hash}-{each.kind}-{each.split}") for each in files
    )
    return tuple(dict.fromkeys(found for entry in entries for found in entry.allowed_mismatches()))
