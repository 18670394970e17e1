"""Options of replanning."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tokshard.core import megatron_defaults
from tokshard.core.path_mapping import PathMapping
from tokshard.ranks.options import BatchSizes, world_size_of
from tokshard.ranks.requests import check_numbers
from tokshard.storage.lock import LockMode, check_lock_mode

if TYPE_CHECKING:
    from tokshard.ranks.topology import Topology


@dataclass(frozen=True, kw_only=True)
class ReplanOptions:
    """Options of :func:`tokshard.replan`: how a plan continues; what is None stays as it is.

    Attributes:
        plan: The plan that was stopped: its directory or its ``plan.json``.
        output: The directory of the new plan.
        consumed_samples: Training samples already consumed, summed over all ranks, as Megatron counts them.
        consumed_valid_samples: Consumed samples of each validation set; one number counts for all, none
            is none.
        world_size: The number of ranks. Without it and ``data_parallel`` the data-parallel size stays.
        data_parallel: The data-parallel size, instead of the world size.
        tensor_parallel: The tensor-parallel size.
        pipeline_parallel: The pipeline-parallel size.
        context_parallel: The context-parallel size.
        order: The order of the dimensions of parallelism.
        mtp_stages: The pipeline stages with layers of multi-token prediction.
        micro_batch_size: The samples of a micro-batch of one rank.
        batch_sizes: The global batch size over time, by the consumed samples of the whole run.
        eval_micro_batch_size: The samples of a micro-batch of validation and testing.
        eval_global_batch_size: The samples of a step there. None is the last batch size of training where
            one is given, else that of the plan.
        mode: How samples are distributed over the ranks from now on. None keeps the mode and, in the epoch
            under way, the order: batches of the same size hold the same samples as without the stop.
        tail: Treatment of the incomplete final batch.
        data_sharding: In mode ``cyclic``, whether each rank has its own block.
        steps: The number of steps of training; None for as many as the plan had left to read.
        blend: A blend with new weights: its directory, its ``blend.json``, a recipe, or words such as
            ``"0.7 data/web 0.3 data/code"``.
        seed: The seed of source epochs that begin after the stop.
        allow_tokenizer_mismatch: Whether to continue with data of another tokenizer, and record it.
        moved: Where data of the plan has moved: old and new beginnings of paths.
        force: Whether to replace another plan in ``output``.
        lock: The mode of the writer lock: ``"none"`` for a file system without ``flock``, if only one run
            writes the output at a time.

    Raises:
        UsageError: A number is out of range.
    """

    plan: str
    output: str
    consumed_samples: int
    consumed_valid_samples: tuple[int, ...] = ()
    world_size: int | None = None
    data_parallel: int | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    context_parallel: int | None = None
    order: str | None = None
    mtp_stages: tuple[int, ...] | None = None
    micro_batch_size: int | None = None
    batch_sizes: BatchSizes = field(default_factory=BatchSizes)
    eval_micro_batch_size: int | None = None
    eval_global_batch_size: int | None = None
    mode: str | None = None
    tail: str | None = None
    data_sharding: bool | None = None
    steps: int | None = None
    blend: str | None = None
    seed: int = megatron_defaults.SEED
    allow_tokenizer_mismatch: bool = False
    moved: PathMapping = field(default_factory=PathMapping)
    force: bool = False
    lock: LockMode = "flock"

    def __post_init__(self) -> None:
        check_lock_mode(self.lock)
        check_numbers(self, 1, "steps", "micro_batch_size", "eval_micro_batch_size", "eval_global_batch_size")
        check_numbers(self, 0, "consumed_samples", "consumed_valid_samples", "seed")

    def topology(self, old: Topology) -> Topology:
        """Return the topology of the plan with the sizes that are given.

        Raises:
            UsageError: The sizes do not fit together.
        """
        sizes = ("tensor_parallel", "pipeline_parallel", "context_parallel")
        given = {name: getattr(self, name) for name in (*sizes, "mtp_stages")} | {"rank_order": self.order}
        changes = {name: value for name, value in given.items() if value is not None}
        model = math.prod(changes.get(name, getattr(old, name)) for name in sizes)
        data_parallel = self.data_parallel
        if self.world_size is None and data_parallel is None:
            data_parallel = old.data_parallel
        world_size = world_size_of(self.world_size, data_parallel, model)
        return replace(old, world_size=world_size, **changes)
