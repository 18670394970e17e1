"""Compiled kernels: their cache is shared by processes that write it at once, die, and find it damaged."""

from __future__ import annotations

import errno
import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest

from tokshard.storage import compilation, syscalls

numba = pytest.importorskip("numba")

MODULE = """
ADDED = {}

def kernel(values):
    total = 0
    for value in values:
        total += value + ADDED
    return total, -len(values)
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A directory with a module of a kernel, and with the cache."""
    monkeypatch.setenv("TOKSHARD_CACHE_DIR", str(tmp_path / "cache"))
    # Python itself takes old bytecode for a source of the same size and time.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    write(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # numba imports the module of a kernel that it loads
    yield tmp_path
    sys.modules.pop("kernels", None)


def write(place, added=1):
    (place / "kernels.py").write_text(MODULE.format(added))


def run(place, dtype=np.int64):
    """Call the kernel as a new process would; return its result and whether it was compiled."""
    spec = importlib.util.spec_from_file_location("kernels", place / "kernels.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kernel = compilation.compiled.__wrapped__(module.kernel)
    for _ in range(2):
        total, negative = kernel(np.arange(4, dtype=dtype))
    assert negative == -4
    return total, not kernel._function.stats.cache_hits


def files(place):
    return sorted(path for path in (place / "cache").rglob("*") if path.is_file())


def machine_code(place):
    return [path for path in files(place) if path.suffix in {".nbi", ".nbc"}]


def test_a_kernel_is_compiled_once_for_all_processes(place):
    assert run(place) == (10, True)
    before = [(path, path.stat().st_mtime_ns) for path in files(place)]
    assert len(before) == 3
    assert run(place) == (10, False)
    assert [(path, path.stat().st_mtime_ns) for path in files(place)] == before
    assert run(place, np.int16) == (10, True)
    assert run(place, np.int16) == run(place) == (10, False)


def test_numba_of_others_keeps_its_settings(place):
    before = numba.config.CACHE_DIR
    run(place)
    assert before == numba.config.CACHE_DIR


@pytest.mark.parametrize("damage", ["empty", "half", "garbage", "a flipped byte"])
@pytest.mark.parametrize("suffix", [".nbi", ".nbc", ".json"])
def test_a_damaged_file_is_compiled_again(place, damage, suffix):
    run(place)
    for path in files(place):
        if path.suffix == suffix:
            content = bytearray(path.read_bytes())
            content[len(content) // 2] ^= 255
            half = content[: len(content) // 2]
            path.write_bytes({"empty": b"", "half": half, "garbage": b"x" * 5000}.get(damage, content))
    assert run(place) == (10, True)
    assert run(place) == (10, False), "and then replaced"


def test_files_with_right_digests_that_are_not_numbas_are_no_error(place):
    run(place)
    for path in machine_code(place):
        path.write_bytes(b"no pickle")
    (directory,) = (place / "cache" / "kernels").iterdir()
    compilation._record_digests(str(directory))
    assert run(place) == (10, True)


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_directory_that_others_could_have_written_is_not_used(place, mode):
    run(place)
    (directory,) = (place / "cache" / "kernels").iterdir()
    directory.chmod(mode)
    assert run(place) == run(place) == (10, True)


def test_only_the_user_can_open_the_directory(place):
    before = os.umask(0)
    try:
        run(place)
    finally:
        os.umask(before)
    (directory,) = (place / "cache" / "kernels").iterdir()
    assert directory.stat().st_mode & 0o777 == 0o700


def test_another_source_version_or_setting_is_another_kernel(place, monkeypatch):
    run(place)
    status = (place / "kernels.py").stat()
    write(place, added=2)
    os.utime(place / "kernels.py", ns=(status.st_atime_ns, status.st_mtime_ns))  # numba looks at nothing else
    assert run(place) == (14, True)
    assert run(place) == (14, False)
    monkeypatch.setenv("NUMBA_OPT", "2")
    assert run(place) == (14, True)
    monkeypatch.setattr(compilation, "__version__", "another")
    assert run(place) == (14, True)


def test_a_process_that_dies_while_it_writes_leaves_nothing_that_is_loaded(place, monkeypatch):
    def killed(*arguments):
        raise KeyboardInterrupt

    for module in (os, compilation):  # before numba's files are whole, and between these and their digests
        with monkeypatch.context() as patch:
            patch.setattr(module, "replace" if module is os else "_record_digests", killed)
            with pytest.raises(KeyboardInterrupt):
                run(place)
        assert run(place) == (10, True)
        assert run(place) == (10, False)
        for path in files(place):
            path.unlink()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_cache_that_cannot_be_written_is_no_error(place, monkeypatch, number):
    def refused(*arguments, **options):
        raise OSError(number, os.strerror(number))

    for name in ("replace", "mkdir", "makedirs"):
        monkeypatch.setattr(os, name, refused)
        assert run(place) == run(place) == (10, True)
        assert not machine_code(place)


def test_without_a_cache_directory_a_kernel_is_compiled_for_the_process(place, monkeypatch):
    (place / "file").write_text("not a directory")
    monkeypatch.setenv("TOKSHARD_CACHE_DIR", str(place / "file"))
    assert run(place) == (10, True)
    for name in ("TOKSHARD_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    # Without HOME, Python takes the home directory of the password database: here there is none, or runs of
    # this test would find the machine code of earlier ones.
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert run(place) == (10, True)
    assert not (place / "cache").exists()


def test_processes_may_compile_and_check_at_once(place):
    code = (
        "import numpy, kernels; from tokshard.storage.compilation import compiled;"
        "print(compiled(kernels.kernel)(numpy.arange(4)))"
    )
    command = [sys.executable, "-c", code]
    running = [subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [process.communicate(timeout=120)[0] for process in running] == ["(10, -4)\n"] * 3
    assert [process.returncode for process in running] == [0] * 3
    run(place)
    assert run(place) == (10, False)


def test_a_file_that_another_process_removes_at_once_is_no_error(place, monkeypatch):
    run(place)
    for path in machine_code(place):
        path.write_bytes(b"damaged")
    unlink = syscalls.unlink
    monkeypatch.setattr(syscalls, "unlink", lambda path: [unlink(path), unlink(path)])
    assert run(place) == (10, True)
