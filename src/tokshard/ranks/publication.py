"""Publication of a plan: rank manifests and the description of the samples first, ``plan.json`` last."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from tokshard.core.json_text import dump_readable_json
from tokshard.dataset.products import PLAN_NAME, RANK_NAME, rank_name
from tokshard.dataset.source import InputFile
from tokshard.errors import OlderVersionError, OutputExistsError, TokshardError, ignore_older
from tokshard.ranks.manifests import RankManifest
from tokshard.ranks.plan import Plan
from tokshard.ranks.sources import SOURCES_NAME, PathResolver, PlanSources
from tokshard.storage import fs, syscalls
from tokshard.storage.files import AtomicFile
from tokshard.storage.lock import WriterLock
from tokshard.storage.publication import publish, staging_directory
from tokshard.storage.reading import open_file, read_document

LOCK_NAME = ".plan.lock"
_WORK_NAME = ".plan.work"
_WRITERS = 8
_OUR_SCHEMA = b'"schema": "tokshard.'
_BEGINNING_BYTES = 200


def write_plan(plan: Plan, directory: str | os.PathLike[str], *, force: bool = False) -> dict[str, int]:
    """Write a plan: the ranks' manifests, and ``plan.json`` last. Every file appears whole or not at all.

    Args:
        plan: The plan.
        directory: The directory of the plan, created if missing; files of other programs in it are kept.
        force: Whether to replace another plan.

    Returns:
        The size of each file, by name.

    Raises:
        UsageError: A file would be too large to be read back.
        MissingFileError, IntegrityError: Files of a re-weighted blend belong into the directory, but do not
            exist or differ: :func:`tokshard.replan` writes them.
        OutputExistsError: The directory holds another plan, or a file of another program under the name of
            one of its files.
        LockedError: Another process is writing a plan there.
        StorageError: The disk is full or broken. There is no plan then, or the old one.
    """
    output = os.fspath(directory)
    work = os.path.join(output, _WORK_NAME)
    syscalls.make_directory(output)
    with WriterLock(os.path.join(output, LOCK_NAME)), staging_directory(output, work, force=force):
        _check_own_arrays(plan, output)
        _refuse_other(plan, output, force=force)
        if not force:
            _refuse_foreign(output)
        ranks = [rank_name(rank) for rank in range(plan.topology.world_size)]
        contents = {name: RankManifest.of(plan, rank).to_bytes() for rank, name in enumerate(ranks)}
        if plan.sources.blend_id is None:
            sources = {name: stream.source for name, stream in plan.streams.items()}
            contents[SOURCES_NAME] = PlanSources(sources).stored_in(output)
        first = list(contents)
        hint = "merge some of the datasets with tokshard merge"
        stored = plan
        if plan.sources.blend_id is not None:
            path = PathResolver(output).stored(plan.sources.path)
            stored = replace(plan, sources=replace(plan.sources, path=path))
        contents[PLAN_NAME] = dump_readable_json(stored.to_json(), PLAN_NAME, hint=hint)
        exists = fs.lexists(os.path.join(output, PLAN_NAME))
        replaced = [name for name in os.listdir(output) if _is_beside_plan(name)]
        # A plan that is written again stays as it is: jobs may be reading it.
        if not (exists and set(replaced) == set(first) and _hold(output, contents)):
            _stage(work, contents)
            publish(
                output,
                work,
                {name: name for name in first},
                last={PLAN_NAME: PLAN_NAME},
                removes=replaced,
                replaces=force or exists,
            )
    return {name: len(content) for name, content in contents.items()}


def _check_own_arrays(plan: Plan, directory: str) -> None:
    # A dry run of new weights has not written them, and the plan would seem complete without them.
    for stream in plan.streams.values():
        arrays = stream.source.order
        if arrays is not None and os.path.dirname(os.path.abspath(arrays.path_prefix)) == os.path.abspath(
            directory
        ):
            arrays.check()


def _hold(directory: str, contents: dict[str, bytes]) -> bool:
    """Return whether all files have these contents."""
    for name, content in contents.items():
        try:
            with open_file(os.path.join(directory, name)) as file:
                if file.read(len(content) + 1) != content:
                    return False
        except OSError:
            return False
    return True


def _stage(directory: str, contents: dict[str, bytes]) -> None:
    # Forced to the disk together: one by one, with the directory each time, a thousand small files would take
    # seconds on a busy disk.
    paths = []
    for name, content in contents.items():
        paths.append(os.path.join(directory, name))
        with AtomicFile(paths[-1], durable=False) as file:
            file.write(content)
    with ThreadPoolExecutor(_WRITERS) as executor:
        for done in [executor.submit(_force, path) for path in paths]:
            done.result()
    syscalls.fsync_directory(directory)


def _force(path: str) -> None:
    file = InputFile(path)
    syscalls.fsync(file.descriptor, path)


def _refuse_other(plan: Plan, directory: str, *, force: bool) -> None:
    path = os.path.join(directory, PLAN_NAME)
    if not fs.lexists(path):
        return
    try:
        is_same = read_document(Plan, path).plan_id == plan.plan_id
    except OlderVersionError as error:
        ignore_older(error, "it is replaced")
        return
    except (TokshardError, OSError):
        is_same = False
    if not is_same and not force:
        raise OutputExistsError(
            f"another plan exists: {path}", hint="pass --force to replace it, or another --output"
        )


def _refuse_foreign(directory: str) -> None:
    for name in sorted(filter(_is_beside_plan, os.listdir(directory))):
        path = os.path.join(directory, name)
        if not _is_ours(path):
            raise OutputExistsError(
                f"cannot write the plan: {path} belongs to another program",
                hint="pass another --output, or --force to replace it",
            )


def _is_beside_plan(name: str) -> bool:
    return name == SOURCES_NAME or RANK_NAME.fullmatch(name) is not None


def _is_ours(path: str) -> bool:
    # A damaged manifest is ours by its first field, and is replaced.
    try:
        with open_file(path) as file:
            return _OUR_SCHEMA in file.read(_BEGINNING_BYTES)
    except OSError:
        return False
