"""Check of missing data of a job: a mistake in the job's paths, or data on another machine."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tokshard.checks.doctor.launch.arguments import LaunchArguments
from tokshard.checks.doctor.launch.rules import Result
from tokshard.checks.doctor.launch.unknown import SkippedCheck
from tokshard.checks.doctor.near_paths import near_path
from tokshard.core.findings import Finding
from tokshard.core.formatting import count, counted, listed
from tokshard.core.path_mapping import PathMapping
from tokshard.storage.paths import IDX_SUFFIX, is_remote, strip_data_suffix

_MAX_SUGGESTIONS = 5
# The name that Megatron's preprocess_data.py appends to --output-prefix.
_DEFAULT_NAME = "_text_document"


def check_data_exists(
    names: Sequence[str], launch: LaunchArguments, paths: PathMapping, *, is_file: bool = False
) -> Result | None:
    """Return an error or a skipped check if data of a job does not exist on this machine, or None.

    Missing data is an error if its path is a typing mistake of an existing one, or if the job evidently runs
    on this machine: other data of the job, the directory of the data, or the job's cache directory exists.

    Args:
        names: Path prefixes of datasets on this machine, or the path of the file that lists them.
        launch: The arguments of the job.
        paths: Paths here and at training time.
        is_file: Whether the names are those of files.
    """
    suffix = "" if is_file else IDX_SUFFIX
    local = [path for path in dict.fromkeys(names) if not is_remote(path)]
    missing = [path for path in local if not os.path.exists(path + suffix)]
    if not missing:
        return None
    meant = [near for path in missing[:_MAX_SUGGESTIONS] if (near := _meant(path, suffix)) is not None]
    directories = [os.path.dirname(path) for path in missing]
    if launch.data_cache_path is not None:
        directories.append(paths.inverse().map(launch.data_cache_path))
    runs_here = len(missing) < len(local) or any(map(_is_evidence, dict.fromkeys(directories)))
    listing = listed(missing)
    if not (meant or runs_here):
        hint = "run doctor where the data is, or pass --path-as LOCAL=TRAINING"
        return SkippedCheck("cache", f"the data is not on this machine: {listing}", hint)
    hint = "correct the data arguments, or pass --path-as LOCAL=TRAINING for data at another path here"
    if meant:
        hint = f"did you mean {', '.join(meant)}? Correct the data arguments of the launch command"
    kind = "file" if is_file else "dataset"
    subject = kind if len(local) == 1 else f"{count(len(missing))} of {counted(len(local), kind)}"
    return Finding("data", "error", f"{subject} not found: {listing}", hint)


def _meant(path: str, suffix: str) -> str | None:
    """Return the existing path that a missing one may mean, or None."""
    for other in (strip_data_suffix(path), path + _DEFAULT_NAME) if suffix else ():
        if os.path.exists(other + suffix):
            return other
    return near_path(path, suffix)


def _is_evidence(directory: str) -> bool:
    """Return whether a directory exists that not every machine has."""
    return bool(directory.strip("./")) and os.path.isdir(directory)
