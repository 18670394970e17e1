"""Causes of missing indexes: the options that have another value in the cache of a job, each once."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tokshard.checks.doctor.lookups import CacheLookup, Candidate
from tokshard.core.findings import Finding
from tokshard.core.formatting import counted, listed, shortened

DIFFERENCE = "cache-difference"
"""The code of findings about an option that has another value in the cache."""

_SHOWN = 3
_MOST_OPTIONS = 4  # An entry that differs in more options belongs to another job.
_SOURCE = re.compile(r"^datasets\[\d+\]\.")
_TOKENIZER = "tokenizer."
_OPTIONS = {
    "random_seed": "--seed",
    "sequence_length": "--seq-length",
    "split": "--split",
    "split_matrix": "--split",
    "tokenizer.tokenizer_path": "--tokenizer-model",
}
_SIZES = {
    "train": "the number of train samples (--train-iters, --train-samples, --global-batch-size)",
    "valid": "the number of valid samples (--eval-interval, --eval-iters, --global-batch-size)",
    "test": "the number of test samples (--eval-iters, --global-batch-size)",
}

Options = dict[str, tuple[str, str]]
"""Options, or properties of a job, and the texts of their values in the job and in the cache."""


@dataclass(frozen=True, slots=True)
class Causes:
    """The missing indexes of a job by their causes.

    Attributes:
        explained: The missing indexes by option, with its values in the job and in the cache.
        unexplained: Missing indexes to which no index in the cache is similar.
    """

    explained: dict[tuple[str, tuple[str, str]], list[CacheLookup]] = field(default_factory=dict)
    unexplained: list[CacheLookup] = field(default_factory=list)

    @classmethod
    def of(cls, lookups: Sequence[CacheLookup], tokenizer: Candidate, others: Sequence[Candidate]) -> Causes:
        """Return the causes of missing indexes.

        Args:
            lookups: All indexes that the job looks up.
            tokenizer: The identifiers of the job's tokenizer.
            others: The identifiers of the same tokenizer in other versions of Megatron.
        """
        causes = cls()
        missing = [lookup for lookup in lookups if lookup.condition == "missing"]
        options_of = {lookup.stem: _options(lookup, tokenizer, others) for lookup in missing}
        blends = {lookup.split: options_of[lookup.stem] for lookup in missing if lookup.prefix is None}
        for lookup in missing:
            options = options_of[lookup.stem]
            blend, size = blends.get(lookup.split), _size(lookup)
            if lookup.prefix is not None and blend and (size in options or not options):
                # The samples of a source follow from the size, the weights or the datasets of the blend.
                options = {name: options[name] for name in options if name != size} | blend
            if not 0 < len(options) <= _MOST_OPTIONS:
                causes.unexplained.append(lookup)
                continue
            for option in options.items():
                causes.explained.setdefault(option, []).append(lookup)
        return causes

    def findings(self, name: str, looked_up: int, remedy: str) -> Iterator[Finding]:
        """Yield a finding for each option with another value in the cache.

        Args:
            name: The name of the launch script.
            looked_up: The number of indexes that the job looks up.
            remedy: The instruction to build the indexes of the job.
        """
        changes = [f"{option} to {shlex.quote(cache)}" for option, (_, cache) in self.explained]
        are_options = all(option in _OPTIONS.values() for option, _ in self.explained)
        change = (
            f"set {' and '.join(changes)} to read the cache" if are_options else "use the values of the cache"
        )
        number = counted(looked_up, "index", "indexes")
        for (option, (job, cache)), lookups in self.explained.items():
            share = number if len(lookups) == looked_up else f"{len(lookups)} of {number}"
            yield Finding(
                DIFFERENCE,
                "warning",
                f"{option} is {job} in {name}, {cache} in the cache ({share})",
                f"{change}, or build the indexes of this job: {remedy}",
            )


def _options(lookup: CacheLookup, tokenizer: Candidate, others: Sequence[Candidate]) -> Options:
    """Return the options that differ between an index and the most similar one in the cache."""
    fields: dict[str, tuple[Any, Any]] = {}
    paths: list[tuple[str, str]] = []
    for difference in () if lookup.nearest is None else lookup.nearest.differences:
        name = _SOURCE.sub("", difference.field)
        if name == "dataset_path":
            paths.append((difference.wanted, difference.found))
        elif name != "num_samples" or name == difference.field:  # A source's samples follow from the blend's.
            fields.setdefault(name, (difference.wanted, difference.found))
    options: Options = {}
    if "datasets" in fields:
        options["--data-path"] = _other_paths(*map(_paths, fields.pop("datasets")))
    elif paths and (moved := _moved(paths)) is not None:
        options["the directory of --data-path"] = moved
    elif paths and lookup.prefix is not None:
        return {}  # The entry belongs to another dataset.
    elif paths:
        options["--data-path"] = _other_paths(*zip(*paths, strict=True))
    identifiers = [name for name in fields if name.startswith(_TOKENIZER) and name not in _OPTIONS]
    changed = {name.removeprefix(_TOKENIZER): fields[name][1] for name in identifiers}
    if changed and (version := _version({**(tokenizer.identifiers or {}), **changed}, others)) is not None:
        options["the Megatron version"] = _versions(tokenizer), version
        fields = {name: fields[name] for name in fields if name not in identifiers}
    weights = fields.pop("weights", ((), ()))
    if any(weights) and "--data-path" not in options:
        options["the list of weights in --data-path"] = _numbers(weights[0]), _numbers(weights[1])
    for name, (job, cache) in fields.items():
        is_size = name in {"num_samples", "size"}
        if is_size and any(weights) and abs(job - cache) <= max(map(len, weights)):
            continue  # Megatron rounds the draws of each source up.
        options.setdefault(_size(lookup) if is_size else _OPTIONS.get(name, name), (_text(job), _text(cache)))
    return options


def _version(identifiers: Mapping[str, Any], others: Sequence[Candidate]) -> str | None:
    """Return the other version of Megatron that gives a tokenizer these identifiers, or None."""
    present = {name: value for name, value in identifiers.items() if value is not None}
    versions = (_versions(other) for other in others if other.identifiers == present)
    return next(versions, None)


def _versions(tokenizer: Candidate) -> str:
    return " or ".join(tokenizer.names.versions) or tokenizer.names.label


def _size(lookup: CacheLookup) -> str:
    return _SIZES[lookup.split.partition(".")[0]]


def _moved(paths: Sequence[tuple[str, str]]) -> tuple[str, str] | None:
    """Return the directories in the job and in the cache if paths differ only in their directory."""
    pairs = {_roots(*pair) for pair in paths}
    are_moved = len(pairs) == 1 and all(
        os.path.basename(job) == os.path.basename(cache) for job, cache in paths
    )
    return pairs.pop() if are_moved else None


def _roots(job: str, cache: str) -> tuple[str, str]:
    """Return two paths without their common last names."""
    while os.path.basename(job) == os.path.basename(cache):
        parents = os.path.dirname(job), os.path.dirname(cache)
        if not all(parents):
            roots = parents[0] or os.curdir, parents[1] or os.curdir
            return (job, cache) if roots[0] == roots[1] else roots
        job, cache = parents
    return job, cache


def _paths(datasets: Sequence[Mapping[str, Any]]) -> list[str]:
    return [dataset["dataset_path"] for dataset in datasets]


def _other_paths(job: Sequence[str], cache: Sequence[str]) -> tuple[str, str]:
    """Return the paths that only the job has and that only the cache has, as text."""
    in_job, in_cache = set(job), set(cache)
    only_job = [path for path in job if path not in in_cache]
    only_cache = [path for path in cache if path not in in_job]
    pairs = (only_job, only_cache), (only_cache, only_job)
    texts = [
        f"with {listed(only, _SHOWN)}" if only else f"without {listed(others, _SHOWN)}"
        for only, others in pairs
    ]
    return texts[0], texts[1]


def _numbers(weights: Sequence[float]) -> str:
    return listed([f"{weight:g}" for weight in weights], _SHOWN)


def _text(value: Any) -> str:
    if value is None:
        return "not set"
    return value if isinstance(value, str) else shortened(json.dumps(value))
