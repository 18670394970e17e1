"""The corpus of the comparison: records with an id and a text, in several JSONL files."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson

PARTS = 4


@dataclass(frozen=True)
class Corpus:
    """Files of a corpus.

    Attributes:
        files: JSONL files of about equal size.
        documents: The number of their records.
        file_bytes: The size of the files.
    """

    files: list[str]
    documents: int
    file_bytes: int


def texts(sources: list[Path]) -> Iterator[str]:
    """Yield the texts of JSONL files alternately, again and again; stripped, and without empty ones.

    dolma strips all texts. Megatron and tokshard append no EOD to an empty document, the others do.
    """
    files = [
        [text for line in path.read_bytes().splitlines() if (text := orjson.loads(line)["text"].strip())]
        for path in sources
    ]
    for position in itertools.count():
        for file in files:
            yield file[position % len(file)]


def make(sources: list[Path], directory: Path, megabytes: float) -> Corpus:
    """Write a corpus of a size.

    dolma and Hugging Face datasets expect records with the same members, an ``id`` that is text among them:
    all records are written so.
    """
    directory.mkdir(parents=True)
    paths = [directory / f"part-{part}.jsonl" for part in range(PARTS)]
    endless = texts(sources)
    documents = file_bytes = 0
    for part, path in enumerate(paths):
        with path.open("wb") as file:
            while file_bytes < megabytes * 1e6 * (part + 1) / PARTS:
                text = next(endless)
                record = {"id": str(documents), "text": text, "source": "sample"}
                file_bytes += file.write(orjson.dumps(record) + b"\n")
                documents += 1
    return Corpus(list(map(str, paths)), documents, file_bytes)


def with_bad_line(corpus: Corpus, directory: Path) -> tuple[Corpus, str, int]:
    """Return a copy with a line that is no JSON in the middle of the second file; its file and number."""
    directory.mkdir(parents=True)
    paths = [directory / Path(name).name for name in corpus.files]
    line = 0
    for number, (source, path) in enumerate(zip(corpus.files, paths, strict=True)):
        lines = Path(source).read_bytes().splitlines(keepends=True)
        if number == 1:
            line = len(lines) // 2 + 1
            lines[line - 1] = b"This is not JSON.\n"
        path.write_bytes(b"".join(lines))
    broken = Corpus(list(map(str, paths)), corpus.documents - 1, corpus.file_bytes)
    return broken, paths[1].name, line


def token_arrays(prefix: str, directory: Path, parts: int, repeat: int) -> list[dict[str, str]]:
    """Write the tokens of a dataset, repeated, as arrays for `convert`: all of it, and cut into parts.

    Returns:
        The ``tokens`` and ``ends`` of jobs: first those of all documents, then those of each part.
    """
    from tokshard import IndexedDataset

    dataset = IndexedDataset(prefix)
    tokens = np.concatenate(list(dataset.token_blocks()))
    ends = np.cumsum(dataset.sequence_lengths, dtype=np.int64)
    all_tokens = np.tile(tokens, repeat)
    all_ends = np.concatenate([ends + len(tokens) * number for number in range(repeat)])
    cuts = np.linspace(0, len(all_ends), parts + 1).astype(int)
    ranges = [(0, len(all_ends)), *itertools.pairwise(cuts.tolist())]
    found = []
    for number, (begin, end) in enumerate(ranges):
        start = int(all_ends[begin - 1]) if begin else 0
        job = {
            "tokens": str(directory / f"tokens-{number}.npy"),
            "ends": str(directory / f"ends-{number}.npy"),
        }
        np.save(job["tokens"], all_tokens[start : int(all_ends[end - 1])])
        np.save(job["ends"], all_ends[begin:end] - start)
        found.append(job)
    return found
