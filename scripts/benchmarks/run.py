"""Dispatcher of scripts/bench."""

from __future__ import annotations

import importlib
import sys

# Modules may not be called tokenize or trace: they would hide the standard library's.
MODULES = {
    "tokenize": "tokenizing",
    "stages": "stages",
    "libraries": "libraries",
    "memory": "longdocuments",
    "startup": "startup",
    "merge": "merge",
    "export": "exporting",
    "indices": "indices",
    "packing": "packing",
    "loader": "loader",
    "trace": "tracing",
    "verify": "verifying",
    "replan": "replanning",
    "orders": "orders",
    "shuffle": "shuffle",
    "scale": "scale",
    "world": "world",
}

if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] in MODULES:
        importlib.import_module(MODULES[sys.argv[1]]).main(sys.argv[2:])
    else:
        sys.exit(f"usage: scripts/bench {' | '.join(MODULES)} [--help]")
