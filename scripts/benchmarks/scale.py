"""scripts/bench scale: cost of each stage per document, token, sample and rank, and its growth.

Every command runs whole at sizes that are powers of ten apart. The data is synthetic: indexes and file sizes
are real, .bin files are sparse, and the text is sample_data, repeated (--text sets other files). Commands of
two seconds or more run once. The history has the ratio of each time to that of a fixed amount of work, which
runs before each command. --write writes the table into a page and updates the values that the page computes
from it.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from footprint import Footprint, take
from measure import (
    ROOT,
    SECONDS,
    TOKSHARD,
    Contender,
    Rounds,
    Session,
    digits,
    machine,
    parser,
    session,
    show_progress,
    show_table,
    yardstick,
)
from sheet import Results, recompute, with_results

HERE = Path(__file__).parent
FIRST_BATCH = "from tokshard.loader import RankLoader; import sys; RankLoader.open(sys.argv[1], rank=0)[0]"
READ = """
import itertools, sys
from tokshard.loader import RankLoader
for batch in itertools.islice(RankLoader.open(sys.argv[1], rank=0), int(sys.argv[2])):
    batch["tokens"].sum()
"""
QUICK_SECONDS = 2.0
LENGTH = ["--seq-length", "4096"]
WHOLE = ["--split", "1,0,0"]


@dataclass(frozen=True)
class Point:
    """A stage at one size."""

    stage: str
    unit: str
    size: int
    footprint: Footprint
    spread: str


class Stages:
    """Makes data, measures commands, and keeps what was asked for.

    Args:
        directory: Where to work.
        session: Where ratios are kept for the history.
    """

    def __init__(self, directory: Path, session: Session) -> None:
        self.directory, self.session, self.options = directory, session, session.options
        self.yardstick = yardstick()
        self.points: list[Point] = []

    def make(self, what: str, size: int) -> Path:
        """Make data in an empty directory, in a process of its own."""
        place = Path(tempfile.mkdtemp(dir=self.directory))
        self.add(what, place, size)
        return place

    def add(self, what: str, place: Path, size: int) -> None:
        """Make more data there."""
        self.run([sys.executable, str(HERE / "scaledata.py"), what, str(place), str(size)])

    def run(self, command: list[str]) -> None:
        """Run a command that is not measured."""
        take(command)

    def measure(
        self, stage: str, unit: str, size: int, command: list[str], output: Path | None = None
    ) -> None:
        """Run a command, which works on ``size`` units."""
        show_progress(f"{stage}, {size:,} {unit}s")
        base, taken = Rounds(self.yardstick, []), []
        while not taken or (taken[0].seconds < QUICK_SECONDS and len(taken) < self.options.rounds):
            base.runs.append(self.yardstick.run())
            taken.append(take(command, output))
        if stage not in self.options.stages:
            return
        values = {
            name: [getattr(footprint, name) for footprint in taken] for name in Footprint.__dataclass_fields__
        }
        medians = {name: statistics.median(values[name]) for name in ("seconds", "cpu_seconds")}
        rest = {name: max(found) for name, found in values.items() if name not in medians}
        rounds = Rounds(Contender(stage, command), [vars(footprint) for footprint in taken])
        self.session.keep(f"{stage}: {size:,} {unit}s", base, SECONDS, rounds)
        spread = str(rounds.spread(SECONDS))
        self.points.append(Point(stage, unit, size, Footprint(**medians, **rest), spread))


def tokshard(command: str, *arguments: object) -> list[str]:
    """Return the command line of a subcommand."""
    return [*TOKSHARD, command, *map(str, arguments)]


def text(bench: Stages, size: int) -> None:
    """Tokenize ``size`` bytes of text with one process for each core."""
    from tokenizing import make_corpus

    options = bench.options
    place = Path(tempfile.mkdtemp(dir=bench.directory))
    corpus = make_corpus(options.text, place / "corpus.jsonl", size / 1e6)
    command = tokshard("tokenize", corpus, "-o", place / "out/x", "--tokenizer", options.tokenizer)
    bench.measure("tokenize", "byte", corpus.stat().st_size, command, place / "out")


def documents(bench: Stages, size: int) -> None:
    """Everything whose work grows with documents, on one dataset."""
    place = bench.make("documents", size)
    data, cache, plan = place / "data", place / "cache", place / "plan"

    def measure(stage: str, command: list[str], output: Path | None = None) -> None:
        bench.measure(stage, "document", size, command, output)

    measure("inspect", tokshard("inspect", data))
    measure("verify_structure", tokshard("verify", data, "--level", "structure"))
    bench.add("provenance", place, size)
    for epochs, name in (2, "build_indices_2"), (1, "build_indices"):
        command = tokshard("build-indices", data, *LENGTH, *WHOLE, "--epochs", epochs, "--cache-dir", cache)
        measure(name, command, cache)
    measure("verify_index", tokshard("verify", cache))
    command = tokshard("blend", data, *LENGTH, *WHOLE, "-o", place / "blend")
    measure("blend_documents", command, place / "blend")
    command = tokshard("shard-plan", cache, "--data-parallel", 8, "-o", plan)
    measure("plan_index", command, plan)
    measure("first_batch", [sys.executable, "-c", FIRST_BATCH, str(plan)])
    line = f"corpus.jsonl:{size // 2}"
    measure("trace", tokshard("trace", plan, line))


def tokens(bench: Stages, size: int) -> None:
    """Merging two datasets of documents of 1,000 tokens, and reading the result whole."""
    place = bench.make("halves", size)
    count = sum((place / name).stat().st_size for name in ("a.bin", "b.bin")) // 2
    command = tokshard("merge", place / "a", place / "b", "-o", place / "out/x")
    bench.measure("merge", "token", count, command, place / "out")
    bench.measure("verify_digest", "token", count, tokshard("verify", place / "out/x"))


def short_documents(bench: Stages, size: int) -> None:
    """Merging two datasets that have hardly any tokens: what a document costs."""
    place = bench.make("short_halves", size)
    command = tokshard("merge", place / "a", place / "b", "-o", place / "out/x")
    bench.measure("merge_documents", "document", size, command, place / "out")


def samples(bench: Stages, size: int) -> None:
    """Everything whose work grows with samples: 64 datasets, blended both ways, planned twice."""
    place = bench.make("sources", size)
    words = json.loads((place / "words.json").read_text())
    greedy, plan, again = place / "greedy", place / "plan", place / "again"
    options = [*LENGTH, *WHOLE]

    def measure(stage: str, command: list[str], output: Path | None = None) -> None:
        bench.measure(stage, "sample", size, command, output)

    command = tokshard("blend", *words[1::2], *options, "-o", place / "exhaustive")
    measure("blend_exhaustive", command, place / "exhaustive")
    measure("blend", tokshard("blend", *words, *options, "--num-samples", size, "-o", greedy), greedy)
    command = tokshard("shard-plan", greedy, "--data-parallel", 8, "-o", plan)
    measure("plan_blend", command, plan)
    arguments = [plan, "--consumed-samples", size // 2 // 8 * 8, "--data-parallel", 4, "-o", again]
    measure("replan", tokshard("replan", *arguments), again)


def sources(bench: Stages, size: int) -> None:
    """A blend of many small datasets, and a plan of it: what a dataset costs by itself."""
    place = bench.make("many", size)
    words = json.loads((place / "words.json").read_text())
    blend, plan = place / "blend", place / "plan"
    command = tokshard("blend", *words, *LENGTH, *WHOLE, "-o", blend)
    bench.measure("blend_sources", "dataset", size, command, blend)
    command = tokshard("shard-plan", blend, "--data-parallel", 8, "-o", plan)
    bench.measure("plan_sources", "dataset", size, command, plan)


def ranks(bench: Stages, size: int) -> None:
    """Planning for many ranks."""
    place = bench.make("sources", 100_000)
    words = json.loads((place / "words.json").read_text())
    blend, plan = place / "blend", place / "plan"
    command = tokshard("blend", *words, *LENGTH, *WHOLE, "--num-samples", 100_000, "-o", blend)
    bench.run(command)
    command = tokshard("shard-plan", blend, "--world-size", size, "-o", plan)
    bench.measure("plan_ranks", "rank", size, command, plan)


def reading(bench: Stages, size: int) -> None:
    """Reading samples of data of five documents each, one after the other, by one rank."""
    place = bench.make("documents", max(200_000, size * 5))
    cache, plan = place / "cache", place / "plan"
    command = tokshard("build-indices", place / "data", *LENGTH, *WHOLE, "--epochs", 1, "--cache-dir", cache)
    bench.run(command)
    bench.run(tokshard("shard-plan", cache, "--data-parallel", 1, "-o", plan))
    code = [sys.executable, "-c", READ, str(plan), str(size)]
    bench.measure("read", "sample", size, code)


@dataclass(frozen=True)
class Group:
    """Stages that are measured on the same data.

    Attributes:
        run: Measures them at a size.
        largest: The largest size at scale 1; the others are tenths of it.
        least: Smaller sizes are raised to this.
        stages: Their names.
    """

    run: Callable[[Stages, int], None]
    largest: int
    least: int
    stages: tuple[str, ...]


GROUPS = (
    Group(text, 10**9, 1000, ("tokenize",)),
    Group(tokens, 10**6, 10, ("merge", "verify_digest")),
    Group(short_documents, 10**7, 10, ("merge_documents",)),
    Group(
        documents,
        10**8,
        100,
        (
            "inspect", "verify_structure", "build_indices_2", "build_indices", "verify_index",
            "blend_documents", "plan_index", "first_batch", "trace",
        ),
    ),
    Group(samples, 10**8, 1000, ("blend_exhaustive", "blend", "plan_blend", "replan")),
    Group(sources, 10**3, 2, ("blend_sources", "plan_sources")),
    Group(ranks, 10**4, 1, ("plan_ranks",)),
    Group(reading, 10**5, 10, ("read",)),
)  # fmt: skip
STAGES = tuple(stage for group in GROUPS for stage in group.stages)


def summarise(points: list[Point]) -> Results:
    """Return what each stage costs: from the smallest to the largest size, and how time and memory grow."""
    results: Results = {}
    for stage in dict.fromkeys(point.stage for point in points):
        own = sorted((point for point in points if point.stage == stage), key=lambda point: point.size)
        sizes, taken = [point.size for point in own], [point.footprint for point in own]
        more = max(sizes[-1] - sizes[0], 1)
        each = {
            name: max(getattr(taken[-1], name) - getattr(taken[0], name), 0) / more
            for name in ("seconds", "cpu_seconds", "own_bytes", "written_bytes")
        }
        results[stage] = {
            "unit": own[0].unit,
            "from": sizes[0],
            "to": sizes[-1],
            "seconds": taken[-1].seconds,
            "spread": own[-1].spread,
            "growth": slope(sizes, [footprint.seconds for footprint in taken]),
            "time": each["seconds"],
            "cpu": each["cpu_seconds"],
            "peak": taken[-1].peak_bytes,
            "own": taken[-1].own_bytes,
            "own growth": slope(sizes, [footprint.own_bytes for footprint in taken]),
            "own each": each["own_bytes"],
            "files": taken[-1].files,
            "written": each["written_bytes"],
        }
    return results


def slope(sizes: list[int], values: list[float]) -> float | None:
    """Return how what comes on top of a command's start grows: the slope of a line in a log-log plot.

    What the smallest size takes counts as the start. Sizes that take less than 1.3 times that tell nothing.

    Returns:
        1 is proportional. 0 if no size takes more than the start; None if only one does.

    Example:
        >>> round(slope([1, 10, 100, 1000], [5, 5.09, 14.99, 104.99]), 2)
        1.0
        >>> slope([1, 10, 100], [5, 5, 5.1]), slope([1, 10, 100], [5, 5, 7])
        (0.0, None)
    """
    floor = min(values)
    kept = [
        (math.log(size), math.log(value - floor))
        for size, value in zip(sizes, values, strict=True)
        if value > 1.3 * floor
    ]
    if len(kept) < 2:
        return None if kept else 0.0
    x, y = (statistics.mean(column) for column in zip(*kept, strict=True))
    return sum((a - x) * (b - y) for a, b in kept) / sum((a - x) ** 2 for a, _ in kept)


def main(arguments: list[str]) -> None:
    """Measure, and print or write the table."""
    options = parser("scale", __doc__)
    sample = ROOT / "sample_data"
    options.add_argument(
        "--scale", type=float, default=1.0, help="1 is 10^8 documents and samples, 1 GB of text"
    )
    options.add_argument("--points", type=int, default=4, help="sizes of each stage, powers of ten apart")
    options.add_argument("--stages", nargs="+", default=STAGES, choices=STAGES, metavar="STAGE",
                         help=f"some of {', '.join(STAGES)}")  # fmt: skip
    options.add_argument("--text", nargs="+", type=Path,
                         default=[sample / "stories.jsonl", sample / "manuals.jsonl"])  # fmt: skip
    options.add_argument("--tokenizer", default=sample / "tokenizer.json")
    options.add_argument("--json", action="store_true", help="print every measurement as JSON")
    options.add_argument("--write", type=Path, metavar="PAGE", help="write the table into this page")
    options.add_argument(
        "--sums", type=Path, metavar="PAGE", help="measure nothing: update the computed values of a page"
    )
    with session(options, arguments, "tokshard", "numpy", "numba") as bench:
        if bench.options.sums:
            bench.options.sums.write_text(recompute(bench.options.sums.read_text()))
        else:
            report(measured(bench), bench)


def measured(bench: Session) -> list[Point]:
    """Measure the groups that contain the stages of the options."""
    points: list[Point] = []
    for group in GROUPS:
        if not set(group.stages) & set(bench.options.stages):
            continue
        largest = group.largest * bench.options.scale
        sizes = {max(group.least, round(largest / 10**tenth)) for tenth in range(bench.options.points)}
        for size in sorted(sizes):
            with tempfile.TemporaryDirectory(dir=bench.directory) as name:
                stages = Stages(Path(name), bench)
                group.run(stages, size)
                points += stages.points
    show_progress("")
    return points


def report(points: list[Point], bench: Session) -> None:
    """Print the results, or write them into a page."""
    results, page = summarise(points), bench.options.write
    where = f"{machine('tokshard', 'numpy', 'numba')}; {datetime.now(UTC):%Y-%m-%d}"
    if page:
        page.write_text(recompute(with_results(page.read_text(), results, where)))
    elif bench.options.json:
        rows = [{**asdict(point), **asdict(point.footprint)} for point in points]
        for row in rows:
            del row["footprint"]
        print(json.dumps({"machine": where, "points": rows, "stages": results}, indent=2))
    else:
        header = ["stage", "each", "from", "to", "s", "growth", "ns each", "CPU ns", "peak MB", "own MB",
                  "growth", "B each", "files", "written B"]  # fmt: skip
        show_table(header, [cells(stage, result) for stage, result in results.items()])


def cells(stage: str, result: dict[str, Any]) -> list[str]:
    """Return the row of a stage."""
    growth, own_growth = (
        "-" if result[name] is None else f"{result[name]:.2f}" for name in ("growth", "own growth")
    )
    numbers = (result["time"] * 1e9, result["cpu"] * 1e9, result["peak"] / 1e6, result["own"] / 1e6)
    return [
        stage,
        result["unit"],
        f"{result['from']:,}",
        f"{result['to']:,}",
        result["spread"],
        growth,
        *map(digits, numbers),
        own_growth,
        f"{result['own each']:.2f}",
        f"{result['files']:,}",
        f"{result['written']:.2f}",
    ]
