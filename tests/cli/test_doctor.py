"""``tokshard doctor`` as a user types it: what it reads, what it says, exit codes."""

from __future__ import annotations

import re

import pytest

from support.command_line import installed, tokshard
from support.mixture_data import JOB_TOKENIZER, NAMES, run, write_mixture

JOB = ("torchrun", "--nproc-per-node", 8, "pretrain_gpt.py", "--seq-length", 16, "--split", "9,1")
JOB += ("--micro-batch-size", 1, "--global-batch-size", 8, "--train-iters", 10, "--eval-interval", 5)
JOB += ("--eval-iters", 1, "--data-cache-path", "cache", *JOB_TOKENIZER)
WEB = ("--data-path", "data/web")
BUILD = ("build-indices", "data/web", "--seq-length", 16, "--split", "9,1", "--cache-dir", "cache", *NAMES)


@pytest.fixture
def workshop(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_mixture(tmp_path)


def test_a_missing_index_names_the_option_that_differs(workshop):
    assert run(*BUILD, "--num-samples", "80,25").returncode == 0
    done = tokshard("doctor", *JOB, *WEB, cwd=workshop)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith(
        "1 difference: the number of valid samples (--eval-interval, --eval-iters, --global-batch-size) "
        "is 24 in the launch command, 25 in the cache (1 of 2 indexes)\n"
        "  hint: use the values of the cache, or build the indexes of this job: run `tokshard build-indices "
    )
    assert "\njob: 8 processes, 8 data-parallel ranks, batches of 8, samples of 16 tokens\n" in done.stdout
    assert "\nrequests: train 80, valid 24, test 8 samples\n" in done.stdout
    assert done.stdout.endswith("--verbose lists 2 notes and 2 cached indexes\n")
    assert "cache/" not in done.stdout
    verbose = run("doctor", "--verbose", *JOB, *WEB).stdout
    assert "train: one dataset, " in verbose
    assert "cache files, by the names of Megatron 0.19 or 0.18:" in verbose
    assert re.search(
        r"^  missing  valid of data/web\n +cache/[0-9a-f]{32}-GPTDataset-valid-\*$", verbose, re.MULTILINE
    )
    assert "num_samples: job 24, cache 25" in verbose
    assert re.search(r"^  fresh    train of data/web$", verbose, re.MULTILINE)
    assert run(*BUILD, "--num-samples", "80,24").returncode == 0
    healthy = run("doctor", *JOB, *WEB)
    assert (healthy.returncode, healthy.stdout.splitlines()[0]) == (
        0,
        "no problems found: the job will find its 2 cached indexes",
    )


def test_the_command_comes_as_words_a_text_a_file_or_by_stdin(workshop):
    assert run(*BUILD, "--num-samples", "80,24").returncode == 0
    text = " ".join(map(str, (*JOB, *WEB)))
    (workshop / "launch.sh").write_text(f"#!/bin/sh\n{text} 2>&1 | tee log\n")
    (workshop / "arguments").write_text("\n".join(map(str, (*JOB[4:], *WEB))))
    expected = run("doctor", "--json", *JOB, *WEB).json
    assert expected["healthy"]
    assert run("doctor", text, "--json").json == expected
    script = run("doctor", "launch.sh", "--json").json
    assert script["jobs"][0].pop("line") == 2
    assert script["jobs"] == [{k: v for k, v in job.items() if k != "line"} for job in expected["jobs"]]
    assert run("doctor", "-", "--json", stdin=text).json == expected
    assert run("doctor", "arguments").returncode == 0
    assert run("doctor", "--json", "--", *JOB, *WEB).json == expected


@pytest.mark.parametrize("words", [("-q", "debug"), ("--quiet",), ("--no-progress",)])
def test_options_of_the_launcher_are_not_those_of_doctor(workshop, words):
    done = run("doctor", "srun", "-n", 8, *words, *JOB[3:], *WEB)
    assert "\njob: 8 processes, 8 data-parallel ranks" in done.stdout


def test_the_version_may_be_told(workshop):
    assert run(*BUILD, "--num-samples", "80,24").returncode == 0
    done = run("doctor", "--megatron", "0.16", "--verbose", *JOB, *WEB)
    assert done.returncode == 1
    assert done.stdout.startswith(
        "1 difference: the Megatron version is 0.16 in the launch command, 0.19 or 0.18 in the cache (2 "
    )
    assert "by the names of Megatron 0.16:" in done.stdout
    assert "tokenizer.chat_template: job null, cache " in done.stdout
    like = next((workshop / "cache").glob("*-train-description.txt"))
    done = run("doctor", "--verbose", "--like", like, *JOB[:-4], *WEB)
    assert (done.returncode, f"by the names of the tokenizer in {like}:" in done.stdout) == (0, True)
    two = run("doctor", "--megatron", "0.16", "--like", like, *JOB, *WEB)
    assert (two.returncode, "--like cannot be used with --megatron" in two.stderr) == (2, True)


def test_data_and_cache_may_lie_elsewhere_here(workshop):
    options = ("--path-as", "data=/mnt/data", "--path-as", "cache=/mnt/cache")
    assert run(*BUILD, "--num-samples", "80,24", *options).returncode == 0
    words = [str(word).replace("cache", "/mnt/cache") if word == "cache" else word for word in JOB]
    done = run("doctor", *options, *words, "--data-path", "/mnt/data/web")
    assert (done.returncode, "will find its 2 cached indexes" in done.stdout) == (0, True)


def test_names_from_the_command_are_made_harmless(workshop):
    done = run("doctor", *JOB, "--data-path", "data/\x1b[31mred[red]")
    assert done.returncode == 1
    assert "\x1b" not in done.stdout
    assert r"data/\x1b[31mred[red]" in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["nothing.sh"], 3, "launch script not found: nothing.sh"),
        (["python train.py --lr 3"], 2, "no argument of a Megatron training job found"),
        (["corpus.jsonl"], 2, "corpus.jsonl is JSON Lines, not a launch script"),
        (["--megatron", "0.2", *map(str, JOB)], 2, "the Megatron version must be one of"),
        (["data"], 3, "cannot read launch script data: it is a directory"),
    ],
)
def test_refusals_have_their_exit_codes(workshop, words, code, message):
    (workshop / "corpus.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    done = run("doctor", *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr


def test_what_a_pasted_script_is_given_later_is_a_note(workshop):
    assert run(*BUILD, "--num-samples", "80,24").returncode == 0
    text = " ".join(map(str, (*JOB, *WEB)))
    (workshop / "launch.sh").write_text(f'{text} "$@" ${{MORE[@]}}\n')
    for words in (("launch.sh",), (*JOB, *WEB, '"$@"', "${MORE[@]}")):
        done = run("doctor", *words)
        assert done.returncode == 0, done.stdout
        assert "not checked: arguments: $@, ${MORE[@]} may contain more arguments\n" in done.stdout
        assert "hint: pass --set MORE=VALUE and the parameters of the script after its name\n" in done.stdout
        assert done.stdout.startswith(
            "no problems found: the job will find its 2 cached indexes; 1 check was skipped\n"
        )
        assert run("doctor", "--strict", *words).returncode == 1
    (job,) = run("doctor", "--json", "launch.sh").json["jobs"]
    assert job["arguments"]["data_path"] == ["data/web"]
    assert [check["check"] for check in job["skipped"]] == ["arguments"]
    told = run("doctor", "--strict", "--set", "MORE=--seed=1234", "launch.sh", "--eval-iters=1")
    assert (told.returncode, told.stdout.splitlines()[0]) == (
        0,
        "no problems found: the job will find its 2 cached indexes",
    )


def test_what_a_condition_decides_is_not_checked_until_the_variable_is_set(workshop):
    (workshop / "launch.sh").write_text(
        'D="--data-path data/web"\nif [ "$MOCK" = true ]; then\n  D=--mock-data\nfi\n'
        + " ".join(map(str, JOB))
        + " $D\n"
    )
    done = run("doctor", "launch.sh")
    assert done.stdout.startswith(
        "the cache was not checked: --mock-data depends on $MOCK\n  hint: pass --set MOCK=VALUE\n\n"
    )
    assert (done.returncode, run("doctor", "--strict", "launch.sh").returncode) == (0, 1)
    assert run("doctor", "launch.sh", "--set", "MOCK=no").returncode == 1  # it has no cache
    mock = run("doctor", "--set", "MOCK=true", "launch.sh")
    assert mock.returncode == 0
    assert mock.stdout.startswith("the cache was not checked: with --mock-data the job reads no dataset\n")


def test_launch_commands_in_exclusive_branches_are_refused(workshop):
    job, other = (" ".join(map(str, (*JOB, *WEB, "--seed", seed))) for seed in (1, 2))
    (workshop / "launch.sh").write_text(f"case $MODE in\na) {job} ;;\nb) {other} ;;\nesac\n")
    done = run("doctor", "launch.sh")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "error: cannot decide which launch command runs (line 2 or line 3): it depends on $MODE\n"
        "hint: pass --set MODE=VALUE\n"
    )
    shown = run("doctor", "launch.sh", "--set", "MODE=b", "--show-command")
    assert (shown.returncode, shown.stdout[-9:]) == (0, "--seed 2\n")


def test_the_command_is_shown_as_it_was_understood(workshop):
    (workshop / "launch.sh").write_text(
        'A=(--data-path "a b" --save $OUT)\ntorchrun pretrain_gpt.py "${A[@]}" --seed $1\n'
    )
    done = run("doctor", "--show-command", "launch.sh", "7")
    assert (done.returncode, done.stdout) == (
        0,
        "torchrun pretrain_gpt.py --data-path 'a b' --save $OUT --seed 7\n",
    )


@pytest.mark.parametrize("pair", ["X", "=1", "a-b=1"])
def test_a_variable_must_have_a_name_and_a_value(workshop, pair):
    done = run("doctor", "--set", pair, "torchrun pretrain_gpt.py --seed 1")
    assert (
        done.returncode,
        f"--set must be NAME=VALUE such as SLURM_NNODES=8, got {pair!r}" in done.stderr,
    ) == (2, True)


def test_a_mistyped_path_of_a_script_is_an_error_with_the_existing_path(workshop):
    (workshop / "launch.sh").write_text("")
    done = run("doctor", "lunch.sh")
    assert (done.returncode, done.stderr) == (
        3,
        "error: launch script not found: lunch.sh\nhint: did you mean launch.sh?\n",
    )


def test_a_mistyped_path_of_a_dataset_is_an_error_with_the_existing_path(workshop):
    done = run("doctor", *JOB, "--data-path", 1, "dta/web", 1, "data/code")
    assert done.returncode == 1
    assert done.stdout.startswith(
        "1 error: data: 1 of 2 datasets not found: dta/web\n  hint: did you mean data/web?"
    )
    assert "missing" not in done.stdout  # the cache would have other names


def test_a_relative_path_of_data_on_another_machine_is_no_error(workshop):
    done = run("doctor", *JOB, "--data-path", "web_text_document")
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith(
        "the cache was not checked: the data is not on this machine: web_text_document\n"
    )
    assert run("doctor", "--strict", *JOB, "--data-path", "web_text_document").returncode == 1


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (50_000, "a mixture must have at most 32766 sources"),
        (32_766, "the data is not on this machine: corpus/0, corpus/1, "),
    ],
)
def test_very_many_datasets_end_quickly(workshop, number, message):
    (workshop / "words").write_text("\n".join(f"1 corpus/{dataset}" for dataset in range(number)))
    done = installed("doctor", *JOB, "--data-args-path", "words", cwd=workshop, seconds=5)
    assert message in done.stdout


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        (("--seq-length", 0), "sequence_length must be at least 1, got 0"),
        (("--train-samples", 10**30), "--train-samples must be "),
    ],
)
def test_absurd_numbers_of_a_step_schedule_are_errors(workshop, numbers, message):
    words = [*JOB[:4], "--micro-batch-size", 1, "--eval-interval", 5, "--step-batch-size-schedule", "0:8"]
    words += ["--train-samples", 100, "--seq-length", 16, "--split", "9,1", *WEB, *numbers]
    done = run("doctor", *words)
    assert (done.returncode, done.stderr) == (1, "")
    assert f"error: arguments: {message}" in done.stdout
