"""P62: two processes of torch's DistributedDataParallel read a plan, and a state saved once resumes both."""

import os
import socket
import traceback

import numpy as np
import pytest

from support.consumers import RANKS, STOPS, blocks, check, needed, trained

needed("torch")
pytestmark = pytest.mark.oracle


def processes(code, stop, directory):
    """Run the block in a process of its own for each rank; return what each rank trained on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for rank in range(RANKS):
        if not (process := os.fork()):
            one_rank(code, stop, rank, port, directory)
        started.append(process)
    for rank, process in enumerate(started):
        status = os.waitpid(process, 0)[1]
        assert status == 0, (directory / f"error-{rank}.txt").read_text()
    return [list(np.load(directory / f"trained-{rank}.npy")) for rank in range(RANKS)]


def one_rank(code, stop, rank, port, directory):
    """Run the block as torchrun would, write what it trained on, and end this process."""
    import torch

    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(RANKS), **address}
    status = 1
    try:
        torch.set_num_threads(1)
        batches = trained(code, stop, backward, build_model=lambda: torch.nn.Linear(1, 1))
        np.save(directory / f"trained-{rank}.npy", batches)
        status = 0
    except BaseException:
        (directory / f"error-{rank}.txt").write_text(traceback.format_exc())
    finally:
        os._exit(status)


def backward(batch, model):
    """Compute gradients, which the processes add up: they are equal only if the processes stay together."""
    mean = batch["tokens"].float().mean().reshape(1)
    model(mean).sum().backward()


def test_the_block_of_the_page_reads_and_resumes(workdir, expected):
    (code,) = blocks("PyTorch DDP")
    runs = [processes(code, stop, workdir) for stop in STOPS]
    for rank in range(RANKS):
        check((run[rank] for run in runs), expected[rank])
