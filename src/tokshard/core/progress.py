"""Progress of long work, reported to a listener.

The library calls a :class:`Progress`; the command line draws it; :class:`SilentProgress` ignores it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ProgressUpdate:
    """Totals since the run began.

    Attributes:
        bytes_done: Raw input bytes consumed (compressed bytes for compressed inputs).
        documents: Documents encoded.
        tokens: Tokens written.
        rejected: Records rejected.
    """

    bytes_done: int = 0
    documents: int = 0
    tokens: int = 0
    rejected: int = 0


class Progress(Protocol):
    """A listener to long work. All methods are called from one thread."""

    def start(self, bytes_total: int | None, bytes_resumed: int) -> None:
        """Begin: total raw input bytes (None if unknown) and those that an earlier run has done."""

    def update(self, state: ProgressUpdate) -> None:
        """Report totals; called at most a few times a second for each worker."""

    def message(self, text: str) -> None:
        """Show the user a message that is not an error."""

    def finish(self) -> None:
        """End, after success or failure."""


class SilentProgress:
    """A :class:`Progress` that ignores everything.

    Example:
        >>> SilentProgress().update(ProgressUpdate(documents=1))
    """

    def start(self, bytes_total: int | None, bytes_resumed: int) -> None:
        """Ignore the beginning."""

    def update(self, state: ProgressUpdate) -> None:
        """Ignore the totals."""

    def message(self, text: str) -> None:
        """Ignore the text."""

    def finish(self) -> None:
        """Ignore the end."""
