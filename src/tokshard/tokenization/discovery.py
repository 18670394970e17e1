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
    from tokshard.dataset.plan import BuildPlan


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
        unfinished=lambda: _unfinished_plans(options),
        finished=lambda: _finished_output(options),
    )
    files = discover(options.input_names, selector)
    for text in selector.messages:
        progress.message(text)
    return DiscoveredInputs(files, tuple(selector.records) or None)


def _unfinished_plans(options: TokenizeOptions) -> list[BuildPlan]:
    from tokshard.dataset.delivery import delivery_to
    from tokshard.dataset.workdir import WorkDirectory

    if not options.resume:
        return []
    delivery = delivery_to(options.prefix, local_dir=options.local_dir, keep=options.keep_local)
    return WorkDirectory(options.prefix if delivery is None else delivery.prefix).earlier_plans()


def _finished_output(options: TokenizeOptions) -> Manifest | None:
    from tokshard.dataset.manifest import read_manifest
    from tokshard.errors import TokshardError

    if options.force:
        return None
    try:
        return read_manifest(options.output_prefixes(options.prefix)[0])
    except TokshardError:  # reported when the output is compared with the plan
        return None
