"""Samples of a chunk of the schedule, whose ranges of tokens are looked up for many at once.

A sample of an index consists of pieces of sequences. To find those of one sample takes as long as to copy its
tokens; to find those of a hundred takes only a few times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.errors import IntegrityError
from tokshard.samples.index.samples import TOKENS_WORTH_A_COPY

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.loader.schedule import SampleRefs
    from tokshard.samples.index.samples import GPTSamples

    Ranges = tuple[int, ...]
    """The begin and end of each range of the tokens of a sample; positions among the tokens of its dataset.
    Empty: the sample is read by itself."""

# More at once would read further ahead in files of the index, which takes long where they are not in memory.
_MOST_AT_ONCE = 128
# To find this many one by one takes no longer.
_LEAST_AT_ONCE = 8


class ChunkRanges:
    """The samples of a chunk; threads may share it.

    Attributes:
        first: The local index of the first sample.
        end: The local index after the last sample.
        refs: The samples.
        datasets: The dataset of each sample.
    """

    def __init__(self, first: int, refs: SampleRefs) -> None:
        self.first = first
        self.end = first + len(refs.ids)
        self.refs = refs
        self.datasets: list[int] = refs.datasets.tolist()
        # None is not looked up yet.
        unknown: Ranges | None = None if len(self.datasets) >= _LEAST_AT_ONCE else ()
        self._ranges = [unknown] * len(self.datasets)

    def copy(
        self, rows: Sequence[int], samples: GPTSamples, target: NDArray[np.int64], skipped: int = 0
    ) -> tuple[list[int], bool]:
        """Copy the tokens of samples of one dataset.

        Args:
            rows: Which samples of the chunk.
            samples: The samples of their dataset.
            target: int64 of shape (tokens of the samples,).
            skipped: 1 to leave out the first token of each sample.

        Returns:
            The first token of each sample, and whether tokens may equal the padding token.

        Raises:
            IntegrityError: The index does not fit the dataset.
        """
        source = samples.mapped
        padded = samples.may_hold_padding
        heads: list[int] = []
        pieces: list[NDArray[Any]] = []
        for row in rows:
            ranges = self._ranges[row]
            if ranges is None and source is not None:
                ranges = self._look_up(row, samples)
            if source is not None and ranges:
                begin = ranges[0]
                heads.append(source[begin])
                pieces.append(source[begin + skipped : ranges[1]])
                edges = iter(ranges[2:])
                pieces += [source[begin:end] for begin, end in zip(edges, edges, strict=True)]
            else:
                (text,) = samples.read_batch(self.refs.samples[row : row + 1])
                heads.append(text[0])
                pieces.append(text[skipped:])
                padded = True
        np.concatenate(pieces, out=target, casting="unsafe")  # tokens may be floating-point numbers
        return heads, padded

    def _look_up(self, row: int, samples: GPTSamples) -> Ranges:
        same = np.flatnonzero(self.refs.datasets[row:] == self.datasets[row])[:_MOST_AT_ONCE] + row
        found: list[Ranges] = [()] * len(same)
        # A sample that does not fit its dataset raises its error when it is read by itself.
        with suppress(IntegrityError):
            found = _ranges(samples, self.refs.samples[same])
        for other, ranges in zip(same.tolist(), found, strict=True):
            self._ranges[other] = ranges
        return found[0]


def _ranges(samples: GPTSamples, numbers: NDArray[np.int64]) -> list[Ranges]:
    spans = samples.spans.of_samples(numbers)
    if not spans.counts.all():
        spans = spans.nonempty()
    begins = spans.extents(samples.dataset.index)[0] // samples.dataset.dtype.itemsize
    ends = begins + spans.counts
    bounds = np.searchsorted(spans.owners, np.arange(len(numbers) + 1))
    tokens = np.diff(np.concatenate(([0], spans.counts.cumsum()))[bounds])
    sample_tokens = samples.index.plan.sample_tokens
    # Others are padded, or are gathered token by token.
    usable = (tokens == sample_tokens) & (np.diff(bounds) * TOKENS_WORTH_A_COPY <= sample_tokens)
    # Integers, no slices: objects that the garbage collector tracks would make it run often.
    flat = np.stack((begins, ends), axis=1).ravel().tolist()
    edges = (2 * bounds).tolist()
    return [
        tuple(flat[first:last]) if use else ()
        for use, first, last in zip(usable.tolist(), edges, edges[1:], strict=False)
    ]
