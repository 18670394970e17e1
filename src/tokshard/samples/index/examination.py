"""Condition of an entry of Megatron's index cache: fresh, missing, or different from what it should be.

Megatron uses an entry if its files exist. Here an entry is *fresh* only if all files exist, are unchanged
since they were written, and were built from the dataset as it is now.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tokshard.dataset.recorded_tokenizers import TokenizerMismatch
from tokshard.dataset.source import InputFile
from tokshard.errors import InputError, IntegrityError, OlderVersionError, OutputExistsError
from tokshard.samples.index.arrays import sample_index_dtype, shuffle_index_dtype
from tokshard.samples.index.description import (
    BlendedDescription,
    Description,
    GPTDatasetDescription,
    read_description,
)
from tokshard.samples.index.entry import CacheEntry
from tokshard.samples.index.npy import ArraySpec, read_spec
from tokshard.samples.index.sidecar import IndexOrigin, Sidecar, allowed_mismatches, blend_specs, gpt_specs
from tokshard.storage import fs
from tokshard.storage.digest import file_digest

Condition = Literal["fresh", "missing", "differs"]
Kind = Literal["description", "name", "array", "shape", "sidecar", "digest", "content", "older", "unrecorded"]
Specs = Mapping[str, ArraySpec]

_WITHOUT_RECORD = {"older", "unrecorded"}
_UNDAMAGED = {"content", *_WITHOUT_RECORD}


@dataclass(frozen=True, slots=True)
class EntryProblem:
    """One difference of an entry from what it should be.

    Attributes:
        kind: ``"content"``: it was built from other data or with other options. ``"unrecorded"``: Megatron or
            another program has built it. ``"older"``: the sidecar is of an earlier version of tokshard. The
            others are damage: to the ``"description"``, the ``"name"`` (its hash is of another
            description), an ``"array"`` (not a complete file), its ``"shape"``, the ``"sidecar"``, or the
            ``"digest"`` of an array.
        message: A sentence; for ``"content"`` the predicate of a sentence whose subject is the entry.
    """

    kind: Kind
    path: str
    message: str


@dataclass(frozen=True, slots=True)
class Examination:
    """The readable content of an entry, and its problems.

    Attributes:
        missing: The paths of Megatron's files that are missing.
        sidecar: The record that tokshard wrote with it. None if it is missing or cannot be read.
        specs: Dtype and shape of the readable arrays, by name.
        replaced: Whether another process was replacing it.
    """

    entry: CacheEntry
    missing: tuple[str, ...] = ()
    problems: tuple[EntryProblem, ...] = ()
    description: Description | None = None
    sidecar: Sidecar | None = None
    specs: Specs = ()  # type: ignore[assignment]
    replaced: bool = False

    @property
    def condition(self) -> Condition:
        """The condition of the entry.

        ``"missing"``: a file of Megatron's is missing, so Megatron would build all of them. ``"differs"``:
        see :attr:`reason`. ``"fresh"``: complete, as written, and equal to the target if there is one.
        """
        if self.missing or self.replaced:
            return "missing"
        return "differs" if self.problems else "fresh"

    @property
    def is_damaged(self) -> bool:
        """True if a file is not what was written."""
        return not self.missing and not self._kinds <= _UNDAMAGED

    @property
    def is_unverified(self) -> bool:
        """True if it differs only because its sidecar is missing or of an earlier version of tokshard."""
        return self.condition == "differs" and self._kinds <= _WITHOUT_RECORD

    @property
    def is_older(self) -> bool:
        """True if it differs only because an earlier version of tokshard has written the sidecar."""
        return self.condition == "differs" and self._kinds == {"older"}

    @property
    def reason(self) -> str:
        """The reason of the condition: the predicate of a sentence whose subject is the entry."""
        if self.condition == "missing":
            return self._missing_reason
        damage = [problem.message for problem in self.problems if problem.kind not in _UNDAMAGED]
        if damage:
            return f"is damaged: {damage[0]}"
        content = [problem.message for problem in self.problems if problem.kind == "content"]
        if content:
            return content[0]
        if self.is_older:
            return "was built by an earlier version of tokshard"
        return "was not built by tokshard: its content is unverified" if self.problems else "is complete"

    @property
    def _missing_reason(self) -> str:
        if self.replaced:
            return "is being replaced by another process"
        if len(self.missing) == len(self.entry.megatron_files):
            return "does not exist"
        names = ", ".join(map(os.path.basename, self.missing))
        return f"is incomplete: {names} missing, so Megatron would rebuild all files"

    @property
    def _kinds(self) -> set[str]:
        return {problem.kind for problem in self.problems}


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheTarget:
    """An entry that is needed, and the content that it should have.

    Attributes:
        label: For messages: ``"the train index of data/web"``.
        specs: The dtypes and shapes that follow from the dataset as it is now, and the description.
        origin: The origin of a dataset's index; None for a blend.
        mismatches: The mismatches of tokenizers that were allowed, which the sidecar records.
    """

    entry: CacheEntry
    description: Description
    label: str
    specs: Specs
    origin: IndexOrigin | None = None
    mismatches: tuple[TokenizerMismatch, ...] = ()

    @classmethod
    def of_blend(
        cls,
        description: BlendedDescription,
        directory: str,
        label: str,
        mismatches: tuple[TokenizerMismatch, ...] = (),
    ) -> CacheTarget:
        """Return the entry of a blend, whose content follows from its description."""
        return CacheTarget(
            entry=CacheEntry.of(description, directory),
            description=description,
            label=label,
            specs=blend_specs(description.samples),
            mismatches=mismatches,
        )

    @property
    def file_bytes(self) -> int:
        """The bytes of all arrays on disk."""
        return sum(spec.file_bytes for spec in self.specs.values())

    @property
    def unrecorded(self) -> tuple[TokenizerMismatch, ...]:
        """The mismatches that the sidecar of an existing entry does not record."""
        if not self.mismatches:
            return ()
        recorded = allowed_mismatches(self.entry)
        return tuple(mismatch for mismatch in self.mismatches if mismatch not in recorded)

    def examine(self, *, digests: bool = False) -> Examination:
        """Examine the entry; see :func:`examine`."""
        return examine(self.entry, self, digests=digests)

    def refuse(self, examined: Examination, *, rebuild: bool) -> None:
        """Refuse to replace an entry that differs, unless ``rebuild`` is given.

        An entry of an earlier version of tokshard may be replaced. One of another packing may not, even with
        ``rebuild``: both are used.

        Raises:
            OutputExistsError: The entry was built from other data or with other options, or by another
                program.
            IntegrityError: It is damaged.
        """
        if examined.condition != "differs" or examined.is_older:
            return
        self._refuse_other_packing(examined)
        if rebuild:
            return
        path = self.entry.description_path
        hint = f"pass --rebuild to replace it, or remove {path}"
        message = f"{self._name} {examined.reason}"
        if examined.is_damaged:
            raise IntegrityError(message, path=path, hint=hint)
        raise OutputExistsError(message, hint=hint)

    def _refuse_other_packing(self, examined: Examination) -> None:
        sidecar, expected = examined.sidecar, self.origin
        if expected is None:
            return
        pack = "concat" if sidecar is None or sidecar.origin is None else sidecar.origin.pack
        if pack == expected.pack or (sidecar is None and expected.plan.packed is None):
            return
        reason = f"was built with --pack {pack} instead of --pack {expected.pack}"
        if sidecar is None:
            name = os.path.basename(self.entry.sidecar_path)
            reason = f"has no record of --pack {expected.pack}, because its {name} is missing or damaged"
        raise OutputExistsError(
            f"{self._name} {reason}; indexes of different packings have the same file names",
            hint=f"pass another --cache-dir, or remove {self.entry.description_path}",
        )

    @property
    def _name(self) -> str:
        return f"{self.label} in {self.entry.directory} ({self.entry.hash})"


def examine(entry: CacheEntry, target: CacheTarget | None = None, *, digests: bool = False) -> Examination:
    """Examine an entry; one that another process is replacing counts as missing.

    Without a ``target`` the entry is examined by itself. Without ``digests`` only headers and sizes are read.

    Raises:
        StorageError: A file cannot be read.
    """
    try:
        # A process that replaces an entry removes its description first and writes it last.
        path = entry.description_path
        description = InputFile(path) if fs.isfile(path) else None
        examination = _Examiner(entry, target).examine(digests=digests)
        if description is None or description.is_in_place():
            return examination
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise
    return Examination(entry, replaced=True)


class _Examiner:
    def __init__(self, entry: CacheEntry, target: CacheTarget | None) -> None:
        self._entry = entry
        self._target = target
        self._problems: list[EntryProblem] = []
        self._missing = tuple(path for path in entry.megatron_files if not fs.isfile(path))

    def examine(self, *, digests: bool) -> Examination:
        entry = self._entry
        if len(self._missing) == len(entry.megatron_files):
            return Examination(entry, self._missing, specs={})
        description = self._description()
        specs = self._specs()
        sidecar = self._sidecar(specs, description)
        if self._target is not None:
            self._compare(self._target, sidecar, specs)
        elif description is not None:
            self._check_shapes(description, sidecar, specs)
        if digests and sidecar is not None and not self._problems:
            self._check_digests(sidecar, specs)
        return Examination(entry, self._missing, tuple(self._problems), description, sidecar, specs)

    def _add(self, kind: Kind, path: str, message: str) -> None:
        self._problems.append(EntryProblem(kind, path, message))

    def _description(self) -> Description | None:
        path = self._entry.description_path
        if path in self._missing:
            return None
        try:
            description = read_description(path)
        except InputError as error:
            self._add("description", path, error.message)
            return None
        if isinstance(description, BlendedDescription) and not description.has_a_size:
            self._add("description", path, f"{path} does not contain the size of the blend")
            return None
        if CacheEntry.of(description, "").stem != self._entry.stem:
            self._add("name", path, f"{path} contradicts the hash in its name")
        return description

    def _specs(self) -> dict[str, ArraySpec]:
        specs = {}
        for name in self._entry.arrays:
            path = self._entry.array_path(name)
            if path not in self._missing:
                try:
                    specs[name] = read_spec(path)
                except IntegrityError as error:
                    self._add("array", path, error.message)
        return specs

    def _sidecar(self, specs: Specs, description: Description | None) -> Sidecar | None:
        path = self._entry.sidecar_path
        try:
            sidecar = Sidecar.read(path)
        except OlderVersionError as error:
            self._add("older", path, error.message)
            return None
        except IntegrityError as error:
            self._add("sidecar", path, error.message)
            return None
        if sidecar is None:
            if self._target is not None:
                self._add("unrecorded", path, f"{path} not found")
            return None
        contradiction = self._contradiction(sidecar, description)
        if contradiction is not None:
            self._add("sidecar", path, f"{path}{contradiction}")
            return None
        for name, spec in specs.items():
            recorded = sidecar.files[f"{name}.npy"].size_bytes
            if recorded != spec.file_bytes:
                array = self._entry.array_path(name)
                message = f"{array} must have {recorded} bytes as recorded, got {spec.file_bytes}"
                self._add("array", array, message)
        return sidecar

    def _contradiction(self, sidecar: Sidecar, description: Description | None) -> str | None:
        if sidecar.description_md5 != self._entry.hash:
            return f" belongs to another index, {sidecar.description_md5}"
        if sidecar.files.keys() != {f"{name}.npy" for name in self._entry.arrays}:
            return f" records other files: {', '.join(sidecar.files)}"
        if sidecar.origin is None and not self._entry.is_blend:
            return ": origin is null, but this is the index of a dataset"
        origin = sidecar.origin
        if origin is None or not isinstance(description, GPTDatasetDescription):
            return None
        return (
            ": origin.plan contradicts itself or the description" if origin.contradicts(description) else None
        )

    def _compare(self, target: CacheTarget, sidecar: Sidecar | None, specs: Specs) -> None:
        if sidecar is not None and sidecar.origin is not None and target.origin is not None:
            difference = target.origin.difference_from(sidecar.origin)
            if difference is not None:
                self._add("content", self._entry.description_path, difference)
                return
        for name, expected in target.specs.items():
            if name in specs and specs[name] != expected:
                path = self._entry.array_path(name)
                message = f"{name}.npy must be {expected}, got {specs[name]}"
                if sidecar is None:
                    self._add("content", path, f"does not fit the current dataset: {message}")
                else:
                    self._add("shape", path, message)

    def _check_shapes(self, description: Description, sidecar: Sidecar | None, specs: Specs) -> None:
        """Compare shapes with the description, and with the sidecar or each other, without the dataset."""
        expected: dict[str, ArraySpec] = {}
        if isinstance(description, BlendedDescription):
            expected = blend_specs(description.samples)
        elif sidecar is not None and sidecar.origin is not None:
            expected = gpt_specs(sidecar.origin.plan)
        else:
            documents = specs["document_index"].shape[0] if "document_index" in specs else None
            if documents is not None:
                expected["document_index"] = ArraySpec(np.dtype(np.int32), (documents,))
            if "shuffle_index" in specs:
                samples = specs["shuffle_index"].shape[0]
                expected["shuffle_index"] = ArraySpec(np.dtype(shuffle_index_dtype(samples)), (samples,))
                if documents is not None:
                    dtype = np.dtype(sample_index_dtype(documents))
                    expected["sample_index"] = ArraySpec(dtype, (samples + 1, 2))
        for name, spec in expected.items():
            if name in specs and specs[name] != spec:
                path = self._entry.array_path(name)
                self._add("shape", path, f"{path} must be {spec} like the other arrays, got {specs[name]}")

    def _check_digests(self, sidecar: Sidecar, specs: Specs) -> None:
        for name in specs:
            path = self._entry.array_path(name)
            if file_digest(path) != sidecar.files[f"{name}.npy"].xxh3_128:
                self._add("digest", path, f"{path} does not match its recorded digest")
