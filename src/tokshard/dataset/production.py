"""Making datasets so that a kill at any moment costs nothing but time: the steps that all runs share.

Recover (what has an earlier run left), make (copy or encode into the work directory, with checkpoints),
publish (final names), tidy up. The caller holds the writer lock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tokshard.dataset.manifest import Manifest, check_sizes, read_manifest
from tokshard.dataset.plan import BuildPlan, UnreadablePlan
from tokshard.dataset.publication import is_sealed, publish
from tokshard.dataset.workdir import WorkDirectory
from tokshard.errors import IntegrityError, OutputExistsError, ResumeMismatchError
from tokshard.storage import fs, paths


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be made, and what may be done for it.

    Attributes:
        plan: The plan of the run.
        prefixes: The path prefix of each output.
        resume: Whether an unfinished run may be gone on with.
        force: Whether an existing output may be replaced.
        accepts: Tells whether a finished output with this manifest, made by an equal plan, will do.
    """

    plan: BuildPlan
    prefixes: tuple[str, ...]
    resume: bool
    force: bool
    accepts: Callable[[Manifest], bool] = lambda _: True

    def finished(self) -> list[Manifest] | None:
        """Return the outputs' manifests if all are there, made by an equal plan, and need not be replaced."""
        if self.force:
            return None
        manifests = []
        for prefix in self.prefixes:
            manifest = read_manifest(prefix)
            if (
                manifest is None
                or manifest.fingerprint != self.plan.fingerprint
                or not self.accepts(manifest)
            ):
                return None
            try:
                check_sizes(prefix, manifest)
            except IntegrityError:
                if read_manifest(prefix) != manifest:  # another process takes it away meanwhile
                    return None
                raise
            manifests.append(manifest)
        return manifests

    def existing(self) -> list[str]:
        """Return the files that have the names of the outputs already."""
        candidates = [path(prefix) for prefix in self.prefixes for path in (paths.bin_path, paths.idx_path)]
        return [path for path in candidates if fs.lexists(path)]

    def state(self, work: WorkDirectory) -> str:
        """Return ``"up-to-date"``, ``"resume"``, ``"exists"`` or ``"new"``, for a dry run."""
        if self.finished() is not None:
            return "up-to-date"
        if work.earlier_plan() is not None:
            return "resume"
        return "exists" if self.existing() else "new"


@dataclass(frozen=True, slots=True)
class Produced:
    """What became of an order.

    Attributes:
        manifests: The manifest of each output.
        resumed: How much of the work an earlier run had done, in the unit of who did it.
        up_to_date: Whether everything was there already.
    """

    manifests: list[Manifest]
    resumed: int = 0
    up_to_date: bool = False


def produce(order: Order, work: WorkDirectory, make: Callable[[], int]) -> Produced:
    """Make the outputs of an order, or what is missing of them.

    Args:
        order: What is wanted.
        work: The work directory, whose lock is held.
        make: Stages everything and seals the work directory; returns how much was done already.

    Raises:
        OutputExistsError: The output is there already, and was not made by an equal plan.
        ResumeMismatchError: An unfinished run was started with another plan.
    """
    if (done := recover(order, work)) is not None:
        return done
    resumed = make()
    publish(work.directory, order.prefixes)
    published = [_published(prefix) for prefix in order.prefixes]
    work.remove()
    return Produced(published, resumed)


def recover(order: Order, work: WorkDirectory) -> Produced | None:
    """Look at what an earlier run has left: publish what waits for it, or make ready to go on or to begin.

    Args:
        order: What is wanted.
        work: The work directory, whose lock is held by nobody else.

    Returns:
        The outputs if they are all there now; else None, and the work directory holds the plan.

    Raises:
        OutputExistsError: The output is there already, and was not made by an equal plan.
        ResumeMismatchError: An unfinished run was started with another plan.
    """
    work.sweep()
    earlier = work.earlier_plan()
    if is_sealed(work.directory) and (earlier is None or may_resume(order, earlier)):
        if earlier is not None:
            publish(work.directory, order.prefixes)
        manifests = [read_manifest(prefix) for prefix in order.prefixes]
        work.remove()
        if all(one is not None and one.fingerprint == order.plan.fingerprint for one in manifests):
            return Produced([one for one in manifests if one is not None])
    elif earlier is None or not may_resume(order, earlier):
        work.remove()
    if (finished := order.finished()) is not None:
        work.remove()
        return Produced(finished, up_to_date=True)
    if not order.force and (existing := order.existing()):
        raise OutputExistsError(
            f"{existing[0]} exists already, and was not made from these inputs with these options",
            hint="choose another --output, or replace it with --force",
        )
    work.begin(order.plan)
    return None


def _published(prefix: str) -> Manifest:
    manifest = read_manifest(prefix)
    if manifest is None:
        raise IntegrityError(f"the manifest of {prefix} vanished while it was published", path=prefix)
    return manifest


def may_resume(order: Order, earlier: BuildPlan | UnreadablePlan) -> bool:
    """Tell whether to go on with an unfinished run that had this plan; False means to start over.

    Raises:
        ResumeMismatchError: It was started with another plan, and may not be replaced.
    """
    if not order.resume or not earlier.is_repeatable:
        return False
    found = tuple(str(difference) for difference in earlier.differences(order.plan))
    if found and not order.force:
        raise ResumeMismatchError(
            f"an unfinished run for {order.prefixes[0]} was started differently: {'; '.join(found)}",
            differences=found,
            hint="give the same options to resume it, or start over with --no-resume",
        )
    return not found
