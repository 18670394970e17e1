"""Where a plan says that files lie, and where they are found."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from tokshard.core.path_mapping import PathMapping
from tokshard.errors import IntegrityError, UsageError
from tokshard.storage.fs import relative_inside
from tokshard.storage.paths import is_remote

_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Places:
    """How paths are stored in the files of a plan, and opened again.

    Data that lies in the plan's directory is stored relative to it, so that both can move together; all
    else by its absolute path or its URL, which ``roots`` can map to another place.

    Attributes:
        directory: The plan's directory; None where paths do not matter and become empty.
        source: The file that names the paths, for errors.
        roots: Beginnings of absolute paths or URLs (whole directories) and what they become.

    Example:
        >>> places = Places("/runs/plan", "plan.json", {"/data": "/mnt/data"})
        >>> places.opened("/data/web"), places.opened("cache"), places.stored("/runs/plan/cache")
        ('/mnt/data/web', '/runs/plan/cache', 'cache')
    """

    directory: str | None
    source: str
    roots: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def nowhere(cls) -> Self:
        """Return places for what does not depend on where files lie."""
        return cls(None, "")

    def stored(self, path: str) -> str:
        """Return a path as the plan stores it.

        Raises:
            UsageError: It has characters that :meth:`opened` refuses.
        """
        if self.directory is None:
            return ""
        stored = relative_inside(path, self.directory)
        if not _is_storable(stored):
            raise UsageError(
                f"a plan cannot name the path {stored!r}: it begins with ~, or has a backslash or characters "
                "that cannot be seen",
                hint="give the file, or the directory it is in, a plain name",
            )
        return stored

    def opened(self, stored: str) -> str:
        """Return a stored path as it can be opened.

        Raises:
            IntegrityError: It is no path that a plan stores: empty, leading out of the plan's directory, or
                with characters that cannot be seen.
        """
        if not _is_storable(stored):
            raise IntegrityError(
                f"{self.source} names the path {stored[:_SHOWN]!r}, which a plan does not store",
                path=self.source,
            )
        if not stored.startswith("/") and not is_remote(stored):
            return os.path.normpath(os.path.join(self.directory or "", stored))
        mapped = PathMapping.of(self.roots.items()).map(stored)
        return mapped if is_remote(mapped) else os.path.normpath(mapped)


def _is_storable(path: str) -> bool:
    return (
        bool(path)
        and path.isprintable()
        and "\\" not in path
        and ".." not in path.split("/")
        and not path.startswith("~")
    )
