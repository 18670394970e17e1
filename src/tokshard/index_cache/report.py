"""What was done about an index, as a value that can be shown as text or as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokshard.gpt_index.epochs import EpochPlan
from tokshard.index_cache.cache import CacheEntry, State
from tokshard.index_cache.provision import Action
from tokshard.index_cache.request import IndexRequest


@dataclass(frozen=True, slots=True)
class IndexReport:
    """One index, and what was done about it.

    Attributes:
        request: What was asked for.
        entry: Its files: ``entry.hash``, ``entry.text``, ``entry.megatron_files``.
        plan: Its numbers: samples, epochs, tokens.
        dataset: The fingerprint of the dataset that it is made from.
        state: What it was before; see :class:`tokshard.index_cache.cache.CacheState`.
        reason: Why it was that.
        action: ``"found"`` (it was fresh), ``"verified"`` (Megatron's own, and right), ``"built"``,
            ``"rebuilt"``; None where it was only checked.
        warnings: What the user should know, one sentence each.
    """

    request: IndexRequest
    entry: CacheEntry
    plan: EpochPlan
    dataset: dict[str, Any]
    state: State
    reason: str
    action: Action | None
    warnings: tuple[str, ...]

    @property
    def is_fresh(self) -> bool:
        """Whether the index is fresh now."""
        return self.action is not None or self.state == "fresh"

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object."""
        return {
            "prefix": self.request.prefix,
            "training_path": self.request.training_path,
            "split": self.request.split_name,
            "sequence_length": self.request.sequence_length,
            "num_samples": self.request.num_samples,
            "hash": self.entry.hash,
            "description": self.entry.text,
            "files": list(self.entry.megatron_files),
            "samples": self.plan.samples,
            "epochs": self.plan.epochs,
            "tokens_per_epoch": self.plan.tokens_per_epoch,
            "sequences": self.plan.sequences,
            "documents": self.plan.documents,
            "separate_final_epoch": self.plan.separate_final_epoch,
            "state": self.state,
            "reason": self.reason,
            "action": self.action,
            "warnings": list(self.warnings),
        }
