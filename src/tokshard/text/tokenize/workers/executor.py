"""Executors: where units are encoded. The simplest one encodes in this process."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from tokshard.text.tokenize.encoder import BatchProgress, EncodingSpec, Outcome
    from tokshard.text.tokenize.workers.feed import Feed

LOOK_SECONDS = 0.005
"""The pause before an executor looks again whether threads have decompressed another unit."""

Events: TypeAlias = "Generator[BatchProgress | Outcome, None, None]"


class Executor(Protocol):
    """Encodes all tasks of a feed."""

    def run(self, spec: EncodingSpec, parts_directory: str, feed: Feed) -> Events:
        """Encode until the feed is exhausted; close the iterator to stop early.

        Yields:
            The progress of the workers, and the outcome of each unit once it is committed.

        Raises:
            TokshardError: The first error of a worker or of the feed.
        """


class InlineExecutor:
    """Encodes in this process, one unit after the other."""

    def run(self, spec: EncodingSpec, parts_directory: str, feed: Feed) -> Events:
        """See :class:`Executor`."""
        from tokshard.text.tokenize.encoder import UnitEncoder

        encoder = None
        with ExitStack() as stack:
            while (task := feed.take()) is not None or not feed.exhausted:
                if task is None:
                    time.sleep(LOOK_SECONDS)
                    continue
                if encoder is None:
                    encoder = UnitEncoder(spec, parts_directory)
                    stack.enter_context(encoder.loading())
                yield from encoder.encode(task)
