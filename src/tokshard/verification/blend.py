"""Verifying a blend: its document, its sources, its order and its certificate."""

from __future__ import annotations

import os
from collections.abc import Iterator

from tokshard.blending.document import DOCUMENT_NAME, BlendDocument, BlendSource, BlendSplit
from tokshard.blending.recheck import recheck
from tokshard.dataset.fingerprint import DatasetFingerprint
from tokshard.dataset.reader import IndexedDataset
from tokshard.errors import InputError, IntegrityError, StorageError, TokshardError
from tokshard.index_cache.entry import CacheEntry
from tokshard.index_cache.npy import read_spec
from tokshard.storage.fs import getsize
from tokshard.storage.paths import bin_path, idx_path
from tokshard.verification.cache import EntryToVerify
from tokshard.verification.context import VerifyContext, unreadable_found
from tokshard.verification.report import ProductFindings, VerifiedProduct

_OF_RECHECK = {
    "unreadable": "unreadable",
    "source-changed": "blend-source-changed",
    "wrong-hash": "blend-hash",
    "wrong-order": "blend-order",
    "wrong-certificate": "blend-certificate",
}


def read_document(path: str) -> BlendDocument | TokshardError:
    """Return the document of a blend, or why it cannot be read."""
    try:
        return BlendDocument.read(path)
    except (InputError, IntegrityError, StorageError) as error:
        return error


def verify_blend(path: str, context: VerifyContext) -> VerifiedProduct:
    """Verify a blend; the files of its indexes are subjects of their own."""
    document = read_document(path)
    findings = ProductFindings("blend", os.path.join(path, DOCUMENT_NAME) if os.path.isdir(path) else path)
    if isinstance(document, TokshardError):
        findings.find_error("blend-damaged", document, path=findings.path)
        return findings.close()
    missing: set[str] = set()
    for split in document.splits.values():
        findings.counts[f"{split.name}_samples"] = split.samples
        for source in split.sources:
            _examine_source(split, source, findings, context, missing)
        if split.certificate.samples != split.samples:
            counted = split.certificate.samples
            text = f"the certificate of {split.name} is of {counted} samples, not {split.samples}"
            findings.find("blend-certificate", text)
    if context.reaches("deep") and not missing:
        for problem in recheck(document):
            code = _OF_RECHECK[problem.code]
            if not findings.has(code) or code in {"blend-order", "blend-certificate"}:
                findings.find(code, problem.message, path=problem.path)
    return findings.close()


def entries_of(document: BlendDocument) -> Iterator[EntryToVerify]:
    """Yield the entries of caches that a blend reads."""
    for split in document.splits.values():
        for source in split.sources:
            yield EntryToVerify(_entry(source.index), source.prefix)
        if split.order is not None:
            yield EntryToVerify(_entry(split.order.index))


def _entry(path_prefix: str) -> CacheEntry:
    return CacheEntry(*os.path.split(path_prefix))


def _examine_source(
    split: BlendSplit,
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
                "blend-source-missing", f"{prefix} is not there, but the blend reads it", path=prefix
            )
        return
    if source.draws > source.samples:
        text = f"{split.name} draws {source.draws} samples of {prefix}, but its index has {source.samples}"
        findings.find("blend-samples", text)
    with unreadable_found(findings, source.shuffle_index):
        if os.path.isfile(source.shuffle_index):
            samples = read_spec(source.shuffle_index).shape[0]
            if samples != source.samples:
                text = (
                    f"{source.shuffle_index} has {samples} samples, but the blend counts on {source.samples}"
                )
                findings.find("blend-samples", text, path=source.shuffle_index)
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
        text = f"{prefix} is not the dataset that was blended: {', '.join(changes)}"
        findings.find("blend-source-changed", text, path=prefix)
