"""Boundaries that list more documents than the tokens allow."""

import gzip

import numpy as np
import pytest

from support.command_line import failure, installed
from tokshard import ConvertOptions, convert
from tokshard.errors import IntegrityError
from tokshard.exchange import olmo
from tokshard.exchange.reading import DocumentEnds

TOKENS = 1000


def tokens_in(directory):
    path = directory / "x.npy"
    path.write_bytes(np.arange(1, TOKENS + 1, dtype="<u2").tobytes())
    return path


def rows_of_no_tokens(count):
    return gzip.compress(b"0,0\r\n" * count)


def test_convert_refuses_more_empty_documents_than_the_tokens_allow(tmp_path):
    source = tokens_in(tmp_path)
    (tmp_path / "x.csv.gz").write_bytes(rows_of_no_tokens(4_000_000))
    done = installed("convert", source, "--from", "olmo", "-o", tmp_path / "out")
    assert failure(done) == (
        6,
        (
            f"{tmp_path}/x.csv.gz: row 1048577: at most 1048576 documents must be empty, got 1048577 "
            "documents in 0 tokens"
        ),
        (
            "remove the rows of empty documents, or remove the file to divide the documents at the token "
            "--eod-id"
        ),
    )


@pytest.mark.parametrize("rows", [b"0,0\r\n", b"0,1000\r\n" + b"1000,1000\r\n"])
def test_rows_are_read_up_to_the_bound_only(tmp_path, monkeypatch, rows):
    monkeypatch.setattr(olmo, "_MOST_EMPTY", 100)
    source = tokens_in(tmp_path)
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(rows * 100_000))
    for options in ({}, {"source_dtype": "uint16"}):
        with pytest.raises(IntegrityError, match=r"row (101|1101): at most 100 documents must be empty"):
            convert(ConvertOptions(sources=source, format="olmo", output=tmp_path / "out", **options))


def test_empty_documents_are_taken_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(olmo, "_CHUNK_BYTES", 5000)
    source = tokens_in(tmp_path)
    rows = rows_of_no_tokens(20_000) + gzip.compress(b"0,1000\r\n")
    (tmp_path / "x.csv.gz").write_bytes(rows)
    reader = olmo.FORMAT.READER
    (file,) = reader.open([str(source)], None, is_recorded=False)
    pieces = [*DocumentEnds(reader, file, file.boundaries).take(1000)]
    assert [*map(len, pieces)] == [1000] * 20 + [1]
    report = convert(ConvertOptions(sources=source, format="olmo", output=tmp_path / "out"))
    data = report.output.counts
    assert (data.documents, data.sequences, data.tokens) == (20_001, 1, 1000)
