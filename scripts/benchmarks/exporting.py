"""scripts/bench export: tokshard export against ``cp`` of the same bytes, both forced to the disk.

A dataset of documents of about 1,000 tokens is made in a temporary directory. Each format is exported, and
``cp`` copies the files of that export, followed by ``sync`` of each; both in turn, several rounds. The ratio
is the time of ``cp`` divided by that of the export, as its report has it (a command that starts Python takes
about half a second more); 1 is the speed of ``cp``. The CPU times are those of the whole commands.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile

import numpy as np
from measure import Contender, compare, machine
from merge import _write as write_dataset

TOKENS = 1000
FORMATS = ("olmo", "datatrove", "nanogpt", "parquet")
EXPORT = """
import sys
import tokshard
from tokshard import ExportOptions
options = dict(zip(("source", "to", "output"), sys.argv[1:4]), vocab_size=50257)
if options["to"] == "nanogpt":
    options["bos_id"] = 0
print(tokshard.export(ExportOptions(**options)).seconds)
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


def contenders(directory: str, prefix: str, to: str) -> list[Contender]:
    """Return the export and the copy of its files."""
    output, copy, kept = (os.path.join(directory, name) for name in ("export", "copy", f"kept-{to}"))
    command = [sys.executable, "-c", EXPORT, prefix, to]
    compare([Contender(f"{to} (to copy)", [*command, kept], 1, own_time=True)], 1)
    files = [os.path.join(kept, name) for name in sorted(os.listdir(kept)) if not name.startswith(".")]
    size = sum(map(os.path.getsize, files))

    def clean() -> None:
        for path in (output, copy):
            shutil.rmtree(path, ignore_errors=True)
        os.sync()

    return [
        Contender(to, [*command, output], size, before=clean, own_time=True),
        Contender(f"{to}: cp", ["sh", "-c", COPY, copy, *files], size, before=clean),
    ]


def main(arguments: list[str]) -> None:
    """Parse the arguments, make the dataset, compare."""
    parser = argparse.ArgumentParser(prog="scripts/bench export", description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=0.5, help="size of the dataset")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=FORMATS, help="one format")
    parser.add_argument("--directory", help="where the temporary directory is made")
    options = parser.parse_args(arguments)
    print(
        f"{machine('tokshard', 'numpy', 'xxhash', 'pyarrow')}; medians of {options.rounds} interleaved rounds"
    )
    print(
        f"{'format':<12}{'size':>9}{'export':>10}{'cp, sync':>10}{'ratio':>8}{'CPU':>9}{'CPU of cp':>11}"
        f"{'memory':>9}"
    )
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        prefix = f"{directory}/data"
        make(prefix, int(options.gigabytes * 1e9))
        for to in [options.only] if options.only else FORMATS:
            ours = contenders(directory, prefix, to)
            results = compare(ours, options.rounds)
            export, copy = (results[contender.name] for contender in ours)
            shutil.rmtree(f"{directory}/kept-{to}")
            print(
                f"{to:<12}{ours[0].work / 1e9:>6.2f} GB{export.seconds:>8.2f} s{copy.seconds:>8.2f} s"
                f"{copy.seconds / export.seconds:>8.2f}{export.cpu_seconds:>7.2f} s{copy.cpu_seconds:>9.2f} s"
                f"{export.peak_bytes / 1e6:>6.0f} MB"
            )
