"""The merge job: from checked inputs to a published dataset, resumable at any time."""

from __future__ import annotations

import errno
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from tokshard.core.codec import XXH3_128, Document, Key
from tokshard.core.formatting import listed, size
from tokshard.core.progress import Progress, reporting
from tokshard.dataset.build_run import BuildResult, BuildRun, BuildSpec, OutputState
from tokshard.dataset.merge.inputs import MergeInput, check_together, common, expand, named_twice, read_input
from tokshard.dataset.merge.options import MergeOptions
from tokshard.dataset.merge.shuffle import ShuffledCopy, ShuffleSizes, shuffle_sizes
from tokshard.dataset.merge.staging import TokenCopy, check_manifest_size, stage
from tokshard.dataset.plan import BuildPlan, DocumentShuffle, MergeParameters
from tokshard.dataset.token_ids import check_token_ids
from tokshard.dataset.tokenizer_agreement import TokenizerAgreement, TokenizerMismatch, agree
from tokshard.dataset.tokenizer_identity import TokenizerIdentity
from tokshard.dataset.workdir import WorkDirectory
from tokshard.errors import StorageError
from tokshard.storage.files import tree_bytes
from tokshard.storage.fs import free_bytes, refuse_remote
from tokshard.storage.lock import lock_mode

_SHOWN_NAMES = 3


@dataclass(frozen=True, slots=True)
class MergeReport(Document):
    """The dataset written by :func:`tokshard.merge`."""

    SCHEMA = "tokshard.merge-report/1"

    prefix: Annotated[str, Key("prefix", "The path prefix of the dataset.")]
    inputs: Annotated[int, Key("inputs", "Merged datasets.", minimum=1)]
    dtype: Annotated[str, Key("dtype", "The dtype of the tokens.")]
    multimodal: Annotated[bool, Key("multimodal", "Whether each sequence has a mode.")]
    documents: Annotated[int, Key("documents", "Documents.", minimum=0)]
    sequences: Annotated[int, Key("sequences", "Sequences.", minimum=0)]
    tokens: Annotated[int, Key("tokens", "Tokens.", minimum=0)]
    bin_bytes: Annotated[int, Key("bin_bytes", "The size of the .bin file.", minimum=0)]
    idx_bytes: Annotated[int, Key("idx_bytes", "The size of the .idx file.", minimum=0)]
    pieces_xxh3_128: Annotated[
        str, Key("pieces_xxh3_128", "The piecewise digest of the .bin file.", pattern=XXH3_128)
    ]
    tokenizer: Annotated[TokenizerIdentity | None, Key("tokenizer", "Tokenizer; null if unknown or mixed.")]
    tokenizer_mismatches: Annotated[
        tuple[TokenizerMismatch, ...] | None,
        Key("tokenizer_mismatches", "Mismatches of the inputs that were allowed.", omit_none=True),
    ]
    provenance: Annotated[bool, Key("provenance", "Whether the origin of each document is known.")]
    shuffle: Annotated[
        DocumentShuffle | None,
        Key("shuffle", "Random order of the documents; absent if they are concatenated.", omit_none=True),
    ]
    passes: Annotated[
        int | None,
        Key(
            "passes",
            "How often a shuffle reads and writes all tokens; absent without a shuffle.",
            minimum=1,
            omit_none=True,
        ),
    ]
    bytes_resumed: Annotated[
        int, Key("bytes_resumed", "Bytes of tokens copied by an earlier run.", minimum=0)
    ]
    up_to_date: Annotated[bool, Key("up_to_date", "Whether the output already existed and nothing was done.")]
    seconds: Annotated[float, Key("seconds", "Duration.", minimum=0)]
    warnings: Annotated[tuple[str, ...], Key("warnings", "Warnings.")]


@dataclass(frozen=True, slots=True)
class MergedDataset:
    """An input of a merge."""

    path: Annotated[str, Key("path", "The path prefix, as the user named it.")]
    bin_bytes: Annotated[int, Key("bin_bytes", "The size of the .bin file.", minimum=0)]
    documents: Annotated[int, Key("documents", "Documents.", minimum=0)]
    sequences: Annotated[int, Key("sequences", "Sequences.", minimum=0)]
    tokens: Annotated[int, Key("tokens", "Tokens.", minimum=0)]
    empty_documents: Annotated[int, Key("empty_documents", "Documents without a sequence.", minimum=0)]
    longest_sequence: Annotated[int, Key("longest_sequence", "Tokens of the longest sequence.", minimum=0)]


@dataclass(frozen=True, slots=True)
class ShuffleForecast:
    """Memory and disk space of a shuffle."""

    seed: Annotated[int, Key("seed", "Seed of the order.", minimum=0)]
    algorithm: Annotated[str, Key("algorithm", "Name of the algorithm.")]
    passes: Annotated[int, Key("passes", "How often all tokens are read and written.", minimum=1)]
    memory_bytes: Annotated[int, Key("memory_bytes", "Memory for tokens and their index, about.", minimum=0)]
    scratch_bytes: Annotated[int, Key("scratch_bytes", "Size of the scratch files, about.", minimum=0)]
    disk_bytes: Annotated[
        int, Key("disk_bytes", "Free disk space that the shuffle requires, about.", minimum=0)
    ]
    free_bytes: Annotated[int | None, Key("free_bytes", "Free disk space; null if unknown.", minimum=0)]


@dataclass(frozen=True, slots=True)
class MergeDryRun(Document):
    """The dataset that :func:`tokshard.merge` would write."""

    SCHEMA = "tokshard.merge-dry-run/1"

    prefix: Annotated[str, Key("prefix", "The path prefix of the dataset.")]
    inputs: Annotated[tuple[MergedDataset, ...], Key("inputs", "The datasets to be merged, in order.")]
    dtype: Annotated[str, Key("dtype", "The dtype of the tokens.")]
    multimodal: Annotated[bool, Key("multimodal", "Whether each sequence has a mode.")]
    tokenizer: Annotated[TokenizerIdentity | None, Key("tokenizer", "Tokenizer; null if unknown or mixed.")]
    tokenizer_mismatches: Annotated[
        tuple[TokenizerMismatch, ...] | None,
        Key("tokenizer_mismatches", "Mismatches of the inputs that were allowed.", omit_none=True),
    ]
    shuffle: Annotated[
        ShuffleForecast | None,
        Key("shuffle", "The shuffle; absent if documents are concatenated.", omit_none=True),
    ]
    state: Annotated[OutputState, Key("state", "State that the run would start from.")]
    warnings: Annotated[tuple[str, ...], Key("warnings", "Warnings.")]


def merge(options: MergeOptions, *, progress: Progress | None = None) -> MergeReport:
    """Concatenate datasets as Megatron's ``IndexedDatasetBuilder.add_index`` does, or shuffle them.

    The bytes of ``OUTPUT.bin`` and ``OUTPUT.idx`` are identical to Megatron's for the same inputs in the
    same order. With ``shuffle``, the documents of all inputs are in a random order, which depends only on the
    seed and the number of documents. All inputs are checked before anything is written. Memory does not
    depend on the size of the inputs. Digests, counts and provenance are merged into ``OUTPUT.tokshard/``.

    Args:
        options: The inputs, the output and the options.
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
        >>> report = merge(MergeOptions(["out/a", "out/b"], "out/ab"))  # doctest: +SKIP
        >>> report.documents  # doctest: +SKIP
        790
    """
    started = time.monotonic()
    with lock_mode(options.lock), reporting(progress) as listener:
        listener.start("reading indexes")
        job = _prepare(options)
        result = job.spec.up_to_date(job.work)
        if result is None:
            with job.work.locked(), BuildRun(job.spec, job.work) as run:
                result = run.recover()
                if result is None:
                    _require_free_space(job)
                    result = run.publish(_stage(job, listener))
        return _report(job, result, started)


def dry_run_merge(options: MergeOptions) -> MergeDryRun:
    """Return what :func:`merge` would do with the same options, without writing anything."""
    job = _prepare(options)
    return MergeDryRun(
        prefix=job.work.prefix,
        inputs=tuple(
            MergedDataset(dataset.prefix, dataset.bin_bytes, **dataset.counts) for dataset in job.inputs
        ),
        dtype=job.inputs[0].header.dtype.name,
        multimodal=options.multimodal,
        tokenizer=job.spec.plan.tokenizer,
        tokenizer_mismatches=job.agreement.to_record or None,
        shuffle=_forecast(job),
        state=job.spec.state(job.work),
        warnings=job.warnings,
    )


@dataclass(frozen=True, slots=True)
class _Job:
    options: MergeOptions
    inputs: tuple[MergeInput, ...]
    spec: BuildSpec
    work: WorkDirectory
    agreement: TokenizerAgreement
    sizes: ShuffleSizes | None
    warnings: tuple[str, ...]

    @property
    def shuffle(self) -> DocumentShuffle | None:
        """The order of the documents; None to concatenate them."""
        parameters = self.spec.plan.options
        return parameters.shuffle if isinstance(parameters, MergeParameters) else None


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
    plan = _plan(inputs, options, agreement)
    return _Job(
        options=options,
        inputs=inputs,
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


def _plan(inputs: Sequence[MergeInput], options: MergeOptions, agreement: TokenizerAgreement) -> BuildPlan:
    is_one = not agreement.to_record and not agreement.unchecked
    parameters = [dataset.manifest.options if dataset.manifest else None for dataset in inputs]
    # Where only some inputs end documents with EOD, theirs is the EOD token of the output.
    ending = [made_with for made_with in parameters if not made_with or made_with.append_eod is not False]
    return BuildPlan(
        inputs=tuple(dataset.source for dataset in inputs),
        tokenizer=inputs[0].tokenizer.identity if is_one else None,
        options=MergeParameters(
            inputs=tuple(dataset.prefix for dataset in inputs),
            multimodal=options.multimodal,
            eod_id=common([made_with.eod_id if made_with else None for made_with in ending or parameters]),
            append_eod=common([made_with.append_eod if made_with else None for made_with in parameters]),
            shuffle=None if options.shuffle is None else DocumentShuffle(options.shuffle),
        ),
    )


def _stage(job: _Job, progress: Progress) -> BuildResult:
    copy = _copy(job, progress)
    try:
        progress.start(
            "merging" if job.shuffle is None else "shuffling", copy.total_bytes, copy.resumed_bytes
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
    if job.shuffle is None or job.sizes is None:
        return TokenCopy(directory, job.inputs, progress)
    return ShuffledCopy(
        directory,
        job.inputs,
        job.shuffle,
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


def _forecast(job: _Job) -> ShuffleForecast | None:
    if job.shuffle is None or job.sizes is None:
        return None
    return ShuffleForecast(
        seed=job.shuffle.seed,
        algorithm=job.shuffle.algorithm,
        passes=job.sizes.passes,
        memory_bytes=job.sizes.memory_bytes,
        scratch_bytes=job.sizes.scratch_bytes,
        disk_bytes=job.sizes.disk_bytes,
        free_bytes=free_bytes(job.work.directory),
    )


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
    if not any(dataset.tokens for dataset in inputs):
        found.append("no input has tokens: Megatron cannot train on the output")
    return tuple(found)


def _report(job: _Job, result: BuildResult, started: float) -> MergeReport:
    (manifest,) = result.manifests
    data, files = manifest.dataset, manifest.files
    return MergeReport(
        prefix=job.work.prefix,
        inputs=len(job.inputs),
        dtype=data.dtype,
        multimodal=data.multimodal,
        documents=data.documents,
        sequences=data.sequences,
        tokens=data.tokens,
        bin_bytes=files.bin.size_bytes,
        idx_bytes=files.idx.size_bytes,
        pieces_xxh3_128=files.bin.pieces_xxh3_128,
        tokenizer=manifest.tokenizer,
        tokenizer_mismatches=manifest.tokenizer_mismatches,
        provenance=all(dataset.has_provenance for dataset in job.inputs),
        shuffle=job.shuffle,
        passes=job.sizes.passes if job.sizes else None,
        bytes_resumed=result.resumed,
        up_to_date=result.up_to_date,
        seconds=time.monotonic() - started,
        warnings=job.warnings,
    )
