"""P19: JSON that we wrote ourselves comes back as it was; all else is an IntegrityError, and soon."""

from __future__ import annotations

import contextlib
import json
import os

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tokshard.core.json_text import dump_json, parse_json_object
from tokshard.errors import IntegrityError

# Surrogates stand for bytes of file names that are not UTF-8.
TEXT = st.text(st.characters(exclude_categories=[]))
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=12,
)


@given(value=st.dictionaries(TEXT, JSON, max_size=4))
@example(value={"path": os.fsdecode(b"a\xff.jsonl")})
def test_what_is_dumped_is_parsed(value):
    content = dump_json(value)
    assert content.decode("utf-8").endswith("\n")
    parsed = parse_json_object(content, "x.json")
    assert parsed == value
    assert list(parsed) == list(value)


def test_names_stay_readable():
    assert dump_json({"ü": "\n"}) == '{\n  "ü": "\\n"\n}\n'.encode()


def wrap(depth, inner="1"):
    """An object with ``depth`` levels in all."""
    return '{"a":' + "[" * (depth - 1) + inner + "]" * (depth - 1) + "}"


SOUND = {
    "empty": b"{}",
    "deeper than any file": wrap(40).encode(),
    "brackets in a string": json.dumps({"a": "[{" * 100}).encode(),
    "brackets behind an escaped quote": rb'{"a": "\"' + b"[" * 100 + rb'\\"}',
    "brackets in a key": json.dumps({"[" * 100: 1}).encode(),
    "many brackets side by side": b'{"a": [' + b"[]," * 1000 + b"[]]}",
    "an escaped surrogate": rb'{"a": "\udcff"}',
    "the same key in two objects": b'{"a": {"b": 1}, "c": {"b": 1}}',
    "large integer": b'{"a": 99999999999999999999999}',
}
WRONG = {
    "nothing": b"",
    "a space": b" ",
    "an array": b"[]",
    "a string": b'"x"',
    "a number": b"1",
    "null": b"null",
    "cut": b'{"a": 1',
    "cut in a string": b'{"a": "1',
    "cut behind a backslash": b'{"a": "1\\',
    "more behind it": b"{} {}",
    "a comma too many": b'{"a": 1,}',
    "single quotes": b"{'a': 1}",
    "a comment": b'{"a": 1} // one',
    "a key that is no string": b"{1: 1}",
    "a key twice": b'{"a": 1, "a": 1}',
    "a key twice, once escaped": rb'{"a": 1, "\u0061": 2}',
    "a key twice, deep inside": b'{"x": [{"y": {"a": 1, "b": 2, "a": 3}}]}',
    "NaN": b'{"a": NaN}',
    "Infinity": b'{"a": Infinity}',
    "-Infinity": b'{"a": -Infinity}',
    "a number too large for a float": b'{"a": 1e999}',
    "a number of too many digits": b'{"a": 1' + b"0" * 40 + b"}",
    "a number too small for a float": b'{"a": [-1e999]}',
    "an endless fraction": b'{"a": ' + b"9" * 5000 + b".5}",
    "an endless key twice": b'{"%s": 1, "%s": 1}' % (b"a" * 5000, b"a" * 5000),
    "an endless integer": b'{"a": ' + b"9" * 5000 + b"}",
    "a leading zero": b'{"a": 01}',
    "a raw newline in a string": b'{"a": "\n"}',
    "NUL": b'{"a": "\0"}',
    "a byte order mark": b"\xef\xbb\xbf{}",
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "a byte that is not UTF-8": b'{"a": "\xff"}',
    "an overlong slash": b'{"a": "\xc0\xaf"}',
    "a surrogate in UTF-8": b'{"a": "\xed\xa0\x80"}',
    "too deep in arrays": wrap(50_000).encode(),
    "too deep in objects": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "far too deep": b"[" * 200_000,
    "far too deep behind a string": b'{"a": "\\\\", "b": ' + b"[" * 200_000,
    "far too deep behind a wrong backslash": b"\\" + b"[" * 200_000,
}


@pytest.mark.parametrize("name", SOUND)
def test_sound(name):
    assert parse_json_object(SOUND[name], "x.json") == json.loads(SOUND[name])


@pytest.mark.parametrize("name", WRONG)
def test_wrong(name):
    with pytest.raises(IntegrityError, match=r"^some/x\.json is ") as caught:
        parse_json_object(WRONG[name], "some/x.json")
    assert caught.value.path == "some/x.json"
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("piece", [b'\\"', b'"', b"\\", b"[]", b'""', b'"[', b'"a":1,'])
@pytest.mark.parametrize("begin", [b"", b'"', b'{"a":', b'{"a":"'])
def test_no_content_takes_more_than_linear_time(begin, piece):
    """Quadratic would be hours, and the time limit of a test ends it."""
    with pytest.raises(IntegrityError):
        parse_json_object(begin + piece * (1_000_000 // len(piece)), "x.json")


def test_half_a_million_keys_with_the_last_one_twice_are_found_soon():
    content = "{" + "".join(f'"{i}":0,' for i in range(500_000)) + '"499999":0}'
    with pytest.raises(IntegrityError, match="duplicate key '499999'"):
        parse_json_object(content.encode(), "x.json")


@settings(max_examples=300)
@given(content=st.binary(max_size=200) | st.text('[]{}":,\\ 1aeN\n', max_size=60).map(str.encode))
def test_any_bytes_are_an_object_or_an_integrity_error(content):
    try:
        value = parse_json_object(content, "x.json")
    except IntegrityError:
        return
    assert value == json.loads(content)


@given(data=st.data(), value=st.dictionaries(TEXT, JSON, max_size=3))
def test_damaged_files_are_an_object_or_an_integrity_error(data, value):
    content = bytearray(dump_json(value))
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(IntegrityError):
        assert isinstance(parse_json_object(bytes(content), "x.json"), dict)
