import os

import pytest

from tokshard.errors import IntegrityError, OutputExistsError
from tokshard.storage import syscalls
from tokshard.storage.publication import (
    PUBLICATION_NAME,
    complete_publication,
    publish,
    stage_chunks,
    staging_directory,
)

FILES = {"0.bin": "web.bin", "0.idx": "web.idx"}
MARKERS = {"0.manifest.json": "web.tokshard/manifest.json"}


class StopError(Exception):
    pass


def stage(staging, content=b"new"):
    os.makedirs(staging, exist_ok=True)
    for name in (*FILES, *MARKERS):
        stage_chunks(staging, name, [content, name.encode()])


def contents(directory):
    found = {}
    for place, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(place, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, directory)] = file.read()
    return found


EXPECTED = {
    "web.bin": b"new0.bin",
    "web.idx": b"new0.idx",
    "web.tokshard/manifest.json": b"new0.manifest.json",
}


def publish_all(directory, staging, *, replaces):
    publish(directory, staging, FILES, last=MARKERS, removes=("web.idx",) * replaces, replaces=replaces)


@pytest.mark.parametrize("replaces", [False, True])
def test_publication_that_stops_at_any_call_is_completed(tmp_path, monkeypatch, replaces):
    names = [name for name in vars(syscalls) if callable(getattr(syscalls, name)) and name in CALLS]
    k = 0
    while True:
        directory, staging = tmp_path / f"{k}", tmp_path / f"{k}" / "work"
        if replaces:
            os.makedirs(directory / "web.tokshard")
            for name in (*FILES.values(), *MARKERS.values()):
                (directory / name).write_bytes(b"old")
        stage(staging)
        left = k
        with monkeypatch.context() as patch:

            def wrap(call):
                def counted(*arguments, **named):
                    nonlocal left
                    if left == 0:
                        raise StopError
                    left -= 1
                    return call(*arguments, **named)

                return counted

            for name in names:
                patch.setattr(syscalls, name, wrap(getattr(syscalls, name)))
            try:
                publish_all(str(directory), str(staging), replaces=replaces)
                stopped = False
            except StopError:
                stopped = True
        present = contents(directory)
        if present.get("web.tokshard/manifest.json", b"old") != b"old":  # whoever sees it sees everything
            assert {name: present[name] for name in EXPECTED} == EXPECTED
        if os.path.exists(staging / PUBLICATION_NAME):
            assert complete_publication(str(directory), str(staging)) is True
            assert {name: contents(directory)[name] for name in EXPECTED} == EXPECTED
        if not stopped:
            break
        k += 1
    assert k > 10


CALLS = {
    "create",
    "write",
    "fsync",
    "fsync_directory",
    "close",
    "replace",
    "link",
    "make_directory",
    "unlink",
}


def test_publish_refuses_a_foreign_file_and_force_replaces_it(tmp_path):
    staging = tmp_path / "work"
    stage(staging)
    (tmp_path / "web.idx").write_bytes(b"foreign")
    with pytest.raises(OutputExistsError, match=r"web\.idx appeared while the output was being written"):
        publish_all(str(tmp_path), str(staging), replaces=False)
    assert (tmp_path / "web.idx").read_bytes() == b"foreign"
    assert not (tmp_path / "web.bin").exists()
    publish_all(str(tmp_path), str(staging), replaces=True)
    assert (tmp_path / "web.idx").read_bytes() == b"new0.idx"


def test_complete_publication_with_force_replaces_what_the_interrupted_run_would_not(tmp_path, monkeypatch):
    staging = tmp_path / "work"
    stage(staging)

    def stopped(*_):
        raise StopError

    with monkeypatch.context() as patch:
        patch.setattr(syscalls, "link", stopped)
        with pytest.raises(StopError):
            publish_all(str(tmp_path), str(staging), replaces=False)
    (tmp_path / "web.bin").write_bytes(b"foreign")
    with pytest.raises(OutputExistsError, match=r"web\.bin appeared"):
        complete_publication(str(tmp_path), str(staging))
    assert complete_publication(str(tmp_path), str(staging), force=True)
    assert {name: contents(tmp_path)[name] for name in EXPECTED} == EXPECTED


def test_complete_publication_names_a_missing_staged_file(tmp_path, monkeypatch):
    staging = tmp_path / "work"
    stage(staging)

    def stopped(*_):
        raise StopError

    with monkeypatch.context() as patch:
        patch.setattr(syscalls, "link", stopped)
        with pytest.raises(StopError):
            publish_all(str(tmp_path), str(staging), replaces=False)
    os.unlink(staging / "0.bin")
    with pytest.raises(IntegrityError, match=r"cannot publish .*web\.bin: its staged file is missing"):
        complete_publication(str(tmp_path), str(staging))


@pytest.mark.parametrize("name", ["../web.bin", "/etc/passwd", "a/../../b", ""])
def test_complete_publication_refuses_names_that_lead_out_of_the_directory(tmp_path, name):
    record = f'{{"schema": "tokshard.publication/2", "files": {{"0.bin": "{name}"}}, "markers": {{}}, '
    (tmp_path / PUBLICATION_NAME).write_text(record + '"removes": [], "replaces": true}')
    with pytest.raises(IntegrityError, match="leads out of the directory"):
        complete_publication(str(tmp_path / "out"), str(tmp_path))


def test_staging_directory_removes_leftovers_and_itself(tmp_path):
    staging = tmp_path / "work"
    staging.mkdir()
    (staging / "half").write_bytes(b"half")
    with staging_directory(str(tmp_path), str(staging)):
        assert os.listdir(staging) == []
        stage(staging)
        publish_all(str(tmp_path), str(staging), replaces=False)
    assert not staging.exists()
    assert contents(tmp_path) == EXPECTED


def test_staging_directory_removes_itself_after_an_error(tmp_path):
    staging = tmp_path / "work"
    with pytest.raises(StopError), staging_directory(str(tmp_path), str(staging)):
        stage(staging)
        raise StopError
    assert not staging.exists()


def test_staging_directory_refuses_a_link(tmp_path):
    (tmp_path / "other").mkdir()
    os.symlink(tmp_path / "other", tmp_path / "work")
    with (
        pytest.raises(OutputExistsError, match="it is a symbolic link"),
        staging_directory(str(tmp_path), str(tmp_path / "work")),
    ):
        pass
