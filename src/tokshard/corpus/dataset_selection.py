"""Files of a dataset of the Hugging Face Hub, or of a local copy of one, by config and split.

A branch or tag is resolved to a commit once, when a run begins. A run that continues an unfinished one reads
the same commit, even if the branch has moved since. If an output is finished, and the files of the new commit
are those from which it was made, it is up to date.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tokshard.core.formatting import counted, listed
from tokshard.corpus.dataset_layout import (
    READABLE,
    DatasetConfig,
    converted_splits,
    family_of,
    main_family,
    missing_shards,
    read_configs,
    split_files,
)
from tokshard.dataset.plan import HubDatasetRecord
from tokshard.errors import InputError, MissingExtraError, MissingFileError, UsageError
from tokshard.storage.paths import is_remote
from tokshard.storage.reading import open_file
from tokshard.storage.remote import hub
from tokshard.storage.remote.hub import HubDataset, HubFile
from tokshard.storage.remote.objects import open_binary

if TYPE_CHECKING:
    from tokshard.dataset.manifest import Manifest

_README = "README.md"
_SHOWN = 20
_PARTIAL = "partial-"


@dataclass(frozen=True, slots=True)
class DatasetChoice:
    """The config and the split to read; None for the only one."""

    config: str | None = None
    split: str | None = None

    def fits(self, record: HubDatasetRecord) -> bool:
        """Return whether a record can be of this choice."""
        return self.config in (None, record.config) and self.split in (None, record.split)


class _DatasetTree(Protocol):
    # Where the files of a dataset are: paths are relative to it.
    name: str

    def card(self) -> Mapping[str, Any]: ...

    def paths(self, directory: str) -> Iterable[str]: ...


class _Selected(NamedTuple):
    config: str
    split: str
    paths: tuple[str, ...]


class _UnreadableError(Exception):
    # The files of the dataset are of a kind that is not read; the text names it.
    def __init__(self, config: str | None, split: str | None, kind: str) -> None:
        super().__init__(kind)
        self.config = config
        self.split = split
        self.kind = kind


class DatasetSelector:
    """Selection of the files of datasets; remembers the commits that it has chosen.

    Args:
        choice: The config and the split.
        unfinished: Returns the datasets of unfinished runs for the same output, whose commits are kept.
        finished: Returns the manifest of the existing output, or None.
    """

    def __init__(
        self,
        choice: DatasetChoice | None = None,
        *,
        unfinished: Callable[[], Iterable[HubDatasetRecord]] = tuple,
        finished: Callable[[], Manifest | None] = lambda: None,
    ) -> None:
        self.records: list[HubDatasetRecord] = []
        self.messages: list[str] = []
        self._choice = choice or DatasetChoice()
        self._unfinished = unfinished
        self._finished = finished
        self._is_used = False

    def files(self, argument: str) -> list[str] | None:
        """Return the files of the dataset that an argument names; None if it names something else.

        Raises:
            InputError: The dataset, revision, config or split does not exist, or has no files that are read.
            UsageError: The dataset has several configs or splits, and none was chosen.
            StorageError: Access is denied, or the Hub does not respond.
            MissingExtraError: huggingface_hub is not installed.
        """
        if (dataset := hub.parse_dataset(argument)) is not None:
            self._is_used = True
            return [file.url for file in self._from_hub(argument, dataset)]
        if self._choice != DatasetChoice() and not is_remote(argument) and os.path.isdir(argument):
            self._is_used = True
            return self._from_directory(argument)
        return None

    def check_used(self, *, split_is_used: bool = False) -> None:
        """Raise UsageError if a config or split was chosen, but no input is a dataset.

        ``split_is_used``: an input is a dataset of another kind, which has splits but no configs.
        """
        unused = DatasetChoice(self._choice.config, None if split_is_used else self._choice.split)
        if unused != DatasetChoice() and not self._is_used:
            raise UsageError(
                "--config and --split require a dataset of the Hugging Face Hub as an input",
                hint="pass hf://datasets/ORG/NAME, or the directory of a downloaded dataset",
            )

    def _from_directory(self, directory: str) -> list[str]:
        try:
            selected = _select(_Directory(directory), self._choice)
        except _UnreadableError as error:
            raise _no_readable_files(directory, error.kind) from error
        return [os.path.join(directory, path) for path in selected.paths]

    def _from_hub(self, url: str, dataset: HubDataset) -> list[HubFile]:
        url = url.rstrip("/")
        earlier = self._earlier(url)
        repository, commit = dataset.repository, ""
        if earlier is not None:
            try:
                repository, commit = hub.resolve(HubDataset(dataset.repository, earlier.commit))
            except InputError:
                self.messages.append(
                    f"the unfinished run read commit {earlier.commit} of {url}, which does not exist any more"
                )
                earlier = None
        if earlier is None:
            repository, commit = hub.resolve(dataset)
        is_converted = dataset.revision == hub.CONVERTED or (
            earlier is not None and earlier.converted is True
        )
        record, files = self._selected(url, dataset, repository, commit, is_converted=is_converted)
        if earlier is None:
            record, files = self._unless_unchanged(record, files)
        self.records.append(record)
        self.messages.append(
            f"{url}: config {record.config}, split {record.split}, {counted(len(files), 'file')} of commit "
            f"{record.commit[:12]}{' (the commit of the unfinished run)' if earlier is not None else ''}"
        )
        return files

    def _selected(
        self, url: str, dataset: HubDataset, repository: str, commit: str, *, is_converted: bool
    ) -> tuple[HubDatasetRecord, list[HubFile]]:
        choice = self._choice
        if not is_converted:
            try:
                selected = _select(_Snapshot(repository, commit), choice)
            except _UnreadableError as error:
                if dataset.revision not in (None, hub.MAIN):
                    raise _no_readable_files(url, error.kind) from error
                commit = self._conversion(repository, error)
                choice = DatasetChoice(choice.config or error.config, choice.split or error.split)
                is_converted = True
            else:
                _check_cached(repository, selected)
                return _record(url, commit, selected), _files_of(repository, commit, selected)
        selected = _select_converted(_Snapshot(repository, commit), choice)
        if selected.split.startswith(_PARTIAL) and dataset.revision != hub.CONVERTED:
            raise InputError(
                "the Hub has converted only the first part of the split "
                f"{selected.split.removeprefix(_PARTIAL)} of {repository} to Parquet",
                hint="download the dataset and convert it to JSON lines or Parquet; to use only this part, "
                f"pass {hub.PREFIX}{repository}@{hub.CONVERTED} --config {selected.config} "
                f"--split {selected.split}",
            )
        return _record(url, commit, selected, converted=True), _files_of(repository, commit, selected)

    def _conversion(self, repository: str, unreadable: _UnreadableError) -> str:
        try:
            _, commit = hub.resolve(HubDataset(repository, hub.CONVERTED))
        except InputError as error:
            raise _no_readable_files(hub.PREFIX + repository, unreadable.kind) from error
        self.messages.append(
            f"{repository} contains {unreadable.kind}; reading the Hub's conversion to Parquet, which can be "
            f"older than the dataset: {hub.CONVERTED} at {commit[:12]}"
        )
        return commit

    def _earlier(self, url: str) -> HubDatasetRecord | None:
        return next(
            (record for record in self._unfinished() if record.url == url and self._choice.fits(record)),
            None,
        )

    def _unless_unchanged(
        self, record: HubDatasetRecord, files: list[HubFile]
    ) -> tuple[HubDatasetRecord, list[HubFile]]:
        # The files of a finished output, if those of the new commit have the same content.
        manifest = self._finished()
        for known in (manifest.hub_datasets or ()) if manifest is not None else ():
            if manifest is None or known.url != record.url or known.commit == record.commit:
                continue
            before = [
                (file, (file.path, source.size_bytes, source.version))
                for source in manifest.inputs
                if (file := hub.parse_file(source.path)) is not None and file.commit == known.commit
            ]
            if [described for _, described in before] == [(file.path, *hub.status(file)) for file in files]:
                for (old, _), new in zip(before, files, strict=True):
                    hub.remember(old, hub.status(new))
                return known, [old for old, _ in before]
        return record, files


class _Snapshot:
    def __init__(self, repository: str, commit: str) -> None:
        self.name = repository
        self._commit = commit

    def card(self) -> Mapping[str, Any]:
        try:
            with open_binary(HubFile(self.name, self._commit, _README).url) as file:
                return _metadata(file.read(), f"{self.name}/{_README}")
        except MissingFileError:
            return {}

    def paths(self, directory: str) -> Iterable[str]:
        return (file.path for file in hub.files_below(self.name, self._commit, directory))


class _Directory:
    def __init__(self, directory: str) -> None:
        self.name = directory

    def card(self) -> Mapping[str, Any]:
        path = os.path.join(self.name, _README)
        try:
            with open_file(path) as file:
                return _metadata(file.read(), path)
        except FileNotFoundError:
            return {}

    def paths(self, directory: str) -> Iterable[str]:
        for place, _, names in os.walk(os.path.join(self.name, directory), followlinks=True):
            for name in names:
                yield os.path.relpath(os.path.join(place, name), self.name)


def _metadata(content: bytes, path: str) -> Mapping[str, Any]:
    text = content.decode("utf-8-sig", "replace")
    if not text.startswith("---"):
        return {}
    try:
        import huggingface_hub
    except ImportError as error:
        raise MissingExtraError(f"the metadata in {path}", "hub") from error
    try:
        card: Any = huggingface_hub.DatasetCard(text, ignore_metadata_errors=True)
        # Not to_dict: its time is exponential in the depth of nested YAML aliases.
        configs = card.data.get("configs")
    except Exception as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"cannot read the metadata in {path}: {reason}",
            hint="pass the files of the dataset as inputs, for example data/*.parquet",
        ) from error
    return {} if configs is None else {"configs": configs}


def _select(source: _DatasetTree, choice: DatasetChoice) -> _Selected:
    card = source.card()
    configs = {config.name: config for config in read_configs(card, f"{source.name}/{_README}")}
    if not card.get("configs") and choice.config is not None and choice.config not in configs:
        # Configs that only a script or the conversion knows.
        raise _UnreadableError(None, None, "no configs in its README")
    config = configs[_chosen("config", choice.config, configs, source.name, _default_of(configs.values()))]
    patterns = config.patterns
    split = None
    if patterns is not None:
        split = _chosen("split", choice.split, patterns, source.name)
    paths = {path for directory in config.directories(split) for path in source.paths(directory)}
    if not card.get("configs") and (script := _script_of(source.name, paths)) is not None:
        raise _UnreadableError(None, None, f"the script {script}, which tokshard does not run")
    splits = split_files(config, paths)
    if split is None:
        if not splits:
            raise _UnreadableError(None, None, "no data files")
        split = _chosen("split", choice.split, splits, source.name)
    found = splits[split]
    kind = main_family(found)
    if not found:
        raise InputError(
            f"no file of {source.name} matches the split {split} of the config {config.name}: "
            f"{listed((patterns or {}).get(split, ()), _SHOWN)}",
            hint="check the README of the dataset, or pass its files as inputs",
        )
    if kind not in READABLE:
        raise _UnreadableError(config.name if card.get("configs") else None, split, kind or "no data files")
    return _Selected(config.name, split, tuple(path for path in found if family_of(path) == kind))


def _select_converted(source: _DatasetTree, choice: DatasetChoice) -> _Selected:
    configs = converted_splits(source.paths(""))
    if not configs:
        raise _no_readable_files(source.name, "no data files")
    config = _chosen("config", choice.config, configs, source.name)
    splits = configs[config]
    wanted = choice.split
    if wanted is not None and wanted not in splits and _PARTIAL + wanted in splits:
        wanted = _PARTIAL + wanted
    split = _chosen("split", wanted, splits, source.name)
    return _Selected(config, split, splits[split])


def _script_of(name: str, paths: Iterable[str]) -> str | None:
    script = f"{os.path.basename(os.path.normpath(name))}.py"
    return script if script in paths else None


def _default_of(configs: Iterable[DatasetConfig]) -> str | None:
    return next((config.name for config in configs if config.is_default), None)


def _chosen(
    what: str, wanted: str | None, names: Mapping[str, Any], dataset: str, default: str | None = None
) -> str:
    shown = listed([f"{name} (the default)" if name == default else name for name in names], _SHOWN)
    if wanted is not None:
        if wanted in names:
            return wanted
        raise UsageError(
            f"--{what} must be a {what} of {dataset}, got {wanted!r}", hint=f"pass one of: {shown}"
        )
    if len(names) == 1:
        return next(iter(names))
    raise UsageError(
        f"{dataset} has {counted(len(names), what)}: {shown}",
        hint=f"pass --{what} {default or next(iter(names))}, for example",
    )


def _no_readable_files(name: str, kind: str) -> InputError:
    return InputError(
        f"cannot read {name}: it contains {kind}, not JSON lines, Parquet or Arrow",
        hint="convert it to JSON lines or Parquet, for example with load_dataset(...).to_parquet(...) of the "
        "datasets library, and pass the files",
    )


def _check_cached(repository: str, selected: _Selected) -> None:
    # Older versions of huggingface_hub do not record which files a commit has.
    if hub.is_offline() and (missing := missing_shards(selected.paths)) is not None:
        raise InputError(
            f"the file {missing} of {repository} is not in the cache of huggingface_hub, and HF_HUB_OFFLINE "
            "is set",
            hint=f"run `hf download {repository} --repo-type dataset` where the Hub can be reached",
        )


def _files_of(repository: str, commit: str, selected: _Selected) -> list[HubFile]:
    return [HubFile(repository, commit, path) for path in selected.paths]


def _record(url: str, commit: str, selected: _Selected, *, converted: bool = False) -> HubDatasetRecord:
    return HubDatasetRecord(url, commit, selected.config, selected.split, True if converted else None)
