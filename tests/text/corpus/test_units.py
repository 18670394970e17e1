"""Units as values, and the edges of reading one."""

import os
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.corpus_units import read_documents
from tokshard.errors import InputError
from tokshard.text.corpus.files import CorpusFile
from tokshard.text.corpus.planning import plan_units
from tokshard.text.corpus.units import LineUnit, RowUnit

SIZES = st.integers(0, 2**62)
LINE_UNITS = st.builds(
    LineUnit,
    file=SIZES,
    index=SIZES,
    last=st.booleans(),
    path=st.text(),
    begin=SIZES,
    end=SIZES,
    stream_offset=SIZES,
    elided=st.lists(st.tuples(SIZES, SIZES)).map(tuple),
    stream_error=st.none() | st.text(),
    temporary=st.booleans(),
    input_bytes=SIZES,
)


@given(unit=LINE_UNITS)
def test_line_units_survive_the_way_to_a_worker(unit):
    copy = pickle.loads(pickle.dumps(unit))
    assert copy == unit
    assert hash(copy) == hash(unit)


@given(numbers=st.tuples(*[SIZES] * 5), last=st.booleans(), path=st.text())
def test_row_units_survive_the_way_to_a_worker(numbers, last, path):
    unit = RowUnit(1, 2, last, path, "parquet", *numbers)
    assert pickle.loads(pickle.dumps(unit)) == unit


@given(whole=st.integers(0, 200), rest=st.integers(0, 10**13), unit_bytes=st.integers(1, 10**13))
def test_plain_units_cover_the_file_once(whole, rest, unit_bytes):
    size = whole * unit_bytes + rest % unit_bytes
    units = list(
        plan_units(
            7,
            CorpusFile(path="x", size_bytes=size, mtime_ns=0, format="jsonl", compression="none"),
            unit_bytes,
        )
    )
    assert len(units) == max(1, whole + (rest % unit_bytes > 0))
    assert units[0].begin == 0
    assert units[-1].end == size
    assert [unit.begin for unit in units[1:]] == [unit.end for unit in units[:-1]]
    assert [unit.index for unit in units] == list(range(len(units)))
    assert [unit.last for unit in units] == [False] * (len(units) - 1) + [True]
    assert sum(unit.input_bytes for unit in units) == size


def test_streams_have_no_plan():
    for file in (
        CorpusFile(path="x", size_bytes=9, mtime_ns=0, format="jsonl", compression="gzip"),
        CorpusFile(path="-", size_bytes=None, mtime_ns=None, format="jsonl", compression="none"),
    ):
        with pytest.raises(ValueError, match="only be read as a stream"):
            plan_units(0, file, 100)


def test_a_file_that_shrank_or_went_is_an_input_error(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"text": "a"}\n' * 10)
    unit = LineUnit(file=0, index=0, last=True, path=str(path), begin=0, end=140)
    os.truncate(path, 139)
    with pytest.raises(InputError, match="must have at least 140 bytes as when the run began, got 139"):
        list(read_documents(unit, ["text"]))
    path.unlink()
    with pytest.raises(InputError, match="No such file"):
        list(read_documents(unit, ["text"]))


def test_a_file_that_shrinks_while_it_is_read_is_an_input_error(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"text": "a"}\n' * 1000)
    unit = LineUnit(file=0, index=0, last=True, path=str(path), begin=0, end=14000)
    batches = read_documents(unit, ["text"], batch_bytes=1400)
    next(batches)
    os.truncate(path, 2800)
    with pytest.raises(InputError, match="must have at least 14000 bytes as when the run began, got 2800"):
        list(batches)
