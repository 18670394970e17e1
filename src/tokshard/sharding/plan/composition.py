"""What a stream is composed of, in words: the fixed order pack, blend, shuffle, bucket, shard."""

from __future__ import annotations

from tokshard.sharding.assignment import Assignment
from tokshard.sharding.bucketing import Bucketing
from tokshard.sharding.layouts import Layout, Striped
from tokshard.sharding.links import ReadOrder, Selection, ShardShuffle, Shuffle, Torch
from tokshard.sharding.modes import COMPOSITION
from tokshard.sharding.order import Link
from tokshard.sharding.sources.samples import SampleSource


def composition(
    source: SampleSource, assignment: Assignment, mode: str, tail: str, sort_key: str | None
) -> list[dict[str, str]]:
    """Return one entry for each step of :data:`~tokshard.sharding.modes.COMPOSITION`, in this order.

    It describes the first epoch that is read; a plan that goes on from another one begins with the rest of
    an epoch.
    """
    first = assignment.passes[0]
    buckets = [link for link in first.order.links if isinstance(link, Bucketing)]
    others = [_link(link) for link in reversed(first.order.links) if not isinstance(link, Bucketing)]
    texts = {
        "pack": _pack(source),
        "blend": _blend(source),
        "shuffle": ", then ".join(others) or "none",
        "bucket": f"{_bucket(buckets[0])} by {sort_key}" if buckets else "none",
        "shard": f"{mode}, tail {tail}: {_layout(first.layout)}",
    }
    return [{"step": step, "what": texts[step]} for step in COMPOSITION]


def _pack(source: SampleSource) -> str:
    if source.sequence_length is None:
        return "none: samples are documents"
    extra = " and one more as the last label" if source.extra_token else ""
    return f"samples of {source.sequence_length} tokens{extra}, by the indexes of the datasets"


def _blend(source: SampleSource) -> str:
    count = len(source.datasets)
    if source.order is not None:
        return f"{source.total} samples of {count} datasets, in the order of blend {source.order.hash}"
    noun = "dataset" if count == 1 else "datasets, one after the other"
    return f"none: {source.total} samples of {count} {noun}"


def _link(link: Link) -> str:
    if isinstance(link, Torch):
        each = "all" if link.blocks == 1 else f"each of {link.blocks} blocks of"
        return f"{each} {link.length} permuted by {link.algorithm}, seeded by the epoch"
    if isinstance(link, Shuffle):
        window = "all" if link.window >= link.samples else f"windows of {link.window}"
        return f"{window} shuffled by {link.algorithm}, seed {link.seed}{_per_epoch(link)}"
    if isinstance(link, ShardShuffle):
        shards = len(link.sizes)
        return f"{shards} shards in the order of {link.algorithm}, seed {link.seed}{_per_epoch(link)}"
    if isinstance(link, Selection):
        return f"{link.samples} of {link.of} positions in {link.kept.starts.size} intervals"
    if isinstance(link, ReadOrder):
        return "the order in which the ranks before were going to read"
    return _bucket(link)


def _bucket(link: Bucketing) -> str:
    return (
        f"windows of {link.buffer} in packs of {link.pack} by {link.algorithm}, "
        f"seed {link.seed}{_per_epoch(link)}"
    )


def _per_epoch(link: Shuffle | ShardShuffle | Bucketing) -> str:
    return ", anew in each epoch" if link.per_epoch else ", the same in each epoch"


def _layout(layout: Layout) -> str:
    size = f"{layout.width} in turn" if isinstance(layout, Striped) else f"runs of {layout.run}"
    return f"{layout.samples} positions over {layout.ranks} ranks by {size}, {layout.samples_per_rank} each"
