"""The doctor: what a Megatron job will find in its cache, and what its data arguments will do.

It reads a launch command, works out the names of all cache files as Megatron does, looks which are
there, and for a miss which field of the description differs from the nearest cache that exists.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tokshard.blending.options import DEFAULT_SURPLUS, BuilderConfig
from tokshard.blending.plan import SplitPlan, shortfall_of
from tokshard.core.codec import encode
from tokshard.core.findings import Finding
from tokshard.errors import TokshardError, UsageError
from tokshard.gpt_index.seed import DEFAULT_SEED
from tokshard.gpt_index.sizes import Sizes
from tokshard.gpt_index.splits import DEFAULT_SPLIT
from tokshard.index_cache.build_or_reuse import CacheTarget
from tokshard.index_cache.entry import CacheEntry, default_directory
from tokshard.index_cache.job import examine_requests
from tokshard.index_cache.options import IndexRequest
from tokshard.preflight.candidates import Candidate, candidates_of_launch, may_be_of_launch
from tokshard.preflight.launch.arguments import LaunchArguments
from tokshard.preflight.lookups import CachedDescriptions, Lookup
from tokshard.preflight.outlook import Places, forecast_splits, recipe_of_launch
from tokshard.preflight.rules import findings_of_arguments

SCHEMA = "tokshard.doctor/1"
_SHOWN_SOURCES = 5
_OF_CACHE = "the cache itself"


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the doctor says of a job.

    Attributes:
        launch: The arguments, as they were read.
        sizes: The samples that the job asks for; None where they cannot be told.
        tokenizer: Where the identifiers of its tokenizer were taken from.
        lookups: The sets of files that it looks up.
        splits: The plan of each split.
        findings: What is wrong or worth knowing.
    """

    launch: LaunchArguments
    sizes: Sizes | None
    tokenizer: str
    lookups: tuple[Lookup, ...]
    splits: tuple[SplitPlan, ...]
    findings: tuple[Finding, ...]

    @property
    def is_healthy(self) -> bool:
        """Whether there are no findings but notes."""
        return not any(finding.is_problem for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Return the diagnosis as a JSON object with a ``schema`` field."""
        names = (name for name in self.launch.__slots__ if name != "unseen")  # a finding says it
        arguments = {name: getattr(self.launch, name) for name in names}
        sizes = self.sizes
        return {
            "schema": SCHEMA,
            "healthy": self.is_healthy,
            "arguments": {name: value for name, value in arguments.items() if value not in (None, False, ())},
            "sizes": None
            if sizes is None
            else {"train": sizes.train, "valid": sizes.valid, "test": sizes.test},
            "tokenizer": self.tokenizer,
            "lookups": [one.to_json() for one in self.lookups],
            "findings": [encode(finding) for finding in self.findings],
        }


def diagnose(
    launch: LaunchArguments,
    *,
    tokenizer: Candidate | None = None,
    path_as: tuple[tuple[str, str], ...] = (),
) -> Diagnosis:
    """Examine a job before it is started.

    Args:
        launch: Its arguments.
        tokenizer: The identifiers of its tokenizer; None to try those of each version of Megatron, and
            those in the cache itself, and to take what finds most.
        path_as: Pairs (path here, path at training time), where data or cache lie elsewhere here.

    Raises:
        UsageError: An option cannot be meant.
        StorageError: The cache cannot be read.
    """
    findings = findings_of_arguments(launch)
    places = Places(path_as)
    parts: list[SplitPlan] = []
    sizes = config = None
    if not (launch.mock_data or launch.sft):
        try:
            sizes = launch.sizes()
            config = _config(launch, sizes, path_as)
            parts, defects = forecast_splits(recipe_of_launch(launch, places), config)
            findings += defects
        except TokshardError as error:
            if not any(error.message == one.message or one.code == "no-data" for one in findings):
                findings.append(Finding.of_error("arguments", error))
    cached = CachedDescriptions()
    named = _Naming(launch, places, cached)
    candidate = tokenizer or named.likeliest(parts)
    parts = [one.with_tokenizer(candidate.identifiers) for one in parts]
    lookups = named.lookups(parts)
    findings += [*_of_sizes(parts, config), *_of_cache(launch, lookups, parts)]
    if tokenizer is None and parts:
        findings += _of_tokenizer(candidate, lookups)
    return Diagnosis(launch, sizes, candidate.label, tuple(lookups), tuple(parts), tuple(findings))


def _config(launch: LaunchArguments, sizes: Sizes, path_as: tuple[tuple[str, str], ...]) -> BuilderConfig:
    if launch.sequence_length is None:
        raise UsageError("the sequence length is not given", hint="give --seq-length")
    surplus = launch.mid_level_dataset_surplus
    return BuilderConfig(
        sequence_length=launch.sequence_length,
        sizes=sizes,
        tokenizer={},
        split=launch.split or DEFAULT_SPLIT,
        seed=DEFAULT_SEED if launch.seed is None else launch.seed,
        surplus=DEFAULT_SURPLUS if surplus is None else surplus,
        path_as=path_as,
    )


class _Naming:
    """From what a job asks for to the files that it looks up, and their states."""

    def __init__(self, launch: LaunchArguments, places: Places, cached: CachedDescriptions) -> None:
        path = launch.data_cache_path
        self._directory = None if path is None else places.local(path)
        self._cached = cached
        self._launch = launch

    def likeliest(self, parts: Sequence[SplitPlan]) -> Candidate:
        """Return the identifiers under which most files are there, else those most like some that are."""
        directories = [self._of(request) for part in parts for request in part.requests]
        there = self._cached.tokenizers(directories)
        candidates = candidates_of_launch(self._launch)
        known = [one.identifiers for one in candidates]
        candidates += [
            Candidate(_OF_CACHE, one)
            for one in there
            if one not in known and may_be_of_launch(one, self._launch)
        ]
        if not candidates:
            return Candidate("no known tokenizer", {})
        return max(
            candidates,
            key=lambda one: (
                self._found([part.with_tokenizer(one.identifiers) for part in parts]),
                max((_likeness(one.identifiers, other) for other in there), default=0),
            ),
        )

    def lookups(self, parts: Sequence[SplitPlan]) -> list[Lookup]:
        """Return all sets of files that a job looks up, with their states."""
        states = self._states(parts)
        found = []
        for part in parts:
            for request in part.requests:
                entry = self._entry(request)
                state, reason = states.get(entry.stem, (None, "cannot be examined"))
                nearest = None
                if not all(map(os.path.isfile, entry.megatron_files)):
                    state, reason = "missing", reason if state == "missing" else "does not exist"
                    nearest = self._cached.nearest(request.description(), entry.directory)
                text = request.description().text()
                found.append(Lookup(part.name, request.training_path, entry, text, state, reason, nearest))
            found += self._blend(part)
        return found

    def _blend(self, part: SplitPlan) -> Iterator[Lookup]:
        description = part.description()
        if description is None or self._directory is None:
            return
        target = CacheTarget.of_blend(description, self._directory, "the blend")
        found = target.examine()
        missing = found.condition == "missing"
        nearest = self._cached.nearest(description, self._directory) if missing else None
        state, text = found.condition, description.text()
        yield Lookup(part.name, "the blend", target.entry, text, state, found.detail, nearest)

    def _states(self, parts: Sequence[SplitPlan]) -> dict[str, tuple[Any, str]]:
        """Return the states of all indexes of splits without a defect, by the stems of their files."""
        requests = [one for part in parts if part.sources for one in part.requests]
        reports = examine_requests(requests, cache_directory=self._directory, digests=False)
        return {one.entry.stem: (one.before.condition, one.before.detail) for one in reports}

    def _found(self, parts: Sequence[SplitPlan]) -> int:
        return sum(
            os.path.isfile(self._entry(request).description_path)
            for part in parts
            for request in part.requests
        )

    def _entry(self, request: IndexRequest) -> CacheEntry:
        return CacheEntry.of(request.description(), self._of(request))

    def _of(self, request: IndexRequest) -> str:
        return self._directory or default_directory(request.prefix)


def _likeness(one: dict[str, Any] | None, other: dict[str, Any]) -> int:
    """Return in how many fields two tokenizers agree, less those that only one of them has."""
    fields = one or {}
    same = [name for name, value in other.items() if fields.get(name) == value]
    return len(same) - len(fields.keys() ^ other.keys())


def _of_sizes(parts: Sequence[SplitPlan], config: BuilderConfig | None) -> Iterator[Finding]:
    for part in parts:
        if not part.sources or config is None:
            continue
        yield from _read_often(part)
        if (shortfall := shortfall_of(part, config)) is not None:
            yield Finding(
                "too-few-samples",
                "error" if part.split == "train" else "warning",
                shortfall,
                "give weights, which read a dataset as often as they need",
            )
        if config.size_of(part.split) == 0:
            yield Finding(
                "unused-split",
                "note",
                f"{part.name} is asked for no sample, and is built all the same: every split with a share is",
            )


def _read_often(plan: SplitPlan) -> Iterator[Finding]:
    """Tell which sources a split reads more than once, those that are read most first."""
    times = {}
    for one in plan.sources:
        asked = one.request.num_samples
        drawn = one.draws if asked is None else min(one.draws, asked)
        times[one.request.training_path] = drawn * one.epochs.sequence_length / one.epochs.tokens_per_epoch
    often = sorted((path for path in times if times[path] > 1), key=lambda path: -times[path])
    if often:
        told = ", ".join(f"{path} {times[path]:.2f} times" for path in often[:_SHOWN_SOURCES])
        more = f", and {len(often) - _SHOWN_SOURCES} more" if len(often) > _SHOWN_SOURCES else ""
        yield Finding("epochs", "note", f"{plan.name} reads {told}{more}")


def _of_cache(
    launch: LaunchArguments, lookups: Sequence[Lookup], parts: Sequence[SplitPlan]
) -> Iterator[Finding]:
    if launch.data_cache_path is None and any(part.weights is not None for part in parts):
        yield Finding(
            "no-cache-path",
            "warning",
            "without --data-cache-path every rank builds the blend anew at every start",
            "give --data-cache-path, and prepare it with tokshard blend",
        )
    rules: tuple[tuple[str, str, Any, str, str | None], ...] = (
        (
            "missing",
            "cache-missing",
            "warning",
            "the job will build {}",
            "tokshard build-indices or blend makes them",
        ),
        (
            "stale",
            "cache-stale",
            "error",
            "the job will read {}, made from another content",
            "--rebuild replaces them",
        ),
        (
            "damaged",
            "cache-damaged",
            "error",
            "the job will fail on, or misread, {}",
            "--rebuild replaces them",
        ),
        (
            "foreign",
            "cache-foreign",
            "note",
            "the job will read {}, not made by tokshard and so not proved",
            None,
        ),
    )
    for state, code, severity, text, hint in rules:
        those = [one for one in lookups if one.state == state]
        if those:
            names = ", ".join(f"{one.split} of {one.name}" for one in those[:3])
            more = f" and {len(those) - 3} more" if len(those) > 3 else ""
            count = f"{len(those)} of {len(lookups)} sets of files ({names}{more})"
            yield Finding(code, severity, text.format(count), hint)


def _of_tokenizer(candidate: Candidate, lookups: Sequence[Lookup]) -> Iterator[Finding]:
    hint = "give --megatron VERSION, --like or --tokenizer-identifiers"
    if not any(one.will_be_found for one in lookups):
        yield Finding(
            "tokenizer-unknown",
            "warning",
            f"nothing is there under the names of any known version of Megatron; {candidate.label} is shown",
            hint,
        )
    elif candidate.label == _OF_CACHE:
        yield Finding(
            "tokenizer-assumed",
            "note",
            "the names are of the tokenizer that the cache was made for: no preset tells those of the job",
            hint,
        )
