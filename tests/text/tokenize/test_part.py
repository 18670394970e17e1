"""Parts: what is written is read, and no damage goes unseen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokshard.dataset.counts import NO_COUNTS
from tokshard.errors import IntegrityError
from tokshard.text.tokenize.part import PartHeader, PartReader, PartWriter

NAME = "0123456789abcdef-000000005.part"
COUNTS = replace(NO_COUNTS, records=3, documents=2, tokens=7, rejected={"not-object": 1})
HEADER = PartHeader(
    name=NAME,
    last=False,
    encoder="fast",
    input_bytes=11,
    content_xxh3_128="00" * 16,
    counts=(COUNTS, COUNTS),
)
STREAMS = ["tokens.0", "offsets", "rejected"]


def write(path, pieces):
    with PartWriter(str(path), STREAMS) as part:
        for stream, data in pieces:
            part.write(stream, data)
        part.finish(HEADER)


@settings(max_examples=50)
@given(pieces=st.lists(st.tuples(st.sampled_from(STREAMS), st.binary(max_size=9))))
def test_streams_come_back_in_order(tmp_path_factory, pieces):
    path = tmp_path_factory.mktemp("part") / "x.part"
    write(path, pieces)
    with PartReader(str(path)) as part:
        assert part.header == HEADER
        for stream in STREAMS:
            expected = b"".join(data for name, data in pieces if name == stream)
            assert part.read(stream) == expected
        part.verify()


def test_every_flipped_byte_and_every_cut_is_seen(tmp_path):
    path = tmp_path / "x.part"
    write(path, [("tokens.0", b"abc"), ("offsets", b"12345678"), ("tokens.0", b"defg")])
    whole = path.read_bytes()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0x20
        path.write_bytes(damaged)
        with pytest.raises(IntegrityError), PartReader(str(path)) as part:
            part.verify()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(IntegrityError):
            PartReader(str(path))
        path.write_bytes(whole[:size] + bytes(len(whole) - size))
        with pytest.raises(IntegrityError), PartReader(str(path)) as part:
            part.verify()


def test_an_exception_commits_nothing(tmp_path):
    path = tmp_path / "x.part"
    with pytest.raises(KeyError), PartWriter(str(path), STREAMS) as part:
        part.write("offsets", b"1")
        raise KeyError
    with PartWriter(str(path), STREAMS) as part:
        part.write("offsets", b"1")
        part.discard()
    assert list(tmp_path.iterdir()) == []
