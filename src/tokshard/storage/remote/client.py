"""Object stores behind URLs: fsspec file systems and the retry loop.

A store is opened when its first URL is used. Endpoints and credentials come from the same sources as for the
store's own tools (for S3 the ``AWS_...`` variables and files); nothing of them is stored.

Broken connections, timeouts, 5xx responses and throttling are transient: :func:`retried` repeats a call with
growing random pauses, limited in number and time. A missing object, missing permissions and other permanent
errors fail at once. The clients' own retries are disabled: they differ between stores, and none of them
covers the body of a response, which is read after the call.
"""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from tokshard.errors import (
    InputError,
    MissingExtraError,
    MissingFileError,
    StorageError,
    TokshardError,
    UsageError,
    chain_of,
)
from tokshard.storage.paths import scheme_of

RETRIES_VARIABLE = "TOKSHARD_REMOTE_RETRIES"
TIMEOUT_VARIABLE = "TOKSHARD_REMOTE_TIMEOUT"
_DEFAULT_RETRIES = 10
_DEFAULT_TIMEOUT_SECONDS = 30
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 20.0
_PATIENCE_SECONDS = 300.0
_DETAIL_CHARACTERS = 300

_PASSING_STATUSES = frozenset({408, 425, 429})
_DENIED_STATUSES = frozenset({401, 403})
_MISSING_STATUSES = frozenset({404, 410})
_PASSING_CODES = frozenset({"BadDigest", "IncompleteBody", "RequestTimeout", "XAmzContentSHA256Mismatch"})
_LASTING_ERRNOS = frozenset(
    {errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.ENOSPC}
)
# The libraries below fsspec's file systems; their errors without a status are connection errors.
_NETWORK_PACKAGES = frozenset(
    {
        "aiobotocore",
        "aiohttp",
        "azure",
        "botocore",
        "google",
        "httpcore",
        "httpcore2",
        "httpx",
        "httpx2",
        "requests",
        "urllib3",
    }
)
_NO_CREDENTIALS = frozenset(
    {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "TokenRetrievalError"}
)

_CONNECTIONS = 64
# The packages that implement a scheme, if fsspec alone does not.
_PACKAGES = {
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "az": "adlfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "adl": "adlfs",
    "hf": "huggingface_hub",
    "oci": "ocifs",
    "oss": "ossfs",
    "http": "aiohttp",
    "https": "aiohttp",
}
# Hints for schemes of other programs.
_HINTS = {
    "msc": "msc:// is a profile of the Multi-Storage Client: pass the URL of the object in its "
    "store, such as s3://",
}
# A fork must never drop the stores that it inherits: it would close their connections, and so take them
# out of the event loop that it shares with its parent, which would then wait for answers in vain.
_kept: dict[int, Any] = {}

Result = TypeVar("Result")


class Place(NamedTuple):
    """The location of an object.

    Attributes:
        store: The fsspec file system. Never store it: a forked process needs its own.
    """

    store: Any
    path: str


def is_s3(store: Any) -> bool:
    """Return whether a file system is s3fs."""
    return hasattr(store, "call_s3") and hasattr(store, "split_path")


def locate(url: str) -> Place:
    """Return the location of a URL, opening its store unless this process already has it open.

    Raises:
        MissingExtraError: fsspec or s3fs is not installed.
        UsageError: The scheme is unknown, or needs another package.
    """
    scheme = (scheme_of(url) or "").rpartition("::")[2]
    try:
        import fsspec.core
    except ImportError as error:
        raise MissingExtraError(f"the URL {url}", "remote") from error
    try:
        store, path = fsspec.core.url_to_fs(url, **_options(scheme))
    except ImportError as error:
        raise _missing_package(url, scheme, error) from error
    except ValueError as error:
        if "not known" not in str(error):
            raise UsageError(f"invalid URL {url}: {error}") from error
        raise UsageError(
            f"cannot open {url}: unknown URL scheme {scheme}://",
            hint=_HINTS.get(
                scheme,
                "use s3://, gs://, az://, hf:// or another fsspec scheme; see docs/how-to/object-stores.md",
            ),
        ) from error
    if is_s3(store):
        store.retries = 1  # retried() repeats requests
    _kept[id(store)] = store
    return Place(store, str(path))


def _options(scheme: str) -> dict[str, Any]:
    if scheme not in {"s3", "s3a"}:
        return {}
    seconds = timeout_seconds()
    return {
        "use_listings_cache": False,
        "config_kwargs": {
            "connect_timeout": seconds,
            "read_timeout": seconds,
            "max_pool_connections": _CONNECTIONS,
            "retries": {"mode": "standard", "total_max_attempts": 1},
        },
    }


def _missing_package(url: str, scheme: str, error: ImportError) -> UsageError:
    if scheme in {"s3", "s3a"}:
        return MissingExtraError(f"the URL {url}", "remote")
    if (package := _PACKAGES.get(scheme)) is not None:
        return UsageError(
            f"the URL {url} requires the package {package}, which is not installed",
            hint=f"pip install {package}",
        )
    return UsageError(f"the URL {url} requires a package that is not installed: {error}")


class ShortAnswerError(Exception):
    """A store returned fewer bytes than requested; the request can be retried."""


def setting(variable: str, default: int) -> int:
    """Return an integer from the environment.

    Raises:
        UsageError: The variable is not an integer.
    """
    text = os.environ.get(variable, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit():
        raise UsageError(f"{variable} must be an integer, got {text!r}")
    return int(text)


def timeout_seconds() -> int:
    """Return the timeout of requests in seconds: ``TOKSHARD_REMOTE_TIMEOUT``, or 30."""
    return max(1, setting(TIMEOUT_VARIABLE, _DEFAULT_TIMEOUT_SECONDS))


def retried(action: str, url: str, call: Callable[[], Result]) -> Result:
    """Return the result of ``call``, retrying transient failures.

    ``action`` is a verb for errors: ``"read"``, ``"write"``, ``"list"``, ``"remove"``. ``call`` makes one
    request, or several that can be repeated together.

    Raises:
        MissingFileError: The object does not exist.
        InputError: The bucket does not exist.
        StorageError: The store refuses, or failed more often than ``TOKSHARD_REMOTE_RETRIES`` (10) allows,
            or for five minutes.
    """
    retries = setting(RETRIES_VARIABLE, _DEFAULT_RETRIES)
    deadline = time.monotonic() + _PATIENCE_SECONDS
    failures = 0
    while True:
        try:
            return call()
        except TokshardError:
            raise
        except Exception as error:
            failures += 1
            if (lasting := _lasting(action, url, error)) is not None:
                raise lasting from error
            if failures > retries or time.monotonic() > deadline:
                raise _gave_up(action, url, error, failures) from error
        longest = min(_LONGEST_PAUSE_SECONDS, _FIRST_PAUSE_SECONDS * 2 ** min(failures - 1, 16))
        time.sleep(random.uniform(longest / 2, longest))  # noqa: S311 - spreads clients, guards nothing


def _gave_up(action: str, url: str, error: BaseException, failures: int) -> StorageError:
    times = "once" if failures == 1 else f"{failures} times"
    return StorageError(
        action,
        url,
        OSError(errno.EIO, f"failed {times}, most recently with: {_text(error)}"),
        hint=f"run the same command again, or set {RETRIES_VARIABLE} to allow more retries",
    )


def _lasting(action: str, url: str, error: Exception) -> TokshardError | None:
    # None if the call can be retried.
    status, code = _answer(error)
    if code in _PASSING_CODES:
        return None
    if type(error).__name__ == "OfflineModeIsEnabled":  # of huggingface_hub
        return InputError(f"cannot {action} {url}: HF_HUB_OFFLINE is set", hint="unset HF_HUB_OFFLINE")
    if isinstance(error, FileNotFoundError) or status in _MISSING_STATUSES:
        return _missing(url, code)
    is_denied = isinstance(error, PermissionError) or status in _DENIED_STATUSES
    if is_denied or type(error).__name__ in _NO_CREDENTIALS:
        return _denied(action, url, f"access denied ({_text(error)})" if is_denied else _text(error))
    if _may_pass(error, status):
        return None
    kind = error.errno if isinstance(error, OSError) and error.errno else errno.EIO
    return StorageError(action, url, OSError(kind, _text(error)))


def _missing(url: str, code: str) -> InputError:
    if code == "NoSuchBucket":
        # Not a MissingFileError, which would mean an object that could be written.
        return InputError(f"bucket not found: {url}", hint="check the name of the bucket, or create it")
    return MissingFileError(
        f"object not found: {url}", path=url, hint="check the spelling, and that the credentials may list it"
    )


def _denied(action: str, url: str, reason: str) -> StorageError:
    scheme = url.partition("://")[0]
    hint = f"log in with the store's own tools; see fsspec's documentation of {scheme}://"
    if scheme in {"s3", "s3a"}:
        hint = (
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_PROFILE), and AWS_ENDPOINT_URL for "
            "a store other than Amazon's; for a public bucket set FSSPEC_S3_ANON=true"
        )
    return StorageError(action, url, OSError(errno.EACCES, reason), hint=hint)


def _may_pass(error: Exception, status: int | None) -> bool:
    if status is not None:
        return status >= 500 or status in _PASSING_STATUSES
    if isinstance(error, ShortAnswerError | TimeoutError | ConnectionError | EOFError):
        return True
    if isinstance(error, OSError):
        return error.errno not in _LASTING_ERRNOS
    if isinstance(error, ValueError) or type(error).__name__ == "ParamValidationError":
        return False
    return type(error).__module__.partition(".")[0] in _NETWORK_PACKAGES


def _answer(error: Exception) -> tuple[int | None, str]:
    for cause in chain_of(error):
        response = getattr(cause, "response", None)
        if isinstance(response, dict) and "Error" in response:
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            return status, str(response["Error"].get("Code", ""))
    # Only of the error itself: its cause may have a number with another meaning.
    response = getattr(error, "response", None)
    found = [getattr(error, name, None) for name in ("status", "status_code", "code")]
    found.append(getattr(response, "status_code", None))
    return next((code for code in found if type(code) is int and 400 <= code < 600), None), ""


def _text(error: BaseException) -> str:
    words = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(words).split())[:_DETAIL_CHARACTERS]
