"""Paths that do not exist, and the existing paths that they may mean."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice

from tokshard.core.near_names import is_near
from tokshard.storage.paths import is_remote

# Listing a directory of a slow file system takes about 1 s for so many names.
_MAX_NAMES = 100_000


def near_path(path: str, suffix: str = "") -> str | None:
    """Return the existing path that becomes a path by one typing mistake in some of its names, or None.

    Args:
        path: A path that does not exist.
        suffix: The end of the file names, if the path is a path prefix.

    Example:
        >>> near_path("/ect/hosts"), near_path("/ect", ".idx")
        ('/etc/hosts', None)
    """
    if is_remote(path):
        return None
    return next(_near_paths(path.rstrip("/"), suffix), None)


def _near_paths(path: str, suffix: str) -> Iterator[str]:
    """Yield the path itself if it exists, else the existing paths whose names are near those of the path."""
    if os.path.exists(path + suffix):
        yield path
        return
    parent, name = os.path.split(path)
    if not name:
        return
    for directory in _near_paths(parent, "") if parent else ("",):
        exact = os.path.join(directory, name)
        if directory != parent and os.path.exists(exact + suffix):
            yield exact
            continue
        for other in _names(directory or os.curdir, suffix):
            if is_near(name, other):
                yield os.path.join(directory, other)


def _names(directory: str, suffix: str) -> list[str]:
    """Return the names in a directory that end with a suffix, without it; none of an unreadable one."""
    try:
        with os.scandir(directory) as entries:
            names = [entry.name for entry in islice(entries, _MAX_NAMES)]
    except OSError:
        return []
    return sorted(name.removesuffix(suffix) for name in names if name.endswith(suffix))
