"""P42: a named pipe, a socket or a device in the place of a file is refused, and never waited for.

A pipe without a writer stands in the place of a file of a product, one file at a time, for each command
that reads it. Pipes that the user passes as an input are read.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import threading
from pathlib import Path

import pytest

from support.command_line import SAMPLE, tokshard
from tokshard.errors import InputError
from tokshard.loader import RankLoader

# Only a run that waits for a pipe takes so long: it is ended, and its test fails.
GUARD_SECONDS = 60.0

SAMPLES = ["--split", "1,0,0", "--seq-length", "32", "--num-samples"]
TOKENIZE = ["tokenize", "in/a.jsonl", "--tokenizer", "tok", "--workers", "1", "--on-error", "skip"]
BLEND = ["blend", "0.6", "web", "0.4", "code", *SAMPLES, "100"]
PLAN = ["shard-plan", "mix", "--data-parallel", "2"]
MANIFEST, UNITS = "web.tokshard/manifest.json", "web.tokshard/units.jsonl"
LAUNCH = (
    "torchrun pretrain_gpt.py --data-path 0.6 web 0.4 code --split 1,0,0 --seq-length 32 --train-iters 10 "
    "--global-batch-size 8 --eval-iters 0 --data-cache-path mix/cache --tokenizer-type NullTokenizer "
    "--vocab-size 5000 --megatron 0.16\n"
)


@pytest.fixture(scope="module")
def products(tmp_path_factory):
    """A directory with one product of each kind."""
    directory = tmp_path_factory.mktemp("products")
    lines = (SAMPLE / "stories.jsonl").read_bytes().splitlines(keepends=True)
    for name in ("in", "tok"):
        (directory / name).mkdir()
    (directory / "in" / "a.jsonl").write_bytes(b"".join(lines[:60]) + b'{"text": 7}\n')
    (directory / "in" / "b.jsonl").write_bytes(b"".join(lines[:20]))
    (directory / "launch.sh").write_text(LAUNCH)
    shutil.copy(SAMPLE / "tokenizer.json", directory / "tok")
    for arguments in (
        [*TOKENIZE, "-o", "web"],
        ["tokenize", "in/b.jsonl", "-o", "code", "--tokenizer", "tok", "--workers", "1"],
        [*BLEND, "-o", "mix"],
        [*PLAN, "-o", "plan"],
    ):
        done = tokshard(*arguments, cwd=directory)
        assert done.returncode == 0, done.stderr
    return directory


@pytest.fixture
def place(products, tmp_path, monkeypatch):
    shutil.copytree(products, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments, **settings):
    """Run the command, which is killed if it waits."""
    guards = []

    def started(pid):
        def end():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

        guards.append(threading.Timer(GUARD_SECONDS, end))
        guards[0].start()

    done = tokshard(*arguments, started=started, **settings)
    guards[0].cancel()
    assert done.returncode != -signal.SIGKILL, "it waited"
    return done


def replace(pattern, kind="pipe"):
    """Put a special file into the place of the first file that a pattern names; return its path."""
    (path,) = sorted(Path().glob(pattern))[:1]
    path.unlink()
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "socket":
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(str(path))
        case device:
            path.symlink_to(device)
    return str(path)


NOT_REGULAR = "it is a named pipe, not a regular file"
READERS = {
    # A dataset.
    ("verify", "web", "web.bin"): (1, NOT_REGULAR),
    ("verify", "web", "web.idx"): (1, NOT_REGULAR),
    ("verify", "web", MANIFEST): (1, NOT_REGULAR),
    ("verify", "web", UNITS): (1, NOT_REGULAR),
    ("verify", "web", "web.tokshard/provenance.bin"): (1, "file not found: web.tokshard/provenance.bin"),
    ("inspect", "web", "web.bin"): (3, NOT_REGULAR),
    ("inspect", "web", MANIFEST): (3, NOT_REGULAR),
    ("inspect", "web", UNITS): (6, "web.tokshard/units.jsonl must have 376 bytes by its manifest, got 0"),
    ("merge", "web", "code", "-o", "new", "web.bin"): (6, "ends at byte 260 of the .bin, which has 0"),
    ("merge", "web", "code", "-o", "new", "web.idx"): (3, NOT_REGULAR),
    ("merge", "web", "code", "-o", "new", MANIFEST): (3, NOT_REGULAR),
    ("build-indices", "web", *SAMPLES, "50", "--cache-dir", "new", MANIFEST): (3, NOT_REGULAR),
    ("trace", "web", "--document", "3", MANIFEST): (3, NOT_REGULAR),
    ("trace", "web", "--document", "3", "web.tokshard/provenance.bin"): (6, "file not found: web.tokshard"),
    ("doctor", "launch.sh", MANIFEST): (3, NOT_REGULAR),
    (*BLEND, "-o", "new", MANIFEST): (3, NOT_REGULAR),
    (*TOKENIZE, "-o", "web", MANIFEST): (3, NOT_REGULAR),
    (*TOKENIZE, "-o", "web", "web.bin"): (6, "web.bin must have 79328 bytes by its manifest, got 0"),
    # An index cache.
    ("verify", "mix/cache", "mix/cache/*-GPTDataset-train-tokshard.json"): (1, NOT_REGULAR),
    ("verify", "mix/cache", "mix/cache/*-description.txt"): (1, "-description.txt missing"),
    ("inspect", "mix/cache", "mix/cache/*-GPTDataset-train-tokshard.json"): (3, NOT_REGULAR),
    ("diff", "mix/cache", "mix/cache", "mix/cache/*-sample_index.npy"): (3, NOT_REGULAR),
    ("diff", "mix", "mix", "mix/cache/*-BlendedDataset-train-description.txt"): (3, NOT_REGULAR),
    ("doctor", "launch.sh", "mix/cache/*-GPTDataset-train-description.txt"): (1, "cached index"),
    (*BLEND, "-o", "mix", "mix/cache/*-GPTDataset-train-tokshard.json"): (3, NOT_REGULAR),
    # A blend.
    ("verify", "mix/blend.json", "mix/blend.json"): (3, "it is neither a file nor a directory"),
    ("inspect", "mix", "mix/blend.json"): (3, "tokenizer, index cache, blend, plan or export"),
    (*BLEND, "-o", "mix", "mix/blend.json"): (3, NOT_REGULAR),
    (*PLAN, "-o", "new", "mix/cache/*-sample_index.npy"): (3, NOT_REGULAR),
    ("trace", "mix", "--sample", "3", "mix/cache/*-dataset_index.npy"): (3, NOT_REGULAR),
    # A plan.
    ("verify", "plan", "plan/rank-00001.json"): (1, NOT_REGULAR),
    ("inspect", "plan", "--rank", "1", "plan/rank-00001.json"): (3, NOT_REGULAR),
    ("trace", "plan", "--step", "1", "plan/plan.json"): (3, "tokenizer, index cache, blend, plan or export"),
    (*PLAN, "-o", "plan", "plan/plan.json"): (4, "another plan exists: plan/plan.json"),
    (*PLAN, "-o", "plan", "plan/rank-00001.json"): (3, NOT_REGULAR),
    ("replan", "plan", "--consumed-samples", "20", "--data-parallel", "1", "-o", "new",
     "plan/plan.json"): (3, NOT_REGULAR),
    # Inputs of tokenize that were not passed by their own names.
    ("tokenize", "in", "-o", "new", "--tokenizer", "tok", "in/a.jsonl"): (3, NOT_REGULAR),
    ("tokenize", "in/*", "-o", "new", "--tokenizer", "tok", "in/a.jsonl"): (3, NOT_REGULAR),
    (*TOKENIZE, "-o", "new", "tok/tokenizer.json"): (3, "the tokenizer tok/tokenizer.json is not a file"),
}  # fmt: skip


@pytest.mark.parametrize("reader", READERS, ids=lambda words: f"{words[0]} {words[-1]}")
def test_a_pipe_in_the_place_of_a_file_is_refused(place, reader):
    *arguments, pattern = reader
    code, message = READERS[reader]
    path = replace(pattern)
    done = run(*arguments, cwd=place)
    shown = done.stdout + done.stderr
    assert (done.returncode, message in shown, "Traceback" in shown) == (code, True, False), shown
    if message == NOT_REGULAR:
        assert f"{path}: {message}" in shown


@pytest.mark.parametrize(("kind", "named"), [("socket", "a socket"), ("/dev/zero", "a device")])
@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        (["inspect", "web"], MANIFEST),
        (["inspect", "web"], "web.bin"),
        (["diff", "mix", "mix"], "mix/cache/*-BlendedDataset-train-description.txt"),
        (
            ["replan", "plan", "--consumed-samples", "20", "--data-parallel", "1", "-o", "new"],
            "plan/plan.json",
        ),
        (["tokenize", "in", "-o", "new", "--tokenizer", "tok"], "in/a.jsonl"),
    ],
)
def test_other_special_files_are_refused(place, kind, named, arguments, pattern):
    path = replace(pattern, kind)
    done = run(*arguments, cwd=place)
    assert done.returncode == 3
    assert f"error: cannot read {path}: it is {named}, not a regular file" in done.stderr


@pytest.mark.parametrize(
    "name", ["plan/plan.json", "plan/rank-00001.json", "mix/blend.json", "web.idx", "web.bin"]
)
def test_the_loader_refuses_a_pipe(products, place, name):
    replace(name)
    signal.alarm(int(GUARD_SECONDS))  # whose default is to end this process
    with pytest.raises(InputError, match=NOT_REGULAR):
        loader = RankLoader.open("plan", rank=1, roots={str(products): str(place)})
        for step in range(10):
            loader.batch(step)
    signal.alarm(0)


@pytest.fixture(scope="module")
def unfinished(products, tmp_path_factory):
    """The work directory of a run that a bad record has ended."""
    directory = tmp_path_factory.mktemp("unfinished")
    for name in ("in", "tok"):
        shutil.copytree(products / name, directory / name)
    done = tokshard(*RESUMED, cwd=directory)
    assert done.returncode == 3
    return directory


RESUMED = ["tokenize", "in", "-o", "out", "--tokenizer", "tok", "--workers", "1", "--unit-size", "8K"]
WORK = "out.tokshard/work"
# What is no file in the place of unfinished work is removed, and the work is done again.
LEFTOVERS = {
    **dict.fromkeys(
        (f"{WORK}/{name}" for name in ("run.json", "journal.jsonl", "0.rejected.jsonl")), (0, "")
    ),
    f"{WORK}/0.bin": (0, ""),
    f"{WORK}/parts/000001-000000001.part": (0, ""),
    "out.tokshard/lock": (7, "cannot open out.tokshard/lock: not a regular file"),
}


@pytest.mark.parametrize("name", LEFTOVERS)
def test_a_pipe_among_the_leftovers_of_a_run_does_not_stop_the_next(unfinished, tmp_path, name):
    shutil.copytree(unfinished, tmp_path, dirs_exist_ok=True)
    path = tmp_path / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    code, message = LEFTOVERS[name]
    done = run(*RESUMED, "--on-error", "skip", cwd=tmp_path)
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr
    if path.is_fifo():
        path.unlink()
    done = run(*RESUMED, "--on-error", "skip", "--no-resume", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


PASSED = [
    ([*TOKENIZE[:1], "PIPE", *TOKENIZE[2:], "-o", "new"], "in/a.jsonl"),
    ([*TOKENIZE[:1], "@PIPE", *TOKENIZE[2:], "-o", "new"], "list"),
    (["doctor", "PIPE"], "launch.sh"),
    (["trace", "plan", "@PIPE"], "lines"),
]


@pytest.mark.parametrize(("arguments", "content"), PASSED)
def test_a_pipe_that_was_passed_is_read(place, arguments, content):
    Path("list").write_text("in/a.jsonl\n")
    Path("lines").write_text("in/a.jsonl:3\n")
    named = [word.replace("PIPE", content) for word in arguments]
    arguments = [word.replace("PIPE", "pipe") for word in arguments]
    os.mkfifo("pipe")
    writer = threading.Thread(target=lambda: Path("pipe").write_bytes(Path(content).read_bytes()))
    writer.start()
    done = run(*arguments, cwd=place)
    writer.join()
    if "-o" in arguments:
        arrived = Path("new.bin").read_bytes()
        assert arrived == Path("web.bin").read_bytes()
        return
    expected = run(*named, cwd=place)
    assert (done.returncode, done.stdout.replace("pipe", content)) == (expected.returncode, expected.stdout)
