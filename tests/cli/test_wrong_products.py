"""Paths of another kind than the command reads: the hint says what to pass instead."""

import pytest

from support.command_line import failure, installed, tokshard
from support.plain_datasets import Plain

INDEX = ["--seq-length", "2", "--num-samples", "2", "--split", "1,0,0"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two datasets in data/, a blend with its cache in mix/, a plan in plan/."""
    directory = tmp_path_factory.mktemp("products")
    (directory / "data").mkdir()
    for name in "ab":
        Plain("uint16", [[[1, 2, 3]], [[4, 5]]]).write(directory / "data" / name)
    for words in (
        ["blend", "1", "data/a", "-o", "mix", *INDEX],
        ["shard-plan", "mix", "--data-parallel", "1", "-o", "plan"],
    ):
        assert tokshard(*words, cwd=directory).returncode == 0
    return directory


def refused(place, *words, run=tokshard):
    done = run(*words, cwd=place)
    done.stderr = done.stderr[done.stderr.index("error: ") :]  # warnings about Megatron come first
    return failure(done)


def not_found(prefix):
    return f"dataset not found: {prefix} ({prefix}.idx and {prefix}.bin missing)"


IN_DATA = "pass the path prefix of a dataset in this directory: data/a, data/b"


@pytest.mark.parametrize("run", [installed, tokshard])
def test_export_of_a_blend_names_samples(place, run):
    words = ["export", "mix", "--to", "olmo", "-o", "new"]
    hint = "pass --samples to export the samples: mix is a blend"
    assert refused(place, *words, run=run) == (3, not_found("mix"), hint)
    if run is tokshard:
        for path, kind in (
            ("plan", "a plan"),
            ("mix/cache", "an index cache"),
            ("mix/blend.json", "a blend"),
        ):
            assert refused(place, "export", path, "--to", "olmo", "-o", "new") == (
                3,
                not_found(path),
                f"pass --samples to export the samples: {path} is {kind}",
            )


def test_blend_of_a_directory_lists_the_datasets_in_it(place):
    words = ["blend", "0.5", "data", "-o", "new", *INDEX]
    error = "dataset not found: data is a directory with 2 datasets: data/a, data/b"
    hint = "pass each path prefix, or 'data/*' for all of them with one weight"
    assert refused(place, *words, run=installed) == (3, error, hint)


@pytest.mark.parametrize(
    "words",
    [
        ("build-indices", "data", *INDEX),
        ("merge", "data", "data/a", "-o", "new"),
        ("export", "data", "--to", "olmo", "-o", "new"),
        ("shard-plan", "--documents", "data", "--data-parallel", "1", "-o", "new"),
    ],
    ids=lambda words: words[0],
)
def test_a_directory_in_the_place_of_a_dataset_is_answered_with_its_datasets(place, words):
    assert refused(place, *words) == (3, not_found("data"), IN_DATA)


def test_inspect_of_a_directory_lists_the_datasets_in_it(place):
    error = "cannot read data: it is not a dataset, tokenizer, index cache, blend, plan or export"
    assert refused(place, "inspect", "data") == (3, error, IN_DATA)


def test_trace_of_a_directory_lists_the_datasets_in_it(place):
    error = "cannot read data: it is not a dataset, tokenizer, index cache, blend, plan or export"
    assert refused(place, "trace", "data", "--document", "0") == (3, error, IN_DATA)


def test_shard_plan_of_a_directory_lists_the_datasets_in_it(place):
    words = ["shard-plan", "data", "--data-parallel", "1", "-o", "new"]
    assert refused(place, *words) == (3, "neither a blend.json nor an index found in data", IN_DATA)


def test_shard_plan_of_a_plan_names_what_to_pass(place):
    words = ["shard-plan", "plan", "--data-parallel", "1", "-o", "new"]
    hint = "pass the blend or the datasets that plan was made of, or run tokshard replan plan"
    assert refused(place, *words) == (3, "neither a blend.json nor an index found in plan", hint)


@pytest.mark.parametrize("command", [("merge", "{}", "-o", "new"), ("blend", "1", "{}", "-o", "new", *INDEX)])
@pytest.mark.parametrize(("path", "kind"), [("mix", "a blend"), ("plan", "a plan")])
def test_another_product_in_the_place_of_a_dataset_is_named(place, command, path, kind):
    words = [word.format(path) for word in command]
    hint = f"pass the path prefix of a dataset: {path} is {kind}"
    assert refused(place, *words) == (3, not_found(path), hint)


def test_many_datasets_in_a_directory_are_counted(tmp_path):
    for number in range(8):
        Plain("uint16", [[[1]]]).write(tmp_path / f"part-{number}")
    (tmp_path / "lone.idx").write_bytes(b"")
    hint = refused(tmp_path, "merge", tmp_path, "-o", tmp_path / "new")[2]
    assert hint.endswith("part-4 and 3 more")
    assert "lone" not in hint


def test_a_second_argument_is_answered_with_those_of_the_command(place):
    hint = "pass only PATH; run `tokshard inspect --help` for its arguments"
    assert refused(place, "inspect", "data/a", "data/b") == (2, "unexpected argument: data/b", hint)


def test_convert_of_a_dataset_names_it(place):
    hint = "pass token files of another trainer: this is an indexed dataset"
    assert refused(place, "convert", "data/a", "--from", "olmo", "-o", "new") == (
        3,
        "file not found: data/a",
        hint,
    )


def test_doctor_of_a_directory_says_what_to_pass(place):
    error = "cannot read launch script mix: it is a directory"
    hint = "pass a file with the launch command, or the command itself"
    assert refused(place, "doctor", "mix") == (3, error, hint)
