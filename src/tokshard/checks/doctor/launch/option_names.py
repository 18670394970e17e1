"""Check of option names and choices against those of all versions and forks of Megatron-LM."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from tokshard.checks.doctor.launch.arguments import KINDS
from tokshard.checks.doctor.shell.values import Word
from tokshard.core.findings import Finding
from tokshard.core.formatting import listed, shortened
from tokshard.core.near_names import near_name

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
# Shorter names are one edit away from many others.
_FEWEST_CHARACTERS = 4
_SHOWN_OPTIONS = 8
_SHOWN_CHOICES = 20


@dataclass(frozen=True, slots=True)
class KnownOptions:
    """The options of Megatron-LM and its forks, as ``scripts/megatron_options`` has read them.

    Attributes:
        choices: The choices of each option by its name without hyphens, empty if it takes any value.
        training: The same for the options of Megatron-LM's own training programs.
    """

    choices: Mapping[str, frozenset[str]]
    training: Mapping[str, frozenset[str]]


@cache
def known_options() -> KnownOptions:
    """Return the options of all versions of Megatron-LM and its forks."""
    text = Path(__file__).with_name("megatron_options.txt").read_text()
    choices = [
        {name: frozenset(texts) for name, *texts in map(str.split, part.splitlines())}
        for part in text.split("\n\n")
    ]
    return KnownOptions(choices[0] | choices[1], choices[0])


def check_options(options: Sequence[tuple[str, Word | None]]) -> Iterator[Finding]:
    """Check the names of options, and their values if they have choices.

    Args:
        options: The name without leading hyphens and the first operand of each option of a command.

    Example:
        >>> [finding.message for finding in check_options([("seq-lenght", Word("8")), ("bf16", None)])]
        ['--seq-lenght is not an option of Megatron; did you mean --seq-length?']
    """
    choices_of = known_options().choices
    with_underscores: dict[str, str] = {}
    others: dict[str, None] = {}
    # A fork with one option of its own that is spelled with underscores may have more of them.
    has_underscores = any("_" in name and not intended_option(name) for name, _ in options)
    for name, operand in dict(options).items():
        intended = intended_option(name)
        has_only_underscores = intended == name.replace("_", "-")
        if has_only_underscores and (not has_underscores or name in KINDS):
            with_underscores[f"--{name}"] = f"--{intended}"
        elif name in choices_of:
            yield from _check_choice(name, operand, choices_of[name])
        elif intended is not None and not has_only_underscores:
            message = f"--{name} is not an option of Megatron; did you mean --{intended}?"
            yield Finding("unknown-option", "error", message, f"write --{intended}")
        elif _NAME.fullmatch(name) is not None:
            others[shortened(f"--{name}")] = None
    if with_underscores:
        names = listed(list(with_underscores), _SHOWN_OPTIONS)
        verb = "is" if len(with_underscores) == 1 else "are"
        message = f"{names} {verb} spelled with underscores, which Megatron does not accept"
        hint = f"write {listed(list(with_underscores.values()), _SHOWN_OPTIONS)}"
        yield Finding("reading", "warning", message, hint)
    if others:
        names = listed(list(others), _SHOWN_OPTIONS)
        message = f"no known version or fork of Megatron has {names}"
        yield Finding("other-options", "note", message, "remove them, unless the job's program adds them")


def _check_choice(name: str, operand: Word | None, choices: frozenset[str]) -> Iterator[Finding]:
    if not choices or operand is None or operand.unknown or operand.text in choices:
        return
    value = shortened(operand.text)
    intended = next((choice for choice in sorted(choices) if choice.lower() == value.lower()), None)
    intended = intended or near_name(value, sorted(choices))
    if intended is not None:
        message = f"--{name} has no choice {value!r}; did you mean {intended}?"
        yield Finding("invalid-choice", "error", message, f"write --{name} {intended}")
        return
    message = f"--{name} must be one of {listed(sorted(choices), _SHOWN_CHOICES)}, got {value!r}"
    yield Finding("invalid-choice", "error", message, "correct the value")


@lru_cache(4096)
def intended_option(name: str) -> str | None:
    """Return the option of which a name is a typing mistake or an abbreviation, or None.

    Example:
        >>> intended_option("train_iters"), intended_option("train-iter"), intended_option("train-iters")
        ('train-iters', 'train-iters', None)
    """
    hyphenated = name.replace("_", "-")
    options = known_options().training
    if hyphenated in options and name not in options:
        return hyphenated
    if name in known_options().choices or len(name) < _FEWEST_CHARACTERS or not _NAME.fullmatch(name):
        return None
    longer = [option for option in options if option.startswith(hyphenated)]
    last_words = [option for option in longer if "-" not in option.removeprefix(hyphenated)]
    of_data = [option for option in longer if option.replace("-", "_") in KINDS]
    near = near_name(hyphenated, options)
    return near or next(iter(last_words or (of_data if len(of_data) == 1 else ())), None)
