"""Forwards: from a sample, a step or a document to the records that it was made from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tokshard.errors import UsageError
from tokshard.gpt_index.index import GPTDatasetIndex
from tokshard.sharding.locator import Locator
from tokshard.tracing.origin import Origin
from tokshard.tracing.pieces import Pieces, pieces_of
from tokshard.tracing.provenance import NO_MANIFEST, Provenance
from tokshard.tracing.report import DocumentTrace, PieceTrace, SamplesReport, SampleTrace
from tokshard.tracing.scanning import spread
from tokshard.tracing.sequences import SequenceTable
from tokshard.tracing.subject import Course, Subject, of_one_state
from tokshard.tracing.texts import Texts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]


@of_one_state
def trace_document(subject: Subject, document: int, *, tokenizer: str | None = None) -> DocumentTrace:
    """Return where a document of a dataset comes from, and its text.

    Args:
        subject: A dataset.
        document: The number of the document, from 0.
        tokenizer: The tokenizer to decode with, see
            :func:`~tokshard.inspection.tokenizers.tokenizer_of`.

    Raises:
        UsageError: There is no such document.
        InputError: A dataset was changed meanwhile.
    """
    prefix, multimodal = next(iter(subject.datasets.items()))
    known = _Dataset(prefix, multimodal=multimodal, tokenizer=tokenizer)
    count = known.table.document_count
    if not 0 <= document < count:
        raise UsageError(f"{prefix} has no document {document}: it has {count} documents, from 0")
    pieces = known.pieces(known.whole(document))
    origin, note = known.origins(np.array([document]))[0]
    return DocumentTrace(
        dataset=prefix,
        document=document,
        sequences=int(np.diff(known.table.sequences_of(np.array([document])), axis=0)[0, 0]),
        tokens=sum(one.stop_token - one.first_token for one in pieces),
        origin=origin,
        note=note,
        text="".join(one.text or "" for one in pieces) if known.has_text else None,
    )


@of_one_state
def trace_sample(
    subject: Subject, stream: str, sample: int, *, tokenizer: str | None = None
) -> SamplesReport:
    """Return what a sample of a blend, an index or a plan is made of.

    Args:
        subject: What it is a sample of.
        stream: The stream.
        sample: Its number in the stream, from 0.
        tokenizer: The tokenizer to decode with.

    Raises:
        UsageError: There is no such stream or sample.
        InputError: A dataset was changed meanwhile.
    """
    course = subject.course(stream)
    if not 0 <= sample < course.source.total:
        raise UsageError(
            f"{subject.path} has no sample {sample} of {stream}: it has {course.source.total}, from 0"
        )
    traced = _Samples(course, tokenizer).trace(np.array([sample], np.int64))
    plan_id = None if subject.plan is None else subject.plan.plan_id
    return SamplesReport(subject.kind, subject.path, stream, plan_id, None, None, None, tuple(traced))


@of_one_state
def trace_step(
    subject: Subject, stream: str, step: int, rank: int | None = None, *, tokenizer: str | None = None
) -> SamplesReport:
    """Return what the samples of a step of a plan are made of.

    Args:
        subject: A plan.
        stream: The stream.
        step: The step of the plan, from 0.
        rank: A rank of the job; None for the samples of all ranks.
        tokenizer: The tokenizer to decode with.

    Raises:
        UsageError: There is no such stream, step or rank.
        InputError: A dataset was changed meanwhile.
    """
    course = subject.course(stream)
    if subject.plan is None or course.stream is None:
        raise UsageError(f"{subject.path} is no plan: only plans have steps and ranks")
    topology, assignment = subject.plan.topology, course.stream.assignment
    if not 0 <= step < assignment.steps:
        raise UsageError(f"{subject.path} has no step {step} of {stream}: it has {assignment.steps}, from 0")
    if rank is not None and not 0 <= rank < topology.world_size:
        raise UsageError(f"{subject.path} has no rank {rank}: it has {topology.world_size}, from 0")
    dealt = range(assignment.ranks) if rank is None else [topology.coordinates(rank).dp]
    samples = _Samples(course, tokenizer)
    traced: list[SampleTrace] = []
    for one in dealt:
        ids = assignment.step_ids(one, step, course.key_of)
        traced += samples.trace(ids.ravel(), data_parallel_rank=one, width=ids.shape[1])
    return SamplesReport(
        kind=subject.kind,
        path=subject.path,
        stream=stream,
        plan_id=subject.plan.plan_id,
        step=step,
        consumed_samples=assignment.consumed_after(step),
        rank=rank,
        samples=tuple(traced),
    )


class _Dataset:
    """One dataset: its sequences, its provenance and its text."""

    def __init__(self, prefix: str, *, multimodal: bool, tokenizer: str | None) -> None:
        self.prefix = prefix
        self.table = SequenceTable(prefix, multimodal=multimodal)
        self._provenance = Provenance.open(prefix)
        self._texts = Texts(prefix, multimodal=multimodal, tokenizer=tokenizer)

    @property
    def has_text(self) -> bool:
        return self._texts.is_known

    def whole(self, document: int) -> Pieces:
        """Return a document as the pieces of itself."""
        firsts, stops = self.table.sequences_of(np.array([document]))
        _, sequences = spread(firsts, stops - firsts)
        lengths = self.table.lengths(sequences)
        sequences, lengths = sequences[lengths > 0], lengths[lengths > 0]
        return Pieces(np.full(lengths.shape, document), sequences, np.zeros_like(lengths), lengths)

    def origins(self, documents: Integers) -> list[tuple[Origin | None, str | None]]:
        if self._provenance is None:
            return [(None, NO_MANIFEST)] * documents.size
        return [(origin, None) for origin in self._provenance.origins(documents)]

    def pieces(self, found: Pieces) -> tuple[PieceTrace, ...]:
        documents = self.table.documents_of(found.sequences)
        shifts = self.table.places(found.sequences, documents)
        lengths = found.stops - found.firsts
        rows = np.stack(
            [found.sequences, found.firsts, found.stops, documents, shifts, np.cumsum(lengths) - lengths]
        )
        return tuple(
            PieceTrace(
                document=document,
                sequence=sequence,
                first_token=shift + first,
                stop_token=shift + stop,
                place=place,
                origin=origin,
                note=note,
                text=self._texts.of(sequence, first, stop),
            )
            for (sequence, first, stop, document, shift, place), (origin, note) in zip(
                rows.T.tolist(), self.origins(documents), strict=True
            )
        )


class _Samples:
    """The samples of a stream, with the datasets that have been opened for them."""

    def __init__(self, course: Course, tokenizer: str | None) -> None:
        self._source = course.source
        self._locator = Locator(course.source)
        self._tokenizer = tokenizer
        self._open: dict[int, tuple[_Dataset, GPTDatasetIndex | None]] = {}

    def trace(
        self, ids: Integers, *, data_parallel_rank: int | None = None, width: int | None = None
    ) -> list[SampleTrace]:
        """Trace samples; with ``width``, the samples of a micro-batch, they are those of a rank's step."""
        numbers, samples = self._locator.locate(ids)
        traced = []
        for slot, (sample, number, of_dataset) in enumerate(
            zip(ids.tolist(), numbers.tolist(), samples.tolist(), strict=True)
        ):
            dataset, index = self._dataset(number)
            found = (
                dataset.whole(of_dataset) if index is None else pieces_of(index, dataset.table, of_dataset)
            )
            traced.append(
                SampleTrace(
                    sample=sample,
                    dataset=dataset.prefix,
                    dataset_sample=of_dataset,
                    tokens=int((found.stops - found.firsts).sum()),
                    pieces=dataset.pieces(found),
                    data_parallel_rank=data_parallel_rank,
                    slot=None if width is None else slot,
                    micro_batch=None if width is None else slot // width,
                )
            )
        return traced

    def _dataset(self, number: int) -> tuple[_Dataset, GPTDatasetIndex | None]:
        if number not in self._open:
            reference = self._source.datasets[number]
            reference.check()
            dataset = _Dataset(reference.prefix, multimodal=reference.multimodal, tokenizer=self._tokenizer)
            self._open[number] = (dataset, None if reference.index is None else reference.open_index())
        return self._open[number]
