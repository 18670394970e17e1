"""scripts/bench verify: each level of tokshard verify against reading the files, and against sha256sum.

Two datasets, one of many short documents and one of long ones, are made in a temporary directory and get a
manifest (verify --adopt). All commands run whole, in turn, several rounds, over files that are in memory
where they fit; the table has the medians of time and of CPU time, and the largest peak memory.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile

from measure import Contender, compare, machine
from merge import LONG_BYTES, SHORT_DOCUMENTS, make_long, make_short

READING = "reading (cat)"
CHECKSUM = "sha256sum"
TOKSHARD = [sys.executable, "-c", "from tokshard.cli.main import main; main()"]


def contenders(prefix: str) -> list[Contender]:
    """Return the commands that read one dataset."""
    files = [f"{prefix}.bin", f"{prefix}.idx"]
    size = sum(map(os.path.getsize, files))
    found = [Contender(READING, ["sh", "-c", 'cat "$@" > /dev/null', "sh", *files], size)]
    found.append(Contender(CHECKSUM, ["sha256sum", *files], size))
    for level in ("structure", "digest", "deep"):
        command = [*TOKSHARD, "verify", prefix, "--level", level, "--quiet"]
        found.append(Contender(f"verify --level {level}", command, size))
    return found


def main(arguments: list[str]) -> None:
    """Parse the arguments, make the datasets, compare."""
    parser = argparse.ArgumentParser(prog="scripts/bench verify", description=__doc__)
    parser.add_argument("--scale", type=float, default=0.2, help="1 is 5 million documents, and 2 GB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", help="where the temporary directory is made")
    options = parser.parse_args(arguments)
    print(f"{machine('tokshard', 'numpy', 'xxhash')}; medians of {options.rounds} interleaved rounds")
    cases = {
        "short documents": (make_short, int(SHORT_DOCUMENTS * options.scale)),
        "long documents": (make_long, int(LONG_BYTES * options.scale)),
    }
    for name, (make, amount) in cases.items():
        with tempfile.TemporaryDirectory(dir=options.directory) as directory:
            prefix = f"{directory}/data"
            make(prefix, amount)
            subprocess.run([*TOKSHARD, "verify", prefix, "--adopt", "--quiet"], check=True)
            ours = contenders(prefix)
            results = compare(ours, options.rounds)
        print(f"\n{name}: {ours[0].work / 1e9:.2f} GB")
        for contender in ours:
            result = results[contender.name]
            speed = contender.work / result.seconds / 1e6
            ratio = results[CHECKSUM].seconds / result.seconds
            print(
                f"  {contender.name:<24} {result.seconds:6.2f} s {speed:7,.0f} MB/s "
                f"{result.cpu_seconds:6.2f} s CPU {result.peak_bytes / 1e6:5,.0f} MB {ratio:5.1f} x sha256sum"
            )
