"""The stores behind URLs: fsspec's file systems, opened only when a URL is named.

Endpoints and credentials come from where each store's own tools take them (for S3 the ``AWS_...``
variables and files); nothing of that is kept here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tokshard.errors import MissingExtraError, UsageError
from tokshard.storage.paths import scheme_of
from tokshard.storage.remote.retry import timeout_seconds

_CONNECTIONS = 64
# What brings a scheme, where fsspec alone does not.
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
# What is said of schemes that other programs know.
_HINTS = {
    "msc": "msc:// names a profile of Megatron's multi-storage client: name the object by the URL of its "
    "store, such as s3://",
}
# A fork must never let go of the stores that it inherits: it would close their connections, and so take them
# out of the event loop that it shares with its parent, which would then wait for answers in vain.
_kept: dict[int, Any] = {}


class Place(NamedTuple):
    """Where an object is.

    Attributes:
        store: fsspec's file system. Never keep one: a forked process must ask for its own.
        path: The object's path in it.
    """

    store: Any
    path: str


def is_s3(store: Any) -> bool:
    """Tell whether a file system speaks the protocol of S3 through s3fs."""
    return hasattr(store, "call_s3") and hasattr(store, "split_path")


def locate(url: str) -> Place:
    """Open the store of a URL, or take the one that this process has open already.

    Raises:
        MissingExtraError: fsspec or s3fs is not installed.
        UsageError: The scheme is unknown, or needs another package.
    """
    scheme = (scheme_of(url) or "").rpartition("::")[2]
    try:
        import fsspec.core
    except ImportError as error:
        raise MissingExtraError(f"The URL {url}", "remote") from error
    try:
        store, path = fsspec.core.url_to_fs(url, **_options(scheme))
    except ImportError as error:
        raise _missing_package(url, scheme, error) from error
    except ValueError as error:
        if "not known" not in str(error):
            raise UsageError(f"{url} cannot be meant: {error}") from error
        raise UsageError(
            f"{url}: nothing is known of {scheme}://",
            hint=_HINTS.get(
                scheme, "stores are named s3://, gs://, az://, hf:// and so on; see docs/remote.md"
            ),
        ) from error
    if is_s3(store):
        store.retries = 1  # one loop repeats requests, see tokshard.storage.remote.retry
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
        return MissingExtraError(f"The URL {url}", "remote")
    if (package := _PACKAGES.get(scheme)) is not None:
        return UsageError(
            f"The URL {url} needs the package '{package}', which is not installed",
            hint=f"pip install {package}",
        )
    return UsageError(f"The URL {url} needs a package that is not installed: {error}")
