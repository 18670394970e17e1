"""Cache files that a job looks up, and the tokenizer's identifiers in their names."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Literal

from tokshard.checks.doctor.launch.arguments import LaunchArguments
from tokshard.checks.doctor.options import DoctorOptions
from tokshard.core.codec import Md5, Record
from tokshard.core.formatting import shortened
from tokshard.core.megatron_rules import MEGATRON_VERSIONS
from tokshard.core.path_mapping import PathMapping
from tokshard.core.presentation import first_lines
from tokshard.dataset.products import DESCRIPTION_SUFFIX
from tokshard.dataset.recorded_tokenizers import TokenizerMismatch
from tokshard.errors import StorageError, UsageError
from tokshard.samples.blend.plan import SplitPlan
from tokshard.samples.index.build import plan_indexes
from tokshard.samples.index.description import (
    BlendedDescription,
    Description,
    default_directory,
    descriptions_in,
    differences,
)
from tokshard.samples.index.entry import CacheEntry
from tokshard.samples.index.examination import CacheTarget, Condition, Examination
from tokshard.samples.index.identifiers import (
    HUGGING_FACE,
    NEUTRAL,
    NULL,
    megatron_identifiers,
)
from tokshard.samples.index.options import IndexRequest
from tokshard.samples.index.packing import Packing
from tokshard.samples.index.sidecar import allowed_mismatches, readable_sidecar

_SHOWN_DIFFERENCES = 6
_COMPARED_INDEXES = 100
_UNLIKE = 5  # The distance of a job whose cache has no index like one that is missing.
_PLACE = re.compile(r"\[\d+\]")


@dataclass(frozen=True, slots=True)
class LookupDifference(Record):
    """A field that differs between a description that is looked up and one that exists."""

    field: str
    wanted: Any
    found: Any

    def __str__(self) -> str:
        job, cache = (shortened(json.dumps(value, ensure_ascii=False)) for value in (self.wanted, self.found))
        return f"{self.field}: job {job}, cache {cache}"


@dataclass(frozen=True, slots=True)
class NearestDescription(Record):
    """The description in a cache that differs least from one that is missing."""

    path: str
    differences: tuple[LookupDifference, ...]

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the fields that differ, each once, without the numbers of sources."""
        return tuple(dict.fromkeys(_PLACE.sub("", difference.field) for difference in self.differences))

    def distance(self) -> tuple[int, int, int, str]:
        """Return the order of similarity; ties go to the closest numbers, then to the first path."""
        pairs = [(difference.wanted, difference.found) for difference in self.differences]
        gap = sum(abs(job - cache) for job, cache in pairs if type(job) is type(cache) is int)
        return len(self.fields), len(self.differences), gap, self.path


@dataclass(frozen=True, slots=True)
class CacheLookup(Record):
    """One cache entry that a job looks up."""

    split: str
    prefix: str | None
    hash: Md5
    description: str
    files: tuple[str, ...]
    condition: Condition | None
    reason: str
    is_unverified: bool = False
    nearest: NearestDescription | None = None

    @property
    def name(self) -> str:
        """The path prefix of the dataset in the job, or ``the blend``."""
        return "the blend" if self.prefix is None else self.prefix

    @property
    def stem(self) -> str:
        """The path of its files without their suffixes."""
        return self.files[0].removesuffix(DESCRIPTION_SUFFIX)

    def is_in(self, directory: str) -> bool:
        """Return whether a directory contains files of the same names."""
        return all(os.path.isfile(os.path.join(directory, os.path.basename(file))) for file in self.files)

    def lines(self) -> Iterator[str]:
        """Return the entry for people: its state, its name, and the most similar entry."""
        reason = "" if self.condition in {"fresh", "missing"} else f": it {self.reason}"
        state = "unverified" if self.is_unverified else self.condition or "unknown"
        yield f"  {state:<8} {self.split} of {self.name}{reason}"
        yield f"           {self.stem}-*"
        if self.nearest is not None:
            yield f"           most similar entry: {os.path.basename(self.nearest.path)}"
            lines = [f"             {difference}" for difference in self.nearest.differences]
            yield from first_lines(lines, _SHOWN_DIFFERENCES, "             and {} more")


@dataclass(frozen=True, slots=True)
class TokenizerNames(Record):
    """The source of the tokenizer's identifiers in the names of cache files."""

    source: Literal["megatron", "file", "cache", "unknown"]
    versions: tuple[str, ...] = ()
    path: str | None = None

    @property
    def label(self) -> str:
        """The source in words."""
        if self.source == "megatron":
            return f"Megatron {' or '.join(self.versions)}"
        labels = {"file": f"the tokenizer in {self.path}", "cache": "the cache itself"}
        return labels.get(self.source, "an unknown tokenizer")


@dataclass(frozen=True, slots=True)
class Candidate:
    """Identifiers that the tokenizer of a job may have.

    Attributes:
        names: Where they come from.
        identifiers: The identifiers.
    """

    names: TokenizerNames
    identifiers: dict[str, Any] | None


def identifiers_of_launch(launch: LaunchArguments, version: str) -> dict[str, Any]:
    """Return the identifiers that a version of Megatron gives the tokenizer of a launch command.

    Raises:
        UsageError: There is no preset for the version or the tokenizer, or something is missing.
    """
    options: dict[str, Any] = {}
    if launch.tokenizer_type == NULL:
        options["vocab_size"] = launch.vocab_size
        options["eod_id"] = launch.null_tokenizer_eod_id
        if launch.null_tokenizer_pad_id is not None:
            options["pad_id"] = launch.null_tokenizer_pad_id
    else:
        options["vocab_file"] = launch.vocab_file
        options["merges_file"] = launch.merge_file
        options["chat_template"] = launch.chat_template
        options["additional_special_tokens"] = list(launch.tokenizer_special_tokens or ()) or None
        options["trust_remote_code"] = launch.trust_remote_code or None
        options["use_gigatoken"] = launch.use_gigatoken or None
        options["use_fast"] = _switch(launch.tokenizer_hf_use_fast, launch.tokenizer_hf_no_use_fast)
        options["include_special_tokens"] = _switch(
            launch.tokenizer_hf_include_special_tokens, launch.tokenizer_hf_no_include_special_tokens
        )
    given = {name: value for name, value in options.items() if value is not None}
    return megatron_identifiers(
        version, launch.tokenizer_type or HUGGING_FACE, launch.tokenizer_model, **given
    )


def candidates_of_launch(launch: LaunchArguments) -> list[Candidate]:
    """Return the identifiers that known versions of Megatron give the tokenizer, the newest first."""
    candidates: dict[str, Candidate] = {}
    for version in reversed(MEGATRON_VERSIONS):
        try:
            identifiers = identifiers_of_launch(launch, version)
        except UsageError:
            continue
        key = repr(identifiers)
        newer = candidates[key].names.versions if key in candidates else ()
        candidates[key] = Candidate(TokenizerNames("megatron", (*newer, version)), identifiers)
    return list(candidates.values())


def chosen_candidate(launch: LaunchArguments, options: DoctorOptions) -> Candidate | None:
    """Return the identifiers that options specify for the tokenizer of a launch command, or None.

    Raises:
        UsageError: There is no preset for the version or the tokenizer, or something is missing.
        InputError: A file cannot be read.
    """
    if options.megatron is not None:
        named = identifiers_of_launch(launch, options.megatron)
        return Candidate(TokenizerNames("megatron", (options.megatron,)), named)
    identifiers = options.naming.identifiers()
    path = options.like or options.tokenizer_identifiers
    return None if identifiers is None else Candidate(TokenizerNames("file", path=str(path)), identifiers)


def may_be_of_launch(identifiers: dict[str, Any], launch: LaunchArguments) -> bool:
    """Return whether identifiers in a cache may be those of the tokenizer of a launch command.

    Neutral identifiers, which tokshard writes if the job's tokenizer was not specified, are no job's.

    Example:
        >>> launch = LaunchArguments(tokenizer_type="SentencePieceTokenizer", tokenizer_model="/models/a")
        >>> may_be_of_launch({"class": "X", "tokenizer_path": "/models/a"}, launch)
        True
        >>> may_be_of_launch({"class": "X", "tokenizer_path": "/models/b"}, launch)
        False
    """
    if identifiers.get("class") == NEUTRAL:
        return False
    if launch.tokenizer_type == NULL:
        return identifiers.get("vocab_size") == str(launch.vocab_size)
    path = identifiers.get("tokenizer_path")  # A list of one path for Megatron's legacy tokenizers.
    return launch.tokenizer_model is None or launch.tokenizer_model in (
        path if isinstance(path, list) else [path]
    )


def _switch(on: bool, off: bool) -> bool | None:  # noqa: FBT001 - two flags of a command line
    return True if on else False if off else None


class CachedDescriptions:
    """The descriptions in cache directories; each directory is read once."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[Hashable, list[tuple[str, Description]]]] = {}
        self._blends: dict[str, dict[str, BlendedDescription]] = {}

    def nearest(
        self, description: Description, directory: str, *, is_single: bool = False
    ) -> dict[Hashable, NearestDescription]:
        """Return the description in a directory that differs least, for each combination of job settings.

        Descriptions of the same split and dataset are compared, or if there are none, of datasets with the
        same file name. For a blend, blends of the same datasets are compared, or else all of the split. A
        single dataset differs from a source of a blend in the datasets that are read.
        """
        groups = self._read(directory)
        similar = next((groups[key] for key in _keys(description) if key in groups), [])
        nearest: dict[Hashable, NearestDescription] = {}
        for path, other in similar:
            pairs = differences(description, other)
            if is_single and (blend := self._blend_of(other, directory)) is not None:
                datasets = [dataset.to_json() for dataset in blend.datasets]
                pairs.append(("datasets", [description.to_json()], datasets))
            near = NearestDescription(path, tuple(LookupDifference(*pair) for pair in pairs))
            settings = _settings(other)
            nearest[settings] = min(nearest.get(settings, near), near, key=NearestDescription.distance)
        return nearest

    def _blend_of(self, source: Description, directory: str) -> BlendedDescription | None:
        """Return a blend in a directory that reads the index of a description, or None."""
        if directory not in self._blends:
            every = chain.from_iterable(self._read(directory).values())
            blends = [blend for _, blend in every if isinstance(blend, BlendedDescription)]
            self._blends[directory] = {source.text(): blend for blend in blends for source in blend.datasets}
        return self._blends[directory].get(source.text())

    def tokenizers(self, directories: Iterable[str]) -> list[dict[str, Any]]:
        """Return the different identifiers of tokenizers in the descriptions, the most frequent first."""
        times: Counter[str] = Counter()
        identifiers: dict[str, dict[str, Any]] = {}
        for directory in dict.fromkeys(directories):
            for _, description in chain.from_iterable(self._read(directory).values()):
                if not isinstance(description, BlendedDescription) and description.tokenizer is not None:
                    times[repr(description.tokenizer)] += 1
                    identifiers[repr(description.tokenizer)] = description.tokenizer
        return [identifiers[key] for key, _ in times.most_common()]

    def _read(self, directory: str) -> dict[Hashable, list[tuple[str, Description]]]:
        """Return the descriptions in a directory by their keys."""
        if directory not in self._groups:
            groups = self._groups.setdefault(directory, {})
            try:
                for path, description in descriptions_in(directory):
                    for key in _keys(description):
                        groups.setdefault(key, []).append((path, description))
            except (FileNotFoundError, NotADirectoryError):
                pass
            except OSError as error:
                raise StorageError("read", directory, error) from error
        return self._groups[directory]


def _keys(description: Description) -> tuple[Hashable, Hashable]:
    """Return the keys by which a description is grouped, that of the most similar ones first."""
    if isinstance(description, BlendedDescription):
        paths = tuple(dataset.dataset_path for dataset in description.datasets)
        return (description.split, paths), (description.split, description.CLASS)
    path = description.dataset_path
    return (description.index_split, path), (description.index_split, None, os.path.basename(path))


def _settings(description: Description) -> Hashable:
    """Return the settings that all indexes of a job share."""
    if isinstance(description, BlendedDescription):
        return _settings(description.datasets[0]) if description.datasets else None
    source = description
    return source.random_seed, source.sequence_length, source.split, repr(source.tokenizer)


def _nearest_settings(nearest: Sequence[dict[Hashable, NearestDescription]]) -> Hashable:
    """Return the settings of the one job in a cache that most resembles a job, so that all causes agree."""
    every = dict.fromkeys(settings for similar in nearest for settings in similar)

    def distance(settings: Hashable) -> int:
        return sum(len(similar[settings].fields) if settings in similar else _UNLIKE for similar in nearest)

    return min(every, key=distance, default=None)


class JobCache:
    """The cache of a job: the files that the job looks up in it, and their conditions."""

    def __init__(self, launch: LaunchArguments, paths: PathMapping) -> None:
        path = launch.data_cache_path
        self._directory = None if path is None else paths.inverse().map(path)
        self._cached = CachedDescriptions()
        self._launch = launch

    def likeliest(self, splits: Sequence[SplitPlan]) -> Candidate:
        """Return the identifiers with the most files in the cache, or else the most similar ones."""
        splits = _first(splits)
        cached = self._cached.tokenizers(map(self._of, _requests(splits)))
        candidates = candidates_of_launch(self._launch)
        of_versions = [candidate.identifiers for candidate in candidates]
        candidates += [
            Candidate(TokenizerNames("cache"), identifiers)
            for identifiers in cached
            if identifiers not in of_versions and may_be_of_launch(identifiers, self._launch)
        ]
        if not candidates:
            return Candidate(TokenizerNames("unknown"), {})
        return max(
            candidates,
            key=lambda candidate: (
                self._existing([split.with_tokenizer(candidate.identifiers) for split in splits]),
                max((_similarity(candidate.identifiers, other) for other in cached), default=0),
                _is_release(candidate),
            ),
        )

    def has_names_of(self, splits: Sequence[SplitPlan]) -> bool:
        """Return whether the cache has an index with the tokenizer's identifiers of one of the splits."""
        splits = _first(splits)
        cached = self._cached.tokenizers(map(self._of, _requests(splits)))
        return self._existing(splits) > 0 or any(request.tokenizer in cached for request in _requests(splits))

    @property
    def directory(self) -> str | None:
        """The directory of all files on this machine, or None for Megatron's default next to each dataset."""
        return self._directory

    def lookups(self, splits: Sequence[SplitPlan]) -> list[CacheLookup]:
        """Return all cache entries that a job looks up, with their conditions."""
        requests = [request for split in splits if split.sources for request in split.requests]
        examinations = plan_indexes(requests, cache_directory=self._directory).examine()
        lookups = []
        nearest: dict[str, dict[Hashable, NearestDescription]] = {}
        settings: list[Hashable] = []
        for split in splits:
            entries: list[tuple[str | None, CacheEntry, Description, Examination | None]] = []
            for request in split.requests:
                entry = self.entry(request)
                described = request.description()
                entries.append((request.training_path, entry, described, examinations.get(entry)))
            blend = split.description()
            if blend is not None and self._directory is not None:
                target = CacheTarget.of_blend(blend, self._directory, "the blend")
                entries.append((None, target.entry, blend, target.examine()))
            for prefix, entry, description, examination in entries:
                lookup = _lookup(split.name, prefix, entry, description, examination)
                lookups.append(lookup)
                if lookup.condition == "missing":
                    nearest[lookup.stem] = self._cached.nearest(
                        description, entry.directory, is_single=split.kind == "single"
                    )
                else:
                    settings.append(_settings(description))
        # The job that built an existing index has the settings of this job.
        job = settings[0] if settings else _nearest_settings(list(nearest.values()))
        return [replace(lookup, nearest=nearest.get(lookup.stem, {}).get(job)) for lookup in lookups]

    def packings(self, splits: Sequence[SplitPlan]) -> dict[CacheEntry, Packing | None]:
        """Return the packing of each existing index, or None if its documents are concatenated."""
        packings: dict[CacheEntry, Packing | None] = {}
        for entry in map(self.entry, _requests(splits)):
            if os.path.isfile(entry.description_path):
                sidecar = readable_sidecar(entry)
                origin = None if sidecar is None else sidecar.origin
                packings[entry] = None if origin is None else origin.plan.packing
        return packings

    def allowed_mismatches(self, lookups: Iterable[CacheLookup]) -> tuple[TokenizerMismatch, ...]:
        """Return the mismatches of tokenizers that existing entries record as allowed."""
        entries = (CacheEntry.of_file(lookup.files[0]) for lookup in lookups if lookup.condition != "missing")
        recorded = (allowed_mismatches(entry) for entry in entries if entry is not None)
        return tuple(dict.fromkeys(mismatch for mismatches in recorded for mismatch in mismatches))

    def _existing(self, splits: Sequence[SplitPlan]) -> int:
        return sum(os.path.isfile(self.entry(request).description_path) for request in _requests(splits))

    def entry(self, request: IndexRequest) -> CacheEntry:
        """Return the cache entry of an index."""
        return CacheEntry.of(request.description(), self._of(request))

    def _of(self, request: IndexRequest) -> str:
        return self._directory or default_directory(request.prefix)


def _lookup(
    split: str,
    prefix: str | None,
    entry: CacheEntry,
    description: Description,
    examination: Examination | None,
) -> CacheLookup:
    """Return the lookup of an entry; without an examination, its split has a defect."""
    condition: Condition | None = None
    reason = "cannot be examined"
    if examination is not None:
        condition = examination.condition
        reason = examination.reason
    elif not all(map(os.path.isfile, entry.megatron_files)):
        condition = "missing"
        reason = "does not exist"
    return CacheLookup(
        split=split,
        prefix=prefix,
        hash=entry.hash,
        description=description.text(),
        files=entry.megatron_files,
        condition=condition,
        reason=reason,
        is_unverified=examination is not None and examination.is_unverified,
    )


def _first(splits: Sequence[SplitPlan]) -> list[SplitPlan]:
    """Return splits with their first indexes only: one tokenizer names all of them."""
    return [replace(split, requests=split.requests[:_COMPARED_INDEXES]) for split in splits]


def _requests(splits: Sequence[SplitPlan]) -> Iterator[IndexRequest]:
    return chain.from_iterable(split.requests for split in splits)


def _is_release(candidate: Candidate) -> bool:
    return any(version[0].isdecimal() for version in candidate.names.versions)


def _similarity(identifiers: dict[str, Any] | None, other: dict[str, Any]) -> int:
    # Fields that only one of them has count against it.
    fields = identifiers or {}
    same = [name for name, value in other.items() if fields.get(name) == value]
    return len(same) - len(fields.keys() ^ other.keys())
