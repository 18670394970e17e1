"""``tokshard blend`` with globs of datasets, and with directories in the place of datasets."""

from __future__ import annotations

import json
import os
import re
import shlex
import time

import pytest

from support.command_line import failure, installed, tokshard
from support.index_caches import write_dataset
from support.mixture_data import run

TOKENS = {"data/web/part-1": 400, "data/web/part-2": 800, "data/web/part-10": 1200, "data/code": 480}
WEB = [prefix for prefix in TOKENS if "web" in prefix]
SIZE = ("--seq-length", 8, "--num-samples", 150)
SPLIT = ("--split", "1")
WORDS = ("0.6", "data/web/*", "0.4", "data/code")


@pytest.fixture
def workshop(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, (prefix, tokens) in enumerate(TOKENS.items()):
        write_dataset(str(tmp_path / prefix), [10] * (tokens // 10), first_token=1000 * number)
    return tmp_path


def recipe(*sources, top="", name="recipe.toml"):
    """Write a recipe whose sources have these fields, and return its name."""
    tables = [
        "\n".join(f"{key} = {json.dumps(value)}" for key, value in source.items()) for source in sources
    ]
    with open(name, "w", encoding="utf-8") as file:
        file.write("\n[[source]]\n".join([top, *tables]))
    return name


def error_of(done):
    """Return exit code, error and hint; the warnings before them are not of interest."""
    done.stderr = done.stderr[done.stderr.index("error: ") :]
    return failure(done)


def test_a_glob_is_recorded_measured_and_emitted_as_its_datasets(workshop):
    recipe({"prefix": "data/web/*", "weight": 0.6}, {"prefix": "data/code", "weight": 0.4})
    done = installed("blend", "recipe.toml", *SIZE, *SPLIT, "-o", "mix", "--json", cwd=workshop)
    assert done.returncode == 0, done.stderr
    blend = json.loads((workshop / "mix/blend.json").read_text())
    (mixture,) = blend["recipe"]["mixtures"]
    weights = {source["prefix"]: source["weight"] for source in mixture["sources"]}
    assert list(weights) == [*WEB, "data/code"]
    assert weights == pytest.approx(dict(zip(TOKENS, (0.1, 0.2, 0.3, 0.4), strict=True)))
    measured = blend["certificates"]["train"]["sources"]
    assert [source["samples"] for source in measured] == [15, 30, 45, 60]
    emitted = installed("blend", *WORDS, *SIZE, *SPLIT, "--emit", "megatron-args", cwd=workshop)
    words = shlex.split(emitted.stdout)
    assert words[2 : words.index("--split") : 2] == [*WEB, "data/code"]


def test_all_datasets_of_a_glob_are_read_equally_often(workshop):
    done = run("blend", *WORDS, "--seq-length", 8, "--num-samples", 1500, *SPLIT, "--dry-run", "--json")
    *web, code = (source["epochs_drawn"] for source in done.json["splits"][0]["sources"])
    assert web == pytest.approx([900 * 8 / 2400] * 3, abs=0.05)
    assert code == pytest.approx(600 * 8 / 480, abs=0.2)


def test_a_glob_is_the_same_in_all_ways_to_name_a_mixture(workshop):
    (workshop / "words").write_text(" ".join(WORDS))
    splits = {"train": " ".join(WORDS), "valid": None, "test": None}
    (workshop / "splits.json").write_text(json.dumps(splits))
    recipe({"prefix": "data/web/*", "weight": 0.6}, {"prefix": "data/code", "weight": 0.4})
    plans = [
        run("blend", *spelling, *SIZE, "--dry-run", "--json").json
        for spelling in (
            (*WORDS, *SPLIT),
            ("@words", *SPLIT),
            ("--data-args-path", "words", *SPLIT),
            ("recipe.toml", *SPLIT),
            ("--train", shlex.join(WORDS)),
            ("--per-split-data-args-path", "splits.json"),
            ("splits.json",),
        )
    ]
    assert [source["prefix"] for source in plans[0]["recipe"]["mixtures"][0]["sources"]][:3] == WEB
    assert all(plan["recipe"]["mixtures"][0] == plans[0]["recipe"]["mixtures"][0] for plan in plans)


@pytest.mark.parametrize(
    "fields", [{"epochs": 2.0}, {"weight": 1.0, "max_epochs": 3.0}, {"pack": "best-fit"}], ids=str
)
def test_the_fields_of_a_glob_hold_for_each_dataset(workshop, fields):
    recipe({"prefix": "data/web/*", **fields})
    size = ("--seq-length", 8) if "epochs" in fields else SIZE
    done = run("blend", "recipe.toml", *size, *SPLIT, "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    (mixture,) = done.json["recipe"]["mixtures"]
    shared = [{"prefix": prefix, **fields} for prefix in WEB]
    for source, expected in zip(mixture["sources"], shared, strict=True):
        assert source == {**expected, **({"weight": source["weight"]} if "weight" in fields else {})}


def test_globs_of_subdirectories_skip_the_files_of_manifests(workshop):
    write_dataset("data/web/part-1.tokshard/0")
    (workshop / "data/web/part-1.tokshard/provenance.bin").touch()
    done = run("blend", "data/**/*", *SIZE, *SPLIT, "--emit", "megatron-words")
    assert (done.returncode, done.stdout) == (0, "data/code " + " ".join(WEB) + "\n")


def test_globs_in_a_directory_with_the_suffix_of_sidecars_match_its_datasets(workshop):
    (workshop / "data").rename("data.tokshard")
    done = run("blend", "data.tokshard/c*", *SIZE, *SPLIT, "--emit", "megatron-words")
    assert done.stdout == "data.tokshard/code\n"


def test_globs_include_a_dataset_with_the_name_of_the_current_directory(workshop, monkeypatch):
    (workshop / "data/code").mkdir()
    monkeypatch.chdir(workshop / "data/code")
    done = run("blend", "../c*", "../web/*", *SIZE, *SPLIT, "--emit", "megatron-words")
    assert done.stdout.split() == ["../code", *(f"../{prefix.removeprefix('data/')}" for prefix in WEB)]


def test_a_glob_of_one_dataset_has_its_weight(workshop):
    done = run(
        "blend", "0.7", "data/c*", "0.3", "data/web/part-[2]", *SIZE, *SPLIT, "--emit", "megatron-words"
    )
    assert done.stdout == "0.7 data/code 0.3 data/web/part-2\n"


def test_the_name_of_a_dataset_with_a_star_is_no_glob(workshop):
    write_dataset(str(workshop / "data/a*"), [10] * 40)
    write_dataset(str(workshop / "data/ab"), [10] * 40)
    done = run("blend", "data/a*", *SIZE, *SPLIT, "--emit", "megatron-words")
    assert done.stdout == "data/a*\n"


IN_WEB = "data/web/part-1, data/web/part-2, data/web/part-10"
FILES = [f"data/web/part-{number}.{suffix}" for number in (1, 2) for suffix in ("bin", "idx")]
SAME = "both would have the same samples in the same order"
TWICE = "name it once with the total weight"
REFUSALS = {
    "1 data/web/x*": (
        3,
        "no dataset matches data/web/x*",
        f"pass the path prefix of a dataset in this directory: {IN_WEB}",
    ),
    "1 none/*/x": (
        3,
        "no dataset matches none/*/x",
        "pass the path prefix of a .bin and .idx pair; cannot list none: No such file or directory",
    ),
    "1 texts/*": (
        3,
        "no dataset matches texts/*",
        "pass the path prefix of a .bin and .idx pair; texts has a.jsonl, b.jsonl",
    ),
    "1 data/web/* 1 ./data/web/part-2": (
        2,
        "'./data/web/part-2' is in the mixture twice (as 'data/web/*' and as './data/web/part-2'): " + SAME,
        TWICE,
    ),
    "1 data/web/* 1 data/*/part-1*": (
        2,
        "'data/web/part-1' is in the mixture twice (as 'data/web/*' and as 'data/*/part-1*'): " + SAME,
        TWICE,
    ),
    "1 data/web/* 1 data/code --temperature 2": (
        2,
        "temperature cannot be used with the weight of 'data/web/*', which is divided between 3 datasets",
        "remove the weights: the temperature then applies to the tokens of each dataset",
    ),
    "1 data/empty* 1 data/code": (
        3,
        "data/empty has no tokens: it cannot get a part of the weight of data/empty*",
        "remove the dataset, or pass a glob that does not match it",
    ),
    "1 data/half* 1 data/code": (
        3,
        "dataset not found: data/half (data/half.idx missing)",
        "finish the run that builds the dataset, or copy both files again",
    ),
    f"0.7 {' '.join(FILES)}": (
        2,
        "Megatron would read '0.7' as a path prefix: 5 words are an odd number",
        "quote a glob, or the shell replaces it by the files that match: 0.7 'data/web/*' 0.3 data/code",
    ),
    " ".join(FILES): (
        2,
        "sources must be path prefixes, got the files data/web/part-1.bin and data/web/part-1.idx",
        "quote a glob, or the shell replaces it by the files that match: 0.7 'data/web/*' 0.3 data/code",
    ),
}


@pytest.mark.parametrize("words", REFUSALS)
def test_globs_that_cannot_be_used_are_refused(workshop, words):
    (workshop / "texts").mkdir()
    for name in ("a.jsonl", "b.jsonl"):
        (workshop / "texts" / name).touch()
    write_dataset(str(workshop / "data/empty"), [0, 0])
    (workshop / "data/half.bin").touch()
    done = installed("blend", *words.split(), *SIZE, *SPLIT, "--dry-run", cwd=workshop)
    assert error_of(done) == REFUSALS[words]


def spellings_of(directory):
    """Return the arguments that name a directory in all ways to name a mixture."""
    words = f"0.5 {directory} 0.5 data/code"
    with open("words", "w", encoding="utf-8") as file:
        file.write(words)
    with open("splits.json", "w", encoding="utf-8") as file:
        json.dump({"train": "data/code", "valid": words, "test": None}, file)
    recipe({"prefix": directory, "weight": 0.5}, {"prefix": "data/code", "weight": 0.5})
    return [
        words.split(),
        ["@words"],
        ["--data-args-path", "words"],
        ["recipe.toml"],
        ["--train", "data/code", "--valid", words],
        ["splits.json"],
    ]


def test_a_directory_is_answered_with_its_datasets_in_all_ways_to_name_a_mixture(workshop):
    error = f"dataset not found: data/web is a directory with 3 datasets: {IN_WEB}"
    hint = "pass each path prefix, or 'data/web/*' for all of them with one weight"
    for words in spellings_of("data/web"):
        assert error_of(installed("blend", *words, *SIZE, "--dry-run", cwd=workshop)) == (3, error, hint)
    passed = re.search(r"'(.*)'", hint)[1]
    assert tokshard("blend", "0.5", passed, "0.5", "data/code", *SIZE, *SPLIT, "--dry-run").returncode == 0


def test_datasets_in_subdirectories_are_listed(workshop):
    os.rename("data", "more")
    os.makedirs("corpus/[a]")
    os.rename("more/web", "corpus/[a]/web")
    write_dataset("corpus/more.tokshard/0")  # staged by a process that still writes corpus/more
    error = "dataset not found: corpus is a directory with 3 datasets: "
    listed = ", ".join(prefix.replace("data/", "corpus/[a]/") for prefix in WEB)
    hint = "pass each path prefix, or 'corpus/*/*/*' for all of them with one weight"
    done = installed("blend", "corpus", *SIZE, "--dry-run", cwd=workshop)
    assert error_of(done) == (3, error + listed, hint)
    hint = "pass each path prefix, or 'corpus/[[]a]/*/*' for all of them with one weight"
    assert error_of(installed("blend", "corpus/[a]", *SIZE, "--dry-run", cwd=workshop))[2] == hint


def test_a_directory_with_many_files_is_listed_within_a_second(workshop):
    os.mkdir("many")
    for number in range(5000):
        for suffix in ("bin", "idx"):
            (workshop / f"many/part-{number}.{suffix}").touch()
    run("blend", "data/web", *SIZE, "--dry-run")  # imports modules
    started = time.process_time()
    code, error, hint = error_of(run("blend", "many", *SIZE, "--dry-run"))
    assert time.process_time() - started < 1
    assert code == 3
    assert error.endswith(
        "5,000 datasets: many/part-0, many/part-1, many/part-2, many/part-3, many/part-4 and 4,995 more"
    )
    assert hint == "pass each path prefix, or 'many/*' for all of them with one weight"
