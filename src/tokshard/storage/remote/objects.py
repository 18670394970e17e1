"""Objects in stores (``s3://`` and other schemes of fsspec), read by ranges and written whole.

Transient failures are retried, see :mod:`tokshard.storage.remote.client`. All functions work in any thread
and in forked processes. fsspec is imported when the first URL is used.
"""

from __future__ import annotations

import datetime as dt
import io
import os
import time
from collections.abc import Iterator
from concurrent.futures import wait
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, BinaryIO, NamedTuple, cast

from tokshard.core.background import Background, call_interruptibly
from tokshard.errors import InputError, IntegrityError, MissingFileError
from tokshard.storage.paths import scheme_of
from tokshard.storage.remote import hub
from tokshard.storage.remote.client import ShortAnswerError, allowed_retries, answer_of, locate, retried

BLOCK_BYTES = 4 << 20
PART_BYTES = 16 << 20
# Fields of a store's answer that change with the object, the best first.
_VERSION_KEYS = ("ETag", "etag", "generation", "md5Hash", "content_md5", "blob_id", "sha", "crc32c")
_TIME_KEYS = ("LastModified", "last_modified", "mtime", "updated", "created")
# Ranges that are fetched before they are read, and when that began.
_ahead: dict[tuple[str, str, int, int], tuple[float, Background[bytes]]] = {}
_MOST_AHEAD = 64
_AHEAD_SECONDS = 60.0
os.register_at_fork(after_in_child=_ahead.clear)


class RemoteStatus(NamedTuple):
    """The size of an object, the time of its last write if known, and its version.

    The version is an ETag, a generation or a digest; if the store reports none of them, the time or the size.
    """

    size_bytes: int
    mtime_ns: int | None
    version: str


def status(url: str) -> RemoteStatus:
    """Return the status of an object.

    Raises:
        MissingFileError: The object does not exist (a "directory" is not an object).
        StorageError: The store refuses or does not respond.
        UsageError: The scheme is unknown, or a package is not installed.
    """
    info = _ask("read", url, "info")
    if info.get("type") == "directory":
        raise MissingFileError(f"object not found: {url} (it is a prefix of object names)", path=url)
    size, moment = info.get("size"), next((info[key] for key in _TIME_KEYS if info.get(key)), None)
    if type(size) is not int:
        hint = "download it and pass the copy"
        raise InputError(f"cannot read {url}: the store does not report its size", hint=hint)
    if isinstance(moment, dt.datetime):
        moment = moment.replace(tzinfo=moment.tzinfo or dt.UTC).timestamp()
    mtime_ns = round(moment * 10**6) * 1000 if isinstance(moment, int | float) else None
    versions = (str(info[key]).strip('"') for key in _VERSION_KEYS if info.get(key))
    return RemoteStatus(size, mtime_ns, next(versions, str(mtime_ns or f"{size} bytes")))


def exists(url: str) -> bool:
    """Return whether an object exists; other failures raise as in :func:`status`."""
    try:
        status(url)
    except MissingFileError:
        return False
    return True


def is_directory(url: str) -> bool:
    """Return whether objects exist below a URL, like files in a directory."""
    try:
        return bool(_ask("read", url.rstrip("/"), "info").get("type") == "directory")
    except MissingFileError:
        return False


def glob(pattern: str) -> list[str]:
    """Return the URLs of the objects that match a pattern (``*``, ``?``, ``[...]``, ``**``), sorted."""
    return _files(pattern, "glob")


def walk(url: str) -> list[str]:
    """Return the URLs of all objects below a URL, sorted."""
    return _files(url, "find")


def _files(url: str, method: str) -> list[str]:
    found = _ask("list", url, method, detail=True)
    scheme = scheme_of(url)
    names = [name for name, info in found.items() if info.get("type") == "file" and not name.endswith("/")]
    return sorted(name if "://" in name else f"{scheme}://{name}" for name in names)


def remove(url: str) -> None:
    """Remove an object; an absent one is fine."""
    with suppress(MissingFileError):
        status(url)  # without an old object, no permission to delete is needed
        _ask("remove", url, "rm_file")


def _ask(action: str, url: str, method: str, **arguments: Any) -> dict[str, Any]:
    def request() -> Any:
        store, path = hub.parse_pinned(url) or locate(url)
        store.invalidate_cache()
        return getattr(store, method)(path, **arguments)

    return cast("dict[str, Any]", retried(action, url, request))


def upload(local_path: str, url: str) -> Iterator[int]:
    """Copy a local file to an object, which appears when it is complete; an existing one is replaced.

    Memory: four parts of 16 MiB.

    Yields:
        The number of bytes that have been uploaded, five times a second and at the end.

    Raises:
        IntegrityError: The object does not have the size of the file.
    """
    from fsspec.callbacks import Callback

    size, callback = os.path.getsize(local_path), Callback()
    parts = {"chunksize": max(PART_BYTES, size // 10_000 + 1), "max_concurrency": 4}

    def put() -> None:
        store, path = locate(url, attempts=1 + allowed_retries())
        callback.absolute_update(0)
        store.put_file(local_path, path, callback=callback, **(parts if "s3" in store.protocol else {}))

    uploaded = Background(lambda: retried("write", url, put))
    while not wait([uploaded], 0.2).done:
        yield callback.value
    uploaded.result()
    if (found := status(url).size_bytes) != size:
        hint = "make sure that no other process writes it, and run the same command again"
        raise IntegrityError(
            f"{url} must have {size} bytes after the upload, got {found}", path=url, hint=hint
        )
    yield size


class RemoteFile:
    """An object that is read by ranges: its ``known`` version, by default the current one.

    Threads and forked processes may share it.
    """

    def __init__(self, url: str, known: RemoteStatus | None = None) -> None:
        known = known or status(url)
        self.path, self.size_bytes, self.version = url, known.size_bytes, known.version

    def read(self, offset: int, count: int) -> bytes:
        """Return ``count`` bytes from a byte offset; fewer only at the end of the object.

        Raises:
            InputError: The object has changed.
        """
        key = self._range(offset, count)
        _, fetched = _ahead.pop(key, (0.0, None))
        return self._fetch(key) if fetched is None else call_interruptibly(fetched.result)

    def prefetch(self, offset: int, count: int) -> None:
        """Fetch a range in a thread for a later :meth:`read` of exactly this range."""
        key, now = self._range(offset, count), time.monotonic()
        for other, (begun, _) in _ahead.copy().items():
            if now - begun > _AHEAD_SECONDS:
                _ahead.pop(other, None)
        if key not in _ahead and len(_ahead) < _MOST_AHEAD:
            _ahead[key] = now, Background(partial(self._fetch, key))

    def read_into(self, target: memoryview, offset: int) -> None:
        """Fill ``target`` from a byte offset."""
        if (end := offset + len(target)) > self.size_bytes:
            message = f"{self.path} must have at least {end} bytes, got {self.size_bytes}"
            raise IntegrityError(message, path=self.path, offset=self.size_bytes)
        target[:] = self.read(offset, len(target))

    def state(self) -> tuple[int | str, ...]:
        """Return the version."""
        return (self.version,)

    def _range(self, offset: int, count: int) -> tuple[str, str, int, int]:
        return self.path, self.version, offset, min(offset + count, self.size_bytes)

    def _fetch(self, key: tuple[str, str, int, int]) -> bytes:
        url, _, start, end = key

        def request() -> bytes:
            store, path = hub.parse_pinned(url) or locate(url)
            try:
                content = bytes(store.cat_file(path, start=start, end=end))
            except Exception as error:
                if answer_of(error)[0] == 416:  # the object became shorter
                    self._check_unchanged()
                raise
            self._check_unchanged()
            if len(content) != end - start:
                raise ShortAnswerError(f"got {len(content)} bytes instead of {end - start}")
            return content

        return retried("read", url, request) if start < end else b""

    def _check_unchanged(self) -> None:
        if status(self.path)[::2] != (self.size_bytes, self.version):
            hint = "run again when no process writes to it"
            raise InputError(f"{self.path} changed while it was read", hint=hint)


@lru_cache(maxsize=1)  # the same index is often opened several times in a row
def read_whole(url: str, known: RemoteStatus) -> bytes:
    """Return the content of the ``known`` version of an object."""
    file = RemoteFile(url, known)
    return b"".join(file.read(start, PART_BYTES) for start in range(0, file.size_bytes, PART_BYTES))


def open_binary(url: str) -> BinaryIO:
    """Open an object for reading in order."""
    from fsspec.spec import AbstractBufferedFile

    class ObjectStream(AbstractBufferedFile):  # type: ignore[misc]
        def _fetch_range(self, start: int, end: int) -> bytes:
            return file.read(start, end - start)

    file = RemoteFile(url)
    stream = ObjectStream(None, url, block_size=BLOCK_BYTES, cache_type="readahead", size=file.size_bytes)
    return io.BufferedReader(stream, buffer_size=1 << 16)  # readline of fsspec has no limit
