"""Reports of tokenize."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from tokshard.core.codec import Document, Key
from tokshard.dataset.manifest import EncoderRecord, RecordCounts
from tokshard.dataset.plan import TextInput, TokenizeParameters
from tokshard.dataset.report import BuildReport, DatasetProduct

ArrayTaskState = Literal["encoded", "published", "elsewhere", "up-to-date"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeReport(BuildReport):
    """The datasets that :func:`tokshard.tokenize` wrote, found up to date, or would write."""

    SCHEMA = "tokshard.tokenize/1"

    outputs: Annotated[
        tuple[DatasetProduct, ...], Key("outputs", "The datasets, one for each field of each split.")
    ]
    options: Annotated[TokenizeParameters, Key("options", "The options that determine the bytes.")]
    input_bytes: Annotated[int, Key("input_bytes", "Bytes of the inputs on disk.", minimum=0)]
    inputs: Annotated[
        tuple[TextInput, ...] | None, Key("inputs", "Dry run: the inputs, in order.", omit_none=True)
    ] = None
    messages: Annotated[
        tuple[str, ...] | None,
        Key(
            "messages",
            "Dry run: files chosen or left out of directories and datasets, one sentence each.",
            omit_none=True,
        ),
    ] = None
    workers: Annotated[
        int | None, Key("workers", "Dry run: most worker processes.", minimum=1, omit_none=True)
    ] = None
    local_dir: Annotated[
        str | None,
        Key(
            "local_dir",
            "Where the output is built before its upload; absent for local outputs.",
            omit_none=True,
        ),
    ] = None
    chosen_encoder: Annotated[
        Literal["reference", "fast"], Key("chosen_encoder", "The encoder for units that are not finished.")
    ]
    encoder: Annotated[
        EncoderRecord | None,
        Key("encoder", "Documents by encoder, and how many were compared.", omit_none=True),
    ] = None
    encoder_reason: Annotated[
        str | None,
        Key(
            "encoder_reason",
            "Why the reference encoder encodes documents; absent if it encodes none.",
            omit_none=True,
        ),
    ] = None
    counts: Annotated[RecordCounts | None, Key("counts", "The records of all inputs.", omit_none=True)] = None
    units_reused: Annotated[
        int | None,
        Key("units_reused", "Units that an earlier run had finished.", minimum=0, omit_none=True),
    ] = None
    encoded_bytes: Annotated[
        int | None,
        Key(
            "encoded_bytes",
            "Decompressed input bytes that this run encoded, without units_reused.",
            minimum=0,
            omit_none=True,
        ),
    ] = None
    encoded_tokens: Annotated[
        int | None, Key("encoded_tokens", "Tokens of these bytes.", minimum=0, omit_none=True)
    ] = None
    units_of_other_options: Annotated[
        int | None,
        Key(
            "units_of_other_options",
            "Finished units of other options or inputs, which were kept until the output was published.",
            minimum=0,
            omit_none=True,
        ),
    ] = None
    bytes_of_other_options: Annotated[
        int | None,
        Key("bytes_of_other_options", "Bytes of disk that they held.", minimum=0, omit_none=True),
    ] = None


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
