"""The global batch size of the job that a blend was built for: recorded, and compared with a plan's."""

from __future__ import annotations

import pytest

from support.mixture_data import run, write_mixture
from tokshard.samples.blend.document import BlendDocument

MIXTURE = ("1", "data/web", "1", "data/code", "--seq-length", 8, "--split", "1")
LAST = ("--global-batch-size", 16)


@pytest.fixture
def workshop(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_mixture(tmp_path)
    sizes = ("--train-iters", 25, *LAST, "--eval-interval", 100, "--eval-iters", 0)
    assert run("blend", *MIXTURE, *sizes, "-o", "mix").returncode == 0
    return tmp_path


def messages(blend, *options):
    """Return the warnings of a plan about the job's batch size, which are also in its JSON."""
    done = run("shard-plan", blend, "-o", "plan", "--dry-run", "--json", *options)
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    found = [line.removeprefix("warning: ") for line in lines if "was built for a job" in line]
    assert done.stdout.count("was built for a job") == len(found)
    assert all(text in done.stdout for text in found)
    return found


def test_a_batch_size_that_is_not_the_jobs_is_a_warning(workshop):
    (text,) = messages("mix", "--data-parallel", 2)
    assert text == (
        "the global batch size is 2, but mix/blend.json was built for a job with 16: pass "
        "--from-launch LAUNCH or --global-batch-size 16 to plan that job"
    )
    assert messages("mix", "--data-parallel", 2, "--global-batch-size", 16) == []
    assert messages("mix", "--data-parallel", 2, "--rampup-batch-size", 8, 4, 64, *LAST) == []
    assert messages("data/web", "--documents", "--data-parallel", 2) == []


@pytest.mark.parametrize(
    ("batches", "last"),
    [
        ("--train-iters 20 --global-batch-size 8", 8),
        ("--train-iters 20 --global-batch-size 16 --rampup-batch-size 8 4 32", 16),
        ("--train-samples 240 --step-batch-size-schedule '0:8 640:16'", 16),
        ("--train-iters 20", 4),
    ],
)
def test_a_blend_from_a_launch_script_records_the_last_batch_size(workshop, batches, last):
    launch = (
        "torchrun --nproc-per-node 4 pretrain_gpt.py --micro-batch-size 1 --seq-length 8 --split 1 "
        "--data-path 1 data/web 1 data/code --eval-interval 100 --eval-iters 0 "
        f"--tokenizer-model llama {batches}"
    )
    words = ("--from-launch", launch, "--megatron", "0.19", "--force", "-o", "launched")
    assert run("blend", *words).returncode == 0, batches
    assert BlendDocument.read("launched").global_batch_size == last
    (text,) = messages("launched", "--data-parallel", 1)
    assert f"built for a job with {last}:" in text


def test_the_batch_size_of_the_job_is_no_part_of_the_id(workshop):
    ids = []
    for sizes in (
        ("--num-samples", 400),
        ("--train-samples", 400, *LAST, "--eval-interval", 1, "--eval-iters", 0),
    ):
        done = run("blend", *MIXTURE, *sizes, "-o", "same", "--json")
        assert done.returncode == 0, done.stderr
        ids.append((done.json["blend"]["id"], done.json["blend"].get("global_batch_size")))
    assert ids == [(ids[0][0], None), (ids[0][0], 16)]
