"""Just-in-time compilation of loops that numpy cannot express, if numba is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any

WORTH_COMPILING = 1_000_000
"""Minimum number of loop iterations for which a compiled kernel is faster: importing numba and loading a
cached kernel takes about 0.5 s, compiling it for the first time a few seconds."""


@cache
def has_numba() -> bool:
    """Return whether numba is installed, without importing it."""
    return importlib.util.find_spec("numba") is not None


@cache
def compiled(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel that numba compiles on its first call, once per combination of dtypes.

    Compiled kernels are cached on disk (in ``__pycache__`` or numba's own directory) for later processes.
    They run without the GIL. Floating-point operations keep their order and are never contracted or
    reassociated.

    Args:
        kernel: A module-level function that calls no other Python function.
    """
    import numba

    try:
        return numba.njit(nogil=True, cache=True)(kernel)
    except RuntimeError:
        # Numba found no writable cache directory: compile for this process only.
        return numba.njit(nogil=True)(kernel)
