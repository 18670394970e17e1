"""Planned samples: the counts of a plan equal what its ranks read, however they are counted."""

from __future__ import annotations

import numpy as np
import pytest

from support import assignments
from support.mixture_data import write_mixture
from support.sample_sources import blend_sources, document_source
from tokshard.checks.inspect import planned
from tokshard.checks.inspect.planned import count_planned
from tokshard.errors import TokshardError
from tokshard.ranks.choices import Shuffling
from tokshard.ranks.discovery import RequestedSamples, open_sources
from tokshard.ranks.locator import Locator

REQUESTS = [
    {},
    {"micro_batch_size": 2, "rampup_batch_size": (6, 6, 18), "global_batch_size": 12},
    {"steps": 3},
    {"mode": "contiguous"},
    {"mode": "contiguous", "shuffle": Shuffling("samples")},
    {"mode": "chunked", "tail": "pad", "shuffle": Shuffling("windows", 5, 2)},
    {"shuffle": Shuffling("windows", 7, 2)},
    {"mode": "cyclic", "steps": 50},
    {"mode": "sequential", "bucket_buffer": 30, "epochs": 2},
    {"consumed_samples": 18, "micro_batch_size": 3},
    {"shuffle": Shuffling("samples"), "epochs": 3, "consumed_samples": 18},
    {"shuffle": Shuffling("samples"), "steps": 7, "consumed_samples": 9},
    {"shuffle": Shuffling("samples"), "global_batch_size": 21, "epochs": 2},
    {"tail": "pad", "global_batch_size": 21, "epochs": 2, "shuffle": Shuffling("windows", 7, 2)},
    {"mode": "sequential", "tail": "pad", "global_batch_size": 21, "epochs": 2, "consumed_samples": 63},
]


def stream_of(kind, directory, **request):
    if kind == "blend":
        source = blend_sources(directory)["train"]
    else:
        write_mixture(directory)
        prefixes = [str(directory / "data/web"), str(directory / "data/code")]
        source = open_sources(prefixes, RequestedSamples(documents=True))["train"]
    plan = assignments.planned({"train": source}, world_size=3, **request)
    return plan.streams["train"]


def counted_one_by_one(stream):
    ids = assignments.everything(stream.order, stream.open_sort_key()).ravel()
    datasets, _ = Locator(stream.source).locate(ids)
    return tuple(np.bincount(datasets, minlength=len(stream.source.datasets)).tolist())


@pytest.mark.parametrize("request_", REQUESTS)
@pytest.mark.parametrize("kind", ["documents", "blend"])
def test_planned_samples_are_what_the_ranks_read(tmp_path, kind, request_):
    stream = stream_of(kind, tmp_path, **request_)
    found = count_planned(stream)
    assert (found.counts, found.exact) == (counted_one_by_one(stream), True)
    assert found.total == stream.order.samples


@pytest.mark.parametrize(
    "request_", [{"shuffle": Shuffling("samples"), "steps": 12}, {"mode": "cyclic", "steps": 50}]
)
def test_of_many_reads_a_random_sample_is_looked_up(tmp_path, request_):
    stream = stream_of("documents", tmp_path, **request_)
    exact, found = count_planned(stream), count_planned(stream, limit=30)
    assert not found.exact
    assert found == count_planned(stream, limit=30)
    assert abs(found.total - exact.total) <= len(found.counts)
    for some, all_ in zip(found.counts, exact.counts, strict=True):
        assert abs(some - all_) < 0.5 * exact.total


def test_many_epochs_are_looked_up(tmp_path, monkeypatch):
    stream = stream_of("documents", tmp_path, epochs=3, steps=100)
    exact = count_planned(stream)
    monkeypatch.setattr(planned, "_MOST_EPOCHS", 1)
    assert count_planned(stream) == exact
    assert not count_planned(stream, limit=10).exact


def test_plain_orders_are_counted_without_looking_up_reads(tmp_path, monkeypatch):
    stream = stream_of("blend", tmp_path, steps=4)
    exact = count_planned(stream)
    monkeypatch.setattr(Locator, "locate", None)
    assert count_planned(stream, limit=0) == exact


def test_of_epochs_that_are_nearly_whole_the_unread_samples_are_looked_up(tmp_path):
    stream = stream_of("blend", tmp_path, shuffle=Shuffling("samples"), global_batch_size=21)
    assert stream.order.epoch_ranges[0].dropped == 18
    assert count_planned(stream, limit=18).exact
    assert count_planned(stream, limit=18) == count_planned(stream)
    assert not count_planned(stream, limit=17).exact


def test_one_dataset_is_counted_without_its_files():
    plan = assignments.planned({"train": document_source([10])}, world_size=1)
    assert count_planned(plan.streams["train"]).counts == (10,)


def test_a_blend_whose_arrays_are_gone_is_an_error(tmp_path):
    stream = stream_of("blend", tmp_path)
    (tmp_path / stream.source.order.array_path("dataset_index")).unlink()
    with pytest.raises(TokshardError):
        count_planned(stream)
