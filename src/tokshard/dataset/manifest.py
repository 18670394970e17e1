"""The manifest of a dataset: what it is, what it was made from, and the digests of its files.

``PREFIX.tokshard/manifest.json`` is written last, so a dataset with a manifest is complete. A dataset
without one (made by other tools) can be read, but nothing is known of its content. The fields are
described in ``docs/formats/manifest.md``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import Any, Self

from tokshard.errors import IntegrityError
from tokshard.storage import fs, paths
from tokshard.storage.digest import identity_digest
from tokshard.storage.jsonfile import read_json_object

SCHEMA = "tokshard.dataset/1"
MANIFEST_NAME = "manifest.json"
UNITS_NAME = "units.jsonl"
PROVENANCE_NAME = "provenance.bin"
REJECTED_NAME = "rejected.jsonl"
SEAL = "seal"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a manifest; every attribute is plain JSON.

    Attributes:
        schema: ``"tokshard.dataset/1"``.
        tool: Name and version of the program that wrote the dataset.
        fingerprint: SHA-256 of everything that determines the bytes (inputs, tokenizer, options).
        dataset: ``dtype``, ``multimodal`` and the counts ``documents``, ``sequences``, ``tokens``, ...
        files: For ``bin``, ``idx`` and each sidecar file: ``bytes`` and ``xxh3_128`` (``bin``:
            ``pieces_xxh3_128``, the piecewise digest over the units).
        tokenizer: The identity of the tokenizer.
        options: The options that determine the bytes.
        engine: Which engine encoded, and how many documents both engines were compared on.
        inputs: For each input: path, bytes, format, compression, counts and digest.
        counts: Records, documents, rejected records by reason, blank lines.
    """

    schema: str
    tool: dict[str, Any]
    fingerprint: str
    dataset: dict[str, Any]
    files: dict[str, Any]
    tokenizer: dict[str, Any]
    options: dict[str, Any]
    engine: dict[str, Any]
    inputs: list[dict[str, Any]]
    counts: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return the manifest as a JSON object."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def to_sealed_json(self) -> dict[str, Any]:
        """Return the manifest as it is written: with its seal."""
        value = self.to_json()
        return {**value, SEAL: seal_of(value)}

    @classmethod
    def from_json(cls, value: dict[str, Any], path: str) -> Self:
        """Check a parsed manifest and return it.

        Its seal, which manifests of early versions do not have, is held against the rest by
        ``tokshard verify``, and not each time that a dataset is opened.

        Raises:
            IntegrityError: A field is missing, unknown, or of a wrong type; or the schema is another.
        """
        schema = value.get("schema")
        if schema != SCHEMA:
            raise IntegrityError(
                f"{path} has the schema {schema!r}, this version of tokshard reads {SCHEMA!r}",
                path=path,
                field="schema",
            )
        if not isinstance(value.get(SEAL, ""), str):
            raise IntegrityError(f"{path}: {SEAL} is not a str", path=path, field=SEAL)
        value = {name: one for name, one in value.items() if name != SEAL}
        expected = {field.name: field.type for field in fields(cls)}
        for name in expected.keys() ^ value.keys():
            problem = "lacks the field" if name in expected else "has the unknown field"
            raise IntegrityError(f"{path} {problem} {name!r}", path=path, field=name)
        for name, type_text in expected.items():
            wanted = {"str": str, "list[dict[str, Any]]": list}.get(str(type_text), dict)
            if not isinstance(value[name], wanted):
                raise IntegrityError(f"{path}: {name} is not a {wanted.__name__}", path=path, field=name)
        _check_files(value, path)
        _check_counts(value, path)
        return cls(**value)


def seal_of(value: dict[str, Any]) -> str:
    """Return the SHA-256 of everything in a manifest but its seal.

    Example:
        >>> seal_of({"schema": SCHEMA}) == seal_of({"schema": SCHEMA, "seal": "0"})
        True
    """
    return identity_digest({name: one for name, one in value.items() if name != SEAL})


def manifest_path(path_prefix: str) -> str:
    """Return the path of the manifest of the dataset at ``path_prefix``."""
    return os.path.join(paths.sidecar_directory(path_prefix), MANIFEST_NAME)


def read_manifest(path_prefix: str) -> Manifest | None:
    """Read the manifest of the dataset at ``path_prefix``; None if it has none.

    Raises:
        IntegrityError: There is one and it is damaged.
    """
    path = manifest_path(path_prefix)
    try:
        value = read_json_object(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Manifest.from_json(value, path)


def file_of(path_prefix: str, name: str) -> str:
    """Return where the file lies that a manifest lists as ``name`` (``bin``, ``idx`` or a sidecar)."""
    if name == "bin":
        return paths.bin_path(path_prefix)
    if name == "idx":
        return paths.idx_path(path_prefix)
    return os.path.join(paths.sidecar_directory(path_prefix), paths.check_plain_name(name, "the manifest"))


def check_sizes(path_prefix: str, manifest: Manifest) -> None:
    """Check that every file of the manifest is there with its recorded size.

    Raises:
        IntegrityError: A file is missing or has another size.
    """
    for name, entry in manifest.files.items():
        path = file_of(path_prefix, name)
        try:
            actual = fs.getsize(path)
        except FileNotFoundError:
            raise IntegrityError(f"{path} is missing, but the manifest lists it", path=path) from None
        if actual != entry["bytes"]:
            raise IntegrityError(
                f"{path} has {actual} bytes, but the manifest says {entry['bytes']}",
                path=path,
                hint="the file was changed after tokshard wrote it: make it again with --force",
            )


_DATASET_COUNTS = (
    "units",
    "documents",
    "tokens",
    "sequences",
    "empty_documents",
    "eod_in_text",
    "longest_sequence",
)
_COUNTS = ("records", "documents", "lines", "blank_lines", "content_bytes")
_INPUT_COUNTS = ("content_bytes", "records", "documents", "rejected", "blank_lines")


def _check_counts(value: dict[str, Any], path: str) -> None:
    """Check everything that programs read without asking whether it is there."""
    texts = [("dataset.dtype", value["dataset"].get("dtype"))]
    numbers = [(f"dataset.{name}", value["dataset"].get(name)) for name in _DATASET_COUNTS]
    numbers += [(f"counts.{name}", value["counts"].get(name)) for name in _COUNTS]
    numbers.append(("engine.compared", value["engine"].get("compared")))
    for name, counts in (
        ("engine.documents", value["engine"].get("documents")),
        ("counts.rejected", value["counts"].get("rejected")),
    ):
        if not isinstance(counts, dict):
            raise IntegrityError(f"{path}: {name} is not a dict", path=path, field=name)
        numbers += [(f"{name}.{key}", count) for key, count in counts.items()]
    for number, entry in enumerate(value["inputs"]):
        if not isinstance(entry, dict):
            raise IntegrityError(f"{path}: inputs[{number}] is not a dict", path=path, field="inputs")
        texts.append((f"inputs[{number}].path", entry.get("path")))
        numbers += [(f"inputs[{number}].{name}", entry.get(name)) for name in _INPUT_COUNTS]
    for name, text in texts:
        if not isinstance(text, str):
            raise IntegrityError(f"{path}: {name} is {text!r}, not a text", path=path, field=name)
    for name, count in numbers:
        if type(count) is not int or count < 0:
            raise IntegrityError(f"{path}: {name} is {count!r}, not a count", path=path, field=name)


def _check_files(value: dict[str, Any], path: str) -> None:
    for name, entry in value["files"].items():
        paths.check_plain_name(name, path)
        size = entry.get("bytes") if isinstance(entry, dict) else None
        if type(size) is not int or not 0 <= size < 2**63:
            raise IntegrityError(f"{path}: files.{name}.bytes is {size!r}", path=path, field=f"files.{name}")
    for name in ("bin", "idx"):
        if name not in value["files"]:
            raise IntegrityError(f"{path} does not list {name!r}", path=path, field="files")
