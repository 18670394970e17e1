"""Options of ``tokenize`` that select a part of the corpus."""

from __future__ import annotations

from typing import Annotated

from tokshard import TokenizeOptions
from tokshard.cli.declarations import count, integer, text
from tokshard.errors import UsageError

_SUBSET = "Subset"

Sample = Annotated[
    str | None,
    text(
        "--sample",
        metavar="PERCENT",
        help="Read only this share of the records, such as 1% or 0.01, chosen by a hash of their positions.",
        group=_SUBSET,
    ),
]
SampleSeed = Annotated[
    int, integer("--sample-seed", help="Use this seed for the hash of --sample.", group=_SUBSET)
]
Limit = Annotated[
    int | None, count("--limit", help="Stop after the first N documents, for example 10k.", group=_SUBSET)
]
MaxTokens = Annotated[
    int | None,
    count(
        "--max-tokens",
        help="Stop before the first document that would exceed N tokens, for example 10B.",
        group=_SUBSET,
    ),
]


Holdout = Annotated[
    str | None,
    text(
        "--holdout",
        metavar="PERCENT",
        help="Write this share of the documents, such as 0.1% or 0.001, to PREFIX_valid and the others to "
        "PREFIX_train, by a hash of their texts: all copies of a document go to the same one.",
        group=_SUBSET,
    ),
]
HoldoutKey = Annotated[
    str | None,
    text(
        "--holdout-key",
        metavar="NAME",
        help="With --holdout: hash this JSON field or column, a string or an integer, instead of the texts.",
        group=_SUBSET,
    ),
]
HoldoutSeed = Annotated[
    int, integer("--holdout-seed", help="Use this seed for the hash of --holdout.", group=_SUBSET)
]


def refuse_with_preset(options: TokenizeOptions) -> None:
    """Raise UsageError for options of this module, which preprocess_data.py does not have."""
    given = {
        "--sample": options.sample,
        "--limit": options.limit,
        "--max-tokens": options.max_tokens,
        "--holdout": options.holdout,
    }
    for name, value in given.items():
        if value is not None:
            raise UsageError(
                f"--preset megatron and {name} exclude each other: preprocess_data.py has no such option",
                hint=f"leave out {name}, or leave out --preset and pass options of tokshard instead",
            )
