"""Resumable, crash-safe runs that build datasets.

Steps: recover (use the leftovers of an earlier run), stage (the caller copies or encodes into the work
directory, with checkpoints), publish (rename to the final names), deliver (upload to an object store).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Literal, Self, cast

from tokshard.core.progress import Progress
from tokshard.dataset.delivery import JOURNAL_NAME, Delivery, UploadJournal
from tokshard.dataset.manifest import Manifest, adopt_command, check_sizes, manifest_path, read_manifest
from tokshard.dataset.plan import (
    BuildDifference,
    BuildInput,
    BuildPlan,
    ConvertParameters,
    MergeParameters,
    TextFormat,
    TextInput,
    TokenFileInput,
    TokenizeParameters,
)
from tokshard.dataset.workdir import WorkDirectory, is_sealed
from tokshard.errors import IntegrityError, OutputExistsError, StorageError
from tokshard.storage import fs, paths
from tokshard.storage.files import foreign_file
from tokshard.storage.paths import is_remote

_TIMES = frozenset({"mtime_ns", "version"})
OutputState = Literal["new", "resume", "up-to-date", "exists"]
BuildAction = Literal["planned", "written", "found"]


@dataclass(frozen=True, slots=True)
class BuildResult:
    """The outputs of a run.

    Attributes:
        resumed: How much of the work an earlier run had done: units or bytes.
        kept_units: Finished units of other plans, which are kept until the outputs are published.
        kept_bytes: The size of their work directories.
        encoded_bytes: Bytes of text that this run encoded; 0 for other commands than tokenize.
        encoded_tokens: Tokens of this text.
    """

    manifests: tuple[Manifest, ...]
    resumed: int = 0
    kept_units: int = 0
    kept_bytes: int = 0
    encoded_bytes: int = 0
    encoded_tokens: int = 0
    up_to_date: bool = False

    @property
    def action(self) -> BuildAction:
        """What the run did to the outputs."""
        return "found" if self.up_to_date else "written"


@dataclass(frozen=True, slots=True)
class BuildSpec:
    """The outputs to build, and the rules for reusing and replacing files.

    Attributes:
        prefixes: The local path prefix of each output.
        encoders: The encoders whose documents an existing output may have; None for any.
        same_content: Tells whether the inputs still have the content from which the output at a prefix was
            made. Called only if nothing but times or versions of inputs differ; None: it has changed.
        delivery: How the outputs are uploaded to a store; None to leave them where they are built.
    """

    plan: BuildPlan
    prefixes: tuple[str, ...]
    resume: bool
    force: bool
    encoders: frozenset[str] | None = None
    delivery: Delivery | None = None
    same_content: Callable[[str, Manifest], bool] | None = None

    @property
    def destinations(self) -> tuple[str, ...]:
        """The prefixes of the outputs as the user named them: paths or URLs."""
        if self.delivery is None:
            return self.prefixes
        return tuple(self.delivery.url_of(prefix) for prefix in self.prefixes)

    def finished(self, prefixes: Sequence[str]) -> BuildResult | None:
        """Return the outputs at these prefixes if all exist and were built by an equal plan.

        Output of a pipe is never reused: the input can differ each time.

        Raises:
            IntegrityError: The size of a file differs from its manifest.
        """
        manifests = []
        for prefix in prefixes:
            manifest = read_manifest(prefix)
            if manifest is None or not self._accepts(prefix, manifest):
                return None
            try:
                check_sizes(prefix, manifest)
            except IntegrityError:
                if read_manifest(prefix) != manifest:  # another process removes it meanwhile
                    return None
                raise
            manifests.append(manifest)
        return BuildResult(tuple(manifests), up_to_date=True)

    def up_to_date(self, work: WorkDirectory) -> BuildResult | None:
        """Return the outputs if there is nothing to do. The caller needs no lock.

        Outputs waiting for upload, and leftovers of an earlier run, count as work to do.
        """
        waits = self.delivery is not None and self.delivery.has_leftovers()
        if self.force or waits or work.has_leftovers():
            return None
        return self.finished(self.destinations)

    def state(self, work: WorkDirectory) -> OutputState:
        """Return the state that a run would start from, for a dry run; see :func:`recover` for the errors."""
        if self.resume:
            work.refuse_older()
        if not self.force and self.finished(self.destinations) is not None:
            return "up-to-date"
        is_staged = self.delivery is not None and self.finished(self.prefixes) is not None
        if is_staged or any(plan.has_units_of(self.plan) for plan in work.earlier_plans()):
            return "resume"
        return "exists" if _existing(self.destinations) else "new"

    def refuse_existing(self, prefixes: Sequence[str], state: str = "exists already and ") -> None:
        """Raise OutputExistsError if files of an output exist at these prefixes and may not be replaced."""
        if self.force or not (existing := _existing(prefixes)):
            return
        manifests = [manifest for prefix in prefixes if (manifest := read_manifest(prefix)) is not None]
        found = self._differences(manifests)
        hint = "pass --force to replace it, or choose another --output"
        if found:
            reason = f"was made from other inputs or options: {'; '.join(found)}"
        elif not self.plan.is_repeatable:
            reason = "cannot be compared with what comes through a pipe"
        elif manifests:
            reason = "is incomplete, or its inputs have changed"
        elif older := [prefix for prefix in prefixes if fs.lexists(manifest_path(prefix))]:
            reason = "was made by an earlier version of tokshard"
            hint += f", or keep it: {adopt_command(older[0])}"
        else:
            reason = "has no manifest: tokshard did not write it"
        raise OutputExistsError(f"{existing[0]} {state}{reason}", differences=found, hint=hint)

    def _differences(self, manifests: Sequence[Manifest]) -> tuple[str, ...]:
        found = (str(difference) for manifest in manifests for difference in self._different(manifest))
        return tuple(dict.fromkeys(found))

    def _different(self, manifest: Manifest) -> Iterator[BuildDifference]:
        options, inputs = manifest.options, self.plan.inputs
        if isinstance(options, MergeParameters) and isinstance(self.plan.options, MergeParameters):
            # Its manifest lists the inputs of its inputs.
            if options.inputs != self.plan.options.inputs:
                yield BuildDifference("inputs", "", list(options.inputs), list(self.plan.options.inputs))
        elif isinstance(options, TokenizeParameters):
            inputs = _text_inputs(manifest)
        elif isinstance(options, ConvertParameters):
            options = replace(options, append_eod=None)  # found while the inputs were read
            inputs = _token_inputs(manifest)
        yield from BuildPlan(inputs, manifest.tokenizer, options).differences(self.plan)
        made_by = sorted(manifest.encoder.documents)
        if self.encoders is not None and not self.encoders.issuperset(made_by):
            yield BuildDifference("option", "--encoder", ", ".join(made_by), ", ".join(sorted(self.encoders)))

    def _accepts(self, prefix: str, manifest: Manifest) -> bool:
        if not self.plan.is_repeatable:
            return False
        found = list(self._different(manifest))
        if not found:
            return manifest.fingerprint == self.plan.fingerprint
        touched = all(difference.kind == "input" and difference.field in _TIMES for difference in found)
        return touched and self.same_content is not None and self.same_content(prefix, manifest)


def _text_inputs(manifest: Manifest) -> tuple[BuildInput, ...]:
    return tuple(
        TextInput(
            path=source.path,
            size_bytes=source.size_bytes,
            mtime_ns=source.mtime_ns,
            format=cast("TextFormat", source.format),
            compression=source.compression,
            version=source.version,
        )
        for source in manifest.inputs
    )


def _token_inputs(manifest: Manifest) -> tuple[BuildInput, ...]:
    return tuple(
        TokenFileInput(source.path, source.size_bytes or 0, source.mtime_ns or 0)
        for source in manifest.inputs
    )


def recover(spec: BuildSpec, work: WorkDirectory) -> BuildResult | None:
    """Publish an output that an earlier run staged completely, or prepare the work directory.

    ``work``: the work directory; the caller holds its lock exclusively.

    Returns:
        The outputs if all exist now; otherwise None, and the work directory holds the plan.

    Raises:
        OutputExistsError: The output exists, and was not built by an equal plan, or the unfinished work is of
            an earlier version of tokshard.
    """
    work.sweep()
    if spec.resume:
        work.refuse_older()
    if is_sealed(work.directory):
        published = _complete(spec, work)
        ours = {manifest.fingerprint for manifest in published} == {spec.plan.fingerprint}
        if ours and spec.plan.is_repeatable:
            return BuildResult(published)
    elif not spec.resume:
        work.remove()
    if not spec.force and (finished := spec.finished(spec.prefixes)) is not None:
        work.remove()
        return finished
    spec.refuse_existing(spec.prefixes)
    work.begin(spec.plan)
    return None


def _complete(spec: BuildSpec, work: WorkDirectory) -> tuple[Manifest, ...]:
    # A staged output is finished work, whatever the plan of this run is.
    published: tuple[Manifest, ...] = ()
    if not work.is_half_removed():
        try:
            published = tuple(map(_published, work.publish(held=spec.prefixes, force=spec.force)))
        except IntegrityError:
            if spec.resume:
                raise
    work.remove()
    return published


class BuildRun:
    """The steps of a run. The caller holds the writer locks of all outputs.

    Example::

        with work.locked(), BuildRun(spec, work) as run:
            built = run.recover()
            if built is None:
                built = run.publish(stage_everything(work.directory))
            result = run.deliver(built, progress)
    """

    def __init__(self, spec: BuildSpec, work: WorkDirectory) -> None:
        self._spec = spec
        self._work = work
        self._journal: UploadJournal | None = None
        self._begun = False
        self._found: dict[str, object] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._begun:
            with suppress(StorageError):
                self._work.remove_unless_finished_work()
        if self._journal is None:
            return
        self._journal.close()
        delivery = self._spec.delivery
        if delivery is not None and isinstance(error, StorageError) and is_remote(error.path):
            raise delivery.with_hint(error) from error

    def recover(self) -> BuildResult | None:
        """Use the leftovers of an earlier run.

        Returns:
            The outputs if nothing has to be staged; otherwise None: stage them in the work directory.

        Raises:
            OutputExistsError: The output exists, or waits to be uploaded, and was not built by an equal plan.
        """
        self._found = {prefix: fs.state(manifest_path(prefix)) for prefix in self._spec.prefixes}
        found = self._recover()
        self._begun = found is None
        return found

    def _recover(self) -> BuildResult | None:
        spec, delivery = self._spec, self._spec.delivery
        if delivery is None:
            return recover(spec, self._work)
        if not spec.force and (finished := spec.finished(spec.destinations)) is not None:
            delivery.clear(spec.prefixes)
            return finished
        begun = os.path.lexists(self._work.directory)
        waiting = spec.finished(spec.prefixes) if spec.resume and not begun else None
        plan = spec.plan.fingerprint if waiting is None else waiting.manifests[0].fingerprint
        self._journal = UploadJournal(os.path.join(self._work.sidecars, JOURNAL_NAME), plan)
        self._refuse_existing_objects(self._journal)
        if waiting is None and not begun:
            spec.refuse_existing(spec.prefixes, f"waits to be uploaded to {delivery.url}, and ")
        return waiting or recover(spec, self._work)

    def publish(self, staged: BuildResult) -> BuildResult:
        """Give the staged files their final names; return the outputs.

        Raises:
            OutputExistsError: Another program has created a file of the output during the run. All finished
                work is kept.
        """
        spec = self._spec
        if not spec.force:
            self._refuse_foreign()
        self._work.seal(spec.prefixes, staged.manifests, replaces=spec.force)
        published = tuple(map(_published, self._work.publish(held=spec.prefixes, force=spec.force)))
        self._work.remove()
        return replace(staged, manifests=published)

    def deliver(self, built: BuildResult, progress: Progress) -> BuildResult:
        """Upload the outputs if they belong to an object store; return them.

        Raises:
            OutputExistsError: An output appeared in the store during the run.
            StorageError: The store refuses the upload. All finished work is kept.
        """
        spec, delivery = self._spec, self._spec.delivery
        if delivery is None or self._journal is None:
            return built
        progress.message(f"uploading {delivery.prefix} to {delivery.url}")
        self._refuse_existing_objects(self._journal)  # a run takes its time
        delivery.upload(spec.prefixes, built.manifests, self._journal, progress)
        delivery.clear(spec.prefixes)
        return replace(built, up_to_date=False)

    def _refuse_foreign(self) -> None:
        # A manifest that has lost its dataset may have been there before.
        appeared = _existing(self._spec.prefixes) + [
            path
            for prefix, before in self._found.items()
            if fs.lexists(path := manifest_path(prefix)) and fs.state(path) != before
        ]
        if appeared:
            raise foreign_file(appeared[0])

    def _refuse_existing_objects(self, journal: UploadJournal) -> None:
        if not journal.is_resumed:
            self._spec.refuse_existing(self._spec.destinations)


def _existing(prefixes: Sequence[str]) -> list[str]:
    candidates = [path(prefix) for prefix in prefixes for path in (paths.bin_path, paths.idx_path)]
    return [path for path in candidates if fs.lexists(path)]


def _published(prefix: str) -> Manifest:
    manifest = read_manifest(prefix)
    if manifest is None:
        raise IntegrityError(f"the manifest of {prefix} disappeared during publication", path=prefix)
    return manifest
