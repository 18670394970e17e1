"""Libraries' objects that are loaded before they are asked for: the same, once, for no other file."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from support.tokenize_runs import SAMPLE, TOKENIZER, run_tokenize, texts_of
from support.tokenizer_definitions import lists_of, written
from tokshard.errors import TokenizerError
from tokshard.text.tokenize import run
from tokshard.text.tokenize.choice import choose_encoding
from tokshard.text.tokenize.options import TokenizeOptions
from tokshard.text.tokenize.workers import pool
from tokshard.text.tokenizer import encoders, fast, files
from tokshard.text.tokenizer.definition import load_tokenizer
from tokshard.text.tokenizer.encoders import reference_encoder
from tokshard.text.tokenizer.fast import encoder, fast_encoder

TEXTS = texts_of(SAMPLE / "stories.jsonl")[:20]
SETTINGS = {
    "eod": None,
    "need_eod": True,
    "transformers": None,
    "special_tokens": False,
    "files_beside": True,
}


@pytest.fixture(autouse=True)
def nothing_ahead(monkeypatch):
    monkeypatch.setattr(encoder, "_loaded_ahead", {})
    monkeypatch.setattr(encoders, "_loaded_ahead", {})


def ahead():
    fast_ones = [loaded.result()[0] for loaded in encoder._loaded_ahead.values()]
    return fast_ones, [*encoders._loaded_ahead.values()]


def test_what_was_loaded_ahead_is_taken_once():
    expected = lists_of(reference_encoder(load_tokenizer(TOKENIZER), special_tokens=False).encode(TEXTS))
    fast.load_ahead(TOKENIZER, special_tokens=False)
    (library,), (reference,) = ahead()
    tokenizer = load_tokenizer(TOKENIZER)
    quick = fast_encoder(tokenizer, special_tokens=False)
    assert quick._library is library
    assert lists_of(quick.encode(TEXTS)) == expected
    slow = reference_encoder(tokenizer, special_tokens=False)
    assert slow._library is reference
    assert lists_of(slow.encode(TEXTS)) == expected
    assert ahead() == ([], [])
    assert fast_encoder(tokenizer, special_tokens=False)._library is not library


def test_another_file_or_other_special_tokens_get_their_own(tmp_path):
    fast.load_ahead(TOKENIZER, special_tokens=False)
    (library,), (reference,) = ahead()
    definition = json.loads(Path(TOKENIZER).read_bytes())
    changed = load_tokenizer(
        written(tmp_path, definition).path, need_eod=False
    )  # the same, written otherwise
    assert fast_encoder(changed, special_tokens=False)._library is not library
    assert reference_encoder(changed, special_tokens=False)._library is not reference
    tokenizer = load_tokenizer(TOKENIZER)
    assert fast_encoder(tokenizer, special_tokens=True)._library is not library
    assert ahead() == ([library], [reference])


def test_a_definition_is_parsed_once_to_choose_the_encoder_and_to_load_it_ahead(monkeypatch):
    parsed = []
    parse = files._parse_json
    monkeypatch.setattr(
        files, "_parse_json", lambda content, path: parsed.append(path) or parse(content, path)
    )
    encoder._examined.cache_clear()
    options = TokenizeOptions(inputs="a.jsonl", tokenizer=TOKENIZER, encoder="fast")
    assert choose_encoding(options, []).encoder.name == "fast"
    assert parsed == [TOKENIZER]
    encoder._examined.cache_clear()
    fast.load_ahead(TOKENIZER, special_tokens=False)
    assert parsed == [TOKENIZER] * 2
    load_tokenizer(TOKENIZER)
    assert parsed == [TOKENIZER] * 3


def test_what_the_gate_keeps_out_is_not_tried(tmp_path):
    definition = json.loads(Path(TOKENIZER).read_bytes())
    definition["model"]["dropout"] = 0.5
    fast.load_ahead(written(tmp_path, definition).path, special_tokens=False)
    assert ahead() == ([], [])


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b'{"model": 3}', b'{"model": {"merges": 1}}'])
def test_what_cannot_be_loaded_is_no_error_yet(tmp_path, capfd, content):
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_bytes(content)
    fast.load_ahead(str(path), special_tokens=False)
    assert ahead() == ([], [])
    assert capfd.readouterr() == ("", "")
    with pytest.raises(TokenizerError):
        load_tokenizer(str(path))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"tokenizer": TOKENIZER, "transformers": "python"},
            [("expect", TOKENIZER, SETTINGS | {"transformers": "python"})],
        ),
        (
            {"tokenizer": str(SAMPLE), "special_tokens": True, "eod": "7", "append_eod": False},
            [("expect", str(SAMPLE), SETTINGS | {"special_tokens": True, "eod": "7", "need_eod": False})],
        ),
        ({"tokenizer": TOKENIZER, "encoder": "reference"}, []),
        ({"tokenizer": None}, []),
        ({"tokenizer": "s3://bucket/tokenizer.json"}, []),
        ({"tokenizer": "hf:gpt2"}, []),
        ({"tokenizer": "no/such/tokenizer.json"}, []),
        ({"tokenizer": __file__}, []),
    ],
)
def test_the_forkserver_is_told_of_files_at_hand(options, expected):
    messages = []
    processes = object.__new__(pool.Processes)
    processes.forkserver = SimpleNamespace(send=messages.append)
    processes.expect(TokenizeOptions(inputs="a.jsonl", **options))
    assert messages == expected


def wait_until_idle(pid):
    """Wait until a process has done what it was told: it takes no processor time for a while."""
    before, quiet = None, 0
    while quiet < 6:
        time.sleep(0.05)
        spent = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
        quiet = quiet + 1 if spent == before else 0
        before = spent


def test_a_tokenizer_that_changes_between_is_not_confused(tmp_path, monkeypatch):
    """The forkserver loads one file ahead; by the time the job reads it, it is another."""
    definition = json.loads(Path(TOKENIZER).read_bytes())
    path = tmp_path / "tokenizer.json"
    path.write_bytes(Path(TOKENIZER).read_bytes())
    other = {**definition, "normalizer": {"type": "Lowercase"}}
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_bytes(
        b"".join(json.dumps({"text": text.upper() * 10}).encode() + b"\n" for text in TEXTS * 3)
    )
    monkeypatch.setattr(run, "INLINE_BYTES", 1 << 16)
    assert corpus.stat().st_size > 4 * run.INLINE_BYTES
    expect = pool.Processes.expect

    def expecting(process, options):
        expect(process, options)
        wait_until_idle(process.pid)
        path.write_text(json.dumps(other))

    libraries_of_job = {"tokenizer": str(path), "encoder": "fast", "eod": "<|endoftext|>", "workers": 1}
    monkeypatch.setattr(pool.Processes, "expect", expecting)
    run_tokenize(str(corpus), str(tmp_path / "early"), **libraries_of_job)
    monkeypatch.undo()
    run_tokenize(str(corpus), str(tmp_path / "plain"), **{**libraries_of_job, "encoder": "reference"})
    assert (tmp_path / "early.bin").read_bytes() == (tmp_path / "plain.bin").read_bytes()
