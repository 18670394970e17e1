"""Index of one split of one dataset, bit-identical to Megatron Core's.

The **document index** is the order in which sequences are read, over all epochs. The **sample index** divides
the tokens in that order into samples: row k is the start of sample k and the end of the previous one. The
**shuffle index** is the order in which samples are used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from tokshard.errors import UsageError
from tokshard.samples.index.epoch_plan import EpochPlan
from tokshard.samples.index.packing import Packing

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class GPTDatasetIndex:
    """The three arrays, in memory or mapped from cache files, and their plan.

    Sample k consists of the tokens from row ``shuffle_index[k]`` of the sample index to the next row,
    and the extra token, if any.

    Attributes:
        document_index: int32 of shape (sequences * epochs,), see
            :func:`~tokshard.samples.index.arrays.build_document_index`. With packed samples of shape
            (documents with tokens * epochs + 1,), see
            :func:`~tokshard.samples.index.best_fit.build_packed_index`, which builds all three arrays then.
        sample_index: int32 or int64 of shape (samples + 1, 2), see
            :func:`~tokshard.samples.index.arrays.build_sample_index`.
        shuffle_index: uint32 or int64 of shape (samples,), see
            :func:`~tokshard.samples.index.arrays.build_shuffle_index`.
        plan: The number of epochs and samples, and the options.
    """

    document_index: NDArray[np.int32]
    sample_index: NDArray[np.int32] | NDArray[np.int64]
    shuffle_index: NDArray[np.uint32] | NDArray[np.int64]
    plan: EpochPlan

    def __repr__(self) -> str:
        plan = self.plan
        return (
            f"GPTDatasetIndex(samples={plan.samples}, epochs={plan.epochs}, "
            f"sequence_length={plan.sequence_length})"
        )

    def __len__(self) -> int:
        return self.plan.samples

    @classmethod
    def build(
        cls,
        lengths: NDArray[np.int32],
        sequences: range,
        *,
        sequence_length: int,
        seed: int,
        num_samples: int | None,
        extra_token: bool = True,
        drop_last_partial: bool = True,
        packing: Packing | None = None,
    ) -> Self:
        """Build the index of a split.

        Peak memory is the three arrays: 4 bytes per sequence and epoch, and 12 per sample.

        Args:
            lengths: The tokens of all sequences of the dataset: int32 of shape (sequences,).
            sequences: The numbers of the split's sequences, see
                :meth:`tokshard.samples.index.splits.Split.ranges`.
            sequence_length: The tokens of a sample, without the extra one.
            seed: The seed of both shuffles, from 0 to 2**32 - 1.
            num_samples: The samples requested; None for one epoch.
            extra_token: Megatron's ``add_extra_token_to_sequence``.
            drop_last_partial: False keeps and pads the partial last sample, as Megatron can for
                validation.
            packing: The packing of whole documents into samples; None for concatenated documents.

        Raises:
            UsageError: An argument is out of range, or one epoch is requested and has not a single
                sample.
            InputError: The split is empty or too large, see
                :func:`tokshard.samples.index.epochs.plan_epochs`.

        Example:
            >>> lengths = np.array([3, 5, 4], np.int32)
            >>> index = GPTDatasetIndex.build(lengths, range(3), sequence_length=4, seed=1, num_samples=4)
            >>> index.plan.epochs, len(index), index.shuffle_index.tolist()
            (2, 5, [0, 2, 4, 3, 1])
        """
        # Readers of an index must not load the code that builds one.
        from tokshard.samples.index.arrays import (
            build_document_index,
            build_sample_index,
            build_shuffle_index,
        )
        from tokshard.samples.index.epochs import SplitSize, plan_epochs
        from tokshard.samples.index.shuffling import ShuffleStream

        if sequences.step != 1 or sequences.start < 0 or sequences.stop > len(lengths):
            raise UsageError(
                f"sequences must be within the dataset's {len(lengths)} sequences, got {sequences}"
            )
        stream = ShuffleStream(seed)
        packs = None
        if packing is None:
            tokens = int(lengths[sequences.start : sequences.stop].sum(dtype=np.int64))
            size = SplitSize(len(sequences), tokens)
        else:
            from tokshard.samples.index.best_fit import EpochPacks, build_packed_index

            packs = EpochPacks.of(lengths, sequences, sequence_length, packing)
            size = packs.size
        plan = plan_epochs(
            sequences=size.sequences,
            tokens_per_epoch=size.tokens,
            sequence_length=sequence_length,
            num_samples=num_samples,
            extra_token=extra_token,
            drop_last_partial=drop_last_partial,
            packed=size.packed,
        )
        if packs is not None:
            return cls(*build_packed_index(lengths, packs, plan, stream), plan)
        documents = build_document_index(
            sequences, plan.epochs, stream, separate_final_epoch=plan.separate_final_epoch
        )
        samples = build_sample_index(lengths, documents, plan)
        return cls(documents, samples, build_shuffle_index(plan, stream), plan)
