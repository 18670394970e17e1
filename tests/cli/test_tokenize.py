"""``tokshard tokenize`` as a user types it: output, messages, exit codes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.command_line import SAMPLE, json_of, tokshard

TOKENIZER = SAMPLE / "tokenizer.json"


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"text": "hello"}\n{"text": "world", "title": "t"}\n')
    return path


def pair(prefix: Path) -> tuple[bytes, bytes]:
    return prefix.with_name(prefix.name + ".bin").read_bytes(), prefix.with_name(
        prefix.name + ".idx"
    ).read_bytes()


def test_the_bare_run_says_what_it_did(tmp_path, corpus):
    done = tokshard("tokenize", corpus.name, cwd=tmp_path)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0].startswith("written: corpus.bin, .idx: 2 documents, 2 sequences, 12 tokens (uint16, ")
    assert lines[1] == "encoder: reference (the fast encoder does not support bytes tokenizers)"
    assert re.fullmatch(r"time: 50 B of text in \S+ s \(\S+ k?B/s of text, \S+ tokens/s\)", lines[2])
    assert lines[3:] == ["next: tokshard inspect corpus"]
    assert "built-in byte-level tokenizer" in done.stderr
    assert "--tokenizer" in done.stderr
    again = tokshard("tokenize", corpus.name, cwd=tmp_path)
    assert again.returncode == 0
    assert again.stdout.startswith("up to date: corpus.bin, .idx: 2 documents")


def test_json_is_one_document_and_quiet_is_quiet(tmp_path, corpus):
    done = tokshard("tokenize", corpus, "-o", "x", "--json", "--quiet", cwd=tmp_path)
    report = json_of(done)
    assert (done.returncode, done.stderr) == (0, "")
    assert (report["schema"], report["action"]) == ("tokshard.tokenize/2", "written")
    assert report["outputs"][0]["counts"]["tokens"] == 12
    done = tokshard("tokenize", corpus, "-o", "y", "--quiet", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_dry_run_writes_nothing(tmp_path, corpus):
    done = tokshard("tokenize", corpus, "-o", "x", "--dry-run", "--tokenizer", TOKENIZER, cwd=tmp_path)
    assert done.returncode == 0
    assert "outputs: x (new)" in done.stdout
    assert done.stdout.endswith("nothing was written (--dry-run)\n")
    assert "corpus.jsonl (jsonl, 50 B)" in done.stdout
    plan = json_of(tokshard("tokenize", corpus, "-o", "x", "--dry-run", "--json", cwd=tmp_path))
    assert (plan["schema"], plan["action"], plan["state"]) == ("tokshard.tokenize/2", "planned", "new")
    assert [source["path"] for source in plan["inputs"]] == [str(corpus)]
    assert plan["outputs"][0].keys() == {"path_prefix", "tokenizer"}
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.jsonl"]


def test_stdin(tmp_path):
    data = (SAMPLE / "stories.jsonl.gz").read_bytes()
    done = tokshard("tokenize", "-", "-o", "x", "--json", cwd=tmp_path, stdin=data)
    assert json_of(done)["counts"]["documents"] == 430


def test_lists_directories_and_globs(tmp_path, corpus):
    (tmp_path / "sub").mkdir()
    for number in (10, 9):
        (tmp_path / "sub" / f"part-{number}.jsonl").write_text(json.dumps({"text": f"{number}"}) + "\n")
    (tmp_path / "list.txt").write_text("corpus.jsonl\nsub/part-9.jsonl\n")
    for output, arguments, documents in (
        ("a", ["sub"], 2),
        ("b", ["sub/part-*.jsonl"], 2),
        ("c", ["@list.txt"], 3),
    ):
        done = tokshard("tokenize", *arguments, "-o", output, "--json", cwd=tmp_path)
        assert json_of(done)["counts"]["documents"] == documents, done.stderr
    assert pair(tmp_path / "a") == pair(tmp_path / "b")
    assert (tmp_path / "a.bin").read_bytes()[::2].startswith(b"9\x0010")


FAILURES = {
    "no input": ([], 2, "INPUT"),
    "unknown option": (["c.jsonl", "--nonsense"], 2, "--nonsense"),
    "not a size": (["c.jsonl", "--unit-size", "many"], 2, "many"),
    "unknown choice": (["c.jsonl", "--encoder", "quick"], 2, "quick"),
    "max-errors without skip": (["c.jsonl", "--max-errors", "3"], 2, "--on-error skip"),
    "no output name": (["c.jsonl", "d.jsonl"], 2, "--output PREFIX"),
    "output is a directory": (["c.jsonl", "-o", "out/"], 2, "prefix"),
    "input is not there": (["nothing.jsonl"], 3, "nothing.jsonl"),
    "tokenizer is not there": (["c.jsonl", "--tokenizer", "nothing.json"], 3, "nothing.json"),
    "bad record": (["bad.jsonl"], 3, "bad.jsonl:2: invalid JSON: Expecting"),
    "no such field": (
        ["c.jsonl", "--field", "body"],
        3,
        'error: c.jsonl:1: field "body" not found (fields: text)\nhint: pass --field text\n',
    ),
    "not text": (["image.png"], 3, "image.png"),
    "exists": (["c.jsonl", "-o", "taken"], 4, "--force"),
    "no permission": (["c.jsonl", "-o", "/proc/x"], 7, "/proc/x"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_is_one_sentence_a_hint_and_its_exit_code(tmp_path, name):
    arguments, code, text = FAILURES[name]
    for file in ("c.jsonl", "d.jsonl"):
        (tmp_path / file).write_text('{"text":""}\n')
    (tmp_path / "bad.jsonl").write_text('{"text":""}\n{"text":\n{"text":""}\n')
    (tmp_path / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    (tmp_path / "taken.bin").write_bytes(b"")
    before = sorted(path.name for path in tmp_path.iterdir())
    done = tokshard("tokenize", *arguments, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert text in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    left = sorted(path.name for path in tmp_path.iterdir())
    assert [path for path in left if path not in before and path != "bad.tokshard"] in ([], ["c.tokshard"])


def test_a_failure_in_json_mode_is_a_document_too(tmp_path):
    (tmp_path / "bad.jsonl").write_text("1\n")
    done = tokshard("tokenize", "bad.jsonl", "--json", cwd=tmp_path)
    error = json_of(done)
    assert done.returncode == error["exit_code"] == 3
    assert (error["schema"], error["error"]) == ("tokshard.error/2", "BadRecordError")
    assert (error["line"], error["offset"], error["reason"]) == (1, 0, "not-object")


def test_skipped_records_are_counted_and_listed(tmp_path):
    done = tokshard("tokenize", SAMPLE / "hostile.jsonl", "-o", "x", "--on-error", "skip", cwd=tmp_path)
    assert done.returncode == 0
    assert re.search(r"rejected: .*\d+ invalid-utf8.*x\.tokshard/rejected\.jsonl", done.stdout)


def test_escape_sequences_of_data_never_reach_the_terminal(tmp_path):
    name = "a\x1b[31m[red]b.jsonl"
    (tmp_path / name).write_bytes(b'{"text": "x"}\n\x1b]0;title\x07[bold]\n')
    done = tokshard("tokenize", name, "-o", "x\x1b[2J", cwd=tmp_path)
    assert done.returncode == 3
    assert "\x1b" not in done.stdout + done.stderr
    assert "\x07" not in done.stderr
    assert "\\x1b[31m[red]b.jsonl:2" in done.stderr


def test_results_that_cannot_be_written_are_a_storage_error(tmp_path, corpus):
    code = "import sys; from tokshard.cli.main import main; main()"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code, "tokenize", corpus.name],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 7
    assert "standard output" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_error_that_cannot_be_told_keeps_its_exit_code(tmp_path):
    code = "from tokshard.cli.main import main; main()"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", code, "tokenize", "nothing.jsonl"], cwd=tmp_path, stderr=full, check=False
        )
    assert done.returncode == 3


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_closed_standard_streams_do_no_harm(tmp_path, corpus, closed):
    program = f"{sys.executable} -c 'from tokshard.cli.main import main; main()'"
    command = f"{program} tokenize {corpus.name} {closed}"
    done = subprocess.run(command, shell=True, cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "corpus.bin").read_bytes()) == 24


# Megatron's preset


def test_the_preset_accepts_an_old_command_line(tmp_path, corpus):
    spelled = ["--input", corpus.name, "--output-prefix", "old", "--json-keys", "text", "--tokenizer-type",
               "HuggingFaceTokenizer", "--tokenizer-model", str(TOKENIZER), "--workers", "2", "--append-eod",
               "--log-interval", "100"]  # fmt: skip
    done = tokshard("tokenize", "--preset", "megatron", *spelled, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    own = ["-o", "new", "--tokenizer", TOKENIZER, "--special-tokens", "--append-eod"]
    assert tokshard("tokenize", corpus.name, *own, cwd=tmp_path).returncode == 0
    assert pair(tmp_path / "old_text_document") == pair(tmp_path / "new")


def test_the_preset_has_megatrons_defaults(tmp_path, corpus):
    done = tokshard("tokenize", "--preset=megatron", "--input=corpus.jsonl", "--output-prefix=p",
                    f"--tokenizer-model={TOKENIZER}", cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    own = ["-o", "q", "--tokenizer", TOKENIZER, "--special-tokens", "--no-append-eod"]
    tokshard("tokenize", corpus.name, *own, cwd=tmp_path)
    assert pair(tmp_path / "p_text_document") == pair(tmp_path / "q")


def test_a_dot_in_a_json_key_is_part_of_the_key_as_in_megatron(tmp_path):
    (tmp_path / "dotted.jsonl").write_text('{"a.b": "one two", "a": {"b": "three"}}\n')
    done = tokshard("tokenize", "--preset", "megatron", "--input", "dotted.jsonl", "--output-prefix", "p",
                    "--json-keys", "a.b", "--tokenizer-model", TOKENIZER, cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    (tmp_path / "plain.jsonl").write_text('{"text": "one two"}\n')
    own = ["-o", "q", "--tokenizer", TOKENIZER, "--special-tokens", "--no-append-eod"]
    assert tokshard("tokenize", "plain.jsonl", *own, cwd=tmp_path).returncode == 0
    assert pair(tmp_path / "p_a.b_document") == pair(tmp_path / "q")


def test_json_keys_end_at_a_short_option_as_in_megatron(tmp_path, corpus):
    done = tokshard("tokenize", "--preset", "megatron", "--input", corpus.name, "--json-keys", "text",
                    "-o", "p", "--tokenizer-model", TOKENIZER, cwd=tmp_path)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "p_text_document.idx").exists()


@pytest.mark.parametrize(
    "option", [["--split-sentences"], ["--partitions", "4"], ["--tokenizer-type", "BertWordPieceCase"]]
)
def test_the_preset_refuses_what_it_cannot_equal(tmp_path, corpus, option):
    done = tokshard("tokenize", "--preset", "megatron", "--input", corpus, "--output-prefix", "x", *option)
    assert done.returncode == 2
    assert option[0] in done.stderr
    assert "hint:" in done.stderr


@pytest.mark.parametrize("option", ["--json-keys", "--output-prefix", "--tokenizer-type", "--log-interval"])
def test_the_preset_names_megatrons_option_without_a_value(corpus, option):
    for rest in ([], ["--append-eod"]):
        done = tokshard("tokenize", "--preset", "megatron", "--input", corpus, option, *rest)
        assert done.returncode == 2
        assert done.stderr == f"error: {option} requires a value\nhint: pass {option} VALUE\n"


def test_megatrons_spellings_need_the_preset(corpus):
    assert tokshard("tokenize", "--input", corpus).returncode == 2


# The outside world


AUDIT = """
import sys
def watch(event, arguments):
    ours = event == "pickle.find_class" and arguments[0].startswith("tokshard.")  # between our processes
    if event in {"socket.connect", "socket.getaddrinfo", "pickle.find_class"} and not ours:
        sys.stderr.write(f"AUDIT {event} {arguments}\\n")
sys.addaudithook(watch)
"""


def test_no_network_and_no_pickle_of_others(tmp_path):
    """P18, P38: in the command and in its worker processes (an audit hook in each, by sitecustomize)."""
    (tmp_path / "shim").mkdir()
    (tmp_path / "shim" / "sitecustomize.py").write_text(AUDIT)
    lines = (SAMPLE / "stories.jsonl").read_bytes()
    (tmp_path / "corpus.jsonl").write_bytes(lines * 8)
    arguments = ["corpus.jsonl", "--tokenizer", TOKENIZER, "--workers", "2", "--unit-size", "1MB"]
    done = tokshard("tokenize", *arguments, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path / "shim")})
    assert done.returncode == 0, done.stderr
    assert "AUDIT" not in done.stderr
    probe = subprocess.run(
        [sys.executable, "-c", "import socket; socket.socket().connect(('127.0.0.1', 9))"],
        env={"PYTHONPATH": str(tmp_path / "shim")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "AUDIT socket.connect" in probe.stderr


CORPUS = '{"id": 1, "content": "a", "meta": {"title": "b"}}\n'
CHAT = '{"messages": [{"role": "user", "content": "a"}]}\n'


@pytest.mark.parametrize(
    ("name", "content", "arguments", "message", "hint"),
    [
        (
            "c.jsonl",
            CORPUS,
            [],
            'c.jsonl:1: field "text" not found (fields: id, content, meta.title)',
            "pass --field content",
        ),
        (
            "c.jsonl",
            CORPUS,
            ["--on-error", "skip"],
            (
                "every record was rejected (1 field-missing); the first is "
                'c.jsonl:1: field "text" not found (fields: id, content, meta.title)'
            ),
            "pass --field content",
        ),
        (
            "c.jsonl",
            CHAT,
            ["--field", "messages"],
            'c.jsonl:1: field "messages" contains chat messages, which are not supported yet',
            "render each conversation to one string field",
        ),
        (
            "c.json",
            f"[{CORPUS.rstrip()}]",
            [],
            "c.json:1: the record must be a JSON object, got an array",
            "convert the JSON array to JSON lines: jq -c '.[]' c.json > c.jsonl",
        ),
        ("c.jsonl.gz", "", [], "c.jsonl.gz is empty", "fetch c.jsonl.gz again"),
        (
            "c.jsonl",
            '{"text": "a"}\n',
            ["--tokenizer", "org/name"],
            "tokenizer not found: org/name",
            "pass hf:org/name",
        ),
        ("c.jsonl", '{"text": "a"}\n', ["--field", "a..b"], "--field must name keys", "escape a dot"),
    ],
)
def test_a_mistake_is_explained_with_what_to_do(name, content, arguments, message, hint, tmp_path):
    (tmp_path / name).write_text(content)
    done = tokshard("tokenize", name, "-o", "x", "--quiet", *arguments, cwd=tmp_path)
    assert done.returncode == (2 if "a..b" in arguments else 3)
    assert done.stderr.startswith(f"error: {message}")
    assert f"\nhint: {hint}" in done.stderr
    assert not list(tmp_path.glob("x.*in"))


def test_the_second_attempt_with_the_suggested_field_works(tmp_path):
    (tmp_path / "c.jsonl").write_text(CORPUS + CHAT)
    wrong = tokshard("tokenize", "c.jsonl", "--quiet", "--json", cwd=tmp_path)
    assert (wrong.returncode, json_of(wrong)["reason"]) == (3, "field-missing")
    (tmp_path / "c.jsonl").write_text(CORPUS)
    hint = json_of(wrong)["hint"].removeprefix("pass ").split()
    assert tokshard("tokenize", "c.jsonl", "--quiet", *hint, cwd=tmp_path).returncode == 0
    nested = ["--field", "meta.title", "--field", "content", "-o", "y"]
    report = json_of(tokshard("tokenize", "c.jsonl", "--quiet", "--json", *nested, cwd=tmp_path))
    assert [output["path_prefix"] for output in report["outputs"]] == [
        "y_meta.title_document",
        "y_content_document",
    ]
    assert [output["dataset"]["field"] for output in report["outputs"]] == ["meta.title", "content"]


def test_finished_units_of_other_options_are_kept_without_force(tmp_path):
    (tmp_path / "c.jsonl").write_text('{"text": "abc"}\n' * 100 + "{\n")
    command = ("tokenize", "c.jsonl", "-o", "x", "--unit-size", "100", "--json")
    assert tokshard(*command, cwd=tmp_path).returncode == 3
    refused = tokshard(*command, "--limit", "8", cwd=tmp_path)
    assert (refused.returncode, json_of(refused)["differences"]) == (4, ["--limit was not set and is now 8"])
    assert "x.tokshard/work has 16 finished units of other options: --limit was" in refused.stderr
    report = json_of(tokshard(*command, "--limit", "8", "--force", cwd=tmp_path))
    assert (report["units_reused"], report["outputs"][0]["dataset"]["units"]) == (0, 2)
