"""Reads of documents: every sample, step and rank that reads some documents.

Everything goes through the indexes: a document's sequences are looked for in the document index, their
positions lead to rows of the sample index, these to samples by way of the shuffle index, samples to ids of
the blend, and ids by formulas to steps and ranks. Each array is searched once for all documents together,
block by block; tokens are never read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tokshard.checks.trace.report import DocumentRead, SampleRead
from tokshard.checks.trace.sequence_table import find, find_in_blocks, pairs, spread
from tokshard.errors import IntegrityError
from tokshard.samples.index.spans import SampleSpans, Spans
from tokshard.storage.paths import idx_path

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.checks.trace.sequence_table import SequenceTable
    from tokshard.ranks.consumption import ConsumptionOrder
    from tokshard.ranks.links import KeyOf
    from tokshard.ranks.plan import Plan
    from tokshard.ranks.sources import DatasetReference, SampleSource
    from tokshard.samples.index.index import GPTDatasetIndex

    Integers = NDArray[np.int64]
    TableOf = Callable[[str], SequenceTable]

DocumentId = tuple[str, int]
"""The path prefix of a dataset, and the number of a document."""

_BLOCK = 1 << 18


@dataclass(frozen=True, slots=True)
class PlanStage:
    """A plan, or one that it continues, as far as it was followed.

    Attributes:
        steps: How many of its steps were or will be taken.
    """

    plan_id: str
    order: ConsumptionOrder
    steps: int


@dataclass(frozen=True, slots=True, eq=False)
class _DocumentParts:
    # int64 arrays of one shape.
    target: Integers
    dataset: Integers
    sample: Integers
    sequence: Integers
    first: Integers
    stop: Integers
    label: Integers

    @classmethod
    def joined(cls, parts: list[Self]) -> Self:
        empty = np.empty(0, np.int64)
        names = [field.name for field in fields(cls)]
        return cls(*(np.concatenate([empty, *(getattr(part, name) for part in parts)]) for name in names))


def stages_of(plan: Plan, stream: str) -> tuple[tuple[PlanStage, ...], int]:
    """Return the plans that read the samples of a stream, oldest first, the plan itself last.

    Returns:
        The stages, and how many plans before them read another blend, of which the plan does not know the
        samples.
    """
    stages: list[PlanStage] = []
    unknown = 0
    for entry in plan.history:
        stopped = entry.streams.get(stream)
        if stopped is None:
            continue
        steps = stopped.order.step_at(stopped.consumed_samples)
        stages.append(PlanStage(entry.plan_id, stopped.order, steps))
        if stopped.reweighting is not None:
            unknown += len(stages)
            stages = []
    last = plan.streams[stream].order
    return (*stages, PlanStage(plan.plan_id, last, last.steps)), unknown


def find_reads(
    source: SampleSource,
    stream: str,
    targets: Sequence[DocumentId],
    table_of: TableOf,
    *,
    stages: tuple[PlanStage, ...] = (),
    key_of: KeyOf | None = None,
    consumed_samples: int | None = None,
) -> Iterator[tuple[DocumentId, DocumentRead]]:
    """Yield every read of some documents in a stream, in the order of time.

    Without ``stages`` samples count as read in their order. ``key_of`` is needed where a plan sorts samples
    by length. Reads up to ``consumed_samples`` are marked as seen.

    Raises:
        IntegrityError: An index does not fit its dataset.
    """
    parts = _parts_of(source, targets, table_of)
    part_of_id, ids = _ids_of(source, parts)
    if not stages:
        for number in np.lexsort((parts.first[part_of_id], ids)).tolist():
            sample = int(ids[number])
            seen = None if consumed_samples is None else sample < consumed_samples
            yield _read(stream, targets, parts, int(part_of_id[number]), sample, {"seen": seen})
        return
    if not ids.size:
        return
    samples, sample_of_id = np.unique(ids, return_inverse=True)
    reads = _reads_of_samples(stages, samples, key_of)
    ids_read, times = pairs(sample_of_id, reads[0], samples.size)
    parts_read = part_of_id[ids_read]
    reads = reads[:, times]
    sample_of, stage, step, rank, row, *_ = reads
    order = np.lexsort((parts.first[parts_read], row, rank, step, stage))
    sample_ids = samples[sample_of[order]].tolist()
    for part, sample, read in zip(
        parts_read[order].tolist(), sample_ids, reads[:, order].T.tolist(), strict=True
    ):
        yield _read(stream, targets, parts, part, sample, _details(stages, read, consumed_samples))


def reads_of_sample(
    stages: tuple[PlanStage, ...], sample: int, key_of: KeyOf | None
) -> tuple[SampleRead, ...]:
    """Return every read of a sample by plans, in the order of time; ``key_of``: as in :func:`find_reads`."""
    reads = _reads_of_samples(stages, np.array([sample], np.int64), key_of)
    _, stage, step, rank, row, *_ = reads
    order = np.lexsort((row, rank, step, stage))
    return tuple(SampleRead(**_details(stages, read, None)) for read in reads[:, order].T.tolist())


def _details(stages: tuple[PlanStage, ...], read: list[int], consumed_samples: int | None) -> dict[str, Any]:
    _, stage, step, rank, row_of_step, epoch, repeated, consumed = read
    micro_batch, row = divmod(row_of_step, stages[stage].order.micro_batch_size)
    return {
        "plan_id": stages[stage].plan_id,
        "epoch": epoch,
        "step": step,
        "data_parallel_rank": rank,
        "row": row,
        "micro_batch": micro_batch,
        "repeated": bool(repeated),
        "seen": None if consumed_samples is None else consumed <= consumed_samples,
    }


def _read(
    stream: str,
    targets: Sequence[DocumentId],
    parts: _DocumentParts,
    part: int,
    sample: int,
    details: dict[str, Any],
) -> tuple[DocumentId, DocumentRead]:
    read = DocumentRead(
        stream=stream,
        sample=sample,
        dataset_sample=int(parts.sample[part]),
        sequence=int(parts.sequence[part]),
        first_token=int(parts.first[part]),
        stop_token=int(parts.stop[part]),
        label_only=bool(parts.label[part]),
        **details,
    )
    return targets[int(parts.target[part])], read


def _parts_of(source: SampleSource, targets: Sequence[DocumentId], table_of: TableOf) -> _DocumentParts:
    by_prefix: dict[str, list[int]] = {}
    for number, (prefix, _) in enumerate(targets):
        by_prefix.setdefault(prefix, []).append(number)
    found = []
    for number, reference in enumerate(source.datasets):
        mine = np.array(by_prefix.get(reference.path_prefix, ()), np.int64)
        if mine.size:
            reference.idx.check(idx_path(reference.path_prefix), "plan")
            documents = np.array([targets[target][1] for target in mine.tolist()], np.int64)
            table = table_of(reference.path_prefix)
            owner, spans = _spans_of(reference, table, documents)
            firsts = spans.firsts + table.tokens_before(spans.sequences, documents[owner])
            found.append(
                _DocumentParts(
                    target=mine[owner],
                    dataset=np.full(owner.shape, number, np.int64),
                    sample=spans.owners,
                    sequence=spans.sequences,
                    first=firsts,
                    stop=firsts + spans.counts,
                    label=spans.labels.astype(np.int64),
                )
            )
    return _DocumentParts.joined(found)


def _spans_of(
    reference: DatasetReference, table: SequenceTable, documents: Integers
) -> tuple[Integers, Spans]:
    # For each part of the documents in samples: its document's place, and the part's span.
    firsts, stops = table.sequences_of(documents)
    # Ascending and each once, because the documents are.
    owners, sequences = spread(firsts, stops - firsts)
    if reference.index is not None:
        found = _spans_in_samples(reference.open_index(), table, sequences)
    else:
        found = Spans.whole(documents[owners], sequences, table.lengths(sequences))
    return owners[np.searchsorted(sequences, found.sequences)], found


def _spans_in_samples(index: GPTDatasetIndex, table: SequenceTable, sequences: Integers) -> Spans:
    # Searches the document index and the shuffle index once each, in blocks; only hits are kept.
    spans = SampleSpans(index, table.sequence_lengths, path=table.path)
    positions, _ = find(index.document_index, sequences)
    found = spans.of_positions(positions)
    rows, places = np.unique(found.owners, return_inverse=True)
    samples, which = find(index.shuffle_index, rows)
    if samples.size != rows.size:
        raise IntegrityError(
            f"the shuffle index of {table.path} must contain every sample once",
            path=table.path,
            field="shuffle_index",
            hint="rebuild the index: it was built from other data, or is damaged",
        )
    of_row = np.empty(rows.size, np.int64)
    of_row[which] = samples
    return replace(found, owners=of_row[places])


def _ids_of(source: SampleSource, parts: _DocumentParts) -> tuple[Integers, Integers]:
    # For each time that a part's sample is one of the source: the part, and the id of the sample.
    if source.order is None:
        references = source.datasets
        within = (
            parts.sample - np.array([reference.first for reference in references], np.int64)[parts.dataset]
        )
        counts = np.array([reference.samples for reference in references], np.int64)[parts.dataset]
        inside = np.flatnonzero((within >= 0) & (within < counts))
        return inside, (source.bounds[parts.dataset] + within)[inside]
    arrays = source.order.open()
    numbers, samples = arrays["dataset_index"], arrays["dataset_sample_index"]
    if numbers.shape != (source.total,) or samples.shape != (source.total,):
        path = source.order.array_path("dataset_index")
        raise IntegrityError(f"{path}: the arrays of the blend must have {source.total} samples", path=path)
    count = len(source.datasets)
    keys, key_of = np.unique(parts.sample * count + parts.dataset, return_inverse=True)

    def block_of(first: int, stop: int) -> Integers:
        block: Integers = samples[first:stop] * count + numbers[first:stop]
        return block

    ids, which = find_in_blocks(source.total, block_of, keys)
    found, times = pairs(key_of, which, keys.size)
    return found, ids[times]


def _reads_of_samples(stages: tuple[PlanStage, ...], ids: Integers, key_of: KeyOf | None) -> Integers:
    """Return every read of samples.

    Args:
        stages: The plans that read them.
        ids: int64, ascending, each once.
        key_of: Returns the sort keys of samples; required with bucketing.

    Returns:
        int64 of shape (8, reads): the index of the id, the number of the stage, step, rank, row among the
        samples of the rank in the step, epoch, 1 if the sample was read before in the epoch, and the
        consumed samples of all ranks after the step.
    """
    tables = [np.empty((8, 0), np.int64)]
    for number, stage in enumerate(stages):
        order = stage.order
        stop = order.first_number(stage.steps)
        for epoch, is_repeated, indices, numbers in _numbers_of(order, ids, stop, key_of):
            step, rank, row = order.reads(numbers)
            consumed = order.timeline.consumed(step + 1)
            columns = (indices, number, step, rank, row, epoch, is_repeated, consumed)
            tables.append(np.stack(np.broadcast_arrays(*columns)))
    return np.concatenate(tables, axis=1)


def _numbers_of(
    order: ConsumptionOrder, ids: Integers, stop: int, key_of: KeyOf | None
) -> Iterator[tuple[int, bool, Integers, Integers]]:
    """Yield an epoch, whether samples are repeated in it, indices of ids, and the numbers that read them."""
    number = 0
    while number < stop:
        epoch, position = order.point(number)
        epochs = next(epochs for epochs in order.epoch_ranges if epochs.has_epoch(epoch))
        end = min(number + epochs.read - position, stop)
        numbers = order.find(ids, epoch, key_of)
        indices = np.flatnonzero((numbers >= 0) & (numbers < stop))
        yield epoch, False, indices, numbers[indices]
        first = number + max(epochs.first_repeated - position, 0)
        for begin in range(first, end, _BLOCK):
            again = np.arange(begin, min(begin + _BLOCK, end), dtype=np.int64)
            again = again[order.repeated(again)]
            samples = order.ids(again, key_of)
            indices = np.minimum(np.searchsorted(ids, samples), ids.size - 1)
            is_of_ids = ids[indices] == samples
            yield epoch, True, indices[is_of_ids], again[is_of_ids]
        number = end
