"""The names that tokshard promises, and where they are."""

import importlib
import pkgutil
import types
from pathlib import Path

import tokshard

PUBLIC = [
    "ArrayOptions",
    "ArrayTask",
    "ArrayTaskReport",
    "BatchSizes",
    "BlendDryRun",
    "BlendHits",
    "BlendOptions",
    "BlendRecipe",
    "BlendReport",
    "BlendSummary",
    "BuildIndicesOptions",
    "BuildIndicesReport",
    "CacheLookup",
    "CacheSummary",
    "Certificate",
    "DatasetSummary",
    "DiffOptions",
    "DiffReport",
    "DiskReads",
    "DoctorOptions",
    "DoctorReport",
    "DocumentOrigin",
    "DocumentRead",
    "DocumentReads",
    "DocumentSummary",
    "EpochSize",
    "FieldDifference",
    "GPTDatasetIndex",
    "GPTSamples",
    "IndexDifference",
    "IndexReport",
    "IndexSummary",
    "IndexedDataset",
    "IndexedDatasetBuilder",
    "InspectOptions",
    "MergeDryRun",
    "MergeOptions",
    "MergeReport",
    "MergedDataset",
    "NamingOptions",
    "Plan",
    "PlanFiles",
    "PlanSampleSummary",
    "PlanSummary",
    "RankSummary",
    "RayExecutor",
    "RayOptions",
    "ReadSummary",
    "ReplanOptions",
    "SampleContents",
    "SamplePiece",
    "ShardPlanOptions",
    "ShardPlanReport",
    "SimulateOptions",
    "SimulationReport",
    "Sizes",
    "SourceDifference",
    "SplitDifference",
    "SplitForecast",
    "StagingOptions",
    "StagingReport",
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
    "array_job_file",
    "blend",
    "build_blending_indices",
    "build_document_index",
    "build_exhaustive_blending_indices",
    "build_indices",
    "build_sample_index",
    "build_shuffle_index",
    "check_blend",
    "check_indices",
    "describe",
    "diff",
    "doctor",
    "dry_run_blend",
    "dry_run_merge",
    "dry_run_replan",
    "dry_run_shard_plan",
    "dry_run_tokenize",
    "emit_megatron",
    "finish_tokenize",
    "inspect",
    "merge",
    "read_plan",
    "replan",
    "shard_plan",
    "simulate_plan",
    "stage_plan",
    "tokenize",
    "tokenize_array_task",
    "trace",
    "verify",
    "write_inspection_page",
    "write_plan",
]
"""Removing or renaming one of these breaks a promise."""


def module_names():
    return [module.name for module in pkgutil.walk_packages(tokshard.__path__, "tokshard.")]


def test_the_exported_names_are_pinned():
    assert sorted(tokshard.__all__) == PUBLIC
    assert dir(tokshard) == sorted(tokshard.__all__)
    assert tokshard._HOMES.keys() == set(PUBLIC) - {"__version__"}


def test_no_public_function_has_the_name_of_a_package_or_module():
    taken = {name.split(".")[1] for name in module_names()}
    assert "storage" in taken
    assert set(tokshard.__all__) & taken == set()


def test_every_public_name_survives_the_import_of_all_modules():
    for name in module_names():
        importlib.import_module(name)
    for name, home in tokshard._HOMES.items():
        found = getattr(tokshard, name)
        assert found is getattr(importlib.import_module(home), name), name
        assert not isinstance(found, types.ModuleType), name
        assert found.__doc__, name


def test_type_checkers_see_every_public_name():
    source = Path(tokshard.__file__).read_text()
    for name, home in tokshard._HOMES.items():
        assert f"    from {home} import " in source, name
