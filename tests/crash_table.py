"""The table of the crash campaign: ``.venv/bin/python tests/crash_table.py``."""

from __future__ import annotations

import argparse
import json
import random
import resource
import sys
import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from faults import children
from faults.campaign import POINTS, Cell, Row
from faults.processes import scratch_directory
from faults.rounds import arrays, attempts
from faults.scenarios import SCENARIOS, make_world

ROUNDS = {"arrays": arrays, "attempts": attempts}


def main() -> int:
    parser = argparse.ArgumentParser(prog="crash_table.py", description=__doc__)
    add = parser.add_argument
    add("rows", nargs="*", metavar="ROW", help="run these rows [default: all]")
    add("--kinds", default=",".join(POINTS), help="kinds of faults")
    add("--calls", help="disturb only these storage calls")
    add("--factor", type=float, default=1.0, help="draw so many times the points; 0 for all")
    add("--seed", type=int, default=1)
    add("--world", type=Path, help="the inputs and products; made if the directory is empty")
    add("--control", help="module:function that breaks tokshard first")
    add("--until", metavar="TEXT", help="stop at the first failure whose reason has this text")
    add("--json", action="store_true")
    add(
        "--rounds",
        choices=ROUNDS,
        help="play random rounds of several attempts instead: --factor is how many",
    )
    options = parser.parse_args()
    children.set_environment()
    children.load()
    with tempfile.TemporaryDirectory() as otherwise, scratch_directory(Path(otherwise)) as scratch:
        world = options.world or scratch
        if not (world / "in").exists():
            make_world(world)
        if options.rounds:
            print(json.dumps(play(world, options)))
            return 0
        if options.world and not options.rows:
            return 0
        table = {}
        for name in options.rows or SCENARIOS:
            row = Row(name, world, options.control)
            row.only = options.calls.split(",") if options.calls else []
            table[name] = {}
            for kind in options.kinds.split(","):
                count = (
                    max(1, round(POINTS[kind] * row.scenario.share * options.factor))
                    if options.factor
                    else None
                )
                table[name][kind] = cell = row.cell(kind, count, options.seed, options.until)
                if not options.json:
                    for point, wrong in cell.failures.items():
                        print(f"{name}: {point}: {wrong}", file=sys.stderr, flush=True)
            if not options.json:
                print(line(name, table[name]), seconds(), flush=True)
    if options.json:
        print(
            json.dumps(
                {name: {kind: asdict(cell) for kind, cell in cells.items()} for name, cells in table.items()}
            )
        )
    return int(any(cell.failures for cells in table.values() for cell in cells.values()))


def play(world: Path, options: argparse.Namespace) -> Counter[str]:
    """Play random rounds; return how often which end there was."""
    row = Row("tokenize --array-task", world)
    ends: Counter[str] = Counter()
    for number in range(int(options.factor)):
        these, wrong = ROUNDS[options.rounds](row, random.Random(f"{options.seed} {number}"))
        if wrong:
            raise RuntimeError(f"round {number}: {wrong}")
        ends += these
    return ends


def seconds() -> str:
    """Return the processor time until now."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return f"{sum(each.ru_utime + each.ru_stime for each in used):.1f} s"


def line(name, cells) -> str:
    shown = [_cell(cell) for cell in cells.values()]
    return f"| {name} | {' | '.join(shown)} |"


def _cell(cell: Cell) -> str:
    if cell.failures:
        return f"{len(cell.failures)} of {cell.points} FAILED"
    return f"{cell.points or '-'}{f' ({len(cell.pending)} pending)' if cell.pending else ''}"


if __name__ == "__main__":
    sys.exit(main())
