"""Random campaigns against tokshard, by class: ``scripts/soak``. See docs/explanation/reliability.md.

All choices follow from the seed. A failure is printed with the command that repeats it alone.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from campaigns import calls, worker
from campaigns.classes import CLASSES, Class
from campaigns.table import table
from campaigns.tally import Tally
from faults.processes import scratch_directory

_HOUR = 60.0
_SHOWN_FAILURES = 5
_SHOWN_CHARACTERS = 2000


def arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/soak",
        description="Run random campaigns against tokshard: strings, failing system calls, crashes, changed "
        "bytes, damaged files, concurrent processes and chains of plans. Exit with 1 if anything failed, or "
        "if a control experiment was not caught.",
    )
    add = parser.add_argument
    add(
        "--minutes",
        type=float,
        default=_HOUR,
        metavar="N",
        help="run for at most about N minutes [default: 60]",
    )
    add("--only", metavar="CLASS,...", help=f"run only these classes: {', '.join(CLASSES)}")
    add("--seed", type=int, default=1, metavar="N", help="seed of all random choices [default: 1]")
    add("--workers", type=int, default=2, metavar="N", help="run N processes at once [default: 2]")
    add("--case", metavar="CASE", help="run only this case of the class in --only; failures name their case")
    add("--tokenizers", metavar="DIR", help="use the *.json tokenizers of DIR [default: generated]")
    add(
        "--texts",
        metavar="FILE",
        help="take real text from this .jsonl or .jsonl.zst file [default: sample_data]",
    )
    add("--json", metavar="FILE", help="write the counts and failures to FILE")
    add("--add", metavar="FILE", help="add the counts of an earlier run from its --json file")
    add("--list", action="store_true", help="list the classes and their goals for an hour, and exit")
    found = parser.parse_args(words)
    found.only = found.only.split(",") if found.only else list(CLASSES)
    if unknown := [name for name in found.only if name not in CLASSES]:
        parser.error(f"--only must name classes of {', '.join(CLASSES)}, got {unknown[0]}")
    if found.case is not None and len(found.only) != 1:
        parser.error("--case requires --only with one class")
    for name in ("tokenizers", "texts"):  # the processes run in other directories
        if path := getattr(found, name):
            setattr(found, name, str(Path(path).resolve()))
    return found


def main(words: Sequence[str]) -> int:
    options = arguments(words)
    if options.list:
        for each in CLASSES.values():
            print(f"{each.name:12} {each.goal:>12,} {each.unit}")
        return 0
    tallies: dict[str, Tally] = {}
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as otherwise, scratch_directory(Path(otherwise)) as directory:
        for number, name in enumerate(options.only):
            each = CLASSES[name]
            left = options.minutes * 60 - (time.monotonic() - start)
            shares = sum(CLASSES[other].share for other in options.only[number:])
            tallies[name] = run(each, max(1.0, left * each.share / shares), options, directory)
            show(each, tallies[name], options)
    if options.add:
        tallies = added(tallies, json.loads(Path(options.add).read_text(encoding="utf-8"))["classes"])
    print(table(tallies))
    if options.json:
        found = {
            "seed": options.seed,
            "minutes": options.minutes,
            "classes": {name: tally.to_json() for name, tally in tallies.items()},
        }
        Path(options.json).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return int(any(tally.failed for tally in tallies.values()))


def added(tallies: Mapping[str, Tally], earlier: Mapping[str, Any]) -> dict[str, Tally]:
    """Return the counts of two runs together."""
    found = {name: Tally.of_json(earlier[name]) if name in earlier else Tally() for name in CLASSES}
    for name, tally in tallies.items():
        seconds = found[name].seconds + tally.seconds
        found[name].add(tally)
        found[name].seconds = seconds
    return {name: tally for name, tally in found.items() if name in tallies or name in earlier}


def run(each: Class, seconds: float, options: argparse.Namespace, directory: Path) -> Tally:
    """Run a class for some time in several processes, or one case of it."""
    if each.needs_library and (reason := calls.reason_not_to()):
        return Tally(skipped=reason)
    workers = 1 if options.case is not None else options.workers
    goal = math.ceil(each.goal * options.minutes / _HOUR / workers)
    processes = []
    for number in range(workers):
        own = directory / f"{each.name}-{number}"
        own.mkdir()
        job = worker.Job(
            each.name,
            options.seed,
            number,
            workers,
            seconds,
            max(1, goal),
            options.case,
            str(own),
            options.tokenizers,
            options.texts,
        )
        with (own / "stderr").open("wb") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", "campaigns.worker", json.dumps(asdict(job))],
                env=worker.environment(each.name, own),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        processes.append((process, own))
    tally = Tally()
    for process, own in processes:
        output, _ = process.communicate()
        if process.returncode != 0:
            text = (own / "stderr").read_text(errors="replace")[-_SHOWN_CHARACTERS:]
            tally.failures.append({"case": "", "reason": f"exit code {process.returncode}: {text}"})
        else:
            tally.add(Tally.of_json(json.loads(output)))
    return tally


def show(each: Class, tally: Tally, options: argparse.Namespace) -> None:
    """Print the failures of a class and how to repeat them."""
    print(f"{each.name}: {tally.cases:,} {each.unit} in {tally.seconds:.0f} s", file=sys.stderr, flush=True)
    for failure in tally.failures[:_SHOWN_FAILURES]:
        words = ["scripts/soak", "--only", each.name, "--seed", str(options.seed), "--case", failure["case"]]
        for name in ("tokenizers", "texts"):
            if path := getattr(options, name):
                words += [f"--{name}", path]
        print(f"\nFAILED: {shlex.join(words)}\n{failure['reason'][:_SHOWN_CHARACTERS]}\n", flush=True)
    if len(tally.failures) > _SHOWN_FAILURES:
        print(
            f"{len(tally.failures) - _SHOWN_FAILURES} more failures of {each.name}; --json FILE lists all\n"
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
