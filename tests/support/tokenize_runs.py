"""Helpers for tests of whole tokenize runs."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

from tokshard import (
    ArrayTask,
    IndexedDataset,
    TokenizeOptions,
    TokenizeReport,
    finish_tokenize,
    tokenize,
    tokenize_array_task,
)
from tokshard.text.corpus.files import discover
from tokshard.text.tokenize.job import TokenizeJob, prepare_job
from tokshard.text.tokenize.report import ArrayTaskReport

SAMPLE = Path(__file__).parents[2] / "sample_data"
TOKENIZER = str(SAMPLE / "tokenizer.json")


def write_jsonl(path: Path, records: list) -> str:
    """Write records (or raw lines of bytes) as JSON lines; return the path."""
    lines = [record if isinstance(record, bytes) else json.dumps(record).encode() for record in records]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return str(path)


def texts_of(path: Path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_bytes().splitlines()]


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


def run_tokenize(inputs, output=None, *, executor=None, progress=None, **options) -> TokenizeReport:
    """Tokenize with options as keywords."""
    return tokenize(
        TokenizeOptions(inputs=inputs, output=output, **options), executor=executor, progress=progress
    )


def dry_run(inputs, output=None, **options) -> TokenizeReport:
    return tokenize(TokenizeOptions(inputs=inputs, output=output, **options), dry_run=True)


def run_array_task(
    inputs, output=None, *, task: ArrayTask, executor=None, progress=None, **options
) -> ArrayTaskReport:
    return tokenize_array_task(
        TokenizeOptions(inputs=inputs, output=output, **options), task, executor=executor, progress=progress
    )


def run_finish(inputs, output=None, *, progress=None, **options) -> TokenizeReport:
    return finish_tokenize(TokenizeOptions(inputs=inputs, output=output, **options), progress=progress)


def job_of(inputs, output=None, **options) -> TokenizeJob:
    """Return the prepared job of a run."""
    checked = TokenizeOptions(inputs=inputs, output=output, **options)
    return prepare_job(checked, discover(checked.input_names))
