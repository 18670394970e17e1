"""The names that tokshard promises, and where they are."""

import importlib
import pkgutil
import types
from pathlib import Path

import numpy as np

import tokshard
from tokshard.samples.index.shuffling import ShuffleStream

PUBLIC = [
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


def import_all():
    for name in module_names():
        importlib.import_module(name)


def test_every_public_name_survives_the_import_of_all_modules():
    import_all()
    for name, home in tokshard._HOMES.items():
        found = getattr(tokshard, name)
        assert found is getattr(importlib.import_module(home), name), name
        assert not isinstance(found, types.ModuleType), name
        assert found.__doc__, name


def test_type_checkers_see_every_public_name():
    source = Path(tokshard.__file__).read_text()
    for name, home in tokshard._HOMES.items():
        assert f"    from {home} import " in source, name


class Api:
    """The public API, with a note of what was asked for."""

    def __init__(self):
        self.used = set()

    def __getattr__(self, name):
        self.used.add(name)
        return getattr(tokshard, name)


SAMPLE = Path(__file__).parents[1] / "sample_data"
TOKENIZER = str(SAMPLE / "tokenizer.json")


def make_datasets(api):
    def options(name):
        inputs = (str(SAMPLE / f"{name}.jsonl"),)
        return api.TokenizeOptions(inputs=inputs, output=name, tokenizer=TOKENIZER, workers=1)

    assert api.discard_work(options("stories")).units == 0
    assert api.dry_run_tokenize(options("stories")).to_json()["schema"] == "tokshard.tokenize-dry-run/1"
    stories = api.tokenize(options("stories"))
    assert stories.to_json()["schema"] == "tokshard.tokenize-report/1"
    api.tokenize_array_task(options("manuals"), api.ArrayTask(0, 1), finish=False)
    manuals = api.finish_tokenize(options("manuals"))
    merge = api.MergeOptions(inputs=("stories", "manuals"), output="all")
    assert api.merge(merge, dry_run=True).action == "planned"
    merged = api.merge(merge)
    assert merged.output.dataset.documents == stories.documents + manuals.documents
    export = api.ExportOptions("all", to="olmo", output="olmo")
    assert api.dry_run_export(export).to_json()["schema"] == "tokshard.export-dry-run/1"
    assert api.export(export).tokens == merged.output.tokens
    convert = api.ConvertOptions("olmo", "olmo", "back")
    assert api.convert(convert, dry_run=True).action == "planned"
    assert api.convert(convert).output.files.bin.pieces_xxh3_128
    builder = api.IndexedDatasetBuilder("own.bin", dtype="uint16")
    builder.add_document([1, 2, 3], [3])
    builder.finalize("own.idx")
    assert len(api.IndexedDataset("own")) == 1


def make_indexes_and_blends(api):
    lengths, stream = np.array([3, 5, 4], dtype=np.int32), ShuffleStream(1)
    index = api.GPTDatasetIndex.build(lengths, range(3), sequence_length=4, seed=1, num_samples=4)
    documents = api.build_document_index(range(3), index.plan.epochs, stream, separate_final_epoch=False)
    assert api.build_sample_index(lengths, documents, index.plan).shape[1] == 2
    assert len(api.build_shuffle_index(index.plan, stream)) == len(index.shuffle_index)
    assert api.build_blending_indices([0.5, 0.5], 4)[0].tolist() == [0, 1, 0, 1]
    assert api.build_exhaustive_blending_indices([1, 2])[1].tolist() == [0, 0, 1]

    indices = api.BuildIndicesOptions(
        prefixes=("stories",), sequence_lengths=(64,), split="1", epochs=(1,), cache_directory="cache"
    )
    assert api.build_indices(indices).to_json()["schema"] == "tokshard.build-indices/1"
    blend = api.BlendOptions(
        sources=("0.7", "stories", "0.3", "manuals"),
        output="mix",
        sequence_length=64,
        split="9,1",
        num_samples=api.Sizes(300, 16, 0),
    )
    assert api.blend(blend, dry_run=True).to_json()["schema"] == "tokshard.blend-report/1"
    report = api.blend(blend)
    assert report.to_json()["schema"] == "tokshard.blend-report/1"
    return blend


def make_plans(api):
    plan = api.ShardPlanOptions(
        sources=("mix",), output="plan", data_parallel=2, batch_sizes=api.BatchSizes(global_batch_size=8)
    )
    planned = api.shard_plan(plan, dry_run=True)
    assert planned.plan.streams.keys() >= {"train"}
    assert api.shard_plan(plan).to_json()["schema"] == "tokshard.shard-plan/1"
    assert api.read_plan("plan").plan_id == planned.plan.plan_id
    replan = api.ReplanOptions(plan="plan", output="plan2", consumed_samples=80, data_parallel=4)
    assert api.replan(replan, dry_run=True).plan.plan_id == api.replan(replan).plan.plan_id
    assert api.write_plan(api.read_plan("plan2"), "copied")


def look_at_everything(api, blend):
    assert "--data-path" in api.emit_megatron(api.blend(blend, dry_run=True), blend)
    assert api.diff("plan", "plan2").to_json()["schema"] == "tokshard.diff/1"
    assert not api.verify("plan").findings
    for thing in ("stories", "mix", "mix/cache", "plan", TOKENIZER):
        assert api.inspect(thing).to_json()["schema"].startswith("tokshard.inspect-")
        assert api.describe(thing)
    assert api.tokenizer_identity(TOKENIZER) == api.read_plan("plan").tokenizer.identity
    api.write_inspection_page("page.html", "stories")
    assert Path("page.html").read_text().startswith("<!doctype html>")
    assert api.trace(api.TraceOptions(plan="plan", step=0)).to_json()["schema"] == "tokshard.trace-samples/1"
    Path("launch.sh").write_text(
        "torchrun pretrain_gpt.py --data-path stories --seq-length 64 --split 1,0,0 --train-samples 8 "
        "--global-batch-size 8 --skip-train --tokenizer-type NullTokenizer --vocab-size 8000\n"
    )
    assert api.doctor("launch.sh").to_json()["schema"] == "tokshard.doctor/1"
    assert api.indexes_of_launch(api.DoctorOptions("launch.sh", megatron="0.19")).blend_options().seed == 1234


def test_every_public_function_works_after_the_import_of_all_modules(tmp_path, monkeypatch):
    """Importing ``tokshard.x`` sets an attribute of that name: it must replace no function."""
    import_all()
    monkeypatch.chdir(tmp_path)
    api = Api()
    make_datasets(api)
    blend = make_indexes_and_blends(api)
    make_plans(api)
    look_at_everything(api, blend)
    functions = {name for name in PUBLIC if isinstance(getattr(tokshard, name), types.FunctionType)}
    assert functions - api.used == set()
