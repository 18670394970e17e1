"""Planning: the units of an input that can be read at any place, found without reading its records."""

from __future__ import annotations

from collections.abc import Iterator

from tokshard.corpus.files import CorpusFile
from tokshard.corpus.tables import table_groups
from tokshard.corpus.units import LineUnit, RowUnit, Unit


def plan_units(file_number: int, file: CorpusFile, unit_bytes: int) -> Iterator[Unit]:
    """Yield the units of an input that can be read at any place: plain JSON lines, or a table.

    For the others (``file.is_stream``) see :func:`tokshard.corpus.streams.stream_units`.

    Args:
        file_number: The number of the input.
        file: The input.
        unit_bytes: The nominal size of a unit. Row groups are gathered until they reach it.

    Raises:
        InputError: The table cannot be read.
        MissingExtraError: A table, and pyarrow is not installed.
    """
    if file.size_bytes is None or file.compression != "none":
        raise ValueError(f"{file.path} can only be read as a stream")
    if file.format == "jsonl":
        return _line_units(file_number, file.path, file.size_bytes, unit_bytes)
    return _row_units(file_number, file, unit_bytes)


def _line_units(file_number: int, path: str, size_bytes: int, unit_bytes: int) -> Iterator[LineUnit]:
    count = max(1, -(-size_bytes // unit_bytes))
    for index in range(count):
        begin, end = index * unit_bytes, min((index + 1) * unit_bytes, size_bytes)
        yield LineUnit(
            file=file_number,
            index=index,
            last=index == count - 1,
            path=path,
            begin=begin,
            end=end,
            input_bytes=end - begin,
        )


def _row_units(file_number: int, file: CorpusFile, unit_bytes: int) -> Iterator[RowUnit]:
    groups = table_groups(file.path, file.format)
    runs = list(_group_runs([group.size_bytes for group in groups], unit_bytes))
    total = sum(group.size_bytes for group in groups)
    file_bytes = file.size_bytes or 0
    first_row = done = 0
    for index, (first, stop) in enumerate(runs):
        rows = sum(group.row_count for group in groups[first:stop])
        size = sum(group.size_bytes for group in groups[first:stop])
        share = file_bytes * (done + size) // total - file_bytes * done // total if total else file_bytes
        yield RowUnit(
            file=file_number,
            index=index,
            last=index == len(runs) - 1,
            path=file.path,
            format=file.format,
            first_group=first,
            group_count=stop - first,
            first_row=first_row,
            row_count=rows,
            input_bytes=share,
        )
        first_row += rows
        done += size


def _group_runs(sizes: list[int], unit_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield [first, stop) of consecutive groups that reach ``unit_bytes`` together; at least one run."""
    first = gathered = 0
    for number, size in enumerate(sizes):
        gathered += size
        if gathered >= unit_bytes:
            yield first, number + 1
            first, gathered = number + 1, 0
    if first < len(sizes) or not sizes:
        yield first, len(sizes)
