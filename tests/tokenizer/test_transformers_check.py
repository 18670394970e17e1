"""The comparison with transformers: what it compares, where it stops, and commands that fail.

The program runs as it does for users, with a package ``transformers`` that differs in one chosen thing: only
so can the real differences of a version be told from the ability to see them. tests/oracle runs it with
transformers itself.
"""

import gzip
import itertools
import json
import os
import shlex
import shutil
import sys

import pytest

from support.command_line import tokshard
from support.tokenize_runs import SAMPLE, run_tokenize, write_jsonl
from tokshard import ArrayTask, TokenizeOptions, dry_run_tokenize, tokenize_array_task
from tokshard.errors import EncoderMismatchError, MissingExtraError, TokenizerError, UsageError
from tokshard.tokenization import transformers_check
from tokshard.tokenization.report import TokenizeReport

STAND_IN = """
import json, os, tokenizers
print("a banner of a container")
__version__ = "99.0"

class Encoded:
    def __init__(self, ids):
        self.input_ids = ids

class LikeFast:
    is_fast = True
    sep_token = cls_token = unk_token = mask_token = pad_token = bos_token = None

    def __init__(self, path):
        self.path, self.eos_token = path, "<|endoftext|>"
        file = os.path.join(path, "tokenizer.json")
        self.library = tokenizers.Tokenizer.from_file(file)
        definition = json.load(open(file))
        added = {token["content"]: token["id"] for token in definition["added_tokens"]}
        self.ids = {**definition["model"]["vocab"], **added}

    def add_special_tokens(self, tokens):
        for name, value in tokens.items():
            setattr(self, name, value)

    def __len__(self):
        return len(self.ids) + {size}

    def convert_tokens_to_ids(self, tokens):
        return [self.ids[token] + {eod} for token in tokens]

    def __call__(self, text, add_special_tokens):
        ids = self.library.encode(text, add_special_tokens=add_special_tokens).ids
        if {wrong}:
            ids = ids[:2] + [7]
        return Encoded(ids)

class AutoTokenizer:
    @staticmethod
    def from_pretrained(path, use_fast, trust_remote_code):
        print("a message to stdout")
        assert use_fast and not trust_remote_code and os.environ["HF_HUB_OFFLINE"] == "1"
        {load}
        return LikeFast(path)
"""


@pytest.fixture
def command(tmp_path):
    """Return a function: the command of a Python whose ``transformers`` differs in one thing."""

    numbers = itertools.count()

    def make(*, size=0, eod=0, wrong="False", load="pass"):
        # A directory for each: Python would take the bytecode of the one before.
        package = tmp_path / f"packages{next(numbers)}" / "transformers"
        package.mkdir(parents=True)
        program = STAND_IN
        for name, value in {"size": size, "eod": eod, "wrong": wrong, "load": load}.items():
            program = program.replace(f"{{{name}}}", str(value))
        (package / "__init__.py").write_text(program)
        start = f"echo a banner; echo 1; exec {shlex.quote(sys.executable)}"
        return shlex.join(["env", f"PYTHONPATH={package.parent}", "sh", "-c", start])

    return make


def run(tmp_path, command, *, texts=("one text", "another one"), tokenizer=SAMPLE, **options):
    source = write_jsonl(tmp_path / "corpus.jsonl", [{"text": text} for text in texts])
    return run_tokenize(
        source, str(tmp_path / "out"), tokenizer=str(tokenizer), check_against=command, **options
    )


def test_an_equal_tokenizer_is_reported(tmp_path, command):
    report = run(tmp_path, command())
    check = report.transformers_check
    # The texts of the corpus, and one for each special token.
    assert (check.version, check.tokenizer_class, check.texts) == ("99.0", "LikeFast", 4)
    assert TokenizeReport.from_json(report.to_json(), "report") == report
    again = run(tmp_path, command())
    assert again.up_to_date
    assert again.transformers_check == check


def test_no_check_unless_asked_for(tmp_path):
    assert run(tmp_path, None).transformers_check is None


@pytest.mark.parametrize(
    ("difference", "message"),
    [
        ({"wrong": "'another' in text"}, "at token 2 of the text 'another one': [652] instead of [7]"),
        ({"wrong": "text.startswith('a <|pad|>')"}, "at token 2 of the text 'a <|pad|> b<|pad|>'"),
        ({"size": 1}, "has 4096 tokens, and 4097 in transformers 99.0 (LikeFast)"),
        ({"eod": 1}, "is '<|endoftext|>' (0), and '<|endoftext|>' (1) in transformers 99.0"),
    ],
)
def test_a_difference_stops_the_run(tmp_path, command, difference, message):
    with pytest.raises(EncoderMismatchError) as caught:
        run(tmp_path, command(**difference))
    assert message in str(caught.value)
    assert "99.0 (LikeFast)" in str(caught.value)
    assert "save_pretrained" in caught.value.hint
    assert not list(tmp_path.glob("out*"))
    run(tmp_path, command())


def test_the_dry_run_checks_too(tmp_path, command):
    source = write_jsonl(tmp_path / "corpus.jsonl", [{"text": "one"}])
    options = TokenizeOptions(
        source, str(tmp_path / "out"), tokenizer=str(SAMPLE), check_against=command(size=1)
    )
    with pytest.raises(EncoderMismatchError):
        dry_run_tokenize(options)


def test_another_eod_may_be_asked_for(tmp_path, command):
    assert run(tmp_path, command(eod=1), eod="<|pad|>").transformers_check
    assert run(tmp_path, command(eod=1), append_eod=False, force=True).transformers_check


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_the_texts_are_those_of_the_first_megabyte_of_all_fields(tmp_path, command, suffix, monkeypatch):
    assert transformers_check.FIRST_BYTES == 1 << 20
    monkeypatch.setattr(transformers_check, "FIRST_BYTES", 1 << 17)  # an eighth of it is quicker
    lines = [json.dumps({"text": f"{n} " + "word " * 6_250, "title": "last"}) for n in range(9)]
    path = tmp_path / f"corpus{suffix}"
    content = "\n".join(lines).encode()
    path.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)
    fields = {"fields": ("text", "title"), "append_eod": False, "tokenizer": str(SAMPLE)}
    seen = run_tokenize(str(path), str(tmp_path / "out"), check_against=command(), **fields)
    # Four texts of 31 kB, their titles, the beginning of the fifth, and the two special tokens.
    assert seen.transformers_check.texts == 4 * 2 + 1 + 2
    with pytest.raises(EncoderMismatchError):
        wrong = command(wrong="text == 'last'")
        run_tokenize(str(path), str(tmp_path / "out"), check_against=wrong, **fields)


def test_the_files_beside_the_tokenizer_are_sent(tmp_path, command):
    directory = tmp_path / "tokenizer"
    shutil.copytree(SAMPLE, directory)
    for name in ("added_tokens.json", "config.json", "special_tokens_map.json"):
        (directory / name).write_text("{}")
    (directory / "model.safetensors").write_bytes(b"large")
    run(
        tmp_path,
        command(load=f"open({str(tmp_path / 'seen')!r}, 'w').write(' '.join(sorted(os.listdir(path))))"),
        tokenizer=directory / "tokenizer.json",
    )
    names = "added_tokens.json config.json special_tokens_map.json tokenizer.json tokenizer_config.json"
    assert (tmp_path / "seen").read_text() == names


def test_a_tokenizer_that_transformers_refuses(tmp_path, command):
    with pytest.raises(
        TokenizerError, match=r"transformers cannot use the directory of .*: ValueError: no class"
    ):
        run(tmp_path, command(load="raise ValueError('no class')"))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("/no/such/python", "cannot run /no/such/python: No such file"),
        ("false", "the command false failed with exit code 1: it printed no answer"),
        ("sh -c 'echo no daemon >&2; exit 5'", "failed with exit code 5: no daemon"),
        (f"{sys.executable} -S -c 'print(1)'", "failed with exit code 0: it printed no answer"),
    ],
)
def test_a_command_that_fails(tmp_path, wrong, message):
    with pytest.raises(TokenizerError) as caught:
        run(tmp_path, wrong)
    assert message in str(caught.value)
    assert "--check-against" in caught.value.hint


@pytest.mark.parametrize("wrong", ["", "'unfinished"])
def test_a_value_that_is_no_command(tmp_path, wrong):
    with pytest.raises(UsageError, match="--check-against"):
        run(tmp_path, wrong)


def test_transformers_that_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        MissingExtraError, match="--check-against transformers requires transformers"
    ) as caught:
        run(tmp_path, "transformers")
    assert caught.value.hint == "pip install transformers"


def test_tokenizers_without_a_directory_are_refused(tmp_path):
    other = tmp_path / "other.json"
    other.write_bytes((SAMPLE / "tokenizer.json").read_bytes())
    for tokenizer in (None, str(other)):
        source = write_jsonl(tmp_path / "corpus.jsonl", [{"text": "one"}])
        with pytest.raises(UsageError, match=r"requires the directory of a tokenizer\.json, got") as caught:
            run_tokenize(
                source, str(tmp_path / "out"), tokenizer=tokenizer, eod="0", check_against="transformers"
            )
        assert "--tokenizer DIR" in caught.value.hint


def test_a_pipe_is_refused(tmp_path, command):
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match="it can be read only once") as caught:
        run_tokenize(str(pipe), str(tmp_path / "out"), tokenizer=str(SAMPLE), check_against=command())
    assert "write the text to a file" in caught.value.hint


def test_tasks_of_an_array_check(tmp_path, command):
    source = write_jsonl(tmp_path / "corpus.jsonl", [{"text": "one"}])
    base = {"inputs": source, "output": str(tmp_path / "out"), "tokenizer": str(SAMPLE)}
    with pytest.raises(EncoderMismatchError):
        tokenize_array_task(TokenizeOptions(**base, check_against=command(size=1)), ArrayTask(0, 1))
    done = tokenize_array_task(TokenizeOptions(**base, check_against=command()), ArrayTask(0, 1))
    assert done.result.transformers_check.texts == 3


def test_the_command_line(tmp_path, command):
    source = write_jsonl(tmp_path / "corpus.jsonl", [{"text": "one"}])
    words = ["tokenize", source, "-o", tmp_path / "out", "--tokenizer", SAMPLE, "--check-against"]
    done = tokshard(*words, command())
    assert "checked: 3 texts encoded by transformers 99.0 (LikeFast), all equal\n" in done.stdout
    stopped = tokshard(*words, command(eod=1), "--force")
    assert stopped.returncode == 6
    assert stopped.stderr.startswith("error: the EOD token of ")
