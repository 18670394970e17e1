"""Megatron's samplers: its own where ``megatron.training`` is installed, elsewhere slow twins of them."""

from __future__ import annotations

import importlib.util
from itertools import chain

from support import slow_samplers


class MegatronSamplers:
    """The orders of Megatron's classes, as lists of micro-batches."""

    def __init__(self) -> None:
        from megatron.training.datasets import data_samplers

        self._module = data_samplers

    @staticmethod
    def are_installed() -> bool:
        """Tell whether they are: from 0.17 on, with Python 3.12."""
        return importlib.util.find_spec("megatron.training") is not None

    def single(self, total, consumed, size, rank, ranks):
        return list(self._module.MegatronPretrainingSampler(total, consumed, size, rank, ranks))

    def cyclic_epoch(self, total, consumed, size, rank, ranks, sharded):
        """Return the rest of the epoch under way, and the consumed samples after it."""
        options = (total, consumed, size, rank, ranks, sharded)
        sampler = self._module.MegatronPretrainingRandomSampler(object(), *options)
        return list(sampler), sampler.consumed_samples

    def full_validation(self, total, rank, ranks):
        return list(self._module.MegatronFullValidationSampler(total, rank, ranks))

    def global_batches(self, total, consumed, size, batch, rank, ranks):
        options = (total, consumed, size, batch, rank, ranks)
        return list(self._module.HybridCPMegatronPretrainingSampler(*options))


class TwinSamplers:
    """The same orders, written from their definitions."""

    def single(self, total, consumed, size, rank, ranks):
        return slow_samplers.single_sampler(total, consumed, size, rank, ranks)

    def cyclic_epoch(self, total, consumed, size, rank, ranks, sharded):
        batches = slow_samplers.cyclic_sampler(total, consumed, size, rank, ranks, sharded)
        return batches, consumed + len(batches) * size * ranks

    def full_validation(self, total, rank, ranks):
        return [[sample] for sample in range(rank, total, ranks)]

    def global_batches(self, total, consumed, size, batch, rank, ranks):
        batches = slow_samplers.single_sampler(total, consumed, size, rank, ranks)
        rounds, whole = batch // (size * ranks), (total - consumed) // batch
        return [list(chain(*batches[at * rounds : (at + 1) * rounds])) for at in range(whole)]


def cyclic(samplers, world, consumed, count):
    """Return the first ``count`` micro-batches from a position on, over as many epochs as it takes."""
    total, size, rank, ranks, sharded = world
    batches = []
    while len(batches) < count:
        more, consumed = samplers.cyclic_epoch(total, consumed, size, rank, ranks, sharded)
        batches += more
    return batches[:count]
