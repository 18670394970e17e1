"""A plan's micro-batches in Grain: a data source, and a ``grain.DataLoader`` over it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

from tokshard.errors import UsageError
from tokshard.loader.assembly import MicroBatch
from tokshard.loader.rank import RankLoader

__all__ = ["PlanSource", "data_loader"]

_READ_THREADS = 2
_PREFETCHED = 8
# Between the source and Grain's data loader are a few wrappers.
_FRAMES = 16
_HINT = (
    "give each process the source of its own rank, PlanSource(RankLoader.open(PLAN, rank=N)), and build the "
    "loader with tokshard.loader.grain.data_loader(source, worker_count=...)"
)


class PlanSource:
    """The micro-batches of a rank by their numbers: a random-access data source of Grain.

    Item m is micro-batch m of the whole run: a dictionary of arrays, as the loader yields it. The source can
    be used with ``grain.DataLoader``, with ``grain.MapDataset.source``, and without Grain. It is pickled as
    the path of the plan and the loader's settings; worker processes open the files themselves. Threads may
    share it.

    The plan has assigned the samples to ranks and ordered them. If ``grain.DataLoader`` requests items with
    ``shard_options`` of more than one shard, or with a sampler that shuffles, the first request raises an
    error. A ``MapDataset`` that is sliced or shuffled is not recognized.

    ``repr(source)``, which Grain stores in checkpoints and compares, contains the plan and the stream, but
    neither path nor rank: a checkpoint fits every rank, and the plan may move.

    Args:
        loader: The rank's loader, at its start; opened by path if workers will read.

    Raises:
        UsageError: The loader is not at its start: Grain's iterators count from the start of the plan.

    Example::

        source = PlanSource(RankLoader.open("plan", rank=0))
        for batch in data_loader(source, worker_count=2):
            train(batch["tokens"], batch["labels"])
    """

    def __init__(self, loader: RankLoader) -> None:
        if loader.position:
            raise UsageError(
                f"the loader must be at micro-batch 0, got {loader.position}: Grain's iterators count from "
                "the start of the plan",
                hint="restore the state of Grain's iterator: iterator.set_state(state)",
            )
        self.loader = loader

    def __repr__(self) -> str:
        plan = f"plan_id={self.loader.plan_id!r}, stream={self.loader.stream!r}"
        return f"PlanSource({plan}, micro_batches={len(self)})"

    def __len__(self) -> int:
        """Return the number of micro-batches of all steps, the same on every rank."""
        return len(self.loader)

    def __getitem__(self, number: int) -> MicroBatch:
        """Return a micro-batch.

        Raises:
            UsageError: Grain would distribute or shuffle the samples again.
            IndexError: There is no such micro-batch; negative numbers do not count from the end.
            MissingFileError, IntegrityError: A file is missing or has changed.
        """
        _check_caller(sys._getframe(1))  # noqa: SLF001 - the documented way to it, inspect, is slow to import
        return self.loader[number]


def _check_caller(frame: FrameType | None) -> None:
    # Grain does not tell a source how it is sharded. The loader that asks is on the stack, in workers, too.
    for _ in range(_FRAMES):
        if frame is None:
            return
        caller = frame.f_locals.get("self")
        shards = getattr(caller, "_shard_options", None)
        if hasattr(shards, "shard_count"):
            _check_options(shards, getattr(caller, "_sampler", None))
            return
        frame = frame.f_back


def _check_options(shards: Any, sampler: Any) -> None:
    if shards.shard_count != 1:
        raise UsageError(
            f"Grain's shard_options must have 1 shard, got {shards.shard_count}: the plan has already "
            "distributed the samples to ranks, and each would read a fraction of its part",
            hint=_HINT,
        )
    if getattr(sampler, "_shuffle", False):
        raise UsageError(
            f"Grain's {type(sampler).__name__} must not shuffle: the plan has already ordered the samples",
            hint=_HINT,
        )


def data_loader(
    source: PlanSource,
    *,
    worker_count: int = 0,
    operations: Sequence[Any] = (),
    **options: Any,
) -> Any:
    """Return a ``grain.DataLoader`` that reads all micro-batches of a rank in the order of the plan.

    ``get_state`` and ``set_state`` of its iterators save and restore the next micro-batch, for the same
    ``worker_count`` (Grain refuses another).

    Args:
        source: The rank's micro-batches.
        worker_count: How many processes read; 0 for threads of this one.
        operations: Transformations of Grain, applied to micro-batches.
        **options: Those of ``grain.DataLoader`` that do not pick samples: ``worker_buffer_size``,
            ``read_options`` (default: 2 threads that read 8 micro-batches ahead; Grain's own are 16
            and 500), ``enable_profiling``.

    Raises:
        UsageError: An option would pick, order or distribute samples, which the plan does.
    """
    for name in sorted({"data_source", "sampler", "shard_options"} & set(options)):
        raise UsageError(
            f"{name}={type(options[name]).__name__} is not supported by the data loader of a plan, which "
            "already determines the samples of each rank and their order",
            hint=_HINT,
        )
    import grain

    threads = grain.ReadOptions(num_threads=_READ_THREADS, prefetch_buffer_size=_PREFETCHED)
    return grain.DataLoader(
        data_source=source,
        sampler=grain.samplers.SequentialSampler(len(source)),
        shard_options=grain.sharding.NoSharding(),
        worker_count=worker_count,
        operations=operations,
        **({"read_options": threads} | options),
    )
