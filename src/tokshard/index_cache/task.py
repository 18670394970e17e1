"""What building an index takes: a request with everything that follows from the dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tokshard.core.open_cache import OpenCache
from tokshard.core.thread_runner import ThreadRunner
from tokshard.dataset.fingerprint import DatasetFingerprint, FingerprintedIndex
from tokshard.errors import InputError, UsageError
from tokshard.gpt_index.epochs import EpochPlan, plan_epochs, warnings_of
from tokshard.gpt_index.index import GPTDatasetIndex
from tokshard.index_cache.build_or_reuse import Action, Arrays, CacheTarget
from tokshard.index_cache.entry import (
    CacheEntry,
    EntryContent,
    Examination,
    IndexOrigin,
    default_directory,
    gpt_specs,
)
from tokshard.index_cache.report import IndexReport
from tokshard.index_cache.request import IndexRequest
from tokshard.storage.paths import is_remote

# Open datasets are mapped, and every map holds a file descriptor, of which processes have about 1,000.
_OPEN_DATASETS = 64


@dataclass(frozen=True, slots=True)
class IndexTask:
    """A request with everything that follows from the dataset.

    Attributes:
        request: The first request that needs these files.
        plan: What the index will be.
        target: Its files, and what they are built from.
    """

    request: IndexRequest
    plan: EpochPlan
    target: CacheTarget

    @property
    def dataset(self) -> DatasetFingerprint:
        """The fingerprint of the dataset."""
        origin = self.target.content.origin
        if origin is None:
            raise TypeError("a blend has no dataset")
        return origin.dataset

    def arrays(self, dataset: FingerprintedIndex) -> Arrays:
        """Build the arrays.

        Raises:
            IntegrityError: The dataset has changed since the plan was made.
        """
        dataset.check(self.dataset)
        request = self.request
        index = GPTDatasetIndex.build(
            dataset.table.sequence_lengths,
            _sequences(request, dataset),
            sequence_length=request.sequence_length,
            seed=request.seed,
            num_samples=request.num_samples,
            extra_token=request.extra_token,
            drop_last_partial=request.drops_last_partial,
        )
        return {name: getattr(index, name) for name in self.target.entry.arrays}

    def report(self, request: IndexRequest, before: Examination, action: Action | None) -> IndexReport:
        """Return the report for one of the requests that the task is for."""
        return IndexReport(
            request=request,
            entry=self.target.entry,
            plan=self.plan,
            dataset=self.dataset,
            condition=before.condition,
            detail=before.detail,
            action=action,
            warnings=tuple(warnings_of(self.plan)),
        )


class Datasets(OpenCache[str, FingerprintedIndex]):
    """The indexes of datasets, each opened once while not too many are open; for any thread."""

    def __init__(self) -> None:
        super().__init__(FingerprintedIndex.open, _OPEN_DATASETS)


def plan_tasks(
    requests: Sequence[IndexRequest], cache_directory: str | None, datasets: Datasets, crew: ThreadRunner
) -> tuple[list[tuple[IndexRequest, CacheEntry]], dict[CacheEntry, IndexTask]]:
    """Plan what requests come to; nothing is written.

    Args:
        requests: What is wanted.
        cache_directory: Where the files go; None for Megatron's default beside each dataset.
        datasets: Opens the datasets.
        crew: Does it.

    Returns:
        The requests that Megatron would build with their files, and a task for each set of files.

    Raises:
        UsageError: Two requests would have the same name and different content, or a request is illegal.
        InputError: A dataset is missing, or a split of it is empty.
        IntegrityError: A dataset is damaged.
    """
    listed = [
        (one, CacheEntry.of(one.description(), cache_directory or _beside(one.prefix)))
        for one in requests
        if one.is_built
    ]
    first: dict[CacheEntry, IndexRequest] = {}
    for request, entry in listed:
        _check_same(first.setdefault(entry, request), request)
    pairs = list(first.items())
    tasks = crew.run(lambda pair: _task(pair[1], pair[0], datasets.get(pair[1].prefix)), pairs)
    return listed, dict(zip(first, tasks, strict=True))


def _beside(prefix: str) -> str:
    if is_remote(prefix):
        raise UsageError(
            f"no directory is given for the indexes of {prefix}, and beside it they cannot be written",
            hint="give a directory: --cache-dir",
        )
    return default_directory(prefix)


def _task(request: IndexRequest, entry: CacheEntry, dataset: FingerprintedIndex) -> IndexTask:
    sequences = _sequences(request, dataset)
    lengths = dataset.table.sequence_lengths[sequences.start : sequences.stop]
    tokens = int(lengths.sum(dtype=np.int64))
    name = f"the {request.split_name} index of {request.prefix}"
    try:
        plan = plan_epochs(
            sequences=len(sequences),
            tokens_per_epoch=tokens,
            sequence_length=request.sequence_length,
            num_samples=request.num_samples,
            extra_token=request.extra_token,
            drop_last_partial=request.drops_last_partial,
        )
    except (InputError, UsageError) as error:
        raise type(error)(f"{name}: {error.message}", hint=error.hint) from None
    content = EntryContent(gpt_specs(plan), IndexOrigin.of(dataset.fingerprint, plan))
    return IndexTask(request, plan, CacheTarget(entry, request.description(), content, name))


def _sequences(request: IndexRequest, dataset: FingerprintedIndex) -> range:
    count = dataset.table.sequence_count
    sequences = request.sequences(count)
    if not sequences:
        raise InputError(
            f"the {request.split_name} index of {request.prefix}: the split {request.split.text!r} leaves it "
            f"none of the {count} sequences, and Megatron would never end building it",
            hint="give the split a larger share, or none at all (0) so that it is not built",
        )
    return sequences


def _check_same(first: IndexRequest, second: IndexRequest) -> None:
    """Check that two requests with the same files mean the same content."""
    same = replace(second, drop_last_partial=first.drop_last_partial)
    if second.drops_last_partial != first.drops_last_partial or same != first:
        raise UsageError(
            f"the {first.split_name} indexes of {first.prefix} and {second.prefix} would have the same "
            f"names in the cache, and differ in their data or in options that do not enter the names",
            hint="give each a cache directory or a training path of its own",
        )
