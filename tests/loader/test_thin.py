"""Training images have numpy; the loader must need nothing else, and bring nothing else."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tokshard
from support.assignments import topology_of
from support.loader_plans import open_plan, plan_for, source_of, stream_of, write_streams
from tokshard.ranks.links import Bucketing

# Imports nothing outside the standard library but numpy and tokshard, reads a plan, and says what came.
PROGRAM = """
import importlib.abc, sys, zlib

class OnlyNumpy(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        root = name.partition(".")[0]
        if root not in sys.stdlib_module_names and root not in {"numpy", "tokshard", *ALLOWED}:
            raise ImportError(f"{name} is not installed")
        return None

ALLOWED = set()
sys.meta_path.insert(0, OnlyNumpy())
before = set(sys.modules)  # some systems have a sitecustomize
from tokshard.loader import BatchOptions, RankLoader
foreign = {name.partition(".")[0] for name in sys.modules.keys() - before} - set(sys.stdlib_module_names)
print(*sorted(name for name in foreign if not name.startswith("_")))
for plan in sys.argv[1:]:
    loader = RankLoader.open(plan, rank=1, options=BatchOptions(document_ids=True))
    batches = [batch["tokens"].tobytes() for batch in loader]
    state = loader.state_dict()
    loader.rewind()
    loader.load_state_dict(state)
    print(len(batches), zlib.crc32(b"".join(batches)))
"""


def plans(directory):
    """Return plans of all kinds: a blend, a shuffled index, sorted documents."""
    topology = topology_of(2)
    places = []
    for name in ("blend", "index", "documents"):
        place = directory / name
        place.mkdir()
        if name == "blend":
            source = source_of(place, datasets=2, documents=60, weights=[0.6, 0.4], size=40)
            places.append(plan_for(place, source=source, topology=topology, mode="cyclic"))
        elif name == "index":
            source = source_of(place, datasets=2, documents=60)
            places.append(
                plan_for(place, source=source, topology=topology, shuffle="windows", mode="contiguous")
            )
        else:
            source = source_of(place, documents=64, kind="documents")
            links = (Bucketing(source.total, 16, 4, 1, per_epoch=True),)
            stream = stream_of(source, topology, links=links, sort_key="length")
            places.append(write_streams(place, topology, train=stream))
    return places


def expected(places):
    import zlib

    lines = []
    for place in places:
        batches = [batch["tokens"].tobytes() for batch in open_plan(place, 1)]
        lines.append(f"{len(batches)} {zlib.crc32(b''.join(batches))}")
    return ["tokshard", *lines]


def run(python, arguments, **environment):
    done = subprocess.run(
        [python, "-c", PROGRAM, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_loader_brings_numpy_and_needs_no_more(tmp_path):
    places = plans(tmp_path)
    assert run(sys.executable, places) == expected(places)


COUNT = """
import sys
from tokshard.loader import RankLoader
if sys.argv[1:]:
    next(RankLoader.open(sys.argv[1], 0))
paths = [module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] == "tokshard"]
lines = 0
for path in paths:
    with open(path) as file:
        lines += len(file.readlines())
print(len(paths), lines)
"""
# Modules and lines of ours that the import of the loader may bring, and a first batch of a blend: only ever
# less.
MOST_IMPORTED = (6, 1_055)
MOST_READ = (54, 9_625)


@pytest.mark.parametrize("most", [MOST_IMPORTED, MOST_READ])
def test_the_loader_brings_few_of_our_modules(tmp_path, most):
    arguments = []
    if most == MOST_READ:
        source = source_of(tmp_path, datasets=2, documents=60, weights=[0.6, 0.4], size=40)
        arguments.append(plan_for(tmp_path, source=source))
    command = [sys.executable, "-c", COUNT, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    modules, lines = map(int, done.stdout.split())
    assert modules <= most[0]
    assert lines <= most[1]


def test_another_import_would_be_found():
    code = PROGRAM.replace("from tokshard.loader import", "import xxhash\nfrom tokshard.loader import")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "xxhash is not installed" in done.stderr


def test_the_loader_works_in_an_environment_with_numpy_alone(tmp_path):
    """A real environment, as after ``pip install --no-deps``, which scripts/release tries with the wheel."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    python = str(venv / "bin" / "python")
    packages = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('platlib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    installed = Path(np.__file__).parent
    for package in (installed, installed.with_name("numpy.libs"), Path(tokshard.__file__).parent):
        if package.exists():  # numpy.libs: on Linux
            Path(packages, package.name).symlink_to(package)
    places = plans(tmp_path)
    assert run(python, places, PYTHONPATH="") == expected(places)
    other = subprocess.run([python, "-I", "-c", "import xxhash"], capture_output=True, text=True, check=False)
    assert "No module named 'xxhash'" in other.stderr
