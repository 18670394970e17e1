"""Small datasets to trace through, and the slow twin: everything that is read, listed token by token."""

from __future__ import annotations

import os
from itertools import accumulate

import numpy as np
from hypothesis import strategies as st

from support import assignments
from support.plain_datasets import Plain
from tokshard.checks.trace.reads import PlanStage
from tokshard.checks.trace.traced_data import TracedData, TracedStream
from tokshard.dataset.fingerprint import DatasetFingerprint, FileFingerprint
from tokshard.dataset.reader import IndexedDataset
from tokshard.errors import TokshardError
from tokshard.ranks.choices import Shuffling
from tokshard.ranks.locator import Locator
from tokshard.ranks.sources import DatasetReference, SampleSource
from tokshard.samples.blend.order import build_blending_indices
from tokshard.samples.index.entry import CachedArrays
from tokshard.samples.index.index import GPTDatasetIndex
from tokshard.samples.index.npy import BLEND_ARRAYS, GPT_ARRAYS, write_npy
from tokshard.samples.index.samples import GPTSamples

# Of each document the lengths of its sequences; most have one, some none, and some of them no token.
documents = st.lists(
    st.one_of(
        st.integers(0, 25).map(lambda length: [length]),
        st.lists(st.integers(0, 6), max_size=3),
    ),
    min_size=1,
    max_size=14,
).filter(lambda found: sum(map(sum, found)) > 8)

UNKNOWN = DatasetFingerprint(bin_bytes=0, idx_bytes=0)


def write_dataset(prefix, lengths):
    """Write a dataset in which the n-th token is n, so that a token tells its place."""
    tokens = iter(range(10**9))
    Plain("int32", [[[next(tokens) for _ in range(size)] for size in sizes] for sizes in lengths]).write(
        prefix
    )
    return prefix


def cached(directory, number, kind, arrays):
    prefix = os.path.join(directory, f"{number:032x}-{kind}-train")
    for name, array in arrays.items():
        write_npy(f"{prefix}-{name}.npy", array)
    return CachedArrays.at(prefix)


def reference_of(directory, number, lengths, *, unused=0, **options):
    """Describe a new dataset with an index; without ``sequence_length`` its samples are its documents.

    Its last ``unused`` samples are not for reading.
    """
    prefix = write_dataset(os.path.join(directory, f"data{number}"), lengths)
    fingerprints = {"bin": FileFingerprint.of(f"{prefix}.bin"), "idx": FileFingerprint.of(f"{prefix}.idx")}
    common = {
        "path_prefix": prefix,
        "multimodal": False,
        "fingerprint": UNKNOWN,
        **fingerprints,
    }
    if "sequence_length" not in options:
        first = min(options.get("first", 0), len(lengths) - 1)
        return DatasetReference(first=first, samples=max(1, len(lengths) - first - unused), **common)
    dataset = IndexedDataset(prefix)
    index = GPTDatasetIndex.build(dataset.sequence_lengths, range(len(dataset)), **options)
    files = cached(directory, number, "GPTDataset", {name: getattr(index, name) for name in GPT_ARRAYS})
    samples = max(1, len(index) - unused)
    return DatasetReference(first=0, samples=samples, index=files, epochs=index.plan, **common)


def source_of(directory, worlds, *, blend=None, **options):
    """Return the samples of new datasets; with ``blend``, a number of samples, of their blend."""
    options.setdefault("first", 0)
    if "sequence_length" in options:
        del options["first"]
    references = tuple(
        reference_of(directory, number, lengths, **options) for number, lengths in enumerate(worlds)
    )
    kind = "index" if "sequence_length" in options else "documents"
    if blend is None or kind == "documents":
        return SampleSource(kind, "train", sum(reference.samples for reference in references), references)
    size = min(blend, *(reference.samples for reference in references))
    arrays = build_blending_indices(np.full(len(references), 1 / len(references)), size)
    order = cached(directory, 99, "BlendedDataset", dict(zip(BLEND_ARRAYS, arrays, strict=True)))
    return SampleSource("blend", "train", size, references, order)


def data_of(source, stream=None, topology=None, stages=None):
    """Return what can be traced through: a plan of one stream, or the samples alone."""
    datasets = {dataset.path_prefix: False for dataset in source.datasets}
    if stream is None:
        return TracedData(
            "index" if source.kind == "documents" else source.kind,
            "here",
            {"train": TracedStream("train", source)},
            datasets,
        )
    plan = assignments.plan_with(topology, {"train": stream})
    stages = stages or (PlanStage(plan.plan_id, stream.order, stream.order.steps),)
    traced = TracedStream("train", source, stages, stream)
    return TracedData("plan", "here", {"train": traced}, datasets, plan)


requests = st.one_of(
    st.fixed_dictionaries(
        {
            "mode": st.sampled_from(["single", "contiguous", "sequential", "chunked"]),
            "tail": st.sampled_from(["drop", "pad"]),
            "shuffle": st.sampled_from(["none", "samples"]).map(Shuffling)
            | st.builds(Shuffling, st.just("windows"), st.integers(1, 5)),
            "shuffle_per_epoch": st.booleans(),
            "epochs": st.integers(1, 3),
            "bucket_buffer": st.none() | st.sampled_from([12, 24]),
            "steps_before": st.integers(0, 2),
        }
    ),
    st.fixed_dictionaries(
        {
            "mode": st.just("cyclic"),
            "data_sharding": st.booleans(),
            "equal_counts": st.just(True),
            "epochs": st.integers(1, 3),
            "steps_before": st.integers(0, 2),
        }
    ),
)


def stream_of(source, ranks, size, batches, request):
    """Return a stream that a request plans; None where it cannot be planned for so few samples."""
    options = {"steps_before": 0, **request}
    if options.get("bucket_buffer") is not None:
        options["bucket_pack"] = 4
    batch = ranks * size * batches
    start = options.pop("steps_before") * batch
    sizes = {"micro_batch_size": size, "global_batch_size": batch, "consumed_samples": start}
    try:
        return assignments.stream_of(source, data_parallel=ranks, **sizes, **options)
    except TokshardError:
        return None


def bounds_of(worlds):
    """Return for each dataset the first token of each document and sequence, and the end."""
    found = []
    for lengths in worlds:
        sequences = [size for sizes in lengths for size in sizes]
        edges = [0, *accumulate(sequences)]
        counts = [0, *accumulate(len(sizes) for sizes in lengths)]
        found.append(([edges[count] for count in counts], edges))
    return found


def slow_pieces(worlds, source, sample):
    """Return the pieces of a sample, from its tokens alone.

    Each is (dataset, document, sequence, first token, stop token, whether it is only the last label).
    """
    numbers, places = Locator(source).locate(np.array([sample]))
    number, place = int(numbers[0]), int(places[0])
    reference = source.datasets[number]
    dataset = reference.open_dataset()
    if reference.index is None:
        tokens = dataset.document_tokens(place).tolist()
    else:
        samples = GPTSamples(dataset, reference.open_index(), pad_id=-1)
        tokens = [token for token in samples.read(place).tokens.tolist() if token >= 0]
    documents, sequences = bounds_of(worlds)[number]
    pieces = []
    extra = reference.epochs is not None and reference.epochs.extra_token
    for at_token, token in enumerate(tokens):
        sequence = max(at for at in range(len(sequences) - 1) if sequences[at] <= token < sequences[at + 1])
        document = next(at for at in range(len(documents) - 1) if documents[at] <= token < documents[at + 1])
        place = token - documents[document]
        if pieces and pieces[-1][:3] == [number, document, sequence] and pieces[-1][4] == place:
            pieces[-1][4] += 1
        else:
            label_only = extra and at_token == len(tokens) - 1
            pieces.append([number, document, sequence, place, place + 1, label_only])
    return [tuple(piece) for piece in pieces]


def slow_reads(order, key_of, steps=None):
    """Yield (id, epoch, step, rank, row, repeated, consumed samples after) of all that a plan reads."""
    for rank in range(order.ranks):
        for step in range(order.steps if steps is None else steps):
            first = order.first_number(step) // order.ranks
            count = order.first_number(step + 1) // order.ranks - first
            numbers = order.numbers(rank, first, count)
            columns = (order.ids(numbers, key_of), order.epochs(numbers), order.repeated(numbers))
            for row, (sample, epoch, repeated) in enumerate(
                zip(*map(np.ndarray.tolist, columns), strict=True)
            ):
                yield sample, epoch, step, rank, row, repeated, order.consumed_after(step + 1)
