"""The plan of a training job: what its data-parallel ranks read, for training, validation and testing.

``plan.json`` is written last into the directory of a plan, so a directory that has one is complete.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Self

from tokshard.core.codec import TOOL, Amount, Count, Document, Record, Sha256, Tool, encode
from tokshard.core.path_mapping import PathMapping
from tokshard.dataset.products import PLAN_NAME
from tokshard.dataset.recorded_tokenizers import DatasetTokenizer, TokenizerMismatch, allowed_warnings
from tokshard.errors import IntegrityError, MissingFileError, UsageError
from tokshard.ranks.choices import Mode, Tail
from tokshard.ranks.consumption import ConsumptionOrder
from tokshard.ranks.links import Bucketing
from tokshard.ranks.locator import open_sort_key
from tokshard.ranks.sources import PathResolver, SampleSource, SourcesFile
from tokshard.ranks.topology import Topology, context_slices
from tokshard.storage.digest import identity_digest
from tokshard.storage.fs import refuse_remote
from tokshard.storage.reading import read_document

if TYPE_CHECKING:
    from tokshard.ranks.links import KeyOf


MAX_WORLD_SIZE = 1_000_000
"""Ranks are looked at one by one where a plan is made: more of them are a mistake."""

_STREAM_NAME = re.compile(r"train|test|valid(\.[0-9]{1,5})?")


@dataclass(frozen=True, slots=True)
class Stream(Record):
    """A stream: samples for training, validation or testing, with a count of consumed samples.

    Raises:
        UsageError: The parts do not fit.

    Attributes:
        source_id: SHA-256 of what the sample ids mean.
        order: Samples of each rank and step, as formulas.
        mode: Mode (``--mode``).
        tail: Treatment of an incomplete final batch (``--tail``).
        sort_key: Sort key of bucketing. Null without bucketing.
        document_boundaries: Whether every pipeline stage reads document boundaries
            (``--document-boundaries``).
    """

    source_id: Sha256
    order: ConsumptionOrder
    mode: Mode
    tail: Tail
    sort_key: str | None
    document_boundaries: bool
    source: SampleSource = field(init=False, repr=False, compare=False)

    def _validate(self) -> None:
        links = [link for epochs in self.order.epoch_ranges for link in epochs.links]
        if self.sort_key is None and any(isinstance(link, Bucketing) for link in links):
            raise UsageError("bucketing requires a sort key")

    @classmethod
    def of(
        cls,
        source: SampleSource,
        order: ConsumptionOrder,
        mode: Mode,
        tail: Tail,
        sort_key: str | None = None,
        *,
        document_boundaries: bool = False,
    ) -> Self:
        """Return a stream over the samples of a source."""
        return cls(source.id, order, mode, tail, sort_key, document_boundaries).over(source)

    def over(self, source: SampleSource) -> Self:
        """Attach the source, which is stored apart; return the stream.

        Raises:
            UsageError: The order or the sort key does not fit the source.
        """
        for epochs in self.order.epoch_ranges:
            if epochs.total != source.total:
                raise UsageError(f"the order must have {source.total} samples, got {epochs.total}")
        if self.sort_key is not None and self.sort_key not in source.sort_keys:
            raise UsageError(
                f"samples of kind {source.kind} do not support the sort key {self.sort_key!r}",
                hint=f"use one of {', '.join(source.sort_keys)}",
            )
        object.__setattr__(self, "source", source)
        return self

    def open_sort_key(self) -> KeyOf | None:
        """Return the function from sample ids to the keys that bucketing sorts by, or None without bucketing.

        See :func:`~tokshard.ranks.locator.open_sort_key`.
        """
        return None if self.sort_key is None else open_sort_key(self.source, self.sort_key)


@dataclass(frozen=True, slots=True)
class Reweighting(Record):
    """The order of a re-weighted blend: each source continues with its next draw.

    Draw ``g`` of a source with ``n`` samples is sample ``g`` of its index for ``g < n``. Later draws are
    source epoch ``g // n``, a keyed order of all samples.

    Raises:
        UsageError: There are not as many draws and keys as weights.

    Attributes:
        weights: Weight of each dataset of the stream. 0 if it is no longer drawn.
        seed: Seed of the source epochs after the first one.
        draws: Draws of each dataset before the first sample of the plan.
        keys: Number of each dataset in the keys of its source epochs.
    """

    ALGORITHM: ClassVar[str] = "tokshard.feistel/1:lap"

    weights: tuple[Amount, ...]
    seed: Count
    draws: tuple[Count, ...]
    keys: tuple[Count, ...]

    def _validate(self) -> None:
        if not len(self.draws) == len(self.keys) == len(self.weights):
            raise UsageError(
                f"draws and keys must have {len(self.weights)} items like weights, "
                f"got {len(self.draws)} and {len(self.keys)}"
            )


@dataclass(frozen=True, slots=True)
class StoppedStream(Record):
    """A stream of a plan that was stopped.

    Raises:
        UsageError: The plan has no step that ends there.

    Attributes:
        order: Order of the stopped plan.
        consumed_samples: Samples that all ranks have consumed when it stopped.
        reweighting: Order of the blend that the next plan reads. Absent if it reads the same samples.
    """

    order: ConsumptionOrder
    consumed_samples: Count
    reweighting: Reweighting | None = None

    def _validate(self) -> None:
        self.order.step_at(self.consumed_samples)


@dataclass(frozen=True, slots=True)
class StoppedPlan(Record):
    """A plan that was stopped, and that the next one continues.

    Attributes:
        plan_id: Id of the plan.
        streams: Streams that continue, by name.
    """

    plan_id: Sha256
    streams: dict[str, StoppedStream]


@dataclass(frozen=True, slots=True)
class Plan(Document):
    """The samples that all ranks of a job read.

    Raises:
        UsageError: The parts do not fit, or the ``plan_id`` is not theirs.

    Attributes:
        tool: Program that made the plan.
        plan_id: SHA-256 of everything that determines the samples that are read. Independent of where files
            are stored.
        topology: Ranks of the job.
        sources: File that describes the samples of all streams.
        streams: Streams, named ``train``, ``valid`` (or ``valid.0``, ``valid.1``, ...) and ``test``.
        history: Plans that this one continues, oldest first.
        warnings: Warnings about the plan.
        tokenizer: Tokenizer of all datasets, from their manifests. Absent if it is unknown or mixed.
        tokenizer_mismatches: Mismatches that ``--allow-tokenizer-mismatch`` allowed. Absent if there are
            none.
    """

    SCHEMA = "tokshard.plan/2"
    OLDER_HINT = "build it again with the same tokshard shard-plan command"

    tool: Tool
    plan_id: Sha256
    topology: Topology
    sources: SourcesFile
    streams: dict[str, Stream]
    history: tuple[StoppedPlan, ...]
    warnings: tuple[str, ...]
    tokenizer: DatasetTokenizer | None = None
    tokenizer_mismatches: tuple[TokenizerMismatch, ...] | None = None

    def __repr__(self) -> str:
        streams = ", ".join(
            f"{name}: {stream.order.steps} steps of {stream.order.epoch_ranges[0].total} samples"
            for name, stream in self.streams.items()
        )
        return f"Plan({self.plan_id[:12]}, {self.topology.world_size} ranks, {streams})"

    @classmethod
    def of(
        cls,
        topology: Topology,
        sources: SourcesFile,
        streams: dict[str, Stream],
        history: tuple[StoppedPlan, ...] = (),
        warnings: Iterable[str] = (),
        tokenizer: DatasetTokenizer | None = None,
        tokenizer_mismatches: tuple[TokenizerMismatch, ...] | None = None,
    ) -> Self:
        """Return the plan of some streams over their sources, with its id.

        Raises:
            UsageError: The parts do not fit.
        """
        plan = cls(
            TOOL,
            _identity(topology, streams),
            topology,
            sources,
            streams,
            history,
            tuple(warnings),
            tokenizer,
            tokenizer_mismatches,
        )
        return plan.over({name: stream.source for name, stream in streams.items()})

    def _validate(self) -> None:
        if not self.streams:
            raise UsageError("a plan must have at least 1 stream")
        if self.topology.world_size > MAX_WORLD_SIZE:
            raise UsageError(
                f"a plan must have at most {MAX_WORLD_SIZE:,} ranks, got {self.topology.world_size:,}"
            )
        for name, stream in self.streams.items():
            if _STREAM_NAME.fullmatch(name) is None:
                raise UsageError(f"invalid stream name {name!r}")
            if stream.order.ranks != self.topology.data_parallel:
                raise UsageError(
                    f"the ranks of {name} must be the data-parallel size "
                    f"{self.topology.data_parallel}, got {stream.order.ranks}"
                )
        if self.plan_id != _identity(self.topology, self.streams):
            raise UsageError("plan_id contradicts the other fields: the plan was changed")

    @property
    def messages(self) -> tuple[str, ...]:
        """The warnings for people: mismatches of tokenizers that were allowed, and all others."""
        return (*allowed_warnings(self.tokenizer_mismatches), *self.warnings)

    def over(self, sources: Mapping[str, SampleSource]) -> Self:
        """Attach the sources of the streams, which are stored apart; return the plan.

        Raises:
            UsageError: They are not those that the plan was made for.
        """
        for name, stream in self.streams.items():
            source = sources.get(name)
            if source is None or source.id != stream.source_id:
                raise UsageError(f"the samples of {name} are not those that the plan was built for")
            stream.over(source)
            if source.sequence_length is not None:
                # Raises where the sequence length is not divisible by 2 x context-parallel size.
                context_slices(source.sequence_length, self.topology.context_parallel, 0)
        return self

    def stops_of(self, stream: str) -> tuple[StoppedStream, ...]:
        """Return where a stream was stopped, oldest first."""
        return tuple(plan.streams[stream] for plan in self.history if stream in plan.streams)

    def stream(self, name: str) -> Stream:
        """Return a stream.

        Raises:
            UsageError: There is no such stream.
        """
        if name not in self.streams:
            raise UsageError(f"the stream must be {' or '.join(self.streams)}, got {name!r}")
        return self.streams[name]

    def reweighting_of(self, stream: str) -> Reweighting | None:
        """Return the order of the blend that a stream reads, or None if it was not re-weighted."""
        records = [stop.reweighting for stop in self.stops_of(stream) if stop.reweighting is not None]
        return records[-1] if records else None


def _identity(topology: Topology, streams: Mapping[str, Stream]) -> str:
    read = {
        name: {
            "source": stream.source_id,
            "order": encode(stream.order),
            "sort_key": stream.sort_key,
            "document_boundaries": stream.document_boundaries,
        }
        for name, stream in streams.items()
    }
    return identity_digest({"schema": Plan.SCHEMA, "topology": encode(topology), "streams": read})


def read_plan(path: str | os.PathLike[str], *, roots: Mapping[str, str] | None = None) -> Plan:
    """Read a plan and the description of its samples strictly; no data is opened.

    Args:
        path: The directory of the plan, or its ``plan.json``.
        roots: Where data has moved: beginnings of absolute paths (whole directories) and what they are now,
            for example ``{"/scratch/data": "/mnt/data"}``.

    Raises:
        UsageError: It is named by a URL.
        MissingFileError: The plan, or the blend that it names, was not found.
        IntegrityError: It is damaged, was changed, or is another version's.
    """
    file = os.fspath(path)
    refuse_remote(file, "a plan must be a local file")
    file = os.path.join(file, PLAN_NAME) if os.path.isdir(file) else file
    try:
        plan = read_document(Plan, file)
    except (FileNotFoundError, NotADirectoryError):
        raise MissingFileError(
            f"plan not found: {file}", path=file, hint="build it with tokshard shard-plan"
        ) from None
    resolver = PathResolver(os.path.dirname(file), PathMapping(tuple((roots or {}).items())))
    try:
        if plan.sources.blend_id is not None:
            plan = replace(plan, sources=replace(plan.sources, path=resolver.opened(plan.sources.path)))
        return plan.over(plan.sources.read(resolver, list(plan.streams)))
    except UsageError as error:
        raise IntegrityError(f"{file}: {error.message}", path=file, hint=error.hint) from error
