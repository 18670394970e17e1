"""What ``trace`` has found, in the terminal and as CSV."""

from __future__ import annotations

import csv
import io
from itertools import islice
from typing import TYPE_CHECKING

from tokshard.cli import rendering, terminal

if TYPE_CHECKING:
    from tokshard.tracing.origin import Origin
    from tokshard.tracing.report import (
        DocumentReadings,
        DocumentTrace,
        ItemTrace,
        PieceTrace,
        Reading,
        ReadingsReport,
        SamplesReport,
        SampleTrace,
    )

_SHOWN_SAMPLES = 16
_SHOWN_READINGS = 20
_SHOWN_ITEMS = 50
_SHOWN_RANKS = 8
_SHOWN_ID = 12
_SHOWN_TEXT = 48
_LABEL_WIDTH = 10
_CSV_BLOCK = 1000


def show_document(found: DocumentTrace) -> None:
    """Print where a document comes from, and its text."""
    _line("document", f"{terminal.count(found.document)} of {terminal.path(found.dataset)}")
    _line("tokens", f"{terminal.count(found.tokens)} in {terminal.counted(found.sequences, 'sequence')}")
    _line("origin", _origin(found.origin))
    note = found.note if found.origin is None else found.origin.note
    if note:
        _line("", terminal.safe(note))
    if found.text is None:
        _line("text", "pass --tokenizer to see it")
        return
    _line("text", "")
    for line in found.text.split("\n"):
        terminal.say(f"  {terminal.safe(line)}")


def show_samples(report: SamplesReport) -> None:
    """Print what samples are made of."""
    if report.step is not None:
        who = "all ranks" if report.rank is None else f"rank {report.rank}"
        terminal.say(
            f"step {terminal.count(report.step)} of {terminal.safe(report.stream)}, {who}: "
            f"{terminal.count(len(report.samples))} samples after "
            f"{terminal.count(report.consumed_samples or 0)} consumed ones"
        )
        terminal.say("")
    for one in report.samples[:_SHOWN_SAMPLES]:
        _show_sample(one, report.stream)
    if len(report.samples) > _SHOWN_SAMPLES:
        terminal.say(f"and {len(report.samples) - _SHOWN_SAMPLES} samples more: --json has all")
    pieces = [piece for one in report.samples for piece in one.pieces]
    notes = {piece.note if piece.origin is None else piece.origin.note for piece in pieces}
    for note in sorted(note for note in notes if note):
        terminal.say(f"note: {terminal.safe(note)}")


def show_readings(report: ReadingsReport) -> None:
    """Print who reads what was asked about."""
    for item in report.items[:_SHOWN_ITEMS]:
        _show_item(item, report)
    if len(report.items) > _SHOWN_ITEMS:
        terminal.say(f"and {len(report.items) - _SHOWN_ITEMS} items more: --csv or --json has all")
    for rank, ranks in report.ranks.items():
        terminal.say(f"data-parallel rank {rank}: {_ranks(ranks)}")
    for note in report.notes:
        terminal.say(f"note: {terminal.safe(note)}")


def say_csv(report: ReadingsReport) -> None:
    """Print a row for each reading, and one for each item that nothing reads."""
    from tokshard.tracing.report import CSV_COLUMNS

    rows = report.rows()
    terminal.say(",".join(CSV_COLUMNS))
    while block := [[_cell(value) for value in row] for row in islice(rows, _CSV_BLOCK)]:
        buffer = io.StringIO()
        csv.writer(buffer, lineterminator="\n").writerows(block)
        terminal.say(buffer.getvalue().rstrip("\n"))


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value if value.isprintable() else terminal.safe(value)
    return str(value).lower()


def _show_sample(one: SampleTrace, stream: str) -> None:
    place = ""
    if one.slot is not None:
        place = f"data-parallel rank {one.data_parallel_rank}, micro-batch {one.micro_batch}: "
    terminal.say(
        f"{place}sample {terminal.count(one.sample)} of {terminal.safe(stream)} is "
        f"sample {terminal.count(one.dataset_sample)} of {terminal.path(one.dataset)}, "
        f"{terminal.count(one.tokens)} tokens"
    )
    with_text = any(piece.text is not None for piece in one.pieces)
    header = ["at", "document", "its tokens", "from", *(["text"] if with_text else [])]
    rows = [_piece_row(piece, with_text=with_text) for piece in one.pieces]
    rendering.table(header, rows, left=(2, 3, 4))
    terminal.say("")


def _piece_row(piece: PieceTrace, *, with_text: bool) -> list[str]:
    row = [
        terminal.count(piece.place),
        terminal.count(piece.document),
        _range(piece.first_token, piece.stop_token),
        _origin(piece.origin),
    ]
    return [*row, _excerpt(piece.text)] if with_text else row


def _show_item(item: ItemTrace, report: ReadingsReport) -> None:
    readings = sum(len(one.readings) for one in item.documents)
    said = f"{item.status}, {terminal.counted(readings, 'time')}" if readings else item.status
    if item.problem:
        said += f": {terminal.safe(item.problem)}"
    elif item.seen is not None:
        seen = "seen" if item.seen else "not seen"
        said += f"; {seen} by {terminal.count(report.consumed_samples or 0)} consumed samples"
    terminal.say(f"{terminal.safe(item.item)}: {said}")
    for one in item.documents:
        _show_document_readings(one)
    terminal.say("")


def _show_document_readings(one: DocumentReadings) -> None:
    terminal.say(
        f"  document {terminal.count(one.document)} of {terminal.path(one.dataset)}, "
        f"{terminal.count(one.tokens)} tokens"
    )
    if not one.readings:
        return
    shown = one.readings[:_SHOWN_READINGS]
    columns = {name: cells for name, cells in _columns(shown).items() if any(cells)}
    rendering.table(list(columns), list(zip(*columns.values(), strict=True)), left=(0, 3))
    if len(one.readings) > _SHOWN_READINGS:
        more = terminal.count(len(one.readings) - _SHOWN_READINGS)
        terminal.say(f"  and {more} times more: --csv or --json has all")


def _columns(readings: tuple[Reading, ...]) -> dict[str, list[str]]:
    several = len({one.plan_id for one in readings}) > 1
    columns: dict[str, list[str]] = {
        "  stream": [f"  {terminal.safe(one.stream)}" for one in readings],
        "sample": [terminal.count(one.sample) for one in readings],
        "of its dataset": [terminal.count(one.dataset_sample) for one in readings],
        "tokens": [_range(one.first_token, one.stop_token) for one in readings],
        "plan": [(one.plan_id or "")[:_SHOWN_ID] if several else "" for one in readings],
    }
    for label, name in (
        ("epoch", "epoch"),
        ("step", "step"),
        ("dp rank", "data_parallel_rank"),
        ("micro-batch", "micro_batch"),
        ("slot", "slot"),
    ):
        numbers = [getattr(one, name) for one in readings]
        columns[label] = ["" if number is None else terminal.count(number) for number in numbers]
    columns["again"] = ["again" if one.again else "" for one in readings]
    columns["seen"] = ["" if one.seen is None else "yes" if one.seen else "no" for one in readings]
    return columns


def _line(label: str, text: str) -> None:
    terminal.say(f"{label:<{_LABEL_WIDTH}} {text}".rstrip())


def _range(first: int, stop: int) -> str:
    return f"{terminal.count(first)} to {terminal.count(stop - 1)}"


def _origin(origin: Origin | None) -> str:
    return "not known" if origin is None else terminal.safe(origin.place)


def _excerpt(text: str | None) -> str:
    shown = (text or "")[:_SHOWN_TEXT]
    return terminal.safe(shown) + ("..." if len(text or "") > _SHOWN_TEXT else "")


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:_SHOWN_RANKS]))
    more = f" and {len(ranks) - _SHOWN_RANKS} more" if len(ranks) > _SHOWN_RANKS else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}{more}"
