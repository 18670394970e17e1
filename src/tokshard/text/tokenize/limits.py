"""Limits of a run in documents and tokens, applied when parts are appended.

The records are counted in the order of the inputs. The dataset ends after the document with which a limit is
reached exactly, or before the first document that would exceed ``--max-tokens``. Everything after that does
not count: neither documents nor bad records.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from tokshard.core.formatting import count, counted
from tokshard.dataset.counts import Counts
from tokshard.dataset.parameters import TokenizeParameters
from tokshard.dataset.provenance import ORIGIN
from tokshard.errors import UsageError
from tokshard.text.tokenize.packing import unknown_tokens
from tokshard.text.tokenize.part import OTHER_SPLIT, OutputLayout, PartReader

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

BEYOND_LIMIT = "beyond-limit"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a run.

    Attributes:
        documents: The most documents; None for no limit.
        tokens: The most tokens of all outputs together; None for no limit.
    """

    documents: int | None = None
    tokens: int | None = None

    def are_reached(self, documents: int, tokens: int) -> bool:
        """Tell whether no further document fits for certain, because a limit is reached exactly."""
        return documents == self.documents or tokens == self.tokens

    def end_in(self, documents: int, tokens: int) -> bool:
        """Tell whether a limit is reached or exceeded by so many documents and tokens."""
        return (self.documents is not None and documents >= self.documents) or (
            self.tokens is not None and tokens >= self.tokens
        )

    def place(self, documents: int, tokens: int, following: Integers) -> tuple[int, bool]:
        """Return how many of the next documents fit, and whether the end is exact.

        Args:
            documents: The documents before them; no limit is reached there.
            tokens: The tokens before them.
            following: The tokens of each of them, all outputs together.

        Returns:
            The number, and whether a limit is reached with the last of them. If not, the end is before the
            next document; if there is none, no limit was found.

        Example:
            >>> import numpy as np
            >>> Limits(tokens=5).place(0, 0, np.array([2, 3, 0, 1]))
            (2, True)
            >>> Limits(tokens=4).place(0, 0, np.array([2, 3, 0, 1]))
            (1, False)
        """
        found = [(len(following), False)]
        if self.documents is not None and len(following) >= self.documents - documents:
            found.append((self.documents - documents, True))
        if self.tokens is not None:
            sums = tokens + np.cumsum(following)
            first = int(np.searchsorted(sums, self.tokens))
            is_exact = first < len(following) and int(sums[first]) == self.tokens
            found.append((first + is_exact, is_exact))
        return min(found, key=lambda end: (end[0], not end[1]))


@dataclass(frozen=True, slots=True)
class Cut:
    """The beginning of a part up to a limit.

    The counts of records are those of the whole unit: what is beyond the limit is excluded. Comparisons and
    dropped characters are not counted again.

    Attributes:
        counts: The counts of each output.
        digests: XXH3-128 of the tokens of each output.
        end: Rejected records at this position of the input and after it are dropped.
    """

    counts: tuple[Counts, ...]
    digests: tuple[str, ...]
    end: int


def cut_part(
    part: PartReader,
    limits: Limits,
    before: tuple[int, int],
    parameters: TokenizeParameters,
    *,
    name: str,
    unknown_id: int | None,
    template_ids: tuple[int, ...],
) -> Cut | None:
    """Return the beginning of a part up to a limit inside it; None if all of it fits.

    Args:
        part: The part.
        limits: The limits, of which none is reached before it.
        before: The documents and tokens before it.
        parameters: The options of the run.
        name: The name of the input, for errors.
        unknown_id: The token that is counted as unknown, or None.
        template_ids: The ids that the tokenizer adds to each text.

    Raises:
        UsageError: The limits allow no document.
    """
    layout = OutputLayout.of(parameters)
    splits = range(layout.splits)
    offsets_of = [np.frombuffer(part.read(f"origins.{split}"), ORIGIN)["offset"] for split in splits]
    split_of = np.repeat(splits, [len(found) for found in offsets_of])
    offsets = np.concatenate(offsets_of)
    order = np.argsort(offsets, kind="stable")
    tokens_of = [sum(_tokens_per_document(part, k) for k in layout.outputs_of(split)) for split in splits]
    documents, is_exact = limits.place(*before, np.concatenate(tokens_of)[order])
    if not documents and not before[0]:
        least = int(np.concatenate(tokens_of)[order][0])
        raise UsageError(
            f"--max-tokens must be at least {counted(least, 'token')} for the first document of {name}, got "
            f"{count(limits.tokens or 0)}",
            hint=f"pass --max-tokens {least} or more",
        )
    is_whole = documents == len(offsets)
    if is_whole and not is_exact:
        return None
    offsets, split_of = offsets[order], split_of[order]
    kept = [int(np.count_nonzero(split_of[:documents] == split)) for split in splits]
    end = int(offsets[documents - 1]) + 1 if is_exact else int(offsets[documents])
    rejected = Counter(record.reason for record in part.rejected() if record.offset < end)
    if is_whole and rejected == Counter(part.header.counts[0].rejected):
        return None
    counts, digests = zip(
        *(
            _counts(
                part, k, kept[layout.split_of(k)], sum(kept), rejected, parameters, unknown_id, template_ids
            )
            for k in range(layout.outputs)
        ),
        strict=True,
    )
    return Cut(counts, digests, end)


def _counts(
    part: PartReader,
    k: int,
    documents: int,
    of_all_splits: int,
    rejected: Counter[str],
    parameters: TokenizeParameters,
    unknown_id: int | None,
    template_ids: tuple[int, ...],
) -> tuple[Counts, str]:
    whole = part.header.counts[k]
    per_document = np.frombuffer(part.read(f"sequences.{k}"), "<u4")[:documents]
    lengths = np.frombuffer(part.read(f"lengths.{k}"), "<i4")[: int(per_document.sum(dtype=np.int64))]
    tokens = np.frombuffer(part.read(f"tokens.{k}"), parameters.dtype)[: int(lengths.sum(dtype=np.int64))]
    empty = int(np.count_nonzero(per_document == 0))
    eod_id = parameters.eod_id
    appended = documents - empty if parameters.append_eod and eod_id is not None else 0
    excluded = Counter(whole.excluded or {})
    excluded[OTHER_SPLIT] = of_all_splits - documents
    excluded[BEYOND_LIMIT] += whole.rejected_total - rejected.total()
    excluded[BEYOND_LIMIT] += part.header.documents - of_all_splits
    unrepresented = whole.unrepresented
    if unknown_id is not None:
        found = unknown_tokens(tokens, len(lengths), unknown_id, template_ids)
        of_eod = appended * (unknown_id == eod_id)
        unrepresented = found and replace(found, checked=found.checked - appended, count=found.count - of_eod)
    compared = min(whole.compared, documents)
    counts = replace(
        whole,
        documents=documents,
        rejected=dict(rejected),
        sequences=len(lengths),
        tokens=len(tokens),
        empty_documents=empty,
        longest_sequence=int(lengths.max(initial=0)),
        eod_in_text=int(np.count_nonzero(tokens == eod_id)) - appended if eod_id is not None else 0,
        encoders=dict.fromkeys(whole.encoders, documents) if documents else {},
        compared=compared,
        uncompared=min(whole.uncompared or 0, documents - compared) or None,
        excluded=dict(+excluded) or None,
        unrepresented=unrepresented,
    )
    return counts, xxhash.xxh3_128_hexdigest(tokens.data)


def _tokens_per_document(part: PartReader, k: int) -> Integers:
    lengths = np.frombuffer(part.read(f"lengths.{k}"), "<i4")
    ends = np.cumsum(np.frombuffer(part.read(f"sequences.{k}"), "<u4"), dtype=np.int64)
    sums = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    found: Integers = np.diff(sums[ends], prepend=0)
    return found
