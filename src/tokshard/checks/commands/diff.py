"""Comparison of two plans, two blends or two index caches."""

from __future__ import annotations

import os

from tokshard.checks.diff.options import DiffOptions
from tokshard.checks.diff.report import DiffReport
from tokshard.checks.products import PRODUCTS, Product
from tokshard.core.progress import Progress, reporting
from tokshard.dataset.products import kind_of
from tokshard.errors import InputError, UsageError


def diff(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
    options: DiffOptions | None = None,
    *,
    progress: Progress | None = None,
) -> DiffReport:
    """Compare two plans, two blends, or two index caches (or two descriptions in caches).

    Args:
        a: The first: its directory, ``plan.json``, ``blend.json`` or a ``description.txt``.
        b: The second, of the same kind.
        options: Which steps of plans to compare.
        progress: Receives the activity.

    Raises:
        UsageError: The kinds differ, or options for plans are passed for other products.
        MissingFileError, InputError: A path is none of these, or a file does not exist.
        IntegrityError, StorageError: A file is damaged or cannot be read.
    """
    with reporting(progress) as listener:
        listener.start("comparing")
        return _diff(os.fspath(a), os.fspath(b), options)


def _diff(first: str, second: str, options: DiffOptions | None) -> DiffReport:
    a, b = _compared(first), _compared(second)
    if a.compared_as != b.compared_as:
        raise UsageError(
            f"cannot compare a {a.compared_as} with a {b.compared_as}: {first} and {second}",
            hint="pass two plans, two blends or two index caches",
        )
    if a.compared_as != "plan" and options not in {None, DiffOptions()}:
        raise UsageError("--steps requires plans", hint="leave out --steps")
    return a.compare(b, options)


def _compared(path: str) -> Product:
    kind = kind_of(path)
    if kind is None or PRODUCTS[kind].compared_as is None:
        raise InputError(
            f"cannot compare {path}: it is not a plan, blend or index cache",
            hint="pass a directory, or a plan.json, blend.json or description.txt",
        )
    return PRODUCTS[kind](path)
