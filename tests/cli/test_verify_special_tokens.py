"""``tokshard verify --level deep`` finds planted special tokens, and none in clean datasets."""

from __future__ import annotations

import json

import pytest

from support import bad_datasets
from support.command_line import json_of, tokshard
from support.plain_datasets import Plain
from support.tokenizer_definitions import added, probe


def deep(prefix, *options):
    """Verify a dataset; return its special tokens by id, its findings, and the exit code."""
    done = tokshard("verify", prefix, "--level", "deep", "--json", *options)
    (product,) = json_of(done)["products"]
    special = product.get("special_tokens", {"tokens": []})
    counts = {token["id"]: token for token in special["tokens"]}
    findings = {finding["code"]: finding["message"] for finding in product["findings"]}
    return counts, findings, done.returncode


def tokenized(directory, texts, *options):
    prefix = directory / "web"
    done = tokshard("tokenize", bad_datasets.corpus(directory, texts), "-o", prefix, "--quiet", *options)
    assert done.returncode == 0, done.stderr
    return prefix


def test_literals_in_text_are_counted_and_located(tmp_path):
    tokenizer = bad_datasets.with_template(tmp_path)
    texts = ["plain", "a <|endoftext|> b", "", "<|im_start|>user<|im_start|>", "<s>begin"]
    prefix = tokenized(tmp_path, texts, "--tokenizer", tokenizer, "--special-tokens")
    counts, findings, status = deep(prefix)
    assert counts == {
        0: token(0, "<|endoftext|>", ["eod"], 6, starts=0, ends=5, elsewhere=1, first=1),
        4096: token(4096, "<s>", ["prefix"], 6, starts=5, ends=0, elsewhere=1, first=4),
        4097: token(4097, "<|im_start|>", [], 2, starts=0, ends=0, elsewhere=2, first=3),
    }
    assert (list(findings), status) == (["special-in-text"], 1)
    assert "'<|im_start|>' (4097) 2 times, first in document 3" in findings["special-in-text"]
    text = tokshard("verify", prefix, "--level", "deep").stdout
    assert "special tokens in 5 non-empty documents:" in text
    assert (
        "<s> (4096), added before texts: begins 5 (100%), ends 0, elsewhere 1 (first in document 4)" in text
    )


def token(identifier, text, roles, occurrences, *, starts, ends, elsewhere, first=None):
    return {
        "id": identifier,
        "token": text,
        "roles": roles,
        "occurrences": occurrences,
        "starts": starts,
        "ends": ends,
        "elsewhere": elsewhere,
        "first_elsewhere": first,
    }


def test_a_document_without_bos_is_found(tmp_path):
    counts, findings, status = deep(bad_datasets.bos_missing(tmp_path))
    assert (counts[4096]["starts"], counts[0]["ends"]) == (62, 63)
    assert "document 0 has a text that does not begin with '<s>' (4096)" in findings["special-missing"]
    assert status == 1


def test_a_bos_that_never_occurs_is_found(tmp_path):
    counts, findings, status = deep(bad_datasets.bos_never(tmp_path))
    assert counts[4096]["occurrences"] == 0
    assert findings["special-missing"].endswith("no document contains '<s>' (4096)")
    assert (list(findings), status) == (["special-missing"], 1)


def test_documents_without_eod_are_found(tmp_path):
    counts, findings, status = deep(bad_datasets.eod_missing(tmp_path))
    assert (counts[256]["ends"], status) == (49, 1)
    assert "1 do not)" in findings["eod-missing"]


def test_an_eod_that_never_occurs_is_found(tmp_path):
    counts, findings, status = deep(bad_datasets.eod_never(tmp_path))
    assert counts[256]["occurrences"] == 0
    assert findings["eod-missing"].endswith("no document contains it")
    assert (list(findings), status) == (["eod-missing"], 1)


def test_ids_beyond_the_vocabulary_are_counted_exactly_also_in_foreign_data(tmp_path):
    prefix = str(tmp_path / "foreign")
    Plain("int32", [[[5, 4096, 0]], [[7]], [[4095], [9000, 0]]]).write(prefix)
    counts, findings, status = deep(prefix, "--tokenizer", bad_datasets.TOKENIZER)
    assert f"{prefix}.bin at byte 4: token 4096 must be below 4096" in findings["token-range"]
    assert "2 are not" in findings["token-range"]
    assert counts[0]["ends"] == 2, "shares are reported, but no manifest requires EOD"
    assert (set(findings), status) == ({"token-range", "unverified"}, 1)


def test_the_vocabulary_of_the_job_counts_if_it_is_smaller_than_that_of_the_dataset(tmp_path):
    prefix = tokenized(tmp_path, ["<s>"], "--tokenizer", bad_datasets.with_template(tmp_path))
    _, findings, _ = deep(prefix, "--tokenizer", bad_datasets.TOKENIZER)
    assert {"token-range", "tokenizer-other"} <= set(findings)


TEXTS = ["one", "", "two words", "s>", "<|im_start", "ünï", ["one", "", "two"], [], [""], ["three"]]


@pytest.mark.parametrize("append", ["--append-eod", "--no-append-eod"])
@pytest.mark.parametrize("kind", ["bytes", "sample", "template", "both-sides", "unknown-characters"])
def test_clean_datasets_have_no_findings(tmp_path, kind, append):
    options = OPTIONS[kind](tmp_path)
    prefix = tokenized(tmp_path, TEXTS, append, *options)
    counts, findings, status = deep(prefix)
    assert (findings, status) == ({}, 0)
    assert all(not token["elsewhere"] or token["roles"] == ["unknown"] for token in counts.values())
    if kind == "unknown-characters":
        assert counts[0]["elsewhere"], "the test needs unknown characters"


def both_sides(directory):
    """A tokenizer whose template ends with the EOD token: documents end with it twice."""
    definition = probe(added_tokens=[added(0, "<s>"), added(0, "</s>")])
    size = len(definition["model"]["vocab"])
    definition["post_processor"] = {"type": "BertProcessing", "sep": ["</s>", size + 1], "cls": ["<s>", size]}
    return written(directory, definition)


def unknown_characters(directory):
    vocabulary = {"[UNK]": 0, "[EOS]": 1, "one": 2, "two": 3, "words": 4}
    definition = probe(added_tokens=[added(0, "[UNK]"), added(1, "[EOS]")])
    definition["model"] = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}
    definition["pre_tokenizer"] = {"type": "Whitespace"}
    return written(directory, definition)


def written(directory, definition):
    path = directory / "made/tokenizer.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(definition))
    return path


OPTIONS = {
    "bytes": lambda _: [],
    "sample": lambda _: ["--tokenizer", bad_datasets.TOKENIZER],
    "template": lambda directory: [
        "--tokenizer",
        bad_datasets.with_template(directory),
        "--special-tokens",
    ],
    "both-sides": lambda directory: ["--tokenizer", both_sides(directory), "--special-tokens"],
    "unknown-characters": lambda directory: [
        "--tokenizer",
        unknown_characters(directory),
        "--eod",
        "[EOS]",
    ],
}
