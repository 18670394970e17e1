"""Slow twins of the index and of reading, in plain Python, and datasets to hold the fast code against."""

import math
import struct

import numpy as np
from hypothesis import strategies as st

from support.plain_datasets import Plain


def single(number):
    """Round a number to single precision, by way of the four bytes of it."""
    return struct.unpack("<f", struct.pack("<f", number))[0]


def slow_epochs(tokens_per_epoch, num_samples, sequence_length, extra):
    """Count epochs one by one."""
    epochs, tokens = 1, tokens_per_epoch
    while num_samples is not None and tokens < num_samples * sequence_length + extra:
        epochs, tokens = epochs + 1, tokens + tokens_per_epoch
    return epochs


def slow_samples(tokens, sequence_length, extra, *, drop_last_partial):
    if drop_last_partial:
        return (tokens - extra) // sequence_length
    return math.ceil(single(single(tokens - extra) / single(sequence_length)))


def slow_document_index(sequences, epochs, random, *, separate):
    """The order over all epochs; ``random`` is a ``numpy.random.RandomState``."""
    parts = [(epochs - 1) * list(sequences), list(sequences)] if separate else [epochs * list(sequences)]
    order = []
    for part in parts:
        shuffled = np.array(part, dtype=np.int32)
        random.shuffle(shuffled)
        order += shuffled.tolist()
    return order


def slow_sample_index(lengths, order, samples, sequence_length, extra):
    """Row by row: who owns the token that ends a sample?"""
    begins, owners, token = [], [], 0
    for position, document in enumerate(order):
        begins.append(token)
        owners += [position] * lengths[document]
        token += lengths[document]
    rows = [(0, 0)]
    for row in range(1, samples + 1):
        last = row * sequence_length + extra - 1
        if last < token:
            rows.append((owners[last], row * sequence_length - begins[owners[last]]))
        else:
            rows.append((len(order) - 1, lengths[order[-1]] - extra))
    return rows


def slow_shuffle_index(samples, random, border):
    order = []
    for first, last in ((0, border), (border, samples)):
        part = np.arange(first, last, dtype=np.uint32)
        random.shuffle(part)
        order += part.tolist()
    return order


def slow_text(stream, sample, sequence_length, extra, pad_id):
    """The tokens of sample number ``sample`` before shuffling, cut from all tokens in reading order."""
    wanted = sequence_length + extra
    text = stream[sample * sequence_length : sample * sequence_length + wanted]
    return text + [pad_id] * (wanted - len(text))


def write_dataset(prefix, sequences, dtype="uint16"):
    """Write sequences (lists of tokens) as a dataset of one-sequence documents."""
    Plain(dtype, [[sequence] for sequence in sequences]).write(prefix)


def lengths_lists(least=0):
    """Lengths of at least one sequence, not all zero."""
    return st.lists(st.integers(least, 9), min_size=1, max_size=14).filter(any)
