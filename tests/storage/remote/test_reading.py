"""Datasets in a store: every command and class reads them as it reads the same files on a disk."""

import gc
import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import threading
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from support.command_line import tokshard
from support.mixture_data import run
from support.object_store import (
    DROPPED,
    PATIENCE_SECONDS,
    SLOW_DOWN,
    STALLED,
    Fault,
    always,
    first,
)
from tokshard import ExportOptions
from tokshard import export as tokshard_export
from tokshard.core.background import Background
from tokshard.dataset.fingerprint import dataset_fingerprint
from tokshard.dataset.reader import IndexedDataset
from tokshard.errors import InputError, IntegrityError, MissingFileError, StorageError
from tokshard.loader import RankLoader
from tokshard.storage import fs
from tokshard.storage.reading import read_json_object
from tokshard.storage.remote.objects import RemoteFile

FINGERPRINT_BLOCK_BYTES = 4096
SIZES = ("--seq-length", "16", "--num-samples", "300,24,12", "--split", "80,15,5")
WORLD = ("--world-size", "2", "--micro-batch-size", "3", "--global-batch-size", "12")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Two datasets with everything beside them, and the texts that they are made of."""
    directory = tmp_path_factory.mktemp("made")
    draw = random.Random(7)
    for name, count in (("web", 900), ("code", 300)):
        lines = [
            json.dumps(
                {"text": " ".join(f"{name}{draw.randrange(10**6)}" for _ in range(draw.randrange(30)))}
            )
            for _ in range(count)
        ]
        lines[count // 2] = '{"no text": 1}'
        (directory / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
        done = run(
            *("tokenize", directory / f"{name}.jsonl", "-o", directory / name),
            *("--on-error", "skip", "--workers", "1", "--unit-size", "16kB"),
        )
        assert done.returncode == 0, done.stderr
    return directory


@pytest.fixture
def here(made, tmp_path, monkeypatch) -> Path:
    """A directory of the test's own with both datasets, which is the current one."""
    for path in made.iterdir():
        if path.is_dir():
            shutil.copytree(path, tmp_path / path.name)
        else:
            shutil.copy2(path, tmp_path / path.name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def there(here, bucket) -> str:
    """The URL of a copy of both, without a slash at the end."""
    for path in here.rglob("*"):
        if path.is_file() and (path.suffix != ".jsonl" or path.parent != here):
            bucket.put(f"data/{path.relative_to(here)}", path.read_bytes())
    return f"{bucket.url}/data"


def said(*arguments, there=None):
    """Return the JSON of a command with data in the store named as here, and times and such left out."""
    done = run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    text = done.stdout if there is None else done.stdout.replace(f"{there}/", f"{os.getcwd()}/")
    value = json.loads(text)
    for name in ("seconds", "eod_documents_checked"):
        value.pop(name, None)  # the latter is a sample, and a smaller one of remote data
    return value


@pytest.mark.parametrize(
    "command",
    [
        ("inspect", "{}/web"),
        ("inspect", "{}/web.idx", "--document", "17"),
        ("verify", "{}/web", "--level", "structure"),
        ("verify", "{}/web", "--level", "digest"),
        ("verify", "{}/web.bin", "--level", "deep"),
        ("trace", "{}/web", "--document", "700"),
    ],
    ids=lambda command: "-".join(word.strip("-{}/") for word in command),
)
def test_a_command_says_of_remote_data_what_it_says_of_local_data(here, there, command):
    local = said(*(word.format(here) for word in command))
    assert said(*(word.format(there) for word in command), there=there) == local


def test_a_line_is_traced_into_remote_data(made, here, there):
    line = f"{made}/web.jsonl:500"
    local = run("trace", here / "web", line)
    remote = run("trace", f"{there}/web", line)
    assert local.returncode == remote.returncode == 0
    assert remote.stdout.replace(f"{there}/", "") == local.stdout


def test_fingerprints_are_of_the_content_alone(here, there):
    assert dataset_fingerprint(f"{there}/web") == dataset_fingerprint(str(here / "web"))


def test_indexes_are_the_same_files(here, there):
    for prefix, cache, *named in (
        (here / "web", "local"),
        (f"{there}/web", "remote", "--path-as", f"{there}={here}"),
    ):
        done = run("build-indices", prefix, *SIZES, "--cache-dir", cache, *named)
        assert done.returncode == 0, done.stderr
    local = {path.name: path.read_bytes() for path in (here / "local").iterdir()}
    assert {path.name: path.read_bytes() for path in (here / "remote").iterdir()} == local
    assert len(local) == 15


def test_the_hash_is_of_the_url_as_given(here, there):
    done = run("build-indices", f"{there}/web", *SIZES, "--cache-dir", "cache", "--json")
    descriptions = [index["description"] for index in done.json["indices"]]
    assert [description["dataset_path"] for description in descriptions] == [f"{there}/web"] * 3


def mixed(here, root, name, *, path_as=()):
    """Blend both datasets below ``root``, and plan for two ranks."""
    sources = ("0.7", f"{root}/web", "0.3", f"{root}/code")
    done = run("blend", *sources, *SIZES, *path_as, "-o", here / f"mix-{name}")
    assert done.returncode == 0, done.stderr
    done = run("shard-plan", here / f"mix-{name}", *WORLD, "-o", here / f"plan-{name}", "--json")
    assert done.returncode == 0, done.stderr
    return here / f"plan-{name}"


def batches(plan, **options):
    return [list(RankLoader.open(plan, rank=rank, **options)) for rank in range(2)]


def assert_same(found, expected):
    assert [len(rank_batches) for rank_batches in found] == [len(rank_batches) for rank_batches in expected]
    for batch, right in zip(chain(*found), chain(*expected), strict=True):
        assert batch.keys() == right.keys()
        for name in right:
            np.testing.assert_array_equal(batch[name], right[name])


def test_blends_and_plans_are_the_same_and_loaders_read_the_same(here, there, bucket):
    local = mixed(here, here, "local")
    remote = mixed(here, there, "remote", path_as=("--path-as", f"{there}={here}"))
    blends = [read_json_object(str(here / f"mix-{name}/blend.json")) for name in ("local", "remote")]
    assert blends[0]["id"] == blends[1]["id"]
    assert [source["path_prefix"] for source in blends[1]["splits"]["train"]["sources"]] == [
        f"{there}/web",
        f"{there}/code",
    ]
    plans = [read_json_object(str(plan / "plan.json")) for plan in (local, remote)]
    assert plans[0]["plan_id"] == plans[1]["plan_id"]
    assert said("verify", remote, "--recursive")["sound"]
    expected = batches(local)
    bucket.proxy.log.clear()
    assert_same(batches(remote, readahead=0), expected)
    assert len(bucket.proxy.reads(".idx")) == 4, "each rank reads an index once"
    ranges = [(read.key, read.range) for read in bucket.proxy.reads(".bin")]
    samples = [key for key in ranges if key[1][1] - key[1][0] != FINGERPRINT_BLOCK_BYTES]
    assert len(samples) == len(set(samples)), "no sample is fetched twice"
    for options in ({"readahead": 3}, {"mmap": False}, {"max_open_files": 6}):
        assert_same(batches(remote, **options), expected)


def test_documents_are_planned_and_read(here, there):
    found = []
    for root, name in ((here, "local"), (there, "remote")):
        done = run("shard-plan", "--documents", f"{root}/*.idx", *WORLD, "-o", here / name)
        assert done.returncode == 0, done.stderr
        found.append(batches(here / name))
    assert_same(found[1], found[0])


def test_documents_are_exported_with_the_same_bytes(here, there):
    exported = []
    for number, prefix in enumerate((here / "web", f"{there}/web")):
        for to in ("olmo", "nanogpt"):
            output = here / f"exported-{number}-{to}"
            tokshard_export(ExportOptions(source=prefix, to=to, output=output, shard_tokens=700))
            exported.append({path.name: path.read_bytes() for path in output.glob("*.*") if path.is_file()})
    assert exported[:2] == exported[2:]
    assert len(exported[0]) > 6


def test_data_may_move_to_a_store_and_back(here, there):
    local, remote = mixed(here, here, "local"), mixed(here, there, "remote")
    expected = batches(local, roots={})
    assert_same(batches(local, roots={str(here / "web"): f"{there}/web"}), expected)
    assert_same(batches(remote, roots={there: str(here)}), expected)


def test_a_plan_of_remote_data_is_planned_again(here, there):
    found = []
    for root, name, named in ((here, "local", ()), (there, "remote", ("--path-as", f"{there}={here}"))):
        plan = mixed(here, root, name, path_as=named)
        again = here / f"again-{name}"
        done = run("replan", plan, "--consumed-samples", "24", "--world-size", "1", "-o", again)
        assert done.returncode == 0, done.stderr
        found.append([list(RankLoader.open(again, rank=0))])
    assert_same(found[1], found[0])


def test_any_part_of_a_dataset_reads_as_it_does_on_a_disk(here, there):
    local, remote = IndexedDataset(str(here / "web")), IndexedDataset(f"{there}/web")
    assert (remote.mmap, len(remote)) == (False, len(local))
    draw = random.Random(1)
    for _ in range(50):
        number = draw.randrange(len(local))
        offset = draw.randrange(len(local[number]))
        np.testing.assert_array_equal(remote.get(number, offset), local.get(number, offset))
    np.testing.assert_array_equal(remote.document_tokens(-1), local.document_tokens(-1))
    for sequence, right in zip(remote[10:30], local[10:30], strict=True):
        np.testing.assert_array_equal(sequence, right)
    whole = [np.concatenate(list(dataset.token_blocks(3000))) for dataset in (remote, local)]
    np.testing.assert_array_equal(*whole)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(remote))[5], local[5])


@pytest.mark.parametrize(
    "fault", [SLOW_DOWN, DROPPED, Fault(cut_at=100)], ids=["slow-down", "dropped", "cut-short"]
)
def test_a_store_that_fails_for_a_while_costs_time_only(here, there, bucket, fault):
    bucket.proxy.judge = first(4, fault)
    expected = said("verify", here / "web")
    assert said("verify", f"{there}/web", there=there) == expected


def test_a_store_that_keeps_failing_is_one_sentence_and_exit_code_7(there, bucket, monkeypatch):
    monkeypatch.setenv("TOKSHARD_REMOTE_RETRIES", "1")
    bucket.proxy.judge = always(SLOW_DOWN)
    done = tokshard("inspect", f"{there}/web")
    assert done.returncode == 7
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.count("error: ") == 1
    assert "failed 2 times" in done.stderr


def test_a_store_that_fails_while_tokens_are_read_is_an_error_then_and_there(there, bucket, monkeypatch):
    monkeypatch.setenv("TOKSHARD_REMOTE_RETRIES", "1")
    dataset = IndexedDataset(f"{there}/web")
    bucket.proxy.judge = always(SLOW_DOWN, lambda request: request.key.endswith(".bin"))
    with pytest.raises(StorageError, match=r"web\.bin.*failed 2 times"):
        dataset[0]
    bucket.proxy.reset()
    assert len(dataset[0])


@pytest.mark.parametrize("missing", [("web.bin",), ("web.idx",), ("web.bin", "web.idx")], ids=len)
def test_a_missing_object_is_named(there, bucket, missing):
    for name in missing:
        bucket.delete(f"data/{name}")
    with pytest.raises(MissingFileError, match=r"dataset not found: s3://.*missing") as caught:
        IndexedDataset(f"{there}/web")
    assert all(f"{there}/{name}" in str(caught.value) for name in missing)
    assert not IndexedDataset.exists(f"{there}/web")
    assert run("inspect", f"{there}/web").returncode == 3


def test_a_bin_of_another_size_is_an_integrity_error(here, there, bucket):
    bucket.put("data/web.bin", (here / "web.bin").read_bytes()[:-2])
    with pytest.raises(IntegrityError, match=r"web\.idx"):
        IndexedDataset(f"{there}/web")


def test_an_object_that_changes_while_it_is_open_is_never_mixed(here, there, bucket):
    dataset = IndexedDataset(f"{there}/web")
    bucket.put("data/web.bin", bytes((here / "web.bin").stat().st_size))
    with pytest.raises(InputError, match=r"web\.bin changed while it was read"):
        dataset[0]


def test_a_changed_index_is_fetched_again(here, there, bucket):
    assert len(IndexedDataset(f"{there}/web")) == len(IndexedDataset(str(here / "web")))
    for suffix in ("bin", "idx"):
        bucket.put(f"data/web.{suffix}", (here / f"code.{suffix}").read_bytes())
    assert len(IndexedDataset(f"{there}/web")) == len(IndexedDataset(str(here / "code")))


def test_a_plan_does_not_read_data_that_has_changed(here, there, bucket):
    plan = mixed(here, there, "remote")
    content = bytearray((here / "web.bin").read_bytes())
    content[0] ^= 1
    bucket.put("data/web.bin", bytes(content))
    with pytest.raises(IntegrityError, match="has changed since the plan was built"):
        batches(plan)


def test_verify_finds_one_flipped_bit_of_remote_tokens(here, there, bucket):
    content = bytearray((here / "web.bin").read_bytes())
    place = len(content) * 2 // 3
    content[place] ^= 4
    for root in (here, there):
        if root == here:
            (here / "web.bin").write_bytes(content)
        else:
            bucket.put("data/web.bin", bytes(content))
    found = [run("verify", f"{root}/web", "--json") for root in (here, there)]
    assert [done.returncode for done in found] == [1, 1]
    local, remote = (done.json["products"][0]["findings"] for done in found)
    assert [finding["code"] for finding in remote] == ["bin-digest"]
    assert json.loads(json.dumps(remote).replace(there, str(here))) == local


def test_the_bytes_of_the_tokens_are_fetched_once_for_a_verification(there, bucket):
    assert run("verify", f"{there}/web").returncode == 0
    size = fs.getsize(f"{there}/web.bin")
    assert sum(read.range[1] - read.range[0] for read in bucket.proxy.reads("web.bin")) == size


def in_fork(work):
    """Return whether ``work`` ends without an error in a fork of this process."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:  # the only way to tell
            sys.__stderr__.write(f"in the fork: {error!r}\n")
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def test_forks_read_on_their_own(here, there):
    local, remote = IndexedDataset(str(here / "web")), IndexedDataset(f"{there}/web")
    plan = mixed(here, there, "remote", path_as=("--path-as", f"{there}={here}"))
    loader = RankLoader.open(plan, rank=0)
    expected = [loader[number]["tokens"] for number in range(3)]
    np.testing.assert_array_equal(remote[0], local[0])  # connections and threads are there to inherit

    def read():
        for number in (0, 5, 700):
            np.testing.assert_array_equal(remote[number], local[number])
        for number, right in enumerate(expected):
            np.testing.assert_array_equal(loader[number]["tokens"], right)

    assert in_fork(read)
    assert in_fork(read)
    read()


def test_a_fork_does_not_disturb_the_connections_of_its_parent(there, monkeypatch):
    monkeypatch.setenv("TOKSHARD_REMOTE_RETRIES", "0")
    monkeypatch.setenv("TOKSHARD_REMOTE_TIMEOUT", "60")
    file = RemoteFile(f"{there}/web.bin")

    def read():
        for result in [Background(lambda place=place: file.read(place, 1)) for place in range(8)]:
            assert len(result.result()) == 1

    read()
    for _ in range(2):
        assert in_fork(lambda: (file.read(0, 1), gc.collect()))
    read()


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (("merge", "{}/web", "{}/code", "-o", "both"), "merge requires local datasets, got the URL"),
        (("verify", "{}/web", "--adopt"), "--adopt requires a local dataset, got the URL"),
        (("build-indices", "{}/web", "--seq-length", "8", "--epochs", "1"), "--cache-dir is required"),
        (
            ("build-indices", "{}/web", *SIZES, "--cache-dir", "{}/cache"),
            "must be on a file system, got a URL",
        ),
        (("blend", "{}/web", *SIZES, "-o", "{}/mix"), "must be on a file system, got a URL"),
        (
            ("shard-plan", "--documents", "{}/web", *WORLD, "-o", "{}/plan"),
            "must be on a file system, got a URL",
        ),
        (("shard-plan", "{}/blend.json", *WORLD, "-o", "plan"), "a blend must be a local file, got the URL"),
        (("trace", "{}/plan", "--step", "1"), "no dataset or object found"),
        (("inspect", "{}/blend.json"), "a blend must be a local file, got the URL"),
        (("inspect", "msc://profile/web"), "pass the URL of the object in its store"),
        (("shard-plan", "{}/web", *WORLD, "-o", "plan"), "no blend, index"),
        (("verify", "{}", "--recursive"), "no dataset or object found"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_what_cannot_be_done_remotely_is_said_in_a_sentence(here, there, bucket, command, sentence):
    bucket.put("data/blend.json", b"{}")
    done = run(*(word.format(there) for word in command))
    assert done.returncode in {2, 3}, done.stderr
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert not (here / "s3:").exists()


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_ctrl_c_does_not_wait_for_a_store_that_is_silent(there, bucket, monkeypatch, command):
    monkeypatch.setenv("TOKSHARD_REMOTE_TIMEOUT", "600")
    stalled = threading.Event()

    def judge(request):
        if request.is_read and request.key.endswith(".bin"):
            stalled.set()
            return STALLED
        return None

    bucket.proxy.judge = judge
    code = "from tokshard.cli.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, command, f"{there}/web"], stderr=subprocess.PIPE, text=True
    )
    try:
        assert stalled.wait(PATIENCE_SECONDS)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "stopped" in errors
