"""Causes of missing indexes: the options that have another value in the cache of a job, each once."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from tokshard.checks.doctor.launch.arguments import LaunchArguments, option_of
from tokshard.checks.doctor.lookups import CacheLookup, Candidate
from tokshard.core.findings import Finding
from tokshard.core.formatting import counted, listed, shortened

DIFFERENCE = "cache-difference"
"""The code of findings about an option that has another value in the cache."""

_SHOWN = 3
_MOST_OPTIONS = 4  # An entry that differs in more options belongs to another job.
_SOURCE = re.compile(r"^datasets\[\d+\]\.")
_TOKENIZER = "tokenizer."
_NOT_SET = "not set"
_SETTINGS = {"random_seed", "sequence_length"}
_DEFAULTS = {"random_seed": "seed", "split": "split"}
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
        values: The options with another value in the cache, with the values in the job and in the cache.
        explained: The missing indexes for each of these options.
        unexplained: Missing indexes to which no index in the cache is similar.
    """

    values: Options = field(default_factory=dict)
    explained: dict[str, list[CacheLookup]] = field(default_factory=dict)
    unexplained: list[CacheLookup] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        lookups: Sequence[CacheLookup],
        launch: LaunchArguments,
        tokenizer: Candidate,
        others: Sequence[Candidate],
        unweighted: Collection[str],
    ) -> Causes:
        """Return the causes of missing indexes.

        Args:
            lookups: All indexes that the job looks up.
            launch: The arguments of the job.
            tokenizer: The identifiers of the job's tokenizer.
            others: The identifiers of the same tokenizer in other versions of Megatron.
            unweighted: The splits that are blends without weights.
        """
        causes = cls()
        for split, group in groupby(lookups, key=lambda lookup: lookup.split):
            entries = list(group)
            data = _data_option(launch, split)
            size = _SIZES[split.partition(".")[0]]
            missing = [lookup for lookup in entries if lookup.condition == "missing"]
            options_of = {
                lookup.stem: _options(lookup, launch, tokenizer, others, data, size) for lookup in missing
            }
            of_blend = _of_blend(entries, options_of, data, size)
            if split in unweighted and (weights := f"the list of weights in {data}") in of_blend:
                of_blend[weights] = _NOT_SET, of_blend[weights][1]
                of_blend.pop(size, None)  # A blend without weights can have fewer samples than requested.
            for lookup in missing:
                options = options_of[lookup.stem]
                if len(entries) > 1 and (lookup.prefix is None or size in options or not options):
                    # The samples of a source follow from the size, the weights or the datasets of the blend.
                    options = {name: options[name] for name in options if name != size} | of_blend
                    options = of_blend if lookup.prefix is None else options
                causes._add(lookup, options)
        return causes

    def _add(self, lookup: CacheLookup, options: Options) -> None:
        if not 0 < len(options) <= _MOST_OPTIONS:
            self.unexplained.append(lookup)
            return
        for option, values in options.items():
            self.values.setdefault(option, values)
            self.explained.setdefault(option, []).append(lookup)

    def findings(self, name: str, looked_up: int, remedy: str) -> Iterator[Finding]:
        """Yield a finding for each option with another value in the cache.

        Args:
            name: The name of the launch script.
            looked_up: The number of indexes that the job looks up.
            remedy: The instruction to build the indexes of the job.
        """
        changes = [f"{option} to {shlex.quote(cache)}" for option, (_, cache) in self.values.items()]
        are_options = all(
            option in _OPTIONS.values() and not cache.startswith(_NOT_SET)
            for option, (_, cache) in self.values.items()
        )
        change = (
            f"set {' and '.join(changes)} to read the cache" if are_options else "use the values of the cache"
        )
        number = counted(looked_up, "index", "indexes")
        for option, lookups in self.explained.items():
            job, cache = self.values[option]
            share = number if len(lookups) == looked_up else f"{len(lookups)} of {number}"
            yield Finding(
                DIFFERENCE,
                "warning",
                f"{option} is {job} in {name}, {cache} in the cache ({share})",
                f"{change}, or build the indexes of this job: {remedy}",
            )


def _data_option(launch: LaunchArguments, split: str) -> str:
    """Return the option that names the datasets of a split."""
    names = "data_args_path", "data_path", "per_split_data_args_path"
    given = (option_of(name) for name in names if getattr(launch, name) is not None)
    return next(given, f"--{split.partition('.')[0]}-data-path")


def _of_blend(
    entries: Sequence[CacheLookup], options_of: Mapping[str, Options], data: str, size: str
) -> Options:
    """Return the options that explain a missing blend, and other sizes of its sources."""
    blend = entries[-1]
    sources = [lookup for lookup in entries if lookup.prefix is not None]
    sizes = [options[size] for lookup in sources if size in (options := options_of.get(lookup.stem, {}))]
    if blend.prefix is not None or blend.condition != "missing":
        return {}
    if blend.nearest is not None:
        options = options_of[blend.stem]
        # If all sources exist, the cache has an unfinished job, next to jobs of other sizes.
        return options if sizes or size not in options else {}
    is_from_single = len(sizes) == 1 or any(job == _NOT_SET for job, _ in sizes)
    return {data: ("a blend", "one dataset without a weight")} if is_from_single else {}


def _options(
    lookup: CacheLookup,
    launch: LaunchArguments,
    tokenizer: Candidate,
    others: Sequence[Candidate],
    data: str,
    size: str,
) -> Options:
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
    is_per_split = launch.split is None and data not in {"--data-path", "--data-args-path"}
    if "split" in fields and is_per_split:
        options["the kind of data arguments"] = "data for each split", f"--split {fields['split'][1]}"
        fields = {name: fields[name] for name in fields if name in _SETTINGS or name.startswith(_TOKENIZER)}
    elif "datasets" in fields:
        options |= _of_paths(data, *map(_paths, fields.pop("datasets")))
        fields.pop("num_samples", None)
    elif paths and (moved := _moved(paths)) is not None:
        options[f"the directory of {data}"] = moved
    elif paths and lookup.prefix is not None:
        return {}  # The entry belongs to another dataset.
    elif paths:
        options |= _of_paths(data, *zip(*paths, strict=True))
    options |= _of_version(fields, tokenizer, others)
    weights = fields.pop("weights", ((), ()))
    is_same_list = f"the order in {data}" in options and sorted(weights[0]) == sorted(weights[1])
    if any(weights) and data not in options and not is_same_list:
        options[f"the list of weights in {data}"] = _numbers(weights[0]), _numbers(weights[1])
    for name, (job, cache) in fields.items():
        is_size = name in {"num_samples", "size"}
        is_limited = is_size and None not in {job, cache}
        if is_limited and any(weights) and abs(job - cache) <= max(map(len, weights)):
            continue  # Megatron rounds the draws of each source up.
        default = " (the default)" if name in _DEFAULTS and getattr(launch, _DEFAULTS[name]) is None else ""
        option = size if is_size else _OPTIONS.get(name, name)
        options.setdefault(option, (_text(job) + default, _text(cache)))
    return options


def _of_version(
    fields: dict[str, tuple[Any, Any]], tokenizer: Candidate, others: Sequence[Candidate]
) -> Options:
    """Remove fields that another version of Megatron explains, and return its option."""
    identifiers = [name for name in fields if name.startswith(_TOKENIZER) and name not in _OPTIONS]
    changed = {name.removeprefix(_TOKENIZER): fields[name][1] for name in identifiers}
    if not changed or (version := _version({**(tokenizer.identifiers or {}), **changed}, others)) is None:
        return {}
    for name in identifiers:
        del fields[name]
    return {"the Megatron version": (_versions(tokenizer), version)}


def _version(identifiers: Mapping[str, Any], others: Sequence[Candidate]) -> str | None:
    """Return the other version of Megatron that gives a tokenizer these identifiers, or None."""
    present = {name: value for name, value in identifiers.items() if value is not None}
    versions = (_versions(other) for other in others if other.identifiers == present)
    return next(versions, None)


def _versions(tokenizer: Candidate) -> str:
    return " or ".join(tokenizer.names.versions) or tokenizer.names.label


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


def _of_paths(data: str, job: Sequence[str], cache: Sequence[str]) -> Options:
    """Return the paths that only one of two lists has, or the lists if only their orders differ."""
    only_job = list((Counter(job) - Counter(cache)).elements())
    only_cache = list((Counter(cache) - Counter(job)).elements())
    if list(job) == list(cache):
        return {data: ("one dataset without a weight", "a blend")}
    if not only_job and not only_cache:
        start = next(place for place, pair in enumerate(zip(job, cache, strict=True)) if len({*pair}) > 1)
        return {f"the order in {data}": (listed(job[start:], _SHOWN), listed(cache[start:], _SHOWN))}
    pairs = (only_job, only_cache), (only_cache, only_job)
    texts = [
        f"with {listed(only, _SHOWN)}" if only else f"without {listed(others, _SHOWN)}"
        for only, others in pairs
    ]
    return {data: (texts[0], texts[1])}


def _numbers(weights: Sequence[float]) -> str:
    return listed([f"{weight:g}" for weight in weights], _SHOWN)


def _text(value: Any) -> str:
    if value is None:
        return _NOT_SET
    return value if isinstance(value, str) else shortened(json.dumps(value))
