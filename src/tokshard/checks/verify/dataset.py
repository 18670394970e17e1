"""Verification of a dataset: both files, the manifest, the units, and everything beside it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokshard.checks.verify.adoption import adopt, remove_leftovers
from tokshard.checks.verify.content import examine_meaning
from tokshard.checks.verify.context import VerifyContext, unreadable_found
from tokshard.checks.verify.index import IndexFacts, examine_index
from tokshard.checks.verify.inputs import Units, differences, examine_units, read_units
from tokshard.checks.verify.pieces import PieceTable, examine_pieces
from tokshard.checks.verify.report import ProductFindings, VerifiedProduct
from tokshard.checks.verify.tokenizers import find_allowed
from tokshard.dataset.counts import NO_COUNTS
from tokshard.dataset.fingerprint import dataset_state
from tokshard.dataset.layout import DTYPE_CODE_OFFSET, require_integers
from tokshard.dataset.manifest import (
    OPTIONAL_NAMES,
    ORDER_NAME,
    PIECES_NAME,
    PROVENANCE_NAME,
    UNITS_NAME,
    FileName,
    Manifest,
    adopt_command,
    file_of,
    manifest_path,
)
from tokshard.dataset.pieces import shuffle_text
from tokshard.dataset.provenance import ORIGIN
from tokshard.dataset.source import InputFile, open_data
from tokshard.errors import InputError, IntegrityError, OlderVersionError
from tokshard.storage import fs
from tokshard.storage.digest import seal_of
from tokshard.storage.paths import bin_path, idx_path, sidecar_directory
from tokshard.storage.reading import read_json_bytes


def read_claims(path_prefix: str, findings: ProductFindings) -> Manifest | None:
    """Read the manifest of a dataset; None without one, or with a finding if it is damaged or too old.

    Raises:
        StorageError: It cannot be read.
    """
    path = manifest_path(path_prefix)
    try:
        content = read_json_bytes(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        manifest = Manifest.from_bytes(content, path)
    except OlderVersionError as error:
        findings.find(
            "manifest-older",
            f"{error.message}, so the content is unverified",
            path=path,
            hint=f"run {adopt_command(path_prefix)} to write a new one",
        )
        return None
    except IntegrityError as error:
        findings.find_error("manifest-damaged", error, path=path)
        return None
    if manifest.seal != seal_of(manifest.to_json()) or content != manifest.to_bytes():
        text = f"{path} was changed after it was written: its seal contradicts the other fields"
        findings.find("manifest-changed", text, path=path)
    return manifest


def examine_claims(path_prefix: str, manifest: Manifest, findings: ProductFindings) -> None:
    """Check a manifest for consistency, and against the names and sizes of its files."""
    path = manifest_path(path_prefix)
    for text in _contradictions(manifest):
        findings.find("manifest-count", f"{path}: {text}", path=path)
    for name, record in manifest.files.by_name().items():
        listed = file_of(path_prefix, name)
        if not fs.isfile(listed):
            if name not in {"bin", "idx"}:
                findings.find(
                    "file-missing", f"file not found: {listed} (listed in the manifest)", path=listed
                )
            continue
        actual = fs.getsize(listed)
        if actual != record.size_bytes:
            text = f"{listed} must have {record.size_bytes} bytes by its manifest, got {actual}"
            findings.find("file-size", text, path=listed)
    for name in OPTIONAL_NAMES:
        stray = os.path.join(sidecar_directory(path_prefix), name)
        if name not in manifest.files.by_name() and fs.lexists(stray):
            findings.find("file-unlisted", f"{stray} is not listed in the manifest", path=stray)


def examine_index_claims(
    path_prefix: str, manifest: Manifest, facts: IndexFacts, findings: ProductFindings
) -> None:
    """Compare a manifest with a valid index."""
    header, counts = facts.header, manifest.counts
    compared: dict[str, tuple[Any, Any]] = {
        "dataset.dtype": (header.dtype.name, manifest.dataset.dtype),
        "counts.documents": (header.document_count, counts.documents),
        "counts.sequences": (header.sequence_count, counts.sequences),
        "counts.tokens": (facts.tokens, counts.tokens),
        "counts.empty_documents": (facts.empty_documents, counts.empty_documents),
        "counts.longest_sequence": (facts.longest_sequence, counts.longest_sequence),
    }
    path = manifest_path(path_prefix)
    for name, (value, recorded) in compared.items():
        if recorded != value:
            text = f"{path}: {name} must be {value!r} as in the index, got {recorded!r}"
            findings.find("manifest-index", text, path=path)


def _contradictions(manifest: Manifest) -> Iterator[str]:
    counts = manifest.counts
    rejected, excluded = counts.rejected_total, counts.excluded_total
    if counts.records != counts.documents + rejected + excluded:
        others = f"{rejected} rejected" + (f" + {excluded} excluded" if excluded else "")
        yield f"counts.records must be {counts.documents} + {others}, got {counts.records}"
    encoded = sum(counts.encoders.values())
    if encoded != counts.documents:
        yield f"the documents of all encoders must sum to {counts.documents}, got {encoded}"
    total = sum((source.counts for source in manifest.inputs), NO_COUNTS)
    for name, recorded, value in differences(counts, total):
        yield f"counts.{name} must be {value} as in the inputs together, got {recorded}"
    files = manifest.files
    per_document = ((PROVENANCE_NAME, files.provenance, ORIGIN.itemsize), (ORDER_NAME, files.order, 8))
    for name, record, size in per_document:
        if record is not None and record.size_bytes != size * counts.documents:
            yield (
                f"{name} must have {size} bytes for each of {counts.documents} documents, got "
                f"{record.size_bytes}"
            )
    if (files.order is None) != (files.pieces is None):
        yield f"files must list both {ORDER_NAME} and {PIECES_NAME}, or neither"


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """Properties of a dataset after its structure was examined.

    Attributes:
        prefix: The path prefix.
        index: The facts of the index.
        manifest: The manifest; None if there is none or it cannot be read.
        units: The units; None without a manifest, or if they are damaged.
        pieces: The pieces of the ``.bin``; None without a manifest, or if they are damaged.
    """

    prefix: str
    index: IndexFacts
    manifest: Manifest | None
    units: Units | None
    pieces: PieceTable | None


def verify_dataset(prefix: str, context: VerifyContext) -> VerifiedProduct:
    """Verify a dataset."""
    findings = ProductFindings("dataset", prefix)
    before = dataset_state(prefix)
    facts = examine_structure(prefix, findings, context)
    if facts is not None and context.reaches("digest"):
        with unreadable_found(findings, prefix):
            _examine_digests(facts, findings, context)
    if facts is not None and facts.index.sound and context.reaches("deep"):
        with unreadable_found(findings, prefix):
            examine_meaning(facts.prefix, facts.index, facts.manifest, facts.units, findings, context)
    if dataset_state(prefix) != before:
        findings.find_changed()
    if facts is not None and context.adopt and findings.sound:
        if findings.has("unverified", "manifest-older"):
            adopt(facts.prefix, facts.index, findings, context)
        else:
            remove_leftovers(facts.prefix)
    return findings.close()


def examine_structure(prefix: str, findings: ProductFindings, context: VerifyContext) -> DatasetFacts | None:
    """Check everything except the tokens: all entries of the index, the manifest, the units, the sizes.

    Returns:
        The facts; None if the index cannot be read.
    """
    if not _files_are_there(prefix, findings):
        return None
    manifest = units = pieces = facts = None
    with unreadable_found(findings, prefix):
        manifest = read_claims(prefix, findings)
        if manifest is not None:
            examine_claims(prefix, manifest, findings)
            find_allowed(manifest.tokenizer_mismatches, findings)
            if (shuffled := shuffle_text(manifest)) is not None:
                findings.find("shuffled", f"{prefix}: {shuffled}")
        elif not findings.has("manifest-damaged", "manifest-older"):
            findings.find("unverified", f"{prefix} has no manifest, so its content is unverified")
    with unreadable_found(findings, idx_path(prefix)):
        bin_bytes = open_data(bin_path(prefix)).size_bytes
        multimodal = manifest.dataset.multimodal if manifest is not None else None
        facts = examine_index(idx_path(prefix), bin_bytes, findings, context.runner, multimodal=multimodal)
    if manifest is not None and fs.lexists(file_of(prefix, UNITS_NAME)):
        with unreadable_found(findings, prefix):
            units = read_units(prefix, manifest, findings)
            if units is not None:
                examine_units(prefix, units, manifest, findings)
                pieces = examine_pieces(prefix, manifest, findings)
    if facts is None:
        return None
    try:
        require_integers(facts.header.dtype, prefix)
    except InputError as error:
        findings.find("token-dtype", error.message, path=idx_path(prefix), offset=DTYPE_CODE_OFFSET)
    findings.counts |= {
        "documents": facts.header.document_count,
        "sequences": facts.header.sequence_count,
        "tokens": facts.tokens,
    }
    if manifest is not None and facts.sound:
        examine_index_claims(prefix, manifest, facts, findings)
        with unreadable_found(findings, prefix):
            _examine_boundaries(facts, pieces, findings)
        findings.counts |= {
            "records": manifest.counts.records,
            "rejected": manifest.counts.rejected_total,
        }
    return DatasetFacts(prefix, facts, manifest, units, pieces)


def _files_are_there(prefix: str, findings: ProductFindings) -> bool:
    unfinished = fs.lexists(os.path.join(sidecar_directory(prefix), "work"))
    missing = [path for path in (bin_path(prefix), idx_path(prefix)) if not fs.lexists(path)]
    if unfinished:
        text = "is incomplete" if missing else "may be replaced"
        findings.find("unfinished", f"a run for {prefix} is unfinished: the dataset {text}")
        return not missing
    for path in missing:
        code = "bin-missing" if path == bin_path(prefix) else "idx-missing"
        findings.find(code, f"file not found: {path}", path=path)
    return not missing


def _examine_boundaries(facts: IndexFacts, pieces: PieceTable | None, findings: ProductFindings) -> None:
    # The index is read only where pieces end.
    if pieces is None:
        return
    documents = pieces.before("documents")[1:]
    if ((documents < 0) | (documents > facts.header.document_count)).any():
        return
    boundaries = [
        (sequences, size // facts.header.dtype.itemsize)
        for sequences, size in map(facts.end_of, documents.tolist())
    ]
    for number in pieces.off_boundaries(boundaries):
        document = documents[number]
        text = f"{pieces.path}: line {number + 1} must end where document {document} begins in the index"
        findings.find("units-index", text, path=pieces.path)


def _examine_digests(facts: DatasetFacts, findings: ProductFindings, context: VerifyContext) -> None:
    if facts.manifest is None:
        return
    whole = facts.manifest.files.digested()

    def check_file(name: FileName) -> tuple[str, str] | None:
        path = file_of(facts.prefix, name)
        if not fs.isfile(path):
            return None
        if context.digest(InputFile(path)) == whole[name].xxh3_128:
            return None
        return ("idx-digest" if name == "idx" else "file-digest", path)

    sizes = sum(record.size_bytes for record in whole.values())
    for found in context.runner.run(check_file, list(whole), sizes):
        if found is not None:
            code, path = found
            findings.find(code, f"{path} does not match its recorded digest", path=path)
    if facts.pieces is not None:
        _examine_pieces(facts, facts.pieces, findings, context)


def _examine_pieces(
    facts: DatasetFacts, table: PieceTable, findings: ProductFindings, context: VerifyContext
) -> None:
    file = open_data(bin_path(facts.prefix))
    places = (table.before("tokens") * facts.index.header.dtype.itemsize).tolist()
    pieces = [piece for piece in range(len(table.digests)) if places[piece + 1] > places[piece]]
    within = [piece for piece in pieces if places[piece + 1] <= file.size_bytes]
    selected = [within[place] for place in context.selected(len(within))]
    check: Callable[[int], bool] = lambda piece: (  # noqa: E731 - one expression, used once
        context.digest(file, places[piece], places[piece + 1] - places[piece]) == table.digests[piece]
    )
    total = sum(places[piece + 1] - places[piece] for piece in selected)
    good = context.runner.run(check, selected, total)
    findings.counts |= {"pieces": len(pieces), "pieces_checked": len(selected), "bytes_checked": total}
    for piece in np.array(selected, np.int64)[~np.array(good, bool)].tolist() if selected else []:
        findings.find(
            "bin-digest", _piece_text(facts, table, piece, places), path=file.path, offset=places[piece]
        )


def _piece_text(facts: DatasetFacts, table: PieceTable, piece: int, places: list[int]) -> str:
    documents = table.before("documents")
    inputs = facts.manifest.inputs if facts.manifest else ()
    # Only a unit has one input.
    is_unit = facts.manifest is not None and facts.manifest.files.pieces is None
    number = int(facts.units.numbers[piece, 0]) if is_unit and facts.units else len(inputs)
    source = f" from {inputs[number].path}" if number < len(inputs) else ""
    return (
        f"{bin_path(facts.prefix)}: bytes {places[piece]} to {places[piece + 1]} do not match their digest "
        f"(documents {documents[piece]} to {documents[piece + 1] - 1}{source})"
    )
