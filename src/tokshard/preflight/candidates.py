"""Which identifiers the tokenizer of a job may have, where only its launch command is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokshard.errors import UsageError
from tokshard.index_cache.identifiers import (
    HUGGING_FACE,
    MEGATRON_VERSIONS,
    NEUTRAL,
    NULL,
    megatron_identifiers,
)
from tokshard.preflight.launch.arguments import LaunchArguments


@dataclass(frozen=True, slots=True)
class Candidate:
    """Identifiers that a job may have.

    Attributes:
        label: Where they come from: ``"Megatron 0.19"``.
        identifiers: The identifiers.
    """

    label: str
    identifiers: dict[str, Any] | None


def identifiers_of_launch(launch: LaunchArguments, version: str) -> dict[str, Any]:
    """Return the identifiers that a version of Megatron gives the tokenizer of a launch command.

    Raises:
        UsageError: There is no preset for the version or the tokenizer, or something is missing.
    """
    options: dict[str, Any] = {}
    if launch.tokenizer_type == NULL:
        options["vocab_size"] = launch.vocab_size
        options["eod_id"] = launch.null_tokenizer_eod_id
        if launch.null_tokenizer_pad_id is not None:
            options["pad_id"] = launch.null_tokenizer_pad_id
    else:
        options["vocab_file"] = launch.vocab_file
        options["merges_file"] = launch.merge_file
        options["chat_template"] = launch.chat_template
        options["additional_special_tokens"] = list(launch.tokenizer_special_tokens or ()) or None
        options["trust_remote_code"] = launch.trust_remote_code or None
        options["use_gigatoken"] = launch.use_gigatoken or None
        options["use_fast"] = _switch(launch.tokenizer_hf_use_fast, launch.tokenizer_hf_no_use_fast)
        options["include_special_tokens"] = _switch(
            launch.tokenizer_hf_include_special_tokens, launch.tokenizer_hf_no_include_special_tokens
        )
    given = {name: value for name, value in options.items() if value is not None}
    return megatron_identifiers(
        version, launch.tokenizer_type or HUGGING_FACE, launch.tokenizer_model, **given
    )


def candidates_of_launch(launch: LaunchArguments) -> list[Candidate]:
    """Return what each version of Megatron would say, the newest first, as far as it is known."""
    found: dict[str, Candidate] = {}
    for version in reversed(MEGATRON_VERSIONS):
        try:
            identifiers = identifiers_of_launch(launch, version)
        except UsageError:
            continue
        key = repr(identifiers)
        before = found.get(key)
        label = f"{before.label}, {version}" if before else f"Megatron {version}"
        found[key] = Candidate(label, identifiers)
    return list(found.values())


def may_be_of_launch(identifiers: dict[str, Any], launch: LaunchArguments) -> bool:
    """Tell whether a tokenizer of some cache may be that of a launch command, as far as the command tells.

    Neutral names, which tokshard gives where nothing is known of a job, are those of no job.

    Example:
        >>> launch = LaunchArguments(tokenizer_type="SentencePieceTokenizer", tokenizer_model="/models/a")
        >>> may_be_of_launch({"class": "X", "tokenizer_path": "/models/a"}, launch)
        True
        >>> may_be_of_launch({"class": "X", "tokenizer_path": "/models/b"}, launch)
        False
    """
    if identifiers.get("class") == NEUTRAL:
        return False
    if launch.tokenizer_type == NULL:
        return identifiers.get("vocab_size") == str(launch.vocab_size)
    path = identifiers.get("tokenizer_path")  # Megatron's legacy tokenizers have a list of one
    return launch.tokenizer_model is None or launch.tokenizer_model in (
        path if isinstance(path, list) else [path]
    )


def _switch(on: bool, off: bool) -> bool | None:  # noqa: FBT001 - two flags of a command line
    return True if on else False if off else None
