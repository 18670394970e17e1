"""The manifest of an export, with the description of what was exported."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from tokshard.core.codec import Bounds, Count, Document, Positive, Record, Sha256, Tool, Xxh3, encode
from tokshard.core.formatting import setting
from tokshard.dataset.fingerprint import DatasetFingerprint, FileFingerprint
from tokshard.dataset.products import EXPORT_DIRECTORY, EXPORT_NAME
from tokshard.dataset.tokenizer_identity import TokenizerIdentity
from tokshard.errors import IntegrityError
from tokshard.exchange.options import FormatName, HeaderName
from tokshard.storage import fs
from tokshard.storage.paths import check_plain_name
from tokshard.storage.reading import read_document

SourceKind = Literal["dataset", "index", "blend", "plan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportParameters(Record):
    """The options that determine the bytes of an export."""

    format: FormatName
    dtype: Annotated[str, Bounds(pattern="uint(8|16|32|64)|int(32|64)")]
    name: str
    shard_tokens: Positive
    eod_id: Count | None = None
    bos_id: Count | None = None
    val_shards: Count | None = None
    header: HeaderName | None = None
    tokenizer_name: str | None = None
    last_label: bool | None = None
    pad_id: Count | None = None


@dataclass(frozen=True, slots=True)
class ExportedFile(Record):
    """A file of an export."""

    name: str
    size_bytes: Count
    xxh3_128: Xxh3
    tokens: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceDataset(Record):
    """A dataset whose tokens were exported."""

    path_prefix: str
    fingerprint: DatasetFingerprint
    bin: FileFingerprint


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSource(Record):
    """The records of an export: the documents of a dataset, or samples."""

    kind: SourceKind
    path: str
    datasets: tuple[SourceDataset, ...]
    split: str | None = None
    samples_sha256: Sha256 | None = None

    def changes_since(self, earlier: ExportSource) -> Iterator[str]:
        """Yield the changes of the content, one phrase each."""
        if self.kind != earlier.kind:
            yield f"the source was a {earlier.kind} and is now a {self.kind}"
        if self.split != earlier.split:
            yield f"--split was {earlier.split} and is now {self.split}"
        if len(self.datasets) != len(earlier.datasets):
            yield f"the source had {len(earlier.datasets)} datasets and now has {len(self.datasets)}"
            return
        for now, then in zip(self.datasets, earlier.datasets, strict=True):
            known = now.fingerprint.changes_since(then.fingerprint)
            if known or now.bin != then.bin:
                change = known[0] if known else "the .bin file changed"
                yield f"{now.path_prefix}: {change}"
        if self.samples_sha256 != earlier.samples_sha256:
            yield "the samples or their order changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportManifest(Document):
    """The manifest of an export: ``.tokshard/export.json`` in its directory."""

    SCHEMA = "tokshard.export/2"
    OLDER_HINT = "remove the directory and export again"  # only its manifest lists the files to replace

    tool: Tool
    parameters: ExportParameters
    source: ExportSource
    tokenizer: TokenizerIdentity | None
    records: Count
    tokens: Count
    tokens_added: Count
    tokens_left_out: Count
    files: tuple[ExportedFile, ...]
    seal: Sha256

    @property
    def shards(self) -> int:
        """The number of files with tokens."""
        return sum(file.tokens is not None for file in self.files)

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return sum(file.size_bytes for file in self.files)

    def differences_from(self, parameters: ExportParameters, source: ExportSource) -> tuple[str, ...]:
        """Return the differences of another export from this one, one phrase each."""
        theirs = encode(self.parameters)
        mine = encode(parameters)
        found = [
            f"{name} was {setting(theirs.get(name))} and is now {setting(mine.get(name))}"
            for name in sorted({*mine, *theirs})
            if mine.get(name) != theirs.get(name)
        ]
        return (*found, *source.changes_since(self.source))


def manifest_path(directory: str) -> str:
    """Return the path of the manifest of the export in a directory."""
    return os.path.join(directory, EXPORT_DIRECTORY, EXPORT_NAME)


def read_export(directory: str) -> ExportManifest | None:
    """Return the manifest of an export; None if the directory holds none.

    Raises:
        IntegrityError: It is damaged.
        StorageError: It cannot be read.
    """
    path = manifest_path(directory)
    try:
        manifest = read_document(ExportManifest, path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except IntegrityError as error:
        if error.hint is not None:
            raise
        raise IntegrityError(str(error), path=path, hint="export again with --force") from error
    for file in manifest.files:
        check_plain_name(file.name, path)
    return manifest


def check_sizes(directory: str, manifest: ExportManifest) -> None:
    """Raise IntegrityError unless all files of an export exist with their recorded sizes."""
    for file in manifest.files:
        path = os.path.join(directory, file.name)
        try:
            size = fs.getsize(path)
        except FileNotFoundError:
            raise IntegrityError(
                f"file not found: {path} (listed in the manifest)",
                path=path,
                hint="export again with --force",
            ) from None
        if size != file.size_bytes:
            raise IntegrityError(
                f"{path} must have {file.size_bytes} bytes by its manifest, got {size}",
                path=path,
                hint="export again with --force: the file changed after tokshard wrote it",
            )
