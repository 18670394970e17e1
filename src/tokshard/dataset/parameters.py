"""Parameters of a build: the inputs, the tokenizer and the options that determine the bytes of a dataset.

The manifest of a dataset holds the SHA-256 of all of them as its fingerprint.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

from tokshard.core.algorithms import SORTED_ALGORITHM
from tokshard.core.codec import Bounds, Count, Positive, Record, encode
from tokshard.core.formatting import counted, listed, setting
from tokshard.core.options import Option, declared_options
from tokshard.dataset.encoding_options import EncodingOptions
from tokshard.dataset.tokenizer_identity import TokenizerIdentity
from tokshard.storage.digest import FileState, identity_digest

TextFormat = Literal["jsonl", "parquet", "arrow"]
TokenFormat = Literal["nanogpt", "olmo", "datatrove"]
"""The formats of other trainers that ``convert`` reads."""
InputFormat = Literal[TextFormat, "indexed", TokenFormat]
SourceDtype = Literal["uint8", "uint16", "uint32", "uint64"]
BosTreatment = Literal["move", "keep", "drop"]
SplitName = Literal["train", "valid"]
Compression = Literal["none", "gzip", "bzip2", "xz", "zstd"]

_SHOWN_INPUTS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeParameters(EncodingOptions):
    """The options of ``tokenize`` that determine the bytes."""

    TAG: ClassVar = ("command", "tokenize")

    eod_id: Annotated[Count | None, Option("Id of the EOD token. Null if there is none.", name="--eod")]
    dtype: Annotated[Literal["uint16", "int32"], Option("Dtype of the tokens.")]
    max_document_bytes: Annotated[Positive, Option("Largest record in bytes; larger records are rejected.")]
    vocab_size: Annotated[
        Positive | None,
        Option(
            "If the fields contain token ids: all are below this number. Absent if the fields contain text."
        ),
    ] = None

    @property
    def splits(self) -> tuple[SplitName | None, ...]:
        """The splits of the documents; one without a name if they are not divided."""
        return (None,) if self.holdout is None else ("train", "valid")

    @property
    def outputs(self) -> tuple[tuple[SplitName | None, str], ...]:
        """The split and the field of each output, in order."""
        return tuple((split, name) for split in self.splits for name in self.fields)

    @property
    def subset(self) -> str | None:
        """The selected part of the inputs, for people; None for all of them.

        Example:
            >>> from dataclasses import replace
            >>> options = TokenizeParameters(eod_id=0, dtype="uint16", max_document_bytes=1)
            >>> replace(options, sample=0.01, sample_seed=7, limit=1000).subset
            '1% of the records (seed 7), at most 1,000 documents'
            >>> replace(options, holdout=0.001, holdout_seed=7, holdout_key="url").subset
            '0.1% of the documents held out by url (seed 7)'
        """
        found = []
        if self.sample is not None:
            found.append(f"{100 * self.sample:.12g}% of the records (seed {self.sample_seed})")
        if self.limit is not None:
            found.append(f"at most {counted(self.limit, 'document')}")
        if self.max_tokens is not None:
            found.append(f"at most {counted(self.max_tokens, 'token')}")
        if self.holdout is not None:
            key = self.holdout_key or "text"
            found.append(
                f"{100 * self.holdout:.12g}% of the documents held out by {key} (seed {self.holdout_seed})"
            )
        return ", ".join(found) or None


@dataclass(frozen=True, slots=True)
class DocumentShuffle(Record):
    """The random order of the documents of a merge.

    Attributes:
        seed: Seed of the order (``--shuffle``).
    """

    ALGORITHM: ClassVar[str] = SORTED_ALGORITHM

    seed: Count


@dataclass(frozen=True, slots=True)
class MergeParameters(Record):
    """The options of ``merge`` that determine the bytes, and properties shared by all inputs.

    Attributes:
        inputs: Path prefixes of the merged datasets.
        multimodal: Whether each sequence has a mode.
        eod_id: Id of the EOD token. Null unless all inputs have the same known id.
        append_eod: Whether the EOD token ends each document. Null unless it is known and the same for all
            inputs.
        shuffle: Random order of the documents (``--shuffle``). Absent if the inputs are concatenated.
    """

    TAG: ClassVar = ("command", "merge")

    inputs: tuple[str, ...]
    multimodal: bool
    eod_id: Count | None
    append_eod: bool | None
    shuffle: DocumentShuffle | None = None


@dataclass(frozen=True, slots=True)
class AdoptionParameters(Record):
    """The properties of an adopted dataset, as far as ``verify --adopt`` determines them.

    Attributes:
        multimodal: Whether each sequence has a mode.
        eod_id: Id of the EOD token. Null unless the given tokenizer has an EOD token that ends all documents.
    """

    TAG: ClassVar = ("command", "adopt")

    multimodal: bool
    eod_id: Count | None

    append_eod: ClassVar[None] = None
    """Unknown for adopted datasets."""


@dataclass(frozen=True, slots=True)
class ConvertParameters(Record):
    """The options of ``convert`` that determine the bytes, and whether documents end with EOD.

    Attributes:
        dtype: Dtype of the tokens.
        source_dtype: Dtype of the inputs (``--source-dtype``). Null if it was not given.
        bos: Treatment of the BOS token before each document (``--bos``). Null unless the format is nanogpt.
        bos_id: Id of the BOS token (``--bos-id``). Null unless the format is nanogpt.
        eod_id: Id of the EOD token. Null if it is unknown.
        append_eod: Whether the EOD token ends each document, as found. Absent if the EOD token is unknown.
    """

    TAG: ClassVar = ("command", "convert")

    format: Annotated[TokenFormat, Option("Format of the inputs.", name="--from")]
    dtype: Literal["uint16", "int32"]
    source_dtype: SourceDtype | None
    bos: BosTreatment | None
    bos_id: Count | None
    eod_id: Count | None
    append_eod: bool | None = None


BuildParameters = TokenizeParameters | MergeParameters | AdoptionParameters | ConvertParameters


@dataclass(frozen=True, slots=True)
class HubDatasetRecord(Record):
    """A dataset of the Hugging Face Hub among the inputs.

    Attributes:
        url: URL of the dataset or its files, as the user named it.
        commit: Commit whose files were read. The Hub's conversion to Parquet has its own commits.
        config: Config. Absent unless the files are the Hub's conversion to Parquet.
        split: Split. Absent unless the files are the Hub's conversion to Parquet.
    """

    url: str
    commit: Annotated[str, Bounds(pattern="[0-9a-f]{40}")]
    config: str | None = None
    split: str | None = None

    @property
    def selection(self) -> list[str]:
        """The config and the split in words; empty if the files are not the Hub's conversion."""
        return [f"config {self.config}", f"split {self.split}"] if self.split else []


@dataclass(frozen=True, slots=True, kw_only=True)
class Build(Record):
    """Everything that determines the bytes of a dataset: equal ones have equal bytes.

    Attributes:
        inputs: The files that are read.
        tokenizer: The tokenizer; None if it is unknown.
        options: The options of the command.
    """

    inputs: tuple[FileState, ...]
    tokenizer: TokenizerIdentity | None
    options: BuildParameters

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the inputs, the tokenizer and the options."""
        return identity_digest(encode(self))

    @property
    def is_repeatable(self) -> bool:
        """True if all inputs can be read again; pipes, which have no size, cannot."""
        return all(file.size_bytes is not None for file in self.inputs)

    def differences(self, now: Build) -> tuple[BuildDifference, ...]:
        """Return the differences between this earlier build and ``now``."""
        was_command, command = self.options.TAG[1], now.options.TAG[1]
        if was_command != command:
            return (BuildDifference("command", "", was_command, command),)
        return (
            *_input_differences(self.inputs, now.inputs),
            *_field_differences("tokenizer", "", self.tokenizer, now.tokenizer),
            *(
                replace(difference, name=_option_name(now.options, difference.name))
                for difference in _field_differences("option", "", self.options, now.options)
                if difference.name != "inputs"  # of a merge: they are compared already
            ),
        )


@dataclass(frozen=True, slots=True)
class BuildDifference:
    """A difference between two builds.

    Attributes:
        kind: ``"command"``, ``"inputs"``, ``"input"``, ``"tokenizer"`` or ``"option"``.
        name: The field; for an input ``PATH: FIELD``; for an option the name on the command line.
        was: The value in the earlier build.
        now: The current value.

    Example:
        >>> print(BuildDifference("option", "--unit-size", 300, 200))
        --unit-size was 300 and is now 200
    """

    kind: str
    name: str
    was: Any
    now: Any

    @property
    def field(self) -> str:
        """The field, without the path of an input."""
        return self.name.rsplit(": ", 1)[-1]

    def __str__(self) -> str:
        change = f"was {_shown(self.was)} and is now {_shown(self.now)}"
        if self.kind == "option":
            return f"{self.name} {change}"
        if self.kind == "inputs":
            before, now = listed(self.was, _SHOWN_INPUTS), listed(self.now, _SHOWN_INPUTS)
            return f"the inputs were {before} and are now {now}"
        if self.kind == "input":
            return f"the input {self.name} {change}"
        if self.kind == "tokenizer":
            return f"the tokenizer's {self.name} {change}" if self.name else f"the tokenizer {change}"
        return f"the command {change}"


def _option_name(parameters: BuildParameters, name: str) -> str:
    kind: Any = type(parameters)
    declared = declared_options(kind).get(name)
    return declared.name if declared else f"--{name.replace('_', '-')}"


def _shown(value: Any) -> str:
    if isinstance(value, dict):  # --shuffle, which sets the seed
        return repr(value["seed"])
    if isinstance(value, list):
        return ", ".join(value)
    return repr(value) if isinstance(value, str) else setting(value)


def _input_differences(
    earlier: tuple[FileState, ...], now: tuple[FileState, ...]
) -> tuple[BuildDifference, ...]:
    paths = [[source.path for source in inputs] for inputs in (earlier, now)]
    if paths[0] != paths[1]:
        return (BuildDifference("inputs", "", *paths),)
    return tuple(
        difference
        for was, is_now in zip(earlier, now, strict=True)
        for difference in _field_differences("input", f"{is_now.path}: ", was, is_now)
    )


def _field_differences(kind: str, prefix: str, was: Any, now: Any) -> list[BuildDifference]:
    before, after = ({} if part is None else encode(part) for part in (was, now))
    return [
        BuildDifference(kind, prefix + name, before.get(name), after.get(name))
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]
