"""The plan."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from tokshard.errors import IntegrityError, MissingFileError, UsageError
from tokshard.sharding.assignment import Assignment
from tokshard.sharding.fields import Fields
from tokshard.sharding.order import Bucketing
from tokshard.sharding.sources import Places, SampleSource
from tokshard.sharding.summary import composition
from tokshard.sharding.topology import Topology, context_slices
from tokshard.storage.digest import identity_digest
from tokshard.storage.fs import refuse_remote
from tokshard.storage.small_files import read_json_object
from tokshard.version import __version__

MODES = ("single", "cyclic", "contiguous", "sequential", "chunked", "full-validation")
SHUFFLES = ("none", "shards", "samples", "blocks")
TAILS = ("drop", "pad", "error", "keep")

SCHEMA = "tokshard.plan/1"
PLAN_NAME = "plan.json"

MAX_WORLD_SIZE = 1_000_000
"""Ranks are looked at one by one where a plan is made: more of them are a mistake."""

_STREAM_NAME = re.compile(r"train|test|valid(\.[0-9]{1,5})?")


@dataclass(frozen=True, slots=True)
class Stream:
    """What is read for one purpose, with its own count of consumed samples.

    Attributes:
        source: What the sample ids mean.
        assignment: Which rank reads which of them, when.
        mode: One of :data:`~tokshard.sharding.planning.MODES`, as it was asked for.
        tail: One of :data:`~tokshard.sharding.planning.TAILS`.
        shuffle: One of :data:`~tokshard.sharding.planning.SHUFFLES`.
        sort_key: What bucketing sorts by, one of the source's; None without bucketing.
        boundaries: Whether attention goes no further than documents, so that every pipeline stage reads
            their boundaries.

    Raises:
        UsageError: The parts do not fit.
    """

    source: SampleSource
    assignment: Assignment
    mode: str = "single"
    tail: str = "drop"
    shuffle: str = "none"
    sort_key: str | None = None
    boundaries: bool = False

    def __post_init__(self) -> None:
        for one in self.assignment.passes:
            if one.order.total != self.source.total:
                raise UsageError(f"an order of {one.order.total} samples does not fit {self.source.total}")
            if self.sort_key is None and any(isinstance(link, Bucketing) for link in one.order.links):
                raise UsageError("bucketing needs to be told what to sort by")
        if self.sort_key is not None and self.sort_key not in self.source.sort_keys:
            raise UsageError(
                f"samples of kind {self.source.kind} have no sort key {self.sort_key!r}",
                hint=f"possible: {', '.join(self.source.sort_keys)}",
            )

    @property
    def composition(self) -> list[dict[str, str]]:
        """What the stream is composed of, step by step, in words."""
        return composition(self.source, self.assignment, self.mode, self.tail, self.sort_key)

    def to_json(self, places: Places) -> dict[str, Any]:
        """Return the stream as JSON values."""
        return {
            "mode": self.mode,
            "tail": self.tail,
            "shuffle": self.shuffle,
            "composition": self.composition,
            "sort_key": self.sort_key,
            "boundaries": self.boundaries,
            "source": self.source.to_json(places),
            "assignment": self.assignment.to_json(),
        }

    @classmethod
    def from_json(cls, value: Any, name: str, places: Places) -> Self:
        """Return the stream that :meth:`to_json` gave.

        Raises:
            IntegrityError: It is none, or its parts do not fit.
        """
        names = (*cls.__slots__, "composition")
        record = Fields(value, places.source, f"the stream {name}", names)
        try:
            stream = cls(
                source=SampleSource.from_json(record.value("source"), places),
                assignment=Assignment.from_json(record.value("assignment"), places.source),
                mode=record.one_of("mode", MODES),
                tail=record.one_of("tail", TAILS),
                shuffle=record.one_of("shuffle", SHUFFLES),
                sort_key=None if record.value("sort_key") is None else record.text("sort_key"),
                boundaries=record.flag("boundaries"),
            )
        except UsageError as error:
            raise IntegrityError(f"{places.source}: {error}", path=places.source) from error
        if record.value("composition") != stream.composition:
            raise record.wrong("has another composition than its source and its assignment", "composition")
        return stream


@dataclass(frozen=True, slots=True)
class Plan:
    """What all ranks of a job read.

    Attributes:
        topology: The ranks.
        streams: By name: ``"train"``, ``"valid"`` or ``"valid.0"``, ``"valid.1"``, ..., ``"test"``.
        options: What was asked for, as JSON, for people.
        history: The plans that this one goes on from, oldest first, as JSON; each has its ``plan_id``.
        warnings: What the user should know, one sentence each.
        plan_id: The SHA-256 of everything that determines what is read, and not of where files lie.

    Raises:
        UsageError: The parts do not fit.
    """

    topology: Topology
    streams: Mapping[str, Stream]
    options: dict[str, Any] = field(default_factory=dict)
    history: tuple[dict[str, Any], ...] = ()
    warnings: tuple[str, ...] = ()
    plan_id: str = field(init=False)

    def __post_init__(self) -> None:
        if not self.streams:
            raise UsageError("a plan without anything to read")
        if self.topology.world_size > MAX_WORLD_SIZE:
            raise UsageError(f"a plan has at most {MAX_WORLD_SIZE} ranks, not {self.topology.world_size}")
        for name, stream in self.streams.items():
            if _STREAM_NAME.fullmatch(name) is None:
                raise UsageError(f"a stream cannot be named {name!r}")
            self._check(name, stream)
        object.__setattr__(self, "plan_id", identity_digest(self._identity()))

    def _check(self, name: str, stream: Stream) -> None:
        if stream.assignment.ranks != self.topology.data_parallel:
            raise UsageError(
                f"{name} is dealt to {stream.assignment.ranks} ranks, but the data-parallel size is "
                f"{self.topology.data_parallel}"
            )
        if stream.source.sequence_length is not None:
            # Raises where the sequence length is not divisible by 2 x context-parallel size.
            context_slices(stream.source.sequence_length, self.topology.context, 0)

    def _identity(self) -> dict[str, Any]:
        streams = {
            name: {
                "source": stream.source.id,
                "assignment": stream.assignment.to_json(),
                "sort_key": stream.sort_key,
                "boundaries": stream.boundaries,
            }
            for name, stream in self.streams.items()
        }
        return {
            "schema": SCHEMA,
            "topology": self.topology.to_json(),
            "streams": streams,
        }

    def to_json(self, directory: str) -> dict[str, Any]:
        """Return the plan as it is written into a directory."""
        places = Places(directory, os.path.join(directory, PLAN_NAME))
        return {
            "schema": SCHEMA,
            "tool": {"name": "tokshard", "version": __version__},
            "plan_id": self.plan_id,
            "topology": self.topology.to_json(),
            "options": self.options,
            "history": list(self.history),
            "warnings": list(self.warnings),
            "streams": {name: stream.to_json(places) for name, stream in self.streams.items()},
        }

    @classmethod
    def from_json(cls, value: Any, path: str, roots: Mapping[str, str] | None = None) -> Self:
        """Return the plan that :meth:`to_json` gave.

        Args:
            value: What was read.
            path: The ``plan.json``, to whose directory paths are relative.
            roots: See :class:`~tokshard.sharding.sources.Places`.

        Raises:
            IntegrityError: It is none, was changed, or is another version's.
        """
        if isinstance(value, dict) and value.get("schema") != SCHEMA:
            raise IntegrityError(
                f"{path} has the schema {value.get('schema')!r}, this version of tokshard reads {SCHEMA!r}",
                path=path,
                field="schema",
            )
        names = ("schema", "tool", "plan_id", "topology", "options", "history", "warnings", "streams")
        record = Fields(value, path, "the plan", names)
        record.object("tool")
        history, warnings = record.array("history"), record.array("warnings")
        if not all(isinstance(one, dict) for one in history) or not all(
            isinstance(one, str) for one in warnings
        ):
            raise record.wrong("has a history or warnings of another kind")
        places = Places(os.path.dirname(path), path, roots or {})
        try:
            plan = cls(
                topology=Topology.from_json(record.value("topology"), path),
                streams={
                    name: Stream.from_json(one, name, places)
                    for name, one in record.object("streams").items()
                },
                options=record.object("options"),
                history=tuple(history),
                warnings=tuple(warnings),
            )
        except (UsageError, OverflowError) as error:
            raise IntegrityError(f"{path}: {error}", path=path) from error
        if plan.plan_id != record.value("plan_id"):
            raise record.wrong("has a plan_id that does not belong to the rest: it was changed", "plan_id")
        return plan


def read_plan(path: str | os.PathLike[str], *, roots: Mapping[str, str] | None = None) -> Plan:
    """Read a plan strictly; no data is opened.

    Args:
        path: The directory of the plan, or its ``plan.json``.
        roots: Where data has moved: beginnings of absolute paths (whole directories) and what they are now,
            for example ``{"/scratch/data": "/mnt/data"}``.

    Raises:
        UsageError: It is named by a URL.
        MissingFileError: There is no plan.
        IntegrityError: It is damaged, was changed, or is another version's.
    """
    file = os.fspath(path)
    refuse_remote(file, "a plan is read from")
    file = os.path.join(file, PLAN_NAME) if os.path.isdir(file) else file
    try:
        value = read_json_object(file)
    except (FileNotFoundError, NotADirectoryError):
        raise MissingFileError(
            f"there is no plan at {file}", path=file, hint="tokshard shard-plan makes one"
        ) from None
    return Plan.from_json(value, file, roots)
