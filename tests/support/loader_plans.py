"""Plans over small datasets for the loader's tests, and slow twins of what it makes of them."""

import os

import numpy as np

from support.assignments import plan_with, topology_of
from support.plain_datasets import Plain
from tokshard.dataset.fingerprint import DatasetFingerprint, FileFingerprint
from tokshard.dataset.reader import IndexedDataset
from tokshard.loader import RankLoader
from tokshard.ranks.choices import Shuffling
from tokshard.ranks.modes import ReadingMode, order_after
from tokshard.ranks.plan import Stream
from tokshard.ranks.publication import write_plan
from tokshard.ranks.schedule import BatchSchedule
from tokshard.ranks.shuffles import shuffle_links
from tokshard.ranks.sources import DatasetReference, SampleSource
from tokshard.samples.blend.order import build_blending_indices
from tokshard.samples.index.entry import CachedArrays
from tokshard.samples.index.index import GPTDatasetIndex
from tokshard.samples.index.npy import GPT_ARRAYS

EOD = 0
LENGTH = 8

UNKNOWN = DatasetFingerprint(bin_bytes=0, idx_bytes=0)


def write_documents(directory, name, documents, dtype="uint16"):
    """Write documents of one sequence each; return the prefix."""
    prefix = os.path.join(directory, name)
    Plain(dtype, [[list(tokens)] for tokens in documents]).write(prefix)
    return prefix


def some_documents(seed, count, longest=11):
    """Return documents of different tokens, each ended by EOD."""
    draw = np.random.RandomState(seed)
    lengths = draw.randint(1, longest + 1, count)
    return [[*draw.randint(1, 200, length - 1).tolist(), EOD] for length in lengths]


def save_array(directory, name, array):
    path = os.path.join(directory, name)
    with open(path, "wb") as file:
        np.save(file, array)
    return FileFingerprint.of(path)


def cached(directory, stem, kind, arrays):
    digest = stem.encode().hex().ljust(32, "0")[:32]
    prefix = f"{digest}-{kind}-train"
    fingerprints = {
        name: save_array(directory, f"{prefix}-{name}.npy", array) for name, array in arrays.items()
    }
    return CachedArrays(os.path.join(directory, prefix), fingerprints)


def reference_of(directory, prefix, *, number=0, **options):
    """Return a dataset with an index of its samples, or (``sequence_length=None``) of its documents."""
    dataset = IndexedDataset(prefix)
    fingerprints = {"bin": FileFingerprint.of(f"{prefix}.bin"), "idx": FileFingerprint.of(f"{prefix}.idx")}
    common = {
        "path_prefix": prefix,
        "first": 0,
        "multimodal": False,
        "fingerprint": UNKNOWN,
        **fingerprints,
    }
    options = {"sequence_length": LENGTH, "seed": 1, "num_samples": None} | options
    if options["sequence_length"] is None:
        return DatasetReference(samples=dataset.document_count, **common)
    index = GPTDatasetIndex.build(dataset.sequence_lengths, range(len(dataset)), **options)
    arrays = {name: getattr(index, name) for name in GPT_ARRAYS}
    files = cached(directory, f"index{number}", "GPTDataset", arrays)
    return DatasetReference(samples=len(index), index=files, epochs=index.plan, **common)


def source_of(
    directory, *, datasets=1, documents=40, weights=None, size=None, kind="index", dtype="uint16", **options
):
    """Return the samples of some new datasets, or with ``weights`` of their blend."""
    prefixes = [
        write_documents(directory, f"data{number}", some_documents(number, documents), dtype)
        for number in range(datasets)
    ]
    if kind == "documents":
        options["sequence_length"] = None
    references = tuple(
        reference_of(directory, prefix, number=number, **options) for number, prefix in enumerate(prefixes)
    )
    if weights is None:
        return SampleSource(kind, "train", sum(reference.samples for reference in references), references)
    arrays = build_blending_indices(np.array(weights), size)
    order = cached(
        directory,
        "blend",
        "BlendedDataset",
        {"dataset_index": arrays[0], "dataset_sample_index": arrays[1]},
    )
    return SampleSource("blend", "train", size, references, order)


def stream_of(
    source,
    topology,
    *,
    mode="single",
    micro=2,
    batch=0,
    tail="drop",
    shuffle="none",
    links=(),
    epochs=1,
    schedule=None,
    consumed_samples=0,
    skipped=0,
    steps=None,
    sort_key=None,
    document_boundaries=False,
):
    """Return a stream of all steps that a source fills."""
    batch = batch or micro * topology.data_parallel
    reading = ReadingMode(topology.data_parallel, micro, batch, mode, tail)
    if mode == "cyclic":
        links = reading.cyclic_links(source.total)
    elif shuffle != "none":
        sizes = [dataset.samples for dataset in source.datasets]
        links = shuffle_links(Shuffling(shuffle, block=16), source.total, 5, dataset_sizes=sizes)
    ranges = [reading.epochs(source.total, links, 0, epochs)]
    schedule = schedule or BatchSchedule.constant(batch)
    order = order_after(ranges, reading, schedule, consumed_samples, skipped, steps)
    return Stream.of(source, order, mode, tail, sort_key, document_boundaries=document_boundaries)


def write_streams(directory, topology, *, history=(), **streams):
    """Write a plan; return its directory."""
    plan = plan_with(topology, streams, history)
    place = os.path.join(directory, f"plan-{plan.plan_id[:12]}")
    write_plan(plan, place)
    return place


def plan_for(directory, *, topology=None, source=None, **options):
    """Write a plan of one stream, ``train``; return its directory."""
    topology = topology or topology_of(1)
    source = source or source_of(directory)
    return write_streams(directory, topology, train=stream_of(source, topology, **options))


def open_plan(path, rank=0, **settings):
    return RankLoader.open(path, rank, **settings)


def same(a, b):
    """Tell whether two micro-batches are equal: names, dtypes, shapes and values."""
    return list(a) == list(b) and all(
        a[name].dtype == b[name].dtype and np.array_equal(a[name], b[name]) for name in a
    )


def slow_inputs(text, *, extra, pad, eod, reset_position_ids, eod_mask_loss):
    """Megatron's fields of one sample, token by token: tokens, labels, loss mask, positions, starts."""
    tokens = text[:-1] if extra else text
    labels = text[1:] if extra else [*text[1:], pad]
    mask, positions, starts, start = [], [], [], 0
    for place, (token, label) in enumerate(zip(tokens, labels, strict=True)):
        mask.append(0.0 if label == pad or (eod_mask_loss and token == eod) else 1.0)
        positions.append(place - start if reset_position_ids else place)
        starts.append(start)
        if token == eod:
            start = place + 1
    clean = [[0 if token == pad else token for token in row] for row in (tokens, labels)]
    return (*clean, mask, positions, starts)
