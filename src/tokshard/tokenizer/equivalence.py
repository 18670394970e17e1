"""The equivalence check: in every run the fast encoder is compared with the reference on some documents.

These are the documents of the corpus' first megabyte, and about one in a thousand of the others, by a hash of
its position, so the choice depends on nothing but the input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokshard.errors import EncoderMismatchError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tokshard.tokenizer.encoders import EncodedBatch, Encoder

FIRST_BYTES = 1 << 20
ONE_IN = 1000
_SHOWN_CHARACTERS = 60


def sample(offsets: NDArray[np.int64], file: int, compare_below: int) -> NDArray[np.int64]:
    """Return the documents of a batch to compare: those before ``compare_below``, and a fixed sample.

    ``offsets``: position of each document in its input, int64, shape ``[documents]``.

    Returns:
        Indices into ``offsets``, int64. About one in :data:`ONE_IN` beyond ``compare_below``: those whose
        position, mixed by the finalizer of SplitMix64 (Steele, Lea and Flood, 2014), is small.
    """
    import numpy as np

    mixed = offsets.astype(np.uint64) + np.uint64(file * 0x9E3779B97F4A7C15 % 2**64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    chosen = (mixed < np.uint64(2**64 // ONE_IN)) | (offsets < compare_below)
    return np.flatnonzero(chosen)


def compare(
    texts: list[str], encoded: EncodedBatch, chosen: NDArray[np.int64], reference: Encoder, where: str
) -> None:
    """Compare the fast encoder's tokens of some texts with the reference's.

    Raises:
        EncoderMismatchError: They differ.
    """
    import numpy as np

    if not len(chosen):
        return
    expected = reference.encode([texts[index] for index in chosen])
    for position, index in enumerate(chosen):
        fast = encoded.ids[encoded.offsets[index] : encoded.offsets[index + 1]]
        slow = expected.ids[expected.offsets[position] : expected.offsets[position + 1]]
        if not np.array_equal(fast, slow):
            raise _mismatch(texts[index], fast, slow, where)


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
