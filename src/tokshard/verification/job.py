"""The verification of a thing, from its data to its plans."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from fractions import Fraction

from tokshard.core.progress import Progress, SilentProgress
from tokshard.errors import UsageError
from tokshard.storage import fs
from tokshard.storage.paths import bin_path, idx_path, sidecar_directory
from tokshard.tokenizer.definition import load_tokenizer
from tokshard.verification.blend import verify_blend
from tokshard.verification.cache import verify_index
from tokshard.verification.dataset import verify_dataset
from tokshard.verification.directory import Survey, survey
from tokshard.verification.entries import CachedIndex
from tokshard.verification.labour import Labour
from tokshard.verification.levels import LEVELS, Level, check_level
from tokshard.verification.plan import verify_plan, verify_rank
from tokshard.verification.report import Subject, VerifyReport
from tokshard.verification.session import Session


def verify(
    thing: str | os.PathLike[str],
    *,
    level: str = "digest",
    subset: Fraction | float | None = None,
    tokenizer: str | None = None,
    recursive: bool = False,
    adopt: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> VerifyReport:
    """Say whether something is what it was when it was written; everything that is not is listed.

    Args:
        thing: The path prefix or a file of a dataset; a cache of indexes or one of its files; a blend, a
            plan, or the manifest of a rank; or with ``recursive`` a directory.
        level: ``"structure"``, ``"digest"`` or ``"deep"``; each does what those before it do.
        subset: A share, above 0 and up to 1, of the pieces of data that are held against digests: always
            the same ones. None for all.
        tokenizer: A tokenizer to decode with, where the dataset was not made with the built-in one.
        recursive: Whether to look at everything below a directory, and at everything that a blend or a plan
            is made from.
        adopt: Whether to write a manifest for datasets that have none, if nothing is wrong with them.
        workers: Threads; None for one for each core.
        progress: Who is told of the progress, in bytes that were read.

    Returns:
        What was looked at and found.

    Raises:
        UsageError: An option cannot be meant.
        InputError: Nothing is there, or nothing that can be verified.
        TokenizerError: The tokenizer cannot be read.
        LockedError: Another process writes a dataset that is to be adopted.
        StorageError: A manifest cannot be written.

    Example::

        report = verify("data/web", level="structure")
        for finding in report.findings:
            print(finding.code, finding.message)
    """
    started = time.monotonic()
    wanted, share = check_level(level), _share(subset)
    if adopt:
        fs.refuse_remote(os.fspath(thing), "a manifest is written beside the")
    found = survey(os.fspath(thing), recursive=recursive)
    if adopt and not found.datasets:
        raise UsageError(f"{os.fspath(thing)} is no dataset: only datasets can be adopted")
    listener = progress or SilentProgress()
    labour = Labour(workers, listener)
    session = Session(
        level=wanted,
        subset=share,
        labour=labour,
        tokenizer=None if tokenizer is None else load_tokenizer(tokenizer, need_eod=False),
        adopt=adopt,
    )
    listener.start(_expected_bytes(found, wanted, share), 0)
    try:
        subjects = tuple(_subjects(found, session))
    finally:
        listener.finish()
    return VerifyReport(os.fspath(thing), wanted, share, subjects, labour.done, time.monotonic() - started)


def _share(subset: Fraction | float | None) -> Fraction | None:
    if subset is None:
        return None
    if not 0 < subset <= 1:
        raise UsageError(f"a subset of {subset} is no share of the data", hint="above 0, up to 1")
    return Fraction(subset).limit_denominator(10**6)


def _subjects(found: Survey, session: Session) -> Iterator[Subject]:
    for prefix in found.datasets.values():
        yield verify_dataset(prefix, session)
    for index in found.indexes.values():
        yield verify_index(index, session)
    for document in found.blends.values():
        yield verify_blend(document, session)
    for directory in found.plans.values():
        yield verify_plan(directory, session)
    for manifest in found.ranks.values():
        yield verify_rank(manifest, session)


def _expected_bytes(found: Survey, level: Level, share: Fraction | None) -> int:
    """Estimate what will be read, for the progress."""
    depth, part = LEVELS.index(level), 1 if share is None else share
    total = 0
    for prefix in found.datasets.values():
        index, tokens = _size(idx_path(prefix)), _size(bin_path(prefix))
        beside = _sizes_in(sidecar_directory(prefix)) if depth else 0
        total += index * (1 + min(depth, 1)) + beside + int(tokens * part) * min(depth, 1)
        total += tokens * max(0, depth - 1)
    return total + sum(_array_bytes(index, part) for index in found.indexes.values() if depth)


def _array_bytes(index: CachedIndex, part: Fraction | int) -> int:
    return int(sum(_size(index.file(f"{name}.npy")) for name in index.arrays) * part)


def _sizes_in(directory: str) -> int:
    try:
        return sum(_size(os.path.join(directory, name)) for name in os.listdir(directory))
    except OSError:
        return 0


def _size(path: str) -> int:
    try:
        return fs.getsize(path)
    except OSError:
        return 0
