"""Open files of a loader, of exported samples and of a blend under a low ``ulimit -n``."""

import os
import subprocess
import sys

import pytest

from support.command_line import tokshard
from support.plain_datasets import Plain
from tokshard.core.open_cache import affordable

DATASETS = 60
LIMIT = 100
READ = """
import os, resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))
from tokshard.loader import RankLoader
most = 0
for batch in RankLoader.open("plan", 0, readahead={readahead}, mmap={mmap}):
    most = max(most, len(os.listdir("/proc/self/fd")))
    print(*batch["tokens"].ravel().tolist())
print(most)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    directory = tmp_path_factory.mktemp("many")
    names = [f"data-{number:02d}" for number in range(DATASETS)]
    for number, name in enumerate(names):
        Plain("uint16", [[[number, 1]], [[number, 2]]]).write(directory / name)
    for words in (
        ["shard-plan", "--documents", *names, "--data-parallel", "1", "--shuffle", "samples", "-o", "plan"],
        ["blend", *names, "--seq-length", "2", "--split", "1,0,0", "-o", "mix"],
    ):
        done = tokshard(*words, cwd=directory, open_files=LIMIT)
        assert done.returncode == 0, done.stderr
    return directory


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts the open files")
@pytest.mark.parametrize(("readahead", "mmap"), [(8, True), (0, False)])
def test_a_loader_keeps_to_the_limit_of_open_files(place, readahead, mmap):
    code = READ.format(limit=LIMIT, readahead=readahead, mmap=mmap)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=place, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    *batches, most = done.stdout.split("\n")[:-1]
    assert len(batches) == 2 * DATASETS
    assert int(most) < LIMIT


def test_samples_are_exported_under_a_low_limit_of_open_files(place, tmp_path):
    words = ["export", "mix", "--samples", "--to", "datatrove", "-o", tmp_path / "new"]
    done = tokshard(*words, cwd=place, open_files=LIMIT)
    assert done.returncode == 0, done.stderr


def test_the_affordable_objects_follow_the_limit(monkeypatch):
    for limit, expected in ((-1, 100), (1024, 100), (256, 32), (70, 1), (20, 1)):
        monkeypatch.setattr(os, "sysconf", lambda _, limit=limit: limit)
        assert affordable(100, 6) == expected
