"""Datasets on the Hugging Face Hub: revisions, listings, and files that are pinned to a commit.

A URL ``hf://datasets/ORG/NAME@COMMIT/PATH`` with a whole commit hash never changes its content. It is read
from the cache of huggingface_hub if the file is there, and otherwise by range requests. The first request to
a file is redirected to where its content is stored; later ones go there directly, because the Hub limits the
number of requests to itself.

Only public functions of huggingface_hub are used. With ``HF_HUB_OFFLINE`` everything comes from its cache.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote

from tokshard.errors import InputError, MissingExtraError, MissingFileError, StorageError, TokshardError
from tokshard.storage.reading import open_descriptor, read_at
from tokshard.storage.remote.client import ShortAnswerError, retried, timeout_seconds

PREFIX = "hf://datasets/"
MAIN = "main"
CONVERTED = "refs/convert/parquet"
"""The branch in which the Hub stores its own conversion of a dataset to Parquet."""

_COMMIT = "[0-9a-f]{40}"
_PINNED = re.compile(rf"{PREFIX}([^/@]+/[^/@]+)@({_COMMIT})/(.+)", re.DOTALL)
_DATASET = re.compile(
    rf"{PREFIX}([\w.-]+(?:/[\w.-]+)?)(?:@(refs(?:/|%2F)(?:convert|pr)(?:/|%2F)\w+|[^/]+))?/?"
)
_DIGEST = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
_DOWNLOAD = "hf download {} --repo-type dataset"
_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"
_MOST_KNOWN = 1 << 16

Result = TypeVar("Result")
Known = TypeVar("Known")


class HubDataset(NamedTuple):
    """A dataset as the user named it.

    Attributes:
        repository: ``ORG/NAME``, or the name of an old dataset without an organization.
        revision: A branch, tag or commit; None if the user named none.
    """

    repository: str
    revision: str | None


class HubFile(NamedTuple):
    """A file of a dataset at a commit."""

    repository: str
    commit: str
    path: str

    @property
    def url(self) -> str:
        """The URL."""
        return f"{PREFIX}{self.repository}@{self.commit}/{self.path}"


class HubStatus(NamedTuple):
    """The size and digest of a file.

    Attributes:
        version: The SHA-256 of a large file, the git object id of a small one: the file's ETag.
    """

    size_bytes: int
    version: str


# Nothing of a commit ever changes, so what a process has once learned stays true.
_statuses: dict[HubFile, HubStatus] = {}
_stored_at: dict[HubFile, str] = {}
_cached: dict[HubFile, str] = {}


def parse_dataset(url: str) -> HubDataset | None:
    """Return the dataset that a URL names as a whole; None for a file, a directory or another store.

    Example:
        >>> parse_dataset("hf://datasets/acme/web@v1.0")
        HubDataset(repository='acme/web', revision='v1.0')
        >>> parse_dataset("hf://datasets/acme/web@refs/convert/parquet").revision
        'refs/convert/parquet'
        >>> parse_dataset("hf://datasets/acme/web/data/part.jsonl") is None
        True
    """
    found = _DATASET.fullmatch(url)
    return HubDataset(found[1], unquote(found[2]) if found[2] else None) if found else None


def parse_file(url: str) -> HubFile | None:
    """Return the file that a URL names, if it is pinned to a commit.

    Example:
        >>> parse_file("hf://datasets/acme/web@main/part.jsonl") is None
        True
        >>> parse_file(f"hf://datasets/acme/web@{40 * 'a'}/data/part.jsonl").path
        'data/part.jsonl'
    """
    found = _PINNED.fullmatch(url) if url.startswith(PREFIX) else None
    return HubFile(*found.groups()) if found and _is_inside(found[3]) else None


def resolve(dataset: HubDataset) -> tuple[str, str]:
    """Return the full name of a dataset and the commit of its revision.

    Raises:
        InputError: The dataset or revision does not exist, or is not in the cache and the Hub is offline.
        StorageError: Access is denied, or the Hub does not respond.
        MissingExtraError: huggingface_hub is not installed.
    """
    url = _url_of(dataset)
    hub = _library(url)
    if _is_offline(hub):
        return dataset.repository, os.path.basename(_snapshot(hub, dataset))

    def answer() -> tuple[str, str]:
        found = hub.HfApi().dataset_info(
            dataset.repository, revision=dataset.revision, timeout=timeout_seconds(), expand=["sha"]
        )
        return str(found.id), str(found.sha)

    return _asked("read", url, dataset, answer)


def files_below(repository: str, commit: str, directory: str = "") -> list[HubFile]:
    """Return the files of a dataset in a directory and below it, sorted by path; none if it does not exist.

    Their sizes and digests are known after this.
    """
    dataset = HubDataset(repository, commit)
    url = _url_of(dataset)
    hub = _library(url)
    if _is_offline(hub):
        found = list(_cached_files(hub, dataset, directory))
    else:
        found = _asked("list", url, dataset, lambda: list(_listed(hub, dataset, directory)))
    return sorted(found)


def status(file: HubFile) -> HubStatus:
    """Return the size and digest of a file.

    Raises:
        MissingFileError: The file does not exist.
        StorageError: Access is denied, or the Hub does not respond.
    """
    if (known := _statuses.get(file)) is None:
        known = _asked_status(file)
        _remember(_statuses, file, known)
    return known


def is_offline() -> bool:
    """Return whether everything is read from the cache of huggingface_hub: ``HF_HUB_OFFLINE`` is set."""
    return _is_offline(_library(PREFIX))


def remember(file: HubFile, known: HubStatus) -> None:
    """Record the size and digest of a file that are known from elsewhere."""
    _remember(_statuses, file, known)


def read_range(file: HubFile, size_bytes: int, start: int, end: int) -> bytes:
    """Return bytes of a file of a known size; the caller retries.

    Raises:
        TokshardError: The file cannot be read, now or later.
        Exception: The request failed and can be repeated.
    """
    local = _local_copy(file, size_bytes)
    if local is not None:
        descriptor = open_descriptor(local)
        try:
            return read_at(descriptor, end - start, start)
        finally:
            os.close(descriptor)
    hub = _library(file.url)
    if _is_offline(hub):
        raise _not_cached(HubDataset(file.repository, file.commit), file.url)
    return _converted_errors(
        "read", file.url, _dataset_of(file), lambda: _range(hub, file, size_bytes, start, end)
    )


def _range(hub: Any, file: HubFile, size_bytes: int, start: int, end: int) -> bytes:
    # Compressed content would have other offsets.
    wanted = {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
    session, seconds = hub.get_session(), timeout_seconds()
    answer = None
    if (stored_at := _stored_at.get(file)) is not None:
        try:
            answer = session.get(stored_at, headers=wanted, timeout=seconds)
        except Exception:
            _stored_at.pop(file, None)  # the next try asks the Hub
            raise
        if answer.status_code not in {200, 206}:
            _stored_at.pop(file, None)
        if 400 <= answer.status_code < 500:  # the address has expired
            answer = None
    if answer is None:
        name = hub.hf_hub_url(file.repository, file.path, repo_type="dataset", revision=file.commit)
        answer = session.get(name, headers=hub.utils.build_hf_headers() | wanted, timeout=seconds)
        if answer.history and answer.status_code in {206, 200}:
            _remember(_stored_at, file, str(answer.url))
    hub.utils.hf_raise_for_status(answer)
    content: bytes = answer.content
    if answer.status_code == 200:  # the server ignores ranges
        content = content[start:end] if len(content) == size_bytes else b""
    total = str(answer.headers.get("Content-Range", "")).rpartition("/")[2]
    if total.isdigit() and int(total) != size_bytes:
        raise ShortAnswerError(f"the file has {total} bytes instead of {size_bytes}")
    return content


def _asked_status(file: HubFile) -> HubStatus:
    hub = _library(file.url)
    if _is_offline(hub):
        local = _cached_path(file)
        if local is None:
            raise _not_cached(HubDataset(file.repository, file.commit), file.url)
        return _status_of_copy(file, local)

    def answer() -> HubStatus:
        name = hub.hf_hub_url(file.repository, file.path, repo_type="dataset", revision=file.commit)
        found = hub.get_hf_file_metadata(name, timeout=timeout_seconds())
        if found.size is None or found.etag is None:
            raise ShortAnswerError("the Hub does not report the size and the ETag of the file")
        return HubStatus(int(found.size), str(found.etag))

    return _asked("read", file.url, _dataset_of(file), answer)


def _listed(hub: Any, dataset: HubDataset, directory: str) -> Iterator[HubFile]:
    entries = hub.HfApi().list_repo_tree(
        dataset.repository,
        directory or None,
        recursive=True,
        revision=dataset.revision,
        repo_type="dataset",
    )
    try:
        for entry in entries:
            if (size := getattr(entry, "size", None)) is not None and _is_inside(entry.path):
                file = HubFile(dataset.repository, str(dataset.revision), str(entry.path))
                digest = entry.lfs.sha256 if entry.lfs is not None else entry.blob_id
                _remember(_statuses, file, HubStatus(int(size), str(digest)))
                yield file
    except Exception as error:
        if not directory or "EntryNotFoundError" not in _kinds(error):
            raise


def _is_inside(path: str) -> bool:
    # Others must not lead a read of the cache to files outside of it.
    return not {"", ".", ".."}.intersection(path.split("/"))


# The cache of huggingface_hub


def _snapshot(hub: Any, dataset: HubDataset) -> str:
    # The directory of a commit. The README is small; snapshot_download would miss other files that the user
    # has left out on purpose.
    try:
        return str(
            hub.snapshot_download(
                dataset.repository,
                repo_type="dataset",
                revision=dataset.revision,
                local_files_only=True,
                allow_patterns=["README.md"],
            )
        )
    except (OSError, ValueError) as error:
        raise _not_cached(dataset, _url_of(dataset)) from error


def _cached_files(hub: Any, dataset: HubDataset, directory: str) -> Iterator[HubFile]:
    snapshot = _snapshot(hub, dataset)
    found = set()
    for place, _, names in os.walk(os.path.join(snapshot, directory)):
        found |= {os.path.relpath(os.path.join(place, name), snapshot) for name in names}
    for path in _recorded_tree(hub, dataset) | found:
        if path in found or not directory or path.startswith(f"{directory}/"):
            file = HubFile(dataset.repository, str(dataset.revision), path)
            if path in found:
                _remember(_statuses, file, _status_of_copy(file, os.path.join(snapshot, path)))
            yield file


def _recorded_tree(hub: Any, dataset: HubDataset) -> set[str]:
    # Newer versions of huggingface_hub record which files a commit has, whether they were downloaded or not.
    tree = getattr(hub, "get_cached_repo_tree", None)
    try:
        entries = tree(dataset.repository, repo_type="dataset", revision=dataset.revision) if tree else []
    except Exception:  # noqa: BLE001 - no record
        return set()
    return {str(entry.path) for entry in entries}


def _status_of_copy(file: HubFile, path: str) -> HubStatus:
    # A file of a snapshot is a link to a file that is named after its ETag; without links, a plain file.
    try:
        size_bytes = os.stat(path).st_size
    except OSError as error:
        raise _not_cached(HubDataset(file.repository, file.commit), file.url) from error
    name = os.path.basename(os.path.realpath(path))
    return HubStatus(size_bytes, name if _DIGEST.fullmatch(name) else file.commit)


def _local_copy(file: HubFile, size_bytes: int) -> str | None:
    path = _cached_path(file)
    try:
        return path if path is not None and os.stat(path).st_size == size_bytes else None
    except OSError:
        return None


def _cached_path(file: HubFile) -> str | None:
    if (path := _cached.get(file)) is None:
        hub = _library(file.url)
        found = hub.try_to_load_from_cache(
            file.repository, file.path, revision=file.commit, repo_type="dataset"
        )
        if not isinstance(found, str):
            return None
        path = found
        _remember(_cached, file, path)
    return path


def _is_offline(hub: Any) -> bool:
    return bool(hub.constants.HF_HUB_OFFLINE)


def _not_cached(dataset: HubDataset, url: str) -> InputError:
    revision = f" --revision {dataset.revision}" if dataset.revision else ""
    return InputError(
        f"{url} is not in the cache of huggingface_hub, and HF_HUB_OFFLINE is set",
        hint=f"unset HF_HUB_OFFLINE, or run `{_DOWNLOAD.format(dataset.repository)}{revision}` where the Hub "
        "can be reached",
    )


# Requests and their errors


def _library(url: str) -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.utils
    except ImportError as error:
        raise MissingExtraError(f"the URL {url}", "hub") from error
    return huggingface_hub


def _asked(action: str, url: str, dataset: HubDataset, call: Callable[[], Result]) -> Result:
    return retried(action, url, lambda: _converted_errors(action, url, dataset, call))


def _converted_errors(action: str, url: str, dataset: HubDataset, call: Callable[[], Result]) -> Result:
    try:
        return call()
    except Exception as error:
        if (lasting := _lasting(action, url, dataset, error)) is not None:
            raise lasting from error
        raise


def _lasting(action: str, url: str, dataset: HubDataset, error: Exception) -> TokshardError | None:
    # None for errors that are the same for all stores.
    kinds, name = _kinds(error), dataset.repository
    found: TokshardError | None = None
    if "GatedRepoError" in kinds:
        hint = f"accept the conditions on the page of the dataset ({_page(name)}); then {_LOG_IN}"
        found = _denied(
            action, url, f"access to {name} is restricted, and your account is not on its list", hint
        )
    elif "DisabledRepoError" in kinds:
        hint = f"read the page of the dataset ({_page(name)})"
        found = _denied(action, url, f"the dataset {name} is disabled", hint)
    elif kinds & {"RepositoryNotFoundError", "HFValidationError"}:
        found = InputError(
            f"dataset not found on the Hugging Face Hub: {name}",
            hint=f"check the spelling; if the dataset is private, {_LOG_IN}",
        )
    elif "RevisionNotFoundError" in kinds:
        found = InputError(
            f"revision not found: {dataset.revision or MAIN} of {name}",
            hint=f"pass a branch, tag or commit of the dataset, for example {PREFIX}{name}@{MAIN}",
        )
    elif "EntryNotFoundError" in kinds:
        hint = f"look at the files of the dataset: {_page(name)}/tree/{MAIN}"
        found = MissingFileError(f"file not found: {url}", path=url, hint=hint)
    elif _status_code(error) in {401, 403}:
        found = _denied(action, url, "access denied by the Hugging Face Hub", _LOG_IN)
    elif "OfflineModeIsEnabled" in kinds:
        found = _not_cached(dataset, url)
    return found


def _denied(action: str, url: str, reason: str, hint: str) -> StorageError:
    return StorageError(action, url, OSError(errno.EACCES, reason), hint=hint)


def _kinds(error: BaseException) -> set[str]:
    # By name: the modules of the classes differ between versions of huggingface_hub.
    return {kind.__name__ for kind in type(error).__mro__}


def _status_code(error: Exception) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)


def _page(repository: str) -> str:
    import huggingface_hub

    return f"{huggingface_hub.constants.ENDPOINT}/datasets/{repository}"


def _dataset_of(file: HubFile) -> HubDataset:
    return HubDataset(file.repository, file.commit)


def _url_of(dataset: HubDataset) -> str:
    return PREFIX + dataset.repository + (f"@{dataset.revision}" if dataset.revision else "")


def _remember(known: dict[HubFile, Known], file: HubFile, value: Known) -> None:
    if len(known) >= _MOST_KNOWN:
        known.clear()
    known[file] = value
