"""P63: the cache of what is derived from definitions never causes another result, and never an error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.tokenize_runs import SAMPLE, TOKENIZER, run_tokenize, texts_of, write_jsonl
from support.tokenizer_definitions import lists_of, metaspace, probe, written
from tokshard.errors import TokenizerError
from tokshard.tokenizer import definition, derived, fast_library, libraries
from tokshard.tokenizer.definition import load_tokenizer
from tokshard.tokenizer.encoders import fast_encoder, fast_encoder_refusal

TEXTS = [*texts_of(SAMPLE / "stories.jsonl")[:20], "it'\u017f", "a\u180eb", "<0x0A>", " <|endoftext|>\u2581"]
FIELDS = ("kind", "argument", "path", "identity", "sha256", "definition", "applied", "warnings")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """The directory of the cache, which keeps results of small definitions, too."""
    monkeypatch.setenv("TOKSHARD_CACHE_DIR", str(tmp_path / "cache"))
    for module in (definition, fast_library, libraries):
        monkeypatch.setattr(module, "MIN_DEFINITION_BYTES", 0)
    return tmp_path / "cache" / "definitions"


@pytest.fixture
def parsed(monkeypatch):
    """The number of definitions that were parsed."""
    counts = []
    for module in (definition, libraries):
        name = "parse_json" if module is definition else "parse_object"
        original = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *given, original=original: counts.append(1) or original(*given)
        )
    return counts


def result(path=TOKENIZER, *, special_tokens=False, **options):
    """Return all that is derived of a tokenizer, as a new process would."""
    for objects in (libraries._examined, libraries._fast_ahead, libraries._reference_ahead):
        objects.clear()
    tokenizer = load_tokenizer(path, need_eod=False, **options)
    fields = [getattr(tokenizer, name) for name in FIELDS]
    refusal = fast_encoder_refusal(tokenizer, special_tokens=special_tokens)
    if refusal is not None:
        return fields, refusal
    return fields, lists_of(fast_encoder(tokenizer, special_tokens=special_tokens).encode(TEXTS))


def files(cache):
    return sorted(cache.iterdir())


def definitions(directory):
    """Yield tokenizers that use each field of what is kept."""
    yield TOKENIZER
    yield str(SAMPLE)
    for number, made in enumerate(
        [
            metaspace(),
            metaspace(prepend_scheme="never"),
            {**probe(), "model": {**probe()["model"], "byte_fallback": True}},
            {**probe(), "model": {**probe()["model"], "dropout": 0.5}},
        ]
    ):
        (directory / str(number)).mkdir()
        yield written(directory / str(number), made).path
    (directory / "beside").mkdir()
    path = written(directory / "beside", json.loads(Path(TOKENIZER).read_bytes())).path
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "bos_token": "a"}
    (directory / "beside" / "tokenizer_config.json").write_text(json.dumps(config))
    yield path
    yield str(directory / "beside")


def test_what_is_kept_is_what_is_derived(tmp_path, monkeypatch, parsed):
    places = list(definitions(tmp_path))
    for place in places:
        for special_tokens in (False, True):
            with monkeypatch.context() as patch:
                patch.setenv("TOKSHARD_CACHE_DIR", "/dev/null/cache")
                expected = result(place, special_tokens=special_tokens)
            assert result(place, special_tokens=special_tokens) == expected
            del parsed[:]
            assert result(place, special_tokens=special_tokens) == expected
            assert not parsed


def test_what_is_loaded_ahead_is_not_parsed_again(tmp_path, monkeypatch, parsed):
    for place in definitions(tmp_path):
        with monkeypatch.context() as patch:
            patch.setenv("TOKSHARD_CACHE_DIR", "/dev/null/cache")
            tokenizer = load_tokenizer(place, need_eod=False)
            expected = libraries.boundaries_of(tokenizer)
        result(place, special_tokens=True)  # another result of the same file
        load_tokenizer(place, need_eod=False, special_tokens=False)
        refused = fast_encoder_refusal(tokenizer, special_tokens=False) is not None
        libraries._examined.clear()
        libraries._boundaries_ahead.clear()
        del parsed[:]
        libraries.load_ahead(place, need_eod=False)
        assert not parsed
        assert list(libraries._fast_ahead) == ([] if refused else [(tokenizer.sha256, False)])
        assert libraries._boundaries_ahead == ({} if refused else {tokenizer.sha256: expected})
        libraries._fast_ahead.clear()
        libraries._reference_ahead.clear()


def test_what_was_begun_is_taken_once_or_forgotten(tmp_path):
    fast_library.begin(TOKENIZER, special_tokens=False)
    assert not fast_library._begun  # no earlier run has prepared it
    expected = result()
    fast_library.begin(TOKENIZER, special_tokens=True)  # other special tokens
    fast_library.begin(str(tmp_path / "missing.json"), special_tokens=False)
    assert not fast_library._begun
    for _ in range(2):
        fast_library.begin(TOKENIZER, special_tokens=False)
    (begun,) = fast_library._begun.values()
    tokenizer = load_tokenizer(TOKENIZER)
    encoder = fast_encoder(tokenizer, special_tokens=False)
    assert encoder._library is begun.result()
    assert lists_of(encoder.encode(TEXTS)) == expected[1]
    assert not fast_library._begun
    fast_library.begin(TOKENIZER, special_tokens=False)
    (begun,) = fast_library._begun.values()
    fast_library.forget()
    assert fast_encoder(tokenizer, special_tokens=False)._library is not begun.result()


def test_datasets_are_the_same(tmp_path, monkeypatch):
    begun = []
    begin = fast_library.begin

    def counted(path, *, special_tokens):
        begin(path, special_tokens=special_tokens)
        begun.append(len(fast_library._begun))

    monkeypatch.setattr(fast_library, "begin", counted)
    text = write_jsonl(tmp_path / "a.jsonl", [{"text": text} for text in TEXTS] * 60)
    assert os.path.getsize(text) > 1 << 20
    outputs = []
    for name, place in (("none", "/dev/null/cache"), ("new", "cache"), ("kept", "cache")):
        monkeypatch.setenv("TOKSHARD_CACHE_DIR", str(tmp_path / place))
        libraries._examined.clear()
        report = run_tokenize(text, str(tmp_path / name / "x"), tokenizer=TOKENIZER)
        assert list(report.encoder.documents) == ["fast"]
        directory = tmp_path / name
        outputs.append([(directory / f"x{suffix}").read_bytes() for suffix in (".bin", ".idx")])
        outputs[-1].append((directory / "x.tokshard" / "provenance.bin").read_bytes())
    assert outputs[0] == outputs[1] == outputs[2]
    assert begun == [0, 0, 1]
    assert not fast_library._begun


@pytest.mark.parametrize("damage", ["empty", "half", "garbage", "a flipped byte", "others may write it"])
def test_a_damaged_file_is_replaced(cache, parsed, damage):
    expected = result()
    before = [path.read_bytes() for path in files(cache)]
    for path in files(cache):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        half = content[: len(content) // 2]
        if damage == "others may write it":
            path.chmod(0o666)
        else:
            path.write_bytes({"empty": b"", "half": half, "garbage": b"x" * 5000}.get(damage, content))
    del parsed[:]
    assert result() == expected
    assert len(parsed) == 2
    assert [path.read_bytes() for path in files(cache)] == before
    del parsed[:]
    assert result() == expected
    assert not parsed


def test_results_of_another_version_are_replaced(cache, parsed, monkeypatch):
    expected = result()
    made_by = derived._made_by()
    for version in ("another", made_by):
        monkeypatch.setattr(derived, "_made_by", lambda version=version: version)
        del parsed[:]
        assert result() == expected
        assert len(parsed) == 2
    assert len(files(cache)) == 2


def test_changed_files_are_read_again(tmp_path, cache):
    made = json.loads(Path(TOKENIZER).read_bytes())
    path = Path(written(tmp_path, made).path)
    (eod,) = (token for token in made["added_tokens"] if token["content"] == "<|endoftext|>")
    first = result(str(path))
    eod["content"] = "<|end|>"
    path.write_text(json.dumps(made))
    second = result(str(path))
    assert first[0][3].definition_sha256 != second[0][3].definition_sha256
    assert second[0][3].vocab_size == first[0][3].vocab_size + 1
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    assert result(str(path))[0][3].eod_token == "<|end|>"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "a"}))
    assert result(str(path))[0][3].eod_token == "a"


def test_errors_are_not_kept_and_options_matter(cache):
    with pytest.raises(TokenizerError, match="has no token 'no such token'"):
        result(eod="no such token")
    assert result(eod="a")[0][3].eod_token == "a"
    assert result()[0][3].eod_token == "<|endoftext|>"
    with pytest.raises(TokenizerError, match="has no token 'no such token'"):
        result(eod="no such token")


def test_a_file_that_changes_while_it_is_read_is_not_kept(tmp_path, cache, monkeypatch):
    made = json.loads(Path(TOKENIZER).read_bytes())
    path = Path(written(tmp_path, made).path)
    before = path.read_bytes()
    original = definition.huggingface_vocabulary

    def change(*given):
        path.write_bytes(before + b"\n")
        return original(*given)

    monkeypatch.setattr(definition, "huggingface_vocabulary", change)
    kept = files(cache)
    load_tokenizer(str(path), eod="a")
    assert files(cache) == kept


@pytest.mark.parametrize("place", ["file", "read-only"])
def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, monkeypatch, capfd, place):
    expected = result()
    directory = tmp_path / "other"
    if place == "file":
        directory.write_bytes(b"")
    else:
        directory.mkdir()
        (directory / "definitions").write_bytes(b"")
    monkeypatch.setenv("TOKSHARD_CACHE_DIR", str(directory))
    assert result() == result() == expected
    assert capfd.readouterr() == ("", "")


WRITER = """
import os, sys
from contextlib import suppress
from tokshard.tokenizer import definition, libraries

definition.MIN_DEFINITION_BYTES = libraries.MIN_DEFINITION_BYTES = 0
for _ in range(20):
    tokenizer = definition.load_tokenizer(sys.argv[1], need_eod=False)
    assert libraries.fast_refusal(tokenizer, special_tokens=False) is None
    libraries._examined.clear()
    for name in os.listdir(sys.argv[2]):
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(sys.argv[2], name))
"""


def test_processes_may_write_and_remove_at_once(cache, parsed):
    command = [sys.executable, "-c", WRITER, TOKENIZER, str(cache)]
    running = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait(60) for process in running] == [0, 0]
    expected = result()
    del parsed[:]
    assert result() == expected
    assert not parsed
    assert len(files(cache)) == 2
