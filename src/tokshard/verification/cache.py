"""Verification of cached indexes: Megatron's files, our sidecar, and the dataset they are made from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.blending.order import blend_blocks, exhaustive_order, greedy_order
from tokshard.dataset.fingerprint import DatasetFingerprint, FingerprintedIndex
from tokshard.dataset.reader import IndexedDataset
from tokshard.dataset.source import InputFile
from tokshard.errors import InputError, IntegrityError, StorageError, TokshardError, UsageError
from tokshard.gpt_index.epochs import plan_epochs
from tokshard.gpt_index.index import GPTDatasetIndex, shuffle_index_dtype
from tokshard.gpt_index.splits import Split, whole_split
from tokshard.index_cache.description import (
    BlendedDescription,
    Description,
    GPTDatasetDescription,
    read_description,
)
from tokshard.index_cache.entry import (
    BLEND_ARRAYS,
    GPT_ARRAYS,
    CacheEntry,
    Sidecar,
    blend_specs,
    default_directory,
    gpt_specs,
)
from tokshard.index_cache.npy import ArraySpec, map_npy, read_spec
from tokshard.index_cache.request import IndexRequest
from tokshard.storage.files import is_temporary
from tokshard.storage.fs import getsize, state
from tokshard.storage.paths import bin_path, idx_path
from tokshard.verification.context import VerifyContext, unreadable_found
from tokshard.verification.report import ProductFindings, VerifiedProduct

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class CachedIndex:
    """One set of files of a cache, by what their names begin with.

    Attributes:
        directory: The directory of the cache.
        stem: ``{hash}-{class}-{split}``.
        prefix: The dataset that it is made from, where that is known better than its description says.
    """

    directory: str
    stem: str
    prefix: str | None = None

    @property
    def path(self) -> str:
        """The path of the description, which need not be there."""
        return self.file("description.txt")

    @property
    def arrays(self) -> tuple[str, ...]:
        """The names of its arrays."""
        return GPT_ARRAYS if f"-{GPTDatasetDescription.CLASS}-" in self.stem else BLEND_ARRAYS

    def file(self, suffix: str) -> str:
        """Return the path of one of its files."""
        return os.path.join(self.directory, f"{self.stem}-{suffix}")


def verify_index(index: CachedIndex, context: VerifyContext) -> VerifiedProduct:
    """Verify one set of files of a cache.

    Args:
        index: The files.
        context: The options and threads.
    """
    findings = ProductFindings("index", index.path)
    before = state(index.path)
    description = _description(index, findings)
    specs = _specs(index, findings)
    if description is not None:
        _examine_shapes(index, description, specs, findings)
    sidecar = _sidecar(index, specs, findings)
    if sidecar is not None and context.reaches("digest"):
        with unreadable_found(findings, index.path):
            _examine_digests(index, sidecar, specs, findings, context)
    if isinstance(description, GPTDatasetDescription):
        _examine_origin(index, description, sidecar, specs, findings, context)
    elif description is not None and context.reaches("deep") and len(specs) == len(BLEND_ARRAYS):
        with unreadable_found(findings, index.path):
            compare_blend(index, description, findings)
    _examine_leftovers(index, findings)
    if state(index.path) != before:  # who replaces an index removes its description first, and writes it last
        findings.find_changed()
    return findings.close()


def _description(index: CachedIndex, findings: ProductFindings) -> Description | None:
    missing = [index.path, *(index.file(f"{name}.npy") for name in index.arrays)]
    missing = [path for path in missing if not os.path.lexists(path)]
    if missing:
        names = ", ".join(os.path.basename(path) for path in missing)
        findings.find(
            "cache-incomplete", f"{names} not there, so Megatron would build all anew", path=missing[0]
        )
    if index.path in missing:
        return None
    try:
        description = read_description(index.path)
    except InputError as error:
        findings.find_error("cache-description", error, path=index.path)
        return None
    if isinstance(description, BlendedDescription) and not description.has_a_size:
        findings.find(
            "cache-description", f"{index.path} does not tell the size of the blend", path=index.path
        )
        return None
    if CacheEntry.of(description, index.directory).stem != index.stem:
        text = f"{index.path} does not hold the text that its name is the hash of"
        findings.find("cache-name", text, path=index.path)
    return description


def _specs(index: CachedIndex, findings: ProductFindings) -> dict[str, ArraySpec]:
    """Return what the arrays hold by their headers, which fit their sizes."""
    found = {}
    for name in index.arrays:
        path = index.file(f"{name}.npy")
        if os.path.lexists(path):
            with unreadable_found(findings, path):
                try:
                    found[name] = read_spec(path)
                except IntegrityError as error:
                    findings.find_error("cache-array", error, path=path)
    return found


def _examine_shapes(
    index: CachedIndex, description: Description, specs: Mapping[str, ArraySpec], findings: ProductFindings
) -> None:
    """Hold the shapes of arrays against each other and the description, without the dataset."""
    if isinstance(description, BlendedDescription):
        wanted = blend_specs(description)
    else:
        samples = specs["shuffle_index"].shape[0] if "shuffle_index" in specs else None
        rows = specs["sample_index"].dtype if "sample_index" in specs else np.dtype("<i4")
        wanted = {}
        if "document_index" in specs:
            wanted["document_index"] = ArraySpec(np.dtype("<i4"), specs["document_index"].shape[:1])
        if samples is not None:
            wanted["shuffle_index"] = ArraySpec(np.dtype(shuffle_index_dtype(samples)), (samples,))
            rows = rows if rows in {np.dtype("<i4"), np.dtype("<i8")} else np.dtype("<i4")
            wanted["sample_index"] = ArraySpec(rows, (samples + 1, 2))
            findings.counts["samples"] = samples
    for name, spec in wanted.items():
        if name in specs and specs[name] != spec:
            path = index.file(f"{name}.npy")
            findings.find(
                "cache-shape", f"{path} is {specs[name]}, but {spec} belongs to the others", path=path
            )


def _sidecar(index: CachedIndex, specs: Mapping[str, ArraySpec], findings: ProductFindings) -> Sidecar | None:
    path = index.file("tokshard.json")
    sidecar = None
    with unreadable_found(findings, path):
        try:
            sidecar = Sidecar.read(path)
        except IntegrityError as error:
            findings.find_error("cache-sidecar", error, path=path)
            return None
    if sidecar is None:
        if not findings.has("unreadable"):
            text = f"{index.path} was not made by tokshard, so nothing is known of its content"
            findings.find("cache-foreign", text, path=index.path)
        return None
    if index.stem.partition("-")[0] != sidecar.description_md5:
        text = f"{path} is of another index: its hash is {sidecar.description_md5}"
        findings.find("cache-sidecar", text, path=path)
        return None
    for name, spec in specs.items():
        record = sidecar.files.get(f"{name}.npy")
        recorded = None if record is None else record.size_bytes
        if recorded != spec.file_bytes:
            array = index.file(f"{name}.npy")
            text = f"{array} has {spec.file_bytes} bytes, but {recorded} were recorded"
            findings.find("cache-array", text, path=array)
    return sidecar


def _examine_digests(
    index: CachedIndex,
    sidecar: Sidecar,
    specs: Mapping[str, ArraySpec],
    findings: ProductFindings,
    context: VerifyContext,
) -> None:
    names = [f"{name}.npy" for name in specs]
    some = [names[place] for place in context.selected(len(names))]

    def is_as_written(name: str) -> bool:
        record = sidecar.files.get(name)
        return record is not None and context.digest(InputFile(index.file(name))) == record.xxh3_128

    total = sum(specs[name.removesuffix(".npy")].file_bytes for name in some)
    for name, good in zip(some, context.runner.run(is_as_written, some, total), strict=True):
        path = index.file(name)
        if not good:
            findings.find("cache-digest", f"{path} does not have the digest that was recorded", path=path)
    findings.counts |= {"arrays": len(names), "arrays_checked": len(some), "bytes_checked": total}


def _examine_origin(
    index: CachedIndex,
    description: GPTDatasetDescription,
    sidecar: Sidecar | None,
    specs: Mapping[str, ArraySpec],
    findings: ProductFindings,
    context: VerifyContext,
) -> None:
    """Hold an index against the dataset that it is made from, if that is here."""
    prefix = index.prefix or _local(index.directory, description.dataset_path)
    if prefix is None or not IndexedDataset.exists(prefix):
        text = f"the dataset {prefix or description.dataset_path} is not here, and was not compared"
        findings.find("cache-alone", text, path=index.path)
        return
    try:
        now = context.fingerprint(prefix) if context.reaches("digest") else _sizes(prefix)
    except (InputError, IntegrityError, StorageError) as error:
        findings.find_error("dataset-damaged", error, path=prefix)
        return
    changes = now.changes_since(sidecar.origin.dataset) if sidecar is not None and sidecar.origin else []
    if changes:
        text = f"{index.path} was made from another content of {prefix}: {', '.join(changes)}"
        findings.find("cache-stale", text, path=index.path)
    elif context.reaches("deep") and len(specs) == len(GPT_ARRAYS):
        with unreadable_found(findings, index.path):
            compare_index(index, prefix, description, sidecar, specs, findings)


def _local(directory: str, dataset_path: str) -> str | None:
    """Return the dataset that an index is made from, if it is here: beside the cache, or where it says."""
    suffix = default_directory("")
    full = os.path.abspath(directory)
    beside = full.removesuffix(os.sep + suffix.lstrip(os.sep))
    if beside != full and IndexedDataset.exists(beside):
        return beside
    return dataset_path if dataset_path and IndexedDataset.exists(dataset_path) else None


def _sizes(prefix: str) -> DatasetFingerprint:
    """Return the part of a fingerprint that costs nothing."""
    return DatasetFingerprint(bin_bytes=getsize(bin_path(prefix)), idx_bytes=getsize(idx_path(prefix)))


def _examine_leftovers(index: CachedIndex, findings: ProductFindings) -> None:
    if not os.path.isdir(index.directory or "."):
        return
    left = [index.file("tokshard.lock")] if os.path.lexists(index.file("tokshard.lock")) else []
    begin = f".{index.stem}-"
    with unreadable_found(findings, index.directory):
        names = os.listdir(index.directory or ".")
        left += [
            os.path.join(index.directory, name)
            for name in names
            if name.startswith(begin) and is_temporary(name)
        ]
    for path in sorted(left):
        findings.find(
            "cache-leftover", f"{path} is left of a builder that was stopped, or that is at work", path=path
        )


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
        extra_token=origin is None or origin.extra_token,
        drop_last_partial=origin is None or origin.drop_last_partial,
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
