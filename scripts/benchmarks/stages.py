"""scripts/bench stages: CPU time of each stage in a worker of tokshard tokenize, for each MB of its input.

One process encodes the units of a corpus, as a worker does, with the settings of the memory allocator that
workers have. A stage's time is that of its functions without the stages inside of it. "fastokens only"
encodes the same texts from memory in the same process, in the same batches.
"""

# ruff: noqa: SLF001 - the stages are private functions

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from measure import Spread, parser, session, show_table
from tokenizing import make_corpus

from tokshard.text.tokenize.workers.pool import WORKER_MALLOC

ROOT = Path(__file__).resolve().parents[2]
STAGES = {
    "encode": "fastokens",
    "parse": "parse JSON, take the text",
    "lines": "split lines, record their offsets",
    "read": "read the input",
    "write": "write the part",
    "pack": "insert EOD tokens, convert to the dataset's dtype",
    "digest_tokens": "digest of the part",
    "digest_input": "digest of the input",
    "reference": "compare with the reference",
    "rest": "all else",
}


class Clock:
    """Adds up the CPU time of stages; a stage inside of another one is not part of it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._stack = ["rest"]
        self._since = time.thread_time()

    def switch(self) -> None:
        """Add what has passed to the current stage."""
        now = time.thread_time()
        self.seconds[self._stack[-1]] += now - self._since
        self._since = now

    @contextmanager
    def stage(self, name: str):
        """Count the time in a ``with`` block as a stage's."""
        self.switch()
        self._stack.append(name)
        try:
            yield
        finally:
            self.switch()
            self._stack.pop()

    def wrap(self, owner: Any, attribute: str, name: str) -> None:
        """Replace a function by one whose time is a stage's."""
        function = getattr(owner, attribute)
        setattr(owner, attribute, self.wrapped(function, name))

    def wrapped(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Return a function whose time is a stage's."""

        def timed(*arguments: Any, **named: Any) -> Any:
            with self.stage(name):
                return function(*arguments, **named)

        return timed

    def in_other_threads(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Return a function for other threads whose time is a stage's."""

        def timed(*arguments: Any) -> Any:
            started = time.thread_time()
            result = function(*arguments)
            self.seconds[name] += time.thread_time() - started
            return result

        return timed


class Library:
    """The fast library, timed."""

    def __init__(self, library: Any, clock: Clock) -> None:
        self.encode_batch_flat = clock.wrapped(library.encode_batch_flat, "encode")


def digests(clock: Clock) -> type:
    """Return a timed replacement of xxhash.xxh3_128."""
    import xxhash

    make = xxhash.xxh3_128

    class Digest:
        def __init__(self) -> None:
            self._state = make()
            self.hexdigest = self._state.hexdigest

        def update(self, buffer: Any) -> None:
            with clock.stage("digest_input" if clock._stack[-1] == "rest" else "digest_tokens"):
                self._state.update(buffer)

    return Digest


def encode_units(tokenizer: str, corpus: str, rounds: int) -> None:
    """Print the CPU time of each stage and round, as JSON; the first round is not counted."""
    import xxhash

    from tokshard import TokenizeOptions
    from tokshard.core.progress import SilentProgress
    from tokshard.storage import syscalls
    from tokshard.text.corpus import lines, records
    from tokshard.text.corpus.planning import plan_units, read_documents
    from tokshard.text.tokenize import encoder, part
    from tokshard.text.tokenize.discovery import discover_inputs
    from tokshard.text.tokenize.job import prepare_job

    with tempfile.TemporaryDirectory(dir=Path(corpus).parent) as directory:
        options = TokenizeOptions(inputs=corpus, output=f"{directory}/x", tokenizer=tokenizer, encoder="fast")
        job = prepare_job(options, *discover_inputs(options, SilentProgress()))
        worker = encoder.UnitEncoder(job.encoding(), directory)
        units = list(plan_units(0, job.files[0], options.unit_size, job.reading.fields))
        worker.load(reference=True)
        clock = Clock()
        library = worker._encoder._library
        worker._encoder._library = Library(library, clock)
        clock.wrap(lines._LocalRanges, "read", "read")
        clock.wrap(lines._LineUnitReader, "_batch", "lines")
        clock.wrap(records, "_plain_documents", "parse")
        clock.wrap(encoder, "pack_documents", "pack")
        worker._reference.encode = clock.in_other_threads(worker._reference.encode, "reference")
        clock.wrap(part.PartWriter, "write", "part")
        clock.wrap(syscalls, "write", "write")
        xxhash.xxh3_128 = digests(clock)
        size = os.path.getsize(corpus)
        found = []
        for number in range(rounds + 1):
            clock.switch()
            clock.seconds.clear()
            for unit in units:
                name = job.part_names.of(part.UnitKey(unit.file, unit.index))
                list(worker.encode(encoder.Task(unit, corpus, name, 0)))
                os.unlink(os.path.join(directory, name))
            clock.switch()
            seconds = dict(clock.seconds)
            seconds["rest"] += seconds.pop("part", 0)
            bare = 0.0
            for unit in units:
                for batch in read_documents(unit, job.reading):
                    started = time.thread_time()
                    library.encode_batch_flat(*batch.texts)
                    bare += time.thread_time() - started
            if number:
                found.append({**seconds, "bare": bare})
    print(json.dumps([{stage: 1e9 * spent / size for stage, spent in each.items()} for each in found]))


def options() -> argparse.ArgumentParser:
    """Return the parser."""
    found = parser("stages", __doc__, rounds=5)
    sample = ROOT / "sample_data"
    found.add_argument("inputs", nargs="*", default=[sample / "stories.jsonl", sample / "manuals.jsonl"],
                       help="JSONL files, plain or .zst")  # fmt: skip
    found.add_argument("--tokenizer", default=sample / "tokenizer.json")
    found.add_argument("--megabytes", type=float, default=100, help="repeat the inputs up to this size")
    return found


def main(arguments: list[str]) -> None:
    """Parse the arguments, make the corpus, print the table."""
    with session(options(), arguments, "tokshard", "fastokens", "orjson") as bench:
        chosen = bench.options
        corpus = make_corpus(chosen.inputs, bench.directory / "corpus.jsonl", chosen.megabytes)
        command = [sys.executable, __file__, chosen.tokenizer, corpus, str(chosen.rounds)]
        environment = {**os.environ, **WORKER_MALLOC}
        done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=True)
        rounds = json.loads(done.stdout)
        rows = [
            (title, Spread.of([each.get(stage, 0.0) for each in rounds])) for stage, title in STAGES.items()
        ]
        bare = [each.pop("bare") for each in rounds]
        rows.append(("sum", Spread.of([sum(each.values()) for each in rounds])))
        rows.append(("fastokens only", Spread.of(bare)))
        show_table(["stage", "CPU ms/MB"], [(title, str(spread)) for title, spread in rows])


if __name__ == "__main__":
    encode_units(sys.argv[1], sys.argv[2], int(sys.argv[3]))
