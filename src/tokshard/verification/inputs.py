"""Checks of a dataset's units of work: their sums, and the inputs if they are available."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from tokshard.corpus.compressed import ByteSource, CorruptStreamError, decompressed_chunks
from tokshard.corpus.content import Format
from tokshard.corpus.selection import RecordSelection
from tokshard.corpus.tables import read_rows, table_groups
from tokshard.corpus.units import RowUnit
from tokshard.dataset.manifest import UNITS_NAME, InputRecord, Manifest, file_of
from tokshard.dataset.plan import BuildParameters, TokenizeParameters
from tokshard.dataset.records import UnitRecord, parse_line
from tokshard.dataset.source import InputFile
from tokshard.errors import InputError, IntegrityError, MissingExtraError, raise_exhaustion
from tokshard.storage import fs
from tokshard.storage.digest import piecewise_digest
from tokshard.storage.reading import open_file
from tokshard.verification.context import VerifyContext
from tokshard.verification.report import ProductFindings

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


# Records that were skipped during decompression: their bytes are in no digest.
_NOT_DIGESTED = frozenset({"too-long", "corrupt-stream"})


def examine_inputs(
    manifest: Manifest, units: Units, findings: ProductFindings, context: VerifyContext
) -> None:
    """Compare the available inputs with the recorded ones: sizes, and the bytes of their records.

    Paths are those of the run that built the dataset; relative ones start at the current directory.
    """
    here = []
    for number, source in enumerate(manifest.inputs):
        if source.size_bytes is not None and fs.isfile(source.path):
            here.append(number)
    missing = [source.path for number, source in enumerate(manifest.inputs) if number not in set(here)]
    if missing:
        text = f"{len(missing)} of {len(manifest.inputs)} inputs not found, the first is {missing[0]}"
        findings.find("input-missing", text)
    partly = []
    for number in here:
        path = manifest.inputs[number].path
        try:
            change = _change(manifest, units, number, context)
        except _SizeOnlyError:
            partly.append(path)
            continue
        if change is not None:
            findings.find("input-changed", f"{path}: {change}", path=path)
    if partly:
        text = (
            f"{len(partly)} of {len(manifest.inputs)} inputs were compared by their sizes only, the first is "
        )
        findings.find("input-size-only", text + partly[0])
    findings.counts |= {"inputs": len(manifest.inputs), "inputs_compared": len(here)}


class _SizeOnlyError(Exception):
    pass


def _change(manifest: Manifest, units: Units, number: int, context: VerifyContext) -> str | None:
    entry = manifest.inputs[number]
    path, own = entry.path, np.flatnonzero(units.column("input") == number).tolist()
    try:
        size = os.stat(path).st_size
        if size != entry.size_bytes:
            return f"its size was {entry.size_bytes} bytes and is now {size}"
        if entry.format == "parquet" or entry.format == "arrow":  # noqa: PLR1714 - narrows the type
            return _change_of_table(path, entry.format, manifest, units, number, context)
        if entry.compression == "none":
            return _change_of_plain(InputFile(path), entry, units, own, context)
        counts = manifest.counts
        codes = counts.rejected.keys() | (counts.excluded or {}).keys()
        if (entry.rejected or entry.excluded) and not _NOT_DIGESTED.isdisjoint(codes):
            raise _SizeOnlyError
        return _change_of_stream(path, entry, units, own, context)
    except (InputError, OSError, CorruptStreamError) as error:
        raise_exhaustion(error)
        return f"it cannot be read: {error}"


def _change_of_table(
    path: str,
    table_format: Format,
    manifest: Manifest,
    units: Units,
    number: int,
    context: VerifyContext,
) -> str | None:
    entry, own = manifest.inputs[number], np.flatnonzero(units.column("input") == number).tolist()
    how = _how_tables_were_read(manifest.options)
    if how is None or entry.compression != "none":
        raise _SizeOnlyError
    rows = units.column("lines")
    try:
        wanted = [(int(rows[unit]), units.content[unit]) for unit in own]
        table = RowUnit(number, 0, True, path, table_format, 0, 0, 0, 0)
        return _change_of_rows(table, wanted, how, context, is_partial=bool(entry.is_partial))
    except MissingExtraError:
        raise _SizeOnlyError from None


def _change_of_plain(
    file: InputFile, entry: InputRecord, units: Units, own: list[int], context: VerifyContext
) -> str | None:
    sizes = units.column("content_bytes")
    starts, begin = {}, 0
    for unit in own:
        starts[unit], begin = begin, begin + int(sizes[unit])
    if begin != file.size_bytes and not (entry.is_partial and begin < file.size_bytes):
        return f"{begin} bytes were tokenized, but it now has {file.size_bytes}"
    some = [own[place] for place in context.selected(len(own))]
    good = context.runner.run(
        lambda unit: context.digest(file, starts[unit], int(sizes[unit])) == units.content[unit],
        some,
        sum(int(sizes[unit]) for unit in some),
    )
    for unit, same in zip(some, good, strict=True):
        if not same:
            return f"its bytes {starts[unit]} to {starts[unit] + int(sizes[unit])} have changed"
    return None


def _change_of_stream(
    path: str, entry: InputRecord, units: Units, own: list[int], context: VerifyContext
) -> str | None:
    sizes = units.column("content_bytes")
    cut = _Cut(
        [(int(sizes[unit]), units.content[unit]) for unit in own], may_be_longer=bool(entry.is_partial)
    )
    with open_file(path) as file:
        for chunk in decompressed_chunks(ByteSource(file, path), entry.compression):
            context.runner.count_bytes(len(chunk))
            cut.feed(chunk)
            if cut.problem is not None or (entry.is_partial and cut.is_complete):
                return cut.problem
    return cut.problem if cut.is_complete else "its content is shorter than it was"


class _Cut:
    def __init__(self, wanted: list[tuple[int, str]], *, may_be_longer: bool) -> None:
        import xxhash

        self._wanted = wanted
        self._may_be_longer = may_be_longer
        self._place = self._held = 0
        self._new = xxhash.xxh3_128
        self._state = self._new()
        self.problem: str | None = None
        self._settle()

    @property
    def is_complete(self) -> bool:
        return self._place == len(self._wanted)

    def feed(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        while view and self.problem is None:
            if self.is_complete:
                self.problem = None if self._may_be_longer else "its content is longer than it was"
                return
            left = self._wanted[self._place][0] - self._held
            piece, view = view[:left], view[left:]
            self._state.update(piece)
            self._held += len(piece)
            self._settle()

    def _settle(self) -> None:
        while not self.is_complete and self._held == self._wanted[self._place][0]:
            if self._state.hexdigest() != self._wanted[self._place][1]:
                self.problem = f"its unit {self._place} has changed"
                return
            self._state, self._held, self._place = self._new(), 0, self._place + 1


_BATCH_BYTES = 4 << 20


def _how_tables_were_read(options: BuildParameters) -> TokenizeParameters | None:
    # None if the digests of tables do not follow from the options: with several columns the texts of all are
    # mixed, a batch at a time; a merge records no column.
    return options if isinstance(options, TokenizeParameters) and len(options.fields) == 1 else None


def _change_of_rows(
    table: RowUnit,
    wanted: Sequence[tuple[int, str]],
    how: TokenizeParameters,
    context: VerifyContext,
    *,
    is_partial: bool,
) -> str | None:
    units = list(_row_units(table, [rows for rows, _ in wanted], is_partial=is_partial))
    if len(units) != len(wanted):
        return "its row groups have changed"
    selection = RecordSelection.of(how)

    def same(number: int) -> bool:
        state = xxhash.xxh3_128()
        for batch in read_rows(
            units[number],
            how.fields,
            batch_bytes=_BATCH_BYTES,
            max_document_bytes=how.max_document_bytes,
            id_field=how.id_field,
            selection=selection,
        ):
            state.update(batch.raw)
            context.runner.count_bytes(len(batch.raw))
        return state.hexdigest() == wanted[number][1]

    some = list(context.selected(len(units)))
    size = sum(units[number].input_bytes for number in some)
    for number, good in zip(some, context.runner.run(same, some, size), strict=True):
        if not good:
            first = units[number].first_row
            return f"its rows {first} to {first + units[number].row_count} have changed"
    return None


def _row_units(table: RowUnit, rows: Sequence[int], *, is_partial: bool) -> Iterator[RowUnit]:
    # One unit more or fewer than there should be where the row groups do not fit.
    groups = table_groups(table.path, table.format)
    first_group = first_row = 0
    for number, wanted in enumerate(rows):
        count = gathered = size = 0
        while gathered < wanted and first_group + count < len(groups):
            gathered += groups[first_group + count].row_count
            size += groups[first_group + count].size_bytes
            count += 1
        if gathered != wanted:
            return
        yield replace(
            table,
            index=number,
            last=number == len(rows) - 1,
            first_group=first_group,
            group_count=count,
            first_row=first_row,
            row_count=wanted,
            input_bytes=size,
        )
        first_group, first_row = first_group + count, first_row + wanted
    left = sum(group.row_count for group in groups[first_group:])
    if left and not is_partial:
        yield replace(table, index=len(rows), first_group=first_group, first_row=first_row, row_count=left)
