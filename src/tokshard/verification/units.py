"""``units.jsonl``: the units of work that a dataset is made of, and what they must add up to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokshard.dataset.manifest import UNITS_NAME, InputRecord, Manifest, file_of
from tokshard.dataset.records import UnitRecord, parse_line
from tokshard.dataset.source import InputFile
from tokshard.errors import IntegrityError
from tokshard.storage.digest import piecewise_digest
from tokshard.verification.report import ProductFindings

if TYPE_CHECKING:
    from numpy.typing import NDArray

_COUNTS = ("input", "unit", "content_bytes", "lines", "documents", "rejected", "sequences", "tokens")


@dataclass(frozen=True, slots=True)
class Units:
    """The units of a dataset, in order.

    Attributes:
        counts: int64 of shape (units, 8): the columns are input, unit, content bytes, lines, documents,
            rejected, sequences, tokens.
        content: The digest of each unit's input.
        tokens: The digest of each unit's piece of the ``.bin``.
        encoders: The documents that each encoder made.
    """

    counts: NDArray[np.int64]
    content: tuple[str, ...]
    tokens: tuple[str, ...]
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
    for number, line in enumerate(lines, 1):
        try:
            found.append(parse_line(UnitRecord, line, path, number))
        except IntegrityError as error:
            findings.find("units-damaged", error.message, path=path)
    if len(found) < len(lines):
        return None
    encoders: dict[str, int] = {}
    for unit in found:
        encoders[unit.encoder] = encoders.get(unit.encoder, 0) + unit.documents
    table = np.array([[getattr(unit, name) for name in _COUNTS] for unit in found], np.int64)
    return Units(
        counts=table.reshape(-1, len(_COUNTS)),
        content=tuple(unit.content_xxh3_128 for unit in found),
        tokens=tuple(unit.tokens_xxh3_128 for unit in found),
        encoders=encoders,
    )


def examine_units(path_prefix: str, units: Units, manifest: Manifest, findings: ProductFindings) -> None:
    """Hold the units against the manifest: counts, order, encoders and digests."""
    path = file_of(path_prefix, UNITS_NAME)
    for text in _count_problems(units, manifest):
        findings.find("units-count", f"{path}: {text}", path=path)
    if piecewise_digest(units.tokens) != manifest.files.bin.pieces_xxh3_128:
        text = f"{path}: the digests of its pieces of the .bin do not make the one in the manifest"
        findings.find("units-digest", text, path=path)
    for number, (source, content) in enumerate(zip(manifest.inputs, _by_input(units, manifest), strict=True)):
        if piecewise_digest(content) != source.pieces_xxh3_128:
            text = (
                f"{path}: the digests of input {number} ({source.path}) do not make its one in the manifest"
            )
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
        "lines": counts.lines,
        "content_bytes": counts.content_bytes,
    }
    if len(units.counts) != data.units:
        yield f"there are {len(units.counts)} units, but the manifest says {data.units}"
    for name, value in expected.items():
        if int(units.column(name).sum()) != value:
            yield f"its {name} sum to {units.column(name).sum()}, but the manifest says {value}"
    if units.encoders != manifest.encoder.documents:
        yield f"its documents by encoder are {units.encoders}, not {manifest.encoder.documents}"
    inputs = units.column("input")
    numbers = units.column("unit")
    for number, source in enumerate(manifest.inputs):
        yield from _input_problems(units, inputs == number, number, source)
    same = np.diff(inputs) == 0
    if (np.diff(inputs) < 0).any() or (np.diff(numbers)[same] <= 0).any():
        yield "units are not in their order"
    if len(inputs) and int(inputs.max()) >= len(manifest.inputs):
        yield f"a unit is of input {inputs.max()}, but there are {len(manifest.inputs)}"


def _input_problems(
    units: Units, which: NDArray[np.bool_], number: int, source: InputRecord
) -> Iterator[str]:
    for name in ("content_bytes", "documents", "rejected"):
        value = int(units.column(name)[which].sum())
        recorded = getattr(source, name)
        if value != recorded:
            yield f"its {name} of input {number} sum to {value}, but the manifest says {recorded}"


def units_off_boundaries(units: Units, boundaries: Sequence[tuple[int, int]]) -> list[int]:
    """Return the units that do not end where the index says that their last document ends.

    Args:
        units: The units.
        boundaries: For the end of each unit's documents: (sequences, tokens) up to there, by the index.
    """
    sequences, tokens = units.before("sequences")[1:], units.before("tokens")[1:]
    pairs = zip(sequences.tolist(), tokens.tolist(), strict=True)
    return [number for number, (one, right) in enumerate(zip(pairs, boundaries, strict=True)) if one != right]
