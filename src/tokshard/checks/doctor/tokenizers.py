"""Findings about the tokenizers of a job's datasets that differ from each other or from the job's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from tokshard.checks.doctor.launch.arguments import LaunchArguments
from tokshard.checks.doctor.launch.rules import Result, unknown_names
from tokshard.checks.doctor.launch.unknown import SkippedCheck
from tokshard.core.findings import Finding
from tokshard.core.formatting import listed
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
_ADOPT = "run `tokshard verify --adopt --tokenizer TOKENIZER PREFIX` to record the tokenizer of the data"
_UNREADABLE_HINT = "run doctor where the tokenizer can be read, or pass --path-as LOCAL=TRAINING"
_KINDS = {"tokenizer": "tokenizer-mismatch", "eod": "eod-mismatch", "vocabulary": "token-range"}


def read_launch_tokenizer(launch: LaunchArguments, path_as: Sequence[tuple[str, str]] = ()) -> JobTokenizer:
    """Read the tokenizer that a launch command names; nothing is downloaded.

    Args:
        launch: The arguments of the job.
        path_as: Pairs (path here, path at training time).

    Returns:
        The tokenizer, with a reason if its definition is unknown.
    """
    kind = launch.tokenizer_type or HUGGING_FACE
    if kind == NULL and launch.vocab_size is None:
        return JobTokenizer(kind, reason=f"{NULL} requires --vocab-size", hint="add --vocab-size")
    if kind not in {NULL, *_COMPARED}:
        return JobTokenizer(kind, reason=f"definitions of {kind} cannot be compared")
    path = launch.tokenizer_model or (launch.vocab_file if kind == _GPT2 else None)
    if kind != NULL and path is None:
        reason = "the launch command has no --tokenizer-model"
        return JobTokenizer(kind, reason=reason, hint="add --tokenizer-model")
    identifiers = {"vocab_size": launch.vocab_size} if kind == NULL else {"tokenizer_path": path}
    job = job_tokenizer(identifiers, path_as) or JobTokenizer(kind)
    if job.identity is not None:
        return job
    unreadable = f"{job.name} cannot be read here" if kind != NULL else f"a {NULL} has only a vocabulary size"
    return replace(job, reason=job.reason or unreadable, hint=job.hint or _UNREADABLE_HINT)


def findings_of_tokenizers(
    launch: LaunchArguments,
    job: JobTokenizer,
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
    # A job's tokenizer without a definition is one note, not a warning for each dataset.
    is_comparable = job.identity is not None or job.null_vocab_size is not None
    compared = job if is_comparable else None
    try:
        agreement = check_tokenizers(datasets, compared, allowed=True)
    except _UNREADABLE:  # The tokens of a dataset cannot be read.
        agreement = agree(list(datasets.items()), compared)
    agreement = agreement.accepting((), of_indexes=recorded)
    for mismatch in agreement.mismatches:
        yield Finding(_KINDS[mismatch.kind], "error", mismatch.message, _RETOKENIZE)
    for message in allowed_warnings(agreement.recorded):
        yield Finding("tokenizer-allowed", "warning", message, _RETOKENIZE)
    for note in agreement.unchecked_notes:
        yield Finding("tokenizer-unchecked", "warning", note, _ADOPT)
    for note in agreement.policy_notes:
        yield Finding("document-policy", "warning", note, "tokenize all data with the same options")
    identified = {name: data for name, data in datasets.items() if data.identity is not None}
    if identified and job.reason is not None:
        if is_comparable:
            message = f"the tokenizer of the data was not compared with the job's: {job.reason}"
            yield Finding("tokenizer-not-compared", "note", message)
        elif (unknown := unknown_names(launch)) is not None:
            yield unknown.skipped("tokenizer")
        else:
            yield SkippedCheck("tokenizer", job.reason, job.hint)
    yield from _beyond_embedding(launch.padded_vocab_size, identified)


def _impossible_ids(datasets: Mapping[str, DatasetTokenizer]) -> Iterator[Finding]:
    try:
        check_token_ids(datasets)
    except InputError as error:
        yield Finding("token-range", "error", error.message, error.hint)
    except _UNREADABLE:
        pass


def _read(prefixes: Iterable[str]) -> Iterator[tuple[str, DatasetTokenizer]]:
    for prefix in dict.fromkeys(prefixes):
        try:
            require_files(prefix)
            yield prefix, read_dataset_tokenizer(prefix)
        except _UNREADABLE:
            continue  # the plan of its split has a finding about it


def _beyond_embedding(size: int | None, datasets: Mapping[str, DatasetTokenizer]) -> Iterator[Finding]:
    largest = {prefix: data.identity.max_token_id for prefix, data in datasets.items() if data.identity}
    beyond = [prefix for prefix, token_id in largest.items() if size is not None and token_id >= size]
    if beyond:
        subject = "the tokenizers of {} have" if beyond[1:] else "the tokenizer of {} has"
        yield Finding(
            "vocabulary-size",
            "error",
            f"{subject.format(listed(beyond))} ids up to {max(largest.values())}, but the "
            f"padded vocabulary of the job has {size} ids",
            "increase --padded-vocab-size, or leave it out",
        )
