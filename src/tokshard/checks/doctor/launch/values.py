"""Arguments of a job that Megatron has printed, and files of arguments."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any

from tokshard.checks.doctor.launch.arguments import KINDS, LaunchArguments
from tokshard.checks.doctor.launch.launch import Launch
from tokshard.core.formatting import shortened
from tokshard.errors import UsageError

NOTHING = "no argument of a Megatron training job found in {}"
HINT = "pass the launch script, or the whole command with the values of its variables"
_LOG_LINE = re.compile(r"(?:^|[\s\]:|])([a-z][a-z0-9_]*) \.{2,} (.*)$")
_IN_SCRIPT = re.compile(r"\s*(?:#|echo |printf )")
_FEWEST_PRINTED = 2
# Characters; a longer literal or file takes much memory or seconds to evaluate.
_MAX_LITERAL = 1 << 16
_MAX_YAML = 1 << 18
_SECTIONS = ("model_parallel", "language_model")
_KINDS = KINDS | {"world_size": "int", "iteration": "int"}
# Names in Megatron's namespace that differ from those of the options.
_ALIASES = {"special_tokens": "tokenizer_special_tokens", "metadata_path": "tokenizer_metadata"}


def printed_values(text: str) -> dict[str, Any]:
    """Return the arguments that Megatron has printed in a log."""
    lines = (line for line in text.splitlines() if not _IN_SCRIPT.match(line))
    printed = {match[1]: _literal(match[2].strip()) for match in map(_LOG_LINE.search, lines) if match}
    return printed if len(printed.keys() & _KINDS.keys()) >= _FEWEST_PRINTED else {}


def yaml_values(text: str, name: str) -> dict[str, Any]:
    """Return the arguments of a file for ``--yaml-cfg``.

    Raises:
        UsageError: The file is too long or is not a YAML object.
    """
    import yaml

    if len(text) > _MAX_YAML:
        raise UsageError(f"{name} must have at most {_MAX_YAML:,} characters, got {len(text):,}", hint=HINT)
    try:
        values = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"{name} is not valid YAML: {reason}", hint=HINT) from None
    if not isinstance(values, dict):
        raise UsageError(f"{name} is not a YAML object of arguments", hint=HINT)
    # Megatron merges the keys of these sections into the top level.
    for section in _SECTIONS:
        inner = values.pop(section, None)
        values |= inner if isinstance(inner, dict) else {}
    path = values.get("data_path")
    if isinstance(path, str):
        values["data_path"] = path.split()
    return {str(key): value for key, value in values.items()}


def launch_of_values(values: Mapping[str, Any], name: str) -> Launch:
    """Return the launch command with the arguments of Megatron's namespace; None counts as absent.

    Raises:
        UsageError: A data argument has a value of another type, or there is no data argument.
    """
    named = {_ALIASES.get(key, key): value for key, value in values.items()}
    given = {key: _checked(key, value) for key, value in named.items() if key in _KINDS and value is not None}
    if "no_data_sharding" not in given and values.get("data_sharding") is False:
        given["no_data_sharding"] = True
    if not given:
        raise UsageError(NOTHING.format(name), hint=HINT)
    others = {
        # YAML aliases can nest objects without end.
        key: str(value) if isinstance(value, str | int | float) and value is not True else ""
        for key, value in named.items()
        if key not in _KINDS and value not in (None, False, [])
    }
    return Launch(arguments=LaunchArguments(**given, is_completed=True), others=others)


def _literal(text: str) -> Any:
    # Megatron prints values with ``str``; any text that is not a literal was a string.
    try:
        return ast.literal_eval(text) if len(text) <= _MAX_LITERAL else text
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return text


def _checked(attribute: str, value: Any) -> Any:
    kind = _KINDS[attribute]
    is_bool = isinstance(value, bool)
    is_list = isinstance(value, list | tuple) and all(isinstance(item, str | int | float) for item in value)
    if kind == "list" and is_list:
        return tuple(map(str, value))
    if kind == "str" and is_list:  # phase_transition_iterations, parsed
        return ",".join(map(str, value))
    if (kind == "bool" and is_bool) or (kind == "int" and type(value) is int):
        return value
    if kind == "float" and isinstance(value, int | float) and not is_bool:
        return float(value)
    if kind == "str" and isinstance(value, str | int | float) and not is_bool:
        return str(value)
    shown = shortened(repr(value)) if isinstance(value, str | int | float) else f"a {type(value).__name__}"
    raise UsageError(f"{attribute} must be {kind}, got {shown}")
