"""Adoption of datasets written by other programs: a manifest that makes later changes detectable."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace

import numpy as np

from tokshard.checks.verify.content import examine_tokens, expectations
from tokshard.checks.verify.context import VerifyContext
from tokshard.checks.verify.index import IndexFacts
from tokshard.checks.verify.report import ProductFindings
from tokshard.core.codec import TOOL
from tokshard.dataset.concatenate import input_records
from tokshard.dataset.counts import NO_COUNTS
from tokshard.dataset.manifest import (
    INDEXED,
    OPTIONAL_NAMES,
    UNITS_NAME,
    UNKNOWN_ENCODER,
    DatasetFiles,
    DatasetRecord,
    Manifest,
    SourceFile,
    TokenFileRecord,
    file_of,
    manifest_path,
)
from tokshard.dataset.outputs import locked_output
from tokshard.dataset.parameters import AdoptionParameters, Build
from tokshard.dataset.reader import IndexedDataset
from tokshard.dataset.records import UnitRecord, to_line
from tokshard.dataset.source import InputFile
from tokshard.errors import InputError, LockedError
from tokshard.storage import syscalls
from tokshard.storage.digest import UNSEALED, FileRecord, content_digest, sealed
from tokshard.storage.files import is_temporary, write_atomically
from tokshard.storage.paths import bin_path, idx_path, sidecar_directory
from tokshard.storage.publication import remove_temporary_files

PIECE_BYTES = 16 << 20


def adopt(prefix: str, facts: IndexFacts, findings: ProductFindings, context: VerifyContext) -> None:
    """Write a manifest and its units for a structurally valid dataset.

    The manifest leaves unknown fields empty: see "Adopted datasets" in
    ``docs/reference/formats/manifest.md``. No token may be negative. With a tokenizer, every token must be
    in its vocabulary; its identity is recorded, and its EOD if all documents end with it. The manifest of an
    earlier version is replaced, and the files that only it describes are removed.

    Raises:
        InputError: It changed during the adoption.
        LockedError: Another process is writing it.
        StorageError: It cannot be read, or the manifest cannot be written.
    """
    before = _sources(prefix)
    units = _units(prefix, facts, context)
    eod_id = _eod(prefix, facts, findings, context)
    if findings.has("token-range"):
        return
    lines = b"".join(map(to_line, units))
    (source,) = input_records(before[:1], units)
    tokenizer = context.tokenizer.identity if context.tokenizer is not None else None
    options = AdoptionParameters(multimodal=facts.multimodal, eod_id=eod_id)
    build = Build(inputs=tuple(file.state for file in before), tokenizer=tokenizer, options=options)
    manifest = Manifest(
        tool=TOOL,
        fingerprint=build.fingerprint,
        dataset=DatasetRecord(facts.header.dtype.name, facts.multimodal, field=None, units=len(units)),
        counts=source.counts,
        files=DatasetFiles(
            bin=TokenFileRecord(facts.bin_bytes, source.pieces_xxh3_128),
            idx=FileRecord(os.stat(idx_path(prefix)).st_size, context.digest(InputFile(idx_path(prefix)))),
            units=FileRecord(len(lines), content_digest(lines)),
        ),
        tokenizer=tokenizer,
        tokenizer_path=context.tokenizer.path if context.tokenizer is not None else None,
        options=options,
        inputs=(source,),
        seal=UNSEALED,
    )
    text = f"{manifest_path(prefix)} was written"
    with locked_output(prefix):
        remove_temporary_files(sidecar_directory(prefix))
        if _sources(prefix) != before:
            raise InputError(
                f"{prefix} changed while it was adopted",
                hint="run the same command again when no process writes the dataset",
            )
        if findings.has("manifest-older"):
            earlier = [name for name in OPTIONAL_NAMES if os.path.lexists(file_of(prefix, name))]
            for path in (manifest_path(prefix), *(file_of(prefix, name) for name in earlier)):
                syscalls.unlink(path)
            syscalls.fsync_directory(sidecar_directory(prefix))
            text += f"; removed the earlier {' and '.join(earlier)}" if earlier else ""
        write_atomically(file_of(prefix, UNITS_NAME), lines)
        write_atomically(manifest_path(prefix), sealed(manifest).to_bytes(), replace=False)
        syscalls.fsync_directory(os.path.dirname(prefix))
    findings.withdraw("unverified")
    findings.withdraw("manifest-older")
    findings.find("adopted", text, path=manifest_path(prefix))


def remove_leftovers(prefix: str) -> None:
    """Remove the temporary files of an adoption that was killed after its manifest had got its name."""
    sidecars = sidecar_directory(prefix)
    if os.path.isdir(sidecars) and any(map(is_temporary, os.listdir(sidecars))):
        with suppress(LockedError), locked_output(prefix):
            remove_temporary_files(sidecars)


def _sources(prefix: str) -> list[SourceFile]:
    paths = (bin_path(prefix), idx_path(prefix))
    return [SourceFile.of(path, format=INDEXED, compression="none") for path in paths]


def _units(prefix: str, facts: IndexFacts, context: VerifyContext) -> list[UnitRecord]:
    """Return units of whole documents with about 16 MiB of tokens each."""
    file, documents = InputFile(bin_path(prefix)), facts.header.document_count
    wanted = max(1, facts.bin_bytes // PIECE_BYTES)
    # A dataset without documents has one unit.
    cuts = [*sorted({documents * place // wanted for place in range(wanted)}), documents]

    def unit(number: int) -> UnitRecord:
        first, stop = cuts[number], cuts[number + 1]
        (begin, offset), (end, offset_of_next) = facts.end_of(first), facts.end_of(stop)
        digest = context.digest(file, offset, offset_of_next - offset)
        boundaries = facts.documents[first : stop + 1]
        counts = replace(
            NO_COUNTS,
            records=stop - first,
            documents=stop - first,
            content_bytes=offset_of_next - offset,
            sequences=end - begin,
            tokens=(offset_of_next - offset) // facts.header.dtype.itemsize,
            empty_documents=int((np.diff(boundaries) == 0).sum()),
            longest_sequence=int(facts.lengths[begin:end].max(initial=0)),
            encoders={UNKNOWN_ENCODER: stop - first} if stop > first else {},
        )
        return UnitRecord(
            input=0, unit=number, content_xxh3_128=digest, tokens_xxh3_128=digest, counts=counts
        )

    return context.runner.run(unit, list(range(len(cuts) - 1)), facts.bin_bytes)


def _eod(prefix: str, facts: IndexFacts, findings: ProductFindings, context: VerifyContext) -> int | None:
    """Check all tokens; return the EOD token of the tokenizer if it ends all documents."""
    tokenizer = context.tokenizer
    if tokenizer is None and facts.header.dtype.kind == "u":
        return None  # no id can be outside
    dataset = IndexedDataset(prefix, multimodal=facts.multimodal)
    tally = examine_tokens(dataset, expectations(None, tokenizer, tokenizer), findings, context)
    ends = tally.documents > 0 and tally.without_eod.count == 0
    return tokenizer.identity.eod_id if tokenizer is not None and ends else None
