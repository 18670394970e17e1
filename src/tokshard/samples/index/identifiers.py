"""A tokenizer's identifiers: the part of a cache's name that only the training environment knows.

Megatron hashes the identifiers that its tokenizer object reports, and they change with its version. The
reliable source is a job: ``python -m tokshard.dump_tokenizer_identifiers`` prints them inside a training
container, and each ``description.txt`` of a cache contains them. The presets here are the identifiers that
Megatron's training script hashes if the only tokenizer options are its type, its model and (for the null
tokenizer) its vocabulary size.
"""

from __future__ import annotations

from typing import Any

from tokshard.core.codec import decode
from tokshard.core.megatron_rules import MEGATRON_VERSIONS, known_version
from tokshard.errors import InputError, IntegrityError, MissingFileError, UsageError
from tokshard.storage.reading import read_json_object

HUGGING_FACE = "HuggingFaceTokenizer"
NULL = "NullTokenizer"

NEUTRAL = "tokshard"
"""The class in the names of indexes that are for no Megatron job."""

_DEFAULT_CLASS = "megatron.core.tokenizers.text.models.default_tokenizer.DefaultTokenizerText"
_TEXT_CLASS = "megatron.core.tokenizers.text.text_tokenizer.MegatronTokenizerText"
_OTHER_WAYS = (
    "pass --tokenizer-identifiers FILE (python -m tokshard.dump_tokenizer_identifiers writes it in the "
    "training environment), or --like with a description.txt of that job"
)


_FILES = {"vocab_file": None, "merges_file": None}
_TEMPLATE = {"chat_template": None}


def _hub(*, use_fast: bool, include_special_tokens: bool) -> dict[str, Any]:
    return {
        "additional_special_tokens": [],
        "use_fast": use_fast,
        "trust_remote_code": False,
        "include_special_tokens": include_special_tokens,
    }


# 0.16 switches fast tokenizers and special tokens on by options of the command line, later versions off.
_HUB_BY_ASKING = _hub(use_fast=False, include_special_tokens=False)
_HUB = _hub(use_fast=True, include_special_tokens=True)
_NULL_EARLY = {"vocab_size": None}
# From 0.18 the command line always hands over a pad id, -1 where none is given.
_NULL_LATE = {"vocab_size": None, "eod_id": None, "pad_id": -1}

_RULES: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    (_DEFAULT_CLASS, _FILES, _NULL_EARLY),  # 0.15
    (_DEFAULT_CLASS, {**_FILES, **_HUB_BY_ASKING}, _NULL_EARLY),  # 0.16
    (_DEFAULT_CLASS, {**_FILES, **_HUB}, _NULL_EARLY),  # 0.17
    (_DEFAULT_CLASS, {**_TEMPLATE, **_FILES, **_HUB}, _NULL_LATE),  # 0.18
    (_DEFAULT_CLASS, {**_TEMPLATE, **_FILES, **_HUB}, _NULL_LATE),  # 0.19
    (_TEXT_CLASS, {**_TEMPLATE, **_FILES, **_HUB, "use_gigatoken": False}, _NULL_LATE),  # main
)
# The class and the options of the tokenizer by version and type.
_PRESETS = {
    version: {HUGGING_FACE: (name, hugging_face), NULL: (name, null)}
    for version, (name, hugging_face, null) in zip(MEGATRON_VERSIONS, _RULES, strict=True)
}


def megatron_identifiers(
    version: str, tokenizer_type: str, tokenizer_model: str | None = None, **options: Any
) -> dict[str, Any]:
    """Return the identifiers that a version of Megatron gives a tokenizer.

    Args:
        version: One of :data:`tokshard.core.megatron_rules.MEGATRON_VERSIONS`, or a patch release of one,
            as in ``"0.16.1"``.
        tokenizer_type: ``"HuggingFaceTokenizer"`` or ``"NullTokenizer"``.
        tokenizer_model: The string that the training job gives as ``--tokenizer-model``, unchanged: a
            relative path and an absolute one make different names.
        options: What differs from Megatron's defaults, by the names that identifiers have:
            ``vocab_file``, ``merges_file``, ``additional_special_tokens`` (a list), ``use_fast``,
            ``trust_remote_code``, ``include_special_tokens``, ``chat_template``, ``use_gigatoken``; for
            the null tokenizer ``vocab_size`` (always needed), and from 0.18 ``eod_id`` and ``pad_id``,
            of which None leaves one out.

    Raises:
        UsageError: The version or type has no preset, the version has no such option, or something is
            missing.

    Example:
        >>> megatron_identifiers("0.16", "NullTokenizer", vocab_size=50257)["vocab_size"]
        '50257'
        >>> list(megatron_identifiers("0.15", "HuggingFaceTokenizer", "/models/gpt2"))
        ['class', 'tokenizer_path', 'vocab_file', 'merges_file']
    """
    class_name, defaults = _preset(version, tokenizer_type)
    if unknown := sorted(options.keys() - defaults.keys()):
        raise UsageError(
            f"Megatron {version} has no option {unknown[0]!r} of {tokenizer_type}",
            hint=f"use one of {', '.join(defaults)}",
        )
    if tokenizer_type == NULL:
        if not options.get("vocab_size"):
            raise UsageError(
                "--vocab-size is required: the identifiers of NullTokenizer contain it",
                hint="pass --vocab-size N as in the job",
            )
    elif not tokenizer_model:
        raise UsageError(
            f"--tokenizer-model is required: the identifiers of {tokenizer_type} contain it",
            hint="pass --tokenizer-model PATH, written exactly as in the job",
        )
    values = {name: options.get(name, default) for name, default in defaults.items()}
    if tokenizer_type == NULL:
        values = {name: value for name, value in values.items() if value is not None}
    return {
        "class": class_name,
        "tokenizer_path": None if tokenizer_type == NULL else tokenizer_model,
        **{name: str(value) for name, value in values.items()},
    }


def read_identifiers(path: str) -> dict[str, Any]:
    """Read identifiers from a file that ``python -m tokshard.dump_tokenizer_identifiers`` has printed.

    Any JSON object is taken as it is, in its order, since tokenizers of one's own may say anything.

    Raises:
        MissingFileError: There is no such file.
        InputError: The file is not a JSON object, or it is a whole description of a cache.
    """
    try:
        found = decode(dict[str, Any], read_json_object(path), path)
    except (FileNotFoundError, NotADirectoryError):
        raise MissingFileError(
            f"file of tokenizer identifiers not found: {path}", path=path, hint=_OTHER_WAYS
        ) from None
    except IntegrityError as error:
        raise InputError(error.message, hint=_OTHER_WAYS) from error
    if "dataset_path" in found or "datasets" in found:
        raise InputError(
            f"{path} is a complete description, not a tokenizer's identifiers", hint=f"pass --like {path}"
        )
    return found


def _preset(version: str, tokenizer_type: str) -> tuple[str, dict[str, Any]]:
    presets = _PRESETS[known_version(version, hint=_OTHER_WAYS)]
    if tokenizer_type not in presets:
        raise UsageError(
            f"--tokenizer-type must be one of {', '.join(presets)}, got {tokenizer_type!r}", hint=_OTHER_WAYS
        )
    return presets[tokenizer_type]
