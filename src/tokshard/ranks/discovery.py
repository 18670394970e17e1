"""Discovery of samples: a blend, built indexes or documents as named by a user, checked against the disk."""

from __future__ import annotations

import functools
import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from tokshard.core.path_mapping import PathMapping
from tokshard.dataset.fingerprint import DatasetFingerprint, FileFingerprint, FingerprintedIndex, unchanged
from tokshard.dataset.layout import HEADER_BYTES, check_size, read_header
from tokshard.dataset.manifest import read_dataset_tokenizer, read_manifest
from tokshard.dataset.merge.inputs import expand
from tokshard.dataset.products import DESCRIPTION_SUFFIX, dataset_hint, kind_of
from tokshard.dataset.reader import require_files
from tokshard.dataset.recorded_tokenizers import DatasetTokenizer
from tokshard.dataset.source import InputFile
from tokshard.dataset.token_ids import check_token_ids
from tokshard.dataset.tokenizer_identity import compare, tokenizer_name
from tokshard.errors import InputError, IntegrityError, MissingFileError, UsageError
from tokshard.ranks.sources import DatasetReference, SampleSource
from tokshard.samples.blend.document import BlendDocument, document_path
from tokshard.samples.index.description import (
    GPTDatasetDescription,
    default_directory,
    descriptions_in,
    read_description,
)
from tokshard.samples.index.entry import CachedArrays, CacheEntry
from tokshard.samples.index.examination import examine
from tokshard.samples.index.sidecar import IndexOrigin, Sidecar
from tokshard.samples.index.splits import SPLITS, Split, parse_split, whole_split
from tokshard.storage.fs import abspath, realpath
from tokshard.storage.paths import bin_path, idx_path, strip_data_suffix

LookAt = Callable[[str], DatasetReference]

_REBUILD = "run the same tokshard build-indices or tokshard blend command again with --rebuild"
_NAMED_INDEX = "pass one of its description.txt files, or the dataset of the cache"


def dataset_reference(prefix: str, *, digests: bool = True) -> DatasetReference:
    """Return the reference to all documents of a dataset as it is now.

    Args:
        prefix: The path prefix of the dataset.
        digests: Whether to read the ``.idx`` file completely (20 bytes for each sequence and document), to
            check that it is consistent and to tell whether indexes were built from it. Otherwise its header,
            the sizes of the files and the manifest are read.

    Raises:
        MissingFileError: One or both files of the dataset are missing.
        IntegrityError: It contradicts itself.
        InputError: It changed while it was read.
    """
    with unchanged([prefix]):
        require_files(prefix)
        manifest = read_manifest(prefix)
        is_multimodal = manifest is not None and manifest.dataset.multimodal
        bin_file = FileFingerprint.of(bin_path(prefix))
        idx_file = FileFingerprint.of(idx_path(prefix))
        if digests:
            index = FingerprintedIndex.open(prefix)
            documents = index.table.document_count
            fingerprint = index.fingerprint
        else:
            documents = _documents(prefix, idx_file, multimodal=is_multimodal)
            fingerprint = DatasetFingerprint(bin_bytes=bin_file.size_bytes, idx_bytes=idx_file.size_bytes)
            if manifest is not None and (manifest.files.bin.size_bytes, manifest.files.idx.size_bytes) == (
                bin_file.size_bytes,
                idx_file.size_bytes,
            ):
                fingerprint = replace(fingerprint, manifest_fingerprint=manifest.fingerprint)
    return DatasetReference(
        path_prefix=abspath(prefix),
        first=0,
        samples=documents,
        multimodal=is_multimodal,
        bin=bin_file,
        idx=idx_file,
        fingerprint=fingerprint,
    )


def _indexed(dataset: DatasetReference, file: str, description: GPTDatasetDescription) -> DatasetReference:
    """Return the reference to the samples of a cached index, if all of it fits together.

    Args:
        dataset: The dataset.
        file: The path of the description of the index.
        description: Its content.

    Raises:
        MissingFileError: A file of the index does not exist.
        IntegrityError: The index was made from other data, is damaged, or its content is unverified.
    """
    entry = CacheEntry.of(description, os.path.dirname(file))
    if os.path.basename(entry.description_path) != os.path.basename(file):
        raise IntegrityError(f"{file} contradicts the hash in its name", path=file, hint=_NAMED_INDEX)
    origin = _origin(entry, description, dataset.path_prefix)
    _check_content(dataset, origin.dataset, origin.tokenizer, entry.hash, file)
    index = CachedArrays.at(os.path.abspath(entry.path_prefix))
    return replace(
        dataset,
        samples=origin.plan.samples,
        fingerprint=dataset.fingerprint.filled_from(origin.dataset),
        index=index,
        epochs=origin.plan,
    )


def _documents(prefix: str, fingerprint: FileFingerprint, *, multimodal: bool) -> int:
    file = InputFile(idx_path(prefix))
    head = bytearray(min(HEADER_BYTES, fingerprint.size_bytes))
    file.read_into(memoryview(head), 0)
    header = read_header(head, path=file.path)
    check_size(header, fingerprint.size_bytes, multimodal=multimodal, path=file.path)
    return header.document_count


def _origin(entry: CacheEntry, description: GPTDatasetDescription, prefix: str) -> IndexOrigin:
    """Return the origin of an index whose files are all as they were written.

    Raises:
        MissingFileError: A file does not exist.
        IntegrityError: A file is damaged or of an earlier version, or nothing records its content.
    """
    sidecar = Sidecar.read(entry.sidecar_path)
    if sidecar is None:
        training_path = description.dataset_path
        is_same = abspath(training_path) == prefix
        command = ["tokshard", "build-indices", training_path if is_same else prefix]
        command += [] if is_same else ["--path-as", f"{prefix}={training_path}"]
        command += ["--like", entry.description_path, "--cache-dir", entry.directory or ".", "--rebuild"]
        raise IntegrityError(
            f"the content of the index {entry.hash} is unverified: {entry.sidecar_path} not found",
            path=entry.sidecar_path,
            hint=f"run `{shlex.join(command)}` to build it as Megatron does and record its content",
        )
    examined = examine(entry)
    message = f"the index {entry.hash} in {entry.directory or '.'} {examined.reason}"
    if examined.condition == "missing":
        raise MissingFileError(message, path=entry.description_path, hint=_REBUILD)
    if examined.condition == "differs" or sidecar.origin is None:
        raise IntegrityError(message, path=entry.description_path, hint=_REBUILD)
    return sidecar.origin


def _check_content(
    dataset: DatasetReference,
    recorded: DatasetFingerprint,
    tokenizer: DatasetTokenizer | None,
    index_hash: str,
    path: str,
) -> None:
    """Raise IntegrityError if an index was built when a dataset had another fingerprint."""
    changes = dataset.fingerprint.changes_since(recorded)
    if not changes:
        return
    then = None if tokenizer is None else tokenizer.identity
    now = read_dataset_tokenizer(dataset.path_prefix).identity
    if compare(then, now).verdict == "different":
        changes.insert(0, f"its tokenizer was {tokenizer_name(then)} and is now {tokenizer_name(now)}")
    raise IntegrityError(
        f"the index {index_hash} was built from other content of {dataset.path_prefix}: {', '.join(changes)}",
        path=path,
        hint=_REBUILD,
    )


@dataclass(frozen=True, slots=True)
class RequestedSamples:
    """Samples that the user asks for.

    Attributes:
        documents: Whether the paths are datasets whose samples are their documents.
        split: Names of splits, by commas, of which only these streams are planned; for documents also the
            weights of training, validation and testing. None for all that there is, and for documents for
            training alone.
        path_as: Pairs (path here, path in the description of an index).
        digests: See :func:`dataset_reference`.
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
            ``requested.documents`` datasets or globs of them, which match in natural order. The samples of
            several indexes or datasets are numbered one after the other.
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
    # Each dataset is read once, though several streams use it.
    look_at = functools.cache(functools.partial(dataset_reference, digests=requested.digests))
    if requested.documents:
        found = _document_sources(expand(paths), requested, look_at)
    elif requested.split is not None and requested.names is None:
        raise UsageError(
            f"--split {requested.split} requires --documents",
            hint="pass for example --split train to choose a split of a blend or index",
        )
    elif len(paths) == 1 and _is_blend(paths[0]):
        found = _blend(paths[0], requested, look_at)
    else:
        found = _indexes(paths, requested, look_at)
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


def _blend(path: str, requested: RequestedSamples, look_at: LookAt) -> dict[str, SampleSource]:
    document = BlendDocument.read(path)
    sources = {}
    for name, split in document.splits.items():
        if not requested.includes(name) or not split.samples:
            continue
        for source in split.sources:
            tokenizer = document.tokenizer_of(source)
            index = source.index
            _check_content(
                look_at(source.path_prefix), source.fingerprint, tokenizer, index.hash, index.description_path
            )
        sources[name] = SampleSource.of_blend(name, split)
    for file, fingerprint in {
        file: fingerprint for source in sources.values() for file, fingerprint in source.files.items()
    }.items():
        fingerprint.check(file, "blend")
    return sources


def _indexes(paths: Sequence[str], requested: RequestedSamples, look_at: LookAt) -> dict[str, SampleSource]:
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
            references.append(_indexed(look_at(prefix), file, _gpt_description(file)))
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
    prefixes: Sequence[str], requested: RequestedSamples, look_at: LookAt
) -> dict[str, SampleSource]:
    check_token_ids({prefix: read_dataset_tokenizer(prefix) for prefix in prefixes})
    sources = {}
    for name, split in _document_splits(requested).items():
        references = []
        for prefix in prefixes:
            dataset = look_at(prefix)
            part = split.ranges(dataset.samples)[SPLITS.index(name)] or range(0)
            references.append(replace(dataset, first=part.start, samples=len(part)))
        total = sum(reference.samples for reference in references)
        if total:
            sources[name] = SampleSource("documents", name, total, tuple(references))
    return sources


def _document_splits(requested: RequestedSamples) -> dict[str, Split]:
    if requested.split is not None and requested.names is None:
        split = parse_split(requested.split)
        return {name: split for name, share in zip(SPLITS, split.matrix, strict=True) if share is not None}
    return {name: whole_split(name) for name in requested.names or ("train",)}
