"""Options of tokenize that select a part of the corpus: what is printed, and what is refused."""

from __future__ import annotations

import json

import pytest

from support.command_line import SAMPLE, json_of, tokshard

STORIES = str(SAMPLE / "stories.jsonl")
TOKENIZER = ("--tokenizer", str(SAMPLE / "tokenizer.json"))


def test_what_a_subset_prints(tmp_path):
    words = (
        "tokenize",
        STORIES,
        "-o",
        "out",
        *TOKENIZER,
        "--sample",
        "50%",
        "--limit",
        "0.1k",
        "--holdout",
        "5%",
    )
    planned = tokshard(*words, "--dry-run", cwd=tmp_path)
    assert "outputs: out_train, out_valid (new)" in planned.stdout
    assert (
        "subset: 50% of the records (seed 1234), at most 100 documents, 5% of the documents held out by text"
        in (planned.stdout)
    )
    done = tokshard(*words, "--json", cwd=tmp_path)
    report = json_of(done)
    assert [output["path_prefix"] for output in report["outputs"]] == ["out_train", "out_valid"]
    assert report["counts"]["documents"] == 100
    assert report["counts"]["records"] == 100 + sum(report["counts"]["excluded"].values())
    shown = tokshard(*words, cwd=tmp_path).stdout
    assert "excluded: " in shown
    assert "not-sampled" in shown
    assert "next: tokshard inspect out_train\nnext: tokshard inspect out_valid\n" in shown
    assert "next: launch with --train-data-path out_train --valid-data-path out_valid" in shown
    inspected = tokshard("inspect", "out_valid", cwd=tmp_path).stdout
    assert "split        valid" in inspected
    assert "other-split" in inspected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-tokens", "ten"], "must be a whole number"),
        (["--limit", "0"], "--limit must be at least 1, got 0"),
        (["--sample", "half"], "must be a percentage or a fraction such as 1% or 0.01, got 'half'"),
        (["--sample", "200%"], "--sample must be above 0% and at most 100%, got 200%"),
        (["--holdout", "100%"], "--holdout must be above 0% and below 100%, got 100%"),
        (["--holdout-key", "title"], "--holdout-key requires --holdout"),
        (
            ["--preset", "megatron", "--limit", "5"],
            "--preset megatron cannot be used with --limit: preprocess_data.py has no such option",
        ),
        (
            ["--preset", "megatron", "--holdout", "1%"],
            "--preset megatron cannot be used with --holdout: preprocess_data.py has no such option",
        ),
        (["--array-task", "0/2", "--limit", "5"], "--limit cannot be applied by the tasks of a job array"),
        (
            ["--array-task", "0/2", "--max-tokens", "9"],
            "--max-tokens cannot be applied by the tasks",
        ),
        (["--max-tokens", "3"], "--max-tokens must be at least"),
    ],
)
def test_misuse_ends_with_2(tmp_path, words, message):
    done = tokshard("tokenize", STORIES, "-o", "out", *words, "--json", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    value = json.loads(done.stdout)
    assert value["message"].startswith(message) or message in value["message"]
    assert value["hint"] or "must be" in message
