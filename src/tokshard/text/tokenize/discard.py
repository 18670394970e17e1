"""Removal of the unfinished work of an output."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from tokshard.core.codec import Count, Document
from tokshard.core.formatting import counted, size
from tokshard.core.presentation import Section
from tokshard.dataset.delivery import delivery_to
from tokshard.dataset.workdir import is_sealed
from tokshard.errors import IntegrityError, OutputExistsError
from tokshard.storage.files import tree_bytes
from tokshard.storage.lock import lock_mode
from tokshard.text.tokenize.job import Workspace, locked_outputs
from tokshard.text.tokenize.options import TokenizeOptions


@dataclass(frozen=True, slots=True)
class DiscardedWork(Document):
    """The result of :func:`discard_work`."""

    SCHEMA = "tokshard.discarded-work/2"

    removed: tuple[str, ...]
    units: Count
    size_bytes: Count

    def sections(self) -> list[Section]:
        """Return what was removed for people."""
        if not self.removed:
            return [Section("", ["nothing to remove: no unfinished work"])]
        work = f"{counted(self.units, 'finished unit')} ({size(self.size_bytes)}) removed"
        return [Section("", [*(f"removed: {path}" for path in self.removed), work])]


def discard_work(options: TokenizeOptions) -> DiscardedWork:
    """Remove the unfinished work of an output, of all inputs and options; a finished output stays.

    An output that is completely staged is published first. With a URL as the output, a dataset that
    waits to be uploaded is removed, too, unless ``keep_local`` is set.

    Args:
        options: The options of the run; what counts is the output, and ``local_dir`` with a URL.

    Raises:
        LockedError: Another process writes this output.
        StorageError: A file cannot be removed.
    """
    delivery = delivery_to(options.prefix, local_dir=options.local_dir, keep=options.keep_local)
    prefix = options.prefix if delivery is None else delivery.prefix
    work = Workspace(prefix)
    if not work.has_leftovers() and not (delivery is not None and delivery.has_leftovers()):
        return DiscardedWork((), 0, 0)
    prefixes = options.output_prefixes(prefix)
    with lock_mode(options.lock), locked_outputs(prefix, prefixes, delivery):
        work.sweep()
        if is_sealed(work.directory) and not work.is_half_removed():
            with suppress(IntegrityError, OutputExistsError):
                work.publish(held=prefixes, force=options.force)
                work.remove()
        directories = work.directories()
        found = DiscardedWork(
            tuple(directories),
            sum(map(work.count_units, directories)),
            sum(map(tree_bytes, directories)),
        )
        work.remove()
        if delivery is not None:
            delivery.clear(prefixes)
    return found
