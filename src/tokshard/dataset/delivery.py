"""Outputs in object stores: built in a local directory, then uploaded, the manifest last.

Object stores have no rename and no locks. So the whole run, with its resume and its lock, happens in a local
*staging* directory. After a failed upload the finished output stays there, and the same command repeats the
upload from the beginning.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tokshard.core.progress import Progress, ProgressUpdate
from tokshard.dataset.manifest import OPTIONAL_NAMES, Manifest, file_of, manifest_path, read_manifest
from tokshard.dataset.outputs import JOB_NAME, LOCK_NAME, WORK_NAME
from tokshard.errors import StorageError, UsageError
from tokshard.storage import paths
from tokshard.storage.files import AtomicFile, remove_if_empty, remove_tree
from tokshard.storage.remote import objects

_STAGING_NAME = "staging"
_BEGUN_NAME = "upload-begun"


@dataclass(frozen=True, slots=True)
class Delivery:
    """Delivery of the output that is staged in ``directory`` to the URL prefix ``url``."""

    url: str
    directory: str

    @property
    def prefix(self) -> str:
        """The local path prefix of the staged output."""
        return os.path.join(self.directory, os.path.basename(self.url))

    def url_of(self, path: str) -> str:
        """Return the URL of a staged file or path prefix."""
        return self.url + path.removeprefix(self.prefix)

    def is_begun(self) -> bool:
        """Return whether an upload from this directory has begun, and may have left objects."""
        return os.path.lexists(os.path.join(self.directory, _BEGUN_NAME))

    def upload(self, prefixes: Sequence[str], progress: Progress) -> None:
        """Upload staged outputs, their manifests last; no reader sees an old index with new tokens.

        Raises:
            StorageError: The store refuses; the hint names the directory of the finished output.
        """
        manifests = {prefix: found for prefix in prefixes if (found := read_manifest(prefix)) is not None}
        files = [file_of(prefix, name) for prefix in manifests for name in manifests[prefix].files.by_name()]
        files += map(manifest_path, manifests)
        documents = max(manifest.counts.documents for manifest in manifests.values())
        tokens = sum(manifest.counts.tokens for manifest in manifests.values())
        progress.start("uploading", sum(map(os.path.getsize, files)))
        with AtomicFile(os.path.join(self.directory, _BEGUN_NAME)):
            pass
        try:
            for prefix, manifest in manifests.items():
                for path in _replaced(prefix, manifest):
                    objects.remove(self.url_of(path))
            done = 0
            for path in files:
                for sent in objects.upload(path, self.url_of(path)):
                    progress.update(ProgressUpdate(done + sent, documents, tokens))
                done += os.path.getsize(path)
        except StorageError as error:
            hint = f"run the same command again to upload the finished output, which is in {self.directory}"
            if error.errno != errno.EIO and error.hint:
                hint = f"{error.hint}; {hint}"
            cause = OSError(error.errno, error.reason)
            raise StorageError(error.action, error.path, cause, hint=hint) from error

    def clear(self, prefixes: Sequence[str]) -> None:
        """Remove the staged files, the manifests first, but neither the lock nor an unfinished run."""
        for prefix in prefixes:
            sidecars = paths.sidecar_directory(prefix)
            others = sorted(os.listdir(sidecars)) if os.path.isdir(sidecars) else []
            files = [manifest_path(prefix), paths.bin_path(prefix), paths.idx_path(prefix)]
            is_unfinished = os.path.lexists(os.path.join(sidecars, WORK_NAME, JOB_NAME))
            kept = {LOCK_NAME, WORK_NAME} if is_unfinished else {LOCK_NAME}
            files += [os.path.join(sidecars, name) for name in others if name not in kept]
            for path in (*files, os.path.join(self.directory, _BEGUN_NAME)):
                if os.path.lexists(path):
                    remove_tree(path)

    def remove_empty(self) -> None:
        """Remove the staging directory if it is empty."""
        remove_if_empty(self.directory)


def _replaced(prefix: str, manifest: Manifest) -> Iterator[str]:
    """Yield the files of an earlier output that are removed before any file is uploaded."""
    yield manifest_path(prefix)
    yield paths.idx_path(prefix)
    listed = manifest.files.by_name()
    yield from (file_of(prefix, name) for name in OPTIONAL_NAMES if name not in listed)


def delivery_to(output: str) -> Delivery | None:
    """Return the delivery of an output, or None for a local path, which is built in place.

    Raises:
        UsageError: The URL is a bucket.
    """
    if not paths.is_remote(output):
        return None
    scheme, _, rest = output.partition("://")
    if "/" not in rest.strip("/"):
        raise UsageError(
            f"--output must be a path prefix in a bucket, got the bucket {output!r}",
            hint=f"pass for example --output {scheme}://{rest.strip('/') or 'bucket'}/data/corpus",
        )
    # Outputs with the same last component have different directories.
    digest = hashlib.sha256(os.fsencode(output)).hexdigest()[:12]
    base = os.path.join(paths.user_cache_directory(), _STAGING_NAME)
    return Delivery(output, os.path.join(base, f"{os.path.basename(output)}-{digest}"))
