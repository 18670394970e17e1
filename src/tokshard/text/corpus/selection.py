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

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from itertools import islice
from typing import TYPE_CHECKING, Any, Self

from tokshard.core.megatron_defaults import SEED
from tokshard.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tokshard.dataset.plan import TokenizeParameters
    from tokshard.text.corpus.batch import DocumentBatch
    from tokshard.text.corpus.lines import LineBatch

EXCLUDED: dict[str, str] = {
    "not-sampled": "The record is not in the sample (--sample).",
    "other-split": "The record is a document of the other split (--holdout).",
    "beyond-limit": "The record comes after the limit (--limit, --max-tokens), in a unit that was read.",
    "too-long": "The record is one of these, and larger than --max-document-bytes.",
    "corrupt-stream": "The compressed stream is damaged after the limit.",
}
"""Stable codes of the reasons why a record that is not rejected is no document, with their meanings."""

_HASHES = 2**64
_SEEDS = 2**63  # the integers of JSON documents
_PERCENT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*")
_FRACTION = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE]-?[0-9]{1,3})?)\s*")


TRAIN, VALID = 0, 1
"""The numbers of the splits."""

# Bytes that no UTF-8 contains.
_END_OF_SEQUENCE, _END_OF_FIELD = b"\xff", b"\xfe"


@dataclass(frozen=True, slots=True)
class RecordSelection:
    """Choice of the records of the inputs that are read, and of the split of each document.

    Attributes:
        sample: The share of the records, above 0 and up to 1; None for all.
        sample_seed: The seed of their hash.
        holdout: The share of the documents in the validation split, above 0 and below 1; None for no splits.
        holdout_seed: The seed of their hash.
        holdout_key: The field of the key that is hashed; None to hash the texts.

    Example:
        >>> import numpy as np
        >>> RecordSelection(0.5, sample_seed=7).sampled(0, np.arange(6) * 100).tolist()
        [True, False, True, True, False, True]
    """

    sample: float | None = None
    sample_seed: int = SEED
    holdout: float | None = None
    holdout_seed: int = SEED
    holdout_key: str | None = None

    @classmethod
    def of(cls, options: TokenizeParameters) -> Self:
        """Return the selection by the parameters of a run."""
        return cls(
            options.sample,
            SEED if options.sample_seed is None else options.sample_seed,
            options.holdout,
            SEED if options.holdout_seed is None else options.holdout_seed,
            options.holdout_key,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the selection as a message between processes."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Return what :meth:`to_json` described."""
        return cls(**value)

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
        """Return a batch with the split of each document."""
        import numpy as np
        from xxhash import xxh3_64_intdigest

        if self.holdout is None:
            return batch
        keys = _texts_of_documents(batch) if batch.keys is None else batch.keys
        below, seed = threshold(self.holdout), self.holdout_seed
        valid = (xxh3_64_intdigest(key, seed) < below for key in keys)
        splits = np.fromiter((VALID if is_valid else TRAIN for is_valid in valid), np.uint8, batch.documents)
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


def _texts_of_field(texts: list[str], counts: NDArray[np.uint32] | None) -> Iterator[bytes]:
    encoded = (text.encode() for text in texts)
    if counts is None:
        return encoded
    return (_END_OF_SEQUENCE.join(islice(encoded, count)) for count in counts.tolist())


def threshold(share: float) -> int:
    """Return the number of the 2**64 hash values that a share selects: those below it."""
    return int(share * _HASHES)  # exact: a float times a power of two


def parse_share(option: str, value: float | str, *, whole: bool) -> float:
    """Return a share as a number: ``0.01`` or ``"1%"``.

    Args:
        option: The name of the option, for errors.
        value: The share.
        whole: Whether the share may be 1.

    Raises:
        UsageError: It is not a share above 0 and up to 1.

    Example:
        >>> parse_share("sample", "0.1%", whole=True), parse_share("sample", "0.001", whole=True)
        (0.001, 0.001)
    """
    share = value
    if isinstance(value, str):
        percent, fraction = _PERCENT.fullmatch(value), _FRACTION.fullmatch(value)
        share = float(Fraction(percent[1]) / 100) if percent else float(fraction[1]) if fraction else 0.0
    # Not a number is refused, too.
    if not (0 < float(share) <= 1 and (whole or float(share) < 1)):
        most = "at most 100%" if whole else "below 100%"
        raise UsageError(
            f"--{option} must be above 0% and {most}, got {value!r}",
            hint=f"pass a percentage or a fraction, for example --{option} 1% or --{option} 0.01",
        )
    return float(share)


def check_seed(option: str, seed: int) -> None:
    """Raise UsageError if a number cannot be a seed of the hash."""
    if not 0 <= seed < _SEEDS:
        raise UsageError(f"--{option} must be from 0 to {_SEEDS - 1}, got {seed}")


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The lines or rows of a batch that are not in the sample.

    Attributes:
        excluded: Numbers of records by code, see :data:`EXCLUDED`.
        blank_lines: Lines that are no records.
    """

    excluded: dict[str, int]
    blank_lines: int = 0

    def added_to(self, batch: DocumentBatch) -> DocumentBatch:
        """Return a batch of the others as the batch of all."""
        records = sum(self.excluded.values())
        return replace(
            batch,
            records=batch.records + records,
            lines=batch.lines + records + self.blank_lines,
            blank_lines=batch.blank_lines + self.blank_lines,
            excluded=self.excluded,
        )


def sampled_lines(
    batch: LineBatch, sampled: NDArray[np.bool_], max_line_bytes: int
) -> tuple[LineBatch, LeftOut]:
    """Return the lines of a batch that are in the sample, and a summary of the others."""
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
        lines=[line for line, is_chosen in zip(batch.lines, chosen, strict=True) if is_chosen],
        offsets=batch.offsets[sampled],
        lengths=batch.lengths[sampled],
        complete=batch.complete or not (chosen and chosen[-1]),
    )
    return kept, LeftOut(dict(excluded), blank_lines)
