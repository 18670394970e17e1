"""Options, streams and plans for tests, and what all ranks of an order read."""

import hashlib
import json
from pathlib import Path

import numpy as np

from tokshard.ranks.options import ShardPlanOptions
from tokshard.ranks.plan import Plan
from tokshard.ranks.planning import plan_shards, plan_stream, sources_file
from tokshard.ranks.topology import DEFAULT_ORDER, Topology

GOLDEN = Path(__file__).parents[1] / "golden" / "shuffles.json"


def topology_of(world_size, tensor=1, pipeline=1, context=1, order=DEFAULT_ORDER, mtp_stages=()):
    """Return the ranks of a job without more parallelism than is given."""
    return Topology(world_size, tensor, pipeline, context, order, mtp_stages)


def options_of(**options):
    """Return options of a plan whose sources are passed apart."""
    return ShardPlanOptions(sources=("data",), output="plan", **options)


def planned(sources, *, output="plan", **options):
    """Return the plan of some sources, which is not written; ``sources.json`` will describe them."""
    return plan_shards(sources, options_of(**options), sources_file(sources, output, {}))


def plan_with(topology, streams, history=(), **fields):
    """Return the plan of some streams, whose sources ``sources.json`` will describe."""
    sources = {name: stream.source for name, stream in streams.items()}
    return Plan.of(topology, sources_file(sources, "plan", {}), streams, history, **fields)


def stream_of(source, **options):
    """Return the stream of a source."""
    return plan_stream(source, options_of(**options))


def everything(order, key_of=None):
    """Return what all ranks read: int64 of shape (ranks, samples of a rank)."""
    count = order.samples_per_rank
    return np.stack([order.ids(order.numbers(rank, 0, count), key_of) for rank in range(order.ranks)])


def digest(values):
    """Return what is kept of the first 1,000 values of an order."""
    first = np.asarray(values[:1000], dtype="<i8")
    return {"first": first[:5].tolist(), "sha256": hashlib.sha256(first.tobytes()).hexdigest()}


def golden():
    return json.loads(GOLDEN.read_text())
