"""Packing of whole documents into samples: the options, and the numbers of an epoch that was packed.

:mod:`tokshard.samples.index.best_fit` contains the algorithm.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal

from tokshard.core.codec import Count, Positive, Record
from tokshard.errors import UsageError

PackMethod = Literal["concat", "best-fit"]

MAX_PACKED_SEQUENCE_LENGTH = 1 << 24
"""Tables of the packer have an entry for each length up to the sequence length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing(Record):
    """Packing of whole documents by best-fit decreasing.

    Raises:
        UsageError: A number is out of range.

    Attributes:
        max_documents: Maximum number of documents in a sample. Absent without a limit.
        pad_multiple: The room of each document is rounded up to a multiple of this many tokens, for trainers
            that pad documents: 2 x context-parallel size. Absent without padding.
    """

    ALGORITHM: ClassVar[str] = "tokshard.best-fit/1"

    max_documents: Positive | None = None
    pad_multiple: Positive | None = None

    def check_sequence_length(self, sequence_length: int) -> None:
        """Check that samples of some length can be packed.

        Raises:
            UsageError: They are too long, or not a multiple of ``pad_multiple``.
        """
        if sequence_length > MAX_PACKED_SEQUENCE_LENGTH:
            raise UsageError(
                f"the sequence length of packed samples must be at most {MAX_PACKED_SEQUENCE_LENGTH:,}, "
                f"got {sequence_length:,}"
            )
        if self.pad_multiple is not None and sequence_length % self.pad_multiple:
            raise UsageError(
                f"the sequence length {sequence_length} must be a multiple of --pad-multiple "
                f"{self.pad_multiple}"
            )

    def options(self) -> list[str]:
        """Return the options of ``build-indices`` and ``blend`` that request it.

        Example:
            >>> Packing(max_documents=8).options()
            ['--pack', 'best-fit', '--max-documents-per-sample', '8']
        """
        words = ["--pack", "best-fit"]
        if self.max_documents is not None:
            words += ["--max-documents-per-sample", str(self.max_documents)]
        if self.pad_multiple is not None:
            words += ["--pad-multiple", str(self.pad_multiple)]
        return words

    def words(self) -> str:
        """Return a description for people.

        Example:
            >>> Packing(max_documents=8).words()
            'best-fit, at most 8 documents per sample'
        """
        parts = ["best-fit"]
        if self.max_documents is not None:
            parts.append(f"at most {self.max_documents} documents per sample")
        if self.pad_multiple is not None:
            parts.append(f"room for documents padded to multiples of {self.pad_multiple} tokens")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedEpoch(Record):
    """The numbers of an epoch of packed samples, which are the same for all epochs.

    Attributes:
        packing: Options of the packing.
        documents: Documents of an epoch with at least one token.
        samples: Samples of an epoch.
        cut_documents: Documents longer than the sequence length. No others are cut.
        cut_tokens: Tokens of these documents.
        concat_cut_documents: Expected number of documents that concatenation would cut.
        concat_cut_tokens: Expected tokens of the documents that concatenation would cut.
    """

    packing: Packing
    documents: Positive
    samples: Positive
    cut_documents: Count
    cut_tokens: Count
    concat_cut_documents: Count
    concat_cut_tokens: Count


def pack_words(packings: Iterable[Packing | None]) -> str:
    """Return a description of packings for people; None is concatenation.

    Example:
        >>> pack_words([None, Packing(), None])
        'best-fit; concat'
    """
    return "; ".join(sorted({"concat" if packing is None else packing.words() for packing in packings}))


def packing_of(
    method: PackMethod | None, max_documents: int | None, pad_multiple: int | None
) -> Packing | None:
    """Return the packing that options request; None for concatenation, the default.

    Raises:
        UsageError: An option requires another method.
    """
    if method != "best-fit":
        for option, value in (
            ("--max-documents-per-sample", max_documents),
            ("--pad-multiple", pad_multiple),
        ):
            if value is not None:
                raise UsageError(f"{option} requires --pack best-fit")
        return None
    return Packing(max_documents=max_documents, pad_multiple=pad_multiple)
