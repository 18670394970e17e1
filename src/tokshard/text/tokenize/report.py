"""Reports of tokenize."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tokshard.core.codec import Amount, Count, Document, Positive
from tokshard.dataset.manifest import EncoderRecord, RecordCounts
from tokshard.dataset.plan import TextInput, TokenizeParameters
from tokshard.dataset.report import BuildReport, DatasetProduct

ArrayTaskState = Literal["encoded", "published", "elsewhere", "up-to-date"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeReport(BuildReport):
    """The datasets that :func:`tokshard.tokenize` wrote, found up to date, or would write."""

    SCHEMA = "tokshard.tokenize/2"

    outputs: tuple[DatasetProduct, ...]
    options: TokenizeParameters
    input_bytes: Count
    inputs: tuple[TextInput, ...] | None = None
    messages: tuple[str, ...] | None = None
    workers: Positive | None = None
    local_dir: str | None = None
    chosen_encoder: Literal["reference", "fast"]
    encoder: EncoderRecord | None = None
    encoder_reason: str | None = None
    counts: RecordCounts | None = None
    units_reused: Count | None = None
    encoded_bytes: Count | None = None
    encoded_tokens: Count | None = None
    units_of_other_options: Count | None = None
    bytes_of_other_options: Count | None = None


@dataclass(frozen=True, slots=True)
class ArrayTaskReport(Document):
    """The result of :func:`tokshard.tokenize_array_task`.

    The state is ``"encoded"``: the units of this task are encoded, and those of others are not, or another
    task publishes the output; ``"published"``: all units are encoded, and this task has published the output;
    ``"elsewhere"``: nothing was done, because another process does the rest; ``"up-to-date"``: the output
    existed.
    """

    SCHEMA = "tokshard.tokenize-array/2"

    task: Count
    tasks: Positive
    state: ArrayTaskState
    holder: str | None
    units: Count
    units_reused: Count
    documents: Count
    tokens: Count
    result: TokenizeReport | None
    seconds: Amount
