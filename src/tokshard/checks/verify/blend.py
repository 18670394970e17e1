"""Verification of a blend: its document, sources and certificate. Its indexes are separate products."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from typing import Any

from tokshard.checks.verify.context import VerifyContext, unreadable_found
from tokshard.checks.verify.report import ProductFindings, VerifiedProduct
from tokshard.checks.verify.tokenizers import examine_tokenizers
from tokshard.dataset.fingerprint import DatasetFingerprint, FileFingerprint
from tokshard.dataset.reader import IndexedDataset
from tokshard.dataset.recorded_tokenizers import DatasetTokenizer
from tokshard.errors import InputError, IntegrityError, StorageError, TokshardError
from tokshard.samples.blend.certificate import Certificate, certify
from tokshard.samples.blend.document import BlendDocument
from tokshard.samples.blend.sources import BlendSource, BlendSplit
from tokshard.samples.index.description import BlendedDescription, read_description
from tokshard.samples.index.entry import CachedArrays
from tokshard.samples.index.npy import read_spec
from tokshard.samples.index.sidecar import readable_sidecar
from tokshard.storage.fs import getsize, isfile
from tokshard.storage.paths import bin_path, idx_path


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
        certified = document.certificates[name].samples
        if certified != split.samples:
            text = f"the certificate of {name} must cover {split.samples} samples, got {certified}"
            findings.find("blend-certificate", text)
    examine_tokenizers(_recorded(document), document.tokenizer_mismatches, findings, context, document)
    if context.reaches("deep") and not missing:
        for name, split in document.splits.items():
            if all(_is_sound(arrays, context) for arrays in _arrays_of(split)):
                with unreadable_found(findings, findings.path):
                    _examine_order(name, split, findings)
                    _examine_certificate(name, split, document.certificates[name], findings)
    return findings.close()


def _recorded(document: BlendDocument) -> dict[str, DatasetTokenizer | None]:
    return {
        source.path_prefix: document.tokenizer_of(source)
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
    prefix = source.path_prefix
    if not IndexedDataset.exists(prefix):
        if prefix not in missing:
            missing.add(prefix)
            findings.find(
                "blend-source-missing", f"dataset not found: {prefix} (a source of the blend)", path=prefix
            )
        return
    available = source.epochs.samples
    if source.draws > available:
        text = f"{split} draws {source.draws} samples of {prefix}, but its index has {available}"
        findings.find("blend-samples", text)
    # A damaged array is a finding of its index.
    shuffle_index = source.index.array_path("shuffle_index")
    with unreadable_found(findings, shuffle_index), suppress(IntegrityError):
        if isfile(shuffle_index):
            samples = read_spec(shuffle_index).shape[0]
            if samples != available:
                text = f"{shuffle_index} must have {available} samples for the blend, got {samples}"
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
        _examine_files({bin_path(prefix): source.bin, idx_path(prefix): source.idx}, findings)


def _examine_files(files: Mapping[str, FileFingerprint], findings: ProductFindings) -> None:
    for path, fingerprint in files.items():
        try:
            fingerprint.check(path, "blend")
        except (InputError, IntegrityError, StorageError) as error:
            findings.find_error("blend-file-changed", error, path=path)


def _arrays_of(split: BlendSplit) -> list[CachedArrays]:
    indexes = [source.index for source in split.sources]
    return indexes if split.order is None else [*indexes, split.order]


def _examine_indexes(name: str, split: BlendSplit, findings: ProductFindings, context: VerifyContext) -> None:
    """Compare the indexes and the order with the blend; what is wrong with them is a finding of the cache."""
    for arrays in _arrays_of(split):
        if _is_sound(arrays, context):
            _examine_files(arrays.fingerprints, findings)
    for source in split.sources:
        if _is_sound(source.index, context):
            with unreadable_found(findings, source.index.description_path):
                _examine_epochs(name, source, findings)


def _is_sound(arrays: CachedArrays, context: VerifyContext) -> bool:
    return os.path.realpath(arrays.description_path) in context.sound_indexes


def _examine_epochs(name: str, source: BlendSource, findings: ProductFindings) -> None:
    path = source.index.description_path
    sidecar = readable_sidecar(source.index)
    if sidecar is None or sidecar.origin is None:
        return
    if sidecar.origin.plan != source.epochs:
        text = f"the epochs of {source.path_prefix} in {name} contradict its index {path}"
        findings.find("blend-samples", text, path=path)


def _examine_order(name: str, split: BlendSplit, findings: ProductFindings) -> None:
    # The arrays were compared with the order that follows from the description.
    if split.order is None:
        return
    path = split.order.description_path
    description = read_description(path)
    recorded = split.weights, split.size
    if not isinstance(description, BlendedDescription) or recorded != (description.weights, description.size):
        text = f"the weights and the size of {name} contradict {path}"
        findings.find("blend-order", text, path=path)


def _examine_certificate(
    name: str, split: BlendSplit, recorded: Certificate, findings: ProductFindings
) -> None:
    measured = certify(split, [source.prefix for source in recorded.sources])
    pairs: list[tuple[str, Any, Any]] = [("", recorded, measured)]
    for certified, counted in zip(recorded.sources, measured.sources, strict=True):
        pairs.append((f" of {certified.prefix}", certified, counted))
    for place, certified, counted in pairs:
        for field in fields(certified):
            before, now = getattr(certified, field.name), getattr(counted, field.name)
            if field.name != "sources" and before != now:
                text = f"the certificate of {name} records {field.name}{place} {before}, but it is {now}"
                findings.find("blend-certificate", text)
