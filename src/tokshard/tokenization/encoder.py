"""The encoder: turns one unit into one committed part. Each worker has one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tokshard.corpus.records import DocumentBatch, RejectedRecord, read_documents
from tokshard.corpus.units import LineUnit, Unit
from tokshard.storage import calls
from tokshard.tokenization import engines, gate
from tokshard.tokenization.packing import pack_documents
from tokshard.tokenization.part import FieldCounts, PartWriter, UnitCounts, UnitKey
from tokshard.tokenization.recipe import Recipe
from tokshard.tokenization.structure import FastEngineRefusedError
from tokshard.tokenization.tokenizer import Tokenizer, reopen_tokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Large batches amortise the calls into the engine; the reference is slow, and a stop must be quick.
_FAST_BATCH_BYTES = 4 << 20
_REFERENCE_BATCH_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Task:
    """One unit to encode.

    Attributes:
        unit: What to read.
        name: What to call the input in errors.
        compare_below: Documents before this position of the input are all compared by the gate.
    """

    unit: Unit
    name: str
    compare_below: int

    @property
    def key(self) -> UnitKey:
        """Which unit it is."""
        return UnitKey(self.unit.file, self.unit.index)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a task.

    Attributes:
        key: Which unit.
        input_bytes: On-disk input bytes that the unit stands for.
        refused: The record at which the unit was given up, because the recipe allows no more rejected
            ones; None if the part was committed.
    """

    key: UnitKey
    input_bytes: int
    refused: RejectedRecord | None = None


class UnitEncoder:
    """Encodes units by a recipe.

    Args:
        recipe: What to do with each unit.
        parts_directory: Where parts are committed.

    Raises:
        TokenizerError: The tokenizer is not the one that the recipe names, or the fast engine refuses it.
    """

    def __init__(self, recipe: Recipe, parts_directory: str) -> None:
        import numpy as np

        self._recipe = recipe
        self._parts_directory = parts_directory
        self._dtype = np.dtype(recipe.dtype)
        tokenizer = reopen_tokenizer(recipe.tokenizer, recipe.tokenizer_identity)
        self._reference = _LateReference(tokenizer, special_tokens=recipe.special_tokens)
        self._engine = self._choose_engine(tokenizer)
        self._batch_bytes = _FAST_BATCH_BYTES if self._engine.name == "fast" else _REFERENCE_BATCH_BYTES

    def _choose_engine(self, tokenizer: Tokenizer) -> engines.Engine:
        if self._recipe.engine == "fast":
            try:
                # The job chose this engine, so the structural gate has let the tokenizer pass.
                return engines.fast_engine(tokenizer, special_tokens=self._recipe.special_tokens, vetted=True)
            except FastEngineRefusedError:
                if not self._recipe.fallback:
                    raise
        return self._reference

    def encode(self, task: Task, report: Callable[[int, int, int], None]) -> Outcome:
        """Encode a unit and commit its part.

        Args:
            task: The unit.
            report: Called after each batch with the content bytes, documents and tokens it had.
        """
        path = os.path.join(self._parts_directory, task.key.part_name)
        with _Part(path, self._recipe, self._dtype) as part:
            batches = read_documents(
                task.unit,
                self._recipe.fields,
                batch_bytes=self._batch_bytes,
                max_document_bytes=self._recipe.max_document_bytes,
            )
            for batch in batches:
                tokens_before = part.tokens
                self._encode_batch(batch, task, part)
                if (refused := part.over_limit) is not None:
                    part.discard()
                    return Outcome(task.key, 0, refused)
                report(len(batch.raw), len(batch.offsets), part.tokens - tokens_before)
            part.finish(task, self._engine.name)
        if isinstance(task.unit, LineUnit) and task.unit.temporary:
            calls.unlink(task.unit.path)
        return Outcome(task.key, task.unit.input_bytes)

    def _encode_batch(self, batch: DocumentBatch, task: Task, part: _Part) -> None:
        compared = 0
        for number, texts in enumerate(batch.texts):
            encoded = self._engine.encode(texts)
            if self._engine.name == "fast":
                chosen = gate.sample(batch.offsets, task.unit.file, task.compare_below)
                compared = len(chosen)
                chosen_texts = _texts_of(chosen, batch.sequences_per_document[number])
                gate.compare(texts, encoded, chosen_texts, self._reference, task.name)
            packed = pack_documents(
                encoded.ids,
                encoded.offsets,
                batch.sequences_per_document[number],
                dtype=self._dtype,
                eod_id=self._recipe.eod_id,
                append_eod=self._recipe.append_eod,
            )
            part.add_field(number, packed.tokens, packed.lengths, packed.sequences, packed.counts)
        part.add_batch(batch, compared)


class _LateReference:
    """The reference engine, loaded when it is first needed: a worker may never have a text to compare."""

    name = "reference"

    def __init__(self, tokenizer: Tokenizer, *, special_tokens: bool) -> None:
        self._load = partial(engines.reference_engine, tokenizer, special_tokens=special_tokens)
        self._engine: engines.Engine | None = None

    def encode(self, texts: list[str]) -> engines.EncodedBatch:
        if self._engine is None:
            self._engine = self._load()
        return self._engine.encode(texts)


def _texts_of(
    documents: NDArray[np.int64], texts_per_document: NDArray[np.uint32] | None
) -> NDArray[np.int64]:
    """Return the indices of all texts of some documents."""
    import numpy as np

    if texts_per_document is None:
        return documents
    ends = np.cumsum(texts_per_document, dtype=np.int64)
    pieces = [np.arange(ends[index] - texts_per_document[index], ends[index]) for index in documents]
    return np.concatenate(pieces) if pieces else documents


class _Part:
    """A part being written, with its counts."""

    def __init__(self, path: str, recipe: Recipe, dtype: np.dtype[np.generic]) -> None:
        import xxhash

        self._recipe = recipe
        self._writer = PartWriter(path)
        self._dtype = dtype
        self._content_digest = xxhash.xxh3_128()
        self._index: dict[str, list[NDArray[np.generic]]] = {"offsets": []} if recipe.offsets else {}
        self._rejected: list[RejectedRecord] = []
        self._counts = UnitCounts(fields=[FieldCounts() for _ in recipe.fields])

    @property
    def tokens(self) -> int:
        return sum(one.tokens for one in self._counts.fields)

    @property
    def over_limit(self) -> RejectedRecord | None:
        """The first record beyond the allowed number of rejected ones."""
        limit = self._recipe.max_rejected
        if limit is None or len(self._rejected) <= limit:
            return None
        return self._rejected[limit]

    def add_field(
        self,
        number: int,
        tokens: NDArray[np.generic],
        lengths: NDArray[np.int32],
        sequences: NDArray[np.uint32],
        counts: FieldCounts,
    ) -> None:
        self._writer.write(f"tokens.{number}", tokens.data)
        self._index.setdefault(f"lengths.{number}", []).append(lengths)
        self._index.setdefault(f"sequences.{number}", []).append(sequences)
        self._counts.fields[number].add(counts)

    def add_batch(self, batch: DocumentBatch, compared: int) -> None:
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

    def discard(self) -> None:
        self._writer.discard()

    def finish(self, task: Task, engine: str) -> None:
        for number in range(len(self._recipe.fields)):
            self._writer.write(f"tokens.{number}", b"")
            self._index.setdefault(f"lengths.{number}", [])
            self._index.setdefault(f"sequences.{number}", [])
        for stream, arrays in self._index.items():
            self._writer.write(stream, b"")
            for array in arrays:
                self._writer.write(stream, array.data)
        self._writer.write("rejected", _rejected_lines(self._rejected))
        self._writer.finish(
            {
                "unit": [task.key.file, task.key.index],
                "last": task.unit.last,
                "engine": engine,
                "input_bytes": task.unit.input_bytes,
                "content_xxh3_128": self._content_digest.hexdigest(),
                "counts": self._counts.to_json(),
            }
        )

    def __enter__(self) -> Self:
        self._writer.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.__exit__(kind, error, trace)


def _rejected_lines(records: list[RejectedRecord]) -> bytes:
    return "".join(
        json.dumps([one.offset, one.line, one.reason, one.detail, one.excerpt]) + "\n" for one in records
    ).encode("ascii")
