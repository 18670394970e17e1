"""The golden digests of indexes and blends are those of the files that Megatron writes.

They are made by

    TOKSHARD_UPDATE_GOLDEN=1 python -m pytest tests/oracle/test_golden_indices.py

and compared with tokshard's files in tests/samples/index/test_golden.py, where Megatron is not needed.
"""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import pytest

from oracle.comparison import refusal
from oracle.configurations import digests, random_configuration
from oracle.reference import Megatron

pytestmark = pytest.mark.oracle

GOLDEN = Path(__file__).parents[1] / "golden/indices.json"
NUMBERS = {"single": 15, "blend": 17, "per-split": 18}


@pytest.fixture(scope="module")
def megatron():
    return Megatron()


def megatrons_digests(megatron, kind, number, directory):
    """Return the digests of a configuration's files, or None where it cannot be built."""
    configuration = random_configuration(kind, number)
    with pytest.MonkeyPatch.context() as patch:
        directory.mkdir()
        patch.chdir(directory)
        for source in configuration.sources:
            source.write(".")
        outcome = megatron.build(configuration, "cache" if configuration.cached else None)
        return None if refusal(configuration, outcome) else digests(outcome.files)


def test_the_golden_digests_are_megatrons(megatron, tmp_path):
    found = {}
    for kind, wanted in NUMBERS.items():
        candidates = (
            (f"{kind} {n}", megatrons_digests(megatron, kind, n, tmp_path / f"{kind}{n}"))
            for n in itertools.count()
        )
        good = ((name, digest) for name, digest in candidates if digest is not None)
        found.update(itertools.islice(good, wanted))
    assert len(found) == 50
    if os.environ.get("TOKSHARD_UPDATE_GOLDEN"):
        GOLDEN.write_text(json.dumps(found, indent=2) + "\n")
        pytest.skip("written, not compared")
    assert found == json.loads(GOLDEN.read_text())
