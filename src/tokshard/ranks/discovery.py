"""Discovery of samples: a blend, built indexes or documents as named by a user, checked against the disk."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tokshard.core.path_mapping import PathMapping
from tokshard.dataset.fingerprint import DatasetFingerprint, FileFingerprint, FingerprintedIndex, unchanged
from tokshard.dataset.layout import HEADER_BYTES, check_size, read_header
from tokshard.dataset.manifest import read_dataset_tokenizer, read_manifest
from tokshard.dataset.merge.inputs import expand
from tokshard.dataset.products import DESCRIPTION_SUFFIX, dataset_hint, kind_of
from tokshard.dataset.reader import require_files
from tokshard.dataset.source import InputFile
from tokshard.dataset.token_ids import check_token_ids
from tokshard.dataset.tokenizer_identity import compare, tokenizer_name
from tokshard.errors import InputError, IntegrityError, MissingFileError, UsageError
from tokshard.ranks.sources import CachedArrays, DatasetReference, SampleSource
from tokshard.samples.blend.document import BlendDocument, document_path
from tokshard.samples.index.description import GPTDatasetDescription, descriptions_in, read_description
from tokshard.samples.index.entry import (
    CacheEntry,
    IndexOrigin,
    Sidecar,
    default_directory,
    gpt_specs,
)
from tokshard.samples.index.epochs import EpochPlan, plan_epochs
from tokshard.samples.index.npy import GPT_ARRAYS, read_spec
from tokshard.samples.index.splits import SPLITS, Split, parse_split, whole_split
from tokshard.storage.fs import abspath, realpath
from tokshard.storage.paths import bin_path, idx_path, strip_data_suffix

_NAMED_INDEX = "pass one of its description.txt files, or the dataset of the cache"


@dataclass(frozen=True, slots=True)
class DatasetSnapshot:
    """A dataset as it is now.

    Attributes:
        prefix: Its path prefix.
        documents: The number of its documents.
        multimodal: Whether its sequences have modes.
        fingerprint: What identifies its content: with digests everything that
            :func:`~tokshard.dataset.fingerprint.dataset_fingerprint` gives, else the sizes and what the
            manifest says.
        bin: The fingerprint of its ``.bin`` file.
        idx: The fingerprint of its ``.idx`` file.
    """

    prefix: str
    documents: int
    multimodal: bool
    fingerprint: DatasetFingerprint
    bin: FileFingerprint
    idx: FileFingerprint


class DatasetSnapshots:
    """The datasets of a plan, each looked at once.

    Args:
        digests: Whether to read the ``.idx`` files whole (20 bytes for each sequence and document), to see
            that they are consistent and that indexes were made from them. Without, their headers, sizes and
            manifests are looked at.
    """

    def __init__(self, *, digests: bool = True) -> None:
        self._digests = digests
        self._known: dict[str, DatasetSnapshot] = {}

    def of(self, prefix: str) -> DatasetSnapshot:
        """Return a dataset as it is now.

        Raises:
            MissingFileError: One or both files of the dataset are missing.
            IntegrityError: It contradicts itself.
            InputError: It changed while it was read.
        """
        if prefix not in self._known:
            with unchanged([prefix]):
                self._known[prefix] = self._look(prefix)
        return self._known[prefix]

    def _look(self, prefix: str) -> DatasetSnapshot:
        require_files(prefix)
        manifest = read_manifest(prefix)
        multimodal = manifest is not None and manifest.dataset.multimodal
        bin_fingerprint, idx_fingerprint = (
            FileFingerprint.of(bin_path(prefix)),
            FileFingerprint.of(idx_path(prefix)),
        )
        if self._digests:
            opened = FingerprintedIndex.open(prefix)
            documents, fingerprint = opened.table.document_count, opened.fingerprint
        else:
            documents = _documents(prefix, idx_fingerprint, multimodal=multimodal)
            sizes = (bin_fingerprint.size_bytes, idx_fingerprint.size_bytes)
            known = None
            if manifest is not None:
                files = manifest.files
                if (files.bin.size_bytes, files.idx.size_bytes) == sizes:
                    known = manifest.fingerprint
            fingerprint = DatasetFingerprint(
                bin_bytes=bin_fingerprint.size_bytes,
                idx_bytes=idx_fingerprint.size_bytes,
                manifest_fingerprint=known,
            )
        return DatasetSnapshot(prefix, documents, multimodal, fingerprint, bin_fingerprint, idx_fingerprint)

    def indexed(self, prefix: str, entry: CacheEntry, description: GPTDatasetDescription) -> DatasetReference:
        """Return the reference to the samples of a cached index, if all of it fits together.

        Raises:
            MissingFileError: The dataset or a file of the index does not exist.
            IntegrityError: The index was made from other data, is damaged, or its content is unverified.
        """
        snapshot = self.of(prefix)
        origin = _origin(entry)
        _check_content(snapshot, origin.dataset, entry.hash, entry.description_path, origin)
        epochs = _epochs(entry, description, origin)
        return DatasetReference(
            path_prefix=abspath(prefix),
            first=0,
            samples=epochs.samples,
            multimodal=snapshot.multimodal,
            bin=snapshot.bin,
            idx=snapshot.idx,
            fingerprint=snapshot.fingerprint.filled_from(origin.dataset),
            index=CachedArrays.at(os.path.join(os.path.abspath(entry.directory), entry.stem), GPT_ARRAYS),
            epochs=epochs,
        )


def _documents(prefix: str, fingerprint: FileFingerprint, *, multimodal: bool) -> int:
    file = InputFile(idx_path(prefix))
    head = bytearray(min(HEADER_BYTES, fingerprint.size_bytes))
    file.read_into(memoryview(head), 0)
    header = read_header(head, path=file.path)
    check_size(header, fingerprint.size_bytes, multimodal=multimodal, path=file.path)
    return header.document_count


def _origin(entry: CacheEntry) -> IndexOrigin:
    sidecar = Sidecar.read(entry.sidecar_path)
    if sidecar is None:
        raise IntegrityError(
            f"the content of the index {entry.hash} is unverified: {entry.sidecar_path} not found",
            path=entry.sidecar_path,
            hint="run tokshard build-indices --like DESCRIPTION.txt, to verify an index of Megatron",
        )
    if sidecar.description_md5 != entry.hash:
        raise IntegrityError(
            f"{entry.sidecar_path} belongs to another index, {sidecar.description_md5}",
            path=entry.sidecar_path,
        )
    if sidecar.origin is None:
        raise IntegrityError(f"{entry.sidecar_path}: origin is null", path=entry.sidecar_path)
    return sidecar.origin


def _check_content(
    snapshot: DatasetSnapshot,
    recorded: DatasetFingerprint,
    index_hash: str,
    path: str,
    origin: IndexOrigin | None = None,
) -> None:
    changes = snapshot.fingerprint.changes_since(recorded)
    if changes:
        if origin is not None:
            changes = [*_tokenizer_change(origin, snapshot.prefix), *changes]
        raise IntegrityError(
            f"the index {index_hash} was built from other content of {snapshot.prefix}: {', '.join(changes)}",
            path=path,
            hint="run tokshard build-indices --rebuild, or tokshard blend --rebuild",
        )


def _tokenizer_change(origin: IndexOrigin, prefix: str) -> list[str]:
    then = origin.tokenizer.identity if origin.tokenizer is not None else None
    now = read_dataset_tokenizer(prefix).identity
    if compare(then, now).verdict != "different":
        return []
    return [f"its tokenizer was {tokenizer_name(then)} and is now {tokenizer_name(now)}"]


def _epochs(entry: CacheEntry, description: GPTDatasetDescription, origin: IndexOrigin) -> EpochPlan:
    plan = plan_epochs(
        sequences=origin.sequences,
        tokens_per_epoch=origin.tokens_per_epoch,
        packed=origin.packed,
        sequence_length=description.sequence_length,
        num_samples=description.num_samples,
        extra_token=origin.extra_token,
        drop_last_partial=origin.drop_last_partial,
    )
    if (plan.epochs, plan.samples) != (origin.epochs, origin.samples):
        raise IntegrityError(
            f"{entry.sidecar_path}: {origin.samples} samples of {origin.epochs} epochs must be "
            f"{plan.samples} of {plan.epochs}",
            path=entry.sidecar_path,
        )
    for name, spec in gpt_specs(plan).items():
        path = entry.array_path(name)
        stored = read_spec(path)
        if stored != spec:
            raise IntegrityError(
                f"{path} must be {spec} for the index, got {stored}",
                path=path,
                hint="rebuild the index with --rebuild",
            )
    return plan


@dataclass(frozen=True, slots=True)
class RequestedSamples:
    """Samples that the user asks for.

    Attributes:
        documents: Whether the paths are datasets whose samples are their documents.
        split: Names of splits, by commas, of which only these streams are planned; for documents also the
            weights of training, validation and testing. None for all that there is, and for documents for
            training alone.
        path_as: Pairs (path here, path in the description of an index).
        digests: See :class:`~tokshard.ranks.discovery.DatasetSnapshots`.
        missing_hint: The hint of the error about a path without a blend or index.
    """

    documents: bool = False
    split: str | None = None
    path_as: tuple[tuple[str, str], ...] = ()
    digests: bool = True
    missing_hint: str = (
        "build one with tokshard blend or tokshard build-indices, or pass --documents to read documents"
    )

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of the splits that are requested; None where none are named.

        Raises:
            UsageError: There is no split of a name.
        """
        if self.split is None or any(character.isdigit() for character in self.split):
            return None
        names = tuple(word.strip() for word in self.split.split(","))
        for name in names:
            if name not in SPLITS:
                raise UsageError(
                    f"split must be one of {', '.join(SPLITS)}, got {name!r}",
                    hint=f"pass --split {','.join(SPLITS)}; for documents also weights, such as 98,1,1",
                )
        return names

    def includes(self, name: str) -> bool:
        """Return True if a stream is requested: ``"valid.1"`` is if ``"valid"`` is."""
        return self.names is None or name.partition(".")[0] in self.names


def open_sources(paths: Sequence[str], requested: RequestedSamples) -> dict[str, SampleSource]:
    """Find the samples that paths name, and check that they fit together.

    Args:
        paths: One blend (its directory or ``blend.json``); or one or more indexes: datasets with indexes in
            their default cache, ``description.txt`` files, or directories of caches; or with
            ``requested.documents`` datasets, of which globs give those that match in natural order. Several
            indexes or datasets are numbered through, one after the other: they are the shards.
        requested: Which samples.

    Returns:
        The sources by the names of their streams, in the order train, valid, test.

    Raises:
        UsageError: A path is ambiguous, or the splits cannot be.
        InputError: A product is missing, or has no samples.
        IntegrityError: What is there does not fit together.
    """
    if not paths:
        raise UsageError(
            "at least one source is required", hint="pass a blend, an index, or --documents and datasets"
        )
    snapshots = DatasetSnapshots(digests=requested.digests)
    if requested.documents:
        found = _document_sources(expand(paths, ""), requested, snapshots)
    elif requested.split is not None and requested.names is None:
        raise UsageError(
            f"--split {requested.split} requires --documents",
            hint="pass for example --split train to choose a split of a blend or index",
        )
    elif len(paths) == 1 and _is_blend(paths[0]):
        found = _blend(paths[0], requested, snapshots)
    else:
        found = _indexes(paths, requested, snapshots)
    if not found:
        raise InputError(
            f"no samples in {requested.split or 'any split'} of {', '.join(paths)}",
            hint=f"run `{shlex.join(['tokshard', 'inspect', paths[0]])}` to list the splits",
        )
    for source in found.values():
        _refuse_twice(source)
    order = {name: place for place, name in enumerate(SPLITS)}
    return dict(sorted(found.items(), key=lambda pair: order[pair[0].partition(".")[0]]))


def _refuse_twice(source: SampleSource) -> None:
    # Another index of the same data is not the same samples.
    if source.kind == "blend":
        return
    seen = set()
    for dataset in source.datasets:
        identity = (realpath(idx_path(dataset.path_prefix)), dataset.index and dataset.index.stem)
        if identity in seen:
            raise UsageError(
                f"{dataset.path_prefix} is passed twice: its samples would be read twice per epoch"
            )
        seen.add(identity)


def _is_blend(path: str) -> bool:
    # A document that is missing, or has another name, is refused or read as a blend.
    return kind_of(path) == "blend" or (path.endswith(".json") and not os.path.isdir(path))


def read_blends(paths: Iterable[str]) -> dict[str, BlendDocument]:
    """Read the blends among the paths, by the paths of their documents."""
    return {document_path(path): BlendDocument.read(path) for path in paths if _is_blend(path)}


def _blend(path: str, requested: RequestedSamples, snapshots: DatasetSnapshots) -> dict[str, SampleSource]:
    document = BlendDocument.read(path)
    sources = {}
    for name, split in document.splits.items():
        if not requested.includes(name) or not split.samples:
            continue
        for source in split.sources:
            _check_content(snapshots.of(source.prefix), source.fingerprint, source.hash, source.description)
        sources[name] = SampleSource.of_blend(name, split)
    for file, fingerprint in {
        file: fingerprint for source in sources.values() for file, fingerprint in source.files.items()
    }.items():
        fingerprint.check(file, "blend")
    return sources


def _indexes(
    paths: Sequence[str], requested: RequestedSamples, snapshots: DatasetSnapshots
) -> dict[str, SampleSource]:
    named = [_descriptions(path, requested) for path in paths]
    names = [
        name for name in SPLITS if any(name in by_split for by_split in named) and requested.includes(name)
    ]
    sources = {}
    for name in names:
        references = []
        for path, by_split in zip(paths, named, strict=True):
            if name not in by_split:
                raise InputError(
                    f"{path} has no {name} index, but other sources have one",
                    hint="pass --split to choose the splits",
                )
            prefix, file = by_split[name]
            description = _gpt_description(file)
            entry = CacheEntry.of(description, os.path.dirname(file))
            if entry.description_path != file:
                raise IntegrityError(
                    f"{file} contradicts the hash in its name",
                    path=file,
                    hint=_NAMED_INDEX,
                )
            references.append(snapshots.indexed(prefix, entry, description))
        sources[name] = SampleSource(
            "index", name, sum(reference.samples for reference in references), tuple(references)
        )
    return {name: source for name, source in sources.items() if source.total}


def _descriptions(path: str, requested: RequestedSamples) -> dict[str, tuple[str, str]]:
    # For each split: (path prefix of the dataset, path of the description).
    if path.endswith(DESCRIPTION_SUFFIX):
        description = _gpt_description(path)
        return {description.index_split: (_local(description.dataset_path, requested), path)}
    prefix = strip_data_suffix(path)
    cache = default_directory(prefix)
    if os.path.isdir(cache):
        return _only(cache, path, requested, prefix)
    if os.path.isdir(path):
        return _only(path.rstrip("/") or path, path, requested, None)
    raise MissingFileError(
        f"no blend, index or index cache found: {path}",
        path=path,
        hint=requested.missing_hint,
    )


def _only(
    cache: str, path: str, requested: RequestedSamples, prefix: str | None
) -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    for file, description in descriptions_in(cache):
        # A split of size 0 is built all the same by Megatron, but nothing reads it.
        if not isinstance(description, GPTDatasetDescription) or description.num_samples == 0:
            continue
        split = description.index_split
        if not requested.includes(split):
            continue
        if split in found:
            raise UsageError(f"{cache} has several {split} indexes", hint=_NAMED_INDEX)
        found[split] = (prefix or _local(description.dataset_path, requested), file)
    if not found:
        if prefix is not None:
            raise InputError(
                f"no index of {path} found in {cache}", hint="build it with tokshard build-indices"
            )
        if kind_of(path) == "plan":
            hint = f"pass the blend or the datasets that {path} was made of, or run tokshard replan {path}"
        else:
            hint = dataset_hint(path) or (
                "pass the directory of a blend (tokshard blend) or of an index cache (tokshard build-indices)"
            )
        raise InputError(f"neither a blend.json nor an index found in {path}", hint=hint)
    return found


def _local(training_path: str, requested: RequestedSamples) -> str:
    return PathMapping(requested.path_as).inverse().map(training_path)


def _gpt_description(path: str) -> GPTDatasetDescription:
    description = read_description(path)
    if not isinstance(description, GPTDatasetDescription):
        raise InputError(f"{path} describes a blend, not an index", hint="pass the blend.json of the blend")
    return description


def _document_sources(
    prefixes: Sequence[str], requested: RequestedSamples, snapshots: DatasetSnapshots
) -> dict[str, SampleSource]:
    check_token_ids({prefix: read_dataset_tokenizer(prefix) for prefix in prefixes})
    sources = {}
    for name, split in _document_splits(requested).items():
        references = []
        for prefix in prefixes:
            snapshot = snapshots.of(prefix)
            part = split.ranges(snapshot.documents)[SPLITS.index(name)] or range(0)
            references.append(
                DatasetReference(
                    path_prefix=abspath(prefix),
                    first=part.start,
                    samples=len(part),
                    multimodal=snapshot.multimodal,
                    bin=snapshot.bin,
                    idx=snapshot.idx,
                    fingerprint=snapshot.fingerprint,
                )
            )
        total = sum(reference.samples for reference in references)
        if total:
            sources[name] = SampleSource("documents", name, total, tuple(references))
    return sources


def _document_splits(requested: RequestedSamples) -> dict[str, Split]:
    if requested.split is not None and requested.names is None:
        split = parse_split(requested.split)
        return {name: split for name, share in zip(SPLITS, split.matrix, strict=True) if share is not None}
    return {name: whole_split(name) for name in requested.names or ("train",)}
