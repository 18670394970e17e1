"""The plan of a run: everything that determines its bytes, and how two plans differ.

The plan is written into the work directory before anything else, so that a run is resumed only by a
run that would have planned the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokshard.storage.digest import identity_digest


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run will do.

    Attributes:
        schema: The kind of the run and the version of its plans.
        inputs: What each input is: its ``path``, and what must not change while the run is unfinished.
        tokenizer: The tokenizer's identity; empty where none is known.
        options: The options that determine the bytes, by their names on the command line.
    """

    schema: str
    inputs: tuple[dict[str, Any], ...]
    tokenizer: dict[str, Any]
    options: dict[str, Any]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the plan."""
        return identity_digest(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Return the plan as a JSON object."""
        return {
            "schema": self.schema,
            "inputs": list(self.inputs),
            "tokenizer": self.tokenizer,
            "options": self.options,
        }


def is_repeatable(plan: dict[str, Any]) -> bool:
    """Tell whether the inputs of a plan can be read again; a pipe, which has no size, cannot."""
    return all(one.get("size_bytes", 0) is not None for one in plan.get("inputs", []))


def differences(earlier: dict[str, Any], now: dict[str, Any]) -> tuple[str, ...]:
    """Say how an earlier run's plan differs from this one's, one phrase for each difference.

    Example:
        >>> before = {"schema": "s", "inputs": [], "tokenizer": {}, "options": {"dtype": "uint16"}}
        >>> differences(before, {**before, "options": {"dtype": "int32"}})
        ("--dtype was 'uint16' and is now 'int32'",)
    """
    if earlier.get("schema") != now["schema"]:
        return (f"the plan's schema was {earlier.get('schema')!r} and is now {now['schema']!r}",)
    found = _input_differences(earlier.get("inputs", []), now["inputs"])
    for name in sorted(earlier.get("tokenizer", {}).keys() | now["tokenizer"].keys()):
        was, is_now = earlier.get("tokenizer", {}).get(name), now["tokenizer"].get(name)
        if was != is_now:
            found.append(f"the tokenizer's {name} was {was!r} and is now {is_now!r}")
    for name in sorted(earlier.get("options", {}).keys() | now["options"].keys()):
        was, is_now = earlier.get("options", {}).get(name), now["options"].get(name)
        if was != is_now:
            found.append(f"--{name} was {was!r} and is now {is_now!r}")
    return tuple(found)


def _input_differences(earlier: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[str]:
    if [one.get("path") for one in earlier] != [one["path"] for one in now]:
        return [f"the inputs were {_names(earlier)} and are now {_names(now)}"]
    found = []
    for was, is_now in zip(earlier, now, strict=True):
        changed = [name for name in is_now if was.get(name) != is_now[name]]
        found += [
            f"the input {is_now['path']}: {name} was {was.get(name)!r} and is now {is_now[name]!r}"
            for name in changed
        ]
    return found


def _names(inputs: list[dict[str, Any]]) -> str:
    names = ", ".join(str(one.get("path")) for one in inputs[:3])
    return f"{names} and {len(inputs) - 3} more" if len(inputs) > 3 else names
