"""The names that tokshard promises, and where they are."""

import ast
import importlib
import pkgutil
import tomllib
import types
from pathlib import Path

import tokshard

ROOT = Path(__file__).parents[1]

PUBLIC = """
    ArrayTask BlendOptions BlendReport BuildIndicesOptions BuildIndicesReport ConvertOptions
    ConvertReport DType DiffOptions DoctorOptions ExportOptions ExportReport IndexedDataset
    IndexedDatasetBuilder InspectOptions MergeOptions MergeReport NamingOptions Plan RayOptions ReplanOptions
    ShardPlanOptions ShardPlanReport Sizes TokenizeOptions TokenizeReport TraceOptions TrainingOptions
    VerifyOptions blend build_indices convert diff doctor export finish_tokenize inspect merge read_plan
    replan shard_plan tokenize tokenize_array_task tokenize_sources trace verify
"""
"""Removing or renaming one of these breaks a promise."""

MOST_NAMES = 46


def module_names():
    return [module.name for module in pkgutil.walk_packages(tokshard.__path__, "tokshard.")]


def test_the_exported_names_are_pinned():
    names = tokshard._HOMES.keys()
    assert sorted(names) == PUBLIC.split()
    assert len(names) <= MOST_NAMES
    assert dir(tokshard) == sorted(tokshard.__all__)


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


def test_the_stub_for_type_checkers_has_the_same_names_and_homes():
    stub = ast.parse(Path(tokshard.__file__).with_suffix(".pyi").read_text())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    names = {alias.asname: node.module for node in imports for alias in node.names}
    assert imports == stub.body
    assert all(alias.name == alias.asname for node in imports for alias in node.names)
    assert names == {**tokshard._HOMES, "__version__": "tokshard.version"}


def test_the_wheel_includes_the_stub_and_the_marker_of_typed_packages():
    # A wheel has all files of the package: scripts/release builds one and compares it with the repository.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"] == {"packages": ["src/tokshard"]}
    for name in ("__init__.pyi", "py.typed"):
        assert (ROOT / "src/tokshard" / name).is_file()


class Api:
    """The public API, with a note of what was asked for."""

    def __init__(self):
        self.used = set()

    def __getattr__(self, name):
        self.used.add(name)
        return getattr(tokshard, name)


SAMPLE = ROOT / "sample_data"
TOKENIZER = str(SAMPLE / "tokenizer.json")


def make_datasets(api):
    def options(name):
        inputs = (str(SAMPLE / f"{name}.jsonl"),)
        return api.TokenizeOptions(inputs=inputs, output=name, tokenizer=TOKENIZER, workers=1)

    assert api.tokenize(options("stories"), dry_run=True).action == "planned"
    stories = api.tokenize(options("stories"))
    assert stories.to_json()["schema"] == "tokshard.tokenize/2"
    api.tokenize_array_task(options("manuals"), api.ArrayTask(0, 1))
    manuals = api.finish_tokenize(options("manuals"))
    Path("sources.toml").write_text(f'[[source]]\ninput = "{SAMPLE}/manuals.jsonl"\nlimit = "1k"\n')
    (source,) = api.tokenize_sources("sources.toml", {"output": "few"}, dry_run=True).sources
    assert (source.output, source.report.action) == ("few", "planned")
    merge = api.MergeOptions(inputs=("stories", "manuals"), output="all")
    assert api.merge(merge, dry_run=True).action == "planned"
    merged = api.merge(merge)
    assert merged.output.counts.documents == stories.counts.documents + manuals.counts.documents
    export = api.ExportOptions(source="all", to="olmo", output="olmo")
    assert api.export(export, dry_run=True).action == "planned"
    assert api.export(export).manifest.tokens == merged.output.tokens
    convert = api.ConvertOptions(sources="olmo", format="olmo", output="back")
    assert api.convert(convert, dry_run=True).action == "planned"
    assert api.convert(convert).output.files.bin.pieces_xxh3_128
    builder = api.IndexedDatasetBuilder("own.bin", dtype=api.DType.optimal_dtype(4096))
    builder.add_document([1, 2, 3], [3])
    builder.finalize("own.idx")
    assert len(api.IndexedDataset("own")) == 1


def make_indexes_and_blends(api):
    indices = api.BuildIndicesOptions(
        prefixes=("stories",), seq_length=(64,), split="1", epochs=(1,), cache_dir="cache"
    )
    assert api.build_indices(indices).to_json()["schema"] == "tokshard.build-indices/2"
    blend = api.BlendOptions(
        sources=("0.7", "stories", "0.3", "manuals"),
        output="mix",
        seq_length=64,
        split="9,1",
        num_samples=api.Sizes(300, 16, 0),
    )
    assert api.blend(blend, dry_run=True).action == "planned"
    assert api.blend(blend).to_json()["schema"] == "tokshard.blend-report/2"


def make_plans(api):
    plan = api.ShardPlanOptions(sources=("mix",), output="plan", data_parallel=2, global_batch_size=8)
    planned = api.shard_plan(plan, dry_run=True)
    assert planned.plan.streams.keys() >= {"train"}
    assert api.shard_plan(plan).to_json()["schema"] == "tokshard.shard-plan/2"
    assert api.read_plan("plan").plan_id == planned.plan.plan_id
    replan = api.ReplanOptions(plan="plan", output="plan2", consumed_samples=80, data_parallel=4)
    assert api.replan(replan, dry_run=True).plan.plan_id == api.replan(replan).plan.plan_id


def look_at_everything(api):
    assert api.diff("plan", "plan2").to_json()["schema"] == "tokshard.diff/2"
    assert not api.verify("plan").findings
    for thing in ("stories", "mix/cache", "plan", TOKENIZER):
        assert api.inspect(thing).to_json()["schema"].startswith("tokshard.inspect-")
    assert api.inspect("mix").to_json()["schema"] == "tokshard.blend/2"
    assert api.trace(api.TraceOptions(path="plan", step=0)).to_json()["schema"] == "tokshard.trace-samples/2"
    Path("launch.sh").write_text(
        "torchrun pretrain_gpt.py --data-path stories --seq-length 64 --split 1,0,0 --train-samples 8 "
        "--global-batch-size 8 --skip-train --tokenizer-type NullTokenizer --vocab-size 8000\n"
    )
    assert api.doctor("launch.sh").to_json()["schema"] == "tokshard.doctor/2"


def test_every_public_function_works_after_the_import_of_all_modules(tmp_path, monkeypatch):
    """Importing ``tokshard.x`` sets an attribute of that name: it must replace no function."""
    import_all()
    monkeypatch.chdir(tmp_path)
    api = Api()
    make_datasets(api)
    make_indexes_and_blends(api)
    make_plans(api)
    look_at_everything(api)
    functions = {name for name in tokshard.__all__ if isinstance(getattr(tokshard, name), types.FunctionType)}
    assert functions - api.used == set()
