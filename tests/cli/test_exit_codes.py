"""Every exit code of every command, each in a situation that is made for it.

Signals and bugs come from an audit hook in a process of its own: at the moment when the command opens
one certain file. Most of these processes are forked; some of each kind start an interpreter.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support import forked_commands
from support.command_line import SAMPLE
from support.mixture_data import NAMES, run
from support.schemas import defects_of
from tokshard.cli.main import COMMANDS
from tokshard.ranks.publication import LOCK_NAME
from tokshard.storage.lock import WriterLock

TOKENIZER = SAMPLE / "tokenizer.json"
SIZES = ("--seq-length", 64, "--split", "9,1", "--num-samples", "80,24")
JOB = ("torchrun", "--nproc-per-node", 8, "pretrain_gpt.py", "--seq-length", 64, "--split", "9,1")
JOB += ("--micro-batch-size", 1, "--global-batch-size", 8, "--train-iters", 10, "--eval-interval", 5)
JOB += ("--eval-iters", 1, "--data-cache-path", "cache", "--tokenizer-type", "HuggingFaceTokenizer")
JOB += ("--tokenizer-model", "/models/llama", "--data-path")

GOOD = {
    "tokenize": ("tokenize", "corpus.jsonl", "-o", "new", "--tokenizer", TOKENIZER),
    "merge": ("merge", "web", "code", "-o", "new"),
    "export": ("export", "web", "--to", "olmo", "-o", "new"),
    "convert": ("convert", "tokens", "--from", "datatrove", "-o", "new"),
    "build-indices": ("build-indices", "web", *SIZES, "--cache-dir", "new"),
    "blend": ("blend", 0.7, "web", 0.3, "code", *SIZES, "-o", "new"),
    "shard-plan": ("shard-plan", "mix", "--data-parallel", 2, "-o", "new"),
    "replan": ("replan", "plan", "--consumed-samples", 2, "-o", "new"),
    "diff": ("diff", "plan", "plan"),
    "doctor": ("doctor", *JOB, "web"),
    "verify": ("verify", "web"),
    "trace": ("trace", "mix", "--sample", 3),
    "inspect": ("inspect", "web"),
}
"""One command of each kind that ends well."""

OPENED = {
    "tokenize": "corpus.jsonl",
    "convert": "000_web.ds.index",
    "replan": "plan.json",
    "diff": "plan.json",
}
"""What each of them opens on its way; the others all open the index of a dataset."""

BAD = {
    "tokenize": {
        3: ("tokenize", "nothing.jsonl", "-o", "new"),
        4: ("tokenize", "corpus.jsonl", "-o", "web"),
    },
    "merge": {
        3: ("merge", "web", "nothing", "-o", "new"),
        4: ("merge", "web", "-o", "code"),
        6: ("merge", "web", "cut", "-o", "new"),
    },
    "export": {
        3: ("export", "nothing", "--to", "olmo", "-o", "new"),
        4: ("export", "web", "--to", "nanogpt", "-o", "."),
        6: ("export", "cut", "--to", "olmo", "-o", "new"),
    },
    "convert": {
        3: ("convert", "nothing", "--from", "datatrove", "-o", "new"),
        4: ("convert", "tokens", "--from", "datatrove", "-o", "web"),
        6: ("convert", "web.idx", "--from", "nanogpt", "-o", "new"),
    },
    "build-indices": {
        3: ("build-indices", "nothing", *SIZES, "--cache-dir", "new"),
        4: ("build-indices", "web", *SIZES, "--cache-dir", "stale"),
        6: ("build-indices", "cut", *SIZES, "--cache-dir", "new"),
    },
    "blend": {
        3: ("blend", 1, "web", 1, "nothing", *SIZES, "-o", "new"),
        4: ("blend", 0.7, "web", 0.3, "code", *SIZES, "-o", "mix", "--seed", 7),
        6: ("blend", 1, "web", 1, "cut", *SIZES, "-o", "new"),
    },
    "shard-plan": {
        3: ("shard-plan", "nothing", "--data-parallel", 2, "-o", "new"),
        4: ("shard-plan", "mix", "--data-parallel", 3, "-o", "plan"),
        6: ("shard-plan", "changed", "--data-parallel", 2, "-o", "new"),
    },
    "replan": {
        3: ("replan", "nothing", "--consumed-samples", 2, "-o", "new"),
        4: ("replan", "plan", "--consumed-samples", 2, "-o", "plan"),
        6: ("replan", "plan", "--consumed-samples", 2, "--blend", "changed", "-o", "new"),
    },
    "diff": {
        1: ("diff", "mix", "whole"),
        3: ("diff", "mix", "nothing"),
        6: ("diff", "mix", "changed"),
    },
    "doctor": {1: ("doctor", *JOB, "code"), 3: ("doctor", "nothing.sh")},
    "verify": {1: ("verify", "cut"), 3: ("verify", "nothing")},
    "trace": {
        1: ("trace", "web", "corpus.jsonl:1000000"),
        3: ("trace", "nothing", "--sample", 3),
        6: ("trace", "changed", "--sample", 3),
    },
    "inspect": {3: ("inspect", "nothing"), 6: ("inspect", "cut")},
}
"""Commands that fail, by the code of how."""

LOCKS = {
    "tokenize": "new.tokshard/lock",
    "merge": "new.tokshard/lock",
    "export": "new/.tokshard/lock",
    "convert": "new.tokshard/lock",
    "shard-plan": f"new/{LOCK_NAME}",
    "replan": f"new/{LOCK_NAME}",
}
"""What commands lock that do not wait. (For an index that another process builds, they wait.)"""

PROGRAM = Path(__file__).with_name("stopped_command.py")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    directory = tmp_path_factory.mktemp("prepared")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        shutil.copy(SAMPLE / "stories.jsonl", "corpus.jsonl")
        for name, source in (("web", "stories"), ("code", "manuals")):
            command = ("tokenize", SAMPLE / f"{source}.jsonl", "-o", name, "--tokenizer", TOKENIZER)
            assert run(*command).returncode == 0
        # The cache "stale" was made from other data of the same name.
        other = ("build-indices", "code", *SIZES, "--cache-dir", "stale", "--path-as", "code=web")
        assert run(*other).returncode == 0
        assert run("build-indices", "web", *SIZES, "--cache-dir", "cache", *NAMES).returncode == 0
        assert run("blend", 0.7, "web", 0.3, "code", *SIZES, "-o", "mix").returncode == 0
        assert run("blend", "web", "code", "--seq-length", 64, "--split", "1", "-o", "whole").returncode == 0
        assert run("shard-plan", "mix", "--data-parallel", 2, "-o", "plan").returncode == 0
        assert run("export", "web", "--to", "datatrove", "-o", "tokens", "--name", "web").returncode == 0
    (directory / "changed").mkdir()
    document = (directory / "mix/blend.json").read_bytes()
    (directory / "changed/blend.json").write_bytes(document.replace(b'"seed": 1234', b'"seed": 1235'))
    shutil.copy(directory / "web.idx", directory / "cut.idx")
    (directory / "cut.bin").write_bytes((directory / "web.bin").read_bytes()[:-2])
    return directory


@pytest.fixture
def workshop(prepared, tmp_path, monkeypatch):
    directory = shutil.copytree(prepared, tmp_path / "workshop")
    monkeypatch.chdir(directory)
    return directory


def child(arguments, *, place="", deed="", stdout=None, stderr=None, own_interpreter=False):
    """Run a command as a process of its own, in an interpreter of its own if its start or end matters."""
    environment = {**os.environ, "TOKSHARD_TEST_PLACE": place, "TOKSHARD_TEST_DEED": str(deed)}
    words = [*map(str, arguments)]
    if own_interpreter or not forked_commands.can_run(environment):
        return subprocess.run(
            [sys.executable, PROGRAM, *words],
            env=environment,
            text=True,
            check=False,
            stdout=subprocess.PIPE if stdout is None else stdout,
            stderr=subprocess.PIPE if stderr is None else stderr,
        )
    done = forked_commands.run(
        words,
        environment=environment,
        program=PROGRAM,
        stdout=_descriptor(stdout),
        stderr=_descriptor(stderr),
    )
    return subprocess.CompletedProcess(words, done.returncode, done.stdout.decode(), done.stderr.decode())


def _descriptor(stream):
    return stream.fileno() if hasattr(stream, "fileno") else stream


def test_every_command_is_in_these_tables():
    assert GOOD.keys() == BAD.keys() == COMMANDS.keys()
    assert all(3 in codes for codes in BAD.values())


@pytest.mark.parametrize("name", GOOD)
def test_what_went_well_is_0(workshop, name):
    done = run(*GOOD[name], "--json") if name != "doctor" else run("doctor", "--json", *GOOD[name][1:])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", [name for name in GOOD if name not in {"doctor", "trace", "inspect"}])
def test_quiet_success_prints_nothing(workshop, name):
    done = run(*GOOD[name], "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("name", "code"), [(name, code) for name, codes in BAD.items() for code in sorted(codes)]
)
def test_what_went_wrong_has_the_code_of_its_kind(workshop, name, code):
    words = BAD[name][code]
    done = run(words[0], "--json", *words[1:])
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert defects_of(done.json) == []
    if code > 1:
        assert (done.json["schema"], done.json["exit_code"]) == ("tokshard.error/2", code)
        assert done.stderr.splitlines().count(f"error: {done.json['message']}") == 1


@pytest.mark.parametrize("name", GOOD)
def test_an_unknown_option_is_2(workshop, name):
    # The doctor takes the options of others: it is asked for two versions at once.
    option = ("--nonsense",) if name != "doctor" else ("--megatron", "0.19", "--like", "x")
    done = run(name, *option, *GOOD[name][1:])
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr


WRONG = {
    "option": (
        ("inspect", "--json", "--nonsense", "web"),
        'unknown option "--nonsense"',
        "run `tokshard inspect --help` to list the options",
    ),
    "option of a command with rare ones": (
        ("tokenize", "--json", "--nonsense", "web"),
        'unknown option "--nonsense"',
        "run `tokshard tokenize --help-all` to list the options",
    ),
    "misspelled option": (
        ("tokenize", "--json", "web", "--tokeniser", "x"),
        'unknown option "--tokeniser"',
        "pass --tokenizer",
    ),
    "option that resembles another a little": (
        ("tokenize", "--json", "web", "--emit", "slurm"),
        'unknown option "--emit"',
        "run `tokshard tokenize --help-all` to list the options",
    ),
    "parallelism of experts": (
        ("shard-plan", "--json", "mix", "--expert-model-parallel-size", "2"),
        'unknown option "--expert-model-parallel-size"',
        "leave out --expert-model-parallel-size: it does not change which samples a rank reads",
    ),
    "Megatron's option": (
        ("tokenize", "--json", "--input", "web.jsonl"),
        'unknown option "--input"',
        "pass --preset megatron for the options of Megatron's preprocess_data.py",
    ),
    "value": (
        ("build-indices", "web", "--seq-length", "many", "--json"),
        "--seq-length must be a whole number such as 1000, 2M or 10B, got 'many'",
        "run `tokshard build-indices --help` for its options",
    ),
    "size": (
        ("tokenize", "web", "--unit-size", "5q", "--json"),
        "--unit-size must be a size such as 64MB, 16MiB or 1000000, got '5q'",
        "run `tokshard tokenize --help-all` for its options",
    ),
    "size of 0": (
        ("tokenize", "web", "--unit-size", "0", "--json"),
        "--unit-size must be at least 1, got 0",
        "run `tokshard tokenize --help-all` for its options",
    ),
    "choice": (
        ("tokenize", "web", "--on-error", "stop", "--json"),
        "--on-error must be one of fail, skip, got 'stop'",
        "run `tokshard tokenize --help` for its options",
    ),
    "only choice": (
        ("tokenize", "web", "--preset", "nemo", "--json"),
        "--preset must be megatron, got 'nemo'",
        "run `tokshard tokenize --help` for its options",
    ),
    "number": (
        ("blend", "web", "--max-epochs", "x", "--json"),
        "--max-epochs must be a number such as 1 or 0.5, got 'x'",
        "run `tokshard blend --help` for its options",
    ),
    "missing option": (
        ("shard-plan", "mix", "--json"),
        "--output is required",
        "pass --output DIR to write the plan to this directory",
    ),
    "missing argument": (
        ("merge", "--json", "-o", "new"),
        "INPUT is required",
        "pass path prefixes of datasets, in order, or quoted globs of these",
    ),
    "no value": (("merge", "web", "--json", "-o"), "-o requires a value", "pass -o PREFIX"),
    "too few values": (
        ("shard-plan", "--json", "mix", "-o", "plan", "--rampup-batch-size", "1", "2"),
        "--rampup-batch-size requires 3 values",
        "pass --rampup-batch-size START INCREMENT SAMPLES",
    ),
    "value of a switch": (
        ("tokenize", "--json", "--force=1"),
        "--force takes no value",
        "pass --force alone",
    ),
    "value of a hidden switch": (
        ("blend", "--json", "--data-path=web"),
        "--data-path takes no value",
        "pass --data-path alone",
    ),
    "argument": (
        ("inspect", "--json", "web", "code"),
        "unexpected argument: code",
        "pass only PATH; run `tokshard inspect --help` for its arguments",
    ),
    "command": (("inspekt", "--json"), 'unknown command "inspekt"', "run `tokshard inspect`"),
    "option as a command": (
        ("completion", "bash", "--json"),
        'unknown command "completion"',
        "run `tokshard --show-completion`",
    ),
    "no such command": (
        ("zzz", "--json"),
        'unknown command "zzz"',
        "run `tokshard --help` to list the commands",
    ),
    "option of no command": (
        ("--json",),
        'unknown option "--json"',
        "run `tokshard --help` to list the options",
    ),
    "preset": (
        ("tokenize", "--json", "--preset", "megatron", "--split-sentences"),
        "--split-sentences is not supported",
        "split the text into sentences first: a list of texts is a document of several sequences",
    ),
}
"""Command lines that the parser refuses, with message and hint."""


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_command_line_is_one_json_document(name):
    words, message, hint = WRONG[name]
    done = child(words)
    assert done.returncode == 2, done.stderr
    value = json.loads(done.stdout)
    assert defects_of(value) == []
    assert (value["error"], value["exit_code"]) == ("UsageError", 2)
    assert (value["message"], value["hint"]) == (message, hint)
    assert done.stderr == f"error: {message}\nhint: {hint}\n"


def test_a_wrong_command_line_without_json_is_told_on_stderr_alone():
    done = child(("inspect", "--nonsense", "--", "--json"))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith('error: unknown option "--nonsense"\nhint: ')
    with open("/dev/full", "w") as full:
        assert child(("inspect", "--json", "--nonsense"), stdout=full).returncode == 7


@pytest.mark.parametrize("name", LOCKS)
def test_an_output_that_another_process_writes_is_5(workshop, name):
    with WriterLock(LOCKS[name]):
        done = run(*GOOD[name])
    assert done.returncode == 5
    assert f"process {os.getpid()}" in done.stderr


@pytest.mark.parametrize(("name", "own_interpreter"), [*((name, False) for name in GOOD), ("inspect", True)])
def test_a_result_that_nobody_can_take_is_7(workshop, name, own_interpreter):
    with open("/dev/full", "w") as full:
        done = child(GOOD[name], stdout=full, own_interpreter=own_interpreter)
    assert done.returncode == 7, done.stderr
    assert "cannot write standard output: No space left on device" in done.stderr


UNREAD = {
    **GOOD,
    "version": ("--version",),
    "help": ("--help",),
    "an error": ("inspect", "nothing", "--json"),
    "a wrong command": ("inspekt", "--json"),
}


@pytest.mark.parametrize(
    ("name", "own_interpreter"),
    [*((name, False) for name in UNREAD), *((name, True) for name in ("inspect", "version", "an error"))],
)
def test_a_reader_who_has_left_is_141_and_no_message(workshop, name, own_interpreter):
    reader, writer = os.pipe()
    os.close(reader)
    done = child(UNREAD[name], stdout=writer, own_interpreter=own_interpreter)
    os.close(writer)
    assert done.returncode == 141, done.stderr
    assert "Traceback" not in done.stderr
    if name in GOOD:
        assert "error" not in done.stderr


@pytest.mark.parametrize(("name", "own_interpreter"), [*((name, False) for name in GOOD), ("inspect", True)])
def test_stderr_that_nobody_can_take_changes_nothing(workshop, name, own_interpreter):
    with open("/dev/full", "w") as full:
        done = child(GOOD[name], stderr=full, own_interpreter=own_interpreter)
    assert done.returncode == 0
    assert done.stdout


def test_a_worker_that_dies_is_8(workshop, monkeypatch):
    (workshop / "corpus.jsonl").write_bytes((workshop / "corpus.jsonl").read_bytes() * 8)
    monkeypatch.setenv("PYTHONPATH", str(SAMPLE.parent / "tests/faults/shim"))
    monkeypatch.setenv("TOKSHARD_SHIM", "exit")
    done = child((*GOOD["tokenize"], "--workers", 2, "--unit-size", "1MB"))
    assert done.returncode == 8, done.stderr


@pytest.mark.parametrize(("name", "own_interpreter"), [*((name, False) for name in GOOD), ("inspect", True)])
def test_a_bug_is_70_with_its_traceback(workshop, name, own_interpreter):
    place = OPENED.get(name, "web.idx")
    done = child(GOOD[name], place=place, deed="bug", own_interpreter=own_interpreter)
    assert done.returncode == 70
    assert "RuntimeError: a bug" in done.stderr
    assert "tokshard: this is a bug; please report it" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(("name", "own_interpreter"), [*((name, False) for name in GOOD), ("tokenize", True)])
def test_a_signal_is_128_and_its_number(workshop, name, number, own_interpreter):
    place = OPENED.get(name, "web.idx")
    done = child(GOOD[name], place=place, deed=int(number), own_interpreter=own_interpreter)
    assert done.returncode == 128 + number, done.stderr
    is_resumed = GOOD[name][0] == "tokenize"
    assert done.stderr.splitlines()[-2:] == [
        "error: stopped; finished work is kept" if is_resumed else "error: stopped",
        f"hint: {'resume' if is_resumed else 'start again'} with: tokshard {' '.join(map(str, GOOD[name]))}",
    ]
    assert run(*GOOD[name]).returncode == 0


WEAK_REFERENCE = """
import weakref
class Thing: pass
thing = Thing()
kept = weakref.ref(thing, lambda _: os.kill(os.getpid(), NUMBER))
del thing
"""
DURING_THE_HOOK = (
    """
import signal
set_timer = signal.setitimer
def set_slowly(*timer):  # by the hook: the signal comes again while it runs, and so does the timer's
    signal.setitimer = set_timer
    os.kill(os.getpid(), NUMBER)
    set_timer(*timer)
    time.sleep(0.3)
signal.setitimer = set_slowly
"""
    + WEAK_REFERENCE
)
OTHER_EXCEPTION = """
import weakref
class Loud:
    def __del__(self):
        raise ValueError(Spoken())
class Spoken:
    def __str__(self):
        os.kill(os.getpid(), NUMBER)
        return "said"
Loud()
"""
RAISING_FINALIZERS = """
import threading
class Loud:
    def __del__(self):
        raise ValueError
threading.Timer(0.1, os.kill, (os.getpid(), NUMBER)).start()
end = time.time() + 10
while time.time() < end:
    Loud()
os._exit(1)
"""
NAMED_FIELD = """
class Field:
    def __set_name__(self, owner, name):
        os.kill(os.getpid(), NUMBER)
class Record:
    field = Field()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    "code",
    [WEAK_REFERENCE, DURING_THE_HOOK, OTHER_EXCEPTION, RAISING_FINALIZERS, NAMED_FIELD],
    ids=["weak-reference", "during-the-hook", "during-another-exception", "finalizers", "named-field"],
)
def test_a_signal_counts_even_where_python_loses_or_wraps_its_exception(code, number):
    lines = (
        "import os, time",
        "from tokshard.cli import failures",
        "with failures.reported():",
        *(f"    {line}" for line in code.replace("NUMBER", str(int(number))).splitlines()),
        "    time.sleep(60)",
    )
    ending = "except typer.Exit as stop:\n    raise SystemExit(stop.exit_code)"
    program = f"import typer\ntry:\n{_indented(lines)}\n{ending}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=50
    )
    assert done.returncode == 128 + number, done.stderr
    assert "error: stopped\n" in done.stderr
    assert done.stderr.startswith("error: ") or code in {OTHER_EXCEPTION, RAISING_FINALIZERS}


def _indented(lines):
    return "\n".join(f"    {line}" for line in lines)
