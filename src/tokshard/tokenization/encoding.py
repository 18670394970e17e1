"""The encoding of what a job lacks: units to parts, parts to the assembly in order, and the staging of it."""

from __future__ import annotations

from contextlib import closing

from tokshard.core.progress import Progress, ProgressUpdate
from tokshard.corpus.files import check_unchanged
from tokshard.corpus.records import RejectedRecord
from tokshard.dataset.build_run import BuildResult
from tokshard.errors import IntegrityError
from tokshard.tokenization.assembly import Assembly, ErrorPolicy
from tokshard.tokenization.encoded_unit import HeldUnit
from tokshard.tokenization.encoder import BatchProgress
from tokshard.tokenization.part import PartReader, UnitKey
from tokshard.tokenization.preparation import TokenizeJob
from tokshard.tokenization.staging import stage
from tokshard.tokenization.workers.executor import Executor
from tokshard.tokenization.workers.feed import Feed
from tokshard.tokenization.workspace import Workspace


def encode_missing(
    job: TokenizeJob, workspace: Workspace, executor: Executor, progress: Progress
) -> BuildResult:
    """Encode what is missing and stage the outputs; the units that existed already count as resumed."""
    assembly = Assembly(
        workspace.directory,
        field_count=len(job.options.fields),
        offsets=job.options.provenance,
        input_names=[file.path for file in job.files],
        policy=ErrorPolicy(job.options.on_error == "skip", job.options.max_errors),
        accepts=job.accepted_engines,
    )
    try:
        run = _Encoding(job, workspace, assembly, progress)
        progress.start(_total_bytes(job), run.bytes_done)
        if assembly.next < UnitKey(len(job.files), 0):
            run.encode(executor)
        run.check_complete()
        check_unchanged(job.files)
        manifests = stage(workspace.directory, assembly, job.plan, job.parameters)
    finally:
        assembly.close()
        progress.finish()
    return BuildResult(tuple(manifests), run.resumed)


class _Encoding:
    """The encoding of the units that are not finished; parts are appended to the assembly in order."""

    def __init__(
        self, job: TokenizeJob, workspace: Workspace, assembly: Assembly, progress: Progress
    ) -> None:
        self._job = job
        self._workspace = workspace
        self._assembly = assembly
        self._progress = progress
        self._refused: dict[UnitKey, RejectedRecord] = {}
        self.resumed = sum(1 for _ in assembly.units()) if assembly.next > UnitKey(0, 0) else 0
        self.bytes_done = assembly.input_bytes_done
        self._ready: set[UnitKey] = set()
        self._documents = assembly.counts.documents
        self._tokens = assembly.counts.tokens
        self._placements = assembly.placements()
        for part in workspace.usable_parts(assembly.next, job.accepted_engines):
            self._ready.add(part.unit)
            self._placements.locate(HeldUnit(part.unit, part.header.last, part.token_bytes))
            self._documents += part.header.counts.documents
            self._tokens += part.header.counts.tokens
            self.bytes_done += part.header.input_bytes
            self.resumed += 1
        self._assemble()

    def encode(self, executor: Executor) -> None:
        """Encode what is missing."""
        with (
            Feed(
                self._job.files,
                range(self._assembly.next.file, len(self._job.files)),
                unit_bytes=self._job.options.unit_bytes,
                max_document_bytes=self._job.options.max_document_bytes,
                raw_directory=self._workspace.raw,
                is_done=lambda key: key < self._assembly.next or key in self._ready,
                streams=self._job.workers,
            ) as feed,
            closing(executor.run(self._job.spec(), self._workspace.parts, feed, self._placements)) as events,
        ):
            for event in events:
                if isinstance(event, BatchProgress):
                    self._documents += event.documents
                    self._tokens += event.tokens
                elif event.refused is not None:
                    self._refused[event.key] = event.refused
                    feed.limit_to(event.key)
                    self._assemble()
                else:
                    self._ready.add(event.key)
                    self.bytes_done += event.input_bytes
                    self._assemble()
                self._progress.update(self._state())

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
            raise self._assembly.refuse(self._assembly.next, record)

    def _state(self) -> ProgressUpdate:
        rejected = self._assembly.counts.rejected_total
        return ProgressUpdate(self.bytes_done, self._documents, self._tokens, rejected)


def _total_bytes(job: TokenizeJob) -> int | None:
    sizes = [file.size_bytes for file in job.files]
    return None if None in sizes else sum(size for size in sizes if size is not None)
