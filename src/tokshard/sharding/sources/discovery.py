"""Finding the samples of a plan: a blend, built indexes, or documents, as a user names them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from tokshard.blending.document import DOCUMENT_NAME, BlendDocument, BlendSource, BlendSplit
from tokshard.core.path_mapping import PathMapping
from tokshard.dataset.merge.arguments import expand
from tokshard.errors import InputError, IntegrityError, MissingFileError, UsageError
from tokshard.gpt_index.splits import SPLITS, Split, parse_split, whole_split
from tokshard.index_cache.cache import Cache, default_directory
from tokshard.index_cache.description import GPTDatasetDescription, read_description
from tokshard.index_cache.likeness import descriptions_in
from tokshard.sharding.sources.holdings import Holdings, blend_files
from tokshard.sharding.sources.references import DatasetReference
from tokshard.sharding.sources.samples import SampleSource
from tokshard.storage.fs import realpath
from tokshard.storage.paths import idx_path, strip_data_suffix

_DESCRIPTION_SUFFIX = "description.txt"
_NAMED_INDEX = "name one of its description.txt files, or the dataset whose cache it is"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which samples are wanted.

    Attributes:
        documents: Whether the paths are datasets whose samples are their documents.
        split: Names of splits, by commas, of which only these streams are planned; for documents also the
            weights of training, validation and testing. None for all that there is, and for documents for
            training alone.
        path_as: Pairs (path here, path in the description of an index).
        digests: See :class:`~tokshard.sharding.sources.holdings.Holdings`.
    """

    documents: bool = False
    split: str | None = None
    path_as: tuple[tuple[str, str], ...] = ()
    digests: bool = True

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of the splits that are wanted; None where none are named.

        Raises:
            UsageError: There is no split of a name.
        """
        if self.split is None or any(character.isdigit() for character in self.split):
            return None
        names = tuple(word.strip() for word in self.split.split(","))
        for name in names:
            if name not in SPLITS:
                raise UsageError(
                    f"there is no split {name!r}",
                    hint=f"--split {','.join(SPLITS)}; for documents also weights, such as 98,1,1",
                )
        return names

    def wants(self, name: str) -> bool:
        """Tell whether a stream is wanted: ``"valid.1"`` is where ``"valid"`` is."""
        return self.names is None or name.partition(".")[0] in self.names


def open_sources(paths: Sequence[str], wanted: Wanted) -> dict[str, SampleSource]:
    """Find the samples that paths name, and check that they fit together.

    Args:
        paths: One blend (its directory or ``blend.json``); or one or more indexes: datasets with indexes in
            their default cache, ``description.txt`` files, or directories of caches; or with
            ``wanted.documents`` datasets, of which globs give those that match in natural order. Several
            indexes or datasets are numbered through, one after the other: they are the shards.
        wanted: Which samples.

    Returns:
        The sources by the names of their streams, in the order train, valid, test.

    Raises:
        UsageError: A path is ambiguous, or the splits cannot be.
        InputError: Nothing is there, or something has no samples.
        IntegrityError: What is there does not fit together.
    """
    if not paths:
        raise UsageError(
            "nothing is named to read", hint="name a blend, an index, or --documents and datasets"
        )
    holdings = Holdings(digests=wanted.digests)
    if wanted.documents:
        found = _documents(expand(paths, ""), wanted, holdings)
    elif wanted.split is not None and wanted.names is None:
        raise UsageError(
            f"--split {wanted.split} has a meaning for --documents only",
            hint="the splits of a blend or of an index were made with it; choose of them with --split train",
        )
    elif len(paths) == 1 and _is_blend(paths[0]):
        found = _blend(paths[0], wanted, holdings)
    else:
        found = _indexes(paths, wanted, holdings)
    if not found:
        raise InputError(f"{', '.join(paths)}: there is nothing to read in {wanted.split or 'any split'}")
    for source in found.values():
        _refuse_twice(source)
    order = {name: place for place, name in enumerate(SPLITS)}
    return dict(sorted(found.items(), key=lambda pair: order[pair[0].partition(".")[0]]))


def _refuse_twice(source: SampleSource) -> None:
    """Refuse to number the same samples through twice; another index of the same data is something else.

    Raises:
        UsageError: A dataset, or an index of it, is named twice.
    """
    if source.kind == "blend":
        return
    seen = set()
    for one in source.datasets:
        identity = (realpath(idx_path(one.prefix)), one.index and one.index.files.hash)
        if identity in seen:
            raise UsageError(f"{one.prefix} is named twice: its samples would be read twice in an epoch")
        seen.add(identity)


def _is_blend(path: str) -> bool:
    if os.path.isdir(path):
        return os.path.isfile(os.path.join(path, DOCUMENT_NAME))
    return os.path.basename(path) == DOCUMENT_NAME or path.endswith(".json")


def _blend(path: str, wanted: Wanted, holdings: Holdings) -> dict[str, SampleSource]:
    document = BlendDocument.read(path)
    splits = {name: split for name, split in document.splits.items() if wanted.wants(name) and split.samples}
    return {name: _split_source(split, document, holdings) for name, split in splits.items()}


def _split_source(split: BlendSplit, document: BlendDocument, holdings: Holdings) -> SampleSource:
    alone = split.blend_hash is None
    datasets = tuple(
        _blend_reference(source, split.split, document, holdings, draws=source.draws if alone else None)
        for source in split.sources
    )
    order = None
    if split.blend_hash is not None:
        cache = os.path.abspath(document.cache_directory)
        order = blend_files(cache, split.blend_hash, split.split, split.samples)
    return SampleSource("blend", split.name, split.samples, datasets, order)


def _blend_reference(
    source: BlendSource, split: str, document: BlendDocument, holdings: Holdings, *, draws: int | None
) -> DatasetReference:
    description = _gpt_description(source.description)
    entry = Cache(document.cache_directory).gpt_files(description)
    if entry.hash != source.hash or description.index_split != split:
        raise IntegrityError(
            f"{source.description} describes the index {entry.hash} of {description.index_split}, "
            f"not {source.hash} of {split}",
            path=source.description,
            hint="run tokshard blend with --rebuild",
        )
    return holdings.indexed(source.prefix, entry, description, draws)


def _indexes(paths: Sequence[str], wanted: Wanted, holdings: Holdings) -> dict[str, SampleSource]:
    named = [_descriptions(path, wanted) for path in paths]
    names = [name for name in SPLITS if any(name in one for one in named) and wanted.wants(name)]
    sources = {}
    for name in names:
        references = []
        for path, one in zip(paths, named, strict=True):
            if name not in one:
                raise InputError(
                    f"{path} has no index of {name}, but others have", hint="choose with --split"
                )
            prefix, file = one[name]
            description = _gpt_description(file)
            entry = Cache(os.path.dirname(file)).gpt_files(description)
            if entry.description_path != file:
                raise IntegrityError(
                    f"{file} does not hold the text that its name is the hash of",
                    path=file,
                    hint=_NAMED_INDEX,
                )
            references.append(holdings.indexed(prefix, entry, description))
        sources[name] = SampleSource("index", name, sum(one.samples for one in references), tuple(references))
    return {name: source for name, source in sources.items() if source.total}


def _descriptions(path: str, wanted: Wanted) -> dict[str, tuple[str, str]]:
    """Return for each split (path prefix of the dataset, description) that a path names."""
    if path.endswith(_DESCRIPTION_SUFFIX):
        description = _gpt_description(path)
        return {description.index_split: (_local(description.dataset_path, wanted), path)}
    prefix = strip_data_suffix(path)
    cache = default_directory(prefix)
    if os.path.isdir(cache):
        return _only(cache, path, wanted, prefix)
    if os.path.isdir(path):
        return _only(path.rstrip("/") or path, path, wanted, None)
    raise MissingFileError(
        f"there is no blend, no index and no cache of indexes at {path}",
        path=path,
        hint="tokshard blend or tokshard build-indices makes one; --documents reads documents as they are",
    )


def _only(cache: str, path: str, wanted: Wanted, prefix: str | None) -> dict[str, tuple[str, str]]:
    """Return the only index of each split in a cache.

    Raises:
        UsageError: There are several of one split.
        InputError: There is none.
    """
    found: dict[str, tuple[str, str]] = {}
    for file, description in descriptions_in(cache):
        # A split of size 0 is built all the same by Megatron, but nothing reads it.
        if not isinstance(description, GPTDatasetDescription) or description.num_samples == 0:
            continue
        split = description.index_split
        if not wanted.wants(split):
            continue
        if split in found:
            raise UsageError(f"{cache} holds several indexes of {split}", hint=_NAMED_INDEX)
        found[split] = (prefix or _local(description.dataset_path, wanted), file)
    if not found:
        raise InputError(f"{path}: there is no index in {cache}", hint="tokshard build-indices makes them")
    return found


def _local(training_path: str, wanted: Wanted) -> str:
    """Return where the dataset lies here that a job names otherwise."""
    return PathMapping(wanted.path_as).inverse().map(training_path)


def _gpt_description(path: str) -> GPTDatasetDescription:
    description = read_description(path)
    if not isinstance(description, GPTDatasetDescription):
        raise InputError(
            f"{path} describes a blend, and not an index", hint="name the blend.json of the blend"
        )
    return description


def _documents(prefixes: Sequence[str], wanted: Wanted, holdings: Holdings) -> dict[str, SampleSource]:
    sources = {}
    for name, split in _document_splits(wanted).items():
        references = []
        for prefix in prefixes:
            holding = holdings.of(prefix)
            part = split.ranges(holding.documents)[SPLITS.index(name)] or range(0)
            references.append(
                holding.reference(first=part.start, samples=len(part), fingerprint=holding.fingerprint)
            )
        total = sum(one.samples for one in references)
        if total:
            sources[name] = SampleSource("documents", name, total, tuple(references))
    return sources


def _document_splits(wanted: Wanted) -> dict[str, Split]:
    if wanted.split is not None and wanted.names is None:
        split = parse_split(wanted.split)
        return {name: split for name, share in zip(SPLITS, split.matrix, strict=True) if share is not None}
    return {name: whole_split(name) for name in wanted.names or ("train",)}
