"""What transformers, Megatron's wrapper of it and tokshard give for a tokenizer directory."""

import hashlib
import importlib
import json
from dataclasses import dataclass

from support.tokenizer_definitions import lists_of
from tokshard import TokenizeOptions
from tokshard.errors import TokshardError
from tokshard.text.tokenize.choice import choose_encoding
from tokshard.text.tokenizer.encoders import reference_encoder

WAYS = [(megatron, special) for megatron in (False, True) for special in (False, True)]
"""Whether Megatron's wrapper and the preset are compared, and whether texts get special tokens."""

PART_TEXTS = 150
"""The number of texts of the part that CI compares, whose ids tests/golden/tokenizer_directories records."""


@dataclass
class Reading:
    """What a tokenizer gives: its size, the id of its EOD token, and the ids of texts."""

    size: int
    eod: int | None
    ids: list

    def digest(self):
        """Return the ids of all texts as one short text."""
        return hashlib.sha256(json.dumps(self.ids).encode()).hexdigest()[:16]


def expected_reading(path, texts, *, megatron, special):
    """Return the reading of AutoTokenizer, or of Megatron; the message of the failure if it has none."""
    try:
        return (_megatron if megatron else _transformers)(path, texts, special=special)
    except (KeyboardInterrupt, ModuleNotFoundError):
        raise
    except BaseException as error:  # also panics of Rust code
        return f"{type(error).__name__}: {error}".replace(path, "DIRECTORY")


def _transformers(path, texts, *, special):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    end = tokenizer.eos_token if tokenizer.eos_token is not None else tokenizer.sep_token
    eod = None if end is None else tokenizer.convert_tokens_to_ids([str(end)])[0]
    return Reading(len(tokenizer), eod, tokenizer(texts, add_special_tokens=special).input_ids)


def _megatron(path, texts, *, special):
    module = importlib.import_module("megatron.core.tokenizers.text.libraries.huggingface_tokenizer")
    tokenizer = module.HuggingFaceTokenizer(path, use_fast=True, include_special_tokens=special)
    return Reading(tokenizer.vocab_size, tokenizer.eod, [tokenizer.text_to_ids(text) for text in texts])


def tokshard_reading(path, texts, *, megatron, special):
    """Return tokshard's reading, and whether tokenizer.json was enough for it."""
    options = TokenizeOptions(
        inputs="in",
        output="out",
        tokenizer=path,
        special_tokens=special,
        append_eod=False,
        preset="megatron" if megatron else None,
    )
    tokenizer = choose_encoding(options, []).tokenizer
    ids = lists_of(reference_encoder(tokenizer, special_tokens=special).encode(texts))
    return Reading(
        tokenizer.identity.vocab_size, tokenizer.identity.eod_id, ids
    ), tokenizer.identity.transformers is None


def compare(path, texts, *, megatron, special):
    """Return the state of a written directory, and the reason for it.

    It is "plain" if tokenizer.json was enough for equal ids, "read" if transformers was needed, "refused",
    "refused by both", or "DIFFERENT". It is "one version" if tokenizer.json was enough, but this version of
    transformers refuses the directory: then the other must read it.
    """
    expected = expected_reading(path, texts, megatron=megatron, special=special)
    is_refused = isinstance(expected, str)
    try:
        reading, is_plain = tokshard_reading(path, texts, megatron=megatron, special=special)
    except TokshardError as error:
        return "refused by both" if is_refused else "refused", str(error).replace(path, "DIRECTORY")
    if is_refused:
        return (
            "one version" if is_plain else "DIFFERENT",
            f"transformers refuses it: {expected.splitlines()[0]}",
        )
    if words := difference(reading, expected, texts):
        return "DIFFERENT", words
    return "plain" if is_plain else "read", ""


def difference(reading, expected, texts):
    """Return what differs between two readings, in words."""
    triples = zip(texts, reading.ids, expected.ids, strict=True)
    if wrong := [(text, ours, theirs) for text, ours, theirs in triples if ours != theirs]:
        text, ours, theirs = min(wrong, key=lambda triple: len(triple[0]))
        return f"{len(wrong)} texts, such as {text!r}: {ours[:12]} instead of {theirs[:12]}"
    if reading.size != expected.size:
        return f"size {reading.size} instead of {expected.size}"
    # The user must name an EOD token that tokshard does not find; Megatron cannot append one that it lacks.
    if None not in {reading.eod, expected.eod} and reading.eod != expected.eod:
        return f"EOD token {reading.eod} instead of {expected.eod}"
    return ""
