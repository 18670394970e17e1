"""The plan of a training job: what its data-parallel ranks read, for training, validation and testing.

``plan.json`` is written last into the directory of a plan, so a directory that has one is complete.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Self

from tokshard.core.codec import TOOL, Document, Positive, Record, Sha256, Tool, encode
from tokshard.core.path_mapping import PathMapping
from tokshard.dataset.products import PLAN_NAME
from tokshard.dataset.tokenizer_agreement import DatasetTokenizer, TokenizerMismatch, allowed_warnings
from tokshard.errors import IntegrityError, MissingFileError, UsageError
from tokshard.ranks.assignment import Assignment
from tokshard.ranks.choices import Mode, ShuffleKind, Tail
from tokshard.ranks.history import StoppedPlan
from tokshard.ranks.locator import open_sort_key
from tokshard.ranks.order import Bucketing
from tokshard.ranks.sources import PathResolver, SampleSource
from tokshard.ranks.topology import Topology, context_slices
from tokshard.storage.digest import identity_digest
from tokshard.storage.fs import refuse_remote
from tokshard.storage.reading import read_document

if TYPE_CHECKING:
    from tokshard.ranks.order import KeyOf


MAX_WORLD_SIZE = 1_000_000
"""Ranks are looked at one by one where a plan is made: more of them are a mistake."""

_STREAM_NAME = re.compile(r"train|test|valid(\.[0-9]{1,5})?")


@dataclass(frozen=True, slots=True)
class Stream(Record):
    """A stream: samples for training, validation or testing, with a count of consumed samples.

    Raises:
        UsageError: The parts do not fit.

    Attributes:
        source: Samples of the data, by id.
        assignment: Samples of each rank and step, as formulas.
        mode: Mode (``--mode``).
        tail: Treatment of an incomplete final batch (``--tail``).
        shuffle: Shuffle (``--shuffle``).
        sort_key: Sort key of bucketing. Null without bucketing.
        document_boundaries: Whether every pipeline stage reads document boundaries
            (``--document-boundaries``).
    """

    source: SampleSource
    assignment: Assignment
    mode: Mode
    tail: Tail
    shuffle: ShuffleKind
    sort_key: str | None
    document_boundaries: bool

    def _validate(self) -> None:
        for epochs in self.assignment.epoch_ranges:
            if epochs.order.total != self.source.total:
                raise UsageError(f"the order must have {self.source.total} samples, got {epochs.order.total}")
            bucketing = any(isinstance(transform, Bucketing) for transform in epochs.order.transforms)
            if self.sort_key is None and bucketing:
                raise UsageError("bucketing requires a sort key")
        if self.sort_key is not None and self.sort_key not in self.source.sort_keys:
            raise UsageError(
                f"samples of kind {self.source.kind} do not support the sort key {self.sort_key!r}",
                hint=f"use one of {', '.join(self.source.sort_keys)}",
            )

    def open_sort_key(self) -> KeyOf | None:
        """Return the function from sample ids to the keys that bucketing sorts by; None without bucketing.

        See :func:`~tokshard.ranks.locator.open_sort_key`.
        """
        return None if self.sort_key is None else open_sort_key(self.source, self.sort_key)


@dataclass(frozen=True, slots=True)
class PlanWarning(Record):
    """A warning about a plan.

    Attributes:
        code: ``document-padding``: documents must be padded for context parallelism. ``changed-dataset``: a
            dataset has changed since the earlier plan read it, and is read from its start. ``no-bucketing``:
            a new blend is read without bucketing. ``tokenizer``: tokenizers were not compared, or documents
            of some datasets end or begin differently.
        stream: Name of the stream. Absent for ``tokenizer``.
        path_prefix: Path prefix of a ``changed-dataset``. Absent for other codes.
        multiple: Number of tokens of which the padded length of documents must be a multiple. Absent unless
            the code is ``document-padding``.
        detail: Sentence of a ``tokenizer`` warning. Absent for other codes.
    """

    code: Literal["document-padding", "changed-dataset", "no-bucketing", "tokenizer"]
    stream: str | None = None
    path_prefix: str | None = None
    multiple: Positive | None = None
    detail: str | None = None

    @property
    def message(self) -> str:
        """One sentence."""
        if self.code == "document-padding":
            return f"the documents of {self.stream} must be padded to multiples of {self.multiple} tokens"
        if self.code == "changed-dataset":
            return (
                f"{self.path_prefix} has changed since the earlier plan read it, and is read from its start"
            )
        if self.code == "no-bucketing":
            return "the new blend is read in blend order, without bucketing"
        return self.detail or ""


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
    streams: dict[str, Stream]
    history: tuple[StoppedPlan, ...]
    warnings: tuple[PlanWarning, ...]
    tokenizer: DatasetTokenizer | None = None
    tokenizer_mismatches: tuple[TokenizerMismatch, ...] | None = None

    def __repr__(self) -> str:
        streams = ", ".join(
            f"{name}: {stream.assignment.steps} steps of {stream.source.total} samples"
            for name, stream in self.streams.items()
        )
        return f"Plan({self.plan_id[:12]}, {self.topology.world_size} ranks, {streams})"

    @classmethod
    def of(
        cls,
        topology: Topology,
        streams: dict[str, Stream],
        history: tuple[StoppedPlan, ...] = (),
        warnings: tuple[PlanWarning, ...] = (),
        tokenizer: DatasetTokenizer | None = None,
        tokenizer_mismatches: tuple[TokenizerMismatch, ...] | None = None,
    ) -> Self:
        """Return the plan of some streams, with its id."""
        plan_id = _identity(topology, streams)
        return cls(TOOL, plan_id, topology, streams, history, warnings, tokenizer, tokenizer_mismatches)

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
            self._check(name, stream)
        if self.plan_id != _identity(self.topology, self.streams):
            raise UsageError("plan_id contradicts the other fields: the plan was changed")

    def _check(self, name: str, stream: Stream) -> None:
        if stream.assignment.ranks != self.topology.data_parallel:
            raise UsageError(
                f"the ranks of {name} must be the data-parallel size "
                f"{self.topology.data_parallel}, got {stream.assignment.ranks}"
            )
        if stream.source.sequence_length is not None:
            # Raises where the sequence length is not divisible by 2 x context-parallel size.
            context_slices(stream.source.sequence_length, self.topology.context_parallel, 0)

    @property
    def messages(self) -> tuple[str, ...]:
        """The warnings for people: mismatches of tokenizers that were allowed, and all others."""
        others = (warning.message for warning in self.warnings)
        return (*allowed_warnings(self.tokenizer_mismatches), *others)

    def stored_in(self, directory: str) -> Self:
        """Return the plan with the paths that its file in a directory has.

        Raises:
            UsageError: A path has characters that a plan does not store.
        """
        return self._with_paths(PathResolver(directory).stored)

    def opened_from(self, path: str, moved: PathMapping = PathMapping()) -> Self:  # noqa: B008 - immutable
        """Return the plan of a file with paths that can be opened.

        Args:
            path: The file, to whose directory paths are relative.
            moved: Where data has moved.

        Raises:
            IntegrityError: A path is none that a plan stores.
        """
        try:
            return self._with_paths(PathResolver(os.path.dirname(path), moved).opened)
        except UsageError as error:
            raise IntegrityError(f"{path}: {error.message}", path=path) from error

    def _with_paths(self, path: Callable[[str], str]) -> Self:
        streams = {
            name: replace(stream, source=stream.source.with_paths(path))
            for name, stream in self.streams.items()
        }
        plan = copy(self)  # paths are no part of plan_id, which takes time to compute
        object.__setattr__(plan, "streams", streams)
        return plan


def _identity(topology: Topology, streams: Mapping[str, Stream]) -> str:
    read = {
        name: {
            "source": stream.source.id,
            "assignment": encode(stream.assignment),
            "sort_key": stream.sort_key,
            "document_boundaries": stream.document_boundaries,
        }
        for name, stream in streams.items()
    }
    return identity_digest({"schema": Plan.SCHEMA, "topology": encode(topology), "streams": read})


def read_plan(path: str | os.PathLike[str], *, roots: Mapping[str, str] | None = None) -> Plan:
    """Read a plan strictly; no data is opened.

    Args:
        path: The directory of the plan, or its ``plan.json``.
        roots: Where data has moved: beginnings of absolute paths (whole directories) and what they are now,
            for example ``{"/scratch/data": "/mnt/data"}``.

    Raises:
        UsageError: It is named by a URL.
        MissingFileError: The plan was not found.
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
    return plan.opened_from(file, PathMapping(tuple((roots or {}).items())))
