"""Compilation of loops that numpy cannot express, if numba is installed, and the cache of their machine code.

numba takes half a second to import and seconds to compile. Its own cache runs the kernel of an older version,
or a damaged one: so each kernel has a directory, named by all that its machine code depends on, with the
digests of numba's files, which are checked before numba loads them.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from tokshard.errors import TokshardError
from tokshard.storage import syscalls
from tokshard.storage.files import AtomicFile
from tokshard.storage.paths import user_cache_directory
from tokshard.version import __version__

WORTH_COMPILING = 1_000_000
"""Minimum number of loop iterations for which a compiled kernel is faster than numpy: importing numba and
loading a kernel takes most of a second, compiling it for the first time a few seconds."""

_DIGESTS = "digests.json"
_OTHERS_MAY_WRITE = 0o022
_cache_lock = threading.Lock()

Kernel = Callable[..., Any]


@cache
def has_numba() -> bool:
    """Return whether numba is installed and not disabled, without importing it."""
    enabled = os.environ.get("NUMBA_DISABLE_JIT", "0") in {"", "0"}
    return enabled and importlib.util.find_spec("numba") is not None


@cache
def compiled(kernel: Kernel) -> Kernel:
    """Return a kernel as machine code, which is loaded or compiled on the first call for each set of dtypes.

    If the cache cannot be read or written, the kernel is compiled for this process only. Kernels run without
    the GIL. Floating-point operations keep their order and are never contracted or reassociated. An index out
    of range is not detected, and a division by zero has no error.

    Args:
        kernel: A module-level function of arrays and integers that calls no other and raises nothing.
    """
    return _CompiledKernel(kernel)


class _CompiledKernel:
    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._directory = _checked_directory(kernel)
        self._function = _dispatcher(kernel, self._directory)
        self._recorded = 0

    def __call__(self, *arguments: Any) -> Any:
        if self._directory is None:
            return self._function(*arguments)
        try:
            result = self._function(*arguments)
        except Exception:  # noqa: BLE001 - numba cannot read or write its cache: no kernel raises
            self._directory = None
            self._function = _dispatcher(self._kernel, None)
            return self._function(*arguments)
        if (written := sum(self._function.stats.cache_misses.values())) > self._recorded:
            self._recorded = written
            _record_digests(self._directory)
        return result


def _dispatcher(kernel: Kernel, directory: str | None) -> Any:
    import numba
    from numba.core import config

    njit: Any = partial(numba.njit, nogil=True, error_model="numpy")
    if directory is not None:
        with suppress(Exception), _cache_lock:
            others = config.CACHE_DIR
            config.CACHE_DIR = directory
            try:
                dispatcher = njit(cache=True)(kernel)
            finally:
                config.CACHE_DIR = others
            if dispatcher.stats.cache_path.startswith(directory):
                return dispatcher
    return njit()(kernel)


def _checked_directory(kernel: Kernel) -> str | None:
    """Return the directory of a kernel's machine code, without damaged files; None if it cannot be used."""
    with suppress(OSError, TokshardError):
        directory = os.path.join(user_cache_directory(), "kernels", f"{__version__}-{_source_digest(kernel)}")
        syscalls.make_directory(os.path.dirname(directory))
        if not os.path.isdir(directory):
            syscalls.make_private_directory(directory)
        status = os.stat(directory)
        if status.st_uid != os.geteuid() or status.st_mode & _OTHERS_MAY_WRITE:
            return None
        recorded = None
        with suppress(OSError, ValueError):
            recorded = json.loads(Path(directory, _DIGESTS).read_bytes())
        if recorded != _digests(directory):
            for path in _files(directory):
                syscalls.unlink(str(path))
        return directory
    return None


def _source_digest(kernel: Kernel) -> str:
    code = kernel.__code__
    values = ((name, kernel.__globals__.get(name)) for name in code.co_names)
    numbers = [(name, value) for name, value in values if isinstance(value, int | float)]
    settings = sorted(item for item in os.environ.items() if item[0].startswith("NUMBA_"))
    parts = Path(code.co_filename).read_bytes(), kernel.__qualname__, numbers, settings
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _files(directory: str) -> list[Path]:
    return sorted(Path(directory).rglob("*.nb[ic]"))


def _digests(directory: str) -> dict[str, str]:
    files = _files(directory)
    return {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def _record_digests(directory: str) -> None:
    with (
        suppress(OSError, TokshardError),
        AtomicFile(os.path.join(directory, _DIGESTS), durable=False) as file,
    ):
        file.write(json.dumps(_digests(directory)).encode())
