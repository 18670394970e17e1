"""Upload of local files to object stores: large files in parts, each retried separately.

A store shows an object only when it is complete. The progress of a large upload can be recorded, so that
another process can resume it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable
from typing import Any

from tokshard.core.background import in_order
from tokshard.errors import MissingFileError, StorageError
from tokshard.storage.reading import open_descriptor, open_file, read_at
from tokshard.storage.remote.client import locate, retried

PART_BYTES = 16 << 20
_MOST_PARTS = 10_000
_PARTS_AT_ONCE = 4


class UploadNotes:
    """Record of the upload of one large object; subclasses store it."""

    def begun(self) -> tuple[str, int] | None:
        """Return the store's id of an unfinished upload and the size of its parts."""
        return None

    def parts(self) -> dict[int, str]:
        """Return the store's receipt of each uploaded part, by part number from 1."""
        return {}

    def begin(self, upload: str, part_bytes: int) -> None:
        """Record the start of an upload, replacing any earlier one."""

    def arrived(self, number: int, receipt: str) -> None:
        """Record an uploaded part."""


def upload_file(
    local_path: str,
    url: str,
    *,
    notes: UploadNotes | None = None,
    sent: Callable[[int], None] = lambda _: None,
) -> None:
    """Copy a local file to an object, replacing any existing one.

    Memory: four parts of 16 MiB; for files over 160 GB, four parts of a ten-thousandth of the file.

    Args:
        local_path: The file, which must not change during the upload.
        url: The object.
        notes: The record of a large upload to S3, for resuming.
        sent: Called with the number of bytes of each uploaded piece, including those already recorded.

    Raises:
        InputError: The bucket does not exist.
        StorageError: The store refuses or does not respond, or the file cannot be read.
    """
    size = os.path.getsize(local_path)
    store, _ = locate(url)
    if not hasattr(store, "call_s3"):
        retried("write", url, lambda: _put_file(local_path, url))
        sent(size)
    elif size < 2 * PART_BYTES:
        with open_file(local_path) as file:
            content = file.read()
        retried("write", url, lambda: _ask_s3(url, "put_object", Body=content))
        sent(size)
    else:
        _Multipart(local_path, url, size, notes or UploadNotes(), sent).run()


def abandon(url: str, upload: str) -> None:
    """Abort an unfinished upload, if the store still has it."""
    with contextlib.suppress(MissingFileError, StorageError):
        retried("remove", url, lambda: _ask_s3(url, "abort_multipart_upload", UploadId=upload))


class _Multipart:
    def __init__(
        self, local_path: str, url: str, size: int, notes: UploadNotes, sent: Callable[[int], None]
    ) -> None:
        self._local_path = local_path
        self._url = url
        self._size = size
        self._notes = notes
        self._sent = sent

    def run(self) -> None:
        # An upload that the store has forgotten starts again.
        begun = self._notes.begun()
        if begun is not None:
            try:
                self._send(*begun)
            except MissingFileError:
                pass
            else:
                return
        self._send(*self._begin())

    def _begin(self) -> tuple[str, int]:
        part_bytes = max(PART_BYTES, -(-self._size // _MOST_PARTS))
        upload = retried(
            "write", self._url, lambda: str(_ask_s3(self._url, "create_multipart_upload")["UploadId"])
        )
        self._notes.begin(upload, part_bytes)
        return upload, part_bytes

    def _send(self, upload: str, part_bytes: int) -> None:
        receipts = self._notes.parts()
        numbers = range(1, -(-self._size // part_bytes) + 1)
        sizes = {number: min(part_bytes, self._size - (number - 1) * part_bytes) for number in numbers}
        missing = [number for number in numbers if number not in receipts]
        self._sent(sum(sizes[number] for number in receipts.keys() & sizes.keys()))
        descriptor = open_descriptor(self._local_path)
        try:
            parts = (self._part(upload, number, descriptor, part_bytes) for number in missing)
            for number, receipt in zip(missing, in_order(parts, _PARTS_AT_ONCE), strict=True):
                receipts[number] = receipt
                self._notes.arrived(number, receipt)
                self._sent(sizes[number])
        finally:
            os.close(descriptor)
        self._complete(upload, [receipts[number] for number in numbers])

    def _part(self, upload: str, number: int, descriptor: int, part_bytes: int) -> Callable[[], str]:
        # Read here, not in the thread: the thread may outlive the descriptor.
        content = read_at(descriptor, part_bytes, (number - 1) * part_bytes)

        def ask() -> str:
            answer = _ask_s3(self._url, "upload_part", UploadId=upload, PartNumber=number, Body=content)
            return str(answer["ETag"])

        return lambda: retried("write", self._url, ask)

    def _complete(self, upload: str, receipts: list[str]) -> None:
        parts = [{"PartNumber": number, "ETag": receipt} for number, receipt in enumerate(receipts, 1)]
        try:
            retried(
                "write",
                self._url,
                lambda: _ask_s3(
                    self._url, "complete_multipart_upload", UploadId=upload, MultipartUpload={"Parts": parts}
                ),
            )
        except MissingFileError:
            # The store forgets an upload when it is complete, and its response may have been lost.
            if not self._is_complete(receipts):
                raise

    def _is_complete(self, receipts: list[str]) -> bool:
        # The ETag of an object is the MD5 of the MD5s of its parts.
        try:
            digests = bytes.fromhex("".join(receipt.strip('"') for receipt in receipts))
        except ValueError:
            return False
        whole = hashlib.md5(digests, usedforsecurity=False).hexdigest()
        found = retried("read", self._url, lambda: _ask_s3(self._url, "head_object"))
        return str(found["ETag"]).strip('"') == f"{whole}-{len(receipts)}"


def _put_file(local_path: str, url: str) -> None:
    store, path = locate(url)
    store.put_file(local_path, path)


def _ask_s3(url: str, method: str, **arguments: Any) -> dict[str, Any]:
    store, path = locate(url)
    bucket, key, _ = store.split_path(path)
    answer: dict[str, Any] = store.call_s3(method, Bucket=bucket, Key=key, **arguments)
    return answer
