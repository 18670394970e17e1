"""Verification of a blend: its document, sources and certificate. Its indexes are separate products."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from tokshard.checks.verify.context import VerifyContext, unreadable_found
from tokshard.checks.verify.report import ProductFindings, VerifiedProduct
from tokshard.checks.verify.tokenizers import examine_tokenizers
from tokshard.dataset.fingerprint import DatasetFingerprint
from tokshard.dataset.reader import IndexedDataset
from tokshard.dataset.recorded_tokenizers import DatasetTokenizer
from tokshard.errors import InputError, IntegrityError, StorageError, TokshardError
from tokshard.samples.blend.certificate import Certificate, SourceArrays, measure
from tokshard.samples.blend.document import BlendDocument, BlendSplit
from tokshard.samples.blend.sources import BlendSource, CacheEntryNames
from tokshard.samples.index.description import BlendedDescription, read_description
from tokshard.samples.index.entry import CacheEntry
from tokshard.samples.index.npy import BLEND_ARRAYS, GPT_ARRAYS, map_npy, read_spec
from tokshard.storage.fs import getsize, isfile
from tokshard.storage.paths import bin_path, idx_path

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_DATA = ("bin", "idx")


def verify_blend(
    path: str, document: BlendDocument | TokshardError, context: VerifyContext
) -> VerifiedProduct:
    """Verify a blend, given its document or the error of reading it.

    Its certificate is measured again only from indexes that are sound in the context.
    """
    findings = ProductFindings("blend", path)
    if isinstance(document, TokshardError):
        findings.find_error("blend-damaged", document, path=findings.path)
        return findings.close()
    missing: set[str] = set()
    for name, split in document.splits.items():
        findings.counts[f"{name}_samples"] = split.samples
        for source in split.sources:
            _examine_source(name, source, findings, context, missing)
        _examine_indexes(name, split, findings, context)
        if split.certificate.samples != split.samples:
            counted = split.certificate.samples
            text = f"the certificate of {name} must cover {split.samples} samples, got {counted}"
            findings.find("blend-certificate", text)
    examine_tokenizers(_recorded(document), document.tokenizer_mismatches, findings, context, document)
    if context.reaches("deep") and not missing:
        for name, split in document.splits.items():
            files = [*split.sources, *([] if split.order is None else [split.order])]
            if all(_is_sound(names, context) for names in files):
                with unreadable_found(findings, findings.path):
                    _examine_order(name, split, findings)
                    _examine_certificate(name, split, document.sequence_length, findings)
    return findings.close()


def _recorded(document: BlendDocument) -> dict[str, DatasetTokenizer | None]:
    return {
        source.prefix: document.tokenizer_of(source)
        for split in document.splits.values()
        for source in split.sources
    }


def _examine_source(
    split: str,
    source: BlendSource,
    findings: ProductFindings,
    context: VerifyContext,
    missing: set[str],
) -> None:
    prefix = source.prefix
    if not IndexedDataset.exists(prefix):
        if prefix not in missing:
            missing.add(prefix)
            findings.find(
                "blend-source-missing", f"dataset not found: {prefix} (a source of the blend)", path=prefix
            )
        return
    if source.draws > source.samples:
        text = f"{split} draws {source.draws} samples of {prefix}, but its index has {source.samples}"
        findings.find("blend-samples", text)
    # A damaged array is a finding of its index.
    shuffle_index = source.paths["shuffle_index"]
    with unreadable_found(findings, shuffle_index), suppress(IntegrityError):
        if isfile(shuffle_index):
            samples = read_spec(shuffle_index).shape[0]
            if samples != source.samples:
                text = f"{shuffle_index} must have {source.samples} samples for the blend, got {samples}"
                findings.find("blend-samples", text, path=shuffle_index)
    try:
        now = (
            context.fingerprint(prefix)
            if context.reaches("digest")
            else DatasetFingerprint(bin_bytes=getsize(bin_path(prefix)), idx_bytes=getsize(idx_path(prefix)))
        )
    except (InputError, IntegrityError, StorageError) as error:
        findings.find_error("dataset-damaged", error, path=prefix)
        return
    changes = now.changes_since(source.fingerprint)
    if changes:
        text = f"{prefix} has changed since it was blended: {', '.join(changes)}"
        findings.find("blend-source-changed", text, path=prefix)
    else:
        _examine_files(source, _DATA, findings)


def _examine_files(files: CacheEntryNames, names: Iterable[str], findings: ProductFindings) -> None:
    for name in names:
        path = files.paths[name]
        try:
            files.files[name].check(path, "blend")
        except (InputError, IntegrityError, StorageError) as error:
            findings.find_error("blend-file-changed", error, path=path)


def _examine_indexes(name: str, split: BlendSplit, findings: ProductFindings, context: VerifyContext) -> None:
    """Compare the indexes and the order with the blend; what is wrong with them is a finding of the cache."""
    for source in split.sources:
        if _is_sound(source, context):
            _examine_files(source, GPT_ARRAYS, findings)
            with unreadable_found(findings, source.description):
                _examine_epochs(name, source, findings)
    if split.order is not None and _is_sound(split.order, context):
        _examine_files(split.order, BLEND_ARRAYS, findings)


def _is_sound(files: CacheEntryNames, context: VerifyContext) -> bool:
    return os.path.realpath(files.description) in context.sound_indexes


def _examine_epochs(name: str, source: BlendSource, findings: ProductFindings) -> None:
    sidecar = CacheEntry(*os.path.split(source.index)).readable_sidecar()
    if sidecar is None or sidecar.origin is None:
        return
    if sidecar.origin.plan != source.epochs:
        text = f"the epochs of {source.prefix} in {name} contradict its index {source.description}"
        findings.find("blend-samples", text, path=source.description)


def _examine_order(name: str, split: BlendSplit, findings: ProductFindings) -> None:
    # The arrays were compared with the order that follows from the description.
    if split.order is None:
        return
    path = split.order.description
    description = read_description(path)
    recorded = split.order.weights, split.order.size
    if not isinstance(description, BlendedDescription) or recorded != (description.weights, description.size):
        text = f"the weights and the size of {name} contradict {path}"
        findings.find("blend-order", text, path=path)


def _examine_certificate(
    name: str, split: BlendSplit, sequence_length: int, findings: ProductFindings
) -> None:
    order: tuple[NDArray[np.int16], NDArray[np.int64]] | None = None
    if split.order is not None:
        paths = split.order.paths
        order = map_npy(paths["dataset_index"]), map_npy(paths["dataset_sample_index"])
    measured = measure(
        order,
        split.shares,
        [source.samples for source in split.sources],
        (
            SourceArrays(
                prefix=claimed.prefix,
                lengths=IndexedDataset(source.prefix).sequence_lengths,
                document_index=map_npy(source.paths["document_index"]),
                shuffle_index=map_npy(source.paths["shuffle_index"]),
                packed_rows=None if source.packing is None else map_npy(source.paths["sample_index"]),
            )
            for source, claimed in zip(split.sources, split.certificate.sources, strict=True)
        ),
        sequence_length,
    )
    for field, claimed, found in _differing(split.certificate, measured):
        text = f"the certificate of {name} records {field} {claimed}, but it is {found}"
        findings.find("blend-certificate", text)


def _differing(claimed: Certificate, found: Certificate) -> Iterator[tuple[str, Any, Any]]:
    for field in fields(Certificate):
        if field.name != "sources" and getattr(claimed, field.name) != getattr(found, field.name):
            yield field.name, getattr(claimed, field.name), getattr(found, field.name)
    for source, measured in zip(claimed.sources, found.sources, strict=True):
        for field in fields(source):
            if getattr(source, field.name) != getattr(measured, field.name):
                name = f"{field.name} of {source.prefix}"
                yield name, getattr(source, field.name), getattr(measured, field.name)
