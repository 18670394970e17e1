"""One pass over all tokens of a dataset: ids, ends of documents, and the places of special tokens."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.checks.verify.context import VerifyContext
from tokshard.dataset.reader import IndexedDataset
from tokshard.dataset.source import FileTokens, open_data
from tokshard.storage.paths import bin_path

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BLOCK_TOKENS = 1 << 19
_TASK_BYTES = 64 << 20
_TASK_DOCUMENTS = 1 << 18
# Up to this many ranges of ids, comparing with each is faster than a table of all ids.
_MOST_RANGES = 8
# Of an unknown vocabulary: only negative ids are outside.
_NO_LIMIT = 2**63
_COUNTS = ("occurrences", "starts", "ends", "elsewhere")


@dataclass(frozen=True, slots=True)
class TokenRules:
    """Expectations about the tokens.

    Attributes:
        limit: Ids must be below this, and not negative; None if the vocabulary is unknown.
        eod_id: The EOD token; None if unknown.
        ends_with_eod: Whether every document with tokens ends with it; None if unknown.
        prefix: The ids that ``--special-tokens`` adds before each text.
        suffix: The same after each text.
        has_template: Whether each text has these; None if unknown.
        special: Further ids to count.
    """

    limit: int | None = None
    eod_id: int | None = None
    ends_with_eod: bool | None = None
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()
    has_template: bool | None = None
    special: tuple[int, ...] = ()

    @property
    def counted(self) -> tuple[int, ...]:
        """All ids that are counted, ascending."""
        eod = () if self.eod_id is None else (self.eod_id,)
        return tuple(sorted({*eod, *self.prefix, *self.suffix, *self.special}))


@dataclass(slots=True)
class IdTally:
    """Counts of one id.

    Attributes:
        occurrences: All.
        starts: Documents that begin with it.
        ends: Documents that end with it.
        elsewhere: Occurrences that are neither the EOD token of a document nor from the template of a text.
        first_elsewhere: The document of the first of these.
    """

    occurrences: int = 0
    starts: int = 0
    ends: int = 0
    elsewhere: int = 0
    first_elsewhere: int | None = None

    def merge(self, later: IdTally) -> None:
        """Add the counts of the following part."""
        self.occurrences += later.occurrences
        self.starts += later.starts
        self.ends += later.ends
        self.elsewhere += later.elsewhere
        if self.first_elsewhere is None:
            self.first_elsewhere = later.first_elsewhere


@dataclass(slots=True)
class Missing:
    """Documents or sequences that do not have something.

    Attributes:
        count: How many.
        first: The document of the first one.
    """

    count: int = 0
    first: int | None = None

    def merge(self, later: Missing) -> None:
        """Add the counts of the following part."""
        self.count += later.count
        if self.first is None:
            self.first = later.first


@dataclass(slots=True)
class TokenTally:
    """Counts of a scan.

    Attributes:
        outside: Tokens that are negative or not in the vocabulary.
        first_outside: The first of them: (its number in the ``.bin``, its id).
        documents: Documents with tokens.
        sequences: Sequences with tokens.
        without_eod: Documents with tokens that do not end with EOD.
        without_prefix: Sequences with tokens that do not begin with the prefix.
        without_suffix: The same that do not end with the suffix (before an EOD token).
        ids: The counts of each id of :attr:`TokenRules.counted`.
    """

    outside: int = 0
    first_outside: tuple[int, int] | None = None
    documents: int = 0
    sequences: int = 0
    without_eod: Missing = field(default_factory=Missing)
    without_prefix: Missing = field(default_factory=Missing)
    without_suffix: Missing = field(default_factory=Missing)
    ids: dict[int, IdTally] = field(default_factory=dict)

    @classmethod
    def of(cls, rules: TokenRules) -> TokenTally:
        """Return a tally without any count."""
        return cls(ids={identifier: IdTally() for identifier in rules.counted})

    def merge(self, later: TokenTally) -> None:
        """Add the counts of the following part."""
        self.outside += later.outside
        if self.first_outside is None:
            self.first_outside = later.first_outside
        self.documents += later.documents
        self.sequences += later.sequences
        self.without_eod.merge(later.without_eod)
        self.without_prefix.merge(later.without_prefix)
        self.without_suffix.merge(later.without_suffix)
        for identifier, counts in self.ids.items():
            counts.merge(later.ids[identifier])


def scan_tokens(dataset: IndexedDataset, rules: TokenRules, context: VerifyContext) -> TokenTally:
    """Read all tokens and count what the rules ask for, in threads and bounded memory.

    The EOD token at the end of a document, if documents end with it, and the ids of the template at both
    ends of a sequence, if texts have it, are in their places; all others of these ids are elsewhere.

    Raises:
        IntegrityError, StorageError: The ``.bin`` cannot be read to its end.
    """
    size = dataset.index.token_count * dataset.dtype.itemsize
    tokens = FileTokens(open_data(bin_path(dataset.path_prefix)), dataset.dtype)
    tally = TokenTally.of(rules)
    for found in context.runner.run(
        lambda part: _PartScan(dataset, tokens, rules, *part).run(context), _parts(dataset, size), size
    ):
        tally.merge(found)
    return tally


def _parts(dataset: IndexedDataset, size: int) -> list[tuple[int, int]]:
    # Many ranges where there are many tokens, and never too many documents in one.
    count = dataset.document_count
    parts = max(1, -(-size // _TASK_BYTES), -(-count // _TASK_DOCUMENTS))
    edges = [count * part // parts for part in range(parts + 1)]
    return [(first, stop) for first, stop in pairwise(edges) if stop > first]


class _PartScan:
    """The scan of some documents, block by block.

    A block is read with a margin at both ends, in which the template of a sequence at its edge ends.
    """

    def __init__(
        self, dataset: IndexedDataset, tokens: FileTokens, rules: TokenRules, first: int, stop: int
    ) -> None:
        self._pointers = dataset.index.sequence_pointers
        self._itemsize = dataset.dtype.itemsize
        self._tokens = tokens
        self._rules = rules
        self._first = first
        edges = dataset.document_indices[first : stop + 1]
        self._sequences = int(edges[0]), int(edges[-1])
        self._ends = _document_ends(dataset, first, stop)
        # Those of documents with tokens.
        self._edges = self._ends[np.diff(self._ends, prepend=-1) > 0]
        self._margin = len(rules.prefix) + len(rules.suffix) + 1
        self._ids = np.array(rules.counted, np.int64)
        self._ranges = _ranges(rules.counted)
        self._is_found = np.zeros(len(self._ids), np.bool_)
        self._counts = {name: np.zeros(len(self._ids), np.int64) for name in _COUNTS}
        self.tally = TokenTally.of(rules)

    def run(self, context: VerifyContext) -> TokenTally:
        """Scan all blocks."""
        low, high = int(self._ends[0]), int(self._ends[-1])
        self.tally.documents = len(self._edges) - 1
        for begin in range(low, high, _BLOCK_TOKENS):
            end = min(begin + _BLOCK_TOKENS, high)
            left, right = max(begin - self._margin, low), min(end + self._margin, high)
            window = self._tokens.read(left, right - left)
            context.runner.count_bytes((end - begin) * self._itemsize)
            block = window[begin - left : end - left]
            if self._rules.limit is not None or block.dtype.kind == "i":
                _look_for_outside(self.tally, block, self._rules.limit or _NO_LIMIT, begin)
            if len(self._ids):
                self._count(window, left, begin, end)
        for name, counts in self._counts.items():
            for identifier, count in zip(self.tally.ids, counts.tolist(), strict=True):
                setattr(self.tally.ids[identifier], name, count)
        return self.tally

    def _count(self, window: NDArray[Any], left: int, begin: int, end: int) -> None:
        block = window[begin - left : end - left]
        places = np.flatnonzero(_candidates(block, self._ranges))
        which, places = self._which(block[places], places)
        edges = self._marked_edges(left, left + len(window))
        self._add("occurrences", which)
        self._add("starts", which[edges[places + (begin - left)]])
        self._add("ends", which[edges[places + (begin - left + 1)]])
        elsewhere = ~self._in_place(window, edges, left, begin, end)[places]
        places, which = places[elsewhere], which[elsewhere]
        self._add("elsewhere", which)
        # Each number once is enough, and only the first time.
        for number in np.flatnonzero(~self._is_found & (np.bincount(which, minlength=len(self._ids)) > 0)):
            place = int(places[np.argmax(which == number)]) + begin
            self.tally.ids[int(self._ids[number])].first_elsewhere = self._document_at(place)
            self._is_found[number] = True

    def _which(
        self, values: NDArray[Any], places: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        # The number of each value among the counted ids, and its place; other values are left out.
        number: NDArray[np.int64] = np.subtract(values, self._ids[0], dtype=np.int64)
        if len(self._ranges) > 1:
            number = np.minimum(np.searchsorted(self._ids, number + self._ids[0]), len(self._ids) - 1)
            right = self._ids[number] == values
            return number[right], places[right]
        return number, places

    def _marked_edges(self, left: int, right: int) -> NDArray[np.bool_]:
        # Where documents with tokens begin or end, bool of shape (tokens + 1,).
        marks = np.zeros(right - left + 1, np.bool_)
        low = np.searchsorted(self._edges, left, side="left")
        high = np.searchsorted(self._edges, right, side="right")
        marks[self._edges[low:high] - left] = True
        return marks

    def _add(self, name: str, which: NDArray[np.int64]) -> None:
        self._counts[name] += np.bincount(which, minlength=len(self._ids))

    def _document_at(self, place: int) -> int:
        return self._first + int(np.searchsorted(self._ends, place, side="right")) - 1

    def _in_place(
        self, window: NDArray[Any], edges: NDArray[np.bool_], left: int, begin: int, end: int
    ) -> NDArray[np.bool_]:
        # Which tokens of the block are EOD tokens or templates in their places; counts what has none.
        rules, tally = self._rules, self.tally
        starts, stops = self._sequences_within(left, left + len(window))
        begins_here = (starts >= begin) & (starts < end)
        ends_here = (stops > begin) & (stops <= end)
        tally.sequences += int(np.count_nonzero(ends_here))
        marks = np.zeros(len(window), np.bool_)
        if rules.eod_id is not None:
            is_last = (stops <= left + len(window)) & edges[np.minimum(stops - left, len(window))]
            has_eod = is_last & self._match(window, left, stops - 1, (rules.eod_id,))
            self._miss(tally.without_eod, starts[is_last & ends_here & ~has_eod])
            if rules.ends_with_eod is not False:
                marks[stops[has_eod] - 1 - left] = True
                stops = stops - has_eod
        if rules.has_template is not False and (rules.prefix or rules.suffix):
            has_prefix = stops - starts >= len(rules.prefix)
            has_prefix &= self._match(window, left, starts, rules.prefix)
            _mark(marks, starts[has_prefix] - left, len(rules.prefix))
            self._miss(tally.without_prefix, starts[begins_here & ~has_prefix])
            has_suffix = stops - starts - len(rules.prefix) * has_prefix >= len(rules.suffix)
            has_suffix &= self._match(window, left, stops - len(rules.suffix), rules.suffix)
            _mark(marks, stops[has_suffix] - len(rules.suffix) - left, len(rules.suffix))
            self._miss(tally.without_suffix, starts[ends_here & ~has_suffix])
        return marks[begin - left : end - left]

    def _sequences_within(self, left: int, right: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        # The starts and ends, in tokens, of sequences with tokens in a range.
        first, stop = self._sequences
        pointers = self._pointers[first:stop]
        # Not searchsorted, which copies all pointers: those of an .idx are not aligned.
        low = max(bisect_right(pointers, left * self._itemsize) - 1, 0)
        high = bisect_left(pointers, right * self._itemsize)
        edges = np.empty(high - low + 1, np.int64)
        edges[:-1] = pointers[low:high]
        edges[:-1] //= self._itemsize
        edges[-1] = pointers[high] // self._itemsize if high < len(pointers) else self._ends[-1]
        starts, ends = edges[:-1], edges[1:]
        filled = ends > starts
        return (starts, ends) if filled.all() else (starts[filled], ends[filled])

    def _match(
        self, window: NDArray[Any], left: int, places: NDArray[np.int64], ids: tuple[int, ...]
    ) -> NDArray[np.bool_]:
        # Whether the tokens from each place are these; false where they are not within the window.
        places = places - left
        found = (places >= 0) & (places <= len(window) - len(ids))
        for offset, identifier in enumerate(ids):
            found &= window.take(places + offset, mode="clip") == identifier
        return found

    def _miss(self, missing: Missing, starts: NDArray[np.int64]) -> None:
        missing.merge(Missing(len(starts), self._document_at(int(starts[0])) if len(starts) else None))


def _mark(marks: NDArray[np.bool_], places: NDArray[np.int64], width: int) -> None:
    for offset in range(width):
        marks[places + offset] = True


def _ranges(ids: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return the ranges (first, last) of neighbouring ids.

    Example:
        >>> _ranges((0, 1, 2, 7))
        [(0, 2), (7, 7)]
    """
    found: list[tuple[int, int]] = []
    for identifier in ids:
        if found and found[-1][1] == identifier - 1:
            found[-1] = found[-1][0], identifier
        else:
            found.append((identifier, identifier))
    return found


def _candidates(block: NDArray[Any], ranges: list[tuple[int, int]]) -> NDArray[np.bool_]:
    # Where the ids are, and perhaps a few others. Ids that the dtype cannot hold do not occur.
    limits = np.iinfo(block.dtype)
    ranges = [
        (max(first, int(limits.min)), min(last, int(limits.max)))
        for first, last in ranges
        if first <= limits.max
    ]
    if len(ranges) > _MOST_RANGES:
        table = np.zeros(ranges[-1][1] + 2, np.bool_)
        for first, last in ranges:
            table[first : last + 1] = True
        return table.take(block, mode="clip")
    found = np.zeros(len(block), np.bool_)
    if not ranges:
        return found
    for first, last in ranges:
        if first == last:
            found |= block == first
        elif first <= 0:
            found |= block <= last
        else:
            found |= (block >= first) & (block <= last)
    return found


def _look_for_outside(tally: TokenTally, block: NDArray[Any], limit: int, begin: int) -> None:
    # Minimum and maximum first: almost always they settle it, in half the time.
    if block.size and int(block.min()) >= 0 and int(block.max()) < limit:
        return
    wrong = np.flatnonzero((block < 0) | (block >= limit))
    tally.outside += len(wrong)
    if tally.first_outside is None and len(wrong):
        tally.first_outside = begin + int(wrong[0]), int(block[wrong[0]])


def _document_ends(dataset: IndexedDataset, first: int, stop: int) -> NDArray[np.int64]:
    # int64 of shape (documents + 1,), in tokens.
    edges = dataset.document_indices[first : stop + 1]
    index = dataset.index
    pointers = index.sequence_pointers
    if not index.sequence_count:
        return np.zeros(len(edges), np.int64)
    low, high = int(edges[0]), int(edges[-1])
    if high - low == stop - first and high < index.sequence_count and bool((np.diff(edges) == 1).all()):
        return np.asarray(pointers[low : high + 1] // index.dtype.itemsize)
    inside = np.minimum(edges, index.sequence_count - 1)
    return np.where(edges < index.sequence_count, pointers[inside] // index.dtype.itemsize, index.token_count)
