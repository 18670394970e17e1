"""What the oracle tests share."""

from __future__ import annotations

import gc
import importlib
import itertools
import os
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import pytest


def megatron_or_skip() -> ModuleType:
    """Return Megatron's module of indexed datasets; without it skip, or fail where it is required."""
    name = "megatron.core.datasets.indexed_dataset"
    required = os.environ.get("TOKSHARD_ORACLE") == "required"
    module = importlib.import_module(name) if required else pytest.importorskip(name)
    # Megatron calls gc.collect() whenever it adds an index: it need not look through all of torch.
    gc.collect()
    gc.freeze()
    return module


def shared(rounds: int) -> range:
    """Return the rounds of random configurations that are this run's.

    Where several releases of Megatron are compared with, each takes its share: ``TOKSHARD_ORACLE_SHARE`` is
    ``"1/2"`` for every second round from the first on.
    """
    number, of = _share()
    return range(number - 1, rounds, of)


def cases(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return the cases of all combinations that are this run's: each value of each axis is in every run."""
    numbered = [tuple(enumerate(axis)) for axis in axes]
    combinations = list(itertools.product(*numbered))
    number, of = _share()
    return [
        tuple(value for _, value in case)
        for case in combinations
        if sum(place for place, _ in case) % of == number - 1
    ]


def _share() -> tuple[int, int]:
    number, of = map(int, os.environ.get("TOKSHARD_ORACLE_SHARE", "1/1").split("/"))
    return number, of


def is_one_of_several() -> bool:
    """Tell whether other releases of Megatron are compared with, too; the newest is among them."""
    return _share()[1] > 1


def skip_unless_first() -> None:
    """Skip what depends on torch alone, the same for every Megatron, unless this is the first run."""
    if _share()[0] > 1:
        pytest.skip("torch is the same for every Megatron: the first run has run it")
