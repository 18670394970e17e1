"""Limits of a run in documents and tokens, applied when parts are assembled.

The records are counted in the order of the inputs. The dataset ends after the document with which a limit is
reached exactly, or before the first document that would exceed ``--max-tokens``. Everything after that does
not count: neither documents nor bad records. Parts know nothing of limits, so a run with another limit reuses
them; only the prefix of the unit in which the limit lies depends on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tokshard.core.formatting import count, counted
from tokshard.dataset.manifest import UnrepresentedText
from tokshard.dataset.plan import TokenizeParameters
from tokshard.errors import UsageError
from tokshard.text.tokenize.counts import FieldCounts, SplitCounts, UnitCounts, dropped_characters
from tokshard.text.tokenize.part import OutputLayout, PartHeader, PartReader

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tokshard.text.corpus.rejection import RejectedRecord

    Integers = NDArray[np.int64]

BEYOND_LIMIT = "beyond-limit"
# Rejected records whose bytes are in no digest keep their code when they are beyond the limit.
_NOT_DIGESTED = frozenset({"too-long", "corrupt-stream"})


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a run.

    Attributes:
        documents: The most documents; None for no limit.
        tokens: The most tokens of all outputs together; None for no limit.
    """

    documents: int | None = None
    tokens: int | None = None

    def are_reached(self, counts: UnitCounts) -> bool:
        """Tell whether no further document fits for certain, because a limit is reached exactly."""
        return counts.documents == self.documents or counts.tokens == self.tokens

    def allow(self, counts: UnitCounts) -> bool:
        """Tell whether everything counted fits, and more may follow."""
        return not (self.are_exceeded(counts) or self.are_reached(counts))

    def are_exceeded(self, counts: UnitCounts) -> bool:
        """Tell whether there is more than a limit allows."""
        documents, tokens = self.documents, self.tokens
        return (documents is not None and counts.documents > documents) or (
            tokens is not None and counts.tokens > tokens
        )

    def place(self, before: UnitCounts, tokens: Integers) -> tuple[int, bool]:
        """Return how many of the next documents fit, and whether the end is exact.

        Args:
            before: The counts of everything before them; no limit is reached there.
            tokens: The tokens of each of them, all outputs together.

        Returns:
            The number, and whether a limit is reached with the last of them. If not, the end is before the
            next document; if there is none, no limit was found.

        Example:
            >>> import numpy as np
            >>> Limits(tokens=5).place(UnitCounts.none(), np.array([2, 3, 0, 1]))
            (2, True)
            >>> Limits(tokens=4).place(UnitCounts.none(), np.array([2, 3, 0, 1]))
            (1, False)
        """
        import numpy as np

        found = [(len(tokens), False)]
        if self.documents is not None and len(tokens) >= self.documents - before.documents:
            found.append((self.documents - before.documents, True))
        if self.tokens is not None:
            sums = before.tokens + np.cumsum(tokens)
            first = int(np.searchsorted(sums, self.tokens))
            is_exact = first < len(tokens) and int(sums[first]) == self.tokens
            found.append((first + is_exact, is_exact))
        return min(found, key=lambda end: (end[0], not end[1]))


class PartPrefix:
    """The beginning of a part up to a limit, with the interface of :class:`PartReader`.

    The counts of records and the digest of the content are those of the whole unit.

    Args:
        part: The part.
        documents: The number of documents of each split that stay.
        end: Rejected records at this position of the input and after it are dropped.
        parameters: The parameters of the run.
        compared: The number of these documents of each split that both encoders encoded.
        unknown_id: The token that is counted as unknown, or None.
    """

    def __init__(
        self,
        part: PartReader,
        documents: Sequence[int],
        end: int,
        *,
        parameters: TokenizeParameters,
        compared: Sequence[int],
        unknown_id: int | None,
    ) -> None:
        import numpy as np

        dtype, eod_id = np.dtype(parameters.dtype), parameters.eod_id
        layout = OutputLayout.of(parameters)
        self.path = part.path
        self.unit = part.unit
        self._part = part
        self._rejected = [record for record in part.rejected() if record.offset < end]
        self._bytes: dict[str, int] = {}
        self._digests: dict[str, str] = {}
        fields = []
        for k in range(layout.outputs):
            kept = documents[layout.split_of(k)]
            per_document = np.frombuffer(part.read(f"sequences.{k}"), "<u4")[:kept]
            sequences = int(per_document.sum(dtype=np.int64))
            lengths = np.frombuffer(part.read(f"lengths.{k}"), "<i4")[:sequences]
            tokens = int(lengths.sum(dtype=np.int64))
            sizes = {"sequences": 4 * kept, "lengths": 4 * sequences, "tokens": dtype.itemsize * tokens}
            self._bytes |= {f"{kind}.{k}": size for kind, size in sizes.items()}
            empty = int(np.count_nonzero(per_document == 0))
            appended = kept - empty if parameters.append_eod and eod_id is not None else 0
            eods, unknown = self._scan(f"tokens.{k}", dtype, eod_id, unknown_id)
            if unknown_id is None:
                unrepresented = self._dropped(k, end)
            else:
                unknown -= appended * (unknown_id == eod_id)
                unrepresented = UnrepresentedText("tokens", tokens - appended, unknown)
            fields.append(
                FieldCounts(
                    tokens=tokens,
                    sequences=sequences,
                    empty_documents=empty,
                    eod_in_text=eods - appended,
                    longest_sequence=int(lengths.max(initial=0)),
                    unrepresented=unrepresented,
                )
            )
        splits = []
        for split, kept in enumerate(documents):
            self._bytes[f"offsets.{split}"] = 8 * kept
            splits.append(SplitCounts(kept, compared[split]))
        counts = self._counts(part.header.counts, tuple(splits), tuple(fields))
        uncompared = tuple(
            tuple(offset for offset in offsets if offset < end) for offsets in part.header.uncompared or ()
        )
        self.header: PartHeader = replace(
            part.header, counts=counts, uncompared=uncompared if any(uncompared) else None
        )

    def digest(self, stream: str) -> str:
        """Return the XXH3-128 of a field's tokens."""
        return self._digests[stream]

    def chunks(self, stream: str) -> Iterator[memoryview]:
        """Yield a stream in pieces; see :meth:`PartReader.chunks`."""
        left = self._bytes[stream]
        for chunk in self._part.chunks(stream):
            yield chunk[:left]
            left -= min(left, len(chunk))

    def rejected(self) -> Iterator[RejectedRecord]:
        """Yield the rejected records before the limit."""
        yield from self._rejected

    def _scan(self, stream: str, dtype: np.dtype[np.generic], *ids: int | None) -> list[int]:
        # Compute the digest; return how often each id occurs.
        import numpy as np
        import xxhash

        state = xxhash.xxh3_128()
        totals = [0] * len(ids)
        for chunk in self.chunks(stream):
            state.update(chunk)
            tokens = np.frombuffer(chunk, dtype)
            for index, token in enumerate(ids):
                if token is not None:
                    totals[index] += int(np.count_nonzero(tokens == token))
        self._digests[stream] = state.hexdigest()
        return totals

    def _dropped(self, k: int, end: int) -> UnrepresentedText | None:
        import numpy as np

        if self._part.header.counts.fields[k].unrepresented is None:
            return None
        rows = np.frombuffer(self._part.read(f"characters.{k}"), "<i8").reshape(-1, 3)
        return dropped_characters(rows[rows[:, 0] < end])

    def _counts(
        self, counts: UnitCounts, splits: tuple[SplitCounts, ...], fields: tuple[FieldCounts, ...]
    ) -> UnitCounts:
        total = sum(splits[1:], splits[0])
        rejected = Counter(record.reason for record in self._rejected)
        dropped = Counter(counts.rejected) - rejected
        excluded = Counter(counts.excluded or {})
        for reason, number in dropped.items():
            excluded[reason if reason in _NOT_DIGESTED else BEYOND_LIMIT] += number
        excluded[BEYOND_LIMIT] += counts.documents - total.documents
        return replace(
            counts,
            documents=total.documents,
            compared=total.compared,
            rejected=dict(rejected),
            fields=fields,
            excluded=dict(+excluded) or None,
            splits=splits if len(splits) > 1 else None,
        )


class LimitedParts:
    """The parts of a run as far as its limits allow.

    Args:
        parameters: The parameters of the run.
        compared: Returns how many of some documents of a part both encoders encoded, by their positions.
        unknown_id: The token that is counted as unknown, or None.

    Attributes:
        limits: The limits.
        layout: The outputs.
        unknown_id: The token that is counted as unknown, or None.
    """

    def __init__(
        self,
        parameters: TokenizeParameters,
        compared: Callable[[PartHeader, Integers], int],
        unknown_id: int | None = None,
    ) -> None:
        self.limits = Limits(parameters.limit, parameters.max_tokens)
        self._parameters = parameters
        self.layout = OutputLayout.of(parameters)
        self._compared = compared
        self.unknown_id = unknown_id

    def within(self, part: PartReader, before: UnitCounts, name: str) -> PartReader | PartPrefix:
        """Return a part, or the beginning of it that is within the limits.

        Args:
            part: The part.
            before: The counts of everything before it; no limit is reached there.
            name: The name of its input, for errors.

        Raises:
            UsageError: The first document of the run exceeds ``--max-tokens``.
        """
        import numpy as np

        if self.limits.allow(before + part.header.counts):
            return part
        splits = range(self.layout.splits)
        offsets_of = [np.frombuffer(part.read(f"offsets.{split}"), "<i8") for split in splits]
        split_of = np.repeat(splits, [len(found) for found in offsets_of])
        offsets = np.concatenate(offsets_of)
        order = np.argsort(offsets, kind="stable")
        offsets, split_of = offsets[order], split_of[order]
        tokens = np.concatenate([self._tokens_of_split(part, split) for split in splits])[order]
        documents, is_exact = self.limits.place(before, tokens)
        if not documents and not before.documents:
            raise UsageError(
                f"--max-tokens must be at least {counted(int(tokens[0]), 'token')} for the first document of "
                f"{name}, got {count(self.limits.tokens or 0)}",
                hint=f"pass --max-tokens {int(tokens[0])} or more",
            )
        kept = [int(np.count_nonzero(split_of[:documents] == split)) for split in splits]
        prefix = PartPrefix(
            part,
            kept,
            int(offsets[documents - 1]) + 1 if is_exact else int(offsets[documents]),
            parameters=self._parameters,
            compared=[
                self._compared(part.header, found[:most])
                for found, most in zip(offsets_of, kept, strict=True)
            ],
            unknown_id=self.unknown_id,
        )
        return part if prefix.header == part.header else prefix

    def _tokens_of_split(self, part: PartReader, split: int) -> Integers:
        import numpy as np

        outputs = [_tokens_per_document(part, k) for k in self.layout.outputs_of(split)]
        total: Integers = np.stack(outputs).sum(axis=0)
        return total


def _tokens_per_document(part: PartReader, k: int) -> Integers:
    import numpy as np

    lengths = np.frombuffer(part.read(f"lengths.{k}"), "<i4")
    ends = np.cumsum(np.frombuffer(part.read(f"sequences.{k}"), "<u4"), dtype=np.int64)
    sums = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    return np.diff(sums[ends], prepend=0)
