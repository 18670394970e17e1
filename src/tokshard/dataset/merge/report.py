"""What a merge says it has done, or would do, as plain values."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tokshard.dataset.plan import TokenizerIdentity

REPORT_SCHEMA = "tokshard.merge-report/1"
DRY_RUN_SCHEMA = "tokshard.merge-dry-run/1"


@dataclass(frozen=True, slots=True)
class MergeReport:
    """What :func:`tokshard.merge_datasets` has done.

    Attributes:
        prefix: The path prefix of the dataset that was written.
        inputs: How many datasets it was made of.
        dtype: Its token dtype.
        multimodal: Whether it has modes.
        documents: Documents.
        sequences: Sequences.
        tokens: Tokens.
        bin_bytes: Size of the ``.bin`` file.
        idx_bytes: Size of the ``.idx`` file.
        pieces_xxh3_128: Piecewise digest of the ``.bin`` file.
        tokenizer: The tokenizer's identity; None where it is not known, or not one.
        provenance: Whether it is known where each document came from.
        bytes_resumed: Bytes of tokens that an earlier run had copied.
        up_to_date: Whether everything was there already and nothing was done.
        seconds: How long it took.
        warnings: What the user should know, one sentence each.
    """

    prefix: str
    inputs: int
    dtype: str
    multimodal: bool
    documents: int
    sequences: int
    tokens: int
    bin_bytes: int
    idx_bytes: int
    pieces_xxh3_128: str
    tokenizer: TokenizerIdentity | None
    provenance: bool
    bytes_resumed: int
    up_to_date: bool
    seconds: float
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object with a ``schema`` field."""
        return {"schema": REPORT_SCHEMA, **asdict(self)}


@dataclass(frozen=True, slots=True)
class MergeDryRunReport:
    """What :func:`tokshard.merge_datasets` would do.

    Attributes:
        prefix: The path prefix to be written.
        inputs: Each input's prefix, its counts and the size of its ``.bin``.
        dtype: The token dtype.
        multimodal: Whether there are modes.
        tokenizer: The tokenizer's identity; None where it is not known, or not one.
        state: ``"new"``, ``"resume"``, ``"up-to-date"`` or ``"exists"``.
        warnings: What the user should know, one sentence each.
    """

    prefix: str
    inputs: tuple[dict[str, Any], ...]
    dtype: str
    multimodal: bool
    tokenizer: TokenizerIdentity | None
    state: str
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object with a ``schema`` field."""
        return {"schema": DRY_RUN_SCHEMA, **asdict(self)}
