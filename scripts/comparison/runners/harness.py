"""Common part of the runners: a program that does one stage of a job with one tool.

    python runners/TOOL.py JOB.json

The job is a JSON object with these members, each stage using some of them:

    stage       what to do: tokens, read, convert, blend, plan or load
    files       JSONL files with the members ``id`` and ``text``
    tokenizer   path of tokenizer.json; ``eod`` is the id of its EOD token, ``eod_text`` the text,
                ``vocabulary`` the number of its tokens
    output      directory to write to, or to read
    workers     number of worker processes
    parts       of ``convert``: objects with members that replace those of the job: output, and
                ``tokens``, the path of a .npy file with the tokens of documents, EOD included, and
                ``ends``, the path of a .npy file with the position after each document
    sources     pairs of a weight and a directory that ``convert`` wrote; ``load`` has one
    length      tokens of a sample; ``batch`` is the number of samples in a batch
    samples     number of samples that an index or a blend has
    seconds     of ``load``: how long to read
    seed        seed of shuffles
"""

from __future__ import annotations

import json
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any


class Job:
    """A job: its members are attributes."""

    def __init__(self, members: dict[str, Any]) -> None:
        self.__dict__.update(members)
        self.started = time.perf_counter()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the job has no member {name!r}")

    @property
    def dtype(self) -> str:
        """The smallest type that holds the tokens."""
        return "uint16" if self.vocabulary <= 1 << 16 else "uint32"

    def documents(self) -> Iterator[Any]:
        """Yield the tokens of each document, EOD included."""
        import numpy as np

        tokens = np.load(self.tokens, mmap_mode="r")
        begin = 0
        for end in np.load(self.ends).tolist():
            yield tokens[begin:end]
            begin = end


def main(**stages: Callable[[Job], None]) -> None:
    """Run the stage that the job file names; `convert` for each of its parts, because imports take long."""
    members = json.loads(Path(sys.argv[1]).read_text())
    for part in members.pop("parts", [{}]):
        stages[members["stage"]](Job({**members, **part}))


def report(**facts: Any) -> None:
    """Print facts for the driver as the last line."""
    print("\n" + json.dumps(facts), flush=True)


def count(job: Job, documents: Iterable[Any], **more: Callable[[], Any]) -> None:
    """Report the number of tokens and documents, and a sum over the documents that ignores their order.

    Args:
        job: The job.
        documents: Tokens of documents, as arrays of integers; EOD included.
        more: Further facts, computed at the end; reported unless they are 0.
    """
    import numpy as np

    found = tokens = ended = total = 0
    for document in documents:
        array = np.ascontiguousarray(document, dtype="<u4")
        found += 1
        tokens += len(array)
        ended += bool(len(array)) and int(array[-1]) == job.eod
        total += zlib.crc32(array)
    others = {name: value for name, compute in more.items() if (value := compute())}
    report(documents=found, tokens=tokens, ended=ended, sum=total, **others)


def split(tokens: Any, eod: int) -> Iterator[Any]:
    """Yield the documents of an array of tokens, which end with EOD."""
    import numpy as np

    begin = 0
    for end in (np.flatnonzero(np.asarray(tokens) == eod) + 1).tolist():
        yield tokens[begin:end]
        begin = end
    if begin < len(tokens):
        yield tokens[begin:]


def drain(job: Job, opened: Callable[[], Iterable[Any]], tokens_of: Callable[[Any], Any]) -> None:
    """Read batches for some time; report the seconds to the first batch, and samples and seconds after it.

    A training job has imported torch anyway: it is imported before the time is taken, where it is installed.

    Args:
        job: The job.
        opened: Imports the tool, opens the data and returns the batches.
        tokens_of: Returns the tokens of a batch, of the shape (batch, length) or (batch, length + 1).
    """
    try:
        import torch
    except ImportError:
        pass
    else:
        torch.set_num_threads(1)
    started = time.perf_counter()
    batches = iter(opened())
    shape = tuple(tokens_of(next(batches)).shape)
    first = time.perf_counter() - started
    if shape not in {(job.batch, job.length), (job.batch, job.length + 1)}:
        sys.exit(f"the batch has the shape {shape}")
    samples, started = 0, time.perf_counter()
    for batch in batches:
        samples += len(tokens_of(batch))
        if time.perf_counter() - started >= job.seconds:
            break
    report(first=first, samples=samples, seconds=time.perf_counter() - started)
