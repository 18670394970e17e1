"""The comparison of a job's tokenizer with transformers, on the first texts of its corpus."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace

from tokshard.core.progress import Progress
from tokshard.corpus.files import CorpusFile
from tokshard.corpus.planning import plan_units, stream_units
from tokshard.corpus.records import read_documents
from tokshard.corpus.selection import RecordSelection
from tokshard.corpus.units import Unit
from tokshard.errors import UsageError
from tokshard.storage.scratch import scratch_directory
from tokshard.tokenization.job import TokenizeJob
from tokshard.tokenizer.equivalence import FIRST_BYTES
from tokshard.tokenizer.transformers_check import check_against_transformers


def checked(job: TokenizeJob, progress: Progress) -> TokenizeJob:
    """Return the job with the result of the check that its options ask for; read and encode the texts.

    Raises:
        UsageError: An input can be read only once.
        TokshardError: See :func:`tokshard.tokenizer.transformers_check.check_against_transformers`.
    """
    options = job.options
    if options.check_against is None:
        return job
    for file in job.files:
        if file.size_bytes is None:
            raise UsageError(
                f"--check-against cannot read {file.path} before the run: it can be read only once",
                hint="write the text to a file and pass the file",
            )
    progress.start("comparing with transformers")
    check = check_against_transformers(
        job.tokenizer,
        first_texts(job),
        against=options.check_against,
        special_tokens=options.special_tokens,
        # With --eod, another token than that of transformers is asked for.
        check_eod=options.append_eod and options.eod is None,
    )
    return replace(job, transformers_check=check)


def first_texts(job: TokenizeJob) -> list[str]:
    """Return the texts of the corpus' first documents, about :data:`FIRST_BYTES` characters of them."""
    texts: list[str] = []
    left = FIRST_BYTES
    with scratch_directory() as directory, closing(_units(job, directory)) as units:
        for unit in units:
            documents = read_documents(
                unit,
                job.options.fields,
                max_document_bytes=job.parameters.max_document_bytes,
                selection=RecordSelection.of(job.parameters),
            )
            for batch in documents:
                for text in _by_document(batch.texts):
                    texts.append(text[:left])
                    left -= len(texts[-1])
                    if left <= 0:
                        return texts
    return texts


def _by_document(columns: tuple[list[str], ...]) -> Iterator[str]:
    # Lists of sequences have no common length; what matters is that no field is left out.
    for place in range(max(map(len, columns), default=0)):
        for column in columns:
            if place < len(column):
                yield column[place]


def _units(job: TokenizeJob, directory: str) -> Generator[Unit]:
    for number, file in enumerate(job.files):
        yield from _units_of(job, number, file, directory)


def _units_of(job: TokenizeJob, number: int, file: CorpusFile, directory: str) -> Iterator[Unit]:
    options = job.options
    if not file.is_stream:
        return plan_units(number, file, FIRST_BYTES, options.fields, key_field=options.holdout_key)
    return stream_units(
        number, file, FIRST_BYTES, job.parameters.max_document_bytes, directory, skip=lambda _index: False
    )
