"""Contents of samples and documents: parts of documents, their records and their text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tokshard.checks.inspect.datasets import tokenizer_of
from tokshard.checks.trace.provenance import NO_MANIFEST, Provenance
from tokshard.checks.trace.report import DocumentOrigin, SampleContents, SamplePiece
from tokshard.checks.trace.sequence_table import SequenceTable, spread
from tokshard.ranks.locator import Locator
from tokshard.samples.index.spans import SampleSpans, Spans
from tokshard.text.tokenizer.encoders import decode

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.ranks.sources import DatasetReference, SampleSource

    Integers = NDArray[np.int64]


class DatasetContents:
    """The documents of one dataset, with their records and their text.

    Args:
        tokenizer: See :func:`~tokshard.checks.inspect.datasets.tokenizer_of`.

    Attributes:
        has_text: Whether its tokenizer is known.
    """

    def __init__(self, prefix: str, *, multimodal: bool, tokenizer: str | None) -> None:
        self.prefix = prefix
        self.table = SequenceTable(prefix, multimodal=multimodal)
        self._provenance = Provenance.open(prefix)
        self._tokenizer = tokenizer_of(prefix, tokenizer)
        self.has_text = self._tokenizer is not None

    def spans_of(self, documents: Integers) -> Spans:
        """Return the sequences of documents as spans, whose owners are positions in ``documents``."""
        firsts, stops = self.table.sequences_of(documents)
        owners, sequences = spread(firsts, stops - firsts)
        return Spans.whole(owners, sequences, self.table.lengths(sequences))

    def origins(self, documents: Integers) -> list[tuple[DocumentOrigin | None, str | None]]:
        """Return the records of documents, each with the reason if it is unknown."""
        if self._provenance is None:
            return [(None, NO_MANIFEST)] * documents.size
        return [(origin, None) for origin in self._provenance.origins(documents)]

    def pieces(self, spans: Spans) -> list[SamplePiece]:
        """Return the parts of documents that spans without empty ones are, in order."""
        documents = self.table.documents_of(spans.sequences)
        firsts = self.table.tokens_before(spans.sequences, documents) + spans.firsts
        before = np.cumsum(spans.counts) - spans.counts
        # The positions in each sample: its spans are consecutive.
        positions = before - before[np.searchsorted(spans.owners, spans.owners)]
        texts = self._texts(spans)
        rows = np.stack((documents, spans.sequences, firsts, firsts + spans.counts, positions), axis=1)
        labels = spans.labels.tolist()
        origins = self.origins(documents)
        return [
            SamplePiece(document, sequence, first, stop, position, label_only, origin, detail, text)
            for (document, sequence, first, stop, position), label_only, (origin, detail), text in zip(
                rows.tolist(), labels, origins, texts, strict=True
            )
        ]

    def _texts(self, spans: Spans) -> list[str | None]:
        if self._tokenizer is None:
            return [None] * len(spans)
        tokens = self.table.tokens(spans.sequences, spans.firsts, spans.counts)
        return [decode(self._tokenizer, ids.tolist()) for ids in tokens]


class StreamContents:
    """The samples of a stream; each dataset is opened at its first sample."""

    def __init__(self, source: SampleSource, tokenizer: str | None) -> None:
        self._source = source
        self._locator = Locator(source)
        self._tokenizer = tokenizer

    def samples(self, ids: Integers) -> list[SampleContents]:
        """Return the contents of samples; those of one dataset are looked up together."""
        numbers, samples = self._locator.locate(ids)
        contents: dict[int, SampleContents] = {}
        for number in np.unique(numbers).tolist():
            places = np.flatnonzero(numbers == number)
            found = self._of_dataset(self._source.datasets[number], ids[places], samples[places])
            contents |= zip(places.tolist(), found, strict=True)
        return [contents[place] for place in range(ids.size)]

    def _of_dataset(
        self, reference: DatasetReference, ids: Integers, samples: Integers
    ) -> list[SampleContents]:
        reference.check()
        dataset = DatasetContents(
            reference.path_prefix, multimodal=reference.multimodal, tokenizer=self._tokenizer
        )
        if reference.index is None:
            spans = dataset.spans_of(samples)
        else:
            lengths = dataset.table.sequence_lengths
            index = SampleSpans(reference.open_index(), lengths, path=dataset.table.path)
            spans = index.of_samples(samples).nonempty()
        pieces = dataset.pieces(spans)
        edges = np.searchsorted(spans.owners, np.arange(samples.size + 1)).tolist()
        return [
            SampleContents(
                sample=sample,
                dataset=dataset.prefix,
                dataset_sample=dataset_sample,
                tokens=sum(piece.stop_token - piece.first_token for piece in pieces[first:stop]),
                pieces=tuple(pieces[first:stop]),
            )
            for sample, dataset_sample, first, stop in zip(
                ids.tolist(), samples.tolist(), edges, edges[1:], strict=False
            )
        ]
