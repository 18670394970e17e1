"""Job of build-indices: builds or finds indexes and reports them."""

from __future__ import annotations

import math
import os
import shlex
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tokshard.core import megatron_rules
from tokshard.core.codec import Amount, Count, Document, Positive, Record
from tokshard.core.formatting import count, counted, duration, listed, shown_path, size
from tokshard.core.path_mapping import PathMapping
from tokshard.core.presentation import Section, Table, launch_with, outcome
from tokshard.core.progress import Progress
from tokshard.dataset.reader import IndexedDataset
from tokshard.dataset.recorded_tokenizers import TokenizerMismatch
from tokshard.errors import InputError, UsageError
from tokshard.samples.index.build import Action, IndexReport, plan_indexes
from tokshard.samples.index.description import JobSettings
from tokshard.samples.index.options import (
    MISSING_SIZE,
    MISSING_SIZE_HINT,
    BuildIndicesOptions,
    IndexRequest,
    neutral_identifiers,
)
from tokshard.samples.index.splits import Split, parse_split, whole_split
from tokshard.storage.lock import lock_mode


@dataclass(frozen=True, slots=True)
class EpochSize(Record):
    """The training samples of a number of epochs."""

    path_prefix: str
    sequence_length: Positive
    epochs: Positive
    train_samples: Count


_WORDS = {"found": "reused"}
_SHOWN_DIRECTORIES = 4


@dataclass(frozen=True, slots=True)
class BuildIndicesReport(Document):
    """The indexes that were built or found."""

    SCHEMA = "tokshard.build-indices/2"

    has_megatron_names: bool
    epoch_sizes: tuple[EpochSize, ...]
    indices: tuple[IndexReport, ...]
    seconds: Amount
    warnings: tuple[str, ...]
    tokenizer_mismatches: tuple[TokenizerMismatch, ...] | None = None

    def indices_section(self) -> Section:
        """Return the indexes, and the samples of their epochs, for people."""
        several_lengths = len({index.plan.sequence_length for index in self.indices}) > 1
        header = ["dataset", "split", "samples", "epochs", "documents", "tokens", "index", "size"]
        rows = [
            (
                *(shown_path(index.path_prefix), index.description.index_split),
                *(count(index.plan.samples), count(index.plan.epochs)),
                *(count(index.documents), count(index.plan.tokens)),
                *(_WORDS.get(index.action, index.action), size(index.size_bytes)),
                *([count(index.plan.sequence_length)] if several_lengths else []),
            )
            for index in self.indices
        ]
        header += ["sequence length"] if several_lengths else []
        table = Table(header, rows, left=(0, 1, 6), hide=("size", "documents", "tokens"))
        several_datasets = len({epoch.path_prefix for epoch in self.epoch_sizes}) > 1
        lines = []
        for epoch in self.epoch_sizes:
            of = f" of {epoch.path_prefix}" if several_datasets else ""
            length = f" with --seq-length {epoch.sequence_length}" if several_lengths else ""
            verb = "is" if epoch.epochs == 1 else "are"
            epochs = counted(epoch.epochs, "epoch")
            lines.append(f"{epochs}{of} {verb} --train-samples {epoch.train_samples}{length}")
        return Section("", [table, *lines])

    def outcome(self, next_step: str | None = None) -> Section:
        """Return the number of indexes by what was done, the time, and the next step."""
        directories = dict.fromkeys(shown_path(os.path.dirname(index.files[0])) for index in self.indices)
        actions = actions_text([index.action for index in self.indices])
        written = size(sum(index.size_bytes for index in self.indices))
        where = listed(list(directories), _SHOWN_DIRECTORIES)
        facts = [("indexes", f"{actions} in {where} ({written})")]
        next_steps = [next_step or _launch_step(self.indices[0])] if self.has_megatron_names else []
        return outcome("written", [], facts, duration(self.seconds), next_steps)


def _launch_step(index: IndexReport) -> str:
    """Return the next step: a launch with the arguments that find an index."""
    described = index.description
    arguments = ["--data-path", described.dataset_path]
    arguments += ["--data-cache-path", os.path.dirname(index.files[0])]
    arguments += ["--seq-length", str(described.sequence_length), "--seed", str(described.random_seed)]
    if described.split is not None:
        arguments += ["--split", described.split]
    if index.plan.packed is not None:
        arguments.append("--eod-mask-loss")
    return launch_with(shlex.join(arguments))


def actions_text(actions: Iterable[Action]) -> str:
    """Return how many indexes were built and reused."""
    return ", ".join(
        f"{count(number)} {_WORDS.get(action, action)}" for action, number in Counter(actions).items()
    )


def build_indices(options: BuildIndicesOptions, *, progress: Progress | None = None) -> BuildIndicesReport:
    """Build the indexes that Megatron jobs would build at their start, or reuse fresh ones.

    The files have Megatron's names and bytes. Memory is that of ``options.workers`` indexes at once: for
    each 4 bytes for each sequence and epoch, and 12 for each sample.

    Args:
        options: The options.
        progress: Receives the progress, in bytes written.

    Raises:
        UsageError: No index would be built, or two would have the same name and different content.
        InputError: A dataset, or a file about the job, is missing, or a split of a dataset is empty.
        TokenizerMismatchError: The datasets were encoded with different tokenizers, or with another one than
            the job's, and ``allow_tokenizer_mismatch`` is not set.
        OutputExistsError: An index differs from what would be built, and ``rebuild`` is not set.
        IntegrityError: A dataset or an index is damaged.
        LockedError: Another process was not done in time.
        StorageError: The disk is full or broken. What was built is kept.
    """
    started = time.monotonic()
    requests, epoch_sizes = requests_of(options)
    directory = None if options.cache_dir is None else os.fspath(options.cache_dir)
    planned = plan_indexes(requests, cache_directory=directory, workers=options.workers, progress=progress)
    job = options.naming.job_tokenizer(options.path_as)
    planned = planned.agreeing(job, allowed=options.allow_tokenizer_mismatch)
    with lock_mode(options.lock):
        reports = planned.build(rebuild=options.rebuild, progress=progress)
    of_plans = (warning for report in reports for warning in report.warnings)
    return BuildIndicesReport(
        has_megatron_names=options.naming.are_given,
        epoch_sizes=tuple(epoch_sizes),
        indices=tuple(reports),
        seconds=time.monotonic() - started,
        warnings=tuple(dict.fromkeys((*of_plans, *planned.tokenizer_warnings(reports)))),
        tokenizer_mismatches=planned.agreement.to_record or None,
    )


def requests_of(options: BuildIndicesOptions) -> tuple[list[IndexRequest], list[EpochSize]]:
    """Return one request for each index, and the sizes that were given as epochs.

    Raises:
        UsageError: No index would be built.
        InputError: A dataset, or a file about the job, cannot be read.
    """
    if options.requests:
        return [replace(request, packing=options.packing) for request in options.requests], []
    like, identifiers = options.naming.settings(), options.naming.identifiers()
    lengths = options.seq_length or ((like.sequence_length,) if like else ())
    if like is not None and not (options.sizes or options.epochs or like.num_samples):
        raise UsageError(MISSING_SIZE, hint=MISSING_SIZE_HINT)
    requests: list[IndexRequest] = []
    epoch_sizes: list[EpochSize] = []
    for prefix in options.prefixes:
        tokenizer = identifiers if options.naming.are_given else neutral_identifiers(prefix)
        for length in lengths:
            own = [
                EpochSize(prefix, length, epochs, _epoch_samples(options, like, prefix, length, epochs))
                for epochs in options.epochs
            ]
            epoch_sizes += own
            for sizes in _sizes(options, like, own):
                requests += _requests(options, like, prefix, length, sizes, tokenizer)
    if not any(request.is_built for request in requests):
        raise UsageError(
            "no index to build: no split has a share, or the job of --like has data for each split",
            hint="pass --split; or use tokshard blend with --train, --valid and --test",
        )
    return requests, epoch_sizes


def _sizes(
    options: BuildIndicesOptions, like: JobSettings | None, epoch_sizes: Sequence[EpochSize]
) -> Iterator[Mapping[str, int | None]]:
    for sizes in options.sizes:
        yield {"train": sizes.train, "valid": sizes.valid, "test": sizes.test}
    for epoch_size in epoch_sizes:
        yield {"train": epoch_size.train_samples, "valid": 0, "test": 0}
    if like is not None and not options.sizes and not options.epochs:
        yield like.num_samples


def _requests(
    options: BuildIndicesOptions,
    like: JobSettings | None,
    prefix: str,
    length: int,
    size: Mapping[str, int | None],
    tokenizer: Any,
) -> Iterator[IndexRequest]:
    default_seed = like.random_seed if like else megatron_rules.SEED
    for name, samples in size.items():
        split = _split(options, like, name)
        if split is not None:
            yield IndexRequest(
                prefix=prefix,
                training_path=PathMapping(options.path_as).map(prefix),
                split_name=name,
                split=split,
                num_samples=None if samples is None else math.ceil(samples * (1 + (options.surplus or 0))),
                sequence_length=length,
                seed=default_seed if options.seed is None else options.seed,
                tokenizer=tokenizer,
                extra_token=options.add_extra_token,
                drop_last_partial=options.drop_last_partial_validation,
                packing=options.packing,
            )


def _split(options: BuildIndicesOptions, like: JobSettings | None, name: str) -> Split | None:
    # None if the job has no such split of this data.
    if options.split is None and like is not None and like.split is None:
        return whole_split(name) if name in like.num_samples else None
    return parse_split(options.split or (like and like.split) or megatron_rules.SPLIT)


def _epoch_samples(
    options: BuildIndicesOptions, like: JobSettings | None, prefix: str, length: int, epochs: int
) -> int:
    split = _split(options, like, "train")
    if split is None:
        raise UsageError("the size of an epoch is not known: the job of --like has no training split")
    request = IndexRequest(
        prefix=prefix,
        training_path=prefix,
        split_name="train",
        split=split,
        num_samples=None,
        sequence_length=length,
        tokenizer=None,
        extra_token=options.add_extra_token,
        packing=options.packing,
    )
    table = IndexedDataset(prefix).index
    try:
        return request.plan(request.size(table)).samples_of_epochs(epochs)
    except (InputError, UsageError) as error:
        raise type(error)(f"the train index of {prefix}: {error.message}", hint=error.hint) from None
