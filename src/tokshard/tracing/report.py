"""What tracing has found, as values and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Any

from tokshard.tracing.origin import Origin

DOCUMENT_SCHEMA = "tokshard.trace-document/1"
SAMPLES_SCHEMA = "tokshard.trace-samples/1"
READINGS_SCHEMA = "tokshard.trace-readings/1"

READ, UNREAD, FOUND, REJECTED, NOT_FOUND = "read", "unread", "found", "rejected", "not-found"

_OF_READING = (
    "stream",
    "sample",
    "dataset_sample",
    "sequence",
    "first_token",
    "stop_token",
    "plan_id",
    "epoch",
    "step",
    "data_parallel_rank",
    "slot",
    "again",
    "seen",
)
CSV_COLUMNS = ("item", "status", "problem", "dataset", "document", "document_tokens", *_OF_READING)
_values_of = attrgetter(*_OF_READING)


@dataclass(frozen=True, slots=True)
class DocumentTrace:
    """A document and where it comes from.

    Attributes:
        dataset: The path prefix of its dataset.
        document: Its number.
        sequences: Its sequences.
        tokens: Its tokens.
        origin: The record that it was made from, or None.
        note: Why there is no origin.
        text: Its text; None where the tokenizer is not known.
    """

    dataset: str
    document: int
    sequences: int
    tokens: int
    origin: Origin | None
    note: str | None
    text: str | None

    def to_json(self) -> dict[str, Any]:
        """Return the trace as a JSON object with a ``schema`` field."""
        return {"schema": DOCUMENT_SCHEMA, **asdict(self)}


@dataclass(frozen=True, slots=True)
class PieceTrace:
    """A part of a document in a sample.

    Attributes:
        document: The number of the document in the dataset of the sample.
        sequence: The sequence of the dataset.
        first_token: Its first token, counted in the document.
        stop_token: The first token of the document after it.
        place: Where it begins in the sample, in tokens.
        origin: The record that the document was made from, or None.
        note: Why there is no origin.
        text: The text of the part; None where the tokenizer is not known.
    """

    document: int
    sequence: int
    first_token: int
    stop_token: int
    place: int
    origin: Origin | None
    note: str | None
    text: str | None


@dataclass(frozen=True, slots=True)
class SampleTrace:
    """A sample and what it is made of.

    Attributes:
        sample: Its number in the stream.
        dataset: The path prefix of its dataset.
        dataset_sample: Its number in the index of the dataset; of documents, the document.
        tokens: Its tokens, without padding.
        pieces: The parts of documents, in order.
        data_parallel_rank: Who reads it, where a step of a plan was asked for.
        slot: Its place within the rank's samples of the step.
        micro_batch: The micro-batch of the step that it is in.
    """

    sample: int
    dataset: str
    dataset_sample: int
    tokens: int
    pieces: tuple[PieceTrace, ...]
    data_parallel_rank: int | None = None
    slot: int | None = None
    micro_batch: int | None = None


@dataclass(frozen=True, slots=True)
class SamplesReport:
    """One sample, or the samples of a step.

    Attributes:
        kind: What was traced through.
        path: Where it is.
        stream: The stream.
        plan_id: The plan.
        step: Its step.
        consumed_samples: What all ranks have consumed before the step.
        rank: The rank that was asked for; None for all.
        samples: The samples, by data-parallel rank and slot.
    """

    kind: str
    path: str
    stream: str
    plan_id: str | None
    step: int | None
    consumed_samples: int | None
    rank: int | None
    samples: tuple[SampleTrace, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object with a ``schema`` field."""
        return {"schema": SAMPLES_SCHEMA, **asdict(self)}


@dataclass(frozen=True, slots=True)
class Reading:
    """One time that a part of a document is read.

    Attributes:
        stream: The stream.
        sample: The sample of the stream.
        dataset_sample: The sample of the dataset's index; of documents, the document.
        sequence: The sequence of the dataset.
        first_token: The first token that is read, counted in the document.
        stop_token: The first token after these.
        plan_id: The plan that reads it; None, as all below, where no plan was asked.
        epoch: The epoch.
        step: The step of that plan.
        data_parallel_rank: The data-parallel rank.
        slot: The place within the rank's samples of the step.
        micro_batch: The micro-batch of the step.
        again: Whether it is read as padding, after it was read in the same epoch.
        seen: Whether it had been read when so many samples were consumed as were asked about; None where
            that was not asked.
    """

    stream: str
    sample: int
    dataset_sample: int
    sequence: int
    first_token: int
    stop_token: int
    plan_id: str | None = None
    epoch: int | None = None
    step: int | None = None
    data_parallel_rank: int | None = None
    slot: int | None = None
    micro_batch: int | None = None
    again: bool | None = None
    seen: bool | None = None


@dataclass(frozen=True, slots=True)
class DocumentReadings:
    """A document and all that read it.

    Attributes:
        dataset: The path prefix of its dataset.
        document: Its number.
        tokens: Its tokens.
        readings: Every time that a part of it is read, in the order of time.
    """

    dataset: str
    document: int
    tokens: int
    readings: tuple[Reading, ...]


@dataclass(frozen=True, slots=True)
class ItemTrace:
    """What became of one thing that was asked about.

    Attributes:
        item: As the user wrote it.
        status: ``"read"``; ``"unread"``: it is a document, and nothing reads it; ``"found"``: it is a
            document of a dataset, of which nothing more was asked; ``"rejected"``: its record was not made
            a document; ``"not-found"``.
        problem: The reason, where it is not read.
        seen: Whether any of its readings was seen; None where that was not asked.
        documents: The documents that were made of it: one for each dataset that has it.
    """

    item: str
    status: str
    problem: str | None
    seen: bool | None
    documents: tuple[DocumentReadings, ...]


@dataclass(frozen=True, slots=True)
class ReadingsReport:
    """Who reads some documents.

    Attributes:
        kind: What was traced through.
        path: Where it is.
        streams: The streams that were looked through.
        plan_id: The plan.
        consumed_samples: The consumed samples that were asked about.
        ranks: For each data-parallel rank that reads any of it, the ranks of the job.
        notes: What was not looked at, one sentence each.
        items: What became of each thing, in the order of the question.
    """

    kind: str
    path: str
    streams: tuple[str, ...]
    plan_id: str | None
    consumed_samples: int | None
    ranks: dict[int, list[int]]
    notes: tuple[str, ...]
    items: tuple[ItemTrace, ...]

    @property
    def is_complete(self) -> bool:
        """Whether every item was found to be a document."""
        return all(item.status in {READ, UNREAD, FOUND} for item in self.items)

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object with a ``schema`` field."""
        return {"schema": READINGS_SCHEMA, **asdict(self)}

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield a row of :data:`CSV_COLUMNS` for each reading, and one for each document that nothing reads.

        What a row does not have is None.
        """
        unread = (None,) * len(_OF_READING)
        for item in self.items:
            named = (item.item, item.status, item.problem)
            for one in item.documents:
                known = (*named, one.dataset, one.document, one.tokens)
                for reading in one.readings:
                    yield (*known, *_values_of(reading))
                if not one.readings:
                    yield (*known, *unread)
            if not item.documents:
                yield (*named, None, None, None, *unread)
