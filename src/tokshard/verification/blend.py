"""Verification of a blend: its document, sources, order and certificate.

The deepest level measures every claim of the document again from the files (:func:`recheck`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.blending.certificate import Certificate, SourceArrays, measure
from tokshard.blending.document import DOCUMENT_NAME, BlendDocument, BlendOrderFiles, BlendSource, BlendSplit
from tokshard.blending.order import blend_blocks, exhaustive_order, greedy_order
from tokshard.dataset.fingerprint import DatasetFingerprint, dataset_fingerprint
from tokshard.dataset.reader import IndexedDataset
from tokshard.dataset.tokenizer_agreement import DatasetTokenizer
from tokshard.errors import InputError, IntegrityError, StorageError, TokshardError, raise_exhaustion
from tokshard.index_cache.description import BlendedDescription, GPTDatasetDescription, read_description
from tokshard.index_cache.entry import CacheEntry
from tokshard.index_cache.npy import map_npy, read_spec
from tokshard.storage.fs import getsize, isfile
from tokshard.storage.paths import bin_path, idx_path
from tokshard.verification.cache import EntryToVerify
from tokshard.verification.context import VerifyContext, unreadable_found
from tokshard.verification.report import ProductFindings, VerifiedProduct
from tokshard.verification.tokenizers import examine_tokenizers

if TYPE_CHECKING:
    from numpy.typing import NDArray


def read_document(path: str) -> BlendDocument | TokshardError:
    """Return the document of a blend, or the error of reading it."""
    try:
        return BlendDocument.read(path)
    except (InputError, IntegrityError, StorageError) as error:
        return error


def verify_blend(path: str, context: VerifyContext) -> VerifiedProduct:
    """Verify a blend; the files of its indexes are separate products."""
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
            text = f"the certificate of {split.name} must cover {split.samples} samples, got {counted}"
            findings.find("blend-certificate", text)
    examine_tokenizers(_recorded(document), document.tokenizer_mismatches, findings, context, document)
    if context.reaches("deep") and not missing:
        for problem in recheck(document):
            if problem.code in {"blend-order", "blend-certificate"} or not findings.has(problem.code):
                findings.find(problem.code, problem.message, path=problem.path)
    return findings.close()


def _recorded(document: BlendDocument) -> dict[str, DatasetTokenizer | None]:
    return {
        source.prefix: document.tokenizer_of(source)
        for split in document.splits.values()
        for source in split.sources
    }


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
                "blend-source-missing", f"dataset not found: {prefix} (a source of the blend)", path=prefix
            )
        return
    if source.draws > source.samples:
        text = f"{split.name} draws {source.draws} samples of {prefix}, but its index has {source.samples}"
        findings.find("blend-samples", text)
    # A damaged array is a finding of its index.
    with unreadable_found(findings, source.shuffle_index), suppress(IntegrityError):
        if isfile(source.shuffle_index):
            samples = read_spec(source.shuffle_index).shape[0]
            if samples != source.samples:
                text = (
                    f"{source.shuffle_index} must have {source.samples} samples for the blend, got {samples}"
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
        text = f"{prefix} has changed since it was blended: {', '.join(changes)}"
        findings.find("blend-source-changed", text, path=prefix)


@dataclass(frozen=True, slots=True)
class BlendProblem:
    """A wrong statement of a blend document."""

    code: str
    path: str
    field: str
    message: str


def recheck(document: BlendDocument) -> list[BlendProblem]:
    """Check every statement of a blend document against the files; return the wrong ones.

    The sources must be unchanged, and the order must follow from the weights; all figures of the certificate
    are measured again. Memory does not depend on the size of the blend, except for one byte per sample of one
    source.
    """
    problems: list[BlendProblem] = []
    for split in document.splits.values():
        problems += _check_split(document, split)
    return problems


def _check_split(document: BlendDocument, split: BlendSplit) -> list[BlendProblem]:
    where = f"splits.{split.name}"
    findings: list[BlendProblem] = []
    for place, source in enumerate(split.sources):
        findings += _attempt(document, f"{where}.sources[{place}]", _check_source, source)
    if split.order is not None:
        findings += _attempt(document, f"{where}.order", _check_order, split.order)
    if not findings:
        findings += _attempt(
            document, f"{where}.certificate", _check_certificate, split, document.sequence_length
        )
    return findings


def _attempt(document: BlendDocument, where: str, check: Any, *arguments: Any) -> list[BlendProblem]:
    try:
        return [BlendProblem(code, path, where, message) for code, path, message in check(*arguments)]
    except TokshardError as error:
        raise_exhaustion(error)
        path = getattr(error, "path", None) or getattr(error, "filename", None) or document.path
        return [BlendProblem("unreadable", str(path), where, error.message)]


Problem = tuple[str, str, str]


def _check_source(source: BlendSource) -> Iterator[Problem]:
    changes = dataset_fingerprint(source.prefix).changes_since(source.fingerprint)
    if changes:
        message = f"{source.prefix} has changed since it was blended: {', '.join(changes)}"
        yield "blend-source-changed", source.prefix, message
    description = read_description(source.description)
    if not isinstance(description, GPTDatasetDescription) or description.hash() != source.hash:
        yield "blend-hash", source.description, f"{source.description} contradicts the hash in its name"
    count = len(map_npy(source.shuffle_index))
    if count != source.samples:
        message = f"{source.shuffle_index} must have {source.samples} samples for the blend, got {count}"
        yield "blend-order", source.shuffle_index, message


def _check_order(blend: BlendOrderFiles) -> Iterator[Problem]:
    description = read_description(blend.description)
    if not isinstance(description, BlendedDescription) or description.hash() != blend.hash:
        yield "blend-hash", blend.description, f"{blend.description} contradicts the hash in its name"
    if blend.size is None:
        order, size = exhaustive_order([int(weight) for weight in blend.weights])
    else:
        order, size = greedy_order(blend.weights, blend.size), blend.size
    paths = (blend.dataset_index, blend.dataset_sample_index)
    arrays: list[tuple[NDArray[Any], str]] = [(map_npy(path), path) for path in paths]
    for array, path in arrays:
        if array.shape != (size,):
            yield "blend-order", path, f"{path} must have {size} samples, got {len(array)}"
            return
    done = 0
    for block in blend_blocks(order, size):
        for number, (array, path) in enumerate(arrays):
            right: NDArray[Any] = block[number]
            wrong = np.flatnonzero(array[done : done + len(right)] != right)
            if len(wrong):
                place = done + int(wrong[0])
                yield "blend-order", path, f"{path} does not follow from the weights at sample {place}"
                return
        done += len(block[0])


def _check_certificate(split: BlendSplit, sequence_length: int) -> Iterator[Problem]:
    order: tuple[NDArray[np.int16], NDArray[np.int64]] | None = None
    if split.order is not None:
        order = map_npy(split.order.dataset_index), map_npy(split.order.dataset_sample_index)
    measured = measure(
        order,
        split.shares,
        [source.samples for source in split.sources],
        (
            SourceArrays(
                prefix=claimed.prefix,
                lengths=IndexedDataset(source.prefix).sequence_lengths,
                document_index=map_npy(source.document_index),
                shuffle_index=map_npy(source.shuffle_index),
                packed_rows=None if source.packing is None else map_npy(source.sample_index),
            )
            for source, claimed in zip(split.sources, split.certificate.sources, strict=True)
        ),
        sequence_length,
    )
    for name, claimed, found in _differing(split.certificate, measured):
        yield (
            "blend-certificate",
            os.path.dirname(split.sources[0].description),
            f"the certificate of {split.name} records {name} {claimed}, but it is {found}",
        )


def _differing(claimed: Certificate, found: Certificate) -> Iterator[tuple[str, Any, Any]]:
    for field in fields(Certificate):
        if field.name != "sources" and getattr(claimed, field.name) != getattr(found, field.name):
            yield field.name, getattr(claimed, field.name), getattr(found, field.name)
    for source, measured in zip(claimed.sources, found.sources, strict=True):
        for field in fields(source):
            if getattr(source, field.name) != getattr(measured, field.name):
                name = f"{field.name} of {source.prefix}"
                yield name, getattr(source, field.name), getattr(measured, field.name)
