"""The tokenizers of a plan's data: their agreement, and the part of it that the plan records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tokshard.dataset.manifest import read_dataset_tokenizer
from tokshard.dataset.recorded_tokenizers import DatasetTokenizer, TokenizerMismatch
from tokshard.dataset.tokenizer_agreement import agree, common_tokenizer
from tokshard.ranks.plan import Plan
from tokshard.ranks.sources import DatasetReference, SampleSource
from tokshard.samples.blend.document import BlendDocument
from tokshard.samples.index.entry import CacheEntry
from tokshard.samples.index.sidecar import Sidecar, readable_sidecar


class PlanTokenizers(NamedTuple):
    """The tokenizers of a plan's data.

    Attributes:
        common: The tokenizer of all datasets, or None if it is unknown or mixed.
        mismatches: Mismatches that were allowed, or None if there are none.
        notes: Warnings about tokenizers that were not compared, and documents that end or begin differently.
    """

    common: DatasetTokenizer | None = None
    mismatches: tuple[TokenizerMismatch, ...] | None = None
    notes: tuple[str, ...] = ()


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
        allowed: Whether other mismatches are also recorded, instead of refused.

    Raises:
        TokenizerMismatchError: There is a mismatch that was not allowed.
        IntegrityError: The manifest of a dataset is damaged.
    """
    references = [dataset for source in sources for dataset in source.datasets]
    sidecars = _sidecars(references)
    tokenizers = list(_tokenizers(references, sidecars).items())
    recorded = [mismatch for blend in blends.values() for mismatch in blend.tokenizer_mismatches or ()]
    if continued is not None:
        tokenizers.insert(0, (f"the data of plan {continued.plan_id[:12]}", _tokenizer_of(continued)))
        recorded += continued.tokenizer_mismatches or ()
    of_indexes = dict.fromkeys(
        mismatch
        for sidecar in sidecars.values()
        if sidecar
        for mismatch in sidecar.tokenizer_mismatches or ()
    )
    of_jobs = (
        mismatch
        for path, blend in blends.items()
        for mismatch in blend.mismatches_of_job(dict(tokenizers), path)
    )
    agreement = agree(tokenizers).adding(of_jobs).accepting(recorded, of_indexes=of_indexes)
    agreement.require(allowed=allowed)
    common = common_tokenizer([tokenizer for _, tokenizer in tokenizers])
    return PlanTokenizers(common, agreement.to_record or None, agreement.notes)


def _tokenizers(
    references: Iterable[DatasetReference], sidecars: Mapping[CacheEntry, Sidecar | None]
) -> dict[str, DatasetTokenizer]:
    """Return tokenizers by path prefix: of the manifest, or as recorded when an index was built."""
    tokenizers: dict[str, DatasetTokenizer] = {}
    for reference in references:
        prefix = reference.path_prefix
        if prefix not in tokenizers:
            tokenizers[prefix] = read_dataset_tokenizer(prefix)
        entry = _entry(reference)
        if tokenizers[prefix] == DatasetTokenizer() and entry is not None:
            sidecar = sidecars[entry]
            if sidecar is not None and sidecar.origin is not None:
                tokenizers[prefix] = sidecar.origin.tokenizer or DatasetTokenizer()
    return tokenizers


def _tokenizer_of(plan: Plan) -> DatasetTokenizer:
    if plan.tokenizer is not None:
        return plan.tokenizer
    references = [dataset for stream in plan.streams.values() for dataset in stream.source.datasets]
    tokenizers = _tokenizers(references, _sidecars(references)).values()
    parts = (part for tokenizer in tokenizers for part in tokenizer.parts)
    return DatasetTokenizer(mismatches=plan.tokenizer_mismatches, merged=tuple(dict.fromkeys(parts)))


def _sidecars(references: Iterable[DatasetReference]) -> dict[CacheEntry, Sidecar | None]:
    entries = dict.fromkeys(map(_entry, references))
    return {entry: readable_sidecar(entry) for entry in entries if entry is not None}


def _entry(reference: DatasetReference) -> CacheEntry | None:
    return None if reference.index is None else CacheEntry(reference.index.path_prefix)
