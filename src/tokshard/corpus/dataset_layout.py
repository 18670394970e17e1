"""Configs and splits of a dataset of the Hugging Face Hub, by the names of its files and its README.

The rules are those of the ``datasets`` library: the ``configs`` in the YAML block of ``README.md``; without
them one config, whose splits are recognized by file names such as ``data/train-00000-of-00002.parquet``, then
by directory names, then by file names; without any of these, all files are the split ``train``.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokshard.errors import InputError

DEFAULT = "default"
TRAIN = "train"

_COMPRESSED = r"(\.(gz|bz2|xz|zst))?"
_FAMILIES = {
    "Parquet": re.compile(r"\.parquet", re.IGNORECASE),
    "JSON lines": re.compile(rf"\.(jsonl|json|ndjson){_COMPRESSED}", re.IGNORECASE),
    "Arrow": re.compile(r"\.arrow", re.IGNORECASE),
    "CSV": re.compile(rf"\.(csv|tsv){_COMPRESSED}", re.IGNORECASE),
    "text": re.compile(rf"\.(txt|text){_COMPRESSED}", re.IGNORECASE),
    "XML": re.compile(rf"\.(xml|eval){_COMPRESSED}", re.IGNORECASE),
    "archives": re.compile(r"\.(tar|tgz|tar\.gz|zip|7z)", re.IGNORECASE),
    "other data": re.compile(
        r"\.(h5|hdf5|lance|npy|npz|bin|pkl|jpe?g|png|tiff?|wav|mp3|flac|ogg|mp4|pdf)", re.IGNORECASE
    ),
}
READABLE = ("Parquet", "JSON lines", "Arrow")
# What the library leaves out unless it is named.
_NO_DATA = frozenset(
    {
        "README.md",
        "config.json",
        "dataset_info.json",
        "dataset_infos.json",
        "dummy_data.zip",
        "dataset_dict.json",
    }
)
_SHARD = re.compile(r"data/([^/]+)-[0-9]{5}-of-[0-9]{5}[^/]*\.[^/]*")
_NUMBERED = re.compile(r"-([0-9]{5})-of-([0-9]{5})")
_KEYWORDS = {
    TRAIN: ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
# Where a keyword is a word of the name of a directory or a file: these characters separate words.
_BETWEEN = "[-._ 0-9]"
_DIRECTORY_FORMS = (
    "**/WORD/**",
    f"**/WORD{_BETWEEN}*/**",
    f"**/*{_BETWEEN}WORD/**",
    f"**/*{_BETWEEN}WORD{_BETWEEN}*/**",
)
_FILE_FORMS = (f"**/WORD{_BETWEEN}*", f"**/*{_BETWEEN}WORD{_BETWEEN}*")
_CONVERTED = re.compile(r"([^/]+)/(partial-)?([^/]+)/[0-9]+\.parquet")


@dataclass(frozen=True, slots=True)
class DatasetConfig:
    """A config of a dataset, by its README.

    Attributes:
        directory: The directory to which the patterns are relative; empty for the whole dataset.
        patterns: The patterns of each split; None for the splits that :func:`split_files` finds.
        is_default: Whether the ``datasets`` library uses it if none is named.
    """

    name: str
    directory: str = ""
    patterns: Mapping[str, tuple[str, ...]] | None = None
    is_default: bool = False

    def directories(self, split: str | None) -> tuple[str, ...]:
        """Return directories that contain all files of a split, or of all splits; empty names for all."""
        if self.patterns is None:
            return (self.directory,)
        chosen = [self.patterns[split]] if split is not None else list(self.patterns.values())
        found = sorted({_fixed_directory(pattern) for patterns in chosen for pattern in patterns})
        return tuple(
            name for name in found if not any(name != other and _is_below(name, other) for other in found)
        )


def read_configs(card: Mapping[str, Any], source: str) -> tuple[DatasetConfig, ...]:
    """Return the configs in the metadata of a README; the default one if it has none.

    Raises:
        InputError: The metadata is not what the ``datasets`` library accepts.
    """
    listed = card.get("configs") or []
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        raise _bad(source, "configs must be a list of objects")
    configs = tuple(_config(entry, source) for entry in listed)
    names = [config.name for config in configs]
    if len(set(names)) != len(names):
        raise _bad(source, "the names of configs must differ")
    return configs or (DatasetConfig(DEFAULT, is_default=True),)


def _config(entry: Mapping[str, Any], source: str) -> DatasetConfig:
    name = entry.get("config_name")
    if not isinstance(name, str) or not name:
        raise _bad(source, "each config must have a config_name")
    directory = entry.get("data_dir") or ""
    if not isinstance(directory, str):
        raise _bad(source, f"data_dir of config {name} must be a string")
    files = entry.get("data_files")
    return DatasetConfig(
        name,
        _normal(directory, source),
        None if files is None else _patterns(files, name, directory, source),
        bool(entry.get("default")) or name == DEFAULT,
    )


def _patterns(files: Any, name: str, directory: str, source: str) -> dict[str, tuple[str, ...]]:
    entries = files if isinstance(files, list) else [files]
    if not any(isinstance(entry, dict) for entry in entries):
        entries = [{"split": TRAIN, "path": entries}]
    found: dict[str, tuple[str, ...]] = {}
    for entry in entries:
        split, paths = (entry.get("split"), entry.get("path")) if isinstance(entry, dict) else (None, None)
        listed: list[Any] = paths if isinstance(paths, list) else [paths]
        is_text = all(isinstance(path, str) for path in listed)
        if not isinstance(split, str) or not is_text or not listed or split in found:
            raise _bad(
                source,
                f"data_files of config {name} must be a path, a list of paths, or a list of objects with "
                "different splits and their paths",
            )
        found[split] = tuple(_normal(posixpath.join(directory, path), source) for path in listed)
    return found


def _normal(path: str, source: str) -> str:
    if "://" in path:
        raise InputError(
            f"{source}: the path {path} is outside the dataset", hint="pass the files themselves as inputs"
        )
    normal = posixpath.normpath(path) if path else ""
    if normal.startswith(("/", "..")):
        raise _bad(source, f"the path {path} must be inside the dataset")
    return "" if normal == "." else normal


def _bad(source: str, problem: str) -> InputError:
    return InputError(
        f"{source}: {problem}", hint="pass the files of the dataset as inputs, for example data/*.parquet"
    )


def split_files(config: DatasetConfig, paths: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the files of each split of a config, in the order of the ``datasets`` library.

    Args:
        config: The config.
        paths: The files in the directories of the config, relative to the dataset.
    """
    ordered = sorted(paths)
    if config.patterns is not None:
        return {
            split: tuple(dict.fromkeys(path for pattern in patterns for path in matching(pattern, ordered)))
            for split, patterns in config.patterns.items()
        }
    base = f"{config.directory}/" if config.directory else ""
    inside = [path.removeprefix(base) for path in ordered if path.startswith(base)]
    found = _by_name([path for path in inside if _is_data(path)])
    return {split: tuple(base + path for path in files) for split, files in found.items()}


def _by_name(paths: Sequence[str]) -> dict[str, list[str]]:
    shards: dict[str, list[str]] = {}
    for path in paths:
        if found := _SHARD.fullmatch(path):
            shards.setdefault(found[1], []).append(path)
    if shards:
        return {split: shards[split] for split in sorted(shards, key=_order_of_split)}
    for forms in (_DIRECTORY_FORMS, _FILE_FORMS):
        splits = {
            split: [
                path
                for word in words
                for form in forms
                for path in matching(form.replace("WORD", word), paths)
            ]
            for split, words in _KEYWORDS.items()
        }
        if any(splits.values()):
            return {split: list(dict.fromkeys(files)) for split, files in splits.items() if files}
    return {TRAIN: list(paths)} if paths else {}


def _order_of_split(split: str) -> tuple[int, str]:
    known = list(_KEYWORDS)
    return (known.index(split) if split in known else len(known), split)


def _is_data(path: str) -> bool:
    *directories, name = path.split("/")
    hidden = any(part.startswith((".", "__")) for part in directories) or name.startswith(".")
    return not hidden and name not in _NO_DATA


def matching(pattern: str, paths: Sequence[str]) -> list[str]:
    """Return the paths that match a pattern (``*``, ``?``, ``[...]``, ``**``), in their order.

    Example:
        >>> matching("data/**/*.parquet", ["data/a.parquet", "data/x/y/b.parquet", "c.parquet"])
        ['data/a.parquet', 'data/x/y/b.parquet']
    """
    if not _is_pattern(pattern):
        return [pattern] if pattern in paths else []
    parts = pattern.split("/")
    expressions = [None if part == "**" else re.compile(fnmatch.translate(part)) for part in parts]
    return [
        path
        for path in paths
        if _special_parts(path) == _special_parts(pattern)
        and (path.rsplit("/", 1)[-1] not in _NO_DATA or parts[-1] in _NO_DATA)
        and _matches(path.split("/"), expressions)
    ]


def _matches(parts: Sequence[str], expressions: Sequence[re.Pattern[str] | None]) -> bool:
    # In time proportional to both: patterns come from others. None stands for any number of directories.
    places = {0}
    for number, expression in enumerate(expressions):
        if expression is not None:
            places = {place + 1 for place in places if place < len(parts) and expression.match(parts[place])}
        elif number < len(expressions) - 1:
            places = set(range(min(places), len(parts)))
        else:
            places = {len(parts)} if min(places) < len(parts) else set()
        if not places:
            return False
    return len(parts) in places


def _special_parts(path: str) -> tuple[int, int]:
    # Hidden files, and directories such as __pycache__, match only if the pattern names as many.
    parts = path.split("/")
    return (
        sum(part.startswith(".") for part in parts),
        sum(part.startswith("__") for part in parts[:-1]),
    )


def _is_pattern(path: str) -> bool:
    return re.search(r"[*?\[]", path) is not None


def _fixed_directory(pattern: str) -> str:
    names = pattern.split("/")[:-1]
    fixed = next((number for number, name in enumerate(names) if _is_pattern(name)), len(names))
    return "/".join(names[:fixed])


def _is_below(directory: str, other: str) -> bool:
    return not other or directory == other or directory.startswith(f"{other}/")


def family_of(path: str) -> str | None:
    """Return the kind of a data file by its name; None if it is no data.

    Example:
        >>> family_of("data/part.jsonl.zst"), family_of("train.csv"), family_of("README.md")
        ('JSON lines', 'CSV', None)
    """
    name = path.rsplit("/", 1)[-1]
    return next(
        (
            family
            for family, suffix in _FAMILIES.items()
            if re.search(suffix.pattern + "$", name, suffix.flags)
        ),
        None,
    )


def main_family(paths: Iterable[str]) -> str | None:
    """Return the kind of most of the data files; None without data files."""
    counts = Counter(family for path in paths if (family := family_of(path)) is not None)
    return max(counts, key=lambda family: (counts[family], -list(_FAMILIES).index(family)), default=None)


def missing_shards(paths: Iterable[str]) -> str | None:
    """Return which shards are missing by the names of the others; None if all are there, or have other names.

    Example:
        >>> missing_shards(["data/train-00000-of-00003.parquet", "data/train-00002-of-00003.parquet"])
        'data/train-00001-of-00003'
    """
    found: dict[tuple[str, str], set[int]] = {}
    for path in paths:
        if parts := _NUMBERED.search(path):
            found.setdefault((path[: parts.start()], parts[2]), set()).add(int(parts[1]))
    return next(
        (
            f"{name}-{number:05}-of-{total}"
            for (name, total), numbers in found.items()
            for number in range(int(total))
            if number not in numbers
        ),
        None,
    )


def converted_splits(paths: Iterable[str]) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return the files of each config and split in the Hub's conversion to Parquet.

    A split of which only the first part was converted has the name ``partial-SPLIT``.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for path in sorted(paths):
        if parts := _CONVERTED.fullmatch(path):
            found.setdefault(parts[1], {}).setdefault((parts[2] or "") + parts[3], []).append(path)
    return {
        config: {
            split: tuple(files)
            for split, files in sorted(splits.items(), key=lambda item: _order_of_split(item[0]))
        }
        for config, splits in found.items()
    }
