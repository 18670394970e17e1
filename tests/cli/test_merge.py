"""``tokshard merge`` as a user types it: output, messages, exit codes."""

from __future__ import annotations

import re

import pytest

from support.command_line import SAMPLE, json_of, tokshard
from support.plain_datasets import Plain

PLAIN = Plain("uint16", [[[1, 2]], [[3]]])


@pytest.fixture
def workshop(tmp_path):
    for name in ("part-2", "part-10"):
        PLAIN.write(tmp_path / name)
    return tmp_path


def test_the_bare_run_says_what_it_did(workshop):
    done = tokshard("merge", "part-*", "-o", "all", cwd=workshop)
    assert done.returncode == 0
    assert "written: all.bin, .idx: 4 documents, 4 sequences, 6 tokens (uint16, " in done.stdout
    assert re.search(r"^time: 2 datasets in .* s \(.*B/s written, .* tokens/s\)$", done.stdout, re.MULTILINE)
    assert "next: tokshard inspect all" in done.stdout
    assert "warning: the tokenizers of part-2, part-10 are unknown" in done.stderr
    again = tokshard("merge", "part-*", "-o", "all", cwd=workshop)
    assert again.returncode == 0
    assert again.stdout.startswith("up to date: all.bin, .idx: 4 documents")


def test_what_was_merged_can_be_inspected(workshop):
    assert tokshard("merge", "part-*", "-o", "all", cwd=workshop).returncode == 0
    shown = tokshard("inspect", "all", cwd=workshop).stdout
    assert re.search(r"^tokenizer +unknown or mixed$", shown, re.MULTILINE)
    assert "4 documents encoded by the unknown encoder" in shown
    assert "part-10.bin: 6 B, 2 documents" in shown
    assert json_of(tokshard("inspect", "all", "--json", cwd=workshop))["manifest"]["tokenizer"] is None
    assert "pass --tokenizer to see it" in tokshard("inspect", "all", "--document", 0, cwd=workshop).stdout
    with_tokenizer = ("--document", 0, "--tokenizer", SAMPLE / "tokenizer.json")
    assert tokshard("inspect", "all", *with_tokenizer, cwd=workshop).returncode == 0


def test_multimodal_datasets_are_merged_on_demand(workshop):
    Plain("uint16", [[[1], [2]]], [3, 4]).write(workshop / "modes")
    refused = tokshard("merge", "modes", "part-2", "-o", "all", cwd=workshop)
    assert refused.returncode == 3
    assert "hint: merge with --multimodal if all inputs are of this kind" in refused.stderr
    done = tokshard("merge", "modes", "modes", "-o", "all", "--multimodal", cwd=workshop)
    assert done.returncode == 0
    assert "next: tokshard inspect all --multimodal" in done.stdout
    assert tokshard("inspect", "all", "--multimodal", cwd=workshop).returncode == 0


def test_json_is_one_document_and_quiet_is_quiet(workshop):
    report = json_of(tokshard("merge", "part-*", "-o", "x", "--json", cwd=workshop))
    assert (report["schema"], report["action"]) == ("tokshard.merge/2", "written")
    assert report["options"]["inputs"] == ["part-2", "part-10"]
    assert (report["output"]["counts"]["tokens"], report["output"]["tokenizer"]) == (6, None)
    assert "inputs" not in report
    done = tokshard("merge", "part-*", "-o", "y", "--quiet", cwd=workshop)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_dry_run_writes_nothing(workshop):
    before = sorted(path.name for path in workshop.iterdir())
    done = tokshard("merge", "part-*", "-o", "all", "--dry-run", cwd=workshop)
    assert done.returncode == 0
    assert "inputs: 2, 12 B of uint16 tokens\n  part-2 (2 documents, 3 tokens)\n  part-10 (" in done.stdout
    assert "output: all (new)" in done.stdout
    assert done.stdout.endswith("nothing was written (--dry-run)\n")
    plan = json_of(tokshard("merge", "part-*", "-o", "all", "--dry-run", "--json", cwd=workshop))
    assert (plan["schema"], plan["action"], plan["state"]) == ("tokshard.merge/2", "planned", "new")
    assert plan["output"]["counts"]["tokens"] == 6
    assert "files" not in plan["output"]
    assert [(given["path"], given["counts"]["tokens"]) for given in plan["inputs"]] == [
        ("part-2", 3),
        ("part-10", 3),
    ]
    assert sorted(path.name for path in workshop.iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["part-2", "-o", "part-2"], 2, "--output part-2 is one of the inputs"),
        (["part-2", "-o", "out/"], 2, "must be a path prefix, got the directory"),
        (["part-2", "-o", "out.bin"], 2, "must be a path prefix without .bin"),
        (["part-3", "-o", "all"], 3, "dataset not found: part-3"),
        (["part-2", "-o", "part-10"], 4, "part-10.bin exists already and has no manifest"),
        (["part-2", "cut", "-o", "all"], 6, "cut.idx at byte"),
    ],
)
def test_refusals_have_their_exit_codes(workshop, arguments, code, words):
    PLAIN.write(workshop / "cut")
    (workshop / "cut.bin").write_bytes(b"123")
    done = tokshard("merge", *arguments, cwd=workshop)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
    assert not (workshop / "all.bin").exists()
