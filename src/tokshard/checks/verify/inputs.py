"""Checks of a dataset's units of work: their sums, and the inputs if they are available."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.checks.verify.report import ProductFindings
from tokshard.core.codec import encode
from tokshard.dataset.concatenate import input_records
from tokshard.dataset.counts import Counts
from tokshard.dataset.manifest import UNITS_NAME, InputRecord, Manifest, file_of
from tokshard.dataset.records import UnitRecord, parse_line
from tokshard.errors import IntegrityError
from tokshard.storage import fs
from tokshard.storage.paths import is_remote
from tokshard.storage.reading import open_file

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Of a file in which all lines may be damaged.
_REPORTED_LINES = 10


@dataclass(frozen=True, slots=True)
class Units:
    """The units of a dataset.

    Attributes:
        numbers: The input and the number of each unit, in order: int64 of shape (units, 2).
        documents: The documents of each unit: int64 of shape (units,).
        by_input: The inputs of the manifest, with the sums of their units.
    """

    numbers: NDArray[np.int64]
    documents: NDArray[np.int64]
    by_input: tuple[InputRecord, ...]


def read_units(path_prefix: str, manifest: Manifest, findings: ProductFindings) -> Units | None:
    """Read the units of a dataset; None, with findings, if a line is invalid.

    Raises:
        StorageError, OSError: The file cannot be read.
    """
    path = file_of(path_prefix, UNITS_NAME)
    rows = array("q")
    damaged = 0

    def units() -> Iterator[UnitRecord]:
        nonlocal damaged
        for unit in _each_unit(path):
            if isinstance(unit, IntegrityError):
                findings.find("units-damaged", unit.message, path=path)
                damaged += 1
                if damaged == _REPORTED_LINES:
                    return
                continue
            rows.extend((unit.input, unit.unit, unit.counts.documents))
            if unit.input < len(manifest.inputs):
                yield unit

    by_input = input_records(manifest.inputs, units())
    if damaged:
        return None
    table = np.array(rows, np.int64).reshape(-1, 3)
    return Units(table[:, :2], table[:, 2], by_input)


def _each_unit(path: str) -> Iterator[UnitRecord | IntegrityError]:
    """Yield the unit of each line, or the error of an invalid line."""
    with open_file(path) as file:
        for number, line in enumerate(file, 1):
            try:
                yield parse_line(UnitRecord, line, path, number)
            except IntegrityError as error:
                yield error


def examine_units(path_prefix: str, units: Units, manifest: Manifest, findings: ProductFindings) -> None:
    """Compare the units with the manifest: number, order, and for each input counts and digests."""
    path = file_of(path_prefix, UNITS_NAME)
    for text in _order_problems(units, manifest):
        findings.find("units-count", f"{path}: {text}", path=path)
    for number, (found, source) in enumerate(zip(units.by_input, manifest.inputs, strict=True)):
        for name, value, recorded in differences(found.counts, source.counts):
            text = f"{path}: its {name} of input {number} must be {recorded} by the manifest, got {value}"
            findings.find("units-count", text, path=path)
        if found.pieces_xxh3_128 != source.pieces_xxh3_128:
            text = f"{path}: the digests of input {number} ({source.path}) contradict the manifest"
            findings.find("units-digest", text, path=path)


def _order_problems(units: Units, manifest: Manifest) -> Iterator[str]:
    inputs, numbers = units.numbers.T
    if len(inputs) != manifest.dataset.units:
        yield f"the number of units must be {manifest.dataset.units} by the manifest, got {len(inputs)}"
    same = np.diff(inputs) == 0
    if (np.diff(inputs) < 0).any() or (np.diff(numbers)[same] <= 0).any():
        yield "units are not in order"
    if len(inputs) and int(inputs.max()) >= len(manifest.inputs):
        yield f"input numbers must be below {len(manifest.inputs)}, got {inputs.max()}"


def differences(counts: Counts, others: Counts) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name and both values of each count that differs."""
    values, other_values = encode(counts), encode(others)
    for name in sorted(values.keys() | other_values.keys()):
        if values.get(name) != other_values.get(name):
            yield name, values.get(name, 0), other_values.get(name, 0)


def examine_inputs(manifest: Manifest, findings: ProductFindings) -> None:
    """Compare the sizes and modification times of the available inputs with the recorded ones.

    Paths are those of the run that built the dataset; relative ones start at the current directory.

    Raises:
        OSError: The status of an input cannot be read.
    """
    missing: list[str] = []
    for source in manifest.inputs:
        path = source.path
        if source.size_bytes is None or is_remote(path) or not fs.isfile(path):
            missing.append(path)
            continue
        status = os.stat(path)
        if status.st_size != source.size_bytes:
            text = f"its size was {source.size_bytes} bytes and is now {status.st_size}"
            findings.find("input-changed", f"{path}: {text}", path=path)
        elif source.mtime_ns is not None and status.st_mtime_ns != source.mtime_ns:
            text = (
                f"{path}: its size is still {source.size_bytes} bytes, but its modification time has changed"
            )
            findings.find("input-changed", text, path=path)
    count = len(manifest.inputs)
    if missing:
        text = f"{len(missing)} of {count} inputs not found, the first is {missing[0]}"
        findings.find("input-missing", text)
    findings.counts |= {"inputs": count, "inputs_compared": count - len(missing)}
