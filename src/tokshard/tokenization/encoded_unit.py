"""An encoded unit: its tokens are held in memory until their position in the output is known.

The tokens of field ``K`` of all units are stored in unit order in the file ``K.bin`` of the work directory.
So the position of a unit's tokens is known as soon as the sizes of all earlier units are, and the worker
that has the tokens in memory can write them there, at the same time as others write theirs. Without a
position they become part of the unit's part, and the assembly copies them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tokshard.corpus.records import DocumentBatch, RejectedRecord
from tokshard.corpus.units import LineUnit, Unit
from tokshard.storage import files, syscalls
from tokshard.tokenization.packing import PackedDocuments
from tokshard.tokenization.part import FieldCounts, PartHeader, PartWriter, UnitCounts, UnitKey

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# The tokens of more than one unit of the usual size; larger units go to disk as they are encoded.
HELD_BYTES = 48 << 20


@dataclass(frozen=True, slots=True)
class HeldUnit:
    """An encoded unit without a position yet."""

    key: UnitKey
    last: bool
    sizes: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as a message between processes."""
        return {"key": [self.key.file, self.key.index], "last": self.last, "sizes": self.sizes}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Return what :meth:`to_json` described."""
        return cls(UnitKey(*value["key"]), value["last"], tuple(value["sizes"]))


@dataclass(frozen=True, slots=True)
class Placement:
    """Position of a unit's tokens in the output: for each field, a file and a byte offset."""

    key: UnitKey
    paths: tuple[str, ...]
    offsets: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it as a message between processes."""
        return {"key": [self.key.file, self.key.index], "paths": self.paths, "offsets": self.offsets}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Return what :meth:`to_json` described."""
        return cls(UnitKey(*value["key"]), tuple(value["paths"]), tuple(value["offsets"]))


class Placements:
    """Finder of the positions of units as their sizes become known, in any order.

    Args:
        paths: The file of each field's tokens.
        offsets: Where the tokens of ``first`` belong in each.

    Example:
        >>> placements = Placements(UnitKey(0, 0), ["0.bin"], [0])
        >>> placements.locate(HeldUnit(UnitKey(0, 1), True, (6,)))
        []
        >>> [found.offsets for found in placements.locate(HeldUnit(UnitKey(0, 0), False, (4,)))]
        [(0,), (4,)]
    """

    def __init__(self, first: UnitKey, paths: Iterable[str], offsets: Iterable[int]) -> None:
        self._next = first
        self._paths = tuple(paths)
        self._offsets = tuple(offsets)
        self._waiting: dict[UnitKey, HeldUnit] = {}

    def locate(self, unit: HeldUnit) -> list[Placement]:
        """Take in the sizes of a unit; return the positions that are now known, in order."""
        self._waiting[unit.key] = unit
        found = []
        while (known := self._waiting.pop(self._next, None)) is not None:
            found.append(Placement(known.key, self._paths, self._offsets))
            self._offsets = tuple(map(sum, zip(self._offsets, known.sizes, strict=True)))
            self._next = known.key.following(last=known.last)
        return found


class EncodedUnit:
    """The result of encoding a unit; use as a context manager, which discards it at an exception.

    Batches are added, and then it is committed as a part: with its tokens inside, or with its tokens
    written to their position in the output. Peak memory: :data:`HELD_BYTES` and a batch.
    """

    def __init__(
        self,
        path: str,
        unit: Unit,
        *,
        fields: int,
        item_bytes: int,
        keeps_offsets: bool,
        encoder: str,
    ) -> None:
        import xxhash

        self._path = path
        self._unit = unit
        self._item_bytes = item_bytes
        self._encoder = encoder
        self._content_digest = xxhash.xxh3_128()
        self._tokens: list[list[NDArray[np.generic]]] = [[] for _ in range(fields)]
        self._index: dict[str, list[NDArray[np.generic]]] = {"offsets": []} if keeps_offsets else {}
        for k in range(fields):
            self._index |= {f"lengths.{k}": [], f"sequences.{k}": []}
        self.held_bytes = 0
        self.rejected: list[RejectedRecord] = []
        self.counts = UnitCounts(fields=(FieldCounts(),) * fields)
        self._writer: PartWriter | None = None
        self._open = ExitStack()

    @property
    def is_held(self) -> bool:
        """True if all of its tokens are in memory, so that they can be placed."""
        return self._writer is None

    @property
    def held(self) -> HeldUnit:
        """The space that its tokens take."""
        sizes = tuple(field.tokens * self._item_bytes for field in self.counts.fields)
        return HeldUnit(UnitKey.of(self._unit), self._unit.last, sizes)

    def add(self, batch: DocumentBatch, fields: Sequence[PackedDocuments], compared: int) -> None:
        """Add a batch, packed for each field; both encoders have encoded ``compared`` of its documents."""
        reasons: dict[str, int] = {}
        for record in batch.rejected:
            reasons[record.reason] = reasons.get(record.reason, 0) + 1
        self.counts += UnitCounts(
            records=batch.records,
            documents=len(batch.offsets),
            lines=batch.lines,
            blank_lines=batch.blank_lines,
            content_bytes=len(batch.raw),
            compared=compared,
            rejected=reasons,
            fields=tuple(packed.counts for packed in fields),
        )
        self.rejected += batch.rejected
        self._content_digest.update(batch.raw)
        if "offsets" in self._index:
            self._index["offsets"].append(batch.offsets)
        for k, packed in enumerate(fields):
            self._tokens[k].append(packed.tokens)
            self.held_bytes += packed.tokens.nbytes
            self._index[f"lengths.{k}"].append(packed.lengths)
            self._index[f"sequences.{k}"].append(packed.sequences)
        if self.held_bytes > HELD_BYTES or self._writer is not None:
            self._write_tokens()

    def commit(self, placement: Placement | None = None) -> None:
        """Commit the part, with the tokens at their placement (if they are still held) or inside the part.

        Raises:
            StorageError: The disk is full or broken. Nothing is committed.
        """
        with self:
            if placement is None:
                self._write_tokens()
            writer = self._opened()
            if placement is not None:
                for k, (path, offset) in enumerate(zip(placement.paths, placement.offsets, strict=True)):
                    buffers = [array.data for array in self._tokens[k]]
                    files.write_at(path, buffers, offset)
                    writer.place(f"tokens.{k}", buffers, offset)
            for stream, arrays in self._index.items():
                writer.write(stream, b"")
                for array in arrays:
                    writer.write(stream, array.data)
            writer.write("rejected", _rejected_lines(self.rejected))
            writer.finish(self._header())
            self._open.close()
        if isinstance(self._unit, LineUnit) and self._unit.temporary:
            syscalls.unlink(self._unit.path)

    def discard(self) -> None:
        """Discard the unit: nothing is committed."""
        if self._writer is not None:
            self._writer.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._open.__exit__(kind, error, trace)

    def _opened(self) -> PartWriter:
        if self._writer is None:
            self._writer = self._open.enter_context(PartWriter(self._path))
        return self._writer

    def _write_tokens(self) -> None:
        writer = self._opened()
        for k, arrays in enumerate(self._tokens):
            writer.write(f"tokens.{k}", b"")
            for array in arrays:
                writer.write(f"tokens.{k}", array.data)
            arrays.clear()
        self.held_bytes = 0

    def _header(self) -> PartHeader:
        return PartHeader(
            file=self._unit.file,
            unit=self._unit.index,
            last=self._unit.last,
            encoder=self._encoder,
            input_bytes=self._unit.input_bytes,
            content_xxh3_128=self._content_digest.hexdigest(),
            counts=self.counts,
        )


def _rejected_lines(records: list[RejectedRecord]) -> bytes:
    return "".join(
        json.dumps([record.offset, record.line, record.reason, record.detail, record.excerpt]) + "\n"
        for record in records
    ).encode("ascii")
