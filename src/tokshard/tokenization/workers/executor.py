"""Executors: where units are encoded. The simplest one encodes in this process."""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import Protocol

from tokshard.tokenization.encoded_unit import EncodedUnit, Placements
from tokshard.tokenization.encoder import BatchProgress, EncodingSpec, Outcome, UnitEncoder
from tokshard.tokenization.workers.feed import Feed

Events = Generator[BatchProgress | Outcome, None, None]
"""The progress of the workers, and the outcome of each unit once it is committed."""


class Executor(Protocol):
    """Encodes all tasks of a feed."""

    def run(
        self, spec: EncodingSpec, parts_directory: str, feed: Feed, placements: Placements | None
    ) -> Events:
        """Encode until the feed is exhausted; close the iterator to stop early.

        ``placements``: finds the positions of tokens in the output; None if all tokens stay in their
        parts. An executor may leave them there in any case.

        Yields:
            The progress of the workers, and the outcome of each unit once it is committed.

        Raises:
            TokshardError: The first error of a worker or of the feed.
        """


class InlineExecutor:
    """Encodes in this process, one unit after the other."""

    def run(
        self, spec: EncodingSpec, parts_directory: str, feed: Feed, placements: Placements | None
    ) -> Events:
        """See :class:`Executor`."""
        ready = threading.Event()
        feed.wake = ready.set
        encoder = None
        while True:
            ready.clear()
            if (task := feed.take()) is not None:
                encoder = encoder or UnitEncoder(spec, parts_directory)
                for event in encoder.encode(task):
                    if not isinstance(event, EncodedUnit):
                        yield event
                        continue
                    # If all units before it have been encoded, its tokens go to their position at once.
                    found = placements.locate(event.held) if placements else []
                    event.commit(found[0] if found and event.is_held else None)
                    yield task.outcome
            elif feed.exhausted:
                return
            else:
                ready.wait()
