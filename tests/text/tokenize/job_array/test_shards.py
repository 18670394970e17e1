"""Which units belong to which task: all of them to one each, evenly, and the same wherever it is asked."""

from __future__ import annotations

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokshard.text.tokenize.job_array.shards import UnitAssignment

from support.array_corpora import lines
from support.tokenize_runs import TOKENIZER, job_of
from tokshard.text.corpus.files import CorpusFile, discover
from tokshard.text.corpus.planning import plan_units
from tokshard.text.tokenize.encoder import BatchProgress, UnitEncoder
from tokshard.text.tokenize.part import PartReader, UnitKey
from tokshard.text.tokenize.workers.feed import StreamInput
from tokshard.text.tokenize.workers.ray import encode_stream


def plain(number: int, size: int) -> CorpusFile:
    return CorpusFile(f"{number}.jsonl", size, 0, "jsonl", "none")


def units_of(files):
    """Every unit of some plain files of which each byte is a unit."""
    return [
        UnitKey(unit.file, unit.index)
        for number, file in enumerate(files)
        for unit in plan_units(number, file, 1)
    ]


@given(
    sizes=st.lists(st.integers(0, 40) | st.sampled_from([0, 1, 300]), min_size=1, max_size=30),
    count=st.integers(1, 50),
    compressions=st.lists(st.sampled_from(["none", "gzip"]), min_size=30, max_size=30),
)
def test_each_unit_is_of_one_task_and_all_tasks_agree(sizes, count, compressions):
    files = [
        CorpusFile(str(number), size, 0, "jsonl", compression)
        for number, (size, compression) in enumerate(zip(sizes, compressions, strict=False))
    ]
    assignments = [UnitAssignment(list(files), count, unit_bytes=1) for _ in range(2)]
    for number in range(len(files)):
        members = assignments[0].members(number)
        assert members == assignments[1].members(number)
        assert 1 <= len(members) == len(set(members)) <= count
        assert set(members) <= set(range(count))
        owners = [assignments[0].owner(UnitKey(number, index)) for index in range(3 * len(members))]
        assert owners == [*members] * 3  # in turn, so every unit that there may be has one


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=40) | st.just([2000]) | st.just([900, 3, 3, 50]),
    count=st.integers(1, 12),
)
def test_the_work_is_dealt_evenly(sizes, count):
    """Nobody has more than a fair share, an eighth of one for each file that was rounded up, and a file."""
    files = [plain(number, size) for number, size in enumerate(sizes)]
    assignment = UnitAssignment(files, count, unit_bytes=1)
    loads = [0] * count
    for key in units_of(files):
        loads[assignment.owner(key)] += 1
    assert sum(loads) == sum(sizes)
    fair = sum(sizes) / count
    whole = max(
        (size for number, size in enumerate(sizes) if len(assignment.members(number)) == 1), default=0
    )
    assert max(loads) <= fair + max(whole, fair / 8) + len(sizes)


def test_many_files_are_dealt_whole_and_one_is_read_by_all():
    files = [plain(number, 1000 + number) for number in range(100)]
    assignment = UnitAssignment(files, 8, unit_bytes=10)
    assert {len(assignment.members(number)) for number in range(100)} == {1}
    dealt = [task for number in range(100) for task in assignment.members(number)]
    assert {dealt.count(task) for task in range(8)} <= {12, 13}
    assert sorted(UnitAssignment([plain(0, 1000)], 8, unit_bytes=10).members(0)) == list(range(8))


def test_small_files_do_not_all_go_to_the_first_tasks():
    assignment = UnitAssignment([plain(number, 10) for number in range(8)], 8, unit_bytes=1000)
    assert sorted(assignment.members(number)[0] for number in range(8)) == list(range(8))


@pytest.mark.parametrize("modulus", [1, 3])
def test_a_stream_encoded_by_several_gives_the_parts_of_its_units(tmp_path, modulus):
    """Each remainder by an encoder of its own, in no order: every unit once, the last marked as such."""
    path = tmp_path / "in.jsonl.gz"
    path.write_bytes(gzip.compress(lines(7, 9000)))
    job = job_of([str(path)], str(tmp_path / "x"), tokenizer=TOKENIZER, unit_size=1000)
    parts, raw = tmp_path / "parts", tmp_path / "raw"
    parts.mkdir()
    raw.mkdir()
    (file,) = discover([str(path)])
    documents = []
    for remainder in reversed(range(modulus)):
        events = encode_stream(
            UnitEncoder(job.encoding(), str(parts)),
            StreamInput(0, file, 1000, 64_000_000, 0),
            directory=str(raw),
            wanted=lambda index, remainder=remainder: index % modulus == remainder,
        )
        keys = []
        for event in events:
            if isinstance(event, BatchProgress):
                documents.append(event.documents)
            else:
                keys.append(event.key)
        assert {key.index % modulus for key in keys} == {remainder}
        assert keys == sorted(keys)
    assert list(raw.iterdir()) == []
    found = sorted(parts.iterdir())
    assert [part_path.name for part_path in found] == [
        UnitKey(0, index).part_name for index in range(len(found))
    ]
    ends = []
    for part_path in found:
        with PartReader(str(part_path)) as part:
            part.verify()
            ends.append(part.header.last)
    assert ends == [False] * (len(found) - 1) + [True]
    assert sum(documents) == len(lines(7, 9000).splitlines())
