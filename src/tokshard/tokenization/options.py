"""The options of a tokenize run, checked before anything is imported or opened."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tokshard.errors import UsageError
from tokshard.storage.paths import check_output_prefix

EngineChoice = Literal["auto", "reference", "fast"]
DtypeChoice = Literal["auto", "uint16", "int32"]
ErrorChoice = Literal["fail", "skip"]

DEFAULT_UNIT_BYTES = 16 << 20
DEFAULT_MAX_DOCUMENT_BYTES = 64_000_000
MIN_UNIT_BYTES = 1


@dataclass(frozen=True, slots=True)
class TokenizeOptions:
    """What :func:`tokshard.tokenize_corpus` can be asked for; see there for the meaning of each.

    Raises:
        UsageError: A value cannot be meant.
    """

    tokenizer: str | None = None
    eod: str | None = None
    append_eod: bool = True
    special_tokens: bool = False
    fields: tuple[str, ...] = ("text",)
    name_by_field: bool = False
    workers: int | None = None
    engine: EngineChoice = "auto"
    dtype: DtypeChoice = "auto"
    on_error: ErrorChoice = "fail"
    max_errors: int | None = None
    max_document_bytes: int = DEFAULT_MAX_DOCUMENT_BYTES
    unit_bytes: int = DEFAULT_UNIT_BYTES
    provenance: bool = True
    resume: bool = True
    force: bool = False
    staging: str | None = None
    keep_staging: bool = False

    def __post_init__(self) -> None:
        _check_choice("engine", self.engine, ("auto", "reference", "fast"))
        _check_choice("dtype", self.dtype, ("auto", "uint16", "int32"))
        _check_choice("on-error", self.on_error, ("fail", "skip"))
        _check_at_least("workers", self.workers, 1)
        _check_at_least("max-errors", self.max_errors, 0)
        _check_at_least("max-document-bytes", self.max_document_bytes, 1)
        _check_at_least("unit-size", self.unit_bytes, MIN_UNIT_BYTES)
        if self.max_errors is not None and self.on_error != "skip":
            raise UsageError("--max-errors has a meaning only with --on-error skip")
        if not self.fields or "" in self.fields:
            raise UsageError("--field needs the name of a field")
        if len(set(self.fields)) != len(self.fields):
            raise UsageError(f"--field names a field twice: {', '.join(self.fields)}")
        if self.field_names_in_output and any("/" in field or "\0" in field for field in self.fields):
            raise UsageError("the name of a field becomes part of a file name and cannot hold a slash")

    @property
    def field_names_in_output(self) -> bool:
        """Whether the outputs are named ``PREFIX_<field>_document`` instead of ``PREFIX``."""
        return self.name_by_field or len(self.fields) > 1

    def output_prefixes(self, prefix: str) -> tuple[str, ...]:
        """Return the path prefix of each field's dataset.

        Example:
            >>> TokenizeOptions(fields=("text", "title")).output_prefixes("out/web")
            ('out/web_text_document', 'out/web_title_document')
        """
        if not self.field_names_in_output:
            return (prefix,)
        return tuple(f"{prefix}_{field}_document" for field in self.fields)


def output_prefix(inputs: Sequence[str], output: str | None) -> str:
    """Return the prefix to write to: as given, or made of the name of the only input.

    Raises:
        UsageError: It is not given, and there is not exactly one named input; or it names no file.

    Example:
        >>> output_prefix(["data/corpus.jsonl.gz"], None)
        'corpus'
    """
    if output is None:
        if len(inputs) != 1 or inputs[0] == "-" or inputs[0].startswith("@") or os.path.isdir(inputs[0]):
            raise UsageError(
                "several inputs, lists, directories and stdin have no name to give to the output",
                hint="pass --output PREFIX",
            )
        name = os.path.basename(inputs[0])
        stem = name.split(".", 1)[0] if not name.startswith(".") else ""
        if not stem or any(character in stem for character in "*?["):
            raise UsageError(f"no output name can be made of {inputs[0]!r}", hint="pass --output PREFIX")
        return stem
    return check_output_prefix(output)


def _check_choice(option: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UsageError(f"--{option} {value!r} is none of {', '.join(choices)}")


def _check_at_least(option: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise UsageError(f"--{option} {value} is less than {least}")
