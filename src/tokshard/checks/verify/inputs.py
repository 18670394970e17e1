"""Checks of a dataset's units of work: their sums, and the inputs if they are available."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokshard.checks.verify.report import ProductFindings
from tokshard.dataset.manifest import UNITS_NAME, InputRecord, Manifest, file_of
from tokshard.dataset.records import UnitRecord, parse_line
from tokshard.dataset.source import InputFile
from tokshard.errors import IntegrityError
from tokshard.storage import fs
from tokshard.storage.digest import piecewise_digest
from tokshard.storage.paths import is_remote

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Of a file in which all lines may be damaged.
_REPORTED_LINES = 10
_COUNTS = (
    "input",
    "unit",
    "content_bytes",
    "lines",
    "documents",
    "rejected",
    "excluded",
    "sequences",
    "tokens",
)


@dataclass(frozen=True, slots=True)
class Units:
    """The units of a dataset, in order.

    Attributes:
        counts: int64 of shape (units, 9): the columns are input, unit, content bytes, lines, documents,
            rejected, excluded, sequences, tokens.
        content: The digest of each unit's input.
        encoders: The documents that each encoder made.
    """

    counts: NDArray[np.int64]
    content: tuple[str, ...]
    encoders: dict[str, int]

    def column(self, name: str) -> NDArray[np.int64]:
        """Return one of the columns."""
        return self.counts[:, _COUNTS.index(name)]

    def before(self, name: str) -> NDArray[np.int64]:
        """Return the running sum of a column, from 0: int64 of shape (units + 1,)."""
        return np.concatenate(([0], np.cumsum(self.column(name))))


def read_units(path_prefix: str, findings: ProductFindings) -> Units | None:
    """Read the units of a dataset; None, with findings, where a line is none.

    Raises:
        StorageError: The file cannot be read.
    """
    path = file_of(path_prefix, UNITS_NAME)
    file = InputFile(path)
    content = bytearray(file.size_bytes)
    file.read_into(memoryview(content), 0)
    lines = bytes(content).splitlines(keepends=True)
    found: list[UnitRecord] = []
    damaged = 0
    for number, line in enumerate(lines, 1):
        try:
            found.append(parse_line(UnitRecord, line, path, number))
        except IntegrityError as error:
            findings.find("units-damaged", error.message, path=path)
            damaged += 1
            if damaged == _REPORTED_LINES:
                break
    if len(found) < len(lines):
        return None
    encoders: dict[str, int] = {}
    for unit in found:
        encoders[unit.encoder] = encoders.get(unit.encoder, 0) + unit.documents
    table = np.array([[getattr(unit, name) or 0 for name in _COUNTS] for unit in found], np.int64)
    return Units(
        counts=table.reshape(-1, len(_COUNTS)),
        content=tuple(unit.content_xxh3_128 for unit in found),
        encoders=encoders,
    )


def examine_units(path_prefix: str, units: Units, manifest: Manifest, findings: ProductFindings) -> None:
    """Compare the units with the manifest: counts, order, encoders and digests."""
    path = file_of(path_prefix, UNITS_NAME)
    for text in _count_problems(units, manifest):
        findings.find("units-count", f"{path}: {text}", path=path)
    for number, (source, content) in enumerate(zip(manifest.inputs, _by_input(units, manifest), strict=True)):
        if piecewise_digest(content) != source.pieces_xxh3_128:
            text = f"{path}: the digests of input {number} ({source.path}) contradict the manifest"
            findings.find("units-digest", text, path=path)


def _by_input(units: Units, manifest: Manifest) -> list[list[str]]:
    found: list[list[str]] = [[] for _ in manifest.inputs]
    for number, digest in zip(units.column("input").tolist(), units.content, strict=True):
        if number < len(found):
            found[number].append(digest)
    return found


def _count_problems(units: Units, manifest: Manifest) -> Iterator[str]:
    data, counts = manifest.dataset, manifest.counts
    expected = {
        "documents": data.documents,
        "sequences": data.sequences,
        "tokens": data.tokens,
        "rejected": counts.rejected_total,
        "excluded": counts.excluded_total,
        "lines": counts.lines,
        "content_bytes": counts.content_bytes,
    }
    if len(units.counts) != data.units:
        yield f"the number of units must be {data.units} by the manifest, got {len(units.counts)}"
    for name, value in expected.items():
        if int(units.column(name).sum()) != value:
            yield f"its {name} must sum to {value} by the manifest, got {units.column(name).sum()}"
    if units.encoders != manifest.encoder.documents:
        yield f"its documents by encoder must be {manifest.encoder.documents}, got {units.encoders}"
    inputs = units.column("input")
    numbers = units.column("unit")
    for number, source in enumerate(manifest.inputs):
        yield from _input_problems(units, inputs == number, number, source)
    same = np.diff(inputs) == 0
    if (np.diff(inputs) < 0).any() or (np.diff(numbers)[same] <= 0).any():
        yield "units are not in order"
    if len(inputs) and int(inputs.max()) >= len(manifest.inputs):
        yield f"input numbers must be below {len(manifest.inputs)}, got {inputs.max()}"


def _input_problems(
    units: Units, which: NDArray[np.bool_], number: int, source: InputRecord
) -> Iterator[str]:
    for name in ("content_bytes", "documents", "rejected", "excluded"):
        value = int(units.column(name)[which].sum())
        recorded = getattr(source, name) or 0
        if value != recorded:
            yield f"its {name} of input {number} must sum to {recorded} by the manifest, got {value}"


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
