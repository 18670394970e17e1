"""The first line of ``tokshard doctor`` is the cause, and the whole answer fits on a page."""

from __future__ import annotations

import shlex

import pytest

from support.mixture_data import run, write_mixture

SCRIPT = """\
torchrun --nproc-per-node 8 pretrain_gpt.py \\
    --data-path 0.7 data/web 0.3 data/code --data-cache-path cache --split 9,1 --seed 42 --seq-length 16 \\
    --tokenizer-type HuggingFaceTokenizer --tokenizer-model /models/llama \\
    --train-iters 10 --micro-batch-size 1 --global-batch-size 8 --eval-interval 5 --eval-iters 1
"""
SIZES = {
    "train": "the number of train samples (--train-iters, --train-samples, --global-batch-size)",
    "valid": "the number of valid samples (--eval-interval, --eval-iters, --global-batch-size)",
}


@pytest.fixture
def workshop(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_mixture(tmp_path)
    for name in ("data/web", "data/code"):
        assert run("verify", name, "--adopt", "--tokenizer", "null:60000").returncode == 0
    (tmp_path / "right.sh").write_text(SCRIPT)
    assert run("blend", "--from-launch", "right.sh", "--megatron", "0.19", "-o", "mix").returncode == 0
    assert run("doctor", "right.sh").returncode == 0
    return tmp_path


def diagnosed(directory, before: str, after: str) -> list[str]:
    """Return the lines about the script with one text replaced by another."""
    assert before in SCRIPT
    (directory / "train.sh").write_text(SCRIPT.replace(before, after))
    done = run("doctor", "train.sh")
    assert (done.returncode, done.stderr) == (1, "")
    return done.stdout.splitlines()


BUILD = "run `tokshard blend --from-launch train.sh"
MISTAKES = {
    "seed": ("--seed 42", "--seed 1234", "--seed is 1234 in train.sh, 42 in the cache"),
    "length": ("--seq-length 16", "--seq-length 8", "--seq-length is 8 in train.sh, 16 in the cache"),
    "split": ("--split 9,1", "--split 4,1", "--split is 4,1 in train.sh, 9,1 in the cache"),
    "tokenizer": (
        "--tokenizer-model /models/llama",
        "--tokenizer-model /models/lama",
        "--tokenizer-model is /models/lama in train.sh, /models/llama in the cache",
    ),
}


@pytest.mark.parametrize(("before", "after", "cause"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_the_first_line_of_at_most_fifteen(workshop, before, after, cause):
    lines = diagnosed(workshop, before, after)
    option, value = before.split()
    assert lines[0] == f"1 difference: {cause} (6 indexes)"
    assert lines[1].startswith(
        f"  hint: set {option} to {value} to read the cache, or build the indexes of this job: {BUILD}"
    )
    assert len(lines) <= 15
    assert lines[-1].startswith("--verbose lists ")


def test_missing_cache_directory_is_named_with_a_similar_one(workshop):
    lines = diagnosed(workshop, "--data-cache-path cache", "--data-cache-path cahce")
    assert lines[0] == (
        "1 warning: cache-missing: cache directory not found: cahce; the job will build all 6 indexes"
    )
    assert lines[1].startswith(
        f"  hint: did you mean cache? It has all 6 indexes. Otherwise build them: {BUILD}"
    )
    assert len(lines) <= 15
    (workshop / "train.sh").write_text(SCRIPT.replace("path cache", "path elsewhere"))
    assert run("doctor", "train.sh").stdout.splitlines()[1].startswith(f"  hint: build them: {BUILD}")


def test_the_hint_of_a_difference_builds_the_indexes(workshop):
    hint = diagnosed(workshop, "--seed 42", "--seed 1234")[1]
    command = hint.partition("`tokshard ")[2].partition("`")[0]
    assert run(*shlex.split(command)).returncode == 0
    assert run("doctor", "train.sh").returncode == 0


def test_hint_repeats_the_world_size_of_the_environment(workshop, monkeypatch):
    text = SCRIPT.partition("pretrain_gpt.py")[2].replace("\\\n", "")
    text = text.replace("--global-batch-size 8", "").replace("42", "7")
    monkeypatch.setenv("WORLD_SIZE", "8")
    hint = run("doctor", "--", *shlex.split(text)).stdout.splitlines()[1]
    monkeypatch.delenv("WORLD_SIZE")
    command = hint.partition("`tokshard ")[2].partition("`")[0]
    assert run(*shlex.split(command)).returncode == 0


DATA = "0.7 data/web 0.3 data/code"
OF_2 = " (2 of 6"
DIFFERENCES = {
    "two options": (
        "--seed 42 --seq-length 16",
        "--seed 7 --seq-length 8",
        ["--seed is 7 in train.sh, 42 in the cache (6", "--seq-length is 8 in train.sh, 16 in the cache (6"],
    ),
    "sizes": (
        "--train-iters 10",
        "--train-iters 20",
        [
            f"{SIZES['train']} is 160 in train.sh, 80 in the cache (3 of 6",
            f"{SIZES['valid']} is 40 in train.sh, 25 in the cache (3 of 6",
        ],
    ),
    "weights": (
        DATA,
        "0.6 data/web 0.4 data/code",
        ["the list of weights in --data-path is 0.6, 0.4 in train.sh, 0.7, 0.3 in the cache (6"],
    ),
    "directory": (
        DATA,
        "0.7 ./data/web 0.3 ./data/code",
        ["the directory of --data-path is ./data in train.sh, data in the cache (6"],
    ),
    "datasets": (
        DATA,
        "1 data/web",
        ["--data-path is without data/code in train.sh, with data/code in the cache (4"],
    ),
    "one dataset": (
        DATA,
        "data/web",
        ["--data-path is without data/code in train.sh, with data/code in the cache (2"],
    ),
    "order": (
        DATA,
        "0.3 data/code 0.7 data/web",
        [
            "the order in --data-path is data/code, data/web in train.sh, data/web, data/code in the cache"
            + OF_2
        ],
    ),
    "no weights": (
        DATA,
        "data/web data/code",
        ["the list of weights in --data-path is not set in train.sh, 0.7, 0.3 in the cache (6"],
    ),
    "default": ("--seed 42", "", ["--seed is 1234 (the default) in train.sh, 42 in the cache (6"]),
    "data for each split": (
        f"--data-path {DATA} --data-cache-path cache --split 9,1",
        "--train-data-path data/web --valid-data-path data/code --data-cache-path cache",
        ["the kind of data arguments is data for each split in train.sh, --split 9,1 in the cache (2"],
    ),
}


@pytest.mark.parametrize(("before", "after", "causes"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_each_difference_is_one_line(workshop, before, after, causes):
    lines = diagnosed(workshop, before, after)
    causes = [f"{cause} indexes)" for cause in causes]
    number = f"{len(causes)} difference{'s' if len(causes) > 1 else ''}"
    expected = [f"{number}: {causes[0]}", *(f"difference: {cause}" for cause in causes[1:])]
    assert lines[: len(causes)] == expected
    assert lines[len(causes)].startswith("  hint: ")
    assert not any(line.startswith(("difference", "warning: cache-missing")) for line in lines[len(causes) :])


def job(directory, before: str = "", after: str = "", out: str = "other") -> None:
    """Build the indexes of the script with one text replaced by another, in its cache."""
    (directory / "other.sh").write_text(SCRIPT.replace(before, after))
    assert run("blend", "--from-launch", "other.sh", "--megatron", "0.19", "-o", out).returncode == 0


def test_causes_are_those_of_one_job_in_the_cache(workshop):
    job(workshop, "--seed 42 --seq-length 16", "--seed 7 --seq-length 8")
    job(workshop, "--train-iters 10", "--train-iters 20", "larger")
    lines = diagnosed(workshop, "--seq-length 16", "--seq-length 8")
    assert lines[0].startswith("1 difference: --seq-length is 8 in train.sh, 16 in the cache (6 indexes)")
    lines = diagnosed(workshop, "--seq-length 16 ", "--seq-length 8 --train-samples 160 ")
    assert all("--seed" not in line for line in lines if line.startswith(("1 ", "difference")))


def test_an_unfinished_job_is_not_compared_with_another_one(workshop):
    job(workshop, "--seed 42", "--seed 7")
    removed = [path for path in sorted(workshop.glob("cache/*-train-*")) if "Blended" not in path.name]
    seeds = [path for path in removed if path.name.endswith("description.txt")]
    of_job = [path.name[:32] for path in seeds if '"random_seed": 42' in path.read_text()]
    for path in (path for path in removed if path.name[:32] in of_job):
        path.unlink()
    lines = run("doctor", "right.sh").stdout.splitlines()
    assert lines[0] == (
        "1 warning: cache-missing: the job will build 2 of 6 indexes (train of data/web, train of data/code)"
    )


def test_an_index_without_one_of_its_files_is_named(workshop):
    next(workshop.glob("cache/*-GPTDataset-train-sample_index.npy")).unlink()
    line = run("doctor", "right.sh").stdout.splitlines()[0]
    assert "(train of data/" in line
    assert line.endswith("-sample_index.npy missing, so Megatron would rebuild all files")


def test_a_blend_is_not_compared_by_sizes_with_a_single_dataset(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_mixture(tmp_path)
    (tmp_path / "single.sh").write_text(SCRIPT.replace(DATA, "data/web"))
    assert run("build-indices", "--from-launch", "single.sh", "--megatron", "0.19").returncode == 0
    lines = diagnosed(tmp_path, "--seed 42", "--seed 42")
    assert lines[0] == (
        "1 difference: --data-path is a blend in train.sh, one dataset without a weight in the cache "
        "(6 indexes)"
    )


ONE_SIDED = {
    "one weight": (
        "1 data/web",
        "data/web",
        "--data-path is one dataset without a weight in train.sh, a blend in the cache",
    ),
    "all samples": (
        DATA,
        "data/web data/code --full-validation",
        f"{SIZES['valid']} is not set in train.sh, 25 in the cache",
    ),
}


@pytest.mark.parametrize(("cached", "job", "option"), ONE_SIDED.values(), ids=ONE_SIDED)
def test_values_that_only_one_job_has_are_compared(tmp_path, monkeypatch, cached, job, option):
    monkeypatch.chdir(tmp_path)
    write_mixture(tmp_path)
    (tmp_path / "cached.sh").write_text(SCRIPT.replace(DATA, cached))
    assert run("blend", "--from-launch", "cached.sh", "--megatron", "0.19", "-o", "mix").returncode == 0
    lines = diagnosed(tmp_path, DATA, job)
    assert any(option in line for line in lines), lines


def test_errors_come_first_and_differences_before_them(workshop):
    lines = diagnosed(workshop, "--global-batch-size 8", "--global-batch-size 12 --seed 1234")
    assert lines[0].startswith("3 differences: --seed is 1234")
    errors = [line for line in lines if line.startswith("error: ")]
    assert [line.split(": ")[1] for line in errors] == ["batch-size"]
    other = diagnosed(workshop, "--micro-batch-size 1", "--micro-batch-size 3")
    assert other[0].startswith("1 error: batch-size: --global-batch-size must be divisible by 24")


def test_several_launch_commands_have_one_verdict(workshop):
    (workshop / "train.sh").write_text(SCRIPT + SCRIPT.replace("--seed 42", "--seed 1234"))
    lines = run("doctor", "train.sh").stdout.splitlines()
    assert lines[0] == (
        "1 difference: --seed is 1234 in train.sh, 42 in the cache (6 indexes) (line 5: pretrain_gpt.py)"
    )
    assert [line for line in lines if line.startswith("job ")] == [
        "job 1 of 2, line 1: pretrain_gpt.py",
        "job 2 of 2, line 5: pretrain_gpt.py",
    ]
    report = run("doctor", "--json", "train.sh").json
    assert report["verdict"] == lines[0]
    assert [finding["code"] for finding in report["jobs"][1]["findings"]][-1] == "cache-difference"


@pytest.mark.parametrize(
    ("after", "message"),
    {
        "--micro-batch-size 0": "arguments: --micro-batch-size must be at least 1, got 0",
        "--micro-batch-size 1 --tensor-model-parallel-size 0": (
            "arguments: --tensor-model-parallel-size must be at least 1, got 0"
        ),
    }.items(),
)
def test_sizes_of_zero_are_errors(workshop, after, message):
    assert diagnosed(workshop, "--micro-batch-size 1", after)[0] == f"1 error: {message}"


def test_an_invalid_split_is_one_error(workshop):
    assert diagnosed(workshop, "--split 9,1", "--split a,b")[0] == (
        "1 error: split: invalid split 'a,b': no number found"
    )


def test_every_cause_is_shown(workshop):
    # The last of two values counts.
    lines = diagnosed(workshop, "--eval-iters 1", "--eval-iters 2 --split 8,1 --seed 7 --train-iters 20")
    assert lines[0].startswith("4 differences: ")
    assert len([line for line in lines if line.startswith("difference: ")]) == 3
    assert len(lines) <= 15
