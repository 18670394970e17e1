"""Sources that convert refuses: the message names the file and the place."""

import gzip

import numpy as np
import pytest

import tokshard
from support import slow_conversions
from tokshard import ConvertOptions, convert
from tokshard.core.progress import SilentProgress

BOS = 3


def nano(tokens=(BOS, 1, 2), **changes):
    head = list(np.frombuffer(slow_conversions.header("uint16", len(tokens)), "<i4"))
    for place, value in changes.items():
        head[int(place[1:])] = value
    return np.array(head, "<i4").tobytes() + np.array(tokens, "<u2").tobytes()


def bad(files, form, message, *, code=6, **options):
    return pytest.param(files, form, options, code, message)


WIDE = np.array([5, 6, 7], "<u4").tobytes()
BAD = {
    "short header": bad(
        {"x.bin": nano()[:100]}, "nanogpt", "x.bin must have a header of 1024 bytes, got 100", bos_id=3
    ),
    "empty file": bad({"x.bin": b""}, "nanogpt", "x.bin must have a header of 1024 bytes, got 0", bos_id=3),
    "magic": bad(
        {"x.bin": nano(h0=7)}, "nanogpt", "x.bin must begin with the magic number .*, got 7", bos_id=3
    ),
    "Llama 3": bad({"x.bin": nano(h0=20240801)}, "nanogpt", "x.bin is a file of llm.c for Llama 3", bos_id=3),
    "version": bad({"x.bin": nano(h1=2)}, "nanogpt", "x.bin: version must be 1, got 2", bos_id=3),
    "item size": bad(
        {"x.bin": nano(h0=278895051, h3=3)}, "nanogpt", "item bytes must be 2 or 4, got 3", bos_id=3
    ),
    "count": bad(
        {"x.bin": nano(h2=9)},
        "nanogpt",
        r"must have 1042 bytes by its header \(9 tokens of uint16\), got 1030",
        bos_id=3,
    ),
    "truncated": bad({"x.bin": nano()[:-1]}, "nanogpt", "must have 1030 bytes .*, got 1029", bos_id=3),
    "negative count": bad({"x.bin": nano(h2=-1)}, "nanogpt", "tokens must not be negative, got -1", bos_id=3),
    "no bos": bad({"x.bin": nano()}, "nanogpt", "--bos-id is required", code=2),
    "id": bad(
        {"x.bin": nano((1, 0, 2))},
        "nanogpt",
        "x.bin at byte 1028: the id of token 2 must be at most 1, got 2",
        code=3,
        bos_id=1,
        vocab_size=2,
    ),
    "bos": bad(
        {"x.bin": nano()},
        "nanogpt",
        "--bos-id must be at most 2, the largest id, got 3",
        code=2,
        bos_id=3,
        vocab_size=3,
    ),
    "int32": bad(
        {"x.ds": b"\xff" * 4},
        "datatrove",
        "x.ds at byte 0: .* must be at most 2147483647",
        code=3,
        source_dtype="uint32",
        eod_id=1,
    ),
    "numpy": bad({"x.npy": b"\x93NUMPY\x01\x00"}, "olmo", "has the header of numpy.save", code=3, eod_id=1),
    "no dtype": bad({"x.npy": WIDE}, "olmo", "the dtype of the tokens of .* is unknown", code=3, eod_id=1),
    "no ends": bad(
        {"x.npy": WIDE},
        "olmo",
        "--eod-id is required: .*x.npy has no boundaries",
        code=2,
        source_dtype="uint32",
    ),
    "odd size": bad(
        {"x.npy": WIDE[:-1]},
        "olmo",
        r"must have 4 bytes for each token \(uint32\), got 11",
        source_dtype="uint32",
        eod_id=1,
    ),
    "odd boundaries": bad(
        {"x.npy": WIDE, "x.csv.gz": gzip.compress(b"0,5\r\n")},
        "olmo",
        "has 12 bytes, which are not tokens of 1 or 2 or 4 or 8 bytes: .* ends at token 5",
    ),
    "too far": bad(
        {"x.npy": WIDE, "x.csv.gz": gzip.compress(b"0,2\r\n2,4\r\n")},
        "olmo",
        "row 2: the end of the document must be from 2, its start, to 3, .* got 4",
        source_dtype="uint32",
    ),
    "too near": bad(
        {"x.npy": WIDE, "x.csv.gz": gzip.compress(b"0,2\r\n")},
        "olmo",
        "the last document must end at token 3, .* got 2",
        source_dtype="uint32",
    ),
    "empty documents alone": bad(
        {"x.npy": WIDE, "x.csv.gz": gzip.compress(b"0,0\r\n0,0\r\n")},
        "olmo",
        "has 12 bytes, which are not tokens of 1 or 2 or 4 or 8 bytes: .* ends at token 0",
    ),
    "index of zeros": bad(
        {"x.ds": WIDE, "x.ds.index": bytes(8)},
        "datatrove",
        "has 12 bytes, which are not tokens of 2 or 4 bytes: .* ends at token 0",
    ),
    "gap": bad(
        {"x.npy": WIDE, "x.csv.gz": gzip.compress(b"0,1\r\n2,3\r\n")},
        "olmo",
        "row 2: the document must start at token 1, where the last one ended, got 2",
    ),
    "order": bad(
        {"x.npy": WIDE, "x.csv.gz": gzip.compress(b"0,2\r\n2,1\r\n1,3\r\n")},
        "olmo",
        "row 2: the end of the document must be from 2",
    ),
    "words": bad(
        {"x.npy": WIDE, "x.csv.gz": gzip.compress(b"start,end\r\n0,3\r\n")},
        "olmo",
        "row 1: it must begin with START,END in tokens, got 'start,end'",
    ),
    "utf-8": bad(
        {"x.npy": WIDE, "x.csv.gz": gzip.compress(b"0,3,\xff\r\n")}, "olmo", "row 1: it is not valid CSV"
    ),
    "long line": bad(
        {"x.npy": WIDE, "x.csv.gz": gzip.compress(b"0,3," + b"x" * (1 << 20))},
        "olmo",
        "row 1: it is not valid CSV .a line has 1048576 or more bytes",
    ),
    "gzip": bad({"x.npy": WIDE, "x.csv.gz": gzip.compress(b"0,3\r\n")[:-4]}, "olmo", "x.csv.gz at byte .*"),
    "index size": bad(
        {"x.ds": WIDE, "x.ds.index": b"\0" * 9},
        "datatrove",
        "must have 8 bytes for each document, got 9 bytes",
        source_dtype="uint32",
    ),
    "index order": bad(
        {"x.ds": WIDE, "x.ds.index": np.array([2, 1, 3], "<u8").tobytes()},
        "datatrove",
        "byte 8: the end of the document must be from 2, its start, to 3, .* got 1",
    ),
    "index range": bad(
        {"x.ds": WIDE, "x.ds.index": np.array([2**64 - 1, 3], "<u8").tobytes()},
        "datatrove",
        "byte 0: the end of the document must be from 0",
    ),
    "index end": bad(
        {"x.ds": WIDE, "x.ds.index": np.array([2], "<u8").tobytes()},
        "datatrove",
        "has 12 bytes, which are not tokens of 2 or 4 bytes",
    ),
    "metadata": bad(
        {"x.ds": WIDE, "x.ds.metadata": b"gpt2|4\n4\n4 T"},
        "datatrove",
        "must have 4 tokens of 4 bytes by its metadata, got 3 tokens of 4 bytes",
        eod_id=1,
    ),
    "metadata lines": bad(
        {"x.ds": WIDE, "x.ds.metadata": b"gpt2"},
        "datatrove",
        "must have the lines NAME.2 or NAME.4",
        eod_id=1,
    ),
    "metadata digits": bad(
        {"x.ds": WIDE, "x.ds.metadata": b"gpt2|4\n" + b"9" * 6000},
        "datatrove",
        "must have the lines NAME.2 or NAME.4",
        eod_id=1,
    ),
    "metadata of several dtypes": bad(
        {
            "x.ds": WIDE,
            "x.ds.metadata": b"gpt2|4\n3\n3 T",
            "y.ds": b"\1\0",
            "y.ds.metadata": b"gpt2|2\n1\n1 T",
        },
        "datatrove",
        "must have the same dtype: .* the tokens of .*y.ds have 2 bytes, and those of .*x.ds 4",
        eod_id=1,
        code=3,
    ),
    "datatrove of uint8": bad(
        {"x.ds": b"abcd"},
        "datatrove",
        "--source-dtype must be one of uint16, uint32 for datatrove, got 'uint8'",
        code=2,
        source_dtype="uint8",
    ),
    "dtype of nanogpt": bad(
        {"x.bin": nano()},
        "nanogpt",
        "--source-dtype does not apply to nanogpt files: their header tells the dtype",
        code=2,
        source_dtype="uint16",
    ),
    "no file": bad({"x.txt": b""}, "olmo", "no olmo file .* in", code=3),
}


@pytest.mark.parametrize(("files", "form", "options", "code", "message"), BAD.values(), ids=BAD)
def test_bad_sources_are_named_with_the_place(tmp_path, files, form, options, code, message):
    source = slow_conversions.Source(files, []).write(tmp_path / "in")
    with pytest.raises(tokshard.errors.TokshardError, match=message) as caught:
        convert(ConvertOptions(sources=source, format=form, output=tmp_path / "out", **options))
    assert caught.value.exit_code == code
    assert caught.value.hint or code == 6
    assert not (tmp_path / "out.bin").exists()


@pytest.mark.parametrize(
    ("message", "options"),
    [
        ("--from must be one of nanogpt, olmo, datatrove, got 'npz'", {"format": "npz"}),
        ("--bos-id requires --from nanogpt", {"bos_id": 3}),
        ("--split requires --from nanogpt", {"split": "train"}),
        ("--bos requires --from nanogpt", {"bos": "keep"}),
        ("--source-dtype must be one of uint8, uint16, uint32, uint64, got 'x'", {"source_dtype": "x"}),
        ("--vocab-size must be at least 1, got 0", {"vocab_size": 0}),
        ("--vocab-size cannot be used with --tokenizer", {"vocab_size": 5, "tokenizer": "null:5"}),
        ("at least one source is required", {"sources": ()}),
        ("convert writes to a file system, got the URL", {"output": "s3://bucket/x"}),
    ],
)
def test_options_that_cannot_be_meant_are_refused(message, options):
    with pytest.raises(tokshard.errors.UsageError, match=message):
        ConvertOptions(**({"sources": ["x"], "format": "olmo", "output": "out"} | options))


def test_missing_and_changed_files_are_named(tmp_path, monkeypatch):
    with pytest.raises(tokshard.errors.MissingFileError, match=r"file not found: .*nothing\.bin"):
        convert(
            ConvertOptions(
                sources=tmp_path / "nothing.bin", format="nanogpt", output=tmp_path / "out", bos_id=BOS
            )
        )
    with pytest.raises(tokshard.errors.InputError, match=r"no nanogpt file .* matches"):
        convert(
            ConvertOptions(sources=tmp_path / "*.bin", format="nanogpt", output=tmp_path / "out", bos_id=BOS)
        )
    (tmp_path / "x.bin").write_bytes(nano())

    class Appending(SilentProgress):
        def update(self, state):
            with open(tmp_path / "x.bin", "ab") as file:
                file.write(b"..")

    with pytest.raises(tokshard.errors.InputError, match=r"x\.bin was changed while it was read"):
        convert(
            ConvertOptions(sources=tmp_path / "x.bin", format="nanogpt", output=tmp_path / "out", bos_id=BOS),
            progress=Appending(),
        )
    (tmp_path / "x.bin").write_bytes(nano())
    with pytest.raises(tokshard.errors.UsageError, match="would replace the source"):
        convert(
            ConvertOptions(sources=tmp_path / "x.bin", format="nanogpt", output=tmp_path / "x", bos_id=BOS)
        )


def test_datasets_and_damaged_headers_are_not_sent_to_headerless_formats(tmp_path):
    options = {"format": "nanogpt", "output": tmp_path / "out", "bos_id": BOS}
    (tmp_path / "x.bin").write_bytes(nano(h1=2))
    with pytest.raises(tokshard.errors.IntegrityError) as caught:
        convert(ConvertOptions(sources=tmp_path / "x.bin", **options))
    assert caught.value.hint == "copy the file again from its source: it is truncated or damaged"
    (tmp_path / "x.idx").touch()
    with pytest.raises(tokshard.errors.InputError, match=r"x\.bin is the \.bin of an indexed dataset"):
        convert(ConvertOptions(sources=tmp_path / "x.bin", **options))


@pytest.mark.parametrize(("tokens", "warned"), [((1, 2, 4), True), ((1, 2, 3), False)])
def test_a_single_document_without_eod_is_warned_of(tokens, warned, tmp_path):
    (tmp_path / "x.npy").write_bytes(np.array(tokens, "<u2").tobytes())
    options = {"format": "olmo", "source_dtype": "uint16", "eod_id": 3}
    report = convert(ConvertOptions(sources=tmp_path / "x.npy", output=tmp_path / "out", **options))
    assert ["no token is the EOD token 3" in warning for warning in report.warnings] == [True] * warned
