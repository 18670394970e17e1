"""Declarations of options: their parsers, and one function for each kind of option.

Help lists an option under the title of its group. ``--help`` shows the common options, which the module of a
command names in ``COMMON_OPTIONS``; ``--help-all`` shows all. Without that list all options are common.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, get_args

import typer

_DECIMAL = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZES = {f"{unit}{end}": scale for unit, scale in (_DECIMAL | _BINARY).items() for end in ("", "b")}
_COUNTS = {**_DECIMAL, "b": 10**9}
# A comma separates thousands only: "1,2" is a list, which no option with a number takes.
_NUMBER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9][0-9_]*)(?:\.[0-9]+)?"
_PATTERN = re.compile(rf"^\s*({_NUMBER})\s*([a-z]*)\s*$", re.IGNORECASE)
_LONGEST_METAVAR = 28


def parse_bytes(text: str) -> int:
    """Return the number of bytes that a text means: decimal (kB, MB, GB, TB) or binary (KiB, MiB, ...).

    Raises:
        typer.BadParameter: It is not a size.

    Example:
        >>> parse_bytes("256MB"), parse_bytes("16MiB"), parse_bytes("1_000")
        (256000000, 16777216, 1000)
    """
    if (value := _scaled(text, _SIZES)) is None:
        raise typer.BadParameter(f"must be a size such as 64MB, 16MiB or 1000000, got {text!r}")
    return value


def parse_count(text: str) -> int:
    """Return the whole number that a text means: ``10B``, ``2.5M``, ``4k``, ``1_000``.

    Raises:
        typer.BadParameter: It is not such a number.

    Example:
        >>> parse_count("10B"), parse_count("2.5M"), parse_count("1_000")
        (10000000000, 2500000, 1000)
    """
    if (value := _scaled(text, _COUNTS)) is None:
        raise typer.BadParameter(f"must be a whole number such as 1000, 2M or 10B, got {text!r}")
    return value


def _scaled(text: str, scales: Mapping[str, int]) -> int | None:
    # In integers: as floats, 1.001 * 1000 is no whole number.
    match = _PATTERN.match(str(text))
    scale = scales.get(match.group(2).lower()) if match else None
    if match is None or scale is None:
        return None
    whole, _, fraction = match.group(1).replace("_", "").replace(",", "").partition(".")
    value, rest = divmod(int(whole + fraction) * scale, 10 ** len(fraction))
    return None if rest else int(value)


def parse_integer(text: str) -> int:
    """Return the whole number that a text means; unlike a count it may be negative.

    Raises:
        typer.BadParameter: It is not such a number.

    Example:
        >>> parse_integer("-1"), parse_integer("4k")
        (-1, 4000)
    """
    try:
        return -parse_count(text[1:]) if str(text).startswith("-") else parse_count(text)
    except typer.BadParameter:
        raise typer.BadParameter(f"must be a whole number such as 8, got {text!r}") from None


def parse_number(text: str) -> float:
    """Return a number that may have a fraction.

    Raises:
        typer.BadParameter: It is not a number.
    """
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"must be a number such as 1 or 0.5, got {text!r}") from None


def text(
    *names: str,
    metavar: str,
    help: str,  # noqa: A002 - as typer calls it
    group: str | None = None,
    default: str | None = None,
    parser: Callable[[str], Any] | None = None,
    complete: Callable[[str], list[str]] | None = None,
) -> Any:
    """Return the declaration of an option with a value.

    Args:
        names: Its names, the main one first.
        metavar: The value's name in the help, which tells its unit.
        help: Complete sentences.
        group: The title in the help under which it is listed.
        default: The words for its default; by default the default value, if there is one.
        parser: Parser of the value.
        complete: Returns the values that a text can be completed to.
    """
    return typer.Option(
        *names,
        metavar=metavar,
        help=help,
        show_default=True if default is None else default,
        rich_help_panel=group,
        parser=parser,
        autocompletion=complete,
    )


def count(*names: str, help: str, metavar: str = "N", **more: Any) -> Any:  # noqa: A002 - as typer calls it
    """Return the declaration of an option whose value is a whole number, such as 1000 or 2M."""
    return text(*names, metavar=metavar, help=help, parser=parse_count, **more)


def integer(*names: str, help: str, metavar: str = "N", **more: Any) -> Any:  # noqa: A002 - as above
    """Return the declaration of an option whose value is a whole number that its options class checks."""
    return text(*names, metavar=metavar, help=help, parser=parse_integer, **more)


def number(*names: str, help: str, metavar: str = "NUMBER", **more: Any) -> Any:  # noqa: A002 - as above
    """Return the declaration of an option whose value is a number, such as 0.5."""
    return text(*names, metavar=metavar, help=help, parser=parse_number, **more)


def size(*names: str, help: str, metavar: str = "SIZE", **more: Any) -> Any:  # noqa: A002 - as above
    """Return the declaration of an option whose value is a number of bytes, such as 64MB."""
    return text(*names, metavar=metavar, help=help, parser=parse_bytes, **more)


def choice(values: Any, name: str, *, help: str, **more: Any) -> Any:  # noqa: A002 - as above
    """Return the declaration of an option whose value is one of some words.

    Args:
        values: The ``Literal`` type of the words.
        name: The name of the option.
        help: Complete sentences.
        more: See :func:`text`.
    """
    words = get_args(values)

    def parse(value: str) -> str:
        if value in words:
            return value
        *others, last = words
        either = f"{', '.join(others)} or {last}" if others else last
        raise typer.BadParameter(f"must be {either}, got {value!r}")

    def complete(incomplete: str) -> list[str]:
        return [word for word in words if word.startswith(incomplete)]

    metavar = "|".join(words)
    if len(name) + len(metavar) > _LONGEST_METAVAR:
        metavar, help = "NAME", f"{help} [choices: {', '.join(words)}]"  # noqa: A001 - as above
    return text(name, metavar=metavar, help=help, parser=parse, complete=complete, **more)


def switch(
    *names: str,
    help: str,  # noqa: A002 - as above
    group: str | None = None,
    default: str | None = None,
) -> Any:
    """Return the declaration of an option without a value: ``--x`` or ``--x/--no-x``."""
    shown = True if default is None else default
    return typer.Option(*names, help=help, show_default=shown, rich_help_panel=group)
