"""The progress of tokenize: it advances with every batch, whatever the unit size, and ends at the total."""

import gzip

import pytest

from support.tokenize_runs import TOKENIZER, run_array_task, run_tokenize, write_jsonl
from tokshard import ArrayTask
from tokshard.core.progress import SilentProgress
from tokshard.text.corpus.planning import read_documents
from tokshard.text.tokenize import encoder
from tokshard.text.tokenize.workers.pool import ProcessPool

RECORDS = [{"text": f"{number} " + "word " * (number % 9)} for number in range(400)]


class Recorded(SilentProgress):
    """Keeps the updates of each activity."""

    def __init__(self):
        self.activities = {}
        self.finished = 0

    def start(self, activity, bytes_total=None, bytes_resumed=0):
        self.updates = []
        self.activities[activity] = (bytes_total, bytes_resumed, self.updates)

    def update(self, state):
        self.updates.append(state)

    def finish(self):
        self.finished += 1


def corpus_of(folder, kind):
    path = write_jsonl(folder / "corpus.jsonl", RECORDS)
    if kind == "gzip":
        content = gzip.compress((folder / "corpus.jsonl").read_bytes())
        path = str(folder / "corpus.jsonl.gz")
        (folder / "corpus.jsonl.gz").write_bytes(content)
    if kind == "parquet":
        pa = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        path = str(folder / "corpus.parquet")
        parquet.write_table(pa.Table.from_pylist(RECORDS), path)
    return path


@pytest.fixture(autouse=True)
def tiny_batches(monkeypatch):
    def read_small_batches(unit, reading):
        return read_documents(unit, reading._replace(batch_bytes=100))

    monkeypatch.setattr(encoder, "read_documents", read_small_batches)


@pytest.mark.parametrize("kind", ["plain", "gzip", "parquet"])
@pytest.mark.parametrize("unit_size", [500, 64 << 20])
def test_every_batch_advances_the_progress_to_its_total(tmp_path, kind, unit_size):
    path, recorded = corpus_of(tmp_path, kind), Recorded()
    report = run_tokenize(
        path, str(tmp_path / "out"), tokenizer=TOKENIZER, unit_size=unit_size, progress=recorded
    )
    assert list(recorded.activities)[:3] == [
        "scanning inputs",
        "loading the tokenizer",
        "checking earlier work",
    ]
    total, resumed, updates = recorded.activities["encoding"]
    assert (total, resumed) == (report.input_bytes, 0)
    for name in ("bytes_done", "documents", "tokens"):
        numbers = [getattr(update, name) for update in updates]
        assert numbers == sorted(numbers)
    assert (
        len({update.bytes_done for update in updates}) > 5
    )  # the bytes of a small gzip file are read at once
    assert len({update.tokens for update in updates}) > 20
    last = updates[-1]
    assert (last.bytes_done, last.documents) == (total, len(RECORDS))
    assert last.tokens == report.outputs[0].tokens
    assert recorded.finished == 1


def test_a_resumed_run_begins_where_the_earlier_one_stopped(tmp_path):
    class Stopping(Recorded):
        def update(self, state):
            super().update(state)
            if state.bytes_done > 5000:
                raise KeyboardInterrupt

    path, stopped, resumed = corpus_of(tmp_path, "plain"), Stopping(), Recorded()
    options = {"tokenizer": TOKENIZER, "unit_size": 1000}
    with pytest.raises(KeyboardInterrupt):
        run_tokenize(path, str(tmp_path / "out"), progress=stopped, **options)
    assert stopped.finished == 1
    report = run_tokenize(path, str(tmp_path / "out"), progress=resumed, **options)
    total, before, updates = resumed.activities["encoding"]
    assert before == 1000 * report.units_reused > 0
    assert before <= updates[0].bytes_done
    assert updates[-1].bytes_done == total == report.input_bytes


def test_tasks_of_an_array_report_their_own_bytes(tmp_path):
    path = corpus_of(tmp_path, "plain")
    done = []
    for index in range(2):
        recorded = Recorded()
        run_array_task(
            path,
            str(tmp_path / "out"),
            task=ArrayTask(index, 2),
            tokenizer=TOKENIZER,
            unit_size=1000,
            progress=recorded,
        )
        updates = recorded.activities["encoding"][2]
        assert len({update.bytes_done for update in updates}) > 10
        done.append(updates[-1].bytes_done)
    assert sum(done) == (tmp_path / "corpus.jsonl").stat().st_size


def test_worker_processes_report_within_a_unit(tmp_path):
    path = write_jsonl(tmp_path / "corpus.jsonl", [{"text": "word " * 200_000}] * 5)
    recorded = Recorded()
    with ProcessPool(2) as pool:
        run_tokenize(path, str(tmp_path / "out"), executor=pool, unit_size=64 << 20, progress=recorded)
    updates = recorded.activities["encoding"][2]
    assert updates[0].bytes_done == 1_000_013  # the first document; those after it are merged for some time
    assert updates[-1].bytes_done == (tmp_path / "corpus.jsonl").stat().st_size
