"""Hostile and damaged files end in an error of ours in bounded time and memory."""

import gzip
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tokshard
from support import slow_conversions
from support.plain_datasets import Plain
from tokshard import ConvertOptions, ExportOptions

COMMAND = Path(sys.executable).with_name("tokshard")
LIMIT_SECONDS = 60
LIMIT_BYTES = 3 << 30
"""Of address space, of which the libraries take most."""

IDS = np.arange(1, 1001, dtype="<u2").tobytes()
OLMO = ["--from", "olmo", "--source-dtype", "uint16"]
DATATROVE = ["--from", "datatrove", "--source-dtype", "uint16"]
NANOGPT = ["--from", "nanogpt", "--bos-id", "7"]


def header(tokens, magic=20240520):
    head = np.frombuffer(slow_conversions.header("uint16", 0), "<i4").copy()
    head[0] = magic
    head[2] = tokens
    return head.tobytes()


def limited():
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))


def run(directory, *options):
    return subprocess.run(
        [COMMAND, "convert", directory / "in", *options, "-o", directory / "out"],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        preexec_fn=limited,
        check=False,
    )


def compressed(pieces):
    """Compress a text of any size without holding it."""
    packer = gzip.zlib.compressobj(9, gzip.zlib.DEFLATED, 31)
    return b"".join(map(packer.compress, pieces)) + packer.flush()


BOMB = 60 * [b"0,0\r\n" * 500_000]
CASES = {
    "rows without tokens": ({"x.npy": IDS, "x.csv.gz": lambda: compressed(BOMB)}, OLMO),
    "rows without tokens tell the dtype": (
        {"x.npy": IDS, "x.csv.gz": lambda: compressed(BOMB)},
        ["--from", "olmo"],
    ),
    "a line of 1 GB": (
        {"x.npy": IDS, "x.csv.gz": lambda: compressed([b"0,1000,", *(1000 * [b"x" * 1_000_000])])},
        OLMO,
    ),
    "a quote that never ends": (
        {"x.npy": IDS, "x.csv.gz": lambda: compressed([b'0,1000,"', *(200 * [b"x\n" * 500_000])])},
        OLMO,
    ),
    "digits without end": ({"x.npy": IDS, "x.csv.gz": lambda: compressed([b"0," + b"9" * 100_000])}, OLMO),
    "truncated gzip": (
        {"x.npy": IDS, "x.csv.gz": lambda: gzip.compress(b"0,1000,0,x,1\r\n")[:-9]},
        OLMO,
    ),
    "boundaries that go back": (
        {"x.npy": IDS, "x.csv.gz": lambda: gzip.compress(b"0,600\r\n600,500\r\n500,1000\r\n")},
        OLMO,
    ),
    "millions of zero ends": (
        {"x.ds": IDS, "x.ds.index": lambda: b"\0" * 8 * 5_000_000},
        DATATROVE,
    ),
    "ends that go back": (
        {"x.ds": IDS, "x.ds.index": lambda: np.array([600, 500, 1000], "<u8").tobytes()},
        DATATROVE,
    ),
    "metadata of 1 MB": (
        {"x.ds": IDS, "x.ds.metadata": lambda: b"gpt2|" + b"2" * 1_000_000 + b"\n1000\n1.00 kT"},
        [*DATATROVE, "--eod-id", "7"],
    ),
    "the most tokens": ({"x.bin": header(2**31 - 1) + IDS}, NANOGPT),
    "fewer than no tokens": ({"x.bin": header(-1) + IDS}, NANOGPT),
    "no tokens": ({"x.bin": header(0) + IDS}, NANOGPT),
    "truncated shard": ({"x.bin": (header(1000) + IDS)[:-1]}, NANOGPT),
    "Llama 3 of llm.c": ({"x.bin": header(1000, magic=20240801) + IDS}, NANOGPT),
    "zeros instead of ends": ({"x.ds": IDS, "x.ds.index": bytes(80)}, DATATROVE[:2]),
    "another magic number": ({"x.bin": header(1000, magic=1) + IDS}, NANOGPT),
}


@pytest.mark.parametrize("case", CASES)
def test_hostile_files_are_refused_in_bounded_time_and_memory(tmp_path, case):
    files, options = CASES[case]
    (tmp_path / "in").mkdir()
    for name, content in files.items():
        (tmp_path / "in" / name).write_bytes(content if isinstance(content, bytes) else content())
    done = run(tmp_path, *options)
    assert done.returncode in {3, 6}, done.stderr
    lines = done.stderr.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["error", "hint"]
    assert str(tmp_path / "in") in lines[0]
    assert "Traceback" not in done.stderr
    assert len(done.stderr) < 2000
    assert not (tmp_path / "out.idx").exists()


def test_what_is_no_token_file_is_named(tmp_path):
    """The hints are true for the file: none of them reads the header of a file as tokens."""
    (tmp_path / "in").mkdir()
    head = np.frombuffer(header(1000), "<i4").copy()
    head[1] = 2
    (tmp_path / "in/x.bin").write_bytes(head.tobytes() + IDS)
    done = run(tmp_path, *NANOGPT)
    assert "x.bin: version must be 1, got 2" in done.stderr
    assert "hint: copy the file again" in done.stderr
    assert "--from olmo" not in done.stderr
    (tmp_path / "in/x.bin").write_bytes(header(1000) + IDS)
    Plain("uint16", [[[1, 2, 7]]]).write(tmp_path / "d")
    done = run(tmp_path, tmp_path / "d.bin", *NANOGPT)
    assert "d.bin is the .bin of an indexed dataset" in done.stderr
    assert f"hint: use the dataset {tmp_path / 'd'} as it is" in done.stderr


def test_an_output_directory_with_foreign_files_is_refused(tmp_path):
    Plain("uint16", [[[1, 2, 7]]]).write(tmp_path / "d")
    (tmp_path / "x").mkdir()
    (tmp_path / "x/mine.npy").write_bytes(b"mine")
    done = subprocess.run(
        [COMMAND, "export", tmp_path / "d", "--to", "olmo", "-o", tmp_path / "x"],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 4, done.stderr
    assert "mine.npy exists already" in done.stderr
    assert "hint: choose an empty directory" in done.stderr
    assert (tmp_path / "x/mine.npy").read_bytes() == b"mine"


def damages(content):
    """Yield a content with a changed byte, cut off and extended, at places over its whole length."""
    places = sorted({*range(0, len(content), max(1, len(content) // 20)), *range(min(24, len(content)))})
    for place in places:
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        yield bytes(changed)
        yield content[:place]
    yield content + b"\0"
    yield content + content[:9]


@pytest.mark.parametrize("form", ["nanogpt", "olmo", "datatrove"])
def test_damaged_files_are_refused_or_hold_legal_tokens(tmp_path, form):
    Plain("uint16", [[[5, 6, 9, 7]], [[8, 11, 7]], [[12, 7]]] * 12).write(tmp_path / "d")
    ids = {"eod_id": 7, "bos_id": 7, "val_shards": 0} if form == "nanogpt" else {}
    tokshard.export(ExportOptions(source=tmp_path / "d", to=form, output=tmp_path / "x", **ids))
    names = sorted(path.name for path in (tmp_path / "x").iterdir() if path.is_file())
    options = {"bos_id": 7} if form == "nanogpt" else {"eod_id": 7}
    counts = {"refused": 0, "legal": 0}
    codes = set()
    outputs = 0
    for name in names:
        original = (tmp_path / "x" / name).read_bytes()
        for content in damages(original):
            # Without the manifest, as from another trainer, which would tell each change of a size.
            source = slow_conversions.Source(
                {each: (tmp_path / "x" / each).read_bytes() for each in names} | {name: content}, []
            ).write(tmp_path / f"in{sum(counts.values())}")
            output = tmp_path / f"out{sum(counts.values())}"
            try:
                tokshard.convert(ConvertOptions(sources=source, format=form, output=output, **options))
            except tokshard.errors.TokshardError as error:
                codes.add(error.exit_code)
                counts["refused"] += 1
            else:
                counts["legal"] += 1
            outputs += Path(f"{output}.idx").exists()
    print(form, counts)
    assert codes <= {3, 6}
    assert outputs == counts["legal"]
    assert counts["refused"] > 50
