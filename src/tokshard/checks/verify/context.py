"""The context of one verification: its level, its threads and progress, and known fingerprints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TypeVar

from tokshard.checks.verify.options import LEVELS, Level
from tokshard.core.background import ThreadRunner
from tokshard.core.findings import FindingCollector
from tokshard.core.progress import Progress, ProgressUpdate, SilentProgress
from tokshard.dataset.fingerprint import DatasetFingerprint, dataset_fingerprint
from tokshard.dataset.source import DataFile
from tokshard.errors import InputError, IntegrityError, StorageError, TokshardError
from tokshard.storage.reading import READ_BYTES
from tokshard.text.tokenizer.definition import Tokenizer

Item = TypeVar("Item")
Result = TypeVar("Result")

# A thread costs as much as reading a few megabytes.
_WORTH_THREADS_BYTES = 4 << 20


class CountingRunner:
    """Runner of pieces of work on threads, which counts the bytes that they read.

    Args:
        workers: The largest number of threads; None for one for each core that this process may use.
        progress: Receives one account of all runs.

    Example:
        >>> CountingRunner(1).run(abs, [-1, 2], 0)
        [1, 2]
    """

    def __init__(self, workers: int | None, progress: Progress | None = None) -> None:
        self._threads = ThreadRunner(workers)
        self._progress = progress or SilentProgress()
        self._threaded = False
        self.bytes_done = 0

    def run(self, work: Callable[[Item], Result], items: Sequence[Item], size_bytes: int) -> list[Result]:
        """Do the work for all items; return the results in their order.

        Args:
            work: Called with an item; it counts what it reads.
            items: What to work on.
            size_bytes: How much will be read. Little is read in this thread.
        """
        if len(items) < 2 or size_bytes < _WORTH_THREADS_BYTES:
            return [work(item) for item in items]
        onward = _OneOfManyRuns(self._progress, self.bytes_done)
        self._threaded = True
        try:
            return self._threads.run(work, items, listener=onward)
        finally:
            self._threaded = False
            self.bytes_done = onward.done

    def count_bytes(self, count: int) -> None:
        """Count bytes that were read; called by the work.

        Raises:
            Cancelled: The work was stopped meanwhile.
        """
        if self._threaded:
            self._threads.tell(count)
            return
        self.bytes_done += count
        self._progress.update(ProgressUpdate(bytes_done=self.bytes_done))


class _OneOfManyRuns:
    # The listener starts before the first run and finishes after the last.
    def __init__(self, outer: Progress, before: int) -> None:
        self._outer = outer
        self._before = before
        self.done = before

    def start(self, activity: str, bytes_total: int | None = None, bytes_resumed: int = 0) -> None:
        pass

    def update(self, state: ProgressUpdate) -> None:
        self.done = self._before + state.bytes_done
        self._outer.update(ProgressUpdate(bytes_done=self.done))

    def message(self, text: str) -> None:
        self._outer.message(text)

    def finish(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class VerifyContext:
    """The options of a verification and what is known already.

    Attributes:
        level: See :class:`~tokshard.checks.verify.options.VerifyOptions`.
        runner: Runs pieces of work and counts what they read.
        share: The share of large pieces whose digests are checked; None for all.
        tokenizer: The tokenizer that was given, or None.
        adopt: Whether to write a manifest for datasets that have none.
        sound_indexes: The real paths of the descriptions of the indexes that were found to be sound.
        fingerprints: What is known of datasets, by prefix: a fingerprint, or why there is none.
    """

    level: Level
    runner: CountingRunner
    share: Fraction | None = None
    tokenizer: Tokenizer | None = None
    adopt: bool = False
    sound_indexes: set[str] = field(default_factory=set)
    fingerprints: dict[str, DatasetFingerprint | TokshardError] = field(default_factory=dict)

    def reaches(self, level: Level) -> bool:
        """Return whether the level includes another one."""
        return LEVELS.index(self.level) >= LEVELS.index(level)

    def selected(self, count: int) -> list[int]:
        """Return which of ``count`` pieces belong to the share; see :func:`spread_evenly`."""
        return spread_evenly(count, self.share)

    def part_of(self, size_bytes: int) -> int:
        """Return how many of so many bytes belong to the share."""
        return size_bytes if self.share is None else int(size_bytes * self.share)

    def fingerprint(self, prefix: str) -> DatasetFingerprint:
        """Return the fingerprint of a dataset, taken once: its index is read whole.

        Raises:
            InputError, IntegrityError, StorageError: It cannot be opened.
        """
        if prefix not in self.fingerprints:
            try:
                self.fingerprints[prefix] = dataset_fingerprint(prefix)
            except (InputError, IntegrityError, StorageError) as error:
                self.fingerprints[prefix] = error
        known = self.fingerprints[prefix]
        if isinstance(known, TokshardError):
            raise known
        return known

    def digest(self, file: DataFile, first: int = 0, count: int | None = None) -> str:
        """Return the XXH3-128 of a part of a file; as fast as the disk in several threads.

        Raises:
            IntegrityError: The file was cut short meanwhile.
            StorageError: It cannot be read.
        """
        import xxhash

        left = file.size_bytes - first if count is None else count
        state = xxhash.xxh3_128()
        buffer = memoryview(bytearray(min(READ_BYTES, left)))
        while left:
            block = buffer[:left]
            file.read_into(block, first)
            state.update(block)
            self.runner.count_bytes(len(block))
            first, left = first + len(block), left - len(block)
        return state.hexdigest()


def spread_evenly(count: int, share: Fraction | None) -> list[int]:
    """Return which of ``count`` pieces belong to a share of them: the same at every call, evenly spread.

    Piece ``i`` does where the share of ``i + 1`` pieces, rounded down, is more than that of ``i``; and the
    last one where none does.

    Example:
        >>> spread_evenly(10, Fraction(3, 10)), spread_evenly(3, Fraction(1, 10)), spread_evenly(2, None)
        ([3, 6, 9], [2], [0, 1])
    """
    if share is None:
        return list(range(count))
    found = [place for place in range(count) if (place + 1) * share // 1 > place * share // 1]
    return found or list(range(count))[-1:]


def attempt(read: Callable[[str], Result], path: str) -> Result | TokshardError:
    """Return what a function reads from a path, or the error of reading it."""
    try:
        return read(path)
    except (InputError, IntegrityError, StorageError) as error:
        return error


@contextmanager
def unreadable_found(findings: FindingCollector, path: str) -> Iterator[None]:
    """Make a finding of a file that cannot be read, and continue after the block."""
    try:
        yield
    except (StorageError, InputError, IntegrityError) as error:
        # The structure was checked before: an IntegrityError is a file that is cut short just now.
        findings.find_error("unreadable", error, path=path)
    except OSError as error:
        findings.find_error("unreadable", StorageError("read", str(error.filename or path), error))
