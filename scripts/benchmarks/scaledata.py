"""Synthetic data of any size for scripts/bench scale: everything except the values of tokens.

Run as a program, so that its memory does not count as memory of the benchmark:
scaledata.py FUNCTION DIRECTORY SIZE.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
from tracing import write_pair, write_sidecars

MEAN_TOKENS = 1000
SPREAD = 1.2
LONGEST_TOKENS = 1 << 20
SEQUENCE_LENGTH = 4096
SOURCES = 64
TOKENS_OF_LONG_DOCUMENT = 1 << 16
_ROOM = 1.02
_CHUNK = 1 << 22


def spread_lengths(
    count: int, seed: int = 1, *, mean: float = MEAN_TOKENS, spread: float = SPREAD
) -> np.ndarray:
    """Return the tokens of documents, log-normal and at least 1: int32 of shape (count,)."""
    draw, lengths = np.random.RandomState(seed), np.empty(count, np.int32)
    for first in range(0, count, _CHUNK):
        piece = draw.lognormal(np.log(mean) - spread**2 / 2, spread, min(_CHUNK, count - first))
        lengths[first : first + len(piece)] = np.clip(piece, 1, LONGEST_TOKENS)
    return lengths


def documents(directory: Path, count: int) -> None:
    """Write a dataset of many documents."""
    write_pair(directory / "data", spread_lengths(count))


def provenance(directory: Path, count: int) -> None:
    """Write what tells where the documents of that dataset come from."""
    write_sidecars(directory / "data", count, os.path.getsize(directory / "data.bin") // 2)


def halves(directory: Path, count: int) -> None:
    """Write two datasets with half of the documents each."""
    for number, name in enumerate("ab"):
        write_pair(directory / name, spread_lengths(count // 2, number))


def short_halves(directory: Path, count: int) -> None:
    """Write two datasets of documents of two tokens."""
    for name in "ab":
        write_pair(directory / name, np.full(count // 2, 2, np.int32))


def sources(directory: Path, count: int) -> None:
    """Write datasets of long documents that have so many samples together, and the words of their blend."""
    weights = np.random.RandomState(2).uniform(0.2, 1.8, SOURCES)
    words = []
    for number, share in enumerate(weights / weights.sum()):
        tokens = (int(count * share * _ROOM) + 2) * SEQUENCE_LENGTH
        size = -(-tokens // TOKENS_OF_LONG_DOCUMENT)
        write_pair(directory / f"source{number:02}", np.full(size, TOKENS_OF_LONG_DOCUMENT, np.int32))
        words += [f"{share:.6f}", str(directory / f"source{number:02}")]
    (directory / "words.json").write_text(json.dumps(words))


def many(directory: Path, count: int) -> None:
    """Write so many small datasets, all but the first as links, and the words of their blend."""
    write_pair(directory / "source00000", np.full(4, TOKENS_OF_LONG_DOCUMENT, np.int32))
    words = [str(directory / f"source{number:05}") for number in range(count)]
    for word in words[1:]:
        for suffix in (".bin", ".idx"):
            os.link(words[0] + suffix, word + suffix)
    (directory / "words.json").write_text(json.dumps(words))


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))
