"""scripts/bench shuffle: tokshard merge --shuffle against the merger of datatrove on the same tokens.

Four datasets with documents of log-normal lengths are made in a temporary directory; their .bin files get
second names as .ds files of datatrove. The time ends when the output is on the disk (fsync), and does not
include imports. The bytes read and written are those that Linux counts for each process, divided by those of
the tokens.

DocumentTokenizerMerger(shuffle=True) of datatrove draws the file of each document at random, and takes the
documents of each file in their order: they must have been shuffled within the files before. tokshard writes
all documents in a random order. The second row is the same result by datatrove: it shuffles each file as
DocumentTokenizer does after it has written one, and merges these. Without --datatrove-python only tokshard is
measured.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import numpy as np
from measure import CPU, ELAPSED, PEAK, Contender, Figure, parser, program, rate, session
from merge import copying
from scaledata import spread_lengths

import tokshard
from tokshard.core.formatting import count, size
from tokshard.dataset.index_file import write_index
from tokshard.dataset.reader import IndexedDataset
from tokshard.storage.files import AtomicFile

FILES = 4
SEED = 1
READ = Figure("read, x", lambda run: run["read"] / run["work"])
WRITTEN = Figure("written, x", lambda run: run["written"] / run["work"])
DTYPE = np.dtype("<u2")
_BLOCK = 1 << 21

TOKSHARD_IMPORTS = """
import tokshard.dataset.merge.job
from tokshard import MergeOptions, merge
"""
TOKSHARD = """
seed, memory = int(sys.argv[2]), int(sys.argv[3]) or None
merge(MergeOptions(inputs=sys.argv[4:], output=sys.argv[1], shuffle=seed, memory=memory))
"""

DATATROVE_IMPORTS = """
import os
import numpy as np
from datatrove.io import get_datafolder
from datatrove.pipeline.tokens import DocumentTokenizerMerger
from datatrove.pipeline.tokens.tokenizer import TokenizedFile
"""
DATATROVE = """
DocumentTokenizerMerger(
    sys.argv[3], sys.argv[1], "shuffled", shuffle=True, seed=int(sys.argv[2]), progress=False
).run()
for name in os.listdir(sys.argv[1]):
    with open(os.path.join(sys.argv[1], name)) as file:
        os.fsync(file.fileno())
"""

DATATROVE_BOTH = """
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

COUNTS = """
with open("/proc/self/io") as file:
    counts = dict(line.split(": ") for line in file)
report.update(read=int(counts["rchar"]), written=int(counts["wchar"]))
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
        tokshard.merge(tokshard.MergeOptions(inputs=f"{directory}/raw", output=prefix))  # with a manifest
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


def check(directory: Path, prefixes: list[str]) -> None:
    """Stop if the output of tokshard does not have every document once: by counts and sums of tokens."""
    sums = []
    for inputs in (prefixes, [str(directory / "out")]):
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
    parsed = parser("shuffle", __doc__)
    parsed.add_argument("--size", default="500MB", help="bytes of tokens, such as 500MB or 5GB")
    parsed.add_argument("--mean", type=float, default=1000, help="mean tokens of a document")
    parsed.add_argument("--memory", type=int, default=0, help="MiB for --memory of tokshard, for two passes")
    parsed.add_argument("--datatrove-python", help="an interpreter that has datatrove")
    with session(parsed, arguments, "tokshard", "numpy", peers=["datatrove", "numpy"]) as bench:
        options, directory = bench.options, bench.directory
        digits = options.size.rstrip("GMB")
        wanted = int(float(digits) * {"MB": 10**6, "GB": 10**9}[options.size.removeprefix(digits)])
        prefixes = make(str(directory), wanted, options.mean)
        total = sum(os.path.getsize(f"{prefix}.bin") for prefix in prefixes)
        documents = sum(IndexedDataset(prefix).document_count for prefix in prefixes)

        def clean() -> None:
            for path in directory.glob("out*"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            os.sync()  # what one side wrote is not written back in the time of the other

        def side(name: str, setup: str, work: str, *more: object, python: str = sys.executable) -> Contender:
            words = [directory / "out", SEED, *more]
            command = program(setup, work, COUNTS, arguments=words, python=python)
            return Contender(name, command, total, clean, is_peer=python != sys.executable)

        if python := options.datatrove_python:
            ds = directory / "ds"
            sides = [
                side("datatrove merger", DATATROVE_IMPORTS, DATATROVE, ds, python=python),
                side("datatrove shuffle, merger", DATATROVE_IMPORTS, DATATROVE_BOTH, ds, python=python),
            ]
        else:
            sides = [copying(directory / "out", prefixes)]
        ours = [options.memory << 20, *prefixes]
        sides.append(side("tokshard merge --shuffle", TOKSHARD_IMPORTS, TOKSHARD, *ours))
        bench.compare(
            sides,
            title=f"{size(total)} of tokens in {count(documents)} documents",
            base=sides[0].name,
            figures=[rate("MB/s", 1e6), ELAPSED, CPU, PEAK, READ, WRITTEN],
        )
        check(directory, prefixes)  # the last output is that of tokshard
