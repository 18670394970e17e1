"""Finding inputs: order, kinds by content, and one clear error for each thing that can be wrong."""

import bz2
import gzip
import lzma
import os
import socket

import pytest

from support.corpus_units import zstd
from tokshard.errors import InputError, UsageError
from tokshard.storage.paths import natural_key
from tokshard.text.corpus.files import CorpusFile, discover

LINE = b'{"text": "a"}\n'


@pytest.fixture(autouse=True)
def tree(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("part-10.jsonl", "part-2.jsonl", "part-1.jsonl"):
        (tmp_path / name).write_bytes(LINE)
    return tmp_path


def make(path, content=LINE):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)


def paths(*arguments):
    return [file.path for file in discover(arguments)]


def test_files_come_in_the_order_named():
    assert paths("part-2.jsonl", "part-10.jsonl", "./part-1.jsonl") == [
        "part-2.jsonl",
        "part-10.jsonl",
        "./part-1.jsonl",
    ]


def test_globs_come_in_natural_order():
    assert paths("part-*.jsonl") == ["part-1.jsonl", "part-2.jsonl", "part-10.jsonl"]
    make("a/b/deep-3.jsonl")
    make("a/deep-20.jsonl")
    assert paths("**/deep-*") == ["a/b/deep-3.jsonl", "a/deep-20.jsonl"]
    make("a/_SUCCESS", b"")
    make("a/.hidden.jsonl")
    assert paths("a/*") == ["a/deep-20.jsonl"]


def test_natural_order_is_total():
    names = ["a1", "a01", "a001", "a2", "a10", "a", "b", "a/1", "a/b", "a-1", "1", "10", "2", ""]
    backwards = names[::-1]
    assert sorted(names, key=natural_key) == sorted(backwards, key=natural_key)
    assert sorted(["x/part-10/a", "x/part-9/z"], key=natural_key) == ["x/part-9/z", "x/part-10/a"]


def test_a_file_named_like_a_glob_is_that_file():
    make("part-[12].jsonl")
    assert paths("part-[12].jsonl") == ["part-[12].jsonl"]
    assert paths("part-[1].jsonl") == ["part-1.jsonl"]


def test_directories_are_searched_for_data_names():
    wanted = [
        "d/1.json",
        "d/2.NDJSON",
        "d/3.jsonl.gz",
        "d/10.jsonl.zst",
        "d/x/a.parquet",
        "d/x/b.arrow.xz",
        "d/x/c.arrows",
    ]
    for name in wanted:
        make(name)
    for name in ("d/README.md", "d/.a.jsonl", "d/_SUCCESS", "d/_b.jsonl", "d/.git/c.jsonl", "d/_tmp/d.jsonl"):
        make(name)
    make("d/e.jsonl.bak")
    assert sorted(paths("d"), key=natural_key) == paths("d")
    assert sorted(paths("d")) == sorted(wanted)
    assert paths("d/") == paths("d")
    os.symlink(".", "d/circle")
    assert sorted(paths("d")) == sorted(wanted)


def test_lists_name_one_argument_a_line():
    make("list.txt", "\ufeff# a comment\n\n  part-2.jsonl  \r\npart-1*\n-\n".encode())
    assert paths("@list.txt") == ["part-2.jsonl", "part-1.jsonl", "part-10.jsonl", "-"]
    make("here/list.txt", b"part-2.jsonl\n")
    assert paths("@here/list.txt") == ["part-2.jsonl"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (LINE, ("jsonl", "none")),
        (b"B", ("jsonl", "none")),
        (b"BZh is a word", ("jsonl", "none")),
        (gzip.compress(LINE, mtime=0), ("jsonl", "gzip")),
        (bz2.compress(LINE), ("jsonl", "bzip2")),
        (lzma.compress(LINE), ("jsonl", "xz")),
        (zstd.compress(LINE), ("jsonl", "zstd")),
        (b"\x5f\x2a\x4d\x18\x04\0\0\0abcd", ("jsonl", "zstd")),
        (b"PAR1" + b"\0" * 20, ("parquet", "none")),
        (b"ARROW1\0\0" + b"\0" * 20, ("arrow", "none")),
        (b"\xff\xff\xff\xff\x10\x01\0\0" + b"\0" * 20, ("arrow", "none")),
        (b"\xef\xbb\xbf{}", ("jsonl", "none")),
    ],
)
def test_format_and_compression_are_told_by_content(content, expected):
    for name in ("x.parquet", "x.jsonl.gz", "x"):
        make(name, content)
        (file,) = discover([name])
        status = os.stat(name)
        assert file == CorpusFile(
            path=name,
            size_bytes=status.st_size,
            mtime_ns=status.st_mtime_ns,
            format=expected[0],
            compression=expected[1],
        )


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"PK\x03\x04xx", "a zip archive"),
        (b"n" * 257 + b"ustar\x0000", "a tar archive"),
        (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
        (b"Rar!\x1a\x07\x01\0", "a RAR archive"),
        (b"\x04\x22\x4d\x18", "lz4"),
        (b"\xff\x06\0\0sNaPpY", "snappy"),
        (b"\x1f\x9d\x90", r"\.Z"),
        (b"%PDF-1.7", "a PDF"),
        (b"\x89HDF\r\n\x1a\n", "an HDF5"),
        (b"SQLite format 3\0", "an SQLite"),
        (b"MMIDIDX\0\0", "the index of a tokenized dataset"),
        (b"PARE", "an encrypted Parquet"),
        (b"\xff\xfe{\0}\0", "UTF-16"),
        ('\ufeff{"text": "a"}'.encode("utf-16-be"), "UTF-16"),
        (b"\x7fELF", "a program"),
    ],
)
def test_contents_that_are_no_records_are_refused_with_a_way_out(content, what):
    make("x.jsonl", content)
    with pytest.raises(InputError, match=rf"^x\.jsonl is .*{what}") as caught:
        discover(["x.jsonl"])
    assert caught.value.hint


@pytest.mark.parametrize(
    ("argument", "error", "message"),
    [
        ("absent.jsonl", InputError, "input not found: absent.jsonl"),
        ("part-1.jsonl/x", InputError, "cannot read part-1.jsonl/x: Not a directory"),
        ("absent-*", InputError, r"no files match absent-\*"),
        ("di*", InputError, r"di\* matches directories but no files"),
        ("directory", InputError, "the directory directory contains no inputs"),
        ("@absent.txt", InputError, "cannot read the list absent.txt: No such file"),
        ("@directory", InputError, "cannot read the list directory: Is a directory"),
        ("@empty.txt", InputError, "the list empty.txt contains no inputs"),
        ("@nul.txt", InputError, "paths must not contain NUL"),
        ("socket", InputError, "socket must be a file or a pipe"),
        ("/dev/zero", InputError, "/dev/zero must be a file or a pipe"),
        ("dangling", InputError, "input not found: dangling"),
        ("", InputError, "input not found: "),
        ("n" * 300, InputError, "File name too long"),
    ],
)
def test_what_cannot_be_found_or_read_is_said(argument, error, message):
    os.mkdir("directory")
    make("directory/README.md")
    make("empty.txt", b"# nothing\n")
    make("nul.txt", b"a\0b\n")
    os.symlink("nowhere", "dangling")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        with pytest.raises(error, match=message):
            discover(["part-1.jsonl", argument])


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_files_without_permission_are_said():
    os.chmod("part-1.jsonl", 0)
    with pytest.raises(InputError, match=r"cannot read part-1.jsonl: Permission denied"):
        discover(["part-1.jsonl"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["part-1.jsonl", "part-1.jsonl"], "part-1.jsonl is passed twice"),
        (["part-1.jsonl", "./part-1.jsonl"], r"./part-1.jsonl is passed twice \(first as part-1.jsonl\)"),
        (["part-*", "part-2.jsonl"], "part-2.jsonl is passed twice"),
        (["link", "part-1.jsonl"], r"part-1.jsonl is passed twice \(first as link\)"),
        (["-", "part-1.jsonl", "-"], "standard input is passed twice"),
        ([], "an input is required"),
    ],
)
def test_the_same_file_twice_is_a_usage_error(arguments, message):
    os.symlink("part-1.jsonl", "link")
    with pytest.raises(UsageError, match=message):
        discover(arguments)


def test_pipes_and_standard_input_are_streams():
    os.mkfifo("pipe")
    reader, writer = os.pipe()
    try:
        assert discover(["pipe", f"/dev/fd/{reader}", "-"]) == tuple(
            CorpusFile(path=name, size_bytes=None, mtime_ns=None, format="jsonl", compression="none")
            for name in ("pipe", f"/dev/fd/{reader}", "-")
        )
    finally:
        os.close(reader)
        os.close(writer)
