"""Comparison of a job's tokenizer and vocabulary with the tokenizer of a plan's data."""

from __future__ import annotations

import os

from tokshard.dataset.recorded_tokenizers import allowed_warnings
from tokshard.dataset.tokenizer_identity import TokenizerIdentity, compare_definitions, tokenizer_name
from tokshard.errors import TokenizerMismatchError
from tokshard.ranks.plan import Plan


def check_tokenizer(
    plan: Plan,
    tokenizer: TokenizerIdentity | str | os.PathLike[str] | None,
    vocab_size: int | None,
    eod_id: int | None,
) -> list[str]:
    """Compare a job with the tokenizer that a plan records for its data; no data is opened.

    Args:
        plan: The plan.
        tokenizer: The tokenizer of the job, or its path; None to compare nothing.
        vocab_size: The vocabulary size of the job's model, padding included; None to compare nothing.
        eod_id: The id that ends documents in the job's options; None to compare nothing.

    Returns:
        Warnings: mismatches that were allowed when the plan was made, what could not be compared, and an
        ``eod_id`` that is not that of the data.

    Raises:
        TokenizerMismatchError: The data has another tokenizer, or ids beyond the vocabulary.
        TokenizerError: The tokenizer cannot be read.
    """
    warnings = list(allowed_warnings(plan.tokenizer_mismatches))
    known = _identities(plan)
    recorded = sorted({identity.eod_id for identity in known if identity.eod_id is not None})
    if eod_id is not None and recorded and eod_id not in recorded:
        ids = " or ".join(map(str, recorded))
        warnings.append(f"eod_id is {eod_id}, but the tokenizer of the data ends documents with {ids}")
    if tokenizer is None and vocab_size is None:
        return warnings
    if not known:
        name = plan.plan_id[:12]
        return [*warnings, f"the tokenizer of the data of plan {name} is unknown and was not compared"]
    if tokenizer is not None:
        warnings += _compare(_identity_of(tokenizer), known)
    largest = max(identity.max_token_id for identity in known)
    if vocab_size is not None and largest >= vocab_size:
        raise TokenizerMismatchError(
            f"vocab_size must be larger than {largest}, the largest id of the tokenizer of the data, "
            f"got {vocab_size}",
            hint="pass the padded vocabulary size of the model, or tokenize the data with its tokenizer",
        )
    return warnings


def _identity_of(tokenizer: TokenizerIdentity | str | os.PathLike[str]) -> TokenizerIdentity:
    if isinstance(tokenizer, TokenizerIdentity):
        return tokenizer
    from tokshard.text.tokenizer.definition import tokenizer_identity

    return tokenizer_identity(tokenizer)


def _compare(tokenizer: TokenizerIdentity, known: list[TokenizerIdentity]) -> list[str]:
    # Of mixed data, whose mismatch was allowed, the job has one of the tokenizers.
    found = [compare_definitions(tokenizer, identity) for identity in known]
    if any(comparison.verdict == "same" for comparison in found):
        return []
    for comparison in found:
        if comparison.verdict == "not-checked":
            reason = comparison.details[0]
            return [
                f"the job's tokenizer ({_label(tokenizer)}) was not compared with that of the data: {reason}"
            ]
    raise TokenizerMismatchError(
        f"the job's tokenizer ({_label(tokenizer)}) is not the tokenizer of the data "
        f"({_label(known[0])}): {', '.join(found[0].details)}",
        hint="pass the tokenizer of the data, or tokenize the data with the job's tokenizer",
    )


def _identities(plan: Plan) -> list[TokenizerIdentity]:
    known = [plan.tokenizer.identity if plan.tokenizer is not None else None]
    for found in plan.tokenizer_mismatches or ():
        known += [found.first.identity, found.second.identity]
    return [identity for identity in dict.fromkeys(known) if identity is not None]


def _label(identity: TokenizerIdentity) -> str:
    from tokshard.core.formatting import counted  # the loader needs no words

    return f"{tokenizer_name(identity)}, {counted(identity.vocab_size, 'token')}"
