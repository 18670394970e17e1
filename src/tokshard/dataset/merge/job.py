"""The merge job: from checked inputs to a published dataset, resumable at any time."""

from __future__ import annotations

import errno
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tokshard.core.codec import Count, Record
from tokshard.core.formatting import counted, listed, size, throughput, tokenizer_name
from tokshard.core.presentation import Section, outcome, planned
from tokshard.core.progress import Progress, reporting
from tokshard.dataset.build_run import BuildResult, BuildRun, BuildSpec
from tokshard.dataset.manifest import DatasetRecord
from tokshard.dataset.merge.inputs import MergeInput, check_together, common, expand, named_twice, read_input
from tokshard.dataset.merge.options import MergeOptions
from tokshard.dataset.merge.shuffle import ShuffledCopy, ShuffleSizes, shuffle_sizes
from tokshard.dataset.merge.staging import TokenCopy, check_manifest_size, dataset_record, stage
from tokshard.dataset.parameters import BuildPlan, DatasetInput, DocumentShuffle, MergeParameters
from tokshard.dataset.report import BuildReport, DatasetProduct
from tokshard.dataset.token_ids import check_token_ids
from tokshard.dataset.tokenizer_agreement import TokenizerAgreement, agree
from tokshard.dataset.workdir import WorkDirectory
from tokshard.errors import StorageError
from tokshard.storage.files import tree_bytes
from tokshard.storage.fs import free_bytes, refuse_remote
from tokshard.storage.lock import lock_mode

_SHOWN_NAMES = 3


@dataclass(frozen=True, slots=True)
class MergedDataset(Record):
    """An input of a merge."""

    source: DatasetInput
    dataset: DatasetRecord

    def __str__(self) -> str:
        data = self.dataset
        documents = counted(data.documents, "document")
        return f"{self.source.path} ({documents}, {counted(data.tokens, 'token')})"


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeReport(BuildReport):
    """The dataset that :func:`tokshard.merge` wrote, found up to date, or would write."""

    SCHEMA = "tokshard.merge/2"

    output: DatasetProduct
    options: MergeParameters
    inputs: tuple[MergedDataset, ...] | None = None
    shuffle_sizes: ShuffleSizes | None = None
    free_bytes: Count | None = None
    bytes_resumed: Count | None = None

    def sections(self) -> list[Section]:
        """Return what was done, or would be done, for people."""
        output, shuffle = self.output, self.options.shuffle
        order = f"shuffled with seed {shuffle.seed}" if shuffle else ""
        if self.action == "planned":
            inputs = self.inputs or ()
            size_bytes = sum(dataset.source.bin_bytes for dataset in inputs)
            facts = [
                ("inputs", f"{len(inputs)}, {size(size_bytes)} of {inputs[0].dataset.dtype} tokens"),
                ("output", f"{output.path_prefix} ({self.state})"),
                ("tokenizer", tokenizer_name(output.tokenizer)),
                ("order", shuffle and f"{order} ({shuffle.ALGORITHM})"),
                *(self.shuffle_sizes.facts(self.free_bytes) if self.shuffle_sizes else ()),
            ]
            return [planned(facts, [str(dataset) for dataset in inputs])]
        reused = f"{size(self.bytes_resumed)} copied by an earlier run" if self.bytes_resumed else ""
        speed = throughput(self.seconds, output.size_bytes, output.tokens)
        time_text = f"{counted(len(self.options.inputs), 'dataset')} in {speed}"
        flag = " --multimodal" if self.options.multimodal else ""
        next_step = f"tokshard inspect {shlex.quote(output.path_prefix)}{flag}"
        facts = [("reused", reused), ("order", order)]
        return [outcome(self.action, [output.describe()], facts, time_text, [next_step])]


def merge(options: MergeOptions, *, dry_run: bool = False, progress: Progress | None = None) -> MergeReport:
    """Concatenate datasets as Megatron's ``IndexedDatasetBuilder.add_index`` does, or shuffle them.

    The bytes of ``OUTPUT.bin`` and ``OUTPUT.idx`` are identical to Megatron's for the same inputs in the
    same order. With ``shuffle``, the documents of all inputs are in a random order, which depends only on the
    seed and the number of documents. All inputs are checked before anything is written. Memory does not
    depend on the size of the inputs. Digests, counts and provenance are merged into ``OUTPUT.tokshard/``.

    Args:
        options: The inputs, the output and the options.
        dry_run: Check the inputs and plan the merge, but write nothing.
        progress: Receives the progress.

    Raises:
        UsageError: The output is among the inputs.
        InputError: An input is missing, or the inputs cannot be merged.
        IntegrityError: An input is damaged or truncated.
        TokenizerMismatchError: The inputs were encoded with different tokenizers or EOD tokens, and
            ``allow_tokenizer_mismatch`` is not set.
        OutputExistsError: The output exists and ``force`` is not set.
        LockedError: Another process is writing this output.
        StorageError: A read or write failed. Copied tokens are kept.

    Example:
        >>> report = merge(MergeOptions(inputs=["out/a", "out/b"], output="out/ab"))  # doctest: +SKIP
        >>> report.output.dataset.documents  # doctest: +SKIP
        790
    """
    started = time.monotonic()
    with lock_mode(options.lock), reporting(progress) as listener:
        listener.start("reading indexes")
        job = _prepare(options)
        if dry_run:
            return _report(job, None, started)
        result = job.spec.up_to_date(job.work)
        if result is None:
            with job.work.locked(), BuildRun(job.spec, job.work) as run:
                result = run.recover()
                if result is None:
                    _require_free_space(job)
                    result = run.publish(_stage(job, listener))
        return _report(job, result, started)


@dataclass(frozen=True, slots=True)
class _Job:
    options: MergeOptions
    inputs: tuple[MergeInput, ...]
    parameters: MergeParameters
    spec: BuildSpec
    work: WorkDirectory
    agreement: TokenizerAgreement
    sizes: ShuffleSizes | None
    warnings: tuple[str, ...]


def _prepare(options: MergeOptions) -> _Job:
    prefix = options.output_prefix
    prefixes = expand(options.input_names, prefix)
    for name in prefixes:
        refuse_remote(name, "merge requires local datasets")
    inputs = tuple(read_input(name, multimodal=options.multimodal) for name in prefixes)
    check_together(inputs)
    check_token_ids({dataset.prefix: dataset.tokenizer for dataset in inputs})
    check_manifest_size(inputs)
    agreement = agree([(dataset.prefix, dataset.tokenizer) for dataset in inputs])
    agreement.require(allowed=options.allow_tokenizer_mismatch)
    is_one = not agreement.to_record and not agreement.unchecked
    parameters = _parameters(inputs, options)
    plan = BuildPlan(
        inputs=tuple(dataset.source for dataset in inputs),
        tokenizer=inputs[0].tokenizer.identity if is_one else None,
        options=parameters,
    )
    return _Job(
        options=options,
        inputs=inputs,
        parameters=parameters,
        spec=BuildSpec(plan=plan, prefixes=(prefix,), resume=options.resume, force=options.force),
        work=WorkDirectory(prefix),
        agreement=agreement,
        sizes=None if options.shuffle is None else _sizes(inputs, options),
        warnings=_warnings(inputs, agreement),
    )


def _sizes(inputs: Sequence[MergeInput], options: MergeOptions) -> ShuffleSizes:
    return shuffle_sizes(
        inputs, memory_bytes=options.shuffle_memory_bytes, page_cache_bytes=options.page_cache_bytes
    )


def _parameters(inputs: Sequence[MergeInput], options: MergeOptions) -> MergeParameters:
    recorded = [dataset.manifest.options if dataset.manifest else None for dataset in inputs]
    # Where only some inputs end documents with EOD, theirs is the EOD token of the output.
    ending = [made_with for made_with in recorded if not made_with or made_with.append_eod is not False]
    return MergeParameters(
        inputs=tuple(dataset.prefix for dataset in inputs),
        multimodal=options.multimodal,
        eod_id=common([made_with.eod_id if made_with else None for made_with in ending or recorded]),
        append_eod=common([made_with.append_eod if made_with else None for made_with in recorded]),
        shuffle=None if options.shuffle is None else DocumentShuffle(options.shuffle),
    )


def _stage(job: _Job, progress: Progress) -> BuildResult:
    copy = _copy(job, progress)
    try:
        progress.start(
            "merging" if job.parameters.shuffle is None else "shuffling", copy.total_bytes, copy.resumed_bytes
        )
        copy.run()
    finally:
        copy.close()
    progress.start("writing the index")
    manifest = stage(
        job.work.directory,
        job.inputs,
        copy.digests,
        job.spec.plan,
        multimodal=job.options.multimodal,
        mismatches=job.agreement.to_record,
        tokenizers=tuple(dict.fromkeys(part for dataset in job.inputs for part in dataset.tokenizer.parts)),
        pieces=copy.pieces,
    )
    for dataset in job.inputs:
        dataset.check_unchanged()
    return BuildResult((manifest,), copy.resumed_bytes)


def _copy(job: _Job, progress: Progress) -> TokenCopy | ShuffledCopy:
    directory, options = job.work.directory, job.options
    if job.parameters.shuffle is None or job.sizes is None:
        return TokenCopy(directory, job.inputs, progress)
    return ShuffledCopy(
        directory,
        job.inputs,
        job.parameters.shuffle,
        progress,
        sizes=job.sizes,
        threads=options.shuffle_threads,
        multimodal=options.multimodal,
    )


def _require_free_space(job: _Job) -> None:
    # Of a resumed run, the files that exist already need no more space.
    sizes, free = job.sizes, free_bytes(job.work.directory)
    needed = 0 if sizes is None else sizes.disk_bytes - tree_bytes(job.work.directory)
    if free is not None and needed > free:
        error = OSError(errno.ENOSPC, f"{size(needed)} required, {size(free)} free")
        raise StorageError("write", job.work.prefix, error)


def _warnings(inputs: Sequence[MergeInput], agreement: TokenizerAgreement) -> tuple[str, ...]:
    found = []
    if twice := named_twice([dataset.prefix for dataset in inputs]):
        found.append(
            f"{listed(twice, _SHOWN_NAMES)}: passed twice, so their documents are in the output twice"
        )
    found += agreement.warnings
    without = [dataset.prefix for dataset in inputs if not dataset.has_provenance]
    if without and len(without) < len(inputs):
        found.append(f"{listed(without, _SHOWN_NAMES)}: no provenance, so the output has none")
    if not any(dataset.record.tokens for dataset in inputs):
        found.append("no input has tokens: Megatron cannot train on the output")
    return tuple(found)


def _report(job: _Job, result: BuildResult | None, started: float) -> MergeReport:
    # No result means a dry run.
    prefix = job.work.prefix
    if result is None:
        output = DatasetProduct(
            prefix,
            job.spec.plan.tokenizer,
            dataset_record(job.inputs, multimodal=job.options.multimodal),
            tokenizer_mismatches=job.agreement.to_record or None,
        )
    else:
        output = DatasetProduct.of(prefix, result.manifests[0])
    inputs = (MergedDataset(dataset.source, dataset.record) for dataset in job.inputs)
    return MergeReport(
        action="planned" if result is None else result.action,
        state=job.spec.state(job.work) if result is None else None,
        output=output,
        options=job.parameters,
        inputs=tuple(inputs) if result is None else None,
        shuffle_sizes=job.sizes,
        free_bytes=free_bytes(job.work.directory) if result is None and job.sizes else None,
        bytes_resumed=result.resumed if result else None,
        seconds=time.monotonic() - started,
        warnings=job.warnings,
    )
