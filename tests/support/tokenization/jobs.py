"""Helpers for tests of whole tokenize runs."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

from tokshard import IndexedDataset

SAMPLE = Path(__file__).parents[3] / "sample_data"
TOKENIZER = str(SAMPLE / "tokenizer.json")


def write_jsonl(path: Path, records: list) -> str:
    """Write records (or raw lines of bytes) as JSON lines; return the path."""
    lines = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in records]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return str(path)


def texts_of(path: Path, field: str = "text") -> list[str]:
    return [json.loads(line)[field] for line in path.read_bytes().splitlines()]


def documents(prefix: Path | str) -> list[list[list[int]]]:
    """Return a dataset as documents of sequences of tokens."""
    dataset = IndexedDataset(str(prefix))
    edges = dataset.document_indices.tolist()
    return [
        [dataset[sequence].tolist() for sequence in range(first, stop)] for first, stop in pairwise(edges)
    ]


def pair(prefix: Path | str) -> tuple[bytes, bytes]:
    return Path(f"{prefix}.bin").read_bytes(), Path(f"{prefix}.idx").read_bytes()


def manifest(prefix: Path | str) -> dict:
    return json.loads(Path(f"{prefix}.tokshard/manifest.json").read_bytes())
