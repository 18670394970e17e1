"""Discovery of the inputs of a run: the files, and the commits of the Hub's datasets among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from tokshard.core.background import in_order
from tokshard.dataset.parameters import HubDatasetRecord
from tokshard.text.corpus.files import LOOKS_AT_ONCE, CorpusFile, discover
from tokshard.text.corpus.hub_datasets import HubDatasets
from tokshard.text.tokenize.options import TokenizeOptions

if TYPE_CHECKING:
    from tokshard.dataset.manifest import Manifest
    from tokshard.text.tokenize.job import TokenizeJob


class DiscoveredInputs(NamedTuple):
    """The inputs of a run.

    Attributes:
        hub_datasets: The datasets of the Hub among the inputs; None without.
    """

    files: tuple[CorpusFile, ...]
    hub_datasets: tuple[HubDatasetRecord, ...] | None = None


def discover_inputs(options: TokenizeOptions, tell: Callable[[str], None]) -> DiscoveredInputs:
    """Return the inputs that the options name; see :func:`tokshard.text.corpus.files.discover`.

    Branches and tags of datasets on the Hub become commits: those of an unfinished run for the same output,
    if it may be resumed.
    """
    hub = HubDatasets(
        options.config,
        options.split,
        unfinished=lambda: _unfinished_datasets(options),
        finished=lambda: _finished_output(options),
        tell=tell,
    )
    files = discover(options.input_names, hub, split=options.split, tell=tell)
    return DiscoveredInputs(files, tuple(hub.records) or None)


def first_problems(job: TokenizeJob) -> Iterator[str]:
    """Yield what is wrong with the first record of each input, if bad records are skipped.

    Pipes are not read: a later run could not read the record again.

    Raises:
        BadRecordError: The first record of an input is bad, and bad records are not skipped.
        InputError: An input cannot be read, or a table does not have the columns.
    """
    from tokshard.text.corpus.planning import first_rejected
    from tokshard.text.tokenize.job import ErrorPolicy

    files = [(number, file) for number, file in enumerate(job.files) if file.size_bytes is not None]
    # A thread that reads a table must not be left to the end of the process.
    at_once = LOOKS_AT_ONCE if all(file.has_lines for _, file in files) else 1
    records_of_files = in_order(
        (partial(first_rejected, number, file, job.reading) for number, file in files), at_once
    )
    for (_, file), records in zip(files, records_of_files, strict=True):
        for record in records:
            error = ErrorPolicy(skip=False, max_errors=None).refuse(file.path, record.line, record)
            if job.options.on_error != "skip":
                raise error
            yield f"the first record would be skipped: {error.message}"


def _unfinished_datasets(options: TokenizeOptions) -> list[HubDatasetRecord]:
    from tokshard.dataset.delivery import delivery_to
    from tokshard.dataset.outputs import work_directory
    from tokshard.dataset.run import read_job

    if not options.resume:
        return []
    delivery = delivery_to(options.prefix)
    prefix = options.prefix if delivery is None else delivery.prefix
    found = [read_job(work_directory(prefix))]
    # An output that waits for its upload is not finished, either.
    waiting = None if delivery is None else _manifest(options, prefix)
    return [record for made in (*found, waiting) if made is not None for record in made.hub_datasets or ()]


def _finished_output(options: TokenizeOptions) -> Manifest | None:
    return None if options.force else _manifest(options, options.prefix)


def _manifest(options: TokenizeOptions, prefix: str) -> Manifest | None:
    from tokshard.dataset.manifest import read_manifest
    from tokshard.errors import TokshardError

    try:
        return read_manifest(options.output_prefixes(prefix)[0])
    except TokshardError:  # reported when the output is compared with the build
        return None
