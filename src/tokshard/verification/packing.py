"""Verification of packed samples by counting, independent of the code that packs them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.gpt_index.epochs import EpochPlan

    Integers = NDArray[np.int64]


def packing_problems(
    arrays: Mapping[str, NDArray[Any]], lengths: NDArray[np.int32], sequences: range, plan: EpochPlan
) -> Iterator[str]:
    """Yield each guarantee of packed samples that arrays of the right shapes do not keep.

    In every epoch, each document of the split is read whole and once: documents of up to ``sequence_length``
    tokens within one sample, longer ones as full samples and one remainder at the beginning of a sample. A
    sample has 1 to ``sequence_length`` tokens, and its documents keep to the limits of the packing.

    Memory is about 60 bytes for each document and sample of one epoch.

    Args:
        arrays: The document index, the sample index and the shuffle index, by name.
        lengths: The tokens of all sequences of the dataset.
        sequences: The sequences of the split.
        plan: The plan of the index.
    """
    packed = plan.packed
    if packed is None:
        raise ValueError("the samples are not packed")
    documents, rows = arrays["document_index"], arrays["sample_index"]
    expected = np.flatnonzero(lengths[sequences.start : sequences.stop]) + sequences.start
    for epoch in range(plan.epochs):
        first, row = epoch * packed.documents, epoch * packed.samples
        entries = documents[first : first + packed.documents].astype(np.int64)
        if not np.array_equal(np.sort(entries), expected):
            yield f"epoch {epoch} must read each of {len(expected)} documents with tokens once"
            continue
        begins = rows[row : row + packed.samples].astype(np.int64)
        begins[:, 0] -= first
        problem = _problem_of_epoch(lengths[entries].astype(np.int64), begins, plan)
        if problem is not None:
            yield f"epoch {epoch}: {problem}"
        samples = np.sort(arrays["shuffle_index"][row : row + packed.samples])
        if not np.array_equal(samples, np.arange(row, row + packed.samples)):
            yield f"epoch {epoch} must use each of its samples once"
    last = int(documents[-1])
    if rows[-1].tolist() != [len(documents) - 1, 0] or not 0 <= last < len(lengths) or not lengths[last]:
        yield "the last row must be the beginning of the last entry of the document index, which has tokens"


def _problem_of_epoch(sizes: Integers, begins: Integers, plan: EpochPlan) -> str | None:
    # ``sizes`` are the tokens of the documents in the order of the epoch, ``begins`` its rows.
    length = plan.sequence_length
    places, offsets = begins.T
    if not ((places >= 0) & (places < len(sizes)) & (offsets >= 0)).all() or (offsets >= sizes[places]).any():
        return "each sample must begin at a token of a document of its epoch"
    edges = np.append(0, sizes.cumsum())
    starts = edges[places] + offsets
    tokens = np.diff(starts, append=edges[-1])
    if starts[0] != 0 or (tokens < 1).any() or (tokens > length).any():
        return f"samples must follow each other, with 1 to {length} tokens each"
    if (offsets % length).any():
        return f"a document must not be cut but at multiples of {length} tokens"
    if not np.isin(np.flatnonzero(sizes > length), places[offsets == 0]).all():
        return f"a document of more than {length} tokens must begin a sample"
    return _problem_of_limits(starts, edges, plan)


def _problem_of_limits(starts: Integers, edges: Integers, plan: EpochPlan) -> str | None:
    packing, length = plan.packed.packing if plan.packed else None, plan.sequence_length
    if packing is None or (packing.max_documents is None and packing.pad_multiple is None):
        return None
    # Pieces: the parts of documents in samples; each begins where a document or a sample does.
    pieces = np.union1d(starts, edges[:-1])
    samples = np.searchsorted(starts, pieces, side="right") - 1
    if packing.max_documents is not None and np.bincount(samples).max() > packing.max_documents:
        return f"a sample must have at most {packing.max_documents} documents"
    if packing.pad_multiple is not None:
        multiple = packing.pad_multiple
        rooms = -(-np.diff(pieces, append=edges[-1]) // multiple) * multiple
        if np.bincount(samples, rooms).max() > length:
            return f"the documents of a sample, padded to multiples of {multiple}, must have room in it"
    return None
