"""A plan's micro-batches in torch: a dataset, its sampler, a data loader with state, and an iterator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

from tokshard.errors import UsageError
from tokshard.loader.rank import RankLoader

if TYPE_CHECKING:
    from tokshard.loader.assembly import MicroBatch

__all__ = [
    "ExternalIterator",
    "PlanDataLoader",
    "PlanDataset",
    "PlanSampler",
    "data_loader",
    "to_tensors",
]

TensorBatch = dict[str, Any]
"""A micro-batch of tensors."""

_HINT = "use tokshard.loader.torch.data_loader(loader, num_workers=...) without another sampler"


def to_tensors(batch: MicroBatch) -> TensorBatch:
    """Return a micro-batch as tensors, which share the memory of arrays that may be written to."""
    import torch

    return {
        name: torch.from_numpy(array if array.flags.writeable else array.copy())
        for name, array in batch.items()
    }


class Turn(int):
    """The number of a micro-batch as :class:`PlanSampler` gives it: the key that the dataset asks for.

    Attributes:
        origin: Where the loader of the sampler counts from, see ``RankLoader.origin``.
    """

    origin: tuple[str, int, int, int]

    @classmethod
    def of(cls, number: int, origin: tuple[str, int, int, int]) -> Self:
        """Return the turn of a micro-batch."""
        turn = cls(number)
        turn.origin = origin
        return turn


class PlanDataset:
    """The micro-batches of a rank by their numbers: a map-style dataset.

    It answers the numbers of :class:`PlanSampler` alone. Any other sampler would pick and order for a second
    time what the plan has assigned: a ``DistributedSampler`` on top gives every rank a part of its part.

    Args:
        loader: The rank's loader.
    """

    def __init__(self, loader: RankLoader) -> None:
        self.loader = loader

    def __repr__(self) -> str:
        return f"PlanDataset({self.loader!r})"

    def __len__(self) -> int:
        return len(self.loader)

    def __getitem__(self, number: int) -> TensorBatch:
        """Return a micro-batch.

        Raises:
            UsageError: The number comes from another sampler, or from a loader that continues in another
                world than the one of this dataset.
        """
        from torch.utils.data import get_worker_info

        if not isinstance(number, Turn):
            raise UsageError(
                f"micro-batch {number!r} was requested by another sampler than the plan's, which would "
                "distribute the samples again (DistributedSampler) or shuffle them again",
                hint=_HINT,
            )
        if number.origin != self.loader.origin:
            raise UsageError(
                f"micro-batch {number} is counted from {_shown(number.origin)}, but this loader counts from "
                f"{_shown(self.loader.origin)}: a state of another world size was loaded after "
                "the data loader was made",
                hint="make the data loader after the state is loaded, or without persistent_workers",
            )
        if get_worker_info() is None:
            self.loader.read_ahead(number)
            return to_tensors(self.loader[number])
        from tokshard.loader.shared_batches import SharedBatch

        return SharedBatch(to_tensors(self.loader[number]))


def _shown(origin: tuple[str, int, int, int]) -> str:
    plan_id, consumed_samples, epoch, position = origin
    return f"{consumed_samples} consumed samples (plan {plan_id[:12]}, epoch {epoch}, sample {position})"


class PlanSampler:
    """The numbers of the micro-batches from where a loader stands to the end.

    Its iterator has a state, which torchdata's ``StatefulDataLoader`` saves and restores: that of
    ``RankLoader.state_dict`` at the next micro-batch. So a state of another plan or stream is refused, and
    one of the plan that this plan continues is accepted.

    Args:
        loader: The rank's loader.
    """

    def __init__(self, loader: RankLoader) -> None:
        self.loader = loader

    def __repr__(self) -> str:
        return f"PlanSampler({self.loader!r})"

    def __len__(self) -> int:
        return len(self.loader) - self.loader.position

    def __iter__(self) -> Iterator[int]:
        return _Turns(self.loader)


class _Turns:
    """The iterator of a sampler, from the position of the loader, which it does not move."""

    def __init__(self, loader: RankLoader) -> None:
        self._loader = loader
        self._next = loader.position
        self._origin = loader.origin

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Turn:
        if self._next == len(self._loader):
            raise StopIteration
        self._next += 1
        return Turn.of(self._next - 1, self._origin)

    def state_dict(self) -> dict[str, Any]:
        return self._loader.state_dict(self._next)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._next = self._loader.position_of(state)


class PlanDataLoader:
    """A torch ``DataLoader`` over a plan, whose state is that of the micro-batches that were returned.

    Batches prefetched by workers do not count, so a state saved at any time and loaded with the same or
    another number of workers resumes at the very next micro-batch.

    Args:
        loader: The rank's loader; it moves as this one hands out micro-batches.
        **options: Those of ``DataLoader`` that do not pick samples: ``num_workers``, ``pin_memory``,
            ``persistent_workers``, ``prefetch_factor``, ``multiprocessing_context``, ``timeout``, ...

    Raises:
        UsageError: An option would pick, order or batch samples, which the plan does.
    """

    def __init__(self, loader: RankLoader, **options: Any) -> None:
        from torch.utils.data import DataLoader

        taken = {"dataset", "sampler", "batch_sampler", "batch_size", "shuffle", "drop_last", "collate_fn"}
        for name in sorted(taken & set(options)):
            raise UsageError(
                f"{name}={type(options[name]).__name__} is not supported by the data loader of a plan, which "
                "already determines the samples of each rank and their order",
                hint=_HINT,
            )
        self._loader = loader
        self._batches = DataLoader(
            PlanDataset(loader), batch_size=None, sampler=PlanSampler(loader), **options
        )

    def __repr__(self) -> str:
        return f"PlanDataLoader({self._loader!r}, num_workers={self._batches.num_workers})"

    def __len__(self) -> int:
        """Return the number of micro-batches of all steps, also after a resume, as trainers expect it."""
        return len(self._loader)

    def __iter__(self) -> Iterator[TensorBatch]:
        iter(self._loader)
        for batch in self._batches:
            self._loader.skip()
            if self._loader.position == len(self._loader):
                self._loader.skip(0)  # A consumer that counts batches never asks for one more.
            yield batch
        self._loader.skip(0)

    def state_dict(self) -> dict[str, Any]:
        """Return the position as a dictionary of JSON values, as ``RankLoader.state_dict`` does."""
        return self._loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a position; the next iteration begins there.

        Raises:
            ResumeMismatchError, UsageError: See ``RankLoader.load_state_dict``.
        """
        self._loader.load_state_dict(state)


def data_loader(loader: RankLoader, *, num_workers: int = 0, **options: Any) -> PlanDataLoader:
    """Return a :class:`PlanDataLoader`, read by ``num_workers`` processes; by this one for 0."""
    return PlanDataLoader(loader, num_workers=num_workers, **options)


class ExternalIterator:
    """A rank's micro-batches as an iterator of tensors: what ``--dataloader-type external`` expects.

    Args:
        source: The rank's loader, or a data loader over it.
    """

    def __init__(self, source: RankLoader | PlanDataLoader) -> None:
        self._source = source
        self._batches = iter(PlanDataLoader(source) if isinstance(source, RankLoader) else source)

    def __repr__(self) -> str:
        return f"ExternalIterator({self._source!r})"

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> TensorBatch:
        return next(self._batches)

    def save_state(self) -> dict[str, Any]:
        """Return where the loader stands; Megatron calls it for ``--dataloader-save``."""
        return self._source.state_dict()
