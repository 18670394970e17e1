"""Numbers on the command line: ``256MB``, ``64MiB``, ``2M``, ``10B``."""

from __future__ import annotations

import re

import typer

_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
_PATTERN = re.compile(r"^\s*([0-9][0-9_,]*(?:\.[0-9]+)?)\s*([a-z]*)\s*$", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """Return the number of bytes that a text means: decimal (kB, MB, GB, TB) or binary (KiB, MiB, ...).

    Raises:
        typer.BadParameter: It is not a size.

    Example:
        >>> parse_bytes("256MB"), parse_bytes("16MiB"), parse_bytes("1_000")
        (256000000, 16777216, 1000)
    """
    match = _PATTERN.match(str(text))
    if match:
        number, unit = match.group(1).replace("_", "").replace(",", ""), match.group(2).lower()
        scale = {**_DECIMAL, **_BINARY}.get(unit.removesuffix("b"))
        if scale is not None:
            value = float(number) * scale if "." in number else int(number) * scale
            if value == int(value):
                return int(value)
    raise typer.BadParameter(f"{text!r} is not a size such as 64MB, 16MiB or 1000000")


def parse_count(text: str) -> int:
    """Return the whole number that a text means: ``10B``, ``2.5M``, ``4k``, ``1_000``.

    Raises:
        typer.BadParameter: It is not such a number.

    Example:
        >>> parse_count("10B"), parse_count("2.5M"), parse_count("1_000")
        (10000000000, 2500000, 1000)
    """
    match = _PATTERN.match(str(text))
    scale = _COUNTS.get(match.group(2).lower()) if match else None
    if match and scale is not None:
        whole, _, fraction = match.group(1).replace("_", "").replace(",", "").partition(".")
        parts = int(10 ** len(fraction))
        if scale % parts == 0 or not int(fraction or "0"):
            return int(whole) * scale + int(fraction or "0") * scale // parts
    raise typer.BadParameter(f"{text!r} is not a whole number such as 1000, 2M or 10B")


def parse_sizes(text: str) -> tuple[int | None, int | None, int | None]:
    """Return the samples of training, validation and testing: ``N[,V[,T]]``, each a count or ``none``.

    Raises:
        typer.BadParameter: It is not such a list.

    Example:
        >>> parse_sizes("10M,2k"), parse_sizes("none")
        ((10000000, 2000, 0), (None, 0, 0))
    """
    words = [word.strip() for word in str(text).split(",")]
    if len(words) > 3:
        raise typer.BadParameter(f"{text!r} has more than three sizes: training, validation, testing")
    if any(re.fullmatch("0[0-9]+", word) for word in words[1:]):
        raise typer.BadParameter(
            f"{text!r} reads as sizes of several splits: write 1000000 or 1M for a million"
        )
    sizes = [None if word.lower() == "none" else parse_count(word) for word in words]
    train, valid, test = [*sizes, 0, 0][:3]
    return train, valid, test
