"""Datasets of the Hugging Face Hub among the inputs.

A branch or tag is resolved to a commit once, when a run begins. A run that continues an unfinished one reads
the same commit, even if the branch has moved since. If an output is finished, and the files of the new commit
are those from which it was made, it is up to date.

Without a path, the Hub's own conversion of the dataset to Parquet is read: ``CONFIG/SPLIT/*.parquet``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from tokshard.core.formatting import counted, listed
from tokshard.dataset.parameters import HubDatasetRecord
from tokshard.errors import InputError, UsageError
from tokshard.storage.remote import hub, objects

if TYPE_CHECKING:
    from tokshard.dataset.manifest import Manifest

_SHOWN = 20
_PARTIAL = "partial-"


class HubDatasets:
    """Selection of the files of datasets; remembers the commits that it has chosen.

    Args:
        config: The config to read of a dataset that is named without a path; None for the only one.
        split: The split to read of it; None for the only one.
        unfinished: Returns the datasets of unfinished runs for the same output, whose commits are kept.
        finished: Returns the manifest of the existing output, or None.
        tell: Receives messages for the user.

    Attributes:
        records: The datasets among the inputs so far.
    """

    def __init__(
        self,
        config: str | None = None,
        split: str | None = None,
        *,
        unfinished: Callable[[], Iterable[HubDatasetRecord]] = tuple,
        finished: Callable[[], Manifest | None] = lambda: None,
        tell: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self.records: list[HubDatasetRecord] = []
        self._config = config
        self._split = split
        self._unfinished = unfinished
        self._finished = finished
        self._tell = tell

    def files(self, argument: str, files_of: Callable[[str], list[str]]) -> list[str] | None:
        """Return the files that the URL of a dataset names, at a commit; None for another argument.

        ``files_of`` returns the files that a URL names.

        Raises:
            InputError: The dataset, the revision or the files do not exist.
            UsageError: The URL names no dataset; or the conversion has several configs or splits, and none
                was chosen.
            StorageError: Access is denied, or the Hub does not respond.
            MissingExtraError: huggingface_hub is not installed.
        """
        if (dataset := hub.parse_dataset(argument)) is None:
            if not argument.startswith("hf://"):
                return None
            raise UsageError(
                f"invalid URL of a dataset of the Hugging Face Hub: {argument}",
                hint=f"pass {hub.PREFIX}ORG/NAME/GLOB or {hub.PREFIX}ORG/NAME",
            )
        if not dataset.path and dataset.revision is not None:
            raise UsageError(
                f"a path is required after a revision, got {argument}",
                hint=f"pass a glob of its files, for example {argument.rstrip('/')}/data/*.parquet",
            )
        url = argument if dataset.path else argument.rstrip("/")
        commit, is_earlier = self._commit(dataset, url)
        if dataset.path:
            record = HubDatasetRecord(url, commit.sha)
            files = files_of(commit.url(dataset.path))
        else:
            config, split = self._converted(dataset, commit)
            record = HubDatasetRecord(url, commit.sha, config, split)
            files = files_of(commit.url(f"{config}/{split}/"))
        if not is_earlier:
            record, files = self._unless_unchanged(record, files)
        self.records.append(record)
        what = ", ".join([*record.selection, counted(len(files), "file")])
        earlier = " (the commit of the unfinished run)" if is_earlier else ""
        self._tell(f"{url}: {what} of commit {record.commit[:12]}{earlier}")
        return files

    def check_used(self, *, split_is_used: bool) -> None:
        """Raise UsageError if a config or split was chosen, but no input has one.

        ``split_is_used``: an input is a dataset of another kind, which has splits but no configs.
        """
        is_chosen = self._config is not None or (self._split is not None and not split_is_used)
        if is_chosen and not any(record.split for record in self.records):
            raise UsageError(
                "--config and --split require an input that is hf://datasets/ORG/NAME without a path",
                hint="to select files, pass a glob such as data/train-*.parquet",
            )

    def _commit(self, dataset: hub.HubUrl, url: str) -> tuple[hub.HubCommit, bool]:
        """Return the commit to read, and whether it is that of an unfinished run."""
        for earlier in self._unfinished():
            chosen = self._config in (None, earlier.config) and self._split in (None, earlier.split)
            if earlier.url == url and chosen:
                try:
                    return hub.resolve("datasets", dataset.repository, earlier.commit, url), True
                except hub.MissingRevisionError:
                    self._tell(
                        f"the unfinished run read commit {earlier.commit} of {url}, which does not exist any "
                        "more"
                    )
        try:
            revision = dataset.revision if dataset.path else hub.CONVERTED
            return hub.resolve("datasets", dataset.repository, revision, url), False
        except hub.MissingRevisionError as error:
            raise error if dataset.path else _no_conversion(dataset) from error

    def _converted(self, dataset: hub.HubUrl, commit: hub.HubCommit) -> tuple[str, str]:
        """Return the config and the split to read of the conversion to Parquet."""
        configs = commit.directories("")
        if not configs:
            raise _no_conversion(dataset)
        config = _chosen("config", self._config, configs, dataset.repository)
        splits = sorted(commit.directories(config), key=lambda name: (name != "train", name))
        wanted = self._split
        if f"{_PARTIAL}{wanted}" in splits and wanted not in splits:
            wanted = f"{_PARTIAL}{wanted}"
        split = _chosen("split", wanted, splits, dataset.repository)
        if split.startswith(_PARTIAL):
            raise InputError(
                "the Hub has converted only the first part of the split "
                f"{split.removeprefix(_PARTIAL)} of {dataset.repository} to Parquet",
                hint=_hint(dataset),
            )
        return config, split

    def _unless_unchanged(
        self, record: HubDatasetRecord, files: list[str]
    ) -> tuple[HubDatasetRecord, list[str]]:
        """Return the files of the finished output, if those of the new commit have the same content."""
        manifest = self._finished()
        for known in (manifest.hub_datasets or ()) if manifest is not None else ():
            if manifest is None or known.url != record.url or known.commit == record.commit:
                continue
            before = [source for source in manifest.inputs if f"@{known.commit}/" in source.path]
            statuses = [(url.partition(f"@{record.commit}/")[2], *objects.status(url)) for url in files]
            if statuses == [
                (source.path.partition(f"@{known.commit}/")[2], source.size_bytes, None, source.version)
                for source in before
            ]:
                return known, [source.path for source in before]
        return record, files


def _chosen(what: str, wanted: str | None, names: Sequence[str], dataset: str) -> str:
    shown = listed(names, _SHOWN)
    if wanted is None and len(names) == 1:
        return names[0]
    if wanted is None:
        raise UsageError(
            f"{dataset} has {counted(len(names), what)}: {shown}",
            hint=f"pass --{what} {names[0]}, for example",
        )
    if wanted not in names:
        raise UsageError(
            f"--{what} must be a {what} of {dataset}, got {wanted!r}", hint=f"pass one of: {shown}"
        )
    return wanted


def _no_conversion(dataset: hub.HubUrl) -> InputError:
    return InputError(f"the Hub has not converted {dataset.repository} to Parquet", hint=_hint(dataset))


def _hint(dataset: hub.HubUrl) -> str:
    page = hub.HubCommit("datasets", dataset.repository, hub.MAIN).page
    return (
        f"pass a glob of the original files, for example {hub.PREFIX}{dataset.repository}/data/*.jsonl.gz; "
        f"see {page}/tree/{hub.MAIN}"
    )
