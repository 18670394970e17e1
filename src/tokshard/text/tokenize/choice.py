"""The tokenizer and the encoder of a job, which are chosen before anything else is known of it.

This module imports little: the fast encoder may load while the other modules are imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tokshard.core.formatting import listed, size
from tokshard.core.options import declared_options
from tokshard.errors import TokenizerError, UsageError
from tokshard.text.corpus.files import CorpusFile, content_bytes
from tokshard.text.corpus.planning import MAX_DOCUMENT_BYTES
from tokshard.text.tokenize.options import TokenizeOptions
from tokshard.text.tokenize.part import EncoderName
from tokshard.text.tokenizer.checked_documents import FIRST_BYTES
from tokshard.text.tokenizer.definition import Tokenizer, load_tokenizer
from tokshard.text.tokenizer.fast import fast_encoder_refusal, has_fast_library
from tokshard.text.tokenizer.files import parsing_once
from tokshard.text.tokenizer.special_tokens import renamed_tokens
from tokshard.text.tokenizer.tiktoken_files import TikTokenizerSettings

_SHOWN_TOKENS = 3

DOCUMENT_BYTES: dict[EncoderName, int] = {"fast": MAX_DOCUMENT_BYTES, "reference": 4_000_000}
"""The default of ``--max-document-bytes``. For a document of 16 MB, a process takes 270 to 450 MB of memory
with the fast encoders of GPT-2, Llama 2 and Qwen 2, but 1.6 to 3.1 GB with the reference."""


@dataclass(frozen=True, slots=True)
class EncoderDecision:
    """The encoder of a job, and why it is not the fast one; None if it is."""

    name: EncoderName
    reason: str | None


@dataclass(frozen=True, slots=True)
class EncodingChoice:
    """The tokenizer and the encoder of a job, and the size of its largest records."""

    tokenizer: Tokenizer
    encoder: EncoderDecision
    max_document_bytes: int


def choose_encoding(options: TokenizeOptions, files: Sequence[CorpusFile]) -> EncodingChoice:
    """Read the tokenizer, and choose the encoder.

    Raises:
        UsageError: An option does not fit the tokenizer.
        InputError: The tokenizer cannot be read.
    """
    with parsing_once():
        tokenizer = _load_tokenizer(options)
        reason = _refusal(tokenizer, options)
    # A small corpus has no large documents: the limit does not change when it grows.
    is_fast = reason is None and has_fast_library()
    limit = options.max_document_bytes or DOCUMENT_BYTES["fast" if is_fast else "reference"]
    if reason is None and options.encoder == "auto" and content_bytes(files) <= FIRST_BYTES:
        reason = f"used for inputs smaller than {size(FIRST_BYTES)}"
    return EncodingChoice(tokenizer, EncoderDecision("reference" if reason else "fast", reason), limit)


def _load_tokenizer(options: TokenizeOptions) -> Tokenizer:
    tokenizer = load_tokenizer(
        options.vocab_file if options.tokenizer is None else options.tokenizer,
        merges=options.merge_file,
        tiktoken=options.tiktoken,
        **options.tokenizer_settings,
    )
    is_tiktoken = TikTokenizerSettings.of_encoding(tokenizer.name) is not None
    if options.tiktoken != TikTokenizerSettings() and not is_tiktoken:
        *names, last = [found.name for found in declared_options(TikTokenizerSettings).values()]
        raise UsageError(
            f"{', '.join(names)} and {last} require the file of a TikTokenizer, got "
            f"{tokenizer.path or 'the built-in tokenizer'}",
            hint="leave them out: other files contain these settings",
        )
    is_alone = tokenizer.kind != "huggingface" or options.vocab_file is not None
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
    if options.preset is not None and not options.special_tokens and tokenizer.kind == "huggingface":
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
