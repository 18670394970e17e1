"""Plans to stop and go on from: small worlds, and what all their ranks read, listed."""

from __future__ import annotations

import collections

import numpy as np

from support.assignments import planned
from support.blends import config_for, recipe_of, write_dataset
from tokshard.dataset.fingerprint import DatasetFingerprint, FileFingerprint
from tokshard.ranks.locator import Locator
from tokshard.ranks.options import ReplanOptions
from tokshard.ranks.plan import Plan
from tokshard.ranks.replan.job import continue_plan
from tokshard.ranks.sources import (
    CachedArrays,
    DatasetReference,
    IndexReference,
    SampleSource,
)
from tokshard.ranks.summary import coverage_of
from tokshard.samples.blend.job import build_blend
from tokshard.samples.blend.recipe import Source
from tokshard.samples.index.epochs import EpochPlan, plan_epochs

FINGERPRINT = FileFingerprint(128, "0" * 64)

UNKNOWN = DatasetFingerprint(bin_bytes=0, idx_bytes=0)


def reference(name, samples) -> DatasetReference:
    """Describe a dataset with an index of so many samples; nothing of it is opened by plans."""
    epochs: EpochPlan = plan_epochs(
        sequences=samples + 1, tokens_per_epoch=samples * 8 + 1, sequence_length=8, num_samples=None
    )
    assert epochs.samples == samples
    fingerprints = dict.fromkeys(("document_index", "sample_index", "shuffle_index"), FINGERPRINT)
    files = CachedArrays("/cache", name.encode().hex().zfill(32), "train", "GPTDataset", fingerprints)
    fingerprint = FileFingerprint(samples, f"{samples:064x}")
    index = IndexReference(files, epochs)
    return DatasetReference(f"/data/{name}", 0, samples, fingerprint, fingerprint, False, UNKNOWN, index)


def source_of(*sizes, name="train") -> SampleSource:
    """Describe a stream that numbers the samples of some indexes through."""
    datasets = tuple(reference(f"part{number}", size) for number, size in enumerate(sizes))
    return SampleSource("index", name, sum(sizes), datasets)


def plan_of(source, ranks, *, batch, size=1, tensor=1, **options) -> Plan:
    """Plan training alone."""
    options |= {"micro_batch_size": size, "global_batch_size": batch}
    return planned({"train": source}, data_parallel=ranks, tensor_parallel=tensor, **options)


def continued(plan, consumed, ranks=None, *, output="/nowhere", **changes) -> Plan:
    """Continue a plan; a new order is written into the directory ``output``, and the plan is not."""
    options = ReplanOptions(
        plan="stopped", output=str(output), consumed_samples=consumed, data_parallel=ranks, **changes
    )
    found = continue_plan(plan, options)
    if found.files is not None:
        found.files.write()
    return found.plan


def reads_of(plan, name="train", steps=None):
    """List what all ranks read: for each step the ids, micro-batch by micro-batch and rank by rank."""
    assignment = plan.streams[name].assignment
    steps = assignment.steps if steps is None else steps
    count = assignment.first_local(steps)
    ranks = np.stack([assignment.ids(rank, 0, count) for rank in range(assignment.ranks)])
    found = []
    for step in range(steps):
        here = ranks[:, assignment.first_local(step) : assignment.first_local(step + 1)]
        found.append(
            here.reshape(assignment.ranks, -1, assignment.micro_batch_size)
            .transpose(1, 0, 2)
            .ravel()
            .tolist()
        )
    return found


def with_epochs(plan, steps=None):
    """List (epoch, id) of what is read in the first steps, by the definition of local indices."""
    assignment = plan.streams["train"].assignment
    steps = assignment.steps if steps is None else steps
    found = []
    for local in range(assignment.first_local(steps)):
        place, epoch = local + assignment.skipped, None
        for each in assignment.epoch_ranges:
            if place < each.per_rank:
                epoch = each.first_epoch + place // each.per_epoch
                break
            place -= each.per_rank
        found += [(epoch, int(assignment.ids(rank, local, 1)[0])) for rank in range(assignment.ranks)]
    return found


def fault_of(reads, plan, total, batch) -> str | None:
    """Compare the reads of a chain of plans, none of which pads, with what they may and must leave out.

    Args:
        reads: (epoch, id) of what was read before the last plan, and of all that it reads.
        plan: The last plan; it has all steps that its samples fill.
        total: The samples of an epoch.
        batch: The largest global batch of the chain: a smaller rest of an epoch is dropped.

    Returns:
        A phrase, or None if each sample is read once in each epoch, or is one of those that the plan
        reports as dropped or left.
    """
    if len(set(reads)) < len(reads):
        return "a sample is read twice in an epoch"
    unread = collections.defaultdict(lambda: set(range(total)))
    for epoch, sample in reads:
        unread[epoch].remove(sample)
    assignment, left = plan.streams["train"].assignment, 0
    for each in assignment.epoch_ranges:
        for epoch in range(each.first_epoch, each.first_epoch + each.epochs):
            tail = assignment.tail(epoch)
            dropped = set(tail.nth(np.arange(tail.count)).tolist())
            if not dropped <= unread[epoch]:
                return f"a sample of epoch {epoch} that is reported as dropped is read"
            left += len(unread.pop(epoch) - dropped)
    if left != coverage_of(assignment).left or left >= batch:
        return f"{left} samples are not read, but {coverage_of(assignment).left} are reported as left"
    # Epochs before: what fills no batch is dropped.
    ended = {epoch: len(samples) for epoch, samples in unread.items() if len(samples) >= batch}
    return f"samples are lost: {ended} (by epoch)" if ended else None


def samples_of(plan, name="train", steps=None):
    """List what all ranks read as (dataset's path, sample) instead of ids."""
    source = plan.streams[name].source
    locator = Locator(source)
    found = []
    for ids in reads_of(plan, name, steps):
        datasets, samples = locator.locate(np.array(ids, dtype=np.int64))
        paths = [source.datasets[number].path_prefix for number in datasets.tolist()]
        found.append(list(zip(paths, samples.tolist(), strict=True)))
    return found


def flat(steps):
    return [read for step in steps for read in step]


def write_blend(directory, weights, samples, *, tokens, name="blend", cache="cache"):
    """Blend datasets that are made where they are absent; return the directory of the blend."""
    for prefix, count in tokens.items():
        if not (directory / f"{prefix}.idx").exists():
            write_dataset(str(directory / prefix), [7] * (count // 7), first_token=len(prefix) * 1000)
    recipe = recipe_of(*(Source(str(directory / source), weights[source]) for source in weights))
    config = config_for(samples, sequence_length=8, split="1")
    build_blend(recipe, config, directory / name, cache_directory=directory / cache)
    return directory / name
