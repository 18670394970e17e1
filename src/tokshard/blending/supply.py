"""What the sources of a mixture have to give: their sequences and tokens in each split."""

from __future__ import annotations

from collections.abc import Iterable

from tokshard.blending.recipe import Source, whereabouts
from tokshard.dataset.reader import IndexedDataset
from tokshard.errors import InputError, TokshardError, UsageError
from tokshard.gpt_index.epochs import EpochPlan, plan_epochs
from tokshard.gpt_index.splits import Split
from tokshard.index_cache.request import IndexRequest


class Supply:
    """The datasets of a recipe, each opened once and closed again: only sums are kept.

    A dataset is looked at again for a split that has not been asked for before.
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[str, Split], tuple[tuple[int, int] | None, ...]] = {}

    def plan(self, request: IndexRequest, num_samples: int | None) -> EpochPlan:
        """Return what an index of so many samples would be.

        Raises:
            UsageError, InputError: See :func:`tokshard.gpt_index.epochs.plan_epochs`.
            MissingFileError, IntegrityError, StorageError: The dataset cannot be read.
        """
        sequences, tokens = self._of(request)
        try:
            return plan_epochs(
                sequences=sequences,
                tokens_per_epoch=tokens,
                sequence_length=request.sequence_length,
                num_samples=num_samples,
                extra_token=request.extra_token,
                drop_last_partial=request.drops_last_partial,
            )
        except (UsageError, InputError) as error:
            raise _named(error, request) from error

    def _of(self, request: IndexRequest) -> tuple[int, int]:
        key = request.prefix, request.split
        if key not in self._sums:
            lengths = IndexedDataset(request.prefix).sequence_lengths
            ranges = request.split.ranges(len(lengths))
            self._sums[key] = tuple(
                None if part is None else (len(part), int(lengths[part.start : part.stop].sum(dtype="int64")))
                for part in ranges
            )
        place = ("train", "valid", "test").index(request.split_name)
        return self._sums[key][place] or (0, 0)


def _named(error: TokshardError, request: IndexRequest) -> TokshardError:
    return type(error)(f"{request.prefix}, {request.split_name}: {error.message}", hint=error.hint)


def refuse_duplicates(sources: Iterable[Source], seed: int) -> None:
    """Refuse a dataset that is named twice with the same seed: both would give the same samples.

    Raises:
        UsageError: There is one.
    """
    seen: dict[tuple[str, int], str] = {}
    for source in sources:
        own = seed if source.seed is None else source.seed
        key = whereabouts(source.prefix), own
        if key in seen:
            also = "" if seen[key] == source.prefix else f" (as {seen[key]!r}, too)"
            raise UsageError(
                f"{source.prefix!r} is in the mixture twice{also} with the seed {own}: "
                "both would give the same samples in the same order",
                hint="name it once with the sum of the weights; or give each its own seed (--own-seeds, or "
                "seed in a recipe), which Megatron cannot do",
            )
        seen[key] = source.prefix
