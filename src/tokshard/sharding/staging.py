"""Staging lists: the files that each node reads first, for tools that copy them before the job starts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from tokshard.core.codec import SHA256, Document, Key
from tokshard.dataset.view import data_prefix, view_path
from tokshard.errors import UsageError
from tokshard.sharding.disk_reads import Extents, Simulation, merge_ranges
from tokshard.sharding.intervals import Intervals
from tokshard.sharding.options import StagingOptions
from tokshard.sharding.plan import Plan, read_plan
from tokshard.sharding.sources import SampleSource
from tokshard.storage import syscalls
from tokshard.storage.files import write_atomically
from tokshard.storage.fs import getsize
from tokshard.storage.paths import bin_path, idx_path, is_remote


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file that a node reads."""

    path: Annotated[str, Key("path", "Absolute path or URL.")]
    size_bytes: Annotated[int, Key("bytes", "Size.", minimum=0)]
    read_bytes: Annotated[int, Key("read_bytes", "Bytes in the ranges.", minimum=0)]
    ranges: Annotated[
        Intervals,
        Key(
            "ranges",
            "Bytes that are read, with gaps below 64 KiB filled: pairs of the first byte and one past the "
            "last. `.idx` files and arrays are read whole.",
        ),
    ]

    def __post_init__(self) -> None:
        if self.read_bytes != self.ranges.count:
            raise UsageError(f"read_bytes must be {self.ranges.count}, got {self.read_bytes}")


@dataclass(frozen=True, slots=True)
class NodeStaging(Document):
    """The files that a node reads in some steps: ``node-0000.json``."""

    SCHEMA = "tokshard.staging/1"

    plan_id: Annotated[str, Key("plan_id", "Id of the plan.", pattern=SHA256)]
    node: Annotated[int, Key("node", "Number of the node.", minimum=0)]
    size_bytes: Annotated[int, Key("bytes", "Size of all files.", minimum=0)]
    read_bytes: Annotated[int, Key("read_bytes", "Bytes of them that are read.", minimum=0)]
    files: Annotated[tuple[StagedFile, ...], Key("files", "Files, by path.")]

    def __post_init__(self) -> None:
        sums = (sum(file.size_bytes for file in self.files), sum(file.read_bytes for file in self.files))
        if (self.size_bytes, self.read_bytes) != sums:
            raise UsageError(f"bytes and read_bytes must be {sums}, got {(self.size_bytes, self.read_bytes)}")


@dataclass(frozen=True, slots=True)
class StagedNode:
    """Summary of the list of a node."""

    node: Annotated[int, Key("node", "Number of the node.", minimum=0)]
    files: Annotated[int, Key("files", "Number of files.", minimum=0)]
    size_bytes: Annotated[int, Key("bytes", "Size of all files.", minimum=0)]
    read_bytes: Annotated[int, Key("read_bytes", "Bytes of them that are read.", minimum=0)]


@dataclass(frozen=True, slots=True)
class StagingReport(Document):
    """The staging lists that were written."""

    directory: Annotated[str, Key("directory", "Directory of the lists.")]
    files: Annotated[tuple[str, ...], Key("files", "Names of the lists.")]
    nodes: Annotated[tuple[StagedNode, ...], Key("nodes", "Nodes, in order.")]


def stage_plan(plan: Plan | str | os.PathLike[str], options: StagingOptions) -> StagingReport:
    """Write for each node the list of files that it reads in the first steps, without reading any token.

    Args:
        plan: The plan, its directory or its ``plan.json``.
        options: Which steps, and where the lists go; see :func:`write_lists`.

    Raises:
        UsageError: The stream or the step does not exist, or a path cannot be listed.
        MissingFileError, IntegrityError: A file is missing or has changed.
        StorageError: The disk is full or broken.
    """
    plan = plan if isinstance(plan, Plan) else read_plan(plan)
    nodes = find_files(plan, options.stream, 0, options.steps, ranks_per_node=options.ranks_per_node)
    names = write_lists(nodes, options.directory, remote=options.remote)
    summaries = [StagedNode(node.node, len(node.files), node.size_bytes, node.read_bytes) for node in nodes]
    return StagingReport(options.directory, names, tuple(summaries))


def find_files(
    plan: Plan, stream: str, first: int, stop: int, *, ranks_per_node: int = 8
) -> tuple[NodeStaging, ...]:
    """Return the files that each node reads in steps ``first`` to ``stop - 1``.

    Raises:
        UsageError: The stream or the step does not exist.
        MissingFileError, IntegrityError: A file is missing or has changed.
    """
    simulation = Simulation(plan, stream, ranks_per_node=ranks_per_node)
    stop = min(stop, simulation.stream.assignment.steps)
    if not 0 <= first < stop:
        raise UsageError(f"{stream} has no steps {first} to {stop - 1}")
    extents = {
        rank: simulation.reader.extents(simulation.reads((rank,), np.arange(first, stop))[1])
        for rank in sorted({rank for readers in simulation.nodes for rank in readers})
    }
    nodes = []
    for node, readers in enumerate(simulation.nodes):
        joined = Extents.joined([extents[rank] for rank in sorted(set(readers))])
        files = _files(simulation.stream.source, joined)
        sizes = (sum(file.size_bytes for file in files), sum(file.read_bytes for file in files))
        nodes.append(NodeStaging(plan.plan_id, node, *sizes, files))
    return tuple(nodes)


def write_lists(
    nodes: Sequence[NodeStaging], directory: str | os.PathLike[str], *, remote: str | None = None
) -> tuple[str, ...]:
    """Write the lists of all nodes.

    For each node there are ``node-0000.files``, absolute paths for ``rsync --files-from``, one a line;
    ``node-0000.json`` with the ranges of bytes; and with ``remote`` ``node-0000.s5cmd``, commands for
    ``s5cmd run``. Files with a URL are read there and need no copy: they are in the JSON only.

    Args:
        nodes: The files of the nodes.
        directory: Where the lists go; it is made if it is absent.
        remote: The root directory in an object store, such as ``s3://bucket/cluster``: then ``/data/web.bin``
            is copied from ``s3://bucket/cluster/data/web.bin``.

    Returns:
        The names of the lists.

    Raises:
        UsageError: A path has a line break, which the lists cannot hold.
        StorageError: The disk is full or broken.
    """
    place = os.fspath(directory)
    contents: dict[str, bytes] = {}
    for node in nodes:
        name = f"node-{node.node:04d}"
        paths = [file.path for file in node.files if not is_remote(file.path)]
        for path in paths:
            if not path.isprintable() or '"' in path:
                raise UsageError(f"a list of files cannot hold the path {path!r}")
        contents[f"{name}.files"] = _lines(paths)
        if remote is not None:
            root = remote.rstrip("/")
            # An object store has no links.
            objects = [path for path in paths if not os.path.islink(path)]
            contents[f"{name}.s5cmd"] = _lines([f'cp "{root}{path}" "{path}"' for path in objects])
        contents[f"{name}.json"] = node.to_bytes()
    syscalls.make_directory(place)
    for file_name, content in contents.items():
        write_atomically(os.path.join(place, file_name), content)
    return tuple(contents)


def _lines(texts: Sequence[str]) -> bytes:
    return "".join(f"{text}\n" for text in texts).encode()


def _files(source: SampleSource, extents: Extents) -> tuple[StagedFile, ...]:
    numbers = np.unique(extents.dataset).tolist()
    found: dict[str, StagedFile] = {}

    def add(path: str, size_bytes: int, ranges: Intervals | None = None) -> None:
        ranges = ranges or Intervals.of([(0, size_bytes)])
        found[path] = StagedFile(path, size_bytes, ranges.count, ranges)

    places = {number: data_prefix(source.datasets[number].prefix) for number in numbers}
    for number, place in places.items():
        dataset = source.datasets[number]
        # A dataset may occur several times, each with an index of its own.
        same = [other for other in numbers if places[other] == place]
        here = np.isin(extents.dataset, same)
        ranges = merge_ranges(extents.first[here], extents.size[here])
        add(bin_path(place), dataset.bin.size_bytes, ranges)
        add(idx_path(dataset.prefix), dataset.idx.size_bytes)
        if place != dataset.prefix:
            record = view_path(dataset.prefix)
            add(record, getsize(record))
            add(bin_path(dataset.prefix), 0)  # a link
        if dataset.index is not None:
            for name, stamp in dataset.index.files.fingerprints.items():
                add(dataset.index.files.path(name), stamp.size_bytes)
    if source.order is not None and numbers:
        for name, stamp in source.order.fingerprints.items():
            add(source.order.path(name), stamp.size_bytes)
    return tuple(found[path] for path in sorted(found))
