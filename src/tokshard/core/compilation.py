"""Compiling the few loops that numpy cannot express, where numba is installed and the work pays for it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any

WORTH_COMPILING = 1_000_000
"""Steps of a loop from which a compiled kernel pays: importing numba and loading a kernel that was
compiled earlier take about half a second, compiling it for the first time some seconds."""


@cache
def has_numba() -> bool:
    """Tell whether numba is installed, without importing it."""
    return importlib.util.find_spec("numba") is not None


@cache
def compiled(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel that numba compiles at its first call, once for each combination of dtypes.

    The result is kept on disk (in ``__pycache__`` or numba's own directory) for later processes. The
    kernel runs without the GIL. Its floating-point operations keep their order and are never contracted
    or reassociated.

    Args:
        kernel: A function of a module, which calls no other Python function.
    """
    import numba

    try:
        return numba.njit(nogil=True, cache=True)(kernel)
    except RuntimeError:
        # Numba finds no directory that it may write to: compiled for this process alone.
        return numba.njit(nogil=True)(kernel)
