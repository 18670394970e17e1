"""Check of the tokenizers of a job's datasets, and of token ids where the tokenizer is unknown."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tokshard.core.path_mapping import PathMapping
from tokshard.dataset.recorded_tokenizers import DatasetTokenizer, MismatchSide, TokenizerMismatch
from tokshard.dataset.token_ids import blocks_for, find_beyond
from tokshard.dataset.tokenizer_agreement import JobTokenizer, TokenizerAgreement, agree
from tokshard.errors import MissingExtraError, TokshardError
from tokshard.storage.paths import is_remote


def job_tokenizer(
    identifiers: Mapping[str, Any] | None,
    path_as: Sequence[tuple[str, str]] = (),
    local: str | os.PathLike[str] | None = None,
) -> JobTokenizer | None:
    """Return the tokenizer of a job; None if the job is unknown.

    The file is not downloaded: ``hf:`` identifiers and URLs count as not readable.

    Args:
        identifiers: Megatron's identifiers of the tokenizer.
        path_as: Pairs (path here, path at training time), by which its path is found here.
        local: A copy of the tokenizer on this machine, which is read instead of the path of the job.

    Raises:
        TokenizerError: ``local`` cannot be read.
        MissingExtraError: ``local`` needs a library that is not installed.
    """
    from tokshard.text.tokenizer.definition import load_tokenizer

    named = (identifiers or {}).get("tokenizer_path")
    if local is not None:
        path = os.fspath(local)
        identity = load_tokenizer(path, need_eod=False).identity
        return JobTokenizer(str(named or path), identity)
    if identifiers is None:
        return None
    if named is None:
        size = str(identifiers.get("vocab_size"))
        # Megatron appends the EOD token to the vocabulary of a NullTokenizer.
        return JobTokenizer(f"NullTokenizer of {size} ids", None, int(size) + 1) if size.isdigit() else None
    for path in (str(named), PathMapping(tuple(path_as)).inverse().map(str(named))):
        if not is_remote(path) and os.path.exists(path):
            try:
                return JobTokenizer(str(named), load_tokenizer(path, need_eod=False).identity)
            except TokshardError as error:
                hint = error.hint if isinstance(error, MissingExtraError) else None
                return JobTokenizer(str(named), reason=error.message, hint=hint)
    return JobTokenizer(str(named))


def check_tokenizers(
    tokenizers: Mapping[str, DatasetTokenizer],
    job: JobTokenizer | None = None,
    *,
    allowed: bool,
    shares: Mapping[str, float] | None = None,
) -> TokenizerAgreement:
    """Compare the tokenizers of datasets with each other and with the job's.

    Token ids beyond the vocabulary are found in a sample of each dataset whose tokenizer was not compared.
    The vocabulary is the job's, or else the largest of the datasets.

    Args:
        tokenizers: The tokenizers by path prefix.
        job: The tokenizer of the job, if it is known.
        allowed: Whether a mismatch is allowed.
        shares: The share of the samples of each dataset, for the warnings.

    Raises:
        TokenizerMismatchError: The datasets do not fit together, and this is not allowed.
    """
    datasets = list(tokenizers.items())
    given = None if shares is None else [shares[name] for name in tokenizers]
    found = agree(datasets, job, shares=given)
    vocabulary = _vocabulary(tokenizers, job)
    if vocabulary is not None:
        size, side = vocabulary
        mixed = [name for name, tokenizer in tokenizers.items() if len(tokenizer.parts) > 1]
        unknown = [
            (name, tokenizers[name])
            for name in dict.fromkeys((*found.unchecked, *mixed))
            if any(
                part.identity is None or part.identity.max_token_id >= size for part in tokenizers[name].parts
            )
        ]
        found = found.adding(_beyond_vocabulary(unknown, size, side))
    found.require(allowed=allowed)
    return found


def _vocabulary(
    tokenizers: Mapping[str, DatasetTokenizer], job: JobTokenizer | None
) -> tuple[int, MismatchSide] | None:
    if job is not None and job.identity is not None:
        return _ids_of(job.side), job.side
    if job is not None and job.null_vocab_size is not None:
        return job.null_vocab_size, job.side
    sides = [
        MismatchSide(part.identity, part.eod_id, (name,), 1)
        for name, tokenizer in tokenizers.items()
        for part in tokenizer.parts
        if part.identity is not None
    ]
    if not sides:
        return None
    largest = max(sides, key=_ids_of)
    return _ids_of(largest), largest


def _ids_of(side: MismatchSide) -> int:
    return 0 if side.identity is None else max(side.identity.max_token_id + 1, side.identity.vocab_size)


def _beyond_vocabulary(
    datasets: Sequence[tuple[str, DatasetTokenizer]], size: int, vocabulary: MismatchSide
) -> Iterator[TokenizerMismatch]:
    blocks = blocks_for(len(datasets))
    for name, tokenizer in datasets:
        found = find_beyond(name, size, blocks=blocks)
        if found is not None:
            yield TokenizerMismatch(
                "vocabulary",
                MismatchSide(tokenizer.identity, tokenizer.eod_id, (name,), 1),
                vocabulary,
                f"token id {found.token_id} (token {found.offset} of sequence {found.sequence}), beyond the "
                f"{size:,} ids",
            )
