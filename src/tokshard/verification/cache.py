"""Verifying cached indexes: Megatron's files, our file beside them, and the dataset they are made from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from tokshard.dataset.reader import IndexedDataset
from tokshard.dataset.source import InputFile
from tokshard.errors import InputError, IntegrityError, StorageError
from tokshard.gpt_index.indices import shuffle_index_dtype
from tokshard.index_cache.cache import (
    BLEND_ARRAYS,
    GPT_ARRAYS,
    Cache,
    CacheEntry,
    blend_specs,
    default_directory,
)
from tokshard.index_cache.description import (
    BlendedDescription,
    Description,
    GPTDatasetDescription,
    read_description,
)
from tokshard.index_cache.fingerprint import fingerprint_differences
from tokshard.index_cache.npy import ArraySpec, read_spec
from tokshard.index_cache.sidecar import Sidecar
from tokshard.storage.files import is_temporary
from tokshard.storage.fs import getsize, state
from tokshard.storage.paths import bin_path, idx_path
from tokshard.verification.entries import CachedIndex
from tokshard.verification.levels import chosen
from tokshard.verification.rebuilding import compare_blend, compare_index
from tokshard.verification.report import ProductFindings, Subject
from tokshard.verification.session import Session, unreadable_found

KIND = "index"


def verify_index(index: CachedIndex, session: Session) -> Subject:
    """Verify one set of files of a cache.

    Args:
        index: The files.
        session: What is asked for.
    """
    findings = ProductFindings(KIND, index.path)
    before = state(index.path)
    description = _description(index, findings)
    specs = _specs(index, findings)
    if description is not None:
        _examine_shapes(index, description, specs, findings)
    sidecar = _sidecar(index, specs, findings)
    if sidecar is not None and session.reaches("digest"):
        with unreadable_found(findings, index.path):
            _examine_digests(index, sidecar, specs, findings, session)
    if isinstance(description, GPTDatasetDescription):
        _examine_origin(index, description, sidecar, specs, findings, session)
    elif description is not None and session.reaches("deep") and len(specs) == len(BLEND_ARRAYS):
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
    if isinstance(description, BlendedDescription) and not _has_a_size(description):
        findings.find(
            "cache-description", f"{index.path} does not tell the size of the blend", path=index.path
        )
        return None
    if _entry(index, description).stem != index.stem:
        text = f"{index.path} does not hold the text that its name is the hash of"
        findings.find("cache-name", text, path=index.path)
    return description


def _has_a_size(description: BlendedDescription) -> bool:
    """Tell whether the weights of a blend are samples, where it is told no size."""
    return description.size is not None or all(
        isinstance(weight, int) and weight > 0 for weight in description.weights
    )


def _entry(index: CachedIndex, description: Description) -> CacheEntry:
    cache = Cache(index.directory)
    if isinstance(description, GPTDatasetDescription):
        return cache.gpt_files(description)
    return cache.blended_files(description)


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
        recorded = sidecar.files.get(f"{name}.npy", {}).get("bytes")
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
    session: Session,
) -> None:
    names = [f"{name}.npy" for name in specs]
    some = [names[place] for place in chosen(len(names), session.subset)]

    def is_as_written(name: str) -> bool:
        recorded: str | None = sidecar.files.get(name, {}).get("xxh3_128")
        return session.digest(InputFile(index.file(name))) == recorded

    total = sum(specs[name.removesuffix(".npy")].file_bytes for name in some)
    for name, good in zip(some, session.labour.run(is_as_written, some, total), strict=True):
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
    session: Session,
) -> None:
    """Hold an index against the dataset that it is made from, if that is here."""
    prefix = index.prefix or _local(index.directory, description.dataset_path)
    if prefix is None or not IndexedDataset.exists(prefix):
        text = f"the dataset {prefix or description.dataset_path} is not here, and was not compared"
        findings.find("cache-alone", text, path=index.path)
        return
    try:
        now = session.fingerprint(prefix) if session.reaches("digest") else _sizes(prefix)
    except (InputError, IntegrityError, StorageError) as error:
        findings.find_error("dataset-damaged", error, path=prefix)
        return
    changes = fingerprint_differences(sidecar.dataset, now) if sidecar is not None else []
    if changes:
        text = f"{index.path} was made from another content of {prefix}: {', '.join(changes)}"
        findings.find("cache-stale", text, path=index.path)
    elif session.reaches("deep") and len(specs) == len(GPT_ARRAYS):
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


def _sizes(prefix: str) -> dict[str, Any]:
    """Return the part of a fingerprint that costs nothing."""
    return {
        "bin_bytes": getsize(bin_path(prefix)),
        "idx_bytes": getsize(idx_path(prefix)),
    }


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
