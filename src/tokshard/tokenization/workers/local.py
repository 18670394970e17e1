"""The executor of a job that was given none: this process, or worker processes on this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Self

from tokshard.corpus.files import CorpusFile
from tokshard.tokenization.encoded_unit import Placements
from tokshard.tokenization.encoder import EncodingSpec
from tokshard.tokenization.options import TokenizeOptions
from tokshard.tokenization.preparation import plain_bytes
from tokshard.tokenization.workers.executor import Events, Executor, InlineExecutor
from tokshard.tokenization.workers.feed import Feed
from tokshard.tokenization.workers.pool import ProcessPool

# Worker processes need about half a second to start; below this size they do not pay.
INLINE_BYTES = 4 << 20


def default_executor(content_bytes: int, workers: int) -> InlineExecutor | ProcessPool:
    """Return where to encode on this machine: worker processes pay only where there is enough to do."""
    if content_bytes <= INLINE_BYTES:
        return InlineExecutor()
    return ProcessPool(workers)


class EarlyExecutor:
    """The executor that a job is given, or this machine's, which loads libraries while the plan is made.

    Use as a context manager: processes that were started and not needed are ended.

    Args:
        given: The executor that the job is to use, or None.
    """

    def __init__(self, given: Executor | None) -> None:
        self._chosen = given
        self._started: ProcessPool | None = None

    def begin(self, files: Sequence[CorpusFile], options: TokenizeOptions) -> None:
        """Choose an executor for these inputs if none was given, and start its processes.

        Raises:
            WorkerError: The system allows no more processes or files.
        """
        if self._chosen is None:
            workers = options.workers or len(os.sched_getaffinity(0))
            self._chosen = default_executor(plain_bytes(files), workers)
            if isinstance(self._chosen, ProcessPool):
                self._started = self._chosen
                self._started.start().expect(options)

    def run(
        self, spec: EncodingSpec, parts_directory: str, feed: Feed, placements: Placements | None
    ) -> Events:
        """See :class:`~tokshard.tokenization.workers.executor.Executor`."""
        if self._chosen is None:
            raise RuntimeError("a job begins with its inputs, before anything is run")
        return self._chosen.run(spec, parts_directory, feed, placements)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *arguments: object) -> None:
        if self._started is not None:
            self._started.end()
