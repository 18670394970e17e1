"""An entry of a cache brought about: found, verified, or built, by one process at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal

from tokshard.errors import IntegrityError, LockedError, OutputExistsError, StorageError
from tokshard.index_cache.cache import Arrays, CacheEntry, CacheState, Specs, examine
from tokshard.index_cache.npy import Blocks, digests_of, write_blocks
from tokshard.index_cache.sidecar import Origin, Sidecar
from tokshard.storage import syscalls
from tokshard.storage.digest import file_digest
from tokshard.storage.files import is_temporary, write_atomically
from tokshard.storage.lock import WriterLock

LOCK_WAIT_SECONDS = 3600.0
_POLL_SECONDS = 0.05

Action = Literal["found", "verified", "built", "rebuilt"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """An entry that is wanted.

    Attributes:
        entry: Its files.
        specs: The dtypes and shapes of its arrays.
        origin: What it is made from.
        name: What it is, for messages: ``"the train index of data/web"``.
    """

    entry: CacheEntry
    specs: Specs
    origin: Origin
    name: str

    def examine(self, *, digests: bool = False) -> CacheState:
        """Tell the state of the entry; see :func:`tokshard.index_cache.cache.examine`."""
        return examine(self.entry, self.specs, self.origin, digests=digests)

    @property
    def file_bytes(self) -> int:
        """The bytes of all arrays on disk."""
        return sum(spec.file_bytes for spec in self.specs.values())

    def refuse(self, found: CacheState) -> None:
        """Refuse what must not be replaced without being asked.

        Raises:
            OutputExistsError: The entry is stale.
            IntegrityError: It is damaged.
        """
        hint = f"--rebuild replaces it; or remove {self.entry.description_path}"
        message = f"{self.name} in {self.entry.directory} ({self.entry.hash}) {found.reason}"
        if found.state == "stale":
            raise OutputExistsError(message, hint=hint)
        if found.state == "damaged":
            raise IntegrityError(message, path=self.entry.description_path, hint=hint)


def provide(
    wanted: Wanted,
    make: Callable[[], Arrays | Blocks],
    *,
    rebuild: bool = False,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    pause: Callable[[float], object] = time.sleep,
    tell: Callable[[int], None] = lambda _: None,
) -> Action:
    """See to it that an entry is fresh, and say what was done.

    A fresh entry is found, a missing one is built. Megatron's own is built in memory and compared: if
    equal it gets our sidecar, if not it counts as damaged. What is stale or damaged is replaced only if
    ``rebuild`` is given. Two processes that want the same entry do not disturb each other: the second
    waits, and finds what the first has made.

    Args:
        wanted: The entry.
        make: Builds its arrays, in the dtypes and shapes of ``wanted``, or says how to make them in pieces.
        rebuild: Whether to replace whatever is not fresh, which is then told by the digests, too.
        wait_seconds: How long to wait for another process.
        pause: See :func:`locked`.
        tell: Called with the bytes of each piece that is done.

    Raises:
        OutputExistsError: The entry is stale.
        IntegrityError: It is damaged, or Megatron's own and not what it should be.
        LockedError: Another process was not done in time.
        StorageError: The disk is full or broken. Nothing is half there then.
    """
    if wanted.examine(digests=rebuild).state == "fresh":
        sweep(wanted.entry)
        return "found"
    with locked(wanted.entry, wait_seconds=wait_seconds, pause=pause):
        before = wanted.examine(digests=rebuild)
        if before.state == "fresh":
            tell(wanted.file_bytes)
            return "found"
        if not rebuild:
            wanted.refuse(before)
        arrays = make()
        if before.state == "foreign" and not rebuild:
            if adopt(wanted.entry, arrays, wanted.origin):
                tell(wanted.file_bytes)
                return "verified"
            wanted.refuse(CacheState("damaged", "was not made by tokshard, and is not what it should be"))
        write(wanted.entry, arrays, wanted.origin, tell)
    return "built" if before.state == "missing" else "rebuilt"


def write(
    entry: CacheEntry, arrays: Arrays | Blocks, origin: Origin, tell: Callable[[int], None] = lambda _: None
) -> None:
    """Write all files of an entry, whatever is there; the caller holds :func:`locked`.

    Each file appears whole and is forced to the disk. The description goes first, if there is one, and
    comes last: at no moment do all of Megatron's files exist and not belong together.

    Args:
        entry: The files.
        arrays: The arrays by their names, or in pieces.
        origin: What they were made from.
        tell: Called with the bytes of each piece that is written.

    Raises:
        StorageError: The disk is full or broken.
    """
    _withdraw(entry)
    files: dict[str, dict[str, Any]] = {}
    paths = {name: entry.array_path(name) for name in entry.arrays}
    for blocks in _blocks(entry, arrays):
        written = write_blocks(paths, blocks, tell)
        files |= {f"{name}.npy": found for name, found in written.items()}
    Sidecar.make(entry.hash, origin, files).write(entry.sidecar_path)
    write_atomically(entry.description_path, entry.text.encode("ascii"))


def adopt(entry: CacheEntry, arrays: Arrays | Blocks, origin: Origin) -> bool:
    """Hold the files of an entry against the arrays that they should hold; if equal, write the sidecar.

    Returns:
        Whether they are equal. If not, nothing is changed.
    """
    files = {}
    for blocks in _blocks(entry, arrays):
        for name, digest in digests_of(blocks).items():
            if file_digest(entry.array_path(name)) != digest:
                return False
            files[f"{name}.npy"] = {"bytes": blocks.specs[name].file_bytes, "xxh3_128": digest}
    Sidecar.make(entry.hash, origin, files).write(entry.sidecar_path)
    return True


def _blocks(entry: CacheEntry, arrays: Arrays | Blocks) -> list[Blocks]:
    """Return arrays in pieces: those in memory one after the other."""
    if isinstance(arrays, Blocks):
        return [arrays]
    return [Blocks.of(name, arrays[name]) for name in entry.arrays]


@contextmanager
def locked(
    entry: CacheEntry,
    *,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    pause: Callable[[float], object] = time.sleep,
) -> Iterator[None]:
    """Hold an entry for writing; wait while another process does.

    Args:
        entry: The files.
        wait_seconds: How long to wait.
        pause: Called between two tries with the seconds to wait; it may raise to give up.

    Raises:
        LockedError: The other process was not done in time.
        StorageError: The file system has no locks, or refuses.
    """
    deadline = time.monotonic() + wait_seconds
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(WriterLock(entry.lock_path))
                break
            except LockedError:
                if time.monotonic() >= deadline:
                    raise
            pause(_POLL_SECONDS)
        yield


def sweep(entry: CacheEntry) -> None:
    """Remove the lock that a writer has left beside a fresh entry, if it was killed in its last moment."""
    if os.path.lexists(entry.lock_path):
        with suppress(LockedError, StorageError), WriterLock(entry.lock_path):
            pass


def _withdraw(entry: CacheEntry) -> None:
    """Remove the description, so that nobody takes the entry for whole, and what killed writers left."""
    syscalls.make_directory(entry.directory)
    stale = [path for path in (entry.description_path, entry.sidecar_path) if os.path.lexists(path)]
    for path in stale:
        syscalls.unlink(path)
    if stale:
        syscalls.fsync_directory(entry.directory)
    for name in os.listdir(entry.directory):
        if name.startswith(f".{entry.stem}-") and is_temporary(name):
            syscalls.unlink(os.path.join(entry.directory, name))
