"""Commits of repositories on the Hugging Face Hub: listings, and files that are read by range requests.

A URL ``hf://datasets/ORG/NAME@COMMIT/PATH`` with a whole commit hash never changes its content. The first
request to a file is redirected to where its content is stored; later ones go there directly, because the Hub
limits the number of requests to itself.

huggingface_hub provides the endpoint, the token and the connections. Its file system does not read these
files: it takes the bytes of a server that ignores the range, lists without a timeout or a limit, waits as
long as ``Retry-After`` says, and reads the whole answer to a range request, however long. Here every answer
is limited in bytes and in time. Outputs and other ``hf://`` URLs still go through its file system.
"""

from __future__ import annotations

import errno
import json
import posixpath
import re
import time
from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tokshard.errors import InputError, MissingExtraError, MissingFileError, StorageError, TokshardError
from tokshard.storage.paths import GLOB_CHARACTERS
from tokshard.storage.remote.client import ShortAnswerError, retried, timeout_seconds

PREFIX = "hf://datasets/"
MAIN = "main"
CONVERTED = "refs/convert/parquet"
"""The branch in which the Hub stores its own conversion of a dataset to Parquet."""

MAX_FILES = 200_000
_MAX_PAGES = 1000
_MAX_JSON_BYTES = 16 << 20
_CHUNK_BYTES = 1 << 16
_TIMEOUTS_PER_ANSWER = 4

_NAME = r"\w[\w.-]*(?:/\w[\w.-]*)?"
_COMMIT = "[0-9a-f]{40}"
_DIGEST = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
_DATASET = re.compile(
    # (?>...): the name of ORG/NAME@ is not ORG.
    rf"{PREFIX}((?>{_NAME}))(?:@(refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/+(.*))?",
    re.ASCII | re.DOTALL,
)
_PINNED = re.compile(rf"hf://(datasets/)?({_NAME})@({_COMMIT})/(.*)", re.ASCII | re.DOTALL)
_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"
# Errors of requests and of httpx if nothing answers, and if a redirect leads nowhere.
_UNREACHABLE = frozenset({"ConnectError", "ConnectTimeout", "ConnectionError", "ProxyError"})
_LOST = frozenset({"InvalidSchema", "InvalidURL", "TooManyRedirects", "UnsupportedProtocol"})


class HubUrl(NamedTuple):
    """A dataset, or files of one, as the user named them.

    Attributes:
        repository: ``ORG/NAME``, or the name of an old dataset without an organization.
        revision: A branch, tag or commit; None if the user named none.
        path: A path or glob; empty for the whole dataset.
    """

    repository: str
    revision: str | None
    path: str


class MissingRevisionError(InputError):
    """A repository does not have a branch, tag or commit."""


def parse_dataset(url: str) -> HubUrl | None:
    """Return the parts of the URL of a dataset; None for another URL.

    Example:
        >>> parse_dataset("hf://datasets/acme/web@v1.0")
        HubUrl(repository='acme/web', revision='v1.0', path='')
        >>> parse_dataset("hf://datasets/acme/web@refs/pr/1/data/*.jsonl")
        HubUrl(repository='acme/web', revision='refs/pr/1', path='data/*.jsonl')
    """
    parts = _DATASET.fullmatch(url)
    return HubUrl(parts[1], unquote(parts[2]) if parts[2] else None, parts[3] or "") if parts else None


def parse_pinned(url: str) -> tuple[HubCommit, str] | None:
    """Return the commit of a URL that is pinned to one, and the path in it; None for another URL.

    Example:
        >>> parse_pinned("hf://datasets/acme/web@main/part.jsonl") is None
        True
        >>> parse_pinned(f"hf://datasets/acme/web@{40 * 'a'}/data/part.jsonl")[1]
        'data/part.jsonl'
    """
    parts = _PINNED.fullmatch(url) if url.startswith("hf://") else None
    return (_commit("datasets" if parts[1] else "models", parts[2], parts[3]), parts[4]) if parts else None


def resolve(kind: str, repository: str, revision: str | None, url: str) -> HubCommit:
    """Return the commit of a revision.

    Args:
        kind: ``"datasets"`` or ``"models"``.
        repository: ``ORG/NAME``.
        revision: A branch, tag or commit; None for the main branch.
        url: The repository as the user named it, for errors.

    Raises:
        MissingRevisionError: The revision does not exist.
        InputError: The repository does not exist, or the library is offline.
        StorageError: Access is denied, or the Hub cannot be reached.
        MissingExtraError: huggingface_hub is not installed.
    """
    named = HubCommit(kind, repository, revision or MAIN)
    # Later requests are repeated if nothing answers, but a wrong endpoint must not take minutes.
    found, _ = retried("read", url, partial(named.ask, "read", url, "revision", "expand=sha", is_first=True))
    match found:
        case {"id": str(name), "sha": str(sha)} if _PINNED.fullmatch(f"hf://{name}@{sha}/"):
            return _commit(kind, name, sha)
    raise _odd(url, "no commit")


class HubCommit:
    """A commit of a repository, with those methods of an fsspec file system that read.

    Nothing of a commit ever changes, so what a process has once learned stays true.
    """

    def __init__(self, kind: str, repository: str, sha: str) -> None:
        self.kind = kind
        self.repository = repository
        self.sha = sha
        self._name = f"datasets/{repository}" if kind == "datasets" else repository
        self._files: dict[str, tuple[int, str]] = {}
        self._directories: set[str] = {""}
        self._listed: set[str] = set()
        self._stored_at: dict[str, str] = {}

    @property
    def page(self) -> str:
        """The address of the repository on the Hub."""
        return f"{_endpoint(self.url(''))}/{self._name}"

    def url(self, path: str) -> str:
        """Return the URL of a path."""
        return f"hf://{self._name}@{self.sha}/{path}"

    def info(self, path: str) -> dict[str, Any]:
        """Return the type of a path, and the size and digest of a file.

        Raises:
            MissingFileError: It does not exist.
        """
        path = path.rstrip("/")
        if path not in self._files and path not in self._directories:
            parent = posixpath.dirname(path)
            if parent not in self._listed:
                self._list(parent)
        if path in self._directories:
            return {"type": "directory"}
        if path not in self._files:
            raise self._missing(self.url(path))
        size, digest = self._files[path]
        return {"type": "file", "size": size, "sha": digest}

    def find(self, path: str, **_: object) -> dict[str, dict[str, Any]]:
        """Return the URLs of all files below a directory, with their information."""
        return {self.url(name): self.info(name) for name in self._list(path.rstrip("/"), recursive=True)}

    def glob(self, pattern: str, **_: object) -> dict[str, dict[str, Any]]:
        """Return the URLs of the files that match a pattern (``*``, ``?``, ``[...]``, ``**``)."""
        from fsspec.utils import glob_translate

        directory = posixpath.dirname(GLOB_CHARACTERS.split(pattern, maxsplit=1)[0])
        is_deep = "/" in pattern[len(directory) :].lstrip("/") or "**" in pattern
        matches = re.compile(glob_translate(pattern)).match
        names = self._list(directory, recursive=is_deep)
        return {self.url(name): self.info(name) for name in names if matches(name)}

    def directories(self, path: str) -> list[str]:
        """Return the names of the directories in a directory, without hidden ones, sorted."""
        self._list(path)
        base = f"{path}/" if path else ""
        names = (name.removeprefix(base) for name in self._directories if name.startswith(base))
        return sorted(name for name in names if name and "/" not in name and name[0] != ".")

    def cat_file(self, path: str, start: int, end: int) -> bytes:
        """Return the bytes of a range; the caller retries.

        Raises:
            TokshardError: The file cannot be read, now or later.
            Exception: The request failed and can be repeated.
        """
        url, size = self.url(path), self.info(path)["size"]
        address = f"{self.page}/resolve/{self.sha}/{quote(path)}"
        headers = {"Range": f"bytes={start}-{end - 1}"}
        stored_at = self._stored_at.get(path)
        try:
            answer, content = self._get("read", url, stored_at or address, end - start, headers)
        except Exception:
            if stored_at is None:
                raise
            # The address has expired, so the Hub is asked again.
            self._stored_at.pop(path, None)
            answer, content = self._get("read", url, address, end - start, headers)
        expected, found = f"bytes {start}-{end - 1}/{size}", answer.headers.get("Content-Range", "no range")
        if found != expected and (answer.status_code, start, end) != (200, 0, size):
            raise ShortAnswerError(f"got {found} instead of {expected}")
        self._stored_at[path] = str(answer.url)
        return content

    def invalidate_cache(self) -> None:
        """Do nothing: a commit does not change."""

    def ask(
        self, action: str, url: str, resource: str, query: str, path: str = "", *, is_first: bool = False
    ) -> tuple[Any, str]:
        """Return a JSON answer of the API, and the cursor of its next page; empty for the last one."""
        names = [self.kind, self.repository, resource, quote(self.sha, safe="")]
        address = "/".join([_endpoint(url), "api", *names, *filter(None, [path])])
        answer, content = self._get(action, url, f"{address}?{query}", _MAX_JSON_BYTES, is_first=is_first)
        try:
            # The rest of the link is ours: it could lead the token to another host.
            next_page = urlsplit(answer.links.get("next", {}).get("url", ""))
            return json.loads(content), parse_qs(next_page.query).get("cursor", [""])[0]
        except (ValueError, RecursionError) as error:
            raise _odd(url, "no JSON") from error

    def _list(self, directory: str, *, recursive: bool = False) -> list[str]:
        """List a directory, and return its files."""
        url, path = self.url(directory), quote(directory, safe="")
        found: dict[str, tuple[int, str] | None] = {}
        query = f"recursive={str(recursive).lower()}"
        cursor = ""
        for _ in range(_MAX_PAGES):
            entries, cursor = retried(
                "list", url, partial(self.ask, "list", url, "tree", query + cursor, path)
            )
            page = self._entries(entries, directory)
            count = len(found) + len(page)
            found.update(page)
            if len(found) < count or (cursor and not page):
                raise _odd(url, "a listing that repeats itself")
            if not cursor or len(found) > MAX_FILES:
                break
            cursor = f"&cursor={quote(cursor, safe='')}"
        if cursor or len(found) > MAX_FILES:
            raise InputError(
                f"{url} has more than {MAX_FILES:,} files", hint="pass a directory or a glob of fewer files"
            )
        files = {name: file for name, file in found.items() if file is not None}
        self._files |= files
        self._directories |= {directory, *(found.keys() - files.keys())}
        self._listed.add(directory)
        return list(files)

    def _entries(self, entries: Any, directory: str) -> list[tuple[str, tuple[int, str] | None]]:
        """Return the paths of a page of a listing, with the size and digest of each file."""
        base = f"{directory}/" if directory else ""
        found: list[tuple[str, tuple[int, str] | None]] = []
        try:
            for entry in entries:
                path, size, digest = entry["path"], entry["size"], (entry.get("lfs") or entry)["oid"]
                is_inside = path.startswith(base) and not {"", ".", ".."}.intersection(path.split("/"))
                is_sound = is_inside and "\0" not in path and type(size) is int and size >= 0
                if is_sound and _DIGEST.fullmatch(digest):
                    found.append((path, (size, digest) if entry["type"] == "file" else None))
        except (AttributeError, KeyError, TypeError) as error:
            raise _odd(self.url(directory), "no listing of its files") from error
        if len(found) < len(entries):
            raise _odd(self.url(directory), "a listing with impossible files")
        return found

    def _get(
        self,
        action: str,
        url: str,
        address: str,
        limit: int,
        headers: dict[str, str] | None = None,
        *,
        is_first: bool = False,
    ) -> tuple[Any, bytes]:
        """Return the answer to a request and its body of at most ``limit`` bytes."""
        try:
            return _answer(_library(url), address, limit, headers or {})
        except Exception as error:
            if (refusal := self._refusal(action, url, error, is_first=is_first)) is not None:
                raise refusal from error
            raise

    def _refusal(self, action: str, url: str, error: Exception, *, is_first: bool) -> TokshardError | None:
        """Return the error of a failure that lasts; None if it is the same for all stores."""
        kinds = {kind.__name__ for kind in type(error).__mro__}
        status, code, text = (getattr(error, name, "") for name in ("status_code", "code", "text"))
        name, what = self.repository, self.kind.removesuffix("s")
        download = (
            f"download the {what} where the Hub can be reached "
            f"(`hf download {name} --repo-type {what} --local-dir DIR`)"
        )
        reason, hint = "", _LOG_IN
        if "OfflineModeIsEnabled" in kinds:
            return InputError(
                f"cannot read {url}: HF_HUB_OFFLINE is set", hint=f"unset HF_HUB_OFFLINE, or {download}"
            )
        if code == "RevisionNotFound":
            return MissingRevisionError(
                f"revision not found: {self.sha} of {name}",
                hint=f"pass a branch, tag or commit of the {what}, for example {MAIN}",
            )
        if code == "EntryNotFound":
            return self._missing(url)
        if code == "RepoNotFound" or (status == 401 and not code and not text.startswith("Invalid cred")):
            return InputError(
                f"{what} not found on the Hugging Face Hub: {name}",
                hint=f"check the spelling; if the {what} is private, {_LOG_IN}",
            )
        if kinds & _LOST or (is_first and kinds & _UNREACHABLE):
            reason = f"the Hugging Face Hub cannot be reached: {' '.join(str(error).split())}"
            hint = f"check the connection and HF_ENDPOINT, or {download}"
        elif code == "GatedRepo":
            reason = f"access to {name} is restricted, and your account is not on its list"
            hint = f"accept the conditions on the page of the {what} ({self.page}); then {_LOG_IN}"
        elif text == "Access to this resource is disabled.":
            reason, hint = f"the {what} {name} is disabled", f"read the page of the {what} ({self.page})"
        elif status in {401, 403}:
            reason = "access denied by the Hugging Face Hub"
        return StorageError(action, url, OSError(errno.EACCES, reason), hint=hint) if reason else None

    def _missing(self, url: str) -> MissingFileError:
        return MissingFileError(
            f"file not found: {url}",
            path=url,
            hint=f"look at the files of the repository: {self.page}/tree/{self.sha}",
        )


# One object per commit, so that all users of a process share its listings.
_commit = lru_cache(maxsize=64)(HubCommit)


class _StatusError(Exception):
    def __init__(self, answer: Any) -> None:
        self.status_code = answer.status_code
        self.code = answer.headers.get("X-Error-Code", "")
        self.text = answer.headers.get("X-Error-Message", "")
        super().__init__(f"status {self.status_code} {self.text}".strip())


def _answer(hub: Any, address: str, limit: int, headers: dict[str, str]) -> tuple[Any, bytes]:
    # Compressed content would have other offsets, and could become larger than any limit.
    headers |= {"Accept-Encoding": "identity"}
    is_hub = address.startswith(f"{hub.constants.ENDPOINT.rstrip('/')}/")
    if is_hub and not hub.constants.HF_HUB_DISABLE_IMPLICIT_TOKEN and (token := hub.get_token()):
        headers |= {"Authorization": f"Bearer {token}"}
    session, seconds = hub.get_session(), timeout_seconds()
    deadline = time.monotonic() + _TIMEOUTS_PER_ANSWER * seconds
    if callable(session.stream):  # httpx, which the library uses since its version 1
        opened = session.stream("GET", address, headers=headers, timeout=seconds)
    else:  # requests
        opened = session.get(address, headers=headers, timeout=seconds, stream=True)
    with opened as answer:
        if answer.status_code not in {200, 206}:
            raise _StatusError(answer)
        body = bytearray()
        for chunk in _chunks(answer):
            body += chunk
            if len(body) > limit:
                raise ShortAnswerError(f"got more than {limit} bytes")
            if time.monotonic() > deadline:
                raise TimeoutError(f"got only {len(body)} bytes in {_TIMEOUTS_PER_ANSWER * seconds} s")
        return answer, bytes(body)


def _chunks(answer: Any) -> Iterator[bytes]:
    """Yield the pieces of a body as they arrive, still compressed if they are."""
    if hasattr(answer, "iter_raw"):
        yield from answer.iter_raw()
        return
    # Without read1, urllib3 waits until a piece is full: then a slow body is noticed later.
    read = getattr(answer.raw, "read1", answer.raw.read)
    while chunk := read(_CHUNK_BYTES, decode_content=False):
        yield chunk


def _library(url: str) -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.constants
    except ImportError as error:
        raise MissingExtraError(f"the URL {url}", "hub") from error
    return huggingface_hub


def _endpoint(url: str) -> str:
    endpoint: str = _library(url).constants.ENDPOINT
    return endpoint.rstrip("/")


def _odd(url: str, answer: str) -> StorageError:
    return StorageError(
        "read",
        url,
        OSError(errno.EPROTO, f"the answer of the Hugging Face Hub contains {answer}"),
        hint="check HF_ENDPOINT and the proxy, and try again later",
    )
