"""``tokshard build-indices`` as a user types it: files, output, messages, exit codes."""

from __future__ import annotations

import hashlib
import json
import re
import shutil

import numpy as np
import pytest

from support.command_line import failure, tokshard
from support.index_caches import write_dataset
from support.mixture_data import NAMES, files_of, run, write_mixture

UNKNOWN = "warning: the tokenizer of data/web is unknown and was not compared\n"
BUILD = ("build-indices", "data/web", "--seq-length", 16)


@pytest.fixture
def workshop(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_mixture(tmp_path)


def test_the_bare_run_builds_and_says_what(workshop):
    done = tokshard(*BUILD, "--split", "9,1", "--epochs", 2, "--cache-dir", "cache", *NAMES, cwd=workshop)
    assert (done.returncode, done.stderr) == (0, UNKNOWN)
    header, train, valid, epochs, _, indexes, time, following = done.stdout.splitlines()
    assert header.split() == [
        *("dataset", "split", "samples", "epochs", "documents", "tokens", "index", "size")
    ]
    assert train.split()[:2] == ["data/web", "train"]
    assert valid.split()[:2] == ["data/web", "valid"]
    assert epochs.startswith("2 epochs are --train-samples ")
    assert indexes.startswith("indexes: 2 built in cache (")
    assert time.startswith("time: ")
    assert following.startswith(
        "next: launch with --data-path data/web --data-cache-path cache --seq-length 16 --seed 1234"
    )
    assert len(files_of(workshop / "cache")) == 8
    report = run(*BUILD, "--split", "9,1", "--epochs", 2, "--cache-dir", "cache", *NAMES, "--json").json
    for line, index in zip((train, valid), report["indices"], strict=True):
        pretty = json.dumps(index["description"], indent=4)
        assert hashlib.md5(pretty.encode()).hexdigest() == index["hash"]
        arrays = [path for path in index["files"] if path.endswith(".npy")]
        assert index["size_bytes"] == sum((workshop / path).stat().st_size for path in arrays)
        plan = index["plan"]
        numbers = (plan["samples"], plan["epochs"], index["documents"])
        assert line.split()[2:5] == [f"{number:,}" for number in numbers]
        assert line.split()[5] == f"{plan['tokens_per_epoch'] * plan['epochs']:,}"
        assert line.split()[6] == "built"
    hashes = [index["hash"] for index in report["indices"]]
    samples = int(re.search(r"--train-samples (\d+)", done.stdout)[1])
    assert len(np.load(workshop / f"cache/{hashes[0]}-GPTDataset-train-shuffle_index.npy")) == samples
    again = tokshard(*BUILD, "--split", "9,1", "--epochs", 2, "--cache-dir", "cache", *NAMES, cwd=workshop)
    assert "indexes: 2 reused in cache (" in again.stdout


def test_without_a_tokenizer_the_names_are_neutral_and_that_is_said_once(workshop):
    for name in ("big", "bigger"):  # the default split leaves nothing to test of a thousand sequences
        write_dataset(str(workshop / "data" / name), [7] * 2000)
    done = run("build-indices", "data/big", "data/bigger", "--seq-length", 16, "--num-samples", "50")
    assert done.returncode == 0
    assert done.stderr.count("Megatron will not find these files") == 1
    assert done.stderr.count("hint: for Megatron pass --like DESCRIPTION.txt") == 1
    assert "which reserves 3.1% of the data" in done.stderr
    descriptions = list((workshop / "data/big/cache/GPTDataset_indices").glob("*-train-description.txt"))
    assert json.loads(descriptions[0].read_text())["tokenizer"] == {"class": "tokshard"}
    assert "next:" not in done.stdout


def test_all_sizes_and_lengths_are_combined(workshop):
    sizes = ("--num-samples", "1k,20,none", "--num-samples", "none", "--epochs", 3, "--seq-length", 32)
    report = run(*BUILD, *sizes, "--split", "8,1,1", "--json", "--quiet", *NAMES).json
    assert report["schema"] == "tokshard.build-indices/2"
    assert report["has_megatron_names"]
    described = [index["description"] for index in report["indices"]]
    asked = [(each["sequence_length"], each["index_split"], each["num_samples"]) for each in described]
    epochs = [request[2] for request in asked if request[1] == "train"][2::3]
    assert asked == [
        (length, split, size)
        for length, three in ((16, epochs[0]), (32, epochs[1]))
        for sizes in ((1000, 20, None), (None, 0, 0), (three, 0, 0))
        for split, size in zip(("train", "valid", "test"), sizes, strict=True)
    ]


def test_epochs_are_told_for_each_dataset_and_length(workshop):
    command = (*BUILD, "data/code", "--seq-length", 32, "--epochs", 1, "--epochs", 2, "--split", "1")
    lines = [line for line in run(*command, *NAMES).stdout.splitlines() if "--train-samples" in line]
    built = run(*command, *NAMES, "--json").json
    wanted = []
    for built_index in built["indices"]:
        epochs = ("1 epoch of {} is", "2 epochs of {} are")[len(wanted) % 2].format(
            built_index["path_prefix"]
        )
        plan = built_index["plan"]
        size = f"--train-samples {plan['num_samples']} with --seq-length {plan['sequence_length']}"
        wanted.append(f"{epochs} {size}")
    assert lines == wanted
    assert len(set(lines)) == 8
    assert [(size["path_prefix"], size["sequence_length"]) for size in built["epoch_sizes"]] == [
        (index["path_prefix"], index["plan"]["sequence_length"]) for index in built["indices"]
    ]
    assert [size["epochs"] for size in built["epoch_sizes"]] == [1, 2] * 4
    samples = [index["plan"]["num_samples"] for index in built["indices"]]
    assert [size["train_samples"] for size in built["epoch_sizes"]] == samples


def test_training_arguments_make_megatrons_sizes(workshop):
    arguments = ("--train-iters", 25, "--global-batch-size", 4, "--eval-interval", 10, "--eval-iters", 3)
    report = run(*BUILD, *arguments, "--split", "8,1,1", "--json", *NAMES).json
    assert [index["plan"]["num_samples"] for index in report["indices"]] == [100, 36, 12]
    full = ("--full-validation", "--eval-global-batch-size", 2)
    report = run(*BUILD, *arguments, *full, "--split", "8,1,1", "--json", *NAMES).json
    assert [index["plan"]["num_samples"] for index in report["indices"]] == [100, None, 6]


def test_only_megatron_015_has_a_default_of_the_validation_interval(workshop):
    command = (*BUILD, "--train-iters", 2000, "--global-batch-size", 1, "--eval-iters", 2, "--split", "8,1,1")
    early = (*command, "--megatron", "0.15", *NAMES[2:])
    assert [index["plan"]["num_samples"] for index in run(*early, "--json").json["indices"]] == [2000, 6, 2]
    refused = run(*command, *NAMES)
    assert refused.returncode == 2
    assert "the validation interval is required" in refused.stderr
    assert "pass the job's --eval-interval (1000 is the default of Megatron 0.15)" in refused.stderr


def test_a_surplus_is_that_of_a_source(workshop):
    done = run(*BUILD, "--num-samples", 1001, "--surplus", 0.005, "--split", "1", "--json", *NAMES)
    assert [index["plan"]["num_samples"] for index in done.json["indices"]] == [1007]


def test_like_another_cache_the_names_are_its_own(workshop):
    first = ("--num-samples", "100,10", "--split", "9,1", "--seed", 7, "--cache-dir", "one", *NAMES)
    assert run(*BUILD, *first).returncode == 0
    like = next((workshop / "one").glob("*-valid-description.txt"))
    done = run("build-indices", "data/web", "--like", like, "--cache-dir", "two")
    assert (done.returncode, done.stderr) == (0, UNKNOWN)
    assert files_of(workshop / "two") == files_of(workshop / "one")
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("data/web ")] == [
        *("train", "valid")
    ]
    other = run(
        "build-indices", "data/web", "--like", like, "--seq-length", 32, "--cache-dir", "one", "--json"
    )
    assert {index["plan"]["sequence_length"] for index in other.json["indices"]} == {32}
    (workshop / "three").mkdir()
    alone = workshop / "three" / like.name
    alone.write_bytes(like.read_bytes())
    done = run("build-indices", "data/web", "--like", alone, "--cache-dir", "four")
    assert "warning: --like does not contain the number of train samples" in done.stderr
    assert {name.split("-")[2] for name in files_of(workshop / "four")} == {"valid"}


def test_the_hashed_path_may_be_another(workshop):
    options = ("--num-samples", 10, "--split", "1", *NAMES, "--json")
    here = run(*BUILD, *options, "--path-as", "data=/mnt/v1").json["indices"][0]
    assert here["description"]["dataset_path"] == "/mnt/v1/web"
    assert here["path_prefix"] == "data/web"


def test_identifiers_come_from_a_file(workshop):
    (workshop / "tokenizer.json").write_text('{"class": "x.Y", "tokenizer_path": "ü"}')
    options = ("--tokenizer-identifiers", "tokenizer.json", "--num-samples", 10, "--split", "1", "--json")
    index = run(*BUILD, *options).json["indices"][0]
    assert index["description"]["tokenizer"] == {"class": "x.Y", "tokenizer_path": "ü"}


def test_damaged_indexes_are_refused_and_rebuilt_on_request(workshop):
    options = ("--num-samples", "100,10", "--split", "9,1", "--cache-dir", "cache", *NAMES)
    assert run(*BUILD, *options).returncode == 0
    victim = next((workshop / "cache").glob("*-train-sample_index.npy"))
    content = victim.read_bytes()
    victim.write_bytes(content[:200])
    assert run(*BUILD, *options).returncode == 6
    assert run(*BUILD, *options, "--rebuild").returncode == 0
    assert victim.read_bytes() == content


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (
            ["--num-samples", "10,,"],
            2,
            "--num-samples must be a whole number such as 1000, 2M or 10B, got ''",
        ),
        (
            ["--num-samples", "1,2,3,4"],
            2,
            "must be at most three sizes (train,valid,test), got '1,2,3,4'",
        ),
        (["--num-samples", "1,000,000"], 2, "got '1,000,000'; write 1000000 or 1M for a million"),
        (["--num-samples", "20,050"], 2, "--num-samples must be the sizes of the splits, got '20,050'"),
        ([], 2, "the number of samples is required"),
        (["--epochs", "1", "--surplus", "1e308"], 2, "--surplus must be at most 1000000, got 1e+308"),
        (["--epochs", "10B"], 2, "--epochs must be at most 2147483647, got 10000000000"),
        (["--epochs", "0"], 2, "--epochs must be at least 1, got 0"),
        (["--epochs", "1", "--split", "99,-1,2"], 2, "Megatron would read 99, 1, 2"),
        (["--epochs", "1", "--split", "999,1"], 3, "Megatron would loop forever"),
        (["--epochs", "1", "--pack", "best-fit"], 2, "--pack best-fit requires --cache-dir"),
        (
            ["--epochs", "1", "--pack", "first-fit"],
            2,
            "--pack must be one of concat, best-fit, got 'first-fit'",
        ),
        (["--epochs", "1", "--pad-multiple", "2"], 2, "--pad-multiple requires --pack best-fit"),
        (
            ["--epochs", "1", "--pack", "best-fit", "--pad-multiple", "3", "--cache-dir", "c"],
            2,
            "the sequence length 16 must be a multiple of --pad-multiple 3",
        ),
        (["--epochs", "1", "--tokenizer-model", "x"], 2, "--tokenizer-model requires --megatron"),
        (
            ["--epochs", "1", "--megatron", "0.3", "--tokenizer-model", "x"],
            2,
            "the Megatron version must be one of",
        ),
        (
            ["--epochs", "1", "--like", "a", "--megatron", "0.19"],
            2,
            "--like cannot be used with --megatron",
        ),
        (["--epochs", "1", "--like", "nothing.txt"], 3, "description not found: nothing.txt"),
        (
            ["--epochs", "1", "--path-as", "data"],
            2,
            "--path-as must be LOCAL=TRAINING such as",
        ),
        (["--epochs", "1", "--path-as", "./data=/mnt"], 2, "--path-as ./data=/mnt has no effect"),
        (["--global-batch-size", "4"], 2, "--global-batch-size requires --train-iters or --train-samples"),
        (["--train-iters", "4"], 2, "--train-iters requires --global-batch-size"),
        (["--num-samples", "none", "--split", "1", "--seq-length", "5k"], 2, "has no samples"),
    ],
)
def test_refusals_have_their_exit_codes(workshop, arguments, code, words):
    done = run(*BUILD, *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in " ".join(done.stderr.split())


def test_a_missing_sequence_length_and_dataset_are_named(workshop):
    done = run("build-indices", "data/web", "--epochs", 1)
    assert (done.returncode, "the sequence length is required" in done.stderr) == (2, True)
    write_dataset(str(workshop / "data/empty"), [0, 0])
    done = run("build-indices", "data/empty", "--epochs", 1, "--seq-length", 16, "--split", 1)
    assert "error: the train index of data/empty: the 2 sequences of the split have no tokens" in done.stderr
    done = run("build-indices", "data/\x1b[31mnone", "--epochs", 1, "--seq-length", 16)
    assert (done.returncode, r"dataset not found: data/\x1b[31mnone" in done.stderr) == (3, True)


def test_packed_and_concatenated_indexes_do_not_replace_each_other(workshop):
    sizes = ("--split", "1", "--num-samples", "none", *NAMES)
    packed = ("--pack", "best-fit", "--max-documents-per-sample", 4)
    assert run(*BUILD, *sizes, "--cache-dir", "a").returncode == 0
    assert run(*BUILD, *sizes, "--cache-dir", "b", *packed).returncode == 0
    (workshop / "c").mkdir()
    for path in (workshop / "a").iterdir():
        if path.suffix != ".json":  # as Megatron's own files, without the sidecar
            (workshop / "c" / path.name).write_bytes(path.read_bytes())
    for directory, options, words in (
        ("a", packed, "--pack concat instead of --pack best-fit, at most 4 documents per sample; indexes of"),
        ("b", (), "--pack best-fit, at most 4 documents per sample instead of --pack concat; indexes of"),
        ("b", packed[:2], "at most 4 documents per sample instead of --pack best-fit; indexes of"),
        ("c", packed, "has no record of --pack best-fit, at most 4 documents per sample, because its "),
    ):
        before = files_of(workshop / directory)
        for rebuild in ([], ["--rebuild"]):
            done = run(*BUILD, *sizes, "--cache-dir", directory, *options, *rebuild)
            assert done.returncode == 4
            assert words in done.stderr
            assert "hint: pass another --cache-dir, or remove " in done.stderr
        assert files_of(workshop / directory) == before
    again = run(*BUILD, *sizes, "--cache-dir", "b", *packed, "--json").json
    assert [index["condition"] for index in again["indices"]] == ["fresh"]


def test_epochs_are_counted_in_packed_samples(workshop):
    packed = ("--pack", "best-fit", "--cache-dir", "packed", "--split", "1", *NAMES, "--json")
    one = run(*BUILD, *packed, "--num-samples", "none").json["indices"][0]["plan"]["samples"]
    report = run(*BUILD, *packed, "--epochs", 3).json
    assert report["epoch_sizes"][0]["train_samples"] == 3 * one == report["indices"][0]["plan"]["samples"]
    (more,) = run(*BUILD, *packed, "--num-samples", 3 * one + 1).json["indices"]
    assert (more["plan"]["epochs"], more["plan"]["samples"]) == (4, 4 * one)


def test_documents_of_several_sequences_are_not_packed(workshop):
    write_dataset("data/sentences", [2, 1, 2])
    index = workshop / "data/sentences.idx"
    content = index.read_bytes()
    documents = np.array([0, 1, 3], "<i8").tobytes()  # two documents of one and two sequences
    index.write_bytes(content[:26] + (3).to_bytes(8, "little") + content[34 : -4 * 8] + documents)
    done = run(
        *("build-indices", "data/sentences", "--seq-length", 8, "--epochs", 1, "--split", "1"),
        *("--pack", "best-fit", "--cache-dir", "c"),
    )
    assert done.returncode == 3
    assert (
        "--pack best-fit requires one sequence per document: document 1 of data/sentences has 2"
        in done.stderr
    )


@pytest.mark.parametrize("command", ["build-indices", "blend"])
def test_an_index_that_megatron_wrote_is_left_alone_without_rebuild(workshop, command):
    sizes = ("--seq-length", 16, "--split", "9,1", "--num-samples", 20, "--cache-dir", "cache", *NAMES)
    words = ("1", "data/web", "-o", "mix") if command == "blend" else ("data/web",)
    build = (command, *words, *sizes)
    assert tokshard(*build, cwd=workshop).returncode == 0
    for sidecar in (workshop / "cache").glob("*-tokshard.json"):
        sidecar.unlink()
    before = files_of(workshop / "cache")
    shutil.rmtree(workshop / "mix", ignore_errors=True)
    code, error, hint = failure(tokshard(*build, cwd=workshop))
    assert code == 4
    assert "was not built by tokshard" in error
    assert hint.startswith("pass --rebuild to replace it, or remove cache/")
    assert files_of(workshop / "cache") == before
    assert tokshard(*build, "--rebuild", cwd=workshop).returncode == 0
    assert files_of(workshop / "cache") == before
