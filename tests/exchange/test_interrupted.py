"""P58, P59: exports that die, fail or meet full disks at their storage calls, and are run again."""

import errno
import os
import signal
import subprocess
import sys

import pytest

import tokshard
from support import slow_exports
from support.plain_datasets import Plain
from tokshard.errors import StorageError
from tokshard.storage import syscalls

CALLS = [name for name, value in vars(syscalls).items() if callable(value) and name in {
    "create", "write", "fsync", "fsync_directory", "close", "replace", "link", "make_directory", "unlink",
    "remove_directory",
}]  # fmt: skip
FORMATS = {
    "olmo": {"shard_tokens": 40},
    "nanogpt": {"shard_tokens": 15, "bos_id": 0},
    "datatrove": {"shard_tokens": 35},
}


class Died(BaseException):
    """The process is dead: nothing that it does changes a file any more."""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    directory = tmp_path_factory.mktemp("source")
    documents = [[[1 + (7 * i + j) % 50 for j in range(1 + 5 * i % 13)], [0]] for i in range(24)]
    Plain("uint16", documents).write(directory / "d")
    return directory / "d"


def options_of(dataset, output, to, **more):
    return tokshard.ExportOptions(source=dataset, to=to, output=output, **FORMATS[to], **more)


def injected(monkeypatch, at, failure):
    """Let the call with this number fail; after a death, all later ones, too. Returns the calls so far."""
    seen = []

    def wrap(name, original):
        def call(*arguments):
            seen.append(name)
            if len(seen) == at or (failure is Died and len(seen) > at > 0):
                if name == "write" and len(arguments[1]) > 1:
                    original(
                        arguments[0],
                        memoryview(arguments[1]).cast("B")[: len(arguments[1]) // 2],
                        arguments[2],
                    )
                raise failure() if failure is Died else failure
            return original(*arguments)

        return call

    for name in CALLS:
        monkeypatch.setattr(syscalls, name, wrap(name, getattr(syscalls, name)))
    return seen


def visible(output):
    """What a reader of the format sees, and whether there is a manifest."""
    if not output.is_dir():
        return {}, False
    return slow_exports.written(output), (output / ".tokshard" / "export.json").exists()


@pytest.fixture(scope="module")
def expected(dataset, tmp_path_factory):
    found = {}
    for to in FORMATS:
        output = tmp_path_factory.mktemp("whole") / to
        tokshard.export(options_of(dataset, output, to))
        found[to] = slow_exports.written(output)
        assert len(found[to]) > 8
    return found


@pytest.mark.parametrize(("to", "step"), [("olmo", 7), ("nanogpt", 9), ("datatrove", 17)])
def test_an_export_that_died_is_repeated_with_the_same_bytes(dataset, expected, tmp_path, to, step):
    with pytest.MonkeyPatch.context() as patch:
        calls = len(injected_run(patch, dataset, tmp_path / "count", to))
    points = 0
    for at in range(1, calls + 1, step):
        output = tmp_path / str(at)
        with pytest.MonkeyPatch.context() as patch:
            injected(patch, at, Died)
            with pytest.raises(Died):
                tokshard.export(options_of(dataset, output, to))
        files, has_manifest = visible(output)
        assert all(expected[to][name] == content for name, content in files.items())
        assert not has_manifest or files == expected[to]
        tokshard.export(options_of(dataset, output, to))
        assert visible(output) == (expected[to], True)
        assert sorted(os.listdir(output / ".tokshard")) == ["export.json"]
        points += 1
    assert points > 10


def injected_run(patch, dataset, output, to):
    seen = injected(patch, 0, None)
    tokshard.export(options_of(dataset, output, to))
    return seen


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_full_or_broken_disk_is_an_error_and_the_next_run_starts_again(dataset, expected, tmp_path, number):
    error = StorageError("write", "x", OSError(number, os.strerror(number)))
    points = 0
    for at in range(3, 200, 23):
        output = tmp_path / str(at)
        with pytest.MonkeyPatch.context() as patch:
            seen = injected(patch, at, error)
            try:
                tokshard.export(options_of(dataset, output, "olmo"))
            except StorageError:
                points += 1
            if len(seen) < at:
                break
        assert not visible(output)[1] or visible(output)[0] == expected["olmo"]
        tokshard.export(options_of(dataset, output, "olmo"))
        assert visible(output) == (expected["olmo"], True)
    assert points > 4


def test_a_replaced_export_that_died_is_completed(dataset, expected, tmp_path):
    """Old files that the new export does not have are removed, and no mixture has a manifest."""
    small = {**FORMATS["olmo"], "shard_tokens": 20}
    for at in range(2, 400, 29):
        output = tmp_path / str(at)
        tokshard.export(tokshard.ExportOptions(source=dataset, to="olmo", output=output, **small))
        old = slow_exports.written(output)
        with pytest.MonkeyPatch.context() as patch:
            seen = injected(patch, at, Died)
            try:
                tokshard.export(options_of(dataset, output, "olmo", force=True))
            except Died:
                pass
            else:
                assert len(seen) < at
                break
        files, has_manifest = visible(output)
        assert not has_manifest or files in (old, expected["olmo"])
        tokshard.export(options_of(dataset, output, "olmo", force=True))
        assert visible(output) == (expected["olmo"], True)
    assert at > 100


KILLED = """
import os, signal, sys
import tokshard
from tokshard.storage import syscalls
count = 0
def wrap(original):
    def call(*arguments):
        global count
        count += 1
        if count == int(sys.argv[1]):
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments)
    return call
for name in ("write", "fsync", "replace", "link", "unlink"):
    setattr(syscalls, name, wrap(getattr(syscalls, name)))
layout = {"shard_tokens": 15, "bos_id": 0}
tokshard.export(tokshard.ExportOptions(source=sys.argv[2], to="nanogpt", output=sys.argv[3], **layout))
"""


@pytest.mark.parametrize("at", [33, 70])
def test_a_killed_process_leaves_nothing_that_the_next_one_keeps(dataset, expected, tmp_path, at):
    output = tmp_path / "out"
    command = [sys.executable, "-c", KILLED, str(at), str(dataset), str(output)]
    done = subprocess.run(
        command, capture_output=True, check=False, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert os.listdir(output / ".tokshard/work")
    tokshard.export(options_of(dataset, output, "nanogpt"))
    assert visible(output) == (expected["nanogpt"], True)
    assert os.listdir(output / ".tokshard") == ["export.json"]


def test_an_export_with_other_options_sweeps_the_work_of_an_interrupted_one(dataset, tmp_path):
    output = tmp_path / "out"
    with pytest.MonkeyPatch.context() as patch:
        injected(patch, 60, Died)
        with pytest.raises(Died):
            tokshard.export(options_of(dataset, output, "olmo"))
    options = {"source": dataset, "to": "olmo", "shard_tokens": 50}
    tokshard.export(tokshard.ExportOptions(output=output, **options))
    again = tmp_path / "again"
    tokshard.export(tokshard.ExportOptions(output=again, **options))
    assert visible(output) == visible(again)
    assert os.listdir(output / ".tokshard") == ["export.json"]
