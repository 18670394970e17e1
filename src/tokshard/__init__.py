"""tokshard: data preparation for LLM pre-training, from raw text to the batches of each rank.

Public names are imported on first use, so that ``import tokshard`` is fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tokshard.version import __version__

if TYPE_CHECKING:
    from tokshard.blending.certificate import Certificate
    from tokshard.blending.emission import emit_megatron
    from tokshard.blending.job import (
        BlendDryRun,
        BlendReport,
        SplitForecast,
        blend,
        dry_run_blend,
    )
    from tokshard.blending.options import BlendOptions
    from tokshard.blending.order import build_blending_indices, build_exhaustive_blending_indices
    from tokshard.blending.recipe import BlendRecipe
    from tokshard.cluster.options import RayOptions
    from tokshard.comparison.job import diff
    from tokshard.comparison.options import DiffOptions
    from tokshard.comparison.report import (
        DiffReport,
        FieldDifference,
        IndexDifference,
        SourceDifference,
        SplitDifference,
        StreamDifference,
    )
    from tokshard.dataset.builder import IndexedDatasetBuilder
    from tokshard.dataset.merge.job import (
        MergedDataset,
        MergeDryRun,
        MergeReport,
        ShuffleForecast,
        dry_run_merge,
        merge,
    )
    from tokshard.dataset.merge.options import MergeOptions
    from tokshard.dataset.plan import DocumentShuffle
    from tokshard.dataset.reader import IndexedDataset
    from tokshard.exchange.conversion.job import ConvertDryRun, ConvertReport, convert, dry_run_convert
    from tokshard.exchange.conversion.options import ConvertOptions
    from tokshard.exchange.job import ExportDryRun, ExportReport, dry_run_export, export
    from tokshard.exchange.options import ExportOptions
    from tokshard.gpt_index.arrays import build_document_index, build_sample_index, build_shuffle_index
    from tokshard.gpt_index.index import GPTDatasetIndex
    from tokshard.gpt_index.packing_report import PackingReport
    from tokshard.gpt_index.samples import GPTSamples
    from tokshard.gpt_index.sizes import Sizes
    from tokshard.index_cache.job import (
        BuildIndicesReport,
        EpochSize,
        IndexReport,
        build_indices,
    )
    from tokshard.index_cache.options import BuildIndicesOptions, NamingOptions, TrainingOptions
    from tokshard.inspection.datasets import DatasetSummary, DocumentSummary, TokenizerSummary
    from tokshard.inspection.description import describe
    from tokshard.inspection.indexes import BlendSummary, CacheSummary, IndexSummary
    from tokshard.inspection.job import inspect, write_inspection_page
    from tokshard.inspection.options import InspectOptions
    from tokshard.inspection.plans import PlanSampleSummary, PlanSummary, RankSummary
    from tokshard.preflight.from_launch import LaunchIndexes, indexes_of_launch
    from tokshard.preflight.job import DoctorReport, JobDiagnosis, doctor
    from tokshard.preflight.launch.rules import SkippedCheck
    from tokshard.preflight.lookups import CacheLookup
    from tokshard.preflight.options import DoctorOptions
    from tokshard.sharding.options import BatchSizes, ShardPlanOptions
    from tokshard.sharding.plan import Plan, read_plan
    from tokshard.sharding.planning import ShardPlanReport, dry_run_shard_plan, shard_plan
    from tokshard.sharding.publication import PlanFiles, write_plan
    from tokshard.sharding.replan.job import dry_run_replan, replan
    from tokshard.sharding.replan.options import ReplanOptions
    from tokshard.tokenization.discard import DiscardedWork, discard_work
    from tokshard.tokenization.job_array.job import finish_tokenize, tokenize_array_task
    from tokshard.tokenization.job_array.options import ArrayOptions, ArrayTask
    from tokshard.tokenization.options import TokenizeOptions
    from tokshard.tokenization.report import ArrayTaskReport, TokenizeDryRun, TokenizeReport
    from tokshard.tokenization.run import dry_run_tokenize, tokenize
    from tokshard.tokenization.workers.ray import RayExecutor
    from tokshard.tokenizer.definition import tokenizer_identity
    from tokshard.tracing.job import trace
    from tokshard.tracing.options import TraceOptions
    from tokshard.tracing.report import (
        DocumentOrigin,
        DocumentRead,
        DocumentReads,
        SampleContents,
        SamplePiece,
        TracedItem,
        TraceDocumentReport,
        TraceReadsReport,
        TraceReport,
        TraceSamplesReport,
    )
    from tokshard.verification.job import verify
    from tokshard.verification.options import VerifyOptions
    from tokshard.verification.report import VerifiedProduct, VerifyReport

__all__ = [
    "ArrayOptions",
    "ArrayTask",
    "ArrayTaskReport",
    "BatchSizes",
    "BlendDryRun",
    "BlendOptions",
    "BlendRecipe",
    "BlendReport",
    "BlendSummary",
    "BuildIndicesOptions",
    "BuildIndicesReport",
    "CacheLookup",
    "CacheSummary",
    "Certificate",
    "ConvertDryRun",
    "ConvertOptions",
    "ConvertReport",
    "DatasetSummary",
    "DiffOptions",
    "DiffReport",
    "DiscardedWork",
    "DoctorOptions",
    "DoctorReport",
    "DocumentOrigin",
    "DocumentRead",
    "DocumentReads",
    "DocumentShuffle",
    "DocumentSummary",
    "EpochSize",
    "ExportDryRun",
    "ExportOptions",
    "ExportReport",
    "FieldDifference",
    "GPTDatasetIndex",
    "GPTSamples",
    "IndexDifference",
    "IndexReport",
    "IndexSummary",
    "IndexedDataset",
    "IndexedDatasetBuilder",
    "InspectOptions",
    "JobDiagnosis",
    "LaunchIndexes",
    "MergeDryRun",
    "MergeOptions",
    "MergeReport",
    "MergedDataset",
    "NamingOptions",
    "PackingReport",
    "Plan",
    "PlanFiles",
    "PlanSampleSummary",
    "PlanSummary",
    "RankSummary",
    "RayExecutor",
    "RayOptions",
    "ReplanOptions",
    "SampleContents",
    "SamplePiece",
    "ShardPlanOptions",
    "ShardPlanReport",
    "ShuffleForecast",
    "Sizes",
    "SkippedCheck",
    "SourceDifference",
    "SplitDifference",
    "SplitForecast",
    "StreamDifference",
    "TokenizeDryRun",
    "TokenizeOptions",
    "TokenizeReport",
    "TokenizerSummary",
    "TraceDocumentReport",
    "TraceOptions",
    "TraceReadsReport",
    "TraceReport",
    "TraceSamplesReport",
    "TracedItem",
    "TrainingOptions",
    "VerifiedProduct",
    "VerifyOptions",
    "VerifyReport",
    "__version__",
    "blend",
    "build_blending_indices",
    "build_document_index",
    "build_exhaustive_blending_indices",
    "build_indices",
    "build_sample_index",
    "build_shuffle_index",
    "convert",
    "describe",
    "diff",
    "discard_work",
    "doctor",
    "dry_run_blend",
    "dry_run_convert",
    "dry_run_export",
    "dry_run_merge",
    "dry_run_replan",
    "dry_run_shard_plan",
    "dry_run_tokenize",
    "emit_megatron",
    "export",
    "finish_tokenize",
    "indexes_of_launch",
    "inspect",
    "merge",
    "read_plan",
    "replan",
    "shard_plan",
    "tokenize",
    "tokenize_array_task",
    "tokenizer_identity",
    "trace",
    "verify",
    "write_inspection_page",
    "write_plan",
]

_HOMES = {
    "ArrayOptions": "tokshard.tokenization.job_array.options",
    "ArrayTask": "tokshard.tokenization.job_array.options",
    "ArrayTaskReport": "tokshard.tokenization.report",
    "BatchSizes": "tokshard.sharding.options",
    "BlendDryRun": "tokshard.blending.job",
    "BlendOptions": "tokshard.blending.options",
    "BlendRecipe": "tokshard.blending.recipe",
    "BlendReport": "tokshard.blending.job",
    "BlendSummary": "tokshard.inspection.indexes",
    "BuildIndicesOptions": "tokshard.index_cache.options",
    "BuildIndicesReport": "tokshard.index_cache.job",
    "CacheLookup": "tokshard.preflight.lookups",
    "CacheSummary": "tokshard.inspection.indexes",
    "Certificate": "tokshard.blending.certificate",
    "ConvertDryRun": "tokshard.exchange.conversion.job",
    "ConvertOptions": "tokshard.exchange.conversion.options",
    "ConvertReport": "tokshard.exchange.conversion.job",
    "DatasetSummary": "tokshard.inspection.datasets",
    "DiffOptions": "tokshard.comparison.options",
    "DiffReport": "tokshard.comparison.report",
    "DiscardedWork": "tokshard.tokenization.discard",
    "DoctorOptions": "tokshard.preflight.options",
    "DoctorReport": "tokshard.preflight.job",
    "DocumentOrigin": "tokshard.tracing.report",
    "DocumentRead": "tokshard.tracing.report",
    "DocumentReads": "tokshard.tracing.report",
    "DocumentShuffle": "tokshard.dataset.plan",
    "DocumentSummary": "tokshard.inspection.datasets",
    "EpochSize": "tokshard.index_cache.job",
    "ExportDryRun": "tokshard.exchange.job",
    "ExportOptions": "tokshard.exchange.options",
    "ExportReport": "tokshard.exchange.job",
    "FieldDifference": "tokshard.comparison.report",
    "GPTDatasetIndex": "tokshard.gpt_index.index",
    "GPTSamples": "tokshard.gpt_index.samples",
    "IndexDifference": "tokshard.comparison.report",
    "IndexReport": "tokshard.index_cache.job",
    "IndexSummary": "tokshard.inspection.indexes",
    "IndexedDataset": "tokshard.dataset.reader",
    "IndexedDatasetBuilder": "tokshard.dataset.builder",
    "InspectOptions": "tokshard.inspection.options",
    "JobDiagnosis": "tokshard.preflight.job",
    "LaunchIndexes": "tokshard.preflight.from_launch",
    "MergeDryRun": "tokshard.dataset.merge.job",
    "MergeOptions": "tokshard.dataset.merge.options",
    "MergeReport": "tokshard.dataset.merge.job",
    "MergedDataset": "tokshard.dataset.merge.job",
    "NamingOptions": "tokshard.index_cache.options",
    "PackingReport": "tokshard.gpt_index.packing_report",
    "Plan": "tokshard.sharding.plan",
    "PlanFiles": "tokshard.sharding.publication",
    "PlanSampleSummary": "tokshard.inspection.plans",
    "PlanSummary": "tokshard.inspection.plans",
    "RankSummary": "tokshard.inspection.plans",
    "RayExecutor": "tokshard.tokenization.workers.ray",
    "RayOptions": "tokshard.cluster.options",
    "ReplanOptions": "tokshard.sharding.replan.options",
    "SampleContents": "tokshard.tracing.report",
    "SamplePiece": "tokshard.tracing.report",
    "ShardPlanOptions": "tokshard.sharding.options",
    "ShardPlanReport": "tokshard.sharding.planning",
    "ShuffleForecast": "tokshard.dataset.merge.job",
    "Sizes": "tokshard.gpt_index.sizes",
    "SourceDifference": "tokshard.comparison.report",
    "SkippedCheck": "tokshard.preflight.launch.rules",
    "SplitDifference": "tokshard.comparison.report",
    "SplitForecast": "tokshard.blending.job",
    "StreamDifference": "tokshard.comparison.report",
    "TokenizeDryRun": "tokshard.tokenization.report",
    "TokenizeOptions": "tokshard.tokenization.options",
    "TokenizeReport": "tokshard.tokenization.report",
    "TokenizerSummary": "tokshard.inspection.datasets",
    "TraceDocumentReport": "tokshard.tracing.report",
    "TraceOptions": "tokshard.tracing.options",
    "TraceReadsReport": "tokshard.tracing.report",
    "TraceReport": "tokshard.tracing.report",
    "TraceSamplesReport": "tokshard.tracing.report",
    "TracedItem": "tokshard.tracing.report",
    "TrainingOptions": "tokshard.index_cache.options",
    "VerifiedProduct": "tokshard.verification.report",
    "VerifyOptions": "tokshard.verification.options",
    "VerifyReport": "tokshard.verification.report",
    "blend": "tokshard.blending.job",
    "build_blending_indices": "tokshard.blending.order",
    "build_document_index": "tokshard.gpt_index.arrays",
    "build_exhaustive_blending_indices": "tokshard.blending.order",
    "build_indices": "tokshard.index_cache.job",
    "build_sample_index": "tokshard.gpt_index.arrays",
    "build_shuffle_index": "tokshard.gpt_index.arrays",
    "convert": "tokshard.exchange.conversion.job",
    "describe": "tokshard.inspection.description",
    "diff": "tokshard.comparison.job",
    "discard_work": "tokshard.tokenization.discard",
    "doctor": "tokshard.preflight.job",
    "dry_run_blend": "tokshard.blending.job",
    "dry_run_convert": "tokshard.exchange.conversion.job",
    "dry_run_export": "tokshard.exchange.job",
    "dry_run_merge": "tokshard.dataset.merge.job",
    "dry_run_replan": "tokshard.sharding.replan.job",
    "dry_run_shard_plan": "tokshard.sharding.planning",
    "dry_run_tokenize": "tokshard.tokenization.run",
    "emit_megatron": "tokshard.blending.emission",
    "export": "tokshard.exchange.job",
    "finish_tokenize": "tokshard.tokenization.job_array.job",
    "indexes_of_launch": "tokshard.preflight.from_launch",
    "inspect": "tokshard.inspection.job",
    "merge": "tokshard.dataset.merge.job",
    "read_plan": "tokshard.sharding.plan",
    "replan": "tokshard.sharding.replan.job",
    "shard_plan": "tokshard.sharding.planning",
    "tokenize": "tokshard.tokenization.run",
    "tokenize_array_task": "tokshard.tokenization.job_array.job",
    "tokenizer_identity": "tokshard.tokenizer.definition",
    "trace": "tokshard.tracing.job",
    "verify": "tokshard.verification.job",
    "write_inspection_page": "tokshard.inspection.job",
    "write_plan": "tokshard.sharding.publication",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tokshard' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
