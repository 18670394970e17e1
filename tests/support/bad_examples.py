"""For each code of a finding a thing that has it: what is built, how it is verified, what is found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support import bad_datasets, bad_exports, bad_products


@dataclass(frozen=True)
class Example:
    """A bad thing.

    Attributes:
        build: Makes it in a directory, and returns how to name it.
        codes: Everything that is found, and nothing else is, apart from notes.
        notes: The notes.
        level: The level at which it is found.
        options: More arguments for the verification.
        listener: From the name to who listens to the progress.
    """

    build: Callable[[Path], str]
    codes: set[str]
    notes: set[str] = field(default_factory=set)
    level: str = "digest"
    options: dict[str, Any] = field(default_factory=dict)
    listener: Callable[[str], Any] = lambda _: None

    def __str__(self) -> str:
        return "-".join([self.build.__name__, self.level, *self.options])


def _structure(build, *codes, notes=()):
    return Example(build, set(codes), set(notes), "structure")


def _digest(build, *codes, notes=()):
    return Example(build, set(codes), set(notes), "digest")


def _deep(build, *codes, notes=(), **options):
    return Example(build, set(codes), set(notes), "deep", options)


EXAMPLES = [
    # Datasets
    _structure(bad_datasets.unreadable, "unreadable"),
    _structure(bad_datasets.unfinished, "unfinished"),
    _structure(bad_datasets.unfinished_from_the_start, "unfinished"),
    Example(bad_datasets.sound, {"changed"}, listener=bad_datasets.Meddler),
    _structure(bad_datasets.bin_missing, "bin-missing"),
    _structure(bad_datasets.idx_missing, "idx-missing"),
    _structure(bad_datasets.idx_header, "idx-header"),
    _structure(bad_datasets.idx_short, "idx-header", notes=["unverified"]),
    _structure(bad_datasets.idx_version, "idx-version"),
    _structure(bad_datasets.idx_dtype, "idx-dtype"),
    _structure(bad_datasets.idx_count, "idx-count"),
    _structure(bad_datasets.idx_size, "idx-size", "file-size"),
    _structure(bad_datasets.idx_length, "idx-length"),
    _structure(bad_datasets.idx_pointer, "idx-pointer"),
    _structure(bad_datasets.idx_document, "idx-document"),
    _structure(
        bad_datasets.several_at_once,
        "idx-version",
        "idx-length",
        "idx-pointer",
        "idx-document",
        notes=["unverified"],
    ),
    _structure(bad_datasets.bin_size, "bin-size", "file-size"),
    _structure(bad_datasets.bin_of_another, "bin-size", notes=["unverified"]),
    _structure(bad_datasets.foreign, notes=["unverified"]),
    Example(bad_datasets.foreign, set(), {"adopted"}, "digest", {"adopt": True}),
    _digest(bad_datasets.adopted_and_changed, "bin-digest"),
    _structure(bad_datasets.manifest_older, notes=["manifest-older"]),
    Example(bad_datasets.manifest_older, set(), {"adopted"}, "digest", {"adopt": True}),
    _structure(bad_datasets.manifest_damaged, "manifest-damaged"),
    _structure(bad_datasets.manifest_without_units, "manifest-damaged"),
    _structure(bad_datasets.manifest_changed, "manifest-changed"),
    _structure(bad_datasets.manifest_reformatted, "manifest-changed"),
    _structure(bad_datasets.manifest_count, "manifest-count"),
    _structure(bad_datasets.manifest_index, "manifest-index", "manifest-count"),
    _structure(bad_datasets.file_missing, "file-missing"),
    _structure(bad_datasets.file_size, "file-size"),
    _structure(bad_datasets.file_unlisted, "file-unlisted"),
    _structure(bad_datasets.units_damaged, "units-damaged", "file-size"),
    _structure(bad_datasets.units_count, "units-count"),
    _structure(bad_datasets.units_index, "units-index"),
    _structure(bad_datasets.units_digest, "units-digest"),
    _digest(bad_datasets.bin_digest, "bin-digest"),
    _digest(bad_datasets.idx_digest, "idx-digest"),
    _digest(bad_datasets.file_digest, "file-digest"),
    _deep(bad_datasets.token_range, "token-range", "bin-digest"),
    _deep(bad_datasets.negative_token, "token-range", notes=["unverified", "vocabulary-unknown"]),
    _structure(bad_datasets.floating_point_tokens, "token-dtype", notes=["unverified"]),
    _deep(bad_datasets.eod_missing, "eod-missing", "bin-digest"),
    _deep(bad_datasets.merged_eod_missing, "eod-missing", "bin-digest"),
    _deep(bad_datasets.eod_count, "eod-count", "manifest-count"),
    _deep(bad_datasets.eod_never, "eod-missing"),
    _deep(bad_datasets.special_in_text, "special-in-text"),
    _deep(bad_datasets.bos_missing, "special-missing", "bin-digest"),
    _deep(bad_datasets.bos_never, "special-missing"),
    _deep(bad_datasets.undecodable, "undecodable", "bin-digest"),
    _deep(bad_datasets.sound, "tokenizer-other", tokenizer=bad_datasets.TOKENIZER),
    _deep(bad_datasets.foreign, notes=["unverified", "vocabulary-unknown"]),
    _deep(bad_datasets.provenance_order, "provenance-order", "file-digest"),
    _deep(bad_datasets.shuffled, notes=["shuffled"]),
    _deep(bad_datasets.order_incomplete, "order-incomplete", "file-digest", notes=["shuffled"]),
    _digest(bad_datasets.piece_tokens, "bin-digest", notes=["shuffled"]),
    _structure(bad_datasets.piece_count, "units-count", "units-index", notes=["shuffled"]),
    _deep(bad_datasets.rejected_count, "rejected-count", "file-digest", "file-size"),
    _deep(bad_datasets.input_missing, notes=["input-missing"]),
    _deep(bad_datasets.input_changed, "input-changed"),
    _deep(bad_datasets.input_longer, "input-changed"),
    # Index caches
    _structure(bad_products.incomplete_cache, "cache-incomplete"),
    _structure(bad_products.unknown_description, "cache-description"),
    _structure(bad_products.renamed_cache, "cache-name"),
    _structure(bad_products.cut_array, "cache-array"),
    _structure(bad_products.misshapen_array, "cache-shape", notes=["cache-foreign"]),
    _structure(bad_products.sidecar_damaged, "cache-sidecar"),
    _structure(bad_products.sidecar_of_another, "cache-sidecar"),
    _structure(bad_products.stale_cache, "cache-stale"),
    _structure(bad_products.foreign_cache, notes=["cache-foreign"]),
    _structure(bad_products.cache_alone, notes=["cache-alone"]),
    _structure(bad_products.cache_leftover, notes=["cache-leftover"]),
    _digest(bad_products.flipped_array, "cache-digest"),
    _digest(bad_products.cache_of_damaged, "dataset-damaged"),
    _deep(bad_products.wrong_array, "cache-content"),
    _deep(bad_products.other_epochs, "cache-content"),
    _deep(bad_products.wrong_packing, "cache-content"),
    # Blends
    _structure(bad_products.blend_damaged, "blend-damaged"),
    _structure(bad_products.blend_older, "older-version"),
    _structure(bad_products.blend_source_missing, "blend-source-missing", notes=["cache-alone"]),
    _structure(bad_products.blend_source_changed, "blend-source-changed", "cache-stale"),
    _digest(bad_products.blend_source_damaged, "dataset-damaged"),
    _structure(bad_products.blend_file_changed, "blend-file-changed"),
    _structure(bad_products.blend_array_changed, "blend-file-changed"),
    _structure(bad_products.blend_epochs, "blend-samples"),
    _structure(bad_products.blend_samples, "blend-samples", "cache-shape", "cache-array"),
    _digest(bad_products.blend_of_cut_index, "cache-array"),
    _deep(bad_products.blend_hash, "cache-name", "cache-content"),
    _deep(bad_products.blend_order, "cache-content"),
    _deep(bad_products.blend_weights, "blend-order", "blend-certificate"),
    _deep(bad_products.blend_certificate, "blend-certificate"),
    _structure(bad_products.of_two_tokenizers, "tokenizer-mismatch-allowed"),
    _structure(bad_products.with_hidden_mismatch, "tokenizer-mismatch", "tokenizer-mismatch-allowed"),
    # Plans
    _structure(bad_products.plan_damaged, "plan-damaged"),
    _structure(bad_products.plan_rank, "plan-rank"),
    _structure(bad_products.plan_rank_alone, "plan-rank"),
    _structure(bad_products.plan_rank_missing, "plan-rank-missing"),
    _structure(bad_products.plan_of_other_tokenizer, "tokenizer-changed"),
    _structure(bad_products.plan_of_unknown_tokenizer, notes=["tokenizer-unchecked"]),
    _structure(bad_products.plan_file_missing, "plan-file-missing"),
    _structure(bad_products.plan_file_changed, "plan-file-changed"),
    _structure(bad_products.plan_sources_missing, "plan-file-missing"),
    _structure(bad_products.plan_sources_changed, "plan-file-changed"),
    _structure(bad_products.plan_blend_missing, "plan-file-missing"),
    _structure(bad_products.plan_blend_changed, "plan-file-changed"),
    _structure(bad_products.plan_reweighted_file, "plan-file-changed"),
    _deep(bad_products.plan_coverage, "plan-coverage"),
    # Exports
    _structure(bad_exports.damaged, "export-damaged"),
    _structure(bad_exports.changed, "export-damaged"),
    _structure(bad_exports.unfinished, "export-unfinished"),
    _structure(bad_exports.file_missing, "export-file-missing"),
    _structure(bad_exports.file_size, "export-file-size"),
    _digest(bad_exports.file_digest, "export-file-digest"),
    _structure(bad_exports.other_files, "export-other-files"),
    _structure(bad_exports.source_changed, "export-source-changed"),
    _structure(bad_exports.source_missing, notes=["export-source-missing"]),
]
