"""The modules of scripts/benchmarks, which import each other by their names."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

BENCHMARKS = Path(__file__).parents[2] / "scripts" / "benchmarks"


@contextmanager
def benchmark_modules(*names: str) -> Iterator[dict[str, ModuleType]]:
    """Import some of them, and forget all of them afterwards."""
    before = {*sys.modules}
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield {name: importlib.import_module(name) for name in names}
    finally:
        sys.path.remove(str(BENCHMARKS))
        for name in {*sys.modules} - before:
            if Path(getattr(sys.modules[name], "__file__", None) or "/").parent == BENCHMARKS:
                del sys.modules[name]
