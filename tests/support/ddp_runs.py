"""Runs of the page's DDP block, each with a new process for each rank, as torchrun would start them.

A program of its own: a process that has threads, or a process group, cannot be forked safely.

    python -m support.ddp_runs STOPS      in the directory of the data; STOPS is a list as JSON
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
import traceback
from pathlib import Path

import numpy as np

from support.consumers import RANKS, blocks, trained


def batches_of_runs(directory: Path, stops: tuple[int | None, ...]) -> list[list[list[np.ndarray]]]:
    """Return what each run trained on: a list of micro-batches for each rank."""
    paths = [str(Path(__file__).parents[1]), *filter(None, sys.path)]
    done = subprocess.run(
        [sys.executable, "-m", "support.ddp_runs", json.dumps(stops)],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [
        [list(np.load(directory / f"run-{run}-{rank}.npy")) for rank in range(RANKS)]
        for run in range(len(stops))
    ]


def run_ranks(number: int, stop: int | None) -> bool:
    """Start all ranks and wait for them; return whether all have succeeded."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = []
    for rank in range(RANKS):
        process = os.fork()
        if not process:
            run_rank(number, stop, rank, port)
        processes.append(process)
    statuses = [os.waitpid(process, 0)[1] for process in processes]
    return not any(statuses)


def run_rank(number: int, stop: int | None, rank: int, port: int) -> None:
    """Run the block, write what it trained on, and end this process."""
    import torch

    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(RANKS), **address}
    status = 1
    try:
        (code,) = blocks("PyTorch DDP")
        batches = trained(code, stop, backward, build_model=lambda: torch.nn.Linear(1, 1))
        np.save(f"run-{number}-{rank}.npy", batches)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def backward(batch: dict, model) -> None:
    """Compute gradients, which the processes add up: they stay together only if all read equally often."""
    mean = batch["tokens"].float().mean().reshape(1)
    model(mean).sum().backward()


def main() -> int:
    """Run the block with each stop."""
    # Once, for all processes.
    importlib.import_module("torch._dynamo")
    importlib.import_module("tokshard.loader.torch")

    runs = enumerate(json.loads(sys.argv[1]))
    return not all(run_ranks(number, stop) for number, stop in runs)


if __name__ == "__main__":
    sys.exit(main())
