"""The doctor sees what a job will look up, and each thing that is wrong with it."""

from __future__ import annotations

import os
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from support.blends import build_blend, config_for
from support.index_caches import write_dataset
from tokshard.checks.commands.verify import verify
from tokshard.checks.doctor.forecast import recipe_of_launch
from tokshard.checks.doctor.job import DoctorOptions, JobDiagnosis, doctor
from tokshard.checks.doctor.job import diagnose as diagnose_launch
from tokshard.checks.doctor.launch.arguments import LaunchArguments
from tokshard.checks.doctor.launch.launch import Launch
from tokshard.checks.doctor.launch.rules import check_arguments
from tokshard.checks.doctor.launch.unknown import SkippedCheck
from tokshard.checks.doctor.lookups import (
    CachedDescriptions,
    Candidate,
    LookupDifference,
    NearestDescription,
    TokenizerNames,
    candidates_of_launch,
    identifiers_of_launch,
)
from tokshard.checks.verify.options import VerifyOptions
from tokshard.core.path_mapping import PathMapping
from tokshard.errors import UsageError
from tokshard.samples.blend.options import BuilderConfig
from tokshard.samples.index.description import GPTDatasetDescription
from tokshard.samples.index.packing import Packing
from tokshard.samples.index.sizes import Sizes

WEB = [5, 0, 17, 3, 40, 1, 9, 26, 2, 31, 8, 12] * 5
CODE = [7, 21, 2, 2, 33, 11, 0, 4] * 6
HEALTHY = LaunchArguments(
    data_path=("0.7", "data/web", "0.3", "data/code"),
    data_cache_path="cache",
    split="9,1",
    seq_length=16,
    train_iters=10,
    global_batch_size=8,
    micro_batch_size=1,
    eval_interval=5,
    eval_iters=1,
    tokenizer_type="HuggingFaceTokenizer",
    tokenizer_model="/models/llama",
    world_size=8,
)


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_dataset("data/web", WEB)
    write_dataset("data/code", CODE)
    for name in ("web", "code"):  # the tokenizer of data without a manifest is a warning
        verify(VerifyOptions(path=f"data/{name}", adopt=True, tokenizer="null:60000"))
    return tmp_path


def builder_config(launch: LaunchArguments, version="0.19", **changes) -> BuilderConfig:
    return config_for(
        sequence_length=launch.seq_length,
        sizes=launch.sizes(),
        split=launch.split or "969, 30, 1",
        tokenizer=identifiers_of_launch(launch, version),
        **changes,
    )


def prepare(launch: LaunchArguments, version="0.19", **changes) -> None:
    """Build what a job needs, by the library and not by the doctor."""
    build_blend(
        recipe_of_launch(launch, PathMapping()),
        builder_config(launch, version, **changes),
        "mix",
        cache_directory=launch.data_cache_path,
        force=True,
    )


def diagnose(arguments: LaunchArguments, **options) -> JobDiagnosis:
    return diagnose_launch(Launch(arguments=arguments), **options)


def skipped(diagnosis: JobDiagnosis) -> list[str]:
    return [check.check for check in diagnosis.skipped]


@pytest.fixture(autouse=True)
def _hints(monkeypatch):
    """Each problem in any of these tests has a hint."""
    created = JobDiagnosis.__init__

    def check(self, *arguments, **values):
        created(self, *arguments, **values)
        assert [finding for finding in self.findings if finding.is_problem and not finding.hint] == []

    monkeypatch.setattr(JobDiagnosis, "__init__", check)


def codes(diagnosis, *severities) -> list[str]:
    return [
        finding.code for finding in diagnosis.findings if not severities or finding.severity in severities
    ]


def per_split(**changes) -> LaunchArguments:
    return replace(HEALTHY, data_path=None, split=None, **changes)


@pytest.mark.parametrize(
    "launch",
    [
        HEALTHY,
        replace(HEALTHY, data_path=("data/web",)),
        replace(HEALTHY, data_path=("2", "data/web")),
        replace(HEALTHY, data_path=("data/web", "data/code"), train_iters=5, full_validation=True),
        per_split(train_data_path=("data/web",), valid_data_path=("1", "data/code", "1", "data/web")),
        per_split(
            train_data_path=("1", "data/web", "2", "data/code"),
            valid_data_path=("data/code", "data/web"),
            multiple_validation_sets=True,
        ),
        per_split(train_data_path=("data/web", "data/code"), train_iters=2, test_data_path=("data/web",)),
    ],
    ids=[
        "weights",
        "single",
        "one-weight",
        "no-weights",
        "per-split",
        "several-validations",
        "no-validation",
    ],
)
def test_what_was_prepared_is_found_fresh(data, launch):
    missing = diagnose(launch)
    assert "cache-missing" in codes(missing, "warning")
    prepare(launch)
    found = diagnose(launch)
    assert {lookup.condition for lookup in found.lookups} == {"fresh"}
    assert codes(found, "error") == []
    assert {lookup.hash for lookup in found.lookups} == {name[:32] for name in os.listdir("cache")}
    assert set(codes(found)) <= {"epochs", "unused-split", "blend"}
    assert found.healthy or launch.data_path == ("2", "data/web")
    assert found.tokenizer.label.startswith("Megatron 0.19")


def test_a_healthy_job_has_no_findings(data):
    prepare(HEALTHY)
    assert codes(diagnose(HEALTHY)) == ["epochs", "epochs"]
    assert diagnose(HEALTHY).healthy


def test_the_version_is_the_one_whose_files_are_there(data):
    prepare(HEALTHY, "0.16")
    assert diagnose(HEALTHY).tokenizer.label == "Megatron 0.16"
    assert diagnose(HEALTHY).healthy
    told = diagnose(
        HEALTHY,
        tokenizer=Candidate(TokenizerNames("file", path="mine"), identifiers_of_launch(HEALTHY, "0.17")),
    )
    assert {lookup.condition for lookup in told.lookups} == {"missing"}
    fields = {name for lookup in told.lookups if lookup.nearest for name in lookup.nearest.fields}
    assert fields == {
        "tokenizer.use_fast",
        "tokenizer.include_special_tokens",
        "datasets.tokenizer.use_fast",
        "datasets.tokenizer.include_special_tokens",
    }


def test_a_tokenizer_without_a_preset_is_taken_from_the_cache(data):
    prepare(HEALTHY)
    other = replace(HEALTHY, tokenizer_type="SentencePieceTokenizer")
    assert diagnose(other).tokenizer.label == "the cache itself"
    assert diagnose(other).healthy
    notes = ["epochs", "epochs", "tokenizer-assumed"]
    assert codes(diagnose(other), "note") == notes
    elsewhere = diagnose(replace(other, data_cache_path="nothing"))
    assert "cache-names" in skipped(elsewhere)


def test_a_cache_of_another_tokenizer_is_not_taken_for_the_jobs(data):
    prepare(HEALTHY, "0.17")
    for changes in (
        {"tokenizer_model": "/models/other"},
        {"tokenizer_type": "NullTokenizer", "vocab_size": 50257},
        {"tokenizer_type": "SentencePieceTokenizer", "tokenizer_model": "/models/other"},
    ):
        other = diagnose(replace(HEALTHY, **changes))
        assert {lookup.condition for lookup in other.lookups} == {"missing"}
        assert "cache-names" in skipped(other)
    moved = diagnose(replace(HEALTHY, tokenizer_model="/models/other"))
    assert moved.tokenizer.label == "Megatron 0.17"
    fields = {name for lookup in moved.lookups if lookup.nearest for name in lookup.nearest.fields}
    assert fields == {"tokenizer.tokenizer_path", "datasets.tokenizer.tokenizer_path"}


def test_neutral_names_are_those_of_no_job(data):
    sizes = HEALTHY.sizes()
    config = config_for(sizes=sizes, split="9,1", tokenizer={"class": "tokshard"})
    build_blend(recipe_of_launch(HEALTHY, PathMapping()), config, "mix", cache_directory="cache")
    for launch in (HEALTHY, replace(HEALTHY, tokenizer_type=None, tokenizer_model=None)):
        assert {lookup.condition for lookup in diagnose(launch).lookups} == {"missing"}
        assert not diagnose(launch).healthy


def test_each_state_of_the_cache_is_told(data):
    prepare(HEALTHY)
    (sidecar,) = Path("cache").glob("*-BlendedDataset-train-tokshard.json")
    sidecar.unlink()
    assert codes(diagnose(HEALTHY)) == ["epochs", "epochs", "cache-unverified"]
    assert diagnose(HEALTHY).healthy
    victim = next(Path("cache").glob("*-GPTDataset-valid-sample_index.npy"))
    content = victim.read_bytes()
    victim.unlink()
    (missing,) = [finding for finding in diagnose(HEALTHY).findings if finding.code == "cache-missing"]
    assert missing.hint.endswith(" --rebuild`")  # or the build would refuse the files without a sidecar
    victim.write_bytes(content[:-1])
    assert "cache-differs" in codes(diagnose(HEALTHY), "error")
    write_dataset("data/code", [9, *CODE])
    stale = diagnose(HEALTHY)
    assert "cache-differs" in codes(stale, "error")
    assert {lookup.prefix for lookup in stale.lookups if "other content" in lookup.reason} == {"data/code"}
    assert all(os.path.isfile(path) for lookup in stale.lookups for path in lookup.files)


def test_one_defect_hides_no_other_split(data):
    write_dataset("data/few", [100] * 4)
    launch = replace(HEALTHY, data_path=("data/few",), split="97,2,1")
    diagnosis = diagnose(launch)
    assert codes(diagnosis, "error") == ["data", "data"]
    assert [finding.message.split(":")[0] for finding in diagnosis.findings if finding.code == "data"] == [
        "data/few, valid",
        "data/few, test",
    ]
    assert [lookup.split for lookup in diagnosis.lookups] == ["train", "valid", "test"]
    assert [not part.sources for part in diagnosis.splits] == [False, True, True]


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({"data_path": ("1", "data/web", "1", "data/none")}, "data", "1 of 2 datasets not found: data/none"),
        ({"data_path": ("1", "data/web", "1", "data/web")}, "blend", "is in the mixture twice"),
        (
            {"data_path": ("1", "data/web", "data/code")},
            "arguments",
            "Megatron would read '1' as a path prefix",
        ),
        ({"data_path": tuple(f"data/{k}" for k in range(32767))}, "arguments", "numbers them with int16"),
        ({"data_args_path": "data/none", "data_path": None}, "data", "file not found: data/none"),
        ({"train_iters": None}, "arguments", "the number of training steps or samples is required"),
        ({"seq_length": None}, "arguments", "the sequence length is required"),
        (
            {"global_batch_size": None, "micro_batch_size": None, "world_size": None},
            "arguments",
            "the global batch size is required",
        ),
        ({"data_path": ("data/web", "data/code")}, "too-few-samples", "of the 80 samples requested"),
        ({"split": "1e2,1"}, "split", "Megatron would read 1, 2, 1"),
    ],
)
def test_defects_of_the_data_are_findings(data, changes, code, words):
    diagnosis = diagnose(replace(HEALTHY, **changes))
    assert not diagnosis.healthy
    assert [
        words in finding.message
        for finding in diagnosis.findings
        if finding.code == code and finding.severity == "error"
    ] == [True]


def test_without_a_cache_path_blends_are_rebuilt_everywhere(data):
    diagnosis = diagnose(replace(HEALTHY, data_cache_path=None))
    assert "no-cache-path" in codes(diagnosis, "warning")
    assert [lookup.prefix for lookup in diagnosis.lookups] == ["data/web", "data/code"] * 2
    assert {os.path.dirname(lookup.stem) for lookup in diagnosis.lookups} == {
        "data/web/cache/GPTDataset_indices",
        "data/code/cache/GPTDataset_indices",
    }


def test_several_epochs_are_told_as_they_are_read(data):
    launch = replace(HEALTHY, data_path=("data/web",), train_iters=None, train_samples=1600, split="1")
    (finding,) = (finding for finding in diagnose(launch).findings if finding.code == "epochs")
    assert (finding.severity, finding.message) == (
        "note",
        f"train reads data/web {1600 * 16 / sum(WEB):.2f} times",
    )


def test_validation_data_read_often_is_reported_once(data):
    launch = replace(HEALTHY, eval_iters=100)
    (message,) = (
        finding.message for finding in diagnose(launch).findings if "valid reads" in finding.message
    )
    assert re.fullmatch(r"valid reads data/\w+ \d+\.\d\d times, data/\w+ \d+\.\d\d times", message)


def test_jobs_without_indexes_look_nothing_up(data):
    for changes in ({"mock_data": True, "data_path": None}, {"sft": True}):
        diagnosis = diagnose(replace(HEALTHY, **changes))
        assert (diagnosis.lookups, codes(diagnosis), skipped(diagnosis)) == ((), [], ["data"])
        assert diagnosis.healthy


def test_the_processes_of_jobs_without_indexes_are_checked(data):
    job = replace(HEALTHY, mock_data=True, tensor_model_parallel_size=3)
    assert codes(diagnose(job)) == ["world-size"]
    assert codes(diagnose(replace(job, unknown=(("world_size", "$N"),), world_size=None))) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"unseen": ("$@",)}, [("arguments", "skipped")]),
        ({"unknown": (("save", "$X"),)}, []),
        (
            {"unknown": (("world_size", "$N"),), "world_size": None},
            [("world-size", "skipped"), ("batch-size", "skipped")],
        ),
        ({"unknown": (("seq_length", "$S"),), "seq_length": None}, [("context-parallel", "skipped")]),
        ({"unknown": (("data_path", "$D"),), "data_path": None}, [("data", "skipped")]),
        ({"unseen": ("$@",), "data_path": None}, [("arguments", "skipped"), ("data", "skipped")]),
        ({"unseen": ("$@",), "split": None}, [("arguments", "skipped"), ("split", "skipped")]),
        (
            {"unseen": ("$@",), "eval_interval": None},
            [("arguments", "skipped"), ("eval-interval", "skipped")],
        ),
        (
            {"context_parallel_size": 8, "world_size": None},
            [("world-size", "skipped"), ("batch-size", "skipped")],
        ),
        (
            {"context_parallel_size": 3, "world_size": None},
            [("context-parallel", "error"), ("world-size", "skipped"), ("batch-size", "skipped")],
        ),
        ({"seq_length": 12, "context_parallel_size": 4}, [("context-parallel", "error")]),
        ({"context_parallel_size": 1, "seq_length": 15}, []),
        ({"tensor_model_parallel_size": 3}, [("world-size", "error")]),
        ({"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2}, []),
        ({"micro_batch_size": 2}, [("batch-size", "error")]),
        ({"micro_batch_size": 2, "tensor_model_parallel_size": 2}, []),
        ({"eval_global_batch_size": 12}, [("batch-size", "error")]),
        ({"eval_micro_batch_size": 2}, [("batch-size", "error")]),
        ({"eval_global_batch_size": 16, "eval_micro_batch_size": 2}, []),
        ({"step_batch_size_schedule": "0:8"}, [("schedule", "error")]),
        ({"step_batch_size_schedule": "0:8", "is_completed": True}, []),
        ({"step_batch_size_schedule": "x", "global_batch_size": None}, [("schedule", "error")]),
        (
            {"step_batch_size_schedule": "0:8 1K:16", "global_batch_size": None},
            [("schedule", "warning")],
        ),
        (
            {
                "step_batch_size_schedule": "0:8 1K:16",
                "global_batch_size": None,
                "train_iters": None,
                "train_samples": 800,
            },
            [],
        ),
        ({"train_samples": 800}, [("schedule", "error")]),
        ({"train_samples": 0}, [("schedule", "error")]),
        ({"train_samples": 800, "train_iters": 0}, [("schedule", "error")]),
        ({"train_samples": 800, "train_iters": None}, []),
        ({"train_samples": 800, "is_completed": True}, []),
        ({"train_samples": 800, "skip_train": True}, []),
        ({"micro_batch_size": 2, "decrease_batch_size_if_needed": True}, []),
        ({"eval_micro_batch_size": 2, "decrease_batch_size_if_needed": True}, [("batch-size", "error")]),
        ({"rampup_batch_size": ("8", "8", "100")}, [("schedule", "warning")]),
        ({"rampup_batch_size": ("8", "8", "100"), "is_completed": True}, []),
        ({"rampup_batch_size": ("8", "8", "100"), "train_iters": None}, [("schedule", "warning")]),
        ({"eval_interval": None}, [("eval-interval", "warning")]),
        ({"eval_interval": None, "skip_train": True}, []),
        (
            {
                "dataloader_defer_npy_index_mmap": True,
                "data_cache_path": None,
                "data_path": None,
                "split": None,
                "train_data_path": ("x",),
            },
            [("no-cache-path", "error")],
        ),
        ({"dataloader_defer_npy_index_mmap": True}, []),
        ({"data_path": None}, [("no-data", "error")]),
        ({"data_args_path": "x"}, [("no-single-source", "error")]),
        ({"train_data_path": ("x",)}, [("no-single-source", "error"), ("split-excluded", "error")]),
        ({"data_path": None, "train_data_path": ("x",)}, [("split-excluded", "error")]),
        ({"split": None}, [("default-split", "warning")]),
        ({"split": None, "data_path": None, "data_args_path": "x"}, [("default-split", "error")]),
        ({"split": "99,-1"}, [("split", "error")]),
        (
            {"dataloader_fast_cache_load": True, "data_cache_path": None},
            [("no-cache-path", "error"), ("fast-cache-load", "error")],
        ),
        ({"dataloader_type": "cyclic"}, []),
        ({"dataloader_type": "cyclic", "no_data_sharding": True}, [("cyclic-sampler", "warning")]),
    ],
)
def test_each_rule_about_arguments(changes, expected):
    found = check_arguments(replace(HEALTHY, **changes))
    told = [(r.check, "skipped") if isinstance(r, SkippedCheck) else (r.code, r.severity) for r in found]
    assert told == expected
    assert all(result.hint for result in found)


@pytest.mark.parametrize(
    ("changes", "megatron", "expected"),
    [
        ({"train_samples": 800, "skip_train": True}, "0.16", "--train-iters cannot be used with"),
        ({"train_samples": 800, "skip_train": True}, "0.17", None),
        ({"rampup_batch_size": ("8", "8", "9")}, "0.17", "Megatron up to 0.17 does not start with both"),
        ({"rampup_batch_size": ("8", "8", "9")}, "0.18", "--rampup-batch-size is ignored"),
        ({"rampup_batch_size": ("8", "8", "9"), "train_iters": None}, "0.17", "it adds steps"),
        (
            {"rampup_batch_size": ("8", "8", "9"), "train_iters": None},
            "0.19",
            "--rampup-batch-size is ignored",
        ),
    ],
)
def test_rules_about_schedules_are_those_of_the_version(changes, megatron, expected):
    findings = [result.message for result in check_arguments(replace(HEALTHY, **changes), megatron)]
    assert [expected in message for message in findings] == ([] if expected is None else [True])


@pytest.mark.parametrize("changes", [{"rampup_batch_size": ("8", "8", "9")}, {"eval_interval": None}])
def test_rules_of_later_versions_are_not_those_of_forks(changes):
    arguments = replace(HEALTHY, **changes)
    assert check_arguments(arguments)
    assert check_arguments(arguments, is_fork=True) == []


def test_only_megatron_015_starts_without_a_validation_interval(data):
    launch = replace(HEALTHY, eval_interval=None)
    found = {
        version: [finding.severity for finding in check_arguments(launch, version)]
        for version in (None, "0.15.2", "0.16", "main-20260822")
    }
    assert found == {None: ["warning"], "0.15.2": [], "0.16": ["error"], "main-20260822": ["error"]}
    options = DoctorOptions(
        launch="pretrain_gpt.py --data-path data/web --split 1 --seq-length 16 --train-iters 2000 "
        "--global-batch-size 1 --eval-iters 2 --tokenizer-model /models/llama "
        "--tokenizer-type HuggingFaceTokenizer"
    )
    reports = {version: doctor(replace(options, megatron=version)) for version in (None, "0.15", "0.19")}
    for report in reports.values():
        assert report.jobs[0].sizes == Sizes(2000, 6, 2)
    assert [
        finding.severity
        for report in reports.values()
        for finding in report.findings
        if finding.code == "eval-interval"
    ] == ["warning", "error"]


def test_the_nearest_description_differs_in_the_fewest_fields(tmp_path):
    wanted = GPTDatasetDescription("data/web", 8, "train", 1, 64, None, None, {"class": "A", "x": "1"})
    others = {
        "same-data": replace(wanted, num_samples=9, random_seed=2),
        "other-data": replace(wanted, dataset_path="data/code"),
        "far": replace(wanted, num_samples=9, random_seed=2, sequence_length=65),
        "other-split": replace(wanted, index_split="valid"),
    }
    for description in others.values():
        (tmp_path / f"{description.hash()}-GPTDataset-{description.index_split}-description.txt").write_text(
            description.text()
        )
    (tmp_path / f"{'0' * 32}-GPTDataset-train-description.txt").write_text("{}")
    nearest = CachedDescriptions().nearest(wanted, str(tmp_path))
    assert len(nearest) == 2  # the jobs with seed 2: of 64, and of 65 tokens
    found = next(iter(sorted(nearest.values(), key=NearestDescription.distance)))
    assert Path(found.path).name.startswith(others["same-data"].hash())
    assert found.differences == (LookupDifference("num_samples", 8, 9), LookupDifference("random_seed", 1, 2))
    assert CachedDescriptions().nearest(wanted, str(tmp_path / "none")) == {}
    assert CachedDescriptions().tokenizers([str(tmp_path)]) == [wanted.tokenizer]


def test_options_of_the_tokenizer_enter_its_identifiers():
    launch = replace(HEALTHY, trust_remote_code=True, tokenizer_hf_no_use_fast=True, vocab_file="v")
    identifiers = identifiers_of_launch(launch, "0.19")
    assert (identifiers["trust_remote_code"], identifiers["use_fast"], identifiers["vocab_file"]) == (
        "True",
        "False",
        "v",
    )
    early = replace(HEALTHY, tokenizer_hf_use_fast=True, tokenizer_hf_include_special_tokens=True)
    assert identifiers_of_launch(early, "0.16") == identifiers_of_launch(HEALTHY, "0.17")
    null = LaunchArguments(tokenizer_type="NullTokenizer", vocab_size=100, null_tokenizer_eod_id=7)
    assert identifiers_of_launch(null, "0.19")["eod_id"] == "7"
    with pytest.raises(UsageError):
        identifiers_of_launch(null, "0.16")
    labels = [candidate.names.label for candidate in candidates_of_launch(HEALTHY)]
    assert labels == [
        "Megatron main-20260822",
        "Megatron 0.19 or 0.18",
        "Megatron 0.17",
        "Megatron 0.16",
        "Megatron 0.15",
    ]
    assert candidates_of_launch(replace(HEALTHY, tokenizer_model=None)) == []


NAMES = st.lists(st.sampled_from(["a", "b", "ab"]), min_size=1, max_size=3).map("/".join)


@given(
    st.lists(
        st.tuples(NAMES, NAMES.map("/t/".__add__)), max_size=3, unique_by=(lambda p: p[0], lambda p: p[1])
    ),
    NAMES,
)
def test_paths_here_and_there_are_each_others_inverse(pairs, path):
    # One training path inside another may be that of several local paths.
    training = [f"{prefix}/" for _, prefix in pairs]
    assume(not any(one != other and one.startswith(other) for one in training for other in training))
    config = config_for(path_as=tuple(pairs))
    there = config.training_path(path)
    back = PathMapping(tuple(pairs)).inverse().map(there)
    assert config.training_path(back) == there


def test_after_an_error_in_the_arguments_the_cache_is_not_checked(data):
    diagnosis = diagnose(replace(HEALTHY, train_iters=None))
    assert codes(diagnosis, "error") == ["arguments"]
    assert (skipped(diagnosis).count("cache"), diagnosis.lookups) == (1, ())


def test_missing_data_is_one_error(data):
    diagnosis = diagnose(replace(HEALTHY, data_path=None, split=None))
    assert codes(diagnosis, "error") == ["no-data"]
    assert "cache" in skipped(diagnosis)


def test_packed_indexes_are_found_and_their_samples_counted(data):
    prepare(HEALTHY)
    concatenated = diagnose(HEALTHY)
    packing = Packing(max_documents=3, pad_multiple=4)
    job = replace(HEALTHY, data_cache_path="packed", reset_attention_mask=True)
    recipe = recipe_of_launch(job, PathMapping())
    sources = tuple(replace(source, pack="best-fit") for source in recipe.sources)
    recipe = recipe.map(lambda mixture: replace(mixture, sources=sources))
    build_blend(recipe, replace(builder_config(job), packing=packing), "packed-mix", cache_directory="packed")
    diagnosis = diagnose(job)
    assert {lookup.condition for lookup in diagnosis.lookups} == {"fresh"}
    assert diagnosis.healthy
    assert [split.samples for split in diagnosis.splits] == [split.samples for split in concatenated.splits]
    assert all(source.plan.packed for split in diagnosis.splits for source in split.sources)
    assert codes(diagnosis, "note") == ["packed-padding", "epochs", "epochs"]
    unmasked = replace(job, reset_attention_mask=False)
    assert "packed-attention" in codes(diagnose(unmasked), "note")
    assert "packed-loss-mask" in codes(diagnose(unmasked), "warning")
    masked = replace(unmasked, dataloader_inter_document_masking=True)
    assert codes(diagnose(masked), "note") == codes(diagnosis, "note")
    assert codes(diagnose(masked), "warning") == ["packed-loss-mask"]
    for option in ("eod_mask_loss", "reset_position_ids"):
        assert codes(diagnose(replace(masked, **{option: True})), "warning") == []
    deferred = diagnose(replace(job, dataloader_defer_npy_index_mmap=True))
    assert "packed-deferred" in codes(deferred, "error")
    next(Path("packed").glob("*-GPTDataset-valid-sample_index.npy")).unlink()
    (missing,) = [finding for finding in diagnose(job).findings if finding.code == "cache-missing"]
    assert "run `tokshard blend" in missing.hint
    assert "--pack best-fit --max-documents-per-sample 3 --pad-multiple 4" in missing.hint
    # Each index counts by its own packing, and no one command builds all of them.
    for path in Path("cache").glob("*-GPTDataset-train-*"):
        shutil.copy(path, "packed")
    mixed = diagnose(job)
    assert [lookup.condition for lookup in mixed.lookups if lookup.split == "train"] == ["fresh"] * 3
    (missing,) = [finding for finding in mixed.findings if finding.code == "cache-missing"]
    assert "whose packing differs (best-fit, at most 3" in missing.hint
    assert "--pack" not in missing.hint


def test_the_cache_of_very_many_datasets_is_not_checked(data, monkeypatch):
    os.mkdir("many")
    for number in range(5001):
        for suffix in (".idx", ".bin"):
            os.link(f"data/web{suffix}", f"many/{number}{suffix}")
    paths = tuple(f"many/{number}" for number in range(5001))
    started = time.process_time()
    diagnosis = diagnose(replace(HEALTHY, data_path=paths))
    assert time.process_time() - started < 5
    (check,) = (check for check in diagnosis.skipped if check.check == "cache")
    assert check.reason == "the job reads 5,001 datasets, and doctor opens at most 5,000"
    assert "tokshard blend --from-launch" in (check.hint or "")
    diagnosis = diagnose(
        replace(HEALTHY, data_path=paths, train_iters=None, unknown=(("train_iters", "$N"),))
    )
    assert [check.reason for check in diagnosis.skipped if check.check == "cache"] == [check.reason]
    assert "tokenizer-unchecked" not in codes(diagnosis)
    monkeypatch.setattr("tokshard.checks.doctor.forecast._MAX_SOURCES", 3)
    assert "cache" not in skipped(diagnose(replace(HEALTHY, data_path=paths[:3])))
