"""Coordinates of a rank in the grid of tensor, pipeline, context and data parallelism.

Ranks are numbered as in megatron-core's ``RankGenerator``: the order names the dimensions from the fastest
to the slowest, ``tp-cp-ep-dp-pp`` by default. Expert parallelism (``ep``) divides the same ranks once more,
which changes nothing about data.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokshard.core.codec import Count, Positive, Record
from tokshard.errors import UsageError

DEFAULT_ORDER = "tp-cp-ep-dp-pp"
DIMENSIONS = ("tp", "cp", "ep", "dp", "pp")

FIELDS = ("tokens", "position_ids", "labels", "loss_mask", "attention_mask", "cu_seqlens")
"""Everything that a rank can read, in the order in which :meth:`Topology.needs` names it."""

_FIRST_STAGE = frozenset({"tokens", "position_ids", "attention_mask"})
_LAST_STAGE = frozenset({"labels", "loss_mask", "attention_mask"})


@dataclass(frozen=True, slots=True)
class Coordinates(Record):
    """A rank's place in the grid."""

    tp: Count
    cp: Count
    dp: Count
    pp: Count


@dataclass(frozen=True, slots=True)
class Topology(Record):
    """The shape of a training job.

    Raises:
        UsageError: The sizes do not divide the world, or the order is none.

    Attributes:
        world_size: Number of ranks.
        tensor_parallel: Tensor-parallel size.
        pipeline_parallel: Number of pipeline stages.
        context_parallel: Context-parallel size.
        rank_order: Dimensions from the fastest to the slowest, joined by ``-``. A dimension that is left out
            has size 1. ``ep`` is ignored.
        mtp_stages: Pipeline stages that hold multi-token prediction and need every field.

    Example:
        >>> topology = Topology(16, 2, 2, 2, DEFAULT_ORDER, ())
        >>> topology.data_parallel, topology.coordinates(11)
        (2, Coordinates(tp=1, cp=1, dp=0, pp=1))
        >>> topology.needs(0), topology.needs(1)
        (('tokens', 'position_ids', 'attention_mask'), ())
    """

    world_size: Positive
    tensor_parallel: Positive
    pipeline_parallel: Positive
    context_parallel: Positive
    rank_order: str
    mtp_stages: tuple[Count, ...]

    def _validate(self) -> None:
        self._check_world()
        self._check_order()
        self._check_stages()

    def _check_world(self) -> None:
        model = self.tensor_parallel * self.pipeline_parallel * self.context_parallel
        if self.world_size % model:
            raise UsageError(
                f"the world size must be divisible by tensor x pipeline x context = "
                f"{self.tensor_parallel} x {self.pipeline_parallel} x {self.context_parallel} = {model}, "
                f"got {self.world_size}",
                hint=f"pass a multiple of {model} to --world-size, or change the parallel sizes",
            )

    def _check_order(self) -> None:
        names = self.rank_order.lower().split("-")
        if len(set(names)) != len(names) or not set(names) <= set(DIMENSIONS):
            raise UsageError(
                f"the order must consist of {', '.join(DIMENSIONS)}, each at most once, "
                f"got {self.rank_order!r}",
                hint=f"pass for example --order {DEFAULT_ORDER}",
            )
        for name, size in self._sizes().items():
            if size > 1 and name not in names:
                raise UsageError(
                    f"the order must contain {name}, whose size is {size}, got {self.rank_order!r}"
                )

    def _check_stages(self) -> None:
        for stage in self.mtp_stages:
            if not 0 <= stage < self.pipeline_parallel:
                raise UsageError(
                    f"stages of multi-token prediction must be from 0 to {self.pipeline_parallel - 1}, "
                    f"got {stage}"
                )

    @property
    def data_parallel(self) -> int:
        """The data-parallel size: ranks that read different samples."""
        return self.world_size // (self.tensor_parallel * self.pipeline_parallel * self.context_parallel)

    def coordinates(self, rank: int) -> Coordinates:
        """Return a rank's place in the grid.

        Raises:
            IndexError: The rank does not exist.
        """
        if not 0 <= rank < self.world_size:
            raise IndexError(f"rank must be from 0 to {self.world_size - 1}, got {rank}")
        sizes = self._sizes()
        places = dict.fromkeys(DIMENSIONS, 0)
        for name in self.rank_order.lower().split("-"):
            rank, places[name] = divmod(rank, sizes[name])
        return Coordinates(places["tp"], places["cp"], places["dp"], places["pp"])

    def needs(self, rank: int, *, boundaries: bool = False) -> tuple[str, ...]:
        """Return the fields that a rank reads itself, of :data:`FIELDS`; often none.

        Of the ranks that differ only in tensor parallelism the first reads, and the others receive by
        broadcast. The first pipeline stage needs tokens, the last one labels, a stage of multi-token
        prediction everything; attention over documents separately (``boundaries``) needs the document
        boundaries in every stage, also in the middle ones.

        Raises:
            IndexError: The rank does not exist.
        """
        place = self.coordinates(rank)
        if place.tp:
            return ()
        needed: frozenset[str] = frozenset()
        if place.pp == 0:
            needed |= _FIRST_STAGE
        if place.pp == self.pipeline_parallel - 1:
            needed |= _LAST_STAGE
        if place.pp in self.mtp_stages:
            needed |= _FIRST_STAGE | _LAST_STAGE
        if boundaries:
            needed |= {"cu_seqlens"}
        return tuple(field for field in FIELDS if field in needed)

    def _sizes(self) -> dict[str, int]:
        return {
            "tp": self.tensor_parallel,
            "cp": self.context_parallel,
            "ep": 1,
            "dp": self.data_parallel,
            "pp": self.pipeline_parallel,
        }


def context_slices(sequence_length: int, context: int, cp: int) -> tuple[slice, ...]:
    """Return what a context-parallel rank takes of a sequence.

    The sequence is cut into ``2 * context`` chunks, and rank ``cp`` takes chunks ``cp`` and
    ``2 * context - 1 - cp``, in this order, so that causal attention costs every rank the same.

    Raises:
        UsageError: The sequence is not divisible, or there is no such rank.

    Example:
        >>> context_slices(16, 2, 0), context_slices(16, 2, 1)
        ((slice(0, 4, None), slice(12, 16, None)), (slice(4, 8, None), slice(8, 12, None)))
    """
    if context < 1 or not 0 <= cp < context:
        raise UsageError(f"the context-parallel rank must be from 0 to {context - 1}, got {cp}")
    if context == 1:
        return (slice(0, sequence_length),)
    chunk, rest = divmod(sequence_length, 2 * context)
    if rest:
        raise UsageError(
            f"the sequence length must be divisible by 2 x context-parallel size = "
            f"{2 * context}, got {sequence_length}"
        )
    mirrored = 2 * context - 1 - cp
    return (slice(cp * chunk, (cp + 1) * chunk), slice(mirrored * chunk, (mirrored + 1) * chunk))
