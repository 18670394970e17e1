"""Options of merge."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from tokshard.core.codec import INTEGER_LIMIT
from tokshard.core.memory import available_bytes
from tokshard.errors import UsageError
from tokshard.storage.lock import LockMode, check_lock_mode
from tokshard.storage.paths import check_output_prefix, is_remote

DEFAULT_MEMORY_BYTES = 1 << 30
MIN_MEMORY_BYTES = 16 << 20
_DEFAULT_THREADS = 4
# The page cache also holds what is being written.
_PAGE_CACHE_PART = 3


@dataclass(frozen=True)
class MergeOptions:
    """Options of :func:`tokshard.merge`.

    Attributes:
        inputs: Path prefixes of datasets (or one of their files), or globs of these, in order. The
            matches of a glob are in natural order: ``part-2`` before ``part-10``.
        output: Path prefix of the output.
        multimodal: Whether the inputs have modes.
        allow_tokenizer_mismatch: Whether datasets of different tokenizers may be merged.
        resume: Whether an unfinished merge is resumed.
        force: Whether an existing output is replaced.
        lock: The mode of the writer lock: ``"none"`` for a file system without ``flock``, if only one run
            writes the output at a time.
        shuffle: The seed of a random order of the documents of all inputs, from 0 to 2**63 - 1; None to
            concatenate them.
        memory_bytes: The memory for tokens and their index during a shuffle; more of them take two passes.
            None for 1 GiB, but inputs that need up to a third of the available memory are shuffled in one
            pass, from the page cache. The order does not depend on it.
        workers: The threads of a shuffle; None for one per core, at most 4. The order does not depend on it.

    Raises:
        UsageError: An option is invalid, or there are no inputs.
    """

    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
    output: str | os.PathLike[str]
    multimodal: bool = False
    allow_tokenizer_mismatch: bool = False
    resume: bool = True
    force: bool = False
    lock: LockMode = "flock"
    shuffle: int | None = None
    memory_bytes: int | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        check_lock_mode(self.lock)
        self._check_shuffle()
        prefix = self.output_prefix
        if is_remote(prefix):
            raise UsageError(
                f"merge writes to a file system, got the URL {prefix}",
                hint="merge into a local --output, and upload its files, the manifest last",
            )
        if not self.input_names:
            raise UsageError(
                "at least one input is required",
                hint="pass the datasets to merge: path prefixes, or quoted globs",
            )

    @property
    def input_names(self) -> tuple[str, ...]:
        """The inputs as the user named them."""
        inputs = [self.inputs] if isinstance(self.inputs, str | os.PathLike) else self.inputs
        return tuple(os.fspath(name) for name in inputs)

    @property
    def shuffle_memory_bytes(self) -> int:
        """The memory of a shuffle."""
        return DEFAULT_MEMORY_BYTES if self.memory_bytes is None else self.memory_bytes

    @property
    def page_cache_bytes(self) -> int:
        """The limit of tokens and index for one pass from the page cache."""
        if self.memory_bytes is not None:
            return self.memory_bytes
        return max(DEFAULT_MEMORY_BYTES, (available_bytes() or 0) // _PAGE_CACHE_PART)

    @property
    def shuffle_threads(self) -> int:
        """The threads of a shuffle."""
        return self.workers or min(_DEFAULT_THREADS, len(os.sched_getaffinity(0)))

    def _check_shuffle(self) -> None:
        if self.shuffle is None:
            for name, value in (("--memory", self.memory_bytes), ("--workers", self.workers)):
                if value is not None:
                    raise UsageError(
                        f"{name} requires --shuffle", hint=f"pass --shuffle SEED, or leave out {name}"
                    )
            return
        if not 0 <= self.shuffle < INTEGER_LIMIT:
            raise UsageError(f"--shuffle must be from 0 to 2**63 - 1, got {self.shuffle}")
        if self.shuffle_memory_bytes < MIN_MEMORY_BYTES:
            raise UsageError(
                f"--memory must be at least {MIN_MEMORY_BYTES:,} bytes, got {self.shuffle_memory_bytes:,}"
            )
        if self.workers is not None and self.workers < 1:
            raise UsageError(f"--workers must be at least 1, got {self.workers}")

    @property
    def output_prefix(self) -> str:
        """The checked path prefix of the output."""
        return check_output_prefix(os.fspath(self.output))
