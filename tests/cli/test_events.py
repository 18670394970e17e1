"""The event log of ``--log-json``: what is in it, where it may be, and that it disturbs nothing."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from itertools import pairwise

import numpy as np
import pytest

from support.command_line import SAMPLE, tokshard
from support.mixture_data import run, write_mixture
from support.schemas import defects_of
from tokshard.cli import events
from tokshard.cli.events import recorded
from tokshard.cli.main import COMMANDS
from tokshard.core.progress import ProgressUpdate, SilentProgress
from tokshard.errors import OutputExistsError

SIZES = ("--seq-length", 16, "--split", "9,1", "--num-samples", 40)
LONG = {
    "tokenize": ("tokenize", SAMPLE / "stories.jsonl", "-o", "new"),
    "merge": ("merge", "data/web", "data/code", "-o", "new"),
    "build-indices": ("build-indices", "data/web", *SIZES, "--cache-dir", "new"),
    "blend": ("blend", 0.7, "data/web", 0.3, "data/code", *SIZES, "-o", "new"),
    "shard-plan": ("shard-plan", "data/web", "--documents", "--data-parallel", 7, "-o", "new"),
    "export": ("export", "data/web", "--to", "olmo", "-o", "new"),
    "convert": ("convert", "tokens", "--from", "datatrove", "-o", "new"),
    "verify": ("verify", "data/web"),
}


@pytest.fixture
def workshop(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_mixture(tmp_path)
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens/web.ds").write_bytes(np.arange(40, dtype="<u2").tobytes())
    (tmp_path / "tokens/web.ds.index").write_bytes(np.array([15, 40], "<u8").tobytes())
    return tmp_path


def test_every_long_command_and_the_doctor_is_here():
    for name in COMMANDS:
        shown = run(name, "--help").stdout
        assert ("--log-json" in shown) == (name in {*LONG, "doctor"}), name


def logged(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("name", LONG)
def test_a_run_is_logged_from_its_start_to_its_end(workshop, name):
    plain = run(*LONG[name])
    log = run(*LONG[name], "--log-json", "log")
    first = logged(workshop / "log")
    assert (log.returncode, log.stderr) == (0, plain.stderr)
    assert [event["event"] for event in first if event["event"] in {"started", "finished"}] == [
        "started",
        "finished",
    ]
    assert (first[0]["event"], first[-1]["event"], first[-1]["exit_code"]) == ("started", "finished", 0)
    assert [event for event in first if defects_of(event)] == []
    assert {event["command"] for event in first} == {name}
    seconds = [event["seconds"] for event in first]
    assert seconds == sorted(seconds)
    warnings = [event["message"] for event in first if event["event"] == "warning"]
    told = [
        line.removeprefix("warning: ") for line in log.stderr.splitlines() if line.startswith("warning: ")
    ]
    assert warnings == told


@pytest.mark.parametrize("name", LONG)
def test_quiet_quiets_the_terminal_and_not_the_log(workshop, name):
    spoken, quiet = (workshop / log for log in ("spoken", "quiet"))
    run(*LONG[name], "--log-json", spoken)
    for path in workshop.glob("new*"):
        path.rename(workshop / f"old-{path.name}")
    done = run(*LONG[name], "--quiet", "--log-json", quiet)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    kinds = [[(event["event"], event.get("message")) for event in logged(path)] for path in (spoken, quiet)]
    assert (("progress", None) in kinds[0]) is (("progress", None) in kinds[1])
    # How often there is progress depends on how long it takes.
    assert [event for event in kinds[0] if event[0] != "progress"] == [
        event for event in kinds[1] if event[0] != "progress"
    ]


def test_progress_ends_with_the_totals_of_the_report(workshop):
    done = run(*LONG["tokenize"], "--json", "--log-json", "log")
    progress = [event for event in logged(workshop / "log") if event.get("activity") == "encoding"]
    assert progress[0]["bytes_done"] == 0
    last, report = progress[-1], done.json
    assert last["bytes_done"] == last["bytes_total"] == report["input_bytes"]
    assert last["content_bytes"] == report["encoded_bytes"] == report["content_bytes"]
    assert (last["documents"], last["tokens"]) == (report["documents"], report["outputs"][0]["tokens"])


def test_problems_that_were_found_are_no_failure(workshop):
    done = run(*LONG["build-indices"], "--assert-hit", "--log-json", "log")
    assert done.returncode == 1
    assert (logged(workshop / "log")[-1]["event"], logged(workshop / "log")[-1]["exit_code"]) == (
        "finished",
        1,
    )


def test_a_failure_says_what_the_command_says(workshop):
    (workshop / "bad.jsonl").write_bytes(b'{"text": "x"}\n\x1b[31m\n')
    done = run("tokenize", "bad.jsonl", "-o", "new", "--json", "--log-json", "log")
    last = logged(workshop / "log")[-1]
    assert (done.returncode, last["event"]) == (3, "failed")
    assert {name: last[name] for name in done.json if name != "schema"} == {
        name: value for name, value in done.json.items() if name != "schema"
    }
    assert "\x1b" not in (workshop / "log").read_text()


def test_a_wrong_option_is_a_failure_too(workshop):
    assert run("tokenize", "x.jsonl", "--max-errors", 3, "--log-json", "log").returncode == 2
    assert [event["event"] for event in logged(workshop / "log")] == ["started", "failed"]


def test_runs_are_put_behind_each_other(workshop):
    for _ in range(2):
        assert run(*LONG["merge"], "--log-json", "log").returncode == 0
    with (workshop / "log").open("a") as file:
        file.write('{"schema": "tokshard.event/1", "event": "prog')  # what a kill leaves
    assert run(*LONG["merge"], "--log-json", "log").returncode == 0
    lines = (workshop / "log").read_text().splitlines()
    whole = [json.loads(line) for line in lines if line.endswith("}")]
    assert len(whole) == len(lines) - 1
    assert [event["event"] for event in whole].count("finished") == 3


@pytest.mark.parametrize("content", [b"x", b'{"text": "a corpus"}\n', b'{"schema": "tokshard.error/1"}\n'])
def test_a_file_that_is_no_log_is_left_alone(workshop, content):
    (workshop / "corpus.jsonl").write_bytes(content)
    done = run(*LONG["merge"], "--log-json", "corpus.jsonl", "--json")
    assert (done.returncode, "exists and is not an event log" in done.json["message"]) == (4, True)
    assert (workshop / "corpus.jsonl").read_bytes() == content
    assert not (workshop / "new.bin").exists()


@pytest.mark.parametrize(("target", "words"), [("data", "Is a directory"), ("none/log", "No such file")])
def test_a_log_that_cannot_be_opened_is_a_storage_error(workshop, target, words):
    done = run(*LONG["merge"], "--log-json", target)
    assert (done.returncode, words in done.stderr) == (7, True)
    assert not (workshop / "new.bin").exists()


def test_links_and_pipes_are_refused(workshop):
    (workshop / "victim").write_text("")
    (workshop / "link").symlink_to("victim")
    os.mkfifo(workshop / "pipe")
    for target in ("link", "pipe"):
        assert run(*LONG["merge"], "--log-json", target).returncode == 7


def test_a_dash_is_stderr(workshop):
    done = tokshard(*LONG["build-indices"], "--json", "--log-json", "-", cwd=workshop)
    lines = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert [lines[0]["event"], lines[-1]["event"]] == ["started", "finished"]
    assert lines[0]["arguments"][0] == "build-indices"
    assert json.loads(done.stdout)["schema"] == "tokshard.build-indices/1"
    assert not (workshop / "-").exists()


def test_a_log_that_grows_too_large_is_abandoned_and_the_work_continues(workshop):
    # No file may grow beyond 16,000 bytes: the dataset fits, the log does not.
    code = "from tokshard.cli.main import main; main()"
    command = [sys.executable, "-c", code, *map(str, LONG["merge"]), "--log-json", "log", "--no-progress"]
    (workshop / "log").write_text('{"schema": "tokshard.event/1"}\n' + "#" * 15_940 + "\n")
    done = subprocess.run(
        command,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (16_000, 16_000)),
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},  # Python would leave a half of it
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the event log ends here") == 1
    assert (workshop / "new.tokshard/manifest.json").exists()


def test_an_interrupted_run_is_logged_as_such(workshop):
    code = "from tokshard.cli.main import main; main()"
    command = [sys.executable, "-c", code, "tokenize", "-", "-o", "new", "--log-json", "log"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 240
    while not ((workshop / "log").exists() and "progress" in (workshop / "log").read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(240) == 143
    process.stdin.close()
    last = logged(workshop / "log")[-1]
    assert (last["event"], last["error"], last["exit_code"]) == ("failed", "Cancelled", 143)


def test_progress_comes_at_most_once_a_second_and_nothing_is_lost(tmp_path, monkeypatch):
    now = 1000.0
    monkeypatch.setattr(events.time, "monotonic", lambda: now)
    heard = []

    class Meter(SilentProgress):
        def update(self, state):
            heard.append(state.tokens)

    with recorded(str(tmp_path / "log"), "merge") as log:
        listener = log.following(Meter())
        listener.start("merging", 10, 2)
        for number in range(100):
            now += 0.1
            listener.update(ProgressUpdate(bytes_done=number, tokens=number))
        listener.message("waiting")
        listener.finish()
    written = logged(tmp_path / "log")
    progress = [event for event in written if event["event"] == "progress"]
    assert heard == list(range(100))
    assert len(progress) in {10, 11, 12}
    assert (progress[0]["bytes_done"], progress[-1]["bytes_done"]) == (2, 99)
    gaps = [later["seconds"] - sooner["seconds"] for sooner, later in pairwise(progress)]
    assert all(gap >= 0.999 for gap in gaps[:-1])
    assert [event["event"] for event in written if event["event"] != "progress"] == [
        "started",
        "message",
        "finished",
    ]


def test_without_a_log_the_meter_is_the_meter(tmp_path):
    meter = SilentProgress()
    with recorded(None, "merge") as log:
        assert log.following(meter) is meter


def test_a_bug_is_a_failure_with_its_code(tmp_path):
    with pytest.raises(ZeroDivisionError), recorded(str(tmp_path / "log"), "merge"):
        raise ZeroDivisionError("a bug")
    last = logged(tmp_path / "log")[-1]
    assert (last["event"], last["error"], last["exit_code"]) == ("failed", "ZeroDivisionError", 70)
    with pytest.raises(OutputExistsError), recorded(str(__file__), "merge"):
        pass
