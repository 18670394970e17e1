"""Shards: the records and tokens of each file of an export, and the files that were written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tokshard.core.codec import Count, Record, Xxh3
from tokshard.exchange.records import Records, begin_of, first_end_above, first_end_at

Rule = Literal["below", "within", "reaches"]


@dataclass(frozen=True, slots=True)
class ShardRange:
    """Consecutive records.

    Attributes:
        number: Its number, from 0.
        first: Its first record.
        stop: The record after its last one.
        begin: The tokens before it.
        end: The tokens up to its end.
    """

    number: int
    first: int
    stop: int
    begin: int
    end: int

    @property
    def tokens(self) -> int:
        """The number of tokens."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class ExportedFile(Record):
    """A file of an export."""

    name: str
    size_bytes: Count
    xxh3_128: Xxh3
    tokens: Count | None = None


@dataclass(frozen=True, slots=True)
class Position:
    """The place in the records where the next shard begins."""

    record: int
    offset: int


@dataclass(frozen=True, slots=True)
class WrittenShard:
    """A shard whose files are written.

    Attributes:
        files: Its files.
        next: The place where the next shard begins.
        added: The tokens in it that the source does not have.
    """

    files: tuple[ExportedFile, ...]
    next: Position
    added: int

    @property
    def tokens(self) -> int:
        """The tokens in its files."""
        return sum(file.tokens or 0 for file in self.files)


def next_shard(records: Records, number: int, first: int, limit: int, rule: Rule) -> ShardRange | None:
    """Return the shard of whole records that begins with ``first``; None after the last one.

    A record larger than the limit is a shard of its own.

    Args:
        records: The records.
        number: The number of the shard.
        first: Its first record.
        limit: The tokens of a shard.
        rule: ``"below"``: a shard has fewer tokens than the limit. ``"within"``: at most as many.
            ``"reaches"``: it ends with the first record that reaches the limit.
    """
    if first >= records.count:
        return None
    begin = begin_of(records, first)
    if rule == "within":
        stop = first_end_above(records, begin + limit, first=first)
    else:
        stop = first_end_at(records, begin + limit, first=first) + (rule == "reaches")
    stop = min(max(stop, first + 1), records.count)
    return ShardRange(number, first, stop, begin, begin_of(records, stop))
