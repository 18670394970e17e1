"""Entries of Megatron's index cache: their files, our sidecar beside them, and their condition.

Megatron uses an entry if its files exist. Here an entry is *fresh* only if all files are there, are what
was written, and were built from the dataset as it is now.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np

from tokshard.core.codec import Document, Key, Tool
from tokshard.dataset.fingerprint import DatasetFingerprint
from tokshard.dataset.source import InputFile
from tokshard.dataset.tokenizer_agreement import DatasetTokenizer, TokenizerMismatch
from tokshard.errors import InputError, IntegrityError, TokshardError
from tokshard.gpt_index.arrays import sample_index_dtype, shuffle_index_dtype
from tokshard.gpt_index.splits import SPLITS
from tokshard.index_cache.description import (
    BlendedDescription,
    Description,
    GPTDatasetDescription,
    read_description,
)
from tokshard.index_cache.npy import ArraySpec, map_npy, read_spec
from tokshard.storage.digest import FileRecord, file_digest
from tokshard.storage.files import write_atomically
from tokshard.storage.small_files import read_document

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokshard.gpt_index.epochs import EpochPlan

GPT_ARRAYS = ("document_index", "sample_index", "shuffle_index")
BLEND_ARRAYS = ("dataset_index", "dataset_sample_index")

_STEM = re.compile(
    rf"([0-9a-f]{{32}})-({GPTDatasetDescription.CLASS}|{BlendedDescription.CLASS})-({'|'.join(SPLITS)})"
)

Condition = Literal["fresh", "stale", "damaged", "foreign", "missing", "complete"]
Specs = Mapping[str, ArraySpec]


def default_directory(path_prefix: str) -> str:
    """Return the directory of a dataset's indexes without ``--data-cache-path``, Megatron's default.

    Example:
        >>> default_directory("data/web")
        'data/web/cache/GPTDataset_indices'
    """
    return os.path.join(path_prefix, "cache", f"{GPTDatasetDescription.CLASS}_indices")


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexOrigin:
    """The data and options that a dataset's index was built from, beyond its description."""

    dataset: Annotated[DatasetFingerprint, Key("dataset", "Fingerprint of the dataset.")]
    extra_token: Annotated[
        bool, Key("add_extra_token_to_sequence", "Megatron's option; samples have one more token.")
    ]
    drop_last_partial: Annotated[
        bool, Key("drop_last_partial_sequence", "Whether tokens that do not fill a sample were dropped.")
    ]
    sequences: Annotated[int, Key("sequences", "Sequences of the split.", minimum=0)]
    tokens_per_epoch: Annotated[int, Key("tokens_per_epoch", "Tokens of these sequences.", minimum=0)]
    epochs: Annotated[int, Key("epochs", "Times that each sequence is read.", minimum=1)]
    samples: Annotated[int, Key("samples", "Samples of all epochs.", minimum=0)]
    samples_before_final_epoch: Annotated[
        int, Key("samples_before_final_epoch", "Samples that end before the last epoch.", minimum=0)
    ]
    tokenizer: Annotated[
        DatasetTokenizer | None,
        Key("tokenizer", "Tokenizer of the dataset; absent in files of earlier versions.", omit_none=True),
    ] = None

    @classmethod
    def of(cls, dataset: DatasetFingerprint, plan: EpochPlan, tokenizer: DatasetTokenizer) -> Self:
        """Return the origin of an index that is built from a dataset by a plan."""
        return cls(
            dataset=dataset,
            extra_token=plan.extra_token,
            drop_last_partial=plan.drop_last_partial,
            sequences=plan.sequences,
            tokens_per_epoch=plan.tokens_per_epoch,
            epochs=plan.epochs,
            samples=plan.samples,
            samples_before_final_epoch=plan.samples_before_final,
            tokenizer=tokenizer,
        )

    def difference_from(self, earlier: IndexOrigin) -> str | None:
        """Return the difference of an entry with another origin, None if its content would be the same."""
        if changes := self.dataset.changes_since(earlier.dataset):
            return f"was built from other content of the dataset: {', '.join(changes)}"
        for option, then, now in (
            ("add_extra_token_to_sequence", earlier.extra_token, self.extra_token),
            ("drop_last_partial_sequence", earlier.drop_last_partial, self.drop_last_partial),
        ):
            if then != now:
                return f"was built with {option}={then} instead of {option}={now}"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sidecar(Document):
    """The sidecar file next to Megatron's files: the origin of the arrays and their digests."""

    SCHEMA = "tokshard.cache/1"

    tool: Annotated[Tool, Key("tool", "The program that wrote or verified the arrays.")] = field(
        default_factory=Tool
    )
    description_md5: Annotated[
        str, Key("description_md5", "The hash in the names of the files.", pattern="[0-9a-f]{32}")
    ]
    origin: Annotated[
        IndexOrigin | None,
        Key("origin", "What the arrays were built from; null for a blend, which its description determines."),
    ]
    files: Annotated[dict[str, FileRecord], Key("files", "The arrays by file name: document_index.npy, ...")]
    tokenizer_mismatches: Annotated[
        tuple[TokenizerMismatch, ...] | None,
        Key(
            "tokenizer_mismatches",
            "Mismatches of the tokenizer with other datasets or the job that were allowed.",
            omit_none=True,
        ),
    ] = None

    def write(self, path: str) -> None:
        """Write the file, atomically."""
        write_atomically(path, self.to_bytes())

    @classmethod
    def read(cls, path: str) -> Self | None:
        """Read the file; None if there is none.

        Raises:
            IntegrityError: It is damaged, or of another version.
        """
        try:
            return read_document(cls, path)
        except (FileNotFoundError, NotADirectoryError):
            return None


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """The files of one dataset's index or of one blend, of which any may be missing.

    Attributes:
        directory: The directory of the cache.
        stem: The beginning of the names of the files: ``{hash}-{class}-{split}``.

    Example:
        >>> entry = CacheEntry("cache", "61e66eba24ecf1e3a05a5763f02d4881-GPTDataset-valid")
        >>> entry.array_path("shuffle_index")
        'cache/61e66eba24ecf1e3a05a5763f02d4881-GPTDataset-valid-shuffle_index.npy'
    """

    directory: str
    stem: str

    @classmethod
    def of(cls, description: Description, directory: str) -> Self:
        """Return the entry that a description names."""
        return cls(directory, f"{description.hash()}-{description.CLASS}-{description.split_name}")

    @classmethod
    def of_file(cls, path: str) -> Self | None:
        """Return the entry that a file belongs to by its name, None if it belongs to none.

        Example:
            >>> CacheEntry.of_file("cache/notes.txt") is None
            True
        """
        directory, name = os.path.split(path)
        found = _STEM.match(name)
        return cls(directory, found[0]) if found and name.startswith(f"{found[0]}-") else None

    @property
    def hash(self) -> str:
        """The MD5 of the description."""
        return self.stem.split("-")[0]

    @property
    def is_blend(self) -> bool:
        """True if it is the order of a blend."""
        return self.stem.split("-")[1] == BlendedDescription.CLASS

    @property
    def split(self) -> str:
        """``"train"``, ``"valid"`` or ``"test"``."""
        return self.stem.split("-")[2]

    @property
    def arrays(self) -> tuple[str, ...]:
        """The names of the arrays, in Megatron's order."""
        return BLEND_ARRAYS if self.is_blend else GPT_ARRAYS

    @property
    def description_path(self) -> str:
        """The description; it is written last."""
        return self._path("description.txt")

    @property
    def sidecar_path(self) -> str:
        """Our own file, which Megatron does not look at."""
        return self._path("tokshard.json")

    @property
    def lock_path(self) -> str:
        """The file that is locked while the entry is written."""
        return self._path("tokshard.lock")

    @property
    def megatron_files(self) -> tuple[str, ...]:
        """The files that must exist for Megatron to build nothing."""
        return (self.description_path, *(self.array_path(name) for name in self.arrays))

    def array_path(self, name: str) -> str:
        """Return the path of one of :attr:`arrays`."""
        return self._path(f"{name}.npy")

    def allowed_mismatches(self) -> tuple[TokenizerMismatch, ...]:
        """Return the mismatches of tokenizers that its sidecar, if it is readable, records as allowed."""
        sidecar = self.readable_sidecar()
        return () if sidecar is None else sidecar.tokenizer_mismatches or ()

    def readable_sidecar(self) -> Sidecar | None:
        """Return its sidecar; None if there is none that can be read."""
        try:
            return Sidecar.read(self.sidecar_path)
        except TokshardError:
            return None

    def load(self) -> dict[str, NDArray[Any]]:
        """Map the arrays, read-only. Their structure is checked, their content is not.

        Raises:
            IntegrityError: A file is no whole ``.npy`` file.
            StorageError: A file is missing or cannot be read.
        """
        return {name: map_npy(self.array_path(name)) for name in self.arrays}

    def _path(self, suffix: str) -> str:
        return os.path.join(self.directory, f"{self.stem}-{suffix}")


def gpt_specs(plan: EpochPlan) -> dict[str, ArraySpec]:
    """Return dtype and shape of the arrays of a dataset's index, as Megatron chooses them."""
    return {
        "document_index": ArraySpec(np.dtype(np.int32), (plan.documents,)),
        "sample_index": ArraySpec(np.dtype(sample_index_dtype(plan.documents)), (plan.samples + 1, 2)),
        "shuffle_index": ArraySpec(np.dtype(shuffle_index_dtype(plan.samples)), (plan.samples,)),
    }


def blend_specs(description: BlendedDescription) -> dict[str, ArraySpec]:
    """Return dtype and shape of the arrays of a blend."""
    size = int(sum(description.weights)) if description.size is None else description.size
    return {
        "dataset_index": ArraySpec(np.dtype(np.int16), (size,)),
        "dataset_sample_index": ArraySpec(np.dtype(np.int64), (size,)),
    }


@dataclass(frozen=True, slots=True)
class EntryProblem:
    """One thing that is wrong with an entry.

    Attributes:
        kind: What is wrong. ``"stale"``: it was built from other data or with other options. The others are
            damage: to the ``"description"``, the ``"name"`` (the hash is of another description), an
            ``"array"`` (no whole file), its ``"shape"``, the ``"sidecar"``, or the ``"digest"`` of an array.
        message: A sentence; for ``"stale"`` the rest of one that begins with the entry.
    """

    kind: Literal["description", "name", "array", "shape", "sidecar", "digest", "stale"]
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
        ``"foreign"``: Megatron's own, of the right shapes, of which nothing else is known. ``"fresh"``:
        complete, as written, and built from the dataset as it is now. ``"complete"``: whole, but not
        compared with what it should be.
        """
        if self.missing or self.replaced:
            return "missing"
        kinds = {problem.kind for problem in self.problems}
        if kinds - {"stale"}:
            return "damaged"
        if kinds:
            return "stale"
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
            if condition == "damaged" and problem.kind != "stale":
                return f"is damaged: {problem.message}"
            if condition == "stale":
                return problem.message
        return {
            "fresh": "is complete and built from the current dataset",
            "foreign": "was not built by tokshard: its content is unverified",
            "complete": "is complete",
        }[condition]


@dataclass(frozen=True, slots=True)
class EntryContent:
    """The content that an entry should have.

    Attributes:
        specs: The dtypes and shapes that follow from the dataset as it is now, and the description.
        origin: What a dataset's index is built from; None for a blend.
    """

    specs: Specs
    origin: IndexOrigin | None

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
        description = InputFile(path) if os.path.isfile(path) else None
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
        self._missing = tuple(path for path in entry.megatron_files if not os.path.isfile(path))

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
            self._find("sidecar", path, error.message)
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
            wanted = blend_specs(description)
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
