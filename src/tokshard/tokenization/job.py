"""The tokenize job: from inputs to published datasets, resumable at every moment.

The phases: plan (look at inputs and tokenizer), recover (what has an earlier run left), encode (units
to parts, parts to the assembly, in order), stage (index, sidecars, manifest), publish (final names).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from tokshard.core.codec import encode
from tokshard.core.progress import Progress, SilentProgress
from tokshard.dataset.build_run import BuildResult, BuildRun
from tokshard.dataset.manifest import Manifest
from tokshard.tokenization.encoding import encode_missing
from tokshard.tokenization.preparation import TokenizeJob, prepare
from tokshard.tokenization.report import DryRunReport, OutputReport, TokenizeReport
from tokshard.tokenization.workers.executor import Executor
from tokshard.tokenization.workers.local import EarlyExecutor
from tokshard.tokenization.workspace import Workspace


def tokenize_corpus(
    inputs: str | Sequence[str],
    output: str | None = None,
    *,
    executor: Executor | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> TokenizeReport:
    """Tokenize text into a Megatron indexed dataset, exactly and resumably.

    The files written are ``OUTPUT.bin``, ``OUTPUT.idx`` and the directory ``OUTPUT.tokshard/`` (with
    several fields: ``OUTPUT_<field>_document`` each). The bytes depend on the inputs, the tokenizer and
    the options that shape them, and on nothing else: not on the number of workers, the compression of
    the inputs, the engine, or whether the run was interrupted.

    Args:
        inputs: Files, globs, directories, ``@list.txt`` or ``-`` for stdin; all but the last may be URLs.
        output: Path prefix of the output, or a URL prefix, where it is uploaded when it is finished; by
            default the name of the only input without its suffixes.
        executor: Where to encode; by default worker processes, or this process for small inputs.
        progress: Who is told of the progress.
        **options: The fields of :class:`~tokshard.tokenization.options.TokenizeOptions`: ``tokenizer``
            (file or directory, None for the built-in bytes), ``eod``, ``append_eod``,
            ``special_tokens``, ``fields``, ``name_by_field``, ``workers``, ``engine``, ``dtype``,
            ``on_error``, ``max_errors``, ``max_document_bytes``, ``unit_bytes``, ``provenance``,
            ``resume``, ``force``, ``staging``, ``keep_staging``.

    Returns:
        What was written.

    Raises:
        UsageError: An option cannot be meant.
        InputError: An input or the tokenizer cannot be read, or a record is bad.
        OutputExistsError: The output is there already; ``force`` replaces it.
        ResumeMismatchError: An unfinished run was started with other inputs or options.
        LockedError: Another process writes this output.
        EncoderMismatchError: The fast engine differs from the reference.
        StorageError: The disk is full or broken. All finished work is kept.
        WorkerError: A worker process died. All finished work is kept.

    Example:
        >>> report = tokenize_corpus("corpus.jsonl", "out/corpus")  # doctest: +SKIP
        >>> report.outputs[0].tokens  # doctest: +SKIP
        2219
    """
    started = time.monotonic()
    listener = progress or SilentProgress()
    with executor if isinstance(executor, EarlyExecutor) else EarlyExecutor(executor) as chosen:
        job = prepare(inputs, output, options, discovered=chosen.begin)
        workspace = Workspace(job.prefix)
        result = job.build_spec.up_to_date(workspace)
        if result is None:
            with job.locked(), BuildRun(job.build_spec, workspace) as run:
                built = run.recover()
                if built is None:
                    built = run.publish(encode_missing(job, workspace, chosen, listener))
                result = run.deliver(built, listener)
    return make_report(job, result, started)


def plan_tokenization(inputs: str | Sequence[str], output: str | None = None, **options: Any) -> DryRunReport:
    """Say what :func:`tokenize_corpus` would do with the same arguments, without writing anything."""
    job = prepare(inputs, output, options)
    return DryRunReport(
        inputs=tuple(file.to_json() for file in job.files),
        outputs=job.build_spec.destinations,
        tokenizer=job.tokenizer.identity,
        options=encode(job.parameters),
        engine=job.engine.name,
        engine_reason=job.engine.reason,
        workers=job.workers,
        state=job.build_spec.state(Workspace(job.prefix)),
        staging=job.delivery.directory if job.delivery else None,
    )


def make_report(job: TokenizeJob, result: BuildResult, started: float) -> TokenizeReport:
    """Return what a run says it has done, given when it began by the monotonic clock."""
    manifests = result.manifests
    first = manifests[0]
    outputs = tuple(
        OutputReport(
            prefix=prefix,
            field=manifest.dataset.field or "",
            dtype=manifest.dataset.dtype,
            documents=manifest.dataset.documents,
            sequences=manifest.dataset.sequences,
            tokens=manifest.dataset.tokens,
            bin_bytes=manifest.files.bin.size_bytes,
            idx_bytes=manifest.files.idx.size_bytes,
            pieces_xxh3_128=manifest.files.bin.pieces_xxh3_128,
        )
        for prefix, manifest in zip(job.build_spec.destinations, manifests, strict=True)
    )
    return TokenizeReport(
        outputs=outputs,
        tokenizer=job.tokenizer.identity,
        records=first.counts.records,
        documents=first.counts.documents,
        rejected=first.counts.rejected,
        input_bytes=sum(source.size_bytes or 0 for source in first.inputs),
        content_bytes=first.counts.content_bytes,
        engine={**encode(first.encoder), "differences": 0},
        units=first.dataset.units,
        units_resumed=result.resumed,
        up_to_date=result.up_to_date,
        seconds=time.monotonic() - started,
        warnings=_warnings(job, manifests),
    )


def _warnings(job: TokenizeJob, manifests: Sequence[Manifest]) -> tuple[str, ...]:
    found = []
    for prefix, manifest in zip(job.build_spec.destinations, manifests, strict=True):
        data = manifest.dataset
        if not data.tokens:
            found.append(f"{prefix} has no tokens: Megatron cannot train on it")
        if data.eod_in_text and job.options.append_eod:
            found.append(
                f"{prefix}: the text of the corpus itself contains the EOD token "
                f"{data.eod_in_text} times; Megatron will see document ends there"
            )
    return tuple(found)
