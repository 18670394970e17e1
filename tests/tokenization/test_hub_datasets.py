"""Datasets of the Hugging Face Hub as inputs, from a stand-in with its protocol (P57)."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import signal
import sys
import threading
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from support import forked_commands
from support.hub_server import Fault, digest_of, hub_server
from support.tokenize_runs import dry_run, manifest, pair, run_array_task, run_tokenize
from tokshard import ArrayTask, MergeOptions, TokenizeOptions, inspect, merge
from tokshard.dataset.manifest import read_manifest
from tokshard.errors import (
    InputError,
    MissingExtraError,
    MissingFileError,
    OutputExistsError,
    StorageError,
    UsageError,
)
from tokshard.inspection.facts import describe_dataset
from tokshard.storage.remote.hub import HubDataset, parse_dataset

pa = pytest.importorskip("pyarrow")
library = pytest.importorskip("huggingface_hub")

from pyarrow import parquet  # noqa: E402

URL = "hf://datasets/acme/web"
TWO_CONFIGS = """---
configs:
- config_name: en
  default: true
  data_files:
  - split: train
    path: data/en/*.parquet
- config_name: de
  data_files:
  - split: train
    path: ["data/de/b.jsonl.gz", "data/de/*.jsonl"]
  - split: test
    path: data/de/test/*
---
"""


def table(first: int, count: int) -> bytes:
    """Return a Parquet file with some documents, in row groups of 20."""
    sink = io.BytesIO()
    texts = [f"document {number}: " + "word " * (number % 50) for number in range(first, first + count)]
    parquet.write_table(pa.table({"text": texts}), sink, row_group_size=20, compression="none")
    return sink.getvalue()


def lines(first: int, count: int) -> bytes:
    return b"".join(
        json.dumps({"text": f"line {number}"}).encode() + b"\n" for number in range(first, first + count)
    )


SHARDS = {
    "README.md": "# no metadata\n",
    "data/train-00000-of-00002.parquet": table(0, 60),
    "data/train-00001-of-00002.parquet": table(60, 50),
    "data/test-00000-of-00001.parquet": table(900, 3),
}
CONFIGS = {
    "README.md": TWO_CONFIGS,
    "data/en/0.parquet": table(0, 5),
    "data/de/a.jsonl": lines(0, 4),
    "data/de/b.jsonl.gz": gzip.compress(lines(10, 300), mtime=0),
    "data/de/test/c.jsonl": lines(50, 2),
    "other/notes.txt": "text",
}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOKSHARD_REMOTE_RETRIES", "3")
    monkeypatch.setattr("tokshard.storage.remote.client._FIRST_PAUSE_SECONDS", 0.01)
    with hub_server(tmp_path / "home") as server:
        yield server


def local_copy(files: dict[str, bytes | str], directory: str = "copy") -> Path:
    for name, content in files.items():
        path = Path(directory, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return Path(directory)


def test_the_shards_of_a_split_are_read_at_one_commit(hub):
    repository = hub.dataset("acme/web", SHARDS)
    commit = repository.refs["main"]
    shards = [f"data/train-0000{number}-of-00002.parquet" for number in range(2)]
    run_tokenize([str(local_copy(SHARDS) / name) for name in shards], "local")

    report = run_tokenize(URL, "web", split="train", workers=1)

    assert pair("web") == pair("local")
    assert report.documents == 110
    written = manifest("web")
    assert [(entry["path"], entry["version"]) for entry in written["inputs"]] == [
        (f"{URL}@{commit}/{name}", digest_of(SHARDS[name])) for name in shards
    ]
    assert written["hub_datasets"] == [{"url": URL, "commit": commit, "config": "default", "split": "train"}]
    # Each file is asked for once at the Hub; its ranges come from where it is stored.
    assert [hub.count(f"resolve/{commit}/{name}") for name in shards] == [1, 1]
    assert hub.count("/stored/") > 4
    assert hub.count(f"tree/{commit}") == 2  # pages
    assert run_tokenize(f"{URL}@{commit}", "web", split="train").up_to_date
    assert run_tokenize(f"{URL}/", "web", split="train").up_to_date


def test_worker_processes_and_lists_read_datasets(hub, monkeypatch):
    hub.dataset("acme/web", SHARDS)
    monkeypatch.setattr("tokshard.tokenization.run.INLINE_BYTES", 0)
    copy = local_copy(SHARDS)
    Path("local.txt").write_text(
        f"{copy}/data/train-00000-of-00002.parquet\n{copy}/data/train-00001-of-00002.parquet\n"
    )
    Path("hub.txt").write_text(f"# the corpus\n{URL}\n")
    run_tokenize("@local.txt", "local", workers=1)
    run_tokenize("@hub.txt", "web", split="train", workers=2, unit_bytes=1000)
    assert pair("web") == pair("local")


def test_a_config_names_its_files_and_only_its_directories_are_listed(hub):
    repository = hub.dataset("acme/web", CONFIGS)
    copy = local_copy(CONFIGS)
    run_tokenize([str(copy / "data/de/b.jsonl.gz"), str(copy / "data/de/a.jsonl")], "local")

    run_tokenize(URL, "web", config="de", split="train")
    assert pair("web") == pair("local")
    assert manifest("web")["hub_datasets"][0]["config"] == "de"
    listed = [request for request in hub.requests if "/tree/" in request]
    assert len(listed) == 2  # pages
    assert all(f"tree/{repository.refs['main']}/data%2Fde?" in request for request in listed)

    run_tokenize(str(copy), "copied", config="de", split="train")
    assert pair("copied") == pair("local")
    assert "hub_datasets" not in manifest("copied")
    run_tokenize(URL, "en", config="en")
    assert manifest("en")["counts"]["documents"] == 5

    merge(MergeOptions(("web", "local", "en"), "all"))
    configs = [dataset["config"] for dataset in manifest("all")["hub_datasets"]]
    assert configs == ["de", "en"]
    shown = f"config de, split train, commit {repository.refs['main']}"
    assert shown in str(describe_dataset(inspect("web")))


@pytest.mark.parametrize("url", ["hf://datasets/web", URL])
def test_an_old_name_of_a_dataset_leads_to_its_name(hub, url):
    hub.dataset("acme/web", SHARDS)
    hub.renamed |= {"web": "acme/web"}
    plan = dry_run(url, "out", split="test")
    assert [source.path.partition("@")[0] for source in plan.inputs] == [URL]


def test_names_of_datasets():
    assert parse_dataset(f"{URL}@refs%2Fpr%2F3") == HubDataset("acme/web", "refs/pr/3")
    assert parse_dataset(f"{URL}@a%20b/") == HubDataset("acme/web", "a b")
    for url in [f"{URL}/a.jsonl", f"{URL}@main/a.jsonl", f"{URL}@refs/pr/3/x", "hf://acme/web", "s3://x/y"]:
        assert parse_dataset(url) is None
    assert TokenizeOptions("hf://datasets/acme/web-v1.5@main").prefix == "web-v1.5"


def refused(kind, *inputs, match, output="out", **options):
    with pytest.raises(kind, match=re.escape(match)) as error:
        run_tokenize(list(inputs), output, **options)
    assert not Path(f"{output}.bin").exists()
    return error.value


def test_a_choice_that_is_missing_or_wrong_is_explained(hub):
    hub.dataset("acme/web", CONFIGS)
    hub.dataset("acme/two", SHARDS)
    many = "".join(f"- config_name: c{number}\n  data_files: x\n" for number in range(50))
    hub.dataset("acme/many", {"README.md": f"---\nconfigs:\n{many}---\n"})

    error = refused(UsageError, URL, match="acme/web has 2 configs: en (the default), de")
    assert error.hint == "pass --config en, for example"
    error = refused(UsageError, URL, match="--config must be a config of acme/web, got 'fr'", config="fr")
    assert error.hint == "pass one of: en (the default), de"
    error = refused(UsageError, URL, match="acme/web has 2 splits: train, test", config="de")
    assert error.hint == "pass --split train, for example"
    refused(UsageError, "hf://datasets/acme/two", match="acme/two has 2 splits: train, test")
    refused(
        UsageError, "hf://datasets/acme/two", match="--split must be a split of acme/two, got 'x'", split="x"
    )
    refused(UsageError, "hf://datasets/acme/many", match="50 configs: c0, c1, c2")
    local_copy(CONFIGS)
    refused(UsageError, "copy", match="copy has 2 configs", split="train")
    refused(UsageError, "copy/data/de/a.jsonl", match="--config and --split require a dataset", split="train")


def test_files_that_are_not_there(hub):
    hub.dataset("acme/web", {"README.md": TWO_CONFIGS, "data/de/test/c.jsonl": lines(0, 1)})
    hub.dataset("acme/bad", {"README.md": "---\nconfigs: [a: b: c]\n---\n"})
    hub.dataset("acme/pictures", {"a.png": b"x", "b.png": b"y"})
    hub.dataset("acme/empty", {"README.md": "hello"})
    refused(
        InputError, URL, match="no file of acme/web matches the split train of the config en", config="en"
    )
    refused(InputError, "hf://datasets/acme/bad", match="cannot read the metadata in acme/bad/README.md")
    refused(InputError, "hf://datasets/acme/pictures", match="it contains other data, not JSON lines")
    refused(InputError, "hf://datasets/acme/empty", match="it contains no data files, not JSON lines")


def test_a_hostile_readme(hub):
    names = "abcdefghijklmnopqrstuvwxyz"
    bomb = "a: &a [x, x]\n" + "".join(f"{new}: &{new} [*{old}, *{old}]\n" for old, new in pairwise(names))
    hub.dataset("acme/bomb", {"README.md": f"---\n{bomb}---\n", "x.jsonl": lines(0, 2)})
    run_tokenize("hf://datasets/acme/bomb", "bomb")
    bomb += "configs:\n- config_name: x\n  data_files: *z\n"
    hub.dataset("acme/bombs", {"README.md": f"---\n{bomb}---\n", "x.jsonl": lines(0, 2)})
    refused(InputError, "hf://datasets/acme/bombs", match="data_files of config x must be a path")
    configs = (
        'configs:\n- config_name: "a\\e[31m"\n  data_files: "*"\n- config_name: b\n  data_files: "../../*"\n'
    )
    hub.dataset("acme/odd", {"README.md": f"---\n{configs}---\n", "x.jsonl": lines(0, 2)})
    refused(
        InputError, "hf://datasets/acme/odd", match="the path ../../* must be inside the dataset", config="b"
    )


def test_access_is_explained(hub, monkeypatch):
    hub.dataset("acme/gated", SHARDS).gated = True
    hub.dataset("acme/private", SHARDS).token = "hf_secret"
    hub.dataset("acme/web", SHARDS)

    error = refused(
        StorageError, "hf://datasets/acme/gated", match="access to acme/gated is restricted", split="test"
    )
    assert (error.exit_code, hub.url in error.hint, "hf auth login" in error.hint) == (7, True, True)
    for name in ("private", "absent"):
        error = refused(
            InputError, f"hf://datasets/acme/{name}", match=f"not found on the Hugging Face Hub: acme/{name}"
        )
        assert (error.exit_code, "hf auth login" in error.hint) == (3, True)
    refused(InputError, f"{URL}@v9", match="revision not found: v9 of acme/web")
    refused(InputError, f"{URL}@{'a' * 40}", match="revision not found: aaaa")
    hub.faults = [Fault("/tree/", 403)]
    refused(StorageError, URL, match="access denied by the Hugging Face Hub", split="test")

    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    run_tokenize("hf://datasets/acme/private", "private", split="train")
    assert manifest("private")["counts"]["documents"] == 110


def test_passing_failures_are_repeated(hub):
    commit = hub.dataset("acme/web", SHARDS).refs["main"]
    run_tokenize(str(local_copy(SHARDS)), "local", split="train")
    hub.faults = [
        Fault("/api/datasets/acme/web?", 503),
        Fault("/tree/", 429, {"Retry-After": "0"}),
        Fault(f"resolve/{commit}/README.md", 500, method="HEAD"),
        Fault("train-00001", 429, times=2),
        Fault("/stored/", 0, times=2),  # the connection ends in the middle of the body
        Fault("/stored/", 503),
    ]
    hub.lifetime = 2  # each address of a stored file expires
    run_tokenize(URL, "web", split="train")
    assert pair("web") == pair("local")
    assert [fault.times for fault in hub.faults] == [0] * 6


def test_failures_that_last_keep_the_work(hub):
    repository = hub.dataset("acme/web", SHARDS)
    stored = digest_of(SHARDS["data/train-00001-of-00002.parquet"])
    hub.faults = [Fault(f"/stored/{stored}", 503, times=100)]
    hub.faults[0].times = 0
    seen = []

    def fail_later(request):
        seen.append(request)
        hub.faults[0].times = 100 if len([one for one in seen if f"/stored/{stored}" in one]) > 1 else 0

    hub.on_request = fail_later
    error = refused(StorageError, URL, match="failed 4 times", split="train", unit_bytes=2000, workers=1)
    assert error.exit_code == 7
    hub.on_request, hub.faults = (lambda _: None), []
    report = run_tokenize(URL, "out", split="train", unit_bytes=2000, workers=1)
    assert report.units_reused > 0
    assert manifest("out")["hub_datasets"][0]["commit"] == repository.refs["main"]


def kill_at(hub, inside: str, *arguments: str) -> None:
    """Run a command, and kill it when the Hub gets a second request with a text."""
    process, count = [], [0]
    is_started = threading.Event()

    def on_request(request):
        count[0] += inside in request
        if count[0] == 2:
            is_started.wait(10)
            os.kill(process[0], signal.SIGKILL)

    def started(pid):
        process.append(pid)
        is_started.set()

    hub.on_request = on_request
    done = forked_commands.run(list(arguments), environment=dict(os.environ), started=started)
    hub.on_request = lambda _: None
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()


def test_a_run_that_is_resumed_reads_the_commit_of_the_first_try_although_the_branch_has_moved(hub):
    repository = hub.dataset("acme/web", SHARDS)
    first = repository.refs["main"]
    run_tokenize(str(local_copy(SHARDS)), "local", split="train", unit_bytes=2000)
    stored = digest_of(SHARDS["data/train-00001-of-00002.parquet"])
    command = ["tokenize", URL, "--split", "train", "-o", "web", "--unit-size", "2000", "--workers", "1"]
    kill_at(hub, f"/stored/{stored}", *command)
    repository.commit(SHARDS | {"data/train-00000-of-00002.parquet": table(500, 10)})

    done = forked_commands.run(command, environment=dict(os.environ))
    text = done.stderr.decode()
    assert done.returncode == 0, text
    assert f"2 files of commit {first[:12]} (the commit of the unfinished run)" in text
    assert "finished unit" in text
    assert pair("web") == pair("local")
    assert manifest("web")["hub_datasets"][0]["commit"] == first


def interrupted(hub, output="web", **options):
    """Leave an unfinished run behind."""
    hub.faults = [Fault(f"/stored/{digest_of(SHARDS['data/train-00001-of-00002.parquet'])}", 404, times=0)]
    count = [0]

    def on_request(request):
        count[0] += hub.faults[0].inside in request
        hub.faults[0].times = 10 if count[0] > 1 else 0

    hub.on_request = on_request
    with pytest.raises(InputError):
        run_tokenize(URL, output, split="train", unit_bytes=2000, workers=1, **options)
    hub.on_request, hub.faults = (lambda _: None), []
    assert Path(f"{output}.tokshard/work/plan.json").exists()


def test_other_requests_do_not_take_the_commit_of_an_unfinished_run(hub):
    repository = hub.dataset("acme/web", SHARDS)
    interrupted(hub)
    first, second = repository.refs["main"], repository.commit(SHARDS | {"x": "1"})
    chosen = partial(dry_run, output="web")
    assert first in chosen(URL, split="train").inputs[0].path
    assert second in chosen(URL, split="test").inputs[0].path
    assert second in chosen(f"{URL}@main", split="train").inputs[0].path
    assert second in chosen(URL, split="train", resume=False).inputs[0].path
    assert second in dry_run(URL, "elsewhere", split="train").inputs[0].path


def test_a_commit_that_does_not_exist_any_more_is_replaced(hub):
    repository = hub.dataset("acme/web", SHARDS)
    interrupted(hub)
    first = repository.refs["main"]
    repository.commit(SHARDS | {"x": "1"})
    del repository.commits[first]
    run_tokenize(URL, "web", split="train", unit_bytes=2000)
    assert manifest("web")["hub_datasets"][0]["commit"] == repository.refs["main"]
    assert not Path("web.tokshard/work").exists()


def test_a_finished_output_is_up_to_date_as_long_as_its_files_are_the_same(hub):
    repository = hub.dataset("acme/web", SHARDS)
    run_tokenize(URL, "web", split="train")
    before = manifest("web")
    repository.commit(
        SHARDS | {"README.md": "# a better page\n", "data/test-00000-of-00001.parquet": table(7, 7)}
    )
    assert run_tokenize(URL, "web", split="train").up_to_date
    assert manifest("web") == before
    run_tokenize(URL, "few", split="train", limit=7)
    repository.commit(SHARDS | {"README.md": "# the best page\n"})
    assert run_tokenize(URL, "few", split="train", limit=7).up_to_date

    second = repository.commit(SHARDS | {"data/train-00001-of-00002.parquet": table(60, 51)})
    with pytest.raises(OutputExistsError, match=f"the inputs were .* and are now .*{second}"):
        run_tokenize(URL, "web", split="train")
    assert run_tokenize(URL, "web", split="train", force=True).documents == 111
    assert manifest("web")["hub_datasets"][0]["commit"] == second


def test_a_file_that_disappears_is_named(hub):
    repository = hub.dataset("acme/web", SHARDS)
    commit = repository.refs["main"]

    def remove(request):
        if "resolve" in request and "train-00001" in request:
            repository.commits[commit].pop("data/train-00001-of-00002.parquet", None)

    hub.on_request = remove
    repository.commits[commit] = dict(repository.commits[commit])
    error = refused(
        MissingFileError, URL, match=f"file not found: {URL}@{commit}/data/train-00001", split="train"
    )
    assert error.exit_code == 3


def test_the_tasks_of_a_job_array_read_one_commit(hub):
    repository = hub.dataset("acme/web", SHARDS)
    first = repository.refs["main"]
    tasks = [
        partial(run_array_task, URL, "web", split="train", task=ArrayTask(number, 2)) for number in range(2)
    ]
    tasks[0](unit_bytes=2000)
    repository.commit(SHARDS | {"data/train-00000-of-00002.parquet": table(500, 10)})
    assert tasks[1](unit_bytes=2000).state == "published"
    assert manifest("web")["hub_datasets"][0]["commit"] == first


def test_an_output_that_waits_for_its_upload_keeps_its_commit(hub, tmp_path, monkeypatch):
    repository = hub.dataset("acme/web", SHARDS)
    first = repository.refs["main"]
    monkeypatch.setenv("TOKSHARD_CACHE_DIR", str(tmp_path / "cache"))
    output = "memory://bucket/web"

    def fail(*_, **__):
        raise StorageError("write", output, OSError(5, "the store is down"))

    with monkeypatch.context() as patched:
        patched.setattr("tokshard.dataset.delivery.upload_file", fail)
        with pytest.raises(StorageError, match="the store is down"):
            run_tokenize(URL, output, split="train")
    repository.commit(SHARDS | {"data/train-00000-of-00002.parquet": table(500, 10)})
    run_tokenize(URL, output, split="train")
    assert read_manifest(output).hub_datasets[0].commit == first


def test_other_formats_are_read_from_the_conversion(hub):
    repository = hub.dataset("acme/web", {"train.csv": "text\na\n", "test.csv": "text\nb\n"})
    refused(InputError, URL, match="it contains CSV, not JSON lines, Parquet or Arrow", split="train")
    converted = repository.commit(
        {"default/train/0000.parquet": table(0, 4), "default/test/0000.parquet": table(4, 1)},
        branch="refs/convert/parquet",
    )
    run_tokenize(URL, "web", split="train")
    assert manifest("web")["hub_datasets"] == [
        {"url": URL, "commit": converted, "config": "default", "split": "train", "converted": True}
    ]
    assert manifest("web")["counts"]["documents"] == 4
    assert run_tokenize(URL, "web", split="train").up_to_date
    assert run_tokenize(f"{URL}@refs/convert/parquet", "web", split="train").up_to_date
    refused(UsageError, URL, match="acme/web has 2 splits: train, test")
    # The conversion is one of the newest commit.
    repository.commit({"a.csv": "text\n"}, branch="old")
    refused(InputError, f"{URL}@old", match="it contains CSV")


def test_a_script_is_not_run(hub):
    repository = hub.dataset("acme/web", {"web.py": "import datasets", "raw.jsonl": lines(0, 3)})
    refused(InputError, URL, match="it contains the script web.py, which tokshard does not run")
    repository.commit({"plain/train/0000.parquet": table(0, 4)}, branch="refs/convert/parquet")
    run_tokenize(URL, "web")
    assert manifest("web")["counts"]["documents"] == 4
    refused(UsageError, URL, match="--config must be a config of acme/web, got 'x'", config="x")


def test_a_conversion_of_the_first_part_only_is_refused(hub):
    repository = hub.dataset("acme/web", {"train.csv": "text\na\n"})
    repository.commit({"default/partial-train/0000.parquet": table(0, 4)}, branch="refs/convert/parquet")
    error = refused(InputError, URL, match="converted only the first part of the split train")
    words = error.hint.rpartition("pass ")[2].split()
    run_tokenize(words[0], "web", config=words[2], split=words[4])
    assert manifest("web")["hub_datasets"][0]["split"] == "partial-train"


@pytest.fixture
def offline(hub, monkeypatch):
    """The stand-in, and a function that downloads a dataset and disconnects."""

    def disconnect(**options):
        library.snapshot_download("acme/web", repo_type="dataset", **options)
        hub.requests.clear()
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    hub.disconnect = disconnect
    return hub


def test_a_cached_snapshot_is_read_without_a_connection(offline):
    repository = offline.dataset("acme/web", CONFIGS)
    run_tokenize(URL, "online", config="de", split="train")
    offline.disconnect()
    commit = repository.refs["main"]
    repository.commit({"README.md": "moved"})

    for number, revision in enumerate(("", "@main", f"@{commit}")):
        run_tokenize(URL + revision, f"out{number}", config="de", split="train")
        assert pair(f"out{number}") == pair("online")
        assert manifest(f"out{number}")["inputs"] == manifest("online")["inputs"]
    assert run_tokenize(URL, "online", config="de", split="train").up_to_date
    assert offline.requests == []
    error = refused(InputError, "hf://datasets/acme/other", match="is not in the cache of huggingface_hub")
    assert "HF_HUB_OFFLINE" in error.hint
    refused(InputError, f"{URL}@v2", match="is not in the cache", config="de", split="train")


def test_a_snapshot_without_some_files_is_not_taken_for_a_whole_one(offline, monkeypatch):
    offline.dataset("acme/web", SHARDS)
    offline.disconnect(allow_patterns=["README.md", "*00000*"])
    refused(InputError, URL, match="is not in the cache of huggingface_hub", split="train")
    # Without the list of files that newer versions of the library record.
    monkeypatch.setattr(library, "get_cached_repo_tree", None, raising=False)
    missing = "the file data/train-00001-of-00002 of acme/web is not in the cache"
    refused(InputError, URL, match=missing, split="train")
    run_tokenize(URL, "test", split="test")
    assert offline.requests == []


def test_files_in_the_cache_are_not_downloaded_again(offline, monkeypatch):
    offline.dataset("acme/web", SHARDS)
    offline.disconnect()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    run_tokenize(URL, "web", split="train")
    assert offline.count("/stored/") == 0
    assert offline.count("/api/datasets/acme/web") > 0


def test_the_library_is_missing(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    error = refused(
        MissingExtraError, URL, match=f"the URL {URL} requires huggingface_hub, which is not installed"
    )
    assert error.hint == "pip install huggingface_hub"


def test_a_path_below_a_dataset_is_a_file(hub):
    hub.dataset("acme/web", CONFIGS)
    run_tokenize(f"{URL}/data/de/a.jsonl", "file")
    assert manifest("file")["inputs"][0]["path"] == f"{URL}/data/de/a.jsonl"
    run_tokenize(f"{URL}@main/data/de/*.jsonl", "files")
    assert pair("file") == pair("files")


def test_the_command_line(hub):
    hub.dataset("acme/web", SHARDS)
    run = partial(forked_commands.run, environment=dict(os.environ))
    done = run(["tokenize", URL, "--split", "train"])
    assert (done.returncode, Path("web.bin").exists()) == (0, True), done.stderr.decode()
    shard = f"{URL}@{hub.datasets['acme/web'].refs['main']}/data/train-00001-of-00002.parquet"
    traced = run(["trace", "--dataset", "web", "--document", "70"]).stdout.decode()
    assert f"{shard}@10" in traced
    traced = run(["trace", "--dataset", "web", "--source", f"{shard}@10"])
    assert (traced.returncode, b"document 70" in traced.stdout) == (0, True), traced.stdout.decode()
    preset = ["tokenize", URL, "--split", "train", "--preset", "megatron", "-o", "x"]
    assert b"abbreviates --split-sentences" in run(preset).stderr
