"""Compiled kernels: their cache is shared by processes that write it at once, die, and find it damaged."""

from __future__ import annotations

import errno
import importlib.util
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from tokshard.core import compilation

numba = pytest.importorskip("numba")

MODULE = """
def kernel(values):
    total = 0
    for value in values:
        total += value + {}
    return total
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A directory with a module of a kernel, and the cache directory of numba in it."""
    cache = tmp_path / "cache"
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(cache))
    write(tmp_path)
    return tmp_path


def write(place, added=1):
    (place / "kernels.py").write_text(MODULE.format(added))


def run(place, dtype=np.int64):
    """Call the kernel as a new process would; return its result and the number of compilations."""
    spec = importlib.util.spec_from_file_location("kernels", place / "kernels.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["kernels"] = module
    try:
        spec.loader.exec_module(module)
        dispatcher = compilation.compiled.__wrapped__(module.kernel)
        result = dispatcher(np.arange(4, dtype=dtype))
        return int(result), sum(dispatcher.stats.cache_misses.values())
    finally:
        sys.modules.pop("kernels", None)


def files(place):
    return sorted(path for path in (place / "cache").rglob("*") if path.is_file())


def test_a_kernel_is_compiled_once_for_all_processes(place):
    assert run(place)[0] == 10
    before = [(path, path.stat().st_mtime_ns) for path in files(place)]
    assert before
    assert run(place) == (10, 0)
    assert [(path, path.stat().st_mtime_ns) for path in files(place)] == before


@pytest.mark.parametrize("damage", ["empty", "half", "garbage", "a flipped byte"])
def test_a_damaged_file_is_compiled_again(place, damage):
    run(place)
    for path in files(place):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 255
        path.write_bytes(
            {"empty": b"", "half": content[: len(content) // 2], "garbage": b"x" * 5000}.get(damage, content)
        )
    assert run(place)[0] == 10
    assert run(place) == (10, 0), "and then replaced"


def test_a_kernel_of_an_older_version_is_never_used(place, monkeypatch):
    """A process of the new version is killed when it has half written the cache."""
    from numba.core import caching

    run(place)
    status = (place / "kernels.py").stat()
    write(place, added=2)
    os.utime(place / "kernels.py", ns=(status.st_atime_ns, status.st_mtime_ns + 10**9))

    def killed(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(caching.IndexDataCacheFile, "_save_data", killed)
        with pytest.raises(KeyboardInterrupt):
            run(place)
    assert run(place)[0] == 14


def test_processes_that_compile_for_other_dtypes_at_once_keep_apart(place, monkeypatch):
    """The second one begins and ends while the first one writes."""
    from numba.core import caching

    original, seen = caching.IndexDataCacheFile._save_data, []

    def late(self, name, data):
        if not seen:
            seen.append(name)
            assert run(place, np.int16)[0] == 10
        original(self, name, data)

    monkeypatch.setattr(caching.IndexDataCacheFile, "_save_data", late)
    assert run(place)[0] == 10
    assert run(place, np.int16) == (10, 0)
    assert run(place) == (10, 0)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_cache_that_cannot_be_written_is_no_error(place, monkeypatch, number):
    from numba.core import caching

    def refused(*arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(caching.IndexDataCacheFile, "_save_data", refused)
    assert run(place)[0] == 10
    monkeypatch.setattr(caching._CacheLocator, "ensure_cache_path", refused)
    assert run(place)[0] == 10


def test_a_cache_directory_that_disappears_is_no_error(place, monkeypatch):
    run(place)
    for path in files(place):
        path.unlink()
    assert run(place)[0] == 10
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(Path("/dev/null/cache")))
    assert run(place)[0] == 10
