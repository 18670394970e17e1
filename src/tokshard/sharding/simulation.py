"""Simulation of a plan: the disk reads of its first steps, the byte ranges of a window, the mixing of steps.

What a full shuffle of the same samples gives is counted in the same run, for comparison.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Self

import numpy as np

from tokshard.core.codec import Document, Key
from tokshard.core.progress import Progress, reporting
from tokshard.errors import UsageError
from tokshard.sharding.assignment import Assignment
from tokshard.sharding.disk_reads import Extents, ReadSummary, Simulation, StepReads, merge_ranges
from tokshard.sharding.layouts import Blocked
from tokshard.sharding.mixing import design_effect
from tokshard.sharding.options import SimulateOptions
from tokshard.sharding.plan import Plan, read_plan
from tokshard.sharding.shuffles import Shuffle
from tokshard.sharding.sources import SampleSource

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

# Without a request, byte ranges are counted for one window of the shuffle, or this many samples where there
# is none, and never for more than a few seconds.
_WINDOW_SAMPLES, _MOST_WINDOW_SAMPLES = 1 << 18, 1 << 20
# More would not fit into the memory of many machines.
_MOST_REQUESTED_SAMPLES = 1 << 26
# With 256 steps of 1,024 samples, the design effect of two groups has a standard error of 9%.
_MIXING_SAMPLES, _MIXING_STEPS = 1 << 18, 4096
_HUNDREDTHS = 100
# Larger than any .bin file; 2**15 files of this size fit into int64.
_BYTES_OF_A_FILE = 1 << 48


@dataclass(frozen=True, slots=True)
class ByteRanges:
    """Byte ranges of ``.bin`` files that hold some samples."""

    ranges: Annotated[
        int, Key("ranges", "Distinct ranges of bytes, with gaps of up to 64 KiB filled.", minimum=0)
    ]
    size_bytes: Annotated[int, Key("bytes", "Bytes in the ranges.", minimum=0)]

    @classmethod
    def of(cls, source: SampleSource, extents: Extents) -> Self:
        """Return the ranges of extents; a file that several datasets share is one."""
        prefixes = [dataset.prefix for dataset in source.datasets]
        numbers = {prefix: number for number, prefix in enumerate(dict.fromkeys(prefixes))}
        files = np.array([numbers[prefix] for prefix in prefixes], dtype=np.int64)
        found = merge_ranges(files[extents.dataset] * _BYTES_OF_A_FILE + extents.first, extents.size)
        return cls(found.starts.size, found.count)


@dataclass(frozen=True, slots=True)
class ComparedRanges:
    """Byte ranges of some samples of a plan, and of as many samples of a full shuffle."""

    samples: Annotated[int, Key("samples", "Samples that are read.", minimum=0)]
    plan: Annotated[ByteRanges, Key("plan", "Ranges that the plan reads.")]
    full_shuffle: Annotated[
        ByteRanges, Key("full_shuffle", "Ranges of as many samples of a full shuffle of all samples.")
    ]

    @property
    def fewer(self) -> float:
        """The share of the full shuffle's ranges that the plan does not have; negative if it has more."""
        return 1 - self.plan.ranges / max(self.full_shuffle.ranges, 1)


@dataclass(frozen=True, slots=True)
class StagedWindow:
    """Byte ranges that the first steps read, as they are staged in one go."""

    steps: Annotated[int, Key("steps", "Number of steps.", minimum=1)]
    all_nodes: Annotated[ComparedRanges, Key("all_nodes", "All nodes together.")]
    node: Annotated[ComparedRanges, Key("node", "The node with the most ranges.")]


@dataclass(frozen=True, slots=True)
class Mixing:
    """How evenly groups of samples spread over steps."""

    groups: Annotated[int, Key("groups", "Number of groups with samples.", minimum=2)]
    design_effect: Annotated[
        float,
        Key(
            "design_effect",
            "Variance of the groups' shares of a step, relative to that of a full shuffle on average.",
            minimum=0,
        ),
    ]
    full_shuffle: Annotated[
        float | None,
        Key("full_shuffle", "The same of a full shuffle: 1, but for chance; null for one group.", minimum=0),
    ]


@dataclass(frozen=True, slots=True)
class MixingReport:
    """Mixing of steps that are evenly spaced over the plan."""

    steps: Annotated[int, Key("steps", "Number of steps that were compared.", minimum=2)]
    samples: Annotated[int, Key("samples", "Samples of these steps.", minimum=2)]
    datasets: Annotated[
        Mixing | None, Key("datasets", "Mixing of the datasets; null if the steps read only one.")
    ]
    hundredths: Annotated[
        Mixing | None,
        Key(
            "hundredths",
            "Mixing of hundredths of the data: all `.bin` files, concatenated, in parts of equal size; "
            "null if the steps read only one.",
        ),
    ]


@dataclass(frozen=True, slots=True)
class SimulationReport(Document):
    """Disk reads of the first steps of a plan, byte ranges of a window, and mixing of steps."""

    stream: Annotated[str, Key("stream", "Stream of the steps.")]
    ranks_per_node: Annotated[int, Key("ranks_per_node", "Neighboring ranks on a node.", minimum=1)]
    bandwidth: Annotated[
        float | None, Key("bandwidth", "Bytes per second that a node gets from storage.", minimum=0)
    ]
    rank: Annotated[ReadSummary | None, Key("rank", "A step of a rank; null without steps.")]
    node: Annotated[ReadSummary | None, Key("node", "A step of a node; null without steps.")]
    steps: Annotated[tuple[StepReads, ...], Key("steps", "The steps.")]
    window: Annotated[
        StagedWindow | None, Key("window", "Byte ranges that the first steps read; null without steps.")
    ]
    mixing: Annotated[MixingReport | None, Key("mixing", "Mixing of steps; null with fewer than two steps.")]


def simulate_plan(
    plan: Plan | str | os.PathLike[str],
    options: SimulateOptions | None = None,
    *,
    progress: Progress | None = None,
) -> SimulationReport:
    """Count the disk reads of the first steps of a plan, and measure its mixing, without reading any token.

    Args:
        plan: The plan, its directory or its ``plan.json``.
        options: What to simulate.
        progress: Receives the activities.

    Raises:
        UsageError: The stream does not exist.
        MissingFileError, IntegrityError: A file is missing or has changed.
    """
    options = options or SimulateOptions()
    plan = plan if isinstance(plan, Plan) else read_plan(plan)
    simulation = Simulation(
        plan, options.stream, ranks_per_node=options.ranks_per_node, bandwidth=options.bandwidth
    )
    with reporting(progress) as listener:
        listener.start("simulating reads")
        steps = tuple(simulation.steps(0, options.steps))
        listener.start("counting byte ranges")
        window = stage_window(simulation, options.window)
        listener.start("measuring the mixing")
        mixing = measure_mixing(simulation)
    return SimulationReport(
        stream=options.stream,
        ranks_per_node=options.ranks_per_node,
        bandwidth=options.bandwidth,
        rank=ReadSummary.of([rank for step in steps for rank in step.ranks]),
        node=ReadSummary.of([node for step in steps for node in step.nodes]),
        steps=steps,
        window=window,
        mixing=mixing,
    )


def stage_window(simulation: Simulation, steps: int | None = None) -> StagedWindow | None:
    """Count the byte ranges of the first steps, and those of a full shuffle.

    Args:
        simulation: The stream.
        steps: The number of steps; None for those that read a window of the shuffle.

    Returns:
        None if the stream has no steps.

    Raises:
        UsageError: The steps have too many samples to be counted in memory.
    """
    assignment, source = simulation.stream.assignment, simulation.stream.source
    steps = min(steps or _steps_of_a_window(assignment), assignment.steps)
    if not steps:
        return None
    samples = assignment.first_local(steps) * assignment.ranks
    if samples > _MOST_REQUESTED_SAMPLES:
        raise UsageError(
            f"the byte ranges of at most {_MOST_REQUESTED_SAMPLES:,} samples can be counted, "
            f"but {steps:,} steps have {samples:,}",
            hint="pass a smaller --simulate-window",
        )
    parts: dict[tuple[int, ...], tuple[int, Extents]] = {}
    for readers in simulation.nodes:
        ranks = tuple(sorted(set(readers)))
        if ranks and ranks not in parts:
            _, ids = simulation.reads(ranks, np.arange(steps))
            parts[ranks] = (ids.size, simulation.reader.extents(ids))

    def compared(samples: int, found: ByteRanges) -> ComparedRanges:
        full = simulation.reader.extents(_full_shuffle(source.total, samples))
        return ComparedRanges(samples, found, ByteRanges.of(source, full))

    nodes = [(samples, ByteRanges.of(source, extents)) for samples, extents in parts.values()]
    everything = ByteRanges.of(source, Extents.joined([extents for _, extents in parts.values()]))
    return StagedWindow(
        steps,
        compared(samples, everything),
        compared(*max(nodes, key=lambda node: node[1].ranges)),
    )


def measure_mixing(simulation: Simulation) -> MixingReport | None:
    """Measure how evenly datasets and parts of the data spread over steps, which are evenly spaced.

    A sample belongs to the part of the data where its first token is stored.

    Returns:
        None if the stream has fewer than two steps.
    """
    assignment, source = simulation.stream.assignment, simulation.stream.source
    batch = max(1, assignment.first_local(assignment.steps) * assignment.ranks // max(1, assignment.steps))
    chosen = min(assignment.steps, max(2, _MIXING_SAMPLES // batch), _MIXING_STEPS)
    if chosen < 2:
        return None
    evenly_spaced = np.arange(chosen, dtype=np.int64) * assignment.steps // chosen
    steps, ids = simulation.reads(range(assignment.ranks), evenly_spaced)
    groups = _groups(simulation, ids)
    shuffled = _groups(simulation, _full_shuffle(source.total, ids.size))

    def mixing(name: str) -> Mixing | None:
        effects = [design_effect(steps, found[name]) for found in (groups, shuffled)]
        return None if effects[0] is None else Mixing(np.unique(groups[name]).size, effects[0], effects[1])

    return MixingReport(chosen, ids.size, mixing("datasets"), mixing("hundredths"))


def _groups(simulation: Simulation, ids: Integers) -> dict[str, Integers]:
    source = simulation.stream.source
    datasets, first = simulation.reader.starts(ids)
    sizes = {dataset.prefix: dataset.bin.size_bytes for dataset in source.datasets}
    starts = dict(zip(sizes, np.cumsum([0, *sizes.values()]).tolist(), strict=False))
    before = np.array([starts[dataset.prefix] for dataset in source.datasets], dtype=np.int64)
    place = before[datasets] + first
    return {"datasets": datasets, "hundredths": place * _HUNDREDTHS // max(1, sum(sizes.values()))}


def _full_shuffle(total: int, count: int) -> Integers:
    # The first ids of as many epochs of a full shuffle as it takes.
    shuffle = Shuffle(total, total, seed=0)
    epochs = [
        shuffle.forward(np.arange(min(total, count - first), dtype=np.int64), first // total)
        for first in range(0, count, total)
    ]
    return np.concatenate([np.empty(0, dtype=np.int64), *epochs])


def _steps_of_a_window(assignment: Assignment) -> int:
    # Ranks that read runs of their own read a window each at the same time.
    if not assignment.steps:
        return 0
    first = assignment.epoch_ranges[0]
    windows = [
        transform.window
        for transform in first.order.transforms
        if isinstance(transform, Shuffle) and transform.window < transform.samples
    ]
    samples = windows[0] if windows else _WINDOW_SAMPLES
    if windows and isinstance(first.layout, Blocked):
        samples *= assignment.ranks
    return -(-min(samples, _MOST_WINDOW_SAMPLES) // (assignment.first_local(1) * assignment.ranks))
