"""The streams and datasets of a plan, a blend, an index or a dataset to trace through."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from tokshard.checks.trace.reads import PlanStage, stages_of
from tokshard.checks.trace.report import RankReaders, SampleRead, TraceKind
from tokshard.core.formatting import counted
from tokshard.dataset.manifest import is_multimodal, read_dataset_tokenizer
from tokshard.dataset.reader import require_files
from tokshard.dataset.recorded_tokenizers import allowed_warnings
from tokshard.errors import UsageError
from tokshard.ranks.discovery import RequestedSamples, open_sources, read_blends
from tokshard.ranks.manifests import check_rank
from tokshard.ranks.plan import Plan, Stream, read_plan
from tokshard.ranks.sources import SampleSource
from tokshard.storage.paths import strip_data_suffix

if TYPE_CHECKING:
    from tokshard.checks.trace.options import TraceOptions
    from tokshard.ranks.links import KeyOf


@dataclass(frozen=True)
class TracedStream:
    """The samples of one stream, and the plans that read them.

    Attributes:
        stages: The plans that read them, oldest first; none where there is no plan.
    """

    name: str
    source: SampleSource
    stages: tuple[PlanStage, ...] = ()
    stream: Stream | None = None

    @cached_property
    def key_of(self) -> KeyOf | None:
        """The sort keys of its samples, where the plan sorts them."""
        return None if self.stream is None else self.stream.open_sort_key()


@dataclass(frozen=True, slots=True)
class TracedData:
    """A plan, a blend, an index or a dataset to trace through.

    Attributes:
        path: As the user named it.
        streams: The streams by their names; none for a dataset.
        datasets: The path prefixes of all datasets, and whether each is multimodal.
        rank: The rank of the job whose steps are traced; None for all.
        warnings: What cannot be traced.
    """

    kind: TraceKind
    path: str
    streams: Mapping[str, TracedStream]
    datasets: Mapping[str, bool]
    plan: Plan | None = None
    rank: int | None = None
    warnings: tuple[str, ...] = ()

    @property
    def allowed_mismatches(self) -> tuple[str, ...]:
        """Warnings about mismatches of the tokenizers of the data that were allowed."""
        if self.plan is not None:
            return allowed_warnings(self.plan.tokenizer_mismatches)
        blends = read_blends([self.path]) if self.kind == "blend" else {}
        found = [mismatch for blend in blends.values() for mismatch in blend.tokenizer_mismatches or ()]
        for prefix in self.datasets:
            found += read_dataset_tokenizer(prefix).mismatches or ()
        return tuple(dict.fromkeys(allowed_warnings(found)))

    @property
    def plan_id(self) -> str | None:
        """The id of the plan."""
        return None if self.plan is None else self.plan.plan_id

    def stream(self, name: str) -> TracedStream:
        """Return a stream.

        Raises:
            UsageError: There is none of this name.
        """
        if name not in self.streams:
            raise UsageError(
                f"{self.path} has no split {name!r}", hint=f"available: {', '.join(self.streams) or 'none'}"
            )
        return self.streams[name]

    def readers(self, reads: Iterable[SampleRead]) -> tuple[RankReaders, ...]:
        """Return the ranks of the job that read what the data-parallel ranks of reads read."""
        if self.plan is None:
            return ()
        ranks: dict[int, list[int]] = {
            read.data_parallel_rank: [] for read in reads if read.data_parallel_rank is not None
        }
        for rank in range(self.plan.topology.world_size) if ranks else ():
            dp_rank = self.plan.topology.coordinates(rank).dp
            if dp_rank in ranks:
                ranks[dp_rank].append(rank)
        return tuple(RankReaders(dp_rank, tuple(ranks[dp_rank])) for dp_rank in sorted(ranks))


def open_plan(path: str, rank: int | None = None, moved: Iterable[tuple[str, str]] = ()) -> TracedData:
    """Read a plan to trace through, or one rank of it; no data is opened.

    Raises:
        MissingFileError: The plan was not found.
        IntegrityError: The plan is damaged.
        UsageError: There is no such rank.
    """
    plan = read_plan(path, roots=dict(moved))
    if rank is not None:
        check_rank(plan, rank)
    streams, warnings = {}, []
    for name, stream in plan.streams.items():
        stages, others = stages_of(plan, name)
        streams[name] = TracedStream(name, stream.source, stages, stream)
        if others:
            warnings.append(
                f"reads of {name} before {stages[0].order.consumed_samples} consumed samples were not "
                f"searched: {counted(others, 'earlier plan')} read a different blend; trace "
                f"{'that plan' if others == 1 else 'those plans'} separately"
            )
    return TracedData("plan", path, streams, _datasets(streams), plan, rank, tuple(warnings))


def open_samples(path: str, kind: Literal["blend", "index"], options: TraceOptions) -> TracedData:
    """Open the samples of a blend or of an index to trace through.

    Args:
        path: The blend, its ``blend.json``, an index cache, the ``description.txt`` of an index, or a dataset
            with an index in its default cache.
        kind: Which of the two it is.
        options: The split, and where the data of an index is.

    Raises:
        InputError: A product is missing, or has no samples.
        IntegrityError: The files contradict each other.
    """
    only = None if options.stream is None else options.stream.partition(".")[0]
    requested = RequestedSamples(
        split=only,
        path_as=options.path_as,
        digests=False,
        missing_hint="build one with tokshard blend or tokshard build-indices",
    )
    sources = open_sources([path], requested)
    streams = {name: TracedStream(name, source) for name, source in sources.items()}
    return TracedData(kind, path, streams, _datasets(streams))


def open_dataset(path: str) -> TracedData:
    """Open a dataset to trace through.

    Raises:
        MissingFileError: One or both files of the dataset are missing.
        IntegrityError: Its manifest is damaged.
    """
    prefix = strip_data_suffix(path)
    require_files(prefix)
    return TracedData("dataset", path, {}, {prefix: is_multimodal(prefix)})


def _datasets(streams: Mapping[str, TracedStream]) -> dict[str, bool]:
    references = [reference for stream in streams.values() for reference in stream.source.datasets]
    return {reference.path_prefix: reference.multimodal for reference in references}
