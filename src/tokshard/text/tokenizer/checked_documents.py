"""The documents of a corpus that are checked when it is encoded: a sample, and those of the first megabyte.

The choice depends on nothing but the input: about one in a thousand, by a hash of its position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FIRST_BYTES = 1 << 20
ONE_IN = 1000


def sample(offsets: NDArray[np.int64], name: str, compare_below: int) -> NDArray[np.int64]:
    """Return the documents of a batch to check: those before ``compare_below``, and a fixed sample.

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


def texts_of(
    documents: NDArray[np.int64], texts_per_document: NDArray[np.uint32] | None
) -> NDArray[np.int64]:
    """Return the indices of the texts of documents; ``texts_per_document``: None if each has one."""
    import numpy as np

    if texts_per_document is None:
        return documents
    ends = np.cumsum(texts_per_document, dtype=np.int64)
    pieces = [np.arange(ends[index] - texts_per_document[index], ends[index]) for index in documents]
    return np.concatenate(pieces) if pieces else documents
