"""Text from data, file names, recipes and command lines is harmless wherever a command shows it (P22)."""

from __future__ import annotations

import json
import re
import unicodedata

import pytest

from support.mixture_data import run
from tokshard.cli.main import COMMANDS

CONTROLS = "".join(map(chr, [*range(1, 10), *range(11, 32), *range(127, 160)]))
MARKUP = (
    "[red]",
    "[/red]",
    "[/]",
    "[bold]x[/bold]",
    "[link=http://x]y[/link]",
    "[blink]",
    "[#ff0000]",
    "[on red]",
    "[@click=quit]",
    "[not a tag]",
    ":boom:",
    ":smile:",
    "\\[red]",
    "{x}",
    "%s",
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "\x1b]8;;http://x\x1b\\y\x1b]8;;\x1b\\",
    "\x9b2J",
    "\u202egnp.exe",
    "\u2066x\u2069",
    "\u2028y",
)
TEXT = CONTROLS + "".join(MARKUP)
NAME = "n\x1b[2J\x07\x9b1m\u202e[red][link=x]\n:boom:"
"""A name without a slash, as a file may have; with what moves cursors, hides text and is markup of rich."""

# In this order, in one directory. What ends with an error is shown, too.
RUNS = [
    ("tokenize", f"{NAME}.jsonl", "-o", NAME, "--on-error", "skip"),
    ("tokenize", f"{NAME}.jsonl", "-o", "stopped"),
    ("tokenize", f"{NAME}.jsonl", "-o", "x", "--dry-run"),
    ("tokenize", f"{NAME}.jsonl", "-o", "x", "--field", TEXT),
    ("tokenize", TEXT, "-o", "x"),
    ("tokenize", f"{NAME}.jsonl", "-o", "x", "--tokenizer", TEXT),
    ("tokenize", f"{NAME}.jsonl", "-o", "x", "--eod", TEXT),
    ("merge", NAME, NAME, "-o", f"{NAME}2"),
    ("merge", NAME, "-o", f"{NAME}3", "--dry-run"),
    ("merge", NAME, TEXT, "-o", "x"),
    ("export", NAME, "--to", "olmo", "-o", f"{NAME}e"),
    ("export", NAME, "--to", "datatrove", "-o", f"{NAME}f", "--name", TEXT),
    ("export", NAME, "--to", "datatrove", "-o", f"{NAME}f", "--dry-run"),
    ("export", TEXT, "--to", "datatrove", "-o", "x"),
    ("verify", f"{NAME}e"),
    ("convert", f"{NAME}e", "--from", "olmo", "-o", f"{NAME}v"),
    ("convert", TEXT, "--from", "nanogpt", "-o", "x"),
    ("inspect", NAME),
    ("inspect", NAME, "--document", 0),
    ("inspect", NAME, "--document", 0, "--tokenizer", TEXT),
    ("inspect", TEXT),
    ("build-indices", NAME, "--seq-length", 16, "--split", "1", "--epochs", 1, "--cache-dir", f"{NAME}c"),
    ("build-indices", NAME, "--seq-length", 16, "--split", TEXT, "--epochs", 1),
    ("build-indices", TEXT, "--seq-length", 16, "--epochs", 1),
    ("inspect", f"{NAME}c"),
    (
        "blend",
        1,
        NAME,
        2,
        f"{NAME}2",
        "--seq-length",
        16,
        "--split",
        "1",
        "--num-samples",
        9,
        "-o",
        f"{NAME}b",
    ),
    ("blend", NAME, "--seq-length", 16, "--split", "1", "--dry-run"),
    ("blend", "recipe.toml", "--seq-length", 16, "--num-samples", 9, "--split", "1", "-o", "x"),
    ("blend", "keys.toml", "-o", "x"),
    ("blend", 1, TEXT, "--seq-length", 16, "--num-samples", 9, "-o", "x"),
    ("inspect", f"{NAME}b"),
    ("shard-plan", f"{NAME}b", "--data-parallel", 2, "-o", f"{NAME}p"),
    ("shard-plan", TEXT, "--data-parallel", 2, "-o", "x"),
    ("inspect", f"{NAME}p"),
    ("replan", f"{NAME}p", "--consumed-samples", 2, "-o", f"{NAME}q"),
    ("replan", TEXT, "--consumed-samples", 2, "-o", "x"),
    ("diff", f"{NAME}b", f"{NAME}b"),
    ("diff", TEXT, TEXT),
    ("doctor", f"pretrain_gpt.py --data-path {NAME!r} --{NAME} --tokenizer-model '{NAME}' --seq-length 16"),
    ("doctor", "pretrain_gpt.py", "--data-path", TEXT, "--seq-length", 16, "--split", TEXT),
    ("doctor", TEXT),
    ("verify", NAME),
    ("verify", NAME, "--level", "deep"),
    ("verify", f"{NAME}b", "--recursive"),
    ("verify", TEXT),
    ("trace", NAME, "--document", 0),
    ("trace", f"{NAME}b", "--sample", 0),
    ("trace", f"{NAME}b", f"{NAME}.jsonl:1", f"{NAME}.jsonl:99"),
    ("trace", f"{NAME}b", TEXT),
    ("trace", TEXT, "--sample", 0),
]


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    directory = tmp_path_factory.mktemp("hostile")
    lines = [json.dumps({"text": text}) for text in (TEXT, *MARKUP)] + [f"{TEXT}not JSON"]
    (directory / f"{NAME}.jsonl").write_bytes("\n".join(lines).encode() + b"\n")
    (directory / "recipe.toml").write_text(f"[[source]]\nprefix = {json.dumps(NAME + TEXT)}\n")
    (directory / "keys.toml").write_text(f"{json.dumps(NAME)} = 1\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        return [(command, run(*command)) for command in RUNS]


def test_every_command_is_here():
    assert {command[0] for command in RUNS} == COMMANDS.keys()


def test_nothing_that_a_terminal_acts_upon_is_shown(shown):
    for command, done in shown:
        for text in (done.stdout, done.stderr):
            acting = {
                char
                for char in text
                if char != "\n" and unicodedata.category(char) in {"Cc", "Cf", "Cs", "Zl", "Zp"}
            }
            assert acting == set(), command


def test_no_command_fails_by_a_bug(shown):
    for command, done in shown:
        assert done.returncode in {0, 1, 2, 3, 6}, (command, done.stderr)
        assert "Traceback" not in done.stderr


def test_markup_is_shown_as_it_is(shown):
    outputs = {command: done.stdout for command, done in shown}
    document = outputs["inspect", NAME, "--document", 0]
    for text in (
        "[red][/red][/][bold]x[/bold][link=http://x]y[/link]",
        ":boom::smile:\\[red]{x}%s\\x1b[31mred",
    ):
        assert text in document
    assert "\\x9b2J\\u202egnp.exe\\u2066x\\u2069\\u2028y" in document
    for command, done in shown:
        if done.returncode == 0 and any(str(word).startswith(NAME) for word in command[1:3]):
            assert "[red][link=x]\\n:boom:" in done.stdout.replace("\n", ""), command


def test_no_line_of_a_command_begins_with_text_from_data(shown):
    """Else a name could be a command of a pipeline (``::set-env``)."""
    for command, done in shown:
        for line in done.stderr.splitlines():
            assert re.match(r"(error|warning|hint|using|Usage|Try|╭|│|╰|note|tokshard)|$", line), (
                command,
                line,
            )
