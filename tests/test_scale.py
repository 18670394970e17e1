"""docs/explanation/scale.md: its sums add up, its benchmark runs, its limits are errors."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from support import forked_commands
from support.benchmarks import BENCHMARKS, benchmark_modules
from tokshard.core import json_text
from tokshard.errors import InputError, UsageError
from tokshard.samples.blend.order import BlendOrder
from tokshard.samples.index.epochs import plan_epochs
from tokshard.samples.index.sidecar import gpt_specs

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/explanation/scale.md"


@pytest.fixture(scope="module")
def benchmarks():
    with benchmark_modules("scale", "scaledata", "sheet", "footprint", "measure") as modules:
        yield modules


def test_the_sums_of_the_page_follow_from_what_is_given_and_measured_in_it(benchmarks):
    page = PAGE.read_text()
    assert benchmarks["sheet"].recompute(page) == page


def test_the_page_has_all_stages_and_says_where_they_were_measured(benchmarks):
    sheet, page = benchmarks["sheet"], PAGE.read_text()
    measured = page[page.index(sheet.BEGIN) : page.index(sheet.END)]
    assert sheet.MACHINE in measured
    assert [line.split("`")[1] for line in measured.splitlines() if line.startswith("| `")] == list(
        benchmarks["scale"].STAGES
    )


SHEET = """\
| what | name | one | two | unit | how |
|---|---|---|---|---|---|
| given | `a` | 1,000 | 0.5 | x | given |
| a sum | `b` | | | x | `ceil(a / 3) * 2**2` |
| a question | `c` | | | | `b <= 4` |
"""


def test_a_sheet_is_computed_column_by_column(benchmarks):
    lines = benchmarks["sheet"].recompute(SHEET).splitlines()
    assert lines[2:] == [
        "| given | `a` | 1,000 | 0.5 | x | given |",
        "| a sum | `b` | 1,340 | 4 | x | `ceil(a / 3) * 2**2` |",
        "| a question | `c` | no | yes |  | `b <= 4` |",
    ]


@pytest.mark.parametrize("formula", ["__import__('os')", "a.b.c", "'x' * 9", "d + 1", "[a]"])
def test_a_formula_is_arithmetic_and_nothing_else(benchmarks, formula):
    with pytest.raises((ValueError, KeyError)):
        benchmarks["sheet"].evaluate(formula, {"a": [1]}, 0)


SMALL = ["--scale", "0.0001", "--points", "1", "--rounds", "1"]


def test_the_benchmark_measures_a_stage_in_processes_of_its_own(tmp_path):
    command = [sys.executable, str(BENCHMARKS / "run.py"), "scale", "--directory", str(tmp_path), *SMALL]
    done = subprocess.run([*command, "--stages", "tokenize", "--json"], check=True, capture_output=True)
    (point,) = json.loads(done.stdout)["points"]
    assert (point["stage"], point["unit"]) == ("tokenize", "byte")
    assert point["size"] >= 100_000
    assert point["seconds"] > 0
    assert point["largest_bytes"] > 10_000_000
    assert point["files"] > 3
    assert [*tmp_path.iterdir()] == []


def test_all_stages_are_measured_and_written_into_a_page_that_holds(benchmarks, tmp_path, monkeypatch):
    """The commands run without the start of an interpreter for each."""
    sheet, scale, page = benchmarks["sheet"], benchmarks["scale"], tmp_path / "scale.md"
    page.write_text(PAGE.read_text())
    programs = []

    def take(command, output=None):
        if output is not None:
            shutil.rmtree(output, ignore_errors=True)
            output.mkdir(parents=True)
        if command[: len(scale.TOKSHARD)] == scale.TOKSHARD:
            done = forked_commands.run(command[len(scale.TOKSHARD) :])
        else:
            program = tmp_path / "program.py" if command[1] == "-c" else Path(command[1])
            if command[1] == "-c":
                program.write_text(command[2])
            programs.append(program.name)
            done = forked_commands.run(command[3 if command[1] == "-c" else 2 :], program=program)
        assert done.returncode == 0, done.stderr.decode()
        return benchmarks["footprint"].Footprint(1.0, 1.0, 3, 2, 1, 0, 0)

    monkeypatch.setattr(scale, "take", take)
    monkeypatch.setattr(scale, "yardstick", lambda: benchmarks["measure"].Contender("nothing", ["true"]))
    scale.main(["--directory", str(tmp_path), *SMALL, "--write", str(page)])
    written = page.read_text()
    assert sheet.recompute(written) == written
    assert written[: written.index(sheet.BEGIN)] == PAGE.read_text()[: written.index(sheet.BEGIN)]
    for stage in scale.STAGES:
        assert f"| `{stage}` |" in written
    assert programs.count("program.py") == 2  # of the loader


@pytest.fixture
def more_memory(benchmarks, tmp_path):
    """How many bytes of its own a command takes more for each unit, from a million on to four."""

    def grown(what, command, allowed):
        def measured(size):
            place = tmp_path / f"{size}"
            if not place.exists():
                place.mkdir()
                getattr(benchmarks["scaledata"], what)(place, size)
            return benchmarks["footprint"].take(command(place, size), place / "out").own_bytes

        for size in (1_000_000, 4_000_000):  # each may compile kernels that the other does not need
            measured(size)
        large, small, rounds = measured(4_000_000), measured(1_000_000), 1
        while (more := (large - small) / 3_000_000) >= allowed and rounds < 3:
            # A busy machine may have missed the peak of the small one.
            small, rounds = max(small, measured(1_000_000)), rounds + 1
        return more

    return grown


def test_an_index_takes_four_bytes_a_document_and_twelve_a_sample(benchmarks, more_memory):
    law = 2 * 4 + 2 * 1000 / 4096 * 12
    options = ["--seq-length", "4096", "--split", "1,0,0", "--epochs", "2"]

    def command(place, size):
        return benchmarks["scale"].tokshard(
            "build-indices", place / "data", *options, "--cache-dir", place / "out"
        )

    assert more_memory("documents", command, 1.2 * law) < 1.2 * law


def test_the_order_of_a_blend_is_never_in_memory_whole(benchmarks, more_memory):
    options = ["--seq-length", "4096", "--split", "1,0,0"]

    def command(place, size):
        words = json.loads((place / "words.json").read_text())
        return benchmarks["scale"].tokshard(
            "blend", *words, *options, "--num-samples", size, "-o", place / "out"
        )

    # It would be 10 bytes a sample.
    assert more_memory("sources", command, 5) < 5


@pytest.mark.parametrize(
    ("values", "expected"),
    [([1, 2, 11, 101], 1.0), ([2, 2, 2, 2.1], 0.0), ([2, 2, 2, 9], None), ([1, 5, 17, 65], 0.6)],
    ids=["proportional", "constant", "only the largest", "a root"],
)
def test_growth(benchmarks, values, expected):
    found = benchmarks["scale"].slope([1, 10, 100, 1000], values)
    assert found == (None if expected is None else pytest.approx(expected, abs=0.01))


def test_a_command_is_measured_with_its_children(benchmarks, tmp_path):
    child = "import sys; x = bytearray(60_000_000); print(flush=True); sys.stdin.read()"
    code = f"""
import subprocess, sys, time
command, pipe = [sys.executable, "-c", {child!r}], subprocess.PIPE
children = [subprocess.Popen(command, stdin=pipe, stdout=pipe) for _ in range(2)]
for one in children:
    one.stdout.readline()
time.sleep(2)  # both hold their memory, for as long as a busy machine may need to look once
for one in children:
    one.communicate()
open({str(tmp_path / "out" / "file")!r}, "wb").write(bytes(1000))
"""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "stale").write_text("gone")
    found = benchmarks["footprint"].take([sys.executable, "-c", code], tmp_path / "out")
    assert found.own_bytes > 120_000_000
    assert found.peak_bytes >= found.own_bytes
    assert (found.files, found.written_bytes) == (1, 1000)


def test_a_command_that_fails_ends_the_benchmark_with_its_words(benchmarks):
    with pytest.raises(SystemExit, match="no such thing"):
        benchmarks["footprint"].take([sys.executable, "-c", "raise SystemExit('no such thing')"])


def epochs(sequences, tokens=10**12, count=1):
    return plan_epochs(
        sequences=sequences,
        tokens_per_epoch=tokens,
        sequence_length=4096,
        num_samples=count * tokens // 4096 - 1,
    )


def test_more_sequences_than_int32_numbers_are_refused():
    assert epochs(2**31 - 1).documents == 2**31 - 1
    with pytest.raises(InputError, match="int32") as raised:
        epochs(2**31)
    assert "divide the dataset" in raised.value.hint


def test_more_entries_than_int32_numbers_are_int64_in_the_sample_index():
    assert gpt_specs(epochs(2**30))["sample_index"].dtype == np.int32
    twice = epochs(2**30, count=2)
    assert twice.documents == 2**31
    assert gpt_specs(twice)["sample_index"].dtype == np.int64


@pytest.mark.parametrize(("samples", "dtype"), [(2**32 - 3, np.uint32), (2**32 - 2, np.int64)])
def test_the_shuffle_index_is_as_wide_as_it_must_be(samples, dtype):
    plan = plan_epochs(sequences=9, tokens_per_epoch=samples * 64 + 1, sequence_length=64, num_samples=None)
    assert plan.samples == samples
    assert gpt_specs(plan)["shuffle_index"].dtype == dtype


def test_more_sources_than_int16_numbers_are_refused():
    BlendOrder(np.ones(32_766), 1)
    with pytest.raises(UsageError, match="int16"):
        BlendOrder(np.ones(32_767), 1)


def test_a_file_that_could_not_be_read_back_is_not_made(monkeypatch):
    monkeypatch.setattr(json_text, "MAX_JSON_BYTES", 100)
    assert json_text.dump_readable_json({"a": "x" * 50}, "plan.json", hint="merge")
    with pytest.raises(UsageError, match=r"plan\.json must have at most 100 bytes, got 114") as raised:
        json_text.dump_readable_json({"a": "x" * 100}, "plan.json", hint="merge")
    assert raised.value.hint == "merge"
