"""Values of options: what the words of the command line mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZES = {f"{unit}{end}": scale for unit, scale in (_DECIMAL | _BINARY).items() for end in ("", "b")}
_COUNTS = {**_DECIMAL, "b": 10**9}
# A comma separates thousands only: "1,2" is a list, which no option with a number takes.
_NUMBER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9][0-9_]*)(?:\.[0-9]+)?"
_PERCENT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*")
_FRACTION = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE]-?[0-9]{1,3})?)\s*")
_PATTERN = re.compile(rf"^\s*({_NUMBER})\s*([a-z]*)\s*$", re.IGNORECASE)


def parse_bytes(text: str) -> int:
    """Return the number of bytes that a text means: decimal (kB, MB, GB, TB) or binary (KiB, MiB, ...).

    Raises:
        ValueError: It is not a size.

    Example:
        >>> parse_bytes("256MB"), parse_bytes("16MiB"), parse_bytes("1_000")
        (256000000, 16777216, 1000)
    """
    if (value := _scaled(text, _SIZES)) is None:
        raise ValueError(f"must be a size such as 64MB, 16MiB or 1000000, got {text!r}")
    return value


def parse_count(text: str) -> int:
    """Return the whole number that a text means: ``10B``, ``2.5M``, ``4k``, ``1_000``, ``-1``.

    Raises:
        ValueError: It is not such a number.

    Example:
        >>> parse_count("10B"), parse_count("2.5M"), parse_count("1_000"), parse_count("-1")
        (10000000000, 2500000, 1000, -1)
    """
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text)
    if (value := _scaled(digits, _COUNTS)) is None:
        raise ValueError(f"must be a whole number such as 1000, 2M or 10B, got {text!r}")
    return sign * value


def _scaled(text: str, scales: Mapping[str, int]) -> int | None:
    # In integers: as floats, 1.001 * 1000 is no whole number.
    match = _PATTERN.match(str(text))
    scale = scales.get(match.group(2).lower()) if match else None
    if match is None or scale is None:
        return None
    whole, _, fraction = match.group(1).replace("_", "").replace(",", "").partition(".")
    value, rest = divmod(int(whole + fraction) * scale, 10 ** len(fraction))
    return None if rest else int(value)


def parse_number(text: str) -> float:
    """Return a number that may have a fraction.

    Raises:
        ValueError: It is not a number.
    """
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"must be a number such as 1 or 0.5, got {text!r}") from None


def parse_share(text: str) -> float:
    """Return a share as a number: of ``0.01`` or ``1%``.

    Raises:
        ValueError: It is not such a share.

    Example:
        >>> parse_share("0.1%"), parse_share("0.001")
        (0.001, 0.001)
    """
    if percent := _PERCENT.fullmatch(text):
        return float(f"{percent[1]}e-2")
    if fraction := _FRACTION.fullmatch(text):
        return float(fraction[1])
    raise ValueError(f"must be a percentage or a fraction such as 1% or 0.01, got {text!r}")


def parse_pair(form: str, example: str) -> Callable[[str], tuple[str, str]]:
    """Return the parser of a pair of texts, joined by ``=``, neither of them empty.

    Args:
        form: The form of the pair, for messages.
        example: Such a pair.

    Example:
        >>> parse_pair("LOCAL=TRAINING", "out=/data/v1")("out=/data/v1")
        ('out', '/data/v1')
    """

    def parse(text: str) -> tuple[str, str]:
        first, _, second = text.partition("=")
        if not (first and second):
            raise ValueError(f"must be {form} such as {example}, got {text!r}")
        return first, second

    return parse
