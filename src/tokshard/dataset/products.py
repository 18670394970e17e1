"""Products by the names of their files: dataset, tokenizer, cache, index, blend, plan, rank, export.

Only names decide, never contents: readers of the files check the contents.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from typing import Final, Literal

from tokshard.errors import InputError, UsageError
from tokshard.storage import fs, paths
from tokshard.storage.paths import is_remote

Kind = Literal["dataset", "tokenizer", "cache", "index", "blend", "plan", "rank", "export"]

BLEND_NAME: Final = "blend.json"
"""The file of a blend."""

PLAN_NAME: Final = "plan.json"
"""The file of a shard plan, which its ranks' manifests belong to."""

RANK_NAME: Final = re.compile(r"rank-([0-9]{5,9})\.json")
"""The names of the manifests of ranks."""

EXPORT_DIRECTORY: Final = ".tokshard"
"""The directory in an export with its manifest."""

EXPORT_NAME: Final = "export.json"
"""The manifest of an export in this directory; it is written last."""

TOKENIZER_NAME: Final = "tokenizer.json"
VOCABULARY_NAME, MERGES_NAME = "vocab.json", "merges.txt"
FOR_TRANSFORMERS: Final = ("vocab.txt", "spiece.model", "sentencepiece.bpe.model", "source.spm")
"""Vocabularies that only classes of transformers read."""

TOKENIZER_FILES: Final = (TOKENIZER_NAME, VOCABULARY_NAME, "tokenizer.model", *FOR_TRANSFORMERS)
"""The definitions that the directory of a tokenizer can have; the first that exists is used."""

CACHE_FILE: Final = re.compile(
    r"(([0-9a-f]{32})-(?:GPTDataset|BlendedDataset)-(?:train|valid|test))-(.+)", re.ASCII
)
"""The names of a cache's files: the stem of the entry with its hash, and the file's own part."""

CACHE_LOCK: Final = "tokshard.lock"
"""The own part of the name of the file that is locked while an entry is written; no file of the entry."""

DESCRIPTION_SUFFIX: Final = "-description.txt"
"""The end of the names of the files that describe the entries of an index cache."""

BUILT_AGAIN: Final[dict[Kind, str]] = {
    "blend": "tokshard blend again with --rebuild --force",
    "plan": "tokshard shard-plan again with --force",
}
"""The commands that build a product again whose files have changed, by its kind."""

MOVED_HINT: Final = (
    "if the data has moved, pass --moved OLD=NEW (inspect, trace, replan) or roots={OLD: NEW} (Python)"
)
"""The hint about a file that is not where such a product says."""

_DOCUMENTS: dict[str, Kind] = {PLAN_NAME: "plan", BLEND_NAME: "blend", TOKENIZER_NAME: "tokenizer"}
_HASH = re.compile(r"[0-9a-f]{32}")
_HINT = (
    "pass the path prefix of a dataset (without .bin or .idx), an index cache or one of its files, a blend, "
    "a plan, or a tokenizer.json"
)
_SAMPLED: dict[Kind | None, str] = {
    "blend": "a blend",
    "plan": "a plan",
    "cache": "an index cache",
    "index": "an index cache",
}
_SHOWN_PREFIXES = 5


def kind_of(path: str) -> Kind | None:
    """Return the kind of product that a path names; None if it names none.

    A directory with the files of several products is the first of plan, blend, tokenizer, export and cache.

    Args:
        path: A path; a hash in the directory of a cache names the index, ``cache/61e6...99``. Or the URL of
            a dataset, of a file or of a tokenizer.

    Raises:
        StorageError: A store does not respond.
    """
    if path.startswith("hf:") and not is_remote(path):
        return "tokenizer"
    prefix = paths.strip_data_suffix(path)
    if fs.lexists(paths.idx_path(prefix)) or fs.lexists(paths.bin_path(prefix)):
        return "dataset"
    if not is_remote(path) and os.path.isdir(path):
        return next(_kinds_in(path), None)
    if description_of(path) is not None:
        return "index"
    if not fs.isfile(path):
        return None
    name = os.path.basename(path)
    return "rank" if RANK_NAME.fullmatch(name) else _DOCUMENTS.get(name, "tokenizer")


def recognize(path: str) -> Kind:
    """Return the kind of product that a path names, strictly.

    Args:
        path: See :func:`kind_of`.

    Raises:
        InputError: It is not a known product.
        UsageError: It is ambiguous, or is the URL of a product that must be local.
        StorageError: A store does not respond.
    """
    kind = kind_of(path)
    if kind is None:
        raise InputError(_problem(path), hint=dataset_hint(path) or _HINT)
    if kind in {"dataset", "index"}:
        return kind
    if is_remote(path) and kind != "tokenizer":
        fs.refuse_remote(path, f"a {kind} must be a local file")
    documents = [name for name in _DOCUMENTS if os.path.isfile(os.path.join(path, name))]
    if len(documents) > 1:
        raise UsageError(
            f"{path} is ambiguous: it holds {' and '.join(documents)}",
            hint=f"pass one of them: {os.path.join(path, documents[0])}",
        )
    return kind


def _problem(path: str) -> str:
    if is_remote(path):
        return f"no dataset or object found: {path}"
    if os.path.isdir(path):
        if not os.access(path, os.R_OK):
            return f"cannot list {path}: {os.strerror(errno.EACCES)}"
        return f"cannot read {path}: it is not a dataset, tokenizer, index cache, blend, plan or export"
    if os.path.lexists(path):
        return f"cannot read {path}: it is neither a file nor a directory"
    directory, name = os.path.split(path)
    if _HASH.fullmatch(name) and os.path.isdir(directory or "."):
        return f"index {name} not found in {directory or 'this directory'}"
    return f"no dataset or file found: {path}"


def rank_name(rank: int) -> str:
    """Return the name of a rank's manifest.

    Example:
        >>> rank_name(7)
        'rank-00007.json'
    """
    return f"rank-{rank:05d}.json"


def is_export(directory: str) -> bool:
    """Return whether a directory holds an export."""
    return fs.isfile(os.path.join(directory, EXPORT_DIRECTORY, EXPORT_NAME))


def _kinds_in(directory: str) -> Iterator[Kind]:
    names = _names_in(directory)
    yield from (kind for name, kind in _DOCUMENTS.items() if os.path.isfile(os.path.join(directory, name)))
    if is_export(directory):
        yield "export"
    if any(map(_cache_file, names)):
        yield "cache"
    if any(name in names and (name != VOCABULARY_NAME or MERGES_NAME in names) for name in TOKENIZER_FILES):
        yield "tokenizer"


def _cache_file(name: str) -> re.Match[str] | None:
    found = CACHE_FILE.fullmatch(name)
    return found if found and found[3] != CACHE_LOCK else None


def description_of(path: str) -> str | None:
    """Return the path of the description of the index that an existing file or a hash names.

    The description need not exist. None if the path names no index.
    """
    directory, name = os.path.split(path)
    if is_remote(path):
        return None
    if (found := _cache_file(name)) and os.path.isfile(path):
        return os.path.join(directory, found[1] + DESCRIPTION_SUFFIX)
    if _HASH.fullmatch(name):
        matches = filter(None, map(_cache_file, _names_in(directory or ".")))
        stems = sorted({found[1] for found in matches if found[2] == name})
        return os.path.join(directory, stems[0] + DESCRIPTION_SUFFIX) if stems else None
    return None


def sampled_kind(path: str) -> str | None:
    """Return the kind of product that a directory or file is, if it has samples, with its article."""
    return _SAMPLED.get(kind_of(path))


def dataset_hint(path: str) -> str | None:
    """Return the hint for a path that should be the prefix of a dataset; None if nothing is known of it."""
    if (kind := sampled_kind(path)) is not None:
        return f"pass the path prefix of a dataset: {path} is {kind}"
    from tokshard.core.formatting import listed  # the loader needs neither
    from tokshard.dataset.directories import datasets_in

    if prefixes := datasets_in(path)[1]:
        return f"pass the path prefix of a dataset in this directory: {listed(prefixes, _SHOWN_PREFIXES)}"
    return None


def _names_in(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []
