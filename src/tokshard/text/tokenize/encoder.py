"""The encoder of units: turns a unit of work into a part. Each worker has one."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import repeat
from operator import add
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from tokshard.core.options import recorded
from tokshard.dataset.counts import NO_COUNTS, Counts, UnrepresentedText
from tokshard.dataset.parameters import TokenizeParameters
from tokshard.dataset.tokenizer_identity import TokenizerIdentity
from tokshard.storage import syscalls
from tokshard.text.corpus.batch import DocumentBatch
from tokshard.text.corpus.planning import read_documents
from tokshard.text.corpus.record_format import Reading
from tokshard.text.corpus.rejection import RejectedRecord, TextCheck, UnusableRecordError
from tokshard.text.corpus.selection import RecordSelection
from tokshard.text.corpus.units import LineUnit, Unit
from tokshard.text.corpus.values import RecordFields
from tokshard.text.tokenize.packing import PackedDocuments, pack_documents
from tokshard.text.tokenize.part import (
    OTHER_SPLIT,
    EncoderName,
    OutputLayout,
    PartHeader,
    PartWriter,
    UnitKey,
)
from tokshard.text.tokenizer import encoders, fast
from tokshard.text.tokenizer.checked_documents import sample, texts_of
from tokshard.text.tokenizer.definition import Tokenizer, reopen_tokenizer
from tokshard.text.tokenizer.pieces import DroppedCharacters
from tokshard.text.tokenizer.token_ids import check_token_ids

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_SEARCHED_CHARACTERS = 1 << 18  # of each text, for dropped characters


@dataclass(frozen=True, slots=True)
class EncodingSpec:
    """Everything besides the unit itself that determines a part's bytes.

    Attributes:
        tokenizer: Local path of a file with its definition, or None for the built-in one.
        tokenizer_sha256: SHA-256 of that definition.
        parameters: The options of the run.
        fallback: Whether the reference encoder may serve if the fast one refuses the tokenizer.
        max_rejected: A unit stops after more rejected records than this; None for no limit.
        unknown_id: The token to count as unknown; None for none.
        drops_characters: Whether to look for characters that the tokenizer drops.
    """

    tokenizer: str | None
    tokenizer_sha256: str
    tokenizer_identity: TokenizerIdentity
    parameters: TokenizeParameters
    encoder: EncoderName
    fallback: bool
    max_rejected: int | None
    unknown_id: int | None
    drops_characters: bool

    @property
    def template_ids(self) -> tuple[int, ...]:
        """The ids that the tokenizer adds to each text."""
        return self.tokenizer_identity.template_ids if self.parameters.special_tokens else ()

    @property
    def layout(self) -> OutputLayout:
        """The outputs."""
        return OutputLayout.of(self.parameters)


@dataclass(frozen=True, slots=True)
class Task:
    """One unit to encode; ``name`` is that of its input in errors.

    Attributes:
        part: The file name of its part.
        compare_below: All documents before this position of the input are encoded by both encoders.
    """

    unit: Unit
    name: str
    part: str
    compare_below: int

    @property
    def key(self) -> UnitKey:
        """The unit."""
        return UnitKey(self.unit.file, self.unit.index)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a task.

    Attributes:
        refused: The record at which encoding stopped, because no more rejected records are allowed;
            None if the part was committed.
    """

    key: UnitKey
    refused: RejectedRecord | None = None


class BatchProgress(NamedTuple):
    """The size of a batch that has been encoded.

    Attributes:
        input_bytes: Its part of the unit's on-disk input bytes; the batches of a unit add up to all of them.
        content_bytes: Its decompressed input bytes.
    """

    input_bytes: int
    documents: int
    tokens: int
    content_bytes: int


def progress_each(
    seconds: float, events: Iterable[BatchProgress | Outcome]
) -> Iterator[BatchProgress | Outcome]:
    """Yield the events of a unit, with the progress of its batches summed over about ``seconds``.

    Each message to another process takes time of both. The first batch is reported at once, and all of them
    before the outcome.
    """
    nothing = BatchProgress(0, 0, 0, 0)
    unreported, reported = nothing, -math.inf
    for event in events:
        if isinstance(event, BatchProgress):
            unreported = BatchProgress(*map(add, unreported, event))
        is_due = isinstance(event, Outcome) or time.monotonic() - reported >= seconds
        if is_due and unreported != nothing:
            yield unreported
            unreported, reported = nothing, time.monotonic()
        if isinstance(event, Outcome):
            yield event


class _InputBytes:
    # Compressed inputs and tables: in proportion to the content or the rows that were read.
    def __init__(self, unit: Unit) -> None:
        self._total = unit.input_bytes
        self._by_rows = not isinstance(unit, LineUnit)
        self._size = unit.end - unit.begin if isinstance(unit, LineUnit) else unit.row_count
        self._read = self._reported = 0

    def of(self, batch: DocumentBatch) -> int:
        self._read += batch.lines if self._by_rows else len(batch.raw)
        return self._report(self._total * min(self._read, self._size) // max(self._size, 1))

    def rest(self) -> int:
        return self._report(self._total)

    def _report(self, done: int) -> int:
        added, self._reported = done - self._reported, done
        return added


class UnitEncoder:
    """Encodes units.

    Args:
        parts_directory: Where parts are committed.

    Attributes:
        parts_directory: The same; it may be changed between two units.

    Raises:
        TokenizerError: The tokenizer is not that of the specification.
    """

    def __init__(self, spec: EncodingSpec, parts_directory: str) -> None:
        import numpy as np

        self._spec = spec
        self.parts_directory = parts_directory
        self._dtype = np.dtype(spec.parameters.dtype)
        tokenizer = reopen_tokenizer(spec.tokenizer, spec.tokenizer_identity, spec.tokenizer_sha256)
        self._tokenizer = tokenizer
        self._reference = _LateReference(tokenizer, special_tokens=spec.parameters.special_tokens)
        self._compares = spec.encoder == "fast"
        self._comparisons: list[fast.Comparison] = []

    @cached_property
    def _encoder(self) -> encoders.Encoder:
        # On first use: the reference may already encode what both are going to encode.
        if self._spec.encoder == "none":
            return _NoEncoder()
        if self._spec.encoder == "fast":
            try:
                return fast.fast_encoder(self._tokenizer, special_tokens=self._spec.parameters.special_tokens)
            except fast.FastEncoderRefusedError:
                if not self._spec.fallback:
                    raise
                self._compares = False
        return self._reference

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Load the fast encoder in a thread, for units that are encoded in the block.

        The reference begins to encode meanwhile. The process must not fork in the block.
        """
        if self._spec.encoder == "fast":
            with fast.loading_fast(self._tokenizer, special_tokens=self._spec.parameters.special_tokens):
                yield
        else:
            yield

    def load(self) -> None:
        """Load the encoder now, and the reference encoder, to compare the fast one with.

        Raises:
            TokenizerError: The fast encoder refuses the tokenizer.
        """
        self._encoder  # noqa: B018 - made on first use
        if self._spec.encoder != "none":
            self._reference.load()

    def encode(self, task: Task) -> Iterator[BatchProgress | Outcome]:
        """Encode a unit and commit its part.

        Peak memory: a batch, and a few copies of the longest document.

        Yields:
            The size of each batch; last the outcome. Nothing is committed if a record was rejected that
            may not be.

        Raises:
            EncoderMismatchError: The fast encoder differs from the reference.
            StorageError: The disk is full or broken. Nothing is committed.
        """
        import xxhash

        spec, unit = self._spec, task.unit
        layout = spec.layout
        counts = [NO_COUNTS] * layout.outputs
        self._comparisons = []
        content_digest = xxhash.xxh3_128()
        input_bytes = _InputBytes(unit)
        path = os.path.join(self.parts_directory, task.part)
        with PartWriter(path, layout.streams) as part:
            for batch in read_documents(unit, reading_of(spec.tokenizer_identity, spec.parameters)):
                tokens = 0
                for split in range(layout.splits):
                    documents = batch.of_split(split)
                    for field, added in enumerate(self._encode_split(documents, task, part, split)):
                        k = layout.outputs_of(split)[field]
                        counts[k] += _with_records(added, batch, documents)
                        tokens += added.tokens
                rejected_total = counts[0].rejected_total
                if spec.max_rejected is not None and rejected_total > spec.max_rejected:
                    self._finish_comparisons()
                    part.discard()
                    yield Outcome(task.key, batch.rejected[spec.max_rejected - rejected_total])
                    return
                content_digest.update(batch.raw)
                part.write_rejected(batch.rejected)
                yield BatchProgress(input_bytes.of(batch), batch.documents, tokens, len(batch.raw))
            self._finish_comparisons()
            part.finish(
                PartHeader(
                    name=task.part,
                    last=unit.last,
                    encoder=cast("EncoderName", self._encoder.name),
                    input_bytes=unit.input_bytes,
                    content_xxh3_128=content_digest.hexdigest(),
                    counts=tuple(counts),
                )
            )
        if isinstance(unit, LineUnit) and unit.temporary:
            syscalls.unlink(unit.path)
        if rest := input_bytes.rest():
            yield BatchProgress(rest, 0, 0, 0)
        yield Outcome(task.key)

    def _encode_split(
        self, batch: DocumentBatch, task: Task, part: PartWriter, split: int
    ) -> Iterator[Counts]:
        """Write the documents of a split; yield the counts of each field, without those of the records."""
        spec = self._spec
        chosen, too_large = self._documents_to_compare(batch, task)
        packed_fields = self._packed_fields(batch, chosen, task.name)
        dropped = self._dropped(batch, task) if spec.drops_characters else repeat(None)
        for k, packed, characters in zip(spec.layout.outputs_of(split), packed_fields, dropped, strict=False):
            part.write(f"tokens.{k}", packed.tokens.data)
            part.write(f"lengths.{k}", packed.lengths.data)
            part.write(f"sequences.{k}", packed.sequences.data)
            yield replace(
                packed.counts,
                documents=batch.documents,
                encoders={self._encoder.name: batch.documents} if batch.documents else {},
                compared=len(chosen) if self._compares else 0,
                uncompared=len(too_large) or None if self._compares else None,
                unrepresented=characters or packed.counts.unrepresented,
            )
        part.write(f"origins.{split}", batch.origins.tobytes())

    def _finish_comparisons(self) -> None:
        comparisons, self._comparisons = self._comparisons, []
        for comparison in comparisons:
            comparison.finish()

    def _dropped(self, batch: DocumentBatch, task: Task) -> Iterator[UnrepresentedText]:
        # Of the beginning of each text that an equivalence check would compare.
        chosen = sample(batch.origins["offset"], task.name, task.compare_below)
        for texts, counts in zip(batch.texts, batch.sequences_per_document, strict=True):
            found = [
                self._characters.count(texts[index][:_SEARCHED_CHARACTERS])
                for index in texts_of(chosen, counts)
            ]
            checked, dropped = (sum(column) for column in zip(*found, strict=True)) if found else (0, 0)
            yield UnrepresentedText("characters", checked, dropped)

    @cached_property
    def _characters(self) -> DroppedCharacters:
        return DroppedCharacters(self._tokenizer)

    def _documents_to_compare(
        self, batch: DocumentBatch, task: Task
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the documents to compare, and those that are too large to be compared, as indices."""
        import numpy as np

        if not self._compares:
            return np.empty(0, np.int64), np.empty(0, np.int64)
        return fast.documents_to_compare(batch, task.name, task.compare_below)

    def _packed_fields(
        self, batch: DocumentBatch, chosen: NDArray[np.int64], where: str
    ) -> Iterator[PackedDocuments]:
        # Of each field all documents at once.
        spec = self._spec
        for texts, counts in zip(batch.texts, batch.sequences_per_document, strict=True):
            compared = texts_of(chosen, counts)
            comparison = fast.Comparison([texts[index] for index in compared], self._reference, where)
            encoded = self._encoder.encode(texts)
            if len(compared) and self._compares:
                comparison.add(encoded, compared)
                self._comparisons.append(comparison)
            yield pack_documents(
                encoded.ids,
                encoded.offsets,
                counts,
                dtype=self._dtype,
                eod_id=spec.parameters.eod_id,
                append_eod=spec.parameters.append_eod,
                unknown_id=spec.unknown_id,
                template_ids=spec.template_ids,
            )


def reading_of(identity: TokenizerIdentity, parameters: TokenizeParameters) -> Reading:
    """Return the part of the records that a run reads."""
    return Reading(
        RecordFields.parse(parameters.fields, parameters.holdout_key, parameters.vocab_size),
        parameters.max_document_bytes,
        _text_check(identity, parameters),
        recorded(RecordSelection, parameters),
    )


def _text_check(identity: TokenizerIdentity, parameters: TokenizeParameters) -> TextCheck | None:
    """Return the check of texts that a tokenizer needs; None if it can encode every text, or for ids."""
    if identity.kind != "null" or parameters.vocab_size is not None:
        return None

    def check(text: str) -> None:
        try:
            check_token_ids(text, identity.vocab_size)
        except ValueError as error:
            raise UnusableRecordError("token-ids", str(error)) from None

    return check


def _with_records(counts: Counts, batch: DocumentBatch, of_split: DocumentBatch) -> Counts:
    """Return the counts of an output with those of the records of a batch."""
    excluded = dict(batch.excluded)
    if others := batch.documents - of_split.documents:
        excluded[OTHER_SPLIT] = others
    return replace(
        counts,
        records=batch.records,
        lines=batch.lines,
        blank_lines=batch.blank_lines,
        content_bytes=len(batch.raw),
        rejected=dict(Counter(record.reason for record in batch.rejected)),
        excluded=excluded or None,
    )


class _NoEncoder:
    # The sequences are token ids.
    name = "none"

    def encode(self, texts: list[Any]) -> encoders.EncodedBatch:
        import numpy as np

        offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
        return encoders.EncodedBatch(np.concatenate([np.empty(0, np.uint32), *texts]), offsets)


class _LateReference:
    # Loaded when it is first needed: a worker may never have a text to compare.
    name = "reference"

    def __init__(self, tokenizer: Tokenizer, *, special_tokens: bool) -> None:
        self._make = partial(encoders.reference_encoder, tokenizer, special_tokens=special_tokens)
        self._encoder: encoders.Encoder | None = None
        self._lock = threading.Lock()

    def load(self) -> encoders.Encoder:
        with self._lock:
            if self._encoder is None:
                self._encoder = self._make()
            return self._encoder

    def encode(self, texts: list[str]) -> encoders.EncodedBatch:
        return self.load().encode(texts)
