"""Ways to damage a file."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from tokshard.core.json_text import dump_json
from tokshard.storage.digest import seal_of


def flip(path, offset, mask=1):
    """Change bits of one byte; negative offsets count from the end."""
    content = bytearray(Path(path).read_bytes())
    content[offset] ^= mask
    Path(path).write_bytes(content)


def poke(path, offset, form, *values):
    """Write packed numbers over what is there."""
    content = bytearray(Path(path).read_bytes())
    struct.pack_into(form, content, offset, *values)
    Path(path).write_bytes(content)


def cut(path, count=1):
    """Take bytes away from the end of a file."""
    Path(path).write_bytes(Path(path).read_bytes()[:-count])


def edit_json(path, change):
    """Change the value of a JSON file in place."""
    value = json.loads(Path(path).read_bytes())
    change(value)
    Path(path).write_bytes(dump_json(value))


def age(*paths):
    """Make JSON files, or all of those in directories, files of an earlier version with other fields."""
    for path in map(Path, paths):
        for file in path.rglob("*.json") if path.is_dir() else [path]:
            name, _, version = json.loads(file.read_bytes())["schema"].rpartition("/")
            file.write_bytes(dump_json({"schema": f"{name}/{int(version) - 1}", "gone": 1}))


def edit_manifest(prefix, change):
    """Change a manifest and seal it anew, as somebody would who edits it with our own code."""

    def changed(value):
        change(value)
        value["seal"] = seal_of(value)

    edit_json(f"{prefix}.tokshard/manifest.json", changed)


def edit_units(prefix, change):
    """Change the lines of units.jsonl."""
    path = Path(f"{prefix}.tokshard/units.jsonl")
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    change(lines)
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
