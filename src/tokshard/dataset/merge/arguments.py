"""Which datasets the arguments of a merge name, in which order."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence

from tokshard.errors import InputError, UsageError
from tokshard.storage import fs, paths


def expand(arguments: Sequence[str], output: str) -> tuple[str, ...]:
    """Return the path prefixes that the arguments name, in the order of the arguments.

    An argument is the prefix of a dataset, one of its files, or a glob of either. What a glob gives is
    in natural order, and is never the output itself. A shell expands ``part-*`` to all files of each
    dataset: different files of one dataset name it once. The same argument twice names it twice.

    Raises:
        InputError: A glob matches no dataset.
        UsageError: Nothing is named, or the output is among the inputs.

    Example:
        >>> expand(["a.bin", "a.idx", "b", "b"], "out")
        ('a', 'b', 'b')
    """
    spellings: Counter[str] = Counter()
    times: Counter[str] = Counter()
    prefixes = []
    for spelling in (found for argument in arguments for found in _expand_glob(argument, output)):
        prefix = paths.strip_data_suffix(spelling)
        spellings[spelling] += 1
        if spellings[spelling] > times[prefix]:
            times[prefix] += 1
            prefixes.append(prefix)
    if not prefixes:
        raise UsageError("no input is named", hint="name the datasets to merge: prefixes, or quoted globs")
    _refuse_output(prefixes, output)
    return tuple(prefixes)


def named_twice(prefixes: Sequence[str]) -> list[str]:
    """Return each prefix that names the same dataset as one before it."""
    seen: set[str] = set()
    found = []
    for prefix in prefixes:
        real = os.path.realpath(paths.idx_path(prefix))
        if real in seen:
            found.append(prefix)
        seen.add(real)
    return found


def _expand_glob(argument: str, output: str) -> Iterator[str]:
    if "\0" in argument:
        raise InputError(f"{argument!r} is no path: it holds a NUL character")
    is_prefix = any(fs.lexists(path(argument)) for path in (paths.bin_path, paths.idx_path))
    if is_prefix or not paths.is_glob(argument):
        yield argument
        return
    suffixes = (paths.BIN_SUFFIX, paths.IDX_SUFFIX, paths.SIDECAR_SUFFIX)
    named = [path for path in fs.glob(argument) if path.endswith(suffixes)]
    named += [path for suffix in suffixes for path in fs.glob(argument + suffix)]
    prefixes = {paths.strip_data_suffix(path) for path in named}
    prefixes -= {prefix for prefix in prefixes if os.path.realpath(prefix) == os.path.realpath(output)}
    if not prefixes:
        raise InputError(
            f"no dataset matches {argument}",
            hint="a dataset is a pair PREFIX.bin and PREFIX.idx; a relative path counts from here",
        )
    yield from sorted(prefixes, key=paths.natural_key)


def _refuse_output(prefixes: Sequence[str], output: str) -> None:
    places = (paths.bin_path, paths.idx_path)
    outputs = {os.path.realpath(path(output)) for path in places}
    for prefix in prefixes:
        if outputs & {os.path.realpath(path(prefix)) for path in places}:
            raise UsageError(
                f"the output {output} is among the inputs",
                hint="write to another --output; a glob in quotes leaves out the output itself",
            )
