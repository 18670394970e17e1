"""P20: what a product names lies beside it; and which prefix a user means."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokshard.errors import IntegrityError, UsageError
from tokshard.storage.paths import (
    bin_path,
    check_plain_name,
    idx_path,
    sidecar_directory,
    strip_data_suffix,
    user_cache_directory,
)

PLAIN = [
    "bin", "idx", "manifest.json", "units.jsonl", "rank-00000.json", "a b", "...", "..x", "x..", "-rf",
    ".hidden", "größe", "日本語.jsonl", "😀", "a'b", "a;b", "a&b", "$HOME", "`id`", "%2e%2e", "x~", "#", "=",
    "+", "@list", "x" * 255,
]  # fmt: skip

PARENTS = [
    "", ".", "..", "./x", "../x", "../../etc/passwd", "x/..", "x/../y", "x/.", "a/b", "a/", "/", "//", "///x",
    "/x", "/etc/passwd", "//host/share", "./.", "..//x", ".//", "x//y", "\\", "..\\x", "a\\b", "\\\\host\\s",
    "\\x",
    "..\\..\\x", "x\\", "C:", "C:x", "C:\\x", "C:/x", "c:..", "x:y", "x:stream", "::$DATA", "http://x", "file:///x",
    "hf://x", "s3://bucket/x", "~", "~/x", "~root", "~root/x", "~+", "~user.bin", "*", "?", "x*", "**", "a?b",
    'a"b', "<x", "x>", "a|b", "|x", "[a]/x", "/dev/stdin", "/proc/self/fd/0", "../x.bin", "./manifest.json",
]  # fmt: skip

INVISIBLE = [
    *(chr(code) for code in range(32)),
    *(f"x{chr(code)}y" for code in (0, 7, 8, 9, 10, 12, 13, 27, 31, 127, 0x80, 0x85, 0x9B, 0x9F)),
    "x\n", "\nx", "x\0", "..\0", "x\0/../y", "\x1b[31mred", "\x1b]0;title\x07", "a\u2028b", "a\u2029b",
    "\u202egpj.x", "a\u200bb", "\u2066x\u2069", "\ufeffx", "\u00a0x", "a\u3000b", "\ue000", "\U000e0041",
    "\ud800", "x\udfff", "a\udcffb", "\udc80", "\ud83d", "\ufffe",
]  # fmt: skip

LONG = ["x" * 256, "ü" * 128, "日" * 86, "x" * 100_000]

HOSTILE = [*PARENTS, *INVISIBLE, *LONG]


def test_the_table_is_large():
    assert len(set(HOSTILE)) == len(HOSTILE) >= 120


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_hostile_names_are_refused(name):
    with pytest.raises(IntegrityError, match=r"file names must have no directories") as caught:
        check_plain_name(name, "x.tokshard/manifest.json")
    assert caught.value.path == "x.tokshard/manifest.json"
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", PLAIN, ids=ascii)
def test_plain_names_are_taken(name):
    assert check_plain_name(name, "x") == name


@given(name=st.text(st.characters(exclude_categories=[]), max_size=12))
def test_a_name_that_is_taken_lies_in_its_directory(name):
    try:
        check_plain_name(name, "x")
    except IntegrityError:
        return
    joined = os.path.normpath(os.path.join("/some/directory", os.path.expanduser(name)))
    assert os.path.dirname(joined) == "/some/directory"
    assert os.path.basename(joined) == name
    os.fsencode(name).decode("utf-8")


@pytest.mark.parametrize(
    ("given_path", "prefix"),
    [
        ("web", "web"),
        ("web.bin", "web"),
        ("web.idx", "web"),
        ("web.tokshard", "web"),
        ("web.tokshard/", "web"),
        ("web.tokshard//", "web"),
        ("a.b/web.idx", "a.b/web"),
        ("/data/web.bin", "/data/web"),
        ("../web.bin", "../web"),
        ("web.bin.bin", "web.bin"),
        ("web.idx.bin", "web.idx"),
        ("web.BIN", "web.BIN"),
        ("web.bin.gz", "web.bin.gz"),
        ("webbin", "webbin"),
        ("dir.bin/web", "dir.bin/web"),
        (".bin", ".bin"),
        ("data/.idx", "data/.idx"),
        ("data/.tokshard/", "data/.tokshard/"),
        ("data/", "data/"),
        ("/", "/"),
        ("", ""),
        ("web*.bin", "web*"),
        ("日本.idx", "日本"),
    ],
)
def test_strip_data_suffix(given_path, prefix):
    assert strip_data_suffix(given_path) == prefix


@given(
    prefix=st.text(st.characters(exclude_characters="/"), min_size=1, max_size=12),
    parent=st.sampled_from(["", "a/b.bin/", "/"]),
)
def test_each_file_of_a_dataset_names_its_prefix(prefix, parent):
    whole = parent + prefix
    for path in (bin_path(whole), idx_path(whole), sidecar_directory(whole), sidecar_directory(whole) + "/"):
        assert strip_data_suffix(path) == whole


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"TOKSHARD_CACHE_DIR": "/a/b", "XDG_CACHE_HOME": "/x"}, "/a/b"),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/tokshard"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/h"}, "/h/.cache/tokshard"),
        ({"HOME": "/h"}, "/h/.cache/tokshard"),
    ],
)
def test_user_cache_directory_follows_the_environment(monkeypatch, variables, expected):
    for name in ("TOKSHARD_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert user_cache_directory() == expected


def test_user_cache_directory_without_a_home_must_be_named(monkeypatch):
    for name in ("TOKSHARD_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    with pytest.raises(UsageError, match="cannot cache remote files: TOKSHARD_CACHE_DIR"):
        user_cache_directory()
