"""Keys of the holdout: read like a slow twin reads them, and records without a usable one are rejected."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.corpus_units import COMPRESS, read_documents, units_of
from tokshard.errors import InputError
from tokshard.text.corpus.files import discover
from tokshard.text.corpus.planning import plan_units
from tokshard.text.corpus.selection import RecordSelection
from tokshard.text.corpus.units import LineUnit
from tokshard.text.corpus.values import RecordFields

# The JSON of a record's key, and the key or the reason why there is none.
CASES = [
    ('"a"', "a"),
    ('""', ""),
    ('"漢字 \\ud83d\\ude42"', "漢字 🙂"),
    ('"\\u0000\\n"', "\0\n"),
    ('"' + "é" * 5000 + '"', "é" * 5000),
    ("17", "17"),
    ("-0", "0"),
    ("-9223372036854775808", "-9223372036854775808"),
    ("18446744073709551615", "18446744073709551615"),
    ("null", "key-missing"),
    ("-9223372036854775809", "key-type"),
    ("18446744073709551616", "key-type"),
    ("9" * 5000, "key-type"),
    ("1.0", "key-type"),
    ("1e3", "key-type"),
    ("NaN", "key-type"),
    ("true", "key-type"),
    ("{}", "key-type"),
    ('["a"]', "key-type"),
    ('"\\ud800"', "lone-surrogate"),
]
REASONS = {"key-missing", "key-type", "lone-surrogate"}


def line_unit(path):
    size = path.stat().st_size
    return LineUnit(file=0, index=0, last=True, path=str(path), begin=0, end=size, input_bytes=size)


class UndividedSelection(RecordSelection):
    """Selection that leaves the keys in the batches, which a division drops."""

    def divided(self, batch):
        return batch


def read(units, *, fields=("text",), key_field="key", **options):
    """Return the keys and texts of all documents, and the lines and reasons of the rejected records."""
    keys, texts, rejected, lines = [], [], [], 0
    selection = UndividedSelection(holdout=0.5, holdout_key=key_field)
    for unit in units:
        before = lines
        for batch in read_documents(unit, fields, selection=selection, **options):
            assert len(batch.keys) == batch.documents
            keys += [found.decode() for found in batch.keys]
            texts += batch.texts[0]
            rejected += [(before + record.line, record.reason) for record in batch.rejected]
            lines += batch.lines
    return keys, texts, rejected


def expected_of(cases):
    keys = [found for _, found in cases if found not in REASONS]
    texts = [f"text {place}" for place, (_, found) in enumerate(cases) if found not in REASONS]
    rejected = [(place + 1, found) for place, (_, found) in enumerate(cases) if found in REASONS]
    return keys, texts, rejected


@pytest.mark.parametrize("extra", ["", ', "x": NaN'], ids=["strict", "tolerant"])
@given(
    places=st.lists(st.integers(0, len(CASES) - 1), max_size=12), batch_bytes=st.sampled_from([1, 1 << 20])
)
def test_keys_are_those_of_the_slow_twin(tmp_path_factory, places, batch_bytes, extra):
    cases = [CASES[place] for place in places]
    path = tmp_path_factory.mktemp("keys") / "a.jsonl"
    path.write_text(
        "".join(f'{{"text": "text {n}", "key": {value}{extra}}}\n' for n, (value, _) in enumerate(cases))
    )
    assert read([line_unit(path)], batch_bytes=batch_bytes) == expected_of(cases)


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_keys_of_compressed_inputs_and_nested_fields(codec, tmp_path):
    lines = [json.dumps({"text": f"text {n}", "meta": {"urls": [{"own": n}]}}) for n in range(50)] + [
        '{"text": "text 50", "meta": null}',
        '{"text": "text 51", "meta": {"urls": []}}',
    ]
    path = tmp_path / "input"
    path.write_bytes(COMPRESS[codec]("\n".join(lines).encode()))
    keys, texts, rejected = read(units_of(path, codec, tmp_path, unit_bytes=500), key_field="meta.urls.0.own")
    assert (keys, texts) == ([str(n) for n in range(50)], [f"text {n}" for n in range(50)])
    assert rejected == [(51, "key-missing"), (52, "key-missing")]


def test_the_text_is_checked_before_the_key(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": 1}\n{"text": "a"}\n')
    assert read([line_unit(path)]) == ([], [], [(1, "field-type"), (2, "key-missing")])


def test_the_hint_for_the_first_record_names_a_field(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a", "meta": {"id": 3}, "n": 1}\n')
    (batch,) = read_documents(
        line_unit(path), ["text"], selection=RecordSelection(holdout=0.5, holdout_key="uid")
    )
    (record,) = batch.rejected
    assert record.hint == "choose a field with --holdout-key: text, meta.id, n"
    assert record.detail == 'field "uid" not found (fields: text, meta.id, n)'


def write_table(columns, path, how):
    pa = pytest.importorskip("pyarrow")
    table = pa.table({name: pa.array(values, kind) for name, (values, kind) in columns.items()})
    if how == "parquet":
        pytest.importorskip("pyarrow.parquet").write_table(table, path, row_group_size=3)
    else:
        with pa.ipc.new_file(str(path), table.schema) as writer:
            writer.write_table(table, max_chunksize=3)


def read_table(path, **options):
    (file,) = discover([str(path)])
    fields = RecordFields.parse(["text"], options.get("key_field", "key"))
    return read(plan_units(0, file, 1, fields), **options)


@pytest.mark.parametrize("how", ["parquet", "arrow"])
def test_keys_of_tables(how, tmp_path):
    pa = pytest.importorskip("pyarrow")
    rows = 8
    columns = {
        "string": (["a", "", None, "é", "x" * 5000, "a", "b", "c"], pa.string()),
        "large": (["a", "", None, "é", "x" * 5000, "a", "b", "c"], pa.large_string()),
        "dictionary": (["a", "", None, "b", "a", "a", "b", "c"], pa.dictionary(pa.int32(), pa.string())),
        "int64": ([1, -(2**63), None, 2**63 - 1, 5, 6, 7, 8], pa.int64()),
        "uint64": ([1, 0, None, 2**64 - 1, 5, 6, 7, 8], pa.uint64()),
        "null": ([None] * rows, pa.null()),
        "struct": ([{"id": n} if n else None for n in range(rows)], pa.struct([("id", pa.int32())])),
    }
    columns["text"] = ([f"text {n}" for n in range(rows)], pa.string())
    path = tmp_path / "table"
    write_table(columns, path, how)
    for name in ("string", "large", "dictionary", "int64", "uint64", "null", "struct.id"):
        values = columns[name.partition(".")[0]][0]
        if name == "struct.id":
            values = [value and value["id"] for value in values]
        missing = {n for n, value in enumerate(values) if value is None}
        for batch_bytes in (1, 1 << 20):
            keys, texts, rejected = read_table(path, key_field=name, batch_bytes=batch_bytes)
            assert keys == [str(value) for n, value in enumerate(values) if n not in missing], name
            assert texts == [f"text {n}" for n in range(rows) if n not in missing]
            assert [reason for _, reason in rejected] == ["key-missing"] * len(missing)


@pytest.mark.parametrize("kind", ["float64", "bool_", "binary", "list"])
def test_a_column_that_holds_no_keys_is_an_error(kind, tmp_path):
    pa = pytest.importorskip("pyarrow")
    kinds = {"list": pa.list_(pa.string())}
    columns = {
        "text": (["a"], pa.string()),
        "uid": ([None], kinds.get(kind) or getattr(pa, kind)()),
        "number": ([1], pa.int8()),
    }
    path = tmp_path / "table"
    write_table(columns, path, "parquet")
    with pytest.raises(InputError, match='column "uid" must contain strings or integers, got'):
        read_table(path, key_field="uid")
    with pytest.raises(InputError, match='column "Number" not found') as caught:
        read_table(path, key_field="Number")
    assert caught.value.hint == "choose a field with --holdout-key: text, number"


def test_a_key_column_that_is_not_utf8_rejects_the_row(tmp_path):
    pa = pytest.importorskip("pyarrow")
    bad = pa.array([b"a", b"\xff"], pa.binary()).view(pa.string())
    table = pa.table({"text": ["x", "y"], "key": bad})
    path = str(tmp_path / "table")
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    assert read_table(path) == (["a"], ["x"], [(2, "invalid-utf8")])


@pytest.mark.parametrize("how", ["parquet", "arrow"])
def test_a_key_inside_of_a_list_that_is_too_short_is_missing(how, tmp_path):
    pa = pytest.importorskip("pyarrow")
    columns = {
        "text": (["x", "y", "z"], pa.string()),
        "key": ([["a"], [], None], pa.list_(pa.string())),
    }
    path = tmp_path / "table"
    write_table(columns, path, how)
    assert read_table(path, key_field="key.0") == (["a"], ["x"], [(2, "key-missing"), (3, "key-missing")])
