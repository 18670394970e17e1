"""What a tokenize run says it has done, or would do, as plain values."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tokshard.dataset.plan import TokenizerIdentity

REPORT_SCHEMA = "tokshard.tokenize-report/1"
DRY_RUN_SCHEMA = "tokshard.tokenize-dry-run/1"


@dataclass(frozen=True, slots=True)
class OutputReport:
    """One dataset that was written.

    Attributes:
        prefix: Its path prefix.
        field: The field it was made from.
        dtype: ``"uint16"`` or ``"int32"``.
        documents: Documents.
        sequences: Sequences.
        tokens: Tokens, EOD tokens included.
        bin_bytes: Size of the ``.bin`` file.
        idx_bytes: Size of the ``.idx`` file.
        pieces_xxh3_128: Piecewise digest of the ``.bin`` file.
    """

    prefix: str
    field: str
    dtype: str
    documents: int
    sequences: int
    tokens: int
    bin_bytes: int
    idx_bytes: int
    pieces_xxh3_128: str


@dataclass(frozen=True, slots=True)
class TokenizeReport:
    """What :func:`tokshard.tokenize_corpus` has done.

    Attributes:
        outputs: The datasets, one for each field.
        tokenizer: The tokenizer's identity.
        records: Records read; equal to ``documents`` plus all ``rejected``.
        documents: Records that became documents.
        rejected: Rejected records by reason.
        input_bytes: Input bytes on disk.
        content_bytes: Input bytes after decompression.
        engine: Documents that each engine made, and how many were compared.
        units: Units that the outputs are made of.
        units_resumed: Those that an earlier run had finished.
        up_to_date: Whether everything was there already and nothing was done.
        seconds: How long it took.
        warnings: What the user should know, one sentence each.
    """

    outputs: tuple[OutputReport, ...]
    tokenizer: TokenizerIdentity
    records: int
    documents: int
    rejected: dict[str, int]
    input_bytes: int
    content_bytes: int
    engine: dict[str, Any]
    units: int
    units_resumed: int
    up_to_date: bool
    seconds: float
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object with a ``schema`` field."""
        return {"schema": REPORT_SCHEMA, **asdict(self)}


@dataclass(frozen=True, slots=True)
class DryRunReport:
    """What :func:`tokshard.tokenize_corpus` would do.

    Attributes:
        inputs: Each input's name, size, format and compression.
        outputs: The path prefixes to be written.
        tokenizer: The tokenizer's identity.
        options: The options that determine the bytes.
        engine: The engine that would encode.
        engine_reason: Why it is not the fast one; None if it is, or if none is known.
        workers: Worker processes.
        state: ``"new"``, ``"resume"``, ``"up-to-date"`` or ``"exists"``.
        staging: The directory in which outputs for a store are made; None for others.
    """

    inputs: tuple[dict[str, Any], ...]
    outputs: tuple[str, ...]
    tokenizer: TokenizerIdentity
    options: dict[str, Any]
    engine: str
    engine_reason: str | None
    workers: int
    state: str
    staging: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object with a ``schema`` field."""
        return {"schema": DRY_RUN_SCHEMA, **asdict(self)}
