"""scripts/bench tokenize: tokshard tokenize against the bare encoder, an unsafe pipeline and a process pool.

All programs with fastokens get the settings of the memory allocator that the workers of tokshard have. The
bare encoder has its texts in memory and discards the tokens; only encoding is timed. All others are timed as
whole commands.

Runs of 20 MB show what starting costs; the table of workers is about what the other MB add to that.
"efficiency" compares with the first number of workers. The parent process can feed as many workers as its CPU
time fits into theirs.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from itertools import chain
from pathlib import Path

from measure import (
    CPU,
    PEAK,
    SECONDS,
    Contender,
    Figure,
    Rounds,
    Session,
    Spread,
    parser,
    rate,
    session,
    show_table,
)

from tokshard.dataset.layout import DType
from tokshard.text.tokenize.workers.pool import WORKER_MALLOC
from tokshard.text.tokenizer.definition import load_tokenizer

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
START_MEGABYTES = 20
BARE = "fastokens only, {} processes"
OURS = "tokshard, {} workers"
START = "start of tokshard, {} workers"
UNSAFE = "unsafe pipeline with threads"
TOKSHARD = """
import json, resource, sys
import tokshard
from tokshard import TokenizeOptions
corpus, output, tokenizer, workers, encoder = sys.argv[1:]
tokshard.tokenize(
    TokenizeOptions(inputs=corpus, output=output, tokenizer=tokenizer, workers=int(workers), encoder=encoder)
)
own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
print(json.dumps({"parent": own.ru_utime + own.ru_stime, "workers": children.ru_utime + children.ru_stime}))
"""


def options() -> argparse.ArgumentParser:
    """Return the parser."""
    found = parser("tokenize", __doc__)
    sample = ROOT / "sample_data"
    found.add_argument("inputs", nargs="*", default=[sample / "stories.jsonl", sample / "manuals.jsonl"],
                       help="JSONL files, plain or .zst")  # fmt: skip
    found.add_argument("--tokenizer", default=sample / "tokenizer.json")
    found.add_argument("--megabytes", type=float, default=300, help="repeat the inputs up to this size")
    found.add_argument("--workers", default="1,2", help="numbers of workers (default: 1,2)")
    found.add_argument("--slow-megabytes", type=float, default=12, help="size for the slow programs")
    found.add_argument("--compressed", action="store_true", help="also gz and zst inputs")
    found.add_argument("--no-slow", action="store_true", help="leave the slow programs out")
    return found


def make_corpus(inputs: list[Path], path: Path, megabytes: float) -> Path:
    """Write the inputs, again and again, up to a size."""
    texts = []
    for source in map(Path, inputs):
        if source.suffix == ".zst":
            texts.append(subprocess.run(["zstd", "-dcq", source], capture_output=True, check=True).stdout)
        else:
            texts.append(source.read_bytes())
    wanted, size = int(megabytes * 1e6), 0
    with path.open("wb") as file:
        while size < wanted:
            for text in texts:
                if size >= wanted:
                    break
                room = wanted - size
                piece = text if len(text) <= room else text[: text.find(b"\n", room) + 1]
                size += file.write(piece)
    return path


class Programs:
    """The programs, on one corpus.

    Args:
        bench: The session.
    """

    def __init__(self, bench: Session) -> None:
        self._output = bench.directory / "out"
        self._tokenizer = str(bench.options.tokenizer)
        vocabulary = load_tokenizer(self._tokenizer, need_eod=False).identity.vocab_size
        self._dtype = DType.optimal_dtype(vocabulary).__name__

    def ours(
        self, name: str, corpus: Path, workers: int, *, encoder: str = "fast", size: int = 0
    ) -> Contender:
        """Return tokshard; ``size``: that of the text, if the corpus is compressed."""
        arguments = [str(corpus), str(self._output / "x"), self._tokenizer, str(workers), encoder]
        command = [sys.executable, "-c", TOKSHARD, *arguments]
        return Contender(name, command, size or corpus.stat().st_size, self._clean)

    def theirs(self, name: str, program: str, corpus: Path, processes: int) -> Contender:
        """Return a program of encoders.py."""
        command = [sys.executable, str(HERE / "encoders.py"), program, str(processes), self._tokenizer]
        command += [str(corpus), str(self._output / "x"), self._dtype]
        size = corpus.stat().st_size
        return Contender(name, command, size, self._clean, environment=WORKER_MALLOC, is_peer=True)

    def _clean(self) -> None:
        shutil.rmtree(self._output, ignore_errors=True)
        self._output.mkdir()
        os.sync()


def main(arguments: list[str]) -> None:
    """Parse the arguments, make the corpus, compare."""
    speed = rate("MB/s", 1e6)
    figures = [speed, Figure("s", SECONDS.value), CPU, PEAK]
    with session(options(), arguments, "tokshard", "fastokens", "tokenizers", "numpy", "orjson") as bench:
        chosen, directory, programs = bench.options, bench.directory, Programs(bench)
        numbers = [int(number) for number in chosen.workers.split(",")]
        start_megabytes = min(START_MEGABYTES, chosen.megabytes / 2)
        big = make_corpus(chosen.inputs, directory / "big.jsonl", chosen.megabytes)
        small = make_corpus(chosen.inputs, directory / "start.jsonl", start_megabytes)
        pairs = [
            (programs.ours(OURS.format(n), big, n), programs.theirs(BARE.format(n), "fastokens", big, n))
            for n in numbers
        ]
        work = [*chain.from_iterable(pairs), programs.theirs(UNSAFE, "unsafe", big, 1)]
        starts = [programs.ours(START.format(n), small, n) for n in numbers]
        results = bench.run([*work, *starts])
        unsafe = results.pop(UNSAFE)
        shown = {contender.name: results[contender.name] for contender in work[:-1]} | {UNSAFE: unsafe}
        bench.show(shown, title=f"{chosen.megabytes:g} MB", base=UNSAFE, figures=figures)
        _show_costs(bench, results, numbers, speed)
        if chosen.compressed:
            _compare_compressed(bench, programs, big, numbers[-1], figures)
        if not chosen.no_slow:
            _compare_slow(bench, programs, numbers, figures)


def _show_costs(bench: Session, results: dict[str, Rounds], numbers: list[int], speed: Figure) -> None:
    # What each MB costs after the start, and what that means for more workers.
    added = {
        n: [
            {key: run[key] - first[key] for key in ("seconds", "work", "parent", "workers")}
            for run, first in zip(results[OURS.format(n)].runs, results[START.format(n)].runs, strict=True)
        ]
        for n in numbers
    }
    rows = []
    for n in numbers:
        ours, bare = results[OURS.format(n)], results[BARE.format(n)]
        bench.keep("tokenize", bare, speed, ours)
        parent, workers = (
            Spread.of([1e9 * run[who] / run["work"] for run in added[n]]) for who in ("parent", "workers")
        )
        pairs = zip(added[numbers[0]], added[n], strict=True)
        efficiency = Spread.of(
            [100 * one["seconds"] * numbers[0] / (run["seconds"] * n) for one, run in pairs]
        )
        limit = f"{workers.median / parent.median:.0f}"
        start = results[START.format(n)].spread(SECONDS)
        costs = map(str, (start, workers, parent, efficiency))
        rows.append([str(n), str(ours.ratio(bare, speed)), *costs, limit])
    header = [
        "workers",
        "of fastokens only",
        "20 MB, s",
        "workers, CPU ms/MB",
        "parent, CPU ms/MB",
        "efficiency, %",
    ]
    show_table([*header, "workers that the parent can feed"], rows)
    cores = len(os.sched_getaffinity(0))
    if max(numbers) > cores:
        print(f"this machine has {cores} cores: more workers than that share them")


def _compare_compressed(
    bench: Session, programs: Programs, big: Path, workers: int, figures: list[Figure]
) -> None:
    size = big.stat().st_size
    work = [programs.ours("plain", big, workers)]
    for suffix, command in ((".gz", ["gzip", "-1kf"]), (".zst", ["zstd", "-3qkf"])):
        subprocess.run([*command, big], check=True)
        work.append(programs.ours(suffix, big.with_name(big.name + suffix), workers, size=size))
    bench.compare(work, title="compressed", base="plain", figures=figures)


def _compare_slow(bench: Session, programs: Programs, numbers: list[int], figures: list[Figure]) -> None:
    chosen = bench.options
    small = make_corpus(chosen.inputs, bench.directory / "small.jsonl", chosen.slow_megabytes)
    work = []
    for n in numbers:
        work += [
            programs.ours(f"tokshard --encoder reference, {n}", small, n, encoder="reference"),
            programs.theirs(f"tokenizers only, {n}", "tokenizers", small, n),
            programs.theirs(f"process pool as Megatron's, {n}", "pool", small, n),
        ]
    bench.compare(work, title=f"{chosen.slow_megabytes:g} MB", base=work[-1].name, figures=figures)
