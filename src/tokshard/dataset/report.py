"""Reports of the commands that write datasets: the datasets, and what was done to them."""

from __future__ import annotations

from dataclasses import dataclass

from tokshard.core.codec import Amount, Document, Record
from tokshard.core.formatting import counted, size
from tokshard.dataset.counts import Counts
from tokshard.dataset.manifest import DatasetFiles, DatasetRecord, Manifest
from tokshard.dataset.outputs import BuildAction, OutputState
from tokshard.dataset.recorded_tokenizers import TokenizerMismatch
from tokshard.dataset.tokenizer_identity import TokenizerIdentity


@dataclass(frozen=True, slots=True)
class DatasetProduct(Record):
    """A dataset that a command wrote, found up to date, or would write."""

    path_prefix: str
    tokenizer: TokenizerIdentity | None
    dataset: DatasetRecord | None = None
    counts: Counts | None = None
    files: DatasetFiles | None = None
    tokenizer_mismatches: tuple[TokenizerMismatch, ...] | None = None

    @classmethod
    def of(cls, path_prefix: str, manifest: Manifest) -> DatasetProduct:
        """Return the product that a manifest describes."""
        return cls(
            path_prefix,
            manifest.tokenizer,
            manifest.dataset,
            manifest.counts,
            manifest.files,
            manifest.tokenizer_mismatches,
        )

    @property
    def size_bytes(self) -> int:
        """Size of the ``.bin`` and ``.idx`` files; 0 before they are written."""
        return 0 if self.files is None else self.files.bin.size_bytes + self.files.idx.size_bytes

    @property
    def tokens(self) -> int:
        """Number of tokens; 0 before the inputs are read."""
        return 0 if self.counts is None else self.counts.tokens

    def describe(self) -> str:
        """Return the names, counts and size of the files for a message; the path prefix if unknown."""
        data, dataset = self.counts, self.dataset
        if data is None or dataset is None:
            return self.path_prefix
        return (
            f"{self.path_prefix}.bin, .idx: {counted(data.documents, 'document')}, "
            f"{counted(data.sequences, 'sequence')}, {counted(data.tokens, 'token')} "
            f"({dataset.dtype}, {size(self.size_bytes)})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildReport(Document):
    """What a command did to the datasets of its report."""

    action: BuildAction
    state: OutputState | None = None
    seconds: Amount
    warnings: tuple[str, ...]
