"""The merge job: from checked inputs to a published dataset, resumable at every moment."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tokshard.core.progress import Progress, SilentProgress
from tokshard.dataset.build_run import BuildResult, BuildRun, BuildSpec
from tokshard.dataset.merge import arguments, sidecars
from tokshard.dataset.merge.copying import TokenCopy
from tokshard.dataset.merge.inputs import MergeInput, check_together, read_input
from tokshard.dataset.merge.plan import make_plan, tokenizer_mismatch
from tokshard.dataset.merge.report import MergeDryRunReport, MergeReport
from tokshard.dataset.workdir import WorkDirectory
from tokshard.errors import UsageError
from tokshard.storage.fs import refuse_remote
from tokshard.storage.paths import check_output_prefix, is_remote

_SHOWN = 3


def merge_datasets(
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    multimodal: bool = False,
    allow_tokenizer_mismatch: bool = False,
    resume: bool = True,
    force: bool = False,
    progress: Progress | None = None,
) -> MergeReport:
    """Put datasets behind each other into one, as Megatron's ``IndexedDatasetBuilder.add_index`` does.

    The bytes of ``OUTPUT.bin`` and ``OUTPUT.idx`` are those of Megatron for the same inputs in the same
    order. Every input is checked completely before anything is written. Memory does not depend on the
    size of the inputs. Digests, counts and provenance are carried over into ``OUTPUT.tokshard/``.

    Args:
        inputs: Path prefixes of datasets (or one of their files), or globs of these, in order. What a
            glob gives is in natural order.
        output: Path prefix of the output.
        multimodal: Whether the inputs have modes.
        allow_tokenizer_mismatch: Whether they may have been made with different tokenizers.
        resume: Whether an unfinished merge is gone on with.
        force: Whether an existing output is replaced.
        progress: Who is told of the progress.

    Returns:
        What was written.

    Raises:
        UsageError: The output is among the inputs, or cannot be one.
        InputError: An input is missing, or the inputs cannot be put together.
        IntegrityError: An input is damaged or cut short.
        OutputExistsError: The output is there already; ``force`` replaces it.
        ResumeMismatchError: An unfinished merge was started with other inputs.
        LockedError: Another process writes this output.
        StorageError: The disk is full or broken. What has been copied is kept.

    Example:
        >>> report = merge_datasets(["out/a", "out/b"], "out/ab")  # doctest: +SKIP
        >>> report.documents  # doctest: +SKIP
        790
    """
    started = time.monotonic()
    job = _prepare(
        inputs, output, multimodal=multimodal, allow_tokenizer_mismatch=allow_tokenizer_mismatch,
        resume=resume, force=force,
    )  # fmt: skip
    result = job.spec.up_to_date(job.work)
    if result is None:
        with job.work.locked(), BuildRun(job.spec, job.work) as run:
            result = run.recover()
            if result is None:
                result = run.publish(_stage(job, progress or SilentProgress()))
    return _report(job, result, started)


def plan_merge(
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    multimodal: bool = False,
    allow_tokenizer_mismatch: bool = False,
    resume: bool = True,
    force: bool = False,
) -> MergeDryRunReport:
    """Say what :func:`merge_datasets` would do with the same arguments, without writing anything."""
    job = _prepare(
        inputs, output, multimodal=multimodal, allow_tokenizer_mismatch=allow_tokenizer_mismatch,
        resume=resume, force=force,
    )  # fmt: skip
    return MergeDryRunReport(
        prefix=job.work.prefix,
        inputs=tuple({"path": one.prefix, "bin_bytes": one.bin_bytes, **one.counts} for one in job.inputs),
        dtype=job.inputs[0].header.dtype.name,
        multimodal=multimodal,
        tokenizer=job.spec.plan.tokenizer,
        state=job.spec.state(job.work),
        warnings=job.warnings,
    )


@dataclass(frozen=True, slots=True)
class _Job:
    """Everything that is known before the first byte is copied."""

    inputs: tuple[MergeInput, ...]
    multimodal: bool
    spec: BuildSpec
    work: WorkDirectory
    warnings: tuple[str, ...]


def _prepare(
    inputs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    multimodal: bool,
    allow_tokenizer_mismatch: bool,
    resume: bool,
    force: bool,
) -> _Job:
    prefix = check_output_prefix(os.fspath(output))
    if is_remote(prefix):
        raise UsageError(
            f"tokshard merge writes to a file system, and {prefix} is a URL",
            hint="merge into a local --output, and upload its files, the manifest last",
        )
    names = [inputs] if isinstance(inputs, str | os.PathLike) else inputs
    prefixes = arguments.expand([os.fspath(name) for name in names], prefix)
    for one in prefixes:
        refuse_remote(one, "tokshard merge copies")
    checked = tuple(read_input(one, multimodal=multimodal) for one in prefixes)
    check_together(checked)
    sidecars.check_manifest_size(checked)
    plan = make_plan(checked, multimodal=multimodal, allow_tokenizer_mismatch=allow_tokenizer_mismatch)
    return _Job(
        inputs=checked,
        multimodal=multimodal,
        spec=BuildSpec(plan=plan, prefixes=(prefix,), resume=resume, force=force),
        work=WorkDirectory(prefix),
        warnings=_warnings(checked),
    )


def _stage(job: _Job, progress: Progress) -> BuildResult:
    """Copy what is missing and stage the output; the bytes that existed already count as resumed."""
    directory = job.work.directory
    copy = TokenCopy(directory, job.inputs, progress)
    try:
        progress.start(sum(one.bin_bytes for one in job.inputs), copy.resumed_bytes)
        copy.run()
    finally:
        copy.close()
        progress.finish()
    manifests = sidecars.stage(directory, job.inputs, copy.digests, job.spec.plan, multimodal=job.multimodal)
    for one in job.inputs:
        one.check_unchanged()
    return BuildResult(tuple(manifests), copy.resumed_bytes)


def _warnings(inputs: Sequence[MergeInput]) -> tuple[str, ...]:
    found = []
    if twice := arguments.named_twice([one.prefix for one in inputs]):
        found.append(f"{_names(twice)}: named twice, so these documents are in the output twice")
    if unknown := [one.prefix for one in inputs if not one.tokenizer]:
        found.append(f"{_names(unknown)}: the tokenizer is not known, and cannot be compared")
    if mismatch := tokenizer_mismatch(inputs):
        found.append(mismatch)
    without = [one.prefix for one in inputs if not one.has_provenance]
    if without and len(without) < len(inputs):
        found.append(f"{_names(without)}: without provenance, so the output has none")
    if not any(one.tokens for one in inputs):
        found.append("there are no tokens in any input: Megatron cannot train on the output")
    return tuple(found)


def _names(prefixes: Sequence[str]) -> str:
    shown = ", ".join(prefixes[:_SHOWN])
    return f"{shown} and {len(prefixes) - _SHOWN} more" if len(prefixes) > _SHOWN else shown


def _report(job: _Job, result: BuildResult, started: float) -> MergeReport:
    (manifest,) = result.manifests
    data = manifest.dataset
    return MergeReport(
        prefix=job.work.prefix,
        inputs=len(job.inputs),
        dtype=data.dtype,
        multimodal=data.multimodal,
        documents=data.documents,
        sequences=data.sequences,
        tokens=data.tokens,
        bin_bytes=manifest.files.bin.size_bytes,
        idx_bytes=manifest.files.idx.size_bytes,
        pieces_xxh3_128=manifest.files.bin.pieces_xxh3_128,
        tokenizer=manifest.tokenizer,
        provenance=all(one.has_provenance for one in job.inputs),
        bytes_resumed=result.resumed,
        up_to_date=result.up_to_date,
        seconds=time.monotonic() - started,
        warnings=job.warnings,
    )
