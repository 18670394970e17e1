"""Where a job encodes if it is not told: on this machine, in this process or in worker processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from tokshard.corpus.files import CorpusFile
from tokshard.tokenization.options import TokenizeOptions
from tokshard.tokenization.preparation import plain_bytes
from tokshard.tokenization.recipe import Recipe
from tokshard.tokenization.workers.executor import Executor, Listener
from tokshard.tokenization.workers.feed import Feed
from tokshard.tokenization.workers.inline import InlineExecutor
from tokshard.tokenization.workers.processes import ProcessExecutor
from tokshard.tokenization.workers.starting import INLINE_BYTES, NurseryProcess


def default_executor(content_bytes: int, workers: int) -> InlineExecutor | ProcessExecutor:
    """Return where to encode on this machine: worker processes pay only where there is enough to do."""
    if content_bytes <= INLINE_BYTES:
        return InlineExecutor()
    return ProcessExecutor(workers)


class EarlyExecutor:
    """The executor that a job is given, or this machine's, which loads libraries while the plan is made.

    Use as a context manager: processes that were started and not needed are ended.

    Args:
        given: The executor that the job is to use, or None.
        ahead: A nursery that was started ahead.
    """

    def __init__(self, given: Executor | None, ahead: NurseryProcess | None = None) -> None:
        self._chosen = given
        self._ahead = ahead
        self._started: ProcessExecutor | None = None

    def begin(self, files: Sequence[CorpusFile], options: TokenizeOptions) -> None:
        """Choose an executor for these inputs if none was given, and start its processes.

        Raises:
            WorkerError: The system allows no more processes or files.
        """
        if self._chosen is None:
            workers = options.workers or len(os.sched_getaffinity(0))
            self._chosen = default_executor(plain_bytes(files), workers)
            if isinstance(self._chosen, ProcessExecutor):
                self._started = self._chosen
                if self._ahead is None:
                    self._ahead = NurseryProcess()
                    self._ahead.expect(options)
                self._started.start(self._ahead)

    def run(
        self,
        recipe: Recipe,
        parts_directory: str,
        make_feed: Callable[[Callable[[], None]], Feed],
        listener: Listener,
    ) -> None:
        """See :class:`~tokshard.tokenization.workers.executor.Executor`."""
        if self._chosen is None:
            raise RuntimeError("a job begins with its inputs, before anything is run")
        self._chosen.run(recipe, parts_directory, make_feed, listener)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._started is not None:
            self._started.end()
        if self._ahead is not None:
            self._ahead.kill()
