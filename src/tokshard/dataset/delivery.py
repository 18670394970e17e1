"""Outputs in stores: made in a local directory, then uploaded, the manifest last.

A store has no rename and no locks. So the whole run, with its resume and its lock, happens in a *staging*
directory; then the finished files go up, and when all are there with their sizes, the manifest does. A
journal in the staging directory tells what has been uploaded: an interrupted upload is gone on with by
the same command.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tokshard.core.progress import Progress, ProgressUpdate
from tokshard.dataset.manifest import (
    PROVENANCE_NAME,
    REJECTED_NAME,
    Manifest,
    file_of,
    manifest_path,
)
from tokshard.dataset.production import Order, Produced, produce
from tokshard.dataset.uploadjournal import UploadJournal
from tokshard.dataset.workdir import WorkDirectory
from tokshard.errors import (
    OutputExistsError,
    ResumeMismatchError,
    StorageError,
    UsageError,
)
from tokshard.storage import paths, syscalls
from tokshard.storage.files import remove_tree
from tokshard.storage.paths import is_remote
from tokshard.storage.remote import objects

JOURNAL_NAME = "delivery.jsonl"
_STAGING_NAME = "staging"


@dataclass(frozen=True, slots=True)
class Delivery:
    """Where an output in a store is made, and where it goes.

    Attributes:
        url: The output prefix as the user named it.
        directory: The staging directory of this URL.
        keep: Whether the staged files stay after the upload.
    """

    url: str
    directory: str
    keep: bool

    @property
    def prefix(self) -> str:
        """The local path prefix of the staged output."""
        return os.path.join(self.directory, os.path.basename(self.url))

    def url_of(self, path: str) -> str:
        """Return where a staged file, or a path prefix of such, goes."""
        return self.url + path.removeprefix(self.prefix)

    def remove_empty(self) -> None:
        """Remove the staging directory if nothing is left in it."""
        try:
            syscalls.remove_directory(self.directory)
        except StorageError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                raise


def delivery_to(output: str, *, staging: str | None, keep: bool) -> Delivery | None:
    """Return how an output reaches its place; None for a path, where it is made in place.

    Args:
        output: The output prefix: a path or a URL.
        staging: Where to make outputs for stores; by default in the user's cache directory.
        keep: Whether the staged files stay.

    Raises:
        UsageError: The URL names no objects in a bucket, or staging is asked for without a URL.
    """
    if not is_remote(output):
        if staging is not None or keep:
            raise UsageError("--staging and --keep-staging have a meaning only with an --output in a store")
        return None
    scheme, _, rest = output.partition("://")
    if "/" not in rest.strip("/"):
        raise UsageError(
            f"--output {output!r} names a bucket, and no objects in it",
            hint=f"for example --output {scheme}://{rest.strip('/') or 'bucket'}/data/corpus",
        )
    # Two outputs with one last name may use one staging directory.
    digest = hashlib.sha256(os.fsencode(output)).hexdigest()[:12]
    base = staging or os.path.join(paths.user_cache_directory(), _STAGING_NAME)
    return Delivery(output, os.path.join(base, f"{os.path.basename(output)}-{digest}"), keep)


def finished(delivery: Delivery | None, order: Order) -> list[Manifest] | None:
    """Return the outputs' manifests if all are at their place, made by an equal plan.

    See :meth:`~tokshard.dataset.production.Order.finished`. What still lies staged is left to
    :func:`produce_and_deliver`: then this says None as well.
    """
    if delivery is None:
        return order.finished()
    if os.path.lexists(delivery.directory) and not delivery.keep:
        return None
    return _there(delivery, order).finished()


def state(delivery: Delivery | None, order: Order, work: WorkDirectory) -> str:
    """Return what a run would begin with, for a dry run; see :meth:`Order.state`."""
    if delivery is None:
        return order.state(work)
    if _there(delivery, order).finished() is not None:
        return "up-to-date"
    if work.earlier_plan() is not None or replace(order, force=False).finished() is not None:
        return "resume"
    return "exists" if _there(delivery, order).existing() else "new"


def produce_and_deliver(
    delivery: Delivery | None,
    order: Order,
    work: WorkDirectory,
    make: Callable[[], int],
    progress: Progress,
) -> Produced:
    """Make the outputs of an order, and upload them where they belong into a store.

    Args:
        delivery: Where they go; None to leave them where they are made.
        order: What is wanted; its prefixes are local ones.
        work: The work directory, whose lock is held.
        make: See :func:`~tokshard.dataset.production.produce`.
        progress: Who is told of the upload.

    Raises:
        OutputExistsError: The output is there already, and was not made by an equal plan.
        ResumeMismatchError: An unfinished run, or one not yet uploaded, was started with another plan.
        StorageError: The store or the disk refuses. All finished work is kept.
    """
    if delivery is None:
        return produce(order, work, make)
    if (there := _there(delivery, order).finished()) is not None:
        _clear(delivery, order)
        return Produced(there, up_to_date=True)
    journal = UploadJournal(os.path.join(work.sidecars, JOURNAL_NAME), order.plan.fingerprint)
    try:
        if not order.force and not journal.is_resumed:
            _refuse_existing(delivery, order)
        produced = produce(_staging_order(delivery, order, work), work, make)
        progress.message(f"uploading {delivery.prefix} to {delivery.url}")
        _upload(delivery, order, produced.manifests, journal, progress)
    except StorageError as error:
        if is_remote(error.path):
            raise _kept(delivery, error) from error
        raise
    finally:
        journal.close()
    _clear(delivery, order)
    return Produced(produced.manifests, produced.resumed)


def _there(delivery: Delivery, order: Order) -> Order:
    """Return the same order for the places where its outputs go."""
    return replace(order, prefixes=tuple(delivery.url_of(prefix) for prefix in order.prefixes))


def _refuse_existing(delivery: Delivery, order: Order) -> None:
    if existing := _there(delivery, order).existing():
        raise OutputExistsError(
            f"{existing[0]} exists already, and was not made from these inputs with these options",
            hint="choose another --output, or replace it with --force",
        )


def _staging_order(delivery: Delivery, order: Order, work: WorkDirectory) -> Order:
    """Return the order for the staging directory: what waits there to be uploaded is not made again."""
    staged = replace(order, force=False)
    if os.path.lexists(work.directory):
        return order
    if order.resume and staged.finished() is not None:
        return staged
    if not order.force and staged.existing():
        raise ResumeMismatchError(
            f"a dataset for {delivery.url} that was made differently waits in {delivery.directory} to be "
            "uploaded",
            hint="upload it by the command that made it, or replace it with --force",
        )
    return order


def _upload(
    delivery: Delivery,
    order: Order,
    manifests: Sequence[Manifest],
    journal: UploadJournal,
    progress: Progress,
) -> None:
    outputs = list(zip(order.prefixes, manifests, strict=True))
    if not order.force and not journal.is_resumed:
        _refuse_existing(delivery, order)  # a run takes its time
    journal.begin()
    for prefix, manifest in outputs:
        _withdraw(delivery, prefix, manifest)
    files = [file_of(prefix, name) for prefix, manifest in outputs for name in manifest.files.by_name()]
    meter = _Meter(progress, sum(os.path.getsize(path) for path in files), manifests)
    try:
        for path in files:
            journal.send(path, delivery.url_of(path), meter.sent)
        for prefix, _ in outputs:
            objects.upload(manifest_path(prefix), delivery.url_of(manifest_path(prefix)))
    finally:
        progress.finish()


def _withdraw(delivery: Delivery, prefix: str, manifest: Manifest) -> None:
    """Remove the manifest that is there, and after it what the new output does not have."""
    names = [name for name in (PROVENANCE_NAME, REJECTED_NAME) if name not in manifest.files.by_name()]
    for path in (manifest_path(prefix), *(file_of(prefix, name) for name in names)):
        if objects.exists(url := delivery.url_of(path)):
            objects.remove(url)


def _clear(delivery: Delivery, order: Order) -> None:
    """Remove the staged files, the manifests first; the lock goes with who holds it."""
    if delivery.keep:
        return
    for prefix in order.prefixes:
        sidecars = paths.sidecar_directory(prefix)
        others = sorted(os.listdir(sidecars)) if os.path.isdir(sidecars) else []
        files = [manifest_path(prefix), paths.bin_path(prefix), paths.idx_path(prefix)]
        for path in (*files, *(os.path.join(sidecars, name) for name in others if name != "lock")):
            if os.path.lexists(path):
                remove_tree(path)


def _kept(delivery: Delivery, error: StorageError) -> StorageError:
    """Return the error of a store, with what is kept where."""
    hint = f"all finished work is kept in {delivery.directory}: run the same command again to go on"
    if error.errno != errno.EIO and error.hint:
        hint = f"{error.hint}; {hint}"
    return StorageError(error.action, error.path, OSError(error.errno, error.reason), hint=hint)


class _Meter:
    """Tells how much has been sent."""

    def __init__(self, progress: Progress, total: int, manifests: Sequence[Manifest]) -> None:
        self._progress = progress
        self._documents = manifests[0].dataset.documents
        self._tokens = sum(one.dataset.tokens for one in manifests)
        self._bytes = 0
        progress.start(total, 0)

    def sent(self, count: int) -> None:
        self._bytes += count
        self._progress.update(ProgressUpdate(self._bytes, self._documents, self._tokens))
