"""The encoder: turns one unit into one committed part. Each worker has one."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tokshard.corpus.records import DocumentBatch, RejectedRecord, read_documents
from tokshard.corpus.units import Unit
from tokshard.tokenization.encoded import EncodedUnit
from tokshard.tokenization.packing import pack_documents
from tokshard.tokenization.part import UnitKey
from tokshard.tokenization.recipe import Recipe
from tokshard.tokenizer import encoders, equivalence
from tokshard.tokenizer.definition import Tokenizer, reopen_tokenizer
from tokshard.tokenizer.structure import FastEncoderRefusedError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


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

    @property
    def outcome(self) -> Outcome:
        """What becomes of it when its part is committed."""
        return Outcome(self.key, self.unit.input_bytes)


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

    Attributes:
        parts_directory: The same; it may be changed between two units.

    Raises:
        TokenizerError: The tokenizer is not the one that the recipe names, or the fast engine refuses it.
    """

    def __init__(self, recipe: Recipe, parts_directory: str) -> None:
        import numpy as np

        self._recipe = recipe
        self.parts_directory = parts_directory
        self._dtype = np.dtype(recipe.dtype)
        tokenizer = reopen_tokenizer(recipe.tokenizer, recipe.tokenizer_identity)
        self._reference = _LateReference(tokenizer, special_tokens=recipe.special_tokens)
        self._engine = self._choose_engine(tokenizer)

    def _choose_engine(self, tokenizer: Tokenizer) -> encoders.Encoder:
        if self._recipe.engine == "fast":
            try:
                # The job has checked the definition already.
                return encoders.fast_encoder(
                    tokenizer, special_tokens=self._recipe.special_tokens, checked=True
                )
            except FastEncoderRefusedError:
                if not self._recipe.fallback:
                    raise
        return self._reference

    def load_reference(self) -> None:
        """Load the reference engine now, for the comparison of the fast one with it."""
        self._reference.load()

    def encode(self, task: Task, report: Callable[[int, int, int], None]) -> Outcome:
        """Encode a unit and commit its part, with the tokens in it.

        Args:
            task: The unit.
            report: Called after each batch with the content bytes, documents and tokens it had.
        """
        made = self.make(task, report)
        if isinstance(made, Outcome):
            return made
        made.commit()
        return task.outcome

    def make(self, task: Task, report: Callable[[int, int, int], None]) -> EncodedUnit | Outcome:
        """Encode a unit; return it for being committed, or what became of it if it was given up.

        The arguments are those of :meth:`encode`.
        """
        path = os.path.join(self.parts_directory, task.key.part_name)
        with EncodedUnit(path, task.key, task.unit, self._recipe, self._engine.name) as unit:
            batches = read_documents(
                task.unit, self._recipe.fields, max_document_bytes=self._recipe.max_document_bytes
            )
            for batch in batches:
                tokens_before = unit.tokens
                self._encode_batch(batch, task, unit)
                if (refused := unit.over_limit) is not None:
                    unit.discard()
                    return Outcome(task.key, 0, refused)
                report(len(batch.raw), len(batch.offsets), unit.tokens - tokens_before)
        return unit

    def _encode_batch(self, batch: DocumentBatch, task: Task, unit: EncodedUnit) -> None:
        compared = 0
        for number, texts in enumerate(batch.texts):
            encoded = self._engine.encode(texts)
            if self._engine.name == "fast":
                chosen = equivalence.sample(batch.offsets, task.unit.file, task.compare_below)
                compared = len(chosen)
                chosen_texts = _texts_of(chosen, batch.sequences_per_document[number])
                equivalence.compare(texts, encoded, chosen_texts, self._reference, task.name)
            packed = pack_documents(
                encoded.ids,
                encoded.offsets,
                batch.sequences_per_document[number],
                dtype=self._dtype,
                eod_id=self._recipe.eod_id,
                append_eod=self._recipe.append_eod,
            )
            unit.add_field(number, packed)
        unit.add_batch(batch, compared)


class _LateReference:
    """The reference engine, loaded when it is first needed: a worker may never have a text to compare."""

    name = "reference"

    def __init__(self, tokenizer: Tokenizer, *, special_tokens: bool) -> None:
        self._make = partial(encoders.reference_encoder, tokenizer, special_tokens=special_tokens)
        self._engine: encoders.Encoder | None = None

    def load(self) -> encoders.Encoder:
        if self._engine is None:
            self._engine = self._make()
        return self._engine

    def encode(self, texts: list[str]) -> encoders.EncodedBatch:
        return self.load().encode(texts)


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
