"""``tokshard doctor`` on options and values that Megatron refuses."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from support.command_line import INSTALLED
from support.mixture_data import JOB_TOKENIZER, run, write_mixture

COMMAND = ("torchrun", "--nproc-per-node", 8, "pretrain_gpt.py", "--seq-length", 16, "--micro-batch-size", 1)
COMMAND += ("--global-batch-size", 8, "--eval-interval", 5, "--eval-iters", 1)
DATA = ("--data-path", "data/web", "--split", "1,0,0", "--data-cache-path", "cache", *JOB_TOKENIZER)


@pytest.fixture
def workshop(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_mixture(tmp_path)


@pytest.mark.parametrize("data", [DATA, ("--mock-data",)])
@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--train-iters", 9, "--train-samples", 72), "schedule", "--train-iters cannot be used with"),
        (("--train-sample", 72), "unknown-option", "did you mean --train-samples?"),
        (("--train-iters", 9, "--seq-lenght", 16), "unknown-option", "did you mean --seq-length?"),
        (("--train-iters", 9, "--optimizer", "adma"), "invalid-choice", "did you mean adam?"),
        (("--train-iters", 9, "--dataloader-type", "singel"), "invalid-choice", "did you mean single?"),
    ],
)
def test_invalid_options_are_errors_with_mock_data(workshop, data, options, code, message):
    done = run("doctor", "--json", *COMMAND, *data, *options)
    assert done.returncode == 1
    (job,) = done.json["jobs"]
    errors = [finding for finding in job["findings"] if finding["severity"] == "error"]
    assert [finding["code"] for finding in errors] == [code]
    assert message in errors[0]["message"]


def test_option_that_a_fork_adds_is_a_note_that_never_changes_the_exit_code(workshop):
    done = run("doctor", "--json", *COMMAND, "--mock-data", "--train-iters", 9, "--our-option", 7)
    assert done.returncode == 0
    assert [finding["code"] for finding in done.json["jobs"][0]["findings"]] == ["other-options"]


def test_choice_of_the_dataloader_is_no_reason_to_skip_the_check_of_data(workshop):
    done = run("doctor", *COMMAND, *DATA, "--train-iters", 9, "--dataloader-type", "singel")
    assert "reads no indexes" not in done.stdout


def test_size_of_a_full_validation_is_one_epoch(workshop):
    done = run("doctor", *COMMAND, *DATA, "--train-iters", 9, "--full-validation")
    assert "requests: train 72, valid one epoch, test 8 samples" in done.stdout


def test_rampup_warning_is_not_for_megatron_deepspeed(workshop):
    options = ("--train-samples", 720, "--rampup-batch-size", 4, 4, 36)
    assert "--rampup-batch-size is ignored" in run("doctor", *COMMAND, *DATA, *options).stdout
    done = run("doctor", *COMMAND, *DATA, *options, "--deepspeed", "--data-impl", "mmap")
    assert "--rampup-batch-size" not in done.stdout


def test_batch_size_that_megatron_rounds_down_is_no_error(workshop):
    words = [
        13 if word == 8 and COMMAND[at - 1] == "--global-batch-size" else word
        for at, word in enumerate(COMMAND)
    ]
    refused = run("doctor", *words, "--mock-data", "--train-iters", 9)
    assert (refused.returncode, "batch-size" in refused.stdout) == (1, True)
    assert (
        run("doctor", *words, "--mock-data", "--train-iters", 9, "--decrease-batch-size-if-needed").returncode
        == 0
    )


SCRIPT = """#!/bin/bash
set -eu
GBS=8
ARGS=(--seq-length 16 --micro-batch-size 1 --global-batch-size $GBS --train-iters 9)
{program} "${{ARGS[@]}}" --data-path "data/w e b" --save '$HOME' --eval-interval 5 --split 1,0,0
"""


@pytest.mark.parametrize(
    ("program", "env", "processes"),
    [
        ("python pretrain_gpt.py", {"WORLD_SIZE": "4"}, 4),
        ("python pretrain_gpt.py", {}, None),
        ("", {"WORLD_SIZE": "8"}, 8),
        ("torchrun --nproc-per-node 2 pretrain_gpt.py", {"WORLD_SIZE": "8"}, 2),
        ("deepspeed pretrain_gpt.py", {"WORLD_SIZE": "8"}, None),
    ],
)
def test_doctor_in_place_of_the_program_reads_the_words_of_the_users_shell(workshop, program, env, processes):
    command = f"'{INSTALLED}' doctor --json -- {program}"
    (workshop / "launch.sh").write_text(SCRIPT.format(program=command))
    environment = {name: value for name, value in os.environ.items() if name != "WORLD_SIZE"} | env
    done = subprocess.run(
        ["bash", "launch.sh"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1, done.stderr  # the dataset does not exist
    (job,) = json.loads(done.stdout)["jobs"]
    assert job["arguments"]["data_path"] == ["data/w e b"]
    assert job["arguments"].get("world_size") == processes


def test_one_option_is_no_path_of_a_script(workshop):
    done = run("doctor", "--", "--mock-data")
    assert (done.returncode, done.stderr) == (0, "")
