"""Job arrays whose inputs and output lie in a store: one staging directory, one upload."""

import gzip
from pathlib import Path

import pytest

from support.array_corpora import content, lines
from support.object_store import SLOW_DOWN, Bucket, always
from support.tokenize_runs import run_array_task, run_finish, run_tokenize
from tokshard import ArrayTask
from tokshard.errors import OutputExistsError, StorageError, UsageError
from tokshard.text.tokenize.report import ArrayTaskReport

TASKS = 3
UNIT_BYTES = 2000


@pytest.fixture
def inputs(tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A plain object and a compressed one."""
    monkeypatch.chdir(tmp_path)
    bucket.put("in/a.jsonl", lines(1, 9000))
    bucket.put("in/b.jsonl.gz", gzip.compress(lines(2, 9000), mtime=0))
    bucket.proxy.reset()
    return [f"{bucket.url}/in/a.jsonl", f"{bucket.url}/in/b.jsonl.gz"]


def run_task(inputs: list[str], bucket: Bucket, index: int, **options) -> ArrayTaskReport:
    return run_array_task(
        inputs,
        f"{bucket.url}/out/x",
        task=ArrayTask(index, TASKS),
        local_dir="staging",
        unit_size=UNIT_BYTES,
        **options,
    )


def uploaded(bucket: Bucket) -> dict[str, bytes]:
    keys = [key for key in sorted(bucket.keys()) if key.startswith("out/")]
    found = {key: bucket.get(key) for key in keys}
    return {key.removeprefix("out/x").removeprefix(".tokshard/"): value for key, value in found.items()}


def expected(inputs: list[str]) -> dict[str, bytes]:
    run_tokenize(inputs, "x", unit_size=UNIT_BYTES)
    return content("x")


def test_the_task_that_ends_last_uploads(inputs: list[str], bucket: Bucket):
    states = [run_task(inputs, bucket, index).state for index in range(TASKS - 1)]
    assert states == ["encoded"] * (TASKS - 1)
    assert bucket.proxy.writes() == []
    last = run_task(inputs, bucket, TASKS - 1)
    assert last.state == "published"
    assert last.result is not None
    assert last.result.outputs[0].path_prefix == f"{bucket.url}/out/x"
    assert uploaded(bucket) == expected(inputs)
    assert list(Path("staging").iterdir()) == []
    for options in ({}, {"force": True}):
        assert run_task(inputs, bucket, 0, **options).state == "up-to-date"
    assert list(Path("staging").iterdir()) == []


def test_an_upload_that_failed_is_done_by_whoever_comes_next(
    inputs: list[str], bucket: Bucket, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TOKSHARD_REMOTE_RETRIES", "0")
    for index in range(TASKS - 1):
        run_task(inputs, bucket, index)
    bucket.proxy.judge = always(SLOW_DOWN, lambda request: request.is_write)
    with pytest.raises(StorageError):
        run_task(inputs, bucket, TASKS - 1)
    bucket.proxy.reset()
    assert uploaded(bucket) == {}
    again = run_task(inputs, bucket, 0)
    assert (again.state, again.units) == ("published", 0)
    assert uploaded(bucket) == expected(inputs)
    again = run_finish(inputs, f"{bucket.url}/out/x", local_dir="staging", unit_size=UNIT_BYTES)
    assert again.action == "found"


def test_another_output_is_not_replaced_without_force(inputs: list[str], bucket: Bucket):
    bucket.put("out/x.bin", b"theirs")
    for index in range(TASKS - 1):
        run_task(inputs, bucket, index, finish=False)
    with pytest.raises(OutputExistsError):
        run_task(inputs, bucket, TASKS - 1)
    assert uploaded(bucket) == {".bin": b"theirs"}
    assert run_task(inputs, bucket, TASKS - 1, force=True).state == "published"
    assert uploaded(bucket) == expected(inputs)


def test_the_tasks_need_a_common_local_directory(inputs: list[str], bucket: Bucket):
    with pytest.raises(UsageError, match="the tasks require a shared directory in which s3://"):
        run_array_task(inputs, f"{bucket.url}/out/x", task=ArrayTask(0, 2))
