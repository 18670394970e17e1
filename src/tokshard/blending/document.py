"""``blend.json``: a blend as it was built, with everything that a plan or a loader needs of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from tokshard.blending.certificate import Certificate
from tokshard.errors import IntegrityError, MissingFileError
from tokshard.gpt_index.splits import SPLITS
from tokshard.index_cache.cache import BLEND_ARRAYS, GPT_ARRAYS
from tokshard.storage import syscalls
from tokshard.storage.digest import identity_digest
from tokshard.storage.files import write_atomically
from tokshard.storage.fs import refuse_remote, relative_inside
from tokshard.storage.jsonfile import dump_readable_json, read_json_object
from tokshard.storage.paths import check_plain_name, is_remote
from tokshard.version import __version__

SCHEMA = "tokshard.blend/1"
DOCUMENT_NAME = "blend.json"
KINDS = ("single", "weighted", "proportional", "exhaustive")

_BUILDER_FIELDS = (
    "sequence_length",
    "sizes",
    "split",
    "seed",
    "surplus",
    "old_sizes",
    "extra_token",
    "drop_last_partial",
    "tokenizer",
    "path_as",
)
_SOURCE_FILES = ("description", *GPT_ARRAYS)
_BLEND_FILES = ("description", *BLEND_ARRAYS)


@dataclass(frozen=True, slots=True)
class BlendSource:
    """A source of a split.

    Attributes:
        prefix: The path prefix of the dataset.
        training_path: The path prefix that entered the hash.
        hash: The hash in the names of its index files.
        description: The path of the index's description.
        document_index: The path of its document index.
        sample_index: The path of its sample index.
        shuffle_index: The path of its shuffle index.
        samples: The samples of the index.
        draws: The samples that the split reads: 0 to ``draws - 1``.
        seed: The seed of its shuffles.
        share: The share of the split that was asked for.
        fingerprint: What identified the dataset when the index was built.
    """

    prefix: str
    training_path: str
    hash: str
    description: str
    document_index: str
    sample_index: str
    shuffle_index: str
    samples: int
    draws: int
    seed: int
    share: float
    fingerprint: dict[str, Any]


@dataclass(frozen=True, slots=True)
class BlendSplit:
    """A split, or one of several validation sets.

    Attributes:
        name: ``"train"``, ``"valid"``, ``"test"``, or ``"valid.0"`` and so on.
        split: ``"train"``, ``"valid"`` or ``"test"``.
        kind: ``"single"``: one source and no blend, so sample k is sample k of the source. ``"weighted"``,
            ``"proportional"`` or ``"exhaustive"``: the order is in the two arrays of the blend.
        samples: The samples of the split.
        sources: The sources, in the order of their numbers.
        certificate: What it holds.
        blend_hash: The hash in the names of the blend's files; None for a single source, as all below.
        description: The path of the blend's description.
        dataset_index: The path of the dataset index.
        dataset_sample_index: The path of the dataset sample index.
        weights: The weights in the hash.
        size: The size in the hash, which is None for an exhaustive blend.
    """

    name: str
    split: str
    kind: str
    samples: int
    sources: tuple[BlendSource, ...]
    certificate: Certificate
    blend_hash: str | None = None
    description: str | None = None
    dataset_index: str | None = None
    dataset_sample_index: str | None = None
    weights: tuple[float, ...] | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True)
class BlendDocument:
    """The content of ``blend.json``, with all paths as they can be opened.

    Attributes:
        directory: The directory of the document.
        cache_directory: The directory of the index files, Megatron's ``--data-cache-path``.
        recipe: The recipe as it was given, as JSON.
        resolved: What Megatron is told: weights and size, for all splits or for each, as JSON.
        builder: The builder's parameters, as JSON: ``sequence_length``, ``seed``, ``extra_token``, ...
        splits: The splits that have data, by name.
    """

    directory: str
    cache_directory: str
    recipe: dict[str, Any]
    resolved: list[Any]
    builder: dict[str, Any]
    splits: Mapping[str, BlendSplit]

    @property
    def path(self) -> str:
        """The path of the document."""
        return os.path.join(self.directory, DOCUMENT_NAME)

    @property
    def sequence_length(self) -> int:
        """The tokens of a sample, without the extra one."""
        return int(self.builder["sequence_length"])

    @property
    def seed(self) -> int:
        """The seed of all shuffles whose source has none of its own."""
        return int(self.builder["seed"])

    @property
    def extra_token(self) -> bool:
        """Whether each sample has one token more, so that every token has its next as label."""
        return bool(self.builder["extra_token"])

    @property
    def id(self) -> str:
        """The SHA-256 of what the blend is: all but where it lies, and what was measured."""
        splits = {name: _identity(split) for name, split in self.splits.items()}
        builder = {name: value for name, value in self.builder.items() if name != "path_as"}
        return identity_digest({"builder": builder, "splits": splits})

    def to_json(self) -> dict[str, Any]:
        """Return the document as it is written: paths inside its directory are relative to it."""
        return {
            "schema": SCHEMA,
            "tool": {"name": "tokshard", "version": __version__},
            "id": self.id,
            "recipe": self.recipe,
            "resolved": self.resolved,
            "builder": self.builder,
            "cache_directory": self._stored(self.cache_directory),
            "splits": {name: self._split_json(split) for name, split in self.splits.items()},
        }

    def write(self) -> None:
        """Write the document, atomically.

        Raises:
            UsageError: It is too large to be read back.
            StorageError: The disk is full or broken.
        """
        hint = "merge some of the sources with tokshard merge, or give them shorter paths"
        content = dump_readable_json(self.to_json(), self.path, hint=hint)
        syscalls.make_directory(self.directory)
        write_atomically(self.path, content)

    @classmethod
    def read(cls, path: str) -> Self:
        """Read a document strictly.

        Args:
            path: The document, or its directory.

        Raises:
            UsageError: It is named by a URL.
            MissingFileError: There is none.
            IntegrityError: It is damaged, or of another version.
        """
        refuse_remote(path, "a blend is read from")
        path = os.path.join(path, DOCUMENT_NAME) if os.path.isdir(path) else path
        try:
            value = read_json_object(path)
        except (FileNotFoundError, NotADirectoryError):
            raise MissingFileError(
                f"there is no blend at {path}", path=path, hint="tokshard blend makes one"
            ) from None
        document = cls(**_Reader(path).document(value))
        if document.id != value["id"]:
            raise IntegrityError(
                f"{path}: id does not belong to the rest: the document was changed", path=path, field="id"
            )
        return document

    def _split_json(self, split: BlendSplit) -> dict[str, Any]:
        blend = None
        if split.blend_hash is not None:
            blend = {
                "hash": split.blend_hash,
                "weights": list(split.weights or ()),
                "size": split.size,
                "files": {name: os.path.basename(getattr(split, name)) for name in _BLEND_FILES},
            }
        return {
            "split": split.split,
            "kind": split.kind,
            "samples": split.samples,
            "blend": blend,
            "sources": [self._source_json(source) for source in split.sources],
            "certificate": split.certificate.to_json(),
        }

    def _source_json(self, source: BlendSource) -> dict[str, Any]:
        return {
            "prefix": self._stored(source.prefix),
            "training_path": source.training_path,
            "samples": source.samples,
            "draws": source.draws,
            "share": source.share,
            "seed": source.seed,
            "hash": source.hash,
            "files": {name: os.path.basename(getattr(source, name)) for name in _SOURCE_FILES},
            "fingerprint": source.fingerprint,
        }

    def _stored(self, path: str) -> str:
        return relative_inside(path, self.directory)


def _identity(split: BlendSplit) -> dict[str, Any]:
    sources = [
        {name: getattr(source, name) for name in ("hash", "samples", "draws", "seed", "share", "fingerprint")}
        for source in split.sources
    ]
    names = ("split", "kind", "samples", "blend_hash")
    return {**{name: getattr(split, name) for name in names}, "sources": sources}


class _Reader:
    """Reads a document and knows its name, for errors."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._directory = os.path.dirname(path)

    def document(self, value: dict[str, Any]) -> dict[str, Any]:
        if value.get("schema") != SCHEMA:
            raise self._wrong(
                "schema", f"is {value.get('schema')!r}, this version of tokshard reads {SCHEMA!r}"
            )
        names = ("schema", "tool", "id", "recipe", "resolved", "builder", "cache_directory", "splits")
        self._keys(value, names, "the document")
        for name in ("tool", "recipe", "builder", "splits"):
            self._kind(value, name, dict)
        self._kind(value, "resolved", list)
        self._builder(value["builder"])
        cache = self._opened(self._kind(value, "cache_directory", str))
        splits = {name: self._split(name, entry, cache) for name, entry in value["splits"].items()}
        return {
            "directory": self._directory,
            "cache_directory": cache,
            "recipe": value["recipe"],
            "resolved": value["resolved"],
            "builder": value["builder"],
            "splits": splits,
        }

    def _builder(self, builder: dict[str, Any]) -> None:
        self._keys(builder, _BUILDER_FIELDS, "builder")
        for name in ("sequence_length", "seed"):
            self._count(builder, name)
        if builder["sequence_length"] < 1:
            raise self._wrong("sequence_length", "is 0")
        for name in ("extra_token", "drop_last_partial"):
            self._kind(builder, name, bool)

    def _split(self, name: str, value: Any, cache: str) -> BlendSplit:
        self._keys(value, ("split", "kind", "samples", "blend", "sources", "certificate"), name)
        if value["split"] not in SPLITS or name.partition(".")[0] != value["split"]:
            raise self._wrong(f"splits.{name}.split", f"is {value['split']!r}")
        if value["kind"] not in KINDS or (value["kind"] == "single") != (value["blend"] is None):
            raise self._wrong(f"splits.{name}.kind", f"is {value['kind']!r}, which does not fit")
        entries = self._kind(value, "sources", list)
        split = BlendSplit(
            name=name,
            split=value["split"],
            kind=value["kind"],
            samples=self._count(value, "samples"),
            sources=tuple(self._source(entry, value["split"], cache) for entry in entries),
            certificate=Certificate.from_json(value["certificate"], self._path),
        )
        if sum(source.draws for source in split.sources) != split.samples:
            raise self._wrong(f"splits.{name}.samples", f"is {split.samples}, not the sum of the draws")
        return split if value["blend"] is None else self._with_blend(split, value["blend"], cache)

    def _with_blend(self, split: BlendSplit, value: Any, cache: str) -> BlendSplit:
        self._keys(value, ("hash", "weights", "size", "files"), "a blend")
        weights = self._kind(value, "weights", list)
        if len(weights) != len(split.sources) or not all(type(one) in {int, float} for one in weights):
            raise self._wrong("weights", "are not one number for each source")
        if value["size"] is not None:
            self._count(value, "size")
        return replace(
            split,
            blend_hash=self._hash(value),
            weights=tuple(weights),
            size=value["size"],
            **self._files(value, _BLEND_FILES, f"BlendedDataset-{split.split}", cache),
        )

    def _source(self, value: Any, split: str, cache: str) -> BlendSource:
        texts = ("prefix", "training_path")
        names = ("samples", "draws", "share", "seed", "hash", "files", "fingerprint")
        self._keys(value, (*texts, *names), "a source")
        for name in texts:
            self._kind(value, name, str)
        if type(value["share"]) not in {int, float}:
            raise self._wrong("share", f"is {value['share']!r}")
        return BlendSource(
            prefix=self._opened(value["prefix"]),
            training_path=value["training_path"],
            hash=self._hash(value),
            share=value["share"],
            fingerprint=self._kind(value, "fingerprint", dict),
            samples=self._count(value, "samples"),
            draws=self._count(value, "draws"),
            seed=self._count(value, "seed"),
            **self._files(value, _SOURCE_FILES, f"GPTDataset-{split}", cache),
        )

    def _files(self, value: dict[str, Any], names: tuple[str, ...], stem: str, cache: str) -> dict[str, Any]:
        files = self._kind(value, "files", dict)
        self._keys(files, names, "files")
        for name in names:
            suffix = "txt" if name == "description" else "npy"
            if files[name] != f"{value['hash']}-{stem}-{name}.{suffix}":
                raise self._wrong(f"files.{name}", f"is {files[name]!r}, which is not the name of that file")
        return {name: os.path.join(cache, check_plain_name(files[name], self._path)) for name in names}

    def _hash(self, value: dict[str, Any]) -> str:
        text = self._kind(value, "hash", str)
        if len(text) != 32 or not set(text) <= set("0123456789abcdef"):
            raise self._wrong("hash", f"is {text!r}")
        return str(text)

    def _opened(self, stored: str) -> str:
        if "\0" in stored:
            raise self._wrong("prefix", "holds a NUL character")
        return stored if is_remote(stored) else os.path.normpath(os.path.join(self._directory, stored))

    def _keys(self, value: Any, names: tuple[str, ...], what: str) -> None:
        if not isinstance(value, dict):
            raise self._wrong(what, "is no object")
        for name in sorted(value.keys() ^ set(names)):
            problem = "lacks the field" if name in names else "has the unknown field"
            raise self._wrong(what, f"{problem} {name!r}")

    def _kind(self, value: dict[str, Any], name: str, kind: type) -> Any:
        if type(value.get(name)) is not kind:
            raise self._wrong(name, f"is {value.get(name)!r}, not of the kind {kind.__name__}")
        return value[name]

    def _count(self, value: dict[str, Any], name: str) -> int:
        if self._kind(value, name, int) < 0:
            raise self._wrong(name, f"is {value[name]}")
        return int(value[name])

    def _wrong(self, field: str, problem: str) -> IntegrityError:
        return IntegrityError(f"{self._path}: {field} {problem}", path=self._path, field=field)
