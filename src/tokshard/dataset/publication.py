"""Publication: staged files get their final names, in an order in which no crash shows a false dataset.

For each output: the old manifest and the old ``.idx`` go (so that no old index stands beside new
tokens), then ``.bin``, ``.idx``, the sidecar files and last the manifest get their names. The file
``publish.json`` in the work directory is written before the first of these steps; a run that finds it
repeats the steps, which are all harmless when they have been done.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from tokshard.core.strict_json import dump_json
from tokshard.dataset.manifest import (
    MANIFEST_NAME,
    PROVENANCE_NAME,
    REJECTED_NAME,
    Manifest,
    file_of,
    manifest_path,
)
from tokshard.errors import IntegrityError, OutputExistsError
from tokshard.storage import paths, syscalls
from tokshard.storage.files import write_atomically
from tokshard.storage.small_files import read_json_object

PUBLISH_NAME = "publish.json"
_SCHEMA = "tokshard.publish/1"


def seal(directory: str, manifests: Sequence[Manifest]) -> None:
    """Note in the work directory that everything is staged: from here on a run only goes forward."""
    outputs = [list(manifest.files.by_name()) for manifest in manifests]
    content = dump_json({"schema": _SCHEMA, "outputs": outputs})
    write_atomically(os.path.join(directory, PUBLISH_NAME), content)


def is_sealed(directory: str) -> bool:
    """Tell whether the work directory waits for publication."""
    return os.path.exists(os.path.join(directory, PUBLISH_NAME))


def publish(directory: str, prefixes: Sequence[str]) -> None:
    """Give all staged files of a sealed work directory their final names.

    Args:
        directory: The work directory.
        prefixes: The path prefix of each output.

    Raises:
        IntegrityError: The seal is damaged, or a staged file is missing and its target too.
        OutputExistsError: A link is where an output's directory should be.
    """
    for k, (prefix, names) in enumerate(zip(prefixes, _read_seal(directory, len(prefixes)), strict=True)):
        _publish_output(directory, k, prefix, names)


def refuse_link(directory: str) -> None:
    """Check that what should be a directory of ours does not lead to somebody else's.

    Raises:
        OutputExistsError: It is a link.
    """
    if os.path.islink(directory):
        raise OutputExistsError(
            f"{directory} is a link; tokshard writes only into directories of its own",
            hint="remove the link, or name the place it leads to in --output",
        )


def _read_seal(directory: str, output_count: int) -> list[list[str]]:
    """Return the names of each output's files."""
    path = os.path.join(directory, PUBLISH_NAME)
    try:
        sealed = read_json_object(path)
        outputs = sealed.get("outputs")
        if sealed.get("schema") == _SCHEMA and isinstance(outputs, list) and len(outputs) == output_count:
            return [[paths.check_plain_name(name, path) for name in names] for names in outputs]
    except (IntegrityError, TypeError, AttributeError):
        pass
    raise IntegrityError(f"{path} is damaged", path=path, hint="start over with --no-resume")


def _publish_output(directory: str, k: int, prefix: str, names: list[str]) -> None:
    sidecars = paths.sidecar_directory(prefix)
    refuse_link(sidecars)
    syscalls.make_directory(sidecars)
    if _is_staged(directory, k, MANIFEST_NAME):
        syscalls.unlink(manifest_path(prefix))
        for name in (PROVENANCE_NAME, REJECTED_NAME):
            if name not in names:
                syscalls.unlink(os.path.join(sidecars, name))
        syscalls.fsync_directory(sidecars)
        if _is_staged(directory, k, "idx"):
            syscalls.unlink(paths.idx_path(prefix))
            syscalls.fsync_directory(os.path.dirname(prefix))
    for name in ("bin", "idx"):
        _move(directory, k, name, file_of(prefix, name))
    syscalls.fsync_directory(os.path.dirname(prefix))
    for name in names:
        if name not in {"bin", "idx"}:
            _move(directory, k, name, file_of(prefix, name))
    syscalls.fsync_directory(sidecars)
    _move(directory, k, MANIFEST_NAME, manifest_path(prefix))
    syscalls.fsync_directory(sidecars)


def _is_staged(directory: str, k: int, name: str) -> bool:
    return os.path.exists(os.path.join(directory, f"{k}.{name}"))


def _move(directory: str, k: int, name: str, target: str) -> None:
    if _is_staged(directory, k, name):
        syscalls.replace(os.path.join(directory, f"{k}.{name}"), target)
    elif not os.path.exists(target):
        raise IntegrityError(
            f"{target} cannot be published: neither it nor its staged file is there any more",
            path=target,
            hint="start over with --no-resume",
        )
