"""Parsing of the options of a Megatron command, as Megatron's argparse parses them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokshard.checks.doctor.launch.arguments import KINDS, option_of
from tokshard.checks.doctor.shell.values import Word, word_of
from tokshard.core.findings import Finding
from tokshard.core.formatting import shortened

_OPTION_WITH_VALUE = re.compile(r"--[a-z][a-z0-9-]*=")
_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")
_SEVERAL_WORDS = re.compile(r"\s*(?:[0-9.]+|--\S*)\s+\S")
_TYPOGRAPHIC = re.compile(
    "^[\N{EN DASH}\N{EM DASH}]|[\N{LEFT DOUBLE QUOTATION MARK}\N{RIGHT DOUBLE QUOTATION MARK}]|-\N{EN DASH}"
)
_ELLIPSES = frozenset({"...", "…"})
_NAME_OF_ARGUMENTS = re.compile(r"ARG|OPT|FLAG|EXTRA|\[[@*]\]|\$\{?[@*]", re.IGNORECASE)


@dataclass(slots=True)
class ParsedOptions:
    """The options of a command.

    Attributes:
        values: Data arguments by Megatron's names.
        unknown: Data arguments with an unknown value, and the expansion in it.
        unseen: Expansions that may contain more options.
        problems: Findings about options that Megatron does not accept.
        others: All other options by their names (without hyphens), and the text of their first operand.
        given: All options as spelled, without leading hyphens, and their first operands.
    """

    values: dict[str, Any] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    unseen: list[str] = field(default_factory=list)
    problems: list[Finding] = field(default_factory=list)
    others: dict[str, str] = field(default_factory=dict)
    given: list[tuple[str, Word | None]] = field(default_factory=list)


def count_options(words: Sequence[Word]) -> int:
    """Return the number of options about data in a command."""
    return sum(_attribute(word.text) is not None for word in words)


def parse_options(words: Sequence[Word]) -> ParsedOptions:
    """Parse the words of a command after its program.

    The last one of repeated options counts, as in argparse. A value that cannot be read is unknown.

    Example:
        >>> parse_options([Word("--seq-length"), Word("8"), Word("--data-path"), Word("a")]).values
        {'seq_length': 8, 'data_path': ('a',)}
    """
    parsed = ParsedOptions()
    at, is_complete, surplus = 0, False, list[str]()
    while at < len(words):
        word = words[at]
        operands = list(_operands(words, at))
        attribute = _attribute(word.text)
        name = word.text[2:].partition("=")[0]
        if word.text == ":":  # another program of mpirun
            break
        if word.text.startswith("--") and word.text != "--":
            parsed.given.append((name, operands[0] if operands else None))
        if attribute is not None:
            is_complete = KINDS[attribute] != "list" or "=" in word.text
            _set(parsed, attribute, operands)
        elif word.is_open or word.text in _ELLIPSES:
            _add_hidden(parsed, word)
        elif word.text == "--":
            surplus += [word.text for word in words[at:]]
            break
        elif _is_surplus(word, is_complete=is_complete):
            surplus.append(word.text)
        elif word.text.startswith("--"):
            is_complete = False
            parsed.others[name.replace("-", "_")] = operands[0].text if operands else ""
        for operand in operands:
            for piece in operand.value:
                # A value of the script, which may contain more options.
                if piece.is_open and piece.reasons and (piece.choices or len(operand.value) == 1):
                    _add_hidden(parsed, word_of((piece,)))
        at += 1 if "=" in word.text or not operands else 1 + len(operands)
    parsed.unseen = list(dict.fromkeys(parsed.unseen))
    parsed.problems += _problems_of_words(words, surplus)
    return parsed


def _add_hidden(parsed: ParsedOptions, word: Word) -> None:
    """Record that the options that a word may expand to are unknown."""
    choices = [parse_options(words) for words in word.choices()]
    if not choices:
        parsed.unseen.append(", ".join(word.unknown) or word.text)
    for choice in choices:
        parsed.unseen += choice.unseen
        for name in (*choice.values, *choice.unknown):
            parsed.values.pop(name, None)
            parsed.unknown[name] = word.unknown[0]


def _is_surplus(word: Word, *, is_complete: bool) -> bool:
    """Return whether a word follows the only value of an option, or contains several options."""
    name = word.text.partition("=")[0]
    is_quoted = name.startswith("--") and re.search(r"\s", name) is not None
    return not word.unknown and (is_quoted or (is_complete and not _is_option(word.text)))


def _problems_of_words(words: Sequence[Word], surplus: Sequence[str]) -> Iterator[Finding]:
    if surplus:
        texts = shortened(" ".join(map(shlex.quote, surplus)))
        hint = "remove it, put a value with spaces in quotes, or remove the quotes around several options"
        message = f"no option takes {texts}: Megatron does not start with unrecognized arguments"
        yield Finding("arguments", "error", message, hint)
    for word in words:
        if _TYPOGRAPHIC.search(word.text):
            message = f"{shortened(word.text)} contains a typographic dash or quote"
            yield Finding("reading", "warning", message, "replace it with - or a straight quote")


def _attribute(text: str) -> str | None:
    name = text[2:].partition("=")[0]
    attribute = name.replace("-", "_")
    return attribute if text.startswith("--") and attribute in KINDS and "_" not in name else None


def _operands(words: Sequence[Word], at: int) -> Iterator[Word]:
    name, separator, value = words[at].text.partition("=")
    if not name.startswith("--"):
        return
    if separator:
        yield Word(value, words[at].unknown)
        return
    kind = KINDS.get(name[2:].replace("-", "_"))
    for number in range(at + 1, len(words)):
        is_first = number == at + 1
        if kind == "bool" or _ends_operands(words, number, is_first=is_first, is_known=kind is not None):
            return
        yield words[number]
        if kind not in {None, "list"}:
            return


def _ends_operands(words: Sequence[Word], at: int, *, is_first: bool, is_known: bool) -> bool:
    word = words[at]
    if _is_option(word.text) or word.text in _ELLIPSES:
        return True
    if word.is_open and word.choices():
        return _begins_with_option(words[at:])
    looks_like_options = _NAME_OF_ARGUMENTS.search(word.text) is not None
    if is_known:
        return word.is_open and looks_like_options and not is_first
    return word.is_open and (looks_like_options or not is_first)


def _begins_with_option(words: Sequence[Word]) -> bool:
    """Return whether an option precedes all operands, whatever undecided words expand to."""
    if not words or _is_option(words[0].text):
        return True
    choices = words[0].choices() if words[0].is_open else []
    return bool(choices) and all(_begins_with_option([*choice, *words[1:]]) for choice in choices)


def _is_option(text: str) -> bool:
    # As in argparse: not a lone hyphen, a negative number, or a text with spaces.
    if _OPTION_WITH_VALUE.match(text):
        return True
    return len(text) > 1 and text[0] == "-" and " " not in text and not _NEGATIVE_NUMBER.fullmatch(text)


def _set(parsed: ParsedOptions, attribute: str, words: Sequence[Word]) -> None:
    option = option_of(attribute)
    kind = KINDS[attribute]
    parsed.values.pop(attribute, None)
    parsed.unknown.pop(attribute, None)
    for word in words:
        if word.unknown:
            parsed.unknown[attribute] = word.unknown[0]
            return
        if attribute.endswith("data_path") and _SEVERAL_WORDS.match(word.text):
            message = f"Megatron reads {shortened(repr(word.text))} as one path prefix of {option}"
            parsed.problems.append(Finding("arguments", "error", message, "remove the quotes around it"))
    if kind == "bool":
        parsed.values[attribute] = True
    elif kind == "list":
        parsed.values[attribute] = tuple(word.text for word in words)
    elif not words:
        parsed.unknown[attribute] = ""
    else:
        _set_one(parsed, attribute, words[0].text)


def _set_one(parsed: ParsedOptions, attribute: str, text: str) -> None:
    kind = KINDS[attribute]
    option = option_of(attribute)
    try:
        parsed.values[attribute] = {"int": int, "float": float}.get(kind, str)(text)
    except ValueError:
        parsed.unknown[attribute] = text
        expected, hint = (
            ("an integer", "write all digits: Megatron does not accept 1e6 or 1M here")
            if kind == "int"
            else ("a number", "write a number such as 0.005")
        )
        message = f"{option} must be {expected}, got {shortened(repr(text))}"
        parsed.problems.append(Finding("arguments", "error", message, hint))
