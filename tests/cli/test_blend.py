"""``tokshard blend`` as a user types it: files, tables, messages, exit codes."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from support.command_line import failure, installed, tokshard
from support.index_caches import write_dataset
from support.mixture_data import JOB_TOKENIZER, NAMES, files_of, run, write_mixture

BLEND = ("blend", 0.7, "data/web", 0.3, "data/code", "--seq-length", 16)
SPLIT = ("--split", "9,1")
UNKNOWN = "warning: the tokenizers of data/web, data/code are unknown and were not compared\n"
RECIPE = """
seq_length = 16
num_samples = [200, 10]
split = "9,1"
seed = 5
[[source]]
prefix = "data/web"
weight = 7
[[source]]
prefix = "data/code"
weight = 3
"""


@pytest.fixture
def workshop(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_mixture(tmp_path)


def test_the_bare_run_writes_everything_and_shows_the_certificate(workshop):
    done = tokshard(*BLEND, *SPLIT, "--num-samples", "200,10", "-o", "mix", *NAMES, cwd=workshop)
    assert (done.returncode, done.stderr) == (0, UNKNOWN)
    assert "train: weighted blend, 200 samples, 3,200 tokens" in done.stdout
    table = re.search(r"^source +weight +share +samples .*\n(.*)\n(.*)$", done.stdout, re.MULTILINE)
    assert re.match(r"data/web   70.00% +70.00% +140 +2,240 ", table[1])
    assert re.match(r"data/code  30.00% +30.00% +60 +960 ", table[2])
    assert re.search(
        r"^Weight error over the run: max\. deviation 0\.\d\d samples$", done.stdout, re.MULTILINE
    )
    assert "\nwritten: mix/blend.json\nindexes: 6 built in mix/cache\ntime: " in done.stdout
    certificate = json.loads((workshop / "mix/blend.json").read_text())["certificates"]["train"]
    assert [source["samples"] for source in certificate["sources"]] == [140, 60]
    assert len(files_of(workshop / "mix/cache")) == 2 * (2 * 4 + 3)
    again = tokshard(*BLEND, *SPLIT, "--num-samples", "200,10", "-o", "mix", *NAMES, cwd=workshop)
    assert "indexes: 6 reused in mix/cache\n" in again.stdout
    command = re.search(r"^next: launch with (.*); check the launch script", done.stdout, re.MULTILINE)[1]
    job = ("--train-iters", 50, "--global-batch-size", 4, "--eval-interval", 100, "--eval-iters", 2)
    seen = run("doctor", "--json", "pretrain_gpt.py", *shlex.split(command), *job, *JOB_TOKENIZER)
    states = {
        (lookup["split"], lookup["prefix"]): lookup["condition"] for lookup in seen.json["jobs"][0]["lookups"]
    }
    assert {state for (split, _), state in states.items() if split == "train"} == {"fresh"}


def test_all_spellings_of_a_mixture_make_the_same_files(workshop):
    (workshop / "recipe.toml").write_text(RECIPE)
    (workshop / "words").write_text("0.7 data/web\n0.3 data/code\n")
    numbers = ("--seq-length", 16, "--num-samples", "200,10", *SPLIT, "--seed", 5)
    for number, spelling in enumerate(
        (
            ("recipe.toml",),
            ("0.7", "data/web", "0.3", "data/code", *numbers),
            ("--data-path", "0.7", "data/web", "0.3", "data/code", *numbers),
            ("@words", *numbers),
            ("--data-args-path", "words", *numbers),
        )
    ):
        done = run("blend", *spelling, "-o", f"mix{number}", "--quiet", *NAMES)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert files_of(workshop / f"mix{number}/cache") == files_of(workshop / "mix0/cache")


def test_splits_may_have_mixtures_of_their_own(workshop):
    value = {"train": ["0.7", "data/web", "0.3", "data/code"], "valid": "data/code data/web", "test": None}
    (workshop / "splits.json").write_text(json.dumps(value))
    numbers = ("--seq-length", 16, "--num-samples", "200,none")
    spellings = (
        ("splits.json",),
        ("--per-split-data-args-path", "splits.json"),
        ("--train", "0.7 data/web 0.3 'data/code'", "--valid-data-path", "data/code data/web"),
    )
    for number, spelling in enumerate(spellings):
        done = run("blend", *spelling, *numbers, "-o", f"mix{number}", *NAMES)
        assert (done.returncode, done.stderr) == (0, UNKNOWN)
        assert "valid: every sample, " in done.stdout
        assert files_of(workshop / f"mix{number}/cache") == files_of(workshop / "mix0/cache")
    emitted = run("blend", *spellings[2], *numbers, "--emit", "megatron-json")
    assert json.loads(emitted.stdout) == {**value, "valid": ["data/code", "data/web"]}
    apart = run(
        "blend", "splits.json", *numbers, "-o", "apart", "--multiple-validation-sets", "--json", *NAMES
    )
    assert list(apart.json["blend"]["splits"]) == ["train", "valid.0", "valid.1"]


def test_megatrons_arguments_come_back(workshop):
    done = run(*BLEND, *SPLIT, "--num-samples", 200, "--emit", "megatron-args")
    assert (done.returncode, done.stderr) == (0, UNKNOWN)
    words = shlex.split(done.stdout)
    assert words[:7] == ["--data-path", "0.7", "data/web", "0.3", "data/code", "--split", "9,1"]
    assert not list(workshop.glob("**/*.npy"))
    built = run(*BLEND, *SPLIT, "--num-samples", 200, "--emit", "megatron-args", "-o", "mix", "--quiet")
    assert shlex.split(built.stdout) == [*words, "--data-cache-path", "mix/cache"]
    assert (workshop / "mix/blend.json").exists()
    file = run(*BLEND, *SPLIT, "--num-samples", 200, "--emit", "megatron-words")
    assert (file.returncode, file.stdout) == (0, "0.7 data/web 0.3 data/code\n")
    (workshop / "words.txt").write_text(file.stdout)
    again = run("blend", "@words.txt", *BLEND[5:], *SPLIT, "--num-samples", 200, "--emit", "megatron-args")
    assert shlex.split(again.stdout) == words


def test_emit_and_json_together_are_refused(workshop):
    done = run(*BLEND, *SPLIT, "--num-samples", 200, "--emit", "megatron-args", "--json")
    assert (done.returncode, done.json["message"]) == (2, "--emit cannot be used with --json")


def test_what_is_emitted_names_the_cache_and_the_arguments_of_the_job(workshop):
    job = ("--train-iters", "50", "--global-batch-size", "4", "--eval-interval", "100", "--eval-iters", "2")
    there = ("--cache-dir", "here/c", "--path-as", "here=/mnt", "--path-as", "data=/d")
    done = run(*BLEND, *SPLIT, *job, *there, "--emit", "megatron-args")
    words = shlex.split(done.stdout)
    assert words[words.index("--data-path") + 1 :][:4] == ["0.7", "/d/web", "0.3", "/d/code"]
    assert words[-2:] == ["--data-cache-path", "/mnt/c"]
    assert " ".join(job) in done.stdout
    assert "--train-samples" not in words
    built = run(*BLEND, *SPLIT, *job, *there, "-o", "mix", *NAMES)
    given = re.search(r"^next: launch with (.*); check the launch script", built.stdout, re.MULTILINE)[1]
    assert shlex.split(given) == words


def test_what_a_recipe_says_comes_before_what_another_cache_tells(workshop):
    (workshop / "recipe.toml").write_text(RECIPE)
    made = run(*BLEND, "--split", "8,2", "--num-samples", "50,5", "-o", "old", *NAMES)
    assert made.returncode == 0
    like = next((workshop / "old/cache").glob("*-GPTDataset-train-description.txt"))
    report = run("blend", "recipe.toml", "--like", like, "-o", "mix", "--json").json
    builder = report["blend"]["builder"]
    assert (builder["seed"], builder["split"], builder["sequence_length"]) == (5, "9,1", 16)
    assert builder["tokenizer"] == json.loads(like.read_text())["tokenizer"]


def test_epochs_caps_amounts_and_temperature_are_understood(workshop):
    both = ("blend", "data/web", "data/code", "--seq-length", 16, "--split", "1", "--dry-run", "--json")
    sources = run(*both, "--epochs", 2).json["splits"][0]["sources"]
    assert [source["draws"] for source in sources] == [1539 // 16, 959 // 16]
    sources = run(*both, "--max-epochs", 2, "--num-samples", 150, "--temperature", 1e9).json["splits"][0][
        "sources"
    ]
    assert sum(source["draws"] for source in sources) >= 150
    assert sources[1]["draws"] <= 959 // 16 < 150 / 2
    amounts = ("blend", 1600, "data/web", 800, "data/code", "--unit", "tokens", *both[3:])
    plan = run(*amounts).json
    assert (plan["schema"], plan["action"]) == ("tokshard.blend-report/2", "planned")
    assert [source["draws"] for source in plan["splits"][0]["sources"]] == [100, 50]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["7", "data/web", "3", "data/code", "--epochs", "2"],
            "--epochs 2 cannot be used with the weight of",
        ),
        (["recipe.toml", "--epochs", "2"], "--epochs 2 cannot be used with the max epochs of data/web"),
        (["recipe.toml", "--max-epochs", "3"], None),
    ],
)
def test_epochs_of_all_sources_are_refused_with_the_weights_of_sources(workshop, arguments, message):
    (workshop / "recipe.toml").write_text('[[source]]\nprefix = "data/web"\nmax_epochs = 2\n')
    done = run("blend", *arguments, "--seq-length", 16, "--split", "1", "--num-samples", 20, "--dry-run")
    assert done.returncode == (2 if message else 0)
    assert (f"error: {message}" in done.stderr) == bool(message)


def test_a_dry_run_writes_nothing(workshop):
    done = run(*BLEND, *SPLIT, "--num-samples", 200, "-o", "mix", "--dry-run")
    assert done.returncode == 0
    assert re.search(r"^data/web   70.00%      140 ", done.stdout, re.MULTILINE)
    assert not (workshop / "mix").exists()
    assert done.stdout.endswith("nothing was written (--dry-run)\n")


def test_validation_data_read_more_than_twice_is_a_warning(workshop):
    options = (*BLEND, *SPLIT, "--num-samples", "200,50", *NAMES)
    planned = run(*options, "--dry-run", "--json")
    times = {source["path_prefix"]: source["epochs_drawn"] for source in planned.json["splits"][1]["sources"]}
    warning = (
        f"valid reads data/web {times['data/web']:.2f} times, data/code {times['data/code']:.2f} times: its "
        "loss counts samples more than once; request fewer samples for valid, or add data"
    )
    assert min(times.values()) > 2
    assert warning in planned.json["warnings"]
    done = tokshard(*options, "-o", "mix", cwd=workshop)
    assert (done.returncode, done.stderr.count(f"warning: {warning}\n")) == (0, 1)


def test_a_damaged_order_is_refused_and_rebuilt_on_request(workshop):
    options = (*BLEND, *SPLIT, "--num-samples", 200, "-o", "mix", *NAMES)
    assert run(*options).returncode == 0
    victim = next((workshop / "mix/cache").glob("*-BlendedDataset-train-dataset_index.npy"))
    victim.write_bytes(victim.read_bytes()[:-2] + b"\1\0")
    damaged = run("verify", "mix", "--json")
    assert damaged.returncode == 1
    (finding,) = [
        finding
        for product in damaged.json["products"]
        for finding in product["findings"]
        if finding["severity"] == "error"
    ]
    assert (finding["code"], finding["path"]) == ("cache-digest", str(victim.relative_to(workshop)))
    assert run(*options).returncode == 6
    assert run(*options, "--rebuild").returncode == 0
    assert run("verify", "mix", "--quiet").returncode == 0


def test_a_dataset_twice_is_refused(workshop):
    twice = (
        "blend",
        1,
        "data/web",
        1,
        "data/web",
        "--seq-length",
        16,
        *SPLIT,
        "--num-samples",
        20,
        "-o",
        "mix",
    )
    refused = run(*twice, *NAMES)
    assert (refused.returncode, "is in the mixture twice" in refused.stderr) == (2, True)


def test_an_overrun_is_refused_with_what_works(workshop):
    # Of 40 samples 25 are wanted of the first source, which has as many; the order draws 26 of it.
    write_dataset(str(workshop / "data/exact"), [25 * 16 + 1])
    words = (
        "blend",
        0.6,
        "data/exact",
        0.3,
        "data/web",
        0.1,
        "data/code",
        "--seq-length",
        16,
        "--split",
        "1",
    )
    done = run(*words, "--num-samples", 40, "--surplus", 0, "--dry-run")
    assert done.returncode == 2
    assert "would draw 26 samples of 'data/exact', whose index has 25" in done.stderr
    surplus = re.search(r"pass --surplus ([\d.e-]+) \(the smallest that works", done.stderr)[1]
    assert run(*words, "--num-samples", 40, "--surplus", surplus, "--dry-run").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "a mixture is required"),
        (
            ["data/web", "--train", "data/web"],
            2,
            "the arguments cannot be used with --train, --valid, --test",
        ),
        (["data/web", "--num-samples", "1"], 2, "the sequence length is required"),
        (["data/web", "--seq-length", "16", "--num-samples", "1"], 2, "--output is required"),
        (["data/web", "--seq-length", "16", "--cache-dir", "c"], 2, "--output is required"),
        (
            ["--train", "data/web", "--seq-length", "16", "--split", "9,1"],
            2,
            "--split '9,1' cannot be used with data for each split",
        ),
        (
            ["data/web", "--seq-length", "16", "--path-as", "./data=/mnt"],
            2,
            "--path-as ./data=/mnt has no effect",
        ),
        (["0.5", "data/web", "data/code"], 2, "Megatron would read '0.5' as a path prefix"),
        (["--train", "'data/web"], 2, "into words"),
        (["recipe.toml", "-o", "mix"], 3, "recipe not found: recipe.toml"),
        (["data/web", "--epochs", "1e300"], 2, "--epochs must be at most 2147483647, got 1e+300"),
        (["nan", "data/web"], 2, "the weight of the source 'data/web' must be positive, got nan"),
        (
            ["data/web", "--seq-length", "16", "--surplus", "1e308"],
            2,
            "--surplus must be at most 1000000, got 1e+308",
        ),
        (
            ["data/web", "--seq-length", "16", "--num-samples", str(2**63)],
            2,
            "--num-samples has an invalid size: train must be at most",
        ),
        (["70%", "data/web", "30%", "data/code"], 2, "a weight must be a plain number, got '70%'"),
        (["1", "data/web", "--seq-length", "16", "-o", "mix"], 2, "the number of samples is required"),
        (
            ["a", "--num-samples", "1", "--train-iters", "1", "--global-batch-size", "1"],
            2,
            "--num-samples cannot be used with --train-iters",
        ),
        (
            ["1", "data/none", "--seq-length", "16", "--num-samples", "1", "-o", "mix"],
            3,
            "dataset not found: data/none",
        ),
    ],
)
def test_refusals_have_their_exit_codes(workshop, arguments, code, words):
    done = run(
        "blend", *(["-o", "mix"] if "--output" not in words and "-o" not in arguments else []), *arguments
    )
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr


def test_another_blend_is_not_overwritten(workshop):
    assert run(*BLEND, *SPLIT, "--num-samples", 200, "-o", "mix").returncode == 0
    before = (workshop / "mix/blend.json").read_bytes()
    files = files_of(workshop / "mix/cache")
    other = (*BLEND, *SPLIT, "--num-samples", 300, "-o", "mix")
    assert run(*other).returncode == 4
    assert files_of(workshop / "mix/cache") == files
    assert (workshop / "mix/blend.json").read_bytes() == before
    assert run(*other, "--force").returncode == 0
    assert (workshop / "mix/blend.json").read_bytes() != before


@pytest.mark.parametrize("options", [(), ("--force",)])
def test_a_directory_named_as_the_blend_is_refused_before_anything_is_built(workshop, options):
    Path("mix/blend.json").mkdir(parents=True)
    words = (
        "blend",
        "data/web",
        "--seq-length",
        "8",
        "--num-samples",
        "20",
        "--split",
        "1",
        *NAMES,
        "-o",
        "mix",
    )
    done = failure(installed(*words, *options))
    assert done == (4, "a directory exists: mix/blend.json", "remove it, or pass another --output")
    assert not Path("mix/cache").exists()
    Path("mix/blend.json").rmdir()
    assert installed(*words, *options).returncode == 0
