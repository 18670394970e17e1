"""Runs with directories whose files beside tokenizer.json change its ids."""

import json
from dataclasses import replace

import pytest

from support.transformers_stand_in import python_with_transformers, small_directory
from tokshard import IndexedDataset, InspectOptions, TokenizeOptions, inspect, tokenize
from tokshard.dataset.manifest import read_manifest
from tokshard.errors import OutputExistsError, UsageError
from tokshard.text.tokenize.workers.pool import ProcessPool
from tokshard.text.tokenizer import encoders, fast
from tokshard.text.tokenizer.definition import load_tokenizer
from tokshard.text.tokenizer.fast import encoder

TEXT = "the<|new|>hall in the hall"
NEW_TOKEN = "tokenizer.backend_tokenizer.add_special_tokens(['<|new|>'])"


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    """Runs need no directory besides that of the output: the home directory of a container is read-only."""
    monkeypatch.setenv("TOKSHARD_CACHE_DIR", "/dev/null/cache")


@pytest.fixture
def python(tmp_path):
    """The command of a Python whose transformers adds a token."""
    return python_with_transformers(tmp_path / "packages", NEW_TOKEN)


# Settings that change ids, and none.
SETTINGS = {"pad_token": {"pad_token": "<|new|>"}, "plain": {}}


def write(directory, name):
    directory.mkdir(exist_ok=True)
    for file, content in small_directory(**SETTINGS[name]).items():
        (directory / file).write_text(json.dumps(content), encoding="utf-8")
    (directory.parent / "corpus.jsonl").write_text(json.dumps({"text": TEXT}) + "\n", encoding="utf-8")
    return str(directory)


def options(tmp_path, name, **more):
    tokenizer = write(tmp_path / "tokenizer", name)
    return TokenizeOptions(
        inputs=str(tmp_path / "corpus.jsonl"), output=str(tmp_path / "out"), tokenizer=tokenizer, **more
    )


def test_workers_encode_with_the_exported_definition(tmp_path, python):
    chosen = options(tmp_path, "pad_token", append_eod=False, transformers=python)
    with ProcessPool(1) as pool:
        pool.start().expect(chosen)
        report = tokenize(chosen, executor=pool)
    expected = load_tokenizer(chosen.tokenizer, transformers=python)
    ids = encoders.reference_encoder(expected, special_tokens=False).encode([TEXT]).ids
    assert IndexedDataset(chosen.output)[0].tolist() == ids.tolist()
    assert report.outputs[0].tokenizer == expected.identity
    assert read_manifest(chosen.output).tokenizer.transformers == "99.0"
    assert tokenize(chosen).action == "found"


def test_a_recorded_directory_is_not_available_without_transformers(tmp_path, python, monkeypatch):
    chosen = options(tmp_path, "pad_token", transformers=python)
    tokenize(chosen)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert inspect(InspectOptions(path=chosen.output, document=0)).text is None


def test_another_reading_of_the_directory_is_another_tokenizer(tmp_path, python):
    tokenize(options(tmp_path, "pad_token", transformers=python))
    other = python_with_transformers(tmp_path / "other")
    with pytest.raises(OutputExistsError, match="tokenizer"):
        tokenize(options(tmp_path, "pad_token", transformers=other))


def test_options_without_a_directory_are_refused(tmp_path):
    chosen = options(tmp_path, "plain", transformers="python")
    for name, shown in ((None, "the built-in tokenizer"), ("null:9", "null:9")):
        with pytest.raises(UsageError, match=f"--transformers requires a tokenizer.json, .*, got {shown}\n"):
            tokenize(replace(chosen, tokenizer=name))
    with pytest.raises(UsageError, match="--transformers cannot be used with --no-files-beside"):
        options(tmp_path, "plain", transformers="python", files_beside=False)


def test_a_python_makes_no_difference_for_a_plain_directory(tmp_path, python):
    chosen = options(tmp_path, "plain")
    tokenize(chosen)
    assert tokenize(replace(chosen, transformers=python)).action == "found"


@pytest.mark.parametrize(("name", "is_loaded"), [("plain", True), ("pad_token", False)])
def test_only_plain_directories_are_loaded_ahead(name, is_loaded, tmp_path, python):
    path = write(tmp_path / "tokenizer", name)
    fast.load_ahead(f"{path}/tokenizer.json", special_tokens=False, transformers=python)
    assert list(encoders._loaded_ahead) == ([load_tokenizer(path).sha256] if is_loaded else [])
    encoders._loaded_ahead.clear()
    encoder._loaded_ahead.clear()
