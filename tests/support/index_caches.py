"""Datasets, requests and texts for the tests of the cache."""

import io
import os
import struct
from pathlib import Path

import numpy as np

from support.index_twins import (
    slow_document_index,
    slow_epochs,
    slow_sample_index,
    slow_samples,
    slow_shuffle_index,
)
from tokshard.samples.index.build import plan_indexes
from tokshard.samples.index.entry import CacheEntry
from tokshard.samples.index.options import IndexRequest
from tokshard.samples.index.splits import parse_split

TOKENIZER = {"class": "a.Tokenizer", "tokenizer_path": "/models/ü", "vocab_size": "50257"}
LENGTHS = [5, 0, 17, 3, 40, 1, 9, 26, 2, 31, 8, 12]


def write_dataset(prefix, lengths=LENGTHS, first_token=0, vocabulary=60000):
    """Write a dataset of one sequence a document, straight from the definition of the format."""
    os.makedirs(os.path.dirname(prefix), exist_ok=True)
    tokens = (np.arange(sum(lengths)) + first_token) % vocabulary
    Path(f"{prefix}.bin").write_bytes(tokens.astype("<u2").tobytes())
    pointers = [2 * sum(lengths[:i]) for i in range(len(lengths))]
    count = len(lengths)
    Path(f"{prefix}.idx").write_bytes(
        b"MMIDIDX\x00\x00"
        + struct.pack("<QBQQ", 1, 8, count, count + 1)
        + struct.pack(f"<{count}i", *lengths)
        + struct.pack(f"<{count}q", *pointers)
        + struct.pack(f"<{count + 1}q", *range(count + 1))
    )
    return prefix


def request_for(prefix, **changes):
    settings = {
        "prefix": prefix,
        "training_path": "data/süß",
        "split_name": "train",
        "split": parse_split("90,10"),
        "num_samples": 30,
        "sequence_length": 8,
        "tokenizer": TOKENIZER,
        **changes,
    }
    return IndexRequest(**settings)


def build_requests(requests, *, cache_directory=None, workers=None, progress=None, **how):
    planned = plan_indexes(requests, cache_directory=cache_directory, workers=workers, progress=progress)
    return planned.build(progress=progress, **how)


def entry_of(report):
    """Return the files of an index, given its report."""
    return CacheEntry.of_file(report.files[0])


def conditions(requests, *, cache_directory=None, digests=True):
    """Return the condition of each index by its entry: ``"damaged"`` if it differs because of damage."""
    examinations = plan_indexes(requests, cache_directory=cache_directory).examine(digests=digests)
    return {
        entry: "damaged" if examination.is_damaged else examination.condition
        for entry, examination in examinations.items()
    }


def entry_for(request, directory):
    return CacheEntry.of(request.description(), str(directory))


def contents(directory):
    """Return the bytes of all files of a directory, by name."""
    return {path.name: path.read_bytes() for path in sorted(Path(directory).iterdir())}


def written(value, depth=0):
    """Write JSON as Megatron does, straight from its rules: the slow twin of the description's text."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return '"' + "".join(map(_escaped, value)) + '"'
    inner, outer = "    " * (depth + 1), "    " * depth
    if isinstance(value, dict):
        items = [f"{written(name)}: {written(member, depth + 1)}" for name, member in value.items()]
        begin, end = "{}"
    else:
        items = [written(element, depth + 1) for element in value]
        begin, end = "[]"
    if not items:
        return begin + end
    return begin + "\n" + ",\n".join(inner + item for item in items) + "\n" + outer + end


def _escaped(character):
    short = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
    if character in short:
        return short[character]
    if " " <= character <= "~":
        return character
    number = ord(character)
    if number < 0x10000:
        return f"\\u{number:04x}"
    number -= 0x10000
    return f"\\u{0xD800 + (number >> 10):04x}\\u{0xDC00 + (number & 0x3FF):04x}"


def slow_arrays(request, lengths):
    """Build the three arrays by the slow twins of the index."""
    extra = int(request.extra_token)
    sequences = request.sequences(len(lengths))
    tokens = sum(lengths[sequence] for sequence in sequences)
    length = request.sequence_length
    epochs = slow_epochs(tokens, request.num_samples, length, extra)
    samples = slow_samples(epochs * tokens, length, extra, drop_last_partial=request.drops_last_partial)
    before = ((epochs - 1) * tokens - extra) // length if epochs > 1 else samples
    separate = epochs > 1 and request.num_samples - before < int(0.80 * ((tokens - extra) // length))
    random = np.random.RandomState(request.seed)
    order = slow_document_index(sequences, epochs, random, separate=separate)
    rows = slow_sample_index(lengths, order, samples, length, extra)
    shuffled = slow_shuffle_index(samples, random, before if separate else samples)
    return {
        "document_index": np.array(order, dtype=np.int32),
        "sample_index": np.array(rows, dtype=np.int32).reshape(-1, 2),
        "shuffle_index": np.array(shuffled, dtype=np.uint32),
    }


def saved(array):
    """Return the bytes that numpy.save writes."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def write_as_megatron(request, lengths, directory):
    """Write what Megatron leaves: four files and nothing else."""
    os.makedirs(directory, exist_ok=True)
    entry = entry_for(request, directory)
    Path(entry.description_path).write_text(request.description().text())
    for name, array in slow_arrays(request, lengths).items():
        Path(entry.array_path(name)).write_bytes(saved(array))
    return entry
