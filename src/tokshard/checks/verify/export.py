"""Verification of an export: its manifest, its files, and the datasets that it was made from."""

from __future__ import annotations

import os

from tokshard.checks.verify.context import VerifyContext, unreadable_found
from tokshard.checks.verify.report import ProductFindings, VerifiedProduct
from tokshard.dataset.fingerprint import FileFingerprint
from tokshard.dataset.source import InputFile
from tokshard.errors import InputError, IntegrityError, MissingFileError, StorageError, TokshardError
from tokshard.exchange.export import has_unfinished_work, other_files
from tokshard.exchange.manifest import ExportManifest, SourceDataset, manifest_path, read_export
from tokshard.storage.digest import seal_of
from tokshard.storage.fs import exists, getsize, isfile, lexists
from tokshard.storage.paths import bin_path, idx_path

_SHOWN_FILES = 3


def verify_export(directory: str, context: VerifyContext) -> VerifiedProduct:
    """Verify an export; its source is compared if it is found, but is no product of its own."""
    findings = ProductFindings("export", directory)
    if has_unfinished_work(directory):
        findings.find("export-unfinished", f"{directory} has the work of an interrupted export")
    manifest = _read(directory, findings)
    if manifest is None:
        return findings.close()
    findings.counts.update(records=manifest.records, tokens=manifest.tokens, files=len(manifest.files))
    _examine_files(directory, manifest, findings, context)
    if others := other_files(directory, manifest):
        shown = ", ".join(others[:_SHOWN_FILES])
        text = f"{directory} has {len(others)} files of the format that the manifest does not list: {shown}"
        findings.find("export-other-files", text)
    for dataset in manifest.source.datasets:
        with unreadable_found(findings, bin_path(dataset.path_prefix)):
            _examine_source(dataset, findings, context)
    return findings.close()


def _read(directory: str, findings: ProductFindings) -> ExportManifest | None:
    path = manifest_path(directory)
    try:
        manifest = read_export(directory)
    except (InputError, IntegrityError, StorageError) as error:
        findings.find_error("export-damaged", error, path=path)
        return None
    if manifest is not None and manifest.seal != seal_of(manifest.to_json()):
        findings.find("export-damaged", f"{path} was changed: its seal does not match", path=path)
    return manifest


def _examine_files(
    directory: str, manifest: ExportManifest, findings: ProductFindings, context: VerifyContext
) -> None:
    whole = []
    for file in manifest.files:
        path = os.path.join(directory, file.name)
        with unreadable_found(findings, path):
            if not lexists(path):
                findings.find("export-file-missing", f"file not found: {path}", path=path)
                continue
            if not isfile(path):
                raise InputError(f"cannot read {path}: it is not a regular file")
            size = getsize(path)
            if size != file.size_bytes:
                text = f"{path} must have {file.size_bytes} bytes, got {size}"
                findings.find("export-file-size", text, path=path)
                continue
        whole.append((path, file))
    if not context.reaches("digest"):
        return
    chosen = [whole[place] for place in context.selected(len(whole))]

    def digest(path: str) -> str | TokshardError:
        try:
            return context.digest(InputFile(path))
        except (InputError, IntegrityError, StorageError) as error:
            return error

    digests = context.runner.run(
        digest, [path for path, _ in chosen], sum(file.size_bytes for _, file in chosen)
    )
    for (path, file), found in zip(chosen, digests, strict=True):
        if isinstance(found, TokshardError):
            findings.find_error("unreadable", found, path=path)
        elif found != file.xxh3_128:
            findings.find("export-file-digest", f"{path} does not match its digest", path=path)


def _examine_source(dataset: SourceDataset, findings: ProductFindings, context: VerifyContext) -> None:
    prefix = dataset.path_prefix
    if not (exists(bin_path(prefix)) and exists(idx_path(prefix))):
        text = f"the dataset {prefix} was not found and not compared"
        findings.find("export-source-missing", text, path=bin_path(prefix))
        return
    try:
        changes = context.fingerprint(prefix).changes_since(dataset.fingerprint)
        if not changes and FileFingerprint.of(bin_path(prefix)) != dataset.bin:
            changes = ["the content of the .bin file differs"]
    except MissingFileError:
        return
    if changes:
        findings.find(
            "export-source-changed",
            f"{prefix} has changed since it was exported: {changes[0]}",
            path=bin_path(prefix),
        )
