"""Directories that transformers reads: what is kept of its answer, and commands that fail."""

import json
import shlex
import sys
import time
from importlib.util import find_spec

import pytest

from support.command_line import tokshard
from support.tokenize_runs import manifest
from support.tokenizer_definitions import lists_of
from support.transformers_stand_in import python_with_transformers, small_directory
from tokshard import export_with_transformers
from tokshard.errors import MissingExtraError, TokenizerError, UsageError
from tokshard.text.tokenizer import transformers_reader
from tokshard.text.tokenizer.definition import load_tokenizer, reopen_tokenizer
from tokshard.text.tokenizer.encoders import reference_encoder

DEFINITION, CONFIG = "tokenizer.json", "tokenizer_config.json"


@pytest.fixture
def directory(tmp_path):
    """A directory with a setting that changes ids."""
    (tmp_path / "model").mkdir()
    for name, content in small_directory(do_lower_case=True).items():
        (tmp_path / "model" / name).write_text(json.dumps(content), encoding="utf-8")
    (tmp_path / "corpus.jsonl").write_text('{"text": "The hall"}\n')
    return tmp_path / "model"


LOWERCASE = "tokenizer.backend_tokenizer.normalizer = tokenizers.normalizers.Lowercase()"


def ids(tokenizer, text):
    return lists_of(reference_encoder(tokenizer, special_tokens=False).encode([text]))[0]


def test_the_exported_definition_is_used_and_recorded(directory, tmp_path):
    python = python_with_transformers(tmp_path / "packages", LOWERCASE)
    tokenizer = load_tokenizer(str(directory), transformers=python)
    assert tokenizer.identity.transformers == "99.0"
    assert (tokenizer.setting, tokenizer.identity.eod_token) == ("do_lower_case True", "<|end|>")
    assert ids(tokenizer, "THE HALL") == ids(tokenizer, "the hall")
    alone = load_tokenizer(str(directory / DEFINITION), eod="<|end|>", files_beside=False)
    assert tokenizer.identity.vocab_size == alone.identity.vocab_size
    assert tokenizer.identity.definition_sha256 != alone.identity.definition_sha256
    # Workers open a file with the definition.
    path = tokenizer.definition_path(str(tmp_path))
    assert reopen_tokenizer(path, tokenizer.identity, tokenizer.sha256).definition == tokenizer.definition


def test_truncation_and_padding_are_left_out(directory, tmp_path):
    change = "tokenizer.backend_tokenizer.enable_truncation(1000)"
    python = python_with_transformers(tmp_path / "packages", change)
    definition = json.loads(load_tokenizer(str(directory), transformers=python).definition)
    assert (definition["truncation"], definition["padding"]) == (None, None)


def test_a_tokenizer_with_ids_of_its_own_is_refused(directory, tmp_path):
    python = python_with_transformers(
        tmp_path / "packages", "LikeFast.__call__ = lambda *_, **__: Encoded([[1]] * 6)"
    )
    with pytest.raises(TokenizerError, match=r"no definition gives the ids of LikeFast .* '<\|end\|>'"):
        load_tokenizer(str(directory), transformers=python)


def test_split_special_tokens_is_kept(directory, tmp_path):
    change = "tokenizer.backend_tokenizer.encode_special_tokens = True"
    python = python_with_transformers(tmp_path / "packages", change)
    tokenizer = load_tokenizer(str(directory), transformers=python)
    assert tokenizer.identity.eod_id not in ids(tokenizer, "a<|end|>b")
    assert tokenizer.identity.special_tokens_in_text == "split"
    path = tokenizer.definition_path(str(tmp_path))
    again = reopen_tokenizer(path, tokenizer.identity, tokenizer.sha256)
    assert ids(again, "a<|end|>b") == ids(tokenizer, "a<|end|>b")


def test_a_tokenizer_that_megatron_changes_is_refused(directory, tmp_path):
    again = "[tokenizers.AddedToken('<|end|>', lstrip=True)]"
    change = (
        f"LikeFast.add_special_tokens = lambda self, _: self.backend_tokenizer.add_special_tokens({again})"
    )
    python = python_with_transformers(tmp_path / "packages", change)
    with pytest.raises(TokenizerError, match=r"Megatron finds '<\|end\|>' in other texts than AutoTokenizer"):
        load_tokenizer(str(directory), transformers=python)


class _WithFlags:
    """A tokenizer that finds its EOS token only before normalization, though its definition says after."""

    is_fast = True

    def __init__(self, definition):
        from tokenizers import Tokenizer

        self.backend_tokenizer = Tokenizer.from_str(json.dumps(definition))
        changed = {**definition, "added_tokens": [{**definition["added_tokens"][0], "normalized": False}]}
        self._loaded = Tokenizer.from_str(json.dumps(changed))

    def __call__(self, texts, add_special_tokens):
        encoded = self._loaded.encode_batch(texts, add_special_tokens=add_special_tokens)
        return type("Encoded", (), {"input_ids": [one.ids for one in encoded]})


def test_flags_of_added_tokens_are_those_by_which_they_are_found():
    definition = small_directory()[DEFINITION]
    definition["added_tokens"][0]["normalized"] = True
    definition["normalizer"] = {"type": "Lowercase"}
    exported = export_with_transformers.export(_WithFlags(definition))
    assert [token["normalized"] for token in exported["added_tokens"]] == [False]


def test_transformers_runs_once(directory, tmp_path):
    log = tmp_path / "log"
    python = python_with_transformers(tmp_path / "packages", f"open({str(log)!r}, 'a').write('x')")
    first = load_tokenizer(str(directory), transformers=python)
    assert load_tokenizer(str(directory), transformers=python).identity == first.identity
    with pytest.raises(TokenizerError, match="is not plain: do_lower_case True"):
        load_tokenizer(str(directory), transformers=python, plain=True)
    assert log.read_text() == "x"


def test_a_plain_directory_starts_nothing(directory):
    (directory / CONFIG).write_text("{}")
    assert load_tokenizer(str(directory), need_eod=False, transformers="false").identity.transformers is None


def test_files_of_a_directory_without_a_tokenizer_json_are_sent(tmp_path):
    for name in ("vocab.txt", CONFIG, "config.json"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"large")
    change = f"open({str(tmp_path / 'seen')!r}, 'w').write(' '.join(sorted(os.listdir(path)))); 1 / 0"
    python = python_with_transformers(tmp_path / "packages", "pass")
    package = tmp_path / "packages" / "transformers" / "__init__.py"
    package.write_text(package.read_text().replace("tokenizer = LikeFast(path)", change))
    with pytest.raises(TokenizerError, match=r"cannot load the tokenizer directory .*ZeroDivision"):
        load_tokenizer(str(tmp_path), transformers=python)
    assert (tmp_path / "seen").read_text() == "config.json tokenizer_config.json vocab.txt"


def test_transformers_that_is_not_installed(directory, without_transformers):
    with pytest.raises(MissingExtraError, match=r"\(do_lower_case True\) requires transformers") as caught:
        load_tokenizer(str(directory))
    assert caught.value.hint.startswith("pip install transformers; tokshard tokenize also accepts --trans")


@pytest.mark.parametrize("wrong", ["", "'unfinished"])
def test_a_value_that_is_no_command(wrong, directory):
    with pytest.raises(UsageError, match="--transformers must be a command, got "):
        load_tokenizer(str(directory), transformers=wrong)


def test_a_command_that_hangs_is_ended_with_what_it_started(directory, tmp_path, monkeypatch):
    monkeypatch.setattr(transformers_reader, "TIMEOUT_SECONDS", 1)
    started = time.monotonic()
    command = shlex.join(["sh", "-c", f"(sleep 5; touch {tmp_path / 'late'}) & sleep 60"])
    with pytest.raises(TokenizerError, match="did not answer within 1 s"):
        load_tokenizer(str(directory), transformers=command)
    assert time.monotonic() - started < 10
    time.sleep(5)
    assert not (tmp_path / "late").exists()


def tokenize(directory, *words):
    corpus = directory.parent / "corpus.jsonl"
    return tokshard("tokenize", corpus, "-o", directory.parent / "out", "--tokenizer", directory, *words)


@pytest.mark.skipif(find_spec("transformers") is not None, reason="transformers is installed")
def test_without_transformers_the_command_line_names_both_ways(directory):
    done = tokenize(directory)
    assert done.returncode == 2
    assert done.stderr.startswith(
        f"error: the tokenizer directory {directory} (do_lower_case True) requires "
    )
    assert (
        "hint: pip install transformers; tokshard tokenize also accepts --transformers PYTHON" in done.stderr
    )


@pytest.mark.parametrize(
    ("python", "message"),
    [
        ("/no/such/python", "cannot run /no/such/python: No such file"),
        ("false", "the command false printed no answer (exit code 1)"),
        ("sh -c 'echo no daemon >&2; exit 5'", "printed no answer (exit code 5): no daemon"),
        ("sh -c 'echo garbage; echo []; echo 1'", "printed no answer (exit code 0)"),
        ("""sh -c 'echo "{\\"tokshard\\": \\"export_with_transformers\\"}"'""", "the answer is incomplete"),
        (f"{sys.executable} -S", "No module named 'transformers'"),
    ],
)
def test_a_command_that_fails(python, message, directory):
    done = tokenize(directory, "--transformers", python)
    assert done.returncode == 3
    assert message in done.stderr
    assert done.stderr.count("error: ") == 1
    assert (
        "hint: pass --transformers with a command that starts a Python that has transformers" in done.stderr
    )
    assert not list(directory.parent.glob("out*"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"auto_map": {"AutoTokenizer": ["code.Own", None]}}, "auto_map names code of its own"),
        ({"eos_token": {"content": "<|end|>"}}, "eos_token is not a token"),
    ],
)
def test_what_is_refused_whatever_reads_it(settings, message, directory, tmp_path):
    (directory / CONFIG).write_text(json.dumps(settings))
    done = tokenize(directory, "--transformers", python_with_transformers(tmp_path / "packages"))
    assert done.returncode == 3
    assert done.stderr.startswith(f"error: cannot read the tokenizer directory {directory}: {message}")
    assert "hint: " in done.stderr


def test_a_run_with_another_python(directory, tmp_path):
    log = tmp_path / "log"
    change = f"open({str(log)!r}, 'a').write('x'); {LOWERCASE}"
    python = python_with_transformers(tmp_path / "packages", change)
    assert tokenize(directory, "--transformers", python, "--workers", "2").returncode == 0
    assert log.read_text() == "x"
    assert manifest(tmp_path / "out")["tokenizer"]["transformers"] == "99.0"
    assert ", read by transformers 99.0\n" in tokshard("inspect", tmp_path / "out").stdout
    assert tokenize(directory, "--transformers", python).stdout.count("up to date") == 1
