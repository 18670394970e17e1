"""Programs whose output is known without running them, as long as their operands are."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from tokshard.preflight.shell.arithmetic import combined
from tokshard.preflight.shell.values import Value, joined_values, known, text_of, unknown, written_text


def output_of(program: str, operands: list[Value]) -> Value | None:
    """Return the output of a program; None if only running it would tell.

    Example:
        >>> output_of("basename", [known("/data/web.bin")]) == known("web.bin")
        True
    """
    run = _PROGRAMS.get(program)
    if run is None or (run is not _echo and any(written_text(value).startswith("-") for value in operands)):
        return None  # options
    return run(operands)


def _echo(operands: list[Value]) -> Value:
    while operands and text_of(operands[0]) in ("-n", "-e", "-ne", "-en"):
        operands = operands[1:]
    return joined_values(operands)


def _expr(operands: list[Value]) -> Value:
    texts = [text_of(value) for value in operands]
    written = unknown(f"$(expr {' '.join(map(written_text, operands))})")
    try:
        one, kind, other = texts
        result = combined(kind or "", int(one or ""), int(other or ""))
    except ValueError:
        return written
    return written if result is None else known(str(result))


def _path_part(take: Callable[[str], str], name: str) -> Callable[[list[Value]], Value]:
    def part(operands: list[Value]) -> Value:
        text = text_of(operands[0]) if len(operands) == 1 else None
        if text is None and name == "basename" and len(operands) == 2:
            path, suffix = map(text_of, operands)
            if path is not None and suffix is not None:
                base = take(path)
                return known(base if base == suffix else base.removesuffix(suffix))
        if text is None or text.startswith("-"):
            return unknown(f"$({name} {_written(operands)})")
        return known(take(text))

    return part


def _written(operands: list[Value]) -> str:
    return " ".join(map(written_text, operands))


_PROGRAMS: Mapping[str, Callable[[list[Value]], Value]] = {
    "echo": _echo,
    "expr": _expr,
    "dirname": _path_part(lambda path: os.path.dirname(path.rstrip("/")) or ".", "dirname"),
    "realpath": _path_part(os.path.abspath, "realpath"),
    "basename": _path_part(lambda path: os.path.basename(path.rstrip("/")), "basename"),
}
