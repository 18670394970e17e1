"""P26: how an input is cut, read and compressed never changes its records."""

import random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from faults.controls import border_dropping_reader
from support.corpus_units import (
    CODECS,
    COMPRESS,
    read_data,
    read_units,
    twin,
    twin_text,
    units_of,
    without_reasons,
)
from tokshard.errors import InputError
from tokshard.text.corpus import compressed, lines
from tokshard.text.corpus.content import identify
from tokshard.text.corpus.files import CorpusFile
from tokshard.text.corpus.planning import plan_units
from tokshard.text.corpus.units import LineUnit

LIMIT = 120


def small_file():
    """Return about 1.2 KB with records of every length around LIMIT, blank lines and bad ones."""
    choose = random.Random(4)
    parts = [b"\xef\xbb\xbf"]
    while sum(map(len, parts)) < 1200:
        body = "añ漢🙂 "[choose.randrange(5)] * choose.choice([0, 1, 3, 20, 30, 108, 109, 150])
        parts.append(f'{{"text": "{body}"}}\n'.encode())
        parts.append(choose.choice([b"", b"", b"\n", b"\r\n", b"  \n", b"broken\n", b"\xff\n"]))
    return b"".join([*parts, b'{"text": "no newline"}'])


DATA = small_file()
EXPECTED = twin(DATA, LIMIT)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    path = tmp_path_factory.mktemp("plain") / "small.jsonl"
    path.write_bytes(DATA)
    return path


def plain_reading(path, units=None, **options):
    size = path.stat().st_size
    units = units or plan_units(
        0, CorpusFile(path=str(path), size_bytes=size, mtime_ns=0, format="jsonl", compression="none"), size
    )
    return without_reasons(read_units(units, limit=LIMIT, **options))


def reading_sizes_that_differ(read, expected, sizes):
    """Return the read sizes with which a reader does not find what the twin finds."""
    return [size for size in sizes if read(size) != expected]


def test_the_sample_has_everything():
    documents, rejected, line_count, blank_lines = EXPECTED
    assert 1100 < len(DATA) < 1500
    assert min(len(documents), len(rejected), blank_lines) >= 4
    assert line_count == len(documents) + len(rejected) + blank_lines


def test_every_read_size(plain):
    sizes = range(1, len(DATA) + 2)
    assert (
        reading_sizes_that_differ(lambda size: plain_reading(plain, batch_bytes=size), EXPECTED, sizes) == []
    )


def test_the_property_catches_a_reader_that_drops_lines_at_borders():
    def read(size):
        found = border_dropping_reader.lines(DATA, size)
        usable = [(at, line.removeprefix(b"\xef\xbb\xbf")) for at, line in found if len(line) <= LIMIT]
        return [(at, ((text,),)) for at, line in usable if (text := twin_text(line)) is not None]

    assert read(len(DATA)) == EXPECTED[0]  # right where nothing is cut
    assert len(reading_sizes_that_differ(read, EXPECTED[0], range(1, len(DATA)))) > 0.7 * len(DATA)


def test_every_unit_size(plain):
    for unit_bytes in range(1, len(DATA) + 2):
        file = CorpusFile(
            path=str(plain), size_bytes=len(DATA), mtime_ns=0, format="jsonl", compression="none"
        )
        units = list(plan_units(0, file, unit_bytes))
        assert [unit.last for unit in units] == [False] * (len(units) - 1) + [True]
        assert plain_reading(plain, units, batch_bytes=1000) == EXPECTED, unit_bytes


def test_every_split_point(plain):
    whole = {"file": 0, "path": str(plain)}
    for place in range(1, len(DATA)):
        units = [
            LineUnit(index=0, last=False, begin=0, end=place, **whole),
            LineUnit(index=1, last=True, begin=place, end=len(DATA), **whole),
        ]
        assert plain_reading(plain, units) == EXPECTED, place


def test_scans_for_newlines_in_steps_of_any_size(plain, monkeypatch):
    for step in (1, 2, 3, 7, 50):
        monkeypatch.setattr(lines, "_SCAN_BYTES", step)
        monkeypatch.setattr(lines, "_OVERHANG_BYTES", step)
        for unit_bytes in (13, 100, 701, 5000):
            file = CorpusFile(
                path=str(plain), size_bytes=len(DATA), mtime_ns=0, format="jsonl", compression="none"
            )
            assert plain_reading(plain, plan_units(0, file, unit_bytes), batch_bytes=64) == EXPECTED


@pytest.mark.parametrize("codec", CODECS[1:])
def test_every_chunk_and_feed_size_of_a_codec(codec, tmp_path, monkeypatch):
    size = len(COMPRESS[codec](DATA))
    for chunk_bytes in [*range(1, 40), 119, 120, 121, 1000, len(DATA)]:
        for feed_bytes in {1, chunk_bytes, size}:
            monkeypatch.setattr(compressed, "FEED_BYTES", feed_bytes)
            reading = read_data(DATA, codec, tmp_path, limit=LIMIT, chunk_bytes=chunk_bytes)
            assert without_reasons(reading) == EXPECTED
    for feed_bytes in range(1, size):
        monkeypatch.setattr(compressed, "FEED_BYTES", feed_bytes)
        assert without_reasons(read_data(DATA, codec, tmp_path, limit=LIMIT)) == EXPECTED


@pytest.mark.parametrize("codec", CODECS[1:])
def test_units_of_a_stream_are_those_of_the_definition(codec, tmp_path):
    path = tmp_path / "packed"
    path.write_bytes(COMPRESS[codec](DATA))
    sizes = range(1, len(DATA) + 2) if codec == "zstd" else [1, 2, 9, 40, 333, 1024, len(DATA) - 1, len(DATA)]
    documents, rejected, *_ = EXPECTED
    for unit_bytes in sizes:
        count = max(1, -(-len(DATA) // unit_bytes))
        units = units_of(path, codec, tmp_path, unit_bytes=unit_bytes, limit=LIMIT, chunk_bytes=500)
        for number, unit in enumerate(units):
            assert (unit.index, unit.last) == (number, number == count - 1)
            reading = read_units([unit], limit=LIMIT)
            mine = range(number * unit_bytes, (number + 1) * unit_bytes)
            assert reading.documents == [document for document in documents if document[0] in mine]
            assert [at for at, _, _ in reading.rejected] == [at for at, _ in rejected if at in mine]
        assert number == count - 1


LINES = st.one_of(
    st.text(max_size=40).map(
        lambda text: b'{"text": "%s"}' % text.replace('"', "").encode("utf-8", "replace")
    ),
    st.sampled_from([b"", b" \t", b"\r", b"{}", b"[", b'{"text": "\\ud800"}', b'{"text": "a", "x": NaN}']),
    st.sampled_from([b'{"text": "' + b"y" * n + b'"}' for n in (106, 107, 108, 109, 110, 400)]),
    st.binary(max_size=12).map(lambda data: data.replace(b"\n", b"")),
)
CONTENTS = st.builds(
    lambda found, ending, mark: mark + b"\n".join(found) + ending,
    st.lists(LINES, max_size=12),
    st.sampled_from([b"", b"\n"]),
    st.sampled_from([b"", b"", b"\xef\xbb\xbf"]),
)


def is_text(data):
    """Tell whether a stream of these bytes is read; others are refused as archives and the like."""
    try:
        return identify(data, "any") == ("jsonl", "none")
    except InputError:
        return False


@settings(max_examples=300, deadline=None)
@given(data=CONTENTS, codec=st.sampled_from(CODECS), unit=st.integers(1, 300), read=st.integers(1, 300))
def test_any_content_reads_as_the_twin_says(data, codec, unit, read, tmp_path_factory):
    assume(is_text(data))
    directory = tmp_path_factory.mktemp("any")
    reading = read_data(
        data, codec, directory, unit_bytes=unit, chunk_bytes=read, batch_bytes=read, limit=LIMIT
    )
    assert without_reasons(reading) == twin(data, LIMIT)
    if codec == "none":
        assert reading.raw == data


@given(
    st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"")), min_size=1, max_size=9),
    st.booleans(),
    st.binary(max_size=9),
    st.sampled_from([1, 4, 1 << 20]),
)
def test_short_lines_and_long_ones_are_divided_alike(parts, is_complete, behind, long_line_bytes):
    content = b"\n".join(parts) + b"\n" * is_complete
    assume(content)
    block = content + (behind if is_complete else b"")
    expected = content.split(b"\n")[: None if content[-1:] != b"\n" else -1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "_LONG_LINE_BYTES", long_line_bytes)
        found = lines._lines_of(block, len(content))
    assert [bytes(line) for line in found] == expected


def test_only_short_lines_are_copied():
    long = b"x" * 2000 + b"\n"
    assert {type(line) for line in lines._lines_of(9 * long, 9 * len(long))} == {memoryview}
    assert {type(line) for line in lines._lines_of(9 * b"short\n", 9 * 6)} == {bytes}
