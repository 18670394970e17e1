"""Progress of long work, reported to a listener.

The library calls a :class:`Progress`; the command line draws it; :class:`SilentProgress` ignores it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ProgressUpdate:
    """Totals of an activity since it began.

    Attributes:
        bytes_done: Bytes processed; of tokenize: input bytes (compressed bytes of compressed inputs).
        documents: Documents processed.
        tokens: Tokens processed.
        content_bytes: Bytes whose rate is shown; if None, the rate of ``bytes_done``.
        content: The bytes of the rate in words, for example ``" of text"``, as the report names them.
    """

    bytes_done: int = 0
    documents: int = 0
    tokens: int = 0
    content_bytes: int | None = None
    content: str = ""


class Progress(Protocol):
    """Listener for the progress of a long run. All methods are called from one thread."""

    def start(self, activity: str, bytes_total: int | None = None, bytes_resumed: int = 0) -> None:
        """Begin an activity, which ends the one before it.

        Args:
            activity: Its name, for example ``"encoding"`` or ``"loading the tokenizer"``.
            bytes_total: Bytes that it processes; None if unknown.
            bytes_resumed: The part of them that an earlier run has processed.
        """

    def update(self, state: ProgressUpdate) -> None:
        """Report totals of the activity, ``bytes_resumed`` included; called up to some 100 times a second."""

    def message(self, text: str) -> None:
        """Show the user a message that is not an error."""

    def finish(self) -> None:
        """End, after success or failure. Another activity may begin later."""


class SilentProgress:
    """A :class:`Progress` that ignores everything."""

    def start(self, activity: str, bytes_total: int | None = None, bytes_resumed: int = 0) -> None:
        """Ignore the beginning."""

    def update(self, state: ProgressUpdate) -> None:
        """Ignore the totals."""

    def message(self, text: str) -> None:
        """Ignore the text."""

    def finish(self) -> None:
        """Ignore the end."""


@contextmanager
def reporting(progress: Progress | None) -> Iterator[Progress]:
    """Yield the listener of a caller, or a silent one, and finish it after the block."""
    listener = progress or SilentProgress()
    try:
        yield listener
    finally:
        listener.finish()
