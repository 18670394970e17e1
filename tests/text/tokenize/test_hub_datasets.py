"""Datasets of the Hugging Face Hub as inputs, from a stand-in with its protocol (P57)."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import sys
import threading
from functools import partial
from pathlib import Path
from urllib.parse import unquote

import pytest

from support import forked_commands
from support.hub_server import Fault, digest_of, hub_server, parquet_of
from support.tokenize_runs import dry_run, manifest, pair, run_array_task, run_finish, run_tokenize
from tokshard import ArrayTask, MergeOptions, TokenizeOptions, inspect, merge
from tokshard.checks.inspect.facts import describe_dataset
from tokshard.dataset.manifest import read_manifest
from tokshard.errors import (
    InputError,
    MissingExtraError,
    MissingFileError,
    OutputExistsError,
    StorageError,
    UsageError,
)
from tokshard.storage.remote.hub import HubUrl, parse_dataset

pytest.importorskip("pyarrow")
library = pytest.importorskip("huggingface_hub")

URL = "hf://datasets/acme/web"
TRAIN = f"{URL}/data/train-*.parquet"
TEST = f"{URL}/data/test-*.parquet"


def table(first: int, count: int) -> bytes:
    """Return a Parquet file with some documents."""
    return parquet_of(
        [f"document {number}: " + "word " * (number % 50) for number in range(first, first + count)]
    )


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
FILES = {
    "README.md": "# no metadata\n",
    "data/de/a.jsonl": lines(0, 4),
    "data/de/b.jsonl.gz": gzip.compress(lines(10, 300), mtime=0),
    "data/de/test/c.jsonl": lines(50, 2),
    "data/part-2.jsonl": lines(60, 2),
    "data/part-10.jsonl": lines(70, 2),
    "other/notes.txt": "text",
}
CONVERTED = {
    ".gitattributes": "*.parquet filter=lfs",
    "de/train/0000.parquet": table(0, 4),
    "en/test/0000.parquet": table(4, 1),
    "en/train/0000.parquet": table(5, 3),
    "en/train/0001.parquet": table(8, 3),
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


def test_the_files_of_a_glob_are_read_at_one_commit(hub):
    repository = hub.dataset("acme/web", SHARDS)
    commit = repository.refs["main"]
    shards = [f"data/train-0000{number}-of-00002.parquet" for number in range(2)]
    run_tokenize([str(local_copy(SHARDS) / name) for name in shards], "local")

    report = run_tokenize(TRAIN, "web", workers=1)

    assert pair("web") == pair("local")
    assert report.counts.documents == 110
    written = manifest("web")
    assert [(entry["path"], entry["version"]) for entry in written["inputs"]] == [
        (f"{URL}@{commit}/{name}", digest_of(SHARDS[name])) for name in shards
    ]
    assert written["hub_datasets"] == [{"url": TRAIN, "commit": commit}]
    # Each file is asked for once at the Hub; its ranges come from where it is stored.
    assert [hub.count(f"resolve/{commit}/{name}") for name in shards] == [1, 1]
    assert hub.count("/stored/") > 4
    assert hub.count(f"tree/{commit}") == hub.count(f"tree/{commit}/data?recursive=false")
    assert run_tokenize(f"{URL}@{commit}/data/train*", "web").action == "found"


def test_worker_processes_and_lists_read_datasets(hub, monkeypatch):
    hub.dataset("acme/web", SHARDS)
    monkeypatch.setattr("tokshard.text.tokenize.run.INLINE_BYTES", 0)
    copy = local_copy(SHARDS)
    Path("local.txt").write_text(
        f"{copy}/data/train-00000-of-00002.parquet\n{copy}/data/train-00001-of-00002.parquet\n"
    )
    Path("hub.txt").write_text(f"# the corpus\n{TRAIN}\n")
    run_tokenize("@local.txt", "local", workers=1)
    run_tokenize("@hub.txt", "web", workers=2, unit_size=1000)
    assert pair("web") == pair("local")


@pytest.mark.parametrize(
    "path",
    [
        "data/de/a.jsonl",
        "data/de/*.jsonl*",
        "data/part-*.jsonl",
        "data/[!p]*/?.jsonl",
        "**/*.jsonl",
        "data/**/c.jsonl",
        "data/de",
        "data/de/",
    ],
)
def test_paths_name_the_files_that_a_local_copy_and_the_file_system_of_the_library_find(hub, path):
    commit = hub.dataset("acme/web", FILES).refs["main"]
    local_copy(FILES)
    expected = [source.path.removeprefix("copy/") for source in dry_run(f"copy/{path}", "local").inputs]
    assert expected
    for revision in ("", "@main", f"@{commit}"):
        plan = dry_run(f"{URL}{revision}/{path}", "out")
        assert [source.path for source in plan.inputs] == [f"{URL}@{commit}/{name}" for name in expected]
    system = library.HfFileSystem(endpoint=hub.url, skip_instance_cache=True)
    found = system.glob(f"{URL}@{commit}/{path}") if "*" in path else system.find(f"{URL}@{commit}/{path}")
    assert sorted(f"hf://{name}" for name in found) == sorted(f"{URL}@{commit}/{name}" for name in expected)


def test_only_the_directory_of_a_path_is_listed(hub):
    repository = hub.dataset("acme/web", FILES)
    run_tokenize(f"{URL}/data/de/*.jsonl.gz", "web")
    listed = [request for request in hub.requests if "/tree/" in request]
    assert all(f"tree/{repository.refs['main']}/data%2Fde?recursive=false" in request for request in listed)

    run_tokenize(f"{URL}/data/de/a.jsonl", "one")
    repository.commit(CONVERTED, branch="refs/convert/parquet")
    run_tokenize(URL, "converted", config="de")
    merge(MergeOptions(inputs=("web", "one", "web", "converted"), output="all"))
    urls = [dataset["url"] for dataset in manifest("all")["hub_datasets"]]
    assert urls == [f"{URL}/data/de/*.jsonl.gz", f"{URL}/data/de/a.jsonl", URL]
    facts = str(describe_dataset(inspect("all")))
    assert f"{URL}/data/de/*.jsonl.gz: commit {repository.refs['main']}" in facts
    assert f"{URL}: config de, split train, commit {repository.refs['refs/convert/parquet']}" in facts


@pytest.mark.parametrize("url", ["hf://datasets/web@main", "hf://datasets/web-old/web"])
def test_an_old_name_of_a_dataset_leads_to_its_name(hub, url):
    hub.dataset("acme/web", SHARDS)
    hub.renamed |= {"web": "acme/web", "web-old/web": "acme/web"}
    plan = dry_run(f"{url}/data/test*", "out")
    assert [source.path.partition("@")[0] for source in plan.inputs] == [URL]


@pytest.mark.parametrize("revision", ["refs/pr/3", "refs%2Fpr%2F3", "a%20b", "v1.0"])
def test_revisions_are_branches_tags_and_references(hub, revision):
    repository = hub.dataset("acme/web", {"a.jsonl": lines(0, 1)})
    expected = repository.commit(SHARDS, branch=unquote(revision))
    plan = dry_run(f"{URL}@{revision}/data/test*", "out")
    assert [source.path for source in plan.inputs] == [f"{URL}@{expected}/data/test-00000-of-00001.parquet"]


def test_names_with_special_characters_are_read(hub):
    names = ["a b.jsonl", "c#d?.jsonl", "e%2Ff.jsonl", "g\nh.jsonl", "ü@1.jsonl", "[x].jsonl"]
    hub.dataset("acme/web", {f"d/{name}": lines(number, 800) for number, name in enumerate(names)})
    run_tokenize(f"{URL}/d/*", "web")
    commit = hub.datasets["acme/web"].refs["main"]
    paths = [entry["path"] for entry in manifest("web")["inputs"]]
    assert sorted(paths) == sorted(f"{URL}@{commit}/d/{name}" for name in names)
    assert manifest("web")["counts"]["documents"] == 800 * len(names)
    for name in ("e%2Ff.jsonl", "[x].jsonl", "c#d?.jsonl"):
        assert [source.path for source in dry_run(f"{URL}/d/{name}", "x").inputs] == [
            f"{URL}@{commit}/d/{name}"
        ]


def test_parse_dataset_splits_urls():
    assert parse_dataset(f"{URL}@refs%2Fpr%2F3") == HubUrl("acme/web", "refs/pr/3", "")
    assert parse_dataset(f"{URL}@a%20b/") == HubUrl("acme/web", "a b", "")
    assert parse_dataset(f"{URL}@refs/pr/3/x@y/**") == HubUrl("acme/web", "refs/pr/3", "x@y/**")
    assert parse_dataset(f"{URL}//a.jsonl") == HubUrl("acme/web", None, "a.jsonl")
    for url in ["hf://acme/web", "s3://x/y", "hf://datasets/a b/c/x", "hf://datasets/"]:
        assert parse_dataset(url) is None
    assert TokenizeOptions(inputs="hf://datasets/acme/web-v1.5").prefix == "web-v1.5"
    assert TokenizeOptions(inputs=f"{URL}/data/part.jsonl.gz").prefix == "part"


def refused(kind, *inputs, match, output="out", **options):
    with pytest.raises(kind, match=re.escape(match)) as error:
        run_tokenize(list(inputs), output, **options)
    assert not Path(f"{output}.bin").exists()
    return error.value


def test_a_choice_that_is_missing_or_wrong_is_explained(hub):
    repository = hub.dataset("acme/web", FILES)
    repository.commit(CONVERTED, branch="refs/convert/parquet")
    many = hub.dataset("acme/many", FILES)
    many.commit({f"c{number:02}/train/0.parquet": "x" for number in range(50)}, branch="refs/convert/parquet")

    error = refused(UsageError, URL, match="acme/web has 2 configs: de, en")
    assert error.hint == "pass --config de, for example"
    error = refused(UsageError, URL, match="--config must be a config of acme/web, got 'fr'", config="fr")
    assert error.hint == "pass one of: de, en"
    error = refused(UsageError, URL, match="acme/web has 2 splits: train, test", config="en")
    assert error.hint == "pass --split train, for example"
    refused(UsageError, URL, match="--split must be a split of acme/web, got 'x'", config="en", split="x")
    refused(UsageError, "hf://datasets/acme/many", match="50 configs: c00, c01, c02")
    error = refused(UsageError, f"{URL}@main", match=f"a path is required after a revision, got {URL}@main")
    assert error.hint == f"pass a glob of its files, for example {URL}@main/data/*.parquet"
    local_copy(FILES)
    for name in ("copy", "copy/data/de/a.jsonl", f"{URL}/data/de/a.jsonl"):
        for choice in ({"split": "train"}, {"config": "de"}):
            error = refused(UsageError, name, match="require an input that is hf://datasets", **choice)
            assert error.hint == "to select files, pass a glob such as data/train-*.parquet"


def test_files_that_are_not_there(hub):
    commit = hub.dataset("acme/web", FILES).refs["main"]
    error = refused(MissingFileError, f"{URL}/x/*.jsonl", match=f"file not found: {URL}@{commit}/x")
    assert error.hint == f"look at the files of the repository: {hub.url}/datasets/acme/web/tree/{commit}"
    refused(MissingFileError, f"{URL}/data/x.jsonl", match=f"file not found: {URL}@{commit}/data/x.jsonl")
    refused(InputError, f"{URL}/data/*.csv", match=f"no objects match {URL}@{commit}/data/*.csv")
    refused(InputError, f"{URL}/other/", match=f"the directory {URL}@{commit}/other/ contains no inputs")


def test_access_is_explained(hub, monkeypatch):
    hub.dataset("acme/gated", SHARDS).gated = True
    hub.dataset("acme/private", SHARDS).token = "hf_secret"
    hub.dataset("acme/web", SHARDS)

    gated = "hf://datasets/acme/gated/data/test*"
    error = refused(StorageError, gated, match="access to acme/gated is restricted")
    assert (error.exit_code, hub.url in error.hint, "hf auth login" in error.hint) == (7, True, True)
    for name in ("private", "absent"):
        error = refused(
            InputError,
            f"hf://datasets/acme/{name}/x",
            match=f"dataset not found on the Hugging Face Hub: acme/{name}",
        )
        assert (error.exit_code, "hf auth login" in error.hint) == (3, True)
    refused(InputError, f"{URL}@v9/*", match="revision not found: v9 of acme/web")
    refused(InputError, f"{URL}@{'a' * 40}/*", match="revision not found: aaaa")
    hub.faults = [Fault("/tree/", 403)]
    refused(StorageError, TEST, match="access denied by the Hugging Face Hub")
    hub.faults = [Fault("/revision/", 403, {"X-Error-Message": "Access to this resource is disabled."})]
    refused(StorageError, TEST, match="the dataset acme/web is disabled")
    hub.faults = [
        Fault("/revision/", 401, {"X-Error-Message": "Invalid credentials in Authorization header"})
    ]
    refused(StorageError, TEST, match="access denied by the Hugging Face Hub")

    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    run_tokenize("hf://datasets/acme/private/data/train*", "private")
    assert manifest("private")["counts"]["documents"] == 110


def test_passing_failures_are_repeated(hub, monkeypatch):
    monkeypatch.setenv("TOKSHARD_REMOTE_RETRIES", "6")  # one file can meet most of the faults
    hub.dataset("acme/web", SHARDS)
    run_tokenize(f"{local_copy(SHARDS)}/data/train*", "local")
    hub.faults = [
        Fault("/api/datasets/acme/web/revision", 503),
        Fault("/api/datasets/acme/web/revision", 0),  # the connection ends in the middle of the body
        Fault("/tree/", 429, {"Retry-After": "3600"}),
        Fault("train-00001", 429, times=2),
        Fault("/stored/", 0, times=2),  # the connection ends in the middle of the body
        Fault("/stored/", 503),
    ]
    hub.lifetime = 2  # each address of a stored file expires
    run_tokenize(TRAIN, "web")
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
    error = refused(StorageError, TRAIN, match="failed 4 times", unit_size=2000, workers=1)
    assert error.exit_code == 7
    hub.on_request, hub.faults = (lambda _: None), []
    report = run_tokenize(TRAIN, "out", unit_size=2000, workers=1)
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
    run_tokenize(f"{local_copy(SHARDS)}/data/train*", "local", unit_size=2000)
    stored = digest_of(SHARDS["data/train-00001-of-00002.parquet"])
    command = ["tokenize", TRAIN, "-o", "web", "--unit-size", "2000", "--workers", "1"]
    kill_at(hub, f"/stored/{stored}", *command)
    repository.commit(SHARDS | {"data/train-00000-of-00002.parquet": table(500, 10)})
    hub.requests.clear()

    done = forked_commands.run(command, environment=dict(os.environ))
    text = done.stderr.decode()
    assert done.returncode == 0, text
    assert f"2 files of commit {first[:12]} (the commit of the unfinished run)" in text
    assert "finished unit" in text
    assert pair("web") == pair("local")
    assert manifest("web")["hub_datasets"][0]["commit"] == first
    assert hub.count("/revision/main") == 0


def interrupted(hub, output="web", **options):
    """Leave an unfinished run behind."""
    hub.faults = [Fault(f"/stored/{digest_of(SHARDS['data/train-00001-of-00002.parquet'])}", 404, times=0)]
    count = [0]

    def on_request(request):
        count[0] += hub.faults[0].inside in request
        hub.faults[0].times = 10 if count[0] > 1 else 0

    hub.on_request = on_request
    with pytest.raises(InputError):
        run_tokenize(TRAIN, output, unit_size=2000, workers=1, **options)
    hub.on_request, hub.faults = (lambda _: None), []
    assert Path(f"{output}.tokshard/work/run.json").exists()


def test_other_requests_do_not_take_the_commit_of_an_unfinished_run(hub):
    repository = hub.dataset("acme/web", SHARDS)
    interrupted(hub)
    first, second = repository.refs["main"], repository.commit(SHARDS | {"x": "1"})
    chosen = partial(dry_run, output="web")
    assert first in chosen(TRAIN).inputs[0].path
    assert second in chosen(TEST).inputs[0].path
    assert second in chosen(f"{URL}@main/data/train-*.parquet").inputs[0].path
    assert second in chosen(TRAIN, resume=False).inputs[0].path
    assert second in dry_run(TRAIN, "elsewhere").inputs[0].path


def test_a_commit_that_does_not_exist_any_more_is_replaced(hub):
    repository = hub.dataset("acme/web", SHARDS)
    interrupted(hub)
    first = repository.refs["main"]
    repository.commit(SHARDS | {"x": "1"})
    del repository.commits[first]
    second = repository.refs["main"]
    interrupted(hub)
    # The work that is left is that of the second commit now.
    repository.commit(SHARDS | {"x": "2"})
    run_tokenize(TRAIN, "web", unit_size=2000)
    assert manifest("web")["hub_datasets"][0]["commit"] == second
    assert not Path("web.tokshard/work").exists()


def test_a_finished_output_is_up_to_date_as_long_as_its_files_are_the_same(hub):
    repository = hub.dataset("acme/web", SHARDS)
    run_tokenize(TRAIN, "web")
    before = manifest("web")
    repository.commit(
        SHARDS | {"README.md": "# a better page\n", "data/test-00000-of-00001.parquet": table(7, 7)}
    )
    assert run_tokenize(TRAIN, "web").action == "found"
    assert manifest("web") == before
    run_tokenize(TRAIN, "few", limit=7)
    repository.commit(SHARDS | {"README.md": "# the best page\n"})
    assert run_tokenize(TRAIN, "few", limit=7).action == "found"

    second = repository.commit(SHARDS | {"data/train-00001-of-00002.parquet": table(60, 51)})
    with pytest.raises(OutputExistsError, match=f"the inputs were .* and are now .*{second}"):
        run_tokenize(TRAIN, "web")
    assert run_tokenize(TRAIN, "web", force=True).counts.documents == 111
    assert manifest("web")["hub_datasets"][0]["commit"] == second


def test_a_file_that_disappears_is_named(hub):
    commit = hub.dataset("acme/web", SHARDS).refs["main"]
    hub.faults = [Fault("resolve", 404, {"X-Error-Code": "EntryNotFound"}, times=9)]
    error = refused(MissingFileError, TRAIN, match=f"file not found: {URL}@{commit}/data/train-0000")
    assert error.exit_code == 3


def test_the_tasks_of_a_job_array_read_one_commit(hub):
    repository = hub.dataset("acme/web", SHARDS)
    first = repository.refs["main"]
    tasks = [partial(run_array_task, TRAIN, "web", task=ArrayTask(number, 2)) for number in range(2)]
    tasks[0](unit_size=2000)
    repository.commit(SHARDS | {"data/train-00000-of-00002.parquet": table(500, 10)})
    tasks[1](unit_size=2000)
    run_finish(TRAIN, "web", unit_size=2000)
    assert manifest("web")["hub_datasets"][0]["commit"] == first


def test_an_output_that_waits_for_its_upload_keeps_its_commit(hub, tmp_path, monkeypatch):
    repository = hub.dataset("acme/web", SHARDS)
    first = repository.refs["main"]
    monkeypatch.setenv("TOKSHARD_CACHE_DIR", str(tmp_path / "cache"))
    output = "memory://bucket/web"

    def fail(*_, **__):
        raise StorageError("write", output, OSError(5, "the store is down"))

    with monkeypatch.context() as patched:
        patched.setattr("tokshard.dataset.delivery.objects.upload", fail)
        with pytest.raises(StorageError, match="the store is down"):
            run_tokenize(TRAIN, output)
    repository.commit(SHARDS | {"data/train-00000-of-00002.parquet": table(500, 10)})
    run_tokenize(TRAIN, output)
    assert read_manifest(output).hub_datasets[0].commit == first


def test_a_dataset_without_a_path_is_its_conversion(hub):
    repository = hub.dataset("acme/web", {"train.csv": "text\na\n"})
    error = refused(InputError, URL, match="the Hub has not converted acme/web to Parquet")
    assert error.hint == (
        f"pass a glob of the original files, for example {URL}/data/*.jsonl.gz; "
        f"see {hub.url}/datasets/acme/web/tree/main"
    )
    converted = repository.commit(CONVERTED, branch="refs/convert/parquet")
    run_tokenize(URL, "web", config="en", split="train")
    assert manifest("web")["hub_datasets"] == [
        {"url": URL, "commit": converted, "config": "en", "split": "train"}
    ]
    assert [entry["path"] for entry in manifest("web")["inputs"]] == [
        f"{URL}@{converted}/en/train/000{number}.parquet" for number in range(2)
    ]
    assert manifest("web")["counts"]["documents"] == 6
    assert run_tokenize(f"{URL}/", "web", config="en", split="train").action == "found"
    assert run_tokenize(URL, "de", config="de").counts.documents == 4
    # The same files by their paths in the branch.
    run_tokenize(f"{URL}@refs/convert/parquet/en/train/*.parquet", "files")
    assert pair("files") == pair("web")
    repository.commit({"README.md": ""}, branch="refs/convert/parquet")
    refused(InputError, URL, match="the Hub has not converted acme/web to Parquet")


@pytest.mark.parametrize("split", [None, "train", "partial-train"])
def test_a_conversion_of_the_first_part_only_is_refused(hub, split):
    repository = hub.dataset("acme/web", {"train.csv": "text\na\n"})
    repository.commit({"default/partial-train/0000.parquet": table(0, 4)}, branch="refs/convert/parquet")
    error = refused(
        InputError, URL, match="converted only the first part of the split train of acme/web", split=split
    )
    assert error.hint.startswith(f"pass a glob of the original files, for example {URL}/data/")
    assert error.exit_code == 3


def test_a_run_of_a_conversion_is_resumed_at_its_commit(hub):
    repository = hub.dataset("acme/web", {"train.csv": "text\na\n"})
    first = repository.commit(CONVERTED, branch="refs/convert/parquet")
    options = {"config": "en", "split": "train"}
    run_array_task(URL, "web", task=ArrayTask(0, 2), **options)
    repository.commit({**CONVERTED, "en/train/0000.parquet": table(500, 10)}, branch="refs/convert/parquet")
    run_array_task(URL, "web", task=ArrayTask(1, 2), **options)
    run_finish(URL, "web", **options)
    assert manifest("web")["hub_datasets"][0]["commit"] == first


def test_the_library_is_missing(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    error = refused(
        MissingExtraError, URL, match=f"the URL {URL} requires huggingface_hub and fsspec, which are not"
    )
    assert error.hint == "pip install huggingface_hub fsspec"


def test_the_command_line(hub):
    repository = hub.dataset("acme/web", SHARDS)
    repository.commit(CONVERTED, branch="refs/convert/parquet")
    run = partial(forked_commands.run, environment=dict(os.environ))
    done = run(["tokenize", TRAIN, "-o", "web"])
    assert (done.returncode, Path("web.bin").exists()) == (0, True), done.stderr.decode()
    shard = f"{URL}@{repository.refs['main']}/data/train-00001-of-00002.parquet"
    traced = run(["trace", "web", "--document", "70"]).stdout.decode()
    assert f"{shard}@10" in traced
    traced = run(["trace", "web", f"{shard}@10"])
    assert (traced.returncode, b"document 70" in traced.stdout) == (0, True), traced.stdout.decode()
    preset = ["tokenize", URL, "--split", "train", "--preset", "megatron", "-o", "x"]
    assert b"abbreviates --split-sentences" in run(preset).stderr
