"""scripts/bench replan: time to continue a plan with another number of ranks and with other weights.

A synthetic blend of two datasets and a plan of 64 ranks are written to a temporary directory; half of its
samples count as consumed. All commands run whole. Memory includes mapped files.
"""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import tracing
from measure import CPU, PEAK, SECONDS, TOKSHARD, Contender, Figure, parser, session, yardstick

SEQUENCE_LENGTH = 64
RANKS = 32
SAMPLES = Figure("M samples/s", lambda run: run["work"] / run["seconds"] / 1e6)


def contenders(directory: Path, consumed: int, samples: int) -> list[Contender]:
    """Return the commands that continue the plan, and those that verify and compare the results."""
    plan, world, weights = (str(directory / name) for name in ("plan", "world", "weights"))
    blend = f"0.3 {directory / 'data0'} 0.7 {directory / 'data1'}"
    replan = ["replan", plan, "--consumed-samples", str(consumed), "--quiet"]

    def command(name: str, *words: str, output: str | None = None) -> Contender:
        before = partial(shutil.rmtree, output, ignore_errors=True) if output else lambda: None
        return Contender(name, [*TOKSHARD, *words], samples, before)

    differing = command("diff other weights", "diff", plan, weights, "--quiet")
    differing.command = ["sh", "-c", '"$@" || [ $? = 1 ]', "sh", *differing.command]  # 1: samples differ
    return [
        command("another world size", *replan, "--data-parallel", str(RANKS), "-o", world, output=world),
        command("other weights", *replan, "--blend", blend, "-o", weights, output=weights),
        command("verify another world size", "verify", world, "--level", "deep", "--quiet"),
        command("verify other weights", "verify", weights, "--level", "deep", "--quiet"),
        command("diff another world size", "diff", plan, world, "--quiet"),
        differing,
    ]


def main(arguments: list[str]) -> None:
    """Write the blend and the plan, continue the plan, and print seconds and memory."""
    options = parser("replan", __doc__)
    options.add_argument("--samples", type=int, default=10_000_000, help="samples of the blend, about")
    with session(options, arguments, "tokshard", "numpy", "numba") as bench:
        tokens = bench.options.samples * SEQUENCE_LENGTH / 1.1
        documents = int(tokens / (tracing.LONGEST_DOCUMENT / 2))
        # Weights change only where a blend is read in its order.
        tracing.write_world(bench.directory, documents, SEQUENCE_LENGTH, shuffle="none")
        stream = json.loads((bench.directory / "plan/plan.json").read_text())["streams"]["train"]
        samples = stream["order"]["epoch_ranges"][0]["total"]
        consumed = samples // 2 // tracing.RANKS * tracing.RANKS
        base = yardstick()
        bench.compare(
            [base, *contenders(bench.directory, consumed, samples)],
            title=f"{samples:,} samples of two datasets, {tracing.RANKS} ranks, {consumed:,} consumed",
            base=base.name,
            figures=[SECONDS, SAMPLES, CPU, PEAK],
        )
