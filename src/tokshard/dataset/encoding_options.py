"""Options of ``tokenize`` that determine its bytes, and that manifests record as they were given."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from tokshard.core.codec import Count, Positive
from tokshard.core.megatron_rules import SEED
from tokshard.core.options import RUN, Option, Options, parse_bytes, parse_share
from tokshard.errors import UsageError

TEXT = "Text"
_SUBSET = "Subset"
_rare_subset = partial(Option, group=_SUBSET, is_rare=True)
_rare_run = partial(Option, group=RUN, is_rare=True)


@dataclass(frozen=True, kw_only=True)
class SelectionOptions(Options):
    """Options that select the records that are read, and the split of each document."""

    sample: Annotated[
        float | None,
        _rare_subset(
            "Read only this share of the records, such as 1% or 0.01, chosen by a hash of their positions.",
            metavar="PERCENT",
            parse=parse_share,
        ),
    ] = None
    sample_seed: Annotated[
        Count, _rare_subset("Use this seed for the hash of --sample.", requires="sample")
    ] = SEED
    holdout: Annotated[
        float | None,
        _rare_subset(
            "Write this share of the documents, such as 0.1% or 0.001, to PREFIX_valid and the others to "
            "PREFIX_train, by a hash of their texts: all copies of a document go to the same one.",
            metavar="PERCENT",
            parse=parse_share,
        ),
    ] = None
    holdout_key: Annotated[
        str | None,
        _rare_subset(
            "With --holdout: hash this JSON field or column, a string or an integer, instead of the texts.",
            metavar="NAME",
            requires="holdout",
        ),
    ] = None
    holdout_seed: Annotated[
        Count, _rare_subset("Use this seed for the hash of --holdout.", requires="holdout")
    ] = SEED

    def _validate(self) -> None:
        if self.sample is not None and not 0 < self.sample <= 1:
            raise _out_of_range("--sample", "at most 100%", self.sample)
        if self.holdout is not None and not 0 < self.holdout < 1:
            raise _out_of_range("--holdout", "below 100%", self.holdout)


@dataclass(frozen=True, kw_only=True)
class EncodingOptions(SelectionOptions):
    """Options that determine the bytes of a tokenized dataset, with the inputs and the tokenizer."""

    fields: Annotated[
        tuple[str, ...],
        Option(
            "Read the text from this JSON field or column; or lists of token ids (with --tokenizer or "
            "--vocab-size).",
            name="--field",
            metavar="NAME",
            group=TEXT,
        ),
    ] = ("text",)
    append_eod: Annotated[bool, Option("Append the EOD token to each document.", group=TEXT)] = True
    special_tokens: Annotated[
        bool,
        Option(
            "Add BOS and similar tokens to each document, as the tokenizer defines them.",
            default="--no-special-tokens",
            group=TEXT,
            is_rare=True,
        ),
    ] = False
    special_tokens_in_text: Annotated[
        Literal["encode", "split"],
        Option(
            "Encode text that spells a special token, such as <|endoftext|>, as the tokenizer's library does "
            "(encode), or as ordinary text (split).",
            group=TEXT,
            is_rare=True,
        ),
    ] = "encode"
    limit: Annotated[
        Positive | None, Option("Stop after the first N documents, for example 10k.", group=_SUBSET)
    ] = None
    max_tokens: Annotated[
        Positive | None,
        _rare_subset("Stop before the first document that would exceed N tokens, for example 10B."),
    ] = None
    unit_size: Annotated[
        Positive,
        _rare_run(
            "Divide inputs into units of work of SIZE input bytes.",
            metavar="SIZE",
            parse=parse_bytes,
            default="16MiB",
        ),
    ] = 16 << 20
    provenance: Annotated[
        bool, _rare_run("Record the input position of each document, for `tokshard trace`.")
    ] = True


def _out_of_range(option: str, most: str, share: float) -> UsageError:
    return UsageError(
        f"{option} must be above 0% and {most}, got {100 * share:.12g}%",
        hint=f"pass a percentage or a fraction, for example {option} 1% or {option} 0.01",
    )
