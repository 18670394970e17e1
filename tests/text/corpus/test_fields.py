"""Field paths: nested fields in lines and tables, and the fields that a wrong name lists and suggests."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.corpus_units import read_data, read_documents
from support.tokenize_runs import run_tokenize
from tokshard.errors import BadRecordError, InputError, UsageError
from tokshard.text.corpus.fields import CHAT_HINT, FieldPath, name_of
from tokshard.text.corpus.files import discover
from tokshard.text.corpus.planning import plan_units
from tokshard.text.corpus.values import RecordFields

KEYS = ["a", "b", "0", "1", "a.b", "x\\y", ""]
PATHS = [
    "a",
    "0",
    "a.b",
    r"a\.b",
    "a.0",
    "a.0.b",
    "b.1.0",
    r"a.a\.b",
    r"x\\y.a",
    r"x\y.0",
    "a.00",
    "a.-1",
    "0.0",
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.just(float("nan")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


def twin_value(record, path):
    """Return the texts at a path, or None if the record is rejected; written from the documented rule."""
    keys, escaped = [""], False
    for index, character in enumerate(path):
        if escaped:
            keys[-1] += character
            escaped = False
        elif character == "\\" and path[index + 1 : index + 2] in {".", "\\"}:
            escaped = True
        elif character == ".":
            keys.append("")
        else:
            keys[-1] += character
    value = record
    for key in keys:
        if isinstance(value, list):
            if key not in {str(number) for number in range(len(value))}:
                return None
            value = value[int(key)]
        elif isinstance(value, dict) and key in value:
            value = value[key]
        else:
            return None
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        return None
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        return None
    return tuple(texts)


@settings(max_examples=200, deadline=None)
@given(
    records=st.lists(
        st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=5) | VALUES, min_size=1, max_size=4
    ),
    paths=st.lists(
        st.sampled_from(PATHS), min_size=1, max_size=2, unique_by=lambda path: FieldPath.parse(path).keys
    ),
)
@example(records=[{"a": {"b": "x"}}, {"a": {"b": "y"}}], paths=["a.b"])
@example(records=[{"a": {"b": "x"}, "a.b": "y"}] * 2, paths=["a.b", r"a\.b"])
@example(records=[{"a": [{"b": "x"}]}, {"a": {"0": {"b": "y"}}}], paths=["a.0.b"])
@example(records=[{"a": "text"}, {"a": ["x", "y"]}], paths=["a.0"])
@example(records=[{"0": "x"}, ["y"], "z"], paths=["0"])
def test_nested_fields_read_as_the_slow_twin_says(records, paths, tmp_path_factory):
    lines = [json.dumps(record) for record in records]
    reading = read_data("\n".join(lines).encode(), "none", tmp_path_factory.mktemp("x"), fields=tuple(paths))
    documents, rejected, offset = [], [], 0
    for number, line in enumerate(lines, 1):
        values = tuple(twin_value(json.loads(line), path) for path in paths)
        if isinstance(json.loads(line), dict) and None not in values:
            documents.append((offset, values))
        else:
            rejected.append((offset, number))
        offset += len(line) + 1
    assert reading.documents == documents
    assert [(offset, line) for offset, line, _ in reading.rejected] == rejected


@given(keys=st.lists(st.text(min_size=1), min_size=1))
def test_every_path_has_a_name(keys):
    assert FieldPath.parse(name_of(keys)).keys == tuple(keys)


def only_reason(record, field):
    path = FieldPath.parse(field)
    try:
        return RecordFields((path,)).usable(lambda path: path.find(record), None)
    except Exception as error:
        return error.reason, error.detail, error.hint()


@pytest.mark.parametrize(
    ("record", "field", "reason", "detail"),
    [
        ({"meta": {}}, "meta.text", "field-missing", 'field "meta.text" not found (fields: meta)'),
        ({"meta": "x"}, "meta.text", "field-missing", 'field "meta.text" not found (fields: meta)'),
        ({"meta": None}, "meta.text", "field-null", 'field "meta.text" is null'),
        ({"a": ["x"]}, "a.1", "field-missing", 'field "a.1" not found (the list has 1 item)'),
        ({"a": []}, "a.0.text", "field-missing", 'field "a.0" not found (the list has 0 items)'),
        ({"a": ["x"]}, "a.b", "field-missing", 'field "a.b" not found (fields: a)'),
        (
            {"a": {"b": 1}},
            "a.b",
            "field-type",
            'field "a.b" must be a string or a list of strings, got a number',
        ),
        ({}, "text", "field-missing", 'field "text" not found (the record has no fields)'),
    ],
)
def test_reasons_of_nested_fields(record, field, reason, detail):
    assert only_reason(record, field)[:2] == (reason, detail)


def test_the_list_of_fields_is_short_flat_and_printable():
    record = {"id": 1, "a.b": {"c": {"d": {"e": {"f": 1}}}}, "\x1b[31m": 1, "n" * 100: 1, "list": [{"x": 1}]}
    detail = only_reason(record, "text")[1]
    assert detail == (r'field "text" not found (fields: id, a\.b.c.d.e, \x1b[31m, ' + "n" * 57 + "..., list)")
    many = only_reason({f"k{number}": 1 for number in range(100_000)}, "text")[1]
    assert many.endswith("k10, k11, ...)")


@pytest.mark.parametrize(
    ("record", "field", "suggested"),
    [
        ({"id": "7", "content": "x", "meta": {"title": "y"}}, "text", "content"),
        ({"id": 7, "story": "x"}, "text", "story"),
        ({"url": "http://example.org/long", "Text": "x"}, "text", "Text"),
        ({"texts": ["x", "y"], "body": "z"}, "text", "texts"),
        ({"doc": {"body": "x"}, "id": "1234567"}, "text", "doc.body"),
        ({"title": "short", "story": "a long story"}, "text", "story"),
        ({"meta.text": "x", "content": "y"}, "meta.text", r"'meta\.text'"),
        ({"my text": "x", "n": 1}, "text", "'my text'"),
        ({"messages": [{"role": "user", "content": "x"}], "id": "7"}, "text", None),
        ({"id": 7}, "text", ""),
        ({"\x1b": "x"}, "text", ""),
        ({"": "x"}, "text", ""),
    ],
)
def test_a_wrong_field_suggests_the_likely_one(record, field, suggested):
    hint = only_reason(record, field)[2]
    assert hint == (CHAT_HINT if suggested is None else suggested and f"pass --field {suggested}")


def test_the_first_record_gets_the_suggestion_and_a_later_one_does_not(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"id": 1, "content": "a", "meta": {"title": "b"}}\n')
    with pytest.raises(BadRecordError) as caught:
        run_tokenize(str(path), str(tmp_path / "a"))
    assert caught.value.message == (f'{path}:1: field "text" not found (fields: id, content, meta.title)')
    assert (caught.value.hint, caught.value.reason) == ("pass --field content", "field-missing")
    path.write_text('{"text": "a"}\n{"content": "b"}\n')
    with pytest.raises(BadRecordError) as caught:
        run_tokenize(str(path), str(tmp_path / "b"))
    assert caught.value.hint.startswith("fix the record, or pass --on-error skip")


def test_outputs_of_nested_fields_have_safe_and_different_names(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"text": "a", "meta": {"title": "b"}, "a.b": ["c", "d"]}\n')
    report = run_tokenize(str(path), str(tmp_path / "x"), fields=("text", "meta.title", r"a\.b"))
    assert [(output.path_prefix, output.dataset.field) for output in report.outputs] == [
        (str(tmp_path / "x_text_document"), "text"),
        (str(tmp_path / "x_meta.title_document"), "meta.title"),
        (str(tmp_path / "x_a.b_document"), r"a\.b"),
    ]
    assert [output.counts.sequences for output in report.outputs] == [1, 1, 2]
    manifest = json.loads((tmp_path / "x_a.b_document.tokshard" / "manifest.json").read_text())
    assert manifest["dataset"]["field"] == r"a\.b"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (("a.b", r"a\.b"), "different output names"),
        ((r"x\y", r"x\\y"), "must name different fields"),
        (("a..b",), "keys that are not empty, got 'a..b'"),
        ((".a",), "keys that are not empty"),
        (("a.",), "keys that are not empty"),
        (("",), "keys that are not empty"),
        ((), "at least one field"),
        (("text", "a/b.c"), "must not contain a slash"),
    ],
)
def test_field_names_that_cannot_be_used_are_refused(fields, message, tmp_path):
    with pytest.raises(UsageError, match=message):
        run_tokenize("x.jsonl", str(tmp_path / "x"), fields=fields)


# Tables

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def write(table, how, path):
    if how == "parquet":
        pq.write_table(table, path, row_group_size=3)
        return
    make = pa.ipc.new_file if how == "file" else pa.ipc.new_stream
    with make(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=3)


def read(path, fields, **options):
    from support.corpus_units import read_units

    (file,) = discover([str(path)])
    return read_units(plan_units(0, file, 1, RecordFields.parse(fields)), fields=fields, **options)


RECORDS = [
    {"meta": {"text": "a", "other": 1}, "m": [{"t": "x", "n": 1}, {"t": "y", "n": 2}], "a.b": "p"},
    {"meta": {"text": None, "other": 2}, "m": [{"t": "z", "n": 1}], "a.b": "q"},
    {"meta": None, "m": [], "a.b": "r"},
    {"meta": {"text": "漢", "other": 3}, "m": None, "a.b": None},
    {"meta": {"text": "", "other": 4}, "m": [None, {"t": None, "n": 3}], "a.b": "s"},
    {"meta": {"text": "e", "other": 5}, "m": [{"t": "v", "n": 4}, {"t": "w", "n": 5}], "a.b": "t"},
    {"meta": {"text": "f", "other": 6}, "m": [{"t": "u", "n": 7}], "a.b": "u"},
]


@pytest.mark.parametrize("how", ["parquet", "file", "stream"])
@pytest.mark.parametrize(
    "fields", [("meta.text",), (r"a\.b",), ("m.0.t",), ("m.1.t",), ("m.1.t", "meta.text")]
)
def test_nested_columns_are_the_same_as_nested_fields_of_lines(fields, how, tmp_path):
    path = tmp_path / "table"
    write(pa.Table.from_pylist(RECORDS), how, path)
    lines = "\n".join(json.dumps(record) for record in RECORDS).encode()
    expected = read_data(lines, "none", tmp_path, fields=fields)
    for batch_bytes in (1, 1 << 20):
        found = read(path, fields, batch_bytes=batch_bytes)
        assert [values for _, values in found.documents] == [values for _, values in expected.documents]
        assert [(line, reason) for _, line, reason in found.rejected] == [
            (line, reason) for _, line, reason in expected.rejected
        ]
        assert found.details == expected.details
    assert expected.documents


def test_only_the_leaf_of_a_parquet_column_is_read(tmp_path, monkeypatch):
    path = tmp_path / "table"
    pq.write_table(pa.Table.from_pylist(RECORDS), path)
    seen = []
    whole = pq.ParquetFile.iter_batches

    def spy(self, **options):
        for batch in whole(self, **options):
            seen.append(batch.schema.field(0).type)
            yield batch

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", spy)
    read(path, ("meta.text",))
    assert {str(kind) for kind in seen} == {"struct<text: string>"}


@pytest.mark.parametrize("how", ["parquet", "file", "stream"])
def test_a_missing_column_is_refused_when_units_are_planned(how, tmp_path):
    path = tmp_path / "table.x"
    write(pa.Table.from_pylist([{"id": 1, "url": "u", "doc": {"content": "x", "n": 1}}]), how, path)
    (file,) = discover([str(path)])
    with pytest.raises(InputError) as caught:
        next(plan_units(0, file, 1000, RecordFields.parse(["text"])))
    assert caught.value.message == f'{path}: column "text" not found (columns: id, url, doc.content, doc.n)'
    assert caught.value.hint == "pass --field doc.content"
    for field in ("doc.text", "url.x", "doc.content.0", "id.0"):
        with pytest.raises(InputError, match=rf'column "{field}" not found'):
            next(plan_units(0, file, 1000, RecordFields.parse([field])))


def test_hints_for_columns(tmp_path):
    path = tmp_path / "table"
    for record, hint in [
        ({"a": "x", "b": "y"}, "choose a text column with --field: a, b"),
        ({"id": 1}, "add a column of strings to the table"),
        ({"a.b": "x", "body": "y"}, "pass --field body"),
        ({"messages": [{"role": "a", "content": "b"}]}, CHAT_HINT),
    ]:
        pq.write_table(pa.Table.from_pylist([record]), path)
        with pytest.raises(InputError) as caught:
            read(path, ("text",))
        assert caught.value.hint == hint
    with pytest.raises(InputError, match='column "messages" contains chat messages') as caught:
        read(path, ("messages",))
    assert caught.value.hint == CHAT_HINT
    assert read(path, ("messages.0.content",)).documents == [(0, (("b",),))]


def test_a_literal_dot_needs_an_escape_in_tables_too(tmp_path):
    path = tmp_path / "table"
    pq.write_table(pa.Table.from_pylist([{"meta.text": "x"}]), path)
    with pytest.raises(InputError) as caught:
        read(path, ("meta.text",))
    assert caught.value.hint == r"pass --field 'meta\.text'"
    assert read(path, (r"meta\.text",)).documents == [(0, (("x",),))]


def test_nested_text_that_is_not_utf8_is_rejected_alone(tmp_path):
    raw = pa.array([b"good", b"bad \xff", b"fine"]).view(pa.string())
    inside = pa.StructArray.from_arrays([raw, pa.array([1, 2, 3])], ["text", "n"])
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), inside)
    path = tmp_path / "table"
    write(pa.table({"meta": inside, "list": lists}), "file", path)
    for field in ("meta.text", "list.0.text"):
        reading = read(path, (field,))
        assert [values for _, values in reading.documents] == [(("good",),), (("fine",),)]
        assert [(line, reason) for _, line, reason in reading.rejected] == [(2, "invalid-utf8")]


@pytest.mark.parametrize("offsets", [[0, 1_000_000, 2], [0, -5, 2]])
@pytest.mark.parametrize("where", ["text", "list"])
def test_nested_offsets_that_lead_outside_are_refused(offsets, where, tmp_path):
    import struct

    buffer = pa.py_buffer(struct.pack("<3i", *offsets))
    if where == "text":
        text = pa.Array.from_buffers(pa.string(), 2, [None, buffer, pa.py_buffer(b"ab")])
        array = pa.StructArray.from_arrays([text], ["0"])
    else:
        array = pa.Array.from_buffers(
            pa.list_(pa.string()), 2, [None, buffer], children=[pa.array(["a", "b"])]
        )
    path = tmp_path / "table"
    write(pa.table({"text": array}), "stream", path)
    (file,) = discover([str(path)])
    (unit,) = plan_units(0, file, 1000)
    with pytest.raises(InputError, match=r"contradicts itself|cannot read "):
        list(read_documents(unit, ["text.0"]))
