"""The tokenize run: from inputs to published datasets, resumable at every moment.

The steps: discover the inputs, start the workers, prepare the job (tokenizer and plan), recover what an
earlier run has left, encode (units to parts, parts to the assembly, in order), stage (index, sidecars,
manifest), publish (final names).

The modules of the steps are imported when the workers have been started, which load their libraries
meanwhile.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from tokshard.core.formatting import count, counted, size
from tokshard.core.progress import Progress, ProgressUpdate, reporting
from tokshard.errors import InputError, IntegrityError
from tokshard.storage.lock import lock_mode
from tokshard.storage.paths import idx_path
from tokshard.text.corpus.files import check_unchanged, content_bytes
from tokshard.text.corpus.rejection import top_reasons
from tokshard.text.tokenize.cluster.options import RayOptions
from tokshard.text.tokenize.discovery import DiscoveredInputs, discover_inputs, first_problems
from tokshard.text.tokenize.options import TokenizeOptions
from tokshard.text.tokenize.workers.pool import ProcessPool

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tokshard.dataset.build_run import BuildResult
    from tokshard.dataset.manifest import EncoderRecord, Manifest
    from tokshard.text.tokenize.assembly import Assembly
    from tokshard.text.tokenize.choice import EncodingChoice
    from tokshard.text.tokenize.job import KeptUnits, TokenizeJob
    from tokshard.text.tokenize.limits import LimitedParts
    from tokshard.text.tokenize.part import PartHeader, UnitKey
    from tokshard.text.tokenize.report import TokenizeReport
    from tokshard.text.tokenize.workers.executor import Events, Executor
    from tokshard.text.tokenize.workers.feed import Feed

# Worker processes need about half a second to start; below this size they do not pay.
INLINE_BYTES = 4 << 20
_WARNED_SHARE = 0.01


def tokenize(
    options: TokenizeOptions,
    *,
    dry_run: bool = False,
    executor: Executor | RayOptions | None = None,
    progress: Progress | None = None,
) -> TokenizeReport:
    """Tokenize text into a Megatron indexed dataset, exactly and resumably.

    The files written are ``OUTPUT.bin``, ``OUTPUT.idx`` and the directory ``OUTPUT.tokshard/`` (with
    several fields: ``OUTPUT_<field>_document`` each). The bytes depend on the inputs, the tokenizer and
    the options that shape them, and on nothing else: not on the number of workers, the compression of
    the inputs, the encoder, or whether the run was interrupted.

    Args:
        options: The options.
        dry_run: Plan the run, but write no output. The first record of each input is read, of a table also
            the schema; pipes are not read.
        executor: Options of a Ray cluster, or an executor; by default worker processes, or this process for
            small inputs.
        progress: Receives the progress.

    Raises:
        UsageError: An option does not fit the inputs or the tokenizer.
        InputError: An input or the tokenizer cannot be read, or a record is bad.
        OutputExistsError: The output exists, made from other inputs or options; ``force`` replaces it.
        LockedError: Another process writes this output.
        EncoderMismatchError: The fast encoder differs from the reference.
        StorageError: The disk is full or broken. All finished work is kept.
        WorkerError: A worker process died. All finished work is kept.

    Example:
        >>> report = tokenize(TokenizeOptions(inputs="corpus.jsonl", output="out/corpus"))  # doctest: +SKIP
        >>> report.outputs[0].dataset.tokens  # doctest: +SKIP
        2219
    """
    started = time.monotonic()
    if dry_run:
        return _dry_run(options, started)
    with lock_mode(options.lock), reporting(progress) as listener:
        listener.start("scanning inputs")
        inputs = discover_inputs(options, listener.message)
        size_bytes = content_bytes(inputs.files)
        with (
            chosen_executor(executor, size_bytes, options, files=len(inputs.files)) as chosen,
            _chosen_encoding(chosen, options, inputs, listener) as choice,
        ):
            from tokshard.dataset.build_run import BuildRun
            from tokshard.text.tokenize.job import prepare_job

            job = prepare_job(options, *inputs, choice=choice)
            listener.start("checking earlier work")  # reads inputs whose modification time has changed
            result = job.build.up_to_date(job.workspace)
            if result is None:
                with job.locked(), BuildRun(job.build, job.workspace) as run:
                    built = run.recover()
                    if built is None:
                        built = run.publish(encode_and_stage(job, chosen, listener))
                    result = run.deliver(built, listener)
        return make_report(job, result, started)


def _dry_run(options: TokenizeOptions, started: float) -> TokenizeReport:
    from tokshard.dataset.report import DatasetProduct
    from tokshard.text.tokenize.job import prepare_job
    from tokshard.text.tokenize.report import TokenizeReport

    messages: list[str] = []
    inputs = discover_inputs(options, messages.append)
    job = prepare_job(options, *inputs)
    problems = tuple(first_problems(job))
    return TokenizeReport(
        action="planned",
        state=job.build.state(job.workspace),
        outputs=tuple(DatasetProduct(prefix, job.tokenizer.identity) for prefix in job.build.destinations),
        options=job.parameters,
        input_bytes=job.input_bytes,
        inputs=tuple(file.plan_input() for file in job.files),
        messages=tuple(messages),
        workers=job.workers,
        local_dir=job.delivery.directory if job.delivery else None,
        chosen_encoder=job.encoder.name,
        encoder_reason=job.encoder.reason,
        seconds=time.monotonic() - started,
        warnings=(*_doubled_eod(job), *problems),
    )


@contextmanager
def chosen_executor(
    given: Executor | RayOptions | None, size_bytes: int, options: TokenizeOptions, *, files: int
) -> Iterator[Executor]:
    """Return ``given``, or choose this process or worker processes, which begin to load libraries.

    Processes that were started and not used are ended. ``size_bytes``: content of all ``files`` files.
    """
    if isinstance(given, RayOptions):
        from tokshard.text.tokenize.workers.ray import RayExecutor

        given = RayExecutor(given)
    if given is not None:
        yield given
        return
    # A single unit would have a single worker.
    most = INLINE_BYTES if files > 1 or size_bytes > options.unit_size else 4 * INLINE_BYTES
    if size_bytes <= most:
        from tokshard.text.tokenize.workers.executor import InlineExecutor

        yield InlineExecutor()
        return
    with ProcessPool(options.workers) as pool:
        pool.start().expect(options)
        yield pool


@contextmanager
def _chosen_encoding(
    executor: Executor, options: TokenizeOptions, inputs: DiscoveredInputs, progress: Progress
) -> Iterator[EncodingChoice]:
    # If units are encoded in this process, the fast encoder loads while other modules are imported; unless
    # the output exists: it may be up to date.
    from tokshard.text.tokenize.workers.executor import InlineExecutor

    progress.start("loading the tokenizer")
    exists = any(map(os.path.lexists, map(idx_path, options.output_prefixes(options.prefix))))
    is_inline = isinstance(executor, InlineExecutor) and not exists
    # Only now, because it imports much.
    from tokshard.text.tokenize.choice import choose_encoding

    choice = choose_encoding(options, inputs.files)
    if is_inline and choice.encoder.name == "fast":
        from tokshard.text.tokenizer.libraries import loading_fast

        with loading_fast(choice.tokenizer, special_tokens=options.special_tokens):
            yield choice
    else:
        yield choice


def encode_and_stage(job: TokenizeJob, executor: Executor, progress: Progress) -> BuildResult:
    """Encode the units that are not finished, and stage the outputs."""
    from tokshard.dataset.build_run import BuildResult
    from tokshard.text.tokenize.assembly import Assembly
    from tokshard.text.tokenize.part import UnitKey

    assembly = Assembly(
        job.workspace.directory,
        parts=_limited_parts(job),
        input_names=[file.path for file in job.files],
        policy=job.error_policy,
        accepts=job.accepted_encoders,
    )
    try:
        assembly.check_policy()
        kept = job.workspace.units_of_other_plans()
        encoding = UnitEncoding(job, assembly, progress)
        if assembly.is_damaged:
            progress.message("unfinished work is damaged or of an older version: its units are encoded again")
        for text in _reuse_messages(encoding.resumed, kept):
            progress.message(text)
        end = UnitKey(len(job.files), 0)
        if assembly.next < end and not assembly.is_full:
            encoding.encode(executor)
        if assembly.next != end and not assembly.is_full:
            raise IntegrityError(f"unit {assembly.next} was never finished")
        check_unchanged(job.files)
        progress.start("writing the index")
        manifests = assembly.stage(job.plan, job.parameters, job.tokenizer.path)
    finally:
        assembly.close()
    return BuildResult(
        tuple(manifests),
        encoding.resumed,
        kept_units=kept.units,
        kept_bytes=kept.size_bytes,
        encoded_bytes=encoding.encoded_bytes,
        encoded_tokens=encoding.encoded_tokens,
    )


def _limited_parts(job: TokenizeJob) -> LimitedParts:
    from tokshard.text.tokenize.limits import LimitedParts
    from tokshard.text.tokenize.workers.feed import first_bytes
    from tokshard.text.tokenizer.equivalence import sample

    below = first_bytes(job.files)

    def compared(header: PartHeader, offsets: NDArray[np.int64]) -> int:
        if header.encoder != "fast":
            return 0
        chosen = offsets[sample(offsets, header.file, below.get(header.file, 0))]
        too_large = {offset for offsets_of_split in header.uncompared or () for offset in offsets_of_split}
        return sum(offset not in too_large for offset in chosen.tolist())

    return LimitedParts(job.parameters, compared, job.tokenizer.unknown_id)


def _reuse_messages(reused: int, kept: KeptUnits) -> Iterator[str]:
    if reused:
        yield f"reusing {counted(reused, 'finished unit')}"
    if kept.size_bytes:
        yield (
            f"{counted(kept.units, 'finished unit')} of other options or inputs ({size(kept.size_bytes)}) "
            f"{'is' if kept.units == 1 else 'are'} kept until the output is published"
        )


class UnitEncoding:
    """The encoding of the units that are not finished; parts are appended to the assembly in order."""

    def __init__(self, job: TokenizeJob, assembly: Assembly, progress: Progress) -> None:
        self._job = job
        self._assembly = assembly
        self._progress = progress
        self.resumed = sum(1 for _ in assembly.units())
        self.bytes_done = assembly.input_bytes_done
        self._ready: set[UnitKey] = set()
        self.encoded_bytes = self.encoded_tokens = 0
        self._documents = assembly.counts.documents
        self._tokens = assembly.counts.tokens
        for part in job.workspace.usable_parts(assembly.next, job.accepted_encoders):
            self._ready.add(part.unit)
            self._documents += part.header.counts.documents
            self._tokens += part.header.counts.tokens
            self.bytes_done += part.header.input_bytes
            self.resumed += 1
        self._assemble()

    def encode(self, executor: Executor) -> None:
        """Encode all units that are not finished, or as many as the limits of the run require.

        With limits, an input that cannot be read is an error only if all documents before it are needed,
        whatever the number of workers.
        """
        unreadable = self._try_to_encode(executor, self._job.workers)
        # What was read from a pipe is gone.
        is_repeatable = all(file.size_bytes is not None for file in self._job.files)
        if unreadable is not None and self._job.options.has_limits and is_repeatable:
            from tokshard.text.tokenize.workers.executor import InlineExecutor

            unreadable = self._try_to_encode(InlineExecutor(), streams=1)
        if unreadable is not None:
            raise unreadable

    def _try_to_encode(self, executor: Executor, streams: int) -> InputError | None:
        """Return the error of an input that cannot be read; other errors are raised."""
        try:
            self._encode(executor, streams)
        except _UnreadableInput as stop:
            return stop.error
        return None

    def _encode(self, executor: Executor, streams: int) -> None:
        from tokshard.text.tokenize.encoder import BatchProgress
        from tokshard.text.tokenize.workers.feed import Feed

        job, refused = self._job, {}
        sizes = [file.size_bytes for file in job.files]
        total = None if None in sizes else sum(size or 0 for size in sizes)
        is_started = False
        with (
            Feed(
                job.files,
                range(self._assembly.next.file, len(job.files)),
                unit_bytes=job.options.unit_size,
                max_document_bytes=job.parameters.max_document_bytes,
                raw_directory=job.workspace.raw,
                is_done=lambda key: key < self._assembly.next or key in self._ready,
                streams=streams,
                fields=job.options.field_names,
            ) as feed,
            closing(_events(executor, job, feed)) as events,
        ):
            for event in events:
                if not is_started:  # until then workers load the tokenizer
                    self._progress.start("encoding", total, self.bytes_done)
                    is_started = True
                if isinstance(event, BatchProgress):
                    self.bytes_done += event.input_bytes
                    self._documents += event.documents
                    self._tokens += event.tokens
                    self.encoded_bytes += event.content_bytes
                    self.encoded_tokens += event.tokens
                elif event.refused is not None:
                    refused[event.key] = event.refused
                    feed.limit_to(event.key)
                else:
                    self._ready.add(event.key)
                    self._assemble()
                    if self._assembly.is_full:
                        return
                if (record := refused.get(self._assembly.next)) is not None:
                    raise self._assembly.refuse(record)
                self._progress.update(
                    ProgressUpdate(self.bytes_done, self._documents, self._tokens, self.encoded_bytes)
                )

    def _assemble(self) -> None:
        from tokshard.text.tokenize.part import PartReader

        while not self._assembly.is_full and (key := self._assembly.next) in self._ready:
            with PartReader(self._job.workspace.part_path(key)) as part:
                self._assembly.append(part)
            self._ready.discard(key)


class _UnreadableInput(Exception):  # noqa: N818 - carries an error
    def __init__(self, error: InputError) -> None:
        super().__init__()
        self.error = error


def _events(executor: Executor, job: TokenizeJob, feed: Feed) -> Events:
    try:
        yield from executor.run(job.encoding(), job.workspace.parts, feed)
    except InputError as error:
        raise _UnreadableInput(error) from None


def make_report(job: TokenizeJob, result: BuildResult, started: float) -> TokenizeReport:
    """Return the report of a run that began at ``started`` by the monotonic clock."""
    from tokshard.dataset.report import DatasetProduct
    from tokshard.text.tokenize.report import TokenizeReport

    # The counts are the same for all fields.
    first, *others = of_splits = result.manifests[:: len(job.parameters.fields)]
    excluded = {
        code: records
        for code, records in (first.counts.excluded or {}).items()
        if code != "other-split"  # it is in the others
    }
    encoder = sum((manifest.encoder for manifest in others), first.encoder)
    return TokenizeReport(
        action=result.action,
        outputs=tuple(map(DatasetProduct.of, job.build.destinations, result.manifests)),
        options=job.parameters,
        input_bytes=job.input_bytes,
        local_dir=job.delivery.directory if job.delivery else None,
        chosen_encoder=job.encoder.name,
        encoder=encoder,
        encoder_reason=_encoder_reason(job, encoder),
        counts=replace(
            first.counts,
            documents=sum(manifest.counts.documents for manifest in of_splits),
            excluded=excluded or None,
        ),
        # Of those that an earlier run finished, a limit can leave out some.
        units_reused=min(result.resumed, first.dataset.units),
        encoded_bytes=result.encoded_bytes,
        encoded_tokens=result.encoded_tokens,
        units_of_other_options=result.kept_units,
        bytes_of_other_options=result.kept_bytes,
        seconds=time.monotonic() - started,
        warnings=_warnings(job, result.manifests),
    )


def _encoder_reason(job: TokenizeJob, encoder: EncoderRecord) -> str | None:
    documents = encoder.documents
    if not documents.get("reference"):
        return None
    if job.encoder.reason is None and not documents.get("fast"):
        return "fastokens, the library of the fast encoder, is not installed or refuses the tokenizer"
    return job.encoder.reason or "units of an earlier run are by the reference encoder"


def _warnings(job: TokenizeJob, manifests: Sequence[Manifest]) -> tuple[str, ...]:
    found = list(_doubled_eod(job))
    rejected = manifests[0].counts.rejected
    number = sum(rejected.values())
    fields = len(job.parameters.fields)
    documents = sum(manifest.counts.documents for manifest in manifests[::fields])
    if number > documents:
        found.append(
            f"{count(number)} of {count(number + documents)} records were rejected "
            f"({top_reasons(rejected)}); see {job.build.destinations[0]}.tokshard/rejected.jsonl"
        )
    for prefix, manifest in zip(job.build.destinations, manifests, strict=True):
        data = manifest.dataset
        if not data.tokens:
            found.append(f"{prefix} has no tokens: Megatron cannot train on it")
        in_text = data.eod_in_text - data.sequences * _template_eods(job)
        if in_text and job.options.append_eod:
            found.append(
                f"{prefix}: the text of the corpus itself contains the EOD token "
                f"{counted(in_text, 'time')}; Megatron will see document ends there"
            )
        unrepresented = data.unrepresented
        if unrepresented is not None and unrepresented.share > _WARNED_SHARE:
            found.append(
                f"the tokenizer cannot represent all text of {prefix}: {unrepresented.name}, "
                f"{unrepresented.describe()}; use one with byte fallback or a byte-level vocabulary, or one "
                "trained on such text"
            )
    return tuple(found)


def _template_eods(job: TokenizeJob) -> int:
    """Return how often the tokenizer itself adds the EOD token to each text."""
    identity = job.tokenizer.identity
    return identity.template_ids.count(identity.eod_id) if job.options.special_tokens else 0


def _doubled_eod(job: TokenizeJob) -> Iterator[str]:
    identity = job.tokenizer.identity
    is_last = (identity.suffix_ids or ())[-1:] == (identity.eod_id,)
    if job.options.append_eod and is_last and _template_eods(job):
        yield (
            f"documents end with the EOD token {identity.eod_token} twice, because with --special-tokens the "
            "tokenizer adds it as well; pass --no-append-eod to write it once"
        )
