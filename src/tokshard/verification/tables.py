"""Tables among the inputs of a dataset: whether their texts still are what was tokenized."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import xxhash

from tokshard.corpus.content import Format
from tokshard.corpus.tables import read_rows, table_groups
from tokshard.corpus.units import RowUnit
from tokshard.verification.levels import chosen
from tokshard.verification.session import Session

_BATCH_BYTES = 4 << 20


def text_options(options: dict[str, Any]) -> tuple[str, int] | None:
    """Return the column and the longest document of a run, where the digests of its tables follow from both.

    With several columns they do not: texts of all columns are mixed there, a batch at a time. A merge
    records neither.

    Example:
        >>> text_options({"field": ["text"], "max-document-bytes": 100})
        ('text', 100)
    """
    fields, limit = options.get("field"), options.get("max-document-bytes")
    if isinstance(fields, list) and len(fields) == 1 and isinstance(fields[0], str) and type(limit) is int:
        return fields[0], limit
    return None


def change_of_table(
    path: str,
    table_format: Format,
    wanted: Sequence[tuple[int, str]],
    how: tuple[str, int],
    session: Session,
) -> str | None:
    """Say how the texts of a table differ from what was tokenized; None if they do not.

    Args:
        path: The table.
        table_format: What it is.
        wanted: Rows and digest of each of its units, in order.
        how: See :func:`text_options`.
        session: What is asked for.

    Raises:
        InputError: It cannot be read, or has no such column.
        MissingExtraError: pyarrow is not installed.
    """
    field, limit = how
    units = list(_row_units(path, table_format, [rows for rows, _ in wanted]))
    if len(units) != len(wanted):
        return "its rows are not grouped as those that were tokenized"

    def same(number: int) -> bool:
        state = xxhash.xxh3_128()
        for batch in read_rows(units[number], [field], batch_bytes=_BATCH_BYTES, max_document_bytes=limit):
            state.update(batch.raw)
            session.labour.tell(len(batch.raw))
        return state.hexdigest() == wanted[number][1]

    some = list(chosen(len(units), session.subset))
    size = sum(units[number].input_bytes for number in some)
    for number, good in zip(some, session.labour.run(same, some, size), strict=True):
        if not good:
            first = units[number].first_row
            return f"its rows {first} to {first + units[number].row_count} are not what was tokenized"
    return None


def _row_units(path: str, table_format: Format, rows: Sequence[int]) -> Iterator[RowUnit]:
    """Yield the units that have these numbers of rows; one more or fewer where the groups do not fit."""
    groups = table_groups(path, table_format)
    first_group = first_row = 0
    for number, wanted in enumerate(rows):
        count = gathered = size = 0
        while gathered < wanted and first_group + count < len(groups):
            gathered += groups[first_group + count].row_count
            size += groups[first_group + count].size_bytes
            count += 1
        if gathered != wanted:
            return
        yield RowUnit(
            file=0,
            index=number,
            last=number == len(rows) - 1,
            path=path,
            format=table_format,
            first_group=first_group,
            group_count=count,
            first_row=first_row,
            row_count=wanted,
            input_bytes=size,
        )
        first_group, first_row = first_group + count, first_row + wanted
    left = sum(group.row_count for group in groups[first_group:])
    if left:
        yield RowUnit(0, len(rows), True, path, table_format, first_group, 0, first_row, left)
