"""scripts/bench loader: samples per second of the loader against megatron-core's GPTDataset.

Both sides read the same samples of one dataset in the same random order, with the default masks and
positions, each measurement in a process of its own. Ratios refer to the first row of each table. The files
are in the page cache. The first micro-batches of both sides must be equal; those of the group "document
boundaries" are other samples. Groups with a side that needs torch run in the interpreter of
--megatron-python, where tokshard is taken from this checkout; without it only numpy's sides are measured.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from measure import PEAK, ROOT, Contender, parser, rate, session
from measure import TOKSHARD as COMMAND

from tokshard.dataset.builder import IndexedDatasetBuilder

LENGTH = 4096
BATCH = 8
SEED = 1234
VOCABULARY = 50257
WORKERS = (0, 1, 2)

PROLOGUE = """
import json, sys, time, warnings, zlib
warnings.simplefilter("ignore")
import numpy
prefix, plans, cache, samples = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
with open(prefix + ".bin", "rb") as file:  # into the page cache
    while file.read(1 << 24):
        pass
"""

# The first batch is not timed: it opens files and starts workers.
EPILOGUE = """
batches = made()
first = next(batches)
digest = [zlib.crc32(numpy.ascontiguousarray(first[name]).view(numpy.uint8))
          for name in ("tokens", "labels", "loss_mask", "position_ids")]
read = len(first["tokens"])
started = time.perf_counter()
for batch in batches:
    read += len(batch["tokens"])
    if read >= samples:
        break
seconds = time.perf_counter() - started
work = read - len(first["tokens"])
print(json.dumps({"seconds": seconds, "work": work, "first_batch": digest}), flush=True)
"""

MEGATRON = f"""
import torch
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDataset
from megatron.core.datasets.utils import Split
torch.set_num_threads(1)
class Tokenizer:
    vocab_size, eod, pad, unique_identifiers = {VOCABULARY}, 0, -1, {{}}
config = GPTDatasetConfig(
    random_seed={SEED}, sequence_length={LENGTH}, blend=([prefix], None), split="1,0,0", path_to_cache=cache,
    tokenizer=Tokenizer(), reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False,
    create_attention_mask=False)
low = IndexedDataset(prefix, mmap=True)
dataset = GPTDataset(low, prefix, numpy.arange(len(low), dtype=numpy.int32), None, Split.train, config)
count = len(dataset)
"""
MEGATRON_ONE = """
def made():
    for k in range(count):
        yield {name: value[None] for name, value in dataset[k].items()}
"""
MEGATRON_BATCH = f"""
from torch.utils.data import default_collate
def made():
    for k in range(0, count - {BATCH} + 1, {BATCH}):
        yield default_collate([dataset[k + j] for j in range({BATCH})])
"""
MEGATRON_WORKERS = f"""
from torch.utils.data import DataLoader
def made():
    return iter(DataLoader(dataset, batch_size={BATCH}, num_workers=WORKERS))
"""

TOKSHARD = """
from tokshard.loader import BatchOptions, RankLoader
def opened(size, **options):
    return RankLoader.open(f"{plans}/{size}", rank=0, **options)
"""
TOKSHARD_ONE = """
def made():
    return iter(opened(1, readahead=0))
"""
TOKSHARD_BATCH = f"""
def made():
    return iter(opened({BATCH}, readahead=0))
"""
TOKSHARD_EIGHT = f"""
def made():
    loader = opened(1, readahead=0)
    for k in range(0, len(loader) - {BATCH} + 1, {BATCH}):
        parts = [loader[k + j] for j in range({BATCH})]
        yield {{name: numpy.concatenate([part[name] for part in parts]) for name in parts[0]}}
"""
TOKSHARD_AHEAD = f"""
def made():
    return iter(opened({BATCH}))
"""
TOKSHARD_BOUNDARIES = """
def made():
    return iter(opened(PLAN, readahead=0, options=BatchOptions(OPTIONS)))
"""
TOKSHARD_WORKERS = f"""
import torch
torch.set_num_threads(1)
from tokshard.loader.torch import data_loader
def made():
    return iter(data_loader(opened({BATCH}), num_workers=WORKERS))
"""


BOUNDARIES = "document boundaries"
MULTIPLE = 8


@dataclass(frozen=True)
class Side:
    """One row of the table.

    Attributes:
        name: What it is.
        code: Sets up ``made``, which returns an iterator of batches.
        needs_torch: Whether it runs in Megatron's interpreter alone.
    """

    name: str
    code: str
    needs_torch: bool = False


def groups() -> dict[str, list[Side]]:
    """Return the sides that are compared with each other; Megatron's comes first."""
    found = {
        "one sample a call": [
            Side("megatron-core", MEGATRON + MEGATRON_ONE, needs_torch=True),
            Side("tokshard", TOKSHARD + TOKSHARD_ONE),
        ],
        f"a batch of {BATCH}": [
            Side(f"megatron-core, {BATCH} calls, collated", MEGATRON + MEGATRON_BATCH, needs_torch=True),
            Side(f"tokshard, {BATCH} calls, stacked", TOKSHARD + TOKSHARD_EIGHT),
            Side("tokshard, one call", TOKSHARD + TOKSHARD_BATCH),
            Side("tokshard, one call, reading ahead", TOKSHARD + TOKSHARD_AHEAD),
        ],
    }
    bounds, padded = "cu_seqlens=True", f"cu_seqlens=True, pad_to_multiple={MULTIPLE}"
    found[BOUNDARIES] = [
        Side(name, (TOKSHARD + TOKSHARD_BOUNDARIES).replace("PLAN", repr(plan)).replace("OPTIONS", options))
        for name, plan, options in (
            ("concatenated", str(BATCH), ""),
            ("concatenated, cu_seqlens", str(BATCH), bounds),
            ("packed", "packed", ""),
            ("packed, cu_seqlens", "packed", bounds),
            (f"packed, documents padded to {MULTIPLE}", "packed", padded),
        )
    ]
    for workers in WORKERS:
        theirs = (MEGATRON + MEGATRON_WORKERS).replace("WORKERS", str(workers))
        ours = (TOKSHARD + TOKSHARD_WORKERS).replace("WORKERS", str(workers))
        found[f"a batch of {BATCH} by DataLoader, {workers} workers"] = [
            Side("megatron-core", theirs, needs_torch=True),
            Side("tokshard", ours, needs_torch=True),
        ]
    return found


def prepare(directory: Path, documents: int, longest: int) -> int:
    """Write a dataset, its index, and a plan for each batch size; return the number of samples."""
    draw = np.random.RandomState(SEED)
    prefix = str(directory / "data")
    builder = IndexedDatasetBuilder(prefix + ".bin", dtype=np.uint16)
    for length in draw.randint(1, longest, documents):
        builder.add_item(draw.randint(0, VOCABULARY, length).astype(np.uint16))
        builder.end_document()
    builder.finalize(prefix + ".idx")
    index = ["build-indices", prefix, "--seq-length", str(LENGTH), "--split", "1,0,0", "--epochs", "1"]
    run([*COMMAND, *index, "--seed", str(SEED), "--cache-dir", str(directory / "index")])
    packing = ["--pack", "best-fit", "--pad-multiple", str(MULTIPLE)]
    run([*COMMAND, *index, "--seed", str(SEED), *packing, "--cache-dir", str(directory / "packed")])
    for name, cache, size in (("1", "index", 1), (str(BATCH), "index", BATCH), ("packed", "packed", BATCH)):
        plan = ["shard-plan", str(directory / cache), "--split", "train", "--data-parallel", "1"]
        sizes = ["--micro-batch-size", str(size), "--global-batch-size", str(size)]
        run([*COMMAND, *plan, *sizes, "-o", str(directory / "plans" / name)])
    plan_file = directory / "plans" / "1" / "plan.json"
    return int(json.loads(plan_file.read_text())["streams"]["train"]["order"]["steps"])


def run(command: list[str]) -> None:
    """Run a command."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command[:4])}... failed with {done.returncode}:\n{done.stderr[-2000:]}")


def options() -> argparse.ArgumentParser:
    """Return the parser."""
    found = parser("loader", __doc__, rounds=5)
    found.add_argument("--documents", type=int, default=100_000)
    found.add_argument("--longest", type=int, default=1400, help="tokens of the longest document")
    found.add_argument("--samples", type=int, default=8000, help="how many are read in each measurement")
    found.add_argument("--only", default="", help="groups whose name contains this")
    found.add_argument("--megatron-python", help="an interpreter that has torch and megatron-core")
    return found


def main(arguments: list[str]) -> None:
    """Parse the arguments and measure every group."""
    peers = ("numpy", "torch", "megatron-core")
    with session(options(), arguments, "tokshard", "numpy", peers=peers) as bench:
        chosen, directory = bench.options, bench.directory
        python = chosen.megatron_python or sys.executable
        samples = prepare(directory, chosen.documents, chosen.longest)
        print(f"{samples:,} samples of {LENGTH} tokens, documents of up to {chosen.longest} tokens")
        paths = [str(directory / name) for name in ("data", "plans", "cache")]
        for name, sides in groups().items():
            interpreter = python if any(side.needs_torch for side in sides) else sys.executable
            contenders = [
                Contender(
                    side.name,
                    [interpreter, "-c", PROLOGUE + side.code + EPILOGUE, *paths, str(chosen.samples)],
                    environment={"PYTHONPATH": str(ROOT / "src")},
                    is_peer=side.name.startswith("megatron"),
                )
                for side in sides
                if chosen.megatron_python or not side.needs_torch
            ]
            if contenders and chosen.only in name:
                equal = [] if name == BOUNDARIES else ["first_batch"]
                base = contenders[0].name
                bench.compare(
                    contenders, title=name, base=base, figures=[rate("samples/s"), PEAK], equal=equal
                )


if __name__ == "__main__":
    main(sys.argv[1:])
