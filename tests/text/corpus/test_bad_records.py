"""P24: every bad record is rejected for its reason, at its line and byte; everything else is kept."""

from typing import NamedTuple

import pytest

from support.corpus_units import CODECS, read_data
from tokshard.text.corpus.rejection import REASONS

LIMIT = 300_000
BEFORE = b'{"text": "before"}\n\n'
AFTER_BLANKS = b"\n \t\r\n"
AFTER = AFTER_BLANKS + b'{"text": "after", "other": "x"}\n'


class Case(NamedTuple):
    name: str
    line: bytes
    reason: str


def text(value):
    return b'{"text": ' + value + b"}"


CASES = [
    Case("bare word", b"hello", "invalid-json"),
    Case("two values", b"{} {}", "invalid-json"),
    Case("open object", b'{"text": "a"', "invalid-json"),
    Case("open string", b'{"text": "a', "invalid-json"),
    Case("single quotes", b"{'text': 'a'}", "invalid-json"),
    Case("trailing comma", b'{"text": "a",}', "invalid-json"),
    Case("raw tab in string", text(b'"a\tb"'), "invalid-json"),
    Case("raw escape in string", text(b'"a\x1b[31mb"'), "invalid-json"),
    Case("bad escape", text(b'"\\x41"'), "invalid-json"),
    Case("short unicode escape", text(b'"\\u12"'), "invalid-json"),
    Case("comment", b'// {"text": "a"}', "invalid-json"),
    Case("form feed before the object", b'\x0c{"text": "a"}', "invalid-json"),
    Case("misspelt constant", b'{"text": "a", "x": nan}', "invalid-json"),
    Case("open string full of brackets", b'{"text": "' + b"[" * 2000, "invalid-json"),
    Case("opening line of a JSON array", b"[", "invalid-json"),
    Case("array", b'["text"]', "not-object"),
    Case("string", b'"text"', "not-object"),
    Case("number", b"17", "not-object"),
    Case("null", b"null", "not-object"),
    Case("true", b"true", "not-object"),
    Case("constant", b"NaN", "not-object"),
    Case("no fields", b"{}", "field-missing"),
    Case("other fields", b'{"content": "a"}', "field-missing"),
    Case("other capitals", b'{"Text": "a"}', "field-missing"),
    Case("nested", b'{"data": {"text": "a"}}', "field-missing"),
    Case("field null", text(b"null"), "field-null"),
    Case("null last of two", b'{"text": "a", "text": null}', "field-null"),
    Case("field number", text(b"1.5"), "field-type"),
    Case("field boolean", text(b"false"), "field-type"),
    Case("field object", text(b'{"a": 1}'), "field-type"),
    Case("field constant", text(b"-Infinity"), "field-type"),
    Case("field huge number", text(b"9" * 5000), "field-type"),
    Case("list of numbers", text(b'["a", 1]'), "item-type"),
    Case("list with null", text(b'["a", null]'), "item-type"),
    Case("list of lists", text(b'[["a"]]'), "item-type"),
    Case("chat", text(b'[{"role": "user", "content": "a"}]'), "chat-messages"),
    Case("chat of other names", text(b'[{"from": "human", "value": "a", "x": 1}]'), "chat-messages"),
    Case("list of objects", text(b'[{"role": "user"}]'), "item-type"),
    Case("overlong", text(b'"\xc0\xaf"'), "invalid-utf8"),
    Case("surrogate bytes", text(b'"\xed\xa0\x80"'), "invalid-utf8"),
    Case("cut character", text(b'"\xe2\x82"'), "invalid-utf8"),
    Case("character cut by the newline", b'{"text": "\xe2\x82', "invalid-utf8"),
    Case("beyond unicode", text(b'"\xf4\x90\x80\x80"'), "invalid-utf8"),
    Case("latin-1 in another field", b'{"text": "a", "name": "Andr\xe9"}', "invalid-utf8"),
    Case("latin-1 beside NaN", b'{"text": "a", "x": NaN, "name": "\xe9"}', "invalid-utf8"),
    Case("utf-16 little endian", '{"text": "a"}'.encode("utf-16-le"), "utf-16"),
    Case("utf-16 big endian", '{"text": "a"}'.encode("utf-16-be"), "utf-16"),
    Case("utf-16 with mark", '\ufeff{"text": "漢字"}'.encode("utf-16-le"), "utf-16"),
    Case("byte order mark", b'\xef\xbb\xbf{"text": "a"}', "byte-order-mark"),
    Case("NUL in string", text(b'"a\0b"'), "nul-byte"),
    Case("NULs only", b"\0" * 100, "nul-byte"),
    Case("NUL after the object", b'{"text": "a"}\0', "nul-byte"),
    Case("high surrogate", text(b'"a\\ud800"'), "lone-surrogate"),
    Case("low surrogate", text(b'"\\udc00a"'), "lone-surrogate"),
    Case("pair turned round", text(b'"\\udc00\\ud800"'), "lone-surrogate"),
    Case("surrogate in a list", text(b'["a", "\\ud800"]'), "lone-surrogate"),
    Case("deep arrays", text(b"[" * 100_000 + b"]" * 100_000), "too-deep"),
    Case("deep objects", b'{"text":' * 5000 + b"1" + b"}" * 5000, "too-deep"),
    Case("open brackets", b"[" * 100_000, "too-deep"),
    Case("deep beside NaN", b'{"text": "a", "x": [NaN,' + b"[" * 500 + b"]" * 501 + b"}", "too-deep"),
    Case("too long", text(b'"' + b"x" * LIMIT + b'"'), "too-long"),
    Case("too long and blank", b" " * (LIMIT + 1), "too-long"),
    Case("longer than several chunks", b"y" * (5 * LIMIT), "too-long"),
]
CUT_CASES = [
    Case("cut in string", b'{"text": "a', "truncated-record"),
    Case("cut after object's key", b'{"text"', "truncated-record"),
    Case("cut within a character", b'{"text": "\xe6\xbc', "truncated-record"),
    Case("cut after a backslash", b'{"text": "a\\', "truncated-record"),
    Case("cut in code", b'{"text": "' + b"[{" * 1000, "truncated-record"),
    Case("one bracket", b"{", "truncated-record"),
    Case("zeroed tail", b'{"text": "a\0\0\0\0', "nul-byte"),
    Case("bad byte, then cut", b'{"text": "\xff a', "invalid-utf8"),
    Case("whole but useless", b'{"content": "a"}', "field-missing"),
    Case("too long and cut", b"z" * (LIMIT + 1), "too-long"),
]
# What looks odd and is fine: the line, and the sequences of its document.
FINE = [
    (b'{"text": "a"}\r', ("a",)),
    (b' \t{"text" : "a"} ', ("a",)),
    (b'{"text": ""}', ("",)),
    (b'{"text": []}', ()),
    (b'{"text": ["a", "", "b"]}', ("a", "", "b")),
    (b'{"text": ["a"]}', ("a",)),
    (b'{"text": "a\\u0000b"}', ("a\0b",)),
    (b'{"text": "\\ud83d\\ude00"}', ("\U0001f600",)),
    (b'{"text": "\xef\xbb\xbfa\xef\xbf\xbe"}', ("\ufeffa\ufffe",)),
    (b'{"text": "\\u2028\xe2\x80\xa8\\r\\n"}', ("\u2028\u2028\r\n",)),
    (b'{"text": "a", "x": NaN}', ("a",)),
    (b'{"text": "a", "x": [-Infinity, 1e999]}', ("a",)),
    (b'{"x": ' + b"9" * 5000 + b', "text": "a"}', ("a",)),
    (b'{"x": "\\ud800", "text": "a"}', ("a",)),
    (b'{"\\udfff": 1, "text": "a"}', ("a",)),
    (b'{"text": 1, "text": "a"}', ("a",)),
    (b'{"text": 1, "text": "a", "x": NaN}', ("a",)),
    (b'{"t\\u0065xt": "a"}', ("a",)),
    (b'{"text": "a", "x": ' + b"[" * 1000 + b"]" * 1000 + b"}", ("a",)),
    (b'{"text": "' + b"x" * (LIMIT - 12) + b'"}', ("x" * (LIMIT - 12),)),
]


def name_of(case):
    return case.name


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_bad_line_is_rejected_alone(case, codec, tmp_path):
    data = BEFORE + case.line + AFTER
    reading = read_data(data, codec, tmp_path, limit=LIMIT, chunk_bytes=100_000)
    assert reading.documents == [(0, (("before",),)), (len(BEFORE + case.line + AFTER_BLANKS), (("after",),))]
    assert reading.rejected == [(len(BEFORE), 3, case.reason)]
    assert (reading.lines, reading.blank_lines) == (5, 2)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("case", CUT_CASES, ids=name_of)
def test_a_bad_last_line_without_newline_is_rejected_alone(case, codec, tmp_path):
    reading = read_data(BEFORE + case.line, codec, tmp_path, limit=LIMIT)
    assert reading.documents == [(0, (("before",),))]
    assert reading.rejected == [(len(BEFORE), 3, case.reason)]
    assert (reading.lines, reading.blank_lines) == (3, 1)


@pytest.mark.parametrize("codec", CODECS)
def test_all_together_are_counted_exactly(codec, tmp_path):
    lines = [part for case in CASES for part in (case.line, b'{"text": "good"}')]
    data = b"\n".join(lines)
    reading = read_data(data, codec, tmp_path, limit=LIMIT, unit_bytes=70_001, batch_bytes=5000)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    assert reading.rejected == [(starts[2 * i], 2 * i + 1, case.reason) for i, case in enumerate(CASES)]
    assert reading.documents == [(starts[2 * i + 1], (("good",),)) for i in range(len(CASES))]
    assert reading.lines == len(lines)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("ending", [b"\n", b""], ids=["newline", "no newline"])
@pytest.mark.parametrize(("line", "sequences"), FINE, ids=range(len(FINE)))
def test_odd_lines_that_are_fine(line, sequences, ending, codec, tmp_path):
    reading = read_data(BEFORE + line + ending, codec, tmp_path, limit=LIMIT)
    assert reading.documents == [(0, (("before",),)), (len(BEFORE), (sequences,))]
    assert reading.rejected == []


def test_long_lines_of_many_values_are_documents(tmp_path):
    arrays, texts = b"[" + b"[]," * 499_990 + b"0]", b"[" + b'"[]{},:\\"",' * 490_000 + b'"b"]'
    data = (
        b'{"text": "a", "x": ' + arrays + b', "y": "' + b"[,:{" * 600_000 + b'"}\n{"text": ' + texts + b"}\n"
    )
    reading = read_data(data, "none", tmp_path)
    assert reading.rejected == []
    assert reading.documents[0] == (0, (("a",),))
    assert len(reading.documents[1][1][0]) == 490_001


def test_the_table_has_forty_cases_and_every_reason():
    cases = CASES + CUT_CASES
    assert len({case.name for case in cases}) == len(cases) >= 40
    elsewhere = {"corrupt-stream", "token-ids", "too-many-values"}
    elsewhere |= {reason for reason in REASONS if reason.startswith("key-")}
    assert {case.reason for case in cases} == set(REASONS) - elsewhere


@pytest.mark.parametrize("codec", CODECS)
def test_a_mark_at_the_start_of_the_file_is_dropped(codec, tmp_path):
    mark = b"\xef\xbb\xbf"
    data = mark + b'{"text": "a"}\n' + mark + b'{"text": "b"}\n'
    for sizes in ({}, {"batch_bytes": 1}, {"unit_bytes": 17}):
        reading = read_data(data, codec, tmp_path, **sizes)
        assert reading.documents == [(0, (("a",),))]
        assert reading.rejected == [(17, 2, "byte-order-mark")]
    doubled = read_data(mark * 2 + b'{"text": "a"}', codec, tmp_path)
    assert doubled.rejected == [(0, 1, "byte-order-mark")]
    alone = read_data(mark, codec, tmp_path)
    assert (alone.lines, alone.blank_lines, alone.rejected) == (1, 1, [])


@pytest.mark.parametrize("codec", CODECS)
def test_files_without_records(codec, tmp_path):
    assert read_data(b"", codec, tmp_path).result == ([], [], 0, 0)
    assert read_data(b"\n \n\r\n\t", codec, tmp_path).result == ([], [], 4, 4)


def test_several_fields_stand_or_fall_together(tmp_path):
    data = b'{"a": "1", "b": "2"}\n{"a": "1"}\n{"b": ["3", "4"], "a": "5"}\n{"a": [], "b": "\\ud800"}\n'
    reading = read_data(data, "none", tmp_path, fields=("a", "b"))
    assert reading.documents == [(0, (("1",), ("2",))), (32, (("5",), ("3", "4")))]
    assert [reason for _, _, reason in reading.rejected] == ["field-missing", "lone-surrogate"]
    assert reading.details[0] == 'field "b" not found (fields: a)'
    only_good = read_data(data[:21] * 3, "none", tmp_path, fields=("b", "a"))
    assert [values for _, values in only_good.documents] == [(("2",), ("1",))] * 3


def test_details_name_the_place_and_the_value(tmp_path):
    lines = [text(b"[1]"), text(b'"\xff"'), text(b'"ab\\udc01"'), b"x" * 31, b'{"text": {}}', b'{"text": "a']
    reading = read_data(b"\n".join(lines) + b"\n", "none", tmp_path, limit=30)
    assert reading.details == [
        'item 0 of field "text" must be a string, got a number',
        "invalid UTF-8 at byte 10 of the line (0xff): invalid start byte",
        'field "text" contains the lone surrogate U+DC01 at character 2',
        "the line must be at most 30 bytes, got 31",
        'field "text" must be a string or a list of strings, got an object',
        "invalid JSON: Unterminated string starting at character 9",
    ]


def test_the_true_length_of_an_elided_line_is_told(tmp_path):
    data = b"a" * 5000 + b"\n" + b"b" * 11 + b"\n" + b"c" * 777
    for codec in CODECS:
        reading = read_data(data, codec, tmp_path, limit=10, chunk_bytes=64, batch_bytes=16)
        assert [detail.split()[-1] for detail in reading.details] == ["5,000", "11", "777"]
        assert [offset for offset, _, _ in reading.rejected] == [0, 5001, 5013]
