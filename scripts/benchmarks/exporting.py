"""scripts/bench export: tokshard export against ``cp`` of the same bytes, both forced to the disk.

A dataset of documents of about 1,000 tokens is made in a temporary directory. Each format is exported, and
``cp`` copies the files of that export, followed by ``sync`` of each. The time of the export is that of its
report (a command that starts Python takes about half a second more). CPU times are those of whole commands.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import numpy as np
from measure import CPU, ELAPSED, PEAK, Contender, parser, rate, session
from merge import _write as write_dataset

TOKENS = 1000
FORMATS = ("olmo", "datatrove", "nanogpt", "parquet")
EXPORT = """
import json, sys
import tokshard
from tokshard import ExportOptions
options = dict(zip(("source", "to", "output"), sys.argv[1:4]), vocab_size=50257)
if options["to"] == "nanogpt":
    options["bos_id"] = 0
print(json.dumps({"seconds": tokshard.export(ExportOptions(**options)).seconds}))
"""
COPY = 'mkdir "$0" && cp "$@" "$0" && sync "$0"/*'


def make(prefix: str, size: int) -> None:
    """Write a dataset of about ``size`` bytes, whose documents end with the EOD token 0."""
    rng = np.random.RandomState(3)
    lengths = rng.randint(TOKENS // 2, TOKENS * 3 // 2, size=max(1, size // (2 * TOKENS))).astype("<i4")
    write_dataset(prefix, lengths)
    ends = np.cumsum(lengths, dtype=np.int64)
    descriptor = os.open(f"{prefix}.bin", os.O_WRONLY)
    for end in ends.tolist():
        os.pwrite(descriptor, b"\0\0", 2 * end - 2)
    os.close(descriptor)


def contenders(directory: Path, prefix: str, to: str) -> list[Contender]:
    """Return the copy of the files of an export, and the export."""
    output, copy, kept = (str(directory / name) for name in ("export", "copy", f"kept-{to}"))
    command = [sys.executable, "-c", EXPORT, prefix, to]
    Contender(f"{to} (to copy)", [*command, kept]).run()
    files = [os.path.join(kept, name) for name in sorted(os.listdir(kept)) if not name.startswith(".")]
    size = sum(map(os.path.getsize, files))

    def clean() -> None:
        for path in (output, copy):
            shutil.rmtree(path, ignore_errors=True)
        os.sync()

    return [
        Contender("cp, sync", ["sh", "-c", COPY, copy, *files], size, before=clean),
        Contender(f"export --to {to}", [*command, output], size, before=clean),
    ]


def main(arguments: list[str]) -> None:
    """Parse the arguments, make the dataset, compare."""
    options = parser("export", __doc__, rounds=5)
    options.add_argument("--gigabytes", type=float, default=0.5, help="size of the dataset")
    options.add_argument("--only", choices=FORMATS, help="one format")
    with session(options, arguments, "tokshard", "numpy", "xxhash", "pyarrow") as bench:
        prefix = str(bench.directory / "data")
        make(prefix, int(bench.options.gigabytes * 1e9))
        for to in [bench.options.only] if bench.options.only else FORMATS:
            both = contenders(bench.directory, prefix, to)
            size = f"{to}, {both[0].work / 1e9:.2f} GB"
            bench.compare(
                both, title=size, base=both[0].name, figures=[rate("MB/s", 1e6), ELAPSED, CPU, PEAK]
            )
            shutil.rmtree(bench.directory / f"kept-{to}")
