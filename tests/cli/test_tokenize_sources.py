"""``tokshard tokenize sources.toml``: several sources in one file, each a run of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.command_line import installed

STOPPED = Path(__file__).with_name("stopped_command.py")
SOURCES = """
[[source]]
input = "web.jsonl"
output = "data/web"
limit = "2"

[[source]]
input = ["code.jsonl", "more.jsonl"]
output = "data/code"
field = "content"
append-eod = false

[[source]]
input = "notes.jsonl"
output = "data/notes"
"""


@pytest.fixture
def corpus(tmp_path):
    for name, field in (("web", "text"), ("code", "content"), ("more", "content"), ("notes", "text")):
        lines = [json.dumps({field: f"{name} {number}"}) + "\n" for number in range(3)]
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    (tmp_path / "sources.toml").write_text(SOURCES)
    return tmp_path


def run(directory, *arguments, code=0):
    done = installed("tokenize", *arguments, cwd=directory, seconds=60)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def results(directory, *arguments, code=0):
    report = json.loads(run(directory, "sources.toml", "--json", *arguments, code=code).stdout)
    assert report["schema"] == "tokshard.tokenize-sources/2"
    return [
        (
            source["output"],
            (source.get("report") or {}).get("action"),
            (source.get("error") or {}).get("path"),
        )
        for source in report["sources"]
    ]


def test_each_source_has_the_files_of_a_run_of_its_own(corpus):
    run(corpus, "sources.toml")
    run(corpus, "web.jsonl", "-o", "alone/web", "--limit", "2")
    run(corpus, "code.jsonl", "more.jsonl", "-o", "alone/code", "--field", "content", "--no-append-eod")
    for name in ("web", "code"):
        for suffix in (".bin", ".idx"):
            path = f"{name}{suffix}"
            assert (corpus / "data" / path).read_bytes() == (corpus / "alone" / path).read_bytes()


def test_a_failed_source_stops_no_other_and_is_done_by_the_second_attempt(corpus):
    path = corpus / "sources.toml"
    path.write_text(SOURCES.replace('"content"', '"contents"'))
    assert results(corpus, code=3) == [
        ("data/web", "written", None),
        ("data/code", None, "code.jsonl"),
        ("data/notes", "written", None),
    ]
    done = run(corpus, "sources.toml", code=3)
    assert 'error: data/code: code.jsonl:1: field "contents" not found (fields: content)' in done.stderr
    assert "hint: " in done.stderr
    assert [line.split()[:2] for line in done.stdout.splitlines()[1:4]] == [
        ["data/web", "up"],
        ["data/code", "failed"],
        ["data/notes", "up"],
    ]
    assert "3 sources, 1 failed in" in done.stdout
    path.write_text(SOURCES)
    assert results(corpus) == [
        ("data/web", "found", None),
        ("data/code", "written", None),
        ("data/notes", "found", None),
    ]


def test_the_exit_code_is_the_one_of_the_first_failure(corpus):
    (corpus / "web.jsonl").unlink()
    (corpus / "data").mkdir()
    (corpus / "data/code.bin").write_bytes(b"of another program")
    assert run(corpus, "sources.toml", code=3).stderr.count("error: ") == 2
    (corpus / "web.jsonl").write_text('{"text": "a"}\n')
    done = run(corpus, "sources.toml", "--quiet", code=4)
    assert done.stdout == ""
    assert done.stderr.startswith("error: data/code: ")


def test_options_of_a_source_replace_those_of_the_command_and_these_those_of_the_file(corpus):
    (corpus / "sources.toml").write_text("limit = 1\n" + SOURCES)

    def documents(*arguments):
        report = json.loads(run(corpus, "sources.toml", "--json", "--force", *arguments).stdout)
        return [source["report"]["counts"]["documents"] for source in report["sources"]]

    assert documents() == [2, 1, 1]
    assert documents("--limit", "3") == [2, 3, 3]


def test_a_dry_run_writes_nothing(corpus):
    assert {action for _, action, _ in results(corpus, "--dry-run")} == {"planned"}
    assert not (corpus / "data").exists()


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_stops_all_sources_and_the_same_command_resumes(corpus, name):
    number = int(getattr(signal, name))
    environment = {**os.environ, "TOKSHARD_TEST_DEED": str(number), "TOKSHARD_TEST_PLACE": "code.jsonl"}
    command = [sys.executable, str(STOPPED), "tokenize", "sources.toml"]
    done = subprocess.run(
        command, cwd=corpus, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 128 + number
    assert "hint: resume with: tokshard tokenize sources.toml" in done.stderr
    assert [action for _, action, _ in results(corpus)] == ["found", "written", "written"]


HELP = "run `tokshard tokenize --help-all`"
WRONG = {
    "": (3, "sources.toml: there must be at least one source", "write for example [[source]]"),
    "[[source]": (3, "sources.toml is not valid TOML: ", "fix the file"),
    '[[source]]\ninput = "a"\nlimits = 1': (3, "sources.toml: source[0]: unknown key limits", "use limit"),
    '[[source]]\ninput = "a"\nlimit = "x"': (
        3,
        "sources.toml: source[0]: limit must be a whole number such as 1000, 2M or 10B, got 'x'",
        HELP,
    ),
    '[[source]]\ninput = "a"\non_error = 1': (2, "sources.toml: source[0]: --on-error must be", HELP),
    '[[source]]\noutput = "a"': (2, "sources.toml: source[0]: INPUT is required", "pass files"),
    '[[source]]\ninput = ["a", "b"]': (
        2,
        "sources.toml: source[0]: --output is required with several",
        "pass --output",
    ),
    '[[source]]\ninput = "a"\n[[source]]\ninput = "b"\noutput = "./a"': (
        2,
        "sources.toml: source[0] and source[1] have the same output ./a",
        "choose another output",
    ),
    '[source]\ninput = "a"': (3, "sources.toml: source must be a list of tables", "write [[source]]"),
    'output = "a"\n[[source]]\ninput = "b"': (3, "sources.toml: output must be set in a source", "write for"),
    '[[source]]\ninput = "a"\npreset = "megatron"': (
        3,
        "sources.toml: source[0]: preset cannot be set",
        "pass --preset",
    ),
}


@pytest.mark.parametrize("text", WRONG)
def test_an_invalid_file_is_refused_before_any_source_is_read(corpus, text):
    code, message, hint = WRONG[text]
    (corpus / "sources.toml").write_text(text)
    done = run(corpus, "sources.toml", code=code)
    error, advice, *_ = done.stderr.splitlines()
    assert error.startswith(f"error: {message}")
    assert advice.startswith(f"hint: {hint}")
    assert not (corpus / "data").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["sources.toml", "web.jsonl"], 2, "sources.toml must be the only input"),
        (["web.jsonl", "sources.toml", "-o", "a"], 2, "sources.toml must be the only input"),
        (["sources.toml", "-o", "a"], 2, "--output cannot be used with sources.toml"),
        (["sources.toml", "--array-task", "0/2"], 2, "--array-task cannot be used with sources.toml"),
        (["sources.toml", "--finish"], 2, "--finish cannot be used with sources.toml"),
        (["missing.toml"], 3, "file of sources not found: missing.toml"),
    ],
)
def test_arguments_that_do_not_fit_a_file_of_sources_are_refused(corpus, arguments, code, message):
    assert f"error: {message}" in run(corpus, *arguments, code=code).stderr
