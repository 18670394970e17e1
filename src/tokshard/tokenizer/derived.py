"""The cache of what is derived from definitions of tokenizers, in tokshard's cache directory.

A definition with 150,000 tokens takes 0.3 s to parse and as long to examine. A file of the cache contains a
header, a line of JSON, and content. It is named by its subject, so a newer result replaces an older one,
and its header names all that it depends on, so it is used only while nothing of that has changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from tokshard.errors import UsageError
from tokshard.storage.cache_files import read_cached, write_cached
from tokshard.storage.paths import user_cache_directory
from tokshard.version import __version__

MIN_DEFINITION_BYTES: Final = 1 << 20
"""Definitions smaller than this are parsed faster than it matters."""

_SCHEMA: Final = 1
_DIRECTORY: Final = "definitions"
_LIBRARIES: Final = ("tokenizers", "fastokens", "orjson")


def read_derived(subject: tuple[Any, ...], depends: Any) -> tuple[dict[str, Any], bytes] | None:
    """Return a kept result as its fields and its content.

    Args:
        subject: What it is the result of; see :func:`write_derived`.
        depends: What else it depends on, as JSON.

    Returns:
        The result, or None if there is none that is undamaged, of this version, and of the same ``depends``.
    """
    path = _path(subject)
    kept = None if path is None else read_cached(path)
    if kept is None:
        return None
    line, _, content = kept.partition(b"\n")
    header = json.loads(line)
    if header["subject"] != _text(subject) or header["depends"] != [_made_by(), _text(depends)]:
        return None
    return header["fields"], content


def write_derived(subject: tuple[Any, ...], depends: Any, fields: dict[str, Any], content: bytes) -> None:
    """Keep a result; a cache that cannot be written is no error.

    Args:
        subject: What it is the result of, as JSON: one result is kept for each subject.
        depends: What else it depends on, as JSON.
        fields: The result, as JSON.
        content: A part of the result that is not JSON.
    """
    path = _path(subject)
    if path is not None:
        depends = [_made_by(), _text(depends)]
        header = _text({"subject": _text(subject), "depends": depends, "fields": fields})
        write_cached(path, header.encode() + b"\n" + content)


def _path(subject: tuple[Any, ...]) -> str | None:
    if _made_by() is None:
        return None
    with suppress(UsageError):
        name = hashlib.sha256(_text(subject).encode()).hexdigest()[:32]
        return os.path.join(user_cache_directory(), _DIRECTORY, name)
    return None


def _text(value: Any) -> str:
    # ASCII, with the surrogates of file names that are not UTF-8 as escapes.
    return json.dumps(value)


@cache
def _made_by() -> str | None:
    # The versions of all that makes results: also of modules that are being developed.
    try:
        with os.scandir(os.path.dirname(__file__)) as found:
            files = [(one.name, one.stat()) for one in found if one.name.endswith(".py")]
    except OSError:  # in an archive
        return None
    modules = sorted((name, status.st_size, status.st_mtime_ns) for name, status in files)
    versions = [__version__, sys.version]
    for library in _LIBRARIES:
        with suppress(PackageNotFoundError):
            versions.append(f"{library} {version(library)}")
    made_by = (_SCHEMA, versions, modules)
    return hashlib.sha256(repr(made_by).encode()).hexdigest()
