"""Options of tracing, and the items that it follows."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, NoReturn

from tokshard.core.codec import Count
from tokshard.core.options import Option, Options, StrPath
from tokshard.errors import InputError, UsageError
from tokshard.ranks.options import DATA, MOVED, PATH_AS
from tokshard.samples.index.splits import SPLITS, TRAIN
from tokshard.storage.paths import strip_data_suffix
from tokshard.storage.reading import open_passed

ItemKind = Literal["line", "offset", "document"]

_CONTENTS = "From samples to records"
_READS = "From records to reads"

_FORM = re.compile(r"(.+)([:@#])([0-9]{1,18})", re.DOTALL)
_KINDS: dict[str, ItemKind] = {":": "line", "@": "offset", "#": "document"}
_HINT = (
    "write FILE:LINE (lines from 1), FILE@OFFSET (bytes from 0; rows of tables), PREFIX#DOCUMENT, or @LIST "
    "for a file of these"
)


@dataclass(frozen=True, kw_only=True)
class TraceOptions(Options):
    """Options of :func:`tokshard.trace`: a product to trace through, and what to trace.

    Without ``tokenizer``, only texts of datasets with the built-in tokenizer are decoded. In a list of items,
    blank lines and lines that begin with ``# `` are skipped. Without a plan, samples are taken to be consumed
    in their order.

    Raises:
        UsageError: The options contradict each other.
    """

    path: Annotated[
        StrPath,
        Option(
            "A plan, rank manifest, blend, index cache or one of its files, or dataset (its path prefix).",
            is_argument=True,
            metavar="PATH",
        ),
    ]
    items: Annotated[
        tuple[str, ...],
        Option(
            "Find the reads of FILE:LINE, FILE@OFFSET or PREFIX#DOCUMENT, or of the items in @LIST, one per "
            "line.",
            is_argument=True,
            metavar="[ITEM...]",
        ),
    ] = ()
    split: Annotated[
        str | None,
        Option(
            "Trace this split: train, valid, test, or valid.0 and so on.",
            metavar="NAME",
            default="train; all with ITEM",
            group=DATA,
        ),
    ] = None
    path_as: Annotated[tuple[tuple[str, str], ...], PATH_AS] = ()
    moved: Annotated[tuple[tuple[str, str], ...], MOVED] = ()
    step: Annotated[
        Count | None,
        Option("Trace step N of the plan.", group=_CONTENTS, excludes=("sample", "document", "items")),
    ] = None
    rank: Annotated[
        Count | None,
        Option("Trace only the samples of rank N of the job.", group=_CONTENTS, requires="step"),
    ] = None
    sample: Annotated[
        Count | None,
        Option(
            "Trace sample N, counted from 0; of a plan also its reads.",
            group=_CONTENTS,
            excludes=("document", "items"),
        ),
    ] = None
    document: Annotated[
        Count | None,
        Option("Trace document N of the dataset, from 0.", group=_CONTENTS, excludes="items"),
    ] = None
    tokenizer: Annotated[
        str | None,
        Option(
            "Decode texts with this tokenizer.",
            metavar="PATH",
            group=_CONTENTS,
            excludes="items",
            reason="reads are shown without text",
        ),
    ] = None
    consumed_samples: Annotated[
        Count | None,
        Option("Report which reads a job has done after N samples.", group=_READS, requires="items"),
    ] = None

    def _validate(self) -> None:
        if not any(map(self.is_given, ("step", "sample", "document", "items"))):
            raise UsageError(
                "ITEM or one of --step, --sample and --document is required",
                hint="pass --step N, --sample N or --document N to see contents, or FILE:LINE or @LIST to "
                "find reads",
            )
        if self.split is not None and self.split.partition(".")[0] not in SPLITS:
            raise UsageError(
                f"--split must be {', '.join(SPLITS)}, or one of several such as valid.0, got {self.split!r}"
            )

    @property
    def stream(self) -> str | None:
        """The split that is traced; None for all."""
        return self.split if self.items else self.split or TRAIN

    def parsed_items(self) -> list[TraceItem]:
        """Return all items, also those in lists.

        Raises:
            InputError: A list cannot be read, or holds nothing.
            UsageError: An item is invalid.
        """
        parsed = []
        for item in self.items:
            parsed += read_items(item[1:]) if item.startswith("@") else [parse_item(item)]
        return parsed


@dataclass(frozen=True, slots=True)
class TraceItem:
    """A line, a byte position or a document to look for.

    Attributes:
        text: As the user wrote it.
        kind: What the number counts: lines from 1; bytes of the decompressed file, or rows of a table,
            from 0; documents of a dataset from 0.
        path: The file, or the path prefix of the dataset.
    """

    text: str
    kind: ItemKind
    path: str
    number: int


def parse_item(text: str) -> TraceItem:
    """Parse ``FILE:LINE``, ``FILE@OFFSET`` or ``PREFIX#DOCUMENT``.

    Raises:
        UsageError: The text has another form.

    Example:
        >>> parse_item("web.jsonl:17").kind, parse_item("out/web#3").number
        ('line', 3)
    """
    found = _FORM.fullmatch(text)
    if found is None:
        _refuse(f"{text!r} is not a line, byte or document")
    path, mark, digits = found.groups()
    kind, number = _KINDS[mark], int(digits)
    if kind == "line" and number == 0:
        _refuse(f"{text!r} is invalid: lines are numbered from 1")
    return TraceItem(text, kind, strip_data_suffix(path) if kind == "document" else path, number)


def read_items(path: str) -> list[TraceItem]:
    """Read a list of items, one a line; blank lines and lines that begin with ``# `` are skipped.

    Raises:
        InputError: It cannot be read, or holds nothing.
        UsageError: A line is not an item.
    """
    try:
        with io.TextIOWrapper(open_passed(path), "utf-8-sig", "surrogateescape", newline="\n") as file:
            lines = [line.strip() for line in file]
    except OSError as error:
        raise InputError(f"cannot read the list {path}: {error.strerror}") from error
    items = list(_items_of(lines, path))
    if not items:
        raise InputError(f"the list {path} is empty", hint=_HINT)
    return items


def _items_of(lines: list[str], path: str) -> Iterator[TraceItem]:
    for number, line in enumerate(lines, 1):
        if line and line != "#" and not line.startswith("# "):
            try:
                yield parse_item(line)
            except UsageError as error:
                raise UsageError(f"{path}:{number}: {error.message}", hint=error.hint) from None


def _refuse(problem: str) -> NoReturn:
    raise UsageError(problem, hint=_HINT)
