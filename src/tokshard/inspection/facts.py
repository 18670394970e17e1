"""What inspected things are, in labelled lines and tables: the same words on the screen and on the page."""

from __future__ import annotations

from typing import Any

from tokshard.blending.certificate import SourceCertificate
from tokshard.blending.document import BlendSplit
from tokshard.core.formatting import Table, count, percent, size, tokenizer_name
from tokshard.dataset.manifest import Manifest
from tokshard.index_cache.description import GPTDatasetDescription
from tokshard.inspection.blends import BlendSummary
from tokshard.inspection.caches import CacheSummary
from tokshard.inspection.datasets import DatasetSummary
from tokshard.inspection.indexes import IndexSummary, OrderStatistics
from tokshard.inspection.indexfiles import IndexFiles
from tokshard.inspection.lengths import LengthSummary
from tokshard.inspection.tokenizers import TokenizerSummary

Facts = list[tuple[str, object]]

_SHOWN_INPUTS = 10
KINDS = {
    "single": "one dataset",
    "weighted": "a blend by weights",
    "proportional": "a proportional blend",
    "exhaustive": "every sample",
}


def dataset_facts(summary: DatasetSummary) -> Facts:
    """Return what a dataset is."""
    modes = ", multimodal" if summary.multimodal else ""
    empty = f" ({count(summary.empty_documents)} empty)" if summary.empty_documents else ""
    lines: Facts = [
        ("dataset", f"{summary.path_prefix} ({summary.dtype}{modes})"),
        ("documents", f"{count(summary.documents)}{empty}"),
        ("sequences", count(summary.sequences)),
        ("tokens", count(summary.tokens)),
        ("size", f".bin {size(summary.bin_bytes)}, .idx {size(summary.idx_bytes)}"),
    ]
    if summary.ends_with_eod is not None:
        checked = count(summary.eod_documents_checked)
        share = f"{100 * summary.ends_with_eod:.4g}%"
        lines.append(("EOD", f"{summary.eod_id}; {share} of {checked} documents end with it"))
    if summary.manifest is None:
        unknown = "none: the structure is sound, nothing is known of the content (unverified)"
        return [*lines, ("manifest", unknown)]
    return [*lines, *_manifest_facts(summary.manifest)]


def _manifest_facts(manifest: Manifest) -> Facts:
    identity = manifest.tokenizer
    vocabulary = f", {count(identity.vocab_size)} tokens" if identity else ""
    engines = manifest.encoder.documents.items()
    made_by = ", ".join(f"{count(documents)} documents by {name}" for name, documents in engines)
    compared = count(manifest.encoder.compared)
    lines: Facts = [
        ("tokenizer", f"{tokenizer_name(identity)}{vocabulary}"),
        ("engine", f"{made_by}; {compared} compared, no difference"),
        ("made by", f"{manifest.tool.name} {manifest.tool.version}"),
    ]
    for number, entry in enumerate(manifest.inputs[:_SHOWN_INPUTS]):
        rejected = f", {count(entry.rejected)} rejected" if entry.rejected else ""
        content = f"{size(entry.content_bytes)}, {count(entry.documents)} documents"
        lines.append(("" if number else "inputs", f"{entry.path}: {content}{rejected}"))
    if len(manifest.inputs) > _SHOWN_INPUTS:
        lines.append(("", f"and {len(manifest.inputs) - _SHOWN_INPUTS} more"))
    for number, (reason, records) in enumerate(sorted(manifest.counts.rejected.items())):
        lines.append(("" if number else "rejected", f"{count(records)} {reason}"))
    return lines


def bin_labels(lengths: LengthSummary) -> list[str]:
    """Return the labels of the bins of a histogram."""
    return [
        count(one.low) if one.low == one.high else f"{count(one.low)} - {count(one.high)}"
        for one in lengths.bins
    ]


def range_of(lengths: LengthSummary) -> str:
    """Return the smallest, the largest and the mean."""
    mean = f"{lengths.mean:,.1f}" if lengths.mean >= 100 else f"{lengths.mean:.3g}"
    return f"{count(lengths.shortest)} to {count(lengths.longest)}, mean {mean}"


def tokenizer_facts(summary: TokenizerSummary) -> Facts:
    """Return what a tokenizer is."""
    identity = summary.identity
    reason = f": {summary.engine_reason}" if summary.engine_reason else ""
    largest = count(summary.max_token_id)
    return [
        ("tokenizer", f"{summary.argument} ({identity.kind})"),
        ("vocabulary", f"{count(identity.vocab_size)} tokens, largest id {largest}"),
        ("dtype", summary.dtype),
        ("EOD", f"{summary.eod_token} ({summary.eod_id})" if summary.eod_token else "pass --eod"),
        ("engine", f"{summary.engine}{reason}"),
        ("sha256", identity.sha256),
    ]


def cache_facts(summary: CacheSummary) -> Facts:
    """Return what a cache is."""
    blends = sum(one.is_blend for one in summary.indexes)
    lines: Facts = [
        ("cache", summary.directory),
        ("indexes", f"{len(summary.indexes) - blends} of datasets, {blends} orders of blends"),
        ("size", size(summary.size_bytes)),
    ]
    for one in summary.indexes:
        if one.reason:
            lines.append((one.condition, f"{one.hash}: {one.reason}"))
    return lines


def cache_table(summary: CacheSummary) -> Table:
    """Return what a cache holds."""
    rows = [
        (
            one.subject,
            one.split,
            "unknown" if one.samples is None else count(one.samples),
            size(one.size_bytes),
            _maker(one),
            one.condition,
            one.hash,
        )
        for one in summary.indexes
    ]
    header = ("dataset", "split", "samples", "size", "made by", "files", "hash")
    return Table(header, rows, left=(0, 1, 4, 5, 6))


def _maker(files: IndexFiles) -> str:
    return "another program" if files.sidecar is None else f"tokshard {files.sidecar.tool.get('version')}"


def index_facts(summary: IndexSummary) -> Facts:
    """Return what an index is, what it was made for, and what follows."""
    files, described = summary.files, summary.files.description
    kind = "the order of a blend" if files.is_blend else "an index of a dataset"
    lines: Facts = [
        ("index", f"{files.hash}, {kind}"),
        ("in", files.directory or "."),
        ("files", files.condition + (f": {files.reason}" if files.reason else "")),
        ("made by", _maker(files)),
        ("dataset", files.subject),
        ("origin", summary.origin),
        ("split", files.split),
    ]
    if files.samples is not None:
        lines.append(("samples", count(files.samples)))
    if isinstance(described, GPTDatasetDescription):
        asked = described.num_samples
        lines += [
            ("asked for", "one epoch" if asked is None else f"{count(asked)} samples"),
            ("sequence", f"{count(described.sequence_length)} tokens"),
            ("seed", described.random_seed),
            ("split by", "datasets of its own" if described.split is None else described.split),
            *_identifiers(described.tokenizer),
        ]
    if summary.samples is not None:
        sequences = count(summary.samples.sequences)
        lines.append(("epochs", f"{summary.samples.epochs:g} of {sequences} sequences"))
    return lines


def _identifiers(tokenizer: dict[str, Any] | None) -> Facts:
    """Return the identifiers of a tokenizer: its class, and all others in a line."""
    if not tokenizer:
        return [("tokenizer", "none")]
    others = ", ".join(f"{name}={value}" for name, value in tokenizer.items() if name != "class")
    return [("tokenizer", tokenizer.get("class", "of no class")), *([("", others)] if others else [])]


def array_table(files: IndexFiles) -> Table:
    """Return the arrays of an index."""
    rows = [(one.name, f"{one.dtype} of shape {one.shape}", size(one.size_bytes)) for one in files.arrays]
    return Table(("array", "content", "size"), rows, left=(0, 1))


def order_table(order: OrderStatistics) -> Table:
    """Return what the order of a blend draws of each dataset."""
    rows = [
        (
            one.dataset_path,
            percent(one.weight),
            percent(one.share),
            count(one.draws),
            f"{one.off_by:.2f}",
        )
        for one in order.sources
    ]
    return Table(("source", "asked", "share", "samples", "off by"), rows)


def blend_facts(summary: BlendSummary) -> Facts:
    """Return what a blend is."""
    document = summary.document
    return [
        ("blend", document.path),
        ("id", document.id),
        ("indexes in", document.cache_directory),
        ("sequence", f"{count(document.sequence_length)} tokens"),
        ("seed", document.seed),
    ]


def split_title(split: BlendSplit) -> str:
    """Return what a split is, in one line."""
    certificate = split.certificate
    if not certificate.samples:
        return f"{split.name}: {KINDS[split.kind]}, no samples; built all the same, as Megatron does"
    return (
        f"{split.name}: {KINDS[split.kind]}, {count(certificate.samples)} samples, "
        f"{count(certificate.tokens)} tokens"
    )


def certificate_table(split: BlendSplit) -> Table:
    """Return what a split holds of each source."""
    header = ("source", "asked", "share", "samples", "tokens", "epochs", "documents seen", "times", "off by")
    return Table(header, [_certificate_row(one) for one in split.certificate.sources])


def _certificate_row(one: SourceCertificate) -> tuple[str, ...]:
    least, most = one.document_least, one.document_most
    return (
        one.prefix,
        percent(one.weight),
        percent(one.share),
        count(one.samples),
        count(one.tokens),
        f"{one.epochs:.2f}",
        f"{count(one.documents_drawn)} of {count(one.documents)}",
        str(least) if least == most else f"{least} to {most}",
        f"{one.weight_error:.2f}",
    )


def drift_note(most: float) -> str:
    """Return how far a blend is from its weights at most."""
    return f"at most {most:.2f} samples over the run"
