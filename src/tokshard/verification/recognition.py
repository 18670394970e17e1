"""Recognition of the product that a path names: dataset, tokenizer, cache, index, blend, plan, rank, export.

Only names decide, never contents: readers of the files check the contents.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from tokshard.blending.document import DOCUMENT_NAME as BLEND_NAME
from tokshard.dataset.products import dataset_hint
from tokshard.errors import InputError, UsageError
from tokshard.exchange.directory import is_export
from tokshard.index_cache.entry import CacheEntry
from tokshard.sharding.plan import PLAN_NAME
from tokshard.sharding.ranks import RANK_NAME
from tokshard.storage import fs, paths
from tokshard.storage.paths import is_remote
from tokshard.tokenizer.location import holds_definition

Kind = Literal["dataset", "tokenizer", "cache", "index", "blend", "plan", "rank", "export"]

TOKENIZER_NAME = "tokenizer.json"

_HASH = re.compile(r"[0-9a-f]{32}")
_HINT = (
    "pass the path prefix of a dataset (without .bin or .idx), an index cache or one of its files, a blend, "
    "a plan, or a tokenizer.json"
)


@dataclass(frozen=True, slots=True)
class Recognized:
    """The product that a path names.

    Attributes:
        kind: ``"dataset"``: ``path`` is its prefix. ``"tokenizer"``: its file, directory or name.
            ``"cache"``: the directory. ``"index"``: the path of its description, which need not be
            there. ``"blend"``, ``"plan"``: the directory or the file. ``"rank"``: its manifest.
            ``"export"``: the directory.
        path: The path.
    """

    kind: Kind
    path: str


def recognize(thing: str) -> Recognized:
    """Return the product that a path names.

    Args:
        thing: A path; a hash in the directory of a cache names the index, ``cache/61e6...99``. Or the URL of
            a dataset or a tokenizer.

    Raises:
        InputError: It is not a known product.
        UsageError: It is ambiguous, or is the URL of a product that must be local.
        StorageError: A store does not respond.
    """
    if thing.startswith("hf:") and not is_remote(thing):
        return Recognized("tokenizer", thing)
    prefix = paths.strip_data_suffix(thing)
    if fs.lexists(paths.idx_path(prefix)) or fs.lexists(paths.bin_path(prefix)):
        return Recognized("dataset", prefix)
    if is_remote(thing):
        return _object(thing)
    if os.path.isdir(thing):
        return _directory(thing)
    found = _of_cache(thing)
    if found is not None:
        return found
    if os.path.isfile(thing):
        return _file(thing)
    if not os.path.lexists(thing):
        raise InputError(f"no dataset or file found: {thing}", hint=_HINT)
    raise InputError(f"cannot read {thing}: it is neither a file nor a directory", hint=_HINT)


def entries_of(directory: str, names: Iterable[str]) -> list[CacheEntry]:
    """Return the entries of a cache that files belong to by their names, sorted; locks are no entries."""
    found = {}
    for name in names:
        entry = CacheEntry.of_file(os.path.join(directory, name))
        if entry is not None and name != os.path.basename(entry.lock_path):
            found[entry.stem] = entry
    return [found[stem] for stem in sorted(found)]


def entries_in(directory: str) -> list[CacheEntry]:
    """Return the entries of which there is any file in a directory, sorted.

    Raises:
        InputError: The directory cannot be read.
    """
    try:
        names = os.listdir(directory or ".")
    except OSError as error:
        raise InputError(f"cannot list {directory}: {error.strerror}") from error
    return entries_of(directory, names)


def _object(url: str) -> Recognized:
    if not fs.isfile(url):
        raise InputError(
            f"no dataset or object found: {url}",
            hint="pass the URL prefix of a dataset, without .bin or .idx; URLs are not searched",
        )
    found = _file(url)
    if found.kind != "tokenizer":
        fs.refuse_remote(url, f"a {found.kind} must be a local file")
    return found


def _directory(path: str) -> Recognized:
    kinds: dict[str, Kind] = {PLAN_NAME: "plan", BLEND_NAME: "blend", TOKENIZER_NAME: "tokenizer"}
    there = [name for name in kinds if os.path.isfile(os.path.join(path, name))]
    if len(there) > 1:
        raise UsageError(
            f"{path} is ambiguous: it holds {' and '.join(there)}",
            hint=f"pass one of them: {os.path.join(path, there[0])}",
        )
    if there:
        return Recognized(kinds[there[0]], path)
    if is_export(path):
        return Recognized("export", path)
    if entries_in(path):
        return Recognized("cache", path)
    if holds_definition(path):
        return Recognized("tokenizer", path)
    raise InputError(
        f"cannot read {path}: it is not a dataset, tokenizer, index cache, blend, plan or export",
        hint=dataset_hint(path) or _HINT,
    )


def _of_cache(path: str) -> Recognized | None:
    directory, name = os.path.split(path)
    found = entries_of(directory, [name])
    if found and os.path.isfile(path):
        return Recognized("index", found[0].description_path)
    if _HASH.fullmatch(name) and os.path.isdir(directory or "."):
        named = [entry for entry in entries_in(directory) if entry.hash == name]
        if named:
            return Recognized("index", named[0].description_path)
        if not os.path.lexists(path):
            raise InputError(f"index {name} not found in {directory or 'this directory'}", hint=_HINT)
    return None


def _file(path: str) -> Recognized:
    name = os.path.basename(path)
    if RANK_NAME.fullmatch(name):
        return Recognized("rank", path)
    if name == PLAN_NAME:
        return Recognized("plan", path)
    return Recognized("blend" if name == BLEND_NAME else "tokenizer", path)
