"""The tokenizer and the encoder of a job, which are chosen before anything else is known of it.

This module imports little: the fast encoder may load while the other modules are imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from tokshard.core.formatting import listed, size
from tokshard.core.options import declared_options
from tokshard.errors import TokenizerError, UsageError
from tokshard.text.corpus.files import CorpusFile, content_bytes
from tokshard.text.corpus.planning import has_token_ids
from tokshard.text.corpus.record_format import MAX_DOCUMENT_BYTES
from tokshard.text.tokenize.options import TokenizeOptions
from tokshard.text.tokenize.part import EncoderName
from tokshard.text.tokenizer.checked_documents import FIRST_BYTES
from tokshard.text.tokenizer.definition import Tokenizer, load_tokenizer
from tokshard.text.tokenizer.fast import fast_encoder_refusal, has_fast_library
from tokshard.text.tokenizer.files import parsing_once
from tokshard.text.tokenizer.pieces import renamed_tokens
from tokshard.text.tokenizer.tiktoken_files import TikTokenizerSettings
from tokshard.text.tokenizer.token_ids import NULL_PREFIX

_SHOWN_TOKENS = 3

DOCUMENT_BYTES: dict[EncoderName, int] = {
    "fast": MAX_DOCUMENT_BYTES,
    "none": MAX_DOCUMENT_BYTES,
    "reference": 4_000_000,
}
"""The default of ``--max-document-bytes``. For a document of 16 MB, a process takes 270 to 450 MB of memory
with the fast encoders of GPT-2, Llama 2 and Qwen 2, but 1.6 to 3.1 GB with the reference."""


@dataclass(frozen=True, slots=True)
class EncoderDecision:
    """The encoder of a job, and why it is not the fast one; None if it is."""

    name: EncoderName
    reason: str | None


@dataclass(frozen=True, slots=True)
class EncodingChoice:
    """The tokenizer and the encoder of a job, and the size of its largest records.

    Attributes:
        tokenizer: The tokenizer. If token ids are read with ``--vocab-size`` alone, a null tokenizer with
            these ids takes its place.
        vocab_size: If the fields contain token ids, all must be below it. If None, they contain text.
    """

    tokenizer: Tokenizer
    encoder: EncoderDecision
    max_document_bytes: int
    vocab_size: int | None = None


def choose_encoding(options: TokenizeOptions, files: Sequence[CorpusFile]) -> EncodingChoice:
    """Read the tokenizer, and choose the encoder; none if the fields contain token ids.

    Raises:
        UsageError: An option does not fit the tokenizer.
        InputError: The tokenizer cannot be read.
    """
    is_vocabulary_alone = options.vocab_size is not None and not options.names_tokenizer
    if is_vocabulary_alone or has_token_ids(files, options.fields[0]):
        return _choice_for_ids(options)
    with parsing_once():
        tokenizer = _load_tokenizer(options)
        reason = _refusal(tokenizer, options)
    # A small corpus has no large documents: the limit does not change when it grows.
    is_fast = reason is None and has_fast_library()
    limit = options.max_document_bytes or DOCUMENT_BYTES["fast" if is_fast else "reference"]
    if reason is None and options.encoder == "auto" and content_bytes(files) <= FIRST_BYTES:
        reason = f"used for inputs smaller than {size(FIRST_BYTES)}"
    return EncodingChoice(tokenizer, EncoderDecision("reference" if reason else "fast", reason), limit)


def _choice_for_ids(options: TokenizeOptions) -> EncodingChoice:
    names = ", ".join(options.fields)
    if options.preset is not None:
        raise UsageError(
            f"--preset megatron cannot be used with token ids (field {names}): preprocess_data.py reads text",
            hint="leave out --preset megatron",
        )
    for option in ("special_tokens", "special_tokens_in_text", "encoder"):
        if options.is_given(option):
            name = declared_options(TokenizeOptions)[option].name
            raise UsageError(
                f"{name} cannot be used with token ids (field {names}), which are written as they are",
                hint=f"leave out {name}",
            )
    tokenizer = _load_tokenizer(options) if options.names_tokenizer else _vocabulary_alone(options, names)
    return EncodingChoice(
        replace(tokenizer, unknown_id=None, drops_characters=False),
        EncoderDecision("none", None),
        options.max_document_bytes or DOCUMENT_BYTES["none"],
        max(tokenizer.identity.vocab_size, tokenizer.identity.max_token_id + 1),
    )


def _vocabulary_alone(options: TokenizeOptions, names: str) -> Tokenizer:
    size = options.vocab_size
    eod = options.eod
    if size is None:
        raise UsageError(
            f"the vocabulary is required for token ids (field {names})",
            hint="pass --tokenizer PATH with the tokenizer of the ids, or --vocab-size N and --eod ID",
        )
    if eod is None and options.append_eod:
        raise UsageError(
            "--vocab-size requires the id of the EOD token to append",
            hint="pass --eod ID, or --no-append-eod",
        )
    if eod is not None and not (eod.isascii() and eod.isdigit() and len(eod) <= 10 and int(eod) < size):
        raise UsageError(
            f"--eod must be a token id below {size} with --vocab-size, got {eod!r}", hint="pass --eod ID"
        )
    tokenizer = load_tokenizer(f"{NULL_PREFIX}{size}", eod=eod)
    if eod is not None:
        return tokenizer
    return replace(tokenizer, identity=replace(tokenizer.identity, eod_id=None, eod_token=None))


def _load_tokenizer(options: TokenizeOptions) -> Tokenizer:
    size = options.vocab_size
    tiktoken = options.tiktoken if size is None else replace(options.tiktoken, vocab_size=size)
    tokenizer = load_tokenizer(
        options.vocab_file if options.tokenizer is None else options.tokenizer,
        merges=options.merge_file,
        tiktoken=tiktoken,
        **options.tokenizer_settings,
    )
    default = TikTokenizerSettings()
    declared = declared_options(TikTokenizerSettings) | declared_options(TokenizeOptions)
    given = [
        declared[field.name].name
        for field in fields(default)
        if getattr(tiktoken, field.name) != getattr(default, field.name)
        or (field.name == "vocab_size" and size is not None)
    ]
    if given and TikTokenizerSettings.of_encoding(tokenizer.identity.name) is None:
        raise UsageError(
            f"{' and '.join(given)} {'requires' if len(given) == 1 else 'require'} the file of a "
            f"TikTokenizer, got {tokenizer.path or 'the built-in tokenizer'}",
            hint=f"leave out {' and '.join(given)}: the tokenizer tells this",
        )
    is_alone = tokenizer.identity.kind != "huggingface" or options.vocab_file is not None
    if options.transformers is not None and is_alone:
        raise UsageError(
            "--transformers requires a tokenizer.json, or a directory that transformers reads, got "
            f"{tokenizer.argument or 'the built-in tokenizer'}",
            hint="leave out --transformers: it makes no difference to this tokenizer",
        )
    if options.special_tokens and not tokenizer.defines_special_tokens:
        raise UsageError(
            f"--special-tokens is not supported with {tokenizer.path or 'the built-in tokenizer'}, which "
            "does not define the special tokens to add to a text",
            hint="leave out --special-tokens, or pass the tokenizer.json of the same model",
        )
    if options.preset is not None and not options.special_tokens and tokenizer.identity.kind == "huggingface":
        _refuse_renamed(tokenizer)
    if options.special_tokens_in_text == "split":
        return tokenizer.splitting_special_tokens()
    return tokenizer


def _refuse_renamed(tokenizer: Tokenizer) -> None:
    if renamed := renamed_tokens(tokenizer):
        names = listed([repr(token) for token in renamed], _SHOWN_TOKENS)
        raise TokenizerError(
            f"Megatron without special tokens gives other ids for {names} of {tokenizer.path}: with lstrip, "
            "rstrip or normalized, it looks up the text that was matched, which is not in the vocabulary",
            hint="pass --tokenizer-hf-include-special-tokens (0.16), or leave out "
            "--tokenizer-hf-no-include-special-tokens (from 0.17), here and in the training job; or run "
            "tokshard tokenize with --tokenizer instead of --preset megatron: it gives the same ids if no "
            "text contains these tokens",
        )


def _refusal(tokenizer: Tokenizer, options: TokenizeOptions) -> str | None:
    """Return why the fast encoder cannot encode with a tokenizer, or may not; None if it can."""
    if options.encoder == "reference":
        return "requested by --encoder reference"
    reason = fast_encoder_refusal(tokenizer, special_tokens=options.special_tokens)
    if reason is not None and options.encoder == "fast":
        raise UsageError(
            f"--encoder fast cannot encode with this tokenizer: {reason}", hint="use --encoder auto"
        )
    return reason
