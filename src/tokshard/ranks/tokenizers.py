"""The tokenizers of a plan's data: their agreement, and the part of it that the plan records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from tokshard.dataset.manifest import read_dataset_tokenizer
from tokshard.dataset.tokenizer_agreement import (
    DatasetTokenizer,
    TokenizerMismatch,
    agree,
    common_tokenizer,
)
from tokshard.ranks.plan import Plan, PlanWarning
from tokshard.ranks.sources import DatasetReference, SampleSource
from tokshard.samples.blend.document import BlendDocument
from tokshard.samples.index.entry import CacheEntry, Sidecar


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
    blends: Mapping[str, BlendDocument],
    *,
    continued: Plan | None = None,
    allowed: bool = False,
) -> PlanTokenizers:
    """Compare the tokenizers of all datasets, by their manifests, and with those of a plan that continues.

    Args:
        sources: The sources of all streams.
        blends: The blends that are read, by the paths of their documents. Mismatches that they record as
            allowed are not refused again, and data whose tokenizer they do not record is compared with the
            job's.
        continued: The plan that continues, whose data the model has read already.
        allowed: Whether other mismatches are recorded, too, instead of refused.

    Raises:
        TokenizerMismatchError: There is a mismatch that was not allowed.
        IntegrityError: The manifest of a dataset is damaged.
    """
    everything = [dataset for source in sources for dataset in source.datasets]
    sidecars = _sidecars(everything)
    datasets = list(_tokenizers(everything, sidecars).items())
    if continued is not None:
        datasets.insert(0, (f"the data of plan {continued.plan_id[:12]}", _tokenizer_of(continued)))
    of_indexes = dict.fromkeys(
        found for sidecar in sidecars.values() if sidecar for found in sidecar.tokenizer_mismatches or ()
    )
    recorded = [found for blend in blends.values() for found in blend.tokenizer_mismatches or ()]
    if continued is not None:
        recorded += continued.tokenizer_mismatches or ()
    of_jobs = (
        found for path, blend in blends.items() for found in blend.mismatches_of_job(dict(datasets), path)
    )
    agreement = agree(datasets).adding(of_jobs).accepting(recorded, of_indexes=of_indexes)
    agreement.require(allowed=allowed)
    return PlanTokenizers(
        common_tokenizer([tokenizer for _, tokenizer in datasets]),
        agreement.to_record or None,
        tuple(PlanWarning("tokenizer", detail=note) for note in agreement.notes),
    )


def _tokenizers(
    datasets: Iterable[DatasetReference], sidecars: Mapping[CacheEntry, Sidecar | None]
) -> dict[str, DatasetTokenizer]:
    # By manifests, and where there is none now, as recorded when an index was built from the same data.
    found: dict[str, DatasetTokenizer] = {}
    for dataset in datasets:
        if dataset.path_prefix not in found:
            found[dataset.path_prefix] = read_dataset_tokenizer(dataset.path_prefix)
        if found[dataset.path_prefix] == DatasetTokenizer() and (entry := _entry(dataset)) is not None:
            sidecar = sidecars[entry]
            origin = sidecar.origin if sidecar is not None else None
            found[dataset.path_prefix] = (
                origin.tokenizer if origin is not None else None
            ) or DatasetTokenizer()
    return found


def _tokenizer_of(plan: Plan) -> DatasetTokenizer:
    if plan.tokenizer is not None:
        return plan.tokenizer
    datasets = [dataset for stream in plan.streams.values() for dataset in stream.source.datasets]
    tokenizers = _tokenizers(datasets, _sidecars(datasets)).values()
    parts = (part for each in tokenizers for part in each.parts)
    return DatasetTokenizer(mismatches=plan.tokenizer_mismatches, merged=tuple(dict.fromkeys(parts)))


def _sidecars(datasets: Iterable[DatasetReference]) -> dict[CacheEntry, Sidecar | None]:
    entries = dict.fromkeys(_entry(dataset) for dataset in datasets)
    return {entry: entry.readable_sidecar() for entry in entries if entry is not None}


def _entry(dataset: DatasetReference) -> CacheEntry | None:
    if dataset.index is None:
        return None
    files = dataset.index.files
    return CacheEntry(files.directory, f"{files.hash}-{files.kind}-{files.split}")
