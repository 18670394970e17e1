"""Other options or inputs after a kill at every storage call, and the first ones again."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from faults.processes import scratch_directory
from faults.test_crashes import STEP, first_failures, make_inputs, run

SAME = ["-o", "out/x", "--unit-size", "512", "--on-error", "skip", "--quiet"]
PLAIN = ["tokenize", "in/a.jsonl", "in/b.jsonl", *SAME]
STREAMED = ["tokenize", "in/a.jsonl.gz", "in/b.jsonl", *SAME]
OTHER = [*PLAIN, "--no-append-eod"]
ONE_INPUT = ["tokenize", "in/b.jsonl", *SAME]
FIELDS = [*PLAIN, "--field", "text", "--field", "title"]


@pytest.fixture
def inputs(tmp_path):
    """Two versions of the inputs: in the second the first record of a.* has other letters."""
    for version in ("first", "second"):
        directory = make_inputs(tmp_path / version)
        for path in directory.iterdir():
            if version == "second" and path.name.startswith("a."):
                text = (tmp_path / "first/a.jsonl").read_bytes().replace(b"a0 ", b"A0 ")
                path.write_bytes(text if path.suffix == ".jsonl" else gzip.compress(text))
            os.utime(path, (1, 1 if version == "first" else 2))
    return tmp_path


def attempt(arguments, kill=None, version="first"):
    return {"arguments": arguments, "version": version, "kill": kill}


X = ["out/x"]
BY_FIELD = ["out/x", "out/x_text_document", "out/x_title_document"]
CAMPAIGNS = {
    "other options": ([attempt(PLAIN, "each"), attempt(OTHER)], X, {}, 31),
    "and the first again": (
        [attempt(PLAIN, "each"), attempt(OTHER, "any"), attempt(PLAIN)],
        X,
        {"reuses": True},
        37,
    ),
    "the second is killed": (
        [attempt(PLAIN, 0.6), attempt(OTHER, "each"), attempt(PLAIN)],
        X,
        {"reuses": True},
        37,
    ),
    "fewer inputs": ([attempt(PLAIN, "each"), attempt(ONE_INPUT, "any"), attempt(PLAIN)], X, {}, 41),
    "one field and several": (
        [attempt(PLAIN, 0.6), attempt(FIELDS, "each"), attempt(PLAIN)],
        BY_FIELD,
        {"reuses": True},
        47,
    ),
    "an edited input": (
        [attempt(PLAIN, 0.6), attempt(PLAIN, "each", "second"), attempt(PLAIN, version="second")],
        X,
        {},
        19,
    ),
    "an edited input and the first again": (
        [attempt(STREAMED, 0.6), attempt(STREAMED, "each", "second"), attempt(STREAMED)],
        X,
        {},
        29,
    ),
}


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_every_storage_call(tmp_path, inputs, name, record_property):
    attempts, prefixes, more, step = CAMPAIGNS[name]
    with scratch_directory(tmp_path) as scratch:
        description = {
            "workdir": str(Path(scratch, "work")),
            "inputs": str(inputs),
            "attempts": attempts,
            "prefixes": prefixes,
            "step": STEP or step,
            **more,
        }
        result = run("retry_campaign.py", description)
    record_property("points", result["points"])
    assert result["points"] > 5
    assert not result["failures"], first_failures(result)


def test_random_attempts_end_as_a_clean_run_of_the_last(tmp_path):
    with scratch_directory(tmp_path) as scratch:
        rounds = {"workdir": str(Path(scratch, "work")), "seed": 1, "rounds": 400 if STEP else 8}
        result = run("retry_rounds.py", rounds)
    assert not result["failures"], first_failures(result)
