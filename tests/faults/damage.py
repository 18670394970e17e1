"""Damage of files: what disks, editors and other programs do."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

_VALUES = (
    *(None, True, -1, 0, 1, 2**31, 2**63, 2**64, 1e308, 0.5, "", "x", "\0", "../x", "a" * 5000),
    *([], {}, [[]], [1]),
)


def flip(chance: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(chance.choice([1, 1, 3]) if content else 0):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def cut(chance: random.Random, content: bytes) -> bytes:
    return content[: chance.choice([0, 1, max(0, len(content) - 1), chance.randrange(len(content) + 1)])]


def block(chance: random.Random, content: bytes) -> bytes:
    begin = chance.randrange(len(content) + 1)
    size = min(len(content) - begin, chance.randint(1, 200))
    changed = chance.choice([bytes(size), chance.randbytes(size), b"\xff" * size])
    return content[:begin] + changed + content[begin + size :]


def move(chance: random.Random, content: bytes) -> bytes:
    """Swap, repeat or remove a part."""
    one, two = sorted(chance.randrange(len(content) + 1) for _ in range(2))
    first, middle, last = content[:one], content[one:two], content[two:]
    return chance.choice([middle + first + last, first + middle + middle + last, first + last])


def swap(chance: random.Random, content: bytes) -> bytes:
    """Exchange two numbers of eight bytes, which a sum of the bytes does not notice."""
    return content[8:16] + content[:8] + content[16:]


def lengthen(chance: random.Random, content: bytes) -> bytes:
    return content + chance.choice([bytes(40), chance.randbytes(50), content, b"\n", b"{}\n"])


def change_json(chance: random.Random, content: bytes) -> bytes:
    """Change a value, a key or a line of JSON; other files are overwritten in part."""
    lines = content.splitlines() if content.count(b"\n}") == 0 and content.count(b"\n") > 1 else [content]
    number = chance.randrange(len(lines))
    try:
        value = json.loads(lines[number])
    except ValueError:
        return block(chance, content)
    lines[number] = json.dumps(_changed(chance, value)).encode()
    return b"\n".join(lines) + (b"\n" if content.endswith(b"\n") else b"")


def _changed(chance: random.Random, value: Any) -> Any:
    if isinstance(value, dict) and value and chance.random() < 0.85:
        key = chance.choice(sorted(value))
        if chance.random() < 0.15:
            return {name: member for name, member in value.items() if name != key}
        return {**value, key: _changed(chance, value[key])}
    if isinstance(value, list) and value and chance.random() < 0.7:
        place = chance.randrange(len(value))
        return [*value[:place], _changed(chance, value[place]), *value[place + 1 :]]
    if isinstance(value, int) and chance.random() < 0.5:
        return value + chance.choice([-1, 1])
    return chance.choice(_VALUES)


def become_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "file").write_bytes(b"in a directory")


def become_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def become_link(path: Path) -> None:
    """Replace a file by a link to it."""
    copy = Path("in", f"copy-of-{path.name}")
    copy.parent.mkdir(exist_ok=True)
    shutil.move(path, copy)
    path.symlink_to(copy.absolute())


CONTENTS: dict[str, Callable[[random.Random, bytes], bytes]] = {
    way.__name__: way for way in (flip, cut, block, move, swap, lengthen, change_json)
}
_KINDS: dict[str, Callable[[Path], None]] = {
    way.__name__: way for way in (Path.unlink, become_directory, become_pipe, become_link)
}
WAYS = (*CONTENTS, *_KINDS)


def damage(path: Path, way: str, seed: object) -> bool:
    """Damage a file; return whether it is another one now."""
    if way in _KINDS:
        _KINDS[way](path)
        return True
    content = path.read_bytes()
    changed = CONTENTS[way](random.Random(f"{seed} {path} {way}"), content)
    path.write_bytes(changed)
    return changed != content
