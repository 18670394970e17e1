"""Our own file beside Megatron's: what the arrays of a cache were made from, and their digests.

``{hash}-{class}-{split}-tokshard.json``, which Megatron never looks at. The fields are described in
``docs/formats/index-cache.md``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

from tokshard.core.strict_json import dump_json
from tokshard.errors import IntegrityError
from tokshard.storage.files import write_atomically
from tokshard.storage.small_files import read_json_object
from tokshard.version import __version__

SCHEMA = "tokshard.cache/1"


@dataclass(frozen=True, slots=True)
class Origin:
    """What arrays depend on and their description does not tell.

    Attributes:
        dataset: The fingerprint of the dataset; empty for a blend, which follows from its description.
        options: The options that Megatron leaves out of the hash, by their names in Megatron.
        counts: Sequences, tokens, epochs, samples and the like, for those who look at the cache.
    """

    dataset: dict[str, Any]
    options: dict[str, bool]
    counts: dict[str, int]


@dataclass(frozen=True, slots=True)
class Sidecar:
    """The content of the file; every attribute is plain JSON.

    Attributes:
        schema: ``"tokshard.cache/1"``.
        tool: Name and version of the program that wrote or verified the arrays.
        description_md5: The hash in the names of the files.
        dataset: See :class:`Origin`.
        options: See :class:`Origin`.
        counts: See :class:`Origin`.
        files: ``bytes`` and ``xxh3_128`` of each array, by names as ``"document_index.npy"``.
    """

    schema: str
    tool: dict[str, Any]
    description_md5: str
    dataset: dict[str, Any]
    options: dict[str, Any]
    counts: dict[str, Any]
    files: dict[str, Any]

    @classmethod
    def make(cls, description_md5: str, origin: Origin, files: dict[str, Any]) -> Self:
        """Return the sidecar of files that this program has just written or verified."""
        return cls(
            schema=SCHEMA,
            tool={"name": "tokshard", "version": __version__},
            description_md5=description_md5,
            dataset=origin.dataset,
            options=dict(origin.options),
            counts=dict(origin.counts),
            files=files,
        )

    def write(self, path: str) -> None:
        """Write the file, atomically."""
        write_atomically(path, dump_json({field.name: getattr(self, field.name) for field in fields(self)}))

    @classmethod
    def read(cls, path: str) -> Self | None:
        """Read and check the file; None if there is none.

        Raises:
            IntegrityError: It is damaged, or of another version.
        """
        try:
            value = read_json_object(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if value.get("schema") != SCHEMA:
            raise IntegrityError(
                f"{path} has the schema {value.get('schema')!r}, this version of tokshard reads {SCHEMA!r}",
                path=path,
                field="schema",
            )
        expected = {field.name: str if field.type == "str" else dict for field in fields(cls)}
        for name in sorted(expected.keys() ^ value.keys()):
            problem = "lacks the field" if name in expected else "has the unknown field"
            raise IntegrityError(f"{path} {problem} {name!r}", path=path, field=name)
        for name, kind in expected.items():
            if not isinstance(value[name], kind):
                raise IntegrityError(f"{path}: {name} is not a {kind.__name__}", path=path, field=name)
        for name, entry in value["files"].items():
            if not isinstance(entry, dict) or entry.keys() != {"bytes", "xxh3_128"}:
                raise IntegrityError(f"{path}: files.{name} is {entry!r}", path=path, field=f"files.{name}")
        return cls(**value)
