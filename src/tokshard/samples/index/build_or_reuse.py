"""Build or reuse an entry of the index cache, by one process at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Self

from tokshard.core.background import ThreadRunner
from tokshard.core.codec import TOOL
from tokshard.core.open_cache import OpenCache, affordable
from tokshard.core.progress import Progress
from tokshard.dataset.fingerprint import DatasetFingerprint, FingerprintedIndex
from tokshard.dataset.recorded_tokenizers import DatasetTokenizer, TokenizerMismatch
from tokshard.errors import (
    InputError,
    IntegrityError,
    LockedError,
    OutputExistsError,
    StorageError,
    UsageError,
)
from tokshard.samples.index.description import BlendedDescription, Description
from tokshard.samples.index.entry import (
    CacheEntry,
    IndexOrigin,
    Sidecar,
    blend_specs,
    default_directory,
    gpt_specs,
)
from tokshard.samples.index.epoch_plan import EpochPlan
from tokshard.samples.index.examination import Condition, EntryContent, Examination, examine
from tokshard.samples.index.npy import Blocks, write_blocks
from tokshard.samples.index.options import IndexRequest
from tokshard.storage import syscalls
from tokshard.storage.digest import FileRecord
from tokshard.storage.files import write_atomically
from tokshard.storage.lock import WriterLock
from tokshard.storage.paths import is_remote
from tokshard.storage.publication import remove_temporary_files

if TYPE_CHECKING:
    from numpy.typing import NDArray

LOCK_WAIT_SECONDS = 3600.0
_POLL_SECONDS = 0.05
# Open datasets are mapped, and every map holds a file descriptor, of which processes have about 1,000.
_OPEN_DATASETS = 64
# The .idx file with its map, and those of an index that is built from it.
_FILES_OF_A_DATASET = 4

Action = Literal["found", "built", "rebuilt"]
Arrays = Mapping[str, "NDArray[Any]"]


@dataclass(frozen=True, slots=True)
class CacheTarget:
    """An entry that is needed, and the content that it should have.

    Attributes:
        label: For messages: ``"the train index of data/web"``.
        mismatches: The mismatches of tokenizers that were allowed, which the sidecar records.
    """

    entry: CacheEntry
    description: Description
    content: EntryContent
    label: str
    mismatches: tuple[TokenizerMismatch, ...] = ()

    @classmethod
    def of_blend(
        cls,
        description: BlendedDescription,
        directory: str,
        label: str,
        mismatches: tuple[TokenizerMismatch, ...] = (),
    ) -> Self:
        """Return the entry of a blend, whose content follows from its description."""
        content = EntryContent(blend_specs(description.samples), None)
        return cls(CacheEntry.of(description, directory), description, content, label, mismatches)

    @property
    def unrecorded(self) -> tuple[TokenizerMismatch, ...]:
        """The mismatches that the sidecar of an existing entry does not record."""
        if not self.mismatches:
            return ()
        recorded = self.entry.allowed_mismatches()
        return tuple(found for found in self.mismatches if found not in recorded)

    def examine(self, *, digests: bool = False) -> Examination:
        """Examine the entry; see :func:`tokshard.samples.index.examination.examine`."""
        return examine(self.entry, self.content, digests=digests)

    def refuse_other_packing(self, found: Examination) -> None:
        """Refuse to replace an entry with one of another packing, even with ``rebuild``: both are used.

        Raises:
            OutputExistsError: The entry has another packing.
        """
        wanted = self.content.origin
        if wanted is None or found.condition in {"missing", "outdated"}:
            return
        if found.sidecar is not None and found.sidecar.origin is not None:
            pack = found.sidecar.origin.pack
        else:
            pack = "concat"
        if pack != wanted.pack and (found.sidecar is not None or wanted.packed is not None):
            reason = f"was built with --pack {pack} instead of --pack {wanted.pack}"
            if found.sidecar is None:
                reason = (
                    f"has no record of --pack {wanted.pack}: its {self.entry.stem}-tokshard.json is missing"
                )
            raise OutputExistsError(
                f"{self.label} in {self.entry.directory} ({self.entry.hash}) {reason}, and has the same file "
                "names",
                hint=f"pass another --cache-dir, or remove {self.entry.description_path}",
            )

    def refuse(self, condition: Condition, detail: str) -> None:
        """Refuse to replace an entry without being asked.

        Raises:
            OutputExistsError: The entry is stale, or Megatron's own.
            IntegrityError: It is damaged.
        """
        hint = f"pass --rebuild to replace it, or remove {self.entry.description_path}"
        message = f"{self.label} in {self.entry.directory} ({self.entry.hash}) {detail}"
        if condition in {"stale", "foreign"}:
            raise OutputExistsError(message, hint=hint)
        if condition == "damaged":
            raise IntegrityError(message, path=self.entry.description_path, hint=hint)


@dataclass(frozen=True, slots=True)
class IndexTask:
    """A request with everything that follows from the dataset.

    Attributes:
        request: The first request that needs these files.
    """

    request: IndexRequest
    plan: EpochPlan
    target: CacheTarget

    @property
    def dataset(self) -> DatasetFingerprint:
        """The fingerprint of the dataset."""
        return self._origin.dataset

    @property
    def tokenizer(self) -> DatasetTokenizer:
        """The tokenizer of the dataset."""
        return self._origin.tokenizer or DatasetTokenizer()

    @property
    def _origin(self) -> IndexOrigin:
        if self.target.content.origin is None:
            raise TypeError("a blend has no dataset")
        return self.target.content.origin

    def recording(self, mismatches: tuple[TokenizerMismatch, ...]) -> IndexTask:
        """Return the task with the mismatches that are recorded if it is done."""
        return replace(self, target=replace(self.target, mismatches=mismatches))

    def arrays(self, dataset: FingerprintedIndex) -> Arrays:
        """Build the arrays.

        Raises:
            IntegrityError: The dataset has changed since the plan was made.
        """
        dataset.check(self.dataset)
        index = self.request.build(dataset.table)
        return {name: getattr(index, name) for name in self.target.entry.arrays}


class Datasets(OpenCache[str, FingerprintedIndex]):
    """The indexes of datasets, each opened once while not too many are open; for any thread."""

    def __init__(self) -> None:
        super().__init__(FingerprintedIndex.open, affordable(_OPEN_DATASETS, _FILES_OF_A_DATASET))


def plan_tasks(
    requests: Sequence[IndexRequest],
    cache_directory: str | None,
    datasets: Datasets,
    threads: ThreadRunner,
    progress: Progress | None = None,
) -> tuple[list[tuple[IndexRequest, CacheEntry]], dict[CacheEntry, IndexTask]]:
    """Plan the tasks that requests need; nothing is written.

    Without a ``cache_directory`` the files go beside each dataset, Megatron's default.

    Returns:
        The requests that Megatron would build with their files, and a task for each set of files.

    Raises:
        UsageError: Two requests would have the same name and different content, or a request is illegal.
        InputError: A dataset is missing, or a split of it is empty.
        IntegrityError: A dataset is damaged.
    """
    listed = [
        (request, CacheEntry.of(request.description(), cache_directory or _beside(request.prefix)))
        for request in requests
        if request.is_built
    ]
    first: dict[CacheEntry, IndexRequest] = {}
    for request, entry in listed:
        _check_same(first.setdefault(entry, request), request)
    pairs = list(first.items())

    def plan(pair: tuple[CacheEntry, IndexRequest]) -> IndexTask:
        entry, request = pair
        return _task(request, entry, datasets.get(request.prefix))

    tasks = threads.run(plan, pairs, activity="reading datasets", listener=progress)
    return listed, dict(zip(first, tasks, strict=True))


def _beside(prefix: str) -> str:
    if is_remote(prefix):
        raise UsageError(
            f"--cache-dir is required: the indexes of {prefix} cannot be written next to it",
            hint="pass --cache-dir DIRECTORY",
        )
    return default_directory(prefix)


def _task(request: IndexRequest, entry: CacheEntry, dataset: FingerprintedIndex) -> IndexTask:
    name = f"the {request.split_name} index of {request.prefix}"
    try:
        size = request.size(dataset.table)
        plan = request.plan(size)
    except (InputError, UsageError) as error:
        raise type(error)(f"{name}: {error.message}", hint=error.hint) from None
    origin = IndexOrigin.of(dataset.fingerprint, plan, dataset.tokenizer)
    content = EntryContent(gpt_specs(plan), origin, size.report)
    return IndexTask(request, plan, CacheTarget(entry, request.description(), content, name))


def _check_same(first: IndexRequest, second: IndexRequest) -> None:
    same = replace(second, drop_last_partial=first.drop_last_partial)
    if second.drops_last_partial != first.drops_last_partial or same != first:
        raise UsageError(
            f"the {first.split_name} indexes of {first.prefix} and {second.prefix} have the same names in "
            "the cache, but differ in their data or in options that are not part of the names",
            hint="pass a different --cache-dir or --path-as for each",
        )


def build_or_reuse(
    target: CacheTarget,
    make: Callable[[], Arrays | Blocks],
    *,
    rebuild: bool = False,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    pause: Callable[[float], object] = time.sleep,
    tell: Callable[[int], None] = lambda _: None,
) -> Action:
    """Make sure that an entry is fresh; return the action.

    Reuses a fresh entry. Builds a missing one, and one of an earlier version of tokshard. Replaces a stale or
    damaged one, or Megatron's own, only with ``rebuild``. If two processes need the same entry, the second
    waits and reuses the result of the first.

    ``make`` builds the arrays, in the dtypes and shapes of the target, or returns the blocks that do.
    ``rebuild`` replaces everything that is not fresh, also judged by digests. ``tell`` is called with the
    number of bytes of each finished piece.

    Raises:
        OutputExistsError: The entry is stale, or Megatron's own.
        IntegrityError: It is damaged.
        LockedError: Another process did not finish in time.
        StorageError: A write failed. No file is incomplete then.
    """
    if target.examine(digests=rebuild).condition == "fresh":
        if target.unrecorded:
            # A cache that is read-only here stays as it is: blend.json records them.
            with (
                suppress(StorageError),
                locked(target.entry.lock_path, wait_seconds=wait_seconds, pause=pause),
            ):
                _record(target)
        sweep(target.entry)
        return "found"
    with locked(target.entry.lock_path, wait_seconds=wait_seconds, pause=pause):
        before = target.examine(digests=rebuild)
        target.refuse_other_packing(before)
        if before.condition == "fresh":
            _record(target)
            tell(target.content.file_bytes)
            return "found"
        if not rebuild:
            target.refuse(before.condition, before.detail)
        write(target, make(), tell)
    return "built" if before.condition == "missing" else "rebuilt"


def write(target: CacheTarget, arrays: Arrays | Blocks, tell: Callable[[int], None] = lambda _: None) -> None:
    """Write all files of an entry, replacing existing ones; the caller holds :func:`locked`.

    Each file appears whole and is forced to the disk. An existing description is removed first, and the
    new one is written last: at no moment do all of Megatron's files exist and not belong together.
    """
    entry = target.entry
    _withdraw(entry)
    files: dict[str, FileRecord] = {}
    paths = {name: entry.array_path(name) for name in entry.arrays}
    if isinstance(arrays, Blocks):
        parts = [arrays]
    else:
        parts = [Blocks.of(name, arrays[name]) for name in entry.arrays]
    for blocks in parts:
        written = write_blocks(paths, blocks, tell)
        files |= {f"{name}.npy": record for name, record in written.items()}
    _sidecar(target, files).write(entry.sidecar_path)
    write_atomically(entry.description_path, target.description.text().encode("ascii"))


def _sidecar(target: CacheTarget, files: dict[str, FileRecord]) -> Sidecar:
    return Sidecar(
        tool=TOOL,
        description_md5=target.entry.hash,
        origin=target.content.origin,
        files=files,
        tokenizer_mismatches=target.mismatches or None,
        packing_report=target.content.packing_report,
    )


def _record(target: CacheTarget) -> None:
    # The entry was built without these mismatches, or before they were recorded.
    sidecar = target.examine().sidecar
    if sidecar is not None and (unrecorded := target.unrecorded):
        mismatches = (*(sidecar.tokenizer_mismatches or ()), *unrecorded)
        replace(sidecar, tokenizer_mismatches=mismatches).write(target.entry.sidecar_path)


@contextmanager
def locked(
    lock_path: str,
    *,
    wait_seconds: float = LOCK_WAIT_SECONDS,
    pause: Callable[[float], object] = time.sleep,
) -> Iterator[None]:
    """Hold the lock of an entry, or of another file, for writing; wait while another process does.

    ``pause`` is called between two tries with the seconds to wait; it may raise to give up.

    Raises:
        LockedError: The other process was not done in time.
        StorageError: The file system has no locks, or refuses.
    """
    deadline = time.monotonic() + wait_seconds
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(WriterLock(lock_path))
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
    # Without its description, nobody takes the entry for complete.
    syscalls.make_directory(entry.directory)
    stale = [path for path in (entry.description_path, entry.sidecar_path) if os.path.lexists(path)]
    for path in stale:
        syscalls.unlink(path)
    if stale:
        syscalls.fsync_directory(entry.directory)
    remove_temporary_files(entry.directory, f"{entry.stem}-")
