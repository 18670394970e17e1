"""The formats of inputs, and the names that follow from the list."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import import_module

from tokshard.errors import EXTRA_PACKAGES, MissingExtraError
from tokshard.text.corpus.compressed import COMPRESSION_SUFFIXES
from tokshard.text.corpus.record_format import RecordFormat
from tokshard.text.corpus.records import JSON_LINES
from tokshard.text.corpus.tables import ARROW, PARQUET

FORMATS: tuple[RecordFormat, ...] = (JSON_LINES, PARQUET, ARROW)
"""The formats of inputs; the first is that of text without another one's suffix.

Another one is added here, and to the names in manifests (:data:`tokshard.dataset.parameters.TextFormat`).
"""


def _either(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


TITLES = _either([known.title for known in FORMATS])
"""The formats, for messages: ``JSON lines, Parquet or Arrow``."""

KINDS = _either([f"{known.title} (also compressed)" if known.has_lines else known.title for known in FORMATS])
"""The formats, for hints: ``JSON lines (also compressed), Parquet or Arrow``."""

LINE_SUFFIXES = [suffix for known in FORMATS if known.has_lines for suffix in known.suffixes]
_TABLE_SUFFIXES = [suffix for known in FORMATS if not known.has_lines for suffix in known.suffixes]

PACKED = f"({'|'.join(map(re.escape, COMPRESSION_SUFFIXES))})?$"
"""Pattern of the end of a name with or without the suffix of a compression."""

DATA_NAME = re.compile(
    f"({'|'.join(map(re.escape, LINE_SUFFIXES + _TABLE_SUFFIXES))}){PACKED}", re.IGNORECASE
)
"""Pattern of the names of inputs in directories."""

NAME_WITH_HEADER = re.compile(
    f"({'|'.join(map(re.escape, [*COMPRESSION_SUFFIXES, *_TABLE_SUFFIXES]))})$", re.IGNORECASE
)
"""Pattern of the names of files that begin with a header, so that they cannot be empty."""

HINT_NAMES = (
    f"name the files {_either(LINE_SUFFIXES + _TABLE_SUFFIXES)} (also with {_either(COMPRESSION_SUFFIXES)}), "
    "or pass them one by one or as a glob"
)


def format_named(name: str) -> RecordFormat:
    """Return a format of inputs by its name in manifests."""
    return next(known for known in FORMATS if known.name == name)


def format_to_read(name: str) -> RecordFormat:
    """Return a format by its name; raise MissingExtraError if a package that it needs is not installed."""
    known = format_named(name)
    try:
        for package in EXTRA_PACKAGES[known.extra] if known.extra else ():
            import_module(package)
    except ImportError as error:
        raise MissingExtraError(f"{known.title} input", str(known.extra)) from error
    return known


def has_lines(name: str) -> bool:
    """Return whether the records of a format are lines; False for the formats of tokens."""
    return any(known.has_lines for known in FORMATS if known.name == name)


def format_of(head: bytes, path: str = "") -> RecordFormat:
    """Return the format of a file by its first bytes, or of text by its name."""
    for known in FORMATS:
        if known.magic is not None and known.magic.match(head):
            return known
    name = re.sub(PACKED, "", path.lower())
    texts = (known for known in FORMATS if known.magic is None)
    return next((known for known in texts if name.endswith(known.suffixes)), FORMATS[0])
