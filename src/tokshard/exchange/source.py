"""The source of an export as the user named it: opened, with its fingerprint and its tokenizer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tokshard.dataset.manifest import (
    is_multimodal,
    read_dataset_manifest,
    read_dataset_tokenizer,
    read_manifest,
)
from tokshard.dataset.products import kind_of, sampled_kind
from tokshard.dataset.tokenizer_agreement import DatasetTokenizer
from tokshard.dataset.tokenizer_identity import TokenizerIdentity, compare
from tokshard.errors import MissingFileError, UsageError
from tokshard.exchange.format import format_of
from tokshard.exchange.manifest import ExportSource, SourceDataset, SourceKind
from tokshard.exchange.options import ExportOptions
from tokshard.exchange.records import DatasetRecords, Records
from tokshard.exchange.samples import SampleRecords, consecutive_ids, open_stream, planned_ids
from tokshard.ranks.discovery import DatasetSnapshots, RequestedSamples, open_sources
from tokshard.ranks.sources import DatasetReference, SampleSource
from tokshard.storage.digest import identity_digest
from tokshard.storage.fs import abspath
from tokshard.storage.paths import strip_data_suffix

_DEFAULT_SPLIT = "train"


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


def open_source(options: ExportOptions) -> OpenSource:
    """Open the source of an export.

    Raises:
        MissingFileError: It does not exist.
        UsageError: It is multimodal, or the options do not fit it.
        IntegrityError: It is damaged, or its indexes were built from other data.
    """
    return _samples(options) if options.samples else _dataset(options)


def _dataset(options: ExportOptions) -> OpenSource:
    prefix = strip_data_suffix(str(options.source))
    try:
        snapshot = DatasetSnapshots().of(prefix)
    except MissingFileError as error:
        if (kind := sampled_kind(prefix)) is None:
            raise
        hint = f"pass --samples to export the samples: {prefix} is {kind}"
        raise MissingFileError(error.message, path=prefix, hint=hint) from None
    _refuse_modes([prefix])
    dataset = SourceDataset(path_prefix=abspath(prefix), fingerprint=snapshot.fingerprint, bin=snapshot.bin)
    return OpenSource(
        DatasetRecords(prefix),
        ExportSource(kind="dataset", path=abspath(prefix), datasets=(dataset,)),
        (prefix,),
        read_dataset_tokenizer(prefix),
        _tokenizer_path(prefix),
        _id_limit((prefix,)),
    )


def _samples(options: ExportOptions) -> OpenSource:
    path = str(options.source)
    split = options.split or _DEFAULT_SPLIT
    kind: SourceKind
    if kind_of(path) == "plan":
        plan, stream = open_stream(path, split)
        source = stream.source
        kind = "plan"
        order = identity_digest([plan.plan_id, split])
        count, ids_of = planned_ids(stream)
    else:
        source = _open_split(path, split)
        kind = "blend" if source.kind == "blend" else "index"
        order = source.id
        count = source.total
        ids_of = consecutive_ids
    last_label = options.last_label
    if last_label is None:
        last_label = format_of(options.to).HAS_LAST_LABEL and source.extra_token
    records = SampleRecords(path, source, count, ids_of, last_label=last_label, pad_id=options.pad_id)
    prefixes = tuple(dict.fromkeys(dataset.path_prefix for dataset in source.datasets))
    _refuse_modes(prefixes)
    return OpenSource(
        records,
        ExportSource(
            kind=kind,
            path=abspath(path),
            datasets=tuple(map(_source_dataset, source.datasets)),
            split=split,
            samples_sha256=order,
        ),
        prefixes,
        _common_tokenizer(prefixes),
        _tokenizer_path(prefixes[0]),
        _id_limit(prefixes),
        last_label,
    )


def _open_split(path: str, split: str) -> SampleSource:
    requested = RequestedSamples(
        split=split.partition(".")[0],
        missing_hint="build one with tokshard blend or tokshard build-indices, or omit --samples",
    )
    found = open_sources([path], requested)
    if split not in found:
        raise UsageError(f"--split must be one of {', '.join(found)} for {path}, got {split!r}")
    return found[split]


def _source_dataset(reference: DatasetReference) -> SourceDataset:
    return SourceDataset(
        path_prefix=abspath(reference.path_prefix), fingerprint=reference.fingerprint, bin=reference.bin
    )


def _refuse_modes(prefixes: Iterable[str]) -> None:
    for prefix in prefixes:
        if is_multimodal(prefix):
            raise UsageError(
                f"cannot export {prefix}: it is multimodal, and no format has modes",
                hint="export a text dataset",
            )


def _common_tokenizer(prefixes: Iterable[str]) -> DatasetTokenizer:
    found = [read_dataset_tokenizer(prefix) for prefix in prefixes]
    identities: list[TokenizerIdentity | None] = [tokenizer.identity for tokenizer in found]
    first = found[0]
    same = all(compare(first.identity, identity).verdict == "same" for identity in identities)
    return first if same else DatasetTokenizer()


def _id_limit(prefixes: Iterable[str]) -> int | None:
    manifests = [read_dataset_manifest(prefix) for prefix in prefixes]
    limits = [None if manifest is None else manifest.id_limit for manifest in manifests]
    known = [limit for limit in limits if limit is not None]
    return max(known) if len(known) == len(limits) else None


def _tokenizer_path(prefix: str) -> str | None:
    manifest = read_manifest(prefix)
    return None if manifest is None else manifest.tokenizer_path
