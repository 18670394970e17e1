"""Adoption of datasets written by other programs: a manifest that makes later changes detectable."""

from __future__ import annotations

import os
from contextlib import suppress

from tokshard.checks.verify.content import examine_tokens, expectations
from tokshard.checks.verify.context import VerifyContext
from tokshard.checks.verify.index import IndexFacts
from tokshard.checks.verify.report import ProductFindings
from tokshard.core.codec import TOOL
from tokshard.dataset.manifest import (
    INDEXED,
    UNITS_NAME,
    UNKNOWN_ENCODER,
    DatasetFiles,
    DatasetRecord,
    EncoderRecord,
    InputRecord,
    Manifest,
    RecordCounts,
    TokenFileRecord,
    file_of,
    manifest_path,
)
from tokshard.dataset.parameters import AdoptedInput, AdoptionParameters, BuildPlan
from tokshard.dataset.reader import IndexedDataset
from tokshard.dataset.records import UnitRecord, to_line
from tokshard.dataset.source import InputFile
from tokshard.dataset.workdir import WorkDirectory, refuse_link, withdraw
from tokshard.errors import InputError, LockedError
from tokshard.storage import syscalls
from tokshard.storage.digest import UNSEALED, FileRecord, content_digest, piecewise_digest, sealed
from tokshard.storage.files import is_temporary, write_atomically
from tokshard.storage.paths import bin_path, idx_path, sidecar_directory

PIECE_BYTES = 16 << 20


def adopt(prefix: str, facts: IndexFacts, findings: ProductFindings, context: VerifyContext) -> None:
    """Write a manifest and its units for a structurally valid dataset.

    The manifest leaves unknown fields empty: see "Adopted datasets" in
    ``docs/reference/formats/manifest.md``. No token may be negative. With a tokenizer, every token must be
    in its vocabulary; its identity is recorded, and its EOD if all documents end with it.

    Raises:
        InputError: It changed during the adoption.
        LockedError: Another process is writing it.
        StorageError: It cannot be read, or the manifest cannot be written.
    """
    before = _state(prefix)
    pieces, units = _units(prefix, facts, context)
    eod = _eod(prefix, facts, findings, context)
    if findings.has("token-range"):
        return
    index_digest = context.digest(InputFile(idx_path(prefix)))
    lines = b"".join(map(to_line, units))
    files = DatasetFiles(
        bin=TokenFileRecord(facts.bin_bytes, piecewise_digest(pieces)),
        idx=FileRecord(os.stat(idx_path(prefix)).st_size, index_digest),
        units=FileRecord(len(lines), content_digest(lines)),
    )
    manifest = _manifest(prefix, facts, files, len(units), before[1], eod, context)
    work = WorkDirectory(prefix)
    refuse_link(sidecar_directory(prefix))
    with work.locked():
        work.sweep()
        if _state(prefix) != before:
            raise InputError(
                f"{prefix} changed while it was adopted",
                hint="run the same command again when no process writes the dataset",
            )
        if findings.has("manifest-older"):
            withdraw(prefix)
        write_atomically(file_of(prefix, UNITS_NAME), lines)
        write_atomically(manifest_path(prefix), manifest.to_bytes(), replace=False)
        syscalls.fsync_directory(os.path.dirname(prefix))
    findings.withdraw("unverified")
    findings.withdraw("manifest-older")
    findings.find("adopted", f"{manifest_path(prefix)} was written", path=manifest_path(prefix))


def remove_leftovers(prefix: str) -> None:
    """Remove the temporary files of an adoption that was killed after its manifest had got its name."""
    sidecars = sidecar_directory(prefix)
    if os.path.isdir(sidecars) and any(map(is_temporary, os.listdir(sidecars))):
        work = WorkDirectory(prefix)
        with suppress(LockedError), work.locked():
            work.sweep()


def _state(prefix: str) -> list[int]:
    found = [os.stat(path) for path in (bin_path(prefix), idx_path(prefix))]
    return [number for stat in found for number in (stat.st_size, stat.st_mtime_ns)]


def _units(prefix: str, facts: IndexFacts, context: VerifyContext) -> tuple[list[str], list[UnitRecord]]:
    file = InputFile(bin_path(prefix))
    cuts = _cuts(facts)

    def digest(place: int) -> str:
        return context.digest(file, cuts[place][2], cuts[place + 1][2] - cuts[place][2])

    pieces = context.runner.run(digest, list(range(len(cuts) - 1)), facts.bin_bytes)
    units = [
        UnitRecord(
            input=0,
            unit=number,
            content_bytes=stop[2] - first[2],
            content_xxh3_128=piece,
            lines=0,
            documents=stop[0] - first[0],
            rejected=0,
            sequences=stop[1] - first[1],
            tokens=(stop[2] - first[2]) // facts.header.dtype.itemsize,
            tokens_xxh3_128=piece,
            encoder=UNKNOWN_ENCODER,
        )
        for number, (first, stop, piece) in enumerate(zip(cuts, cuts[1:], pieces, strict=False))
    ]
    return pieces, units


def _cuts(facts: IndexFacts) -> list[tuple[int, int, int]]:
    # (documents, sequences, bytes) before each cut.
    count = facts.header.document_count
    wanted = max(1, facts.bin_bytes // PIECE_BYTES)
    documents = sorted({count * place // wanted for place in range(wanted + 1)} | {0, count})
    documents = documents if len(documents) > 1 else [0, count]
    return [(document, *facts.end_of(document)) for document in documents]


def _eod(prefix: str, facts: IndexFacts, findings: ProductFindings, context: VerifyContext) -> int | None:
    tokenizer = context.tokenizer
    if tokenizer is None and facts.header.dtype.kind == "u":
        return None  # no id can be outside
    dataset = IndexedDataset(prefix, multimodal=facts.multimodal)
    tally = examine_tokens(dataset, expectations(None, tokenizer, tokenizer), findings, context)
    if tokenizer is None:
        return None
    ends = tokenizer.eod_id is not None and tally.documents > 0 and tally.without_eod.count == 0
    return tokenizer.eod_id if ends else None


def _manifest(
    prefix: str,
    facts: IndexFacts,
    files: DatasetFiles,
    units: int,
    mtime_ns: int,
    eod: int | None,
    context: VerifyContext,
) -> Manifest:
    documents = facts.header.document_count
    options = AdoptionParameters(multimodal=facts.multimodal, eod_id=eod)
    tokenizer = context.tokenizer.identity if context.tokenizer is not None else None
    adopted = AdoptedInput(
        bin_bytes=files.bin.size_bytes,
        bin_pieces_xxh3_128=files.bin.pieces_xxh3_128,
        idx_bytes=files.idx.size_bytes,
        idx_xxh3_128=files.idx.xxh3_128,
    )
    return sealed(
        Manifest(
            tool=TOOL,
            fingerprint=BuildPlan((adopted,), tokenizer, options).fingerprint,
            dataset=DatasetRecord(
                dtype=facts.header.dtype.name,
                multimodal=facts.multimodal,
                field=None,
                units=units,
                documents=documents,
                sequences=facts.header.sequence_count,
                tokens=facts.tokens,
                empty_documents=facts.empty_documents,
                longest_sequence=facts.longest_sequence,
                eod_in_text=0,
            ),
            files=files,
            tokenizer=tokenizer,
            tokenizer_path=context.tokenizer.path if context.tokenizer is not None else None,
            options=options,
            encoder=EncoderRecord({UNKNOWN_ENCODER: documents}, compared=0),
            inputs=(
                InputRecord(
                    path=bin_path(prefix),
                    size_bytes=facts.bin_bytes,
                    mtime_ns=mtime_ns,
                    format=INDEXED,
                    compression="none",
                    version=None,
                    content_bytes=facts.bin_bytes,
                    pieces_xxh3_128=files.bin.pieces_xxh3_128,
                    records=documents,
                    documents=documents,
                    rejected=0,
                    blank_lines=0,
                ),
            ),
            counts=RecordCounts(
                records=documents,
                documents=documents,
                lines=0,
                blank_lines=0,
                content_bytes=facts.bin_bytes,
                rejected={},
            ),
            seal=UNSEALED,
        )
    )
