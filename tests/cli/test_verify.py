"""``tokshard verify`` as a user runs it."""

from __future__ import annotations

import os

import pytest

from support import bad_datasets, bad_products
from support.blends import write_dataset
from support.command_line import json_of, tokshard
from support.mixture_data import write_mixture


@pytest.fixture
def prefix(tmp_path):
    return bad_datasets.sound(tmp_path)


def test_what_is_sound_ends_with_0(prefix):
    done = tokshard("verify", prefix)
    assert done.returncode == 0, done.stderr
    assert f"{prefix}: sound" in done.stdout
    assert "63 documents" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("no problems found: level digest, 1 product verified")
    assert done.stderr == ""


def test_findings_end_with_1_and_all_are_listed(tmp_path):
    prefix = bad_datasets.several_at_once(tmp_path)
    done = tokshard("verify", f"{prefix}.bin")
    assert done.returncode == 1
    for code in ("idx-version", "idx-length", "idx-pointer", "idx-document"):
        assert f"  error: {code}: {prefix}.idx" in done.stdout
    assert "  note: unverified: " in done.stdout
    assert done.stdout.index("error:") < done.stdout.index("note:")
    assert "4 findings: " in done.stdout


def test_notes_alone_end_with_0(tmp_path):
    done = tokshard("verify", bad_datasets.foreign(tmp_path), "--level", "structure")
    assert done.returncode == 0
    _, hint = done.stdout.split("note: unverified: ")[1].splitlines()[:2]
    assert hint.startswith("    hint: run tokshard verify --adopt to write a manifest")


def test_the_hint_of_a_blend_with_another_dataset_makes_it_sound(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_mixture(tmp_path)
    blend = (
        "blend",
        "data/web",
        "data/code",
        "--seq-length",
        16,
        "--split",
        "1,0,0",
        "--num-samples",
        40,
        "-o",
        "mix",
    )
    assert tokshard(*blend).returncode == 0
    write_dataset("data/web", [7] * 90)
    (finding,) = [
        finding
        for product in json_of(tokshard("verify", "mix", "--json"))["products"]
        for finding in product["findings"]
        if finding["code"] == "blend-source-changed"
    ]
    begin = "run tokshard blend again with "
    assert finding["hint"].startswith(begin)
    done = tokshard(*blend, *finding["hint"].removeprefix(begin).split())
    assert done.returncode == 0, done.stderr
    assert tokshard("verify", "mix").returncode == 0


def test_json_has_everything(tmp_path):
    prefix = bad_datasets.bin_digest(tmp_path)
    done = tokshard("verify", prefix, "--json", "--subset", "100%", "--workers", 2)
    assert done.returncode == 1
    value = json_of(done)
    assert (value["schema"], value["level"], value["subset_percent"]) == ("tokshard.verify/2", "digest", 100)
    assert value["sound"] is False
    (product,) = value["products"]
    (finding,) = product["findings"]
    assert finding["code"] == "bin-digest"
    assert finding["path"] == f"{prefix}.bin"
    assert product["counts"]["pieces_checked"] == product["counts"]["pieces"] == 3


def test_quiet_says_nothing_but_by_the_exit_code(tmp_path, prefix):
    done = tokshard("verify", prefix, "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    bad_datasets.flip(f"{prefix}.bin", 0)
    done = tokshard("verify", prefix, "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")


def test_a_directory_is_looked_through(tmp_path):
    bad_products.goes_on(tmp_path)
    done = tokshard("verify", "--recursive", tmp_path, "--level", "deep")
    assert done.returncode == 0, done.stdout
    kinds = [line.split("  ")[0] for line in done.stdout.splitlines() if line.endswith(": sound")]
    assert kinds == sorted(kinds, key=["dataset", "index", "blend", "plan"].index)
    assert {kind: kinds.count(kind) for kind in kinds} == {"dataset": 2, "index": 6, "blend": 1, "plan": 2}


def test_adopting_from_the_command_line(tmp_path):
    prefix = bad_datasets.foreign(tmp_path)
    assert "note: adopted: " in tokshard("verify", prefix, "--adopt").stdout
    assert "note" not in tokshard("verify", prefix).stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["nothing"], 3, "no dataset or file found: nothing"),
        (["."], 2, "pass --recursive to verify everything below it"),
        (["--recursive", "empty"], 3, "nothing to verify below empty"),
        (
            ["data/web", "--level", "shallow"],
            2,
            "--level must be one of structure, digest, deep, got 'shallow'",
        ),
        (["data/web", "--subset", "0%"], 2, "--subset must be above 0% and at most 100%"),
        (
            ["data/web", "--subset", "5"],
            2,
            "--subset must be above 0% and at most 100% of the data, got 500%",
        ),
        (["data/web", "--subset", "x"], 2, "--subset must be a percentage or a fraction such as 1% or 0.01"),
        (["a.jsonl"], 3, "cannot verify a.jsonl: it is not a tokshard product"),
        (["data/web", "--tokenizer", "a.jsonl"], 3, "a.jsonl"),
    ],
)
def test_what_cannot_be_meant_is_said(tmp_path, prefix, arguments, code, words):
    os.mkdir(tmp_path / "empty")
    done = tokshard("verify", *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_names_from_files_cannot_change_the_terminal(tmp_path):
    directory = tmp_path / "\x1b[31mred\n[bold]"
    os.makedirs(directory)
    prefix = bad_datasets.bin_digest(directory)
    done = tokshard("verify", prefix)
    assert done.returncode == 1
    assert "\x1b" not in done.stdout
    assert "\\x1b[31mred\\n[bold]" in done.stdout
