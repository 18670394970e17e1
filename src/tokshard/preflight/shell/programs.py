"""Programs whose output is known without running them, as long as their operands are."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tokshard.preflight.shell.arithmetic import calculated
from tokshard.preflight.shell.values import Value, joined_values, known, text_of


def output_of(program: str, operands: Sequence[Value]) -> Value | None:
    """Return the output of a program; None if only running it would tell.

    Example:
        >>> output_of("basename", [known("/data/web.bin"), known(".bin")]) == known("web")
        True
    """
    texts = [text_of(value) for value in operands]
    if program == "echo":
        return joined_values(operands[1:] if texts[:1] == ["-n"] or texts[:1] == ["-e"] else operands)
    output = _output(program, [text for text in texts if text is not None])
    return None if output is None or None in texts else known(output)


def _output(program: str, operands: Sequence[str]) -> str | None:
    if any(operand.startswith("-") for operand in operands):
        return None
    match program, *operands:
        case "dirname", path:
            return os.path.dirname(path.rstrip("/")) or "."
        case "realpath", path:
            return os.path.abspath(path)
        case "basename", path, *suffix:
            name = os.path.basename(path.rstrip("/"))
            return name if [name] == suffix else name.removesuffix("".join(suffix[:1]))
        case "expr", one, operator, other:
            return calculated(operator, one, other)
    return None
