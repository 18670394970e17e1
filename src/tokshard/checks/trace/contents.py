"""Contents of samples and documents: parts of documents, their records and their text."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from tokshard.checks.inspect.datasets import tokenizer_of
from tokshard.checks.trace.provenance import NO_MANIFEST, Provenance
from tokshard.checks.trace.report import DocumentOrigin, SampleContents, SamplePiece
from tokshard.checks.trace.sequence_table import SequenceTable, spread
from tokshard.dataset.reader import IndexedDataset
from tokshard.ranks.locator import Locator
from tokshard.samples.index.spans import SampleSpans, Spans
from tokshard.text.tokenizer.encoders import decode

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.ranks.sources import SampleSource

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
        self._multimodal = multimodal
        self._provenance = Provenance.open(prefix)
        self._tokenizer = tokenizer_of(prefix, tokenizer)
        self.has_text = self._tokenizer is not None

    @cached_property
    def _dataset(self) -> IndexedDataset:
        return IndexedDataset(self.prefix, self._multimodal)

    def spans_of_document(self, document: int) -> Spans:
        """Return the sequences of a document as spans."""
        firsts, stops = self.table.sequences_of(np.array([document]))
        _, sequences = spread(firsts, stops - firsts)
        lengths = self.table.lengths(sequences)
        return Spans.whole(np.full_like(lengths, document), sequences, lengths)

    def origin_of(self, document: int) -> tuple[DocumentOrigin | None, str | None]:
        """Return the record of a document, or the reason why it is unknown."""
        return self._origins(np.array([document], np.int64))[0]

    def pieces(self, spans: Spans) -> tuple[SamplePiece, ...]:
        """Return the parts of documents that spans without empty ones are, in order."""
        documents = self.table.documents_of(spans.sequences)
        before = self.table.tokens_before(spans.sequences, documents)
        positions = np.cumsum(spans.counts) - spans.counts
        numbers = (spans.sequences, spans.firsts, spans.counts, documents, before, positions)
        rows = np.stack([*numbers, spans.labels.astype(np.int64)])
        return tuple(
            SamplePiece(
                document=document,
                sequence=sequence,
                first_token=shift + first,
                stop_token=shift + first + count,
                position=position,
                label_only=bool(label),
                origin=origin,
                detail=detail,
                text=self._text(sequence, first, count),
            )
            for (sequence, first, count, document, shift, position, label), (origin, detail) in zip(
                rows.T.tolist(), self._origins(documents), strict=True
            )
        )

    def _origins(self, documents: Integers) -> list[tuple[DocumentOrigin | None, str | None]]:
        if self._provenance is None:
            return [(None, NO_MANIFEST)] * documents.size
        return [(origin, None) for origin in self._provenance.origins(documents)]

    def _text(self, sequence: int, first: int, count: int) -> str | None:
        if self._tokenizer is None:
            return None
        found = self._dataset.get(sequence, first, count)
        tokens = found[0] if self._multimodal else found
        return decode(self._tokenizer, tokens.tolist())


class StreamContents:
    """The samples of a stream; each dataset is opened at its first sample."""

    def __init__(self, source: SampleSource, tokenizer: str | None) -> None:
        self._source = source
        self._locator = Locator(source)
        self._tokenizer = tokenizer
        self._open: dict[int, tuple[DatasetContents, SampleSpans | None]] = {}

    def samples(
        self, ids: Integers, *, data_parallel_rank: int | None = None, micro_batch_size: int | None = None
    ) -> list[SampleContents]:
        """Return the contents of samples; with a micro-batch size, they are those of a rank's step."""
        numbers, samples = self._locator.locate(ids)
        found = []
        for place, (sample, number, dataset_sample) in enumerate(
            zip(ids.tolist(), numbers.tolist(), samples.tolist(), strict=True)
        ):
            dataset, index = self._dataset(number)
            if index is None:
                spans = dataset.spans_of_document(dataset_sample)
            else:
                spans = index.of_samples(np.array([dataset_sample], np.int64)).nonempty()
            found.append(
                SampleContents(
                    sample=sample,
                    dataset=dataset.prefix,
                    dataset_sample=dataset_sample,
                    tokens=int(spans.counts.sum()),
                    pieces=dataset.pieces(spans),
                    data_parallel_rank=data_parallel_rank,
                    row=None if micro_batch_size is None else place % micro_batch_size,
                    micro_batch=None if micro_batch_size is None else place // micro_batch_size,
                )
            )
        return found

    def _dataset(self, number: int) -> tuple[DatasetContents, SampleSpans | None]:
        if number not in self._open:
            reference = self._source.datasets[number]
            reference.check()
            dataset = DatasetContents(
                reference.path_prefix, multimodal=reference.multimodal, tokenizer=self._tokenizer
            )
            index = None
            if reference.index is not None:
                table = dataset.table
                index = SampleSpans(reference.open_index(), table.sequence_lengths, path=table.path)
            self._open[number] = (dataset, index)
        return self._open[number]
