"""Modes: the order of an epoch and the positions that each rank reads, by name.

======================  ======================================================================
mode                    rank ``r`` of ``R`` reads
======================  ======================================================================
``single``              of each group of ``b * R`` positions, ``b`` is the micro batch size, those
                        from ``r * b`` on: Megatron's ``MegatronPretrainingSampler``
``cyclic``              its block of the ids in a random order of each epoch, or (``sharded=False``)
                        every ``R``-th of all in random order: ``MegatronPretrainingRandomSampler``
``contiguous``          ``samples // R`` consecutive positions
``sequential``          positions ``r, r + R, r + 2R, ...``
``chunked``             ``ceil(samples / R)`` consecutive positions
``full-validation``     ``r, r + R, ...`` one by one, all of them; ranks that run out begin again:
                        ``MegatronFullValidationSampler``
======================  ======================================================================

The tail is the incomplete final batch of all ranks. ``drop`` leaves it out, and ``pad`` fills it by reading
samples again. With ``drop``, chunks are as contiguous runs: blocks of the larger size would leave the
last rank, and so all ranks, with less.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokshard.errors import UsageError
from tokshard.ranks.choices import Mode, ShuffleKind, Tail
from tokshard.ranks.layouts import Blocked, Layout, Striped
from tokshard.ranks.options import ShardPlanOptions
from tokshard.ranks.order import SampleOrder, Transform
from tokshard.ranks.shuffles import BlockShuffle, ShardShuffle, Shuffle, TorchPermutation


@dataclass(frozen=True, slots=True)
class World:
    """Data-parallel ranks and their batch sizes.

    Attributes:
        ranks: The data-parallel size.
        micro_batch_size: The samples of a micro-batch of one rank.
        batch: The samples of all ranks that the tail is measured by, a multiple of micro batch size times
            ranks: the global batch size, or one micro-batch of all ranks (0 stands for it) as Megatron.

    Raises:
        UsageError: A size is below 1, or they do not divide each other.
    """

    ranks: int
    micro_batch_size: int
    batch: int = 0

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.micro_batch_size < 1:
            raise UsageError(
                f"data-parallel size and micro batch size must be at least 1, "
                f"got {self.ranks} and {self.micro_batch_size}"
            )
        if self.batch < 0 or self.batch % self.group:
            raise UsageError(
                f"the global batch size must be divisible by micro batch size x data-parallel size = "
                f"{self.micro_batch_size} x {self.ranks} = {self.group}, got {self.batch}",
                hint=f"pass a multiple of {self.group}, or another micro batch size or data-parallel size",
            )

    @property
    def group(self) -> int:
        """The samples of one micro-batch on all ranks."""
        return self.ranks * self.micro_batch_size

    @property
    def whole(self) -> int:
        """The samples that the tail is measured by."""
        return self.batch or self.group


def shuffle_links(
    kind: ShuffleKind,
    samples: int,
    seed: int,
    *,
    shard_sizes: tuple[int, ...] | None = None,
    block: int = ShardPlanOptions.shuffle_block,
    window: int = ShardPlanOptions.shuffle_window,
    per_epoch: bool = True,
) -> tuple[Transform, ...]:
    """Return the links of a shuffle by its name.

    Args:
        kind: ``none``; ``shards``, shards in random order and their samples as they are; ``samples``, all
            samples in random order; ``windows``, blocks of consecutive samples in random order and samples
            shuffled within windows of that order, so that a window reads few ranges of bytes from all over
            the data.
        samples: The number of samples.
        seed: The seed.
        shard_sizes: The samples of each shard; None for one shard.
        block: The samples of a block.
        window: The blocks of a window.
        per_epoch: Whether each epoch has its own order.

    Raises:
        UsageError: The shards do not add up.
    """
    sizes = (samples,) if shard_sizes is None else shard_sizes
    if sum(sizes) != samples:
        raise UsageError(f"the shards must have {samples} samples in total, got {sum(sizes)}")
    if kind == "samples":
        return (Shuffle(samples, samples, seed, per_epoch),)
    if kind == "windows":
        return (
            Shuffle(samples, min(block * window, samples), seed, per_epoch),
            BlockShuffle(samples, min(block, samples), seed, per_epoch),
        )
    if kind == "shards" and len(sizes) > 1:
        return (ShardShuffle(sizes, seed, per_epoch),)
    return ()


def cyclic_order(samples: int, world: World, *, sharded: bool, faithful: bool = True) -> SampleOrder:
    """Return the order of Megatron's cyclic sampler, whose generator is seeded by the epoch alone.

    Args:
        samples: The number of samples.
        world: Who reads; part of the order, as in Megatron.
        sharded: Whether each rank has its own block of the ids (``--data-sharding``).
        faithful: Whether the order must be Megatron's. Without sharding its ranks take different numbers
            of batches where the tail is ragged; that is refused, or else cut to the equal part first.

    Raises:
        UsageError: The samples do not fill one micro-batch of all ranks, or the ragged case.
    """
    rounds = _rounds(samples, world.group, world)
    if sharded:
        return SampleOrder(
            samples, (TorchPermutation(samples, rounds * world.micro_batch_size, world.ranks),)
        )
    size, ranks = world.micro_batch_size, world.ranks
    full = samples // size * size
    most = -(-full // ranks) // size
    if faithful and most != rounds:
        raise UsageError(
            f"without data sharding Megatron gives some ranks {most} and others {rounds} micro-batches of "
            f"{samples} samples (micro batch size {size}, data-parallel size {ranks}) in an epoch: it hangs",
            hint="pass --equal-counts, or omit --no-data-sharding",
        )
    return SampleOrder(samples, (TorchPermutation(samples, full, 1),))


def layout_of(
    mode: Mode, samples: int, world: World, *, tail: Tail = "drop", sharded: bool = True, skipped: int = 0
) -> Layout:
    """Return the layout of a mode.

    Args:
        mode: The mode.
        samples: The number of positions of the order.
        world: Who reads.
        tail: Treatment of the incomplete final batch.
        sharded: In mode ``cyclic``, whether each rank has its own block.
        skipped: Samples that each rank has read already; batches are counted from there on.

    Raises:
        UsageError: The mode does not have this tail, or nothing would be read.

    Example:
        >>> layout_of("chunked", 10, World(ranks=4, micro_batch_size=1), tail="pad")
        Blocked(samples=10, ranks=4, run=3, samples_per_rank=3, repeat='last')
        >>> world = World(ranks=2, micro_batch_size=2, batch=8)
        >>> layout_of("single", 20, world).samples_per_rank
        8
        >>> layout_of("single", 20, world, skipped=2).samples_per_rank
        10
    """
    if mode == "full-validation":
        return _full_validation(samples, world)
    if mode == "cyclic" and tail != "drop":
        raise UsageError(
            f"mode cyclic requires --tail drop (Megatron drops the tail of each epoch), got {tail}"
        )
    per_rank = _samples_per_rank(samples, world, tail, skipped)
    ranks = world.ranks
    if mode == "single":
        return Striped(samples, ranks, world.micro_batch_size, per_rank, "last")
    if mode == "sequential" or (mode == "cyclic" and not sharded):
        return Striped(samples, ranks, 1, per_rank, "last")
    if mode == "cyclic":
        return Blocked(samples, ranks, per_rank, per_rank, "last")
    run = samples // ranks if tail == "drop" else -(-samples // ranks)
    return Blocked(samples, ranks, run, per_rank, "last")


def _samples_per_rank(samples: int, world: World, tail: Tail, skipped: int) -> int:
    left = samples - skipped * world.ranks
    batches = -(-left // world.whole) if tail == "pad" else _rounds(left, world.whole, world)
    return skipped + batches * world.whole // world.ranks


def _rounds(samples: int, batch: int, world: World) -> int:
    if samples < batch:
        raise UsageError(
            f"{samples:,} samples are fewer than one batch of {batch:,} "
            f"(micro batch size {world.micro_batch_size}, data-parallel size {world.ranks})",
            hint="use more samples, a smaller --global-batch-size, or --tail pad",
        )
    return samples // batch


def _full_validation(samples: int, world: World) -> Layout:
    if world.whole != world.ranks:
        raise UsageError(
            f"full validation requires a batch of 1 sample per rank, got batches of {world.whole}"
        )
    return Striped(samples, world.ranks, 1, -(-samples // world.ranks), repeat="first")
