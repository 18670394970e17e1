"""Ranges of mapped files, copied by the kernel: what it copies, and where it stops."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokshard.storage import mapped
from tokshard.storage.mapped import copy_mapped

PAGE = mmap.PAGESIZE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux copies ranges in one call")


def copied(source, ranges, room=None):
    begins, sizes = (np.array(column, np.int64) for column in zip(*ranges, strict=True))
    target = np.zeros(int(sizes.sum()) if room is None else room, np.uint8)
    return copy_mapped(source.ctypes.data + begins, sizes, target), target.tobytes()


@settings(max_examples=60)
@given(
    content=st.binary(min_size=1, max_size=3000),
    places=st.lists(st.tuples(st.integers(0, 2999), st.integers(0, 300)), min_size=1, max_size=40),
    per_call=st.integers(1, 9),
)
def test_ranges_follow_each_other(content, places, per_call):
    source = np.frombuffer(content, np.uint8)
    ranges = [(begin % len(content), size) for begin, size in places]
    ranges = [(begin, min(size, len(content) - begin)) for begin, size in ranges]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mapped, "_RANGES_PER_CALL", per_call)
        done, target = copied(source, ranges)
    assert done == len(ranges)
    assert target == b"".join(content[begin : begin + size] for begin, size in ranges)


@pytest.mark.parametrize("per_call", [1, 2, 1024])
def test_the_copy_stops_where_a_file_was_truncated(tmp_path, monkeypatch, per_call):
    monkeypatch.setattr(mapped, "_RANGES_PER_CALL", per_call)
    path = tmp_path / "x"
    path.write_bytes(b"a" * PAGE + b"b" * PAGE)
    with open(path, "r+b") as file:
        source = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
        os.ftruncate(file.fileno(), PAGE)
        done, target = copied(source, [(0, 7), (PAGE - 3, 3), (PAGE, 5), (0, 2)])
    assert done == 2
    assert target[:10] == b"a" * 10


def test_nothing_is_copied_where_the_system_has_no_such_call(monkeypatch):
    class NoLibrary:
        pass

    monkeypatch.setattr(ctypes, "CDLL", lambda _: NoLibrary())
    mapped._process_vm_readv.cache_clear()
    try:
        assert copied(np.arange(9, dtype=np.uint8), [(0, 4), (5, 4)])[0] == 0
    finally:
        monkeypatch.undo()
        mapped._process_vm_readv.cache_clear()


def test_nothing_is_copied_where_a_sandbox_refuses_the_call(monkeypatch):
    monkeypatch.setattr(mapped, "_process_vm_readv", lambda: lambda *_: -1)
    assert copied(np.arange(9, dtype=np.uint8), [(0, 4), (5, 4)])[0] == 0
