"""The equivalence check: in every run the fast encoder is compared with the reference on some documents.

These are the documents of the corpus' first megabyte, and about one in a thousand of the others, by a hash of
its position, so the choice depends on nothing but the input. Documents above 1 MB are not compared: the
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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy as np
    from numpy.typing import NDArray

    from tokshard.text.tokenizer.encoders import EncodedBatch, Encoder

FIRST_BYTES = 1 << 20
ONE_IN = 1000
MOST_BYTES = 1_000_000
"""The most bytes of text of a document that is compared."""

_SHOWN_CHARACTERS = 60
_MAX_THREADS = 4
_FEW_CHARACTERS = 1 << 15
_THREAD_CHARACTERS = 1 << 17  # the reference needs about 0.1 s for so many


def sample(offsets: NDArray[np.int64], name: str, compare_below: int) -> NDArray[np.int64]:
    """Return the documents of a batch to compare: those before ``compare_below``, and a fixed sample.

    Args:
        offsets: Position of each document in its input, int64, shape ``[documents]``.
        name: Path of the input, so that inputs with equal positions have different samples, whatever their
            order is.
        compare_below: All documents before this position are in the sample.

    Returns:
        Indices into ``offsets``, int64. About one in :data:`ONE_IN` beyond ``compare_below``: those whose
        position, mixed by the finalizer of SplitMix64 (Steele, Lea and Flood, 2014), is small.
    """
    import numpy as np
    import xxhash

    seed = xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogateescape"))
    mixed = offsets.astype(np.uint64) + np.uint64(seed)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    chosen = (mixed < np.uint64(2**64 // ONE_IN)) | (offsets < compare_below)
    return np.flatnonzero(chosen)


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


def first_difference(text: str, ids: NDArray[np.integer], expected: NDArray[np.integer]) -> str:
    """Describe the first difference between two encodings of a text, for an error."""
    import numpy as np

    shared = min(len(ids), len(expected))
    differing = np.flatnonzero(ids[:shared] != expected[:shared])
    first = int(differing[0]) if len(differing) else shared
    return (
        f"at token {first} of the text {text[:_SHOWN_CHARACTERS]!r}: {ids[first : first + 4].tolist()} "
        f"instead of {expected[first : first + 4].tolist()}"
    )


def _mismatch(
    text: str, fast: NDArray[np.uint32], slow: NDArray[np.uint32], where: str
) -> EncoderMismatchError:
    return EncoderMismatchError(
        f"the fast encoder and the reference disagree in {where}, {first_difference(text, fast, slow)}",
        hint="run the same command with --encoder reference, which replaces the work of the fast encoder; "
        "please report this text",
    )
