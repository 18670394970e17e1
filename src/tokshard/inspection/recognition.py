"""What a path names: a dataset, a tokenizer, a cache of indexes, one index, a blend, a plan, a rank.

Only names decide, never contents: what a file says is checked by whoever reads it as what its name says.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Literal

from tokshard.blending.document import DOCUMENT_NAME as BLEND_NAME
from tokshard.errors import InputError, UsageError
from tokshard.sharding.plan import PLAN_NAME
from tokshard.sharding.ranks import PACKED_NAME, RANK_NAME
from tokshard.storage import fs, paths
from tokshard.storage.paths import is_remote

Kind = Literal["dataset", "tokenizer", "cache", "index", "blend", "plan", "rank"]

TOKENIZER_NAME = "tokenizer.json"

_ENTRY = re.compile(
    r"(?P<stem>[0-9a-f]{32}-(?:GPTDataset|BlendedDataset)-(?:train|valid|test))"
    r"-(?:description\.txt|[a-z_]+\.npy|tokshard\.json)"
)
_HASH = re.compile(r"[0-9a-f]{32}")
_HINT = (
    "name the path prefix of a dataset (without .bin or .idx), a cache of indexes or one of its files, "
    "a blend, a plan, or a tokenizer.json"
)


@dataclass(frozen=True, slots=True)
class Recognized:
    """What a path names.

    Attributes:
        kind: ``"dataset"``: ``path`` is its prefix. ``"tokenizer"``: its file, directory or name.
            ``"cache"``: the directory. ``"index"``: the path of its description, which need not be
            there. ``"blend"``, ``"plan"``: the directory or the file. ``"rank"``: its manifest.
        path: The path.
    """

    kind: Kind
    path: str


def recognize(thing: str) -> Recognized:
    """Tell what a path names.

    Args:
        thing: A path; a hash in the directory of a cache names the index, ``cache/61e6...99``. Or the URL of
            a dataset or a tokenizer.

    Raises:
        InputError: It is nothing of ours.
        UsageError: It can be meant in two ways, or is the URL of something that is read from files only.
        StorageError: A store does not answer.
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
        raise InputError(f"there is no dataset and no file at {thing}", hint=_HINT)
    raise InputError(f"{thing} is neither a file nor a directory", hint=_HINT)


def stem_of(name: str) -> str | None:
    """Return what the names of all files of an index begin with, given one of them; None for other files.

    Example:
        >>> stem_of("61e66eba24ecf1e3a05a5763f02d4881-GPTDataset-valid-shuffle_index.npy")
        '61e66eba24ecf1e3a05a5763f02d4881-GPTDataset-valid'
    """
    found = _ENTRY.fullmatch(name)
    return None if found is None else found["stem"]


def stems_in(directory: str) -> list[str]:
    """Return the stems of all indexes of which there is any file in a directory, sorted.

    Raises:
        InputError: The directory cannot be read.
    """
    try:
        names = os.listdir(directory or ".")
    except OSError as error:
        raise InputError(f"cannot list {directory}: {error.strerror}") from error
    return sorted({stem for stem in map(stem_of, names) if stem is not None})


def _object(url: str) -> Recognized:
    if not fs.isfile(url):
        raise InputError(
            f"there is no dataset and no object at {url}",
            hint="name the URL of a dataset without .bin or .idx; what lies below a URL is not searched",
        )
    found = _file(url)
    if found.kind != "tokenizer":
        fs.refuse_remote(url, f"a {found.kind} is read from")
    return found


def _directory(path: str) -> Recognized:
    kinds: dict[str, Kind] = {PLAN_NAME: "plan", BLEND_NAME: "blend", TOKENIZER_NAME: "tokenizer"}
    there = [name for name in kinds if os.path.isfile(os.path.join(path, name))]
    if len(there) > 1:
        raise UsageError(
            f"{path} holds {' and '.join(there)}", hint=f"name one: {os.path.join(path, there[0])}"
        )
    if there:
        return Recognized(kinds[there[0]], path)
    if stems_in(path):
        return Recognized("cache", path)
    raise InputError(f"{path} is neither a dataset nor a tokenizer, a cache, a blend or a plan", hint=_HINT)


def _of_cache(path: str) -> Recognized | None:
    directory, name = os.path.split(path)
    stem = stem_of(name)
    if stem is not None and os.path.isfile(path):
        return _index(directory, stem)
    if _HASH.fullmatch(name) and os.path.isdir(directory or "."):
        stems = [stem for stem in stems_in(directory) if stem.startswith(name)]
        if not stems and not os.path.lexists(path):
            raise InputError(f"there is no index {name} in {directory or 'this directory'}", hint=_HINT)
        return _index(directory, stems[0]) if stems else None
    return None


def _index(directory: str, stem: str) -> Recognized:
    return Recognized("index", os.path.join(directory, f"{stem}-description.txt"))


def _file(path: str) -> Recognized:
    name = os.path.basename(path)
    if RANK_NAME.fullmatch(name):
        return Recognized("rank", path)
    if name in {PLAN_NAME, PACKED_NAME}:
        return Recognized("plan", path)
    return Recognized("blend" if name == BLEND_NAME else "tokenizer", path)
