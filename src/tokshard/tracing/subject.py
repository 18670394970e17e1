"""What is traced through: a plan, a blend, an index, or datasets alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from tokshard.core.formatting import counted
from tokshard.dataset.manifest import read_manifest
from tokshard.dataset.read_consistency import unchanged
from tokshard.dataset.reader import require_files
from tokshard.errors import UsageError
from tokshard.sharding.discovery import Wanted, open_sources
from tokshard.sharding.locator import open_sort_key
from tokshard.sharding.plan import Plan, read_plan
from tokshard.sharding.sources import SampleSource
from tokshard.storage.paths import strip_data_suffix
from tokshard.tracing.course import Stage, stages_of

if TYPE_CHECKING:
    from tokshard.sharding.order import KeyOf
    from tokshard.sharding.plan import Stream

Arguments = ParamSpec("Arguments")
Report = TypeVar("Report")


@dataclass(frozen=True)
class Course:
    """The samples of one stream, and who reads them.

    Attributes:
        name: The name of the stream.
        source: Its samples.
        stages: The plans that read them, oldest first; none where there is no plan.
        stream: The stream of the last plan.
    """

    name: str
    source: SampleSource
    stages: tuple[Stage, ...] = ()
    stream: Stream | None = None

    @cached_property
    def key_of(self) -> KeyOf | None:
        """The sort keys of its samples, where the plan sorts them."""
        if self.stream is None or self.stream.sort_key is None:
            return None
        return open_sort_key(self.source, self.stream.sort_key)


@dataclass(frozen=True, slots=True)
class Subject:
    """What is traced through.

    Attributes:
        kind: ``"plan"``, ``"blend"``, ``"index"`` or ``"dataset"``.
        path: As the user named it.
        courses: The streams by their names; none for a dataset.
        datasets: The path prefixes of all datasets, and whether each is multimodal.
        plan: The plan.
        notes: What cannot be traced, one sentence each.
    """

    kind: str
    path: str
    courses: Mapping[str, Course]
    datasets: Mapping[str, bool]
    plan: Plan | None = None
    notes: tuple[str, ...] = field(default_factory=tuple)

    def course(self, name: str) -> Course:
        """Return a stream.

        Raises:
            UsageError: There is none of this name.
        """
        if name not in self.courses:
            raise UsageError(
                f"{self.path} has no split {name!r}", hint=f"there is {', '.join(self.courses) or 'none'}"
            )
        return self.courses[name]

    def ranks_of(self, data_parallel_rank: int) -> list[int]:
        """Return the ranks of the job that read what a data-parallel rank reads."""
        if self.plan is None:
            return []
        topology = self.plan.topology
        every = range(topology.world_size)
        return [rank for rank in every if topology.coordinates(rank).dp == data_parallel_rank]


def of_one_state(
    work: Callable[Concatenate[Subject, Arguments], Report],
) -> Callable[Concatenate[Subject, Arguments], Report]:
    """Let work on a subject fail by an InputError if one of its datasets is changed meanwhile."""

    @wraps(work)
    def watched(subject: Subject, /, *arguments: Arguments.args, **options: Arguments.kwargs) -> Report:
        with unchanged(subject.datasets):
            return work(subject, *arguments, **options)

    return watched


def open_plan(path: str, roots: Mapping[str, str] | None = None) -> Subject:
    """Read a plan to be traced through; no data is opened.

    Args:
        path: The plan.
        roots: See :func:`~tokshard.sharding.plan.read_plan`.

    Raises:
        MissingFileError: There is no plan.
        IntegrityError: It is damaged.
    """
    plan = read_plan(path, roots=roots)
    courses, notes = {}, []
    for name, stream in plan.streams.items():
        stages, others = stages_of(plan, name, path)
        courses[name] = Course(name, stream.source, stages, stream)
        if others:
            notes.append(
                f"what {name} read before its {stages[0].assignment.consumed_samples} consumed samples is "
                f"not looked at: {counted(others, 'earlier plan')} read another mixture; trace through these"
            )
    return Subject("plan", path, courses, _datasets(courses), plan, tuple(notes))


def open_samples(
    path: str, kind: str, *, split: str | None = None, path_as: tuple[tuple[str, str], ...] = ()
) -> Subject:
    """Find the samples of a blend or of an index, to be traced through.

    Args:
        path: The blend, its ``blend.json``, the ``description.txt`` of an index, or a dataset with an index
            in its default cache.
        kind: ``"blend"`` or ``"index"``.
        split: The only stream that is wanted; None for all.
        path_as: Pairs (path here, path in the description of an index).

    Raises:
        InputError: Nothing is there, or something has no samples.
        IntegrityError: What is there does not fit together.
    """
    only = None if split is None else split.partition(".")[0]
    sources = open_sources([path], Wanted(split=only, path_as=path_as, digests=False))
    courses = {name: Course(name, source) for name, source in sources.items()}
    return Subject(kind, path, courses, _datasets(courses))


def open_dataset(path: str) -> Subject:
    """Return a dataset alone.

    Raises:
        MissingFileError: One or both of its files are not there.
        IntegrityError: Its manifest is damaged.
    """
    prefix = strip_data_suffix(path)
    require_files(prefix)
    manifest = read_manifest(prefix)
    multimodal = manifest is not None and manifest.dataset.multimodal
    return Subject("dataset", path, {}, {prefix: multimodal})


def _datasets(courses: Mapping[str, Course]) -> dict[str, bool]:
    references = [one for course in courses.values() for one in course.source.datasets]
    return {one.prefix: one.multimodal for one in references}
