"""Errors of the option parser in our words; imported only when there is one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

from tokshard import ReplanOptions, ShardPlanOptions
from tokshard.cli import megatron_options
from tokshard.cli.help_page import common_options, names_of, options_of
from tokshard.core.options import declared_options
from tokshard.errors import UsageError

# Options of similar programs, and ours with the same meaning.
_SYNONYMS = {
    "--column": "--field",
    "--json-keys": "--field",
    "--key": "--field",
    "--text-column": "--field",
    "--text-field": "--field",
    "--text-key": "--field",
    "--jobs": "--workers",
    "--num-proc": "--workers",
    "--output-prefix": "--output",
}
# Parallelism that does not change which samples a rank reads.
_EXPERT_OR_VIRTUAL = re.compile(r"--(expert-|virtual-pipeline-|num-layers-per-virtual-|num-virtual-stages-)")


def explained(error: Any, command: Any, words: Sequence[str]) -> UsageError:
    """Return an error of the option parser as one of ours.

    Args:
        error: The parser's error.
        command: The command whose options were parsed.
        words: The command line.
    """
    path = "tokshard" if hasattr(command, "summaries") else f"tokshard {command.name}"
    # By their names: typer exports only one of these classes.
    match type(error).__name__:
        case "NoSuchOption":
            return _unknown_option(error.option_name, command, path, words)
        case "MissingParameter":
            name = name_of(error.param)
            meant = error.param.help.rstrip(".").replace(". [", " [")
            if not meant[1:2].isupper():  # JSON stays JSON
                meant = meant[0].lower() + meant[1:]
            is_option = error.param.param_type_name == "option"
            hint = f"pass {name} {error.param.metavar} to {meant}" if is_option else f"pass {meant}"
            return UsageError(f"{name} is required", hint=hint)
        case "BadParameter":
            page = "--help-all" if getattr(error.param, "is_rare", False) else "--help"
            hint = f"run `{path} {page}` for its options"
            return UsageError(f"{name_of(error.param)} {error.message}", hint=hint)
        case "BadOptionUsage":
            return _bad_value_count(error.option_name, command)
    text, _, extra = error.format_message().partition("(s) (")
    if extra:
        extra = extra.removesuffix(")")
        return UsageError(f"unexpected argument: {extra}", hint=_argument_hint(command, path))
    return UsageError(text[:1].lower() + text[1:].rstrip("."), hint=f"run `{path} --help`")


def _argument_hint(command: Any, path: str) -> str:
    if arguments := [name_of(each) for each in command.params if each.param_type_name == "argument"]:
        return f"pass only {' '.join(arguments)}; run `{path} --help` for its arguments"
    return f"run `{path} --help` for its options"


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that a misspelled one resembles most; None if it resembles none.

    Example:
        >>> closest("--tokeniser", ["--tokenizer", "--output"])
        '--tokenizer'
    """
    names = {name.lstrip("-"): name for name in known}
    found = get_close_matches(word.lstrip("-"), names, n=1, cutoff=0.7)
    return names[found[0]] if found else None


def name_of(parameter: Any) -> str:
    """Return the name of an option or argument in messages."""
    if parameter.param_type_name == "option":
        return str(parameter.opts[0])
    return str(parameter.metavar).split()[-1].strip("[.]")


def _unknown_option(name: str, command: Any, path: str, words: Sequence[str]) -> UsageError:
    if command.name == megatron_options.COMMAND and name in megatron_options.OPTIONS:
        hint = "pass --preset megatron for the options of Megatron's preprocess_data.py"
    elif command.name in {"shard-plan", "replan"} and _EXPERT_OR_VIRTUAL.match(name):
        hint = f"leave out {name}: it does not change which samples a rank reads"
    elif command.name == "shard-plan" and name in {"--from", *_names(ReplanOptions)}:
        hint = "run `tokshard replan PLAN` to continue a plan"
    elif command.name == "replan" and name in _names(ShardPlanOptions):
        hint = f"leave out {name}: the continued plan determines it"
    elif name[1:].isdecimal():
        hint = "pass a positive number"
    else:
        known = [each for option in options_of(command) for each in names_of(option)]
        wide = "--help" if common_options(command) == options_of(command) else "--help-all"
        known += megatron_options.OPTIONS if megatron_options.uses_preset(words) else ()
        meanings = {synonym: option for synonym, option in _SYNONYMS.items() if option in known}
        meanings |= {option: option for option in known}
        found = meanings.get(closest(name, meanings) or "")
        hint = f"pass {found}" if found else f"run `{path} {wide}` to list the options"
    return UsageError(f'unknown option "{name}"', hint=hint)


def _names(options: Any) -> set[str]:
    return {found.name for found in declared_options(options).values()}


def _bad_value_count(name: str, command: Any) -> UsageError:
    option = next(each for each in command.params if name in names_of(each))
    if option.is_flag:
        return UsageError(f"{name} takes no value", hint=f"pass {name} alone")
    values = "a value" if option.nargs == 1 else f"{option.nargs} values"
    return UsageError(f"{name} requires {values}", hint=f"pass {name} {option.metavar}")
