"""Parquet and Arrow: every layout of text, null and type errors, and files that contradict themselves."""

import struct
import sys
from itertools import pairwise

import pytest

from support.corpus_units import read_documents, read_units
from tokshard.errors import InputError, MissingExtraError
from tokshard.text.corpus.files import discover
from tokshard.text.corpus.planning import plan_units

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

TEXTS = [f"document {i} — 漢字🙂 {'x' * (i % 50)}" for i in range(500)] + ["", "\0", "\ufeff"]
KINDS = {
    "string": pa.string(),
    "large_string": pa.large_string(),
    "string_view": pa.string_view(),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
}
WRITERS = ("parquet", "file", "stream")


def write(table, how, path, rows=64):
    if how == "parquet":
        pq.write_table(table, path, row_group_size=rows)
        return
    make = pa.ipc.new_file if how == "file" else pa.ipc.new_stream
    with make(str(path), table.schema) as writer:
        for start in range(0, table.num_rows, rows):
            writer.write_table(table.slice(start, rows))


def table_of(values, kind=None, name="text"):
    array = pa.array(values, kind.value_type).dictionary_encode() if pa.types.is_dictionary(kind) else None
    return pa.table({name: array if array is not None else pa.array(values, kind), "id": range(len(values))})


def read_table(path, *, fields=("text",), unit_bytes=1 << 20, **options):
    (file,) = discover([str(path)])
    return read_units(plan_units(0, file, unit_bytes), fields=fields, **options)


@pytest.mark.parametrize("how", WRITERS)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_layout_of_text_in_units_and_batches_of_any_size(kind, how, tmp_path):
    path = tmp_path / "table"
    write(table_of(TEXTS, kind), how, path)
    expected = [(row, ((text,),)) for row, text in enumerate(TEXTS)]
    for unit_bytes in (1, 3000, 1 << 30):
        for batch_bytes in (1, 700, 1 << 20):
            reading = read_table(path, unit_bytes=unit_bytes, batch_bytes=batch_bytes)
            assert reading.documents == expected
            assert reading.raw.decode() == "".join(text + "\n" for text in TEXTS)
            assert (reading.lines, reading.rejected) == (len(TEXTS), [])


@pytest.mark.parametrize("how", WRITERS)
def test_units_are_consecutive_groups_that_cover_the_table(how, tmp_path):
    path = tmp_path / "table"
    write(table_of(TEXTS, pa.string()), how, path)
    (file,) = discover([str(path)])
    groups = -(-len(TEXTS) // 64)
    for unit_bytes, count in ((1, groups), (1 << 30, 1)):
        units = list(plan_units(3, file, unit_bytes))
        assert len(units) == count
        assert [unit.last for unit in units] == [False] * (count - 1) + [True]
        assert sum(unit.row_count for unit in units) == len(TEXTS)
        assert sum(unit.group_count for unit in units) == groups
        assert sum(unit.input_bytes for unit in units) == path.stat().st_size
        for before, unit in pairwise(units):
            assert unit.first_row == before.first_row + before.row_count
            assert unit.first_group == before.first_group + before.group_count
    middle = list(plan_units(3, file, 6000))
    assert 1 < len(middle) < groups


@pytest.mark.parametrize("how", WRITERS)
def test_an_empty_table_has_one_empty_unit(how, tmp_path):
    path = tmp_path / "table"
    write(table_of([], pa.string()), how, path)
    (file,) = discover([str(path)])
    (unit,) = plan_units(0, file, 100)
    assert (unit.row_count, unit.last) == (0, True)
    assert read_units([unit]).result == ([], [], 0, 0)


@pytest.mark.parametrize("how", WRITERS)
@pytest.mark.parametrize("kind", [pa.list_(pa.string()), pa.large_list(pa.string())], ids=str)
def test_lists_are_documents_of_several_sequences(kind, how, tmp_path):
    values = [["a", "b"], [], ["c"], None, ["d", None], ["e"]] * 3
    path = tmp_path / "table"
    write(table_of(values, kind), how, path, rows=4)
    reading = read_table(path, unit_bytes=1)
    good = [
        (row, (tuple(value),)) for row, value in enumerate(values) if value is not None and None not in value
    ]
    assert reading.documents == good
    assert [reason for *_, reason in reading.rejected] == ["field-null", "item-type"] * 3
    assert [row for row, *_ in reading.rejected] == [3, 4, 9, 10, 15, 16]
    assert [line for _, line, _ in reading.rejected] == [4, 5, 10, 11, 16, 17]


@pytest.mark.parametrize("how", WRITERS)
def test_nulls_and_long_rows_are_rejected_alone(how, tmp_path):
    values = ["a", None, "漢" * 40, "漢" * 33, "b"]
    path = tmp_path / "table"
    write(table_of(values, pa.string()), how, path, rows=2)
    reading = read_table(path, limit=100)
    assert [row for row, _ in reading.documents] == [0, 3, 4]
    assert reading.rejected == [(1, 2, "field-null"), (2, 3, "too-long")]
    assert "the text of the row must be at most 100 bytes, got 120" in reading.details[1]


def test_several_columns_stand_or_fall_together(tmp_path):
    path = tmp_path / "table"
    pq.write_table(pa.table({"a": ["1", "2", None], "b": [["x"], ["y", "z"], []]}), path)
    reading = read_table(path, fields=("b", "a"))
    assert reading.documents == [(0, (("x",), ("1",))), (1, (("y", "z"), ("2",)))]
    assert reading.rejected == [(2, 3, "field-null")]


def test_a_column_of_nulls_only_is_rejected_row_by_row(tmp_path):
    path = tmp_path / "table"
    pq.write_table(pa.table({"text": pa.nulls(3)}), path)
    assert [reason for *_, reason in read_table(path).rejected] == ["field-null"] * 3


@pytest.mark.parametrize("how", WRITERS)
@pytest.mark.parametrize("in_list", [False, True])
def test_text_that_is_not_utf8_is_rejected_alone(how, in_list, tmp_path):
    raw = [b"good", b"bad \xff", "漢".encode(), b"\xed\xa0\x80"]
    array = pa.array([[value] for value in raw] if in_list else raw)
    kind = pa.list_(pa.string()) if in_list else pa.string()
    path = tmp_path / "table"
    write(pa.table({"text": array.view(kind)}), how, path)
    (file,) = discover([str(path)])
    (unit,) = plan_units(0, file, 1000)
    (batch,) = read_documents(unit, ["text"])
    assert batch.texts == (["good", "漢"],)
    assert [(record.offset, record.reason) for record in batch.rejected] == [
        (1, "invalid-utf8"),
        (3, "invalid-utf8"),
    ]
    assert batch.rejected[0].excerpt == "bad \\xff"


@pytest.mark.parametrize("how", WRITERS)
@pytest.mark.parametrize("values", [[1], [b"bytes"], [{"a": "b"}], [[1]], [1.5]], ids=repr)
def test_columns_of_other_types_are_refused(values, how, tmp_path):
    path = tmp_path / "table"
    write(pa.table({"text": values}), how, path)
    with pytest.raises(
        InputError, match=r'table: column "text" must contain strings or lists of strings, got '
    ):
        read_table(path)


def test_a_missing_column_is_refused_with_the_nearest_name(tmp_path):
    path = tmp_path / "table"
    pq.write_table(pa.table({"texts": ["a"], "id": [1]}), path)
    with pytest.raises(InputError, match=r'table: column "text" not found \(columns: texts, id\)') as caught:
        read_table(path)
    assert caught.value.hint == "pass --field texts"


@pytest.mark.parametrize("how", WRITERS)
def test_cut_and_damaged_tables_are_input_errors_or_read(how, tmp_path):
    path = tmp_path / "table"
    write(table_of(TEXTS[:40], pa.string()), how, path)
    whole = path.read_bytes()
    for cut in range(8, len(whole), 97):
        path.write_bytes(whole[:cut])
        try:
            assert len(read_table(path).documents) <= 40
        except InputError as error:
            assert str(path) in error.message  # noqa: PT017 - a stream cut between messages is a shorter stream


def test_offsets_that_lead_outside_are_refused(tmp_path):
    offsets = pa.py_buffer(struct.pack("<3i", 0, 1_000_000, 2))
    array = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"ab")])
    path = tmp_path / "table"
    write(pa.table({"text": array}), "stream", path)
    with pytest.raises(InputError, match="contradicts itself"):
        read_table(path)


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    path = tmp_path / "table"
    pq.write_table(pa.table({"text": ["a"]}), path)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match="Parquet input requires pyarrow"):
        read_table(path)


@pytest.mark.parametrize("how", WRITERS)
def test_a_list_of_too_many_texts_is_rejected_before_it_is_converted(how, tmp_path):
    """Empty texts take no space in a table, and 8 bytes each in memory."""
    path = tmp_path / "table"
    offsets = pa.array([0, 1, 2_000_002, 2_000_003], pa.int32())
    lists = pa.ListArray.from_arrays(offsets, pa.array([""], pa.string()).take(pa.array([0] * 2_000_003)))
    write(pa.table({"text": lists}), how, path)
    reading = read_table(path)
    assert [texts for _, texts in reading.documents] == [(("",),), (("",),)]
    assert reading.rejected == [(1, 2, "too-many-values")]
    assert reading.details == ['the list of field "text" must have at most 2,000,000 items, got 2,000,001']
