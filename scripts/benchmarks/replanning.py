"""scripts/bench replan: time to continue a plan with another number of ranks and with other weights.

A synthetic blend of two datasets and a plan of 64 ranks are written to a temporary directory; half of its
samples count as consumed. All commands run whole, in a process of their own, in turn, several rounds; the
table has the medians of time and the largest peak memory, mapped files included.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from measure import Contender, compare, machine

import tracing

SAMPLES = 10_000_000
SEQUENCE_LENGTH = 64
RANKS = 32
TOKSHARD = [sys.executable, "-c", "from tokshard.cli.main import main; main()"]

MAKE = """
import pathlib, sys, replanning, tracing
tracing.SEQUENCE_LENGTH = replanning.SEQUENCE_LENGTH
tracing.write_world(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
"""


def contenders(directory: Path, consumed: int, samples: int) -> list[Contender]:
    """Return the commands that continue the plan, and those that verify and compare the results."""
    plan, world, weights = (str(directory / name) for name in ("plan", "world", "weights"))
    blend = f"0.3 {directory / 'data0'} 0.7 {directory / 'data1'}"
    replan = ["shard-plan", "--from", plan, "--consumed-samples", str(consumed), "--packed", "--quiet"]

    def command(name: str, *words: str, output: str | None = None) -> Contender:
        before = partial(shutil.rmtree, output, ignore_errors=True) if output else lambda: None
        return Contender(name, [*TOKSHARD, *words], samples, before)

    differing = command("diff other weights", "diff", plan, weights, "--quiet")
    differing.command = ["sh", "-c", '"$@" || [ $? = 1 ]', "sh", *differing.command]  # 1: samples differ
    return [
        command("another world", *replan, "--data-parallel", str(RANKS), "-o", world, output=world),
        command("other weights", *replan, "--blend", blend, "-o", weights, output=weights),
        command("verify another world", "verify", world, "--level", "deep", "--quiet"),
        command("verify other weights", "verify", weights, "--level", "deep", "--quiet"),
        command("diff another world", "diff", plan, world, "--quiet"),
        differing,
    ]


def main(arguments: list[str]) -> None:
    """Write the blend and the plan, continue the plan, and print seconds and memory."""
    parser = argparse.ArgumentParser(prog="scripts/bench replan", description=__doc__)
    parser.add_argument("--samples", type=int, default=SAMPLES, help="samples of the blend, about")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", help="where the temporary directory is made")
    options = parser.parse_args(arguments)
    tokens = options.samples * SEQUENCE_LENGTH / 1.1
    documents = int(tokens / (tracing.LONGEST_DOCUMENT / 2))
    print(f"{machine('tokshard', 'numpy', 'numba')}; medians of {options.rounds} interleaved rounds")
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        directory = Path(name)
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
        subprocess.run([sys.executable, "-c", MAKE, name, str(documents)], env=environment, check=True)
        stream = json.loads((directory / "plan/plan.json").read_text())["streams"]["train"]
        samples = stream["source"]["samples"]
        consumed = samples // 2 // tracing.RANKS * tracing.RANKS
        ours = contenders(directory, consumed, samples)
        results = compare(ours, options.rounds)
    print(f"\n{samples:,} samples of two datasets, {tracing.RANKS} ranks, {consumed:,} consumed")
    for contender in ours:
        result = results[contender.name]
        print(
            f"  {contender.name:<22} {result.seconds:6.2f} s "
            f"{contender.work / result.seconds / 1e6:7.1f} M samples/s "
            f"{result.cpu_seconds:6.2f} s CPU {result.peak_bytes / 1e6:6,.0f} MB"
        )
