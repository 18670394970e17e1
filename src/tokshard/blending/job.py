"""The job of blending: plan, build or find every index, write the blends, measure, and certify."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from tokshard.blending.builder import BlendPlan, SplitPlan, plan_blend
from tokshard.blending.certificate import Certificate, SourceArrays, measure
from tokshard.blending.config import BuilderConfig
from tokshard.blending.document import DOCUMENT_NAME, BlendDocument, BlendSource, BlendSplit
from tokshard.blending.exhaustive import exhaustive_order
from tokshard.blending.greedy import greedy_order
from tokshard.blending.order import blend_blocks
from tokshard.blending.recipe import BlendRecipe
from tokshard.cluster.options import RayOptions
from tokshard.core.progress import Progress
from tokshard.errors import IntegrityError, OutputExistsError, UsageError
from tokshard.index_cache.cache import Cache, CacheEntry, blend_specs, load
from tokshard.index_cache.fingerprint import FingerprintedIndex
from tokshard.index_cache.job import build_indices
from tokshard.index_cache.npy import Blocks
from tokshard.index_cache.provision import Wanted, provide
from tokshard.index_cache.report import IndexReport
from tokshard.index_cache.sidecar import Origin
from tokshard.storage.fs import abspath

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

CACHE_NAME = "cache"
MAX_INDICES = 25_000
"""Sources of all splits together: about two kilobytes each, of the 64 MiB that are read back."""

REPORT_SCHEMA = "tokshard.blend-report/1"


@dataclass(frozen=True, slots=True)
class BlendReport:
    """What :func:`blend` has done.

    Attributes:
        document: The blend, as it was written.
        plan: What it was made by.
        indices: What was done about each index of a source.
        blends: For each blended split ``"found"``, ``"verified"``, ``"built"`` or ``"rebuilt"``.
        warnings: What the user should know, one sentence each.
        seconds: How long it took.
    """

    document: BlendDocument
    plan: BlendPlan
    indices: tuple[IndexReport, ...]
    blends: dict[str, str]
    warnings: tuple[str, ...]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return the report as a JSON object with a ``schema`` field."""
        return {
            "schema": REPORT_SCHEMA,
            "path": self.document.path,
            "blend": self.document.to_json(),
            "indices": [report.to_json() for report in self.indices],
            "blends": self.blends,
            "warnings": list(self.warnings),
            "seconds": self.seconds,
        }


def blend(
    recipe: BlendRecipe,
    config: BuilderConfig,
    output: str | os.PathLike[str],
    *,
    cache_directory: str | os.PathLike[str] | None = None,
    workers: int | RayOptions | None = None,
    rebuild: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> BlendReport:
    """Build everything that a training run needs for a mixture, and certify it.

    The files in the cache are Megatron's own, under its names, byte for byte; ``OUTPUT/blend.json`` says
    what they are and comes last. A run with the same arguments finds what is there and builds nothing.
    The peak of memory is that of the indexes which are built at once; the order of a blend is made and
    written in pieces.

    Args:
        recipe: What is wanted.
        config: The builder's parameters.
        output: The directory of ``blend.json``.
        cache_directory: Megatron's ``--data-cache-path``; None for ``OUTPUT/cache``.
        workers: How many threads build, None for one for each core; or the Ray cluster that builds, whose
            nodes must see the datasets and the cache directory.
        rebuild: Whether to replace indexes that are stale, damaged or Megatron's own.
        force: Whether to replace another blend at ``output``.
        progress: Who is told of the progress.

    Raises:
        UsageError: What is wanted cannot be; see :func:`tokshard.blending.builder.plan_blend`.
        InputError: A dataset is missing, or has nothing in a split.
        OutputExistsError: There is another blend at ``output``, or a stale index in the cache.
        IntegrityError: A dataset or an index is damaged.
        LockedError: Another process was not done in time.
        StorageError: The disk is full or broken. What was built is kept.
        WorkerError: There is no such cluster, or it has lost the same work too often.
    """
    started = time.monotonic()
    directory = os.fspath(output)
    cache = os.path.join(directory, CACHE_NAME) if cache_directory is None else os.fspath(cache_directory)
    plan = plan_blend(recipe, config)
    _check_before(plan, os.path.join(directory, DOCUMENT_NAME), force=force)
    # Nothing is certified that is not what was written: so what is found is read whole.
    reports = build_indices(
        plan.requests,
        cache_directory=cache,
        workers=workers,
        rebuild=rebuild,
        digests=True,
        progress=progress,
    )
    remaining, splits, blends = iter(reports), {}, {}
    for split in plan.splits:
        own = [next(remaining) for _ in split.sources]
        entry, action = _provide_blend(split, cache, rebuild=rebuild)
        if action is not None:
            blends[split.name] = action
        splits[split.name] = _describe(split, own, entry)
    document = BlendDocument(
        directory, cache, recipe.to_json(), _resolved_json(plan), _builder_json(plan.config), splits
    )
    _refuse_other(document, force=force)
    document.write()
    return BlendReport(document, plan, tuple(reports), blends, plan.warnings, time.monotonic() - started)


def order_of(split: SplitPlan) -> Iterator[tuple[NDArray[np.int16], NDArray[np.int64]]]:
    """Return the order of a blended split from its first sample on, in pieces: int16 and int64."""
    weights = split.weights or ()
    if split.size is None:
        return blend_blocks(*exhaustive_order([int(weight) for weight in weights]))
    return blend_blocks(greedy_order(weights, split.size), split.size)


def _provide_blend(split: SplitPlan, cache: str, *, rebuild: bool) -> tuple[CacheEntry | None, str | None]:
    description = split.description()
    if description is None:
        return None, None
    entry = Cache(cache).blended_files(description)
    origin = Origin(dataset={}, options={}, counts={"samples": split.samples})
    wanted = Wanted(entry, blend_specs(description), origin, f"the {split.name} blend")
    if not rebuild:
        wanted.refuse(wanted.examine(digests=True))
    return entry, provide(wanted, lambda: Blocks(wanted.specs, lambda: order_of(split)), rebuild=rebuild)


def _describe(split: SplitPlan, reports: Sequence[IndexReport], entry: CacheEntry | None) -> BlendSplit:
    sources = tuple(
        BlendSource(
            prefix=abspath(one.request.prefix),
            training_path=one.request.training_path,
            hash=report.entry.hash,
            description=report.entry.description_path,
            document_index=report.entry.array_path("document_index"),
            sample_index=report.entry.array_path("sample_index"),
            shuffle_index=report.entry.array_path("shuffle_index"),
            samples=report.plan.samples,
            draws=one.draws,
            seed=one.request.seed,
            share=one.share,
            fingerprint=report.dataset,
        )
        for one, report in zip(split.sources, reports, strict=True)
    )
    certificate = _certify(split, reports, entry)
    plain = BlendSplit(
        name=split.name,
        split=split.split,
        kind=split.kind,
        samples=split.samples,
        sources=sources,
        certificate=certificate,
    )
    if entry is None:
        return plain
    return replace(
        plain,
        blend_hash=entry.hash,
        description=entry.description_path,
        dataset_index=entry.array_path("dataset_index"),
        dataset_sample_index=entry.array_path("dataset_sample_index"),
        weights=split.weights,
        size=split.size,
    )


def _certify(split: SplitPlan, reports: Sequence[IndexReport], entry: CacheEntry | None) -> Certificate:
    """Measure a split, and hold it against the plan.

    Raises:
        IntegrityError: What is there is not what was planned, or a dataset has changed meanwhile.
    """
    arrays = load(entry) if entry is not None else None

    def sources() -> Iterator[SourceArrays]:
        for one, report in zip(split.sources, reports, strict=True):
            dataset = FingerprintedIndex.open(one.request.prefix)
            dataset.check(report.dataset)
            lengths = dataset.table.sequence_lengths
            index = load(report.entry)
            yield SourceArrays(
                one.request.prefix, one.share, lengths, index["document_index"], index["shuffle_index"]
            )

    certificate = measure(
        None if arrays is None else (arrays["dataset_index"], arrays["dataset_sample_index"]),
        [one.share for one in split.sources],
        [report.plan.samples for report in reports],
        sources(),
        split.sources[0].request.sequence_length,
    )
    planned = [one.draws for one in split.sources]
    if [one.samples for one in certificate.sources] != planned or certificate.draws_out_of_range:
        path = reports[0].entry.description_path if entry is None else entry.description_path
        raise IntegrityError(
            f"the {split.name} split does not hold the samples that were planned",
            path=path,
            hint="run the same command with --rebuild",
        )
    return certificate


def _resolved_json(plan: BlendPlan) -> list[Any]:
    return [
        None
        if one is None
        else {"weights": None if one.weights is None else list(one.weights), "size": one.size}
        for one in plan.resolved
    ]


def _builder_json(config: BuilderConfig) -> dict[str, Any]:
    return {
        "sequence_length": config.sequence_length,
        "sizes": asdict(config.sizes),
        "split": config.split.text,
        "seed": config.seed,
        "surplus": config.surplus,
        "old_sizes": config.old_sizes,
        "extra_token": config.extra_token,
        "drop_last_partial": config.drop_last_partial,
        "tokenizer": config.tokenizer,
        "path_as": [list(pair) for pair in config.path_as],
    }


def _check_before(plan: BlendPlan, path: str, *, force: bool) -> None:
    """Refuse, before anything is built, what could not be written in the end.

    Raises:
        UsageError: There are more sources than a document has room for.
        OutputExistsError: There is a blend of other files or draws at ``path``.
    """
    if len(plan.requests) > MAX_INDICES:
        raise UsageError(
            f"the blend has {len(plan.requests)} sources in all splits together, but its document has room "
            f"for {MAX_INDICES}",
            hint="merge some of them with tokshard merge",
        )
    there = None if force else _read_other(path)
    if there is not None and _orders_of_document(there) != _orders_of_plan(plan):
        raise _another_blend(path)


def _refuse_other(document: BlendDocument, *, force: bool) -> None:
    """Refuse to replace another blend; only now is it known what the datasets are.

    Raises:
        OutputExistsError: There is one.
    """
    there = None if force else _read_other(document.path)
    if there is not None and there.id != document.id:
        raise _another_blend(document.path)


def _read_other(path: str) -> BlendDocument | None:
    if not os.path.lexists(path):
        return None
    try:
        return BlendDocument.read(path)
    except IntegrityError:
        raise _another_blend(path) from None


def _another_blend(path: str) -> OutputExistsError:
    return OutputExistsError(
        f"{path} is there already and another blend", hint="--force replaces it; or give another --output"
    )


def _orders_of_document(document: BlendDocument) -> dict[str, Any]:
    return {
        split.name: (split.blend_hash, [(one.hash, one.draws) for one in split.sources])
        for split in document.splits.values()
    }


def _orders_of_plan(plan: BlendPlan) -> dict[str, Any]:
    found = {}
    for split in plan.splits:
        blended = split.description()
        draws = [(one.request.description().hash(), one.draws) for one in split.sources]
        found[split.name] = (None if blended is None else blended.hash(), draws)
    return found
