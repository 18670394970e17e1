"""Job arrays, task after task in this process: the same bytes as one run, whatever happened in between."""

from __future__ import annotations

import gzip
import json
import os
import random
import tempfile
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.array_corpora import (
    OPTIONS,
    UNIT_BYTES,
    content,
    expected,
    finish,
    lines,
    run_task,
    run_tasks,
    write_corpus,
)
from support.tokenize_runs import job_of, manifest, run_tokenize, write_jsonl
from tokshard import ArrayTask
from tokshard.errors import (
    BadRecordError,
    InputError,
    LockedError,
    OutputExistsError,
    UnfinishedError,
    UsageError,
)
from tokshard.storage.lock import WriterLock
from tokshard.text.corpus.files import CorpusFile
from tokshard.text.corpus.planning import plan_units
from tokshard.text.tokenize import array
from tokshard.text.tokenize.array import TaskUnits
from tokshard.text.tokenize.encoder import Outcome
from tokshard.text.tokenize.part import UnitKey
from tokshard.text.tokenize.workers.executor import InlineExecutor
from tokshard.text.tokenize.workers.pool import ProcessPool

PARTS = Path("x.tokshard/work/parts")


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_corpus(tmp_path)


def names_of(inputs, **options):
    return job_of(inputs, "x", **{**OPTIONS, **options}).part_names


def finished_units(inputs):
    """Return the units that have a part."""
    names = names_of(inputs)
    return {(inputs[key.file], key.index) for key in map(names.key, os.listdir(PARTS))}


# Which task is meant, and which units are its own


@pytest.mark.parametrize(("text", "index", "count"), [("0/1", 0, 1), ("7/8", 7, 8), ("63/64", 63, 64)])
def test_the_task_is_found(text, index, count):
    task = ArrayTask.parse(text)
    assert task == ArrayTask(index, count)
    assert str(task) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("8/8", "tasks are numbered from 0, the last is 7/8"),
        ("0/0", "the number of tasks must be at least 1"),
        *(
            (text, "--array-task must be I/N, got ")
            for text in ("", "3", "1/", "-1/8", "a/b", "auto", "auto/8", "1 / 8", "1/9999999999")
        ),
    ],
)
def test_what_names_no_task_is_refused(text, message):
    with pytest.raises(UsageError) as caught:
        ArrayTask.parse(text)
    assert message in str(caught.value)
    assert caught.value.hint


def file_of(number, size, compression="none"):
    return CorpusFile(
        path=f"{number}.jsonl", size_bytes=size, mtime_ns=0, format="jsonl", compression=compression
    )


def units_of(files):
    """Return every unit of some inputs of which each byte is a unit, compressed or not."""
    return [
        UnitKey(number, index) for number, file in enumerate(files) for index in range(file.size_bytes or 1)
    ]


@given(
    sizes=st.lists(st.integers(0, 40) | st.sampled_from([0, 1, 300]), min_size=1, max_size=30),
    count=st.integers(1, 50),
    compressions=st.lists(st.sampled_from(["none", "gzip"]), min_size=30, max_size=30),
)
def test_each_unit_is_of_one_task_and_a_compressed_input_of_one_task(sizes, count, compressions):
    files = [file_of(*facts) for facts in zip(range(30), sizes, compressions, strict=False)]
    tasks = [TaskUnits(ArrayTask(index, count), files, unit_bytes=1) for index in range(count)]
    for key in units_of(files):
        assert sum(key in units for units in tasks) == 1
    streams = {number for number, file in enumerate(files) if file.compression == "gzip"}
    assert all(units.streams == streams for units in tasks)
    assert sorted(number for units in tasks for number in units.own_streams) == sorted(streams)


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=40) | st.just([2000]) | st.just([900, 3, 3, 50]),
    count=st.integers(1, 12),
)
def test_the_units_of_plain_files_are_dealt_evenly(sizes, count):
    files = [file_of(number, size) for number, size in enumerate(sizes)]
    keys = [
        UnitKey(unit.file, unit.index)
        for number, file in enumerate(files)
        for unit in plan_units(number, file, 7)
    ]
    tasks = [TaskUnits(ArrayTask(index, count), files, unit_bytes=7) for index in range(count)]
    shares = [sum(key in units for key in keys) for units in tasks]
    assert sum(shares) == len(keys)
    assert max(shares) - min(shares) <= 1


@given(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=40), count=st.integers(1, 12))
def test_compressed_inputs_are_dealt_by_size(sizes, count):
    """Nobody has more than a fair share and the largest file."""
    files = [file_of(number, size, "gzip") for number, size in enumerate(sizes)]
    tasks = [TaskUnits(ArrayTask(index, count), files, unit_bytes=1) for index in range(count)]
    shares = [sum(sizes[number] for number in units.own_streams) for units in tasks]
    assert sum(shares) == sum(sizes)
    assert max(shares) <= sum(sizes) / count + max(sizes)


# Tasks and --finish


@pytest.mark.parametrize("count", [1, 2, 3, 8, 40])
@pytest.mark.parametrize("order", ["forwards", "backwards"])
def test_the_bytes_are_those_of_one_run(corpus, count, order):
    indices = range(count) if order == "forwards" else reversed(range(count))
    reports = [run_task(corpus, index, count) for index in indices]
    assert {report.state for report in reports} == {"encoded"}
    assert not Path("x.bin").exists()
    result = finish(corpus)
    assert result.action == "written"
    assert content("x") == expected(corpus)
    units = result.outputs[0].dataset.units
    assert (sum(report.units for report in reports), result.units_reused) == (units, units)
    assert (sum(report.documents for report in reports), sum(report.tokens for report in reports)) == (
        result.counts.documents,
        result.outputs[0].tokens,
    )
    assert finish(corpus).action == "found"
    assert run_task(corpus, 0, count).state == "up-to-date"


def test_several_fields_are_shared_too(corpus):
    run_tasks(corpus, 3, fields=("text", "title"))
    report = finish(corpus, fields=("text", "title"))
    assert [output.path_prefix for output in report.outputs] == ["x_text_document", "x_title_document"]
    run_tokenize(corpus, "y", fields=("text", "title"), **OPTIONS)
    for field in ("text", "title"):
        assert content(f"x_{field}_document") == content(f"y_{field}_document")


def test_the_number_of_tasks_may_change_and_nothing_is_encoded_twice(corpus):
    reports = [run_task(corpus, index, 5) for index in (1, 3)]
    done = set(os.listdir(PARTS))
    reports += [run_task(corpus, index, 3) for index in (2, 0, 1)]
    assert done <= set(os.listdir(PARTS))
    assert sum(report.units for report in reports) == len(os.listdir(PARTS))
    assert finish(corpus).outputs[0].dataset.units == sum(report.units for report in reports)
    assert content("x") == expected(corpus)


def test_a_task_that_comes_again_does_nothing(corpus):
    first = run_task(corpus, 0, 2)
    again = run_task(corpus, 0, 2)
    assert (again.state, again.units, again.units_reused) == ("encoded", 0, first.units)
    run_task(corpus, 1, 2)
    finish(corpus)
    before = {path: path.stat().st_mtime_ns for path in Path().glob("x*")}
    for options in ({}, {"force": True}):
        late = run_task(corpus, 0, 2, **options)
        assert (late.state, late.units) == ("up-to-date", 0)
    assert {path: path.stat().st_mtime_ns for path in Path().glob("x*")} == before


def test_worker_processes_encode_a_share(corpus):
    for index in range(2):
        run_task(corpus, index, 2, executor=ProcessPool(2))
    finish(corpus)
    assert content("x") == expected(corpus)


def test_tasks_at_the_same_time_begin_the_work_once(corpus):
    for lock, prefix in (("flock", "x"), ("none", "y")):
        tasks = [
            threading.Thread(target=run_task, args=(corpus, index, 4, prefix), kwargs={"lock": lock})
            for index in range(4)
        ]
        for task in tasks:
            task.start()
        for task in tasks:
            task.join(120)
        finish(corpus, prefix, lock=lock)
        assert content(prefix) == expected(corpus)


def test_units_without_a_part_are_named(corpus):
    for index in (0, 2):
        run_task(corpus, index, 3)
    (PARTS / names_of(corpus).of(UnitKey(0, 0))).unlink(missing_ok=True)
    have = finished_units(corpus)
    with pytest.raises(UnfinishedError) as caught:
        finish(corpus)
    error = caught.value
    assert error.exit_code == 1
    assert "units are not finished: 0" in error.message
    assert "of a.jsonl; " in error.message
    assert error.hint == (
        "run the array tasks again with the same options (finished units are kept), then --finish"
    )
    named = {(missing["input"], unit) for missing in error.missing for unit in missing["units"]}
    assert ("a.jsonl", 0) in named
    assert named.isdisjoint(have)
    assert have == finished_units(corpus)
    run_tasks(corpus, 3)
    assert named <= finished_units(corpus)
    finish(corpus)
    assert content("x") == expected(corpus)


def test_of_a_compressed_input_whose_end_nobody_has_seen_the_next_unit_is_named(corpus):
    inputs = [corpus[1]]
    run_task(inputs, 0, 1)
    names = names_of(inputs)
    last = len(os.listdir(PARTS)) - 1
    for index in (2, *range(4, last + 1)):
        (PARTS / names.of(UnitKey(0, index))).unlink()
    with pytest.raises(UnfinishedError) as caught:
        finish(inputs)
    assert caught.value.missing == ({"input": "b.jsonl.gz", "units": [2, 4]},)
    assert "2 units are not finished: 2, 4 of b.jsonl.gz" in caught.value.message
    assert run_task(inputs, 1, 2).units + run_task(inputs, 0, 2).units == last - 2
    finish(inputs)
    assert content("x") == expected(inputs)


def test_of_an_input_that_nobody_has_begun_the_first_unit_is_named(corpus):
    inputs = corpus[:2]
    run_task(inputs[:1], 0, 1)
    with pytest.raises(UnfinishedError) as caught:
        finish(inputs)
    assert caught.value.missing == ({"input": "b.jsonl.gz", "units": [0]},)
    assert caught.value.message == "1 unit is not finished: 0 of b.jsonl.gz"


def test_a_long_list_of_inputs_with_missing_units_is_cut_in_the_message(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    inputs = [write_jsonl(Path(f"{number}.jsonl"), [{"text": "ab"}]) for number in range(25)]
    run_task(inputs, 0, 25)
    with pytest.raises(UnfinishedError) as caught:
        finish(inputs)
    assert len(caught.value.missing) == 24
    assert caught.value.message.startswith("24 units are not finished: 0 of 1.jsonl; 0 of 2.jsonl; ")
    assert caught.value.message.endswith("; 0 of 20.jsonl; and 4 more inputs")


def test_a_long_list_of_missing_units_is_cut_in_the_message_and_complete_in_the_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "in.jsonl", [{"text": "ab"}] * 100)
    run_task(["in.jsonl"], 0, 2, unit_size=15)
    with pytest.raises(UnfinishedError) as caught:
        finish(["in.jsonl"], unit_size=15)
    (missing,) = caught.value.missing
    assert missing["units"] == list(range(1, 100, 2))
    assert "50 units are not finished: 1, 3, 5" in caught.value.message
    assert "39 and 30 more of in.jsonl" in caught.value.message
    assert ", 41" not in caught.value.message


def test_finish_that_fails_keeps_the_units_of_inputs_that_it_was_not_given(corpus):
    run_tasks(corpus, 2)
    parts = sorted(os.listdir(PARTS))
    Path("other.jsonl").write_bytes(lines(8, 100))
    with pytest.raises(UnfinishedError, match=r"1 unit is not finished: 0 of other\.jsonl"):
        finish(["other.jsonl"])
    assert sorted(os.listdir(PARTS)) == parts
    finish(corpus)
    assert content("x") == expected(corpus)


def test_nothing_can_be_finished_before_it_has_begun(corpus):
    with pytest.raises(UnfinishedError, match="no task has begun to make x with these options") as caught:
        finish(corpus)
    assert "--array-task I/N" in caught.value.hint
    assert not Path("x.tokshard").exists()


@pytest.mark.parametrize("damage", ["cut", "flip", "other", "directory"])
def test_a_damaged_part_is_named_and_made_again(corpus, damage):
    run_tasks(corpus, 2)
    names = names_of(corpus)
    part = PARTS / names.of(UnitKey(0, 3))
    content_before = part.read_bytes()
    if damage == "cut":
        part.write_bytes(content_before[:-1])
    elif damage == "flip":
        part.write_bytes(bytes([content_before[0] ^ 1]) + content_before[1:])
    elif damage == "other":
        part.write_bytes((PARTS / names.of(UnitKey(0, 4))).read_bytes())
    else:
        part.unlink()
        part.mkdir()
    with pytest.raises(UnfinishedError) as caught:
        finish(corpus)
    assert caught.value.missing == ({"input": "a.jsonl", "units": [3]},)
    assert [report.units for report in run_tasks(corpus, 2)] == [0, 1]
    finish(corpus)
    assert content("x") == expected(corpus)


def test_units_of_an_encoder_that_is_not_accepted_any_more_are_made_again(corpus):
    limit = {"max_document_bytes": 10_000}  # the defaults of the encoders differ
    run_tasks(corpus, 2, encoder="fast", **limit)
    with pytest.raises(UnfinishedError):
        finish(corpus, encoder="reference", **limit)
    assert [report.units_reused for report in run_tasks(corpus, 2, encoder="reference", **limit)] == [0, 0]
    finish(corpus, encoder="reference", **limit)
    assert manifest("x")["counts"]["encoders"].keys() == {"reference"}


def test_an_ordinary_run_resumes_where_tasks_have_stopped(corpus):
    done = [run_task(corpus, index, 4) for index in (0, 2)]
    report = run_tokenize(corpus, "x", **OPTIONS)
    assert report.units_reused == sum(task_report.units for task_report in done)
    assert content("x") == expected(corpus)


class StoppedError(Exception):
    pass


def stopping_after(units):
    """Return an executor that encodes some units and is then killed, as far as its job can tell."""

    class Stopping(InlineExecutor):
        def run(self, *arguments):
            left = iter(range(units))
            for event in super().run(*arguments):
                if isinstance(event, Outcome) and next(left, None) is None:
                    raise StoppedError
                yield event

    return Stopping()


@pytest.mark.parametrize("units", [1, 9, 20])
@pytest.mark.parametrize("checkpoint_units", [4, 256])
def test_tasks_resume_where_an_ordinary_run_has_stopped(corpus, units, checkpoint_units, monkeypatch):
    """Its units are parts, or they were appended already."""
    monkeypatch.setattr("tokshard.text.tokenize.assembly.CHECKPOINT_UNITS", checkpoint_units)
    with pytest.raises(StoppedError):
        run_tokenize(corpus, "x", executor=stopping_after(units), **OPTIONS)
    reports = run_tasks(corpus, 3)
    result = finish(corpus)
    assert result.outputs[0].dataset.units == sum(report.units + report.units_reused for report in reports)
    assert sum(report.units_reused for report in reports) >= units
    assert content("x") == expected(corpus)


def test_appended_units_that_are_damaged_are_named_and_made_again(corpus, monkeypatch):
    monkeypatch.setattr("tokshard.text.tokenize.assembly.CHECKPOINT_UNITS", 4)
    with pytest.raises(StoppedError):
        run_tokenize(corpus, "x", executor=stopping_after(9), **OPTIONS)
    run_tasks(corpus, 2)
    lengths = Path("x.tokshard/work/0.lengths")
    lengths.write_bytes(b"\1" + lengths.read_bytes()[1:])
    with pytest.raises(UnfinishedError) as caught:
        finish(corpus)
    assert caught.value.missing == ({"input": "a.jsonl", "units": [*range(8)]},)
    assert [report.units for report in run_tasks(corpus, 2)] == [4, 4]
    finish(corpus)
    assert content("x") == expected(corpus)


def test_tasks_that_come_again_after_an_input_has_changed_use_the_parts_of_the_others(corpus):
    first = run_tasks(corpus, 2)
    units = sum(report.units for report in first)
    changed = len(plan(corpus[0]))
    Path("a.jsonl").write_bytes(lines(9, 15_000))
    with pytest.raises(UnfinishedError, match=r"units are not finished: 0 to \d+ of a\.jsonl\n") as caught:
        finish(corpus)
    second = run_tasks(corpus, 3)
    assert sum(report.units_reused for report in second) == units - changed
    assert sum(report.units for report in second) == len(caught.value.missing[0]["units"])
    finish(corpus)
    assert content("x") == expected(corpus)


def plan(path):
    return list(plan_units(0, job_of([path], "x", **OPTIONS).files[0], UNIT_BYTES))


def test_tasks_of_other_options_are_refused_until_they_are_forced(corpus):
    first = run_task(corpus, 0, 2)
    before = sorted(os.listdir(PARTS))
    with pytest.raises(OutputExistsError) as refused:
        run_task(corpus, 0, 2, append_eod=False)
    assert refused.value.exit_code == 4
    assert "finished units of other options: --append-eod was on and is now off" in refused.value.message
    assert "--force" in refused.value.hint
    with pytest.raises(UnfinishedError, match=r"no task has begun .*: --append-eod was on and is now off"):
        finish(corpus, append_eod=False)
    assert sorted(os.listdir(PARTS)) == before
    again = run_task(corpus, 0, 2)
    assert (again.units, again.units_reused) == (0, first.units)
    assert run_task(corpus, 0, 2, append_eod=False, force=True).units_reused == 0
    run_task(corpus, 1, 2, append_eod=False)
    finish(corpus, append_eod=False)
    assert content("x") == expected(corpus, append_eod=False)
    with pytest.raises(OutputExistsError, match="--append-eod was off and is now on"):
        run_task(corpus, 1, 2)


def test_without_locks_a_work_directory_of_no_run_is_refused(corpus):
    Path("x.tokshard/work").mkdir(parents=True)
    with pytest.raises(OutputExistsError, match=r"has no readable run\.json") as refused:
        run_task(corpus, 0, 2, lock="none")
    assert refused.value.hint.startswith("remove the directory when no task is at work")
    assert os.listdir("x.tokshard/work") == []
    run_task(corpus, 0, 2)


def test_a_task_that_fails_before_its_first_unit_does_not_stand_in_the_way(corpus):
    with pytest.raises(BadRecordError):
        run_task(corpus, 0, 2, fields=("nothing",))
    run_tasks(corpus, 2)
    finish(corpus)
    assert content("x") == expected(corpus)


def test_an_output_of_other_inputs_is_replaced_only_by_force(corpus):
    run_tokenize(corpus[:1], "x", **OPTIONS)
    before = content("x")
    for lock in ("flock", "none"):
        with pytest.raises(OutputExistsError):
            run_task(corpus, 0, 2, lock=lock)
        assert not Path("x.tokshard/work").exists()
    assert content("x") == before
    for index in range(2):
        assert run_task(corpus, index, 2, force=True).state == "encoded"
    assert content("x") == before
    with pytest.raises(OutputExistsError):
        finish(corpus)
    finish(corpus, force=True)
    assert content("x") == expected(corpus)


def test_units_of_other_options_do_not_stand_in_the_way_of_a_finished_output(corpus):
    run_tokenize(corpus, "x", **OPTIONS)
    run_task(corpus, 0, 2, append_eod=False, force=True)
    parts = sorted(os.listdir(PARTS))
    assert run_task(corpus, 0, 2).state == "up-to-date"
    assert finish(corpus).action == "found"
    assert sorted(os.listdir(PARTS)) == parts


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        (["-"], {}, "a pipe can be read only once"),
        (["a.jsonl"], {"resume": False}, "--no-resume would remove the finished units of other tasks"),
        (["a.jsonl"], {"limit": 3}, "--limit cannot be applied by the tasks of a job array"),
        (["a.jsonl"], {"max_tokens": 3}, "--max-tokens cannot be applied by the tasks of a job array"),
        (["a.jsonl"], {"prefix": "memory://bucket/x"}, "require an --output on a shared file system"),
    ],
)
def test_what_cannot_be_shared_is_refused(corpus, inputs, options, message):
    with pytest.raises(UsageError, match=message):
        run_task(inputs, 0, 2, **options)
    with pytest.raises(UsageError, match=message):
        finish(inputs, **options)
    assert not Path("x.tokshard").exists()


BAD = [b'{"text": "ab"}'] * 40 + [b"{nothing"] + [b'{"text": "cd"}'] * 40


def test_a_bad_record_is_named_with_its_line_by_the_task_that_meets_it(tmp_path, monkeypatch):
    """The lines before it are in the units of others: the task counts them."""
    monkeypatch.chdir(tmp_path)
    path = write_jsonl(tmp_path / "in.jsonl", BAD)
    owner = 600 // 90 % 3
    for index in range(3):
        if index != owner:
            assert run_task([path], index, 3, unit_size=90).state == "encoded"
    with pytest.raises(BadRecordError, match=r"in\.jsonl:41: invalid JSON") as caught:
        run_task([path], owner, 3, unit_size=90)
    assert (caught.value.line, caught.value.offset, caught.value.exit_code) == (41, 600, 3)
    with pytest.raises(UnfinishedError) as caught:
        finish([path], unit_size=90)
    assert caught.value.missing[0]["units"]


def test_the_line_of_a_compressed_input_is_left_out_and_the_row_of_a_table_is_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("in.jsonl.gz").write_bytes(gzip.compress(b"\n".join(BAD)))
    with pytest.raises(BadRecordError) as caught:
        run_task(["in.jsonl.gz"], 0, 1, unit_size=90)
    assert (caught.value.line, caught.value.offset) == (None, 600)
    pq.write_table(pa.table({"text": ["a", "b", "c", None, "d"]}), "in.parquet", row_group_size=2)
    with pytest.raises(BadRecordError) as caught:
        run_task(["in.parquet"], 0, 1, prefix="y", unit_size=1)
    assert (caught.value.line, caught.value.offset) == (4, 3)


def test_bad_records_are_skipped_and_counted_over_all_tasks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write_jsonl(tmp_path / "in.jsonl", BAD * 3)
    options = {"on_error": "skip", "unit_size": 90}
    run_tasks([path], 3, **options)
    assert finish([path], **options).counts.rejected == {"invalid-json": 3}
    assert content("x") == expected([path], **options)
    listed = Path("x.tokshard/rejected.jsonl").read_text().splitlines()
    assert [json.loads(line)["line"] for line in listed] == [41, 122, 203]


def test_too_many_bad_records_are_refused_where_they_are_counted(tmp_path, monkeypatch):
    """Each of three tasks sees one; --finish sees one too many."""
    monkeypatch.chdir(tmp_path)
    path = write_jsonl(tmp_path / "in.jsonl", BAD * 3)
    options = {"on_error": "skip", "max_errors": 2, "unit_size": 90}
    run_tasks([path], 3, **options)
    with pytest.raises(
        InputError, match=r"--max-errors 2 exceeded; the next rejected record is .*in.jsonl:203: "
    ):
        finish([path], **options)
    finish([path], **{**options, "max_errors": 3})
    assert content("x") == expected([path], on_error="skip", unit_size=90)


def test_more_bad_records_in_one_unit_than_are_allowed_stop_its_task(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write_jsonl(tmp_path / "in.jsonl", [b"{}", b"{", b"}"])
    with pytest.raises(
        InputError, match=r"--max-errors 1 exceeded; the next rejected record is .*in.jsonl:2: "
    ):
        run_task([path], 0, 1, on_error="skip", max_errors=1)


def test_an_input_that_is_changed_meanwhile_is_seen(corpus):
    class Changing(InlineExecutor):
        def run(self, *arguments):
            yield from super().run(*arguments)
            os.utime("a.jsonl", ns=(1, 1))

    with pytest.raises(InputError, match=r"a\.jsonl was changed while it was read"):
        run_task(corpus, 0, 2, executor=Changing())
    run_tasks(corpus, 2)
    finish(corpus)
    assert content("x") == expected(corpus)


# Locks


@pytest.fixture
def impatient(monkeypatch):
    """Tasks that find the lock held give up soon."""
    monkeypatch.setattr(array, "_TRIES", 3)
    monkeypatch.setattr(array, "_PAUSE_SECONDS", 0.01)


@pytest.mark.usefixtures("impatient")
def test_a_task_is_locked_out_by_an_ordinary_run(corpus):
    class Asking(ProcessPool):
        def run(self, *arguments):
            with pytest.raises(LockedError, match=f"process {os.getpid()} on "):
                run_task(corpus, 0, 2)
            yield from super().run(*arguments)

    for inputs in (corpus, corpus[:1]):
        run_tokenize(inputs, "x", executor=Asking(1), force=True, **OPTIONS)
        assert content("x") == expected(inputs, force=True)


@pytest.mark.usefixtures("impatient")
def test_a_task_with_other_options_is_locked_out_while_others_are_at_work(corpus):
    class Asking(InlineExecutor):
        def run(self, *arguments):
            with pytest.raises(LockedError):
                run_task(corpus, 0, 2, append_eod=False)
            yield from super().run(*arguments)

    run_task(corpus, 0, 2, executor=Asking())
    run_task(corpus, 1, 2)
    finish(corpus)
    assert content("x") == expected(corpus)


def test_runs_that_would_write_alone_are_locked_out_by_a_task(corpus):
    class Asking(InlineExecutor):
        def run(self, *arguments):
            for attempt in (finish, lambda inputs: run_tokenize(inputs, "x", **OPTIONS)):
                with pytest.raises(LockedError, match="a task of a job array holds x") as caught:
                    attempt(corpus)
                assert caught.value.exit_code == 5
            other.append(run_task(corpus, 1, 2).state)
            yield from super().run(*arguments)

    other: list[str] = []
    assert run_task(corpus, 0, 2, executor=Asking()).state == "encoded"
    assert other == ["encoded"]
    finish(corpus)
    assert content("x") == expected(corpus)


def test_a_task_waits_for_a_short_time_for_one_that_writes_alone(corpus):
    """Another task may be beginning the work."""
    lock = WriterLock("x.tokshard/lock")
    lock.__enter__()
    reports = []
    task = threading.Thread(target=lambda: reports.append(run_task(corpus, 1, 2)))
    task.start()
    task.join(1.0)
    assert task.is_alive()
    lock.__exit__(None, None, None)
    task.join(60)
    assert [report.state for report in reports] == ["encoded"]


def test_without_locks_tasks_of_other_options_are_refused_too(corpus):
    run_task(corpus, 0, 2, lock="none")
    assert not Path("x.tokshard/lock").exists()
    with pytest.raises(OutputExistsError, match="finished units of other options: --unit-size was 2000 and"):
        run_task(corpus, 1, 2, lock="none", unit_size=UNIT_BYTES + 1)
    run_task(corpus, 1, 2, lock="none")
    finish(corpus, lock="none")
    assert content("x") == expected(corpus)


def test_nothing_that_others_may_be_writing_is_swept_by_a_task(corpus):
    run_task(corpus, 0, 3)
    strange = [
        PARTS / ".0123456789abcdef-000000001.part.4711-0-01234567.tokshard-tmp",
        Path("x.tokshard/work/.run.json.4711-0-01234567.tokshard-tmp"),
        Path("x.tokshard/work/raw/raw-0-0.jsonl"),
    ]
    for path in strange:
        path.write_bytes(b"half")
    run_task(corpus, 1, 3)
    run_task(corpus, 2, 3)
    assert all(path.exists() for path in strange)
    finish(corpus)
    assert not Path("x.tokshard/work").exists()
    assert content("x") == expected(corpus)


def test_decompressed_units_lie_in_a_private_directory_that_goes_with_the_task(corpus, tmp_path, monkeypatch):
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    seen = []

    class Looking(InlineExecutor):
        def run(self, *arguments):
            (mine,) = scratch.iterdir()
            seen.append(mine.stat().st_mode & 0o777)
            yield from super().run(*arguments)

    run_task(corpus, 0, 1, executor=Looking())
    assert seen == [0o700]
    assert list(scratch.iterdir()) == []


def test_random_sequences_of_tasks_end_with_the_same_bytes(corpus):
    """Tasks of changing arrays, ordinary runs that are stopped, parts that vanish, and a last --finish."""
    wanted = expected(corpus)
    for seed in range(8):
        chance = random.Random(seed)
        prefix = f"course{seed}"
        for _ in range(6):
            count = chance.choice([1, 2, 3, 7])
            if chance.random() < 0.25:
                with pytest.raises(StoppedError):
                    stopper = stopping_after(chance.randrange(8))
                    run_tokenize(corpus, prefix, executor=stopper, **OPTIONS, force=False)
                    raise StoppedError  # it was complete
            elif count > 1 or chance.random() < 0.2:
                run_task(corpus, chance.randrange(count), count, prefix)
            if chance.random() < 0.3 and os.path.isdir(f"{prefix}.tokshard/work/parts"):
                for name in sorted(os.listdir(f"{prefix}.tokshard/work/parts"))[:2]:
                    os.unlink(f"{prefix}.tokshard/work/parts/{name}")
        try:
            finish(corpus, prefix)
        except UnfinishedError:
            run_tasks(corpus, 2, prefix)
            finish(corpus, prefix)
        assert content(prefix) == wanted, seed


def test_a_unit_is_much_smaller_than_the_corpus():
    assert len(lines(1, 23_000)) > 10 * UNIT_BYTES
