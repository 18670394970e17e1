"""Options of Megatron's preprocess_data.py, for ``tokenize --preset megatron``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tokshard.errors import UsageError

_COMMAND = "tokenize"
_MEGATRON_PRESET = "megatron"

# Options of preprocess_data.py that have no effect here, and those that take no value.
_IGNORED = {"--log-interval", "--keep-sequential-samples"}
_SWITCHES = {"--split-sentences", "--keep-sequential-samples"}


def translate(arguments: Sequence[str]) -> list[str]:
    """Return a command line with our own options.

    Only ``tokenize`` with ``--preset megatron`` is changed; everything else is returned as it is.

    Raises:
        UsageError: An option of preprocess_data.py is not supported, or has no value.

    Example:
        >>> translate(["tokenize", "--preset=megatron", "--json-keys", "a", "b"])
        ['tokenize', '--preset=megatron', '--field', 'a', '--field', 'b']
    """
    words = list(arguments)
    if words[:1] != [_COMMAND] or not _has_preset(words):
        return words
    result = []
    position = 0
    while position < len(words):
        name, separator, value = words[position].partition("=")
        position += 1
        if name not in _TRANSLATIONS and name not in _IGNORED:
            result.append(words[position - 1])
            continue
        values = [value] if separator else []
        most = 0 if name in _SWITCHES else len(words) if name == "--json-keys" else 1
        while len(values) < most and position < len(words) and not _is_option(words[position]):
            values.append(words[position])
            position += 1
        if most and not values:
            raise UsageError(f"{name} requires a value", hint=f"pass {name} VALUE")
        if name in _TRANSLATIONS:
            result += _TRANSLATIONS[name](values)
    return result


def applies_to(command: str, option: str) -> bool:
    """Return whether a command takes an option with ``--preset megatron`` only."""
    return command == _COMMAND and (option in _TRANSLATIONS or option in _IGNORED)


def _has_preset(words: Sequence[str]) -> bool:
    pairs = zip(words, [*words[1:], ""], strict=True)
    return any(
        word == f"--preset={_MEGATRON_PRESET}" or (word == "--preset" and value == _MEGATRON_PRESET)
        for word, value in pairs
    )


def _is_option(word: str) -> bool:
    return word.startswith("-") and word != "-" and not word[1:].isdecimal()  # not stdin, not -1


def _tokenizer_type(values: list[str]) -> list[str]:
    if values != ["HuggingFaceTokenizer"]:
        _refuse(f"--tokenizer-type {' '.join(values)}", "pass --tokenizer-type HuggingFaceTokenizer")
    return []


def _partitions(values: list[str]) -> list[str]:
    if values != ["1"]:
        _refuse(
            f"--partitions {' '.join(values)}",
            "leave the option out: tokshard uses all cores without partitions, and keeps the order of the "
            "input",
        )
    return []


def _split_sentences(_: list[str]) -> list[str]:
    _refuse(
        "--split-sentences",
        "split the text into sentences first: a list of texts is a document of several sequences",
    )
    return []


def _fields(keys: list[str]) -> list[str]:
    # A dot in a key of --json-keys is part of it; in --field it separates keys.
    escaped = [key.replace("\\", "\\\\").replace(".", "\\.") for key in keys]
    return [word for field in escaped for word in ("--field", field)]


def _refuse(option: str, why: str) -> None:
    raise UsageError(f"{option} is not supported", hint=why)


_TRANSLATIONS: dict[str, Callable[[list[str]], list[str]]] = {
    "--input": lambda values: values,
    "--output-prefix": lambda values: ["--output", *values],
    "--json-keys": _fields,
    "--tokenizer-type": _tokenizer_type,
    "--tokenizer-model": lambda values: ["--tokenizer", *values],
    "--partitions": _partitions,
    "--split-sentences": _split_sentences,
}
