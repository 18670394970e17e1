"""The share of one task: encoded into the common work directory, which others write to at the same time."""

from __future__ import annotations

from contextlib import AbstractContextManager, closing, nullcontext

from tokshard.core.progress import Progress, ProgressUpdate
from tokshard.corpus.files import CorpusFile, check_unchanged
from tokshard.corpus.records import RejectedRecord
from tokshard.errors import InputError
from tokshard.storage.paths import is_remote
from tokshard.storage.remote.objects import open_binary
from tokshard.storage.scratch import scratch_directory
from tokshard.tokenization.assembly import ErrorPolicy
from tokshard.tokenization.encoder import BatchProgress
from tokshard.tokenization.job_array.shares import Deal
from tokshard.tokenization.job_array.survey import Survey
from tokshard.tokenization.job_array.task import ArrayTask
from tokshard.tokenization.part import UnitKey
from tokshard.tokenization.preparation import TokenizeJob, plain_bytes
from tokshard.tokenization.workers.executor import Executor
from tokshard.tokenization.workers.feed import Feed
from tokshard.tokenization.workers.local import default_executor
from tokshard.tokenization.workspace import Workspace

_COUNT_BYTES = 1 << 22


class Share:
    """The share of a task, and what becomes of it: encoded by an executor.

    Nothing is ever removed: what looks half-done may be under way elsewhere.

    Args:
        job: The run.
        workspace: Its work directory, whose lock is held, be it with others.
        task: Which task.
        progress: Who is told of the progress.

    Attributes:
        encoded_units: Units encoded here.
        resumed: Units of the share that were finished before.
        documents: Documents encoded here.
        tokens: Tokens made of them.
    """

    def __init__(self, job: TokenizeJob, workspace: Workspace, task: ArrayTask, progress: Progress) -> None:
        self._job = job
        self._workspace = workspace
        self._task = task
        self._progress = progress
        self._deal = Deal(job.files, task.count, job.options.unit_bytes)
        self._survey = Survey(job, workspace)
        self._files = [number for number in range(len(job.files)) if task.index in self._deal.members(number)]
        self.encoded_units = self.documents = self.tokens = 0
        self.resumed = sum(self._is_mine(key) for key in self._survey.assembled)
        self._bytes_done = 0
        self._ready: set[UnitKey] = set()
        for key in filter(self._is_mine, self._survey.present()):
            if not self._survey.is_assembled(key) and (facts := self._survey.part(key)) is not None:
                self._ready.add(key)
                self._bytes_done += facts.input_bytes
        self.resumed += len(self._ready)

    def encode(self, executor: Executor | None) -> None:
        """Encode what lacks of the share.

        Raises:
            TokshardError: As :func:`tokshard.tokenize_corpus`.
        """
        files = [self._job.files[number] for number in self._files]
        widths = [len(self._deal.members(number)) for number in self._files]
        content_bytes = sum(plain_bytes([file]) // width for file, width in zip(files, widths, strict=True))
        disk_bytes = sum((file.size_bytes or 0) // width for file, width in zip(files, widths, strict=True))
        chosen = executor or default_executor(content_bytes, self._job.workers)
        self._progress.start(disk_bytes, self._bytes_done)
        try:
            with self._scratch() as raw:
                self._run(chosen, raw)
            check_unchanged(files)
        finally:
            self._progress.finish()

    def _run(self, executor: Executor, raw: str) -> None:
        with (
            Feed(
                self._job.files,
                [number for number in self._files if self._needs_opening(number)],
                unit_bytes=self._job.options.unit_bytes,
                max_document_bytes=self._job.options.max_document_bytes,
                raw_directory=raw,
                is_done=self._needs_nothing,
                streams=self._job.workers,
            ) as feed,
            # The assembly's files are only for who holds the lock alone: tokens stay in their parts.
            closing(executor.run(self._job.spec(), self._workspace.parts, feed, None)) as events,
        ):
            for event in events:
                if isinstance(event, BatchProgress):
                    self.documents += event.documents
                    self.tokens += event.tokens
                elif event.refused is not None:
                    raise self._refusal(event.key, event.refused)
                else:
                    self.encoded_units += 1
                    self._bytes_done += event.input_bytes
                self._progress.update(ProgressUpdate(self._bytes_done, self.documents, self.tokens))

    def _scratch(self) -> AbstractContextManager[str]:
        """Return where decompressed units wait, if there are any."""
        streamed = any(self._job.files[number].is_stream for number in self._files)
        return scratch_directory() if streamed else nullcontext("")

    def _is_mine(self, key: UnitKey) -> bool:
        return self._deal.owner(key) == self._task.index

    def _needs_nothing(self, key: UnitKey) -> bool:
        return not self._is_mine(key) or key in self._ready or self._survey.is_assembled(key)

    def _needs_opening(self, number: int) -> bool:
        """Tell whether to open a file: a compressed one would be decompressed for nothing if all is done."""
        if not self._job.files[number].is_stream:
            return True
        count = self._survey.stream_units(number)
        return count is None or not all(self._needs_nothing(UnitKey(number, index)) for index in range(count))

    def _refusal(self, key: UnitKey, record: RejectedRecord) -> InputError:
        options = self._job.options
        file = self._job.files[key.file]
        line = _line_of(file, record.offset)
        policy = ErrorPolicy(options.on_error == "skip", options.max_errors)
        return policy.refuse(file.path, line, record.offset, record.reason, record.detail, record.excerpt)


def _line_of(file: CorpusFile, offset: int) -> int | None:
    """Return the number of the line (or row) at an offset, where it can be found without decompressing.

    The lines before a unit are in the units of other tasks, and nobody has counted them yet.
    """
    if file.format != "jsonl":
        return offset + 1
    if file.is_stream or is_remote(file.path):
        return None
    lines = 1
    with open_binary(file.path) as text:
        while offset and (chunk := text.read(min(offset, _COUNT_BYTES))):
            lines += chunk.count(b"\n")
            offset -= len(chunk)
    return lines
