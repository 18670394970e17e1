"""Manifest of a dataset: its properties, its inputs, and the digests of its files.

``PREFIX.tokshard/manifest.json`` is written last, so a dataset with a manifest is complete. A dataset
without one (written by other tools) can be read, but its content is unverified.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from tokshard.core.codec import Bounds, Count, Document, Record, Sha256, Tool, Xxh3
from tokshard.dataset.counts import Counts
from tokshard.dataset.parameters import (
    AdoptionParameters,
    BuildParameters,
    Compression,
    HubDatasetRecord,
    InputFormat,
    SplitName,
    TokenizeParameters,
)
from tokshard.dataset.recorded_tokenizers import DatasetTokenizer, TokenizerMismatch
from tokshard.dataset.tokenizer_identity import TokenizerIdentity
from tokshard.errors import IntegrityError, OlderVersionError, ignore_older
from tokshard.storage import fs, paths
from tokshard.storage.digest import FileRecord, FileState
from tokshard.storage.reading import read_document

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

INDEXED: Literal["indexed"] = "indexed"
UNKNOWN_ENCODER: Literal["unknown"] = "unknown"
"""The encoder of documents written by another program."""

_DTYPES = "u?int(8|16)|int(32|64)|float(32|64)"


@dataclass(frozen=True, slots=True)
class DatasetRecord(Record):
    """Properties of a dataset.

    Attributes:
        dtype: Dtype of the tokens, by NumPy's name.
        multimodal: Whether each sequence has a mode.
        field: Field of the records that contains the text. Null if it is unknown, or if merged datasets have
            different ones.
        units: Units of work.
        split: Split that ``--holdout`` made. Absent without ``--holdout``.
    """

    dtype: Annotated[str, Bounds(pattern=_DTYPES)]
    multimodal: bool
    field: str | None
    units: Count
    split: SplitName | None = None


@dataclass(frozen=True, slots=True)
class TokenFileRecord(Record):
    """The ``.bin`` file.

    Attributes:
        size_bytes: Size in bytes.
        pieces_xxh3_128: XXH3-128 of the digests of its pieces, which are listed in ``pieces.jsonl`` or else
            in ``units.jsonl``.
    """

    size_bytes: Count
    pieces_xxh3_128: Xxh3


@dataclass(frozen=True, slots=True)
class DatasetFiles(Record):
    """The files of a dataset.

    Attributes:
        bin: Tokens: ``PREFIX.bin``.
        idx: Index of sequences and documents: ``PREFIX.idx``.
        units: Units of work, one a line.
        provenance: Position of each document's record in the inputs. Absent with ``--no-provenance``, and if
            it is unknown for a merged or adopted dataset.
        rejected: Rejected records, one a line. Absent if there are none.
        order: Number of each document in the order of the units. Absent if the documents are in that order.
        pieces: Pieces of the ``.bin`` file, one a line. Absent if the units are its pieces.
    """

    bin: TokenFileRecord
    idx: FileRecord
    units: FileRecord
    provenance: FileRecord | None = None
    rejected: FileRecord | None = None
    order: FileRecord | None = None
    pieces: FileRecord | None = None

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile(FileState):
    """An input: a text or token file, or the ``.bin`` file of a dataset without a manifest.

    Attributes:
        format: Format of the records or tokens. ``indexed`` is the ``.bin`` file of a dataset without a
            manifest.
        compression: Compression.
    """

    format: InputFormat
    compression: Compression


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRecord(SourceFile):
    """An input, and what was read of it.

    Attributes:
        pieces_xxh3_128: XXH3-128 of the digests of its units of work.
        counts: Counts of its records.
        partial: True if a limit was reached before the end of the input, so that not all of its units are
            listed. Absent otherwise.
    """

    pieces_xxh3_128: Xxh3
    counts: Counts
    partial: Literal[True] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest(Document):
    """The manifest of a dataset: ``PREFIX.tokshard/manifest.json``.

    A seal read from a file is not checked here: ``tokshard verify`` compares it with :func:`seal_of`.

    Attributes:
        tool: Program that wrote the dataset.
        fingerprint: SHA-256 of the inputs, tokenizer and options. Datasets with equal fingerprints have equal
            bytes.
        dataset: Properties of the dataset.
        counts: Counts of the records, documents and tokens.
        files: Size and digest of each file.
        tokenizer: Tokenizer. Null if it is unknown, or if merged datasets have different ones.
        options: Options that determine the bytes, by the command that wrote the dataset.
        inputs: Inputs, in order.
        tokenizer_path: File that defines the tokenizer, as the user named it. ``tokshard inspect`` decodes
            tokens with it if it is unchanged. Absent for the built-in tokenizer and if it is unknown.
        tokenizer_mismatches: Mismatches that ``--allow-tokenizer-mismatch`` allowed, with those in the
            manifests of merged datasets. Absent if there are none.
        merged_tokenizers: Different tokenizers of the merged datasets. Later commands compare each of them.
            Absent if nothing was merged or nothing is known of them.
        hub_datasets: Datasets of the Hugging Face Hub among the inputs, whose paths contain the commit.
            Absent if there are none.
        seal: SHA-256 of all other fields, as JSON with sorted keys, without spaces, in ASCII. ``tokshard
            verify`` checks it.
    """

    SCHEMA = "tokshard.dataset/2"

    tool: Tool
    fingerprint: Sha256
    dataset: DatasetRecord
    counts: Counts
    files: DatasetFiles
    tokenizer: TokenizerIdentity | None
    options: BuildParameters
    inputs: tuple[InputRecord, ...]
    tokenizer_path: str | None = None
    tokenizer_mismatches: tuple[TokenizerMismatch, ...] | None = None
    merged_tokenizers: tuple[DatasetTokenizer, ...] | None = None
    hub_datasets: tuple[HubDatasetRecord, ...] | None = None
    seal: Sha256

    @property
    def _ends_with_eod(self) -> bool | None:
        made, counts = self.options, self.counts
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
        tokenizer = DatasetTokenizer(
            self.tokenizer,
            self._ends_with_eod,
            # Rows of token ids may contain any special tokens.
            (made.special_tokens if made.vocab_size is None else None)
            if isinstance(made, TokenizeParameters)
            else (special.pop() if len(special) == 1 else None),
            # A dataset without EOD at the end of documents has no use of the token.
            None if made.append_eod is False else made.eod_id,
            self.tokenizer_mismatches,
        )
        # The same tokenizer in all inputs says nothing more; a merged dataset then equals one that is not.
        return tokenizer if merged in {(), tokenizer.parts} else replace(tokenizer, merged=merged)

    @property
    def id_limit(self) -> int | None:
        """All token ids are below it, by the tokenizer or the rows of ids; None if unknown."""
        if self.tokenizer is not None:
            return max(self.tokenizer.vocab_size, self.tokenizer.max_token_id + 1)
        return self.options.vocab_size if isinstance(self.options, TokenizeParameters) else None


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


def read_dataset_manifest(path_prefix: str) -> Manifest | None:
    """Return the manifest of the files of a dataset; None if another tool may have replaced them.

    Raises:
        IntegrityError: The manifest is damaged.
    """
    manifest = read_manifest(path_prefix)
    return manifest if manifest is not None and _has_sizes(path_prefix, manifest) else None


def read_dataset_tokenizer(path_prefix: str) -> DatasetTokenizer:
    """Return the tokenizer of a dataset; all unknown without a manifest of these files.

    Raises:
        IntegrityError: The manifest is damaged.
    """
    manifest = read_dataset_manifest(path_prefix)
    return DatasetTokenizer() if manifest is None else manifest.dataset_tokenizer


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
