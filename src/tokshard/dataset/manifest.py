"""Manifest of a dataset: its properties, its inputs, and the digests of its files.

``PREFIX.tokshard/manifest.json`` is written last, so a dataset with a manifest is complete. A dataset
without one (written by other tools) can be read, but its content is unverified. The fields are
described in ``docs/reference/formats/manifest.md``.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from tokshard.core.codec import SHA256, XXH3_128, Document, Key, Tool
from tokshard.core.formatting import count, percent
from tokshard.dataset.plan import (
    AdoptionParameters,
    BuildParameters,
    Compression,
    HubDatasetRecord,
    SplitName,
    TokenizeParameters,
)
from tokshard.dataset.tokenizer_agreement import DatasetTokenizer, TokenizerMismatch
from tokshard.dataset.tokenizer_identity import TokenizerIdentity
from tokshard.errors import IntegrityError, OlderVersionError, ignore_older
from tokshard.storage import fs, paths
from tokshard.storage.digest import FileRecord, identity_digest
from tokshard.storage.small_files import read_document

FileName = Literal[
    "bin",
    "idx",
    "units.jsonl",
    "provenance.bin",
    "rejected.jsonl",
    "order.bin",
    "pieces.jsonl",
]
MANIFEST_NAME = "manifest.json"
UNITS_NAME: Literal["units.jsonl"] = "units.jsonl"
PROVENANCE_NAME: Literal["provenance.bin"] = "provenance.bin"
REJECTED_NAME: Literal["rejected.jsonl"] = "rejected.jsonl"
ORDER_NAME: Literal["order.bin"] = "order.bin"
PIECES_NAME: Literal["pieces.jsonl"] = "pieces.jsonl"
OPTIONAL_NAMES: tuple[FileName, ...] = (
    PROVENANCE_NAME,
    REJECTED_NAME,
    ORDER_NAME,
    PIECES_NAME,
)
"""The files in the sidecar directory that a dataset may not have."""
SEAL = "seal"

InputFormat = Literal["jsonl", "parquet", "arrow", "indexed", "nanogpt", "olmo", "datatrove"]
ENCODERS = "reference|fast|unknown"
"""Pattern of the names of encoders."""

INDEXED: Literal["indexed"] = "indexed"
UNKNOWN_ENCODER: Literal["unknown"] = "unknown"
"""The encoder of documents written by another program."""

_DTYPES = "u?int(8|16)|int(32|64)|float(32|64)"


@dataclass(frozen=True, slots=True)
class UnrepresentedText:
    """Text that the tokenizer cannot represent: it became unknown tokens, or was dropped."""

    unit: Annotated[
        Literal["tokens", "characters"],
        Key("unit", "What is counted: unknown tokens, or characters that the tokenizer drops."),
    ]
    checked: Annotated[
        int,
        Key(
            "checked",
            "All tokens of the text, or the normalized characters of the documents that were checked.",
            minimum=0,
        ),
    ]
    count: Annotated[int, Key("count", "Unknown tokens, or dropped characters, among them.", minimum=0)]

    def __add__(self, other: UnrepresentedText) -> UnrepresentedText:
        return replace(self, checked=self.checked + other.checked, count=self.count + other.count)

    @property
    def share(self) -> float:
        """The share that is not represented."""
        return self.count / max(self.checked, 1)

    @property
    def name(self) -> str:
        """The name of the unit for messages."""
        return "unknown tokens" if self.unit == "tokens" else "dropped characters"

    def describe(self) -> str:
        """Return count, checked amount and share for a message."""
        checked = count(self.checked) + (" checked" if self.unit == "characters" else "")
        return f"{count(self.count)} of {checked} ({percent(self.share)})"


UNREPRESENTED = Key(
    "unrepresented",
    "Text that the tokenizer cannot represent; absent if it can represent every text, or if that is unknown.",
    omit_none=True,
)


@dataclass(frozen=True, slots=True)
class DatasetRecord:
    """Properties and size of a dataset."""

    dtype: Annotated[str, Key("dtype", "The dtype of the tokens.", pattern=_DTYPES)]
    multimodal: Annotated[bool, Key("multimodal", "Whether each sequence has a mode.")]
    field: Annotated[str | None, Key("field", "Field of the text; null if unknown or mixed.")]
    units: Annotated[int, Key("units", "Units of work.", minimum=0)]
    documents: Annotated[int, Key("documents", "Documents.", minimum=0)]
    sequences: Annotated[int, Key("sequences", "Sequences.", minimum=0)]
    tokens: Annotated[int, Key("tokens", "Tokens, EOD tokens included.", minimum=0)]
    empty_documents: Annotated[int, Key("empty_documents", "Documents without a sequence.", minimum=0)]
    longest_sequence: Annotated[int, Key("longest_sequence", "Tokens of the longest sequence.", minimum=0)]
    eod_in_text: Annotated[int, Key("eod_in_text", "EOD tokens that tokshard did not append.", minimum=0)]
    split: Annotated[
        SplitName | None,
        Key("split", "The split of a holdout; absent if documents were not divided.", omit_none=True),
    ] = None
    unrepresented: Annotated[UnrepresentedText | None, UNREPRESENTED] = None


@dataclass(frozen=True, slots=True)
class TokenFileRecord:
    """The ``.bin`` file."""

    size_bytes: Annotated[int, Key("bytes", "Size in bytes.", minimum=0)]
    pieces_xxh3_128: Annotated[
        str,
        Key("pieces_xxh3_128", "Piecewise digest over the units of work, or pieces.jsonl.", pattern=XXH3_128),
    ]


@dataclass(frozen=True, slots=True)
class DatasetFiles:
    """The files of a dataset."""

    bin: Annotated[TokenFileRecord, Key("bin", "PREFIX.bin: the tokens.")]
    idx: Annotated[FileRecord, Key("idx", "PREFIX.idx: the index.")]
    units: Annotated[FileRecord, Key(UNITS_NAME, "The units of work.")]
    provenance: Annotated[
        FileRecord | None,
        Key(PROVENANCE_NAME, "Positions of the documents' records in the inputs.", omit_none=True),
    ] = None
    rejected: Annotated[
        FileRecord | None, Key(REJECTED_NAME, "Rejected records, if any.", omit_none=True)
    ] = None
    order: Annotated[
        FileRecord | None,
        Key(
            ORDER_NAME,
            "Number of each document in the order of the units; absent if the same.",
            omit_none=True,
        ),
    ] = None
    pieces: Annotated[
        FileRecord | None,
        Key(PIECES_NAME, "Pieces of the .bin file, if the units are not its pieces.", omit_none=True),
    ] = None

    def by_name(self) -> Mapping[FileName, TokenFileRecord | FileRecord]:
        """Return the files that exist: ``bin`` and ``idx``, and the names in the sidecar directory."""
        return {"bin": self.bin, **self.digested()}

    def digested(self) -> Mapping[FileName, FileRecord]:
        """Return the files with a digest of the whole content: all but ``bin``."""
        records: dict[FileName, FileRecord | None] = {
            "idx": self.idx,
            UNITS_NAME: self.units,
            PROVENANCE_NAME: self.provenance,
            REJECTED_NAME: self.rejected,
            ORDER_NAME: self.order,
            PIECES_NAME: self.pieces,
        }
        return {name: record for name, record in records.items() if record is not None}


@dataclass(frozen=True, slots=True)
class EncoderRecord:
    """The encoders of a dataset's text."""

    documents: Annotated[
        dict[str, int], Key("documents", "Documents by encoder: reference, fast or unknown.", minimum=0)
    ]
    compared: Annotated[
        int, Key("compared", "Documents that both encoders encoded, with equal results.", minimum=0)
    ]
    uncompared: Annotated[
        int | None,
        Key(
            "uncompared",
            "Documents of the fast encoder above 1 MB, which are not compared; absent if there are none.",
            minimum=0,
            omit_none=True,
        ),
    ] = None

    def __add__(self, other: EncoderRecord) -> EncoderRecord:
        documents = Counter(self.documents)
        documents.update(other.documents)
        uncompared = (self.uncompared or 0) + (other.uncompared or 0)
        return EncoderRecord(dict(documents), self.compared + other.compared, uncompared or None)


@dataclass(frozen=True, slots=True)
class InputRecord:
    """An input: a text or token file, or the ``.bin`` file of a dataset without a manifest."""

    path: Annotated[str, Key("path", "The path or URL, as the user named it.")]
    size_bytes: Annotated[int | None, Key("size_bytes", "Size in bytes; null for a stream.", minimum=0)]
    mtime_ns: Annotated[int | None, Key("mtime_ns", "Modification time; null if unknown.")]
    format: Annotated[
        InputFormat, Key("format", "Format of the records; from indexed on: the format of tokens.")
    ]
    compression: Annotated[Compression, Key("compression", "Compression.")]
    version: Annotated[
        str | None, Key("version", "The version (ETag) of an object in a store.", omit_none=True)
    ]
    content_bytes: Annotated[int, Key("content_bytes", "Size after decompression.", minimum=0)]
    pieces_xxh3_128: Annotated[
        str,
        Key("pieces_xxh3_128", "Piecewise digest of the content over its units of work.", pattern=XXH3_128),
    ]
    records: Annotated[int, Key("records", "Records: lines that are not blank, or rows.", minimum=0)]
    documents: Annotated[int, Key("documents", "Records that became documents.", minimum=0)]
    rejected: Annotated[int, Key("rejected", "Rejected records.", minimum=0)]
    blank_lines: Annotated[int, Key("blank_lines", "Blank lines.", minimum=0)]
    excluded: Annotated[
        int | None,
        Key(
            "excluded", "Records that were not selected; absent if there are none.", minimum=0, omit_none=True
        ),
    ] = None
    is_partial: Annotated[
        Literal[True] | None,
        Key(
            "partial",
            "The limit was reached before its end, so its units are not all listed; absent if it was read.",
            omit_none=True,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class RecordCounts:
    """The records of all inputs."""

    records: Annotated[int, Key("records", "Records: documents, rejected and excluded records.", minimum=0)]
    documents: Annotated[int, Key("documents", "Records that became documents.", minimum=0)]
    lines: Annotated[int, Key("lines", "Lines, blank ones included, or rows.", minimum=0)]
    blank_lines: Annotated[int, Key("blank_lines", "Blank lines.", minimum=0)]
    content_bytes: Annotated[int, Key("content_bytes", "Bytes after decompression.", minimum=0)]
    rejected: Annotated[dict[str, int], Key("rejected", "Rejected records by reason.", minimum=0)]
    excluded: Annotated[
        dict[str, int] | None,
        Key(
            "excluded",
            "Records that were not selected, by code; absent if there are none.",
            minimum=0,
            omit_none=True,
        ),
    ] = None

    @property
    def excluded_total(self) -> int:
        """Records that were not selected."""
        return sum((self.excluded or {}).values())

    @property
    def rejected_total(self) -> int:
        """Rejected records of all reasons."""
        return sum(self.rejected.values())


@dataclass(frozen=True, slots=True)
class Manifest(Document):
    """The manifest of a dataset: ``PREFIX.tokshard/manifest.json``.

    The seal is computed from all other fields unless it is passed. A seal read from a file is not checked
    here: ``tokshard verify`` compares it with :func:`seal_of`.
    """

    SCHEMA = "tokshard.dataset/1"

    tool: Annotated[Tool, Key("tool", "The program that wrote the dataset.")]
    fingerprint: Annotated[str, Key("fingerprint", "SHA-256 of the plan.", pattern=SHA256)]
    dataset: Annotated[DatasetRecord, Key("dataset", "Properties of the dataset.")]
    files: Annotated[DatasetFiles, Key("files", "The files of the dataset, by name.")]
    tokenizer: Annotated[TokenizerIdentity | None, Key("tokenizer", "Tokenizer; null if unknown or mixed.")]
    options: Annotated[BuildParameters, Key("options", "The options that determine the bytes.")]
    encoder: Annotated[EncoderRecord, Key("encoder", "The encoders of the text.")]
    inputs: Annotated[tuple[InputRecord, ...], Key("inputs", "The inputs, in order.")]
    counts: Annotated[RecordCounts, Key("counts", "The records of all inputs.")]
    tokenizer_path: Annotated[
        str | None,
        Key(
            "tokenizer_path",
            "Path of the file that defines the tokenizer, as the user named it; absent if not known.",
            omit_none=True,
        ),
    ] = None
    tokenizer_mismatches: Annotated[
        tuple[TokenizerMismatch, ...] | None,
        Key(
            "tokenizer_mismatches",
            "Mismatches of the tokenizers of the inputs that were allowed; absent if there are none.",
            omit_none=True,
        ),
    ] = None
    merged_tokenizers: Annotated[
        tuple[DatasetTokenizer, ...] | None,
        Key(
            "merged_tokenizers",
            "The different tokenizers of merged datasets; absent in files of earlier versions.",
            omit_none=True,
        ),
    ] = None
    hub_datasets: Annotated[
        tuple[HubDatasetRecord, ...] | None,
        Key(
            "hub_datasets",
            "Datasets of the Hugging Face Hub whose files are inputs; absent if there are none.",
            omit_none=True,
        ),
    ] = None
    seal: Annotated[str, Key(SEAL, "SHA-256 of all other fields.", pattern=SHA256)] = ""

    def __post_init__(self) -> None:
        if not self.seal:
            object.__setattr__(self, "seal", seal_of(self.to_json()))

    @property
    def _ends_with_eod(self) -> bool | None:
        made, counts = self.options, self.dataset
        if not isinstance(made, AdoptionParameters):
            return made.append_eod
        # Adoption looks for the EOD token of its tokenizer, and records it if it ends all documents.
        if made.eod_id is not None:
            return True
        looked_for = self.tokenizer is not None and self.tokenizer.eod_id is not None
        return False if looked_for and counts.documents > counts.empty_documents else None

    @property
    def dataset_tokenizer(self) -> DatasetTokenizer:
        """The tokenizer of the dataset and how its documents were encoded, as far as they are recorded."""
        made, merged = self.options, self.merged_tokenizers or ()
        special = {part.special_tokens for part in merged}
        return DatasetTokenizer(
            self.tokenizer,
            self._ends_with_eod,
            made.special_tokens
            if isinstance(made, TokenizeParameters)
            else (special.pop() if len(special) == 1 else None),
            # A dataset without EOD at the end of documents has no use of the token.
            None if made.append_eod is False else made.eod_id,
            self.tokenizer_mismatches,
            merged,
        )


def seal_of(value: dict[str, Any]) -> str:
    """Return the SHA-256 of all fields of a manifest, as JSON, except its seal.

    Example:
        >>> seal_of({"counts": 1}) == seal_of({"counts": 1, "seal": "0"})
        True
    """
    return identity_digest({name: part for name, part in value.items() if name != SEAL})


def manifest_path(path_prefix: str) -> str:
    """Return the path of the manifest of the dataset at ``path_prefix``."""
    return os.path.join(paths.sidecar_directory(path_prefix), MANIFEST_NAME)


def read_manifest(path_prefix: str) -> Manifest | None:
    """Return the manifest of a dataset, or None; raises IntegrityError if it is damaged.

    One of an earlier version counts as absent, with a warning: no text is tokenized again for a new format.
    """
    try:
        return read_document(Manifest, manifest_path(path_prefix))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OlderVersionError as error:
        ignore_older(error, f"it is not read; replace it with {adopt_command(path_prefix)}")
        return None


def adopt_command(path_prefix: str) -> str:
    """Return the command that replaces the manifest of an earlier version."""
    return f"tokshard verify --adopt --tokenizer TOKENIZER {path_prefix}"


def is_multimodal(path_prefix: str) -> bool:
    """Return whether a dataset has modes by its manifest; raises IntegrityError if that is damaged."""
    manifest = read_manifest(path_prefix)
    return manifest is not None and manifest.dataset.multimodal


def read_dataset_tokenizer(path_prefix: str) -> DatasetTokenizer:
    """Return the tokenizer of a dataset; all unknown without a manifest of these files.

    Raises:
        IntegrityError: The manifest is damaged.
    """
    manifest = read_manifest(path_prefix)
    # Another tool may have written new files next to an old manifest.
    if manifest is None or not _has_sizes(path_prefix, manifest):
        return DatasetTokenizer()
    return manifest.dataset_tokenizer


def _has_sizes(path_prefix: str, manifest: Manifest) -> bool:
    sizes = ((paths.bin_path, manifest.files.bin), (paths.idx_path, manifest.files.idx))
    try:
        return all(fs.getsize(path(path_prefix)) == record.size_bytes for path, record in sizes)
    except (FileNotFoundError, NotADirectoryError):
        return False


def file_of(path_prefix: str, name: str) -> str:
    """Return the path of a file by its name in a manifest: ``bin``, ``idx`` or a sidecar file."""
    if name == "bin":
        return paths.bin_path(path_prefix)
    if name == "idx":
        return paths.idx_path(path_prefix)
    return os.path.join(paths.sidecar_directory(path_prefix), paths.check_plain_name(name, "the manifest"))


def check_sizes(path_prefix: str, manifest: Manifest) -> None:
    """Check that every file of the manifest exists with its recorded size."""
    for name, record in manifest.files.by_name().items():
        path = file_of(path_prefix, name)
        try:
            actual = fs.getsize(path)
        except FileNotFoundError:
            raise IntegrityError(f"file not found: {path} (listed in the manifest)", path=path) from None
        if actual != record.size_bytes:
            raise IntegrityError(
                f"{path} must have {record.size_bytes} bytes by its manifest, got {actual}",
                path=path,
                hint="rebuild the dataset with --force: the file changed after tokshard wrote it",
            )
