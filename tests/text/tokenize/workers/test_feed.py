import gzip
import json
import os
import tarfile
import threading
import time
from concurrent.futures import wait
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.corpus_units import read_documents
from support.unit_feeds import PATIENCE_SECONDS, Fed
from tokshard.errors import InputError, StorageError
from tokshard.text.tokenize.part import UnitKey


def lines_of(texts: list[str]) -> bytes:
    return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)


def save(path: Path, texts: list[str]) -> Path:
    data = lines_of(texts)
    path.write_bytes(gzip.compress(data, 1, mtime=0) if path.suffix == ".gz" else data)
    return path


def texts_of(task) -> list[str]:
    batches = read_documents(task.unit, ("text",), batch_bytes=1 << 20, max_document_bytes=1 << 20)
    return [text for batch in batches for text in batch.texts[0]]


FILES = st.lists(
    st.tuples(st.booleans(), st.lists(st.text("ab", max_size=40), max_size=12)), min_size=1, max_size=5
)


@settings(max_examples=60, deadline=None)
@given(files=FILES, unit_bytes=st.integers(1, 400), streams=st.integers(1, 3), data=st.data())
def test_all_units_come_once_in_the_order_of_each_file(tmp_path_factory, files, unit_bytes, streams, data):
    folder = tmp_path_factory.mktemp("feed")
    paths = [
        save(folder / (f"{n}.jsonl.gz" if packed else f"{n}.jsonl"), texts)
        for n, (packed, texts) in enumerate(files)
    ]
    found: dict[UnitKey, list[str]] = {}

    def use(task):
        assert task.key not in found
        assert all(key.index < task.key.index for key in found if key.file == task.key.file)
        found[task.key] = texts_of(task)

    options = {"unit_bytes": unit_bytes, "streams": streams}
    Fed(paths, folder / "raw", **options).drain(use)
    for n, (_, texts) in enumerate(files):
        assert [text for key in sorted(found) if key.file == n for text in found[key]] == texts
    # The same once more, some units being done already.
    done = frozenset(data.draw(st.sets(st.sampled_from(sorted(found)))))
    rest = Fed(paths, folder / "raw", **options, done=done).drain()
    assert sorted(task.key for task in rest) == sorted(found.keys() - done)
    assert not os.listdir(folder / "raw")


def test_plain_files_come_in_the_order_of_the_inputs(tmp_path):
    paths = [save(tmp_path / f"{n}.jsonl", ["word " * 20] * 9) for n in range(4)]
    keys = [task.key for task in Fed(paths, tmp_path / "raw", streams=3).drain()]
    assert keys == sorted(keys)
    assert {key.file for key in keys} == {0, 1, 2, 3}


def test_files_that_are_done_are_not_opened(tmp_path):
    paths = [save(tmp_path / f"{n}.jsonl.gz", ["word"] * 9) for n in range(3)]
    fed = Fed(paths, tmp_path / "raw", done_files=frozenset({0, 2}))
    paths[0].unlink()
    paths[2].unlink()
    assert {task.key.file for task in fed.drain()} == {1}


def settled(directory: Path) -> int:
    """Return how many files a directory holds once their number has stopped growing."""
    count = -1
    while count != (now := len(os.listdir(directory))):
        count = now
        time.sleep(0.15)
    return count


@pytest.mark.parametrize("streams", [1, 2])
def test_no_more_units_are_decompressed_ahead_than_stated(tmp_path, streams):
    """Of each file that is read: one."""
    paths = [save(tmp_path / f"{n}.jsonl.gz", ["word " * 30] * 60) for n in range(3)]
    fed = Fed(paths, tmp_path / "raw", streams=streams)
    held = [fed.next() for _ in range(4)]
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(os.listdir(fed.raw)) == len(held):
        assert time.monotonic() < deadline, "the files are not read ahead"
        time.sleep(0.01)
    assert settled(fed.raw) - len(held) <= streams
    for task in held:
        os.unlink(task.unit.path)
    assert settled(fed.raw) <= streams
    assert len(fed.drain()) > 100
    assert not os.listdir(fed.raw)


def test_stop_ends_the_reading_threads_and_their_files(tmp_path):
    paths = [save(tmp_path / f"{n}.jsonl.gz", ["word " * 30] * 60) for n in range(2)]
    fed = Fed(paths, tmp_path / "raw")
    held = [fed.next(), fed.next()]
    assert held
    fed.stop()
    assert not wait(fed.feed._reading.values(), PATIENCE_SECONDS).not_done
    count = len(os.listdir(fed.raw))
    assert settled(fed.raw) == count


def test_an_input_that_cannot_be_read_is_an_error_of_the_caller(tmp_path):
    (tmp_path / "a.txt").write_text("not JSON lines")
    with tarfile.open(tmp_path / "bad.jsonl.gz", "w:gz") as archive:
        archive.add(tmp_path / "a.txt", "a.txt")
    good = save(tmp_path / "good.jsonl", ["word"] * 9)
    fed = Fed([good, tmp_path / "bad.jsonl.gz"], tmp_path / "raw")
    with pytest.raises(InputError, match=r"bad\.jsonl\.gz"):
        fed.drain()
    fed.stop()


def test_an_input_that_vanished_is_an_error_of_the_caller(tmp_path):
    fed = Fed([gone := save(tmp_path / "a.jsonl.gz", ["word"])], tmp_path / "raw")
    gone.unlink()
    with pytest.raises(InputError, match=r"cannot read .*a\.jsonl\.gz"):
        fed.drain()


def test_a_full_disk_is_an_error_of_the_caller(tmp_path):
    fed = Fed([save(tmp_path / "a.jsonl.gz", ["word"])], tmp_path / "raw")
    fed.raw.rmdir()
    with pytest.raises(StorageError, match="raw-0-0"):
        fed.drain()


@pytest.mark.parametrize("names", ["a.jsonl b.jsonl", "a.jsonl.gz b.jsonl", "a.jsonl b.jsonl.gz"])
@pytest.mark.parametrize("limit", [UnitKey(0, 0), UnitKey(0, 4), UnitKey(1, 0), UnitKey(1, 3)])
def test_nothing_comes_from_the_limit_on(tmp_path, names, limit):
    paths = [save(tmp_path / name, ["word " * 30] * 12) for name in names.split()]
    every = sorted(task.key for task in Fed(paths, tmp_path / "raw").drain())
    fed = Fed(paths, tmp_path / "raw")
    fed.feed.limit_to(max(every))
    fed.feed.limit_to(limit)
    fed.feed.limit_to(max(every))
    assert sorted(task.key for task in fed.drain()) == [key for key in every if key < limit]
    fed.stop()


def test_a_pipe_is_read_while_it_is_written(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    plain = save(tmp_path / "a.jsonl", ["first"])
    fed = Fed([pipe, plain], tmp_path / "raw", unit_bytes=100_000)
    found = []
    while (task := fed.feed.take()) is not None:  # the plain file does not wait for the pipe
        found.append(texts_of(task))
    assert found == [["first"]]
    assert not fed.feed.exhausted
    texts = [f"{number} " + "word " * 1000 for number in range(1000)]
    go_on = threading.Event()

    def write() -> None:
        with pipe.open("wb", buffering=0) as file:
            file.write(lines_of(texts[:400]))
            go_on.wait()
            file.write(lines_of(texts[400:]))

    writer = threading.Thread(target=write)
    writer.start()
    first = fed.next()  # while the writer holds the pipe open
    go_on.set()
    assert texts_of(first) == texts[: len(texts_of(first))]
    found = texts_of(first)
    fed.drain(lambda task: found.extend(texts_of(task)))
    writer.join()
    assert found == texts


def test_stop_does_not_wait_for_a_pipe_that_nobody_writes(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    fed = Fed([pipe], tmp_path / "raw")
    assert fed.feed.take() is None
    stopping = threading.Thread(target=fed.stop)
    stopping.start()
    stopping.join(PATIENCE_SECONDS)
    assert not stopping.is_alive()
    pipe.open("wb").close()
    assert len(wait(fed.feed._reading.values(), PATIENCE_SECONDS).done) == 1
