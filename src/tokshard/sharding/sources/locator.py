"""From the ids of a source to its datasets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tokshard.errors import IntegrityError
from tokshard.sharding.sources.samples import SampleSource

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]


class Locator:
    """Says which dataset an id belongs to, and which of its samples it is.

    The arrays of a blend are mapped at the first question; otherwise no file is opened.

    Args:
        source: The samples.
    """

    def __init__(self, source: SampleSource) -> None:
        self.source = source
        self._samples = np.array([one.samples for one in source.datasets], dtype=np.int64)
        self._firsts = np.array([one.first for one in source.datasets], dtype=np.int64)
        self._bounds = source.bounds if source.order is None else None
        self._arrays: tuple[NDArray[Any], NDArray[Any]] | None = None

    def locate(self, ids: Integers) -> tuple[NDArray[np.int16], Integers]:
        """Return the number of the dataset of each id, and the number of the sample within it.

        Args:
            ids: int64 of shape ``(n,)``.

        Returns:
            int16 and int64 of shape ``(n,)``. Samples are those of the dataset's index; of documents they
            are the numbers of the documents.

        Raises:
            IndexError: An id is negative or not below the total.
            IntegrityError: The files of the blend have changed, or name what there is not.
        """
        if ids.size and (ids.min() < 0 or ids.max() >= self.source.total):
            raise IndexError(f"sample ids are 0 to {self.source.total - 1}")
        if self._bounds is None:
            return self._locate_blended(ids)
        # Datasets without a sample begin where the next one does: the last one that begins there has it.
        dataset = np.searchsorted(self._bounds, ids, side="right") - 1
        return dataset.astype(np.int16), ids - self._bounds[dataset] + self._firsts[dataset]

    def _locate_blended(self, ids: Integers) -> tuple[NDArray[np.int16], Integers]:
        if self._arrays is None:
            self._arrays = self._open()
        dataset, sample = (array[ids] for array in self._arrays)
        unknown = (dataset < 0) | (dataset >= self._samples.size)
        unknown |= (sample < 0) | (sample >= self._samples[np.where(unknown, 0, dataset)])
        if unknown.any():
            place = int(np.argmax(unknown))
            raise self._wrong(
                f"sample {int(ids[place])} of the blend is sample {int(sample[place])} of dataset "
                f"{int(dataset[place])}, which does not exist"
            )
        return dataset, sample

    def _open(self) -> tuple[NDArray[Any], NDArray[Any]]:
        files = self.source.order
        if files is None:
            raise IndexError("a source that is no blend has no arrays")
        arrays = files.open()
        dataset, sample = arrays["dataset_index"], arrays["dataset_sample_index"]
        expected = (self.source.total,)
        if dataset.shape != expected or sample.shape != expected or dataset.dtype != np.int16:
            raise self._wrong(
                f"the arrays of the blend are {dataset.dtype.name} of shape {dataset.shape} and of shape "
                f"{sample.shape}, not int16 of shape {expected}"
            )
        return dataset, sample

    def _wrong(self, problem: str) -> IntegrityError:
        path = self.source.order.path("dataset_index") if self.source.order else ""
        return IntegrityError(
            f"{path}: {problem}", path=path, hint="build the blend again, and then the plan"
        )
