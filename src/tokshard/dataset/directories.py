"""Datasets in directories, for errors about a directory or a glob in the place of a path prefix."""

from __future__ import annotations

import glob
import os

from tokshard.storage.paths import BIN_SUFFIX, IDX_SUFFIX, SIDECAR_SUFFIX, natural_key

_SEARCHED_LEVELS = 3


def datasets_in(directory: str) -> tuple[str, list[str]]:
    """Return a glob of the datasets in a local directory, and the path prefixes that match it.

    If the directory itself contains no dataset, its subdirectories are searched, and then theirs. The list is
    in natural order, and empty if no dataset is found.
    """
    pattern = glob.escape(directory)
    for _ in range(_SEARCHED_LEVELS if os.path.isdir(directory) else 0):
        pattern = os.path.join(pattern, "*")
        prefixes = {path.removesuffix(IDX_SUFFIX) for path in glob.iglob(pattern + IDX_SUFFIX)}
        prefixes &= {path.removesuffix(BIN_SUFFIX) for path in glob.iglob(pattern + BIN_SUFFIX)}
        if prefixes := {prefix for prefix in prefixes if not is_in_sidecar(prefix, pattern)}:
            return pattern, sorted(prefixes, key=natural_key)
    return pattern, []


def is_in_sidecar(path: str, pattern: str) -> bool:
    """Return whether a match of a glob is in the sidecar directory of a dataset, not itself a dataset.

    A directory of such a name in the pattern itself is no sidecar directory.

    Example:
        >>> is_in_sidecar("data/web.tokshard/provenance.bin", "data/**/*")
        True
        >>> is_in_sidecar("old.tokshard/web.bin", "old.tokshard/*")
        False
    """
    return f"{SIDECAR_SUFFIX}/" in path and SIDECAR_SUFFIX not in pattern
