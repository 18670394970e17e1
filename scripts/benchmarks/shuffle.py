"""scripts/bench shuffle: tokshard merge --shuffle against the merger of datatrove on the same tokens.

Four datasets with documents of log-normal lengths are made in a temporary directory; their .bin files get
second names as .ds files of datatrove. Each side shuffles them in turn, several rounds. The time ends when
the output is on the disk (fsync), and does not include imports. The table has the median time, the largest
peak memory, and the bytes read and written, which Linux counts for each process. In one pass, tokshard copies
the tokens from the page cache: these bytes are not counted as read, and the pages count as memory.

DocumentTokenizerMerger(shuffle=True) of datatrove draws the file of each document at random, and takes the
documents of each file in their order: they must have been shuffled within the files before. tokshard writes
all documents in a random order. The third row is the same result by datatrove: it shuffles each file as
DocumentTokenizer does after it has written one, and merges these. Without --datatrove-python only tokshard is
measured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from scaledata import spread_lengths

import tokshard
from tokshard.core.formatting import count, size
from tokshard.dataset.index_file import write_index
from tokshard.dataset.reader import IndexedDataset
from tokshard.storage.files import AtomicFile

FILES = 4
OURS = "tokshard merge --shuffle"
PEER = "datatrove merger"
DTYPE = np.dtype("<u2")
_BLOCK = 1 << 21

TOKSHARD = """
import sys, time
import tokshard.dataset.merge.job
from tokshard import MergeOptions, merge
started, cpu = time.perf_counter(), time.process_time()
options = {"memory_bytes": int(sys.argv[3]) or None, "workers": int(sys.argv[4])}
merge(MergeOptions(sys.argv[5:], sys.argv[1], shuffle=int(sys.argv[2]), **options))
"""

DATATROVE = """
import os, sys, time
from datatrove.pipeline.tokens import DocumentTokenizerMerger
started, cpu = time.perf_counter(), time.process_time()
DocumentTokenizerMerger(
    sys.argv[3], sys.argv[1], "shuffled", shuffle=True, seed=int(sys.argv[2]), progress=False
).run()
for name in os.listdir(sys.argv[1]):
    with open(os.path.join(sys.argv[1], name)) as file:
        os.fsync(file.fileno())
"""

DATATROVE_BOTH = """
import os, sys, time
import numpy as np
from datatrove.io import get_datafolder
from datatrove.pipeline.tokens import DocumentTokenizerMerger
from datatrove.pipeline.tokens.tokenizer import TokenizedFile
started, cpu = time.perf_counter(), time.process_time()
out, random = sys.argv[1], np.random.default_rng(int(sys.argv[2]))
names = sorted(name for name in os.listdir(sys.argv[3]) if name.endswith(".ds"))
for rank, name in enumerate(names):
    written = TokenizedFile.__new__(TokenizedFile)  # it would truncate the file
    written.output_folder, written.filename = get_datafolder(sys.argv[3]), name
    written.doc_ends = np.fromfile(os.path.join(sys.argv[3], name + ".index"), "<u8").tolist()
    written.token_size, written.tokens_file, written.loss_file = 2, None, None
    written.save_index = written.save_loss_metadata = False
    written.save_final_metadata, written.tokenizer_name_or_path = True, "gpt2"
    written.upload_block_size = None
    order = random.permutation(len(written.doc_ends))
    written.copy("part", order, new_output_folder=get_datafolder(out + "/files"), rank=rank)
seed = int(sys.argv[2])
merger = DocumentTokenizerMerger(out + "/files", out, "all", shuffle=True, seed=seed, progress=False)
merger.run()
for name in os.listdir(out):
    if os.path.isfile(os.path.join(out, name)):
        with open(os.path.join(out, name)) as file:
            os.fsync(file.fileno())
"""

EPILOGUE = """
seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
import json
io, status = (dict(line.split(":", 1) for line in open(f"/proc/self/{name}")) for name in ("io", "status"))
print(json.dumps({
    "seconds": seconds,
    "cpu": cpu,
    "peak": 1024 * int(status["VmHWM"].split()[0]),
    "read": int(io["rchar"]),
    "written": int(io["wchar"]),
}))
"""


def make(directory: str, size_bytes: int, mean: float) -> list[str]:
    """Write the datasets, and for datatrove their tokens under other names with the ends of the documents."""
    os.mkdir(f"{directory}/ds")
    prefixes = []
    for number in range(FILES):
        documents = max(1, int(size_bytes / FILES / DTYPE.itemsize / mean))
        lengths = spread_lengths(documents, number, mean=mean)
        prefix, peer = f"{directory}/part-{number}", f"{directory}/ds/{number:05}.ds"
        _write(f"{directory}/raw", lengths, number)
        tokshard.merge(tokshard.MergeOptions(f"{directory}/raw", prefix))  # with a manifest
        os.link(f"{prefix}.bin", peer)
        np.cumsum(lengths, dtype="<u8").tofile(f"{peer}.index")
        Path(f"{peer}.metadata").write_text(f"gpt2|{DTYPE.itemsize}\n{lengths.sum()}\n")
        prefixes.append(prefix)
    return prefixes


def _write(prefix: str, lengths: np.ndarray, seed: int) -> None:
    block = np.random.RandomState(seed).randint(0, 50000, size=_BLOCK).astype(DTYPE)
    left = int(lengths.sum(dtype=np.int64))
    with open(f"{prefix}.bin", "wb") as file:
        while left:
            file.write(block[:left].tobytes())
            left -= min(left, len(block))
    with AtomicFile(f"{prefix}.idx") as file:
        write_index(
            file,
            dtype=DTYPE,
            sequence_count=len(lengths),
            document_count=len(lengths),
            lengths=lambda: [lengths],
            sequences_per_document=lambda: [np.ones(len(lengths), "<i4")],
        )


def measure(python: str, program: str, *arguments: object) -> dict[str, float]:
    """Return what one run needed."""
    os.sync()  # what one side wrote is not written back in the time of the other
    done = subprocess.run(
        [python, "-c", program + EPILOGUE, *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def remove(directory: str, name: str) -> None:
    """Remove what a side wrote."""
    for path in Path(directory).glob(f"{name}*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def check(directory: str, prefixes: list[str]) -> None:
    """Stop if the output of tokshard does not have every document once: by counts and sums of tokens."""
    sums = []
    for inputs in (prefixes, [f"{directory}/out"]):
        pieces = [np.memmap(f"{prefix}.bin", DTYPE, mode="r") for prefix in inputs]
        lengths = [np.array(IndexedDataset(prefix).sequence_lengths) for prefix in inputs]
        total = sum(
            int(piece[first : first + _BLOCK].sum(dtype=np.int64))
            for piece in pieces
            for first in range(0, len(piece), _BLOCK)
        )
        sums.append((total, np.sort(np.concatenate(lengths)).tobytes()))
    if sums[0] != sums[1]:
        sys.exit("the output does not have the documents of the inputs")


def main(arguments: list[str]) -> None:
    """Make the data, run all sides in turn, and print the table."""
    parser = argparse.ArgumentParser(prog="bench shuffle", description=__doc__)
    parser.add_argument("--size", default="500MB", help="bytes of tokens, such as 500MB or 5GB")
    parser.add_argument("--mean", type=float, default=1000, help="mean tokens of a document")
    parser.add_argument("--memory", type=int, default=0, help="MiB for --memory of tokshard, for two passes")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--datatrove-python", help="an interpreter that has datatrove")
    parser.add_argument("--directory", help="where the temporary directory is made")
    options = parser.parse_args(arguments)
    digits = options.size.rstrip("GMB")
    wanted = int(float(digits) * {"MB": 10**6, "GB": 10**9}[options.size.removeprefix(digits)])
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        prefixes = make(directory, wanted, options.mean)
        ours = [options.memory << 20, options.workers, *prefixes]
        sides = {OURS: (sys.executable, TOKSHARD, ours)}
        if options.datatrove_python:
            sides[PEER] = (options.datatrove_python, DATATROVE, [f"{directory}/ds"])
            both = (options.datatrove_python, DATATROVE_BOTH, [f"{directory}/ds"])
            sides["datatrove shuffle, merger"] = both
        found: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
        for round_number in range(options.rounds):
            for side, (python, program, more) in sides.items():
                found[side].append(measure(python, program, f"{directory}/out", round_number, *more))
                if round_number == 0 and side == next(iter(sides)):
                    check(directory, prefixes)
                remove(directory, "out")
        total = sum(os.path.getsize(f"{prefix}.bin") for prefix in prefixes)
        documents = sum(IndexedDataset(prefix).document_count for prefix in prefixes)
    show(found, total, documents, options)


def show(found: dict[str, list[dict[str, float]]], total: int, documents: int, options) -> None:
    """Print the table."""
    print(
        f"tokshard {tokshard.__version__}, Python {platform.python_version()}, numpy {np.__version__}, "
        f"{os.cpu_count()} cores; {size(total)} of tokens in {count(documents)} documents; "
        f"medians of {options.rounds} interleaved rounds"
    )
    base = found.get(PEER, found[OURS])
    base_seconds = statistics.median(run["seconds"] for run in base)
    for side, runs in reversed(found.items()):
        seconds = statistics.median(run["seconds"] for run in runs)
        cpu = statistics.median(run["cpu"] for run in runs)
        peak = max(run["peak"] for run in runs)
        passes = [runs[-1][name] / total for name in ("read", "written")]
        speed = f"{total / seconds / 1e6:7.0f} MB/s  {base_seconds / seconds:5.2f} x"
        print(
            f"  {side:<26} {seconds:8.2f} s {speed}  CPU {cpu:.2f} s  peak {size(peak):>8}  "
            f"read {passes[0]:.2f} x, written {passes[1]:.2f} x the tokens"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
