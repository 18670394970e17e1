"""Sidecars of cache entries: the origin of an index and the digests of its arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from tokshard.core.codec import Document, Md5, Record, Tool
from tokshard.dataset.fingerprint import DatasetFingerprint
from tokshard.dataset.recorded_tokenizers import DatasetTokenizer, TokenizerMismatch
from tokshard.errors import InputError, TokshardError, UsageError, raise_exhaustion
from tokshard.samples.index.arrays import sample_index_dtype, shuffle_index_dtype
from tokshard.samples.index.description import GPTDatasetDescription
from tokshard.samples.index.entry import CacheEntry
from tokshard.samples.index.epoch_plan import EpochPlan
from tokshard.samples.index.epochs import plan_epochs
from tokshard.samples.index.npy import ArraySpec
from tokshard.samples.index.packing import pack_words
from tokshard.storage.digest import FileRecord
from tokshard.storage.files import write_atomically
from tokshard.storage.reading import read_document


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexOrigin(Record):
    """The data and the numbers that a dataset's index was built from, beyond its description."""

    dataset: DatasetFingerprint
    plan: EpochPlan
    tokenizer: DatasetTokenizer | None = None

    @property
    def pack(self) -> str:
        """The packing, for people."""
        return pack_words([self.plan.packing])

    def contradicts(self, description: GPTDatasetDescription) -> bool:
        """Return whether the plan differs from the one that follows from its sizes and a description."""
        plan = self.plan
        try:
            expected = plan_epochs(
                sequences=plan.sequences,
                tokens_per_epoch=plan.tokens_per_epoch,
                sequence_length=description.sequence_length,
                num_samples=description.num_samples,
                extra_token=plan.extra_token,
                drop_last_partial=plan.drop_last_partial,
                packed=plan.packed,
            )
        except (InputError, UsageError):
            return True
        return plan != expected

    def difference_from(self, earlier: IndexOrigin) -> str | None:
        """Return the difference from an earlier origin, or None if both give the same content."""
        if self.pack != earlier.pack:
            return f"was built with --pack {earlier.pack} instead of --pack {self.pack}"
        if changes := self.dataset.changes_since(earlier.dataset):
            return f"was built from other content of the dataset: {', '.join(changes)}"
        for option, then, now in (
            ("add_extra_token_to_sequence", earlier.plan.extra_token, self.plan.extra_token),
            (
                "drop_last_partial_sequence",
                earlier.plan.drop_last_partial,
                self.plan.drop_last_partial,
            ),
        ):
            if then != now:
                return f"was built with {option}={then} instead of {option}={now}"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sidecar(Document):
    """The sidecar file next to Megatron's files: the origin of the arrays and their digests."""

    SCHEMA = "tokshard.cache/2"
    OLDER_HINT = "build it again with the same tokshard build-indices or tokshard blend command"

    tool: Tool
    description_md5: Md5
    origin: IndexOrigin | None
    files: dict[str, FileRecord]
    tokenizer_mismatches: tuple[TokenizerMismatch, ...] | None = None

    def write(self, path: str) -> None:
        """Write the file, atomically."""
        write_atomically(path, self.to_bytes())

    @classmethod
    def read(cls, path: str) -> Self | None:
        """Read the file. Return None if it does not exist.

        Raises:
            IntegrityError: It is damaged, or of another version.
        """
        try:
            return read_document(cls, path)
        except (FileNotFoundError, NotADirectoryError):
            return None


def readable_sidecar(entry: CacheEntry) -> Sidecar | None:
    """Return the sidecar of an entry, or None if it does not exist or cannot be read."""
    try:
        return Sidecar.read(entry.sidecar_path)
    except TokshardError as error:
        raise_exhaustion(error)
        return None


def allowed_mismatches(entry: CacheEntry) -> tuple[TokenizerMismatch, ...]:
    """Return the mismatches of tokenizers that the sidecar of an entry, if readable, records as allowed."""
    sidecar = readable_sidecar(entry)
    return () if sidecar is None else sidecar.tokenizer_mismatches or ()


def gpt_specs(plan: EpochPlan) -> dict[str, ArraySpec]:
    """Return dtype and shape of the arrays of a dataset's index, as Megatron chooses them."""
    return {
        "document_index": ArraySpec(np.dtype(np.int32), (plan.documents,)),
        "sample_index": ArraySpec(np.dtype(sample_index_dtype(plan.documents)), (plan.samples + 1, 2)),
        "shuffle_index": ArraySpec(np.dtype(shuffle_index_dtype(plan.samples)), (plan.samples,)),
    }


def blend_specs(samples: int) -> dict[str, ArraySpec]:
    """Return dtype and shape of the arrays of a blend."""
    return {
        "dataset_index": ArraySpec(np.dtype(np.int16), (samples,)),
        "dataset_sample_index": ArraySpec(np.dtype(np.int64), (samples,)),
    }
