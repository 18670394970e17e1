"""From encoded texts to what goes to disk: sequences, documents and EOD tokens, as Megatron lays them out.

The rule (Megatron's preprocess_data): a document is one text or a list of texts; a text that gives no
tokens gives no sequence; if the document has any token and EOD is asked for, one EOD token is appended
and counted in its last sequence. A document without tokens stays a document of zero sequences.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tokshard.dataset.counts import NO_COUNTS, Counts, UnrepresentedText
from tokshard.errors import IntegrityError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class PackedDocuments:
    """One field of a batch of documents, ready to be written.

    Attributes:
        tokens: Token ids, dtype of the dataset, shape ``[tokens]``.
        lengths: Tokens of each sequence, int32, shape ``[sequences]``.
        sequences: Sequences of each document, uint32, shape ``[documents]``.
        counts: The counts of the tokens alone.
    """

    tokens: NDArray[np.generic]
    lengths: NDArray[np.int32]
    sequences: NDArray[np.uint32]
    counts: Counts


def pack_documents(
    ids: NDArray[np.uint32],
    offsets: NDArray[np.int64],
    texts_per_document: NDArray[np.uint32] | None,
    *,
    dtype: np.dtype[np.generic],
    eod_id: int | None,
    append_eod: bool,
    unknown_id: int | None = None,
    template_ids: tuple[int, ...] = (),
) -> PackedDocuments:
    """Pack encoded texts into sequences and documents.

    Args:
        ids: Token ids of all texts, uint32, shape ``[tokens]``.
        offsets: Where each text begins in ``ids``, int64, shape ``[texts + 1]``.
        texts_per_document: Texts of each document, uint32; None if each has exactly one.
        dtype: The dataset's token dtype.
        eod_id: The EOD token's id, to append or to count; None if the tokenizer has none.
        append_eod: Whether to append it to each document that has tokens.
        unknown_id: The id of the unknown token, to count; None to count none.
        template_ids: The ids that the tokenizer adds to each text, which are not counted as text.

    Raises:
        IntegrityError: A token id does not fit ``dtype``, or a sequence is longer than int32 allows.

    Example:
        >>> import numpy as np
        >>> packed = pack_documents(np.array([5, 6, 7], np.uint32), np.array([0, 2, 2, 3]), None,
        ...                         dtype=np.dtype("uint16"), eod_id=9, append_eod=True)
        >>> packed.tokens.tolist(), packed.lengths.tolist(), packed.sequences.tolist()
        ([5, 6, 9, 7, 9], [3, 2], [1, 0, 1])
    """
    import numpy as np

    _check_range(ids, dtype)
    text_lengths = np.diff(offsets)
    kept = text_lengths > 0
    lengths = text_lengths[kept]
    if texts_per_document is None:
        sequences = kept.astype(np.uint32)
    else:
        ends = np.cumsum(texts_per_document, dtype=np.int64)
        kept_before = np.concatenate(([0], np.cumsum(kept)))
        sequences = np.diff(kept_before[ends], prepend=0).astype(np.uint32)
    appended = 0
    if append_eod and eod_id is not None:
        last_sequences = np.cumsum(sequences, dtype=np.int64)[sequences > 0] - 1
        tokens = _with_eod(ids, np.cumsum(lengths)[last_sequences], eod_id, dtype)
        lengths = lengths.copy()
        lengths[last_sequences] += 1
        appended = len(last_sequences)
    else:
        tokens = ids.astype(dtype, copy=False)
    # Counted in the dataset's dtype, which can be half as large as that of the ids.
    eod_in_text = int(np.count_nonzero(tokens == eod_id)) - appended if eod_id is not None else 0
    longest = int(lengths.max(initial=0))
    _check_length(longest)
    counts = replace(
        NO_COUNTS,
        tokens=len(tokens),
        sequences=len(lengths),
        empty_documents=int(np.count_nonzero(sequences == 0)),
        eod_in_text=eod_in_text,
        longest_sequence=longest,
        unrepresented=unknown_tokens(ids, len(lengths), unknown_id, template_ids),
    )
    return PackedDocuments(tokens, lengths.astype(np.int32), sequences, counts)


def _with_eod(
    ids: NDArray[np.uint32], ends: NDArray[np.int64], eod_id: int, dtype: np.dtype[np.generic]
) -> NDArray[np.generic]:
    # `ends`: where the ids of each document end.
    import numpy as np

    result = np.empty(len(ids) + len(ends), dtype)
    eod_positions = ends + np.arange(len(ends))
    from_text = np.ones(len(result), bool)
    from_text[eod_positions] = False
    result[from_text] = ids
    result[eod_positions] = eod_id
    return result


def unknown_tokens(
    ids: NDArray[np.generic], sequences: int, unknown_id: int | None, template_ids: tuple[int, ...]
) -> UnrepresentedText | None:
    """Return the number of unknown tokens in the ids of texts; None without an unknown token.

    ``template_ids``: the ids that the tokenizer adds to each of ``sequences`` texts, which do not count.
    """
    import numpy as np

    if unknown_id is None:
        return None
    found = int(np.count_nonzero(ids == unknown_id)) - sequences * template_ids.count(unknown_id)
    return UnrepresentedText("tokens", len(ids) - sequences * len(template_ids), found)


def _check_length(longest: int) -> None:
    if longest > 2**31 - 1:
        raise IntegrityError(f"a sequence of {longest} tokens is longer than the format's int32 allows")


def _check_range(ids: NDArray[np.uint32], dtype: np.dtype[np.generic]) -> None:
    import numpy as np

    limit = np.iinfo(str(dtype)).max
    largest = int(ids.max(initial=0))
    if largest > limit:
        raise IntegrityError(
            f"the tokenizer returned the token id {largest}, but the largest {dtype} is {limit}",
            hint="use --dtype int32",
        )
