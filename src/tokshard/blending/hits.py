"""Whether everything that a planned blend needs is in a cache, and fresh."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tokshard.blending.builder import BlendPlan
from tokshard.core.progress import Progress
from tokshard.index_cache.cache import Cache, State, blend_specs, examine
from tokshard.index_cache.job import check_indices
from tokshard.index_cache.sidecar import Origin


@dataclass(frozen=True, slots=True)
class Hit:
    """One set of files of a cache.

    Attributes:
        split: ``"train"``, ``"valid"``, ``"test"``, or ``"valid.0"`` and so on.
        name: The dataset, or ``"the blend"``.
        hash: The hash in the names of the files.
        state: See :class:`tokshard.index_cache.cache.CacheState`.
        reason: Why it is that.
    """

    split: str
    name: str
    hash: str
    state: State
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return asdict(self)


def check_blend(
    plan: BlendPlan,
    cache_directory: str,
    *,
    workers: int | None = None,
    progress: Progress | None = None,
) -> list[Hit]:
    """Tell the state of everything that a plan needs; all arrays are read whole.

    Raises:
        UsageError, InputError, IntegrityError, StorageError: See
            :func:`tokshard.index_cache.job.check_indices`.
    """
    reports = iter(
        check_indices(plan.requests, cache_directory=cache_directory, workers=workers, progress=progress)
    )
    hits = []
    for split in plan.splits:
        for one in split.sources:
            report = next(reports)
            hits.append(Hit(split.name, one.request.prefix, report.entry.hash, report.state, report.reason))
        if (description := split.description()) is not None:
            entry = Cache(cache_directory).blended_files(description)
            origin = Origin(dataset={}, options={}, counts={})
            found = examine(entry, blend_specs(description), origin, digests=True)
            hits.append(Hit(split.name, "the blend", entry.hash, found.state, found.reason))
    return hits
