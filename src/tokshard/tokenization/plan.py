"""The plan of a tokenize run: everything that determines its bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from tokshard.core.codec import encode
from tokshard.core.strict_json import dump_json
from tokshard.corpus.files import CorpusFile
from tokshard.dataset.layout import optimal_dtype
from tokshard.dataset.plan import BuildPlan, TokenizeParameters
from tokshard.errors import UsageError
from tokshard.tokenization.options import TokenizeOptions
from tokshard.tokenizer.definition import Tokenizer

# The manifest adds counts and a digest to each input's entry, and must stay readable (64 MiB).
_RESULT_BYTES_OF_INPUT = 256
_MAX_INPUTS_BYTES = 48 << 20


def make_parameters(tokenizer: Tokenizer, options: TokenizeOptions) -> TokenizeParameters:
    """Return what determines the bytes besides the inputs and the tokenizer.

    Raises:
        UsageError: The dtype asked for cannot hold the tokenizer's ids.
    """
    return TokenizeParameters(
        fields=options.fields,
        append_eod=options.append_eod,
        eod_id=tokenizer.eod_id,
        special_tokens=options.special_tokens,
        dtype=choose_dtype(tokenizer, options),
        max_document_bytes=options.max_document_bytes,
        unit_bytes=options.unit_bytes,
        provenance=options.provenance,
    )


def make_plan(files: Sequence[CorpusFile], tokenizer: Tokenizer, parameters: TokenizeParameters) -> BuildPlan:
    """Return the plan for these inputs, this tokenizer and these parameters.

    Raises:
        UsageError: There are more inputs than a manifest can list.
    """
    inputs = tuple(file.plan_input() for file in files)
    if (
        len(dump_json([encode(source) for source in inputs])) + _RESULT_BYTES_OF_INPUT * len(inputs)
        > _MAX_INPUTS_BYTES
    ):
        raise UsageError(
            f"{len(inputs)} inputs are more than one dataset's manifest can list",
            hint="make several datasets and merge them: tokshard merge A B -o OUT",
        )
    return BuildPlan(inputs=inputs, tokenizer=tokenizer.identity, options=parameters)


def choose_dtype(tokenizer: Tokenizer, options: TokenizeOptions) -> Literal["uint16", "int32"]:
    """Return ``"uint16"`` or ``"int32"``.

    Megatron's rule for ``auto``, except that ids which do not fit uint16 (a vocabulary with gaps) get
    int32, where Megatron's writer would fail.
    """
    fits = tokenizer.max_token_id < 2**16
    if options.dtype == "uint16" and not fits:
        raise UsageError(
            f"--dtype uint16 cannot hold the token id {tokenizer.max_token_id} of this tokenizer",
            hint="use --dtype auto",
        )
    if options.dtype != "auto":
        return options.dtype
    return "uint16" if fits and optimal_dtype(tokenizer.vocab_size).name == "uint16" else "int32"
