#!/usr/bin/env python3
"""Train a small GPT with torch's DistributedDataParallel from a plan of tokshard, kill it, and resume.

    scripts/train_ddp_example.py [DIRECTORY]      everything below, on the CPU, in about half a minute

1. Tokenizes the sample data, blends it and plans it for 2 ranks.
2. Trains with 2 processes, as ``torchrun`` starts them, and kills them with SIGKILL in the middle.
3. Resumes from the last checkpoint with one process, which reads the same plan.
4. Checks the logs of the ranks: every planned sample was read exactly once, gradients were equal at every
   step, and the loss fell.

Copy ``train`` into your own training script. It needs only tokshard, numpy and torch. To start it by hand:

    torchrun --nproc-per-node 2 scripts/train_ddp_example.py train PLAN CHECKPOINT LOGS
"""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import distributed, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from tokshard.loader import RankLoader

SCRIPT = Path(__file__).resolve()
SAMPLE_DATA = SCRIPT.parent.parent / "sample_data"
VOCABULARY = 4096
SEQUENCE_LENGTH = 64
SAMPLES = 640
GLOBAL_BATCH_SIZE = 16
CHECKPOINT_EVERY = 8
KILL_AFTER = 12


class SmallGPT(nn.Module):
    """Two layers of a transformer that sees no later token."""

    def __init__(self, width=64, heads=4, layers=2):
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.places = nn.Embedding(SEQUENCE_LENGTH, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.logits = nn.Linear(width, VOCABULARY)

    def forward(self, tokens, position_ids):
        """Return logits of shape (samples, length, words)."""
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.logits(self.layers(self.words(tokens) + self.places(position_ids), mask, is_causal=True))


def train(plan, checkpoint, logs):
    """Train from where the checkpoint is, if there is one, to the end of the plan."""
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    torch.manual_seed(1234)
    model = DistributedDataParallel(SmallGPT())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    loader = RankLoader.open(plan, rank=rank, data_parallel=distributed.get_world_size())
    if os.path.exists(checkpoint):
        saved = torch.load(checkpoint)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])

    os.makedirs(logs, exist_ok=True)
    with open(f"{logs}/rank-{rank}.jsonl", "w", buffering=1) as log:
        for step in range(loader.step, loader.steps):
            consumed = loader.consumed_samples
            micro_batches = loader.micro_batches(step)
            samples, losses = [], []
            for number in micro_batches:
                samples += loader.sample_ids(loader.position)
                batch = {name: torch.from_numpy(array) for name, array in next(loader).items()}
                # Ranks add up their gradients once a step, with the last micro-batch.
                with contextlib.nullcontext() if number == micro_batches[-1] else model.no_sync():
                    logits = model(batch["tokens"], batch["position_ids"])
                    each = cross_entropy(logits.transpose(1, 2), batch["labels"], reduction="none")
                    loss = (each * batch["loss_mask"]).sum() / batch["loss_mask"].sum()
                    (loss / len(micro_batches)).backward()
                losses.append(loss.item())
            entry = {"pid": os.getpid(), "consumed": consumed, "samples": samples}
            entry |= {"loss": sum(losses) / len(losses), "gradients": fingerprint_of_gradients(model)}
            log.write(json.dumps(entry) + "\n")
            optimizer.step()
            optimizer.zero_grad()
            if (step + 1) % CHECKPOINT_EVERY == 0 or step + 1 == loader.steps:
                # All ranks have written down what they read before the checkpoint says so.
                distributed.barrier()
                if rank == 0:
                    save(checkpoint, model, optimizer, loader)
    distributed.destroy_process_group()


def save(checkpoint, model, optimizer, loader):
    """Write a checkpoint, which replaces the last one when it is complete."""
    state = {
        "model": model.module.state_dict(),
        "optimizer": optimizer.state_dict(),
        "loader": loader.state_dict(),
    }
    torch.save(state, f"{checkpoint}.new")
    os.replace(f"{checkpoint}.new", checkpoint)


def fingerprint_of_gradients(model):
    """Return a digest of all gradients: equal on two ranks only if every bit is."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.grad.numpy().tobytes())
    return digest.hexdigest()[:16]


# What follows is the demonstration: the commands before the training, the kill, and the checks.


def demonstrate(directory):
    os.chdir(directory)
    tokenizer = SAMPLE_DATA / "tokenizer.json"
    for name in ("stories", "manuals"):
        tokshard("tokenize", SAMPLE_DATA / f"{name}.jsonl", "-o", name, "--tokenizer", tokenizer)
    tokshard(
        *("blend", "0.6", "stories", "0.4", "manuals", "--split", "100", "--seq-length", SEQUENCE_LENGTH),
        *("--num-samples", f"{SAMPLES},0,0", "-o", "mix"),
    )
    batches = ("--micro-batch-size", 4, "--global-batch-size", GLOBAL_BATCH_SIZE)
    tokshard("shard-plan", "mix", "--data-parallel", 2, *batches, "-o", "plan")

    while not kill_workers(start(2, "plan", "logs-2"), "logs-2"):
        shutil.rmtree("logs-2")
        os.remove("checkpoint.pt")
    consumed = torch.load("checkpoint.pt")["loader"]["consumed_samples"]
    print(f"both ranks killed; the last checkpoint is after {consumed} samples")

    if start(1, "plan", "logs-1").wait():
        sys.exit(Path("logs-1/torchrun.log").read_text())
    check(consumed)


def tokshard(*words):
    """Run a command, show what it says of a plan, and stop where it fails."""
    words = ["tokshard", *map(str, words)]
    print("$", *words, flush=True)
    program = Path(sys.executable).with_name("tokshard")
    done = subprocess.run([program, *words[1:]], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    if words[1] == "shard-plan":
        print(done.stdout)


def start(processes, plan, logs):
    """Start the training as a user would, with torchrun."""
    os.mkdir(logs)
    words = ["--standalone", "--nproc-per-node", str(processes)]
    words += [str(SCRIPT), "train", plan, "checkpoint.pt", logs]
    print("$ torchrun", *words, flush=True)
    with open(f"{logs}/torchrun.log", "wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *words],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def entries(logs, rank):
    """Return what a rank wrote down: one entry a step. The last line may have been cut by the kill."""
    path = Path(logs, f"rank-{rank}.jsonl")
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def kill_workers(training, logs):
    """Wait until some steps are done, then kill both ranks; False if they had come to the end meanwhile."""
    while len(entries(logs, 1)) < KILL_AFTER:
        if training.poll():
            sys.exit(Path(logs, "torchrun.log").read_text())
        time.sleep(0.01)
    for rank in (0, 1):
        with contextlib.suppress(ProcessLookupError):
            os.kill(entries(logs, rank)[0]["pid"], signal.SIGKILL)
    return training.wait() != 0 and len(entries(logs, 0)) < SAMPLES // GLOBAL_BATCH_SIZE


def check(consumed):
    """Compare what the ranks wrote down with the plan; print some of it, and what holds."""
    ranks = [entries("logs-2", rank) for rank in (0, 1)]
    both = list(zip(*ranks, strict=False))
    kept = [step for step in both if step[0]["consumed"] < consumed]
    lost, resumed = both[len(kept) :], [(entry,) for entry in entries("logs-1", 0)]
    print("\nconsumed   loss  gradients         samples of each rank")
    show("2 ranks", kept)
    show("2 ranks, after the checkpoint: lost", lost)
    show("1 rank, from the checkpoint on", resumed)

    planned = RankLoader.open("plan", rank=0).order
    count = GLOBAL_BATCH_SIZE // 2
    print()
    confirm(
        all(
            entry["samples"] == planned.ids(planned.numbers(rank, step * count, count)).tolist()
            for rank, written in enumerate(ranks)
            for step, entry in enumerate(written)
        ),
        f"in each of {len(both)} steps the 2 ranks read what was planned",
    )
    confirm(
        all(not set(first["samples"]) & set(second["samples"]) for first, second in both),
        "they never read the same sample",
    )
    confirm(
        all(first["gradients"] == second["gradients"] for first, second in both),
        "their gradients were equal in every step, bit for bit",
    )
    read = [sample for step in kept + resumed for entry in step for sample in entry["samples"]]
    confirm(
        sorted(read) == list(range(SAMPLES)),
        f"each of the {SAMPLES} samples made the model once, {consumed} of them before the kill",
    )
    pairs = list(zip(losses_of(lost), losses_of(resumed), strict=False))
    confirm(
        all(abs(before - after) < 0.01 for before, after in pairs),
        f"the {len(pairs)} steps that were lost had the same loss when they were done again",
    )
    losses = losses_of(kept + resumed)
    confirm(losses[-1] < losses[0] - 1, f"the loss fell from {losses[0]:.2f} to {losses[-1]:.2f}")


def confirm(holds, sentence):
    if not holds:
        sys.exit(f"NOT SO: {sentence}")
    print(f"yes: {sentence}")


def show(title, steps):
    """Print the first and the last steps of a part of the run."""
    print(f"-- {title}: {len(steps)} steps")
    for step in steps if len(steps) < 6 else [*steps[:3], None, *steps[-2:]]:
        if step is None:
            print("     ...")
            continue
        loss = losses_of([step])[0]
        ranks = "   ".join(spans(entry["samples"]) for entry in step)
        print(f"{step[0]['consumed']:8} {loss:6.2f}  {step[0]['gradients']}  {ranks}")


def losses_of(steps):
    """Return the loss of each step over all ranks."""
    return [sum(entry["loss"] for entry in step) / len(step) for step in steps]


def spans(samples):
    """Write 3 4 5 9 as 3-5 9."""
    firsts = [sample for sample in samples if sample - 1 not in samples]
    lasts = [sample for sample in samples if sample + 1 not in samples]
    return " ".join(f"{first}-{last}" for first, last in zip(firsts, lasts, strict=True))


def main():
    if len(sys.argv) == 5 and sys.argv[1] == "train":
        train(*sys.argv[2:])
    elif len(sys.argv) == 2 and not sys.argv[1].startswith("-"):
        if os.path.exists(sys.argv[1]):
            sys.exit(f"{sys.argv[1]} exists already")
        os.makedirs(sys.argv[1])
        demonstrate(sys.argv[1])
    elif len(sys.argv) == 1:
        with tempfile.TemporaryDirectory() as directory:
            demonstrate(directory)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
