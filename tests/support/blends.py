"""Slow twins of blending, straight from the definitions, and small datasets to blend."""

import os
import struct
from pathlib import Path

import numpy as np

from tokshard.checks.commands.verify import verify
from tokshard.checks.verify.options import VerifyOptions
from tokshard.samples.blend import job
from tokshard.samples.blend.options import BlendOptions, BuilderConfig
from tokshard.samples.blend.recipe import BlendRecipe, Mixture
from tokshard.samples.index.sizes import Sizes

TOKENIZER = {"class": "a.Tokenizer", "tokenizer_path": "/models/x"}


def greedy(weights, size):
    """Draw the source that lags most, the first of equals."""
    draws = [0] * len(weights)
    order, samples = [], []
    for step in range(size):
        scale = max(float(step), 1.0)
        lags = [weight * scale - float(drawn) for weight, drawn in zip(weights, draws, strict=True)]
        source = lags.index(max(lags))
        order.append(source)
        samples.append(draws[source])
        draws[source] += 1
    return order, samples


def exhaustive(sizes):
    """The same among the sources that have samples left."""
    total = float(sum(sizes))
    weights = [float(size) / total for size in sizes]
    draws = [0] * len(sizes)
    order, samples = [], []
    for step in range(sum(sizes)):
        scale = max(float(step), 1.0)
        best, source = -float("inf"), -1
        for candidate, size in enumerate(sizes):
            lag = weights[candidate] * scale - float(draws[candidate])
            if draws[candidate] < size and lag > best:
                best, source = lag, candidate
        order.append(source)
        samples.append(draws[source])
        draws[source] += 1
    return order, samples


def covered(lengths, document_index, shuffle_index, draws, sequence_length):
    """Count how often each document is seen, token by token."""
    stream = [(document, token) for document in document_index for token in range(lengths[document])]
    starts = np.cumsum([0, *(lengths[document] for document in document_index)])
    appearances = {document: set() for document in document_index if lengths[document]}
    total = 0
    for sample in shuffle_index[:draws]:
        begin = int(sample) * sequence_length
        for place in range(begin, min(begin + sequence_length, len(stream))):
            appearance = int(np.searchsorted(starts, place, side="right"))
            appearances[stream[place][0]].add(appearance)
            total += 1
    documents = [len(found) for found in appearances.values()]
    return {
        "documents": len(documents),
        "documents_drawn": sum(count > 0 for count in documents),
        "document_least": min(documents),
        "document_most": max(documents),
        "tokens": total,
        "epochs": total / sum(lengths[document] for document in appearances),
    }


def deviations(order, shares):
    """Return the largest deviation of each source from its share over all prefixes."""
    draws = [0] * len(shares)
    largest = [0.0] * len(shares)
    for prefix in range(len(order) + 1):
        for source, share in enumerate(shares):
            largest[source] = max(largest[source], abs(share * prefix - draws[source]))
        if prefix < len(order):
            draws[order[prefix]] += 1
    return largest


def write_dataset(prefix, lengths, first_token=0):
    """Write a dataset of one sequence a document, straight from the definition of the format."""
    os.makedirs(os.path.dirname(prefix) or ".", exist_ok=True)
    tokens = (np.arange(sum(lengths)) + first_token) % 60000
    Path(f"{prefix}.bin").write_bytes(tokens.astype("<u2").tobytes())
    pointers = np.cumsum([0, *lengths])[:-1] * 2
    count = len(lengths)
    Path(f"{prefix}.idx").write_bytes(
        b"MMIDIDX\x00\x00"
        + struct.pack("<QBQQ", 1, 8, count, count + 1)
        + np.array(lengths, "<i4").tobytes()
        + pointers.astype("<i8").tobytes()
        + np.arange(count + 1, dtype="<i8").tobytes()
    )
    return str(prefix)


def write_sources(directory, counts=(60, 40, 50)):
    """Write datasets whose documents have 1 to 40 tokens; return their prefixes."""
    return [
        write_dataset(str(directory / f"source{number}"), [1 + (7 * i + number) % 40 for i in range(count)])
        for number, count in enumerate(counts)
    ]


def config_for(train=100, valid=0, test=0, **changes):
    """Return parameters of a builder: Megatron's defaults, but for short samples."""
    settings = {
        "sequence_length": 16,
        "sizes": Sizes(train, valid, test),
        "tokenizer": TOKENIZER,
        "split": "80,10,10",
        "seed": 1234,
        "surplus": 0.005,
        "extra_token": True,
        "drop_last_partial": True,
        "path_as": (),
    }
    return BuilderConfig(**settings | changes)


def build_blend(recipe, config, output, *, cache_directory=None, **options):
    """Build the blend of a recipe with other parameters than those that options can express."""
    given = BlendOptions(recipe=recipe, output=output, cache_dir=cache_directory, **options)
    return job.build_blend(recipe, config, given)


def mixture_of(*sources, unit="samples", temperature=1.0):
    """Return a mixture of sources."""
    return Mixture(sources, unit, temperature)


def recipe_of(*sources, **options):
    """Return a recipe with one mixture for all splits."""
    return BlendRecipe((mixture_of(*sources, **options),), multiple_validation_sets=False)


def snapshot(directory):
    """Return the bytes and the times of all files below a directory."""
    files = [path for path in sorted(Path(directory).rglob("*")) if path.is_file()]
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def problems_of(path):
    """Return the codes of all problems that a deep verification of a blend and its indexes finds."""
    report = verify(VerifyOptions(path=str(path), level="deep"))
    return {finding.code for finding in report.findings if finding.severity != "note"}
