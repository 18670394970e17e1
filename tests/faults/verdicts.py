"""What may be left of an output: nothing, the old one or the new one."""

from __future__ import annotations

import re

Tree = dict[str, str]
"""The content of all files by their paths: digests, targets of links, the time of a file of others."""

SEALS = ("manifest.json", "blend.json", "plan.json", "-description.txt", "export.json")
CACHED = re.compile(r"-(GPT|Blended)Dataset-")


def judge(found: Tree, new: Tree, old: Tree, *, torn: bool = False) -> str | None:
    """Say what is wrong with what a failed command left; None if it is absent, old or complete.

    Every file has its final name only when it is whole, unless ``torn``: the power failed. A marker (a
    manifest, the description of an index, ``blend.json``, ``plan.json``) stands only beside all files that
    it is about; .bin and .idx are of one writing.
    """
    for path, content in found.items():
        known = [one[path] for one in (new, old) if path in one]
        if known and content not in known and not torn:
            return f"{path} is neither the old nor the new file"
    for group in {group_of(path) for path in new}:
        files = {path for path in found if group_of(path) == group}
        pair = {f"{group}.bin", f"{group}.idx"}
        if pair <= files and not any(
            all(found[path] == one.get(path) for path in pair) for one in (new, old)
        ):
            return f"{group}: .bin and .idx do not belong together"
        is_sealed = any(path.endswith(SEALS) and path in new for path in files)
        if is_sealed and not any(_is_there(found, one, group) for one in (new, old)):
            return f"{group}: the marker is there, and neither the old nor the new output: {sorted(files)}"
    return None


def is_whole(product: str, found: Tree, new: Tree, old: Tree) -> bool:
    """Return whether ``verify`` may accept a product: it is old or new, or a dataset without manifest."""
    groups = {
        group_of(path) for path in new if path == product or path.startswith((f"{product}.", f"{product}/"))
    }
    pair = {f"{product}.bin", f"{product}.idx"}
    return pair <= found.keys() or any(_is_there(found, one, group) for one in (new, old) for group in groups)


def _is_there(found: Tree, one: Tree, group: str) -> bool:
    files = {path: content for path, content in one.items() if group_of(path) == group}
    return any(path.endswith(SEALS) for path in files) and {path: found.get(path) for path in files} == files


def group_of(path: str) -> str:
    """Return the name of the product that a file belongs to."""
    if CACHED.search(path):  # HASH-KIND-SPLIT-NAME
        return path.rpartition("-")[0]
    first = "/".join(path.split("/")[:2])
    return first.removesuffix(".bin").removesuffix(".idx").removesuffix(".tokshard")
