"""The encoding of what a job lacks: units to parts, parts to the assembly in order, and the staging of it."""

from __future__ import annotations

from collections.abc import Callable

from tokshard.core.progress import Progress, ProgressUpdate
from tokshard.corpus.files import check_unchanged
from tokshard.corpus.records import RejectedRecord
from tokshard.dataset.publication import seal
from tokshard.errors import IntegrityError
from tokshard.tokenization.assembly import Assembly, ErrorPolicy
from tokshard.tokenization.encoder import Outcome
from tokshard.tokenization.part import PartReader, UnitKey
from tokshard.tokenization.placement import Measured, Place
from tokshard.tokenization.preparation import TokenizeJob
from tokshard.tokenization.staging import stage
from tokshard.tokenization.workers.executor import Executor
from tokshard.tokenization.workers.feed import Feed
from tokshard.tokenization.workspace import Workspace


def encode_missing(job: TokenizeJob, workspace: Workspace, executor: Executor, progress: Progress) -> int:
    """Encode what is missing and stage the outputs; return how many units were there already."""
    assembly = Assembly(
        workspace.directory,
        field_count=len(job.options.fields),
        offsets=job.options.provenance,
        input_names=[file.path for file in job.files],
        policy=ErrorPolicy(job.options.on_error == "skip", job.options.max_errors),
        accepts_engine=job.accepted_engines,
    )
    try:
        run = _Encoding(job, workspace, assembly, progress)
        progress.start(_total_bytes(job), run.bytes_done)
        if assembly.next < UnitKey(len(job.files), 0):
            executor.run(job.recipe(), workspace.parts, run.make_feed, run)
        run.check_complete()
        check_unchanged(job.files)
        manifests = stage(workspace.directory, assembly, job.plan, job.parameters)
    finally:
        assembly.close()
        progress.finish()
    seal(workspace.directory, manifests)
    return run.resumed


class _Encoding:
    """The listener of an executor: appends parts in order, and knows what is done."""

    def __init__(
        self, job: TokenizeJob, workspace: Workspace, assembly: Assembly, progress: Progress
    ) -> None:
        self._job = job
        self._workspace = workspace
        self._assembly = assembly
        self._progress = progress
        self._feed: Feed | None = None
        self._refused: dict[UnitKey, RejectedRecord] = {}
        self.resumed = sum(1 for _ in assembly.units()) if assembly.next > UnitKey(0, 0) else 0
        self.bytes_done = assembly.input_bytes_done
        self._ready: set[UnitKey] = set()
        self._documents = assembly.counts.documents
        self._tokens = sum(one.tokens for one in assembly.counts.fields)
        self._placement = assembly.placement()
        for part in workspace.usable_parts(assembly.next, job.accepted_engines):
            self._ready.add(part.unit)
            self.locate(Measured(part.unit, part.last, part.token_bytes))
            self._documents += part.counts.documents
            self._tokens += sum(one.tokens for one in part.counts.fields)
            self.bytes_done += part.input_bytes
            self.resumed += 1
        self._assemble()

    def make_feed(self, wake: Callable[[], None]) -> Feed:
        """Make the feed of what is not done yet."""
        self._feed = Feed(
            self._job.files,
            unit_bytes=self._job.options.unit_bytes,
            max_document_bytes=self._job.options.max_document_bytes,
            raw_directory=self._workspace.raw,
            is_done=lambda key: key < self._assembly.next or key in self._ready,
            file_is_done=lambda number: number < self._assembly.next.file,
            streams=self._job.workers,
            wake=wake,
        )
        return self._feed

    def encoded(self, content_bytes: int, documents: int, tokens: int) -> None:  # noqa: ARG002
        """See :class:`~tokshard.tokenization.workers.executor.Listener`."""
        self._documents += documents
        self._tokens += tokens
        self._tell()

    def locate(self, unit: Measured) -> list[Place]:
        """See :class:`~tokshard.tokenization.workers.executor.Listener`."""
        return self._placement.locate(unit)

    def finished(self, outcome: Outcome) -> None:
        """See :class:`~tokshard.tokenization.workers.executor.Listener`."""
        if outcome.refused is not None:
            self._refused[outcome.key] = outcome.refused
            if self._feed is not None:
                self._feed.limit_to(outcome.key)
        else:
            self._ready.add(outcome.key)
            self.bytes_done += outcome.input_bytes
        self._assemble()
        self._tell()

    def check_complete(self) -> None:
        """Check, at the end, that every unit of every file has been assembled."""
        if self._assembly.next != UnitKey(len(self._job.files), 0):
            raise IntegrityError(f"unit {self._assembly.next} was never finished")

    def _assemble(self) -> None:
        """Append all parts whose turn has come."""
        while (key := self._assembly.next) in self._ready:
            with PartReader(self._workspace.part_path(key)) as part:
                self._assembly.append(part)
            self._ready.discard(key)
        if (record := self._refused.get(self._assembly.next)) is not None:
            raise self._assembly.refuse(
                self._assembly.next,
                (record.offset, record.line, record.reason, record.detail, record.excerpt),
            )

    def _tell(self) -> None:
        rejected = self._assembly.counts.rejected_total
        self._progress.update(ProgressUpdate(self.bytes_done, self._documents, self._tokens, rejected))


def _total_bytes(job: TokenizeJob) -> int | None:
    sizes = [file.size_bytes for file in job.files]
    return None if None in sizes else sum(size for size in sizes if size is not None)
