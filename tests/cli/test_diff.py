"""``tokshard diff``: the real command."""

from __future__ import annotations

import numpy as np
import pytest

from support.mixture_data import run, write_mixture

SIZES = ("--seq-length", 8, "--split", 1, "--megatron", "0.19", "--tokenizer-model", "/models/llama")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(write_mixture(tmp_path))
    for name, weights, seed in (("one", (0.7, 0.3), 1), ("two", (0.5, 0.5), 1), ("three", (0.7, 0.3), 2)):
        words = [weights[0], "data/web", weights[1], "data/code"]
        done = run("blend", *words, *SIZES, "--num-samples", 60, "--seed", seed, "-o", name)
        assert done.returncode == 0, done.stderr
        done = run("shard-plan", name, "--data-parallel", 2, "--global-batch-size", 4, "-o", f"plan-{name}")
        assert done.returncode == 0, done.stderr
    return tmp_path


def test_a_path_does_not_differ_from_itself(here):
    for path in ("one", "plan-one", "one/cache"):
        done = run("diff", path, path)
        assert done.returncode == 0, done.stderr
    assert run("diff", "plan-one", "plan-one", "--quiet").stdout == ""


def test_blends_differ_by_source(here):
    done = run("diff", "one", "two/blend.json", "--json")
    assert done.returncode == 1
    value = done.json
    assert (value["kind"], value["reads_same"]) == ("blend", False)
    (train,) = value["parts"]
    assert [field["field"] for field in train["fields"]] == [
        "datasets[0].num_samples",
        "datasets[1].num_samples",
        "weights",
    ]
    assert train["first_sample"] == 0
    assert train["datasets"] == [
        {"dataset": f"{here}/data/web", "a": 42, "b": 30},
        {"dataset": f"{here}/data/code", "a": 18, "b": 30},
    ]
    shown = run("diff", "one", "two").stdout
    assert ["data/web", "42", "30", "-12"] in [line.split() for line in shown.splitlines()]
    seeded = run("diff", "one", "three")
    assert "seed: 1 -> 2" in seeded.stdout
    assert "datasets[0].random_seed: 1 -> 2" in seeded.stdout


def test_caches_differ_by_hash_and_by_sample(here):
    value = run("diff", "one/cache", "three/cache", "--json").json
    assert {part["name"] for part in value["parts"]} == {
        "train of web",
        "train of code",
        "train blend of 2 datasets",
    }
    web = next(part for part in value["parts"] if part["name"] == "train of web")
    assert web["fields"] == [{"field": "random_seed", "a": 1, "b": 2}]
    assert web["hashes"][0] != web["hashes"][1]
    assert web["first_sample"] is not None
    blend = next(part for part in value["parts"] if "blend" in part["name"])
    assert (blend["first_sample"], blend["samples"]) == (None, [60, 60])
    (first,) = (here / "one/cache").glob("*BlendedDataset-train-description.txt")
    (second,) = (here / "two/cache").glob("*BlendedDataset-train-description.txt")
    done = run("diff", first, second)
    assert done.returncode == 1
    assert "weights: [0.7, 0.3] -> [0.5, 0.5]" in done.stdout


def test_plans_differ_from_a_step_on(here):
    done = run("diff", "plan-one", "plan-two")
    assert done.returncode == 1
    assert (
        "first step that differs: 0 of A, 0 of B, at 0 consumed samples\n  only in A: data-par" in done.stdout
    )
    value = run("diff", "plan-one", "plan-two", "--json").json
    (part,) = value["parts"]
    step = part["first_step"]
    for plan, read in (("plan-one", step["read_a"]), ("plan-two", step["read_b"])):
        contents = run("trace", plan, "--step", step["a"], "--json").json["samples"]
        assert (read["sample"], read["dataset"], read["data_parallel_rank"], read["row"]) in {
            (each["sample"], each["dataset"], each["data_parallel_rank"], each["row"] + each["micro_batch"])
            for each in contents
        }
    assert sum(each["a"] for each in part["datasets"]) == 60
    assert run("diff", "plan-one", "plan-two", "--steps", 2, "--json").json["parts"][0]["compared"] == [
        8,
        8,
    ]


def test_packed_samples_are_others_than_concatenated_ones_of_the_same_name(here):
    words = ("blend", 0.7, "data/web", 0.3, "data/code", *SIZES, "--num-samples", 60, "--seed", 1)
    assert run(*words, "--pack", "best-fit", "-o", "packed").returncode == 0
    run("shard-plan", "packed", "--data-parallel", 2, "--global-batch-size", 4, "-o", "plan-packed")
    packing = {"field": "packing", "a": "concat", "b": "best-fit"}
    (train,) = run("diff", "one", "packed", "--json").json["parts"]
    assert train["fields"] == [packing]
    assert [(each["a"], each["b"]) for each in train["datasets"]] == [(42, 42), (18, 18)]
    assert train["first_sample"] == 0
    reversed_ = run("diff", "packed", "one", "--json").json
    assert (reversed_["fields"], reversed_["parts"][0]["fields"]) == (
        [],
        [{"field": "packing", "a": "best-fit", "b": "concat"}],
    )
    parts = run("diff", "one/cache", "packed/cache", "--json").json["parts"]
    assert [part["fields"] for part in parts if "blend" not in part["name"]] == [[packing]] * 2
    assert {part["hashes"][0] == part["hashes"][1] for part in parts} == {True}
    (stream,) = run("diff", "plan-one", "plan-packed", "--json").json["parts"]
    assert packing in stream["fields"]
    assert stream["first_step"]["consumed_samples"] == 0
    words = ("replan", "plan-one", "--consumed-samples", 20, "-o", "next")
    done = run(*words, "--blend", "packed")
    assert done.returncode == 2
    assert (
        "--pack best-fit, but a source keeps the index that the plan has read: --pack concat" in done.stderr
    )
    assert "hint: build the blend with --pack concat" in done.stderr


def test_arrays_that_contradict_each_other_are_one_sentence(here):
    path = next((here / "two/cache").glob("*-GPTDataset-train-shuffle_index.npy"))
    order = np.load(path)
    order[3] = 10**6
    np.save(path, order)
    done = run("diff", "one/cache", "two/cache")
    assert (done.returncode, "arrays of the index contradict each other" in done.stderr) == (6, True)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["one", "plan-one"], 2, "cannot compare a blend with a plan: one and plan-one"),
        (["one", "plan-one"], 2, "hint: pass two plans, two blends or two index caches"),
        (["one", "two", "--steps", 3], 2, "hint: leave out --steps"),
        (["data", "one"], 3, "it is not a plan, blend or index cache"),
        (["nothing", "one"], 3, "it is not a plan, blend or index cache"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(here, arguments, code, message):
    done = run("diff", *arguments)
    assert done.returncode == code
    assert message in done.stderr
