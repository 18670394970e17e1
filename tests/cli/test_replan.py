"""``tokshard replan``: the real command."""

from __future__ import annotations

import re

import pytest

from support.command_line import failure
from support.mixture_data import run, write_mixture
from tokshard.ranks.plan import read_plan

SIZES = ("--seq-length", 8, "--split", 1, "--megatron", "0.19", "--tokenizer-model", "/models/llama")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A directory with two datasets, a blend of them, and a plan for 4 ranks."""
    monkeypatch.chdir(write_mixture(tmp_path))
    blend = run("blend", 0.7, "data/web", 0.3, "data/code", *SIZES, "--num-samples", 100, "-o", "mix")
    assert blend.returncode == 0, blend.stderr
    plan = run("shard-plan", "mix", "--data-parallel", 4, "--global-batch-size", 8, "-o", "plan")
    assert plan.returncode == 0, plan.stderr
    return tmp_path


def replan(*arguments):
    return run("replan", "plan", *arguments)


def test_a_plan_continues_with_another_world_size(here):
    done = replan("--consumed-samples", 40, "--data-parallel", 2, "-o", "plan2")
    assert done.returncode == 0, done.stderr
    assert "consumed     40 samples before step 0" in done.stdout
    assert "60 planned, 100 in the data" in done.stdout or "56 planned, 100 in the data" in done.stdout
    plan = read_plan("plan2")
    assert plan.topology.data_parallel == 2
    assert plan.streams["train"].order.consumed_samples == 40
    assert plan.streams["train"].order.schedule.segments == ((0, 8),)
    assert run("verify", "plan2").returncode == 0
    assert run("diff", "plan", "plan2").returncode == 0


def test_everything_that_is_given_changes_and_nothing_else(here):
    options = ["--world-size", 8, "--tensor-parallel", 2, "--pipeline-parallel", 2, "--micro-batch-size", 2]
    done = replan("--consumed-samples", 40, *options, "--global-batch-size", 4, "--steps", 5, "-o", "plan2")
    assert done.returncode == 0, done.stderr
    plan = read_plan("plan2")
    order = plan.streams["train"].order
    assert (plan.topology.world_size, plan.topology.tensor_parallel, plan.topology.pipeline_parallel) == (
        8,
        2,
        2,
    )
    assert (order.ranks, order.micro_batch_size, order.steps) == (2, 2, 5)
    again = run("replan", "plan2", "--consumed-samples", 48, "--steps", 3, "-o", "plan3")
    assert again.returncode == 0, again.stderr
    third = read_plan("plan3")
    assert third.topology == plan.topology
    assert third.streams["train"].order.micro_batch_size == 2
    assert len(third.history) == 2


def test_a_plan_continues_with_other_weights(here):
    words = "0.2 data/web 0.8 data/code"
    done = replan("--consumed-samples", 40, "--blend", words, "--seed", 7, "-o", "plan2", "--json")
    assert done.returncode == 0, done.stderr
    datasets = run("inspect", "plan2", "--json").json["streams"]["train"]["datasets"]
    assert [dataset["planned"] for dataset in datasets] == [12, 44]
    assert done.json["plan"]["history"][0]["streams"]["train"]["reweighting"]["seed"] == 7
    assert run("verify", "plan2").returncode == 0
    everything = run("verify", "plan2", "--recursive", "--json")
    assert everything.returncode == 0, everything.stdout
    kinds = [product["kind"] for product in everything.json["products"]]
    assert kinds == ["dataset"] * 2 + ["index"] * 2 + ["plan"]
    compared = run("diff", "plan", "plan2", "--json")
    assert compared.returncode == 1
    web, code = compared.json["parts"][0]["datasets"]
    assert web["a"] > web["b"]
    assert code["a"] < code["b"]
    assert code["b"] - code["a"] == web["a"] - web["b"]


def test_new_weights_can_have_globs_of_the_datasets(here):
    done = replan("--consumed-samples", 40, "--blend", "1 data/*", "-o", "plan2", "--json")
    assert done.returncode == 0, done.stderr
    weights = done.json["plan"]["history"][0]["streams"]["train"]["reweighting"]["weights"]
    assert weights == [480 / 1250, 770 / 1250]  # in the order of the matches, by their tokens


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "plan2", "--expert-model-parallel-size", 2], "it does not change which samples a rank reads"),
        (["-o", "plan2"], "--consumed-samples is required"),
        (["--consumed-samples", 41, "-o", "plan2"], "must be at the end of a step"),
        (["--consumed-samples", 400, "-o", "plan2"], "at most 96"),
        (["mix", "--consumed-samples", 40, "-o", "plan2"], "unexpected argument: mix"),
        (["--consumed-samples", 40, "--seed", 3, "-o", "plan2"], "--seed requires --blend"),
        (["--consumed-samples", 40, "--data-parallel", 3, "-o", "plan2"], "must be divisible by"),
        (["--consumed-samples", 40, "--blend", "1 data/books", "-o", "plan2"], "does not read data/books"),
        (
            ["--consumed-samples", 40, "--blend", "mix", "--dry-run", "-o", "plan2"],
            "--dry-run cannot be used",
        ),
    ],
)
def test_what_cannot_be_is_one_sentence(here, arguments, message):
    done = replan(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (here / "plan2").exists()


def test_a_stop_of_a_job_with_other_batches_says_how_it_is_continued(here):
    code, error, hint = failure(replan("--consumed-samples", 60, "-o", "plan2"))
    assert (code, error) == (
        2,
        "train: consumed samples must be at the end of a step, got 60: step 7 starts at 56 and has 8 samples",
    )
    assert hint == (
        "use 56 or 64 consumed samples; "
        "if a job with other batches stopped there, first replan to its sizes where it had started"
    )
    sizes = ["--data-parallel", 3, "--global-batch-size", 6]
    assert replan("--consumed-samples", 48, *sizes, "-o", "plan2").returncode == 0
    words = "0.2 data/web 0.8 data/code"
    done = run("replan", "plan2", "--consumed-samples", 60, "--blend", words, "-o", "plan3")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("consumed", "samples", "dropped"),
    [(24, "76", "4 samples in each epoch"), (20, "80", "4 samples in epoch 1")],
)
def test_a_plan_that_starts_inside_an_epoch_names_the_epochs(here, consumed, samples, dropped):
    sizes = ["--data-parallel", 4, "--global-batch-size", 8, "--epochs", 2]
    done = run("shard-plan", "mix", *sizes, "--consumed-samples", consumed, "-o", "plan2")
    assert done.returncode == 0, done.stderr
    assert f"{samples} samples of epoch 0 over 4 data-parallel ranks" in done.stdout
    assert re.findall("dropped +(.*)", done.stdout) == [dropped]


def test_a_missing_plan_is_named(here):
    refused = failure(run("replan", "--consumed-samples", 40, "-o", "plan2"))
    assert refused == (2, "PLAN is required", "pass the plan that was stopped: its directory or plan.json")


def test_options_that_the_plan_determines_are_unknown(here):
    refused = failure(replan("--consumed-samples", 40, "--shuffle", "samples", "-o", "plan2"))
    hint = "leave out --shuffle: the continued plan determines it"
    assert refused == (2, 'unknown option "--shuffle"', hint)


@pytest.mark.parametrize("option", [("--from", "plan"), ("--blend", "mix"), ("--moved", "a=b")])
def test_shard_plan_hints_at_replan_for_its_options(here, option):
    refused = failure(run("shard-plan", "mix", "--data-parallel", 2, *option, "-o", "plan2"))
    assert refused == (2, f'unknown option "{option[0]}"', "run `tokshard replan PLAN` to continue a plan")


def test_a_move_is_a_pair(here):
    done = replan("--consumed-samples", 40, "--moved", "data2", "-o", "plan2")
    assert (
        done.returncode,
        "--moved must be OLD=NEW such as /scratch/data=/mnt/data, got 'data2'" in done.stderr,
    ) == (2, True)


def test_data_that_has_moved_is_found(here):
    recipe = ["--blend", "1 data2/web 1 data2/code"]
    (here / "data").rename(here / "data2")
    done = replan("--consumed-samples", 40, *recipe, "-o", "plan2")
    assert done.returncode == 2
    moved = ["--moved", f"{here}/data={here}/data2"]
    done = replan("--consumed-samples", 40, *recipe, *moved, "-o", "plan2")
    assert done.returncode == 0, done.stderr
    assert read_plan("plan2").streams["train"].source.datasets[0].path_prefix == str(here / "data2/web")


def test_validation_follows_a_new_batch_size(here):
    sizes = ("--seq-length", 8, "--split", "60,40", "--num-samples", "64,24,0")
    assert run("blend", 0.7, "data/web", 0.3, "data/code", *sizes, "-o", "both").returncode == 0
    assert (
        run("shard-plan", "both", "--data-parallel", 4, "--global-batch-size", 8, "-o", "four").returncode
        == 0
    )
    words = ("--consumed-samples", 40, "--data-parallel", 3, "--global-batch-size", 6, "-o", "three")
    done = run("replan", "four", *words)
    assert done.returncode == 0, done.stderr
    assert read_plan("three").streams["valid"].order.schedule.text == "6"


def test_no_stages_replace_those_of_the_plan(here):
    stages = ("--pipeline-parallel", 2, "--mtp-stages", 1)
    staged = run("shard-plan", "mix", "--data-parallel", 2, *stages, "-o", "staged")
    assert staged.returncode == 0, staged.stderr
    call = ("replan", "staged", "--consumed-samples", 40, "--pipeline-parallel", 1, "-o", "plan2")
    assert "stages of multi-token prediction must be from 0 to 0, got 1" in run(*call).stderr
    done = run(*call, "--mtp-stages", "")
    assert done.returncode == 0, done.stderr
    assert read_plan("plan2").topology.mtp_stages == ()
