"""What all checks of one verification share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from tokshard.dataset.source import DataFile
from tokshard.errors import InputError, IntegrityError, StorageError, TokshardError
from tokshard.index_cache.fingerprint import dataset_fingerprint
from tokshard.storage.digest import READ_BYTES
from tokshard.tokenizer.definition import Tokenizer
from tokshard.verification.labour import Labour
from tokshard.verification.levels import LEVELS, Level
from tokshard.verification.report import ProductFindings


@dataclass(frozen=True, slots=True)
class Session:
    """What was asked for, and what is known already.

    Attributes:
        level: How thoroughly to look.
        subset: The share of large pieces that is held against digests; None for all.
        labour: Who does the work.
        tokenizer: The tokenizer that was given, or None.
        adopt: Whether to write a manifest for datasets that have none.
        fingerprints: What is known of datasets, by prefix: a fingerprint, or why there is none.
    """

    level: Level
    subset: Fraction | None
    labour: Labour
    tokenizer: Tokenizer | None = None
    adopt: bool = False
    fingerprints: dict[str, dict[str, Any] | TokshardError] = field(default_factory=dict)

    def reaches(self, level: Level) -> bool:
        """Tell whether a level is asked for."""
        return LEVELS.index(self.level) >= LEVELS.index(level)

    def fingerprint(self, prefix: str) -> dict[str, Any]:
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
            self.labour.tell(len(block))
            first, left = first + len(block), left - len(block)
        return state.hexdigest()


@contextmanager
def unreadable_found(findings: ProductFindings, path: str) -> Iterator[None]:
    """Make a finding of a file that cannot be read, and go on behind the block."""
    try:
        yield
    except (StorageError, InputError, IntegrityError) as error:
        # The structure was checked before: an IntegrityError is a file that is cut short just now.
        findings.find_error("unreadable", error, path=path)
    except OSError as error:
        findings.find_error("unreadable", StorageError("read", str(error.filename or path), error))
