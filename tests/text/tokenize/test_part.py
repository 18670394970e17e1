"""Parts: what is written is read, no damage goes unseen, and a name tells what a part depends on."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokshard.dataset.counts import NO_COUNTS
from tokshard.dataset.parameters import TokenizeParameters
from tokshard.errors import IntegrityError
from tokshard.text.corpus.files import CorpusFile
from tokshard.text.tokenize.part import (
    OTHER_SPLIT,
    PartFooter,
    PartHeader,
    PartNames,
    PartReader,
    PartWriter,
    UnitKey,
    is_part_name,
    part_headers,
)
from tokshard.text.tokenizer.checked_documents import FIRST_BYTES

GOLDEN = Path(__file__).parents[2] / "golden/formats"
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


def test_the_header_of_a_stored_part():
    """Two outputs of two splits: the documents of the other one are excluded from each."""
    for name in ("part-2.json", "part-2-subset.json"):
        header = PartFooter.from_bytes((GOLDEN / name).read_bytes(), name).header
        assert header.documents == 3
        assert header.tokens == sum(counts.tokens for counts in header.counts)
        for counts in header.counts:
            assert counts.records == counts.documents + counts.rejected_total + counts.excluded_total
            assert counts.documents + counts.excluded_as(OTHER_SPLIT) == header.documents


# Names


PARAMETERS = TokenizeParameters(eod_id=0, dtype="uint16", max_document_bytes=1000, unit_size=100)
SOURCE = CorpusFile(path="a.jsonl", size_bytes=1000, mtime_ns=7, format="jsonl", compression="none")


def named(files, **options):
    return PartNames(files, replace(PARAMETERS, **options))


def test_parts_of_an_object_written_again_with_the_same_content_have_the_same_names():
    etag = replace(SOURCE, version='"etag"')
    later = replace(etag, mtime_ns=8)
    assert named([later]).of(UnitKey(0, 3)) == named([etag]).of(UnitKey(0, 3))


@pytest.mark.parametrize(
    "change",
    [{"path": "b.jsonl"}, {"size_bytes": 1001}, {"mtime_ns": 8}, {"version": '"etag"'}],
    ids=lambda change: next(iter(change)),
)
def test_another_input_has_other_parts(change):
    mine, others = named([SOURCE]), named([replace(SOURCE, **change)])
    name = mine.of(UnitKey(0, 3))
    assert mine.key(name) == UnitKey(0, 3)
    assert name != others.of(UnitKey(0, 3))
    assert others.key(name) is None


def test_names_of_no_unit():
    names = named([SOURCE])
    first = names.of(UnitKey(0, 0))
    for name in ("", "x.part", f"{first}x", first.replace("-", "_"), f"{'0' * 16}-000000000.part"):
        assert names.key(name) is None
    assert is_part_name(first)
    assert not is_part_name(f".{first}")


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("size_bytes", [1000, FIRST_BYTES - 950, FIRST_BYTES - 1000, FIRST_BYTES + 7])
def test_an_input_added_before_renames_units_alone_around_the_end_of_the_first_megabyte(
    compression, size_bytes
):
    """Both encoders encode the documents of the corpus' first megabyte, so others of this unit."""
    source = replace(SOURCE, size_bytes=size_bytes, compression=compression)
    added = replace(SOURCE, path="added.jsonl")
    before, after = named([source]), named([added, source])
    units = range(-(-size_bytes // 100))
    renamed = [k for k in units if before.of(UnitKey(0, k)) != after.of(UnitKey(1, k))]
    # The megabyte ends a thousand bytes earlier now. Where a compressed input ends is unknown.
    earliest = (FIRST_BYTES - 1000) // 100
    assert all(earliest <= k <= FIRST_BYTES // 100 for k in renamed)
    is_reached = units[-1] >= earliest and (compression == "gzip" or size_bytes > FIRST_BYTES - 1000)
    assert bool(renamed) == is_reached
    for k in set(units) - set(renamed):
        assert after.key(before.of(UnitKey(0, k))) == UnitKey(1, k)


def test_parts_of_a_sample_and_of_a_pipe_have_the_number_of_the_input():
    other = replace(SOURCE, path="b.jsonl")
    pipe = replace(SOURCE, path="-", size_bytes=None, mtime_ns=None)
    for source, options in ((SOURCE, {"sample": 0.5}), (pipe, {})):
        first, second = named([source, other], **options), named([other, source], **options)
        assert first.of(UnitKey(0, 5)) != second.of(UnitKey(1, 5))
    assert named([SOURCE, other]).of(UnitKey(0, 5)) == named([other, SOURCE]).of(UnitKey(1, 5))


def test_parts_of_a_directory_are_found_by_their_headers(tmp_path):
    (tmp_path / "parts").mkdir()
    whole = tmp_path / "parts" / NAME
    write(whole, [("tokens.0", b"abc")])
    damaged = "1123456789abcdef-000000005.part"
    (tmp_path / "parts" / damaged).write_bytes(whole.read_bytes())  # the part of another unit
    (tmp_path / "parts" / "2123456789abcdef-000000005.part").write_bytes(b"")
    os.mkfifo(tmp_path / "parts" / "3123456789abcdef-000000005.part")
    (tmp_path / "parts" / "4123456789abcdef-000000005.part").symlink_to(whole)
    assert list(part_headers(str(tmp_path / "parts"))) == [HEADER]
    content = bytearray(whole.read_bytes())
    content[0] ^= 1
    whole.write_bytes(content)
    assert list(part_headers(str(tmp_path / "parts"))) == [HEADER]
    assert list(part_headers(str(tmp_path / "parts"), verify=lambda name: name == NAME)) == []
    assert list(part_headers(str(tmp_path / "none"))) == []
