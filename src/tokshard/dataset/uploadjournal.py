"""What of a dataset has been uploaded: on the disk, so that another process goes on from there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from tokshard.errors import IntegrityError
from tokshard.storage.journal import Journal, read_checkpoints
from tokshard.storage.remote import objects
from tokshard.storage.remote.upload import abandon


class UploadJournal:
    """What has been uploaded, on the disk: the objects with their versions, and parts of one of them.

    Args:
        path: The journal's file.
        fingerprint: The plan of the dataset that is uploaded. A journal of another one is worth nothing.

    Attributes:
        is_resumed: Whether an earlier run has begun to upload this dataset.
    """

    def __init__(self, path: str, fingerprint: str) -> None:
        self._path = path
        self._fingerprint = fingerprint
        self._objects: dict[str, list[Any]] = {}
        self._uploads: dict[str, _Parts] = {}
        self._journal: Journal | None = None
        self.is_resumed = False
        self._size = 0
        for number, entry in enumerate(self._entries(path)):
            if number == 0 and entry.get("plan") != fingerprint:
                self._size = 0
                return
            self._replay(entry)

    def _entries(self, path: str) -> Iterator[dict[str, Any]]:
        for checkpoint in read_checkpoints(path):
            self._size = checkpoint.journal_bytes
            yield from checkpoint.entries

    def _replay(self, entry: dict[str, Any]) -> None:
        self.is_resumed = True
        if "object" in entry:
            self._objects[entry["object"]] = [entry["bytes"], entry["version"]]
            self._uploads.pop(entry["object"], None)
        elif "upload" in entry:
            self._uploads[entry["url"]] = _Parts(self, entry["url"], entry["upload"], entry["part_bytes"])
        elif "part" in entry and entry["url"] in self._uploads:
            self._uploads[entry["url"]].receipts[entry["part"]] = entry["receipt"]

    def begin(self) -> None:
        """Open the journal for writing; one of another dataset is begun anew."""
        self._journal = Journal(self._path, self._size)
        if not self.is_resumed:
            self.note({"plan": self._fingerprint})

    def note(self, entry: dict[str, Any]) -> None:
        """Note one thing, on the disk when this returns."""
        if self._journal is not None:
            self._journal.append(entry)
            self._journal.checkpoint({})

    def close(self) -> None:
        """Close the file."""
        if self._journal is not None:
            self._journal.close()

    def send(self, path: str, url: str, sent: Callable[[int], None]) -> None:
        """Upload a file, or what is missing of it, and check the object's size.

        Raises:
            IntegrityError: The object has another size than the file.
        """
        size = os.path.getsize(path)
        known = self._objects.get(url)
        if known is not None and objects.exists(url):
            found = objects.status(url)
            if known == [size, found.version] and found.size_bytes == size:
                sent(size)
                return
        parts = self._uploads.setdefault(url, _Parts(self, url, "", 0))
        objects.upload(path, url, notes=parts, sent=sent)
        found = objects.status(url)
        if found.size_bytes != size:
            raise IntegrityError(
                f"{url} has {found.size_bytes} bytes after {size} were uploaded", path=url,
                hint="something else writes to it: run the same command again",
            )  # fmt: skip
        self.note({"object": url, "bytes": size, "version": found.version})


class _Parts:
    """The notes of one large upload, see :class:`~tokshard.storage.remote.upload.UploadNotes`."""

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
        self._journal.note({"upload": upload, "url": self._url, "part_bytes": part_bytes})

    def arrived(self, number: int, receipt: str) -> None:
        self._journal.note({"part": number, "url": self._url, "receipt": receipt})
