"""Discovery of the inputs of a run: the files, and the commits of the Hub's datasets among them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tokshard.core.progress import Progress
from tokshard.corpus.dataset_selection import DatasetChoice, DatasetSelector
from tokshard.corpus.files import CorpusFile, discover
from tokshard.dataset.plan import HubDatasetRecord
from tokshard.tokenization.options import TokenizeOptions

if TYPE_CHECKING:
    from tokshard.dataset.manifest import Manifest


class DiscoveredInputs(NamedTuple):
    """The inputs of a run.

    Attributes:
        hub_datasets: The datasets of the Hub among the inputs; None without.
    """

    files: tuple[CorpusFile, ...]
    hub_datasets: tuple[HubDatasetRecord, ...] | None = None


def discover_inputs(options: TokenizeOptions, progress: Progress) -> DiscoveredInputs:
    """Return the inputs that the options name; see :func:`tokshard.corpus.files.discover`.

    Branches and tags of datasets on the Hub become commits: those of an unfinished run for the same output,
    if it may be resumed.
    """
    selector = DatasetSelector(
        DatasetChoice(options.config, options.split),
        unfinished=lambda: _unfinished_datasets(options),
        finished=lambda: _finished_output(options),
    )
    files = discover(options.input_names, selector)
    for text in selector.messages:
        progress.message(text)
    return DiscoveredInputs(files, tuple(selector.records) or None)


def _unfinished_datasets(options: TokenizeOptions) -> list[HubDatasetRecord]:
    from tokshard.dataset.delivery import delivery_to
    from tokshard.dataset.workdir import WorkDirectory

    if not options.resume:
        return []
    delivery = delivery_to(options.prefix, local_dir=options.local_dir, keep=options.keep_local)
    prefix = options.prefix if delivery is None else delivery.prefix
    found = [plan.hub_datasets for plan in WorkDirectory(prefix).earlier_plans()]
    # An output that waits for its upload is not finished, either.
    waiting = None if delivery is None else _manifest(options, prefix)
    found += [] if waiting is None else [waiting.hub_datasets]
    return [record for records in found for record in records or ()]


def _finished_output(options: TokenizeOptions) -> Manifest | None:
    return None if options.force else _manifest(options, options.prefix)


def _manifest(options: TokenizeOptions, prefix: str) -> Manifest | None:
    from tokshard.dataset.manifest import read_manifest
    from tokshard.errors import TokshardError

    try:
        return read_manifest(options.output_prefixes(prefix)[0])
    except TokshardError:  # reported when the output is compared with the plan
        return None
