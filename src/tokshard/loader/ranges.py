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
from tokshard.gpt_index.samples import TOKENS_WORTH_A_COPY

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.gpt_index.samples import GPTSamples
    from tokshard.loader.schedule import SampleRefs

    Ranges = tuple[int, list[slice]]
    """The position of the first token of a sample among those of its dataset, and those of all others."""

# More at once would read further ahead in files of the index, which takes long where they are not in memory.
_MOST_AT_ONCE = 128
# To find this many one by one takes no longer.
_LEAST_AT_ONCE = 8


class ChunkRanges:
    """The samples of a chunk; threads may share it.

    Args:
        first: The local index of the first sample.
        refs: The samples.

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
        # None is not looked up yet; no slices: the sample is read by itself.
        unknown: Ranges | None = None if len(self.datasets) >= _LEAST_AT_ONCE else (0, [])
        self._ranges = [unknown] * len(self.datasets)

    def copy(
        self, places: Sequence[int], samples: GPTSamples, target: NDArray[np.int64]
    ) -> tuple[list[int], bool]:
        """Copy the tokens of samples of one dataset, all but the first of each.

        Args:
            places: Which samples of the chunk.
            samples: The samples of their dataset, with one token more than the sequence length.
            target: int64 of shape (samples * sequence_length,).

        Returns:
            The first token of each sample, and whether tokens may equal the padding token.

        Raises:
            IntegrityError: The index does not fit the dataset.
        """
        source, padded = samples.mapped, samples.may_hold_padding
        heads: list[int] = []
        pieces: list[NDArray[Any]] = []
        for place in places:
            ranges = (0, []) if source is None else self._ranges[place] or self._look_up(place, samples)
            if source is not None and ranges[1]:
                heads.append(source[ranges[0]])
                pieces += map(source.__getitem__, ranges[1])
            else:
                (text,) = samples.read_batch(self.refs.samples[place : place + 1])
                heads.append(text[0])
                pieces.append(text[1:])
                padded = True
        np.concatenate(pieces, out=target, casting="unsafe")  # tokens may be floating-point numbers
        return heads, padded

    def _look_up(self, place: int, samples: GPTSamples) -> Ranges:
        same = np.flatnonzero(self.refs.datasets[place:] == self.datasets[place])[:_MOST_AT_ONCE] + place
        found: list[Ranges] = [(0, [])] * len(same)
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
    firsts = bounds[:-1][usable]
    heads = np.zeros(len(numbers), np.int64)
    heads[usable] = begins[firsts]
    begins[firsts] += 1
    slices = list(map(slice, begins.tolist(), ends.tolist()))
    edges = bounds.tolist()
    return [
        (head, slices[first:last] if use else [])
        for head, use, first, last in zip(heads.tolist(), usable.tolist(), edges, edges[1:], strict=False)
    ]
