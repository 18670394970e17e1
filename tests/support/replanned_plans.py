"""Plans to stop and go on from: small worlds, and what all their ranks read, listed."""

from __future__ import annotations

import collections

import numpy as np

from support.assignments import planned
from support.blends import build_blend, config_for, recipe_of, write_dataset
from tokshard.dataset.fingerprint import DatasetFingerprint, FileFingerprint
from tokshard.ranks.locator import Locator
from tokshard.ranks.options import ReplanOptions
from tokshard.ranks.plan import Plan
from tokshard.ranks.replan import continue_plan
from tokshard.ranks.sources import DatasetReference, SampleSource
from tokshard.samples.blend.recipe import Source
from tokshard.samples.index.entry import CachedArrays
from tokshard.samples.index.epoch_plan import EpochPlan
from tokshard.samples.index.epochs import plan_epochs
from tokshard.samples.index.npy import GPT_ARRAYS

FINGERPRINT = FileFingerprint(128, "0" * 64)

UNKNOWN = DatasetFingerprint(bin_bytes=0, idx_bytes=0)


def reference(name, samples) -> DatasetReference:
    """Describe a dataset with an index of so many samples; nothing of it is opened by plans."""
    epochs: EpochPlan = plan_epochs(
        sequences=samples + 1, tokens_per_epoch=samples * 8 + 1, sequence_length=8, num_samples=None
    )
    assert epochs.samples == samples
    stem = f"{name.encode().hex().zfill(32)}-GPTDataset-train"
    index = CachedArrays(f"/cache/{stem}", dict.fromkeys(GPT_ARRAYS, FINGERPRINT))
    fingerprint = FileFingerprint(samples, f"{samples:064x}")
    return DatasetReference(
        f"/data/{name}", 0, samples, False, fingerprint, fingerprint, UNKNOWN, index, epochs
    )


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


def numbers_of(order, steps=None):
    """Return the numbers of the first steps."""
    return np.arange(order.first_number(order.steps if steps is None else steps), dtype=np.int64)


def reads_of(plan, name="train", steps=None):
    """List what all ranks read: for each step the ids, micro-batch by micro-batch and rank by rank."""
    order = plan.streams[name].order
    steps = order.steps if steps is None else steps
    ids = order.ids(numbers_of(order, steps)).tolist()
    return [ids[order.first_number(step) : order.first_number(step + 1)] for step in range(steps)]


def with_epochs(plan, steps=None):
    """List (epoch, id) of what is read in the first steps."""
    order = plan.streams["train"].order
    numbers = numbers_of(order, steps)
    return list(zip(order.epochs(numbers).tolist(), order.ids(numbers).tolist(), strict=True))


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
    order = plan.streams["train"].order
    unused = sum(epochs.size for epochs in order.epoch_ranges) - order.skipped - order.samples
    left = 0
    for epochs in order.epoch_ranges:
        for epoch in range(epochs.first_epoch, epochs.first_epoch + epochs.epochs):
            dropped = set(epochs.ids(np.arange(epochs.read, epochs.positions), epoch).tolist())
            if not dropped <= unread[epoch]:
                return f"a sample of epoch {epoch} that is reported as dropped is read"
            left += len(unread.pop(epoch) - dropped)
    if left != unused or left >= batch:
        return f"{left} samples are not read, but {unused} are left after the last step"
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
