"""Datasets that ``save_to_disk`` of the Hugging Face ``datasets`` library wrote.

``state.json`` names the Arrow files of a dataset, in order. Its directory can also contain intermediate
results (``cache-*.arrow``), which are not part of it. ``dataset_dict.json`` names splits: directories of such
datasets.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from tokshard.core.formatting import counted
from tokshard.core.json_text import parse_json_object
from tokshard.errors import InputError, IntegrityError, TokshardError, UsageError
from tokshard.storage.paths import check_plain_name
from tokshard.storage.reading import read_small_file

_STATE = "state.json"
_SPLITS = "dataset_dict.json"
_INFO = "dataset_info.json"
_COPY = "copy the directory again, or pass its data-*.arrow files as inputs"
_SHOWN_SPLITS = 20


class SavedDatasets:
    """Selection of the files of saved datasets.

    Args:
        split: The split to read; None for the only one.
        tell: Receives a message about each dataset.

    Attributes:
        is_used: Whether a dataset was found.
    """

    def __init__(self, split: str | None, tell: Callable[[str], None]) -> None:
        self.is_used = False
        self._split = split
        self._tell = tell

    def select(self, paths: Sequence[str]) -> list[list[str]] | None:
        """Return the files to read of those below a directory; None if there is no saved dataset among them.

        The files of a dataset are in its order; each other file is a list of its own.

        Raises:
            InputError: A dataset is incomplete, or not as the library writes it.
            UsageError: A dataset has several splits and none was chosen, or does not have the chosen one.
        """
        chosen: dict[str, list[str]] = {}
        markers = [path for path in paths if _name(path) in {_STATE, _SPLITS}]
        existing = set(paths) if markers else set()
        for path in sorted(markers, key=lambda path: (path.count("/"), path)):
            directory = _parent(path)
            if chosen.keys().isdisjoint(_ancestors(path)):
                read = self._split_files if _name(path) == _SPLITS else self._only_files
                try:
                    files = read(directory, existing)
                except IntegrityError as error:
                    raise InputError(error.message, hint=_COPY) from error
                if files is not None:
                    chosen[directory] = files
        if not chosen:
            return None
        self.is_used = True
        return [*chosen.values(), *([path] for path in paths if chosen.keys().isdisjoint(_ancestors(path)))]

    def _split_files(self, directory: str, existing: Collection[str]) -> list[str]:
        path = f"{directory}/{_SPLITS}"
        names = parse_json_object(read_small_file(path), path).get("splits")
        splits = [check_plain_name(str(name), path) for name in (names if isinstance(names, list) else ())]
        if not splits:
            raise IntegrityError(f"{path}: splits must be a list of names")
        split = self._split or (splits[0] if len(splits) == 1 else None)
        if split not in splits:
            *most, last = splits[:_SHOWN_SPLITS]
            choice = f"{', '.join(most)} or {last}" if most else last
            raise UsageError(
                f"--split must be a split of {directory}, got {split!r}"
                if split is not None
                else f"{directory} has {counted(len(splits), 'split')}, and --split is required",
                hint=f"pass --split {choice}",
            )
        if f"{directory}/{split}/{_STATE}" not in existing:
            raise IntegrityError(f"{path}: the split {split} has no file {split}/{_STATE}")
        state = _read_state(f"{directory}/{split}")
        files = _data_files(state, f"{directory}/{split}", existing)
        self._tell(f"{directory}: split {split} of a saved dataset, {counted(len(files), 'file')}")
        return files

    def _only_files(self, directory: str, existing: Collection[str]) -> list[str] | None:
        try:
            state = _read_state(directory)
        except TokshardError:
            if f"{directory}/{_INFO}" in existing:
                raise
            return None  # a file of another program
        files = _data_files(state, directory, existing)
        split = state.get("_split")
        if self._split not in (None, split):
            raise UsageError(
                f"--split must be a split of {directory}, got {self._split!r}",
                hint=f"pass --split {split}" if isinstance(split, str) else "leave out --split",
            )
        self._tell(f"{directory}: a saved dataset, {counted(len(files), 'file')}")
        return files


def _read_state(directory: str) -> dict[str, Any]:
    path = f"{directory}/{_STATE}"
    state = parse_json_object(read_small_file(path), path)
    if "_data_files" not in state:
        raise IntegrityError(f"{path} must have _data_files")
    return state


def _data_files(state: dict[str, Any], directory: str, existing: Collection[str]) -> list[str]:
    path = f"{directory}/{_STATE}"
    if state.get("_indices_data_files"):
        raise InputError(
            f"cannot read {directory}: its rows are selected by _indices_data_files",
            hint="save it again with load_from_disk(...).flatten_indices().save_to_disk(...)",
        )
    try:
        names = [entry["filename"] for entry in state["_data_files"]]
        is_valid = 0 < len(names) == len(set(names)) and {str}.issuperset(map(type, names))
    except (TypeError, KeyError):
        is_valid = False
    if not is_valid:
        raise IntegrityError(
            f'{path}: _data_files must be a list of {{"filename": NAME}} with different names'
        )
    for name in names:
        if f"{directory}/{check_plain_name(name, path)}" not in existing:
            raise IntegrityError(f"{path}: the file {name} is missing")
    return [f"{directory}/{name}" for name in names]


def is_intermediate(path: str) -> bool:
    """Return whether a local file is an intermediate result of a saved dataset."""
    name = _name(path)
    is_cache = name.startswith("cache-") and name.endswith(".arrow")
    return is_cache and os.path.exists(os.path.join(_parent(path), _STATE))


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _ancestors(path: str) -> Iterator[str]:
    while path := _parent(path):
        yield path
