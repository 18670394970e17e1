"""A run that can be resumed: parts, the streams that they are appended to, and checkpoints.

``PREFIX.tokshard/work`` exists while a run is unfinished, and holds

- ``run.json``: the tokenizer and the options of the run. Everything else fits them.
- ``parts/NAME``: the finished units, each a file that is complete or absent. The name has the identity of the
  input (path, size, and version or time) and the number of the unit, so that another run uses the parts of
  inputs that have not changed, whatever was added, removed or corrected.
- ``K.STREAM``: the streams of output K, to which parts are appended in order (:mod:`.concatenate`).
- ``journal.jsonl``: a line for each unit that was appended, and *checkpoints*. A checkpoint has the sizes of
  the streams after everything before it was forced to the disk, and one digest of all of them but the
  tokens, whose digests are in the units, and of the journal so far. A part is removed after the checkpoint
  that covers it.

A run continues from the last checkpoint that the files agree with. What came later is done again, as are
parts that are damaged.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

import xxhash

from tokshard.core.codec import Count, Document, Record, Xxh3, decode, encode
from tokshard.core.formatting import counted
from tokshard.core.json_text import parse_json_object
from tokshard.dataset.concatenate import Concatenation, StreamName
from tokshard.dataset.outputs import JOB_NAME, Manifests, Outputs
from tokshard.dataset.parameters import Build, HubDatasetRecord, TokenizeParameters
from tokshard.dataset.tokenizer_identity import TokenizerIdentity
from tokshard.errors import IntegrityError, OlderVersionError, OutputExistsError
from tokshard.storage import fs, syscalls
from tokshard.storage.files import (
    AppendFile,
    remove_tree,
    temporary_path,
    write_atomically,
)
from tokshard.storage.publication import is_begun, remove_staging, remove_temporary_files
from tokshard.storage.reading import iter_blocks, open_file, read_document

JOURNAL_NAME = "journal.jsonl"
# The file of an unfinished run of an earlier version.
_OLD_JOB_NAME = "plan.json"
_MAX_LINE_BYTES = 4 << 20

EntryT = TypeVar("EntryT", bound=Record)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunJob(Document):
    """The tokenizer and the options of an unfinished run, which its parts depend on.

    Attributes:
        hub_datasets: Datasets of the Hugging Face Hub among the inputs: the next attempt reads the same
            commits.
    """

    SCHEMA = "tokshard.run/2"

    tokenizer: TokenizerIdentity | None
    options: TokenizeParameters
    hub_datasets: tuple[HubDatasetRecord, ...] | None = None

    def differences(self, now: RunJob) -> tuple[str, ...]:
        """Return what differs in another attempt, one phrase each."""
        was, is_now = (Build(inputs=(), tokenizer=job.tokenizer, options=job.options) for job in (self, now))
        return tuple(map(str, was.differences(is_now)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint(Record):
    """A line of the journal: a state from which a run can continue.

    Attributes:
        sizes: The size of each stream in bytes, by file name.
        digest: XXH3-128 of the digests of the streams, tokens excepted, and of the journal before the line.
    """

    sizes: dict[str, Count]
    digest: Xxh3


class Run(Generic[EntryT]):
    """The work directory of a run. The caller holds the locks of the outputs.

    Args:
        outputs: The outputs.
        job: The tokenizer and the options.
        entry: The class of the journal's entries, one for each unit.

    Example::

        with outputs.locked():
            run = Run(outputs, job, AppendedUnit)
            if (done := run.recover()) is None:
                run.begin(count_finished)
                ...
                run.publish(manifests)
    """

    def __init__(self, outputs: Outputs, job: RunJob, entry: type[EntryT]) -> None:
        self.outputs = outputs
        self.job = job
        self.directory = outputs.work
        self._entry = entry
        self._journal: AppendFile | None = None
        self._journal_digest = xxhash.xxh3_128()
        self._streams: list[Concatenation] = []

    @property
    def parts(self) -> str:
        """The directory of the parts."""
        return os.path.join(self.directory, "parts")

    @property
    def raw(self) -> str:
        """The directory in which decompressed units wait for workers."""
        return os.path.join(self.directory, "raw")

    def recover(self) -> Manifests | None:
        """Complete what an earlier run has staged; return the manifests if the outputs exist now.

        Then work of the same options is removed. Work of other options stays: ``--force`` may have begun it.

        Raises:
            OutputExistsError: An output exists, and was not made by an equal build.
        """
        done = self.outputs.recover()
        if done is not None:
            self.remove_same()
        return done

    def remove_same(self) -> None:
        """Remove the work directory if its work is of these options; the outputs exist."""
        with suppress(OutputExistsError):  # of an earlier version
            if self.is_continued(self.earlier_job()):
                remove_staging(self.directory)

    def begin(self, count_finished: Callable[[], int], *, resume: bool = True) -> None:
        """Continue the work of an equal job, or start again.

        Args:
            count_finished: Returns how many finished units the work directory has that this run accepts.
            resume: Whether to continue; if not, all finished units are removed.

        Raises:
            OutputExistsError: The finished units are of another tokenizer or other options, and the outputs
                may not be replaced; or of an earlier version of tokshard.
        """
        self._remove_what_is_no_file()
        earlier = self.earlier_job() if resume else None
        if not self.is_continued(earlier):
            if earlier is not None and not self.outputs.force and (units := count_finished()):
                raise self._other_work(earlier, units)
            remove_staging(self.directory)
        if (earlier := self.earlier_job()) is None:
            self._create()
        else:
            remove_temporary_files(self.directory)
            remove_temporary_files(self.parts)
            if earlier != self.job:  # of a dataset of the Hub, another commit
                self._write_job(self.directory)
        remove_tree(self.raw)
        syscalls.make_directory(self.raw)

    def _remove_what_is_no_file(self) -> None:
        """Remove links, pipes and directories in the place of files and directories of this run.

        A link to a directory of the user would be emptied like one of ours.
        """
        if not os.path.isdir(self.directory):
            return
        for directory in (self.directory, self.parts):
            syscalls.make_directory(directory)
            with os.scandir(directory) as entries:
                for entry in list(entries):
                    is_directory = entry.path in (self.parts, self.raw)
                    kind = entry.is_dir if is_directory else entry.is_file
                    if not kind(follow_symlinks=False):
                        remove_tree(entry.path)

    def begin_shared(self, count_finished: Callable[[], int]) -> None:
        """Create the work directory unless it exists, while other processes may do the same.

        Raises:
            OutputExistsError: It is of another tokenizer or other options, or of no run.
        """
        if (earlier := self.earlier_job()) is None and not os.path.isdir(self.directory):
            self._create()
            earlier = self.earlier_job()
        # Without locks, a task cannot tell whether others are at work.
        start_again = "remove the directory when no task is at work"
        if earlier is None:
            raise OutputExistsError(
                f"{self.directory} has no readable {JOB_NAME}: it is damaged, or not of a run of tokenize",
                hint=f"{start_again}, and run the task again",
            )
        if not self.is_continued(earlier):
            raise self._other_work(earlier, count_finished(), start_again)

    def is_continued(self, earlier: RunJob | None) -> bool:
        """Tell whether the work of a job is continued by this run."""
        job = self.job
        return (
            earlier is not None
            and self.outputs.build.is_repeatable
            and (earlier.tokenizer, earlier.options) == (job.tokenizer, job.options)
        )

    def earlier_job(self) -> RunJob | None:
        """Return the job of the work directory; None if there is none, or it cannot be read.

        Raises:
            OutputExistsError: It is of an earlier version of tokshard.
        """
        return read_job(self.directory)

    def open(
        self,
        streams: Sequence[Sequence[StreamName]],
        continue_with: Callable[[Sequence[EntryT]], bool],
        return_to_parts: Callable[[Sequence[EntryT], Mapping[str, int]], None],
    ) -> bool:
        """Open the streams of all outputs as they were at the last checkpoint that can be continued.

        Args:
            streams: The streams of each output.
            continue_with: Given the units of a checkpoint, tells whether they are the next ones of this run.
            return_to_parts: Given all units after those, and the sizes of the streams before them, makes
                parts of those that this run needs. Then they are removed from the streams.

        Returns:
            Whether later checkpoints are damaged, so that units are done again.
        """
        names = [f"{k}.{name}" for k, of_output in enumerate(streams) for name in of_output]
        digests = _Digests(self.directory, names)
        sizes: Mapping[str, int] = {}
        journal_bytes = 0
        others: list[EntryT] = []
        is_damaged = False
        checked, checked_sizes, checked_bytes = digests, sizes, 0
        for entries, checkpoint, position in _checkpoints(self._journal_path, self._entry):
            following = checked.at(checkpoint, checked_sizes, checked_bytes, position)
            if following is None:
                is_damaged = True
                break
            checked, checked_sizes, checked_bytes = following, checkpoint.sizes, position
            if others or not continue_with(entries):
                others += entries
            else:
                digests, sizes, journal_bytes = checked, checked_sizes, checked_bytes
        if others:
            return_to_parts(others, sizes)
        self._journal = AppendFile(self._journal_path, journal_bytes)
        self._journal_digest = digests.journal
        for k, of_output in enumerate(streams):
            output = Concatenation(self.directory, of_output, k=k, sizes=sizes)
            for name in output.digests:
                output.digests[name] = digests.of[f"{k}.{name}"]
            self._streams.append(output)
        return is_damaged

    @property
    def streams(self) -> Sequence[Concatenation]:
        """The streams of each output."""
        return self._streams

    def record(self, entry: EntryT) -> None:
        """Add a unit that was appended to the streams."""
        self._write(encode(entry))

    def checkpoint(self) -> None:
        """Force the streams and the journal to the disk.

        Raises:
            StorageError: A write failed. The run continues from the checkpoint before.
        """
        files = {
            f"{k}.{name}": file
            for k, output in enumerate(self._streams)
            for name, file in output.files.items()
        }
        for file in files.values():
            file.sync()
        digests = {
            f"{k}.{name}": digest
            for k, output in enumerate(self._streams)
            for name, digest in output.digests.items()
        }
        sizes = {name: file.size_bytes for name, file in files.items()}
        self._write(encode(Checkpoint(sizes=sizes, digest=_combined(sizes, digests, self._journal_digest))))
        if self._journal is not None:
            self._journal.sync()

    def publish(self, manifests: Manifests) -> None:
        """Give the staged outputs their final names, and remove the work directory.

        Raises:
            OutputExistsError: Another program has created a file of an output. All finished units are kept.
        """
        self.close()  # NFS keeps an open file that is removed in its directory, under another name
        self.outputs.publish(manifests)
        remove_staging(self.directory)

    def close(self) -> None:
        """Close all files; safe to call twice."""
        for output in self._streams:
            output.close()
        if self._journal is not None:
            self._journal.close()

    def remove(self) -> None:
        """Close all files, and remove the work directory."""
        self.close()
        remove_staging(self.directory)

    def remove_unless_finished(self, has_finished: Callable[[], bool]) -> None:
        """Remove the work directory if a later run could use nothing of it."""
        if not is_begun(self.directory) and not (self.outputs.build.is_repeatable and has_finished()):
            self.remove()

    @property
    def _journal_path(self) -> str:
        return os.path.join(self.directory, JOURNAL_NAME)

    def _create(self) -> None:
        # In one rename: tasks of a job array may do the same at the same time.
        new = temporary_path(self.directory)
        for directory in (new, os.path.join(new, "parts")):
            syscalls.make_directory(directory)
        self._write_job(new)
        try:
            syscalls.replace(new, self.directory)
        except OSError:
            remove_tree(new)
            if not os.path.isdir(self.directory):
                raise
        syscalls.fsync_directory(os.path.dirname(self.directory))

    def _write_job(self, directory: str) -> None:
        write_atomically(os.path.join(directory, JOB_NAME), self.job.to_bytes())

    def _other_work(
        self,
        earlier: RunJob | None,
        units: int,
        start_again: str = "--force to remove the finished units and start again",
    ) -> OutputExistsError:
        found = () if earlier is None else earlier.differences(self.job)
        what = f"of other options: {'; '.join(found)}" if found else "that a run of a pipe cannot use"
        return OutputExistsError(
            f"{self.directory} has {counted(units, 'finished unit')} {what}",
            differences=found,
            hint=f"pass the same options to resume, or {start_again}",
        )

    def _write(self, value: object) -> None:
        line = json.dumps(value, separators=(",", ":")).encode("ascii") + b"\n"
        if self._journal is not None:
            self._journal.write(line)
        self._journal_digest.update(line)


def read_journal(directory: str, entry: type[EntryT]) -> Iterator[list[EntryT]]:
    """Yield the entries of a work directory up to each checkpoint, and up to the first damaged line."""
    for entries, _, _ in _checkpoints(os.path.join(directory, JOURNAL_NAME), entry):
        yield entries


def _checkpoints(path: str, entry: type[EntryT]) -> Iterator[tuple[list[EntryT], Checkpoint, int]]:
    """Yield the entries before each checkpoint, the checkpoint, and the offset of the end of its line."""
    entries: list[EntryT] = []
    position = 0
    for line in _lines(path):
        position += len(line)
        try:
            value = parse_json_object(line, JOURNAL_NAME)
            if "sizes" not in value:
                entries.append(decode(entry, value, JOURNAL_NAME))
                continue
            checkpoint = decode(Checkpoint, value, JOURNAL_NAME)
        except IntegrityError:
            return
        yield entries, checkpoint, position
        entries = []


def read_job(directory: str) -> RunJob | None:
    """Return the job of a work directory; None if there is none, or it cannot be read.

    Raises:
        OutputExistsError: It is of an earlier version of tokshard.
    """
    try:
        return read_document(RunJob, os.path.join(directory, JOB_NAME))
    except OlderVersionError as error:
        raise _older(directory) from error
    except (FileNotFoundError, NotADirectoryError, IntegrityError):
        if fs.lexists(os.path.join(directory, _OLD_JOB_NAME)):
            raise _older(directory) from None
        return None


def _older(directory: str) -> OutputExistsError:
    return OutputExistsError(
        f"cannot resume the work in {directory}: it is of an earlier version of tokshard",
        hint="finish it with that version, or start again with --no-resume",
    )


class _Digests:
    """Running digests of the streams without tokens, and of the journal.

    Args:
        names: The file names of all streams.
    """

    def __init__(self, directory: str, names: Sequence[str]) -> None:
        self._directory = directory
        self._names = names
        self.of = {name: xxhash.xxh3_128() for name in names if name.partition(".")[2] != "bin"}
        self.journal = xxhash.xxh3_128()

    def at(self, checkpoint: Checkpoint, sizes: Mapping[str, int], begin: int, end: int) -> _Digests | None:
        """Return the digests at the next checkpoint; None if the files are not what was recorded.

        Args:
            checkpoint: The checkpoint.
            sizes: The sizes of the files at the checkpoint before it.
            begin: The size of the journal up to that one.
            end: The size of the journal with the line of the checkpoint.
        """
        following = _Digests(self._directory, self._names)
        following.of = {name: digest.copy() for name, digest in self.of.items()}
        following.journal = self.journal.copy()
        for name in self._names:
            path = os.path.join(self._directory, name)
            start, stop = sizes.get(name, 0), checkpoint.sizes.get(name, -1)
            if not fs.isfile(path) or not start <= stop <= os.path.getsize(path):
                return None
            if name in following.of:
                for block in iter_blocks(path, start, stop):
                    following.of[name].update(block)
        journal = iter_blocks(os.path.join(self._directory, JOURNAL_NAME), begin, end)
        *lines, last = b"".join(journal).splitlines(True)
        following.journal.update(b"".join(lines))
        if _combined(checkpoint.sizes, following.of, following.journal) != checkpoint.digest:
            return None
        following.journal.update(last)
        return following


def _combined(
    sizes: Mapping[str, int], digests: Mapping[str, xxhash.xxh3_128], journal: xxhash.xxh3_128
) -> str:
    parts = [f"{name} {size}" for name, size in sorted(sizes.items())]
    parts += [f"{name} {digest.hexdigest()}" for name, digest in sorted(digests.items())]
    return xxhash.xxh3_128_hexdigest("\n".join([*parts, journal.hexdigest()]).encode())


def _lines(path: str) -> Iterator[bytes]:
    """Yield the lines of the journal up to the first that is cut or too long, and so has no line break."""
    try:
        with open_file(path) as file:
            while (line := file.readline(_MAX_LINE_BYTES)).endswith(b"\n"):
                yield line
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return
