"""Job arrays, task after task in this process: the same bytes as one run, whatever happened in between."""

from __future__ import annotations

import json
import os
import random
import threading
from pathlib import Path

import pytest

from support.array_corpora import (
    OPTIONS,
    UNIT_BYTES,
    content,
    expected,
    lines,
    run_task,
    write_corpus,
)
from support.tokenize_runs import manifest, run_finish, run_tokenize, write_jsonl
from tokshard.errors import (
    BadRecordError,
    InputError,
    LockedError,
    OutputExistsError,
    UnfinishedError,
    UsageError,
)
from tokshard.storage.lock import WriterLock
from tokshard.text.tokenize.encoder import Outcome
from tokshard.text.tokenize.part import UnitKey
from tokshard.text.tokenize.workers.pool import ProcessPool


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_corpus(tmp_path)


def finish(inputs, prefix="x", **options):
    return run_finish(inputs, prefix, **{**OPTIONS, **options})


def part_of(file, index, prefix="x"):
    return Path(f"{prefix}.tokshard/work/parts", UnitKey(file, index).part_name)


def parts(prefix="x"):
    return sorted(os.listdir(f"{prefix}.tokshard/work/parts"))


@pytest.mark.parametrize("count", [1, 2, 3, 8, 40])
@pytest.mark.parametrize("order", ["forwards", "backwards"])
def test_the_bytes_are_those_of_one_run(corpus, count, order):
    indices = range(count) if order == "forwards" else reversed(range(count))
    reports = [run_task(corpus, index, count) for index in indices]
    states = [report.state for report in reports]
    last = states.index("published")
    assert states == ["encoded"] * last + ["published"] + ["up-to-date"] * (count - 1 - last)
    assert last == count - 1 or count > 8  # more tasks than there are shares
    assert content("x") == expected(corpus)
    result = reports[last].result
    assert sum(report.units for report in reports) == result.outputs[0].dataset.units
    assert (sum(report.documents for report in reports), sum(report.tokens for report in reports)) == (
        result.counts.documents,
        result.outputs[0].tokens,
    )


def test_several_fields_are_shared_too(corpus):
    for index in range(3):
        report = run_task(corpus, index, 3, fields=("text", "title"))
    assert [output.path_prefix for output in report.result.outputs] == ["x_text_document", "x_title_document"]
    run_tokenize(corpus, "y", fields=("text", "title"), **OPTIONS)
    for field in ("text", "title"):
        assert content(f"x_{field}_document") == content(f"y_{field}_document")


def test_the_number_of_tasks_may_change_and_nothing_is_encoded_twice(corpus):
    first = [run_task(corpus, index, 5) for index in (1, 3)]
    done = parts()
    second = [run_task(corpus, index, 3) for index in (2, 0)]
    assert set(done) <= set(parts())
    assert sum(report.units for report in first + second) == len(parts())
    last = run_task(corpus, 1, 3)
    assert last.state == "published"
    assert sum(report.units for report in [*first, *second, last]) == last.result.outputs[0].dataset.units
    assert content("x") == expected(corpus)


def test_a_task_that_comes_again_does_nothing(corpus):
    first = run_task(corpus, 0, 2)
    again = run_task(corpus, 0, 2)
    assert (again.state, again.units, again.units_reused) == ("encoded", 0, first.units)
    run_task(corpus, 1, 2)
    before = {path: path.stat().st_mtime_ns for path in Path().glob("x*")}
    for options in ({}, {"force": True}):
        late = run_task(corpus, 0, 2, **options)
        assert (late.state, late.units, late.result.action) == ("up-to-date", 0, "found")
    assert {path: path.stat().st_mtime_ns for path in Path().glob("x*")} == before


def test_worker_processes_encode_a_share(corpus):
    for index in range(2):
        run_task(corpus, index, 2, executor=ProcessPool(2))
    assert content("x") == expected(corpus)


def test_putting_together_can_be_left_to_a_later_run(corpus):
    states = [run_task(corpus, index, 3, finish=False).state for index in range(3)]
    assert states == ["encoded"] * 3
    assert not Path("x.bin").exists()
    assert finish(corpus).action == "written"
    assert content("x") == expected(corpus)
    assert finish(corpus).action == "found"


def test_units_without_a_part_are_named(corpus):
    for index in (0, 2):
        run_task(corpus, index, 3)
    part_of(0, 0).unlink()
    with pytest.raises(UnfinishedError) as caught:
        finish(corpus, tasks=3)
    error = caught.value
    assert error.exit_code == 1
    assert "units are not finished: 0" in error.message
    assert "of a.jsonl; " in error.message
    assert set(error.tasks) >= {1}
    named = {(missing["input"], unit) for missing in error.missing for unit in missing["units"]}
    have = {(int(name[:6]), int(name[7:16])) for name in parts()}
    assert named.isdisjoint((corpus[file], unit) for file, unit in have)
    assert ("a.jsonl", 0) in named
    for task in error.tasks:
        run_task(corpus, task, 3, finish=False)
    finish(corpus, tasks=3)
    assert content("x") == expected(corpus)


def test_a_compressed_input_whose_end_nobody_has_seen_is_named_as_such(corpus):
    inputs = [corpus[1]]
    for index in range(2):
        run_task(inputs, index, 2, finish=False)
    names = parts()
    kept = names[:4]
    for name in names[4:]:
        os.unlink(f"x.tokshard/work/parts/{name}")
    with pytest.raises(UnfinishedError) as caught:
        finish(inputs, tasks=2)
    assert caught.value.missing == ({"input": "b.jsonl.gz", "units": [], "open_from": len(kept)},)
    assert "at least 1 unit is not finished" in caught.value.message
    assert "all from 4 on of b.jsonl.gz" in caught.value.message
    assert caught.value.tasks == (0, 1)


def test_a_long_list_of_missing_units_is_cut_in_the_message_and_complete_in_the_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "in.jsonl", [{"text": "ab"}] * 100)
    run_task(["in.jsonl"], 0, 2, finish=False, unit_size=15)
    with pytest.raises(UnfinishedError) as caught:
        finish(["in.jsonl"], unit_size=15)
    (missing,) = caught.value.missing
    assert missing["units"] == list(range(1, 100, 2))
    assert caught.value.tasks is None
    assert "50 units are not finished: 1, 3, 5" in caught.value.message
    assert "39 and more of " in caught.value.message
    assert ", 41" not in caught.value.message


def test_nothing_can_be_finished_before_it_has_begun(corpus):
    with pytest.raises(UnfinishedError, match="no task has begun to make x with these inputs and options"):
        finish(corpus)
    assert not Path("x.tokshard").exists()


@pytest.mark.parametrize("damage", ["cut", "flip", "other", "directory"])
def test_a_damaged_part_is_named_and_made_again(corpus, damage):
    for index in range(2):
        run_task(corpus, index, 2, finish=False)
    part = part_of(0, 3)
    content_before = part.read_bytes()
    if damage == "cut":
        part.write_bytes(content_before[:-1])
    elif damage == "flip":
        part.write_bytes(bytes([content_before[0] ^ 1]) + content_before[1:])
    elif damage == "other":
        part.write_bytes(part_of(0, 4).read_bytes())
    else:
        part.unlink()
        part.mkdir()
    with pytest.raises(UnfinishedError) as caught:
        finish(corpus, tasks=2)
    assert [(missing["input"], missing["units"]) for missing in caught.value.missing] == [("a.jsonl", [3])]
    if damage == "directory":
        part.rmdir()
    (task,) = caught.value.tasks
    report = run_task(corpus, task, 2)
    assert (report.state, report.units) == ("published", 1)
    assert content("x") == expected(corpus)


def test_units_of_an_encoder_that_is_not_accepted_any_more_are_made_again(corpus):
    for index in range(2):
        run_task(corpus, index, 2, encoder="fast", finish=False)
    with pytest.raises(UnfinishedError):
        finish(corpus, encoder="reference")
    for index in range(2):
        report = run_task(corpus, index, 2, encoder="reference")
        assert report.units_reused == 0
    assert report.state == "published"
    assert manifest("x")["encoder"]["documents"].keys() == {"reference"}


def test_an_ordinary_run_resumes_where_tasks_have_stopped(corpus):
    done = [run_task(corpus, index, 4) for index in (0, 2)]
    report = run_tokenize(corpus, "x", **OPTIONS)
    assert report.units_reused == sum(task_report.units for task_report in done)
    assert content("x") == expected(corpus)


class StoppedError(Exception):
    pass


def stopping_after(units):
    """Return an executor that encodes some units and is then killed, as far as its job can tell."""
    from tokshard.text.tokenize.workers.executor import InlineExecutor

    class Stopping(InlineExecutor):
        def run(self, *arguments):
            left = iter(range(units))
            for event in super().run(*arguments):
                if isinstance(event, Outcome) and next(left, None) is None:
                    raise StoppedError
                yield event

    return Stopping()


@pytest.mark.parametrize("units", [1, 9, 20])
def test_tasks_resume_where_an_ordinary_run_has_stopped(corpus, units):
    with pytest.raises(StoppedError):
        run_tokenize(corpus, "x", executor=stopping_after(units), **OPTIONS)
    reports = [run_task(corpus, index, 3) for index in range(3)]
    assert reports[-1].state == "published"
    assert reports[-1].result.outputs[0].dataset.units == sum(
        report.units + report.units_reused for report in reports
    )
    assert sum(report.units_reused for report in reports) >= units
    assert content("x") == expected(corpus)


def test_tasks_with_other_options_keep_the_units_of_the_first(corpus):
    first = run_task(corpus, 0, 2)
    before = parts()
    with pytest.raises(UnfinishedError, match="--append-eod was on and is now off"):
        finish(corpus, append_eod=False)
    assert parts() == before
    assert run_task(corpus, 0, 2, append_eod=False).units_reused == 0
    again = run_task(corpus, 0, 2)
    assert (again.units, again.units_reused) == (0, first.units)
    assert run_task(corpus, 1, 2, append_eod=False).result.units_of_other_options == first.units
    assert content("x") == expected(corpus, append_eod=False)
    with pytest.raises(OutputExistsError, match="--append-eod was off and is now on"):
        run_task(corpus, 1, 2)


def test_a_task_with_other_options_is_locked_out_while_others_are_at_work(corpus):
    from tokshard.text.tokenize.workers.executor import InlineExecutor

    class Asking(InlineExecutor):
        def run(self, *arguments):
            with pytest.raises(LockedError):
                run_task(corpus, 0, 2, append_eod=False)
            yield from super().run(*arguments)

    run_task(corpus, 0, 2, executor=Asking())
    run_task(corpus, 1, 2)
    assert content("x") == expected(corpus)


def test_a_task_that_fails_before_its_first_unit_leaves_nothing(corpus):
    with pytest.raises(BadRecordError):
        run_task(corpus, 0, 2, fields=("nothing",))
    assert not Path("x.tokshard").exists()


def test_an_output_of_another_plan_is_replaced_only_by_force(corpus):
    run_tokenize(corpus[:1], "x", **OPTIONS)
    before = content("x")
    with pytest.raises(OutputExistsError):
        run_task(corpus, 0, 2)
    assert content("x") == before
    assert run_task(corpus, 0, 2, force=True).state == "encoded"
    assert content("x") == before
    assert run_task(corpus, 1, 2, force=True).state == "published"
    assert content("x") == expected(corpus)


@pytest.mark.parametrize(
    ("inputs", "options", "message"),
    [
        (["-"], {}, "a pipe can be read only once"),
        (["a.jsonl"], {"resume": False}, "--no-resume would remove the finished units of other tasks"),
    ],
)
def test_what_cannot_be_shared_is_refused(corpus, inputs, options, message):
    with pytest.raises(UsageError, match=message):
        run_task(inputs, 0, 2, **options)
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
    import gzip

    import pyarrow as pa
    import pyarrow.parquet as pq

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
    for index in range(3):
        report = run_task([path], index, 3, **options)
    assert report.result.counts.rejected == {"invalid-json": 3}
    assert content("x") == expected([path], **options)
    listed = Path("x.tokshard/rejected.jsonl").read_text().splitlines()
    assert [json.loads(line)["line"] for line in listed] == [41, 122, 203]


def test_too_many_bad_records_are_refused_where_they_are_counted(tmp_path, monkeypatch):
    """Two of three tasks see one each; the third sees one, too, and puts together: that is one too many."""
    monkeypatch.chdir(tmp_path)
    path = write_jsonl(tmp_path / "in.jsonl", BAD * 3)
    options = {"on_error": "skip", "max_errors": 2, "unit_size": 90}
    for index in range(3):
        run_task([path], index, 3, finish=False, **options)
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
    from tokshard.text.tokenize.workers.executor import InlineExecutor

    class Changing(InlineExecutor):
        def run(self, *arguments):
            yield from super().run(*arguments)
            os.utime("a.jsonl", ns=(1, 1))

    with pytest.raises(InputError, match=r"a\.jsonl was changed while it was read"):
        run_task(corpus, 0, 2, executor=Changing())
    assert [run_task(corpus, index, 2).state for index in (1, 0)] == ["published", "up-to-date"]
    assert content("x") == expected(corpus)


def test_a_task_leaves_to_an_ordinary_run_what_that_does(corpus):
    """Its plan is equal, so all that the task could do is done."""
    seen = []

    class Asking(ProcessPool):
        def run(self, *arguments):
            seen.append(run_task(corpus, 0, 2))
            yield from super().run(*arguments)

    run_tokenize(corpus, "x", executor=Asking(1), **OPTIONS)
    (report,) = seen
    assert (report.state, report.units) == ("elsewhere", 0)
    assert f"process {os.getpid()} on " in report.holder
    assert content("x") == expected(corpus)


def test_a_task_is_locked_out_by_a_run_that_makes_something_else(corpus):
    class Asking(ProcessPool):
        def run(self, *arguments):
            with pytest.raises(LockedError):
                run_task(corpus, 0, 2)
            yield from super().run(*arguments)

    run_tokenize(corpus[:1], "x", executor=Asking(1), **OPTIONS)
    assert content("x") == expected(corpus[:1])


def test_runs_that_would_write_alone_are_locked_out_by_a_task(corpus):
    from tokshard.text.tokenize.workers.executor import InlineExecutor

    class Asking(InlineExecutor):
        def run(self, *arguments):
            for attempt in (finish, lambda inputs: run_tokenize(inputs, "x", **OPTIONS)):
                with pytest.raises(LockedError, match=r"shared, possibly with others. holds x"):
                    attempt(corpus)
            other.append(run_task(corpus, 1, 2).state)
            yield from super().run(*arguments)

    other: list[str] = []
    assert run_task(corpus, 0, 2, executor=Asking()).state == "published"
    assert other == ["encoded"]
    assert content("x") == expected(corpus)


@pytest.mark.parametrize("purpose", ["checking", "assembling"])
def test_a_task_waits_for_who_may_find_work_for_it_and_not_for_who_will_not(corpus, purpose):
    run_task(corpus, 0, 2)
    lock = WriterLock("x.tokshard/lock", purpose=purpose)
    lock.__enter__()
    if purpose == "assembling":
        report = run_task(corpus, 1, 2)
        assert report.state == "elsewhere"
        lock.__exit__(None, None, None)
        return
    reports = []
    task = threading.Thread(target=lambda: reports.append(run_task(corpus, 1, 2)))
    task.start()
    task.join(1.0)
    assert task.is_alive()
    lock.__exit__(None, None, None)
    task.join(60)
    assert [task_report.state for task_report in reports] == ["published"]
    assert content("x") == expected(corpus)


def test_nothing_that_others_may_be_writing_is_swept_by_a_task(corpus):
    run_task(corpus, 0, 3)
    strange = [
        Path("x.tokshard/work/parts/.000000-000000001.part.4711-0-01234567.tokshard-tmp"),
        Path("x.tokshard/work/.plan.json.4711-0-01234567.tokshard-tmp"),
        Path("x.tokshard/work/raw/raw-0-0.jsonl"),
    ]
    for path in strange:
        path.write_bytes(b"half")
    run_task(corpus, 1, 3)
    run_task(corpus, 2, 3, finish=False)
    assert all(path.exists() for path in strange)
    finish(corpus)
    assert not Path("x.tokshard/work").exists()
    assert content("x") == expected(corpus)


def test_decompressed_units_lie_in_a_private_directory_that_goes_with_the_task(corpus, tmp_path, monkeypatch):
    import tempfile

    scratch = tmp_path / "tmp"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    seen = []
    from tokshard.text.tokenize.workers.executor import InlineExecutor

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
                run_task(corpus, chance.randrange(count), count, prefix, finish=chance.random() < 0.5)
            if chance.random() < 0.3 and os.path.isdir(f"{prefix}.tokshard/work/parts"):
                for name in parts(prefix)[:2]:
                    os.unlink(f"{prefix}.tokshard/work/parts/{name}")
        try:
            finish(corpus, prefix)
        except UnfinishedError:
            for task in range(2):
                run_task(corpus, task, 2, prefix, finish=False)
            finish(corpus, prefix)
        assert content(prefix) == wanted, seed


def test_a_unit_is_much_smaller_than_the_corpus():
    assert len(lines(1, 23_000)) > 10 * UNIT_BYTES
