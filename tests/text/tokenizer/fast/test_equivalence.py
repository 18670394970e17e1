"""The equivalence check: the documents it compares, and that a wrong fast encoder is caught."""

from __future__ import annotations

import json
import os
import random

import numpy as np
import pytest
import xxhash

from support.command_line import tokshard
from support.tokenize_runs import TOKENIZER, manifest, pair, run_tokenize, write_jsonl
from tokshard import MergeOptions, merge
from tokshard.errors import BadRecordError, EncoderMismatchError
from tokshard.text.tokenize.workers.executor import InlineExecutor
from tokshard.text.tokenizer import checked_documents, fast
from tokshard.text.tokenizer.checked_documents import texts_of
from tokshard.text.tokenizer.encoders import EncodedBatch


def test_the_first_bytes_and_then_one_in_a_thousand():
    offsets = np.arange(0, 40_000_000, 40)
    chosen = checked_documents.sample(offsets, "web/3.jsonl", compare_below=1 << 20)
    first = int(np.searchsorted(offsets, 1 << 20))
    assert chosen[:first].tolist() == list(range(first))
    rest = len(chosen) - first
    assert 0.8 < rest / ((len(offsets) - first) / checked_documents.ONE_IN) < 1.25
    gaps = np.diff(chosen[first:])
    assert gaps.max() < 20 * checked_documents.ONE_IN


def test_the_choice_depends_on_nothing_but_the_input_and_the_position():
    offsets = np.arange(5_000_000, 9_000_000, 333)
    whole = offsets[checked_documents.sample(offsets, "a", 0)]
    pieces = np.array_split(offsets, 97)
    assert (
        np.concatenate([piece[checked_documents.sample(piece, "a", 0)] for piece in pieces]).tolist()
        == whole.tolist()
    )
    assert whole.tolist() != offsets[checked_documents.sample(offsets, "b", 0)].tolist()


def splitmix64(value: int) -> int:
    mask = 2**64 - 1
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
    return value ^ (value >> 31)


def test_the_choice_equals_its_definition_in_plain_integers():
    offsets = np.array([0, 1, 999, 2**40, 2**62] + [k * 7919 for k in range(5000)])
    for name in ("a.jsonl", "s3://bucket/ü.jsonl.gz", os.fsdecode(b"\xff.jsonl")):
        start = xxhash.xxh3_64_intdigest(os.fsencode(name))
        slow = [k for k, o in enumerate(offsets.tolist()) if splitmix64((o + start) % 2**64) < 2**64 // 1000]
        assert checked_documents.sample(offsets, name, 0).tolist() == slow


def test_the_texts_of_documents_with_several_sequences():
    counts = np.array([2, 0, 3, 1], np.uint32)
    assert texts_of(np.array([0, 2]), counts).tolist() == [0, 1, 2, 3, 4]
    assert texts_of(np.array([1]), counts).tolist() == []
    assert texts_of(np.array([1, 3]), None).tolist() == [1, 3]


class LyingEncoder:
    """Right about everything but texts with a certain word."""

    name = "fast"

    def __init__(self, honest, word):
        self._honest = honest
        self._word = word

    def encode(self, texts):
        encoded = self._honest.encode(texts)
        ids = encoded.ids.copy()
        for number, text in enumerate(texts):
            if self._word in text:
                ids[encoded.offsets[number]] ^= 1
        return EncodedBatch(ids, encoded.offsets)


@pytest.fixture
def lie(monkeypatch):
    def install(word):
        honest = fast.fast_encoder

        def lying(tokenizer, *, special_tokens):
            return LyingEncoder(honest(tokenizer, special_tokens=special_tokens), word)

        monkeypatch.setattr(fast, "fast_encoder", lying)

    return install


def chosen_beyond_the_first_bytes(path, compare_below):
    """Numbers of the documents that are compared although they lie far behind."""
    lines = open(path, "rb").read().splitlines(keepends=True)  # noqa: SIM115
    offsets = np.cumsum([0, *map(len, lines[:-1])])
    return [k for k in checked_documents.sample(offsets, path, 0).tolist() if offsets[k] >= compare_below]


@pytest.mark.parametrize("field_is_list", [False, True])
def test_an_encoder_that_lies_in_the_middle_is_caught(tmp_path, lie, monkeypatch, field_is_list):
    monkeypatch.setattr("tokshard.text.tokenize.part.FIRST_BYTES", 2000)
    texts = [f"document number {n} of the corpus" for n in range(12_000)]
    value = (lambda text: ["before", text]) if field_is_list else (lambda text: text)
    path = write_jsonl(tmp_path / "in.jsonl", [{"text": value(text)} for text in texts])
    target = chosen_beyond_the_first_bytes(path, 2000)[2]
    lie(texts[target])
    options = {"tokenizer": TOKENIZER, "unit_size": 40_000, "executor": InlineExecutor()}
    out = str(tmp_path / "out")
    with pytest.raises(EncoderMismatchError) as caught:
        run_tokenize(path, out, encoder="fast", **options)
    assert caught.value.exit_code == 6
    assert texts[target] in caught.value.message
    assert "--encoder reference" in caught.value.hint
    assert not (tmp_path / "out.bin").exists()
    run_tokenize(path, out, encoder="reference", **options)
    assert encoders_of(out) == {"encoders": {"reference": 12_000}, "compared": 0}
    run_tokenize(path, str(tmp_path / "right"), encoder="reference", **options)
    assert pair(out) == pair(tmp_path / "right")


# Of 100 bytes at most, and above: by one byte, of characters of two bytes, and in several sequences.
COMPARED = ["word " * 5, "x" * 100, ["x" * 50, "y" * 50], [], "é" * 50]
TOO_LARGE = ["x" * 101, "é" * 51, ["x" * 60, "y" * 60]]


@pytest.fixture
def mixed(tmp_path, monkeypatch):
    """Documents of which some are too large to be compared, in no order; and how many of them are."""
    monkeypatch.setattr(fast.comparison, "MOST_BYTES", 100)
    kinds = [*COMPARED, *TOO_LARGE] * 6
    random.Random(2).shuffle(kinds)
    path = write_jsonl(tmp_path / "in.jsonl", [{"text": text} for text in kinds])
    return path, [text in TOO_LARGE for text in kinds]


def encoders_of(prefix):
    counts = manifest(prefix)["counts"]
    return {name: counts[name] for name in ("encoders", "compared", "uncompared") if name in counts}


def test_larger_documents_are_not_compared_and_counted(tmp_path, mixed, lie):
    path, _ = mixed
    lie("é" * 51)
    options = {"tokenizer": TOKENIZER, "encoder": "fast", "executor": InlineExecutor(), "unit_size": 500}
    report = run_tokenize(path, str(tmp_path / "out"), **options)
    assert (report.counts.compared, report.counts.uncompared) == (30, 18)
    assert encoders_of(tmp_path / "out") == {"encoders": {"fast": 48}, "compared": 30, "uncompared": 18}
    run_tokenize(path, str(tmp_path / "slow"), **{**options, "encoder": "reference"})
    assert pair(tmp_path / "out") != pair(tmp_path / "slow")
    assert encoders_of(tmp_path / "slow") == {"encoders": {"reference": 48}, "compared": 0}


def test_an_encoder_that_lies_about_the_largest_compared_document_is_caught(tmp_path, mixed, lie):
    path, _ = mixed
    lie("é" * 50)
    with pytest.raises(EncoderMismatchError):
        run_tokenize(
            path, str(tmp_path / "out"), tokenizer=TOKENIZER, encoder="fast", executor=InlineExecutor()
        )


def test_the_texts_of_all_fields_count_together(tmp_path, monkeypatch):
    monkeypatch.setattr(fast.comparison, "MOST_BYTES", 100)
    records = [{"text": "a" * n, "title": "b" * 60} for n in (0, 40, 41)]
    path = write_jsonl(tmp_path / "in.jsonl", records)
    options = {"tokenizer": TOKENIZER, "encoder": "fast", "executor": InlineExecutor()}
    report = run_tokenize(path, str(tmp_path / "out"), fields=("text", "title"), **options)
    assert (report.counts.compared, report.counts.uncompared) == (2, 1)


def test_counts_of_comparisons_end_at_the_limit_of_a_run(tmp_path, mixed):
    """Of the unit in which the limit lies, at most so many documents count as compared as it has."""
    path, too_large = mixed
    options = {"tokenizer": TOKENIZER, "encoder": "fast", "executor": InlineExecutor(), "unit_size": 900}
    for limit in range(1, len(too_large), 5):
        run_tokenize(path, str(tmp_path / "out"), limit=limit, force=True, **options)
        found = encoders_of(tmp_path / "out")
        uncompared = found.get("uncompared", 0)
        assert (found["encoders"], found["compared"]) == ({"fast": limit}, limit - uncompared)
        units = (tmp_path / "out.tokshard/units.jsonl").read_text().splitlines()
        *whole, cut = [json.loads(line)["counts"]["documents"] for line in units]
        before = sum(too_large[: sum(whole)])
        assert sum(whole) + cut == limit
        assert before <= uncompared <= sum(too_large[:limit])


def test_splits_and_merges_count_larger_documents(tmp_path, mixed):
    path, _ = mixed
    options = {"tokenizer": TOKENIZER, "encoder": "fast", "executor": InlineExecutor(), "unit_size": 900}
    run_tokenize(path, str(tmp_path / "out"), holdout=0.5, limit=37, **options)
    prefixes = [f"{tmp_path}/out_{split}" for split in ("train", "valid")]
    found = [encoders_of(prefix) for prefix in prefixes]
    for counts in found:
        assert counts["compared"] + counts["uncompared"] == counts["encoders"]["fast"] > 0
    run_tokenize(path, str(tmp_path / "slow"), **{**options, "encoder": "reference"})
    merge(MergeOptions(inputs=(*prefixes, str(tmp_path / "slow")), output=str(tmp_path / "merged")))
    assert encoders_of(tmp_path / "merged") == {
        "encoders": {"fast": 37, "reference": 48},
        "compared": sum(counts["compared"] for counts in found),
        "uncompared": sum(counts["uncompared"] for counts in found),
    }


def test_a_document_above_1_mb_is_named_in_the_reports(tmp_path):
    texts = ["word " * 200_000, "word " * 200_000 + "x"]
    path = write_jsonl(tmp_path / "in.jsonl", [{"text": text} for text in texts])
    words = ["--tokenizer", TOKENIZER, "-o", tmp_path / "out"]
    shown = tokshard("tokenize", path, *words).stdout
    checked = "1 document checked against the reference encoder, all equal, 1 document above 1 MB not checked"
    assert f"encoder: fast, {checked}\n" in shown
    shown = tokshard("inspect", tmp_path / "out").stdout
    assert "2 documents encoded by the fast encoder; 1 checked against the reference, all equal; " in shown
    assert "1 above 1 MB not checked" in shown


def test_reference_after_fast_redoes_what_fast_made(tmp_path):
    texts = [f"document number {n}" for n in range(300)]
    path = write_jsonl(tmp_path / "in.jsonl", [{"text": text} for text in texts] + [b"broken"])
    options = {"tokenizer": TOKENIZER, "unit_size": 1000, "executor": InlineExecutor()}
    options["max_document_bytes"] = 1000  # the defaults of the encoders differ
    out = str(tmp_path / "out")
    for encoder in ("fast", "reference"):
        with pytest.raises(BadRecordError):
            run_tokenize(path, out, encoder=encoder, **options)
    report = run_tokenize(path, out, encoder="fast", on_error="skip", **options)
    made_by = report.counts.encoders
    assert report.units_reused == report.outputs[0].dataset.units - 1
    assert made_by["reference"] > 250
    assert made_by["fast"] == 300 - made_by["reference"]
    assert report.counts.compared == made_by["fast"]


def test_a_small_corpus_needs_no_fast_encoder(tmp_path):
    path = write_jsonl(tmp_path / "in.jsonl", [{"text": "a"}])
    report = run_tokenize(path, str(tmp_path / "out"), tokenizer=TOKENIZER)
    assert report.counts.encoders == {"reference": 1}


def with_model(change: dict) -> dict:
    definition = json.loads(open(TOKENIZER).read())  # noqa: SIM115
    definition["model"] |= change
    return definition


def test_the_structural_gate_leads_to_the_reference(tmp_path):
    definition = with_model({"dropout": 0.5})
    (tmp_path / "tokenizer.json").write_text(json.dumps(definition))
    path = write_jsonl(tmp_path / "in.jsonl", [{"text": "some words to encode " * 60_000}])
    report = run_tokenize(path, str(tmp_path / "out"), tokenizer=str(tmp_path))
    assert report.counts.encoders == {"reference": 1}
