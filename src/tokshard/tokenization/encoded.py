"""An encoded unit: its tokens, in memory until it is said where they go, and what tells of its documents."""

from __future__ import annotations

import json
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tokshard.corpus.records import DocumentBatch, RejectedRecord
from tokshard.corpus.units import LineUnit, Unit
from tokshard.storage import files, syscalls
from tokshard.tokenization.counts import FieldCounts, UnitCounts
from tokshard.tokenization.packing import PackedDocuments
from tokshard.tokenization.part import PartWriter, UnitKey
from tokshard.tokenization.placement import Measured, Place
from tokshard.tokenization.recipe import Recipe

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# The tokens of more than one unit of the usual size; larger units go to disk as they are encoded.
HELD_BYTES = 48 << 20


class EncodedUnit:
    """What became of a unit; use as a context manager, which gives it up at an exception.

    Batches are added, and then it is committed as a part: with its tokens inside, or with its tokens
    written to their place in the output. Peak memory: :data:`HELD_BYTES` and a batch.

    Args:
        path: Where the part is committed.
        key: Which unit.
        unit: What is read.
        recipe: How it is encoded.
        engine: The name of the engine that encodes it.
    """

    def __init__(self, path: str, key: UnitKey, unit: Unit, recipe: Recipe, engine: str) -> None:
        import numpy as np
        import xxhash

        self._path = path
        self._key = key
        self._unit = unit
        self._recipe = recipe
        self._engine = engine
        self._item_bytes = np.dtype(recipe.dtype).itemsize
        self._content_digest = xxhash.xxh3_128()
        self._tokens: list[list[NDArray[np.generic]]] = [[] for _ in recipe.fields]
        self._held_bytes = 0
        self._index: dict[str, list[NDArray[np.generic]]] = {"offsets": []} if recipe.offsets else {}
        for number in range(len(recipe.fields)):
            self._index |= {f"lengths.{number}": [], f"sequences.{number}": []}
        self._rejected: list[RejectedRecord] = []
        self._counts = UnitCounts(fields=[FieldCounts() for _ in recipe.fields])
        self._writer: PartWriter | None = None
        self._open = ExitStack()

    @property
    def tokens(self) -> int:
        """How many tokens it has, of all fields."""
        return sum(one.tokens for one in self._counts.fields)

    @property
    def held_bytes(self) -> int:
        """How many bytes of tokens are in memory."""
        return self._held_bytes

    @property
    def is_held(self) -> bool:
        """Whether all of its tokens are in memory, so that they can be placed."""
        return self._writer is None

    @property
    def measured(self) -> Measured:
        """How much room its tokens take."""
        sizes = tuple(one.tokens * self._item_bytes for one in self._counts.fields)
        return Measured(self._key, self._unit.last, sizes)

    @property
    def over_limit(self) -> RejectedRecord | None:
        """The first record beyond the allowed number of rejected ones."""
        limit = self._recipe.max_rejected
        if limit is None or len(self._rejected) <= limit:
            return None
        return self._rejected[limit]

    def add_field(self, number: int, packed: PackedDocuments) -> None:
        """Add one field of a batch."""
        self._tokens[number].append(packed.tokens)
        self._held_bytes += packed.tokens.nbytes
        self._index[f"lengths.{number}"].append(packed.lengths)
        self._index[f"sequences.{number}"].append(packed.sequences)
        self._counts.fields[number].add(packed.counts)

    def add_batch(self, batch: DocumentBatch, compared: int) -> None:
        """Add what a batch is besides its fields, which have been added."""
        counts = self._counts
        self._content_digest.update(batch.raw)
        if self._recipe.offsets:
            self._index["offsets"].append(batch.offsets)
        for record in batch.rejected:
            counts.rejected[record.reason] = counts.rejected.get(record.reason, 0) + 1
        self._rejected += batch.rejected
        counts.records += batch.records
        counts.documents += len(batch.offsets)
        counts.lines += batch.lines
        counts.blank_lines += batch.blank_lines
        counts.content_bytes += len(batch.raw)
        counts.compared += compared
        if self._held_bytes > HELD_BYTES or self._writer is not None:
            self._write_tokens()

    def commit(self, place: Place | None = None) -> None:
        """Commit the part.

        Args:
            place: Where the tokens are to be written; None to put them into the part. Only what is
                still held can be placed.

        Raises:
            StorageError: The disk is full or broken. Nothing is committed.
        """
        with self:
            if place is None:
                self._write_tokens()
            writer = self._opened()
            if place is not None:
                for number, (path, offset) in enumerate(zip(place.paths, place.offsets, strict=True)):
                    buffers = [array.data for array in self._tokens[number]]
                    files.write_at(path, buffers, offset)
                    writer.place(f"tokens.{number}", buffers, offset)
            for stream, arrays in self._index.items():
                writer.write(stream, b"")
                for array in arrays:
                    writer.write(stream, array.data)
            writer.write("rejected", _rejected_lines(self._rejected))
            writer.finish(self._header())
            self._open.close()
        if isinstance(self._unit, LineUnit) and self._unit.temporary:
            syscalls.unlink(self._unit.path)

    def discard(self) -> None:
        """Give the unit up: nothing is committed."""
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
        """Write the tokens that are held into the part."""
        writer = self._opened()
        for number, arrays in enumerate(self._tokens):
            writer.write(f"tokens.{number}", b"")
            for array in arrays:
                writer.write(f"tokens.{number}", array.data)
            arrays.clear()
        self._held_bytes = 0

    def _header(self) -> dict[str, object]:
        return {
            "unit": [self._key.file, self._key.index],
            "last": self._unit.last,
            "engine": self._engine,
            "input_bytes": self._unit.input_bytes,
            "content_xxh3_128": self._content_digest.hexdigest(),
            "counts": self._counts.to_json(),
        }


def _rejected_lines(records: list[RejectedRecord]) -> bytes:
    return "".join(
        json.dumps([one.offset, one.line, one.reason, one.detail, one.excerpt]) + "\n" for one in records
    ).encode("ascii")
