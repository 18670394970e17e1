"""``shard-plan --from``: which options go on as they were, and what is said of the proof."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from tokshard.cli import rendering, terminal
from tokshard.errors import UsageError

if TYPE_CHECKING:
    import typer

    from tokshard.sharding.plan import Plan
    from tokshard.sharding.replan.job import ReplanRequest
    from tokshard.sharding.schedule import BatchSchedule

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
"""Options that a plan which goes on from another one has from that one."""

ONLY_FROM = {"blend": "--blend", "moved": "--moved"}
"""Options that have a meaning with ``--from`` only."""

_TOPOLOGY = {
    "tensor_parallel": "tensor",
    "pipeline_parallel": "pipeline",
    "context_parallel": "context",
    "order": "order",
    "virtual_pipeline": "virtual_pipeline",
    "expert_parallel": "expert",
    "expert_tensor_parallel": "expert_tensor",
}


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


def replan_request(
    plan: Plan,
    given: Given,
    blend: str | None,
    *,
    world_size: Callable[[int | None, int | None, int], int],
    schedule: BatchSchedule | None,
    mtp_stages: tuple[int, ...],
) -> ReplanRequest:
    """Return what the options ask for; what is not given stays as it is in the plan.

    Raises:
        UsageError: The consumed samples are not said, or an option has no meaning here.
    """
    from tokshard.sharding.replan.job import ReplanRequest

    given.refuse(_FIXED, "cannot be changed with --from: the plan goes on with what it has")
    if blend is None and given.value("seed") is not None:
        raise UsageError("--seed has no meaning with --from unless --blend begins new laps")
    if blend is not None and given.value("dry_run"):
        raise UsageError("--dry-run cannot show a new blend, whose order is a file: leave it out")
    consumed = given.value("consumed_samples")
    if consumed is None:
        raise UsageError(
            "--from needs --consumed-samples: how many samples had all ranks read?",
            hint="Megatron writes consumed_samples into its logs and checkpoints",
        )
    return ReplanRequest(
        consumed_samples=consumed,
        consumed_valid_samples=tuple(given.value("consumed_valid_samples") or ()),
        topology=_topology(plan, given, world_size, mtp_stages),
        micro_batch_size=given.value("micro_batch_size"),
        schedule=schedule,
        eval_micro_batch_size=given.value("eval_micro_batch_size"),
        eval_global_batch_size=given.value("eval_global_batch_size"),
        mode=given.value("mode"),
        tail=given.value("tail"),
        sharded=given.value("data_sharding"),
        steps=given.value("steps"),
        blend=blend,
        **({} if given.value("seed") is None else {"seed": given.value("seed")}),
    )


def _topology(
    plan: Plan,
    given: Given,
    world_size: Callable[[int | None, int | None, int], int],
    mtp_stages: tuple[int, ...],
) -> Any:
    """Return the topology with what was given; without a size the data-parallel size stays."""
    old = plan.topology
    changes = {field: given.value(name) for name, field in _TOPOLOGY.items() if given.value(name) is not None}
    if given.value("mtp_stages") is not None:
        changes["mtp_stages"] = mtp_stages
    model = 1
    for field in ("tensor", "pipeline", "context"):
        model *= changes.get(field, getattr(old, field))
    data_parallel = given.value("data_parallel")
    if given.value("world_size") is None and data_parallel is None:
        data_parallel = old.data_parallel
    return replace(old, world_size=world_size(given.value("world_size"), data_parallel, model), **changes)


def show_proofs(plan: Plan) -> None:
    """Print for each stream that goes on what was read, is planned and is left."""
    from tokshard.sharding.history import history_of

    history = history_of(plan)
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
