"""The modes by their names: which order and which layout each of them means.

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

The tail is what does not fill a batch of all ranks. ``drop`` leaves it out, ``pad`` fills the last batch by
reading samples again, ``error`` refuses it, and ``keep`` gives every rank exactly its own (also unequal)
part, for views of a dataset. With ``drop``, chunks are as contiguous runs: blocks of the larger size
would leave the last rank, and so all ranks, with less.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokshard.errors import UsageError
from tokshard.sharding.layouts import Blocked, Layout, Striped
from tokshard.sharding.links import ShardShuffle, Shuffle, Torch
from tokshard.sharding.order import Link, SampleOrder

MODES = ("single", "cyclic", "contiguous", "sequential", "chunked", "full-validation")
SHUFFLES = ("none", "shards", "samples", "blocks")
TAILS = ("drop", "pad", "error", "keep")

COMPOSITION = ("pack", "blend", "shuffle", "bucket", "shard")
"""The order in which what makes a plan is composed; it is fixed."""


@dataclass(frozen=True, slots=True)
class World:
    """Who reads.

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
                f"{self.ranks} data-parallel ranks with micro-batches of {self.micro_batch_size} do not exist"
            )
        if self.batch < 0 or self.batch % self.group:
            raise UsageError(
                f"the batch of {self.batch} samples is not divisible by micro batch size x data-parallel "
                f"size = {self.micro_batch_size} x {self.ranks} = {self.group}"
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
    kind: str,
    samples: int,
    seed: int,
    *,
    shard_sizes: tuple[int, ...] | None = None,
    block: int = 65536,
    per_epoch: bool = True,
) -> tuple[Link, ...]:
    """Return the links of a shuffle by its name.

    Args:
        kind: ``none``; ``shards``, shards in random order and their samples as they are; ``samples``, all
            samples in random order; ``blocks``, shards in random order and samples shuffled within blocks
            of that order, so that few shards are open at a time.
        samples: The number of samples.
        seed: The seed.
        shard_sizes: The samples of each shard; None for one shard.
        block: The samples of a block.
        per_epoch: Whether each epoch has its own order.

    Raises:
        UsageError: There is no such shuffle, or the shards do not add up.
    """
    if kind not in SHUFFLES:
        raise UsageError(f"the shuffle is {kind!r}, not one of {', '.join(SHUFFLES)}")
    sizes = (samples,) if shard_sizes is None else shard_sizes
    if sum(sizes) != samples:
        raise UsageError(f"the shards hold {sum(sizes)} samples, not {samples}")
    links: tuple[Link, ...] = ()
    if kind == "samples":
        links = (Shuffle(samples, samples, seed, per_epoch),)
    if kind == "blocks":
        links = (Shuffle(samples, min(block, samples), seed, per_epoch),)
    if kind in {"shards", "blocks"} and len(sizes) > 1:
        links += (ShardShuffle(sizes, seed, per_epoch),)
    return links


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
        return SampleOrder(samples, (Torch(samples, rounds * world.micro_batch_size, world.ranks),))
    size, ranks = world.micro_batch_size, world.ranks
    full = samples // size * size
    most = -(-full // ranks) // size
    if faithful and most != rounds:
        raise UsageError(
            f"without data sharding Megatron gives some ranks {most} and others {rounds} micro-batches of "
            f"{samples} samples (micro batch size {size}, data-parallel size {ranks}) in an epoch: it hangs",
            hint="ask for equal counts instead of Megatron's, or use data sharding",
        )
    return SampleOrder(samples, (Torch(samples, full, 1),))


def layout_of(mode: str, samples: int, world: World, *, tail: str = "drop", sharded: bool = True) -> Layout:
    """Return the layout of a mode.

    Args:
        mode: One of :data:`MODES`.
        samples: The number of positions of the order.
        world: Who reads.
        tail: One of :data:`TAILS`.
        sharded: In mode ``cyclic``, whether each rank has its own block.

    Raises:
        UsageError: There is no such mode, it does not have this tail, or nothing would be read.

    Example:
        >>> layout_of("chunked", 10, World(ranks=4, micro_batch_size=1), tail="pad")
        Blocked(samples=10, ranks=4, run=3, samples_per_rank=3, repeat='last')
    """
    if mode not in MODES:
        raise UsageError(f"the mode is {mode!r}, not one of {', '.join(MODES)}")
    if tail not in TAILS:
        raise UsageError(f"the tail is {tail!r}, not one of {', '.join(TAILS)}")
    if mode == "full-validation":
        return _full_validation(samples, world)
    if mode == "cyclic" and tail != "drop":
        raise UsageError(f"mode cyclic drops the tail of each epoch, as Megatron does; it cannot {tail} it")
    per_rank = _samples_per_rank(samples, world, tail)
    ranks = world.ranks
    if mode == "single":
        return Striped(samples, ranks, world.micro_batch_size, per_rank)
    if mode == "sequential" or (mode == "cyclic" and not sharded):
        return Striped(samples, ranks, 1, per_rank)
    if mode == "cyclic" and per_rank is not None:
        return Blocked(samples, ranks, per_rank, per_rank)
    run = samples // ranks if tail in {"drop", "error"} else -(-samples // ranks)
    return Blocked(samples, ranks, run, per_rank)


def _samples_per_rank(samples: int, world: World, tail: str) -> int | None:
    if tail == "keep":
        return None
    if tail == "error" and samples % world.whole:
        raise UsageError(
            f"{samples} samples do not fill batches of {world.whole}: {samples % world.whole} are left over",
            hint="use --tail drop to leave them out or --tail pad to fill the last batch",
        )
    if tail == "pad":
        return -(-samples // world.whole) * world.whole // world.ranks
    return _rounds(samples, world.whole, world) * world.whole // world.ranks


def _rounds(samples: int, batch: int, world: World) -> int:
    if samples < batch:
        raise UsageError(
            f"{samples} samples do not fill one batch of {batch} "
            f"(micro batch size {world.micro_batch_size}, data-parallel size {world.ranks})",
            hint="use more samples, a smaller batch, or --tail pad",
        )
    return samples // batch


def _full_validation(samples: int, world: World) -> Layout:
    if world.whole != world.ranks:
        raise UsageError(f"full validation reads one sample a rank and step, not batches of {world.whole}")
    return Striped(samples, world.ranks, 1, -(-samples // world.ranks), repeat="first")
