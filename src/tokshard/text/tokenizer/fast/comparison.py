"""The equivalence check: in every run the fast encoder is compared with the reference on some documents.

These are the sample of :mod:`tokshard.text.tokenizer.checked_documents`, without documents above 1 MB: the
reference can need 200 bytes of memory for each byte of a text.

The reference encodes many of them in threads, while the fast encoder is loaded and encodes: its library
releases the GIL. Few of them are encoded at the end, in the calling thread: the library's caches belong to a
thread, and those of a new one are empty. A part is committed only after the comparison of all its documents.
"""

from __future__ import annotations

import os
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

from tokshard.core.background import Background
from tokshard.errors import EncoderMismatchError
from tokshard.text.tokenizer.checked_documents import sample, texts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from tokshard.text.corpus.batch import DocumentBatch
    from tokshard.text.tokenizer.encoders import EncodedBatch, Encoder

MOST_BYTES = 1_000_000
"""The most bytes of text of a document that is compared."""

_SHOWN_CHARACTERS = 60
_MAX_THREADS = 4
_FEW_CHARACTERS = 1 << 15
_THREAD_CHARACTERS = 1 << 17  # the reference needs about 0.1 s for so many


def documents_to_compare(
    batch: DocumentBatch, name: str, compare_below: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the documents of a batch to compare, and all that are too large, as indices, int64.

    See :func:`~tokshard.text.tokenizer.checked_documents.sample` for the arguments.
    """
    import numpy as np

    too_large = _larger_documents(batch, MOST_BYTES)
    chosen = sample(batch.origins["offset"], name, compare_below)
    return np.setdiff1d(chosen, too_large), too_large


class Comparison:
    """The comparison of some texts of a batch. If they are many, the reference begins to encode at once.

    Args:
        texts: The texts to compare.
        reference: The reference encoder, which several threads use at once.
        where: The name of the input, for errors.
    """

    def __init__(self, texts: list[str], reference: Encoder, where: str) -> None:
        self._texts, self._where = texts, where
        self._fast: list[NDArray[np.uint32]] = []
        if sum(map(len, texts)) < _FEW_CHARACTERS:
            self._slow: list[Callable[[], EncodedBatch]] = [partial(reference.encode, texts)]
            return
        # Not daemons: the process must not exit while the library runs.
        self._slow = [
            Background(partial(reference.encode, texts[begin:end]), daemon=False).result
            for begin, end in pairwise(_thread_ends(texts))
        ]

    def add(self, encoded: EncodedBatch, chosen: NDArray[np.int64]) -> None:
        """Add what the fast encoder made of the batch; ``chosen``: the indices of the texts in it."""
        ids, offsets = encoded.ids, encoded.offsets
        self._fast = [ids[offsets[index] : offsets[index + 1]].copy() for index in chosen]

    def finish(self) -> None:
        """Encode with the reference or wait for it, and compare.

        Raises:
            EncoderMismatchError: The encoders differ.
        """
        import numpy as np

        expected = (ids for encode in self._slow for ids in _split(encode()))
        for text, fast, slow in zip(self._texts, self._fast, expected, strict=True):
            if not np.array_equal(fast, slow):
                raise _mismatch(text, fast, slow, self._where)


def _thread_ends(texts: list[str]) -> list[int]:
    # Where the texts of one thread end and those of the next begin: about the same size for each.
    import numpy as np

    ends = np.cumsum([len(text) for text in texts])
    size = int(ends[-1])
    threads = min(len(os.sched_getaffinity(0)), _MAX_THREADS, size // _THREAD_CHARACTERS + 1, len(texts))
    inner = np.searchsorted(ends, size * np.arange(1, threads) / threads)
    return [0, *inner.tolist(), len(texts)]


def _split(encoded: EncodedBatch) -> Iterator[NDArray[np.uint32]]:
    for begin, end in pairwise(encoded.offsets.tolist()):
        yield encoded.ids[begin:end]


def _mismatch(
    text: str, fast: NDArray[np.uint32], slow: NDArray[np.uint32], where: str
) -> EncoderMismatchError:
    import numpy as np

    shared = min(len(fast), len(slow))
    differing = np.flatnonzero(fast[:shared] != slow[:shared])
    first = int(differing[0]) if len(differing) else shared
    return EncoderMismatchError(
        f"the fast encoder and the reference disagree in {where}, at token {first} of the text "
        f"{text[:_SHOWN_CHARACTERS]!r}: {fast[first : first + 4].tolist()} instead of "
        f"{slow[first : first + 4].tolist()}",
        hint="run the same command with --encoder reference, which replaces the work of the fast encoder; "
        "please report this text",
    )


def _larger_documents(batch: DocumentBatch, size_bytes: int) -> NDArray[np.int64]:
    """Return the documents of a batch with more bytes of text, as indices."""
    import numpy as np

    columns = list(zip(batch.texts, batch.sequences_per_document, strict=True))
    documents = np.arange(len(batch.origins["offset"]))
    characters = np.zeros(len(documents))
    for texts, counts in columns:
        owners = documents if counts is None else np.repeat(documents, counts)
        characters += np.bincount(owners, [len(text) for text in texts], len(documents))
    larger = []
    for document in np.flatnonzero(4 * characters > size_bytes):  # a character has at most 4 bytes
        found = (
            texts[index] for texts, counts in columns for index in texts_of(np.array([document]), counts)
        )
        if sum(len(text.encode()) for text in found) > size_bytes:
            larger.append(document)
    return np.array(larger, np.int64)
