"""Directories that save_to_disk of Hugging Face's datasets wrote, and other files of directories."""

import json
import os

import pytest

from support.command_line import SAMPLE, failure, installed, tokshard
from support.tokenize_runs import manifest

pa = pytest.importorskip("pyarrow")

TOKENIZER = SAMPLE / "tokenizer.json"
COPY = "copy the directory again, or pass its data-*.arrow files as inputs"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_arrow(path, *texts):
    table = pa.table({"text": list(texts)})
    with pa.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table)


def save(directory, split="train"):
    directory.mkdir(parents=True)
    names = ["data-00000-of-00002.arrow", "data-00001-of-00002.arrow"]
    for name in names:
        write_arrow(directory / name, f"{split} one", "two")
    write_arrow(directory / "cache-0123456789abcdef.arrow", "intermediate")
    (directory / "dataset_info.json").write_text('{"features": {"text": {"dtype": "string"}}}')
    # In another order than that of the names.
    state = {"_data_files": [{"filename": name} for name in reversed(names)], "_split": split}
    (directory / "state.json").write_text(json.dumps(state))
    return directory


def save_splits(directory):
    for split in ("train", "test"):
        save(directory / split, split)
    (directory / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    return directory


def run(*arguments, command=tokshard):
    return command("tokenize", *arguments, "-o", "out", "--tokenizer", TOKENIZER)


def inputs():
    return [os.path.relpath(entry["path"]) for entry in manifest("out")["inputs"]]


@pytest.mark.parametrize("options", [(), ("--on-error", "skip"), ("--split", "train")])
def test_tokenize_saved_dataset_reads_the_files_of_its_state(options, here):
    save(here / "saved")
    done = run("saved", *options, command=installed)
    assert done.returncode == 0, done.stderr
    assert "saved: a saved dataset, 2 files" in done.stderr
    assert inputs() == ["saved/data-00001-of-00002.arrow", "saved/data-00000-of-00002.arrow"]


def test_tokenize_saved_splits_requires_split(here):
    save_splits(here / "saved")
    expected = (2, "saved has 2 splits, and --split is required", "pass --split train or test")
    assert failure(run("saved", command=installed)) == expected
    assert failure(run("saved", "--dry-run")) == expected
    assert failure(run("saved", "--split", "dev")) == (
        2,
        "--split must be a split of saved, got 'dev'",
        "pass --split train or test",
    )
    assert failure(run("saved/train", "--split", "test")) == (
        2,
        "--split must be a split of saved/train, got 'test'",
        "pass --split train",
    )
    assert failure(run("saved", "--split", "test", "--config", "x"))[:2] == (
        2,
        "--config and --split require an input that is hf://datasets/ORG/NAME without a path",
    )
    assert run("saved", "--split", "test").returncode == 0
    assert inputs() == ["saved/test/data-00001-of-00002.arrow", "saved/test/data-00000-of-00002.arrow"]


def test_tokenize_directory_reads_saved_datasets_in_it_between_other_files(here):
    save(here / "in/b")
    (here / "in/b/c").mkdir()
    for name in ("in/a.jsonl", "in/c.jsonl", "in/state.json", "in/b/c/d.jsonl"):
        (here / name).write_text('{"text": "a"}\n')
    assert run("in").returncode == 0
    names = ["a.jsonl", "b/data-00001-of-00002.arrow", "b/data-00000-of-00002.arrow", "c.jsonl", "state.json"]
    assert inputs() == [f"in/{name}" for name in names]


def test_tokenize_glob_leaves_out_intermediate_results(here):
    save(here / "saved")
    done = run("saved/*.arrow")
    assert inputs() == ["saved/data-00000-of-00002.arrow", "saved/data-00001-of-00002.arrow"]
    assert "left out of saved/*.arrow: 1 file in *.tokshard/, or metadata and cache-*.arrow" in done.stderr


def test_tokenize_glob_leaves_out_metadata(here):
    save(here / "saved")
    assert run("saved/*", command=installed).returncode == 0
    assert inputs() == ["saved/data-00000-of-00002.arrow", "saved/data-00001-of-00002.arrow"]
    code, error, _ = failure(run("*/dataset_info.json", "--dry-run", "--force"))
    assert (code, error.partition(":")[0]) == (3, "saved/dataset_info.json")
    (here / "saved/dataset_info.json").unlink()
    (here / "saved/state.json").write_text('{"text": "a"}\n')  # of a corpus of states
    assert run("saved/*.json", "--force").returncode == 0
    assert inputs() == ["saved/state.json"]


def test_tokenize_saved_dataset_with_a_split_that_is_no_name(here):
    save(here / "saved")
    state = json.loads((here / "saved/state.json").read_text())
    (here / "saved/state.json").write_text(json.dumps({**state, "_split": []}))
    done = run("saved", "--split", "train", command=installed)
    assert failure(done) == (2, "--split must be a split of saved, got 'train'", "leave out --split")


def data_files(*entries):
    return json.dumps({"_data_files": entries})


@pytest.mark.parametrize(
    ("state", "error"),
    [
        ("{", "saved/state.json is not valid JSON"),
        ("[]", "saved/state.json"),
        ("{}", "saved/state.json must have _data_files"),
        ('{"_data_files": "x"}', "saved/state.json: _data_files must be a list of"),
        (data_files(), "saved/state.json: _data_files must be a list of"),
        (data_files("a.arrow"), "saved/state.json: _data_files must be a list of"),
        (data_files({"filename": 1}), "saved/state.json: _data_files must be a list of"),
        (data_files({"filename": "a"}, {"filename": "a"}), "saved/state.json: _data_files must be a list of"),
        (data_files({"filename": "../x.arrow"}), "saved/state.json: file names must have no directories"),
        (data_files({"filename": "/etc/passwd"}), "saved/state.json: file names must have no directories"),
        (data_files({"filename": "gone.arrow"}), "saved/state.json: the file gone.arrow is missing"),
        ("[" * 100_000, "saved/state.json is nested too deeply"),
    ],
)
def test_tokenize_saved_dataset_with_a_bad_state_fails(state, error, here):
    save(here / "saved")
    (here / "saved/state.json").write_text(state)
    for options in ((), ("--on-error", "skip")):
        code, message, hint = failure(run("saved", *options))
        assert (code, hint) == (3, COPY)
        assert message.startswith(error)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ("{", "saved/dataset_dict.json is not valid JSON"),
        ('{"splits": {}}', "saved/dataset_dict.json: splits must be a list of names"),
        ('{"splits": ["../train"]}', "saved/dataset_dict.json: file names must have no directories"),
        ('{"splits": ["dev"]}', "saved/dataset_dict.json: the split dev has no file dev/state.json"),
    ],
)
def test_tokenize_saved_splits_with_a_bad_list_fails(content, error, here):
    save_splits(here / "saved")
    (here / "saved/dataset_dict.json").write_text(content)
    code, message, hint = failure(run("saved"))
    assert (code, hint) == (3, COPY)
    assert message.startswith(error)


def test_tokenize_saved_dataset_with_selected_rows_is_refused(here):
    save(here / "saved")
    state = json.loads((here / "saved/state.json").read_text())
    state["_indices_data_files"] = [{"filename": "indices.arrow"}]
    (here / "saved/state.json").write_text(json.dumps(state))
    assert failure(run("saved")) == (
        3,
        "cannot read saved: its rows are selected by _indices_data_files",
        "save it again with load_from_disk(...).flatten_indices().save_to_disk(...)",
    )


# Other files of a directory


def test_tokenize_directory_leaves_out_earlier_outputs_and_says_so(here):
    (here / "in/_old").mkdir(parents=True)
    for name in ("a.jsonl", "b.jsonl", "_c.jsonl", "dataset_info.json", "d.txt.gz", "e.txt", "f.TXT"):
        (here / "in" / name).write_text('{"text": "a"}\n')
    (here / "in/_SUCCESS").write_text("")
    (here / "in/.hidden").write_text("")
    first = installed("tokenize", "in", "-o", "in/out", "--tokenizer", TOKENIZER)
    assert first.returncode == 0, first.stderr
    left_out = (
        "left out of in: 1 .TXT, 1 .txt, 1 .txt.gz, 1 _c.jsonl, 1 _old/, 1 dataset_info.json; "
        "to read a file, pass its path or a glob"
    )
    assert left_out in first.stderr.splitlines()
    second = run("in", command=installed)
    assert second.returncode == 0, second.stderr
    assert inputs() == ["in/a.jsonl", "in/b.jsonl"]
    assert "1 .bin, 1 .idx, 1 .txt, 1 .txt.gz, 1 _c.jsonl and 3 more; to read" in second.stderr
    dry = run("in", "--dry-run", "--force")
    assert "\nleft out of in: 1 .TXT" in dry.stdout
    assert "warning" not in dry.stderr


def test_tokenize_directory_of_a_dataset_is_refused(here):
    (here / "a.jsonl").write_text('{"text": "a"}\n')
    assert run("a.jsonl").returncode == 0
    assert failure(run("out.tokshard/")) == (
        3,
        "out.tokshard/ is part of a tokenized dataset",
        "pass the raw text instead; `tokshard inspect` shows datasets",
    )
    done = run("**/*.json*", "--force")
    assert inputs() == ["a.jsonl"]
    assert "left out of **/*.json*: 2 files in *.tokshard/" in done.stderr
