"""Sequences of a view as parts of the sequences of the dataset that it shows, and back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tokshard.errors import IntegrityError
from tokshard.gpt_index.spans import Spans
from tokshard.tracing.sequence_table import BLOCK, SequenceTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]


class ViewedSequences:
    """The sequences of a view, looked up in its ``.idx`` and in that of the viewed dataset.

    Args:
        path_prefix: The view.
        dataset: The table of the dataset.

    Attributes:
        table: The table of the view.
    """

    def __init__(self, path_prefix: str, dataset: SequenceTable) -> None:
        self.table = SequenceTable(path_prefix)
        self._dataset = dataset

    def in_dataset(self, spans: Spans) -> Spans:
        """Return spans of the view as spans of the dataset.

        Raises:
            IntegrityError: A piece of the view is in no sequence of the dataset.
        """
        begins = self.table.pointers(spans.sequences)
        sequences = self._dataset.at_bytes(begins)
        shifts = (begins - self._dataset.pointers(sequences)) // self.table.itemsize
        firsts = spans.firsts + shifts
        if (firsts + spans.counts > self._dataset.lengths(sequences)).any():
            raise IntegrityError(
                f"{self.table.path}: a piece of the view is in no sequence of {self._dataset.path}",
                path=self.table.path,
                hint="run tokshard verify on the view",
            )
        return replace(spans, sequences=sequences, firsts=firsts)

    def of_dataset(self, sequences: Integers) -> Integers:
        """Return the sequences of the view that are parts of some sequences of the dataset, ascending.

        Args:
            sequences: Sequences of the dataset: int64, ascending, each once.
        """
        firsts = self._dataset.pointers(sequences)
        stops = firsts + self._dataset.lengths(sequences) * self.table.itemsize
        some = stops > firsts
        firsts, stops = firsts[some], stops[some]
        found = [np.empty(0, np.int64)]
        for begin in range(0, self.table.sequence_count if firsts.size else 0, BLOCK):
            block = np.arange(begin, min(begin + BLOCK, self.table.sequence_count))
            begins = self.table.pointers(block)
            which = np.maximum(np.searchsorted(firsts, begins, side="right") - 1, 0)
            found.append(block[(begins >= firsts[which]) & (begins < stops[which])])
        return np.concatenate(found)
