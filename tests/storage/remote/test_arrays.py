"""Job arrays whose inputs are in a store."""

import gzip
from pathlib import Path

import pytest

from support.array_corpora import content, lines
from support.object_store import Bucket
from support.tokenize_runs import run_array_task, run_finish, run_tokenize
from tokshard import ArrayTask
from tokshard.errors import UsageError

TASKS = 3
UNIT_BYTES = 2000


@pytest.fixture
def inputs(tmp_path: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A plain object and a compressed one."""
    monkeypatch.chdir(tmp_path)
    bucket.put("in/a.jsonl", lines(1, 9000))
    bucket.put("in/b.jsonl.gz", gzip.compress(lines(2, 9000), mtime=0))
    return [f"{bucket.url}/in/a.jsonl", f"{bucket.url}/in/b.jsonl.gz"]


def test_tasks_read_objects_and_write_to_a_shared_directory(inputs: list[str]):
    for index in range(TASKS):
        run_array_task(inputs, "x", task=ArrayTask(index, TASKS), unit_size=UNIT_BYTES)
    run_finish(inputs, "x", unit_size=UNIT_BYTES)
    made = content("x")
    run_tokenize(inputs, "y", unit_size=UNIT_BYTES)
    assert made == content("y")


def test_a_url_as_the_output_of_an_array_is_refused(inputs: list[str], bucket: Bucket):
    for run in (
        lambda url: run_array_task(inputs, url, task=ArrayTask(0, 2)),
        lambda url: run_finish(inputs, url),
    ):
        with pytest.raises(
            UsageError, match="require an --output on a shared file system, got s3://"
        ) as caught:
            run(f"{bucket.url}/out/x")
        assert "upload the finished files with the tool of the store" in str(caught.value.hint)
