"""``shard-plan --from``: options and rendering of the proof."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

from tokshard import BatchSizes, ReplanOptions
from tokshard.cli import rendering, terminal
from tokshard.errors import UsageError

if TYPE_CHECKING:
    import typer

    from tokshard.core.path_mapping import PathMapping
    from tokshard.sharding.plan import Plan

_FIXED = {
    "sources": "SOURCE",
    "documents": "--documents",
    "split": "--split",
    "path_as": "--path-as",
    "digests": "--digests",
    "epochs": "--epochs",
    "equal_counts": "--equal-counts",
    "shuffle": "--shuffle",
    "shuffle_block": "--shuffle-block",
    "shuffle_per_epoch": "--shuffle-per-epoch",
    "bucket_buffer": "--bucket-buffer",
    "bucket_pack": "--bucket-pack",
    "bucket_by": "--bucket-by",
    "document_boundaries": "--document-boundaries",
    "full_validation": "--full-validation",
}
"""Options that a plan has from the one that it continues."""

_SAME_NAME = (
    "output",
    "world_size",
    "data_parallel",
    "tensor_parallel",
    "pipeline_parallel",
    "context_parallel",
    "order",
    "virtual_pipeline",
    "expert_parallel",
    "expert_tensor_parallel",
    "micro_batch_size",
    "eval_micro_batch_size",
    "eval_global_batch_size",
    "mode",
    "tail",
    "data_sharding",
    "steps",
    "seed",
    "packed",
    "force",
)
"""Options that are called the same here and in :class:`tokshard.ReplanOptions`."""

ONLY_FROM = {"blend": "--blend", "moved": "--moved"}
"""Options that have a meaning with ``--from`` only."""


class Given:
    """The options of a command line, and which of them were given.

    Args:
        values: All options by the names of their parameters.
        is_given: Tells of a name whether the user has given it.
    """

    def __init__(self, values: dict[str, Any], is_given: Callable[[str], bool]) -> None:
        self._values = values
        self._is_given = is_given

    @classmethod
    def of(cls, ctx: typer.Context) -> Self:
        """Return the options of a running command."""

        def is_given(name: str) -> bool:
            source = ctx.get_parameter_source(name)
            return source is not None and source.name not in {"DEFAULT", "DEFAULT_MAP"}

        return cls(ctx.params, is_given)

    def value(self, name: str) -> Any:
        """Return an option; None where it was not given."""
        return self._values[name] if self._is_given(name) else None

    def refuse(self, names: dict[str, str], reason: str) -> None:
        """Refuse options that have no meaning.

        Raises:
            UsageError: One of them was given.
        """
        for name, option in names.items():
            if self._is_given(name):
                raise UsageError(f"{option} {reason}")


def replan_options(path: str, given: Given, blend: str | None, moved: PathMapping) -> ReplanOptions:
    """Return the options of a plan that continues another one; what is not given stays as it is there.

    Raises:
        UsageError: The consumed samples are not given, or an option does not apply.
    """
    given.refuse(_FIXED, "cannot be changed with --from: the plan continues with what it has")
    if blend is None and given.value("seed") is not None:
        raise UsageError("--seed has no effect with --from unless --blend begins new source epochs")
    if blend is not None and given.value("dry_run"):
        raise UsageError("--dry-run cannot show a new blend, whose order is a file: leave it out")
    consumed = given.value("consumed_samples")
    if consumed is None:
        raise UsageError(
            "--from requires --consumed-samples, the samples that all ranks had read",
            hint="Megatron writes consumed_samples into its logs and checkpoints",
        )
    named = {name: value for name in _SAME_NAME if (value := given.value(name)) is not None}
    stages = given.value("mtp_stages")
    return ReplanOptions(
        plan=path,
        consumed_samples=consumed,
        consumed_valid_samples=tuple(given.value("consumed_valid_samples") or ()),
        mtp_stages=None if stages is None else parse_stages(stages),
        batch_sizes=BatchSizes(
            global_batch_size=given.value("global_batch_size"),
            step_batch_size_schedule=given.value("step_batch_size_schedule"),
            rampup_batch_size=given.value("rampup_batch_size"),
            decrease_if_needed=bool(given.value("decrease_batch_size_if_needed")),
        ),
        blend=blend,
        moved=moved,
        **named,
    )


def parse_stages(text: str | None) -> tuple[int, ...]:
    """Return the pipeline stages of ``--mtp-stages``.

    Raises:
        UsageError: It is no list of numbers.
    """
    try:
        return tuple(int(word) for word in (text or "").split(",") if word)
    except ValueError:
        raise UsageError(
            f"--mtp-stages must be a list of numbers, got {text!r}", hint="for example 3,7"
        ) from None


def show_proofs(plan: Plan) -> None:
    """Print for each stream that continues the samples read, planned and unread."""
    history = plan.history
    if not history:
        return
    for name, stopped in history[-1].streams.items():
        proof = stopped.proof
        what = "in the epochs under way of its datasets" if proof.epoch is None else f"of epoch {proof.epoch}"
        consumed = terminal.count(stopped.assignment.consumed_after(stopped.step))
        terminal.say(f"{terminal.safe(name)} continues after {consumed} consumed samples; {what}:")
        prefixes = [one.prefix for one in plan.streams[name].source.datasets]
        counts = list(zip(prefixes, proof.sources, strict=True))
        if len(counts) > 1:
            counts.append(("together", proof.total))
        rows = []
        for prefix, one in counts:
            numbers = (one.samples, one.read_earlier + one.read, one.planned, one.unread, one.planned_later)
            rows.append([f"  {terminal.path(prefix)}", *map(terminal.count, numbers)])
        rendering.table(["  dataset", "samples", "read", "planned", "unread", "in new epochs"], rows)
