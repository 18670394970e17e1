"""Mistakes and second attempts by the command line: none is refused, and finished units are reused."""

from __future__ import annotations

import gzip
import json
import os
import re
from pathlib import Path

import pytest

from support.command_line import installed, json_of, tokshard
from support.tokenize_runs import documents, pair, write_jsonl
from tokshard import TokenizeOptions, tokenize
from tokshard.core.formatting import size
from tokshard.core.progress import SilentProgress
from tokshard.storage.lock import WriterLock

UNIT = ("--unit-size", "200")


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


def test_a_wrong_field_costs_nothing_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_jsonl(Path("content.jsonl"), records(3, "content"))
    attempt("content.jsonl", code=3)
    assert os.listdir() == ["content.jsonl"]
    report = attempt("content.jsonl", "--field", "content")
    assert (report["units_reused"], report["units_of_other_options"]) == (0, 0)
    assert pair("content") == clean_pair("content.jsonl", "--field", "content")


def test_a_wrong_field_of_records_that_are_skipped_leaves_nothing(corpus):
    """The rejected records of a large corpus would fill the disk until the output is published."""
    wrong = attempt(corpus, *UNIT, "--field", "body", "--on-error", "skip", code=3)
    assert "every record was rejected" in wrong
    assert os.listdir() == ["corpus.jsonl"]


def test_a_mended_record_keeps_the_units_before_it(corpus):
    attempt(corpus, *UNIT, code=3)
    mend()
    report = attempt(corpus, *UNIT)
    assert report["units_reused"] == report["outputs"][0]["dataset"]["units"] - 1 > 5
    assert pair("corpus") == clean_pair(corpus, *UNIT)


def test_a_touched_input_keeps_all_units(corpus):
    attempt(corpus, *UNIT, code=3)
    os.utime(corpus, (1, 1))
    attempt(corpus, *UNIT, code=3)
    report = attempt(corpus, *UNIT, "--on-error", "skip")
    assert report["units_reused"] == report["outputs"][0]["dataset"]["units"] - 1
    assert pair("corpus") == clean_pair(corpus, *UNIT, "--on-error", "skip")


def test_another_unit_size_and_back(corpus):
    attempt(corpus, *UNIT, code=3)
    attempt(corpus, "--unit-size", "300", code=3)
    mend()
    report = attempt(corpus, *UNIT)
    assert report["units_reused"] == report["outputs"][0]["dataset"]["units"] - 1
    assert report["units_of_other_options"] > 5
    assert report["bytes_of_other_options"] > 1000
    assert sorted(os.listdir("corpus.tokshard")) == ["manifest.json", "provenance.bin", "units.jsonl"]
    assert pair("corpus") == clean_pair(corpus, *UNIT)


def test_messages_say_how_much_is_reused_and_how_much_is_kept(corpus):
    attempt(corpus, *UNIT, code=3)
    attempt(corpus, "--unit-size", "300", code=3)
    done = tokshard("tokenize", corpus, *UNIT, "--on-error", "skip")
    assert "reusing 11 finished units" in done.stderr
    assert "7 finished units of other options or inputs (" in done.stderr
    assert "are kept until the output is published" in done.stderr
    assert "reused: 11 of 12 units" in done.stdout
    assert "removed: 7 units of other options or inputs (" in done.stdout


def test_a_changed_input_keeps_the_units_of_the_others(corpus):
    """Units that were assembled after the changed one are reused, too."""
    write_jsonl(Path("first.jsonl"), records(30))
    both = ("first.jsonl", corpus, "-o", "x", *UNIT)
    attempt(*both, code=3)
    first_units = -(-os.path.getsize("first.jsonl") // 200)
    changed = Path("first.jsonl").read_bytes().replace(b"document 3", b"DOCUMENT 3", 1)
    Path("first.jsonl").write_bytes(changed)
    os.utime("first.jsonl", (1, 1))
    mend()
    report = attempt(*both)
    assert report["units_reused"] == report["outputs"][0]["dataset"]["units"] - 2 > first_units
    assert pair("x") == clean_pair("first.jsonl", corpus, *UNIT)


def test_a_record_that_moves_takes_its_units_out_of_use(corpus):
    attempt(corpus, *UNIT, code=3)
    mend()
    content = Path(corpus).read_bytes()
    Path(corpus).write_bytes(b"\n" + content)  # each unit holds what it held, one byte later, or other lines
    attempt(corpus, *UNIT)
    attempt(corpus, *UNIT, "-o", "clean/x")
    for name in ("provenance.bin", "units.jsonl"):
        assert Path("corpus.tokshard", name).read_bytes() == Path("clean/x.tokshard", name).read_bytes()
    assert pair("corpus") == pair("clean/x")


def test_a_compressed_input_that_was_fetched_again(corpus):
    whole = gzip.compress(Path(corpus).read_bytes().replace(b"broken\n", b""))
    Path("cut.jsonl.gz").write_bytes(whole[: len(whole) - 30])
    attempt("cut.jsonl.gz", "-o", "x", *UNIT, code=3)
    Path("cut.jsonl.gz").write_bytes(whole)
    report = attempt("cut.jsonl.gz", "-o", "x", *UNIT)
    assert 0 < report["units_reused"] < report["outputs"][0]["dataset"]["units"]
    assert pair("x") == clean_pair("cut.jsonl.gz", *UNIT)


def test_several_fields_and_back_to_one(corpus):
    attempt(corpus, "-o", "x", *UNIT, "--field", "text", "--field", "title", code=3)
    attempt(corpus, "-o", "x", *UNIT, code=3)
    mend()
    Path(corpus).write_bytes(Path(corpus).read_bytes().replace(b'"mended"', b'"mended", "title": ""'))
    report = attempt(corpus, "-o", "x", *UNIT, "--field", "text", "--field", "title")
    assert report["units_reused"] == report["outputs"][0]["dataset"]["units"] - 1
    assert report["units_of_other_options"] > 5
    assert pair("x_text_document") == clean_pair(corpus, *UNIT)


def test_a_pipe_starts_over_and_leaves_nothing(corpus):
    text = Path(corpus).read_bytes()
    attempt("-", "-o", "x", *UNIT, code=3, stdin=text)
    assert os.listdir() == ["corpus.jsonl"]
    report = attempt("-", "-o", "x", *UNIT, "--on-error", "skip", stdin=text)
    assert (report["units_reused"], report["bytes_of_other_options"]) == (0, 0)
    assert pair("x") == clean_pair(corpus, *UNIT, "--on-error", "skip")
    assert not Path("x.tokshard/kept").exists()


def test_the_rate_after_a_resume_is_that_of_this_run(corpus):
    command = ("tokenize", corpus, *UNIT, "-o", "out")
    assert installed(*command).returncode == 3
    mend()
    done = installed(*command)
    assert done.returncode == 0, done
    reused, units = map(int, re.search(r"^reused: (\d+) of (\d+) units$", done.stdout, re.MULTILINE).groups())
    made = [json.loads(line) for line in Path("out.tokshard/units.jsonl").read_text().splitlines()][reused:]
    assert 0 < len(made) == units - reused
    size_bytes = sum(unit["content_bytes"] for unit in made)
    seconds, rate, unit = re.search(
        rf"^time: {size(size_bytes)} of text encoded by this run in (\S+) s \((\S+) (k?B)/s of text, ",
        done.stdout,
        re.MULTILINE,
    ).groups()
    of_unit = 1000 if unit == "kB" else 1
    assert of_unit * float(rate) == pytest.approx(size_bytes / float(seconds), rel=0.02)


def test_the_report_has_what_this_run_encoded(corpus):
    attempt(corpus, *UNIT, "-o", "out", code=3)
    mend()
    report = attempt(corpus, *UNIT, "-o", "out")
    made = [json.loads(line) for line in Path("out.tokshard/units.jsonl").read_text().splitlines()]
    made = made[report["units_reused"] :]
    assert (
        report["encoded_bytes"]
        == sum(unit["content_bytes"] for unit in made)
        < report["counts"]["content_bytes"]
    )
    assert report["encoded_tokens"] == sum(unit["tokens"] for unit in made)
    again = attempt(corpus, *UNIT, "-o", "out")
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


def test_a_finished_output_of_touched_inputs_is_up_to_date(corpus):
    mend()
    compressed = Path("packed.jsonl.gz")
    compressed.write_bytes(gzip.compress(Path(corpus).read_bytes()))
    both = (corpus, compressed, "-o", "x", *UNIT)
    attempt(*both)
    for path in (corpus, compressed):
        os.utime(path, (1, 1))
    assert attempt(*both)["action"] == "found"
    content = Path(corpus).read_bytes().replace(b"document 9", b"DOCUMENT 9")
    Path(corpus).write_bytes(content)
    assert "corpus.jsonl: mtime_ns was" in attempt(*both, code=4)
    attempt(*both, "--force")
    assert documents("x")[9] == [[*b"DOCUMENT 9", 256]]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([["a", "b"], ["c"]], [["a"], ["b", "c"]]),
        (["a\nb", "c"], ["a", "b\nc"]),
        (["a", None], [None, "a"]),
    ],
    ids=["documents", "texts", "nulls"],
)
def test_a_changed_table_whose_units_have_the_same_digests(before, after, tmp_path, monkeypatch):
    pa = pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)

    def write(rows, mtime):
        with pa.ipc.new_file("x.arrow", pa.schema([("text", pa.array(rows).type)])) as file:
            file.write_table(pa.table({"text": rows}))
        os.utime("x.arrow", (mtime, mtime))
        return os.path.getsize("x.arrow")

    write_jsonl(Path("bad.jsonl"), [b"broken"])
    skip = ("--on-error", "skip")
    size = write(before, 1)
    attempt("x.arrow", *skip)
    attempt("x.arrow", "bad.jsonl", "-o", "y", *skip, "--max-errors", str(before.count(None)), code=3)
    assert write(after, 2) == size
    assert "x.arrow: mtime_ns was" in attempt("x.arrow", *skip, code=4)
    attempt("x.arrow", "bad.jsonl", "-o", "y", *skip)
    assert pair("y") == clean_pair("x.arrow", *skip)
    assert (
        Path("y.tokshard/provenance.bin").read_bytes() == Path("clean/x.tokshard/provenance.bin").read_bytes()
    )


def test_no_resume_starts_over(corpus):
    attempt(corpus, *UNIT, code=3)
    report = attempt(corpus, *UNIT, "--no-resume", "--on-error", "skip")
    assert report["units_reused"] == 0


# --discard-work


def test_discarded_work_is_gone(corpus):
    attempt(corpus, *UNIT, code=3)
    attempt(corpus, "--unit-size", "300", code=3)
    report = attempt("-o", "corpus", "--discard-work")
    assert report["units"] == 11 + 7
    assert len(report["removed"]) == 2
    assert sorted(os.listdir()) == ["corpus.jsonl"]
    done = tokshard("tokenize", corpus, "--discard-work")
    assert (done.returncode, done.stdout) == (0, "nothing to remove: no unfinished work\n")
    assert attempt(corpus, *UNIT, "--on-error", "skip")["units_reused"] == 0


def test_a_finished_output_is_not_discarded(corpus):
    mend()
    attempt(corpus)
    before = pair("corpus")
    attempt(corpus, "--discard-work")
    assert pair("corpus") == before
    assert attempt(corpus)["action"] == "found"


def test_work_that_is_under_way_is_not_discarded(corpus):
    attempt(corpus, *UNIT, code=3)
    with WriterLock("corpus.tokshard/lock"):
        attempt(corpus, "--discard-work", code=5)
    assert attempt(corpus, *UNIT, "--on-error", "skip")["units_reused"] == 11


def test_work_is_discarded_by_the_name_of_the_output(corpus):
    done = tokshard("tokenize", "--discard-work")
    assert done.returncode == 2
    assert "--output" in done.stderr
    assert json.loads(tokshard("tokenize", "-o", "x", "--discard-work", "--json").stdout)["removed"] == []
    assert not Path("x.tokshard").exists()
