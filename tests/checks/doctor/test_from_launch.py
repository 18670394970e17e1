"""What is built from a launch script is what the doctor looks up for it: the same names, and nothing else."""

from __future__ import annotations

import json
import os
import re
import shlex
from dataclasses import fields, replace
from pathlib import Path

import pytest

import tokshard
from support.index_caches import write_dataset
from tokshard import DoctorOptions, build_indices, doctor
from tokshard.checks.commands.verify import verify
from tokshard.checks.doctor.from_launch import indexes_of_launch
from tokshard.checks.doctor.launch.arguments import NO_OPTIONS, LaunchArguments, option_of
from tokshard.checks.verify.options import VerifyOptions
from tokshard.errors import InputError, UsageError

LENGTHS = {
    "web": [5, 0, 17, 3, 40, 1, 9, 26, 2, 31, 8, 12] * 5,
    "code": [7, 21, 2, 2, 33, 11, 0, 4] * 6,
    "books": [50, 3, 18] * 9,
}
JOB = LaunchArguments(
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
)
NULL = {"tokenizer_type": "NullTokenizer", "tokenizer_model": None, "vocab_size": 60000}


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, lengths in LENGTHS.items():
        write_dataset(f"data/{name}", lengths)
        verify(VerifyOptions(path=f"data/{name}", adopt=True, tokenizer="null:60000"))
    Path("words").write_text("2 data/web\n1 data/books\n")
    Path("one").write_text("data/code")
    splits = {"train": ["1", "data/web", "1", "data/code"], "valid": "data/books", "test": None}
    Path("splits.json").write_text(json.dumps(splits))
    return tmp_path


def command_of(arguments: LaunchArguments) -> str:
    """Return a launch command with these arguments."""
    words = ["torchrun", "--nproc-per-node", "8", "pretrain_gpt.py"]
    for field in fields(arguments):
        value = getattr(arguments, field.name)
        if field.name in NO_OPTIONS or value is None or value is False:
            continue
        words.append(option_of(field.name))
        words += [] if value is True else value if isinstance(value, tuple) else [str(value)]
    return shlex.join(words)


def per_split(**changes) -> dict:
    return {"data_path": None, "split": None, **changes}


MIXTURES = {
    "weights": {},
    "one dataset": {"data_path": ("data/web",)},
    "one weight": {"data_path": ("2", "data/web")},
    "no weights": {"data_path": ("data/web", "data/code"), "train_iters": 5},
    "a file of words": {"data_path": None, "data_args_path": "words"},
    "a file of one word": {"data_path": None, "data_args_path": "one"},
    "a file for each split": per_split(per_split_data_args_path="splits.json"),
    "one dataset for each split": per_split(train_data_path=("data/web",), valid_data_path=("data/code",)),
    "validation alone": per_split(valid_data_path=("data/code",)),
    "blends for each split": per_split(
        train_data_path=("1", "data/web", "2", "data/code"),
        valid_data_path=("1", "data/code", "1", "data/books"),
        test_data_path=("data/books",),
    ),
    "validation sets": per_split(
        train_data_path=("data/web",),
        valid_data_path=("data/code", "data/books"),
        multiple_validation_sets=True,
    ),
}
SIZES = {
    "steps": {},
    "samples": {"train_iters": None, "train_samples": 70},
    "other seed, surplus and split": {"seed": 7, "mid_level_dataset_surplus": 0.05, "split": "70,15,15"},
    "later evaluation": {"start_eval_at_iter": 4, "eval_global_batch_size": 16, "eval_iters": 2},
    "only validation": {"skip_train": True},
    "phases": {"train_iters": None, "train_samples": 80, "phase_transition_iterations": "4"},
    "schedule": {
        "step_batch_size_schedule": "0:8 40:16",
        "train_iters": None,
        "train_samples": 80,
        "global_batch_size": None,
    },
    "one epoch of validation": {"full_validation": True},
    "default split": {"split": None},
}
REFUSED = {"arguments", "default-split"}
NOT_STARTED = {
    *((mixture, "one epoch of validation") for mixture in ("weights", "one weight", "a file of words")),
    *((mixture, "default split") for mixture in ("a file of words", "a file of one word")),
    ("blends for each split", "one epoch of validation"),
}
"""Combinations that Megatron refuses: weights require a size, and only --data-path has a default split."""


def changed(mixture: str, sizes: str) -> LaunchArguments:
    """Return the arguments of a combination."""
    changes = {**SIZES[sizes], **MIXTURES[mixture]}
    if "train_iters" in SIZES[sizes]:
        changes["train_iters"] = None
    return replace(JOB, **changes)


def doctor_of(arguments: LaunchArguments, version: str | None = None):
    (job,) = doctor(DoctorOptions(launch=command_of(arguments), megatron=version)).jobs
    return job


def build(options: DoctorOptions, **changes) -> None:
    """Build the indexes as the doctor's hint says."""
    found = indexes_of_launch(options)
    (job,) = doctor(options).jobs
    commands = [f.hint for f in job.findings if f.code.startswith("cache-") and f.hint]
    is_blend = all("tokshard blend " in command for command in commands)
    assert is_blend == any(split.kind != "single" for split in job.splits)
    if is_blend:
        with pytest.raises(UsageError, match="the job reads a blend") as refused:
            found.build_indices_options()
        assert "`tokshard blend --from-launch " in refused.value.hint
    else:
        report = build_indices(replace(found.build_indices_options(), **changes))
        assert report.has_megatron_names
    # The other command builds the same files, and finds them.
    if is_blend or "data_cache_path" in job.arguments:
        report = tokshard.blend(replace(found.blend_options(), output="mix", force=True, **changes))
        assert is_blend or set(report.actions.values()) == {"found"}


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("mixture", MIXTURES)
def test_the_doctor_finds_all_of_it_and_there_is_nothing_else(data, mixture, sizes):
    arguments = changed(mixture, sizes)
    if sizes == "default split":  # the test split must have a sequence
        for name, lengths in LENGTHS.items():
            write_dataset(f"data/{name}", lengths * 100)
    before = doctor_of(arguments, "0.19")
    errors = [f.message for f in before.findings if f.severity == "error" and f.code in REFUSED]
    if errors:
        with pytest.raises(UsageError, match=re.escape(errors[0])):
            indexes_of_launch(DoctorOptions(launch=command_of(arguments), megatron="0.19"))
        assert (mixture, sizes) in NOT_STARTED
        return
    assert before.lookups
    assert {lookup.condition for lookup in before.lookups} == {"missing"}
    build(DoctorOptions(launch=command_of(arguments), megatron="0.19"))
    after = doctor_of(arguments)
    assert {lookup.condition for lookup in after.lookups} == {"fresh"}
    assert {lookup.hash for lookup in after.lookups} == {name[:32] for name in os.listdir("cache")}
    assert after.tokenizer.label == "Megatron 0.19 or 0.18"


@pytest.mark.parametrize("version", ["0.15", "0.16", "0.17", "0.18", "main-20260822"])
@pytest.mark.parametrize("tokenizer", [{}, NULL], ids=["hugging-face", "null"])
def test_each_version_has_its_names(data, version, tokenizer):
    arguments = replace(JOB, eval_interval=None if version == "0.15" else 5, **tokenizer)
    build(DoctorOptions(launch=command_of(arguments), megatron=version))
    after = doctor_of(arguments, version)
    assert {lookup.condition for lookup in after.lookups} == {"fresh"}
    # From now on the cache tells the version.
    found = indexes_of_launch(command_of(arguments))
    assert (
        found.config
        == indexes_of_launch(DoctorOptions(launch=command_of(arguments), megatron=version)).config
    )


def test_without_a_cache_path_one_dataset_is_built_beside_itself(data):
    arguments = replace(JOB, data_path=("data/web",), data_cache_path=None)
    build(DoctorOptions(launch=command_of(arguments), megatron="0.19"))
    assert doctor_of(arguments).healthy
    assert len(os.listdir("data/web/cache/GPTDataset_indices")) == 2 * 5


def test_paths_are_those_of_the_job(data):
    os.mkdir("models")
    arguments = replace(
        JOB,
        data_path=None,
        data_args_path="/mnt/job/words",
        data_cache_path="/scratch/cache",
        tokenizer_model="/mnt/models/llama",
    )
    Path("words").write_text("1 /mnt/data/web 1 /mnt/data/code")
    pairs = (("data", "/mnt/data"), ("cache", "/scratch/cache"), ("models", "/mnt/models"), (".", "/mnt/job"))
    options = DoctorOptions(launch=command_of(arguments), megatron="0.19", path_as=pairs)
    (before,) = doctor(options).jobs
    assert [lookup.prefix for lookup in before.lookups][:2] == ["/mnt/data/web", "/mnt/data/code"]
    build(options)
    (after,) = doctor(options).jobs
    assert {lookup.condition for lookup in after.lookups} == {"fresh"}
    with pytest.raises(InputError, match="file not found: /mnt/job/words"):
        indexes_of_launch(replace(options, path_as=pairs[:3]))
    with pytest.raises(InputError, match="2 of 2 datasets not found: /mnt/data/web, /mnt/data/code"):
        indexes_of_launch(replace(options, path_as=pairs[1:]))
    with pytest.raises(InputError, match="the data is not on this machine: /mnt/data/web, ") as refused:
        indexes_of_launch(replace(options, path_as=pairs[2:]))
    assert refused.value.hint == "run doctor where the data is, or pass --path-as LOCAL=TRAINING"


def test_identifiers_come_from_a_description_or_a_file(data):
    text = command_of(replace(JOB, data_path=("data/web",)))
    build(DoctorOptions(launch=text, megatron="0.17"))
    like = str(next(Path("cache").glob("*-description.txt")))
    described = json.loads(Path(like).read_text())["tokenizer"]
    Path("identifiers.json").write_text(json.dumps(described))
    other = command_of(replace(JOB, tokenizer_type="SentencePieceTokenizer", tokenizer_model="/models/other"))
    for options in (
        DoctorOptions(launch=other, like=like),
        DoctorOptions(launch=other, tokenizer_identifiers="identifiers.json"),
        DoctorOptions(launch=other, tokenizer_identifiers=described),
    ):
        assert indexes_of_launch(options).config.tokenizer == described
    with pytest.raises(UsageError, match="--tokenizer-type must be one of") as refused:
        indexes_of_launch(other)
    assert "--tokenizer-identifiers FILE" in refused.value.hint


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("--data-path data/web", "the Megatron version of the job is unknown", "pass --megatron VERSION"),
        ("--train-iters $STEPS", "--train-iters depends on $STEPS", "pass --set STEPS=VALUE"),
        ("--seed $SEED", "--seed depends on $SEED", "pass --set SEED=VALUE"),
        (
            "--mid-level-dataset-surplus ${S}",
            "--mid-level-dataset-surplus depends on ${S}",
            "pass --set S=VALUE",
        ),
        ("--data-cache-path $CACHE/a", "--data-cache-path depends on $CACHE", "pass --set CACHE=VALUE"),
        ("--tokenizer-model $T", "--tokenizer-model depends on $T", "pass --set T=VALUE"),
        ("--data-path $D/web", "--data-path depends on $D", "pass --set D=VALUE"),
        (
            "--split 9,1 --train-data-path data/web",
            "several mutually exclusive data arguments are set",
            "keep one of them",
        ),
        ("--split 1e2,1", "Megatron would read 1, 2, 1", None),
        ("--seq-length 4k", "--seq-length must be an integer, got '4k'", "write all digits"),
        ("--tensor-model-parallel-size 3", "the number of processes must be divisible by 3", "start a "),
        ("--mock-data", "with --mock-data the job reads no dataset", "run `tokshard doctor`"),
        ("--sft", "with --sft the job reads conversations", "run `tokshard doctor`"),
        ("--fim-data", "with --fim-data the files of the cache have other names", "run `tokshard doctor`"),
        ("--deepspeed", "other names in Megatron-DeepSpeed", "run `tokshard doctor`"),
    ],
)
def test_what_is_unknown_or_not_gpt_data_is_refused(data, text, message, hint):
    with pytest.raises(UsageError, match=re.escape(message)) as refused:
        indexes_of_launch(f"{command_of(JOB)} {text}")
    assert refused.value.hint
    assert hint is None or refused.value.hint.startswith(hint)


def test_the_versions_that_differ_are_named(data):
    with pytest.raises(UsageError) as refused:
        indexes_of_launch(command_of(JOB))
    assert refused.value.hint.endswith("differ between 0.15; 0.16; 0.17; 0.18 or 0.19; main-20260822")
    # Only one version has this option.
    assert indexes_of_launch(f"{command_of(JOB)} --use-gigatoken").config.tokenizer["use_gigatoken"] == "True"


def test_what_an_undecided_condition_decides_is_named(data):
    def write(condition, argument):
        Path("launch.sh").write_text(f'A=""\nif {condition}; then A="{argument}"; fi\n{command_of(JOB)} $A\n')

    options = DoctorOptions(launch="launch.sh", megatron="0.19")
    for argument in ("--seed 7", "--mock-data", "--data-cache-path other", "--seq-length $S"):
        write('[ "$MODE" = debug ]', argument)
        option = argument.split()[0]
        with pytest.raises(UsageError, match=rf"are unknown: {option} depends on \$MODE") as refused:
            indexes_of_launch(options)
        assert refused.value.hint == "pass --set MODE=VALUE"
        assert len(doctor(options).jobs) == 1
        assert indexes_of_launch(replace(options, variables=(("MODE", "no"),))).config.seed == 1234
    write('[ "$MODE" = debug ]', "--micro-batch-size 2 --save x")
    assert indexes_of_launch(options).config.seed == 1234
    write('[ -d "$DIRECTORY/a" ]', "--seed 7")
    with pytest.raises(UsageError, match=r"--seed depends on `\[ -d /data/a \]`") as refused:
        indexes_of_launch(replace(options, variables=(("DIRECTORY", "/data"),)))
    assert "pass the launch command with this value" in (refused.value.hint or "")
    write('[ "$1" = debug ]', "--seed 7")
    with pytest.raises(UsageError, match=r"--seed depends on \$1") as refused:
        indexes_of_launch(options)
    assert refused.value.hint == (
        "pass the parameters of the script after its name, in quotes: --from-launch 'SCRIPT PARAMETER'"
    )
    assert indexes_of_launch(replace(options, launch="launch.sh debug")).config.seed == 7


def test_a_launch_command_under_an_undecided_condition_is_read_with_a_warning(data):
    options = DoctorOptions(launch="launch.sh", megatron="0.19")
    reason = "the command on line 2 may not run: it depends on $MODE"
    Path("launch.sh").write_text(f'if [ "$MODE" = train ]; then\n{command_of(JOB)}\nfi\n')
    found = indexes_of_launch(options)
    assert (found.config.seed, found.warnings) == (1234, (f"{reason}; pass --set MODE=VALUE",))
    (job,) = doctor(options).jobs
    assert [(s.reason, s.hint) for s in job.skipped if s.check == "launch"] == [
        (reason, "pass --set MODE=VALUE")
    ]
    # Another one under no condition is the job.
    Path("launch.sh").write_text(
        f'if [ "$MODE" = debug ]; then\n{command_of(JOB)}\nexit\nfi\n{command_of(replace(JOB, seed=7))}\n'
    )
    assert indexes_of_launch(options).config.seed == 7
    assert [s.reason for s in doctor(options).skipped if s.check == "launch"] == [reason]
    decided = replace(options, variables=(("MODE", "debug"),))
    assert indexes_of_launch(decided).config.seed == 1234
    assert "launch" not in [s.check for s in doctor(decided).skipped]


def test_a_script_that_was_not_read_is_a_warning(data):
    Path("launch.sh").write_text(f"source env.sh\n{command_of(JOB)}\n")
    options = DoctorOptions(launch="launch.sh", megatron="0.19")
    reason = "not found: env.sh; they may set variables or start jobs"
    assert indexes_of_launch(options).warnings == (f"scripts {reason}",)
    assert [s.reason for s in doctor(options).skipped if s.check == "scripts"] == [reason]
    Path("env.sh").write_text("SEED=7\n")
    assert indexes_of_launch(options).warnings == ()
    assert "scripts" not in [s.check for s in doctor(options).skipped]


def test_several_launch_commands_with_other_indexes_are_refused(data):
    options = DoctorOptions(launch="launch.sh", megatron="0.19")
    Path("launch.sh").write_text(f"{command_of(JOB)}\n{command_of(replace(JOB, seed=7))}\n")
    with pytest.raises(UsageError, match="need different indexes: line 1; line 2") as refused:
        indexes_of_launch(options)
    assert refused.value.hint.startswith("pass one of the commands in quotes")
    hints = [f.hint for job in doctor(options).jobs for f in job.findings if f.code == "cache-missing"]
    assert [" --seed 7 " in hint for hint in hints] == [False, True]
    assert all(command_of(JOB)[:40] in hint for hint in hints)


def test_arguments_that_may_be_hidden_are_a_warning(data):
    Path("launch.sh").write_text(f'{command_of(JOB)} "$@" $MORE --iterations-to-skip 3\n')
    found = indexes_of_launch(DoctorOptions(launch="launch.sh", megatron="0.19"))
    hidden = "$@, $MORE may contain more arguments; if they concern the data, pass --set MORE=VALUE and the "
    assert found.warnings == (
        f"{hidden}parameters of the script after its name",
        "--iterations-to-skip may change the indexes in ways that are not checked",
    )
    call = DoctorOptions(launch="bash launch.sh --seed=7", megatron="0.19", variables=(("MORE", ""),))
    known = indexes_of_launch(call)
    assert (known.config.seed, known.warnings) == (7, found.warnings[1:])
    assert indexes_of_launch(replace(call, launch=("launch.sh", "--seed=7"))) == replace(
        known, blend_command=known.blend_command.replace("bash launch.sh", "launch.sh")
    )
