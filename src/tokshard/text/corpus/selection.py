"""Selection of records by keyed hashes: those of a sample, and the split of each document.

A record is in the sample if the XXH3-64 of its input's number and of its position, with the seed, is below
a threshold. The position is that of the provenance: the byte offset of the line in the decompressed input, or
the number of the row in the table. So the sample depends on the inputs and their order alone: not on units,
workers, machines or compression. docs/how-to/subsets.md defines the hash to the bit.

Records are selected before they are parsed: a bad record outside the sample is not rejected.

With a holdout, each document belongs to the training or to the validation split, by the XXH3-64 of its texts
or of the key in a field of its record. So all copies of a document are in one split.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import compress, islice
from typing import TYPE_CHECKING, Any

from tokshard.dataset.encoding_options import SelectionOptions
from tokshard.text.corpus.batch import bytes_of

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tokshard.text.corpus.batch import DocumentBatch, LineBatch

EXCLUDED: dict[str, str] = {
    "not-sampled": "The record is not in the sample (--sample).",
    "other-split": "The record is a document of the other split (--holdout).",
    "beyond-limit": "The record comes after the limit (--limit, --max-tokens), in a unit that was read.",
    "too-long": "The record is not in the sample, and larger than --max-document-bytes.",
}
"""Stable codes of the reasons why a record that is not rejected is no document, with their meanings."""

_HASHES = 2**64

# Bytes that no UTF-8 contains.
_END_OF_SEQUENCE, _END_OF_FIELD = b"\xff", b"\xfe"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSelection(SelectionOptions):
    """Choice of the records of the inputs that are read, and of the split of each document.

    Example:
        >>> import numpy as np
        >>> RecordSelection(sample=0.5, sample_seed=7).sampled(0, np.arange(6) * 100).tolist()
        [True, False, True, True, False, True]
    """

    def sampled(self, file: int, positions: NDArray[np.int64]) -> NDArray[np.bool_] | None:
        """Tell which records of an input are in the sample; None if all are.

        Args:
            file: The number of the input.
            positions: The positions of the records in it.
        """
        import numpy as np

        if self.sample is None or self.sample >= 1:
            return None
        hashes = np.fromiter(self._hashes(file, positions), np.uint64, len(positions))
        return hashes < np.uint64(threshold(self.sample))

    def divided(self, batch: DocumentBatch) -> DocumentBatch:
        """Return a batch with the split of each document: 0 for training, 1 for validation."""
        import numpy as np
        from xxhash import xxh3_64_intdigest

        if self.holdout is None:
            return batch
        keys = _texts_of_documents(batch) if batch.keys is None else batch.keys
        below, seed = threshold(self.holdout), self.holdout_seed
        is_valid = (xxh3_64_intdigest(key, seed) < below for key in keys)
        splits = np.fromiter(is_valid, np.uint8, batch.documents)
        return replace(batch, splits=splits, keys=None)

    def _hashes(self, file: int, positions: NDArray[np.int64]) -> Iterator[int]:
        import numpy as np
        from xxhash import xxh3_64_intdigest

        pairs = np.empty((len(positions), 2), "<u8")
        pairs[:, 0], pairs[:, 1] = file, positions
        content, seed = pairs.tobytes(), self.sample_seed
        return (xxh3_64_intdigest(content[k : k + 16], seed) for k in range(0, len(content), 16))


ALL_RECORDS = RecordSelection()
"""The selection of all records."""


def _texts_of_documents(batch: DocumentBatch) -> Iterator[bytes]:
    columns = [
        _texts_of_field(texts, counts)
        for texts, counts in zip(batch.texts, batch.sequences_per_document, strict=True)
    ]
    return columns[0] if len(columns) == 1 else map(_END_OF_FIELD.join, zip(*columns, strict=True))


def _texts_of_field(texts: list[Any], counts: NDArray[np.uint32] | None) -> Iterator[bytes]:
    encoded = map(bytes_of, texts)
    if counts is None:
        return encoded
    return (_END_OF_SEQUENCE.join(islice(encoded, count)) for count in counts.tolist())


def threshold(share: float) -> int:
    """Return the number of the 2**64 hash values that a share selects: those below it."""
    return int(share * _HASHES)  # exact: a float times a power of two


def with_excluded(batch: DocumentBatch, excluded: Counter[str], blank_lines: int = 0) -> DocumentBatch:
    """Return a batch of the sampled lines or rows as the batch of all.

    Args:
        batch: The batch.
        excluded: Numbers of the other records by code, see :data:`EXCLUDED`.
        blank_lines: Number of the other lines that are no records.
    """
    return replace(
        batch,
        lines=batch.lines + excluded.total() + blank_lines,
        blank_lines=batch.blank_lines + blank_lines,
        excluded=dict(+excluded),
    )


def sampled_lines(
    batch: LineBatch, sampled: NDArray[np.bool_], max_line_bytes: int
) -> tuple[LineBatch, Counter[str], int]:
    """Return the sampled lines of a batch; numbers of the others: records by code, and blank lines."""
    chosen = sampled.tolist()
    excluded: Counter[str] = Counter()
    blank_lines = 0
    for line, length, is_chosen in zip(batch.lines, batch.lengths.tolist(), chosen, strict=True):
        if is_chosen:
            continue
        if length > max_line_bytes:
            excluded["too-long"] += 1
        elif not line or bytes(line).isspace():
            blank_lines += 1
        else:
            excluded["not-sampled"] += 1
    kept = replace(
        batch,
        lines=[*compress(batch.lines, chosen)],
        offsets=batch.offsets[sampled],
        lengths=batch.lengths[sampled],
        complete=batch.complete or not (chosen and chosen[-1]),
    )
    return kept, excluded, blank_lines
