"""Options of tracing, and the items that it follows."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

from tokshard.core.codec import Count
from tokshard.core.options import Option, Options
from tokshard.errors import InputError, UsageError
from tokshard.ranks.options import DATA, MOVED, PATH_AS
from tokshard.samples.index.splits import SPLITS
from tokshard.storage.paths import strip_data_suffix
from tokshard.storage.reading import open_passed

if TYPE_CHECKING:
    from tokshard.checks.trace.report import TraceKind

ItemKind = Literal["line", "offset", "document"]
TraceQuery = Literal["step", "sample", "document", "source"]

_CONTENTS = "From samples to records"
_READS = "From records to reads"

_FORM = re.compile(r"(.+)([:@#])([0-9]{1,18})", re.DOTALL)
_KINDS: dict[str, ItemKind] = {":": "line", "@": "offset", "#": "document"}
_HINT = "write FILE:LINE (lines from 1), FILE@OFFSET (bytes from 0; rows of tables) or PREFIX#DOCUMENT"
_THROUGH: dict[TraceQuery, tuple[TraceKind, ...]] = {
    "step": ("plan",),
    "sample": ("plan", "blend", "index"),
    "document": ("dataset",),
    "source": ("plan", "blend", "index", "dataset"),
}


@dataclass(frozen=True, kw_only=True)
class TraceOptions(Options):
    """Options of :func:`tokshard.trace`: one of four products to trace through, and one thing to trace.

    Without ``tokenizer``, only texts of datasets with the built-in tokenizer are decoded. In a list of items,
    blank lines and lines that begin with ``# `` are skipped. Without a plan, samples are taken to be consumed
    in their order.

    Raises:
        UsageError: The options contradict each other.
    """

    plan: Annotated[str | None, Option("Trace through this plan.", metavar="PLAN", group=DATA)] = None
    blend: Annotated[str | None, Option("Trace through this blend.", metavar="BLEND", group=DATA)] = None
    index: Annotated[
        str | None,
        Option(
            "Trace through this index: its description.txt, or a dataset with its cache.",
            metavar="INDEX",
            group=DATA,
        ),
    ] = None
    dataset: Annotated[
        str | None, Option("Trace documents of this dataset.", metavar="PREFIX", group=DATA)
    ] = None
    split: Annotated[
        str | None,
        Option(
            "Trace this split: train, valid, test, or valid.0 and so on.",
            metavar="NAME",
            default="train; all with --source and --list",
            group=DATA,
        ),
    ] = None
    path_as: Annotated[tuple[tuple[str, str], ...], PATH_AS] = ()
    moved: Annotated[tuple[tuple[str, str], ...], MOVED] = ()
    step: Annotated[
        Count | None,
        Option(
            "Trace step N of the plan.",
            group=_CONTENTS,
            excludes=("sample", "document", "items", "item_list"),
        ),
    ] = None
    rank: Annotated[
        Count | None,
        Option("Trace only the samples of rank N of the job.", group=_CONTENTS, requires="step"),
    ] = None
    sample: Annotated[
        Count | None,
        Option(
            "Trace sample N, counted from 0.", group=_CONTENTS, excludes=("document", "items", "item_list")
        ),
    ] = None
    document: Annotated[
        Count | None,
        Option("Trace document N of the dataset, from 0.", group=_CONTENTS, excludes=("items", "item_list")),
    ] = None
    tokenizer: Annotated[
        str | None, Option("Decode texts with this tokenizer.", metavar="PATH", group=_CONTENTS)
    ] = None
    items: Annotated[
        tuple[str, ...],
        Option(
            "Find the reads of FILE:LINE, FILE@OFFSET or PREFIX#DOCUMENT.",
            name="--source",
            metavar="ITEM",
            group=_READS,
        ),
    ] = ()
    item_list: Annotated[
        str | None,
        Option(
            "Find the reads of the items in FILE, one per line.", name="--list", metavar="FILE", group=_READS
        ),
    ] = None
    consumed_samples: Annotated[
        Count | None,
        Option(
            "Report which reads a job has done after N samples.",
            group=_READS,
            requires=("items", "item_list"),
        ),
    ] = None

    def _validate(self) -> None:
        if not any(map(self.is_given, ("step", "sample", "document", "items", "item_list"))):
            raise UsageError(
                "one of --step, --sample, --document, --source and --list is required",
                hint="pass --step, --sample or --document to see contents, or --source ITEM or --list FILE "
                "to find reads",
            )
        if self.tokenizer is not None and self.query == "source":
            raise UsageError(f"--tokenizer has no effect with {self._items_option}, which shows no text")
        if self.split is not None and self.split.partition(".")[0] not in SPLITS:
            raise UsageError(
                f"--split must be {', '.join(SPLITS)}, or one of several such as valid.0, got {self.split!r}"
            )
        kind, _ = self.through
        if self.path_as and kind != "index":
            raise UsageError("--path-as requires --index", hint="pass --moved OLD=NEW for the data of a plan")
        if self.moved and kind != "plan":
            raise UsageError(
                "--moved requires --plan", hint="pass --path-as LOCAL=TRAINING for the data of an index"
            )

    @property
    def query(self) -> TraceQuery:
        """The one thing to trace; ``"source"`` for items."""
        queries: tuple[TraceQuery, ...] = ("step", "sample", "document")
        return next((name for name in queries if getattr(self, name) is not None), "source")

    @property
    def _items_option(self) -> str | None:
        # The first of the options that name items; None if there is none.
        if self.items:
            return "--source"
        return None if self.item_list is None else "--list"

    @property
    def through(self) -> tuple[TraceKind, str]:
        """The kind and the path of what is traced through."""
        values: dict[TraceKind, str | None] = {
            "plan": self.plan,
            "blend": self.blend,
            "index": self.index,
            "dataset": self.dataset,
        }
        given = [(kind, path) for kind, path in values.items() if path is not None]
        possible = _THROUGH[self.query]
        if len(given) != 1 or given[0][0] not in possible:
            option = self._items_option or f"--{self.query}"
            raise UsageError(
                f"{option} requires {' or '.join(f'--{kind}' for kind in possible)}, got "
                f"{' and '.join(f'--{kind}' for kind, _ in given) or 'none'}"
            )
        return given[0]

    def parsed_items(self) -> list[TraceItem]:
        """Return all items, those of the list last.

        Raises:
            InputError: The list cannot be read, or holds nothing.
            UsageError: An item is invalid.
        """
        return [*map(parse_item, self.items), *([] if self.item_list is None else read_items(self.item_list))]


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
