"""What lies on disk now, held against what was recorded of it: datasets and the indexes made from them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from tokshard.dataset.layout import HEADER_BYTES, check_size, read_header
from tokshard.dataset.manifest import read_manifest
from tokshard.dataset.read_consistency import unchanged
from tokshard.dataset.reader import require_files
from tokshard.dataset.source import InputFile
from tokshard.errors import IntegrityError
from tokshard.gpt_index.epochs import EpochPlan, plan_epochs
from tokshard.index_cache.cache import CacheEntry, gpt_specs
from tokshard.index_cache.description import GPTDatasetDescription
from tokshard.index_cache.fingerprint import FingerprintedIndex, fingerprint_differences
from tokshard.index_cache.npy import read_spec
from tokshard.index_cache.sidecar import Sidecar
from tokshard.sharding.sources.files import CachedFiles
from tokshard.sharding.sources.references import DatasetReference, IndexReference
from tokshard.sharding.sources.stamps import FileStamp
from tokshard.storage.fs import abspath
from tokshard.storage.paths import bin_path, idx_path

_COUNTS = ("sequences", "tokens_per_epoch", "epochs", "samples", "samples_before_final_epoch")


@dataclass(frozen=True, slots=True)
class Holding:
    """A dataset as it is now.

    Attributes:
        prefix: Its path prefix.
        documents: The number of its documents.
        multimodal: Whether its sequences have modes.
        fingerprint: What identifies its content: with digests everything that
            :func:`~tokshard.index_cache.fingerprint.dataset_fingerprint` gives, else the sizes and what the
            manifest says.
        bin: The stamp of its tokens.
        idx: The stamp of its index of sequences.
    """

    prefix: str
    documents: int
    multimodal: bool
    fingerprint: dict[str, Any]
    bin: FileStamp
    idx: FileStamp

    def reference(
        self,
        *,
        first: int = 0,
        samples: int,
        fingerprint: dict[str, Any],
        index: IndexReference | None = None,
    ) -> DatasetReference:
        """Return the reference to samples of the dataset."""
        return DatasetReference(
            prefix=abspath(self.prefix),
            first=first,
            samples=samples,
            bin=self.bin,
            idx=self.idx,
            multimodal=self.multimodal,
            fingerprint=fingerprint,
            index=index,
        )


class Holdings:
    """The datasets of a plan, each looked at once.

    Args:
        digests: Whether to read the ``.idx`` files whole (20 bytes for each sequence and document), to see
            that they are consistent and that indexes were made from them. Without, their headers, sizes and
            manifests are looked at.
    """

    def __init__(self, *, digests: bool = True) -> None:
        self._digests = digests
        self._known: dict[str, Holding] = {}

    def of(self, prefix: str) -> Holding:
        """Return a dataset as it is now.

        Raises:
            MissingFileError: One or both of its files are not there.
            IntegrityError: It contradicts itself.
            InputError: It was changed while it was looked at.
        """
        if prefix not in self._known:
            with unchanged([prefix]):
                self._known[prefix] = self._look(prefix)
        return self._known[prefix]

    def _look(self, prefix: str) -> Holding:
        require_files(prefix)
        manifest = read_manifest(prefix)
        multimodal = manifest is not None and bool(manifest.dataset.get("multimodal"))
        bin_stamp, idx_stamp = FileStamp.of(bin_path(prefix)), FileStamp.of(idx_path(prefix))
        if self._digests:
            opened = FingerprintedIndex.open(prefix)
            documents, fingerprint = opened.table.document_count, opened.fingerprint
        else:
            documents = _documents(prefix, idx_stamp, multimodal=multimodal)
            fingerprint = {"bin_bytes": bin_stamp.size_bytes, "idx_bytes": idx_stamp.size_bytes}
            listed = manifest.files if manifest is not None else {}
            same = [listed.get(name, {}).get("bytes") for name in ("bin", "idx")]
            if manifest is not None and same == [bin_stamp.size_bytes, idx_stamp.size_bytes]:
                fingerprint["fingerprint"] = manifest.fingerprint
        return Holding(prefix, documents, multimodal, fingerprint, bin_stamp, idx_stamp)

    def indexed(
        self, prefix: str, entry: CacheEntry, description: GPTDatasetDescription, samples: int | None = None
    ) -> DatasetReference:
        """Return the reference to samples that a cached index makes, if all of it fits together.

        Args:
            prefix: The dataset.
            entry: The files of the index.
            description: What they are.
            samples: How many of its samples may be read; None for all.

        Raises:
            MissingFileError: The dataset or a file of the index is not there.
            IntegrityError: The index was made from other data, is damaged, or nothing is known of it.
        """
        holding, sidecar = self.of(prefix), _sidecar(entry)
        changes = fingerprint_differences(sidecar.dataset, holding.fingerprint)
        if changes:
            raise IntegrityError(
                f"the index {entry.hash} was made from another content of {prefix}: {', '.join(changes)}",
                path=entry.description_path,
                hint="build the index again: tokshard build-indices --rebuild, or blend --rebuild",
            )
        index = IndexReference(_files(entry, description.index_split), _epochs(entry, description, sidecar))
        return holding.reference(
            samples=index.epochs.samples if samples is None else samples,
            fingerprint={**sidecar.dataset, **holding.fingerprint},
            index=index,
        )


def blend_files(directory: str, hash_text: str, split: str, samples: int) -> CachedFiles:
    """Return the arrays of a blend, if they are there and have the shape.

    Raises:
        MissingFileError: One is not there.
        IntegrityError: One is no whole array, or has another shape.
    """
    files = CachedFiles(directory, hash_text, split, "BlendedDataset", {})
    stamps = {}
    for name, dtype in (("dataset_index", "int16"), ("dataset_sample_index", "int64")):
        stamps[name] = FileStamp.of(files.path(name))
        spec = read_spec(files.path(name))
        if spec.shape != (samples,) or spec.dtype.name != dtype:
            raise IntegrityError(
                f"{files.path(name)} is {spec}, but {dtype} of shape ({samples},) belongs to the blend",
                path=files.path(name),
                hint="run tokshard blend with --rebuild",
            )
    return CachedFiles(directory, hash_text, split, "BlendedDataset", stamps)


def _documents(prefix: str, stamp: FileStamp, *, multimodal: bool) -> int:
    """Return the number of documents as the header tells it, held against the size."""
    file = InputFile(idx_path(prefix))
    head = bytearray(min(HEADER_BYTES, stamp.size_bytes))
    file.read_into(memoryview(head), 0)
    header = read_header(head, path=file.path)
    check_size(header, stamp.size_bytes, multimodal=multimodal, path=file.path)
    return header.document_count


def _sidecar(entry: CacheEntry) -> Sidecar:
    """Return what tokshard has recorded of an index.

    Raises:
        IntegrityError: Nothing, or it is damaged.
    """
    sidecar = Sidecar.read(entry.sidecar_path)
    if sidecar is None:
        raise IntegrityError(
            f"nothing is known of the index {entry.hash}: {entry.sidecar_path} is not there",
            path=entry.sidecar_path,
            hint="tokshard build-indices --like its description verifies an index that Megatron has made",
        )
    if sidecar.description_md5 != entry.hash:
        raise IntegrityError(
            f"{entry.sidecar_path} belongs to the index {sidecar.description_md5}", path=entry.sidecar_path
        )
    for name in _COUNTS:
        if type(sidecar.counts.get(name)) is not int:
            raise IntegrityError(
                f"{entry.sidecar_path}: counts.{name} is {sidecar.counts.get(name)!r}",
                path=entry.sidecar_path,
                field=f"counts.{name}",
            )
    return sidecar


def _epochs(entry: CacheEntry, description: GPTDatasetDescription, sidecar: Sidecar) -> EpochPlan:
    counts, options = sidecar.counts, sidecar.options
    plan = plan_epochs(
        sequences=counts["sequences"],
        tokens_per_epoch=counts["tokens_per_epoch"],
        sequence_length=description.sequence_length,
        num_samples=description.num_samples,
        extra_token=bool(options.get("add_extra_token_to_sequence", True)),
        drop_last_partial=bool(options.get("drop_last_partial_sequence", True)),
    )
    if (plan.epochs, plan.samples) != (counts["epochs"], counts["samples"]):
        raise IntegrityError(
            f"{entry.sidecar_path}: {counts['samples']} samples of {counts['epochs']} epochs do not follow "
            f"from the rest, but {plan.samples} of {plan.epochs}",
            path=entry.sidecar_path,
        )
    return _checked(entry, plan)


def _checked(entry: CacheEntry, plan: EpochPlan) -> EpochPlan:
    """Return a plan if the arrays of an index have the shapes that follow from it.

    Raises:
        IntegrityError: One has not, or is no whole array.
        StorageError: One cannot be opened.
    """
    for name, spec in gpt_specs(plan).items():
        found = read_spec(entry.array_path(name))
        if found != spec:
            raise IntegrityError(
                f"{entry.array_path(name)} is {found}, but {spec} belongs to the index",
                path=entry.array_path(name),
                hint="build the index again with --rebuild",
            )
    return plan


def _files(entry: CacheEntry, split: str) -> CachedFiles:
    stamps = {name: FileStamp.of(entry.array_path(name)) for name in entry.arrays}
    return CachedFiles(os.path.abspath(entry.directory), entry.hash, split, "GPTDataset", stamps)
