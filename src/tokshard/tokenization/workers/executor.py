"""What every executor does: encodes all tasks of a feed and tells a listener."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tokshard.tokenization.encoder import Outcome
from tokshard.tokenization.placement import Measured, Place
from tokshard.tokenization.recipe import Recipe
from tokshard.tokenization.workers.feed import Feed


class Listener(Protocol):
    """Who is told what happens. An exception raised by it ends the execution."""

    def encoded(self, content_bytes: int, documents: int, tokens: int) -> None:
        """A batch has been encoded."""

    def locate(self, unit: Measured) -> list[Place] | None:
        """A unit has been encoded and is held in memory; return the places that are now known.

        They may be those of other units that are held. None means that tokens are to stay in the parts. An
        executor that always leaves them there need not ask.
        """

    def finished(self, outcome: Outcome) -> None:
        """A unit has been finished."""


class Executor(Protocol):
    """Encodes all tasks of a feed."""

    def run(
        self,
        recipe: Recipe,
        parts_directory: str,
        make_feed: Callable[[Callable[[], None]], Feed],
        listener: Listener,
    ) -> None:
        """Encode until the feed is exhausted.

        Args:
            recipe: What to do with each unit.
            parts_directory: Where parts are committed.
            make_feed: Makes the feed, given what it is to call when a task has become ready.
            listener: Who is told what happens, in this thread.

        Raises:
            TokshardError: The first error of a worker or of the feed.
        """
