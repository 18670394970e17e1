"""Verifying a dataset: both files, the manifest, and everything beside it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tokshard.dataset.manifest import UNITS_NAME, Manifest, file_of
from tokshard.dataset.read_consistency import dataset_state
from tokshard.dataset.source import InputFile, open_data
from tokshard.storage import fs
from tokshard.storage.paths import bin_path, idx_path, sidecar_directory
from tokshard.verification import claims, meaning
from tokshard.verification.adoption import adopt
from tokshard.verification.index import IndexFacts, examine_index
from tokshard.verification.levels import chosen
from tokshard.verification.report import ProductFindings, Subject
from tokshard.verification.session import Session, unreadable_found
from tokshard.verification.units import Units, examine_units, read_units, units_off_boundaries

KIND = "dataset"


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """What is known of a dataset once its structure was looked at.

    Attributes:
        prefix: Its path prefix.
        index: What its index says.
        manifest: Its manifest; None where there is none, or none that can be read.
        units: Its units; None without a manifest, or where they are damaged.
    """

    prefix: str
    index: IndexFacts
    manifest: Manifest | None
    units: Units | None


def verify_dataset(prefix: str, session: Session) -> Subject:
    """Verify a dataset.

    Args:
        prefix: Its path prefix.
        session: What is asked for.
    """
    findings = ProductFindings(KIND, prefix)
    before = dataset_state(prefix)
    facts = examine_structure(prefix, findings, session)
    if facts is not None and session.reaches("digest"):
        with unreadable_found(findings, prefix):
            _examine_digests(facts, findings, session)
    if facts is not None and facts.index.is_sound and session.reaches("deep"):
        with unreadable_found(findings, prefix):
            meaning.examine_meaning(facts.prefix, facts.index, facts.manifest, facts.units, findings, session)
    if dataset_state(prefix) != before:
        findings.find_changed()
    if facts is not None and session.adopt and findings.has("unverified") and findings.is_sound:
        adopt(facts.prefix, facts.index, findings, session)
    return findings.close()


def examine_structure(prefix: str, findings: ProductFindings, session: Session) -> DatasetFacts | None:
    """Look at everything but the tokens: all entries of the index, the manifest, the units, the sizes.

    Returns:
        What is known then; None where nothing can be told of the index.
    """
    if not _files_are_there(prefix, findings):
        return None
    manifest = units = facts = None
    with unreadable_found(findings, prefix):
        manifest = claims.read_claims(prefix, findings)
        if manifest is not None:
            claims.examine_claims(prefix, manifest, findings)
        elif not findings.has("manifest-damaged"):
            findings.find("unverified", f"{prefix} has no manifest, so nothing is known of its content")
    with unreadable_found(findings, idx_path(prefix)):
        bin_bytes = open_data(bin_path(prefix)).size_bytes
        multimodal = bool(manifest.dataset.get("multimodal")) if manifest is not None else None
        facts = examine_index(idx_path(prefix), bin_bytes, findings, session.labour, multimodal=multimodal)
    if manifest is not None and fs.lexists(file_of(prefix, UNITS_NAME)):
        with unreadable_found(findings, prefix):
            units = read_units(prefix, findings)
            if units is not None:
                examine_units(prefix, units, manifest, findings)
    if facts is None:
        return None
    findings.counts |= {
        "documents": facts.header.document_count,
        "sequences": facts.header.sequence_count,
        "tokens": facts.tokens,
    }
    if manifest is not None and facts.is_sound:
        claims.examine_index_claims(prefix, manifest, facts, findings)
        with unreadable_found(findings, prefix):
            _examine_boundaries(prefix, facts, units, findings)
        findings.counts |= {
            "records": manifest.counts["records"],
            "rejected": sum(manifest.counts["rejected"].values()),
        }
    return DatasetFacts(prefix, facts, manifest, units)


def _files_are_there(prefix: str, findings: ProductFindings) -> bool:
    unfinished = fs.lexists(os.path.join(sidecar_directory(prefix), "work"))
    missing = [path for path in (bin_path(prefix), idx_path(prefix)) if not fs.lexists(path)]
    if unfinished:
        text = "is not complete yet" if missing else "may be replaced by it"
        findings.find("unfinished", f"a run for {prefix} is unfinished: the dataset {text}")
        return not missing
    for path in missing:
        code = "bin-missing" if path == bin_path(prefix) else "idx-missing"
        findings.find(code, f"{path} is not there", path=path)
    return not missing


def _examine_boundaries(
    prefix: str, facts: IndexFacts, units: Units | None, findings: ProductFindings
) -> None:
    """Hold the ends of units against the index; it is read at those places only."""
    if units is None:
        return
    documents = units.before("documents")[1:]
    if ((documents < 0) | (documents > facts.header.document_count)).any():
        return
    boundaries = [
        (sequences, size // facts.header.dtype.itemsize)
        for sequences, size in map(facts.end_of, documents.tolist())
    ]
    path = file_of(prefix, UNITS_NAME)
    for number in units_off_boundaries(units, boundaries):
        text = (
            f"{path}: unit {number + 1} does not end where document {documents[number]} begins in the index"
        )
        findings.find("units-index", text, path=path)


def _examine_digests(facts: DatasetFacts, findings: ProductFindings, session: Session) -> None:
    if facts.manifest is None:
        return
    whole = [name for name in facts.manifest.files if name != "bin"]

    def check_file(name: str) -> tuple[str, str] | None:
        path = file_of(facts.prefix, name)
        if not fs.isfile(path):
            return None
        wanted = facts.manifest.files[name].get("xxh3_128") if facts.manifest else None
        if session.digest(InputFile(path)) == wanted:
            return None
        return ("idx-digest" if name == "idx" else "file-digest", path)

    sizes = sum(facts.manifest.files[name]["bytes"] for name in whole)
    for found in session.labour.run(check_file, whole, sizes):
        if found is not None:
            code, path = found
            findings.find(code, f"{path} is not what was written: its digest is another", path=path)
    if facts.units is not None:
        _examine_pieces(facts, facts.units, findings, session)


def _examine_pieces(facts: DatasetFacts, units: Units, findings: ProductFindings, session: Session) -> None:
    """Hold the pieces of the ``.bin``, or some of them, against the digests of the units."""
    file = open_data(bin_path(facts.prefix))
    places = (units.before("tokens") * facts.index.header.dtype.itemsize).tolist()
    pieces = [unit for unit in range(len(units.tokens)) if places[unit + 1] > places[unit]]
    within = [unit for unit in pieces if places[unit + 1] <= file.size_bytes]
    selected = [within[place] for place in chosen(len(within), session.subset)]
    check: Callable[[int], bool] = lambda unit: (  # noqa: E731 - one expression, used once
        session.digest(file, places[unit], places[unit + 1] - places[unit]) == units.tokens[unit]
    )
    total = sum(places[unit + 1] - places[unit] for unit in selected)
    good = session.labour.run(check, selected, total)
    findings.counts |= {"pieces": len(pieces), "pieces_checked": len(selected), "bytes_checked": total}
    for unit in np.array(selected, np.int64)[~np.array(good, bool)].tolist() if selected else []:
        findings.find(
            "bin-digest", _piece_text(facts, units, unit, places), path=file.path, offset=places[unit]
        )


def _piece_text(facts: DatasetFacts, units: Units, unit: int, places: list[int]) -> str:
    documents = units.before("documents")
    number = int(units.column("input")[unit])
    inputs = facts.manifest.inputs if facts.manifest else []
    source = f" from {inputs[number]['path']}" if number < len(inputs) else ""
    return (
        f"{bin_path(facts.prefix)}: bytes {places[unit]} to {places[unit + 1]} are not what was written "
        f"(documents {documents[unit]} to {documents[unit + 1] - 1}{source})"
    )
