"""Runs with directories whose files beside tokenizer.json change its ids."""

import json
from dataclasses import replace

import pytest

from support import directory_cases
from support.command_line import tokshard as command
from tokshard import IndexedDataset, InspectOptions, TokenizeOptions, inspect, tokenize
from tokshard.dataset.manifest import read_manifest
from tokshard.errors import TokenizerError, UsageError
from tokshard.tokenization.workers.pool import ProcessPool
from tokshard.tokenizer import libraries
from tokshard.tokenizer.definition import load_tokenizer

TEXT = "the<|new|>hall in the hall"


@pytest.fixture(autouse=True)
def no_cache(monkeypatch):
    """Runs need no directory besides that of the output: the home directory of a container is read-only."""
    monkeypatch.setenv("TOKSHARD_CACHE_DIR", "/dev/null/cache")


def write(directory, name):
    directory.mkdir(exist_ok=True)
    for file, content in directory_cases.cases()[name].items():
        (directory / file).write_text(json.dumps(content), encoding="utf-8")
    (directory.parent / "corpus.jsonl").write_text(json.dumps({"text": TEXT}) + "\n", encoding="utf-8")
    return str(directory)


def options(tmp_path, name, **more):
    tokenizer = write(tmp_path / "tokenizer", name)
    return TokenizeOptions(str(tmp_path / "corpus.jsonl"), str(tmp_path / "out"), tokenizer=tokenizer, **more)


@pytest.mark.parametrize("name", ["pad_token", "split_special_tokens"])
def test_workers_encode_with_the_changed_definition(name, tmp_path):
    chosen = options(tmp_path, name, append_eod=False)
    with ProcessPool(1) as pool:
        pool.start().expect(chosen)
        report = tokenize(chosen, executor=pool)
    assert report.warnings == ()
    expected = load_tokenizer(chosen.tokenizer)
    library = libraries.huggingface(expected)
    ids, _ = library.encode([TEXT], special_tokens=False)
    assert IndexedDataset(chosen.output)[0].tolist() == ids.tolist()
    assert report.tokenizer == expected.identity
    assert inspect(InspectOptions(chosen.output, document=0)).text is not None


def test_a_difference_of_the_versions_is_a_warning_once_and_recorded(tmp_path):
    chosen = options(tmp_path, "add_prefix_space")
    report = tokenize(chosen)
    assert ["transformers 4 and 5 read the directory" in text for text in report.warnings] == [True]
    assert read_manifest(chosen.output).tokenizer.transformers == "5"


def test_a_run_with_a_version_records_it_and_is_read_with_it(tmp_path):
    chosen = options(tmp_path, "add_prefix_space", transformers="4", strict_tokenizer=True)
    report = tokenize(chosen)
    assert report.warnings == ()
    assert read_manifest(chosen.output).tokenizer.transformers == "4"
    assert inspect(InspectOptions(chosen.output, document=0)).text is not None
    assert tokenize(chosen).up_to_date


def test_the_preset_refuses_a_difference_of_the_versions(tmp_path):
    write(tmp_path / "tokenizer", "add_prefix_space")
    arguments = ["tokenize", "corpus.jsonl", "--tokenizer", "tokenizer", "-o", "out", "--preset", "megatron"]
    done = command(*arguments, cwd=tmp_path)
    assert done.returncode == 3
    assert "transformers 4 and 5 read the directory of the tokenizer" in done.stderr
    assert "pass --transformers 4 or --transformers 5" in done.stderr
    assert command(*arguments, "--transformers", "4", cwd=tmp_path).returncode == 0


def test_an_unfollowed_setting_is_refused_by_name(tmp_path):
    with pytest.raises(TokenizerError, match="auto_map names code of its own"):
        tokenize(options(tmp_path, "auto_map", strict_tokenizer=True))
    assert "auto_map names code of its own" in tokenize(options(tmp_path, "auto_map")).warnings[0]


def test_a_version_is_4_or_5(tmp_path):
    with pytest.raises(UsageError, match="--transformers must be 4, 5, got '6'"):
        options(tmp_path, "plain", transformers="6")
    with pytest.raises(UsageError, match=r"--transformers requires a tokenizer\.json, got the built-in"):
        tokenize(TokenizeOptions(str(tmp_path / "corpus.jsonl"), str(tmp_path / "out"), transformers="4"))
    with pytest.raises(UsageError, match="--transformers and --no-files-beside exclude each other"):
        options(tmp_path, "plain", transformers="4", files_beside=False)


def test_a_version_makes_no_difference_for_a_file_alone(tmp_path):
    chosen = options(tmp_path, "plain", append_eod=False)
    for path in (tmp_path / "tokenizer").iterdir():
        if path.name != "tokenizer.json":
            path.unlink()
    tokenize(chosen)
    assert tokenize(replace(chosen, transformers="4")).up_to_date


@pytest.mark.parametrize("name", ["plain", "pad_token", "LlamaTokenizer"])
@pytest.mark.parametrize("major", [None, "4", "5"])
def test_what_is_loaded_ahead_is_what_the_job_needs(name, major, tmp_path):
    path = write(tmp_path / "tokenizer", name)
    libraries.load_ahead(f"{path}/tokenizer.json", special_tokens=False, transformers=major)
    tokenizer = load_tokenizer(path, transformers=major)
    if libraries._reference_ahead:  # nothing is loaded where the fast encoder does not serve
        assert list(libraries._reference_ahead) == [tokenizer.sha256]
    libraries._reference_ahead.clear()
    libraries._fast_ahead.clear()
