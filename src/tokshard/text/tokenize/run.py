"""The tokenize run: from inputs to published datasets, resumable at every moment.

The steps: discover the inputs, start the workers, prepare the job (tokenizer and build), recover what an
earlier run has left, encode (units to parts, parts to the assembly, in order), stage (index, sidecars,
manifest), publish (final names).

The modules of the steps are imported when the workers have been started, which load their libraries
meanwhile.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tokshard.core.formatting import count, counted
from tokshard.core.progress import Progress, ProgressUpdate, reporting
from tokshard.errors import InputError, IntegrityError, LockedError, StorageError, UsageError
from tokshard.storage.lock import lock_mode
from tokshard.storage.paths import idx_path
from tokshard.text.corpus.files import check_unchanged, content_bytes
from tokshard.text.corpus.rejection import top_reasons
from tokshard.text.tokenize.discovery import DiscoveredInputs, discover_inputs, first_problems
from tokshard.text.tokenize.options import TokenizeOptions
from tokshard.text.tokenize.workers.pool import ProcessPool
from tokshard.text.tokenize.workers.ray_cluster import RayOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokshard.dataset.delivery import Delivery
    from tokshard.dataset.manifest import Manifest
    from tokshard.dataset.outputs import OutputState
    from tokshard.dataset.run import Run
    from tokshard.text.tokenize.assembly import Assembly, EncodedOutputs
    from tokshard.text.tokenize.choice import EncodingChoice
    from tokshard.text.tokenize.encoder import Outcome
    from tokshard.text.tokenize.job import TokenizeJob
    from tokshard.text.tokenize.part import AppendedUnit, PartHeader, UnitKey
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
        dry_run: Prepare the run, but write no output. The first record of each input is read, of a table also
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
        >>> report.outputs[0].tokens  # doctest: +SKIP
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
            from tokshard.text.tokenize.job import prepare_job

            job = prepare_job(options, *inputs, choice=choice)
            listener.start("checking earlier work")
            result = _build(job, chosen, listener)
        return make_report(job, result, started)


def _build(job: TokenizeJob, executor: Executor, progress: Progress) -> EncodedOutputs:
    from tokshard.text.tokenize.assembly import EncodedOutputs

    outputs, delivery = job.outputs, job.delivery
    if delivery is None:
        if (done := outputs.up_to_date()) is not None:
            return EncodedOutputs(done, is_found=True)
        with outputs.locked():
            return _build_locally(job, executor, progress)
    if not job.options.force and (done := job.destinations.finished()) is not None:
        _clear_unless_used(job, delivery)
        return EncodedOutputs(done, is_found=True)
    with ExitStack() as stack:
        stack.callback(delivery.remove_empty)
        stack.enter_context(outputs.locked())
        _refuse_objects(job, delivery)
        if (waiting := outputs.finished()) is not None and not os.path.lexists(outputs.work):
            result = EncodedOutputs(waiting)
        else:
            outputs.refuse_existing(f"waits to be uploaded to {delivery.url}, and ")
            result = _build_locally(job, executor, progress)
            _refuse_objects(job, delivery)  # a run takes its time
        progress.message(f"uploading {delivery.prefix} to {delivery.url}")
        delivery.upload(job.prefixes, progress)
        delivery.clear(job.prefixes)
        return result


def _clear_unless_used(job: TokenizeJob, delivery: Delivery) -> None:
    """Remove what an upload that was killed at its end has left, unless a process works there."""
    if os.path.isdir(delivery.directory):
        with suppress(LockedError), job.outputs.locked():
            job.run().remove_same()
            delivery.clear(job.prefixes)
        delivery.remove_empty()


def _refuse_objects(job: TokenizeJob, delivery: Delivery) -> None:
    from tokshard.dataset.manifest import read_manifest

    # An upload that failed has left objects without a manifest, or with one of the same build.
    manifests = filter(None, map(read_manifest, job.destinations.prefixes))
    ours = all(manifest.fingerprint == job.build.fingerprint for manifest in manifests)
    if not (ours and delivery.is_begun()):
        job.destinations.refuse_existing()


def _build_locally(job: TokenizeJob, executor: Executor, progress: Progress) -> EncodedOutputs:
    from tokshard.text.tokenize.assembly import EncodedOutputs

    run = job.run()
    if (done := run.recover()) is not None:
        return EncodedOutputs(done, is_found=True)
    run.begin(job.count_finished, resume=job.options.resume)
    try:
        result = encode_and_stage(job, run, executor, progress)
        run.publish(result.manifests)
    except _UselessUnits as stop:
        with suppress(StorageError):
            run.remove()
        raise stop.error from None
    except BaseException:
        with suppress(StorageError):
            run.remove_unless_finished(job.has_finished)
        raise
    finally:
        run.close()
    return result


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
        state=_state(job),
        outputs=tuple(DatasetProduct(prefix, job.build.tokenizer) for prefix in job.destinations.prefixes),
        options=job.parameters,
        input_bytes=job.input_bytes,
        inputs=tuple(file.source for file in job.files),
        messages=tuple(messages),
        workers=job.workers,
        local_dir=job.delivery.directory if job.delivery else None,
        chosen_encoder=job.encoder.name,
        encoder_reason=job.encoder.reason,
        seconds=time.monotonic() - started,
        warnings=(*_doubled_eod(job), *problems),
    )


def _state(job: TokenizeJob) -> OutputState:
    state = job.destinations.state()
    if state == "up-to-date":
        return state
    run = job.run()
    if job.options.resume and (earlier := run.earlier_job()) is not None:
        if run.is_continued(earlier):
            return "resume"
        if not job.options.force and job.count_finished():
            return "exists"
    is_staged = job.delivery is not None and job.outputs.finished() is not None
    return "resume" if is_staged else state


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
        from tokshard.text.tokenizer.fast import loading_fast

        with loading_fast(choice.tokenizer, special_tokens=options.special_tokens):
            yield choice
    else:
        yield choice


def encode_and_stage(
    job: TokenizeJob, run: Run[AppendedUnit], executor: Executor, progress: Progress
) -> EncodedOutputs:
    """Encode the units that are not finished, and stage the outputs."""
    from tokshard.text.tokenize.assembly import Assembly, EncodedOutputs
    from tokshard.text.tokenize.part import UnitKey

    assembly = Assembly(job, run)
    assembly.check_policy()
    encoding = UnitEncoding(job, run, assembly, progress)
    if assembly.is_damaged:
        progress.message("unfinished work is damaged: its units are encoded again")
    if encoding.resumed:
        progress.message(f"reusing {counted(encoding.resumed, 'finished unit')}")
    if encoding.removed:
        units = counted(encoding.removed, "finished unit")
        progress.message(f"{units} of other or changed inputs removed")
    end = UnitKey(len(job.files), 0)
    if assembly.next < end and not assembly.is_full:
        encoding.encode(executor)
    if assembly.next != end and not assembly.is_full:
        raise IntegrityError(f"unit {assembly.next} was never finished")
    check_unchanged(job.files)
    progress.start("writing the index")
    return EncodedOutputs(
        assembly.stage(),
        resumed=encoding.resumed,
        encoded_bytes=encoding.done.encoded_bytes,
        encoded_tokens=encoding.done.encoded_tokens,
    )


@dataclass
class EncodingProgress:
    """What was encoded, for a listener.

    Attributes:
        content: The encoded bytes in words.
        bytes_done: On-disk bytes of the units, with those that were finished before.
        documents: Documents of the units, with those that were finished before.
        tokens: Tokens of the units, with those that were finished before.
        encoded_bytes: Bytes of text that this run encoded.
        encoded_documents: Documents that this run encoded.
        encoded_tokens: Tokens that this run encoded.
    """

    content: str
    bytes_done: int = 0
    documents: int = 0
    tokens: int = 0
    encoded_bytes: int = 0
    encoded_documents: int = 0
    encoded_tokens: int = 0

    def add_finished(self, header: PartHeader) -> None:
        """Add a unit that was finished before."""
        self.bytes_done += header.input_bytes
        self.documents += header.documents
        self.tokens += header.tokens

    def outcomes(self, events: Events, total: int | None, listener: Progress) -> Iterator[Outcome]:
        """Yield the outcome of each unit, and tell the listener of the batches before it."""
        from tokshard.text.tokenize.encoder import Outcome

        is_started = False
        for event in events:
            if not is_started:  # until then workers load the tokenizer
                listener.start("encoding", total, self.bytes_done)
                is_started = True
            if isinstance(event, Outcome):
                yield event
            else:
                self.bytes_done += event.input_bytes
                self.documents += event.documents
                self.tokens += event.tokens
                self.encoded_bytes += event.content_bytes
                self.encoded_documents += event.documents
                self.encoded_tokens += event.tokens
            listener.update(
                ProgressUpdate(self.bytes_done, self.documents, self.tokens, self.encoded_bytes, self.content)
            )


class UnitEncoding:
    """The encoding of the units that are not finished; parts are appended to the assembly in order."""

    def __init__(
        self, job: TokenizeJob, run: Run[AppendedUnit], assembly: Assembly, progress: Progress
    ) -> None:
        from tokshard.storage.files import remove_tree
        from tokshard.text.tokenize.part import ENCODED_CONTENT, is_part_name, part_headers

        self._job = job
        self._run = run
        self._assembly = assembly
        self._progress = progress
        self.resumed = assembly.units
        content = ENCODED_CONTENT[job.encoder.name]
        self.done = EncodingProgress(content, assembly.input_bytes, assembly.documents, assembly.tokens)
        self._ready: set[UnitKey] = set()
        # Parts that a task adds later, which runs without locks, stay.
        names = set(os.listdir(run.parts))
        usable = set()
        for header in part_headers(run.parts, verify=lambda _: True):
            key = job.part_names.key(header.name)
            if key is None or key < assembly.next or header.encoder not in job.accepted_encoders:
                continue
            usable.add(header.name)
            self._ready.add(key)
            self.done.add_finished(header)
            self.resumed += 1
        unused = names - usable
        for name in unused:
            remove_tree(os.path.join(run.parts, name))
        others = {name for name in unused if is_part_name(name) and job.part_names.key(name) is None}
        self.removed = len(assembly.others | others)
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
        from tokshard.text.tokenize.workers.feed import Feed

        job, refused = self._job, {}
        sizes = [file.size_bytes for file in job.files]
        total = None if None in sizes else sum(size or 0 for size in sizes)
        with (
            Feed(
                job.files,
                range(self._assembly.next.file, len(job.files)),
                max_document_bytes=job.parameters.max_document_bytes,
                names=job.part_names,
                raw_directory=self._run.raw,
                is_done=lambda key: key < self._assembly.next or key in self._ready,
                streams=streams,
                fields=job.reading.fields,
            ) as feed,
            closing(_events(executor, job, self._run.parts, feed)) as events,
        ):
            for outcome in self.done.outcomes(events, total, self._progress):
                if outcome.refused is not None:
                    refused[outcome.key] = outcome.refused
                    feed.limit_to(outcome.key)
                else:
                    self._ready.add(outcome.key)
                    self._assemble()
                    if self._assembly.is_full:
                        return
                if (record := refused.get(self._assembly.next)) is not None:
                    raise self._assembly.refuse(record)

    def _assemble(self) -> None:
        from tokshard.text.tokenize.part import PartReader

        while not self._assembly.is_full and (key := self._assembly.next) in self._ready:
            with PartReader(os.path.join(self._run.parts, self._job.part_names.of(key))) as part:
                try:
                    self._assembly.append(part)
                except UsageError as error:
                    raise _UselessUnits(error) from None
            self._ready.discard(key)


class _UselessUnits(Exception):  # noqa: N818 - carries an error
    """The limits allow no document: the finished units would only be in the way of other limits."""

    def __init__(self, error: UsageError) -> None:
        super().__init__()
        self.error = error


class _UnreadableInput(Exception):  # noqa: N818 - carries an error
    def __init__(self, error: InputError) -> None:
        super().__init__()
        self.error = error


def _events(executor: Executor, job: TokenizeJob, parts: str, feed: Feed) -> Events:
    try:
        yield from executor.run(job.encoding(), parts, feed)
    except InputError as error:
        raise _UnreadableInput(error) from None


def make_report(job: TokenizeJob, result: EncodedOutputs, started: float) -> TokenizeReport:
    """Return the report of a run that began at ``started`` by the monotonic clock."""
    from tokshard.dataset.report import DatasetProduct
    from tokshard.text.tokenize.part import OTHER_SPLIT
    from tokshard.text.tokenize.report import TokenizeReport

    # The records are those of the first split; documents are of all splits.
    first, *others = (manifest.counts for manifest in result.manifests[:: len(job.parameters.fields)])
    excluded = {code: records for code, records in (first.excluded or {}).items() if code != OTHER_SPLIT}
    encoders = sum((Counter(counts.encoders) for counts in others), Counter(first.encoders))
    counts = replace(
        sum(others, first),
        records=first.records,
        lines=first.lines,
        blank_lines=first.blank_lines,
        content_bytes=first.content_bytes,
        rejected=first.rejected,
        excluded=excluded or None,
        encoders=dict(encoders),
    )
    return TokenizeReport(
        action="found" if result.is_found else "written",
        outputs=tuple(map(DatasetProduct.of, job.destinations.prefixes, result.manifests)),
        options=job.parameters,
        input_bytes=job.input_bytes,
        local_dir=job.delivery.directory if job.delivery else None,
        chosen_encoder=job.encoder.name,
        encoder_reason=_encoder_reason(job, counts.encoders),
        counts=counts,
        # Of those that an earlier run finished, a limit can leave out some.
        units_reused=min(result.resumed, result.manifests[0].dataset.units),
        encoded_bytes=result.encoded_bytes,
        encoded_tokens=result.encoded_tokens,
        seconds=time.monotonic() - started,
        warnings=_warnings(job, result.manifests),
    )


def _encoder_reason(job: TokenizeJob, documents: Mapping[str, int]) -> str | None:
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
            f"({top_reasons(rejected)}); see {job.destinations.prefixes[0]}.tokshard/rejected.jsonl"
        )
    for prefix, manifest in zip(job.destinations.prefixes, manifests, strict=True):
        data = manifest.counts
        if not data.tokens:
            found.append(f"{prefix} has no tokens: Megatron cannot train on it")
        in_text = data.eod_in_text - data.sequences * _template_eods(job)
        if in_text and job.options.append_eod:
            source = "the text of the corpus itself contains"
            remedy = f"Megatron will see document ends there{_split_remedy(job)}"
            if job.parameters.vocab_size is not None:
                source = "the token ids already contain"
                remedy = "if documents end with it, pass --no-append-eod"
            found.append(f"{prefix}: {source} the EOD token {counted(in_text, 'time')}; {remedy}")
        unrepresented = data.unrepresented
        if unrepresented is not None and unrepresented.share > _WARNED_SHARE:
            found.append(
                f"the tokenizer cannot represent all text of {prefix}: {unrepresented.name}, "
                f"{unrepresented.describe()}; use one with byte fallback or a byte-level vocabulary, or one "
                "trained on such text"
            )
    return tuple(found)


def _split_remedy(job: TokenizeJob) -> str:
    if job.tokenizer.finds_special_tokens and job.options.preset is None:
        return "; to encode it as ordinary text, run again with --special-tokens-in-text split and --force"
    return ""


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
