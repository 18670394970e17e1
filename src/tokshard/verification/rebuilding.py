"""Indexes and blends made anew, to hold those of a cache against them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.blending.exhaustive import exhaustive_order
from tokshard.blending.greedy import greedy_order
from tokshard.blending.order import blend_blocks
from tokshard.errors import InputError, TokshardError, UsageError
from tokshard.gpt_index.epochs import plan_epochs
from tokshard.gpt_index.index import GPTDatasetIndex
from tokshard.gpt_index.splits import Split, whole_split
from tokshard.index_cache.cache import BLEND_ARRAYS, GPT_ARRAYS, gpt_specs
from tokshard.index_cache.description import BlendedDescription, GPTDatasetDescription
from tokshard.index_cache.fingerprint import FingerprintedIndex
from tokshard.index_cache.npy import ArraySpec, map_npy
from tokshard.index_cache.request import IndexRequest
from tokshard.index_cache.sidecar import Sidecar
from tokshard.verification.entries import CachedIndex
from tokshard.verification.report import ProductFindings

if TYPE_CHECKING:
    from numpy.typing import NDArray

_BLOCK = 1 << 20


def compare_index(
    index: CachedIndex,
    prefix: str,
    description: GPTDatasetDescription,
    sidecar: Sidecar | None,
    specs: Mapping[str, ArraySpec],
    findings: ProductFindings,
) -> None:
    """Build an index anew and compare.

    Its shapes are worked out first, so that only what has the size of the files is ever built.

    Args:
        index: The files.
        prefix: The dataset.
        description: What they are.
        sidecar: Our file, which tells the options that the description does not; None for Megatron's.
        specs: What the arrays are by their headers.
        findings: Collects what is found.

    Raises:
        StorageError, IntegrityError: A file cannot be read.
    """
    try:
        request = _request(prefix, description, sidecar)
        lengths = FingerprintedIndex.open(prefix).table.sequence_lengths
        sequences = request.sequences(len(lengths)) or range(0)
        if not 0 <= sequences.start <= sequences.stop <= len(lengths):
            text = f"{index.path}: the split reaches beyond the {len(lengths)} sequences of {prefix}"
            findings.find("cache-content", text, path=index.path)
            return
        plan = plan_epochs(
            sequences=len(sequences),
            tokens_per_epoch=int(lengths[sequences.start : sequences.stop].sum(dtype=np.int64)),
            sequence_length=request.sequence_length,
            num_samples=request.num_samples,
            extra_token=request.extra_token,
            drop_last_partial=request.drops_last_partial,
        )
        for name, spec in gpt_specs(plan).items():
            if specs[name] != spec:
                path = index.file(f"{name}.npy")
                text = f"{path} is {specs[name]}, but {spec} follows from {prefix}"
                findings.find("cache-shape", text, path=path)
        if findings.has("cache-shape"):
            return
        built = GPTDatasetIndex.build(
            lengths,
            sequences,
            sequence_length=request.sequence_length,
            seed=request.seed,
            num_samples=request.num_samples,
            extra_token=request.extra_token,
            drop_last_partial=request.drops_last_partial,
        )
    except (InputError, UsageError) as error:
        text = f"{index.path} cannot be built from {prefix} at all: {error.message}"
        findings.find("cache-content", text, path=index.path)
        return
    for name in GPT_ARRAYS:
        path = index.file(f"{name}.npy")
        place = first_difference(map_npy(path), getattr(built, name))
        if place is not None:
            text = f"{path} does not follow from {prefix} at entry {place}"
            findings.find("cache-content", text, path=path)


def _request(prefix: str, description: GPTDatasetDescription, sidecar: Sidecar | None) -> IndexRequest:
    options = sidecar.options if sidecar is not None else {}
    matrix = description.split_matrix
    split = whole_split(description.index_split)
    if matrix is not None:
        train, valid, test = (None if share is None else (share[0], share[1]) for share in matrix)
        split = Split(description.split, (train, valid, test))
    return IndexRequest(
        prefix=prefix,
        training_path=description.dataset_path,
        split_name=description.index_split,
        split=split,
        num_samples=description.num_samples,
        sequence_length=description.sequence_length,
        seed=description.random_seed,
        tokenizer=description.tokenizer,
        extra_token=bool(options.get("add_extra_token_to_sequence", True)),
        drop_last_partial=bool(options.get("drop_last_partial_sequence", True)),
    )


def compare_blend(index: CachedIndex, description: BlendedDescription, findings: ProductFindings) -> None:
    """Draw a blend anew and compare."""
    weights = description.weights
    try:
        if description.size is None:
            order, size = exhaustive_order([int(weight) for weight in weights])
        else:
            order, size = greedy_order(weights, description.size), description.size
    except TokshardError as error:
        findings.find_error("cache-description", error, path=index.path)
        return
    paths = [index.file(f"{name}.npy") for name in BLEND_ARRAYS]
    arrays = [map_npy(path) for path in paths]
    if any(array.shape != (size,) for array in arrays):
        return
    done, good = 0, [True, True]
    for block in blend_blocks(order, size):
        for number, (array, path) in enumerate(zip(arrays, paths, strict=True)):
            place = first_difference(array[done : done + len(block[number])], block[number])
            if place is not None and good[number]:
                good[number] = False
                text = f"{path} does not follow from the weights at sample {done + place}"
                findings.find("cache-content", text, path=path)
        done += len(block[0])


def first_difference(found: NDArray[Any], right: NDArray[Any]) -> int | None:
    """Return the first place (in rows) where two arrays differ, block by block; None if they are equal.

    Example:
        >>> first_difference(np.array([1, 2, 3]), np.array([1, 2, 4]))
        2
    """
    if found.shape != right.shape:
        return min(len(found), len(right))
    for first in range(0, len(found), _BLOCK):
        differs = found[first : first + _BLOCK] != right[first : first + _BLOCK]
        if differs.any():
            return first + int(np.argwhere(differs)[0][0])
    return None
