"""The lines of progress: what they show, at which width, and that a terminal sees them without a wrap."""

import os
import pty
import re
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.command_line import tokshard
from support.tokenize_runs import TOKENIZER, write_jsonl
from tokshard.cli import meters
from tokshard.cli.meters import Meter, Tracker
from tokshard.core.progress import ProgressUpdate


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def lines_of(updates, *, total, columns, seconds=1.0, activity="encoding", resumed=0):
    clock = Clock()
    tracker = Tracker(clock)
    tracker.start(activity, total, resumed)
    lines = [tracker.bar_line(columns)]
    for update in updates:
        clock.now += seconds
        tracker.update(update)
        lines.append(tracker.bar_line(columns))
    return lines


STEPS = [ProgressUpdate(done * 600_000, done * 1000, done * 200_000) for done in range(1, 101)]


@pytest.mark.parametrize("columns", [40, 79, 100, 160])
def test_parts_stay_in_their_columns(columns):
    lines = lines_of(STEPS, total=60_000_000, columns=columns)
    assert {len(line) for line in lines[1:]} == {len(lines[1])}
    assert len(lines[1]) <= columns
    for mark in ("%", "/s", "ETA"):
        assert len({line.find(mark) for line in lines}) == 1


def test_a_line_shows_share_rates_time_and_the_time_left():
    lines = lines_of(STEPS, total=60_000_000, columns=79)
    assert lines[10].endswith(" 10%           600 kB/s  0:00:10  ETA 0:01:30   200k tokens/s")
    assert lines[100].endswith("100%           600 kB/s  0:01:40  ETA 0:00:00   200k tokens/s")
    assert lines[0].endswith("  0%                -/s  0:00:00  ETA -:--:--")


def test_resumed_work_counts_for_the_share_and_not_for_the_rate():
    steps = [ProgressUpdate(30_000_000 + done, done, done) for done in (600_000, 1_200_000, 1_800_000)]
    line = lines_of(steps, total=60_000_000, columns=79, resumed=30_000_000)[-1]
    assert " 53% " in line
    assert "600 kB/s" in line


def test_a_narrow_line_has_fewer_parts():
    steps = [
        ProgressUpdate(
            done * 6_150_000,
            done * 3000,
            done * 3_100_000,
            content_bytes=done * 12_300_000,
            content=" of text",
        )
        for done in range(1, 6)
    ]
    lines = {
        columns: lines_of(steps, total=60_000_000, columns=columns)[-1]
        for columns in (100, 79, 60, 40, 20, 9)
    }
    assert lines == {
        100: "encoding ━━━━╸────  51%  30.8 MB of 60.0 MB  12.3 MB/s of text  0:00:05  ETA 0:00:05  "
        "3.10M tokens/s",
        79: "encoding ━━━━────  51%  12.3 MB/s of text  0:00:05  ETA 0:00:05  3.10M tokens/s",
        60: "encoding ━━━━━━━───────  51%  12.3 MB/s of text  ETA 0:00:05",
        40: "encoding ━━━━━━╸──────  51%  ETA 0:00:05",
        20: "encoding ━━━───  51%",
        9: "encoding",
    }


def test_hostile_names_are_harmless_and_log_lines_too():
    tracker = Tracker(Clock())
    tracker.start("reading \x1b[2J\n", None, 0)
    assert "\x1b" not in tracker.bar_line(79) + tracker.log_line()
    assert "\n" not in tracker.bar_line(79) + tracker.log_line()


def test_the_rate_of_text_is_shown_and_the_time_left_is_that_of_the_input():
    steps = [
        ProgressUpdate(done * 600_000, done, done, content_bytes=done * 3_000_000, content=" of text")
        for done in range(1, 101)
    ]
    lines = lines_of(steps, total=60_000_000, columns=79)
    assert lines[10].endswith(" 10%  3.00 MB/s of text  0:00:10  ETA 0:01:30      1 tokens/s")
    clock = Clock()
    tracker = Tracker(clock)
    tracker.start("encoding", 60_000_000, 0)
    for step in steps[:2]:
        tracker.update(step)
        clock.now += 1
    assert ", 1.50 MB/s of text, " in tracker.log_line()


def test_the_rate_follows_a_change_of_speed():
    slow = [ProgressUpdate(done * 1000) for done in range(1, 101)]
    fast = [ProgressUpdate(100_000 + done * 1_000_000) for done in range(1, 61)]
    line = lines_of(slow + fast, total=1_000_000_000, columns=79)[-1]
    assert "1.00 MB/s" in line


def test_the_time_moves_without_an_update():
    clock = Clock()
    tracker = Tracker(clock)
    tracker.start("loading the tokenizer", None, 0)
    assert tracker.bar_line(79) == "loading the tokenizer  0:00:00"
    clock.now += 3661
    assert tracker.bar_line(79) == "loading the tokenizer  1:01:01"


def test_without_a_total_counts_are_shown():
    line = lines_of(STEPS, total=None, columns=79)[-1]
    assert line == "encoding  60.0 MB  100,000 documents   600 kB/s  0:01:40   200k tokens/s"


@given(
    st.sampled_from(["encoding", "loading the tokenizer", "x" * 90]),
    st.one_of(st.none(), st.integers(0, 10**15)),
    st.lists(st.integers(0, 10**14), max_size=4),
    st.integers(1, 200),
    st.floats(0.001, 10**6),
)
def test_no_line_is_wider_than_the_terminal(activity, total, sizes, columns, seconds):
    updates = [ProgressUpdate(size, size // 100, size // 4) for size in sorted(sizes)]
    for line in lines_of(updates, total=total, columns=columns, seconds=seconds, activity=activity):
        assert len(line) <= columns


def test_a_log_line_names_everything_that_is_known():
    clock = Clock()
    tracker = Tracker(clock)
    tracker.start("merging", 10_000_000, 0)
    assert tracker.log_line() == "0:00:00 merging: 0%, 0 B of 10.0 MB"
    tracker.update(ProgressUpdate())
    clock.now += 30
    tracker.update(ProgressUpdate(5_000_000, 10, 0))
    assert tracker.log_line() == (
        "0:00:30 merging: 50%, 5.00 MB of 10.0 MB, 167 kB/s, 10 documents, ETA 0:00:30"
    )


@pytest.mark.parametrize("animated", [False, True])
def test_a_thread_draws_until_the_end(animated, monkeypatch, capsys):
    monkeypatch.setattr(meters, "_LOG_SECONDS", 0.001)
    monkeypatch.setattr(meters, "_REDRAW_SECONDS", 0.001)
    drawn = threading.Semaphore(0)

    class Counting(Meter):
        def _draw(self):
            super()._draw()
            drawn.release()

    meter = Counting(animated=animated)
    meter.start("merging", 100)
    for _ in range(3):
        assert drawn.acquire(timeout=60)
    meter.message("a message")
    meter.finish()
    written = capsys.readouterr().err
    meter.finish()
    assert capsys.readouterr().err == ""
    assert written.count("merging") >= 3
    assert "a message\n" in written
    if animated:
        assert written.endswith("\r\x1b[K")
        assert written.count("\n") == 1


def terminal_output(command, columns, directory, *, code=0, **settings):
    """Return what a command that ends with an exit code writes to a terminal of a width."""
    pid, descriptor = pty.fork()
    if pid == 0:
        os.chdir(directory)
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": str(columns), "PYTHONUTF8": "1"}
        program = (
            "import sys; from tokshard.cli import main, meters; meters._REDRAW_SECONDS = 0.01; "
            "sys.argv[0] = 'tokshard'; main.main()"
        )
        os.execve(sys.executable, [sys.executable, "-c", program, *command], environment | settings)
    output = b""
    try:
        while block := os.read(descriptor, 1 << 16):
            output += block
    except OSError:  # the end of a terminal
        pass
    os.close(descriptor)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == code, output.decode()
    return output.decode()


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_a_terminal_sees_a_bar_that_never_wraps(tmp_path, columns):
    write_jsonl(tmp_path / "corpus.jsonl", [{"text": "one two three " * 2000}] * 60)
    command = ["tokenize", "corpus.jsonl", "-o", "out", "--tokenizer", str(TOKENIZER)]
    output = terminal_output([*command, "--encoder", "reference", "--workers", "1"], columns, tmp_path)
    drawn = re.findall(r"\r([^\r\n]*)\x1b\[K", output)
    assert any(line.startswith("loading the tokenizer") for line in drawn)
    encoding = [line for line in drawn if line.startswith("encoding")]
    assert len(encoding) > 2
    assert len({(line.index("%"), line.index("ETA")) for line in encoding}) == 1
    assert all(len(line) < columns for line in drawn)
    assert "documents" in output[output.rindex("\x1b[K") :]


@pytest.mark.parametrize(
    ("settings", "prefix"),
    [({}, "\x1b[1;31merror:\x1b[0m "), ({"NO_COLOR": "1"}, "error: "), ({"TERM": "dumb"}, "error: ")],
)
def test_labels_of_messages_are_colored_on_a_terminal_that_shows_colors(tmp_path, settings, prefix):
    output = terminal_output(["inspect", "missing"], 80, tmp_path, code=3, **settings)
    assert prefix + "no dataset or file found: missing" in output
    assert ("\x1b[1;36mhint:\x1b[0m " in output) == (not settings)


def test_without_a_terminal_short_commands_print_no_progress(tmp_path):
    write_jsonl(tmp_path / "corpus.jsonl", [{"text": "abc"}])
    done = tokshard("tokenize", "corpus.jsonl", "-o", "out", "--tokenizer", TOKENIZER, cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr == ""


def test_a_meter_ends_in_order_if_a_signal_came_before_its_thread_started(monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    meter = Meter(animated=False)
    with pytest.raises(KeyboardInterrupt):
        meter.start("encoding")
    meter.finish()
