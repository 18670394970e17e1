"""What a plan does to disks and networks: reads of each step, rank and node, counted from the data itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.errors import UsageError
from tokshard.sharding.locator import open_sort_key
from tokshard.sharding.plan import Plan, Stream
from tokshard.sharding.reading.pieces import PieceReader, Pieces

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

PAGE_BYTES = 4096
"""What the page cache holds and fetches at least."""

# The two arrays of a blend; .bin and .idx of a dataset, and the three arrays of its index.
_BLEND_FILES, _DATASET_FILES, _INDEX_FILES = 2, 2, 3
# Larger than any page number of a file.
_PAGES_OF_A_FILE = 1 << 44


@dataclass(frozen=True, slots=True)
class Load:
    """What one or more steps take.

    Attributes:
        samples: The samples that are read; those that several ranks read count for each.
        documents: The pieces of documents that they are made of.
        bytes: The bytes of tokens of these.
        pages: The pages of 4 KiB of ``.bin`` files that hold them, each once.
        files: The files that are open for it: datasets and their indexes, and the arrays of the blend.
        seconds: How long the pages take at the bandwidth; None without one.
    """

    samples: int
    documents: int
    bytes: int
    pages: int
    files: int
    seconds: float | None

    def to_json(self) -> dict[str, Any]:
        """Return the load as JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What a step takes.

    Attributes:
        step: The step.
        ranks: By data-parallel rank. All ranks of one that read anything read the same.
        nodes: One for each node, in order.
    """

    step: int
    ranks: tuple[Load, ...]
    nodes: tuple[Load, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the step as JSON values."""
        return {
            "step": self.step,
            "data_parallel_ranks": [one.to_json() for one in self.ranks],
            "nodes": [one.to_json() for one in self.nodes],
        }


class Simulation:
    """Follows a stream step by step, without reading any token.

    Args:
        plan: The plan.
        stream: The name of the stream.
        ranks_per_node: How many neighbouring ranks are on a node.
        bandwidth: Bytes a second that a node, or a rank by itself, gets from storage; None for no times.

    Raises:
        UsageError: There is no such stream, or a number is below 1.
    """

    def __init__(
        self, plan: Plan, stream: str, *, ranks_per_node: int = 8, bandwidth: float | None = None
    ) -> None:
        if stream not in plan.streams:
            raise UsageError(f"the plan has no stream {stream!r}", hint=f"it has {', '.join(plan.streams)}")
        if ranks_per_node < 1 or (bandwidth is not None and bandwidth <= 0):
            raise UsageError("ranks per node and bandwidth are positive numbers")
        self.stream = plan.streams[stream]
        self.nodes = node_readers(plan, self.stream, ranks_per_node)
        self._bandwidth = bandwidth
        self._reader = PieceReader(self.stream.source)
        key = self.stream.sort_key
        self._key_of = None if key is None else open_sort_key(self.stream.source, key)

    def steps(self, first: int, stop: int) -> Iterator[StepLoad]:
        """Return the load of each step from ``first`` to ``stop - 1``.

        Raises:
            MissingFileError, IntegrityError: A file is not there or has changed.
        """
        for step in range(first, min(stop, self.stream.assignment.steps)):
            yield self._step(step)

    def pieces(self, rank: int, step: int) -> tuple[int, Pieces]:
        """Return (samples, pieces) that a data-parallel rank reads in a step."""
        ids = self.stream.assignment.step_ids(rank, step, self._key_of).ravel()
        return ids.size, self._reader.pieces(ids)

    def _step(self, step: int) -> StepLoad:
        reads = [self.pieces(rank, step) for rank in range(self.stream.assignment.ranks)]
        ranks = tuple(self._load(count, [pieces]) for count, pieces in reads)
        nodes = []
        for readers in self.nodes:
            distinct = sorted(set(readers))
            load = self._load(0, [reads[rank][1] for rank in distinct])
            of_ranks = [ranks[rank] for rank in readers]
            nodes.append(
                replace(
                    load,
                    samples=sum(one.samples for one in of_ranks),
                    documents=sum(one.documents for one in of_ranks),
                    bytes=sum(one.bytes for one in of_ranks),
                )
            )
        return StepLoad(step, ranks, tuple(nodes))

    def _load(self, samples: int, parts: list[Pieces]) -> Load:
        pieces = Pieces.joined(parts)
        pages = count_pages(pieces)
        datasets = np.unique(pieces.dataset).size
        source = self.stream.source
        each = _DATASET_FILES + (0 if source.sequence_length is None else _INDEX_FILES)
        blend = _BLEND_FILES if source.order is not None and datasets else 0
        seconds = None if self._bandwidth is None else pages * PAGE_BYTES / self._bandwidth
        return Load(
            samples=samples,
            documents=pieces.size.size,
            bytes=int(pieces.size.sum()),
            pages=pages,
            files=datasets * each + blend,
            seconds=seconds,
        )


def node_readers(plan: Plan, stream: Stream, ranks_per_node: int) -> tuple[tuple[int, ...], ...]:
    """Return for each node the data-parallel ranks of those of its ranks that read, once for each rank."""
    topology = plan.topology
    nodes = []
    for first in range(0, topology.world_size, ranks_per_node):
        ranks = range(first, min(first + ranks_per_node, topology.world_size))
        readers = [rank for rank in ranks if topology.needs(rank, boundaries=stream.boundaries)]
        nodes.append(tuple(topology.coordinates(rank).dp for rank in readers))
    return tuple(nodes)


def count_pages(pieces: Pieces) -> int:
    """Count the pages that hold the bytes of pieces, each once.

    Example:
        >>> one = np.array([0, 0, 1]), np.array([0, 4000, 0]), np.array([10, 200, 1])
        >>> count_pages(Pieces(*one))
        3
    """
    if not pieces.size.size:
        return 0
    base = pieces.dataset * _PAGES_OF_A_FILE
    low = base + pieces.first // PAGE_BYTES
    high = base + (pieces.first + pieces.size - 1) // PAGE_BYTES
    order = np.argsort(low, kind="stable")
    low, high = low[order], high[order]
    reached = np.concatenate(([-1], np.maximum.accumulate(high)[:-1]))
    return int(np.maximum(high - np.maximum(low, reached + 1) + 1, 0).sum())


def summarise(loads: Sequence[Load]) -> dict[str, dict[str, float]]:
    """Return the least, the mean and the most of each number of some loads."""
    result = {}
    for name in Load.__slots__:
        values = [getattr(one, name) for one in loads if getattr(one, name) is not None]
        if values:
            result[name] = {
                "least": min(values),
                "mean": sum(values) / len(values),
                "most": max(values),
            }
    return result
