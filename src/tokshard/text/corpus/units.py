"""Units of work: pieces of inputs, independent of the number of workers.

In a stream of JSON lines a record starts at position 0 and after every newline. Unit *n* of an input
contains the records that start in [n*U, (n+1)*U), where U is ``unit_bytes``. Positions are those of the
decompressed stream, so the same text has the same units plain, compressed and through a pipe. A unit can be
empty: a line longer than U starts in one unit and covers others. An empty input has one empty unit.

Units are plain values that can be sent to other processes and machines.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokshard.dataset.parameters import TextFormat


@dataclass(frozen=True, slots=True)
class LineUnit:
    """Unit of an input as a range of lines of a local plain file.

    If ``begin`` > 0, its lines begin after the first newline at a position >= begin - 1; they end with
    the first newline at a position >= end - 1, or with the file.

    Attributes:
        path: The plain file to read: the input itself, or a temporary file cut from it.
        stream_offset: The position in the input's decompressed stream of byte 0 of ``path``.
        elided: For each line over the length limit, in order: its position in the stream and the number
            of bytes dropped at its end.
        temporary: Whether ``path`` must be removed after use.
        input_bytes: On-disk bytes of the unit (compressed bytes of compressed inputs).
    """

    file: int
    index: int
    last: bool
    path: str
    begin: int
    end: int
    stream_offset: int = 0
    elided: tuple[tuple[int, int], ...] = ()
    stream_error: str | None = None
    temporary: bool = False
    input_bytes: int = 0
    format: TextFormat = "jsonl"


@dataclass(frozen=True, slots=True)
class RowUnit:
    """Consecutive row groups (Parquet) or record batches (Arrow) of a table.

    Attributes:
        first_group: Its first row group or record batch.
        first_row: The number of its first row in the file.
        input_bytes: On-disk bytes of the unit: those of the file, in proportion.
    """

    file: int
    index: int
    last: bool
    path: str
    format: TextFormat
    first_group: int
    group_count: int
    first_row: int
    row_count: int
    input_bytes: int = 0


Unit = LineUnit | RowUnit
