"""The source of an export as the user named it: its records, its fingerprint and its tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from tokshard.core.open_cache import OpenCache, affordable
from tokshard.dataset.index_file import read_header
from tokshard.dataset.manifest import is_multimodal, read_dataset_manifest
from tokshard.dataset.products import kind_of, sampled_kind
from tokshard.dataset.recorded_tokenizers import DatasetTokenizer
from tokshard.dataset.source import InputFile, Tokens
from tokshard.dataset.tokenizer_identity import compare
from tokshard.errors import MissingFileError, UsageError
from tokshard.exchange.manifest import ExportSource, SourceDataset, SourceKind
from tokshard.exchange.options import ExportOptions
from tokshard.exchange.records import DatasetRecords, Integers, Records
from tokshard.ranks.discovery import RequestedSamples, dataset_reference, open_sources
from tokshard.ranks.locator import Locator
from tokshard.ranks.plan import Stream, read_plan
from tokshard.ranks.sources import SampleSource
from tokshard.samples.index.samples import NO_PAD_ID, GPTSamples
from tokshard.storage.digest import identity_digest
from tokshard.storage.fs import abspath
from tokshard.storage.paths import idx_path, strip_data_suffix

Samples = TypeVar("Samples")
IdsOf = Callable[[int, int], Integers]

_DEFAULT_SPLIT = "train"
_OPEN_DATASETS = 64
# The maps of both files and of the three arrays of its index.
_FILES_OF_A_DATASET = 5


@dataclass(frozen=True, slots=True)
class OpenSource:
    """The records to export, and what is known of them.

    Attributes:
        records: The records.
        description: The source for the manifest.
        prefixes: The datasets, which must not change during the export.
        tokenizer: The tokenizer; with all fields unknown if it is mixed.
        tokenizer_path: The file that defines it, as recorded.
        id_limit: All token ids are below it; None if unknown.
        last_label: Whether samples have their last label; None for documents.
    """

    records: Records
    description: ExportSource
    prefixes: tuple[str, ...]
    tokenizer: DatasetTokenizer
    tokenizer_path: str | None
    id_limit: int | None
    last_label: bool | None = None


def open_source(options: ExportOptions, *, has_last_label: bool) -> OpenSource:
    """Open the source of an export; without an option, samples of the format have a last label or not.

    Raises:
        MissingFileError: It does not exist.
        UsageError: It is multimodal, or the options do not fit it.
        IntegrityError: It is damaged, or its indexes were built from other data.
    """
    return _samples(options, has_last_label=has_last_label) if options.samples else _dataset(options)


def _dataset(options: ExportOptions) -> OpenSource:
    prefix = strip_data_suffix(str(options.source))
    try:
        snapshot = dataset_reference(prefix)
    except MissingFileError as error:
        if (kind := sampled_kind(prefix)) is None:
            raise
        hint = f"pass --samples to export the samples: {prefix} is {kind}"
        raise MissingFileError(error.message, path=prefix, hint=hint) from None
    _refuse_modes([prefix])
    tokenizer, tokenizer_path, id_limit = _vocabulary((prefix,))
    dataset = SourceDataset(path_prefix=abspath(prefix), fingerprint=snapshot.fingerprint, bin=snapshot.bin)
    return OpenSource(
        DatasetRecords(prefix),
        ExportSource(kind="dataset", path=abspath(prefix), datasets=(dataset,)),
        (prefix,),
        tokenizer,
        tokenizer_path,
        id_limit,
    )


def _samples(options: ExportOptions, *, has_last_label: bool) -> OpenSource:
    path = str(options.source)
    split = options.split or _DEFAULT_SPLIT
    kind: SourceKind
    if kind_of(path) == "plan":
        plan = read_plan(path)
        stream = _of_split(plan.streams, split, path)
        source = stream.source
        kind = "plan"
        order = identity_digest([plan.plan_id, split])
        count = stream.order.samples
        ids_of = _planned_ids(stream)
    else:
        requested = RequestedSamples(
            split=split.partition(".")[0],
            missing_hint="build one with tokshard blend or tokshard build-indices, or omit --samples",
        )
        source = _of_split(open_sources([path], requested), split, path)
        kind = "blend" if source.kind == "blend" else "index"
        order = source.id
        count = source.total
        ids_of = _consecutive_ids
    last_label = options.last_label
    if last_label is None:
        last_label = has_last_label and source.extra_token
    records = _SampleRecords(options, source, count, ids_of, last_label=last_label)
    prefixes = tuple(dict.fromkeys(dataset.path_prefix for dataset in source.datasets))
    _refuse_modes(prefixes)
    tokenizer, tokenizer_path, id_limit = _vocabulary(prefixes)
    datasets = (
        SourceDataset(
            path_prefix=abspath(dataset.path_prefix), fingerprint=dataset.fingerprint, bin=dataset.bin
        )
        for dataset in source.datasets
    )
    return OpenSource(
        records,
        ExportSource(
            kind=kind, path=abspath(path), datasets=tuple(datasets), split=split, samples_sha256=order
        ),
        prefixes,
        tokenizer,
        tokenizer_path,
        id_limit,
        last_label,
    )


def _of_split(found: Mapping[str, Samples], split: str, path: str) -> Samples:
    if split not in found:
        raise UsageError(f"--split must be one of {', '.join(found)} for {path}, got {split!r}")
    return found[split]


def _vocabulary(prefixes: Sequence[str]) -> tuple[DatasetTokenizer, str | None, int | None]:
    """Return the tokenizer of datasets, all unknown if it is mixed; its path; and a limit of their ids."""
    manifests = [read_dataset_manifest(prefix) for prefix in prefixes]
    if None in manifests:
        return DatasetTokenizer(), None, None
    recorded = [manifest for manifest in manifests if manifest is not None]
    first = recorded[0]
    is_common = all(compare(first.tokenizer, other.tokenizer).verdict == "same" for other in recorded[1:])
    limits = [manifest.id_limit for manifest in recorded if manifest.id_limit is not None]
    return (
        first.dataset_tokenizer if is_common else DatasetTokenizer(),
        first.tokenizer_path,
        max(limits) if len(limits) == len(recorded) else None,
    )


def _refuse_modes(prefixes: Iterable[str]) -> None:
    for prefix in prefixes:
        if is_multimodal(prefix):
            raise UsageError(
                f"cannot export {prefix}: it is multimodal, and no format has modes",
                hint="export a text dataset",
            )


def _consecutive_ids(first: int, stop: int) -> Integers:
    """Return the ids of an index or a blend, which training reads in their order."""
    return np.arange(first, stop, dtype=np.int64)


def _planned_ids(stream: Stream) -> IdsOf:
    """Return the function to the ids that a plan reads, in consumption order."""
    key_of = stream.open_sort_key()
    return lambda first, stop: stream.order.ids(np.arange(first, stop, dtype=np.int64), key_of)


class _SampleRecords(Records):
    """Samples of one length, which are read as int64.

    ``ids_of`` returns the ids of the samples at consecutive positions. Without ``--pad-id``, samples that can
    be shorter than the others are refused.
    """

    NOUN = "sample"

    def __init__(
        self, options: ExportOptions, source: SampleSource, count: int, ids_of: IdsOf, *, last_label: bool
    ) -> None:
        name = str(options.source)
        pad_id = options.pad_id
        length = source.sequence_length
        if length is None:
            raise UsageError(
                f"--samples requires samples of a fixed length: those of {name} are documents",
                hint="export its datasets without --samples",
            )
        if last_label and not source.extra_token:
            raise UsageError(
                f"the samples of {name} have no last label", hint="pass --no-last-label to export them"
            )
        padded = [
            dataset.path_prefix
            for dataset in source.datasets
            if dataset.epochs is not None and dataset.epochs.has_padding
        ]
        if pad_id is None and padded:
            raise UsageError(
                f"--pad-id is required: samples of {padded[0]} can be shorter than the others",
                hint="pass the padding token id of the trainer with --pad-id",
            )
        self.name = name
        self.listener = lambda _: None
        self.count = count
        self.width = length + last_label
        self.tokens = count * self.width
        headers = (read_header(InputFile(idx_path(dataset.path_prefix))) for dataset in source.datasets)
        self.dtype = np.dtype(np.int64)
        self.token_dtype = max((header.dtype for header in headers), key=lambda dtype: dtype.itemsize)
        self._source = source
        self._ids_of = ids_of
        self._locator = Locator(source)
        self._pad_id = NO_PAD_ID if pad_id is None else pad_id
        self._open = OpenCache(self._opened, affordable(_OPEN_DATASETS, _FILES_OF_A_DATASET))

    def ends(self, first: int, stop: int) -> Integers:
        """Return the tokens before the end of each sample: int64 of shape (stop - first,)."""
        return np.arange(first + 1, stop + 1, dtype=np.int64) * self.width

    def read(self, target: Tokens, begin: int) -> None:
        """Read whole samples from token ``begin`` on into an int64 array."""
        rows = target.reshape(-1, self.width)
        first = begin // self.width
        datasets, samples = self._locator.locate(self._ids_of(first, first + len(rows)))
        for number in np.unique(datasets).tolist():
            is_of_dataset = datasets == number
            batch = self._open.get(number).read_batch(samples[is_of_dataset])
            rows[is_of_dataset] = batch[:, : self.width]

    def _opened(self, number: int) -> GPTSamples:
        reference = self._source.datasets[number]
        return GPTSamples(reference.open_dataset(), reference.open_index(), pad_id=self._pad_id)
