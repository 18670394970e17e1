"""Job of blend: plan the blend, build or reuse its indexes, write the orders and the certificate."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from tokshard.core.codec import TOOL, Amount, Document
from tokshard.core.formatting import count, counted, duration, percent, shown_path
from tokshard.core.presentation import Section, Table, outcome, planned
from tokshard.core.progress import Progress, ProgressUpdate, reporting
from tokshard.dataset.manifest import read_dataset_tokenizer
from tokshard.dataset.products import BLEND_NAME
from tokshard.dataset.recorded_tokenizers import DatasetTokenizer
from tokshard.dataset.token_ids import check_token_ids
from tokshard.errors import (
    IntegrityError,
    MissingFileError,
    OlderVersionError,
    OutputExistsError,
    UsageError,
    ignore_older,
)
from tokshard.samples.blend.certificate import Certificate, certify
from tokshard.samples.blend.document import BlendDocument, identity, writing
from tokshard.samples.blend.options import BlendOptions, BuilderConfig
from tokshard.samples.blend.order import BlendOrder
from tokshard.samples.blend.plan import KIND_NAMES, BlendPlan, PlannedSplit, SplitPlan, plan_blend
from tokshard.samples.blend.recipe import BlendRecipe
from tokshard.samples.blend.sources import BlendSource, BlendSplit
from tokshard.samples.blend.weights import BlendWeights
from tokshard.samples.index.build import (
    Action,
    Datasets,
    IndexTarget,
    build_or_reuse,
    plan_indexes,
)
from tokshard.samples.index.entry import CachedArrays
from tokshard.samples.index.examination import CacheTarget
from tokshard.samples.index.job import actions_text
from tokshard.samples.index.npy import Blocks
from tokshard.samples.index.tokenizer_check import check_tokenizers
from tokshard.storage.fs import abspath, lexists
from tokshard.storage.lock import lock_mode

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAX_INDICES = 20_000
"""Maximum number of sources of all splits: with prefixes of 64 characters, each takes 2.6 kB of 64 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlendReport(Document):
    """A blend, and the actions of :func:`tokshard.blend`.

    Attributes:
        actions: Action of each index and order in the cache, by the beginning of its file names, as
            ``HASH-GPTDataset-train``.
    """

    SCHEMA = "tokshard.blend-report/2"

    action: Literal["planned", "written"]
    recipe: BlendRecipe
    resolved: tuple[BlendWeights | None, ...]
    builder: BuilderConfig
    splits: tuple[PlannedSplit, ...]
    path: str | None = None
    blend: BlendDocument | None = None
    actions: dict[str, Action]
    warnings: tuple[str, ...]
    seconds: Amount

    def planned_sections(self) -> list[Section]:
        """Return the splits of a dry run for people."""
        header = ("source", "share", "samples", "in its index", "epochs", "tokens of an epoch")
        sections = []
        for split in self.splits:
            rows = [
                (
                    *(source.path_prefix, percent(source.weight)),
                    *(count(source.draws), count(source.plan.samples)),
                    *(f"{source.epochs_drawn:.2f}", count(source.plan.tokens_per_epoch)),
                )
                for source in split.sources
            ]
            title = f"{split.name}: {KIND_NAMES[split.kind]}, {counted(split.samples, 'sample')}"
            sections.append(
                Section(title, [Table(header, rows, hide=("tokens of an epoch", "in its index"))])
            )
        return [*sections, planned([])]

    def outcome(self, next_step: str) -> Section:
        """Return what was written for people, and the next step."""
        written = [] if self.path is None else [shown_path(self.path)]
        facts = []
        if self.blend is not None:
            actions = actions_text(self.actions.values())
            facts.append(("indexes", f"{actions} in {shown_path(self.blend.cache_directory)}"))
        return outcome(self.action, written, facts, duration(self.seconds), [next_step])


def blend(options: BlendOptions, *, dry_run: bool = False, progress: Progress | None = None) -> BlendReport:
    """Build everything that a training run needs for a mixture, and certify it.

    The files in the cache are Megatron's own, under its names, byte for byte; ``OUTPUT/blend.json`` is
    written last. A run with the same options finds what is there and builds nothing. The peak of memory
    is that of the indexes which are built at once; the order of a blend is made and written in blocks.

    Args:
        options: The options; a dry run needs no output.
        dry_run: Whether to plan the blend and check that it would work, without building anything.
        progress: Receives the progress.

    Raises:
        UsageError: The output is missing, or the recipe cannot be built; see
            :func:`tokshard.samples.blend.plan.plan_blend`.
        InputError: A dataset is missing, or has nothing in a split.
        OutputExistsError: There is another blend at the output, or an index in the cache that differs.
        IntegrityError: A dataset or an index is damaged.
        TokenizerMismatchError: The datasets were encoded with different tokenizers, or with another one than
            the job's, and ``allow_tokenizer_mismatch`` is not set.
        LockedError: Another process was not done in time.
        StorageError: The disk is full or broken. What was built is kept.
    """
    if dry_run:
        return _plan_only(options)
    with lock_mode(options.lock):
        return build_blend(*options.resolve(), options, progress)


def _plan_only(options: BlendOptions) -> BlendReport:
    started = time.monotonic()
    plan = plan_blend(*options.resolve())
    prefixes = dict.fromkeys(request.prefix for request in plan.requests)
    tokenizers = {prefix: read_dataset_tokenizer(prefix) for prefix in prefixes}
    check_token_ids(tokenizers)
    agreement = check_tokenizers(
        tokenizers,
        options.naming.job_tokenizer(options.path_as),
        allowed=options.allow_tokenizer_mismatch,
        shares=_shares(plan),
    )
    return _report(plan, agreement.warnings, started)


def build_blend(
    recipe: BlendRecipe, config: BuilderConfig, options: BlendOptions, progress: Progress | None = None
) -> BlendReport:
    """Build the blend of a recipe; see :func:`blend`.

    Args:
        recipe: The recipe.
        config: The parameters of Megatron's dataset builder.
        options: The options with the output and the cache; their mixture is not read again.
        progress: Receives the progress.
    """
    started = time.monotonic()
    output = options.output
    cache = options.cache
    if output is None or cache is None:
        raise UsageError(
            "--output is required", hint="pass for example -o mix, or --dry-run to build nothing"
        )
    directory = os.fspath(output)
    path = os.path.join(directory, BLEND_NAME)
    job = options.naming.job_tokenizer(options.path_as)
    with reporting(progress) as listener:
        listener.start("reading datasets")
        plan = plan_blend(recipe, config)
        _refuse_too_many(plan)
        # Refused before anything is built, not after hours of work.
        _refuse_other(path, plan, force=options.force)
        planned = plan_indexes(
            plan.requests, cache_directory=cache, workers=options.workers, progress=listener
        )
        planned = planned.agreeing(job, allowed=options.allow_tokenizer_mismatch, shares=_shares(plan))
        # Only files with the recorded digests are certified, so reused indexes are read whole.
        reports = planned.build(rebuild=options.rebuild, digests=True, progress=listener)
        actions = {entry.stem: report.action for entry, report in zip(planned.listed, reports, strict=True)}
        tokenizers = dict.fromkeys(target.tokenizer for target in planned.targets)
        numbers = {tokenizer: number for number, tokenizer in enumerate(tokenizers)}
        splits: dict[str, BlendSplit] = {}
        certificates: dict[str, Certificate] = {}
        datasets = Datasets()  # opened again, to compare fingerprints with the indexes
        targets = iter(planned.targets)
        for split in plan.splits:
            order = None
            if (description := split.description()) is not None:
                mismatches = planned.agreement.to_record
                target = CacheTarget.of_blend(description, cache, f"the {split.name} blend", mismatches)
                listener.start(f"ordering {split.name}", target.file_bytes)
                actions[target.entry.stem] = _build_order(split, target, listener, rebuild=options.rebuild)
                order = CachedArrays.at(target.entry.path_prefix)
            listener.start(f"measuring {split.name}")
            sources = tuple(
                _source(next(targets), source.draws, datasets, numbers) for source in split.sources
            )
            splits[split.name] = BlendSplit(
                split=split.split,  # type: ignore[arg-type]
                kind=split.kind,
                samples=split.samples,
                sources=sources,
                order=order,
                weights=None if split.weights is None else tuple(map(float, split.weights)),
                size=split.size,
            )
            prefixes = [source.path_prefix for source in split.sources]
            certificates[split.name] = certify(splits[split.name], prefixes)
    document = BlendDocument(
        tool=TOOL,
        id=identity(plan.builder, splits),
        recipe=recipe,
        resolved=plan.resolved,
        builder=plan.builder,
        splits=splits,
        certificates=certificates,
        tokenizers=tuple(tokenizers),
        job_tokenizer=None if job is None else job.identity,
        tokenizer_mismatches=planned.agreement.to_record or None,
        global_batch_size=options.job_batch_size,
    )
    with writing(directory):
        exists = lexists(path)
        # Another process may have written another blend since the first check.
        _refuse_other(path, plan, force=options.force)
        document.write(directory, replace=options.force or exists)
    report = _report(plan, planned.tokenizer_warnings(reports), started)
    return replace(report, action="written", path=path, blend=document, actions=actions)


def _report(plan: BlendPlan, warnings: Iterable[str], started: float) -> BlendReport:
    """Return the report of a plan."""
    return BlendReport(
        action="planned",
        recipe=plan.recipe,
        resolved=plan.resolved,
        builder=plan.builder,
        splits=tuple(split.planned for split in plan.splits),
        actions={},
        warnings=tuple(dict.fromkeys((*plan.warnings, *warnings))),
        seconds=time.monotonic() - started,
    )


def _shares(plan: BlendPlan) -> dict[str, float]:
    """Return the share of each dataset in the samples of all splits."""
    draws: Counter[str] = Counter()
    for split in plan.splits:
        for source in split.sources:
            draws[source.path_prefix] += source.draws
    total = max(1, draws.total())
    return {prefix: count / total for prefix, count in draws.items()}


def _source(
    target: IndexTarget, draws: int, datasets: Datasets, numbers: Mapping[DatasetTokenizer, int]
) -> BlendSource:
    dataset = datasets.get(target.request.prefix)
    dataset.check(target.origin.dataset)
    return BlendSource(
        path_prefix=abspath(target.request.prefix),
        draws=draws,
        tokenizer=numbers[target.tokenizer],
        bin=dataset.files["bin"],
        idx=dataset.files["idx"],
        fingerprint=target.origin.dataset,
        index=CachedArrays.at(target.entry.path_prefix),
        epochs=target.plan,
    )


def order_of(split: SplitPlan) -> Iterator[tuple[NDArray[np.int16], NDArray[np.int64]]]:
    """Return the order of a blended split in blocks, starting at its first sample: int16 and int64."""
    return BlendOrder(split.weights or (), split.size).blocks()


def _build_order(split: SplitPlan, target: CacheTarget, progress: Progress, *, rebuild: bool) -> Action:
    if not rebuild:
        target.refuse(target.examine(digests=True), rebuild=False)
    order = Blocks(target.specs, lambda: order_of(split))
    written = 0

    def tell(count: int) -> None:
        nonlocal written
        written += count
        progress.update(ProgressUpdate(bytes_done=written))

    return build_or_reuse(target, lambda: order, rebuild=rebuild, tell=tell)


def _refuse_too_many(plan: BlendPlan) -> None:
    if len(plan.requests) > MAX_INDICES:
        raise UsageError(
            f"the blend must have at most {MAX_INDICES:,} sources in all splits together, got "
            f"{len(plan.requests):,}",
            hint="merge some of them with tokshard merge",
        )


def _refuse_other(path: str, plan: BlendPlan, *, force: bool) -> None:
    """Refuse to replace the document of another blend than the planned one."""
    if os.path.isdir(path):
        raise OutputExistsError(f"a directory exists: {path}", hint="remove it, or pass another --output")
    if force or not lexists(path):
        return
    try:
        if BlendDocument.read(path).is_of(plan):
            return
    except OlderVersionError as error:
        ignore_older(error, "it is replaced")
        return
    except (IntegrityError, MissingFileError):
        pass  # a damaged document counts as another blend, and so does a broken link
    raise OutputExistsError(
        f"another blend exists: {path}", hint="pass --force to replace it, or another --output"
    )
