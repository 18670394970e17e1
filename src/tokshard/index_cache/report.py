"""What was done about an index, as a value that can be shown as text or as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokshard.dataset.fingerprint import DatasetFingerprint
from tokshard.gpt_index.epochs import EpochPlan
from tokshard.index_cache.build_or_reuse import Action
from tokshard.index_cache.entry import CacheEntry, Condition
from tokshard.index_cache.request import IndexRequest


@dataclass(frozen=True, slots=True)
class IndexReport:
    """One index, and what was done about it.

    Attributes:
        request: What was asked for.
        entry: Its files.
        plan: Its numbers: samples, epochs, tokens.
        dataset: The fingerprint of the dataset that it is made from.
        condition: Its condition before; see :class:`tokshard.index_cache.entry.Examination`.
        detail: The reason of it.
        action: ``"found"`` (it was fresh), ``"verified"`` (Megatron's own, and right), ``"built"``,
            ``"rebuilt"``; None where it was only checked.
        warnings: What the user should know, one sentence each.
    """

    request: IndexRequest
    entry: CacheEntry
    plan: EpochPlan
    dataset: DatasetFingerprint
    condition: Condition
    detail: str
    action: Action | None
    warnings: tuple[str, ...]

    @property
    def is_fresh(self) -> bool:
        """Whether the index is fresh now."""
        return self.action is not None or self.condition == "fresh"

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return {
            "prefix": self.request.prefix,
            "training_path": self.request.training_path,
            "split": self.request.split_name,
            "sequence_length": self.request.sequence_length,
            "num_samples": self.request.num_samples,
            "hash": self.entry.hash,
            "description": self.request.description().text(),
            "files": list(self.entry.megatron_files),
            "samples": self.plan.samples,
            "epochs": self.plan.epochs,
            "tokens_per_epoch": self.plan.tokens_per_epoch,
            "sequences": self.plan.sequences,
            "documents": self.plan.documents,
            "separate_final_epoch": self.plan.separate_final_epoch,
            "condition": self.condition,
            "detail": self.detail,
            "action": self.action,
            "warnings": list(self.warnings),
        }
