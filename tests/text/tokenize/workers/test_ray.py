"""What is given out to a cluster, encoded without one: shares of compressed files, and where parts go."""

import gzip
import json
import os
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.tokenize_runs import TOKENIZER, job_of, write_jsonl
from support.unit_feeds import Fed
from tokshard.core.worker_errors import error_from_json
from tokshard.errors import UsageError
from tokshard.text.corpus.records import read_documents
from tokshard.text.tokenize import encoder
from tokshard.text.tokenize.encoder import BatchProgress, Outcome
from tokshard.text.tokenize.part import PartReader, UnitKey
from tokshard.text.tokenize.workers import ray
from tokshard.text.tokenize.workers.ray import _IncomingParts, _tasks, encode_on_node

UNIT_BYTES = 100


class Work:
    """Files, a directory for parts, and everything that a run on a cluster would give out for them."""

    def __init__(self, folder: Path, contents, *, slots, done=frozenset()):
        self.paths = [folder / f"{number}.jsonl{suffix}" for number, (suffix, _) in enumerate(contents)]
        for path, (suffix, texts) in zip(self.paths, contents, strict=True):
            write_jsonl(path, [{"text": text} for text in texts])
            if suffix:
                path.write_bytes(gzip.compress(path.read_bytes(), 1, mtime=0))
        self.directory = folder / "parts"
        self.directory.mkdir()
        for key in done:
            (self.directory / key.part_name).touch()
        self.parts = _IncomingParts(str(self.directory))
        os.mkdir(self.parts.incoming)
        options = {"tokenizer": TOKENIZER, "encoder": "reference", "unit_size": UNIT_BYTES}
        self.job = job_of([str(path) for path in self.paths], str(folder / "out"), **options)
        self.outcomes: list[Outcome] = []
        self.documents = self.bytes_done = 0
        feed = Fed(self.paths, folder / "raw", unit_bytes=UNIT_BYTES, done=done).feed
        feed.leave_streams()
        self.tasks = list(_tasks(feed, self.job.encoding(), self.parts, SimpleNamespace(slots=slots)))

    def run(self, task, *, answers=None):
        """Do an task here, or only until it has answered so often."""
        if (arguments := task.arguments()) is None:
            return
        call = json.loads(json.dumps(arguments))
        for number, (answer, content) in zip(count(), encode_on_node(call, Path(TOKENIZER).read_bytes())):
            if number == answers:
                return
            if content:
                Path(self.parts.incoming, answer["file"]).write_bytes(content)
            for event in task.receive(json.loads(json.dumps(answer))):
                if isinstance(event, BatchProgress):
                    self.documents += event.documents
                    self.bytes_done += event.input_bytes
                else:
                    self.outcomes.append(event)

    @property
    def keys(self):
        return sorted(outcome.key for outcome in self.outcomes)


def units_of(folder, contents):
    """Return all units of some files, by encoding all of them."""
    work = Work(folder, contents, slots=1)
    for task in work.tasks:
        work.run(task)
    return work.keys


TEXTS = st.lists(st.text("abc", max_size=50), min_size=1, max_size=25)
CONTENTS = st.lists(st.tuples(st.sampled_from(["", ".gz"]), TEXTS), min_size=1, max_size=3)


@settings(max_examples=25, deadline=None)
@given(contents=CONTENTS, slots=st.integers(1, 9), data=st.data())
def test_tasks_are_exactly_the_units_that_are_not_done(tmp_path_factory, contents, slots, data):
    everything = units_of(tmp_path_factory.mktemp("all"), contents)
    done = frozenset(data.draw(st.sets(st.sampled_from(everything))))
    work = Work(tmp_path_factory.mktemp("rest"), contents, slots=slots, done=done)
    for task in work.tasks:
        if (lost_after := data.draw(st.sampled_from([None, 0, 1, 2]))) is not None:
            work.run(task, answers=lost_after)
        work.run(task)
    assert work.keys == sorted(set(everything) - done), "each of them once"
    for key in work.keys:
        with PartReader(str(work.directory / key.part_name)) as part:
            part.verify()
            assert part.unit == key


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_progress_within_a_lost_unit_is_counted_once(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(ray, "_PROGRESS_SECONDS", 0)
    monkeypatch.setattr(encoder, "read_documents", partial(read_documents, batch_bytes=10))
    work = Work(tmp_path, [(suffix, ["abc" * 9] * 30)], slots=1)
    for task in work.tasks:
        for lost_after in (2, 1):
            work.run(task, answers=lost_after)
        work.run(task)
    assert work.documents == 30
    assert work.bytes_done == work.paths[0].stat().st_size


def test_a_large_compressed_file_is_shared_and_small_ones_are_not(tmp_path):
    contents = [(".gz", ["abc" * 40] * 200), (".gz", ["a"]), ("", ["abc"])]
    work = Work(tmp_path, contents, slots=6)
    shares = [task.label for task in work.tasks]
    assert shares.count(f"unit 0 of {work.paths[1]}") == 1
    assert len([label for label in shares if label.endswith(f"of {work.paths[0]}")]) > 2


def test_parts_come_back_where_their_directory_is_not_to_be_seen(tmp_path):
    work = Work(tmp_path, [("", ["abc" * 30] * 9), (".gz", ["cba" * 30] * 9)], slots=2)
    aside = tmp_path / "aside"
    os.rename(work.parts.incoming, aside)
    answers = [
        answer
        for task in work.tasks
        for answer in encode_on_node(task.arguments(), Path(TOKENIZER).read_bytes())
    ]
    os.rename(aside, work.parts.incoming)
    assert not os.listdir(work.parts.incoming)
    answers = [(answer, content) for answer, content in answers if "progress" not in answer]
    assert all(content[-8:].startswith(b"TOKPART") and "file" in answer for answer, content in answers)
    assert {answer["file"] for answer, _ in answers} == {
        Outcome.from_json(answer["outcome"]).key.part_name for answer, _ in answers
    }


def test_an_input_that_is_another_one_on_the_node_is_said(tmp_path):
    work = Work(tmp_path, [("", ["abc"]), (".gz", ["abc"])], slots=1)
    with open(work.paths[0], "ab") as file:
        file.write(b"\n")
    os.unlink(work.paths[1])
    found = []
    for task in work.tasks:
        ((answer, _),) = encode_on_node(task.arguments(), Path(TOKENIZER).read_bytes())
        found.append(str(error_from_json(answer["error"])))
    assert "bytes on the node" in found[0]
    assert "on the node that started the run" in found[0]
    assert found[1].startswith("input not found on the node ")
    assert f": {work.paths[1]}" in found[1]


def test_what_was_whole_at_the_end_of_a_stopped_run_is_kept(tmp_path):
    work = Work(tmp_path, [("", ["abc" * 30] * 9)], slots=1)
    for task in work.tasks:
        list(encode_on_node(task.arguments(), Path(TOKENIZER).read_bytes()))
    Path(work.parts.incoming, ".x.part.1-1.tokshard-tmp").touch()
    work.parts.keep_all()
    names = sorted(path.name for path in work.directory.glob("*.part"))
    assert names == [UnitKey(0, index).part_name for index in range(len(names))]
    assert len(names) > 5


def test_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    feed = Fed([tmp_path / "pipe"], tmp_path / "raw").feed
    with pytest.raises(UsageError, match="only by this process"):
        feed.leave_streams()
