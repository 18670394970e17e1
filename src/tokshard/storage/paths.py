"""Paths and file names: files of a dataset, plain names, URLs and glob patterns."""

from __future__ import annotations

import os
import re

from tokshard.errors import IntegrityError, UsageError

BIN_SUFFIX = ".bin"
IDX_SUFFIX = ".idx"
SIDECAR_SUFFIX = ".tokshard"
_SHOWN = 80
GLOB_CHARACTERS = re.compile(r"[*?\[]")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*(?:::[A-Za-z][A-Za-z0-9+.-]*)*)://", re.DOTALL)
_LOCAL_SCHEMES = frozenset({"file", "local"})


def scheme_of(path: str) -> str | None:
    """Return the scheme of a URL, or None for a path.

    Example:
        >>> scheme_of("s3://bucket/web.jsonl"), scheme_of("data/web.jsonl")
        ('s3', None)
    """
    found = _URL.match(path)
    return found[1] if found else None


def is_remote(path: str) -> bool:
    """Return whether a path is the URL of an object in a store.

    Example:
        >>> is_remote("s3://bucket/web.jsonl"), is_remote("web.jsonl"), is_remote("file:///web.jsonl")
        (True, False, False)
    """
    scheme = scheme_of(path)
    return scheme is not None and scheme not in _LOCAL_SCHEMES


def bin_path(path_prefix: str) -> str:
    """Return the path of the ``.bin`` file of a dataset."""
    return path_prefix + BIN_SUFFIX


def idx_path(path_prefix: str) -> str:
    """Return the path of the ``.idx`` file of a dataset."""
    return path_prefix + IDX_SUFFIX


def sidecar_directory(path_prefix: str) -> str:
    """Return the directory of the manifest and provenance of a dataset."""
    return path_prefix + SIDECAR_SUFFIX


def strip_data_suffix(path: str) -> str:
    """Return the path prefix, given the prefix or one of the dataset's files.

    Example:
        >>> strip_data_suffix("data/web.idx"), strip_data_suffix("web.tokshard/")
        ('data/web', 'web')
    """
    trimmed = path.rstrip("/") or path
    for suffix in (BIN_SUFFIX, IDX_SUFFIX, SIDECAR_SUFFIX):
        if trimmed.endswith(suffix) and len(os.path.basename(trimmed)) > len(suffix):
            return trimmed[: -len(suffix)]
    return path


def check_output_prefix(output: str) -> str:
    """Return the value of ``--output`` if it is a valid path prefix.

    Raises:
        UsageError: It is a directory or a single file.
    """
    if not os.path.basename(output) or os.path.basename(output) in {".", ".."} or "\0" in output:
        raise UsageError(
            f"--output must be a path prefix, got the directory {output!r}",
            hint=f"pass a name in that directory, for example --output {os.path.join(output, 'corpus')}",
        )
    for suffix in (".bin", ".idx"):
        if output.endswith(suffix):
            raise UsageError(
                f"--output must be a path prefix without {suffix}, got {output!r}",
                hint=f"pass --output {output.removesuffix(suffix)}",
            )
    return output


def is_glob(argument: str) -> bool:
    """Return whether an argument is a glob pattern and not the name of an existing file."""
    return GLOB_CHARACTERS.search(argument) is not None and not os.path.lexists(argument)


def natural_key(path: str) -> tuple[list[list[str | int]], str]:
    """Return a sort key that compares paths part by part and numbers in them by value.

    Example:
        >>> sorted(["a/part-10", "a/part-2", "a"], key=natural_key)
        ['a', 'a/part-2', 'a/part-10']
    """
    parts: list[list[str | int]] = [
        [int(piece) if place % 2 else piece for place, piece in enumerate(re.split(r"([0-9]+)", part))]
        for part in path.split("/")
    ]
    return parts, path


def check_plain_name(name: str, source: str) -> str:
    """Return ``name`` if it is a plain file name inside its directory.

    A file named by one of our files must be stored beside it: no separators, no parent, no drive, no home
    directory, and no invisible characters (control and format characters, surrogates).

    Raises:
        IntegrityError: The name could refer to another directory.
    """
    forbidden = (
        not name
        or name in {".", ".."}
        or name.startswith("~")
        or not name.isprintable()
        or any(character in '/\\:*?"<>|' for character in name)
        or len(os.fsencode(name)) > 255
    )
    if forbidden:
        raise IntegrityError(
            f"{source}: file names must have no directories or invisible characters, got {name[:_SHOWN]!r}",
            path=source,
        )
    return name


def user_cache_directory() -> str:
    """Return tokshard's cache directory.

    It is ``TOKSHARD_CACHE_DIR``, or ``tokshard`` in ``XDG_CACHE_HOME`` or in ``~/.cache``.

    Raises:
        UsageError: None of these is set.
    """
    own = os.environ.get("TOKSHARD_CACHE_DIR", "")
    if own:
        return os.path.abspath(own)
    shared = os.environ.get("XDG_CACHE_HOME", "")
    root = shared if os.path.isabs(shared) else os.path.expanduser("~/.cache")
    if not os.path.isabs(root):
        raise UsageError(
            "cannot cache remote files: TOKSHARD_CACHE_DIR, XDG_CACHE_HOME and HOME are not set",
            hint="set TOKSHARD_CACHE_DIR to a directory on a local disk",
        )
    return os.path.join(root, "tokshard")
