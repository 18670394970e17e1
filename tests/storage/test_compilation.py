"""Compiled kernels: their cache is shared by processes that write it at once, die, and find it damaged."""

from __future__ import annotations

import errno
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tokshard.blending import kernels
from tokshard.gpt_index import arrays, best_fit, pack_runs, shuffling
from tokshard.storage import compilation

numba = pytest.importorskip("numba")

MODULE = """
def kernel(values) -> "tuple[int, int]":
    total = 0
    for value in values:
        total += value + {}
    return total, -len(values)
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A directory with a module of a kernel, whose cache is in its __pycache__."""
    monkeypatch.setenv("TOKSHARD_CACHE_DIR", str(tmp_path / "user"))
    write(tmp_path)
    return tmp_path


def write(place, added=1):
    (place / "kernels.py").write_text(MODULE.format(added))


def run(place, dtype=np.int64):
    """Call the kernel as a new process would; return its result and whether it was compiled."""
    spec = importlib.util.spec_from_file_location("kernels", place / "kernels.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        original = compilation._compile
        patch.setattr(compilation, "_compile", lambda *given: seen.append(1) or original(*given))
        total, negative = compilation.compiled.__wrapped__(module.kernel)(np.arange(4, dtype=dtype))
    assert negative == -4
    return total, bool(seen)


def files(place):
    return sorted(path for path in place.rglob("*") if path.is_file() and path.suffix == ".o")


def test_a_kernel_is_compiled_once_for_all_processes(place):
    assert run(place) == (10, True)
    before = [(path, path.stat().st_mtime_ns) for path in files(place)]
    assert [path.parent.name for path, _ in before] == ["__pycache__"]
    assert run(place) == (10, False)
    assert [(path, path.stat().st_mtime_ns) for path in files(place)] == before
    assert run(place, np.int16) == (10, True)
    assert run(place, np.int16) == run(place) == (10, False)


def test_a_cached_kernel_needs_no_numba(place):
    run(place)
    code = (
        "import sys, numpy, kernels; from tokshard.storage.compilation import compiled;"
        "print(compiled(kernels.kernel)(numpy.arange(4)), 'numba' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=place, capture_output=True, text=True, check=True)
    assert done.stdout == "(10, -4) False\n"


@pytest.mark.parametrize("damage", ["empty", "half", "garbage", "a flipped byte"])
def test_a_damaged_file_is_compiled_again(place, damage):
    run(place)
    for path in files(place):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 255
        path.write_bytes(
            {"empty": b"", "half": content[: len(content) // 2], "garbage": b"x" * 5000}.get(damage, content)
        )
    assert run(place) == (10, True)
    assert run(place) == (10, False), "and then replaced"


def test_a_file_with_a_right_digest_that_is_no_object_file_is_compiled_again(place):
    run(place)
    for path in files(place):
        compilation.write_cached(str(path), b"no object file")
    assert run(place) == (10, True)


@pytest.mark.parametrize("mode", [0o666, 0o664])
def test_a_file_that_others_could_have_written_is_not_loaded(place, mode):
    run(place)
    for path in files(place):
        path.chmod(mode)
    assert run(place) == (10, True)


def test_files_are_written_so_that_no_other_user_can_change_them(place):
    # Python itself makes this directory with the umask of the process, before or after the kernel is kept.
    (place / "__pycache__").mkdir(mode=0o700)
    before = os.umask(0)
    try:
        run(place)
    finally:
        os.umask(before)
    (path,) = files(place)
    assert path.stat().st_mode & 0o777 == 0o644
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_another_source_processor_or_setting_is_another_kernel(place, monkeypatch):
    run(place)
    write(place, added=2)
    importlib.invalidate_caches()
    os.utime(place / "kernels.py", ns=(0, 10**18))
    assert run(place) == (14, True)
    with monkeypatch.context() as patch:
        target = (compilation._target()[0], "generic", "")
        patch.setattr(compilation, "_target", lambda: target)
        assert run(place) == (14, True)
    monkeypatch.setattr(compilation, "_versions", lambda: ("another",))
    assert run(place) == (14, True)


def test_a_process_that_dies_while_it_writes_leaves_nothing_that_is_loaded(place, monkeypatch):
    def killed(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            run(place)
    assert run(place) == (10, True)
    assert run(place) == (10, False)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_cache_that_cannot_be_written_is_no_error(place, monkeypatch, number):
    def refused(*arguments, **options):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "replace", refused)
    assert run(place) == (10, True)
    monkeypatch.setattr(os, "mkdir", refused)
    monkeypatch.setattr(os, "makedirs", refused)
    assert run(place) == (10, True)
    assert not files(place)


def test_where_the_package_cannot_be_written_the_users_cache_is_used(place):
    Path(place / "__pycache__").write_text("not a directory")
    assert run(place) == (10, True)
    assert [path.parent for path in files(place)] == [place / "user" / "kernels"]
    assert run(place) == (10, False)


def test_a_kernel_that_needs_numba_at_run_time_is_not_cached(place):
    (place / "kernels.py").write_text(
        "import numpy as np\ndef kernel(values) -> 'tuple[int, int]':\n"
        "    room = np.empty(len(values), np.int64)\n    room[:] = values\n"
        "    return room.sum() + 4, -len(room)\n"
    )
    assert run(place) == run(place) == (10, True)
    assert not files(place)


I1, I2, U1, F1, U4 = "<i4:1:aligned", "<i8:1:aligned", "|u1:1:aligned", "<f8:1:aligned", "<u4:1:aligned"
TABLE = "<i8:2:aligned"


@pytest.mark.parametrize(
    ("kernel", "kinds"),
    [
        (arrays.sample_rows, (I2, "<i4:1:unaligned", I1, "int", "int", "<i4:2:aligned", *["int"] * 3)),
        (
            shuffling.shuffle_steps,
            ("<u4:1:aligned", "int", "int", "<u4:1:aligned", "int", I2, "<u4:1:aligned"),
        ),
        (best_fit.place_documents, (I1, I1, "int", "int", I1, TABLE, I1, I1, I1, TABLE)),
        (pack_runs.fill_packs, (I2, I2, U1, "<i4:2:aligned", TABLE, *["int"] * 6)),
        (kernels.blend_few, (F1, F1, F1, "int", "<i2:1:aligned", I2)),
        (
            kernels.blend_steps,
            (F1, F1, F1, *[I2] * 4, "int", F1, "int", "<i2:1:aligned", I2, "<f8:2:aligned", I2),
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_every_kernel_can_be_cached(kernel, kinds):
    assert compilation._compile(kernel, kinds)
