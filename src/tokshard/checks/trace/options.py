"""Options of tracing, and the items that it follows."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NoReturn

from tokshard.core.path_mapping import PathMapping
from tokshard.errors import InputError, UsageError
from tokshard.samples.index.splits import SPLITS
from tokshard.storage.paths import strip_data_suffix
from tokshard.storage.reading import open_passed

if TYPE_CHECKING:
    from tokshard.checks.trace.report import TraceKind

ItemKind = Literal["line", "offset", "document"]
TraceQuery = Literal["step", "sample", "document", "source"]

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
class TraceOptions:
    """Options of :func:`tokshard.trace`: one of four things to trace through, and one thing to trace.

    Attributes:
        plan: A plan: its directory or its ``plan.json``.
        blend: A blend: its directory or its ``blend.json``.
        index: An index: its ``description.txt``, or a dataset with an index in its default cache.
        dataset: The path prefix of a dataset.
        split: The stream: ``train``, ``valid``, ``test``, ``valid.0``, ...; None is ``train`` for a step or a
            sample, and all streams for items.
        path_as: Where data that an index names by other paths is stored: pairs (path here, path there).
        moved: Where data of a plan has moved: old and new beginnings of paths.
        step: Trace the samples of this step of a plan to their records.
        rank: Only those of this rank of the job.
        sample: Trace this sample of a stream, from 0.
        document: Trace this document of a dataset, from 0.
        tokenizer: Decode texts with this tokenizer. None decodes only datasets of the built-in one.
        items: Find the reads of these lines and documents; see :func:`parse_item`.
        item_list: A file with such an item on each line; blank lines and lines that begin with ``# `` are
            skipped.
        consumed_samples: Report which reads were seen when all ranks had consumed so many samples of
            training, or of the given split. Without a plan, samples are taken to be consumed in their order.

    Raises:
        UsageError: The options contradict each other.
    """

    plan: str | None = None
    blend: str | None = None
    index: str | None = None
    dataset: str | None = None
    split: str | None = None
    path_as: tuple[tuple[str, str], ...] = ()
    moved: PathMapping = field(default_factory=PathMapping)
    step: int | None = None
    rank: int | None = None
    sample: int | None = None
    document: int | None = None
    tokenizer: str | None = None
    items: tuple[str, ...] = ()
    item_list: str | None = None
    consumed_samples: int | None = None

    def __post_init__(self) -> None:
        backwards = self.query == "source"
        inapplicable = {
            "--rank requires --step": self.rank is not None and self.query != "step",
            "--consumed-samples requires --source or --list": self.consumed_samples is not None
            and not backwards,
            f"--tokenizer has no effect with {self._items_option}, which shows no text": self.tokenizer
            is not None
            and backwards,
        }
        for problem, applies in inapplicable.items():
            if applies:
                raise UsageError(problem)
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
        queries: dict[TraceQuery, str | None] = {
            "step": None if self.step is None else "--step",
            "sample": None if self.sample is None else "--sample",
            "document": None if self.document is None else "--document",
            "source": self._items_option,
        }
        given = [(query, option) for query, option in queries.items() if option is not None]
        if not given:
            raise UsageError(
                "one of --step, --sample, --document, --source and --list is required",
                hint="pass --step, --sample or --document to see contents, or --source ITEM or --list FILE "
                "to find reads",
            )
        if len(given) > 1:
            raise UsageError(f"{given[0][1]} and {given[1][1]} exclude each other")
        return given[0][0]

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
