"""scripts/bench verify: each level of tokshard verify against reading the files, and against sha256sum.

Two datasets, one of many short documents and one of long ones, are made in a temporary directory and get a
manifest (verify --adopt). All commands run whole, over files that are in memory where they fit.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from measure import CPU, ELAPSED, PEAK, TOKSHARD, Contender, parser, rate, session
from merge import LONG_BYTES, SHORT_DOCUMENTS, make_long, make_short

CHECKSUM = "sha256sum"
FIGURES = [rate("MB/s", 1e6), ELAPSED, CPU, PEAK]


def contenders(prefix: Path) -> list[Contender]:
    """Return the commands that read one dataset."""
    files = [f"{prefix}.bin", f"{prefix}.idx"]
    size = sum(map(os.path.getsize, files))
    reading = ["sh", "-c", 'cat "$@" > /dev/null', "sh", *files]
    found = [
        Contender("reading (cat)", reading, size, is_peer=True),
        Contender(CHECKSUM, [CHECKSUM, *files], size),
    ]
    for level in ("structure", "digest", "deep"):
        command = [*TOKSHARD, "verify", str(prefix), "--level", level, "--quiet"]
        found.append(Contender(f"verify --level {level}", command, size))
    return found


def main(arguments: list[str]) -> None:
    """Parse the arguments, make the datasets, compare."""
    options = parser("verify", __doc__)
    options.add_argument("--scale", type=float, default=0.2, help="1 is 5 million documents, and 2 GB")
    with session(options, arguments, "tokshard", "numpy", "xxhash") as bench:
        for name, make, whole in (
            ("short documents", make_short, SHORT_DOCUMENTS),
            ("long documents", make_long, LONG_BYTES),
        ):
            prefix = bench.directory / name.split()[0]
            make(str(prefix), int(whole * bench.options.scale))
            subprocess.run([*TOKSHARD, "verify", str(prefix), "--adopt", "--quiet"], check=True)
            ours = contenders(prefix)
            bench.compare(ours, title=f"{name}, {ours[0].work / 1e9:.2f} GB", base=CHECKSUM, figures=FIGURES)
