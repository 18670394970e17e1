"""Paths that do not exist, and the existing paths that they may mean."""

from __future__ import annotations

import os
from itertools import islice

from tokshard.core.near_names import is_near
from tokshard.storage.paths import is_remote

# Listing a directory of a slow file system takes about 1 s for so many names.
_MAX_NAMES = 100_000
_MAX_PATHS = 100


def near_path(path: str, suffix: str = "") -> str | None:
    """Return an existing path that differs by at most one typing mistake in each name, or None.

    Args:
        path: A path that does not exist.
        suffix: The end of the file names, if the path is a path prefix.

    Example:
        >>> near_path("/ect/hosts"), near_path("/ect", ".idx")
        ('/etc/hosts', None)
    """
    names = [name for name in path.split("/") if name]
    if is_remote(path) or not names:
        return None
    existing = ["/" if path.startswith("/") else ""]
    for name in names[:-1]:
        existing = [near for directory in existing for near in _near_paths(directory, name, "")][:_MAX_PATHS]
    return next((near for directory in existing for near in _near_paths(directory, names[-1], suffix)), None)


def _near_paths(directory: str, name: str, suffix: str) -> list[str]:
    """Return the path of a name in a directory if it exists, else the existing paths of near names."""
    path = os.path.join(directory, name)
    if os.path.exists(path + suffix):
        return [path]
    others = (other for other in _names(directory or os.curdir, suffix) if is_near(name, other))
    return [os.path.join(directory, other) for other in others]


def _names(directory: str, suffix: str) -> list[str]:
    """Return the names in a directory that end with a suffix, without the suffix."""
    try:
        with os.scandir(directory) as entries:
            names = [entry.name for entry in islice(entries, _MAX_NAMES)]
    except OSError:
        return []
    return sorted(name.removesuffix(suffix) for name in names if name.endswith(suffix))
