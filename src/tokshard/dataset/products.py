"""Products in the place of a dataset: recognized by the names of their files, for messages."""

from __future__ import annotations

import os

from tokshard.core.formatting import listed
from tokshard.storage.paths import BIN_SUFFIX, IDX_SUFFIX, natural_key

BLEND_NAME = "blend.json"
"""The file of a blend."""

PLAN_NAME = "plan.json"
"""The file of a shard plan, which its ranks' manifests belong to."""

DESCRIPTION_SUFFIX = "-description.txt"
"""The end of the names of the files that describe the entries of an index cache."""

_SHOWN_PREFIXES = 5


def sampled_kind(path: str) -> str | None:
    """Return the kind of product that a directory or file is, if it has samples, with its article."""
    names = _names_in(path) or [os.path.basename(path)]
    if BLEND_NAME in names:
        return "a blend"
    if PLAN_NAME in names:
        return "a plan"
    return "an index cache" if any(name.endswith(DESCRIPTION_SUFFIX) for name in names) else None


def dataset_hint(path: str) -> str | None:
    """Return the hint for a path that should be the prefix of a dataset; None if nothing is known of it."""
    if (kind := sampled_kind(path)) is not None:
        return f"pass the path prefix of a dataset: {path} is {kind}"
    if prefixes := _prefixes_in(path):
        return f"pass the path prefix of a dataset in this directory: {listed(prefixes, _SHOWN_PREFIXES)}"
    return None


def _prefixes_in(directory: str) -> list[str]:
    names = _names_in(directory)
    stems = {name.removesuffix(IDX_SUFFIX) for name in names if name.endswith(IDX_SUFFIX)}
    stems &= {name.removesuffix(BIN_SUFFIX) for name in names if name.endswith(BIN_SUFFIX)}
    return sorted((os.path.join(directory, stem) for stem in stems), key=natural_key)


def _names_in(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []
