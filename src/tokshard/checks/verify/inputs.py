"""Checks of a dataset's units of work: their sums, and the inputs if they are available."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from tokshard.checks.verify.report import ProductFindings
from tokshard.core.codec import encode
from tokshard.dataset.concatenate import input_records
from tokshard.dataset.counts import Counts
from tokshard.dataset.manifest import UNITS_NAME, Manifest, file_of
from tokshard.dataset.records import UnitRecord, parse_line
from tokshard.dataset.source import InputFile
from tokshard.errors import IntegrityError
from tokshard.storage import fs
from tokshard.storage.paths import is_remote

# Of a file in which all lines may be damaged.
_REPORTED_LINES = 10


def read_units(path_prefix: str, findings: ProductFindings) -> list[UnitRecord] | None:
    """Read the units of a dataset, in order; None, with findings, if a line is invalid.

    Raises:
        StorageError: The file cannot be read.
    """
    path = file_of(path_prefix, UNITS_NAME)
    file = InputFile(path)
    content = bytearray(file.size_bytes)
    file.read_into(memoryview(content), 0)
    lines = bytes(content).splitlines(keepends=True)
    units: list[UnitRecord] = []
    damaged = 0
    for number, line in enumerate(lines, 1):
        try:
            units.append(parse_line(UnitRecord, line, path, number))
        except IntegrityError as error:
            findings.find("units-damaged", error.message, path=path)
            damaged += 1
            if damaged == _REPORTED_LINES:
                break
    return units if len(units) == len(lines) else None


def examine_units(
    path_prefix: str, units: list[UnitRecord], manifest: Manifest, findings: ProductFindings
) -> None:
    """Compare the units with the manifest: number, order, and for each input counts and digests."""
    path, inputs = file_of(path_prefix, UNITS_NAME), manifest.inputs
    for text in _order_problems(units, manifest):
        findings.find("units-count", f"{path}: {text}", path=path)
    summed = input_records(inputs, (unit for unit in units if unit.input < len(inputs)))
    for number, (found, source) in enumerate(zip(summed, inputs, strict=True)):
        for name, value, recorded in differences(found.counts, source.counts):
            text = f"{path}: its {name} of input {number} must be {recorded} by the manifest, got {value}"
            findings.find("units-count", text, path=path)
        if found.pieces_xxh3_128 != source.pieces_xxh3_128:
            text = f"{path}: the digests of input {number} ({source.path}) contradict the manifest"
            findings.find("units-digest", text, path=path)


def _order_problems(units: list[UnitRecord], manifest: Manifest) -> Iterator[str]:
    if len(units) != manifest.dataset.units:
        yield f"the number of units must be {manifest.dataset.units} by the manifest, got {len(units)}"
    numbers = [(unit.input, unit.unit) for unit in units]
    if any(later <= earlier for earlier, later in pairwise(numbers)):
        yield "units are not in order"
    largest = max(numbers, default=(0, 0))[0]
    if numbers and largest >= len(manifest.inputs):
        yield f"input numbers must be below {len(manifest.inputs)}, got {largest}"


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
