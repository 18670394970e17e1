"""Verification of a view: its record, its pieces, and the dataset that it shows pieces of."""

from __future__ import annotations

from tokshard.dataset.fingerprint import DatasetFingerprint, dataset_state
from tokshard.dataset.index_file import IndexColumns
from tokshard.dataset.layout import check_pieces, check_single_sequences
from tokshard.dataset.source import InputFile, open_data
from tokshard.dataset.view import View, read_view, view_path, viewed_prefix
from tokshard.errors import IntegrityError
from tokshard.storage import fs
from tokshard.storage.paths import bin_path, idx_path
from tokshard.verification.context import VerifyContext, unreadable_found
from tokshard.verification.report import ProductFindings, VerifiedProduct

# The codes of the fields of an index; all others belong to its header.
_CODES = {
    "size": "idx-size",
    "version": "idx-version",
    "dtype_code": "idx-dtype",
    "document_count": "idx-count",
    "sequence_lengths": "idx-length",
    "sequence_pointers": "idx-pointer",
    "document_indices": "idx-document",
}


def verify_view(prefix: str, context: VerifyContext) -> VerifiedProduct:
    """Verify a view. Its tokens are verified with the dataset that has them."""
    findings = ProductFindings("dataset", prefix)
    before = dataset_state(prefix)
    missing = [path for path in (bin_path(prefix), idx_path(prefix)) if not fs.exists(path)]
    for path in missing:
        code = "bin-missing" if path == bin_path(prefix) else "idx-missing"
        findings.find(code, f"file not found: {path}", path=path)
    if not missing:
        with unreadable_found(findings, prefix):
            _examine(prefix, findings, context)
    if dataset_state(prefix) != before:
        findings.find_changed()
    return findings.close()


def _examine(prefix: str, findings: ProductFindings, context: VerifyContext) -> None:
    try:
        view = read_view(prefix)
    except IntegrityError as error:
        findings.find_error("view-damaged", error, path=view_path(prefix))
        return
    if view is None:
        findings.find_changed()
        return
    path, bin_bytes = idx_path(prefix), open_data(bin_path(prefix)).size_bytes
    try:
        columns = IndexColumns(path, multimodal=False)
        header = columns.header
        tokens = check_pieces(header, columns.sequence_lengths, columns.sequence_pointers, bin_bytes, path)
        check_single_sequences(header, columns.document_indices, path)
    except IntegrityError as error:
        findings.find_error(_CODES.get(str(error.field), "idx-header"), error, path=path)
        return
    counts = {"documents": header.document_count, "sequences": header.sequence_count, "tokens": tokens}
    findings.counts |= counts
    for name, recorded, actual in (
        ("sequences", view.sequences, header.sequence_count),
        ("tokens", view.tokens, tokens),
        ("dataset.bin_bytes", view.dataset.bin_bytes, bin_bytes),
    ):
        if recorded != actual:
            text = f"{view_path(prefix)}: {name} must be {actual} as in the files, got {recorded}"
            findings.find("view-damaged", text, path=view_path(prefix))
    if context.reaches("digest"):
        if context.digest(InputFile(path)) != view.idx.xxh3_128:
            findings.find("idx-digest", f"{path} does not match its recorded digest", path=path)
        _examine_dataset(prefix, view, findings, context)


def _examine_dataset(prefix: str, view: View, findings: ProductFindings, context: VerifyContext) -> None:
    place, dataset = viewed_prefix(prefix, view), view.dataset
    recorded = DatasetFingerprint(
        bin_bytes=dataset.bin_bytes,
        idx_bytes=dataset.idx.size_bytes,
        idx_xxh3_128=dataset.idx.xxh3_128,
        manifest_fingerprint=dataset.manifest_fingerprint,
        bin_pieces_xxh3_128=dataset.bin_pieces_xxh3_128,
    )
    if not fs.exists(idx_path(place)):
        text = f"the dataset of {prefix} was not found: {idx_path(place)}"
        findings.find("view-alone", text, path=idx_path(place))
        return
    try:
        changes = context.fingerprint(place).changes_since(recorded)
    except IntegrityError as error:
        findings.find_error("dataset-damaged", error, path=place)
        return
    if changes:
        text = f"{place} has changed since {prefix} was written: {', '.join(changes)}"
        findings.find("view-changed", text, path=place)
