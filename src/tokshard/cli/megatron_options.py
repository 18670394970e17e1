"""Options of Megatron's preprocess_data.py, for ``tokenize --preset megatron``.

They are translated before the command line is parsed. The options of a tokenizer have other meanings in each
version of Megatron.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import NamedTuple

from tokshard.core.megatron_rules import MEGATRON_VERSIONS, is_at_least, known_version
from tokshard.core.options import all_options
from tokshard.errors import UsageError

COMMAND = "tokenize"
_VERSION_OPTION = "--megatron"
NEWEST = MEGATRON_VERSIONS[-1]
_ANY_NUMBER = sys.maxsize
_HUGGING_FACE = "HuggingFaceTokenizer"
_OTHER_TYPE = f"pass --tokenizer-type {_HUGGING_FACE} --tokenizer-model DIRECTORY"
_ADD_TOKENS = (
    "add the tokens with transformers (add_special_tokens, then save_pretrained(DIRECTORY)), and "
    f"{_OTHER_TYPE}"
)
_OTHER_FILES = "leave the option out: the files of --tokenizer-model are used"
_WHITE_SPACE = (
    "leave the option out: the model decides about white space; train one that keeps it "
    "(--remove_extra_whitespaces=false)"
)
_SAVE_BERT = (
    "save it as a tokenizer.json with transformers: BertTokenizerFast(vocab_file=..., do_lower_case={}).save_"
    f"pretrained(DIRECTORY); then {_OTHER_TYPE}"
)


_Given = dict[str, list[str]]  # the values of each option


class _Option(NamedTuple):
    """An option of any version's preprocess_data.py that is not tokenize's own.

    Attributes:
        values: The largest number of values.
        hint: The hint of the error if the option is not supported.
        accepted: The only supported value of an option with a hint.
        versions: The first and the last Megatron version with the option, if it changes ids.
    """

    values: int
    hint: str | None = None
    accepted: str | None = None
    versions: tuple[str, str] = (MEGATRON_VERSIONS[0], NEWEST)


# Options that all versions take, by their number of values.
_ACCEPTED = {
    0: "--disable-pad-vocab-size --disable-tokenizer-sentencepiece-ignore-extra-whitespaces --keep-newlines "
    "--keep-sequential-samples --no-pad-vocab-size --no-tokenizer-sentencepiece-ignore-extra-whitespaces "
    "--tokenizer-hf-no-include-special-tokens --tokenizer-hf-no-use-fast --tokenizer-hf-use-fast "
    "--tokenizer-sentencepiece-legacy --trust-remote-code",
    1: "--chat-template --input --lang --log-interval --make-vocab-size-divisible-by --max-documents "
    "--null-tokenizer-pad-id --output-prefix --pad-vocab-size-to --padded-vocab-size --tokenizer-model "
    "--tokenizer-type --vocab-extra-ids",
    _ANY_NUMBER: "--json-keys --workers-to-check",
}
OPTIONS = {name: _Option(values) for values, names in _ACCEPTED.items() for name in names.split()} | {
    "--dataset-impl": _Option(
        1, "pass --dataset-impl mmap, or leave the option out: Megatron Core reads no other format", "mmap"
    ),
    "--find-optimal-num-workers": _Option(
        0, "leave the option out: tokshard uses all cores; pass --workers N for fewer"
    ),
    "--legacy-tokenizer": _Option(0, versions=("0.15", "0.16")),
    "--merge-file": _Option(1),
    "--null-tokenizer-eod-id": _Option(1, versions=("0.18", NEWEST)),
    "--partitions": _Option(
        1,
        "leave the option out: tokshard uses all cores without partitions, and keeps the order of the input",
        "1",
    ),
    "--split-sentences": _Option(
        0, "split the text into sentences first: a list of texts is a document of several sequences"
    ),
    "--tiktoken-num-special-tokens": _Option(1),
    "--tiktoken-pattern": _Option(1),
    "--tiktoken-special-tokens": _Option(_ANY_NUMBER, versions=("0.15", "0.17")),
    # From 0.18 on this is the default and has no effect.
    "--tokenizer-hf-include-special-tokens": _Option(0, versions=("0.16", NEWEST)),
    "--tokenizer-metadata": _Option(1, "leave the option out, and pass the type with --tokenizer-type"),
    "--tokenizer-special-tokens": _Option(_ANY_NUMBER, versions=("0.16", NEWEST)),
    "--use-gigatoken": _Option(
        0,
        "leave the option out: tokshard has its own fast encoder, which is compared with the tokenizer's "
        "library",
    ),
    "--vocab-file": _Option(1),
    "--vocab-size": _Option(1),
}

_SENTENCEPIECE = {
    "--tokenizer-special-tokens": _ADD_TOKENS,
    "--no-tokenizer-sentencepiece-ignore-extra-whitespaces": _WHITE_SPACE,
    "--disable-tokenizer-sentencepiece-ignore-extra-whitespaces": _WHITE_SPACE,
}
# Options that a tokenizer type does not support, with hints.
_TYPES = {
    _HUGGING_FACE: {
        "--tokenizer-special-tokens": _ADD_TOKENS,
        "--vocab-file": _OTHER_FILES,
        "--merge-file": _OTHER_FILES,
    },
    "GPT2BPETokenizer": {
        "--tokenizer-special-tokens": _ADD_TOKENS,
        "--legacy-tokenizer": "leave the option out: only text that spells <|endoftext|> has other ids",
    },
    "GPTSentencePieceTokenizer": _SENTENCEPIECE,
    "Llama2Tokenizer": _SENTENCEPIECE,
    "NullTokenizer": {},
    "SentencePieceTokenizer": {
        **_SENTENCEPIECE,
        "--legacy-tokenizer": "leave the option out: text that spells <CLS>, <SEP>, <EOD> or <MASK> stays "
        "text, and the EOD token is the model's",
    },
    "TikTokenizer": {
        "--legacy-tokenizer": "leave the option out: only text that spells a special token, such as <mask>, "
        "has other ids",
    },
}
_REFUSED_TYPES = {
    "BertWordPieceCase": _SAVE_BERT.format(False),
    "BertWordPieceLowerCase": _SAVE_BERT.format(True),
    "MultimodalTokenizer": f"to tokenize text, {_OTHER_TYPE} with the tokenizer of the language model",
    "NullMultimodalTokenizer": "pass --tokenizer-type NullTokenizer: the ids of text are the same",
    "SFTTokenizer": f"write each conversation as one text with its chat template, and {_OTHER_TYPE}",
}


def translate(arguments: Sequence[str]) -> list[str]:
    """Return a command line with our own options.

    Only ``tokenize`` with ``--preset megatron`` is changed; everything else is returned as it is. A command
    line that was translated stays the same.

    Raises:
        UsageError: An option of preprocess_data.py is not supported, or has no value.

    Example:
        >>> translate(["tokenize", "--preset=megatron", "--input", "a.jsonl"])
        ['tokenize', '--no-append-eod', '--no-special-tokens', 'a.jsonl', '--preset=megatron']
    """
    words = list(arguments)
    if not uses_preset(words):
        return words
    is_typed = _value_of("--tokenizer-type", words) is not None
    from tokshard import TokenizeOptions  # only with the preset, or every command would load it

    # Without a tokenizer type, what tokenize has under the same name is its own.
    own = frozenset() if is_typed else {found.name for found in all_options(TokenizeOptions)}
    options = OPTIONS.keys() - own
    given, others = _parse(words[1:], options)
    version = known_version(_value_of(_VERSION_OPTION, words) or NEWEST)
    _check(given, version)
    # Own options come last: the last of two counts.
    tokenizer = _tokenizer(given, version, _value_of("--tokenizer", words))
    return [COMMAND, "--no-append-eod", *tokenizer, *_data(given), *others]


def uses_preset(words: Sequence[str]) -> bool:
    """Return whether a command line has ``--preset megatron``."""
    return list(words[:1]) == [COMMAND] and _value_of("--preset", words) == "megatron"


def rules_of_preset(version: str | None, *, is_used: bool) -> str | None:
    """Return the name of the rules that the preset follows, for people; None if it is not used.

    Args:
        version: Megatron's version, if one is given.
        is_used: Whether the preset is.

    Raises:
        UsageError: The version is unknown, or has no effect.
    """
    if not is_used and version is not None:
        raise UsageError(f"{_VERSION_OPTION} requires --preset megatron", hint="add --preset megatron")
    return f"the rules of Megatron {known_version(version or NEWEST)}" if is_used else None


def _value_of(option: str, words: Sequence[str]) -> str | None:
    result = None
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, separator, value = word.partition("=")
        if name == option:
            result = value if separator else following
    return result


def _parse(words: Sequence[str], options: Collection[str]) -> tuple[_Given, list[str]]:
    """Return Megatron's options with their values, and all other words."""
    given: _Given = {}
    others: list[str] = []
    position = 0
    while position < len(words):
        name, separator, value = words[position].partition("=")
        if name == "--":
            others += words[position:]
            break
        position += 1
        if name not in options:
            others.append(words[position - 1])
            continue
        values = [value] if separator else []
        most = OPTIONS[name].values
        if len(values) > most:
            raise UsageError(f"{name} takes no value", hint=f"pass {name} alone")
        while len(values) < most and position < len(words) and not _is_option(words[position]):
            values.append(words[position])
            position += 1
        if most and not values:
            raise UsageError(f"{name} requires a value", hint=f"pass {name} VALUE")
        given[name] = values
    return given, others


def _is_option(word: str) -> bool:
    return word.startswith("-") and word != "-" and not word[1:].isdecimal()  # not stdin, not -1


def _check(given: _Given, version: str) -> None:
    for name, values in given.items():
        option = OPTIONS[name]
        if option.hint is not None and values != [option.accepted]:
            _refuse(f"{name} {values[0]}" if option.accepted else name, option.hint)
        first, last = option.versions
        if not (is_at_least(version, first) and is_at_least(last, version)):
            raise UsageError(
                f"the preprocess_data.py of Megatron {version} has no option {name}",
                hint=f"pass {_VERSION_OPTION} with the version of your script ({first} to {last} have the "
                "option), or leave the option out",
            )


def _data(given: _Given) -> list[str]:
    words = [*given.get("--input", ())]
    if "--output-prefix" in given:
        words += ["--output", *given["--output-prefix"]]
    for key in given.get("--json-keys", ()):
        # A dot in a key of --json-keys is part of it; in --field it separates keys.
        words += ["--field", key.replace("\\", "\\\\").replace(".", "\\.")]
    return words


def _tokenizer(given: _Given, version: str, own_tokenizer: str | None) -> list[str]:
    (kind,) = given.get("--tokenizer-type", [None])
    if kind in _REFUSED_TYPES:
        _refuse(f"--tokenizer-type {kind}", _REFUSED_TYPES[kind])
    if kind is not None and kind not in _TYPES:
        types = ", ".join(_TYPES)
        raise UsageError(f"--tokenizer-type must be one of {types}, got {kind!r}", hint=_OTHER_TYPE)
    for option, hint in _TYPES.get(kind or "", {}).items():
        if option in given:
            _refuse(f"{option} with {kind}", hint)
    if kind == "NullTokenizer":
        return [*_null(given, version), "--no-special-tokens"]
    if kind == "GPT2BPETokenizer":
        words = _words(given, "--vocab-file", "--merge-file")
        if len(words) < 4:
            hint = "pass both files: tokshard downloads none"
            raise UsageError(f"{kind} requires --vocab-file and --merge-file", hint=hint)
        return [*words, "--no-special-tokens"]
    (model,) = given.get("--tokenizer-model", [None])
    words = [] if model is None else ["--tokenizer", model]
    adds = _adds_special_tokens(given, version)
    if kind is None:
        # The file decides about the type. These have no template of special tokens.
        adds = adds and not (model or own_tokenizer or ".tiktoken").endswith((".model", ".tiktoken"))
    elif kind == "TikTokenizer":
        words += _words(given, "--tiktoken-pattern", "--tiktoken-num-special-tokens", "--vocab-size")
        # Only 0.15 reads the second one: 0.16 and 0.17 have it without effect.
        name = "--tokenizer-special-tokens" if is_at_least(version, "0.16") else "--tiktoken-special-tokens"
        words += [word for token in given.get(name, ()) for word in ("--tiktoken-special-tokens", token)]
        adds = False
    elif kind != _HUGGING_FACE:
        # Files beside the model may name other BOS and EOS tokens; Megatron does not read them.
        words.append("--no-files-beside")
        adds = kind == "Llama2Tokenizer" and "--legacy-tokenizer" in given
    return [*words, "--special-tokens" if adds else "--no-special-tokens"]


def _adds_special_tokens(given: _Given, version: str) -> bool:
    if "--legacy-tokenizer" in given:
        return True
    if not is_at_least(version, "0.17"):
        return "--tokenizer-hf-include-special-tokens" in given
    return "--tokenizer-hf-no-include-special-tokens" not in given


def _words(given: _Given, *options: str) -> list[str]:
    """Return those options that are given, with their values."""
    return [word for name in options if name in given for word in (name, *given[name])]


def _null(given: _Given, version: str) -> list[str]:
    size = _integer(given, "--vocab-size")
    if size is None:
        raise UsageError("NullTokenizer requires --vocab-size", hint="pass --vocab-size N")
    if not is_at_least(version, "0.18"):
        # Its vocabulary is one larger than the option, for the EOD token.
        return ["--tokenizer", f"null:{size + 1}"]
    eod = _integer(given, "--null-tokenizer-eod-id")
    return ["--tokenizer", f"null:{size}", "--eod", str(size - 1 if eod is None else eod)]


def _integer(given: _Given, option: str) -> int | None:
    (value,) = given.get(option, [None])
    try:
        return None if value is None else int(value)
    except ValueError:
        raise UsageError(f"{option} must be an integer, got {value!r}") from None


def _refuse(option: str, hint: str) -> None:
    raise UsageError(f"{option} is not supported", hint=hint)
