"""Path mapping: directories of one machine and their locations on another."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PathMapping:
    """Replaces the longest known prefix of a path, whole directory names only.

    Paths are compared as text; normalize them first if several spellings can occur. URLs work as well.

    Attributes:
        pairs: Pairs (old prefix, new prefix); a trailing slash makes no difference.

    Example:
        >>> mapping = PathMapping((("out", "/data/v1"), ("out/web", "/fast/web")))
        >>> mapping.map("out/books"), mapping.map("out/web/a"), mapping.map("output/web")
        ('/data/v1/books', '/fast/web/a', 'output/web')
        >>> mapping.inverse().map("/data/v1/books")
        'out/books'
    """

    pairs: tuple[tuple[str, str], ...] = ()

    def map(self, path: str) -> str:
        """Return the new path, or the path itself if no pair applies."""
        matching = [
            (old.rstrip("/"), new)
            for old, new in self.pairs
            if path in {old, old.rstrip("/")} or path.startswith(old.rstrip("/") + "/")
        ]
        if not matching:
            return path
        root, new = max(matching, key=lambda pair: len(pair[0]))
        rest = path[len(root) + 1 :]
        return f"{new.rstrip('/')}/{rest}" if rest else new

    def inverse(self) -> PathMapping:
        """Return the mapping from the new paths to the old ones."""
        return PathMapping(tuple((new, old) for old, new in self.pairs))
