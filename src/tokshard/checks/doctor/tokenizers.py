"""The tokenizers of a job and of its data: findings about data that does not fit together or the job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokshard.checks.doctor.launch.arguments import LaunchArguments
from tokshard.checks.doctor.launch.rules import Result
from tokshard.checks.doctor.launch.unknown import SkippedCheck
from tokshard.core.findings import Finding
from tokshard.dataset.manifest import read_dataset_tokenizer
from tokshard.dataset.reader import require_files
from tokshard.dataset.recorded_tokenizers import DatasetTokenizer, TokenizerMismatch, allowed_warnings
from tokshard.dataset.token_ids import check_token_ids
from tokshard.dataset.tokenizer_agreement import JobTokenizer, agree
from tokshard.errors import InputError, IntegrityError, StorageError
from tokshard.samples.index.identifiers import HUGGING_FACE, NULL
from tokshard.samples.index.tokenizer_check import check_tokenizers, job_tokenizer

_UNREADABLE = (InputError, IntegrityError, StorageError)
_GPT2 = "GPT2BPETokenizer"
_COMPARED = (HUGGING_FACE, _GPT2, "SentencePieceTokenizer", "GPTSentencePieceTokenizer", "Llama2Tokenizer")
_RETOKENIZE = "tokenize all data with the job's tokenizer and one --eod"
_ADOPT = "run tokshard verify --adopt --tokenizer TOKENIZER, to record the tokenizer of the data"
_KINDS = {"tokenizer": "tokenizer-mismatch", "eod": "eod-mismatch", "vocabulary": "token-range"}


@dataclass(frozen=True, slots=True)
class LaunchTokenizer:
    """The tokenizer that a launch command names.

    Attributes:
        tokenizer: What is known of it; None if the command does not name one.
        reason: A phrase that states why its definition is unknown; None if it is known.
    """

    tokenizer: JobTokenizer | None = None
    reason: str | None = None


def read_launch_tokenizer(
    launch: LaunchArguments, path_as: Sequence[tuple[str, str]] = ()
) -> LaunchTokenizer:
    """Read the tokenizer that a launch command names; nothing is downloaded.

    Args:
        launch: The arguments of the job.
        path_as: Pairs (path here, path at training time).
    """
    kind = launch.tokenizer_type or HUGGING_FACE
    identifiers: dict[str, Any] = {"tokenizer_path": launch.tokenizer_model}
    if kind == NULL:
        if launch.vocab_size is None:
            return LaunchTokenizer(None, f"{NULL} requires --vocab-size")
        identifiers = {"vocab_size": launch.vocab_size}
    elif kind == _GPT2:
        identifiers = {"tokenizer_path": launch.tokenizer_model or launch.vocab_file}
    elif kind not in _COMPARED:
        return LaunchTokenizer(None, f"definitions of {kind} cannot be compared")
    if kind != NULL and identifiers["tokenizer_path"] is None:
        return LaunchTokenizer(None, "the launch command has no --tokenizer-model")
    job = job_tokenizer(identifiers, path_as)
    if job is None or job.identity is not None:
        return LaunchTokenizer(job)
    if job.null_vocab_size is not None:
        return LaunchTokenizer(job, f"a {NULL} has only a vocabulary size")
    return LaunchTokenizer(job, job.reason or f"{job.name} cannot be read here")


def findings_of_tokenizers(
    launch: LaunchArguments,
    job: LaunchTokenizer,
    prefixes: Iterable[str],
    recorded: Sequence[TokenizerMismatch],
) -> Iterator[Result]:
    """Compare the tokenizers of a job's datasets, by their manifests, with each other and with the job's.

    Args:
        launch: The arguments of the job.
        job: Its tokenizer.
        prefixes: Path prefixes of the datasets; missing ones are skipped.
        recorded: Mismatches that were allowed when the job's indexes were built.
    """
    datasets = dict(_read(prefixes))
    if not datasets:
        return
    yield from _impossible_ids(datasets)
    # A job whose definition is unknown is a note, and not a warning for each dataset.
    named = job.tokenizer if job.reason is None or _has_size(job) else None
    try:
        agreement = check_tokenizers(datasets, named, allowed=True)
    except _UNREADABLE:  # the tokens of a dataset
        agreement = agree(list(datasets.items()), named)
    agreement = agreement.accepting((), of_indexes=recorded)
    for mismatch in agreement.mismatches:
        yield Finding(_KINDS[mismatch.kind], "error", mismatch.message, _RETOKENIZE)
    for message in allowed_warnings(agreement.recorded):
        yield Finding("tokenizer-allowed", "warning", message, _RETOKENIZE)
    for note in agreement.unchecked_notes:
        yield Finding("tokenizer-unchecked", "warning", note, _ADOPT)
    for note in agreement.policy_notes:
        yield Finding("document-policy", "warning", note, "tokenize all data with the same options")
    known = {name: found for name, found in datasets.items() if found.identity is not None}
    if known and job.reason is not None:
        message = f"the tokenizer of the data was not compared with the job's: {job.reason}"
        if _has_size(job):
            yield Finding("tokenizer-not-compared", "note", message)
        else:
            hint = "run doctor where the tokenizer can be read, or pass --path-as LOCAL=TRAINING"
            yield SkippedCheck("tokenizer", message, hint)
    yield from _beyond_embedding(launch.padded_vocab_size, known)


def _impossible_ids(datasets: Mapping[str, DatasetTokenizer]) -> Iterator[Finding]:
    try:
        check_token_ids(datasets)
    except InputError as error:
        yield Finding("token-range", "error", error.message, error.hint)
    except _UNREADABLE:
        pass


def _has_size(job: LaunchTokenizer) -> bool:
    return job.tokenizer is not None and job.tokenizer.null_vocab_size is not None


def _read(prefixes: Iterable[str]) -> Iterator[tuple[str, DatasetTokenizer]]:
    for prefix in dict.fromkeys(prefixes):
        try:
            require_files(prefix)
            yield prefix, read_dataset_tokenizer(prefix)
        except _UNREADABLE:
            continue  # the plan of the splits has a finding about it


def _beyond_embedding(size: int | None, datasets: Mapping[str, DatasetTokenizer]) -> Iterator[Finding]:
    for prefix, tokenizer in datasets.items():
        if size is not None and tokenizer.identity is not None and tokenizer.identity.max_token_id >= size:
            yield Finding(
                "vocabulary-size",
                "error",
                f"the tokenizer of {prefix} has ids up to {tokenizer.identity.max_token_id}, but the padded "
                f"vocabulary of the job has {size} ids",
                "increase --padded-vocab-size, or leave it out",
            )
