"""Objects in stores (``s3://`` and other schemes of fsspec), read and written as plain bytes.

Every function opens the store or reuses the connection of this process, so all of this works in any thread,
in forked and in spawned processes. Transient failures are retried, see
:mod:`tokshard.storage.remote.client`. Nothing is imported before the first URL is used.
"""

from __future__ import annotations

import datetime as dt
import io
import time
from collections.abc import Callable
from typing import Any, BinaryIO, NamedTuple, cast

from tokshard.core.background import call_interruptibly
from tokshard.errors import InputError, MissingFileError
from tokshard.storage.files import AtomicFile
from tokshard.storage.paths import is_remote, scheme_of
from tokshard.storage.readahead import BLOCK_BYTES, ReadAhead
from tokshard.storage.reading import open_file
from tokshard.storage.remote import hub
from tokshard.storage.remote.client import Place, ShortAnswerError, is_s3, locate, retried

# Fields of a store's answer that change with the object, the best first.
_VERSION_KEYS = ("ETag", "etag", "generation", "md5Hash", "content_md5", "blob_id", "sha", "crc32c")
_TIME_KEYS = ("LastModified", "last_modified", "mtime", "updated", "created")

RECENT_SECONDS = 2.0
_MOST_RECENT = 4096
_recent: dict[str, tuple[float, RemoteStatus]] = {}
_PAIR_TRIES = 10
_pairs: set[tuple[str, str, str, str]] = set()


class RemoteStatus(NamedTuple):
    """The size, time and version of an object.

    Attributes:
        size_bytes: The size.
        mtime_ns: The time of the last write, in nanoseconds since 1970; None if the store does not report it.
        version: A value that changes with the content: an ETag, a generation, a digest; otherwise the time
            of the last change.
    """

    size_bytes: int
    mtime_ns: int | None
    version: str


def status(url: str) -> RemoteStatus:
    """Return the status of an object.

    Raises:
        MissingFileError: The object does not exist (a "directory" is not an object).
        StorageError: The store refuses or does not respond.
        UsageError: The scheme is unknown.
        MissingExtraError: The packages for this store are not installed.
    """
    info = _info(url)
    if info.get("type") == "directory":
        raise MissingFileError(f"object not found: {url} (it is a prefix of object names)", path=url)
    return _status(url, info)


_current = status  # where a parameter has the name


def recent_status(url: str) -> RemoteStatus:
    """Return the status of an object, at most two seconds old.

    Opening a dataset requests the same objects repeatedly. Later reads are conditional on the object being
    unchanged.

    Raises:
        MissingFileError: The object does not exist; this is never cached.
        StorageError: The store refuses or does not respond.
    """
    now = time.monotonic()
    asked, known = _recent.get(url, (-RECENT_SECONDS, None))
    if known is None or now - asked >= RECENT_SECONDS:
        known = call_interruptibly(lambda: status(url))
        if len(_recent) >= _MOST_RECENT:
            _recent.clear()
        _recent[url] = now, known
    return known


def pair_status(url: str, published_later: str) -> tuple[RemoteStatus, RemoteStatus]:
    """Return the statuses of two objects of one version of a dataset, each at most two seconds old.

    A run that replaces the dataset removes ``published_later`` before it writes ``url``, and writes it again
    after ``url``. So two versions belong together if the first object, and then the second one, still have
    them when both are known.

    Raises:
        MissingFileError: One of the objects does not exist, for example while they are replaced.
        InputError: The objects are replaced again and again.
        StorageError: The store refuses or does not respond.
    """
    for _ in range(_PAIR_TRIES):
        pair = recent_status(url), recent_status(published_later)
        versions = (url, pair[0].version, published_later, pair[1].version)
        if versions in _pairs:
            return pair
        for each in (url, published_later):
            _recent.pop(each, None)
        if (recent_status(url), recent_status(published_later)) == pair:
            if len(_pairs) >= _MOST_RECENT:
                _pairs.clear()
            _pairs.add(versions)
            return pair
    raise InputError(
        f"cannot read one version of {url} and {published_later}: they are being replaced again and again",
        hint="run the command again when no process writes to them",
    )


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
        return bool(_info(url.rstrip("/")).get("type") == "directory")
    except MissingFileError:
        return False


def glob(pattern: str) -> list[str]:
    """Return the URLs of the objects that match a pattern (``*``, ``?``, ``[...]``, ``**``), sorted."""
    return _files(pattern, _ask("list", pattern, lambda place: place.store.glob(place.path, detail=True)))


def walk(url: str) -> list[str]:
    """Return the URLs of all objects below a URL, sorted."""
    return _files(url, _ask("list", url, lambda place: place.store.find(place.path, detail=True)))


def remove(url: str) -> None:
    """Remove an object; an absent one is fine."""

    def removed() -> None:
        place = locate(url)
        place.store.rm_file(place.path)

    try:
        retried("remove", url, removed)
    except MissingFileError:
        return


class RemoteFile:
    """An object that is read by range requests, pinned to the version it had when it was opened.

    Holds no connection: it may be shared by threads and sent to other processes.

    Args:
        status: The status if known; by default it is requested.

    Attributes:
        version: The version, see :class:`RemoteStatus`.

    Raises:
        MissingFileError: The object does not exist.
        StorageError: The store refuses or does not respond.

    Example:
        >>> file = RemoteFile("s3://bucket/web.bin")  # doctest: +SKIP
        >>> file.read(0, 4)  # doctest: +SKIP
        b'abcd'
    """

    def __init__(self, url: str, status: RemoteStatus | None = None) -> None:
        found = status or _current(url)
        self.url = url
        self.size_bytes = found.size_bytes
        self.version = found.version

    def read(self, offset: int, count: int) -> bytes:
        """Return ``count`` bytes from a byte offset; fewer only at the end of the object.

        Raises:
            InputError: The object has changed.
        """
        end = min(offset + count, self.size_bytes)
        if offset >= end:
            return b""
        return retried("read", self.url, lambda: self._range(offset, end))

    def check_unchanged(self) -> None:
        """Check that the object has not changed.

        Raises:
            InputError: The object has changed.
        """
        if status(self.url)[::2] != (self.size_bytes, self.version):
            raise self._changed()

    def _range(self, start: int, end: int) -> bytes:
        place = _place(self.url)
        if is_s3(place.store):
            content = self._s3_range(place, start, end)
        else:
            content = bytes(place.store.cat_file(place.path, start=start, end=end))
            self.check_unchanged()
        return self._whole(content, end - start)

    def _whole(self, content: bytes, count: int) -> bytes:
        if len(content) != count:
            raise ShortAnswerError(f"got {len(content)} bytes instead of {count}")
        return content

    def _s3_range(self, place: Place, start: int, end: int) -> bytes:
        # The read is conditional on our version, which needs no second request.
        from fsspec.asyn import sync

        store = place.store
        bucket, key, _ = store.split_path(place.path)
        try:
            answer = store.call_s3(
                "get_object",
                Bucket=bucket,
                Key=key,
                Range=f"bytes={start}-{end - 1}",
                IfMatch=f'"{self.version}"',
            )
        except OSError as error:
            if _s3_code(error) in {"PreconditionFailed", "412", "InvalidRange", "416"}:
                raise self._changed() from error
            raise
        body = answer["Body"]
        try:
            # A server may ignore the condition.
            if str(answer.get("ETag", "")).strip('"') != self.version:
                raise self._changed()
            return cast("bytes", sync(store.loop, body.read))
        finally:
            body.close()

    def _changed(self) -> InputError:
        return InputError(
            f"{self.url} changed while it was read", hint="run again when no process writes to it"
        )


class _Stream(io.RawIOBase):
    def __init__(self, file: RemoteFile) -> None:
        self.name = file.url
        self._size_bytes = file.size_bytes
        self._blocks = ReadAhead(file.read, file.size_bytes)
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size_bytes}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        block = self._blocks.some(self._position, len(view))
        view[: len(block)] = block
        self._position += len(block)
        return len(block)

    def close(self) -> None:
        if not self.closed:
            self._blocks.close()
        super().close()


def open_binary(path: str, known: RemoteStatus | None = None) -> BinaryIO:
    """Open a local file or a remote object for reading: buffered, seekable, with read-ahead.

    Reading fails if a remote object differs from ``known``.

    Raises:
        InputError: A local file is not a regular one.
        OSError: A local file cannot be opened.
        MissingFileError: The object does not exist.
        StorageError: The store refuses or does not respond.
    """
    if not is_remote(path):
        return open_file(path)
    return io.BufferedReader(_Stream(RemoteFile(path, known)), buffer_size=1 << 16)


def download(url: str, local_path: str, known: RemoteStatus | None = None) -> None:
    """Copy an object to a local file, which appears complete or not at all. Memory: two blocks.

    Fails if the object differs from ``known``.

    Raises:
        InputError: The object changed during the download.
        StorageError: The store or the disk failed.
    """
    with open_binary(url, known) as source, AtomicFile(local_path) as target:
        while block := source.read(BLOCK_BYTES):
            target.write(block)


def _place(url: str) -> Place:
    pinned = hub.parse_pinned(url)
    return locate(url) if pinned is None else Place(*pinned)


def _info(url: str) -> dict[str, Any]:
    return _ask("read", url, lambda place: place.store.info(place.path))


def _ask(action: str, url: str, request: Callable[[Place], Any]) -> dict[str, Any]:
    def answer() -> dict[str, Any]:
        place = _place(url)
        place.store.invalidate_cache()
        return cast("dict[str, Any]", request(place))

    return retried(action, url, answer)


def _status(url: str, info: dict[str, Any]) -> RemoteStatus:
    size = info.get("size")
    if type(size) is not int:
        raise InputError(
            f"cannot read {url}: the store does not report its size", hint="download it and pass the copy"
        )
    mtime_ns = _nanoseconds(next((info[key] for key in _TIME_KEYS if info.get(key)), None))
    named = next((str(info[key]).strip('"') for key in _VERSION_KEYS if info.get(key)), None)
    return RemoteStatus(size, mtime_ns, named or (str(mtime_ns) if mtime_ns is not None else f"{size} bytes"))


def _nanoseconds(moment: Any) -> int | None:
    if isinstance(moment, str):
        try:
            moment = dt.datetime.fromisoformat(moment)
        except ValueError:
            return None
    if isinstance(moment, dt.datetime):
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=dt.UTC)
        microseconds: int = (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)
        return 1000 * microseconds
    if isinstance(moment, int | float) and not isinstance(moment, bool):
        return int(moment * 10**9)
    return None


def _files(url: str, found: dict[str, Any]) -> list[str]:
    scheme = scheme_of(url)
    return sorted(
        name if "://" in name else f"{scheme}://{name}"
        for name, info in found.items()
        if info.get("type") == "file" and not name.endswith("/")
    )


def _s3_code(error: OSError) -> str:
    response = getattr(error.__cause__, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))
