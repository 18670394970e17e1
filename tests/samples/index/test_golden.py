"""Fifty configurations whose files Megatron has once written, compared by digest without Megatron."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from oracle import candidate
from oracle.configurations import digests, random_configuration
from oracle.reference import cache_files

GOLDEN = json.loads((Path(__file__).parents[2] / "golden/indices.json").read_text())


def test_there_are_fifty_of_every_kind():
    assert len(GOLDEN) == 50
    assert {name.split()[0] for name in GOLDEN} == {"single", "blend", "per-split"}


@pytest.mark.parametrize("name", GOLDEN)
def test_the_files_are_those_that_megatron_wrote(tmp_path, monkeypatch, name):
    kind, number = name.split()
    configuration = random_configuration(kind, int(number))
    monkeypatch.chdir(tmp_path)
    for source in configuration.sources:
        source.write(".")
    cache_directory = "cache" if configuration.cached else None
    candidate.build(configuration, cache_directory)
    found = candidate.megatron_files(cache_files(configuration, cache_directory))
    assert digests(found) == GOLDEN[name]
