"""The width of tokens in files without a header, which convert never guesses; bounds of their documents."""

import gzip

import numpy as np
import pytest

import tokshard
from support import slow_conversions
from support.command_line import failure, installed, json_of
from support.command_line import tokshard as command
from support.plain_datasets import Plain
from tokshard import ConvertOptions, ExportOptions, convert
from tokshard.errors import InputError

IDS = [11, 50_000, 7, 30_000] * 250
LARGE_IDS = [11, 150_000, 7, 30_000] * 250


def write(path, ids=IDS, dtype="<u4"):
    path.write_bytes(np.array(ids, dtype).tobytes())
    return path


def test_convert_refuses_olmo_tokens_of_unknown_width(tmp_path):
    source = write(tmp_path / "x.npy")
    done = installed("convert", source, "--from", "olmo", "--tokenizer", "null:50257", "-o", tmp_path / "out")
    assert failure(done) == (
        3,
        (
            f"the dtype of the tokens of {source} is unknown: it has no header, and {tmp_path}/x.csv.gz is "
            "missing or empty"
        ),
        "pass --source-dtype uint16 or uint32, the dtype in which these tokens were written",
    )
    assert not (tmp_path / "out.bin").exists()


def test_convert_refuses_datatrove_tokens_of_unknown_width(tmp_path):
    source = write(tmp_path / "x.ds")
    done = installed(
        "convert", source, "--from", "datatrove", "--vocab-size", "50257", "-o", tmp_path / "out"
    )
    assert failure(done) == (
        3,
        f"the dtype of the tokens of {source} is unknown: it has no {source}.index and no metadata",
        "pass --source-dtype uint16 or uint32, the dtype in which these tokens were written",
    )


def test_convert_refuses_uint32_tokens_that_are_passed_as_uint16(tmp_path):
    source = write(tmp_path / "x.npy")
    words = ["convert", source, "--from", "olmo", "--eod-id", "7", "-o", tmp_path / "out"]
    assert failure(installed(*words, "--source-dtype", "uint16")) == (
        3,
        (
            f"the tokens of {source} must be uint16, got uint32: every second of its first 2000 16-bit "
            "words is zero"
        ),
        "pass --source-dtype uint32",
    )
    assert failure(command(*words, "--source-dtype", "uint16", "--dry-run"))[0] == 3
    assert json_of(command(*words, "--source-dtype", "uint32", "--json"))["output"]["counts"][
        "tokens"
    ] == len(IDS)


@pytest.mark.parametrize(
    ("name", "form", "options"),
    [
        ("x.ds", "datatrove", {"source_dtype": "uint16", "eod_id": 7}),
        ("x.ds", "datatrove", {"eod_id": 7, "metadata": b"gpt2|2\n2000\n2.00 kT"}),
        ("x.npy", "olmo", {"rows": b"0,2000\r\n"}),
    ],
)
@pytest.mark.parametrize("ids", [IDS, LARGE_IDS])
def test_convert_finds_uint32_tokens_whatever_tells_uint16(tmp_path, name, form, options, ids):
    options = {**options}
    source = write(tmp_path / name, ids)
    if metadata := options.pop("metadata", None):
        (tmp_path / "x.ds.metadata").write_bytes(metadata)
    if rows := options.pop("rows", None):
        (tmp_path / "x.csv.gz").write_bytes(gzip.compress(rows))
    found = "at most 2" if ids is LARGE_IDS else "zero"
    with pytest.raises(InputError, match=f"must be uint16, got uint32: every second .* words is {found}"):
        convert(ConvertOptions(sources=source, format=form, output=tmp_path / "out", **options))


def test_convert_finds_uint32_tokens_behind_a_header_of_uint16(tmp_path):
    content = slow_conversions.header("uint16", 2 * len(IDS)) + np.array(IDS, "<u4").tobytes()
    (tmp_path / "x.bin").write_bytes(content)
    done = command(
        "convert", tmp_path / "x.bin", "--from", "nanogpt", "--bos-id", "7", "-o", tmp_path / "out"
    )
    code, error, hint = failure(done)
    assert code == 3
    assert "must be uint16, got uint32" in error
    assert f"tail -c +1025 {tmp_path}/x.bin > tokens.npy" in hint
    assert "--from olmo --source-dtype uint32 --eod-id ID" in hint


@pytest.mark.parametrize(
    ("ids", "dtype", "source_dtype", "refused"),
    [
        ([5, 6], "<u4", "uint16", True),
        ([5, 0], "<u2", "uint16", False),
        ([5, 0, 6, 1], "<u2", "uint16", False),
        ([5, 6, 7, 8], "<u2", "uint8", True),
        ([], "<u2", "uint16", False),
    ],
)
def test_convert_finds_the_width_of_few_tokens(tmp_path, ids, dtype, source_dtype, refused):
    source = write(tmp_path / "x.npy", ids, dtype)
    options = ConvertOptions(
        sources=source, format="olmo", output=tmp_path / "out", source_dtype=source_dtype, eod_id=0
    )
    if refused:
        with pytest.raises(InputError, match=r"every second of its first (4 16|8 8)-bit words is zero"):
            convert(options)
    else:
        assert convert(options).output.tokens == len(ids)


def test_convert_requires_the_width_of_each_file(tmp_path):
    write(tmp_path / "a.npy", dtype="<u2")
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"0,1000\r\n"))
    write(tmp_path / "b.npy")
    with pytest.raises(InputError, match=r"the dtype of the tokens of .*b\.npy is unknown"):
        convert(ConvertOptions(sources=tmp_path, format="olmo", output=tmp_path / "out", eod_id=7))


@pytest.mark.parametrize("form", ["olmo", "datatrove", "nanogpt"])
def test_an_export_with_a_zero_in_every_second_place_is_converted_back(tmp_path, form):
    plain = Plain("uint16", [[[5, 0]], [[6, 0]], [[7, 0]]])
    plain.write(tmp_path / "in")
    ids = {"eod_id": 9, "bos_id": 9} if form == "nanogpt" else {}
    tokshard.export(ExportOptions(source=tmp_path / "in", to=form, output=tmp_path / "x", **ids))
    assert (
        convert(
            ConvertOptions(sources=tmp_path / "x", format=form, output=tmp_path / "out")
        ).output.counts.documents
        == 3
    )


def test_a_headerless_file_of_nanogpt_is_converted_as_its_hint_says(tmp_path):
    source = write(tmp_path / "train.bin", dtype="<u2")
    done = installed("convert", source, "--from", "nanogpt", "-o", tmp_path / "out")
    code, error, hint = failure(done)
    assert (code, error) == (
        6,
        f"{source} must begin with the magic number 20240520 or 278895051, got -1018167285",
    )
    assert hint == (
        "copy the file again, or if it has no header, as train.bin of nanoGPT, pass --from olmo "
        "--source-dtype uint16 --eod-id ID (50256 for GPT-2)"
    )
    advised = ["--from", "olmo", "--source-dtype", "uint16", "--eod-id", "7", "--json"]
    data = json_of(command("convert", source, *advised, "-o", tmp_path / "out"))["output"]["counts"]
    assert (data["tokens"], data["documents"]) == (1000, 251)
