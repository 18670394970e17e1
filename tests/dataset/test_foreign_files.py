"""Files that another program creates at an output while a run writes it are not replaced without --force."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from support.mixture_data import run, write_mixture
from support.tokenize_runs import pair
from tokshard.dataset import outputs
from tokshard.storage import syscalls

THEIRS = b"not ours"
RUNS = {
    "tokenize": ("tokenize", "corpus.jsonl", "-o", "new"),
    "merge": ("merge", "data/web", "data/code", "-o", "new"),
}
FILES = ("new.bin", "new.idx", "new.tokshard/manifest.json")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_mixture(tmp_path)
    texts = [{"text": f"sample {number} of the corpus"} for number in range(40)]
    Path("corpus.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts))


def write(name):
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_bytes(THEIRS)


def before_publication(monkeypatch, name):
    """Create the file when all files are staged."""
    original = outputs.publish

    def publish(*arguments, **options):
        write(name)
        return original(*arguments, **options)

    monkeypatch.setattr(outputs, "publish", publish)


def while_staging(monkeypatch, name):
    """Create the file when the staged index is written, before anything is checked."""
    original = syscalls.create

    def create(path):
        if ".0.idx." in path:
            write(name)
        return original(path)

    monkeypatch.setattr(syscalls, "create", create)


def before_its_link(monkeypatch, name):
    original = syscalls.link

    def link(source, target):
        if target.endswith(name):
            write(name)
        return original(source, target)

    monkeypatch.setattr(syscalls, "link", link)


CASES = [(name, moment) for name in FILES for moment in (while_staging, before_its_link)]
CASES += [(name, before_publication) for name in FILES]


@pytest.mark.parametrize("command", RUNS)
@pytest.mark.parametrize(("name", "moment"), CASES)
def test_a_foreign_file_is_not_replaced(place, monkeypatch, command, name, moment):
    arguments = RUNS[command]
    run(*arguments[:-1], "clean")
    with monkeypatch.context() as patch:
        moment(patch, name)
        done = run(*arguments)
    assert done.returncode == 4, done.stderr
    assert f"{name} appeared while the output was being written" in done.stderr
    assert "hint: move it away, or pass --force to replace it" in done.stderr
    assert Path(name).read_bytes() == THEIRS
    assert run(*arguments).returncode in {4, 6}  # 6: it is no manifest
    assert Path(name).read_bytes() == THEIRS
    if command == "tokenize":  # the next attempt encodes nothing
        monkeypatch.setattr("tokshard.text.tokenize.encoder.UnitEncoder.encode", None)
    if moment is before_its_link:
        done = run(*arguments, "--force")
    else:
        os.unlink(name)
        done = run(*arguments)
    assert done.returncode == 0, done.stderr
    assert pair("new") == pair("clean")
    assert run("verify", "new").returncode == 0
    assert not Path("new.tokshard/work").exists()


def test_a_manifest_that_has_lost_its_dataset_is_replaced(place):
    run(*RUNS["tokenize"])
    for name in FILES[:2]:
        os.unlink(name)
    assert run(*RUNS["tokenize"], "--dtype", "int32").returncode == 0
    assert run("verify", "new").returncode == 0


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_hard_links(place, monkeypatch, number):
    def refused(source, target, **options):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refused)
    assert run(*RUNS["tokenize"]).returncode == 0
    assert run("verify", "new").returncode == 0
    before_publication(monkeypatch, "other.bin")
    assert run(*RUNS["tokenize"][:-1], "other").returncode == 4
    assert Path("other.bin").read_bytes() == THEIRS


@pytest.mark.parametrize("name", FILES)
def test_a_kill_between_the_two_names_of_a_file_is_completed(place, monkeypatch, name):
    original = syscalls.link

    def link(source, target):
        original(source, target)
        if target.endswith(name):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(syscalls, "link", link)
        assert run(*RUNS["tokenize"]).returncode != 0
    assert Path(name).exists()
    assert run(*RUNS["tokenize"]).returncode == 0
    assert run("verify", "new").returncode == 0
    assert os.lstat(name).st_nlink == 1


SIZES = ("--seq-length", 16, "--num-samples", 8, "--split", "1,0,0")


@pytest.mark.parametrize("command", ["blend", "shard-plan"])
def test_a_foreign_blend_or_plan_is_not_replaced(place, monkeypatch, command):
    blend = ("blend", 1, "data/web", 1, "data/code", *SIZES, "-o", "mix")
    arguments, name = blend, "mix/blend.json"
    if command == "shard-plan":
        run(*blend)
        arguments, name = ("shard-plan", "mix", "--data-parallel", 2, "-o", "plan"), "plan/plan.json"
    with monkeypatch.context() as patch:
        before_its_link(patch, name)
        done = run(*arguments)
    assert done.returncode == 4, done.stderr
    assert f"{name} appeared while the output was being written" in done.stderr
    assert Path(name).read_bytes() == THEIRS
    assert run(*arguments).returncode == 4
    done = run(*arguments, "--force")
    assert done.returncode == 0, done.stderr
