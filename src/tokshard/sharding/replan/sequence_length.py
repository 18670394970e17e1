"""Another sequence length in the middle of a run: views of the unread tokens, and samples of the new length.

The unread samples of each dataset are rows of its sample index, and so pieces of its sequences: these become
a view (:mod:`tokshard.dataset.view`) in the directory of the new plan. All else is as for other datasets: an
index over each view, made as the index of the dataset was (seed, packing, Megatron's names), and a blend
that draws each sample once, in Megatron's order for datasets without weights.

The files of a stream are in ``NEW/views-{hash}/{stream}``. The hash is that of all they follow from, so that
files of different plans never meet, and a run that is repeated writes the same again.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tokshard.blending.job import build_blend
from tokshard.blending.options import BuilderConfig
from tokshard.blending.plan import BlendPlan, plan_blend
from tokshard.blending.recipe import BlendRecipe, Mixture, Source
from tokshard.core.progress import Progress, SilentProgress
from tokshard.dataset.fingerprint import FingerprintedIndex
from tokshard.dataset.view import ViewedDataset, read_view, viewed_prefix, write_view
from tokshard.errors import InputError, UsageError
from tokshard.gpt_index.sizes import Sizes
from tokshard.gpt_index.splits import SPLITS
from tokshard.index_cache.description import GPTDatasetDescription, read_description
from tokshard.sharding.discovery import RequestedSamples, open_sources
from tokshard.sharding.history import InputTokenCount, SequenceLengthChange, StreamProof
from tokshard.sharding.locator import Locator
from tokshard.sharding.plan import PlanWarning
from tokshard.sharding.replan.sample_times import SampleTimes
from tokshard.sharding.replan.token_proof import DatasetTokens, count_tokens
from tokshard.storage import syscalls
from tokshard.storage.digest import FileRecord, identity_digest
from tokshard.storage.files import is_temporary
from tokshard.storage.lock import WriterLock
from tokshard.storage.paths import is_remote

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokshard.gpt_index.epochs import EpochPlan
    from tokshard.gpt_index.packing import Packing
    from tokshard.sharding.plan import Plan, Stream
    from tokshard.sharding.sources import DatasetReference, SampleSource

SCHEMA = "tokshard.views/1"
_HASH_DIGITS = 16
CACHE_NAME = "cache"
LOCK_NAME = ".views.lock"


@dataclass(frozen=True, slots=True)
class ViewSettings:
    """Settings of the views of a new plan.

    Attributes:
        sequence_length: The tokens of a sample.
        directory: The directory of the views, as the user names the directory of the plan.
        cache_directory: The directory of the indexes.
        allowed: Whether datasets of different tokenizers were allowed.
        progress: Receives the activities.
    """

    sequence_length: int
    directory: str
    cache_directory: str
    allowed: bool = False
    progress: Progress = field(default_factory=SilentProgress)

    @classmethod
    def of(
        cls,
        plan: Plan,
        steps: Mapping[str, int],
        sequence_length: int,
        output: str,
        *,
        cache_directory: str | None = None,
        progress: Progress | None = None,
    ) -> ViewSettings:
        """Return the settings for a plan that stops after some steps of its streams."""
        made_from = {
            "schema": SCHEMA,
            "plan_id": plan.plan_id,
            "steps": dict(steps),
            "sequence_length": sequence_length,
        }
        directory = os.path.join(output, f"views-{identity_digest(made_from)[:_HASH_DIGITS]}")
        return cls(
            sequence_length,
            directory,
            cache_directory or os.path.join(directory, CACHE_NAME),
            plan.tokenizer_mismatches is not None,
            progress or SilentProgress(),
        )


@dataclass(frozen=True, slots=True)
class ChangedStream:
    """A stream with samples of another length.

    Attributes:
        source: The samples.
        change: The record of the change, with the proof in tokens.
        proof: The proof in samples of the stopped plan.
        blend: The blend of the views, for Megatron.
        warnings: The datasets with fewer unread tokens than a sample.
    """

    source: SampleSource
    change: SequenceLengthChange
    proof: StreamProof
    blend: BlendPlan
    warnings: tuple[PlanWarning, ...]

    def samples_of(self, samples: int) -> int:
        """Return the samples that as many tokens fill as some unread samples of the stopped plan have.

        Of packed samples, which are not all full, it is the same share of all.
        """
        if all(reference.packing is None for reference in self.source.datasets):
            return samples * (self.change.source.sequence_length or 0) // self.change.sequence_length
        unread = sum(count.planned + count.planned_later for count in self.proof.sources)
        return samples * self.source.total // max(unread, 1)


def check_source(source: SampleSource, sequence_length: int) -> None:
    """Check that the samples of a stream can get another length.

    Raises:
        UsageError: They are documents, have this length already, or are in an object store.
    """
    if source.sequence_length is None:
        raise UsageError(
            "--seq-length requires samples of indexes: the samples of this plan are documents",
            hint="plan the documents again; their samples have no sequence length",
        )
    if source.sequence_length == sequence_length:
        raise UsageError(
            f"the samples of the plan already have {sequence_length:,} tokens",
            hint="leave out --seq-length, or pass another length",
        )
    for reference in source.datasets:
        if is_remote(reference.prefix):
            raise UsageError(
                f"--seq-length requires local datasets: a view of {reference.prefix} would be a link to its "
                ".bin, which is in an object store",
                hint="copy the dataset to a file system, and pass --moved URL=DIRECTORY",
            )


def change_stream(name: str, stream: Stream, step: int, settings: ViewSettings) -> ChangedStream | int:
    """Write the views of what a stream has not read after some steps, and index and blend them.

    Returns:
        The stream; or its unread tokens, if no dataset has a sample of the new length.

    Raises:
        UsageError: See :func:`check_source`; or the indexes of the stream cannot be built alike.
        MissingFileError, IntegrityError: A file of a dataset or an index is missing, has changed, or is
            damaged.
        StorageError: The disk is full or broken.
    """
    source = stream.source
    settings.progress.start(f"finding the unread tokens of {name}")
    times = SampleTimes.after(stream.assignment, step, Locator(source), stream.open_sort_key())
    directory = os.path.join(settings.directory, name)
    unread: list[tuple[int, int, int, int]] = []
    views: list[str | None] = []
    warnings = []
    with WriterLock(os.path.join(directory, LOCK_NAME)):
        _sweep(directory)
        for number, (reference, view) in enumerate(zip(source.datasets, _names(source), strict=True)):
            found = DatasetTokens.of(reference, times, number)
            left = found.counts[-1]
            unread.append(found.counts)
            if _has_sample(reference, left, settings.sequence_length):
                views.append(_write_view(reference, found, os.path.join(directory, view)))
                continue
            views.append(None)
            if left:
                warnings.append(
                    PlanWarning("too-few-tokens", name, path_prefix=reference.prefix, tokens=left)
                )
    if not any(views):
        return sum(left for *_, left in unread)
    recipe, config = _recipe(name, source.datasets, views, settings)
    report = build_blend(
        recipe,
        config,
        directory,
        cache_directory=settings.cache_directory,
        force=True,
        allow_tokenizer_mismatch=settings.allowed,
        progress=settings.progress,
    )
    settings.progress.start(f"counting the tokens of {name}")
    split = name.partition(".")[0]
    after = replace(open_sources([directory], RequestedSamples(split=split))[split], name=name)
    references = iter(after.datasets)
    tokens = tuple(
        count_tokens(counts, None if view is None else next(references))
        for counts, view in zip(unread, views, strict=True)
    )
    _check(tokens)
    change = SequenceLengthChange(
        settings.sequence_length, source, times.epochs_left, tokens, stream.sort_key
    )
    return ChangedStream(after, change, times.proof(), report.plan, tuple(warnings))


def _sweep(directory: str) -> None:
    # Temporary files of a killed run for the same views.
    for folder, _, files in os.walk(directory):
        for name in filter(is_temporary, files):
            syscalls.unlink(os.path.join(folder, name))


def _check(counts: Sequence[InputTokenCount]) -> None:
    for count in counts:
        if not count.adds_up:
            raise InputError(
                f"the tokens of the views do not add up: {count}",
                hint="run the same command again when no process writes the datasets or the plan",
            )


def _names(source: SampleSource) -> list[str]:
    # Those of the datasets; where several have one name, with their numbers.
    plain = [os.path.basename(reference.prefix) for reference in source.datasets]
    times = Counter(plain)
    names: list[str] = []
    for number, name in enumerate(plain):
        unique = name if times[name] == 1 else f"{name}-{number}"
        while times[name] > 1 and unique in times:
            unique += f"-{number}"
        names.append(unique)
    return names


def _has_sample(reference: DatasetReference, tokens: int, sequence_length: int) -> bool:
    epochs = _epochs(reference)
    if reference.packing is not None or not epochs.drop_last_partial:
        return tokens > epochs.extra_token
    return tokens >= sequence_length + epochs.extra_token


def _epochs(reference: DatasetReference) -> EpochPlan:
    if reference.index is None:
        raise UsageError(f"{reference.prefix} has no index: its samples are documents")
    return reference.index.epochs


def _write_view(reference: DatasetReference, tokens: DatasetTokens, prefix: str) -> str:
    pieces = tokens.unread
    viewed, known = reference.prefix, read_view(reference.prefix)
    opened = FingerprintedIndex.open(viewed)
    if known is None:
        dataset = ViewedDataset(
            path_prefix=viewed,
            bin_bytes=opened.fingerprint.bin_bytes,
            idx=FileRecord(opened.fingerprint.idx_bytes, opened.fingerprint.idx_xxh3_128 or ""),
            manifest_fingerprint=opened.fingerprint.manifest_fingerprint,
            bin_pieces_xxh3_128=opened.fingerprint.bin_pieces_xxh3_128,
        )
    else:
        dataset = replace(known.dataset, path_prefix=viewed_prefix(viewed, known))
    table = tokens.table
    pointers = pieces.pointers(table.sequence_pointers, table.dtype.itemsize)
    write_view(prefix, dataset, table.dtype, pointers, pieces.counts, opened.tokenizer)
    return prefix


def _recipe(
    name: str,
    references: Sequence[DatasetReference],
    views: Sequence[str | None],
    settings: ViewSettings,
) -> tuple[BlendRecipe, BuilderConfig]:
    pairs = [(reference, view) for reference, view in zip(references, views, strict=True) if view is not None]
    descriptions = [index_description(reference) for reference, _ in pairs]
    sources = tuple(
        Source(
            view,
            seed=description.random_seed,
            pack=None if reference.packing is None else "best-fit",
        )
        for (reference, view), description in zip(pairs, descriptions, strict=True)
    )
    split = name.partition(".")[0]
    mixtures = [Mixture(sources) if split == each else None for each in SPLITS]
    epochs = _epochs(pairs[0][0])
    config = BuilderConfig(
        sequence_length=settings.sequence_length,
        sizes=Sizes(None, None, None),
        tokenizer=descriptions[0].tokenizer,
        seed=descriptions[0].random_seed,
        extra_token=epochs.extra_token,
        drop_last_partial=epochs.drop_last_partial,
        packing=_packing([reference for reference, _ in pairs]),
    )
    recipe = BlendRecipe(None, (mixtures[0], mixtures[1], mixtures[2]))
    if split == SPLITS[0]:
        # A job asks for training samples by their number, which is in the names of the files.
        samples = plan_blend(recipe, config).splits[0].samples
        config = replace(config, sizes=Sizes(samples, 0, 0))
    return recipe, config


def _packing(references: Sequence[DatasetReference]) -> Packing | None:
    found = {reference.packing for reference in references if reference.packing is not None}
    if len(found) > 1:
        words = " and ".join(sorted(packing.words() for packing in found))
        raise UsageError(
            f"the datasets are packed with different options ({words}), which one blend cannot have"
        )
    return next(iter(found), None)


def index_description(reference: DatasetReference) -> GPTDatasetDescription:
    """Return the description of the index that makes the samples of a dataset.

    Raises:
        UsageError: Its samples are documents.
        MissingFileError, InputError: The description is missing, or cannot be read.
    """
    files = reference.index.files if reference.index is not None else None
    if files is None:
        raise UsageError(f"{reference.prefix} has no index: its samples are documents")
    path = os.path.join(files.directory, f"{files.hash}-{files.kind}-{files.split}-description.txt")
    description = read_description(path)
    if not isinstance(description, GPTDatasetDescription):
        raise InputError(f"{path} describes a blend, not an index")
    return description
