"""Outputs in object stores: built in a local directory, then uploaded, the manifest last.

Object stores have no rename and no locks. So the whole run, with its resume and its lock, happens in a local
*staging* directory; then the finished files are uploaded, and after all of them are complete, the manifest.
A journal in the staging directory records the uploads: the same command resumes an interrupted upload.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from tokshard.core.codec import Count, Positive, Record, Sha256, decode, encode
from tokshard.core.progress import Progress, ProgressUpdate
from tokshard.dataset.manifest import (
    OPTIONAL_NAMES,
    Manifest,
    file_of,
    manifest_path,
)
from tokshard.errors import IntegrityError, StorageError, UsageError
from tokshard.storage import paths, syscalls
from tokshard.storage.files import remove_tree
from tokshard.storage.journal import Journal, read_checkpoints
from tokshard.storage.paths import is_remote
from tokshard.storage.remote import objects
from tokshard.storage.remote.upload import UploadNotes, abandon, upload_file

JOURNAL_NAME = "delivery.jsonl"
_STAGING_NAME = "staging"


@dataclass(frozen=True, slots=True)
class Delivery:
    """Delivery of an output to the URL prefix ``url``; the staged files are kept only if ``keep``."""

    url: str
    directory: str
    keep: bool

    @property
    def prefix(self) -> str:
        """The local path prefix of the staged output."""
        return os.path.join(self.directory, os.path.basename(self.url))

    def url_of(self, path: str) -> str:
        """Return the URL of a staged file or path prefix."""
        return self.url + path.removeprefix(self.prefix)

    def has_leftovers(self) -> bool:
        """Return whether files are waiting to be uploaded or removed."""
        return os.path.lexists(self.directory) and not self.keep

    def upload(
        self,
        prefixes: Sequence[str],
        manifests: Sequence[Manifest],
        journal: UploadJournal,
        progress: Progress,
    ) -> None:
        """Upload the staged files that are missing in the store, manifests last."""
        journal.begin()
        for prefix, manifest in zip(prefixes, manifests, strict=True):
            self._withdraw(prefix, manifest, journal)
        files = [
            file_of(prefix, name)
            for prefix, manifest in zip(prefixes, manifests, strict=True)
            for name in manifest.files.by_name()
        ]
        meter = _Meter(progress, sum(os.path.getsize(path) for path in files), manifests)
        for path in files:
            journal.send(path, self.url_of(path), meter.sent)
        for prefix in prefixes:
            upload_file(manifest_path(prefix), self.url_of(manifest_path(prefix)))

    def _withdraw(self, prefix: str, manifest: Manifest, journal: UploadJournal) -> None:
        # The old manifest goes first; then the old index, which must not be found with new tokens; then the
        # files that the new output does not have.
        listed = manifest.files.by_name()
        old = [file_of(prefix, name) for name in OPTIONAL_NAMES if name not in listed]
        index = paths.idx_path(prefix)
        if not journal.has_sent(index, self.url_of(index)):
            old.insert(0, index)
        for path in (manifest_path(prefix), *old):
            if objects.exists(url := self.url_of(path)):
                objects.remove(url)

    def clear(self, prefixes: Sequence[str]) -> None:
        """Remove the staged files unless they are kept: the manifests first, but not the lock."""
        if self.keep:
            return
        for prefix in prefixes:
            sidecars = paths.sidecar_directory(prefix)
            others = sorted(os.listdir(sidecars)) if os.path.isdir(sidecars) else []
            files = [manifest_path(prefix), paths.bin_path(prefix), paths.idx_path(prefix)]
            for path in (*files, *(os.path.join(sidecars, name) for name in others if name != "lock")):
                if os.path.lexists(path):
                    remove_tree(path)

    def remove_empty(self) -> None:
        """Remove the staging directory if it is empty."""
        try:
            syscalls.remove_directory(self.directory)
        except StorageError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                raise

    def with_hint(self, error: StorageError) -> StorageError:
        """Return an error of the store with a hint that finished work is kept."""
        hint = f"run the same command again to resume: finished work is kept in {self.directory}"
        if error.errno != errno.EIO and error.hint:
            hint = f"{error.hint}; {hint}"
        return StorageError(error.action, error.path, OSError(error.errno, error.reason), hint=hint)


def delivery_to(output: str, *, local_dir: str | None, keep: bool) -> Delivery | None:
    """Return the delivery of an output; None for a path, which is built in place.

    ``local_dir``: the staging directory; by default in the user's cache directory.

    Raises:
        UsageError: The URL is a bucket, or staging options are passed without a URL.
    """
    if not is_remote(output):
        if local_dir is not None or keep:
            raise UsageError("--local-dir and --keep-local require an --output URL")
        return None
    scheme, _, rest = output.partition("://")
    if "/" not in rest.strip("/"):
        raise UsageError(
            f"--output must be a path prefix in a bucket, got the bucket {output!r}",
            hint=f"pass for example --output {scheme}://{rest.strip('/') or 'bucket'}/data/corpus",
        )
    # Outputs with the same last component may share a staging directory.
    digest = hashlib.sha256(os.fsencode(output)).hexdigest()[:12]
    base = local_dir or os.path.join(paths.user_cache_directory(), _STAGING_NAME)
    return Delivery(output, os.path.join(base, f"{os.path.basename(output)}-{digest}"), keep)


@dataclass(frozen=True, slots=True)
class UploadStarted(Record):
    """The first entry of an upload journal."""

    TAG: ClassVar = ("entry", "started")

    fingerprint: Sha256


@dataclass(frozen=True, slots=True)
class MultipartStarted(Record):
    """Start of a multipart upload."""

    TAG: ClassVar = ("entry", "multipart")

    url: str
    upload: str
    part_bytes: Positive


@dataclass(frozen=True, slots=True)
class PartUploaded(Record):
    """Completed upload of a part."""

    TAG: ClassVar = ("entry", "part")

    url: str
    part: Positive
    receipt: str


@dataclass(frozen=True, slots=True)
class ObjectUploaded(Record):
    """Completed upload of an object."""

    TAG: ClassVar = ("entry", "object")

    url: str
    size_bytes: Count
    version: str | None


UploadEntry = UploadStarted | MultipartStarted | PartUploaded | ObjectUploaded


class UploadJournal:
    """Journal of an upload: the uploaded objects with their versions, and parts of one of them.

    Args:
        fingerprint: The plan of the uploaded dataset. A journal of another plan is discarded.

    Attributes:
        is_resumed: Whether an earlier run has started uploading this dataset.
    """

    def __init__(self, path: str, fingerprint: str) -> None:
        self._path = path
        self._fingerprint = fingerprint
        self._objects: dict[str, ObjectUploaded] = {}
        self._uploads: dict[str, _PartNotes] = {}
        self._journal: Journal | None = None
        self.is_resumed = False
        self._size = 0
        for number, entry in enumerate(self._entries(path)):
            if number == 0 and entry != UploadStarted(fingerprint):
                self._size = 0
                return
            self._replay(entry)

    def _entries(self, path: str) -> Iterator[UploadEntry]:
        for checkpoint in read_checkpoints(path):
            self._size = checkpoint.journal_bytes
            for entry in checkpoint.entries:
                yield decode(cast("Any", UploadEntry), entry, path)

    def _replay(self, entry: UploadEntry) -> None:
        self.is_resumed = True
        if isinstance(entry, ObjectUploaded):
            self._objects[entry.url] = entry
            self._uploads.pop(entry.url, None)
        elif isinstance(entry, MultipartStarted):
            self._uploads[entry.url] = _PartNotes(self, entry.url, entry.upload, entry.part_bytes)
        elif isinstance(entry, PartUploaded) and entry.url in self._uploads:
            self._uploads[entry.url].receipts[entry.part] = entry.receipt

    def begin(self) -> None:
        """Open the journal for writing; discard the journal of another dataset."""
        self._journal = Journal(self._path, self._size)
        if not self.is_resumed:
            self.note(UploadStarted(self._fingerprint))

    def note(self, entry: UploadEntry) -> None:
        """Append an entry and fsync."""
        if self._journal is not None:
            self._journal.append(encode(entry))
            self._journal.checkpoint({})

    def close(self) -> None:
        """Close the file."""
        if self._journal is not None:
            self._journal.close()

    def has_sent(self, path: str, url: str) -> bool:
        """Return whether the object is the file that an earlier run has uploaded."""
        known = self._objects.get(url)
        if known is None or not objects.exists(url):
            return False
        found = objects.status(url)
        size = os.path.getsize(path)
        return known == ObjectUploaded(url, size, found.version) and found.size_bytes == size

    def send(self, path: str, url: str, sent: Callable[[int], None]) -> None:
        """Upload a file or its missing parts, and check the object's size.

        Raises:
            IntegrityError: The sizes of object and file differ.
        """
        size = os.path.getsize(path)
        if self.has_sent(path, url):
            sent(size)
            return
        parts = self._uploads.setdefault(url, _PartNotes(self, url, "", 0))
        upload_file(path, url, notes=parts, sent=sent)
        found = objects.status(url)
        if found.size_bytes != size:
            raise IntegrityError(
                f"{url} must have {size} bytes after the upload, got {found.size_bytes}", path=url,
                hint="make sure that no other process writes it, and run the same command again",
            )  # fmt: skip
        self.note(ObjectUploaded(url, size, found.version))


class _PartNotes(UploadNotes):
    def __init__(self, journal: UploadJournal, url: str, upload: str, part_bytes: int) -> None:
        self._journal = journal
        self._url = url
        self._upload = upload
        self._part_bytes = part_bytes
        self.receipts: dict[int, str] = {}

    def begun(self) -> tuple[str, int] | None:
        return (self._upload, self._part_bytes) if self._upload else None

    def parts(self) -> dict[int, str]:
        return dict(self.receipts)

    def begin(self, upload: str, part_bytes: int) -> None:
        if self._upload:
            abandon(self._url, self._upload)
        self._upload, self._part_bytes = upload, part_bytes
        self.receipts.clear()
        self._journal.note(MultipartStarted(self._url, upload, part_bytes))

    def arrived(self, number: int, receipt: str) -> None:
        self._journal.note(PartUploaded(self._url, number, receipt))


class _Meter:
    def __init__(self, progress: Progress, total: int, manifests: Sequence[Manifest]) -> None:
        self._progress = progress
        self._documents = manifests[0].dataset.documents
        self._tokens = sum(manifest.dataset.tokens for manifest in manifests)
        self._bytes = 0
        progress.start("uploading", total)

    def sent(self, count: int) -> None:
        self._bytes += count
        self._progress.update(ProgressUpdate(self._bytes, self._documents, self._tokens))
