"""The writers and readers of other trainers' formats, from their own packages."""

from __future__ import annotations

import importlib
import os
import sys
from importlib import metadata
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType

import pytest

MODULES = Path(sys.prefix) / "modules"


def is_complete() -> bool:
    """Tell whether this environment must have the packages: it is the one with transformers 5."""
    if os.environ.get("TOKSHARD_ORACLE") != "required":
        return False
    return not metadata.version("transformers").startswith("4.")


def package(name: str) -> ModuleType:
    """Import a module of an installed package; without it skip, or fail where it is required."""
    return importlib.import_module(name) if is_complete() else pytest.importorskip(name)


def module_alone(name: str) -> ModuleType:
    """Import a module from ``MODULES`` without running the ``__init__`` of its packages.

    These would import libraries of other versions than those of this environment (see scripts/oracle).
    """
    if not MODULES.is_dir() and not is_complete():
        pytest.skip(f"{name} is not installed: run scripts/oracle --install")
    parts = name.split(".")
    for depth in range(1, len(parts)):
        package = ".".join(parts[:depth])
        if package not in sys.modules:
            spec = ModuleSpec(package, None, is_package=True)
            spec.submodule_search_locations = [str(MODULES.joinpath(*parts[:depth]))]
            sys.modules[package] = module_from_spec(spec)
    return importlib.import_module(name)
