"""Feeds for tests: made of real files, and drained as an executor drains them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from tokshard.dataset.parameters import TokenizeParameters
from tokshard.text.corpus.files import discover
from tokshard.text.tokenize.encoder import Task
from tokshard.text.tokenize.part import PartNames, UnitKey
from tokshard.text.tokenize.workers.feed import Feed

PATIENCE_SECONDS = 240.0


class Fed:
    """A feed of some files."""

    def __init__(
        self,
        paths: list[Path],
        raw: Path,
        *,
        unit_bytes: int = 100,
        streams: int = 2,
        done: frozenset[UnitKey] = frozenset(),
        done_files: frozenset[int] = frozenset(),
    ) -> None:
        self.raw = raw
        raw.mkdir(exist_ok=True)
        files = discover([str(path) for path in paths])
        parameters = TokenizeParameters(
            eod_id=0, dtype="uint16", max_document_bytes=64_000_000, unit_size=unit_bytes
        )
        self.names = PartNames(files, parameters)
        self.feed = Feed(
            files,
            [number for number in range(len(paths)) if number not in done_files],
            names=self.names,
            max_document_bytes=parameters.max_document_bytes,
            raw_directory=str(raw),
            is_done=done.__contains__,
            streams=streams,
        )

    def next(self) -> Task | None:
        """Wait for the next task; None when none will come any more."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while (task := self.feed.take()) is None and not self.feed.exhausted:
            assert time.monotonic() < deadline, "nothing came, and the feed is not exhausted"
            time.sleep(0.001)
        return task

    def stop(self) -> None:
        """End the feed before it is exhausted."""
        with self.feed:
            pass

    def drain(self, use: Callable[[Task], None] = lambda task: None) -> list[Task]:
        """Take all tasks; after ``use``, remove decompressed units as a worker does."""
        tasks = []
        while (task := self.next()) is not None:
            tasks.append(task)
            use(task)
            if getattr(task.unit, "temporary", False):
                os.unlink(task.unit.path)
        return tasks
