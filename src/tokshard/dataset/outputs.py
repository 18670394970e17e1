"""Outputs of the commands that write datasets: what may be used, replaced or refused, and publication.

Only tokenize resumes a run (:mod:`tokshard.dataset.run`). Other commands start again, stage their output in
``PREFIX.tokshard/work`` and publish it; what a killed process has left there is removed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Literal

from tokshard.dataset.manifest import (
    MANIFEST_NAME,
    OPTIONAL_NAMES,
    UNITS_NAME,
    Manifest,
    adopt_command,
    check_sizes,
    file_of,
    manifest_path,
    read_manifest,
)
from tokshard.dataset.parameters import Build, BuildDifference, ConvertParameters, MergeParameters
from tokshard.errors import IntegrityError, OutputExistsError
from tokshard.storage import fs, paths, syscalls
from tokshard.storage.files import remove_if_empty
from tokshard.storage.lock import WriterLock
from tokshard.storage.publication import (
    complete_publication,
    publish,
    refuse_link,
    remove_staging,
    remove_temporary_files,
    staging_directory,
)

OutputState = Literal["new", "resume", "up-to-date", "exists"]
BuildAction = Literal["planned", "written", "found"]
Manifests = tuple[Manifest, ...]

LOCK_NAME = "lock"
WORK_NAME = "work"
JOB_NAME = "run.json"
"""The file of an unfinished run of tokenize, see :mod:`tokshard.dataset.run`."""


def work_directory(prefix: str) -> str:
    """Return the directory in which the output at a prefix is staged."""
    return os.path.join(paths.sidecar_directory(prefix), WORK_NAME)


@dataclass(frozen=True, slots=True)
class Outputs:
    """The datasets that a build writes.

    Attributes:
        build: What determines their bytes.
        prefixes: The path prefix of each output; local, except for :meth:`finished` and
            :meth:`refuse_existing`.
        force: Whether existing files are replaced.
        encoders: The encoders whose documents an existing output may have. If None, any.
        work_prefix: The prefix whose work directory they are staged in. If None, the first output.
    """

    build: Build
    prefixes: tuple[str, ...]
    force: bool
    encoders: frozenset[str] | None = None
    work_prefix: str | None = None

    @property
    def work(self) -> str:
        """The directory in which the outputs are staged."""
        return work_directory(self.work_prefix or self.prefixes[0])

    def finished(self) -> Manifests | None:
        """Return the manifests of the outputs if all exist and were made by an equal build.

        Output of a pipe is never used again: the input can differ each time.

        Raises:
            IntegrityError: The size of a file differs from its manifest.
        """
        manifests = []
        for prefix in self.prefixes:
            manifest = read_manifest(prefix)
            if manifest is None or not self._accepts(manifest):
                return None
            try:
                check_sizes(prefix, manifest)
            except IntegrityError:
                if read_manifest(prefix) != manifest:  # another process is removing it
                    return None
                raise
            manifests.append(manifest)
        return tuple(manifests)

    def up_to_date(self) -> Manifests | None:
        """Return the manifests if there is nothing to do. The caller needs no lock.

        Leftovers of an earlier run count as work to do.
        """
        sidecars = paths.sidecar_directory(self.work_prefix or self.prefixes[0])
        has_leftovers = any(os.path.lexists(os.path.join(sidecars, name)) for name in (WORK_NAME, LOCK_NAME))
        return None if self.force or has_leftovers else self.finished()

    def state(self) -> OutputState:
        """Return the state that a run of tokenize would start from, for a dry run."""
        if not self.force and self.finished() is not None:
            return "up-to-date"
        return "exists" if self._existing() else "new"

    def state_of_new(self) -> OutputState:
        """Return the state that :meth:`stage_and_publish` would start from, for a dry run."""
        state = self.state()
        return "exists" if state == "new" and not self.force and self._has_run() else state

    def refuse_existing(self, state: str = "exists already and ") -> None:
        """Raise OutputExistsError if files of an output exist and may not be replaced."""
        if self.force or not (existing := self._existing()):
            return
        manifests = [found for prefix in self.prefixes if (found := read_manifest(prefix)) is not None]
        differences = tuple(
            dict.fromkeys(
                str(difference) for manifest in manifests for difference in self._differences(manifest)
            )
        )
        hint = "pass --force to replace it, or choose another --output"
        if differences:
            reason = f"was made from other inputs or options: {'; '.join(differences)}"
        elif not self.build.is_repeatable:
            reason = "cannot be compared with what comes through a pipe"
        elif manifests:
            reason = "is incomplete, or its inputs have changed"
        elif older := [prefix for prefix in self.prefixes if fs.lexists(manifest_path(prefix))]:
            reason = "was made by an earlier version of tokshard"
            hint += f", or keep it: {adopt_command(older[0])}"
        else:
            reason = "has no manifest: tokshard did not write it"
        raise OutputExistsError(f"{existing[0]} {state}{reason}", differences=differences, hint=hint)

    @contextmanager
    def locked(self, *, shared: bool = False) -> Iterator[None]:
        """Hold the writer locks of all outputs; on exit, remove directories that are empty."""
        with ExitStack() as locks:
            # An output PREFIX_<field>_document is also the output of a run that was given that prefix.
            for prefix in sorted({*self.prefixes, self.work_prefix or self.prefixes[0]}):
                locks.enter_context(locked_output(prefix, shared=shared))
            yield

    def recover(self) -> Manifests | None:
        """Complete what an earlier run has staged; return the manifests if the outputs exist now.

        The caller holds the locks.

        Raises:
            OutputExistsError: An output exists, and was not made by an equal build.
        """
        sidecars, work = os.path.dirname(self.work), self.work
        refuse_link(sidecars)
        refuse_link(work)
        remove_temporary_files(sidecars)
        if complete_publication(self._directory, work, force=self.force):
            remove_staging(work)
            # It is what this run would write, even if it was asked to replace an earlier output.
            if (done := self.finished()) is not None:
                return done
        if not self.force and (done := self.finished()) is not None:
            if not self._has_run():  # which may have finished units of other options
                remove_staging(work)
            return done
        self.refuse_existing()
        if not self.force:
            # Without a dataset it is a leftover. One that appears later is another program's.
            for path in filter(fs.lexists, map(manifest_path, self.prefixes)):
                syscalls.unlink(path)
        return None

    def publish(self, manifests: Sequence[Manifest]) -> None:
        """Give the staged files their final names; staged files are named ``K.NAME`` for output K.

        Raises:
            OutputExistsError: Another program has created a file of an output during the run.
        """
        files: dict[str, str] = {}
        markers: dict[str, str] = {}
        removes: list[str] = []
        for k, (prefix, manifest) in enumerate(zip(self.prefixes, manifests, strict=True)):
            names = manifest.files.by_name()
            for name in names:
                files[f"{k}.{name}"] = self._final_name(prefix, name)
            markers[f"{k}.{MANIFEST_NAME}"] = self._final_name(prefix, MANIFEST_NAME)
            # Without a dataset, files in its sidecar directory are leftovers.
            removes += (self._final_name(prefix, name) for name in (UNITS_NAME, *OPTIONAL_NAMES))
            if self.force:
                removes.append(self._final_name(prefix, "idx"))
        publish(self._directory, self.work, files, last=markers, removes=removes, replaces=self.force)

    def stage_and_publish(self, stage: Callable[[str], Manifest]) -> tuple[Manifests, BuildAction]:
        """Stage the only output with ``stage``, given the staging directory, and publish it.

        Returns:
            The manifest, and whether the output was found or written.
        """
        if (done := self.up_to_date()) is not None:
            return done, "found"
        with self.locked():
            if (done := self.recover()) is not None:
                return done, "found"
            self._refuse_unfinished_run()
            with staging_directory(self._directory, self.work):
                manifest = stage(self.work)
                self.publish([manifest])
        return (manifest,), "written"

    def _refuse_unfinished_run(self) -> None:
        if not self.force and self._has_run():
            raise OutputExistsError(
                f"{self.work} contains unfinished work of tokenize",
                hint="finish it with `tokshard tokenize`, choose another --output, or pass --force",
            )

    def _has_run(self) -> bool:
        return fs.lexists(os.path.join(self.work, JOB_NAME))

    @property
    def _directory(self) -> str:
        return os.path.dirname(self.prefixes[0])

    def _final_name(self, prefix: str, name: str) -> str:
        return os.path.relpath(file_of(prefix, name), self._directory or ".")

    def _existing(self) -> list[str]:
        candidates = [path(prefix) for prefix in self.prefixes for path in (paths.bin_path, paths.idx_path)]
        return [path for path in candidates if fs.lexists(path)]

    def _differences(self, manifest: Manifest) -> Iterator[BuildDifference]:
        options, inputs = manifest.options, self.build.inputs
        if isinstance(options, MergeParameters) and isinstance(self.build.options, MergeParameters):
            # Its manifest lists the inputs of its inputs.
            if options.inputs != self.build.options.inputs:
                yield BuildDifference("inputs", "", list(options.inputs), list(self.build.options.inputs))
        elif options.TAG == self.build.options.TAG:
            inputs = tuple(source.state for source in manifest.inputs)
        if isinstance(options, ConvertParameters):
            options = replace(options, append_eod=None)  # found while the inputs were read
        made = Build(inputs=inputs, tokenizer=manifest.tokenizer, options=options)
        yield from made.differences(self.build)
        made_by = sorted(manifest.counts.encoders)
        is_encoded = options.TAG == self.build.options.TAG
        if self.encoders is not None and is_encoded and not self.encoders.issuperset(made_by):
            yield BuildDifference("option", "--encoder", ", ".join(made_by), ", ".join(sorted(self.encoders)))

    def _accepts(self, manifest: Manifest) -> bool:
        is_equal = self.build.is_repeatable and manifest.fingerprint == self.build.fingerprint
        return is_equal and not any(self._differences(manifest))


@contextmanager
def locked_output(prefix: str, *, shared: bool = False) -> Iterator[None]:
    """Hold the writer lock of an output; on exit, remove ``PREFIX.tokshard`` if it is empty."""
    sidecars = paths.sidecar_directory(prefix)
    refuse_link(sidecars)
    syscalls.make_directory(sidecars)
    try:
        with WriterLock(os.path.join(sidecars, LOCK_NAME), shared=shared):
            yield
    finally:
        if not os.path.islink(sidecars):
            remove_if_empty(sidecars)
