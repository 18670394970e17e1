"""Whether datasets stay as they are while they are read: another process may replace one at any time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from tokshard.dataset.manifest import manifest_path
from tokshard.errors import InputError
from tokshard.storage import fs
from tokshard.storage.paths import bin_path, idx_path, is_remote

State = list[tuple[int | str, ...] | None]


def dataset_state(prefix: str) -> State:
    """Return what is different when another program has written a file: old and new may be mixed then.

    Args:
        prefix: The path prefix of the dataset, or its URL.

    Returns:
        For ``.bin``, ``.idx`` and manifest what :func:`tokshard.storage.fs.state` says: None if absent.
    """
    return [fs.state(path) for path in (bin_path(prefix), idx_path(prefix), manifest_path(prefix))]


@contextmanager
def unchanged(prefixes: Iterable[str]) -> Iterator[None]:
    """Read datasets, and refuse what was read, or what went wrong, if one was changed meanwhile.

    Remote ones are not looked at: each of their files is read on condition that it has not changed.

    Args:
        prefixes: The path prefixes of the datasets.

    Raises:
        InputError: A dataset was changed.

    Example:
        >>> with unchanged(["data/web"]):  # doctest: +SKIP
        ...     tokens = IndexedDataset("data/web").sequence_lengths.sum()
    """
    before = {prefix: dataset_state(prefix) for prefix in prefixes if not is_remote(prefix)}
    try:
        yield
    except Exception as error:
        _check(before, error)
        raise
    _check(before)


def _check(before: dict[str, State], error: Exception | None = None) -> None:
    for prefix, state in before.items():
        if dataset_state(prefix) != state:
            raise InputError(
                f"{prefix} was changed while it was read",
                hint="run the same command again when nobody writes the dataset",
            ) from error
