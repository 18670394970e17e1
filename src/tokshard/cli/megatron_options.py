"""Options of Megatron's preprocess_data.py, for ``tokenize --preset megatron``.

The options of a tokenizer mean something else in each version of Megatron; the rules are the functions of
the types here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from tokshard.core.megatron_versions import MEGATRON_VERSIONS, is_at_least, known_version
from tokshard.errors import UsageError

_COMMAND = "tokenize"
_MEGATRON_PRESET = "megatron"
_VERSION_OPTION = "--megatron"
NEWEST = MEGATRON_VERSIONS[-1]

# Options of any version's preprocess_data.py that are not tokenize's own, by their number of values.
_SWITCHES = frozenset(
    {
        "--disable-pad-vocab-size",
        "--disable-tokenizer-sentencepiece-ignore-extra-whitespaces",
        "--find-optimal-num-workers",
        "--keep-newlines",
        "--keep-sequential-samples",
        "--legacy-tokenizer",
        "--no-pad-vocab-size",
        "--no-tokenizer-sentencepiece-ignore-extra-whitespaces",
        "--split-sentences",
        "--tokenizer-hf-include-special-tokens",
        "--tokenizer-hf-no-include-special-tokens",
        "--tokenizer-hf-no-use-fast",
        "--tokenizer-hf-use-fast",
        "--tokenizer-sentencepiece-legacy",
        "--trust-remote-code",
        "--use-gigatoken",
    }
)
_WITH_A_VALUE = frozenset(
    {
        "--chat-template",
        "--dataset-impl",
        "--input",
        "--lang",
        "--log-interval",
        "--make-vocab-size-divisible-by",
        "--max-documents",
        "--merge-file",
        "--null-tokenizer-eod-id",
        "--null-tokenizer-pad-id",
        "--output-prefix",
        "--pad-vocab-size-to",
        "--padded-vocab-size",
        "--partitions",
        "--tiktoken-num-special-tokens",
        "--tiktoken-pattern",
        "--tokenizer-metadata",
        "--tokenizer-model",
        "--tokenizer-type",
        "--vocab-extra-ids",
        "--vocab-file",
        "--vocab-size",
    }
)
_WITH_VALUES = frozenset(
    {"--json-keys", "--tiktoken-special-tokens", "--tokenizer-special-tokens", "--workers-to-check"}
)
_OPTIONS = _SWITCHES | _WITH_A_VALUE | _WITH_VALUES

# Tokenize has these, too: without a tokenizer type they are its own.
_SHARED = frozenset(
    {
        "--merge-file",
        "--tiktoken-num-special-tokens",
        "--tiktoken-pattern",
        "--tiktoken-special-tokens",
        "--vocab-file",
        "--vocab-size",
    }
)

# Options that change ids and that only some versions have: the first and the last of them.
_VERSIONS_OF_OPTIONS = {
    "--legacy-tokenizer": ("0.15", "0.16"),
    "--null-tokenizer-eod-id": ("0.18", NEWEST),
    "--tiktoken-special-tokens": ("0.15", "0.17"),
    "--tokenizer-hf-include-special-tokens": ("0.16", NEWEST),  # from 0.18 it is the default only
    "--tokenizer-special-tokens": ("0.16", NEWEST),
}
_HUGGING_FACE = "HuggingFaceTokenizer"
_OTHER_TYPE = f"pass --tokenizer-type {_HUGGING_FACE} --tokenizer-model DIRECTORY"
_SAVE_BERT = (
    "save it as a tokenizer.json with transformers: BertTokenizerFast(vocab_file=..., do_lower_case={}).save_"
    f"pretrained(DIRECTORY); then {_OTHER_TYPE}"
)
_REFUSED_TYPES = {
    "BertWordPieceCase": _SAVE_BERT.format(False),
    "BertWordPieceLowerCase": _SAVE_BERT.format(True),
    "MultimodalTokenizer": f"to tokenize text, {_OTHER_TYPE} with the tokenizer of the language model",
    "NullMultimodalTokenizer": "pass --tokenizer-type NullTokenizer: the ids of text are the same",
    "SFTTokenizer": f"write each conversation as one text with its chat template, and {_OTHER_TYPE}",
}
_REFUSED_OPTIONS = {
    "--find-optimal-num-workers": "leave the option out: tokshard uses all cores; pass --workers N for fewer",
    "--split-sentences": "split the text into sentences first: a list of texts is a document of several "
    "sequences",
    "--tokenizer-metadata": "leave the option out, and pass the type with --tokenizer-type",
    "--use-gigatoken": "leave the option out: tokshard has its own fast encoder, which is compared with the "
    "tokenizer's library",
}


def translate(arguments: Sequence[str]) -> list[str]:
    """Return a command line with our own options.

    Only ``tokenize`` with ``--preset megatron`` is changed; everything else is returned as it is. A command
    line that was translated stays the same.

    Raises:
        UsageError: An option of preprocess_data.py is not supported, or has no value.

    Example:
        >>> translate(["tokenize", "--preset=megatron", "--megatron=0.16", "--input", "a.jsonl"])
        ['tokenize', '--no-special-tokens', 'a.jsonl', '--preset=megatron', '--megatron=0.16']
    """
    words = list(arguments)
    if words[:1] != [_COMMAND] or _value_of("--preset", words) != _MEGATRON_PRESET:
        return words
    has_type = _value_of("--tokenizer-type", words) is not None
    given, others = _parse(words[1:], _OPTIONS if has_type else _OPTIONS - _SHARED)
    version = known_version(_value_of(_VERSION_OPTION, words) or NEWEST)
    script = _Script(version, given, _value_of("--tokenizer", words))
    _check(script)
    # Own options come last: the last of two counts.
    return [_COMMAND, *_tokenizer(script), *_other_words(script), *others]


def applies_to(command: str, option: str) -> bool:
    """Return whether a command takes an option with ``--preset megatron`` only."""
    return command == _COMMAND and option in _OPTIONS - _SHARED


def options_of_preset(command: str, words: Sequence[str]) -> frozenset[str]:
    """Return Megatron's options if a command line uses the preset; else no options."""
    is_used = command == _COMMAND and _value_of("--preset", words) == _MEGATRON_PRESET
    return _OPTIONS if is_used else frozenset()


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
    found = None
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, separator, value = word.partition("=")
        if name == option:
            found = value if separator else following
    return found


def _parse(words: Sequence[str], options: Collection[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Return Megatron's options with their values, and all other words."""
    given: dict[str, list[str]] = {}
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
        if name in _SWITCHES and values:
            raise UsageError(f"{name} takes no value", hint=f"pass {name} alone")
        most = 0 if name in _SWITCHES else len(words) if name in _WITH_VALUES else 1
        while len(values) < most and position < len(words) and not _is_option(words[position]):
            values.append(words[position])
            position += 1
        if most and not values:
            raise UsageError(f"{name} requires a value", hint=f"pass {name} VALUE")
        given[name] = values
    return given, others


def _is_option(word: str) -> bool:
    return word.startswith("-") and word != "-" and not word[1:].isdecimal()  # not stdin, not -1


@dataclass(frozen=True)
class _Script:
    # A command line of the preprocess_data.py of a version.
    version: str
    given: dict[str, list[str]]
    own_tokenizer: str | None

    def has(self, option: str) -> bool:
        return option in self.given

    def value(self, option: str) -> str | None:
        values = self.given.get(option)
        return values[0] if values else None

    def integer(self, option: str) -> int | None:
        value = self.value(option)
        if value is None:
            return None
        try:
            return int(value)
        except ValueError:
            raise UsageError(f"{option} must be an integer, got {value!r}") from None

    def is_at_least(self, version: str) -> bool:
        return is_at_least(self.version, version)


def _check(script: _Script) -> None:
    for option, alternative in _REFUSED_OPTIONS.items():
        if script.has(option):
            _refuse(option, alternative)
    if (partitions := script.value("--partitions")) not in (None, "1"):
        _refuse(
            f"--partitions {partitions}",
            "leave the option out: tokshard uses all cores without partitions, and keeps the order of the "
            "input",
        )
    if (kind := script.value("--dataset-impl")) not in (None, "mmap"):
        _refuse(
            f"--dataset-impl {kind}",
            "pass --dataset-impl mmap, or leave the option out: Megatron Core reads no other format",
        )
    for option, (first, last) in _VERSIONS_OF_OPTIONS.items():
        known = script.is_at_least(first) and is_at_least(last, script.version)
        if script.has(option) and not known:
            raise UsageError(
                f"the preprocess_data.py of Megatron {script.version} has no option {option}",
                hint=f"pass {_VERSION_OPTION} with the version of your script ({first} to {last} have the "
                "option), or leave the option out",
            )


def _other_words(script: _Script) -> list[str]:
    words = []
    if (path := script.value("--input")) is not None:
        words.append(path)
    if (prefix := script.value("--output-prefix")) is not None:
        words += ["--output", prefix]
    for key in script.given.get("--json-keys", ()):
        # A dot in a key of --json-keys is part of it; in --field it separates keys.
        words += ["--field", key.replace("\\", "\\\\").replace(".", "\\.")]
    return words


def _tokenizer(script: _Script) -> list[str]:
    kind = script.value("--tokenizer-type")
    if kind in _REFUSED_TYPES:
        _refuse(f"--tokenizer-type {kind}", _REFUSED_TYPES[kind])
    if kind is None:
        return _untyped(script)
    if kind not in _TYPES:
        raise UsageError(
            f"--tokenizer-type must be one of {', '.join(_TYPES)}, got {kind!r}", hint=_OTHER_TYPE
        )
    return _TYPES[kind](script)


def _untyped(script: _Script) -> list[str]:
    # The file decides about the type. These have no template of special tokens.
    model = script.value("--tokenizer-model") or script.own_tokenizer or ".tiktoken"
    adds = _adds_special_tokens(script) and not model.endswith((".model", ".tiktoken"))
    return [*_model(script), "--special-tokens" if adds else "--no-special-tokens"]


def _hugging_face(script: _Script) -> list[str]:
    _refuse_extra_tokens(script)
    for option in ("--vocab-file", "--merge-file"):
        if script.has(option):
            _refuse(
                f"{option} with {_HUGGING_FACE}",
                "leave the option out: the files of --tokenizer-model are used",
            )
    return [*_model(script), "--special-tokens" if _adds_special_tokens(script) else "--no-special-tokens"]


def _adds_special_tokens(script: _Script) -> bool:
    if script.has("--legacy-tokenizer"):
        return True
    if not script.is_at_least("0.17"):
        return script.has("--tokenizer-hf-include-special-tokens")
    return not script.has("--tokenizer-hf-no-include-special-tokens")


def _sentencepiece(script: _Script) -> list[str]:
    _refuse_extra_tokens(script)
    is_legacy, kind = script.has("--legacy-tokenizer"), script.value("--tokenizer-type")
    if is_legacy and kind == "SentencePieceTokenizer":
        _refuse(
            f"--legacy-tokenizer with {kind}",
            "leave the option out: text that spells <CLS>, <SEP>, <EOD> or <MASK> stays text, and the EOD "
            "token is the model's",
        )
    for prefix in ("--no", "--disable"):
        option = f"{prefix}-tokenizer-sentencepiece-ignore-extra-whitespaces"
        if script.has(option):
            _refuse(
                option,
                "leave the option out: the model decides about white space; train one that keeps it "
                "(--remove_extra_whitespaces=false)",
            )
    adds_bos = is_legacy and kind == "Llama2Tokenizer"
    # Files beside the model may name other BOS and EOS tokens; Megatron does not read them.
    return [*_model(script), "--no-files-beside", "--special-tokens" if adds_bos else "--no-special-tokens"]


def _tiktoken(script: _Script) -> list[str]:
    if script.has("--legacy-tokenizer"):
        _refuse(
            "--legacy-tokenizer with TikTokenizer",
            "leave the option out: only text that spells a special token, such as <mask>, has other ids",
        )
    words = _model(script)
    for option in ("--tiktoken-pattern", "--tiktoken-num-special-tokens", "--vocab-size"):
        if (value := script.value(option)) is not None:
            words += [option, value]
    # Only 0.15 has the first name; in 0.16 and 0.17 it is without effect.
    name = "--tokenizer-special-tokens" if script.is_at_least("0.16") else "--tiktoken-special-tokens"
    words += [word for token in script.given.get(name, ()) for word in ("--tiktoken-special-tokens", token)]
    return [*words, "--no-special-tokens"]


def _gpt2(script: _Script) -> list[str]:
    _refuse_extra_tokens(script)
    if script.has("--legacy-tokenizer"):
        _refuse(
            "--legacy-tokenizer with GPT2BPETokenizer",
            "leave the option out: only text that spells <|endoftext|> has other ids",
        )
    files = [(option, script.value(option)) for option in ("--vocab-file", "--merge-file")]
    words = [word for option, value in files if value is not None for word in (option, value)]
    if len(words) < 4:
        raise UsageError(
            "GPT2BPETokenizer requires --vocab-file and --merge-file",
            hint="pass both files: tokshard downloads none",
        )
    return [*words, "--no-special-tokens"]


def _null(script: _Script) -> list[str]:
    size = script.integer("--vocab-size")
    if size is None:
        raise UsageError("NullTokenizer requires --vocab-size", hint="pass --vocab-size N")
    if not script.is_at_least("0.18"):
        # Its vocabulary is one larger than the option, for the EOD token.
        return ["--tokenizer", f"null:{size + 1}", "--no-special-tokens"]
    eod = script.integer("--null-tokenizer-eod-id")
    return [
        "--tokenizer",
        f"null:{size}",
        "--eod",
        str(size - 1 if eod is None else eod),
        "--no-special-tokens",
    ]


def _refuse_extra_tokens(script: _Script) -> None:
    if script.has("--tokenizer-special-tokens"):
        _refuse(
            "--tokenizer-special-tokens",
            "add the tokens with transformers (add_special_tokens, then save_pretrained(DIRECTORY)), and "
            f"{_OTHER_TYPE}",
        )


def _model(script: _Script) -> list[str]:
    model = script.value("--tokenizer-model")
    return [] if model is None else ["--tokenizer", model]


def _refuse(option: str, why: str) -> None:
    raise UsageError(f"{option} is not supported", hint=why)


_TYPES: dict[str, Callable[[_Script], list[str]]] = {
    _HUGGING_FACE: _hugging_face,
    "GPT2BPETokenizer": _gpt2,
    "GPTSentencePieceTokenizer": _sentencepiece,
    "Llama2Tokenizer": _sentencepiece,
    "NullTokenizer": _null,
    "SentencePieceTokenizer": _sentencepiece,
    "TikTokenizer": _tiktoken,
}
