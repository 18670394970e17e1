"""Just-in-time compilation of loops that numpy cannot express, if numba is installed."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

WORTH_COMPILING = 1_000_000
"""Minimum number of loop iterations for which a compiled kernel is faster: importing numba and loading a
cached kernel takes about 0.5 s, compiling it for the first time a few seconds."""

_DIGEST_BYTES = 32


@cache
def has_numba() -> bool:
    """Return whether numba is installed, without importing it."""
    return importlib.util.find_spec("numba") is not None


@cache
def compiled(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel that numba compiles on its first call, once per combination of dtypes.

    Compiled kernels are cached on disk (in ``__pycache__`` or numba's own directory) for later processes.
    If the cache cannot be read or written, or is damaged, the kernel is compiled for this process only. They
    run without the GIL. Floating-point operations keep their order and are never contracted or reassociated.

    Args:
        kernel: A module-level function that calls no other Python function.
    """
    import numba

    dispatcher: Any = numba.njit(nogil=True)(kernel)
    # No directory for the cache can be written, or this numba has other internals: the kernel works without.
    with contextlib.suppress(RuntimeError, OSError, AttributeError, ImportError):
        # As numba's enable_caching does.
        dispatcher._cache = _kernel_cache(kernel)  # noqa: SLF001
    function: Callable[..., Any] = dispatcher
    return function


def _kernel_cache(kernel: Callable[..., Any]) -> Any:
    """Return a cache of a kernel that many processes can share, and that survives their death.

    Numba's own cache numbers its files and lists them in an index. Two processes that add files at once use
    one number for two combinations of dtypes, a process that dies between index and file leaves a name that
    refers to the kernel of an older version, and a damaged file is an exception or a wrong kernel. Here each
    file has a name made of everything that determines its content, and ends with the digest of the content.
    """
    from numba import __version__ as version

    caching: Any = importlib.import_module("numba.core.caching")
    code = kernel.__code__

    class KernelFiles(caching.IndexDataCacheFile):  # type: ignore[misc]
        def load(self, key: Any) -> Any:
            name = self._name(key)
            content = Path(self._data_path(name)).read_bytes()  # numba opens it in the same way below
            if content[-_DIGEST_BYTES:] != _digest(content[:-_DIGEST_BYTES]):
                return None
            return self._load_data(name)  # which ignores what follows its object

        def save(self, key: Any, data: Any) -> None:
            self._save_data(self._name(key), data)

        def _dump(self, obj: Any) -> bytes:
            content: bytes = super()._dump(obj)
            return content + _digest(content)

        def _name(self, key: Any) -> str:
            parts = (key, self._source_stamp, version, code.co_code, code.co_consts, code.co_names)
            digest = hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
            base: str = self._index_name.removesuffix(".nbi")
            return f"{base}.{digest}.nbc"

    class KernelCache(caching.FunctionCache):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(kernel)
            stamp = self._impl.locator.get_source_stamp()
            self._cache_file: Any = KernelFiles(self._cache_path, self._impl.filename_base, stamp)

        def load_overload(self, sig: Any, target_context: Any) -> Any:
            try:
                found = super().load_overload(sig, target_context)
            except Exception:  # noqa: BLE001 - whatever a file contains, the kernel can be compiled
                return None
            return found if found is None or found.signature.args == tuple(sig) else None

        def save_overload(self, sig: Any, data: Any) -> None:
            try:
                super().save_overload(sig, data)
            except Exception:  # noqa: BLE001 - the kernel is compiled, and later processes compile it again
                return

    return KernelCache()


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()
