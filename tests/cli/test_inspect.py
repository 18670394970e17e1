"""``tokshard inspect`` on datasets, documents, tokenizers, and on what is none of these."""

from __future__ import annotations

import errno
import json

import numpy as np
import pytest

from support.command_line import SAMPLE, json_of, tokshard
from support.mixture_data import run
from support.tokenize_runs import run_tokenize
from tokshard import IndexedDatasetBuilder
from tokshard.text.tokenizer import files

TOKENIZER = SAMPLE / "tokenizer.json"


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    directory = tmp_path_factory.mktemp("inspect")
    run_tokenize(
        [str(SAMPLE / "manuals.jsonl"), str(SAMPLE / "hostile.jsonl")],
        str(directory / "data"),
        tokenizer=str(TOKENIZER),
        on_error="skip",
    )
    return directory / "data"


def test_a_dataset(dataset):
    found = json_of(tokshard("inspect", dataset, "--json"))
    manifest = json.loads((dataset.parent / "data.tokshard/manifest.json").read_text())
    assert found["schema"] == "tokshard.inspect-dataset/2"
    assert found["manifest"] == manifest
    assert found["dtype"] == manifest["dataset"]["dtype"]
    for name in ("documents", "sequences", "tokens", "empty_documents"):
        assert found[name] == manifest["counts"][name]
    lengths = found["document_lengths"]
    assert sum(bucket["count"] for bucket in lengths["bins"]) == lengths["count"] == found["documents"]
    assert lengths["total"] == found["tokens"]
    assert found["ends_with_eod"] == 1.0
    shown = tokshard("inspect", dataset)
    assert shown.returncode == 0
    for text in ("documents", "█", "rejected", "invalid-json", "hostile.jsonl", "uint16", "ends all"):
        assert text in shown.stdout


@pytest.mark.parametrize("suffix", ["", ".bin", ".idx", ".tokshard", ".tokshard/"])
def test_any_of_its_names_will_do(dataset, suffix):
    assert json_of(tokshard("inspect", f"{dataset}{suffix}", "--json"))["path_prefix"] == str(dataset)


def test_a_document(dataset):
    first = json.loads((SAMPLE / "manuals.jsonl").read_text().splitlines()[1])["text"]
    found = json_of(tokshard("inspect", dataset, "--document", "1", "--tokenizer", TOKENIZER, "--json"))
    assert found["text"] == f"{first}<|endoftext|>"
    assert len(found["tokens"]) == sum(found["sequence_lengths"])
    assert json_of(tokshard("inspect", dataset, "--document", "1", "--json")) == found
    for number in ("100000", "-100000"):
        done = tokshard("inspect", dataset, "--document", number)
        assert (done.returncode, "has no document" in done.stderr) == (2, True)


def test_the_recorded_tokenizer_is_used_while_it_is_what_it_was(tmp_path):
    tokenizer = tmp_path / "tok/tokenizer.json"
    tokenizer.parent.mkdir()
    tokenizer.write_bytes(TOKENIZER.read_bytes())
    (tmp_path / "in.jsonl").write_text('{"text": "once upon a time"}\n')
    done = tokshard("tokenize", "in.jsonl", "-o", "x", "--tokenizer", "tok", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "x.tokshard/manifest.json").read_text())["tokenizer_path"] == (
        "tok/tokenizer.json"
    )
    show = ("inspect", "x", "--document", "0")
    assert "once upon a time<|endoftext|>" in tokshard(*show, cwd=tmp_path).stdout
    tokenizer.write_bytes(TOKENIZER.read_bytes() + b" ")  # saved again: the same definition
    assert "once upon a time<|endoftext|>" in tokshard(*show, cwd=tmp_path).stdout
    tokenizer.write_text(json.dumps(other_definition()))
    assert "pass --tokenizer" in tokshard(*show, cwd=tmp_path).stdout
    tokenizer.unlink()
    assert "pass --tokenizer" in tokshard(*show, cwd=tmp_path).stdout
    assert "once upon" in tokshard(*show, "--tokenizer", TOKENIZER, cwd=tmp_path).stdout


@pytest.mark.parametrize(
    ("command", "code"), [(["inspect", "--document", "0"], 7), (["verify", "--level", "deep"], 1)]
)
def test_a_recorded_tokenizer_that_cannot_be_read_is_an_error(tmp_path, monkeypatch, command, code):
    (tmp_path / "in.jsonl").write_text('{"text": "once upon a time"}\n')
    run_tokenize(str(tmp_path / "in.jsonl"), str(tmp_path / "x"), tokenizer=str(TOKENIZER))

    def failing(path):
        raise OSError(errno.EIO, "Input/output error", path)

    monkeypatch.setattr(files, "open_file", failing)
    done = run(*command, tmp_path / "x")
    assert done.returncode == code
    assert f"cannot read {TOKENIZER}: Input/output error" in done.stdout + done.stderr


def test_text_is_shown_harmless(tmp_path):
    (tmp_path / "in.jsonl").write_text(json.dumps({"text": "a\x1b[2Jb [red] \u202e c\x00"}) + "\n")
    run_tokenize(str(tmp_path / "in.jsonl"), str(tmp_path / "x"))
    done = tokshard("inspect", "x", "--document", "0", cwd=tmp_path)
    assert "a\\x1b[2Jb [red] \\u202e c\\x00" in done.stdout
    assert "\x1b" not in done.stdout


def test_another_tokenizer_is_refused(dataset, tmp_path):
    other = tmp_path / "tokenizer.json"
    other.write_text(json.dumps(other_definition()))
    done = tokshard("inspect", dataset, "--document", "1", "--tokenizer", other)
    assert done.returncode == 6
    assert "another tokenizer" in done.stderr
    assert "definitions " in done.stderr


def other_definition():
    """Return the sample tokenizer with its last two merges swapped."""
    definition = json.loads(TOKENIZER.read_text())
    merges = definition["model"]["merges"]
    merges[-2:] = reversed(merges[-2:])
    return definition


def test_a_dataset_of_another_program(tmp_path):
    with IndexedDatasetBuilder(str(tmp_path / "x.bin"), dtype=np.int32) as builder:
        builder.add_document([1, 2, 3], [2, 1])
        builder.add_document([], [])
        builder.finalize(str(tmp_path / "x.idx"))
    found = json_of(tokshard("inspect", tmp_path / "x", "--json"))
    assert (found["documents"], found["sequences"], found["tokens"]) == (2, 2, 3)
    assert (found["manifest"], found["empty_documents"], found["ends_with_eod"]) == (None, 1, None)
    assert "unverified" in tokshard("inspect", tmp_path / "x").stdout


def test_damage_is_an_integrity_error(dataset, tmp_path):
    for suffix in (".bin", ".idx"):
        (tmp_path / f"x{suffix}").write_bytes(dataset.with_suffix(suffix).read_bytes())
    with (tmp_path / "x.bin").open("ab") as file:
        file.write(b"1")
    done = tokshard("inspect", tmp_path / "x")
    assert done.returncode == 6
    assert "x.idx: the .bin must have" in done.stderr


def test_a_tokenizer():
    found = json_of(tokshard("inspect", TOKENIZER, "--json"))
    assert found["schema"] == "tokshard.inspect-tokenizer/2"
    assert (found["identity"]["vocab_size"], found["dtype"], found["encoder"]) == (4096, "uint16", "fast")
    assert found["eod_token"] == "<|endoftext|>"
    assert tokshard("inspect", SAMPLE).stdout == tokshard("inspect", TOKENIZER).stdout.replace(
        str(TOKENIZER), str(SAMPLE)
    )


@pytest.mark.parametrize(
    ("thing", "text"),
    [("nothing", "no dataset or file found: nothing"), (".", "cannot read .: it is not a dataset")],
)
def test_what_is_nothing(tmp_path, thing, text):
    done = tokshard("inspect", thing, cwd=tmp_path)
    assert (done.returncode, text in done.stderr) == (3, True)


def test_a_merged_dataset_keeps_the_path_of_its_tokenizer(tmp_path):
    for number in range(2):
        (tmp_path / f"{number}.jsonl").write_text(json.dumps({"text": f"text {number}"}) + "\n")
        run_tokenize(str(tmp_path / f"{number}.jsonl"), str(tmp_path / str(number)), tokenizer=str(TOKENIZER))
    assert tokshard("merge", "0", "1", "-o", "both", cwd=tmp_path).returncode == 0
    shown = tokshard("inspect", "both", "--document", "1", cwd=tmp_path).stdout
    assert "text 1<|endoftext|>" in shown
