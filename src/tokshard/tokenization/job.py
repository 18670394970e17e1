"""The tokenize job: from inputs to published data sets, resumable at every moment.

The phases: plan (look at inputs and tokenizer), recover (what has an earlier run left), encode (units
to parts, parts to the assembly, in order), stage (index, sidecars, manifest), publish (final names).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from tokshard.corpus.files import CorpusFile, discover
from tokshard.corpus.records import RejectedRecord
from tokshard.errors import (
    InputError,
    IntegrityError,
    UsageError,
)
from tokshard.indexed.manifest import Manifest
from tokshard.indexed.plan import Plan
from tokshard.indexed.production import Order, Produced, produce
from tokshard.indexed.publication import seal
from tokshard.progress import Progress, ProgressUpdate, SilentProgress
from tokshard.storage import paths
from tokshard.tokenization.assembly import Assembly, ErrorPolicy
from tokshard.tokenization.encoder import Outcome
from tokshard.tokenization.engines import fast_engine_refusal
from tokshard.tokenization.executors import Executor, InlineExecutor, ProcessExecutor
from tokshard.tokenization.feed import Feed
from tokshard.tokenization.gate import FIRST_BYTES
from tokshard.tokenization.options import TokenizeOptions, output_prefix
from tokshard.tokenization.part import PartReader, UnitKey
from tokshard.tokenization.plan import make_plan
from tokshard.tokenization.recipe import EngineName, Recipe
from tokshard.tokenization.report import DryRunReport, OutputReport, TokenizeReport
from tokshard.tokenization.staging import stage
from tokshard.tokenization.tokenizer import Tokenizer, load_tokenizer
from tokshard.tokenization.workspace import Workspace

# A worker process needs about half a second to start; below this size it does not pay.
_INLINE_BYTES = 4 << 20
_COMPRESSED_TO_PLAIN = 8


def tokenize_corpus(
    inputs: str | Sequence[str],
    output: str | None = None,
    *,
    executor: Executor | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> TokenizeReport:
    """Tokenize text into a Megatron indexed data set, exactly and resumably.

    The files written are ``OUTPUT.bin``, ``OUTPUT.idx`` and the directory ``OUTPUT.tokshard/`` (with
    several fields: ``OUTPUT_<field>_document`` each). The bytes depend on the inputs, the tokenizer and
    the options that shape them, and on nothing else: not on the number of workers, the compression of
    the inputs, the engine, or whether the run was interrupted.

    Args:
        inputs: Files, globs, directories, ``@list.txt`` or ``-`` for stdin.
        output: Path prefix of the output; by default the name of the only input without its suffixes.
        executor: Where to encode; by default worker processes, or this process for small inputs.
        progress: Who is told of the progress.
        **options: The fields of :class:`~tokshard.tokenization.options.TokenizeOptions`: ``tokenizer``
            (file or directory, None for the built-in bytes), ``eod``, ``append_eod``,
            ``special_tokens``, ``fields``, ``name_by_field``, ``workers``, ``engine``, ``dtype``,
            ``on_error``, ``max_errors``, ``max_document_bytes``, ``unit_bytes``, ``provenance``,
            ``resume``, ``force``.

    Returns:
        What was written.

    Raises:
        UsageError: An option cannot be meant.
        InputError: An input or the tokenizer cannot be read, or a record is bad.
        OutputExistsError: The output is there already; ``force`` replaces it.
        ResumeMismatchError: An unfinished run was started with other inputs or options.
        LockedError: Another process writes this output.
        EngineMismatchError: The fast engine differs from the reference.
        StorageError: The disk is full or broken. All finished work is kept.
        WorkerError: A worker process died. All finished work is kept.

    Example:
        >>> report = tokenize_corpus("corpus.jsonl", "out/corpus")  # doctest: +SKIP
        >>> report.outputs[0].tokens  # doctest: +SKIP
        2219
    """
    started = time.monotonic()
    job = _prepare(inputs, output, options)
    workspace = Workspace(job.prefix)
    if not workspace.has_leftovers() and (finished := job.order.finished()) is not None:
        return _report(job, Produced(finished, up_to_date=True), started)
    with ExitStack() as locks:
        # An output PREFIX_<field>_document is also the output of a run that was given that prefix.
        for prefix in sorted({job.prefix, *job.prefixes}):
            locks.enter_context(Workspace(prefix).locked())
        produced = produce(
            job.order, workspace, lambda: _encode(job, workspace, executor, progress or SilentProgress())
        )
    return _report(job, produced, started)


def plan_tokenization(inputs: str | Sequence[str], output: str | None = None, **options: Any) -> DryRunReport:
    """Say what :func:`tokenize_corpus` would do with the same arguments, without writing anything."""
    job = _prepare(inputs, output, options)
    return DryRunReport(
        inputs=job.plan.inputs,
        outputs=job.prefixes,
        tokenizer=job.plan.tokenizer,
        options=job.plan.options,
        engine=job.engine.name,
        engine_reason=job.engine.reason,
        workers=job.workers,
        state=job.order.state(Workspace(job.prefix)),
    )


@dataclass(frozen=True, slots=True)
class _EngineDecision:
    name: EngineName
    reason: str | None


@dataclass(frozen=True, slots=True)
class _Job:
    """Everything that is known before the first unit."""

    files: tuple[CorpusFile, ...]
    options: TokenizeOptions
    tokenizer: Tokenizer
    plan: Plan
    prefix: str
    prefixes: tuple[str, ...]
    engine: _EngineDecision

    @property
    def workers(self) -> int:
        return self.options.workers or len(os.sched_getaffinity(0))

    @property
    def accepted_engines(self) -> frozenset[str]:
        """Engines whose finished units may stay."""
        return frozenset({"reference"} if self.options.engine == "reference" else {"reference", "fast"})

    @property
    def repeatable(self) -> bool:
        """Whether all inputs can be read again."""
        return all(file.size_bytes is not None for file in self.files)

    @property
    def order(self) -> Order:
        return Order(
            plan=self.plan,
            prefixes=self.prefixes,
            resume=self.options.resume and self.repeatable,
            force=self.options.force,
            accepts=self._accepts,
        )

    def _accepts(self, manifest: Manifest) -> bool:
        """Tell whether a finished output may stay. What came through a pipe may not: it can differ."""
        return self.repeatable and manifest.engine["documents"].keys() <= self.accepted_engines

    def recipe(self) -> Recipe:
        options = self.options
        return Recipe(
            tokenizer=self.tokenizer.path,
            tokenizer_identity=self.tokenizer.identity,
            special_tokens=options.special_tokens,
            eod_id=self.tokenizer.eod_id,
            append_eod=options.append_eod,
            fields=options.fields,
            dtype=self.plan.options["dtype"],
            engine=self.engine.name,
            fallback=options.engine != "fast",
            max_document_bytes=options.max_document_bytes,
            max_rejected=ErrorPolicy(options.on_error == "skip", options.max_errors).limit,
            offsets=options.provenance,
        )


def _prepare(inputs: str | Sequence[str], output: str | None, options: dict[str, Any]) -> _Job:
    try:
        checked = TokenizeOptions(**options)
    except TypeError as error:
        raise UsageError(f"tokenize_corpus: {error}") from error
    names = [inputs] if isinstance(inputs, str) else list(inputs)
    if not names:
        raise UsageError("no input is given", hint="name files, globs, directories, @list.txt or - for stdin")
    prefix = output_prefix(names, output)
    files = discover(names)
    _refuse_inputs_among_outputs(files, checked.output_prefixes(prefix))
    tokenizer = load_tokenizer(checked.tokenizer, eod=checked.eod, need_eod=checked.append_eod)
    plan = make_plan(files, tokenizer, checked)
    engine = _choose_engine(files, tokenizer, checked)
    return _Job(files, checked, tokenizer, plan, prefix, checked.output_prefixes(prefix), engine)


def _refuse_inputs_among_outputs(files: Sequence[CorpusFile], prefixes: Sequence[str]) -> None:
    for prefix in prefixes:
        outputs = {os.path.realpath(path(prefix)) for path in (paths.bin_path, paths.idx_path)}
        sidecars = os.path.join(os.path.realpath(paths.sidecar_directory(prefix)), "")
        for file in files:
            place = os.path.realpath(file.path)
            if place in outputs or place.startswith(sidecars):
                raise UsageError(
                    f"the input {file.path} is one of the files that the run would write",
                    hint="choose another --output",
                )


def _choose_engine(
    files: Sequence[CorpusFile], tokenizer: Tokenizer, options: TokenizeOptions
) -> _EngineDecision:
    if options.engine == "reference":
        return _EngineDecision("reference", "asked for")
    reason = fast_engine_refusal(tokenizer, special_tokens=options.special_tokens)
    if options.engine == "fast":
        if reason is not None:
            raise UsageError(
                f"--engine fast cannot encode with this tokenizer: {reason}", hint="use --engine auto"
            )
        return _EngineDecision("fast", None)
    if reason is None and _plain_bytes(files) <= FIRST_BYTES:
        reason = "the corpus is no larger than the sample that would be compared"
    return _EngineDecision("reference" if reason else "fast", reason)


def _plain_bytes(files: Sequence[CorpusFile]) -> int:
    """Estimate the size of the inputs after decompression; streams are taken for large."""
    total = 0
    for file in files:
        if file.size_bytes is None:
            return 1 << 62
        total += file.size_bytes * (1 if file.compression == "none" else _COMPRESSED_TO_PLAIN)
    return total


def _encode(job: _Job, workspace: Workspace, executor: Executor | None, progress: Progress) -> int:
    """Encode what is missing and stage the outputs; return how many units were there already."""
    assembly = Assembly(
        workspace.directory,
        field_count=len(job.options.fields),
        offsets=job.options.provenance,
        input_names=[file.path for file in job.files],
        policy=ErrorPolicy(job.options.on_error == "skip", job.options.max_errors),
        accepts_engine=job.accepted_engines,
    )
    try:
        run = _Encoding(job, workspace, assembly, progress)
        progress.start(_total_bytes(job), run.bytes_done)
        if assembly.next < UnitKey(len(job.files), 0):
            chosen = executor or _default_executor(job)
            chosen.run(job.recipe(), workspace.parts, run.make_feed, run)
        run.check_complete()
        _check_unchanged(job.files)
        manifests = stage(workspace.directory, assembly, job.plan, job.plan.options["dtype"])
    finally:
        assembly.close()
        progress.finish()
    seal(workspace.directory, manifests)
    return run.resumed


class _Encoding:
    """The listener of an executor: appends parts in order, and knows what is done."""

    def __init__(self, job: _Job, workspace: Workspace, assembly: Assembly, progress: Progress) -> None:
        self._job = job
        self._workspace = workspace
        self._assembly = assembly
        self._progress = progress
        self._feed: Feed | None = None
        self._refused: dict[UnitKey, RejectedRecord] = {}
        self.resumed = sum(1 for _ in assembly.units()) if assembly.next > UnitKey(0, 0) else 0
        self.bytes_done = assembly.input_bytes_done
        self._ready: set[UnitKey] = set()
        self._documents = assembly.counts.documents
        self._tokens = sum(one.tokens for one in assembly.counts.fields)
        for part in workspace.usable_parts(assembly.next, job.accepted_engines):
            self._ready.add(part.unit)
            self._documents += part.counts.documents
            self._tokens += sum(one.tokens for one in part.counts.fields)
            self.bytes_done += part.input_bytes
            self.resumed += 1
        self._assemble()

    def make_feed(self, wake: Callable[[], None]) -> Feed:
        """Make the feed of what is not done yet."""
        self._feed = Feed(
            self._job.files,
            unit_bytes=self._job.options.unit_bytes,
            max_document_bytes=self._job.options.max_document_bytes,
            raw_directory=self._workspace.raw,
            is_done=lambda key: key < self._assembly.next or key in self._ready,
            file_is_done=lambda number: number < self._assembly.next.file,
            streams=self._job.workers,
            wake=wake,
        )
        return self._feed

    def encoded(self, content_bytes: int, documents: int, tokens: int) -> None:  # noqa: ARG002
        """See :class:`~tokshard.tokenization.executors.Listener`."""
        self._documents += documents
        self._tokens += tokens
        self._tell()

    def finished(self, outcome: Outcome) -> None:
        """See :class:`~tokshard.tokenization.executors.Listener`."""
        if outcome.refused is not None:
            self._refused[outcome.key] = outcome.refused
            if self._feed is not None:
                self._feed.limit_to(outcome.key)
        else:
            self._ready.add(outcome.key)
            self.bytes_done += outcome.input_bytes
        self._assemble()
        self._tell()

    def check_complete(self) -> None:
        """Check, at the end, that every unit of every file has been assembled."""
        if self._assembly.next != UnitKey(len(self._job.files), 0):
            raise IntegrityError(f"unit {self._assembly.next} was never finished")

    def _assemble(self) -> None:
        """Append all parts whose turn has come."""
        while (key := self._assembly.next) in self._ready:
            with PartReader(self._workspace.part_path(key)) as part:
                self._assembly.append(part)
            self._ready.discard(key)
        if (record := self._refused.get(self._assembly.next)) is not None:
            raise self._assembly.refuse(
                self._assembly.next,
                (record.offset, record.line, record.reason, record.detail, record.excerpt),
            )

    def _tell(self) -> None:
        rejected = self._assembly.counts.rejected_total
        self._progress.update(ProgressUpdate(self.bytes_done, self._documents, self._tokens, rejected))


def _default_executor(job: _Job) -> Executor:
    if _plain_bytes(job.files) <= _INLINE_BYTES:
        return InlineExecutor()
    return ProcessExecutor(job.workers)


def _total_bytes(job: _Job) -> int | None:
    sizes = [file.size_bytes for file in job.files]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _check_unchanged(files: Sequence[CorpusFile]) -> None:
    for file in files:
        if file.size_bytes is None:
            continue
        try:
            found = os.stat(file.path)
        except OSError as error:
            raise InputError(f"{file.path} went away while it was read: {error.strerror}") from error
        if (found.st_size, found.st_mtime_ns) != (file.size_bytes, file.mtime_ns):
            raise InputError(
                f"{file.path} was changed while it was read",
                hint="run again with --no-resume when nothing writes to it any more",
            )


def _report(job: _Job, produced: Produced, started: float) -> TokenizeReport:
    manifests = produced.manifests
    first = manifests[0]
    outputs = tuple(
        OutputReport(
            prefix=prefix,
            field=manifest.dataset["field"],
            dtype=manifest.dataset["dtype"],
            documents=manifest.dataset["documents"],
            sequences=manifest.dataset["sequences"],
            tokens=manifest.dataset["tokens"],
            bin_bytes=manifest.files["bin"]["bytes"],
            idx_bytes=manifest.files["idx"]["bytes"],
            pieces_xxh3_128=manifest.files["bin"]["pieces_xxh3_128"],
        )
        for prefix, manifest in zip(job.prefixes, manifests, strict=True)
    )
    return TokenizeReport(
        outputs=outputs,
        tokenizer=first.tokenizer,
        records=first.counts["records"],
        documents=first.counts["documents"],
        rejected=first.counts["rejected"],
        input_bytes=sum(entry["size_bytes"] or 0 for entry in first.inputs),
        content_bytes=first.counts["content_bytes"],
        engine=first.engine,
        units=first.dataset["units"],
        units_resumed=produced.resumed,
        up_to_date=produced.up_to_date,
        seconds=time.monotonic() - started,
        warnings=_warnings(job, manifests),
    )


def _warnings(job: _Job, manifests: Sequence[Manifest]) -> tuple[str, ...]:
    found = []
    for prefix, manifest in zip(job.prefixes, manifests, strict=True):
        data = manifest.dataset
        if not data["tokens"]:
            found.append(f"{prefix} has no tokens: Megatron cannot train on it")
        if data["eod_in_text"] and job.options.append_eod:
            found.append(
                f"{prefix}: the text of the corpus itself contains the EOD token "
                f"{data['eod_in_text']} times; Megatron will see document ends there"
            )
    return tuple(found)
