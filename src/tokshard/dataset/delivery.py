"""Outputs in object stores: built in a local directory, then uploaded, the manifest last.

Object stores have no rename and no locks. So the whole run, with its resume and its lock, happens in a local
*staging* directory; then the finished files are uploaded, and after all of them are complete, the manifest.
A journal in the staging directory records the uploads: the same command resumes an interrupted upload.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass

from tokshard.core.progress import Progress
from tokshard.dataset.manifest import (
    Manifest,
    file_of,
    manifest_path,
)
from tokshard.errors import StorageError, UsageError
from tokshard.storage import paths, syscalls
from tokshard.storage.files import remove_tree
from tokshard.storage.paths import is_remote
from tokshard.storage.remote import objects
from tokshard.storage.remote.upload import upload_file

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

    def upload(self, prefixes: Sequence[str], manifests: Sequence[Manifest], progress: Progress) -> None:
        """Upload the staged files: what would be seen with new files is removed first, manifests are last."""
        for prefix in prefixes:
            for path in (manifest_path(prefix), paths.idx_path(prefix)):
                if objects.exists(url := self.url_of(path)):
                    objects.remove(url)
        progress.start("uploading")
        for prefix, manifest in zip(prefixes, manifests, strict=True):
            for name in manifest.files.by_name():
                upload_file(file_of(prefix, name), self.url_of(file_of(prefix, name)))
        for prefix in prefixes:
            upload_file(manifest_path(prefix), self.url_of(manifest_path(prefix)))

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
