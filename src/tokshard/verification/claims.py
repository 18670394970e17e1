"""What a manifest claims: held against itself, against the files beside it, and against the index."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from tokshard.core.strict_json import MAX_JSON_BYTES, dump_json, parse_json_object
from tokshard.dataset.manifest import (
    PROVENANCE_NAME,
    REJECTED_NAME,
    SEAL,
    UNITS_NAME,
    Manifest,
    file_of,
    manifest_path,
    seal_of,
)
from tokshard.errors import IntegrityError, StorageError
from tokshard.storage import fs
from tokshard.storage.paths import sidecar_directory
from tokshard.verification.index import IndexFacts
from tokshard.verification.report import ProductFindings

_SUMMED = ("records", "documents", "blank_lines", "content_bytes")


def read_claims(path_prefix: str, findings: ProductFindings) -> Manifest | None:
    """Read the manifest of a dataset; None where there is none, or with a finding where it is damaged.

    Raises:
        StorageError: It cannot be read.
    """
    path = manifest_path(path_prefix)
    try:
        with fs.open_file(path) as file:
            content = file.read(MAX_JSON_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except StorageError:
        raise
    except OSError as error:
        raise StorageError("read", path, error) from error
    try:
        value = parse_json_object(content, path)
        manifest = Manifest.from_json(value, path)
    except IntegrityError as error:
        findings.find_error("manifest-damaged", error, path=path)
        return None
    if UNITS_NAME not in manifest.files:
        findings.find("manifest-damaged", f"{path} does not list {UNITS_NAME}", path=path)
        return None
    if SEAL in value and (value[SEAL] != seal_of(value) or content != dump_json(value)):
        text = f"{path} was changed after it was written: its seal does not belong to the rest"
        findings.find("manifest-changed", text, path=path)
    return manifest


def examine_claims(path_prefix: str, manifest: Manifest, findings: ProductFindings) -> None:
    """Hold a manifest against itself, and against the names and sizes of the files it lists."""
    path = manifest_path(path_prefix)
    for text in _contradictions(manifest):
        findings.find("manifest-count", f"{path}: {text}", path=path)
    for name, entry in manifest.files.items():
        listed = file_of(path_prefix, name)
        if not fs.isfile(listed):
            if name not in {"bin", "idx"}:
                findings.find(
                    "file-missing", f"{listed} is not there, but the manifest lists it", path=listed
                )
            continue
        actual = fs.getsize(listed)
        if actual != entry["bytes"]:
            text = f"{listed} has {actual} bytes, but the manifest says {entry['bytes']}"
            findings.find("file-size", text, path=listed)
    for name in (PROVENANCE_NAME, REJECTED_NAME):
        stray = os.path.join(sidecar_directory(path_prefix), name)
        if name not in manifest.files and fs.lexists(stray):
            findings.find("file-unlisted", f"{stray} is there, but the manifest does not list it", path=stray)


def examine_index_claims(
    path_prefix: str, manifest: Manifest, facts: IndexFacts, findings: ProductFindings
) -> None:
    """Hold what a manifest says of a sound index against the index."""
    header, data = facts.header, manifest.dataset
    found: dict[str, Any] = {
        "dtype": header.dtype.name,
        "documents": header.document_count,
        "sequences": header.sequence_count,
        "tokens": facts.tokens,
        "empty_documents": facts.empty_documents,
        "longest_sequence": facts.longest_sequence,
    }
    path = manifest_path(path_prefix)
    for name, value in found.items():
        if data.get(name) != value:
            text = f"{path}: dataset.{name} is {data.get(name)!r}, but the index has {value!r}"
            findings.find("manifest-index", text, path=path)


def _contradictions(manifest: Manifest) -> Iterator[str]:
    data, counts = manifest.dataset, manifest.counts
    rejected = sum(counts["rejected"].values())
    if counts["records"] != counts["documents"] + rejected:
        yield (
            f"{counts['records']} records are not {counts['documents']} documents "
            f"and {rejected} rejected records"
        )
    if data["documents"] != counts["documents"]:
        yield f"dataset.documents is {data['documents']}, but counts.documents is {counts['documents']}"
    made = sum(manifest.engine["documents"].values())
    if made != data["documents"]:
        yield f"engines made {made} documents of {data['documents']}"
    sums = {name: counts[name] for name in _SUMMED} | {"rejected": rejected}
    for name, value in sums.items():
        total = sum(entry[name] for entry in manifest.inputs)
        if total != value:
            yield f"{name} of all inputs sum to {total}, but the count is {value}"
    places = manifest.files.get(PROVENANCE_NAME)
    if places is not None and places["bytes"] != 8 * data["documents"]:
        size, count = places["bytes"], data["documents"]
        yield f"{PROVENANCE_NAME} has {size} bytes, not 8 for each of {count} documents"
