"""scripts/bench world DIRECTORY: synthetic datasets for a blend of trillions of tokens, in little disk space.

One dataset and its index are written; the others are hard links to them under other names. The .bin file is
sparse. Prints the commands that blend the datasets and plan 10,000 ranks. With --run, runs them.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from measure import CPU, OWN, SECONDS, Contender, Session, parser, session, yardstick
from scaledata import spread_lengths
from tracing import write_pair

SEQUENCE_LENGTH = 8192
MEAN_TOKENS = 1000
ROOM = 1.06
BLEND = """tokshard blend @words.txt --seq-length {length} --split 1,0,0 --num-samples {samples} \\
    --cache-dir cache -o mix"""
PLAN = """tokshard shard-plan mix --world-size 10000 --tensor-parallel 8 --pipeline-parallel 5 \\
    --micro-batch-size 1 --global-batch-size 2000 -o plan"""


def names(count: int) -> list[str]:
    """Return the names of the datasets."""
    return [f"data/set{number:05}" for number in range(count)]


def words(count: int) -> list[str]:
    """Return the words of a blend with weights from 0.9 to 1."""
    weights = np.random.RandomState(3).uniform(0.9, 1.0, count)
    return [
        word for weight, name in zip(weights, names(count), strict=True) for word in (f"{weight:.6f}", name)
    ]


def link(names: list[str], samples: int, mixture: list[str]) -> None:
    """Build the index of the first dataset, and give all others the same under their own names."""
    from tokshard.samples.blend.options import BlendOptions
    from tokshard.samples.blend.plan import plan_requests
    from tokshard.samples.index.build import plan_indexes
    from tokshard.samples.index.entry import CacheEntry
    from tokshard.samples.index.sidecar import Sidecar
    from tokshard.samples.index.sizes import Sizes

    options = BlendOptions(
        sources=tuple(mixture), seq_length=SEQUENCE_LENGTH, num_samples=Sizes(samples, 0, 0), split="1,0,0"
    )
    (outline,) = plan_requests(*options.resolve())
    planned = plan_indexes(outline.requests[:1], cache_directory="cache")
    planned.build()
    (first,) = planned.listed
    sidecar = Sidecar.read(first.sidecar_path)
    for name, request in zip(names[1:], outline.requests[1:], strict=True):
        for suffix in (".bin", ".idx"):
            os.link(names[0] + suffix, name + suffix)
        entry = CacheEntry.of(request.description(), "cache")
        for array in entry.arrays:
            os.link(first.array_path(array), entry.array_path(array))
        Path(entry.description_path).write_text(request.description().text())
        replace(sidecar, description_md5=entry.hash).write(entry.sidecar_path)


def main(arguments: list[str]) -> None:
    """Create the datasets; print the commands, and run them with --run."""
    parsed = parser("world", __doc__, rounds=1)
    parsed.add_argument("place", type=Path, metavar="DIRECTORY", help="created, with the datasets")
    parsed.add_argument("--tokens", type=float, default=15e12)
    parsed.add_argument("--datasets", type=int, default=64)
    parsed.add_argument("--run", action="store_true", help="run the commands; print their time and memory")
    with session(parsed, arguments, "tokshard", "numpy", "numba") as bench:
        options = bench.options
        (options.place / "data").mkdir(parents=True)
        os.chdir(options.place)
        samples = round(options.tokens / SEQUENCE_LENGTH)
        documents = round(options.tokens * ROOM / options.datasets / MEAN_TOKENS)
        tokens = write_pair(Path("data/set00000"), spread_lengths(documents))
        mixture = words(options.datasets)
        link(names(options.datasets), samples, mixture)
        Path("words.txt").write_text(" ".join(mixture))
        print(f"{options.datasets} datasets of {documents:,} documents and {tokens:,} tokens each")
        blend = BLEND.format(length=SEQUENCE_LENGTH, samples=samples)
        print(f"cd {Path.cwd()}", blend, PLAN, sep="\n")
        if options.run:
            run(bench, blend)


def run(bench: Session, blend: str) -> None:
    """Run the commands in the current directory."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    base = yardstick()
    commands = {
        "blend": blend,
        "plan": PLAN,
        "plan --no-digests": f"{PLAN} --no-digests",
    }
    contenders = [
        Contender(
            name,
            ["sh", "-c", command],
            before=partial(shutil.rmtree, "mix" if command == blend else "plan", ignore_errors=True),
            is_watched=True,
        )
        for name, command in commands.items()
    ]
    title = f"{bench.options.tokens:.3g} tokens"
    bench.compare([base, *contenders], title=title, base=base.name, figures=[SECONDS, CPU, OWN])
