"""``tokshard doctor`` on options and values that Megatron refuses."""

from __future__ import annotations

import pytest

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
def test_what_megatron_refuses_is_an_error_also_with_mock_data(workshop, data, options, code, message):
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
