"""Compressed files, pipes and standard input: broken ones, odd ones and bombs."""

import bz2
import errno
import gzip
import io
import lzma
import os
import random
import struct
import subprocess
import sys
import threading
import zlib

import pytest

from support.corpus_units import (
    CODECS,
    COMPRESS,
    LIMIT,
    read_data,
    read_units,
    twin,
    units_of,
    without_reasons,
    zstd,
)
from tokshard.errors import InputError, StorageError
from tokshard.text.corpus import compressed, planning
from tokshard.text.corpus.compressed import ByteSource, CorruptStreamError, decompressed_chunks
from tokshard.text.corpus.files import discover
from tokshard.text.corpus.planning import stream_units

PACKED = CODECS[1:]
DATA = b"".join(b'{"text": "document %d, %s"}\n' % (i, b"ab" * (i % 7)) for i in range(40))
EXPECTED = twin(DATA)


def read_packed(content, codec, directory, **options):
    path = directory / "packed"
    path.write_bytes(content)
    return read_units(units_of(path, codec, directory, **options))


def content_of(unit):
    with open(unit.path, "rb") as file:
        return file.read()


def decompress(path, codec, **options):
    """Return what comes out before the end or the failure, and the failure."""
    found = []
    with open(path, "rb") as file:
        try:
            found.extend(decompressed_chunks(ByteSource(file, str(path)), codec, **options))
        except CorruptStreamError as error:
            return b"".join(found), error
    return b"".join(found), None


def compress_with_checksum(codec, data):
    """Compress as the tools do; Python's zstd leaves the checksum out unless asked."""
    if codec == "zstd":
        return zstd.compress(data, options={zstd.CompressionParameter.checksum_flag: 1})
    return COMPRESS[codec](data)


def plain_prefix(codec, content):
    """Return what the standard library makes of a cut stream."""
    if codec == "gzip":
        return zlib.decompressobj(31).decompress(content)
    makers = {"bzip2": bz2.BZ2Decompressor, "xz": lzma.LZMADecompressor, "zstd": zstd.ZstdDecompressor}
    return makers[codec]().decompress(content)


@pytest.mark.parametrize("codec", PACKED)
def test_a_file_cut_at_any_byte_keeps_its_complete_records(codec, tmp_path):
    whole = COMPRESS[codec](DATA)
    for cut in range(8, len(whole)):
        reading = read_packed(whole[:cut], codec, tmp_path, unit_bytes=500)
        prefix = plain_prefix(codec, whole[:cut])
        complete = prefix[: prefix.rfind(b"\n") + 1]
        documents, _, lines, _ = twin(complete)
        assert reading.documents == documents
        assert reading.rejected == [(len(complete), lines + 1, "corrupt-stream")]
        assert reading.lines == len(documents) + 1
        assert reading.details == [f"the compressed stream is truncated at compressed byte {cut}"]


@pytest.mark.parametrize("codec", PACKED)
def test_bytes_after_the_end_are_told_and_cost_no_record(codec, tmp_path):
    whole = COMPRESS[codec](DATA)
    choose = random.Random(1)
    for length in [1, 2, 3, 7, 8, 9, 100, 5000]:
        garbage = b"g" + choose.randbytes(length - 1)
        for padding in (0, 4, 1000):
            reading = read_packed(whole + b"\0" * padding + garbage, codec, tmp_path, unit_bytes=300)
            assert reading.documents == EXPECTED[0]
            assert reading.rejected == [(len(DATA), 41, "corrupt-stream")]
            assert reading.details[0].endswith(f"at compressed byte {len(whole) + padding}")


def test_random_bytes_after_the_end_never_change_what_came_before(tmp_path):
    choose = random.Random(2)
    for _ in range(60):
        codec = choose.choice(PACKED)
        garbage = choose.choice([b"", COMPRESS[codec](b"x")[:4]]) + choose.randbytes(choose.randrange(1, 60))
        reading = read_packed(COMPRESS[codec](DATA) + garbage, codec, tmp_path)
        assert reading.documents == EXPECTED[0]
        assert [reason for *_, reason in reading.rejected] == ["corrupt-stream"]


@pytest.mark.parametrize("codec", PACKED)
def test_many_members_and_padding_are_one_stream(codec, tmp_path, monkeypatch):
    pieces = [DATA[i : i + 37] for i in range(0, len(DATA), 37)]
    content = b"".join(COMPRESS[codec](piece) + b"\0" * (4 * (i % 3)) for i, piece in enumerate(pieces))
    content += COMPRESS[codec](b"") * 3 + b"\0" * 512
    for feed_bytes in (1, 5, 64, 1 << 17):
        monkeypatch.setattr(compressed, "FEED_BYTES", feed_bytes)
        assert without_reasons(read_packed(content, codec, tmp_path, unit_bytes=100)) == EXPECTED


def test_skippable_zstd_frames_are_skipped(tmp_path):
    skippable = struct.pack("<II", 0x184D2A53, 9) + b"nine byte"
    frames = [zstd.compress(DATA[:500]), zstd.compress(DATA[500:])]
    content = skippable + skippable.join(frames) + skippable
    path = tmp_path / "pzstd.zst"
    path.write_bytes(content)
    (file,) = discover([str(path)])
    assert file.compression == "zstd"
    assert without_reasons(read_packed(content, "zstd", tmp_path)) == EXPECTED


@pytest.mark.parametrize("codec", PACKED)
def test_a_wrong_checksum_is_found(codec, tmp_path):
    """What the failing call had produced is lost with it; the records before that are kept."""
    content = bytearray(compress_with_checksum(codec, DATA))
    at = {"gzip": -6, "bzip2": 12, "xz": -30, "zstd": -2}[codec]
    content[at] ^= 0x10
    reading = read_packed(bytes(content), codec, tmp_path)
    assert [reason for *_, reason in reading.rejected] == ["corrupt-stream"]
    assert reading.documents == EXPECTED[0][: len(reading.documents)]
    first = COMPRESS[codec](DATA)
    after = read_packed(first + bytes(content), codec, tmp_path)
    assert after.documents[:40] == EXPECTED[0]
    assert [reason for *_, reason in after.rejected] == ["corrupt-stream"]


def test_a_wrong_length_in_a_gzip_trailer_is_found(tmp_path):
    content = bytearray(gzip.compress(DATA))
    content[-1] ^= 1
    path = tmp_path / "x"
    path.write_bytes(content)
    assert "checksum" in decompress(path, "gzip")[1].detail


def test_damage_in_the_middle_keeps_earlier_units_and_ends_the_input(tmp_path):
    lines = [b'{"text": "%s"}\n' % random.Random(i).randbytes(200).hex().encode() for i in range(4500)]
    for codec in PACKED:
        content = bytearray(compress_with_checksum(codec, b"".join(lines)))
        content[len(content) // 2] ^= 0xFF
        path = tmp_path / "packed"
        path.write_bytes(content)
        units = list(units_of(path, codec, tmp_path, unit_bytes=100_000))
        assert [unit.last for unit in units] == [False] * (len(units) - 1) + [True]
        assert [unit.stream_error is None for unit in units] == [True] * (len(units) - 1) + [False]
        # Checksums of gzip and xz come at the end of a member or block, so damage may show late.
        intact = read_units(units[:2])
        assert intact.documents == twin(b"".join(lines))[0][: len(intact.documents)]
        assert len(intact.documents) >= 400


def test_a_too_large_zstd_window_is_told_with_the_way_out(tmp_path):
    header = b"\x28\xb5\x2f\xfd\x00" + bytes([(31 - 10) << 3])
    with pytest.raises(InputError, match="window is larger than 128 MiB") as caught:
        read_packed(header + b"\x01\0\0", "zstd", tmp_path)
    assert "--long=31" in caught.value.hint


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (
            gzip.compress(b"\0" * 257 + b"ustar\0" + b"\0" * 300, mtime=0),
            "contains a tar archive inside gzip",
        ),
        (gzip.compress(bz2.compress(DATA), mtime=0), "contains bzip2 inside gzip"),
        (zstd.compress(b"PAR1" + b"x" * 50), "contains Parquet inside zstd"),
        (b"PAR1" + b"x" * 50, "cannot read Parquet from a pipe"),
        (b"PK\x03\x04 zip", "is a zip archive"),
    ],
)
def test_other_contents_in_a_stream_are_refused(content, what, tmp_path):
    with pytest.raises(InputError, match=what):
        read_packed(content, "gzip", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["packed"]


def test_temporary_files_hold_the_lines_and_left_overs_are_replaced(tmp_path):
    (tmp_path / "raw-0-1.jsonl").write_bytes(b"left over from a killed run")
    path = tmp_path / "packed"
    path.write_bytes(gzip.compress(DATA))
    units = list(units_of(path, "gzip", tmp_path, unit_bytes=300))
    contents = [content_of(unit) for unit in units]
    assert b"".join(contents) == DATA
    assert [os.path.basename(unit.path) for unit in units] == [f"raw-0-{i}.jsonl" for i in range(len(units))]
    assert [(unit.begin, unit.end) for unit in units] == [(0, len(content)) for content in contents]
    assert sum(unit.input_bytes for unit in units) == path.stat().st_size
    assert all(unit.temporary for unit in units)


def test_skipped_units_are_not_written_and_the_others_are_the_same(tmp_path):
    path = tmp_path / "packed"
    path.write_bytes(gzip.compress(DATA + b"z" * 5000))
    whole, some = tmp_path / "whole", tmp_path / "some"
    whole.mkdir()
    some.mkdir()
    options = {"unit_bytes": 300, "limit": 50, "chunk_bytes": 64}
    units = {unit.index: unit for unit in units_of(path, "gzip", whole, **options)}
    for skipped in ({0}, {1, 2}, {len(units) - 1}, set(units), set(range(0, 50, 2))):
        for unit in units_of(path, "gzip", some, **options, skip=skipped.__contains__):
            assert unit.index not in skipped
            twin_unit = units[unit.index]
            assert content_of(unit) == content_of(twin_unit)
            assert (unit.stream_offset, unit.elided, unit.last) == (
                twin_unit.stream_offset,
                twin_unit.elided,
                twin_unit.last,
            )
        assert {path.name for path in some.iterdir()} == {f"raw-0-{i}.jsonl" for i in set(units) - skipped}
        for left in some.iterdir():
            left.unlink()


def test_an_abandoned_stream_leaves_only_what_it_has_handed_out(tmp_path):
    path = tmp_path / "packed"
    path.write_bytes(gzip.compress(DATA))
    units = units_of(path, "gzip", tmp_path, unit_bytes=300, chunk_bytes=50)
    next(units)
    units.close()
    assert {path.name for path in tmp_path.iterdir()} == {"packed", "raw-0-0.jsonl"}


def test_a_directory_that_cannot_be_written_is_a_storage_error(tmp_path):
    path = tmp_path / "packed"
    path.write_bytes(gzip.compress(DATA))
    with pytest.raises(StorageError, match=r"cannot create .*raw-0-0.jsonl"):
        list(units_of(path, "gzip", tmp_path / "absent"))
    (file,) = discover([str(path)])
    path.unlink()
    with pytest.raises(InputError, match="No such file"):
        list(stream_units(0, file, 100, 100, str(tmp_path), skip=lambda index: False))


def test_an_input_that_cannot_be_closed_was_read_nevertheless(tmp_path, monkeypatch):
    path = tmp_path / "packed"
    path.write_bytes(gzip.compress(DATA))
    (file,) = discover([str(path)])
    closed = []

    class Failing(io.FileIO):
        def close(self):
            super().close()
            closed.append(True)
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(planning, "open_passed", lambda path: io.BufferedReader(Failing(path)))
    units = stream_units(0, file, 700, LIMIT, str(tmp_path), skip=lambda index: False)
    assert without_reasons(read_units(units)) == EXPECTED
    assert closed


@pytest.mark.parametrize("codec", CODECS)
def test_named_pipes_are_read_like_files(codec, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (file,) = discover([str(pipe)])
    assert (file.size_bytes, file.is_stream) == (None, True)
    content = COMPRESS[codec](DATA)

    def write():
        choose = random.Random(3)
        with open(pipe, "wb", buffering=0) as writer:
            at = 0
            while at < len(content):
                at += writer.write(content[at : at + choose.choice([1, 2, 5, 300])])

    thread = threading.Thread(target=write)
    thread.start()
    reading = read_units(stream_units(0, file, 700, LIMIT, str(tmp_path), skip=lambda index: False))
    thread.join()
    assert without_reasons(reading) == EXPECTED


STDIN_PROGRAM = """
import sys
from tokshard.text.corpus.files import discover
from tokshard.text.corpus.planning import stream_units
from tokshard.text.corpus.planning import read_documents
from tokshard.text.corpus.record_format import Reading
from tokshard.text.corpus.values import RecordFields
print("ready", flush=True)
(file,) = discover(["-"])
for unit in stream_units(0, file, 1 << 20, 10**6, sys.argv[1], skip=lambda index: False):
    for batch in read_documents(unit, Reading(RecordFields.parse(["text"]))):
        print(batch.documents, len(batch.rejected), unit.input_bytes)
"""


@pytest.mark.parametrize("codec", CODECS)
def test_standard_input_is_sniffed_even_from_a_slow_non_blocking_pipe(codec, tmp_path):
    content = COMPRESS[codec](DATA)
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    command = [sys.executable, "-c", STDIN_PROGRAM, str(tmp_path)]
    with subprocess.Popen(command, stdin=reader, stdout=subprocess.PIPE) as process:
        os.close(reader)
        assert process.stdout.readline() == b"ready\n"
        for start in range(0, len(content), 40):
            threading.Event().wait(0.01)
            os.write(writer, content[start : start + 40])
        os.close(writer)
        assert process.stdout.read().split() == [b"40", b"0", str(len(content)).encode()]


BOMB_PROGRAM = """
import os, re, sys
from tokshard.text.corpus.files import discover
from tokshard.text.corpus.planning import stream_units
from tokshard.text.corpus.planning import plan_units
from tokshard.text.corpus.planning import read_documents
from tokshard.text.corpus.record_format import Reading
from tokshard.text.corpus.values import RecordFields
(file,) = discover([sys.argv[1]])
if file.is_stream:
    units = stream_units(0, file, 64 << 20, 64_000_000, sys.argv[2], skip=lambda index: False)
else:
    units = plan_units(0, file, 64 << 20)
documents, rejected = 0, []
for unit in units:
    for batch in read_documents(unit, Reading(RecordFields.parse(["text"]))):
        documents += batch.documents
        rejected += batch.rejected
    if unit.temporary:
        assert os.stat(unit.path).st_size < 70_000_000
        os.unlink(unit.path)
print(documents, [(r.reason, r.offset, r.detail.split()[-1]) for r in rejected])
print(re.search(r"VmHWM:\\s+([0-9]+) kB", open("/proc/self/status").read())[1])
"""
GIGABYTE = 1_000_000_000


def write_bomb(path, codec):
    """Write a good line, a line of a gigabyte, a good line."""
    good, block = b'{"text": "a"}\n', b"x" * 10_000_000
    if codec == "none":
        with open(path, "wb") as file:
            file.write(good + b"x")
            file.seek(len(good) + GIGABYTE)  # a hole: NUL bytes
            file.write(b"\n" + good)
        return
    # Members are cheap to repeat: the gigabyte is a hundred times the same one.
    pieces = [COMPRESS[codec](piece) for piece in (good, block, b"\n" + good)]
    path.write_bytes(pieces[0] + pieces[1] * (GIGABYTE // len(block)) + pieces[2])
    assert path.stat().st_size < 2_000_000


@pytest.mark.parametrize("codec", ["none", "gzip", "zstd"])
def test_a_line_of_a_gigabyte_costs_neither_memory_nor_disk(codec, tmp_path):
    bomb = tmp_path / "bomb"
    write_bomb(bomb, codec)
    command = [sys.executable, "-c", BOMB_PROGRAM, str(bomb), str(tmp_path)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    counts, peak_kib = output.splitlines()
    assert counts == f"2 [('too-long', 14, '{GIGABYTE:,}')]"
    assert int(peak_kib) < 300_000


def test_a_single_member_never_comes_out_in_larger_chunks_than_asked(tmp_path):
    path = tmp_path / "x"
    for codec in PACKED:
        path.write_bytes(COMPRESS[codec](b"x" * 5_000_000))
        with open(path, "rb") as file:
            chunks = list(decompressed_chunks(ByteSource(file, "x"), codec, chunk_bytes=70_000))
        assert max(map(len, chunks)) <= 70_000
        assert sum(map(len, chunks)) == 5_000_000


def test_elided_lines_keep_one_byte_more_than_the_limit(tmp_path):
    data = b"a" * 100 + b"\n" + b'{"text": "b"}\n' + b"c" * 21 + b"\n" + b"d" * 20 + b"\n" + b"e" * 999
    path = tmp_path / "packed"
    path.write_bytes(gzip.compress(data))
    for chunk_bytes in (1, 7, 20, 21, 22, 5000):
        (unit,) = units_of(path, "gzip", tmp_path, unit_bytes=10**6, limit=20, chunk_bytes=chunk_bytes)
        kept = b"a" * 21 + b"\n" + b'{"text": "b"}\n' + b"c" * 21 + b"\n" + b"d" * 20 + b"\n" + b"e" * 21
        assert content_of(unit) == kept
        assert unit.elided == ((0, 79), (158, 978))
    reading = read_data(data, "gzip", tmp_path, limit=20, unit_bytes=60)
    assert without_reasons(reading) == twin(data, 20)
