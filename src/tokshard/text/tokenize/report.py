"""Reports of tokenize."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from tokshard.core.codec import XXH3_128, Document, Key
from tokshard.dataset.build_run import OutputState
from tokshard.dataset.manifest import UNREPRESENTED, EncoderRecord, UnrepresentedText
from tokshard.dataset.plan import SplitName, TextInput, TokenizeParameters
from tokshard.dataset.tokenizer_identity import TokenizerIdentity

ArrayTaskState = Literal["encoded", "published", "elsewhere", "up-to-date"]


@dataclass(frozen=True, slots=True)
class OutputReport:
    """A dataset that was written."""

    prefix: Annotated[str, Key("prefix", "Its path or URL prefix.")]
    field: Annotated[str, Key("field", "The field it was made from.")]
    split: Annotated[
        SplitName | None, Key("split", "Its split of a holdout; absent without --holdout.", omit_none=True)
    ]
    dtype: Annotated[Literal["uint16", "int32"], Key("dtype", "The dtype of its tokens.")]
    documents: Annotated[int, Key("documents", "Documents.", minimum=0)]
    sequences: Annotated[int, Key("sequences", "Sequences.", minimum=0)]
    tokens: Annotated[int, Key("tokens", "Tokens, EOD tokens included.", minimum=0)]
    bin_bytes: Annotated[int, Key("bin_bytes", "Size of the .bin file.", minimum=0)]
    idx_bytes: Annotated[int, Key("idx_bytes", "Size of the .idx file.", minimum=0)]
    pieces_xxh3_128: Annotated[
        str, Key("pieces_xxh3_128", "Piecewise digest of the .bin file over its units.", pattern=XXH3_128)
    ]
    unrepresented: Annotated[UnrepresentedText | None, UNREPRESENTED] = None


@dataclass(frozen=True, slots=True)
class TokenizeReport(Document):
    """The result of :func:`tokshard.tokenize`."""

    SCHEMA = "tokshard.tokenize-report/1"

    outputs: Annotated[
        tuple[OutputReport, ...], Key("outputs", "The datasets, one for each field of each split.")
    ]
    tokenizer: Annotated[TokenizerIdentity, Key("tokenizer", "The tokenizer.")]
    records: Annotated[
        int,
        Key(
            "records",
            "Records read: documents, rejected and excluded records, without blank lines.",
            minimum=0,
        ),
    ]
    documents: Annotated[int, Key("documents", "Records that became documents.", minimum=0)]
    rejected: Annotated[dict[str, int], Key("rejected", "Rejected records by reason.", minimum=0)]
    excluded: Annotated[
        dict[str, int], Key("excluded", "Records that were not selected, by code.", minimum=0)
    ]
    input_bytes: Annotated[int, Key("input_bytes", "Bytes of the inputs on disk.", minimum=0)]
    content_bytes: Annotated[int, Key("content_bytes", "Bytes of the inputs after decompression.", minimum=0)]
    encoder: Annotated[EncoderRecord, Key("encoder", "Documents by encoder, and how many were compared.")]
    encoder_reason: Annotated[
        str | None,
        Key("encoder_reason", "Why documents were encoded by the reference encoder; null if none were."),
    ]
    units: Annotated[int, Key("units", "Units of work.", minimum=0)]
    units_reused: Annotated[int, Key("units_reused", "Units that an earlier run had finished.", minimum=0)]
    encoded_bytes: Annotated[
        int,
        Key(
            "encoded_bytes",
            "Decompressed input bytes that this run encoded, without units_reused.",
            minimum=0,
        ),
    ]
    encoded_tokens: Annotated[int, Key("encoded_tokens", "Tokens of these bytes.", minimum=0)]
    units_of_other_options: Annotated[
        int,
        Key(
            "units_of_other_options",
            "Finished units of other options or inputs, which were kept until the output was published.",
            minimum=0,
        ),
    ]
    bytes_of_other_options: Annotated[
        int, Key("bytes_of_other_options", "Bytes of disk that they held.", minimum=0)
    ]
    up_to_date: Annotated[bool, Key("up_to_date", "Whether the outputs existed already.")]
    seconds: Annotated[float, Key("seconds", "Duration of the run.", minimum=0)]
    warnings: Annotated[tuple[str, ...], Key("warnings", "Warnings for the user, one sentence each.")]


@dataclass(frozen=True, slots=True)
class TokenizeDryRun(Document):
    """The result of :func:`tokshard.dry_run_tokenize`: what a run with the same options would do."""

    SCHEMA = "tokshard.tokenize-dry-run/1"

    inputs: Annotated[tuple[TextInput, ...], Key("inputs", "The inputs, in order.")]
    outputs: Annotated[tuple[str, ...], Key("outputs", "The path or URL prefixes of the datasets.")]
    tokenizer: Annotated[TokenizerIdentity, Key("tokenizer", "The tokenizer.")]
    options: Annotated[TokenizeParameters, Key("options", "The options that determine the bytes.")]
    encoder: Annotated[Literal["reference", "fast"], Key("encoder", "The encoder that would be used.")]
    encoder_reason: Annotated[
        str | None, Key("encoder_reason", "Why it is not the fast encoder; null if it is.")
    ]
    workers: Annotated[int, Key("workers", "Most worker processes.", minimum=1)]
    state: Annotated[OutputState, Key("state", "The state of the output now.")]
    local_dir: Annotated[
        str | None,
        Key("local_dir", "Where the output is built before its upload; null for local outputs."),
    ]
    messages: Annotated[
        tuple[str, ...],
        Key("messages", "Files chosen or left out of directories and datasets, one sentence each."),
    ]
    warnings: Annotated[tuple[str, ...], Key("warnings", "Warnings for the user, one sentence each.")]


@dataclass(frozen=True, slots=True)
class ArrayTaskReport(Document):
    """The result of :func:`tokshard.tokenize_array_task`.

    The state is ``"encoded"``: the units of this task are encoded, and those of others are not, or another
    task publishes the output; ``"published"``: all units are encoded, and this task has published the output;
    ``"elsewhere"``: nothing was done, because another process does the rest; ``"up-to-date"``: the output
    existed.
    """

    SCHEMA = "tokshard.tokenize-array/1"

    task: Annotated[int, Key("task", "Number of the task, from 0.", minimum=0)]
    tasks: Annotated[int, Key("tasks", "Number of tasks.", minimum=1)]
    state: Annotated[ArrayTaskState, Key("state", "The state of the work.")]
    holder: Annotated[str | None, Key("holder", 'With "elsewhere": the process that does the rest.')]
    units: Annotated[int, Key("units", "Units that this task has encoded.", minimum=0)]
    units_reused: Annotated[
        int, Key("units_reused", "Units of this task that had been finished before.", minimum=0)
    ]
    documents: Annotated[int, Key("documents", "Documents that this task has encoded.", minimum=0)]
    tokens: Annotated[int, Key("tokens", "Tokens of these documents.", minimum=0)]
    result: Annotated[
        TokenizeReport | None, Key("result", 'The output, with "published" and "up-to-date"; else null.')
    ]
    seconds: Annotated[float, Key("seconds", "Duration of the task.", minimum=0)]
