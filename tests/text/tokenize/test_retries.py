"""Mistakes and second attempts by the command line: finished units are reused, or removed only by --force."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections import Counter
from pathlib import Path

import pytest

from support.array_corpora import content
from support.command_line import failure, installed, json_of, tokshard
from support.mixture_data import run
from support.tokenize_runs import TOKENIZER, manifest, pair, write_jsonl
from tokshard import TokenizeOptions, tokenize
from tokshard.core.formatting import counted, size
from tokshard.core.progress import SilentProgress
from tokshard.storage.lock import WriterLock

UNIT = ("--unit-size", "200")
WORK = Path("corpus.tokshard/work")


def records(count, field="text"):
    return [{field: f"document {n}", "title": f"t{n % 7}"} for n in range(count)]


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """A corpus whose last record is bad: a run of it fails when most units are finished."""
    monkeypatch.chdir(tmp_path)
    return write_jsonl(Path("corpus.jsonl"), [*records(60), b"broken"])


def attempt(*arguments, code=0, stdin=b""):
    """Run the command; return its report, or its messages if it fails as expected."""
    done = tokshard("tokenize", *arguments, "--json", stdin=stdin)
    assert done.returncode == code, done.stderr
    return json_of(done) if code == 0 else done.stderr


def clean_pair(*arguments):
    attempt(*arguments, "-o", "clean/x")
    return pair("clean/x")


def mend(path="corpus.jsonl"):
    content = Path(path).read_bytes()
    Path(path).write_bytes(content.replace(b"broken", b'{"text": "mended"}'))


# Second attempts with other inputs


ATTEMPT = ("tokenize", "-o", "out/x", "--unit-size", "100", "--on-error", "skip", "--tokenizer", TOKENIZER)
INPUTS = ("a.jsonl", "b.jsonl.gz", "c.jsonl")
OUTPUTS = {
    "one": ((), ("",)),
    "several": (
        ("--field", "text", "--field", "title", "--holdout", "30%"),
        tuple(f"_{split}_{field}_document" for split in ("train", "valid") for field in ("text", "title")),
    ),
}


def write_inputs(count):
    """Write three inputs of so many records, each with a bad one; that of the last one ends it."""
    lines = [json.dumps(record).encode() for record in records(3 * count)]
    lines[7] = lines[count + 7] = lines[-1] = b"broken"
    texts = [b"".join(line + b"\n" for line in lines[k * count : (k + 1) * count]) for k in range(3)]
    Path("a.jsonl").write_bytes(texts[0])
    Path("b.jsonl.gz").write_bytes(gzip.compress(texts[1]))
    Path("c.jsonl").write_bytes(texts[2])
    write_jsonl(Path("new.jsonl"), records(20))


def units_by_input(prefix):
    """Return the number of units of each input in an output."""
    paths = [source["path"] for source in manifest(prefix)["inputs"]]
    lines = Path(f"{prefix}.tokshard/units.jsonl").read_text().splitlines()
    return Counter(paths[json.loads(line)["input"]] for line in lines)


def fail_at_the_end(command, checkpoint_units, *options, suffix=""):
    """Run an attempt that fails at its last record; return the number of finished units of each input.

    Most units were appended and covered by a checkpoint, in the middle of the last input; others are parts.
    """
    assert command(*ATTEMPT, *options, *INPUTS, "-o", "out/first").returncode == 0
    finished = units_by_input(f"out/first{suffix}")
    assert command(*ATTEMPT, *options, *INPUTS, "--max-errors", "2").returncode == 3
    journal = Path("out/x.tokshard/work/journal.jsonl").read_text().splitlines()
    parts = os.listdir("out/x.tokshard/work/parts")
    assert [number for number, line in enumerate(journal) if '"sizes"' in line] == [checkpoint_units]
    assert finished["a.jsonl"] + finished["b.jsonl.gz"] < checkpoint_units
    assert finished.total() == checkpoint_units + len(parts) > checkpoint_units
    return finished


@pytest.fixture
def small_checkpoints(tmp_path, monkeypatch):
    """Commands that run in this process force the streams to the disk after 32 units."""
    monkeypatch.setattr("tokshard.text.tokenize.assembly.CHECKPOINT_UNITS", 32)
    monkeypatch.chdir(tmp_path)
    return 32


def change(path):
    Path(path).write_bytes(Path(path).read_bytes().replace(b"document 9", b"DOCUMENT 9"))


SECOND_ATTEMPTS = {
    # What changes, the inputs, and the inputs whose units are used.
    "same": (None, INPUTS, INPUTS),
    "added before": (None, ("new.jsonl", *INPUTS), INPUTS),
    "added between": (None, ("a.jsonl", "new.jsonl", *INPUTS[1:]), INPUTS),
    "added after": (None, (*INPUTS, "new.jsonl"), INPUTS),
    "first fixed": (lambda: mend("a.jsonl"), INPUTS, INPUTS[1:]),
    "last fixed": (lambda: mend("c.jsonl"), INPUTS, INPUTS[:2]),
    "changed without its size": (lambda: change("a.jsonl"), INPUTS, INPUTS[1:]),
    "first touched": (lambda: os.utime("a.jsonl", (1, 1)), INPUTS, INPUTS[1:]),
    "compressed one touched": (lambda: os.utime("b.jsonl.gz", (1, 1)), INPUTS, ("a.jsonl", "c.jsonl")),
    "first removed": (None, INPUTS[1:], INPUTS[1:]),
    "last removed": (None, INPUTS[:2], INPUTS[:2]),
    "reordered": (None, INPUTS[::-1], INPUTS),
    "another one": (None, ("new.jsonl",), ()),
}


@pytest.mark.parametrize("outputs", OUTPUTS)
@pytest.mark.parametrize("name", SECOND_ATTEMPTS)
def test_units_of_unchanged_inputs_are_used_and_the_others_are_made(name, outputs, small_checkpoints):
    options, suffixes = OUTPUTS[outputs]
    change_inputs, inputs, used = SECOND_ATTEMPTS[name]
    write_inputs(30)
    finished = fail_at_the_end(run, small_checkpoints, *options, suffix=suffixes[0])
    if change_inputs:
        change_inputs()
    done = run(*ATTEMPT, *options, *inputs)
    assert done.returncode == 0, done.stderr
    check_messages(done, finished, used, sum(units_by_input(f"out/x{suffixes[0]}").values()))
    assert run(*ATTEMPT, *options, *inputs, "-o", "clean/x").returncode == 0
    for suffix in suffixes:
        assert content(f"out/x{suffix}") == content(f"clean/x{suffix}")
    assert not Path("out/x.tokshard/work").exists()


def check_messages(done, finished, used, units):
    """Check what an attempt says of the units that an earlier one had finished."""
    kept = sum(finished[path] for path in used)
    assert (f"reusing {counted(kept, 'finished unit')}\n" in done.stderr) == bool(kept)
    assert (f"reused: {kept} of {counted(units, 'unit')}\n" in done.stdout) == bool(kept)
    removed = finished.total() - kept
    message = f"{counted(removed, 'finished unit')} of other or changed inputs removed\n"
    assert (message in done.stderr) == ("removed" in done.stderr) == bool(removed)


def test_the_installed_command_is_repeated_with_a_mended_input(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_inputs(240)
    finished = fail_at_the_end(installed, 256)
    mend("a.jsonl")
    done = installed(*ATTEMPT, *INPUTS)
    assert done.returncode == 0, done.stderr
    check_messages(done, finished, INPUTS[1:], finished.total())
    assert installed(*ATTEMPT, *INPUTS, "-o", "clean/x").returncode == 0
    assert content("out/x") == content("clean/x")


def test_units_that_were_appended_without_provenance_are_made_again(small_checkpoints):
    """Where their documents lie is known for the parts alone."""
    write_inputs(30)
    finished = fail_at_the_end(run, small_checkpoints, "--no-provenance")
    done = run(*ATTEMPT, "--no-provenance", "new.jsonl", *INPUTS, "--json")
    assert done.json["units_reused"] == finished.total() - small_checkpoints
    assert run(*ATTEMPT, "--no-provenance", "new.jsonl", *INPUTS, "-o", "clean/x").returncode == 0
    assert content("out/x") == content("clean/x")
    # They are used if the inputs before them are the same.
    fail_at_the_end(run, small_checkpoints, "--no-provenance", "--force")
    done = run(*ATTEMPT, "--no-provenance", "--force", *INPUTS, "new.jsonl", "--json")
    assert done.json["units_reused"] == finished.total()


def test_units_of_a_sample_are_used_if_their_input_has_the_same_number(small_checkpoints):
    write_inputs(30)
    write_jsonl(Path("bad.jsonl"), [b"broken"] * 20)
    options = ("--sample", "60%")
    for number, inputs in enumerate(((*INPUTS, "new.jsonl"), ("new.jsonl", *INPUTS))):
        first = (*ATTEMPT, *options, *INPUTS, "bad.jsonl", "-o", f"out/{number}")
        assert run(*first, "--max-errors", "3").returncode == 3
        done = run(*ATTEMPT, *options, *inputs, "-o", f"out/{number}", "--json")
        assert (done.returncode, done.json["units_reused"] > 0) == (0, inputs[0] == "a.jsonl")
        assert run(*ATTEMPT, *options, *inputs, "-o", f"clean/{number}").returncode == 0
        assert content(f"out/{number}") == content(f"clean/{number}")


def test_an_input_that_was_cut_is_fetched_again(corpus):
    whole = gzip.compress(Path(corpus).read_bytes().replace(b"broken\n", b""))
    Path("cut.jsonl.gz").write_bytes(whole[: len(whole) - 30])
    attempt("cut.jsonl.gz", "-o", "x", *UNIT, code=3)
    Path("cut.jsonl.gz").write_bytes(whole)
    assert attempt("cut.jsonl.gz", "-o", "x", *UNIT)["units_reused"] == 0
    assert pair("x") == clean_pair("cut.jsonl.gz", *UNIT)


# Second attempts with other options


@pytest.mark.parametrize(
    ("more", "differences"),
    [
        (("--unit-size", "300"), ["--unit-size was 200 and is now 300"]),
        (("--limit", "9"), ["--limit was not set and is now 9"]),
        (("--max-tokens", "90"), ["--max-tokens was not set and is now 90"]),
        (
            ("--field", "title", "--no-append-eod"),
            ["--append-eod was on and is now off", "--field was text and is now title"],
        ),
        (("--tokenizer", TOKENIZER), ["the tokenizer's kind was 'bytes' and is now 'huggingface'"]),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_other_options_are_refused_until_they_are_forced(corpus, more, differences):
    attempt(corpus, *UNIT, code=3)
    before = content("corpus") if Path("corpus.bin").exists() else sorted(os.listdir(WORK / "parts"))
    code, error, hint = failure(tokshard("tokenize", corpus, *UNIT, *more))
    assert code == 4
    assert error.startswith("corpus.tokshard/work has 11 finished units of other options: ")
    for difference in differences:
        assert difference in error
    assert hint == "pass the same options to resume, or --force to remove the finished units and start again"
    assert sorted(os.listdir(WORK / "parts")) == before
    # Back to the first options; then forward again, this time for good.
    code, error, _ = failure(tokshard("tokenize", corpus, *UNIT))
    assert (code, error.startswith("corpus.jsonl:61: ")) == (3, True)
    report = attempt(corpus, *UNIT, *more, "--on-error", "skip", "--force")
    assert report["units_reused"] == 0
    assert pair("corpus") == clean_pair(corpus, *UNIT, *more, "--on-error", "skip")
    assert not WORK.exists()


def test_the_first_options_resume_after_others_were_refused(corpus):
    attempt(corpus, *UNIT, code=3)
    attempt(corpus, "--unit-size", "300", code=4)
    done = tokshard("tokenize", corpus, *UNIT, "--on-error", "skip")
    assert "reusing 11 finished units\n" in done.stderr
    assert "reused: 11 of 12 units\n" in done.stdout
    assert pair("corpus") == clean_pair(corpus, *UNIT, "--on-error", "skip")


def test_a_forced_attempt_that_fails_leaves_the_units_of_its_own_options(corpus):
    attempt(corpus, *UNIT, code=3)
    attempt(corpus, "--unit-size", "300", "--force", code=3)
    attempt(corpus, *UNIT, code=4)
    report = attempt(corpus, "--unit-size", "300", "--on-error", "skip")
    assert report["units_reused"] == report["outputs"][0]["dataset"]["units"] - 1


def test_several_fields_are_other_options_than_one(corpus):
    both = ("--field", "text", "--field", "title")
    attempt(corpus, "-o", "x", *UNIT, *both, code=3)
    assert "--field was text, title and is now text" in attempt(corpus, "-o", "x", *UNIT, code=4)
    report = attempt(corpus, "-o", "x", *UNIT, *both, "--on-error", "skip")
    assert report["units_reused"] == report["outputs"][0]["dataset"]["units"] - 1
    assert pair("x_text_document") == clean_pair(corpus, *UNIT, "--on-error", "skip")


def test_another_tokenizer_of_the_same_kind_is_told_by_its_fields(corpus):
    other = json.loads(Path(TOKENIZER).read_text())
    other["model"]["merges"].pop()
    Path("other.json").write_text(json.dumps(other))
    attempt(corpus, *UNIT, "--tokenizer", TOKENIZER, code=3)
    refused = attempt(corpus, *UNIT, "--tokenizer", "other.json", code=4)
    assert re.search(
        r"the tokenizer's definition_sha256 was '[0-9a-f]{64}' and is now '[0-9a-f]{64}'", refused
    )


def test_units_of_rejected_records_alone_refuse_nothing(corpus):
    """A wrong field finds a bad record in each line: its units need no encoding."""
    wrong = attempt(corpus, *UNIT, "--field", "body", "--on-error", "skip", "--max-errors", "50", code=3)
    assert "--max-errors 50 exceeded" in wrong
    attempt(corpus, *UNIT, "--field", "title", "--on-error", "skip")
    assert pair("corpus") == clean_pair(corpus, *UNIT, "--field", "title", "--on-error", "skip")


def test_a_wrong_field_costs_nothing_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_jsonl(Path("content.jsonl"), records(3, "content"))
    attempt("content.jsonl", code=3)
    assert os.listdir() == ["content.jsonl"]
    report = attempt("content.jsonl", "--field", "content")
    assert report["units_reused"] == 0
    assert pair("content") == clean_pair("content.jsonl", "--field", "content")


def test_a_wrong_field_of_records_that_are_skipped_leaves_nothing(corpus):
    """The rejected records of a large corpus would fill the disk until the output is published."""
    wrong = attempt(corpus, *UNIT, "--field", "body", "--on-error", "skip", code=3)
    assert "every record was rejected" in wrong
    assert os.listdir() == ["corpus.jsonl"]


def test_too_few_tokens_for_any_document_leave_nothing(corpus):
    """The hint names a larger number, which would be another option."""
    code, error, hint = failure(tokshard("tokenize", corpus, *UNIT, "--max-tokens", "3"))
    assert (code, hint) == (2, "pass --max-tokens 11 or more")
    assert "--max-tokens must be at least 11 tokens for the first document of corpus.jsonl, got 3" in error
    assert os.listdir() == ["corpus.jsonl"]
    assert attempt(corpus, *UNIT, "--max-tokens", "11")["counts"]["documents"] == 1


def test_no_resume_starts_over(corpus):
    attempt(corpus, *UNIT, code=3)
    report = attempt(corpus, *UNIT, "--no-resume", "--on-error", "skip")
    assert report["units_reused"] == 0
    assert pair("corpus") == clean_pair(corpus, *UNIT, "--on-error", "skip")


def test_no_resume_starts_over_with_other_options(corpus):
    attempt(corpus, *UNIT, code=3)
    assert attempt(corpus, "--no-resume", "--on-error", "skip")["units_reused"] == 0
    assert pair("corpus") == clean_pair(corpus, "--on-error", "skip")


def test_work_that_is_under_way_is_not_removed(corpus):
    attempt(corpus, *UNIT, code=3)
    with WriterLock("corpus.tokshard/lock"):
        for more in ((), ("--force",), ("--no-resume",)):
            attempt(corpus, *UNIT, *more, code=5)
    assert attempt(corpus, *UNIT, "--on-error", "skip")["units_reused"] == 11


def test_merge_does_not_remove_unfinished_work_of_tokenize(corpus):
    attempt(corpus, "-o", "all", *UNIT, code=3)
    attempt(corpus, "-o", "part", "--on-error", "skip")
    merge = ("merge", "part", "part", "-o", "all")
    assert json_of(tokshard(*merge, "--dry-run", "--json"))["state"] == "exists"
    code, error, hint = failure(tokshard(*merge))
    assert (code, error) == (4, "all.tokshard/work contains unfinished work of tokenize")
    assert hint == "finish it with `tokshard tokenize`, choose another --output, or pass --force"
    assert attempt(corpus, "-o", "all", *UNIT, "--on-error", "skip", "--dry-run")["state"] == "resume"
    forced = (*merge, "--force", "--json")
    assert json_of(tokshard(*forced, "--dry-run"))["state"] == "new"
    assert json_of(tokshard(*forced))["action"] == "written"


def test_a_pipe_starts_over_and_leaves_nothing(corpus):
    text = Path(corpus).read_bytes()
    attempt("-", "-o", "x", *UNIT, code=3, stdin=text)
    assert os.listdir() == ["corpus.jsonl"]
    report = attempt("-", "-o", "x", *UNIT, "--on-error", "skip", stdin=text)
    assert report["units_reused"] == 0
    assert pair("x") == clean_pair(corpus, *UNIT, "--on-error", "skip")


def test_a_pipe_does_not_remove_the_units_of_files(corpus):
    text = Path(corpus).read_bytes()
    attempt(corpus, *UNIT, code=3)
    refused = attempt("-", "-o", "corpus", *UNIT, "--on-error", "skip", code=4, stdin=text)
    assert "corpus.tokshard/work has 11 finished units that a run of a pipe cannot use" in refused
    attempt("-", "-o", "corpus", *UNIT, "--on-error", "skip", "--force", stdin=text)
    assert pair("corpus") == clean_pair(corpus, *UNIT, "--on-error", "skip")


# What is reported


def test_the_rate_after_a_resume_is_that_of_this_run(corpus):
    command = ("tokenize", corpus, *UNIT, "-o", "out")
    assert installed(*command).returncode == 3
    done = installed(*command, "--on-error", "skip")
    assert done.returncode == 0, done
    reused, units = map(int, re.search(r"^reused: (\d+) of (\d+) units$", done.stdout, re.MULTILINE).groups())
    made = [json.loads(line) for line in Path("out.tokshard/units.jsonl").read_text().splitlines()][reused:]
    assert 0 < len(made) == units - reused
    size_bytes = sum(unit["counts"]["content_bytes"] for unit in made)
    seconds, rate, unit = re.search(
        rf"^time: {size(size_bytes)} of text encoded by this run in (\S+) s \((\S+) (k?B)/s of text, ",
        done.stdout,
        re.MULTILINE,
    ).groups()
    of_unit = 1000 if unit == "kB" else 1
    assert of_unit * float(rate) == pytest.approx(size_bytes / float(seconds), rel=0.02)


def test_the_report_has_what_this_run_encoded(corpus):
    attempt(corpus, *UNIT, "-o", "out", code=3)
    report = attempt(corpus, *UNIT, "-o", "out", "--on-error", "skip")
    made = [json.loads(line) for line in Path("out.tokshard/units.jsonl").read_text().splitlines()]
    made = made[report["units_reused"] :]
    assert (
        report["encoded_bytes"]
        == sum(unit["counts"]["content_bytes"] for unit in made)
        < report["counts"]["content_bytes"]
    )
    assert report["encoded_tokens"] == sum(unit["counts"]["tokens"] for unit in made)
    again = attempt(corpus, *UNIT, "-o", "out", "--on-error", "skip")
    assert (again["encoded_bytes"], again["encoded_tokens"]) == (0, 0)


def test_the_progress_and_the_report_count_decompressed_text(tmp_path):
    content = b"".join(json.dumps(record).encode() + b"\n" for record in records(500))
    (tmp_path / "in.jsonl.gz").write_bytes(gzip.compress(content))
    noted = Noting()
    report = tokenize(
        TokenizeOptions(inputs=str(tmp_path / "in.jsonl.gz"), output=str(tmp_path / "out")), progress=noted
    )
    last = noted.updates[-1]
    assert last.content_bytes == report.encoded_bytes == report.counts.content_bytes == len(content)
    assert last.bytes_done == report.input_bytes < len(content) / 5


class Noting(SilentProgress):
    def __init__(self):
        self.updates = []

    def update(self, state):
        self.updates.append(state)


def test_a_stricter_policy_refuses_records_that_were_skipped(corpus):
    """The rejected record is assembled already when the policy changes."""
    write_jsonl(Path("in.jsonl"), [b"broken", *records(2)])
    write_jsonl(Path("late.jsonl"), [*records(60), b"broken", b"broken"])
    both = ("in.jsonl", "late.jsonl", "-o", "x", "--unit-size", "4")
    attempt(*both, "--on-error", "skip", "--max-errors", "1", code=3)
    assert "in.jsonl:1: " in attempt(*both, code=3)


# Finished outputs


def test_a_finished_output_is_refused_with_all_that_differs(corpus):
    mend()
    attempt(corpus, *UNIT)
    attempt(corpus, *UNIT)
    refused = attempt(corpus, "--unit-size", "300", "--no-append-eod", code=4)
    assert "--append-eod was on and is now off; --unit-size was 200 and is now 300" in refused
    assert "--force" in refused
    report = attempt(corpus, "--unit-size", "300", "--no-append-eod", "--force")
    assert report["action"] == "written"
    assert pair("corpus") == clean_pair(corpus, "--unit-size", "300", "--no-append-eod")


def test_a_finished_output_of_a_touched_input_is_replaced_only_by_force(corpus):
    mend()
    compressed = Path("packed.jsonl.gz")
    compressed.write_bytes(gzip.compress(Path(corpus).read_bytes()))
    both = (corpus, compressed, "-o", "x", *UNIT)
    attempt(*both)
    before = content("x")
    assert attempt(*both)["action"] == "found"
    for path in (corpus, compressed):
        os.utime(path, (1, 1))
    code, error, hint = failure(tokshard("tokenize", *both))
    assert (code, hint) == (4, "pass --force to replace it, or choose another --output")
    for path in (corpus, compressed):
        assert re.search(rf"the input {path}: mtime_ns was \d+ and is now 1000000000", error)
    assert content("x") == before
    assert attempt(*both, "--force")["action"] == "written"
    assert pair("x") == clean_pair(corpus, compressed, *UNIT)
    assert attempt(*both)["action"] == "found"


def test_a_finished_output_of_other_inputs_is_refused_with_both_lists(corpus):
    mend()
    write_jsonl(Path("new.jsonl"), records(3))
    attempt(corpus, "-o", "x", *UNIT)
    refused = attempt(corpus, "new.jsonl", "-o", "x", *UNIT, code=4)
    assert "the inputs were corpus.jsonl and are now corpus.jsonl, new.jsonl" in refused
