"""Verification of cached indexes: Megatron's files, the sidecar, and the dataset they were built from."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.checks.verify.context import VerifyContext, unreadable_found
from tokshard.checks.verify.report import ProductFindings, VerifiedProduct
from tokshard.checks.verify.tokenizers import examine_tokenizers
from tokshard.dataset.fingerprint import DatasetFingerprint, FingerprintedIndex
from tokshard.dataset.reader import IndexedDataset
from tokshard.dataset.source import InputFile
from tokshard.errors import (
    InputError,
    IntegrityError,
    StorageError,
    TokshardError,
    UsageError,
    raise_exhaustion,
)
from tokshard.samples.blend.order import BlendOrder
from tokshard.samples.index.description import (
    BlendedDescription,
    GPTDatasetDescription,
    default_directory,
    read_description,
)
from tokshard.samples.index.entry import CacheEntry
from tokshard.samples.index.examination import Examination, examine
from tokshard.samples.index.npy import BLEND_ARRAYS, GPT_ARRAYS, map_npy
from tokshard.samples.index.options import IndexRequest
from tokshard.samples.index.sidecar import Sidecar, gpt_specs
from tokshard.samples.index.splits import Split, whole_split
from tokshard.storage.files import is_temporary
from tokshard.storage.fs import getsize, lexists, state
from tokshard.storage.paths import bin_path, idx_path

if TYPE_CHECKING:
    from numpy.typing import NDArray


_BLOCK = 1 << 20

_CODES = {
    "description": "cache-description",
    "name": "cache-name",
    "array": "cache-array",
    "shape": "cache-shape",
    "sidecar": "cache-sidecar",
    "older": "older-version",
}
_UNREADABLE_SIDECAR = ("cache-sidecar", "older-version", "unreadable")


def dataset_of(entry: CacheEntry) -> str | None:
    """Return the path prefix of the dataset that an index was built from; None if it cannot be found."""
    try:
        description = read_description(entry.description_path)
    except (InputError, IntegrityError, StorageError, OSError) as error:
        raise_exhaustion(error)
        return None
    if not isinstance(description, GPTDatasetDescription):
        return None
    return _local(entry.directory, description.dataset_path)


def verify_entry(entry: CacheEntry, prefix: str | None, context: VerifyContext) -> VerifiedProduct:
    """Verify one entry of a cache; ``prefix``: its dataset, if a blend or a plan names it."""
    path = entry.description_path
    findings = ProductFindings("index", path)
    before = state(path)
    found = Examination(entry, specs={})
    with unreadable_found(findings, path):
        found = examine(entry)
    _report_condition(found, findings)
    if found.sidecar is not None and context.reaches("digest"):
        with unreadable_found(findings, path):
            _examine_digests(found, found.sidecar, findings, context)
    description = found.description
    is_compared = False
    if isinstance(description, GPTDatasetDescription):
        is_compared = _examine_origin(prefix, found, description, findings, context)
    elif description is not None and context.reaches("deep") and len(found.specs) == len(entry.arrays):
        is_compared = True
        with unreadable_found(findings, path):
            compare_blend(entry, description, findings)
    if found.sidecar is None and not is_compared and not findings.has(*_UNREADABLE_SIDECAR):
        text = f"{entry.description_path} was not built by tokshard, so its content is unverified"
        findings.find("cache-foreign", text)
    _examine_leftovers(entry, findings)
    # A process that replaces an entry removes its description first and writes it last.
    if found.replaced or state(path) != before:
        findings.find_changed()
    product = findings.close()
    if product.sound:
        context.sound_indexes.add(os.path.realpath(path))
    return product


def _report_condition(found: Examination, findings: ProductFindings) -> None:
    if found.missing:
        names = ", ".join(os.path.basename(path) for path in found.missing)
        text = f"{names} missing, so Megatron would rebuild all files"
        findings.find("cache-incomplete", text, path=found.missing[0])
    for problem in found.problems:
        findings.find(_CODES[problem.kind], problem.message, path=problem.path)
    if "shuffle_index" in found.specs:
        findings.counts["samples"] = found.specs["shuffle_index"].shape[0]


def _examine_digests(
    found: Examination, sidecar: Sidecar, findings: ProductFindings, context: VerifyContext
) -> None:
    names = list(found.specs)
    selected = [names[place] for place in context.selected(len(names))]

    def is_as_written(name: str) -> bool:
        digest = context.digest(InputFile(found.entry.array_path(name)))
        return digest == sidecar.files[f"{name}.npy"].xxh3_128

    total = sum(found.specs[name].file_bytes for name in selected)
    for name, good in zip(selected, context.runner.run(is_as_written, selected, total), strict=True):
        path = found.entry.array_path(name)
        if not good:
            findings.find("cache-digest", f"{path} does not match its recorded digest", path=path)
    findings.counts |= {"arrays": len(names), "arrays_checked": len(selected), "bytes_checked": total}


def _examine_origin(
    prefix: str | None,
    found: Examination,
    description: GPTDatasetDescription,
    findings: ProductFindings,
    context: VerifyContext,
) -> bool:
    """Compare an index with its dataset. Return whether it was built again and compared."""
    entry, sidecar = found.entry, found.sidecar
    prefix = prefix or _local(entry.directory, description.dataset_path)
    if prefix is None or not IndexedDataset.exists(prefix):
        text = f"the dataset {prefix or description.dataset_path} was not found and not compared"
        findings.find("cache-alone", text)
        return False
    origin = sidecar.origin if sidecar is not None else None
    allowed = sidecar.tokenizer_mismatches if sidecar is not None else None
    examine_tokenizers({prefix: origin.tokenizer if origin is not None else None}, allowed, findings, context)
    try:
        now = context.fingerprint(prefix) if context.reaches("digest") else _sizes(prefix)
    except (InputError, IntegrityError, StorageError) as error:
        findings.find_error("dataset-damaged", error, path=prefix)
        return False
    changes = now.changes_since(sidecar.origin.dataset) if sidecar is not None and sidecar.origin else []
    if changes:
        text = f"{findings.path} was built from other content of {prefix}: {', '.join(changes)}"
        findings.find("cache-stale", text)
    elif context.reaches("deep") and len(found.specs) == len(entry.arrays):
        with unreadable_found(findings, findings.path):
            compare_index(found, prefix, description, findings)
        return True
    return False


def _local(directory: str, dataset_path: str) -> str | None:
    # Beside the cache, or where the description says.
    suffix = default_directory("")
    full = os.path.abspath(directory)
    beside = full.removesuffix(os.sep + suffix.lstrip(os.sep))
    if beside != full and IndexedDataset.exists(beside):
        return beside
    return dataset_path if dataset_path and IndexedDataset.exists(dataset_path) else None


def _sizes(prefix: str) -> DatasetFingerprint:
    # Only the part of a fingerprint that costs nothing.
    return DatasetFingerprint(bin_bytes=getsize(bin_path(prefix)), idx_bytes=getsize(idx_path(prefix)))


def _examine_leftovers(entry: CacheEntry, findings: ProductFindings) -> None:
    if not os.path.isdir(entry.directory or "."):
        return
    left = [entry.lock_path] if lexists(entry.lock_path) else []
    begin = f".{entry.stem}-"
    with unreadable_found(findings, entry.directory):
        names = os.listdir(entry.directory or ".")
        left += [
            os.path.join(entry.directory, name)
            for name in names
            if name.startswith(begin) and is_temporary(name)
        ]
    for path in sorted(left):
        findings.find(
            "cache-leftover",
            f"{path} is left from an interrupted build, or belongs to a running one",
            path=path,
        )


def compare_index(
    found: Examination, prefix: str, description: GPTDatasetDescription, findings: ProductFindings
) -> None:
    """Build an index again and compare.

    Shapes are computed first, so that an index is built only if it has the size of the files.

    Raises:
        StorageError, IntegrityError: A file cannot be read.
    """
    entry, specs, sidecar = found.entry, found.specs, found.sidecar
    try:
        request = _request(prefix, description, sidecar)
        table = FingerprintedIndex.open(prefix).table
        count = table.sequence_count
        sequences = request.sequences(count) or range(0)
        if not 0 <= sequences.start <= sequences.stop <= count:
            text = f"{entry.description_path}: the split reaches beyond the {count} sequences of {prefix}"
            findings.find("cache-content", text, path=entry.description_path)
            return
        plan = request.plan(request.size(table))
        for name, spec in gpt_specs(plan).items():
            if specs[name] != spec:
                path = entry.array_path(name)
                text = f"{path} must be {spec} for {prefix}, got {specs[name]}"
                findings.find("cache-shape", text, path=path)
        if findings.has("cache-shape"):
            return
        built = request.build(table)
    except (InputError, UsageError) as error:
        text = f"{entry.description_path} cannot be built from {prefix}: {error.message}"
        findings.find("cache-content", text, path=entry.description_path)
        return
    origin = None if sidecar is None else sidecar.origin
    recorded = plan if origin is None else origin.plan
    for name in (field.name for field in fields(plan)):
        if getattr(recorded, name) == getattr(plan, name):
            continue
        text = f"{entry.sidecar_path}: {name} contradicts the dataset"
        findings.find("cache-content", text, path=entry.sidecar_path)
    for name in GPT_ARRAYS:
        path = entry.array_path(name)
        place = first_difference(map_npy(path), getattr(built, name))
        if place is not None:
            text = f"{path} differs from the index of {prefix} at entry {place}"
            findings.find("cache-content", text, path=path)


def _request(prefix: str, description: GPTDatasetDescription, sidecar: Sidecar | None) -> IndexRequest:
    origin = sidecar.origin if sidecar is not None else None
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
        extra_token=origin is None or origin.plan.extra_token,
        drop_last_partial=origin is None or origin.plan.drop_last_partial,
        packing=None if origin is None else origin.plan.packing,
    )


def compare_blend(entry: CacheEntry, description: BlendedDescription, findings: ProductFindings) -> None:
    """Build a blend again and compare."""
    try:
        order = BlendOrder(description.weights, description.size)
    except TokshardError as error:
        findings.find_error("cache-description", error, path=entry.description_path)
        return
    paths = [entry.array_path(name) for name in BLEND_ARRAYS]
    arrays = [map_npy(path) for path in paths]
    if any(array.shape != (order.size,) for array in arrays):
        return
    done = 0
    differing: set[str] = set()
    for blocks in order.blocks():
        for number, (array, path) in enumerate(zip(arrays, paths, strict=True)):
            row = first_difference(array[done : done + len(blocks[number])], blocks[number])
            if row is not None and path not in differing:
                differing.add(path)
                text = f"{path} differs from the order of the weights at sample {done + row}"
                findings.find("cache-content", text, path=path)
        done += len(blocks[0])


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
