"""tokshard: data preparation for LLM pre-training, from raw text to the batches of each rank.

Public names are imported on first use, so that ``import tokshard`` is fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tokshard.version import __version__

if TYPE_CHECKING:
    from tokshard.checks.diff.job import diff
    from tokshard.checks.diff.options import DiffOptions
    from tokshard.checks.diff.report import (
        DiffReport,
        FieldDifference,
        IndexDifference,
        SourceDifference,
        SplitDifference,
        StreamDifference,
    )
    from tokshard.checks.doctor.from_launch import LaunchIndexes, indexes_of_launch
    from tokshard.checks.doctor.job import DoctorReport, JobDiagnosis, doctor
    from tokshard.checks.doctor.launch.rules import SkippedCheck
    from tokshard.checks.doctor.lookups import CacheLookup
    from tokshard.checks.doctor.options import DoctorOptions
    from tokshard.checks.inspect.datasets import DatasetSummary, DocumentSummary, TokenizerSummary
    from tokshard.checks.inspect.description import describe
    from tokshard.checks.inspect.indexes import BlendSummary, CacheSummary, IndexSummary
    from tokshard.checks.inspect.job import inspect, write_inspection_page
    from tokshard.checks.inspect.options import InspectOptions
    from tokshard.checks.inspect.plans import PlanSampleSummary, PlanSummary, RankSummary
    from tokshard.checks.trace.job import trace
    from tokshard.checks.trace.options import TraceOptions
    from tokshard.checks.trace.report import (
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
    from tokshard.checks.verify.job import verify
    from tokshard.checks.verify.options import VerifyOptions
    from tokshard.checks.verify.report import VerifiedProduct, VerifyReport
    from tokshard.dataset.builder import IndexedDatasetBuilder
    from tokshard.dataset.merge.job import MergedDataset, MergeReport, merge
    from tokshard.dataset.merge.options import MergeOptions
    from tokshard.dataset.plan import DocumentShuffle
    from tokshard.dataset.reader import IndexedDataset
    from tokshard.exchange.conversion.job import ConvertReport, convert
    from tokshard.exchange.conversion.options import ConvertOptions
    from tokshard.exchange.job import ExportDryRun, ExportReport, dry_run_export, export
    from tokshard.exchange.options import ExportOptions
    from tokshard.ranks.options import BatchSizes, ShardPlanOptions
    from tokshard.ranks.plan import Plan, read_plan
    from tokshard.ranks.planning import ShardPlanReport, shard_plan
    from tokshard.ranks.publication import write_plan
    from tokshard.ranks.replan.job import replan
    from tokshard.ranks.replan.options import ReplanOptions
    from tokshard.samples.blend.certificate import Certificate
    from tokshard.samples.blend.emission import emit_megatron
    from tokshard.samples.blend.job import (
        BlendReport,
        blend,
    )
    from tokshard.samples.blend.options import BlendOptions
    from tokshard.samples.blend.order import build_blending_indices, build_exhaustive_blending_indices
    from tokshard.samples.blend.recipe import BlendRecipe
    from tokshard.samples.index.arrays import build_document_index, build_sample_index, build_shuffle_index
    from tokshard.samples.index.index import GPTDatasetIndex
    from tokshard.samples.index.job import (
        BuildIndicesReport,
        EpochSize,
        IndexReport,
        build_indices,
    )
    from tokshard.samples.index.options import BuildIndicesOptions, NamingOptions, TrainingOptions
    from tokshard.samples.index.packing_report import PackingReport
    from tokshard.samples.index.samples import GPTSamples
    from tokshard.samples.index.sizes import Sizes
    from tokshard.text.tokenize.cluster.options import RayOptions
    from tokshard.text.tokenize.discard import DiscardedWork, discard_work
    from tokshard.text.tokenize.job_array.job import finish_tokenize, tokenize_array_task
    from tokshard.text.tokenize.job_array.options import ArrayOptions, ArrayTask
    from tokshard.text.tokenize.options import TokenizeOptions
    from tokshard.text.tokenize.report import ArrayTaskReport, TokenizeDryRun, TokenizeReport
    from tokshard.text.tokenize.run import dry_run_tokenize, tokenize
    from tokshard.text.tokenizer.definition import tokenizer_identity

__all__ = [
    "ArrayOptions",
    "ArrayTask",
    "ArrayTaskReport",
    "BatchSizes",
    "BlendOptions",
    "BlendRecipe",
    "BlendReport",
    "BlendSummary",
    "BuildIndicesOptions",
    "BuildIndicesReport",
    "CacheLookup",
    "CacheSummary",
    "Certificate",
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
    "MergeOptions",
    "MergeReport",
    "MergedDataset",
    "NamingOptions",
    "PackingReport",
    "Plan",
    "PlanSampleSummary",
    "PlanSummary",
    "RankSummary",
    "RayOptions",
    "ReplanOptions",
    "SampleContents",
    "SamplePiece",
    "ShardPlanOptions",
    "ShardPlanReport",
    "Sizes",
    "SkippedCheck",
    "SourceDifference",
    "SplitDifference",
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
    "ArrayOptions": "tokshard.text.tokenize.job_array.options",
    "ArrayTask": "tokshard.text.tokenize.job_array.options",
    "ArrayTaskReport": "tokshard.text.tokenize.report",
    "BatchSizes": "tokshard.ranks.options",
    "BlendOptions": "tokshard.samples.blend.options",
    "BlendRecipe": "tokshard.samples.blend.recipe",
    "BlendReport": "tokshard.samples.blend.job",
    "BlendSummary": "tokshard.checks.inspect.indexes",
    "BuildIndicesOptions": "tokshard.samples.index.options",
    "BuildIndicesReport": "tokshard.samples.index.job",
    "CacheLookup": "tokshard.checks.doctor.lookups",
    "CacheSummary": "tokshard.checks.inspect.indexes",
    "Certificate": "tokshard.samples.blend.certificate",
    "ConvertOptions": "tokshard.exchange.conversion.options",
    "ConvertReport": "tokshard.exchange.conversion.job",
    "DatasetSummary": "tokshard.checks.inspect.datasets",
    "DiffOptions": "tokshard.checks.diff.options",
    "DiffReport": "tokshard.checks.diff.report",
    "DiscardedWork": "tokshard.text.tokenize.discard",
    "DoctorOptions": "tokshard.checks.doctor.options",
    "DoctorReport": "tokshard.checks.doctor.job",
    "DocumentOrigin": "tokshard.checks.trace.report",
    "DocumentRead": "tokshard.checks.trace.report",
    "DocumentReads": "tokshard.checks.trace.report",
    "DocumentShuffle": "tokshard.dataset.plan",
    "DocumentSummary": "tokshard.checks.inspect.datasets",
    "EpochSize": "tokshard.samples.index.job",
    "ExportDryRun": "tokshard.exchange.job",
    "ExportOptions": "tokshard.exchange.options",
    "ExportReport": "tokshard.exchange.job",
    "FieldDifference": "tokshard.checks.diff.report",
    "GPTDatasetIndex": "tokshard.samples.index.index",
    "GPTSamples": "tokshard.samples.index.samples",
    "IndexDifference": "tokshard.checks.diff.report",
    "IndexReport": "tokshard.samples.index.job",
    "IndexSummary": "tokshard.checks.inspect.indexes",
    "IndexedDataset": "tokshard.dataset.reader",
    "IndexedDatasetBuilder": "tokshard.dataset.builder",
    "InspectOptions": "tokshard.checks.inspect.options",
    "JobDiagnosis": "tokshard.checks.doctor.job",
    "LaunchIndexes": "tokshard.checks.doctor.from_launch",
    "MergeOptions": "tokshard.dataset.merge.options",
    "MergeReport": "tokshard.dataset.merge.job",
    "MergedDataset": "tokshard.dataset.merge.job",
    "NamingOptions": "tokshard.samples.index.options",
    "PackingReport": "tokshard.samples.index.packing_report",
    "Plan": "tokshard.ranks.plan",
    "PlanSampleSummary": "tokshard.checks.inspect.plans",
    "PlanSummary": "tokshard.checks.inspect.plans",
    "RankSummary": "tokshard.checks.inspect.plans",
    "RayOptions": "tokshard.text.tokenize.cluster.options",
    "ReplanOptions": "tokshard.ranks.replan.options",
    "SampleContents": "tokshard.checks.trace.report",
    "SamplePiece": "tokshard.checks.trace.report",
    "ShardPlanOptions": "tokshard.ranks.options",
    "ShardPlanReport": "tokshard.ranks.planning",
    "Sizes": "tokshard.samples.index.sizes",
    "SourceDifference": "tokshard.checks.diff.report",
    "SkippedCheck": "tokshard.checks.doctor.launch.rules",
    "SplitDifference": "tokshard.checks.diff.report",
    "StreamDifference": "tokshard.checks.diff.report",
    "TokenizeDryRun": "tokshard.text.tokenize.report",
    "TokenizeOptions": "tokshard.text.tokenize.options",
    "TokenizeReport": "tokshard.text.tokenize.report",
    "TokenizerSummary": "tokshard.checks.inspect.datasets",
    "TraceDocumentReport": "tokshard.checks.trace.report",
    "TraceOptions": "tokshard.checks.trace.options",
    "TraceReadsReport": "tokshard.checks.trace.report",
    "TraceReport": "tokshard.checks.trace.report",
    "TraceSamplesReport": "tokshard.checks.trace.report",
    "TracedItem": "tokshard.checks.trace.report",
    "TrainingOptions": "tokshard.samples.index.options",
    "VerifiedProduct": "tokshard.checks.verify.report",
    "VerifyOptions": "tokshard.checks.verify.options",
    "VerifyReport": "tokshard.checks.verify.report",
    "blend": "tokshard.samples.blend.job",
    "build_blending_indices": "tokshard.samples.blend.order",
    "build_document_index": "tokshard.samples.index.arrays",
    "build_exhaustive_blending_indices": "tokshard.samples.blend.order",
    "build_indices": "tokshard.samples.index.job",
    "build_sample_index": "tokshard.samples.index.arrays",
    "build_shuffle_index": "tokshard.samples.index.arrays",
    "convert": "tokshard.exchange.conversion.job",
    "describe": "tokshard.checks.inspect.description",
    "diff": "tokshard.checks.diff.job",
    "discard_work": "tokshard.text.tokenize.discard",
    "doctor": "tokshard.checks.doctor.job",
    "dry_run_tokenize": "tokshard.text.tokenize.run",
    "emit_megatron": "tokshard.samples.blend.emission",
    "export": "tokshard.exchange.job",
    "finish_tokenize": "tokshard.text.tokenize.job_array.job",
    "indexes_of_launch": "tokshard.checks.doctor.from_launch",
    "inspect": "tokshard.checks.inspect.job",
    "merge": "tokshard.dataset.merge.job",
    "read_plan": "tokshard.ranks.plan",
    "replan": "tokshard.ranks.replan.job",
    "shard_plan": "tokshard.ranks.planning",
    "tokenize": "tokshard.text.tokenize.run",
    "tokenize_array_task": "tokshard.text.tokenize.job_array.job",
    "tokenizer_identity": "tokshard.text.tokenizer.definition",
    "trace": "tokshard.checks.trace.job",
    "verify": "tokshard.checks.verify.job",
    "write_inspection_page": "tokshard.checks.inspect.job",
    "write_plan": "tokshard.ranks.publication",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tokshard' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
