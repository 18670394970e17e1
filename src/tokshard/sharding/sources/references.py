"""What a plan remembers of a dataset and of its index."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

from tokshard.dataset.reader import IndexedDataset
from tokshard.errors import UsageError
from tokshard.gpt_index.epochs import EpochPlan
from tokshard.gpt_index.index import GPTDatasetIndex
from tokshard.sharding.fields import Fields
from tokshard.sharding.sources.files import CachedFiles
from tokshard.sharding.sources.places import Places
from tokshard.sharding.sources.stamps import FileStamp
from tokshard.storage.paths import bin_path, idx_path


@dataclass(frozen=True, slots=True)
class IndexReference:
    """The index that makes samples of a dataset.

    Attributes:
        files: Its arrays.
        epochs: The numbers that it follows from.
    """

    files: CachedFiles
    epochs: EpochPlan

    def open(self) -> GPTDatasetIndex:
        """Map the index.

        Raises:
            MissingFileError, IntegrityError: See :meth:`CachedFiles.open`.
        """
        return GPTDatasetIndex(**self.files.open(), plan=self.epochs)

    def to_json(self, places: Places) -> dict[str, Any]:
        """Return the reference as JSON values."""
        numbers = {field.name: getattr(self.epochs, field.name) for field in fields(EpochPlan)}
        return {**self.files.to_json(places), "epochs": numbers}

    @classmethod
    def from_json(cls, value: Any, places: Places) -> Self:
        """Return the reference that :meth:`to_json` gave.

        Raises:
            IntegrityError: It is none.
        """
        names = ("directory", "hash", "split", "files", "epochs")
        record = Fields(value, places.source, "an index", names)
        epochs = _epochs_from_json(record.object("epochs"), places.source)
        files = {name: record.value(name) for name in names[:-1]}
        return cls(CachedFiles.from_json(files, "GPTDataset", places), epochs)


@dataclass(frozen=True, slots=True)
class DatasetReference:
    """A dataset, and which of its samples there are.

    Attributes:
        prefix: Its path prefix, as it can be opened.
        first: The number of the first sample: not 0 only for documents of a split.
        samples: The number of samples that may be read.
        bin: The stamp of its tokens.
        idx: The stamp of its index of sequences.
        multimodal: Whether its sequences have modes.
        fingerprint: What is known of its content, as in blends and caches.
        index: The index that makes its samples; None where they are its documents.
    """

    prefix: str
    first: int
    samples: int
    bin: FileStamp
    idx: FileStamp
    multimodal: bool
    fingerprint: dict[str, Any]
    index: IndexReference | None = None

    def open_dataset(self, *, mmap: bool = True) -> IndexedDataset:
        """Open the dataset, if it is the one that the plan was made for.

        Args:
            mmap: See :class:`~tokshard.dataset.reader.IndexedDataset`.

        Raises:
            MissingFileError: One of its files is not there.
            IntegrityError: One has changed since the plan was made, or they contradict each other.
        """
        self.check()
        dataset = IndexedDataset(self.prefix, self.multimodal, mmap)
        self.check()  # what was opened is what was checked, and not what has replaced it in between
        return dataset

    def check(self) -> None:
        """Check that both files are those that the plan was made for, without reading them whole.

        Raises:
            MissingFileError, IntegrityError: See :meth:`open_dataset`.
        """
        self.idx.check(idx_path(self.prefix))
        self.bin.check(bin_path(self.prefix))

    def open_index(self) -> GPTDatasetIndex:
        """Map the index that makes its samples.

        Raises:
            UsageError: Its samples are documents.
            MissingFileError, IntegrityError: See :meth:`CachedFiles.open`.
        """
        if self.index is None:
            raise UsageError(f"the samples of {self.prefix} are its documents: there is no index")
        return self.index.open()

    def to_json(self, places: Places) -> dict[str, Any]:
        """Return the reference as JSON values."""
        return {
            "prefix": places.stored(self.prefix),
            "first": self.first,
            "samples": self.samples,
            "bin": self.bin.to_json(),
            "idx": self.idx.to_json(),
            "multimodal": self.multimodal,
            "fingerprint": self.fingerprint,
            "index": None if self.index is None else self.index.to_json(places),
        }

    @classmethod
    def from_json(cls, value: Any, places: Places) -> Self:
        """Return the reference that :meth:`to_json` gave.

        Raises:
            IntegrityError: It is none.
        """
        record = Fields(value, places.source, "a dataset", tuple(cls.__slots__))
        index = record.value("index")
        return cls(
            prefix=places.opened(record.text("prefix")),
            first=record.count("first"),
            samples=record.count("samples"),
            bin=FileStamp.from_json(record.value("bin"), places.source),
            idx=FileStamp.from_json(record.value("idx"), places.source),
            multimodal=record.flag("multimodal"),
            fingerprint=record.object("fingerprint"),
            index=None if index is None else IndexReference.from_json(index, places),
        )


def _epochs_from_json(value: dict[str, Any], path: str) -> EpochPlan:
    names = tuple(field.name for field in fields(EpochPlan))
    record = Fields(value, path, "the numbers of an index", names)
    flags = ("extra_token", "drop_last_partial", "separate_final_epoch")
    found: dict[str, Any] = {name: record.flag(name) for name in flags}
    for name in names:
        if name == "num_samples" and record.value(name) is None:
            found[name] = None
        elif name not in flags:
            found[name] = record.count(name)
    return EpochPlan(**found)
