"""Lists of what each node will read first, for tools that copy it there before the job starts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.core.strict_json import dump_json
from tokshard.errors import UsageError
from tokshard.sharding.intervals import Intervals
from tokshard.sharding.plan import Plan
from tokshard.sharding.reading.pieces import Pieces
from tokshard.sharding.reading.simulation import Simulation
from tokshard.sharding.sources import SampleSource
from tokshard.storage import syscalls
from tokshard.storage.files import write_atomically
from tokshard.storage.paths import bin_path, idx_path, is_remote

if TYPE_CHECKING:
    from numpy.typing import NDArray

SCHEMA = "tokshard.staging/1"

# Ranges that are closer than this are one: a request costs more than the bytes between them.
_GAP_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file that a node reads.

    Attributes:
        path: Its absolute path.
        size_bytes: Its size.
        ranges: The bytes that are read, with small gaps filled. The whole file for those that are read
            everywhere: ``.idx`` files and the arrays of indexes and blends.
    """

    path: str
    size_bytes: int
    ranges: Intervals

    def to_json(self) -> dict[str, Any]:
        """Return the file as JSON values."""
        return {
            "path": self.path,
            "bytes": self.size_bytes,
            "read_bytes": self.ranges.count,
            "ranges": self.ranges.to_json(),
        }


@dataclass(frozen=True, slots=True)
class NodeStaging:
    """What a node reads in some steps.

    Attributes:
        node: The number of the node.
        files: The files, by path.
    """

    node: int
    files: tuple[StagedFile, ...]

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return sum(one.size_bytes for one in self.files)

    @property
    def read_bytes(self) -> int:
        """The bytes of them that are read."""
        return sum(one.ranges.count for one in self.files)


def stage(
    plan: Plan, stream: str, first: int, stop: int, *, ranks_per_node: int = 8
) -> tuple[NodeStaging, ...]:
    """Return what each node reads in steps ``first`` to ``stop - 1``, without reading any token.

    Raises:
        UsageError: There is no such stream, or no such step.
        MissingFileError, IntegrityError: A file is not there or has changed.
    """
    simulation = Simulation(plan, stream, ranks_per_node=ranks_per_node)
    stop = min(stop, simulation.stream.assignment.steps)
    if not 0 <= first < stop:
        raise UsageError(f"{stream} has no steps {first} to {stop - 1}")
    pieces: dict[int, Pieces] = {}
    for rank in sorted({rank for readers in simulation.nodes for rank in readers}):
        parts = [simulation.pieces(rank, step)[1] for step in range(first, stop)]
        pieces[rank] = Pieces.joined(parts)
    return tuple(
        NodeStaging(node, _files(simulation.stream.source, [pieces[rank] for rank in sorted(set(readers))]))
        for node, readers in enumerate(simulation.nodes)
    )


def write_staging(
    nodes: Sequence[NodeStaging],
    directory: str | os.PathLike[str],
    *,
    plan_id: str,
    remote: str | None = None,
) -> tuple[str, ...]:
    """Write the lists of all nodes.

    For each node there are ``node-0000.files``, absolute paths for ``rsync --files-from``, one a line;
    ``node-0000.json`` with the ranges of bytes; and with ``remote`` ``node-0000.s5cmd``, commands for
    ``s5cmd run``. What has a URL is read there and needs no copy: it stands in the JSON alone.

    Args:
        nodes: What the nodes read.
        directory: Where the lists go; it is made where it is absent.
        plan_id: The plan.
        remote: Where the root directory lies in an object store, such as ``s3://bucket/cluster``: then
            ``/data/web.bin`` is copied from ``s3://bucket/cluster/data/web.bin``.

    Returns:
        The names of the files.

    Raises:
        UsageError: A path has a line break, which the lists cannot hold.
        StorageError: The disk is full or broken.
    """
    place = os.fspath(directory)
    contents: dict[str, bytes] = {}
    for node in nodes:
        name = f"node-{node.node:04d}"
        paths = [one.path for one in node.files if not is_remote(one.path)]
        for path in paths:
            if not path.isprintable() or '"' in path:
                raise UsageError(f"{path!r} cannot stand in a list of files")
        contents[f"{name}.files"] = _lines(paths)
        if remote is not None:
            root = remote.rstrip("/")
            contents[f"{name}.s5cmd"] = _lines([f'cp "{root}{path}" "{path}"' for path in paths])
        contents[f"{name}.json"] = dump_json(
            {
                "schema": SCHEMA,
                "plan_id": plan_id,
                "node": node.node,
                "bytes": node.size_bytes,
                "read_bytes": node.read_bytes,
                "files": [one.to_json() for one in node.files],
            }
        )
    syscalls.make_directory(place)
    for file_name, content in contents.items():
        write_atomically(os.path.join(place, file_name), content)
    return tuple(contents)


def _lines(texts: Sequence[str]) -> bytes:
    return "".join(f"{text}\n" for text in texts).encode()


def _files(source: SampleSource, parts: list[Pieces]) -> tuple[StagedFile, ...]:
    """Return the files that hold some pieces, and those that are needed to find them."""
    pieces = Pieces.joined(parts)
    numbers = np.unique(pieces.dataset).tolist()
    found: dict[str, StagedFile] = {}

    def add(path: str, size_bytes: int, ranges: Intervals | None = None) -> None:
        found[path] = StagedFile(path, size_bytes, ranges or Intervals.of([(0, size_bytes)]))

    for number in numbers:
        one = source.datasets[number]
        # A dataset may occur several times, each with an index of its own.
        same = [other for other in numbers if source.datasets[other].prefix == one.prefix]
        here = np.isin(pieces.dataset, same)
        add(bin_path(one.prefix), one.bin.size_bytes, _merged(pieces.first[here], pieces.size[here]))
        add(idx_path(one.prefix), one.idx.size_bytes)
        if one.index is not None:
            for name, stamp in one.index.files.stamps.items():
                add(one.index.files.path(name), stamp.size_bytes)
    if source.order is not None and numbers:
        for name, stamp in source.order.stamps.items():
            add(source.order.path(name), stamp.size_bytes)
    return tuple(found[path] for path in sorted(found))


def _merged(first: NDArray[np.int64], size: NDArray[np.int64]) -> Intervals:
    """Return the union of ranges, with small gaps filled."""
    order = np.argsort(first, kind="stable")
    starts, stops = first[order], np.maximum.accumulate((first + size)[order])
    apart = starts[1:] > stops[:-1] + _GAP_BYTES
    return Intervals(starts[np.append(True, apart)], stops[np.append(apart, True)])
