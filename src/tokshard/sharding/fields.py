"""The fields of a JSON object in a file of ours, each of the kind that it must have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokshard.errors import IntegrityError

_SHOWN = 80
_MAX_COUNT = 2**63


class Fields:
    """An object with exactly the fields that it should have.

    Args:
        value: What was read.
        path: The file, for errors.
        what: What the object is, for errors.
        names: The names of its fields.

    Raises:
        IntegrityError: It is no object, or lacks a field, or has one more.

    Example:
        >>> Fields({"rank": 3}, "rank-00003.json", "a rank", ("rank",)).count("rank")
        3
    """

    def __init__(self, value: Any, path: str, what: str, names: Sequence[str]) -> None:
        self._path = path
        self._what = what
        if not isinstance(value, dict):
            raise self.wrong(f"is no object but {_shown(value)}")
        for name in sorted(value.keys() ^ set(names)):
            raise self.wrong(
                f"{'lacks the field' if name in names else 'has the unknown field'} {name!r}", name
            )
        self._value = value

    def wrong(self, problem: str, field: str | None = None) -> IntegrityError:
        """Return an error that says what is wrong with the object."""
        return IntegrityError(f"{self._path}: {self._what} {problem}", path=self._path, field=field)

    def value(self, name: str) -> Any:
        """Return a field of any kind."""
        return self._value[name]

    def text(self, name: str) -> str:
        """Return a field that is a text."""
        return str(self._of(name, str, "text"))

    def flag(self, name: str) -> bool:
        """Return a field that is true or false."""
        return bool(self._of(name, bool, "truth value"))

    def object(self, name: str) -> dict[str, Any]:
        """Return a field that is an object."""
        return dict(self._of(name, dict, "object"))

    def array(self, name: str) -> list[Any]:
        """Return a field that is an array."""
        return list(self._of(name, list, "array"))

    def count(self, name: str) -> int:
        """Return a field that is a whole number from 0 to 2**63 - 1."""
        number = int(self._of(name, int, "whole number"))
        if not 0 <= number < _MAX_COUNT:
            raise self.wrong(f"has {name} {number}", name)
        return number

    def one_of(self, name: str, allowed: Sequence[str]) -> str:
        """Return a field that is one of a few texts."""
        text = self.text(name)
        if text not in allowed:
            raise self.wrong(f"has {name} {_shown(text)}, not one of {', '.join(allowed)}", name)
        return text

    def hexadecimal(self, name: str, digits: int) -> str:
        """Return a field that is a lower-case hexadecimal number of so many digits."""
        text = self.text(name)
        if len(text) != digits or not set(text) <= set("0123456789abcdef"):
            raise self.wrong(f"has {name} {_shown(text)}, not {digits} hexadecimal digits", name)
        return text

    def _of(self, name: str, kind: type, noun: str) -> Any:
        value = self._value[name]
        if type(value) is not kind:
            raise self.wrong(f"has {name} {_shown(value)}, which is no {noun}", name)
        return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
