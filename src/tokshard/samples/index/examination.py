"""The condition of an entry of Megatron's index cache.

Megatron uses an entry if its files exist. Here an entry is *fresh* only if all files are there, are what
was written, and were built from the dataset as it is now.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from tokshard.dataset.source import InputFile
from tokshard.errors import InputError, IntegrityError, OlderVersionError
from tokshard.samples.index.arrays import sample_index_dtype, shuffle_index_dtype
from tokshard.samples.index.description import BlendedDescription, Description, read_description
from tokshard.samples.index.entry import CacheEntry, IndexOrigin, Sidecar, blend_specs
from tokshard.samples.index.npy import ArraySpec, read_spec
from tokshard.samples.index.packing_report import PackingReport
from tokshard.storage import fs
from tokshard.storage.digest import file_digest

Condition = Literal["fresh", "stale", "outdated", "damaged", "foreign", "missing", "complete"]
Specs = Mapping[str, ArraySpec]


@dataclass(frozen=True, slots=True)
class EntryProblem:
    """One thing that is wrong with an entry.

    Attributes:
        kind: What is wrong. ``"stale"``: it was built from other data or with other options.
            ``"outdated"``: the sidecar is of an earlier version of tokshard. The others are damage: to the
            ``"description"``, the ``"name"`` (the hash is of another description), an ``"array"`` (no whole
            file), its ``"shape"``, the ``"sidecar"``, or the ``"digest"`` of an array.
        message: A sentence; for ``"stale"`` the rest of one that begins with the entry.
    """

    kind: Literal["description", "name", "array", "shape", "sidecar", "digest", "stale", "outdated"]
    path: str
    message: str


@dataclass(frozen=True, slots=True)
class Examination:
    """The content of an entry as far as it can be read, and its problems.

    Attributes:
        missing: The paths of Megatron's files that are missing.
        sidecar: What tokshard wrote beside it; None if Megatron alone has made it.
        specs: Dtype and shape of the arrays that are whole, by name.
        compared: Whether it was compared with what it should be.
        replaced: Whether another process was replacing it.
    """

    entry: CacheEntry
    missing: tuple[str, ...] = ()
    problems: tuple[EntryProblem, ...] = ()
    description: Description | None = None
    sidecar: Sidecar | None = None
    specs: Specs = ()  # type: ignore[assignment]
    compared: bool = False
    replaced: bool = False

    @property
    def condition(self) -> Condition:
        """The condition of the entry.

        ``"missing"``: a file of Megatron's is missing, so Megatron would build all of them. ``"damaged"``:
        not what was written. ``"stale"``: built from another content of the dataset, or with other options.
        ``"outdated"``: of the right shapes, with the sidecar of an earlier version of tokshard.
        ``"foreign"``: Megatron's own, of the right shapes, of which nothing else is known. ``"fresh"``:
        complete, as written, and built from the dataset as it is now. ``"complete"``: whole, but not
        compared with what it should be.
        """
        if self.missing or self.replaced:
            return "missing"
        kinds = {problem.kind for problem in self.problems}
        if kinds - {"stale", "outdated"}:
            return "damaged"
        if kinds:
            return "stale" if "stale" in kinds else "outdated"
        if not self.compared:
            return "complete"
        return "foreign" if self.sidecar is None else "fresh"

    @property
    def detail(self) -> str:
        """The reason of the condition: the rest of a sentence that begins with the entry."""
        condition = self.condition
        if self.replaced:
            return "is being replaced by another process"
        if len(self.missing) == len(self.entry.megatron_files):
            return "does not exist"
        if condition == "missing":
            names = ", ".join(map(os.path.basename, self.missing))
            return f"is incomplete: {names} missing, so Megatron would rebuild all files"
        for problem in self.problems:
            if condition == "damaged" and problem.kind not in {"stale", "outdated"}:
                return f"is damaged: {problem.message}"
            if condition == problem.kind == "stale":
                return problem.message
        return {
            "fresh": "is complete and built from the current dataset",
            "outdated": "was built by an earlier version of tokshard",
            "foreign": "was not built by tokshard: its content is unverified",
            "complete": "is complete",
        }[condition]


@dataclass(frozen=True, slots=True)
class EntryContent:
    """The content that an entry should have.

    Attributes:
        specs: The dtypes and shapes that follow from the dataset as it is now, and the description.
        origin: What a dataset's index is built from; None for a blend.
        packing_report: The report of packed samples; None for all others.
    """

    specs: Specs
    origin: IndexOrigin | None
    packing_report: PackingReport | None = None

    @property
    def file_bytes(self) -> int:
        """The bytes of all arrays on disk."""
        return sum(spec.file_bytes for spec in self.specs.values())


def examine(entry: CacheEntry, content: EntryContent | None = None, *, digests: bool = False) -> Examination:
    """Examine an entry, which another process may be replacing meanwhile: then it is missing.

    Without ``content`` the entry is examined by itself. Without ``digests`` only headers and sizes are read.

    Raises:
        StorageError: A file cannot be read.
    """
    try:
        # A process that replaces an entry removes its description first and writes it last.
        path = entry.description_path
        description = InputFile(path) if fs.isfile(path) else None
        found = _Examiner(entry).examine(content, digests=digests)
        if description is None or description.is_in_place():
            return found
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
    return Examination(entry, replaced=True)


class _Examiner:
    def __init__(self, entry: CacheEntry) -> None:
        self._entry = entry
        self._problems: list[EntryProblem] = []
        self._missing = tuple(path for path in entry.megatron_files if not fs.isfile(path))

    def examine(self, content: EntryContent | None, *, digests: bool) -> Examination:
        entry = self._entry
        if len(self._missing) == len(entry.megatron_files):
            return Examination(entry, self._missing, specs={}, compared=content is not None)
        description = self._description()
        specs = self._specs()
        sidecar = self._sidecar(specs)
        if content is not None:
            self._compare(content, sidecar, specs)
        elif description is not None:
            self._check_shapes(description, specs)
        if digests and sidecar is not None and not self._problems:
            self._check_digests(sidecar, specs)
        return Examination(
            entry, self._missing, tuple(self._problems), description, sidecar, specs, content is not None
        )

    def _find(self, kind: Any, path: str, message: str) -> None:
        self._problems.append(EntryProblem(kind, path, message))

    def _description(self) -> Description | None:
        path = self._entry.description_path
        if path in self._missing:
            return None
        try:
            description = read_description(path)
        except InputError as error:
            self._find("description", path, error.message)
            return None
        if isinstance(description, BlendedDescription) and not description.has_a_size:
            self._find("description", path, f"{path} does not contain the size of the blend")
            return None
        if CacheEntry.of(description, self._entry.directory) != self._entry:
            self._find("name", path, f"{path} contradicts the hash in its name")
        return description

    def _specs(self) -> dict[str, ArraySpec]:
        specs = {}
        for name in self._entry.arrays:
            path = self._entry.array_path(name)
            if path not in self._missing:
                try:
                    specs[name] = read_spec(path)
                except IntegrityError as error:
                    self._find("array", path, error.message)
        return specs

    def _sidecar(self, specs: Specs) -> Sidecar | None:
        path = self._entry.sidecar_path
        try:
            sidecar = Sidecar.read(path)
        except IntegrityError as error:
            is_older = isinstance(error, OlderVersionError)
            self._find("outdated" if is_older else "sidecar", path, error.message)
            return None
        if sidecar is None:
            return None
        if sidecar.description_md5 != self._entry.hash:
            self._find("sidecar", path, f"{path} belongs to another index, {sidecar.description_md5}")
            return None
        if sidecar.files.keys() != {f"{name}.npy" for name in self._entry.arrays}:
            self._find("sidecar", path, f"{path} records other files: {', '.join(sidecar.files)}")
            return None
        if sidecar.origin is None and not self._entry.is_blend:
            self._find("sidecar", path, f"{path}: origin is null, but this is the index of a dataset")
            return None
        for name, spec in specs.items():
            recorded = sidecar.files[f"{name}.npy"].size_bytes
            if recorded != spec.file_bytes:
                array = self._entry.array_path(name)
                self._find(
                    "array", array, f"{array} must have {recorded} bytes as recorded, got {spec.file_bytes}"
                )
        return sidecar

    def _compare(self, content: EntryContent, sidecar: Sidecar | None, specs: Specs) -> None:
        if sidecar is not None and sidecar.origin is not None and content.origin is not None:
            difference = content.origin.difference_from(sidecar.origin)
            if difference is not None:
                self._find("stale", self._entry.description_path, difference)
                return
        for name, wanted in content.specs.items():
            if name in specs and specs[name] != wanted:
                file, found = f"{name}.npy", specs[name]
                if sidecar is None:
                    problem = f"does not fit the current dataset: {file} must be {wanted}, "
                    problem += f"got {found}"
                    self._find("stale", self._entry.array_path(name), problem)
                else:
                    problem = f"{file} must be {wanted}, got {found}"
                    self._find("shape", self._entry.array_path(name), problem)

    def _check_shapes(self, description: Description, specs: Specs) -> None:
        # Compares shapes with each other and the description, without the dataset.
        wanted: dict[str, ArraySpec] = {}
        if isinstance(description, BlendedDescription):
            wanted = blend_specs(description.samples)
        else:
            if "document_index" in specs:
                wanted["document_index"] = ArraySpec(np.dtype(np.int32), specs["document_index"].shape[:1])
            if "shuffle_index" in specs:
                samples = specs["shuffle_index"].shape[0]
                wanted["shuffle_index"] = ArraySpec(np.dtype(shuffle_index_dtype(samples)), (samples,))
                if "document_index" in specs:
                    dtype = sample_index_dtype(specs["document_index"].shape[0])
                    wanted["sample_index"] = ArraySpec(np.dtype(dtype), (samples + 1, 2))
        for name, spec in wanted.items():
            if name in specs and specs[name] != spec:
                path = self._entry.array_path(name)
                self._find("shape", path, f"{path} must be {spec} like the other arrays, got {specs[name]}")

    def _check_digests(self, sidecar: Sidecar, specs: Specs) -> None:
        for name in specs:
            path = self._entry.array_path(name)
            if file_digest(path) != sidecar.files[f"{name}.npy"].xxh3_128:
                self._find("digest", path, f"{path} does not match its recorded digest")
