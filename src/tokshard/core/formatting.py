"""Formatting of numbers, names and untrusted text for terminals, HTML pages and logs."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence, Sized
from typing import Any


def count(number: int) -> str:
    """Return a whole number with thousands separators.

    Example:
        >>> count(1234567)
        '1,234,567'
    """
    return f"{number:,}"


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a count with its noun, in the plural if needed (by default with an s).

    Example:
        >>> counted(1, "time"), counted(2000, "time"), counted(0, "index", "indexes")
        ('1 time', '2,000 times', '0 indexes')
    """
    return f"{count(number)} {noun if number == 1 else plural or noun + 's'}"


def size(number: float) -> str:
    """Return a number of bytes in decimal units with three digits.

    Example:
        >>> size(999), size(9_999), size(999_999), size(1_234_567), size(5e13)
        ('999 B', '10.0 kB', '1.00 MB', '1.23 MB', '50.0 TB')
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if number < 999.5 or unit == "TB":  # 999.5 would be rounded to 1000
            break
        number /= 1000
    if unit == "B":
        return f"{number:.0f} B"
    decimals = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:.{decimals}f} {unit}"


def short_count(number: float) -> str:
    """Return a large number with three digits and a letter: k, M, B (10^9) or T.

    Example:
        >>> short_count(999), short_count(3_104_000), short_count(2.5e10)
        ('999', '3.10M', '25.0B')
    """
    return size(number).removesuffix("B").replace(" ", "").replace("G", "B")


def throughput(seconds: float, size_bytes: int, tokens: int = 0, of: str = "") -> str:
    """Return the duration of some work and its rates.

    Example:
        >>> throughput(4.33, 120_000_000, 36_000_000, " of text")
        '4.33 s (27.7 MB/s of text, 8.31M tokens/s)'
    """
    seconds = max(seconds, 1e-9)
    of_tokens = f", {short_count(tokens / seconds)} tokens/s" if tokens else ""
    return f"{duration(seconds)} ({size(size_bytes / seconds)}/s{of}{of_tokens})"


def percent(share: float) -> str:
    """Return a fraction as a percentage.

    Example:
        >>> percent(0.123456)
        '12.35%'
    """
    return f"{100 * share:.2f}%"


def listed(items: Sequence[object], limit: int = 5) -> str:
    """Return a comma-separated list, truncated to ``limit`` items.

    Example:
        >>> listed([3, 5, 7], 5), listed(range(1000), 2)
        ('3, 5, 7', '0, 1 and 998 more')
    """
    rest = len(items) - limit
    more = f" and {count(rest)} more" if rest > 0 else ""
    return ", ".join(str(item) for item in items[:limit]) + more


def number_ranges(numbers: Sequence[int], limit: int = 5) -> str:
    """Return ascending numbers as ranges, truncated to ``limit`` of them.

    Example:
        >>> number_ranges([0, 1, 2, 3, 6]), number_ranges(range(0, 100, 2))
        ('0-3, 6', '0, 2, 4, 6, 8 and 45 more')
    """
    ranges = consecutive(numbers)
    return listed([f"{first}" if first == last else f"{first}-{last}" for first, last in ranges], limit)


def consecutive(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first and the last of each run of consecutive numbers; ``numbers`` ascend.

    Example:
        >>> consecutive([0, 1, 2, 3, 6])
        [(0, 3), (6, 6)]
    """
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    return runs


def short_repr(value: Any) -> str:
    """Return a representation of a dataclass in one line: the scalars, and the sizes of all else.

    Example:
        >>> @dataclasses.dataclass
        ... class Report:
        ...     prefix: str
        ...     sizes: tuple
        ...     seconds: float
        >>> short_repr(Report("out/web", tuple(range(1000)), 1.5))
        "Report(prefix='out/web', sizes=<1,000 items>, seconds=1.5)"
    """
    shown = (f"{field.name}={_short(getattr(value, field.name))}" for field in dataclasses.fields(value))
    return f"{type(value).__name__}({', '.join(shown)})"


_REPR_CHARACTERS = 60


def _short(value: Any) -> str:
    if dataclasses.is_dataclass(value):
        return f"{type(value).__name__}(...)"
    if value is None or isinstance(value, bool | int | float | str):
        text = repr(value)
        return text if len(text) <= _REPR_CHARACTERS else f"{text[:_REPR_CHARACTERS]}..."
    if isinstance(value, Sized):
        whole = "" if any(map(dataclasses.is_dataclass, value)) else repr(value)  # type: ignore[call-overload]
        return whole if 0 < len(whole) <= _REPR_CHARACTERS else f"<{counted(len(value), 'item')}>"
    return f"<{type(value).__name__}>"


def shortened(text: str, limit: int = 60) -> str:
    """Return the first ``limit`` characters of a text, with three dots if there are more.

    Example:
        >>> shortened("0.7 data/web", 3), shortened("web", 3)
        ('0.7...', 'web')
    """
    return text if len(text) <= limit else f"{text[:limit]}..."


def short_id(digest: str) -> str:
    """Return the beginning of a hexadecimal digest, which is enough to recognize it.

    Example:
        >>> short_id("e43f9b3bda0a1cfb7e11f8da6fad3d28")
        'e43f9b3bda0a'
    """
    return digest[:12]


def shown_path(path: str) -> str:
    """Return a path without control characters, relative if it is inside the current directory.

    Example:
        >>> shown_path(os.path.join(os.getcwd(), "data", "web")), shown_path("/elsewhere/web")
        ('data/web', '/elsewhere/web')
    """
    try:
        here = os.path.join(os.getcwd(), "")
    except FileNotFoundError:  # it was deleted
        return visible(path)
    return visible(path.removeprefix(here) or path)


def setting(value: object) -> str:
    """Return the value of an option.

    Example:
        >>> setting(True), setting(None), setting(3)
        ('on', 'not set', '3')
    """
    if isinstance(value, bool):
        return "on" if value else "off"
    return "not set" if value is None else str(value)


def duration(seconds: float) -> str:
    """Return a time span in readable units.

    Example:
        >>> duration(0.000042), duration(0.0009999), duration(0.42), duration(75), duration(7384)
        ('42 µs', '0.001 s', '0.42 s', '1 min 15 s', '2 h 03 min')
    """
    if 0 < seconds < 0.0009995:  # more would be rounded to 1e+03 µs
        return f"{seconds * 1e6:.3g} µs"
    if seconds < 60:
        return f"{seconds:.3g} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"


def visible(text: object) -> str:
    r"""Return a text with control characters, lone surrogates, bidi marks and the like escaped.

    The result moves no cursor, changes no color, hides nothing and reverses no line. Letters of all
    scripts are unchanged.

    Example:
        >>> visible("a\x1b[31mred\u202eder\ud800")
        'a\\x1b[31mred\\u202eder\\ud800'
    """
    return "".join(
        character if character.isprintable() or character == " " else _escaped(character)
        for character in str(text)
    )


SPACE = "\N{OPEN BOX}"
"""The visible space of :func:`shown_token`."""


def shown_token(text: str) -> str:
    r"""Return the text of a token so that every character of it is seen, spaces included.

    Example:
        >>> shown_token(" the\n"), shown_token("\\n"), shown_token("")
        ('␣the\\n', '\\\\n', '(empty)')
    """
    return visible(text.replace("\\", "\\\\")).replace(" ", SPACE) or "(empty)"


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
