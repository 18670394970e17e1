"""A run that builds datasets, so that a kill at any moment costs nothing but time.

Its steps: recover (what an earlier run left), stage (the caller copies or encodes into the work
directory, with checkpoints), publish (final names), deliver (upload, for outputs in a store).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

from tokshard.core.progress import Progress
from tokshard.dataset.delivery import JOURNAL_NAME, Delivery, UploadJournal
from tokshard.dataset.manifest import Manifest, check_sizes, read_manifest
from tokshard.dataset.plan import BuildPlan, UnreadablePlan
from tokshard.dataset.workdir import WorkDirectory, is_sealed, publish, seal
from tokshard.errors import IntegrityError, OutputExistsError, ResumeMismatchError, StorageError
from tokshard.storage import fs, paths
from tokshard.storage.paths import is_remote

OutputState = Literal["new", "resume", "up-to-date", "exists"]


@dataclass(frozen=True, slots=True)
class BuildResult:
    """The outputs of a run.

    Attributes:
        resumed: How much of the work an earlier run had done: units or bytes.
    """

    manifests: tuple[Manifest, ...]
    resumed: int = 0
    up_to_date: bool = False


@dataclass(frozen=True, slots=True)
class BuildSpec:
    """The outputs to build, and what may be reused or replaced.

    Attributes:
        prefixes: The local path prefix of each output.
        encoders: The encoders whose documents an existing output may have; None for any.
        delivery: How the outputs are uploaded to a store; None to leave them where they are built.
    """

    plan: BuildPlan
    prefixes: tuple[str, ...]
    resume: bool
    force: bool
    encoders: frozenset[str] | None = None
    delivery: Delivery | None = None

    @property
    def destinations(self) -> tuple[str, ...]:
        """The prefixes of the outputs as the user named them: paths or URLs."""
        if self.delivery is None:
            return self.prefixes
        return tuple(self.delivery.url_of(prefix) for prefix in self.prefixes)

    def finished(self, prefixes: Sequence[str]) -> BuildResult | None:
        """Return the outputs at these prefixes if all exist and an equal plan would build them again.

        What came through a pipe is never accepted: it can differ each time.

        Raises:
            IntegrityError: A file of an output has another size than its manifest says.
        """
        manifests = []
        for prefix in prefixes:
            manifest = read_manifest(prefix)
            if manifest is None or not self._accepts(manifest):
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
        """Return the outputs if nothing is to be done. No lock is needed to ask.

        Outputs that wait to be uploaded, and leftovers of an earlier run, are work to be done.
        """
        waits = self.delivery is not None and self.delivery.has_leftovers()
        if self.force or waits or work.has_leftovers():
            return None
        return self.finished(self.destinations)

    def state(self, work: WorkDirectory) -> OutputState:
        """Return what a run would start from, for a dry run."""
        if not self.force and self.finished(self.destinations) is not None:
            return "up-to-date"
        is_staged = self.delivery is not None and self.finished(self.prefixes) is not None
        if work.earlier_plan() is not None or is_staged:
            return "resume"
        return "exists" if _existing(self.destinations) else "new"

    def may_resume(self, earlier: BuildPlan | UnreadablePlan) -> bool:
        """Tell whether to resume an unfinished run; another plan without ``force`` is refused."""
        if not (self.resume and self.plan.is_repeatable and earlier.is_repeatable):
            return False
        found = tuple(str(difference) for difference in earlier.differences(self.plan))
        if found and not self.force:
            raise ResumeMismatchError(
                f"an unfinished run for {self.prefixes[0]} was started differently: {'; '.join(found)}",
                differences=found,
                hint="give the same options to resume it, or start over with --no-resume",
            )
        return not found

    def refuse_existing(self, prefixes: Sequence[str]) -> None:
        """Raise OutputExistsError if files of an output exist at these prefixes and may not be replaced."""
        if not self.force and (existing := _existing(prefixes)):
            raise OutputExistsError(
                f"{existing[0]} exists already, and was not made from these inputs with these options",
                hint="choose another --output, or replace it with --force",
            )

    def _accepts(self, manifest: Manifest) -> bool:
        encoders = manifest.encoder.documents.keys()
        return (
            self.plan.is_repeatable
            and manifest.fingerprint == self.plan.fingerprint
            and (self.encoders is None or encoders <= self.encoders)
        )


def recover(spec: BuildSpec, work: WorkDirectory) -> BuildResult | None:
    """Publish what an earlier run has staged completely, or prepare the work directory.

    ``work``: the work directory, whose lock the caller holds alone.

    Returns:
        The outputs if all exist now; else None, and the work directory holds the plan.

    Raises:
        OutputExistsError: The output exists, and was not built by an equal plan.
        ResumeMismatchError: An unfinished run was started with another plan.
    """
    work.sweep()
    earlier = work.earlier_plan()
    if is_sealed(work.directory) and (earlier is None or spec.may_resume(earlier)):
        if earlier is not None:
            publish(work.directory, spec.prefixes)
        found = [read_manifest(prefix) for prefix in spec.prefixes]
        work.remove()
        manifests = tuple(manifest for manifest in found if manifest is not None)
        ours = [manifest.fingerprint == spec.plan.fingerprint for manifest in manifests]
        if len(manifests) == len(found) and all(ours):
            return BuildResult(manifests)
    elif earlier is None or not spec.may_resume(earlier):
        work.remove()
    if not spec.force and (finished := spec.finished(spec.prefixes)) is not None:
        work.remove()
        return finished
    spec.refuse_existing(spec.prefixes)
    work.begin(spec.plan)
    return None


class BuildRun:
    """Steps of one run. The caller holds the writer locks of all outputs.

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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._journal is None:
            return
        self._journal.close()
        delivery = self._spec.delivery
        if delivery is not None and isinstance(error, StorageError) and is_remote(error.path):
            raise delivery.with_hint(error) from error

    def recover(self) -> BuildResult | None:
        """Look for what an earlier run left.

        Returns:
            The outputs if nothing is to be staged; else None: stage them in the work directory.

        Raises:
            OutputExistsError: The output exists, and was not built by an equal plan.
            ResumeMismatchError: An unfinished run, or one not yet uploaded, was started with another plan.
        """
        spec, delivery = self._spec, self._spec.delivery
        if delivery is None:
            return recover(spec, self._work)
        if not spec.force and (finished := spec.finished(spec.destinations)) is not None:
            delivery.clear(spec.prefixes)
            return finished
        path = os.path.join(self._work.sidecars, JOURNAL_NAME)
        self._journal = UploadJournal(path, spec.plan.fingerprint)
        self._refuse_existing_objects(self._journal)
        if os.path.lexists(self._work.directory):
            return recover(spec, self._work)
        if spec.resume and (waiting := spec.finished(spec.prefixes)) is not None:
            return waiting
        if not spec.force and _existing(spec.prefixes):
            raise ResumeMismatchError(
                f"a dataset for {delivery.url} that was made differently waits in {delivery.directory} to be "
                "uploaded",
                hint="upload it by the command that made it, or replace it with --force",
            )
        return recover(spec, self._work)

    def publish(self, staged: BuildResult) -> BuildResult:
        """Give the staged files their final names; return the outputs."""
        seal(self._work.directory, staged.manifests)
        publish(self._work.directory, self._spec.prefixes)
        published = tuple(_published(prefix) for prefix in self._spec.prefixes)
        self._work.remove()
        return BuildResult(published, staged.resumed)

    def deliver(self, built: BuildResult, progress: Progress) -> BuildResult:
        """Upload the outputs to the store, if they belong into one; return them.

        Raises:
            OutputExistsError: An output has appeared in the store meanwhile.
            StorageError: The store refuses. All finished work is kept.
        """
        spec, delivery = self._spec, self._spec.delivery
        if delivery is None or self._journal is None:
            return built
        progress.message(f"uploading {delivery.prefix} to {delivery.url}")
        self._refuse_existing_objects(self._journal)  # a run takes its time
        delivery.upload(spec.prefixes, built.manifests, self._journal, progress)
        delivery.clear(spec.prefixes)
        return BuildResult(built.manifests, built.resumed)

    def _refuse_existing_objects(self, journal: UploadJournal) -> None:
        if not journal.is_resumed:
            self._spec.refuse_existing(self._spec.destinations)


def _existing(prefixes: Sequence[str]) -> list[str]:
    candidates = [path(prefix) for prefix in prefixes for path in (paths.bin_path, paths.idx_path)]
    return [path for path in candidates if fs.lexists(path)]


def _published(prefix: str) -> Manifest:
    manifest = read_manifest(prefix)
    if manifest is None:
        raise IntegrityError(f"the manifest of {prefix} vanished while it was published", path=prefix)
    return manifest
