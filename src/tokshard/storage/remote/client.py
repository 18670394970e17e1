"""Object stores behind URLs: fsspec file systems, their errors, and the retry loop.

Endpoints and credentials come from the same sources as for the store's own tools. The clients' own retries of
reads are disabled: none of them covers the body of a response, which is read after the call.
"""

from __future__ import annotations

import errno
import math
import os
import random
import time
from collections.abc import Callable
from typing import Any, TypeVar

from tokshard import errors
from tokshard.core.background import call_interruptibly
from tokshard.errors import InputError, StorageError, TokshardError, UsageError
from tokshard.storage.paths import scheme_of

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 20.0
_PATIENCE_SECONDS = 300.0
_S3 = frozenset({"s3", "s3a"})
# NoSuchUpload: the store has forgotten a multipart upload, or its answer to the last request was lost.
_PASSING_CODES = {
    "BadDigest",
    "IncompleteBody",
    "NoSuchUpload",
    "RequestTimeout",
    "XAmzContentSHA256Mismatch",
}
_LASTING_ERRNOS = {errno.EINVAL, errno.ENOSYS, errno.EISDIR, errno.ENOTDIR, errno.ENOSPC}
_NO_CREDENTIALS = {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "TokenRetrievalError"}
_DENIED_HINT = "log in with the store's own tools; see fsspec's documentation of {}://"
_DENIED_S3_HINT = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_PROFILE), and AWS_ENDPOINT_URL for a store "
    "other than Amazon's; for a public bucket set FSSPEC_S3_ANON=true"
)
_SCHEME_HINT = "use s3://, gs://, az://, hf:// or another fsspec scheme; see docs/how-to/object-stores.md"
_MSC_HINT = (
    "msc:// is a profile of the Multi-Storage Client: pass the URL of the object in its store, such as s3://"
)
# A fork must never drop the stores that it inherits: it would close their connections, and so take them
# out of the event loop that it shares with its parent, which would then wait for answers in vain.
_kept: dict[int, Any] = {}

Result = TypeVar("Result")


class ShortAnswerError(Exception):
    """A store returned fewer bytes than requested; the request can be retried."""


def locate(url: str, *, attempts: int = 1) -> tuple[Any, str]:
    """Return the fsspec file system of a URL, which a fork must not inherit, and the path in it.

    ``attempts``: how often an S3 client sends each request.

    Raises:
        UsageError: The scheme is unknown, or a package is not installed.
    """
    scheme = (scheme_of(url) or "").rpartition("::")[2]
    seconds = timeout_seconds()
    retries = {"mode": "standard", "total_max_attempts": attempts}
    client = {
        "connect_timeout": seconds,
        "read_timeout": seconds,
        "max_pool_connections": 64,
        "retries": retries,
    }
    options = {"use_listings_cache": False, "config_kwargs": client} if scheme in _S3 else {}
    try:
        import fsspec.core

        store, path = fsspec.core.url_to_fs(url, **options)
    except ImportError as error:
        if scheme in _S3:
            raise errors.MissingExtraError(f"the URL {url}", "remote") from error
        package = getattr(error.__cause__ or error, "name", None) or str(error)
        message = f"the URL {url} requires the package {package}, which is not installed"
        raise UsageError(message, hint=f"pip install {package}") from error
    except ValueError as error:
        if "not known" not in str(error):
            raise UsageError(f"invalid URL {url}: {error}") from error
        hint = _MSC_HINT if scheme == "msc" else _SCHEME_HINT
        raise UsageError(f"cannot open {url}: unknown URL scheme {scheme}://", hint=hint) from error
    if scheme in _S3:
        store.retries = 1
    _kept[id(store)] = store
    return store, str(path)


def timeout_seconds() -> int:
    """Return the timeout of requests in seconds: ``TOKSHARD_REMOTE_TIMEOUT``, or 30."""
    return max(1, _setting("TOKSHARD_REMOTE_TIMEOUT", "30"))


def allowed_retries() -> int:
    """Return the number of retries of a request: ``TOKSHARD_REMOTE_RETRIES``, or 10."""
    return _setting("TOKSHARD_REMOTE_RETRIES", "10")


def _setting(variable: str, default: str) -> int:
    text = os.environ.get(variable) or default
    if not text.isascii() or not text.isdigit():
        raise UsageError(f"{variable} must be an integer, got {text!r}")
    return int(text)


def retried(action: str, url: str, call: Callable[[], Result]) -> Result:
    """Return the result of ``call``, which is repeated after failures that may pass.

    Broken connections, timeouts, 5xx responses and throttling may pass. ``action`` is a verb for errors.

    Raises:
        MissingFileError: The object does not exist.
        InputError: The bucket does not exist.
        StorageError: The store refuses, or failed too often, or five minutes after the first failure.
    """
    retries = allowed_retries()

    def repeated() -> Result:
        failures, pause = 0, _FIRST_PAUSE_SECONDS
        deadline = math.inf  # set by the first failure: an upload may take hours
        while True:
            try:
                return call()
            except TokshardError:
                raise
            except Exception as error:
                failures += 1
                deadline = min(deadline, time.monotonic() + _PATIENCE_SECONDS)
                if (lasting := _lasting(action, url, error)) is not None:
                    raise lasting from error
                if failures > retries or time.monotonic() > deadline:
                    times = "once" if failures == 1 else f"{failures} times"
                    cause = OSError(errno.EIO, f"failed {times}, most recently with: {_text(error)}")
                    hint = "run the same command again, or set TOKSHARD_REMOTE_RETRIES to allow more retries"
                    raise StorageError(action, url, cause, hint=hint) from error
            time.sleep(random.uniform(pause / 2, pause))  # noqa: S311 - spreads clients, guards nothing
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)

    return call_interruptibly(repeated)


def _lasting(action: str, url: str, error: Exception) -> TokshardError | None:
    """Return the error of a failure that lasts, or None."""
    (status, code) = answer_of(error)
    name = type(error).__name__
    text = _text(error)
    if name == "OfflineModeIsEnabled":  # of huggingface_hub
        return InputError(f"cannot {action} {url}: HF_HUB_OFFLINE is set", hint="unset HF_HUB_OFFLINE")
    if code == "NoSuchBucket":
        # Not a MissingFileError, which would mean an object that could be written.
        return InputError(f"bucket not found: {url}", hint="check the name of the bucket, or create it")
    if code in _PASSING_CODES:
        return None
    if isinstance(error, FileNotFoundError) or status in {404, 410}:
        hint = "check the spelling, and that the credentials may list it"
        return errors.MissingFileError(f"object not found: {url}", path=url, hint=hint)
    is_denied = isinstance(error, PermissionError) or status in {401, 403}
    if is_denied or name in _NO_CREDENTIALS:
        hint = _DENIED_S3_HINT if scheme_of(url) in _S3 else _DENIED_HINT.format(scheme_of(url))
        reason = f"access denied ({text})" if is_denied else text
        return StorageError(action, url, OSError(errno.EACCES, reason), hint=hint)
    if status is not None:
        may_pass = status >= 500 or status in {408, 425, 429}
    elif isinstance(error, OSError):
        may_pass = error.errno not in _LASTING_ERRNOS
    elif isinstance(error, ShortAnswerError | EOFError):
        may_pass = True
    else:  # Python's own errors are mistakes; the libraries below fsspec have their own ones for connections
        is_own = type(error).__module__ == "builtins"
        may_pass = not is_own and not isinstance(error, ValueError) and name != "ParamValidationError"
    kind = getattr(error, "errno", None) or errno.EIO
    return None if may_pass else StorageError(action, url, OSError(kind, text))


def answer_of(error: Exception) -> tuple[int | None, str]:
    """Return the HTTP status and the S3 code of the answer behind an error."""
    for cause in errors.chain_of(error):
        response = getattr(cause, "response", None)
        if isinstance(response, dict) and "Error" in response:
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            return status, str(response["Error"].get("Code", ""))
    # Only of the error itself: its cause may have a number with another meaning.
    answers = (error, getattr(error, "response", None))
    numbers = [getattr(each, name, None) for each in answers for name in ("status", "status_code", "code")]
    return next((number for number in numbers if type(number) is int and 400 <= number < 600), None), ""


def _text(error: BaseException) -> str:
    words = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(str(words).split())[:300]
