"""scripts/bench: ratios within each round, and warnings of losses against the history."""

from __future__ import annotations

import dataclasses
import math
import re
import statistics
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.benchmarks import BENCHMARKS, benchmark_modules

TIMES = st.floats(1e-3, 1e3)
RATIOS = st.floats(0.1, 10).map(lambda ratio: float(f"{ratio:.4g}"))


@pytest.fixture(scope="module")
def benchmarks():
    with benchmark_modules("measure", "history") as modules:
        yield modules


def rounds(measure, times, work=1):
    return measure.Rounds(measure.Contender("x", [], work), [{"seconds": t, "work": work} for t in times])


@given(pairs=st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=7), work=st.integers(1, 100))
def test_ratios_and_their_spread_are_those_of_the_rounds(benchmarks, pairs, work):
    measure = benchmarks["measure"]
    ours, base = (rounds(measure, times, work) for times in zip(*pairs, strict=True))
    slower = ours.ratio(base, measure.SECONDS)
    faster = ours.ratio(base, measure.rate("bytes/s"))
    expected = sorted(a / b for a, b in pairs)
    assert slower == (statistics.median(expected), expected[0], expected[-1], len(pairs))
    assert math.isclose(faster.low, 1 / expected[-1])
    assert math.isclose(faster.high, 1 / expected[0])


def test_a_figure_that_a_run_does_not_have_has_no_ratio(benchmarks):
    measure = benchmarks["measure"]
    assert rounds(measure, [1.0]).ratio(rounds(measure, [2.0]), measure.PEAK) is None
    assert rounds(measure, [1.0]).spread(measure.PEAK) is None


def record(history, ratio, low, high, *, better="higher", **changes):
    first = history.Record(
        benchmark="tokenize",
        arguments="megabytes=6",
        figure="a: b: MB/s",
        base="bare",
        better=better,
        ratio=ratio,
        low=low,
        high=high,
        value=1.0,
        rounds=3,
        machine="a processor, 2 cores",
        commit="10ea10c",
        date="2026-11-24",
    )
    return dataclasses.replace(first, **changes)


@given(
    past=st.lists(st.tuples(RATIOS, RATIOS, RATIOS).map(sorted), min_size=1, max_size=4),
    found=RATIOS,
    better=st.sampled_from(["higher", "lower"]),
)
def test_a_warning_is_a_loss_beyond_the_recorded_spread_and_5_percent(benchmarks, past, found, better):
    history = benchmarks["history"]
    records = [record(history, ratio, low, high, better=better) for low, ratio, high in past]
    warning = history.loss(record(history, found, found, found, better=better), records)
    middle, every = statistics.median(ratio for _, ratio, _ in past), [x for spread in past for x in spread]
    if better == "higher":
        expected = all(found < ratio for ratio in every) and found / middle < 0.95
    else:
        expected = all(found > ratio for ratio in every) and found / middle > 1.05
    assert (warning is not None) == expected


@pytest.mark.parametrize(
    ("ratio", "low", "high", "better", "is_loss"),
    [
        (0.96, 1.0, 1.0, "higher", False),  # within 5%
        (0.94, 1.0, 1.0, "higher", True),
        (0.94, 0.9, 1.1, "higher", False),  # within the spread
        (0.89, 0.9, 1.1, "higher", True),
        (1.50, 0.9, 1.1, "higher", False),  # a gain
        (1.04, 1.0, 1.0, "lower", False),
        (1.06, 1.0, 1.0, "lower", True),
        (1.06, 0.9, 1.1, "lower", False),
        (1.11, 0.9, 1.1, "lower", True),
        (0.50, 0.9, 1.1, "lower", False),
    ],
)
def test_both_margins_and_both_directions(benchmarks, ratio, low, high, better, is_loss):
    history = benchmarks["history"]
    found = history.loss(
        record(history, ratio, ratio, ratio, better=better), [record(history, 1.0, low, high, better=better)]
    )
    assert (found is not None) == is_loss


@pytest.mark.parametrize("field", ["benchmark", "arguments", "figure", "base", "machine"])
def test_records_of_other_work_are_not_compared(benchmarks, field):
    history = benchmarks["history"]
    past = record(history, 1.0, 1.0, 1.0)
    found = record(history, 0.1, 0.1, 0.1)
    assert history.loss(found, [past])
    assert not history.loss(found, [dataclasses.replace(past, **{field: "another"})])


def test_the_history_keeps_the_last_records_of_each_figure(benchmarks, tmp_path):
    history, path = benchmarks["history"], tmp_path / "history.jsonl"
    assert history.read(path) == []
    runs = [record(history, 1.0 + n, 1.0, 9.0) for n in range(history.KEPT + 2)]
    other = record(history, 0.5, 0.4, 0.6, figure="a: ü: MB/s")
    for run in runs:
        history.append([run, other], path)
    found = history.read(path)
    assert found == [*runs[2:], *[other] * history.KEPT]
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.parametrize("damage", [b"{", b"\xff\n", b"[]", b'{"schema": "tokshard.benchmark/1"}', b"\n\0\n"])
def test_damaged_lines_are_skipped_with_a_warning(benchmarks, tmp_path, capsys, damage):
    history, path = benchmarks["history"], tmp_path / "history.jsonl"
    good = record(history, 1.0, 1.0, 1.0)
    history.append([good], path)
    path.write_bytes(damage + b"\n" + path.read_bytes() + damage)
    assert history.read(path) == [good]
    assert "skipped" in capsys.readouterr().err
    history.append([], path)
    capsys.readouterr()
    assert history.read(path) == [good]
    assert not capsys.readouterr().err


BENCHMARK = """
import sys
sys.path.insert(0, sys.argv[1])
import measure
options = measure.parser("sleeps", "Sleep.", rounds=2)
options.add_argument("--long", type=float, default=0.02)
options.add_argument("--other-python")
with measure.session(options, sys.argv[2:], "numpy", "no-such-package") as bench:
    def sleep(name, seconds):
        command = measure.program("import time", f"time.sleep({seconds})", "report['same'] = 7")
        return measure.Contender(name, command)
    found = bench.compare(
        [sleep("short", 0.01), sleep("long", 0.1)], title="sleeps", base="short", equal=["same"])
    assert all(len(result.runs) == bench.options.rounds for result in found.values())
"""


def test_a_benchmark_from_its_command_line_to_a_warning(benchmarks, tmp_path):
    history, path = benchmarks["history"], tmp_path / "history.jsonl"
    command = [sys.executable, "-c", BENCHMARK, str(BENCHMARKS), "--history", str(path)]

    def run(*more):
        return subprocess.run([*command, *more], capture_output=True, text=True, check=False)

    done = run("--record", "--long", "0.5")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"$ scripts/bench sleeps --history {path} --record --long 0.5"
    assert re.search(r" cores, .*, Python .*, numpy \d.*, no-such-package absent$", lines[1])
    assert lines[2].startswith("commit ")
    assert lines[3].startswith("2 interleaved rounds")
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("|")]
    assert table[0] == ["sleeps", "s", "ratio, lower is better", "CPU s", "peak MB"]
    assert [row[0] for row in table[2:]] == ["short", "long"]
    assert table[2][2] == "base"
    assert re.fullmatch(r"[\d.]+ \([\d.]+-[\d.]+\)", table[3][2])
    assert lines[-1] == "0 of 1 ratios have records in history.jsonl"
    (first,) = history.read(path)
    assert (first.benchmark, first.arguments, first.base, first.better) == (
        "sleeps",
        "long=0.5",
        "short",
        "lower",
    )
    assert 1 < first.low <= first.ratio <= first.high <= 100

    better = dataclasses.replace(first, ratio=0.01, low=0.01, high=0.01)
    path.unlink()
    history.append([better], path)
    assert "warning" not in run("--rounds", "1").stderr  # other arguments
    done = run("--long", "0.5", "--rounds", "1")
    assert done.returncode == 0
    assert done.stderr.startswith("warning: sleeps: long: s: ratio to short is ")
    assert run("--long", "0.5", "--rounds", "1", "--strict").returncode == 1
    assert history.read(path) == [better]


def test_contenders_whose_results_differ_end_the_benchmark(benchmarks, tmp_path):
    measure = benchmarks["measure"]
    options = measure.parser("x", "Do nothing.")
    contenders = [
        measure.Contender(name, measure.program("", "", f"report['digest'] = {value}"))
        for name, value in (("a", 1), ("b", 2))
    ]
    with (
        pytest.raises(SystemExit, match="differ in digest"),
        measure.session(options, ["--rounds", "1", "--directory", str(tmp_path)]) as bench,
    ):
        bench.compare(contenders, equal=["digest"])
    assert not [*tmp_path.iterdir()]


def test_a_contender_that_fails_ends_the_benchmark_with_its_words(benchmarks):
    measure = benchmarks["measure"]
    for code, words in (
        ("raise SystemExit('no such thing')", "no such thing"),
        ("import os; os.abort()", "a failed"),
    ):
        with pytest.raises(SystemExit, match=words):
            measure.Contender("a", [sys.executable, "-c", code]).run()
    with pytest.raises(SystemExit, match="no-such-command"):
        measure.Contender("a", ["no-such-command"]).run()


def test_memory_is_that_of_the_contender_alone(benchmarks):
    measure = benchmarks["measure"]
    block = bytearray(200 << 20)  # this process is large, and what it starts is not
    block[:: 1 << 12] = b"x" * (len(block) >> 12)
    command = measure.program("x = bytearray(b'x') * (40 << 20)", "y = bytearray(b'x') * (30 << 20)")
    inside = measure.Contender("a", command).run()
    outside = measure.Contender("a", [*command[:2], command[2].replace("print(json", "(json")]).run()
    assert 30 << 20 <= inside["added_bytes"] < 45 << 20
    for run in (inside, outside):
        assert 70 << 20 <= run["peak_bytes"] < 120 << 20
