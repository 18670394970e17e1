"""Assignments for tests, and what all ranks of one read."""

import hashlib
import json
from pathlib import Path

import numpy as np

from tokshard.ranks.assignment import Assignment, EpochRange, available_steps
from tokshard.ranks.modes import World, cyclic_order, layout_of
from tokshard.ranks.options import ShardPlanOptions
from tokshard.ranks.order import SampleOrder
from tokshard.ranks.planning import plan_shards, plan_stream
from tokshard.ranks.schedule import BatchSchedule
from tokshard.ranks.topology import DEFAULT_ORDER, Topology

GOLDEN = Path(__file__).parents[1] / "golden" / "shuffles.json"


def topology_of(world_size, tensor=1, pipeline=1, context=1, order=DEFAULT_ORDER, mtp_stages=()):
    """Return the ranks of a job without more parallelism than is given."""
    return Topology(world_size, tensor, pipeline, context, order, mtp_stages)


def options_of(**options):
    """Return options of a plan whose sources are passed apart."""
    return ShardPlanOptions(sources=("data",), output="plan", **options)


def planned(sources, **options):
    """Return the plan of some sources, which is not written."""
    return plan_shards(sources, options_of(**options))


def stream_of(source, **options):
    """Return the stream of a source."""
    return plan_stream(source, options_of(**options))


def assignment_of(
    mode,
    order,
    world,
    *,
    tail="drop",
    sharded=True,
    first_epoch=0,
    epochs=1,
    schedule=None,
    consumed_samples=0,
    skipped=0,
):
    """Return an assignment of all the steps that an order fills."""
    layout = layout_of(mode, order.samples, world, tail=tail, sharded=sharded)
    epoch_ranges = (EpochRange(order, layout, first_epoch, epochs),)
    schedule = schedule or BatchSchedule.constant(world.whole)
    before = (consumed_samples, skipped)
    steps = available_steps(epoch_ranges, world.micro_batch_size, schedule, *before)
    return Assignment(epoch_ranges, world.micro_batch_size, schedule, steps, *before)


def order_of(mode, samples, world, *, sharded=True, links=()):
    """Return the order of an epoch: Megatron's random one in mode cyclic, else that of the links."""
    if mode == "cyclic":
        return cyclic_order(samples, world, sharded=sharded, faithful=False)
    return SampleOrder(samples, links)


def everything(assignment):
    """Return the ids of all ranks: int64 of shape (micro-batches, ranks, micro batch size)."""
    local = np.arange(assignment.samples_per_rank)
    rows = [assignment.ids(rank, 0, local.size) for rank in range(assignment.ranks)]
    return np.stack(rows).reshape(assignment.ranks, -1, assignment.micro_batch_size).transpose(1, 0, 2)


def digest(values):
    """Return what is kept of the first 1,000 values of an order."""
    first = np.asarray(values[:1000], dtype="<i8")
    return {"first": first[:5].tolist(), "sha256": hashlib.sha256(first.tobytes()).hexdigest()}


def golden():
    return json.loads(GOLDEN.read_text())


__all__ = [
    "World",
    "assignment_of",
    "digest",
    "everything",
    "golden",
    "options_of",
    "order_of",
    "planned",
    "stream_of",
    "topology_of",
]
