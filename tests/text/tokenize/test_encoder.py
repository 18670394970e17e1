"""The encoder of units: parts do not depend on batches, and nothing is left of a unit that is given up."""

from __future__ import annotations

import os
import random
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from support.tokenize_runs import TOKENIZER, job_of, pair, run_tokenize, write_jsonl
from support.tokenizer_definitions import random_texts
from tokshard.errors import EncoderMismatchError
from tokshard.text.corpus.planning import read_documents
from tokshard.text.corpus.units import LineUnit
from tokshard.text.tokenize import encoder as encoder_module
from tokshard.text.tokenize.encoder import BatchProgress, Outcome, Task, UnitEncoder, progress_each
from tokshard.text.tokenize.part import PartReader, UnitKey
from tokshard.text.tokenize.workers.executor import InlineExecutor
from tokshard.text.tokenizer import encoders, fast
from tokshard.text.tokenizer.fast import FastEncoderRefusedError

FIELDS = ("text", "title")
PART = "0123456789abcdef-000000000.part"


@pytest.fixture
def encode(tmp_path, monkeypatch):
    """Encode a unit of two fields, of which three records are bad; yield the events."""
    records = [{"text": f"{k} " + "word " * (k % 7), "title": f"t{k}"} for k in range(60)]
    for bad in (20, 30, 31):
        records[bad]["title"] = None
    source = write_jsonl(tmp_path / "corpus.jsonl", records)
    (tmp_path / "parts").mkdir()
    unit = LineUnit(0, 0, True, source, 0, os.path.getsize(source), input_bytes=7)

    def encode(batch_bytes, *, compared=0, **options):
        options = {"tokenizer": TOKENIZER, "encoder": "reference", "fields": FIELDS, **options}
        spec = job_of(source, str(tmp_path / "x"), **options).encoding()
        if compared:  # the job chooses the reference for small inputs
            spec = replace(spec, encoder="fast")
        encoder = UnitEncoder(spec, str(tmp_path / "parts"))

        def smaller(unit, reading):
            return read_documents(unit, reading._replace(batch_bytes=batch_bytes))

        monkeypatch.setattr(encoder_module, "read_documents", smaller)
        return encoder.encode(Task(unit, source, PART, compared))

    return encode


@pytest.mark.parametrize(("seconds", "messages"), [(0.0, 5), (1e9, 3)])
def test_progress_is_merged_for_some_time_and_up_to_each_outcome(seconds, messages):
    batches = [BatchProgress(10**k, 2 * 10**k, 3 * 10**k, 4 * 10**k) for k in range(5)]
    outcomes = [Outcome(UnitKey(0, 0)), Outcome(UnitKey(0, 1))]
    events = [*batches[:3], outcomes[0], *batches[3:], outcomes[1]]
    merged = list(progress_each(seconds, events))
    progress = [event for event in merged if isinstance(event, BatchProgress)]
    assert len(progress) == messages
    assert [sum(numbers) for numbers in zip(*progress, strict=True)] == [11111, 22222, 33333, 44444]
    assert [event for event in merged if isinstance(event, Outcome)] == outcomes
    assert merged[0] == batches[0]
    before_first = merged[: merged.index(outcomes[0])]
    assert sum(event.input_bytes for event in before_first) == 111


def part_of(folder: Path) -> tuple:
    with PartReader(str(folder / "parts" / PART)) as part:
        part.verify()
        names = [f"{kind}.{k}" for kind in ("tokens", "lengths", "sequences") for k in range(2)]
        return part.header, {name: part.read(name) for name in [*names, "origins.0", "rejected"]}


def test_the_part_of_a_unit_does_not_depend_on_its_batches(tmp_path, encode):
    *batches, outcome = encode(1 << 20, on_error="skip")
    assert outcome == Outcome(UnitKey(0, 0))
    assert len(batches) == 1
    header, streams = part_of(tmp_path)
    assert (header.name, header.last, header.documents) == (PART, True, 57)
    assert [counts.tokens * 2 for counts in header.counts] == [len(streams[f"tokens.{k}"]) for k in range(2)]
    assert len(streams["rejected"].splitlines()) == 3
    assert [counts.rejected_total for counts in header.counts] == [3, 3]
    content_bytes = header.counts[0].content_bytes
    assert batches == [BatchProgress(7, 57, header.tokens, content_bytes)]
    *batches, outcome = encode(300, on_error="skip")
    assert outcome == Outcome(UnitKey(0, 0))
    assert len(batches) > 5
    assert [sum(numbers) for numbers in zip(*batches, strict=True)] == [
        7,
        57,
        header.tokens,
        content_bytes,
    ]
    assert part_of(tmp_path) == (header, streams)


@pytest.mark.parametrize("batch_bytes", [100, 300, 1 << 20])
@pytest.mark.parametrize("allowed", [0, 1, 2])
def test_the_first_record_that_may_not_be_rejected_ends_the_unit(tmp_path, encode, batch_bytes, allowed):
    *_, outcome = encode(batch_bytes, on_error="skip", max_errors=allowed)
    assert outcome.refused.line == (21, 31, 32)[allowed]
    assert not os.listdir(tmp_path / "parts")


@pytest.mark.parametrize("batch_bytes", [300, 1 << 20])
def test_nothing_is_left_of_a_unit_that_fails(tmp_path, encode, batch_bytes, monkeypatch):
    original, seen = encoder_module.pack_documents, []

    def fail(*arguments, **options):
        seen.append(1)
        if len(seen) == (4 if batch_bytes == 300 else 2):
            raise ZeroDivisionError
        return original(*arguments, **options)

    monkeypatch.setattr(encoder_module, "pack_documents", fail)
    with pytest.raises(ZeroDivisionError):
        list(encode(batch_bytes, on_error="skip"))
    assert not os.listdir(tmp_path / "parts")


def test_nothing_is_left_of_a_unit_that_is_stopped(tmp_path, encode):
    with closing(encode(300, on_error="skip")) as events:
        next(events)
        assert len(os.listdir(tmp_path / "parts")) == 1
    assert not os.listdir(tmp_path / "parts")


class _Wrong:
    name = "fast"

    def __init__(self, encoder):
        self._encoder = encoder

    def encode(self, texts):
        encoded = self._encoder.encode(texts)
        ids = encoded.ids.copy()
        ids[-1] ^= 1
        return replace(encoded, ids=ids)


def test_a_slow_reference_is_waited_for_before_a_unit_is_committed(tmp_path, encode, monkeypatch):
    parts = tmp_path / "parts"
    documents, committed, compared = 0, [], []

    class Slow:
        name = "reference"

        def __init__(self, encoder):
            self._encoder = encoder

        def encode(self, texts):
            assert all_encoded.wait(10)  # the fast encoder does not wait for the reference
            time.sleep(0.1)
            committed.extend(name for name in os.listdir(parts) if name.endswith(".part"))
            compared.extend(texts)
            return self._encoder.encode(texts)

    all_encoded = threading.Event()
    make = encoders.reference_encoder
    monkeypatch.setattr(
        encoders, "reference_encoder", lambda *arguments, **options: Slow(make(*arguments, **options))
    )
    for event in encode(300, on_error="skip", encoder="auto", compared=1 << 20):
        if isinstance(event, BatchProgress) and event.documents:
            documents += event.documents
            if documents == 57:
                all_encoded.set()
    assert len(compared) == 2 * 57
    assert committed == []
    assert part_of(tmp_path)[0].counts[0].compared == 57


@pytest.mark.parametrize("allowed", [0, 3])
def test_a_difference_found_last_commits_nothing(tmp_path, encode, monkeypatch, allowed):
    make = fast.fast_encoder
    monkeypatch.setattr(
        fast, "fast_encoder", lambda *arguments, **options: _Wrong(make(*arguments, **options))
    )
    with pytest.raises(EncoderMismatchError, match="the fast encoder and the reference disagree"):
        list(encode(300, on_error="skip", max_errors=allowed, encoder="fast", compared=1 << 20))
    assert not os.listdir(tmp_path / "parts")


def test_a_tokenizer_that_the_fast_library_refuses_is_compared_with_nothing(tmp_path, encode, monkeypatch):
    def refuse(*_, **__):
        raise FastEncoderRefusedError("no")

    monkeypatch.setattr(fast, "fast_encoder", refuse)
    *_, outcome = encode(300, on_error="skip", encoder="auto", compared=1 << 20)
    assert outcome == Outcome(UnitKey(0, 0))
    header, streams = part_of(tmp_path)
    assert (header.encoder, header.counts[0].compared) == ("reference", 0)
    list(encode(300, on_error="skip", encoder="reference"))
    assert part_of(tmp_path) == (header, streams)


@pytest.mark.parametrize("special_tokens", [False, True])
def test_long_documents_are_encoded_alike_by_both_encoders(tmp_path, special_tokens):
    """From 0.3 to 1.2 MB, of all kinds of text; the last two are not compared in the run."""
    kinds = random_texts(7, 2000)
    chance = random.Random(7)

    def long_text(size):
        text = ""
        while len(text.encode()) < size:
            text += " ".join(chance.choices(kinds, k=500))
        return text

    texts = ["a", long_text(300_000), [long_text(400_000), "", "b"], "word " * 100_000, "c" * 300_000, []]
    texts += [long_text(1_100_000), [long_text(600_000), long_text(600_000)]]
    source = write_jsonl(tmp_path / "in.jsonl", [{"text": text, "title": "t"} for text in texts])
    pairs = []
    for encoder in ("fast", "reference"):
        options = {"tokenizer": TOKENIZER, "encoder": encoder, "special_tokens": special_tokens}
        report = run_tokenize(
            source, str(tmp_path / encoder), fields=FIELDS, executor=InlineExecutor(), **options
        )
        names = (f"{encoder}_text_document", f"{encoder}_title_document")
        pairs.append([pair(tmp_path / name) for name in names])
        assert report.counts.uncompared == (2 if encoder == "fast" else None)
    assert pairs[0] == pairs[1]
