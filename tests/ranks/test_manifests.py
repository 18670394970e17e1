"""The manifests of ranks: written with the plan, checked against it, and small."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tokshard.ranks.ranks import (
    RankManifest,
    RankPositions,
    check_ranks,
    ranges_of,
    read_rank,
)

from support.assignments import planned
from support.mixture_data import write_mixture
from support.sample_sources import blend_sources, document_source, everything, index_source
from tokshard.dataset.products import PLAN_NAME, kind_of, rank_name
from tokshard.errors import IntegrityError, LockedError, MissingFileError, OutputExistsError, UsageError
from tokshard.ranks.discovery import RequestedSamples, open_sources
from tokshard.ranks.locator import Locator
from tokshard.ranks.plan import read_plan
from tokshard.ranks.publication import LOCK_NAME, write_plan
from tokshard.storage.lock import WriterLock


def plan_of(sources, world_size=4, **options):
    return planned(sources, world_size=world_size, **options)


def a_plan(**request):
    """Return a plan of indexes, whose rank manifests need no data to be written."""
    sources = {"train": index_source(64), "valid": index_source(20, name="valid")}
    return plan_of(sources, 8, tensor_parallel=2, pipeline_parallel=2, **request)


def names_in(directory):
    return sorted(path.name for path in directory.iterdir())


def edit(path, change):
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def test_each_rank_reads_its_manifest(tmp_path):
    plan = a_plan()
    sizes = write_plan(plan, tmp_path)
    ranks = [rank_name(rank) for rank in range(8)]
    assert names_in(tmp_path) == sorted([PLAN_NAME, *ranks])
    assert sizes == {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    for rank in range(8):
        for path in (tmp_path, tmp_path / PLAN_NAME, tmp_path / ranks[rank]):
            assert read_rank(path, rank) == (plan, rank)
        manifest = RankManifest.of(plan, rank)
        assert manifest.coordinates == plan.topology.coordinates(rank)
        assert manifest.streams["train"].needs == plan.topology.needs(rank)
        assert manifest.streams["train"].data_parallel_rank == manifest.coordinates.dp
    assert read_rank(tmp_path / rank_name(3))[1] == 3


def test_ranks_that_read_nothing_say_so(tmp_path):
    write_plan(a_plan(), tmp_path)
    manifest = json.loads((tmp_path / rank_name(1)).read_text())
    assert manifest["coordinates"]["tp"] == 1
    for stream in manifest["streams"].values():
        assert (stream["needs"], stream["reads"]) == ([], [])


def test_boundaries_are_read_by_every_stage(tmp_path):
    write_plan(a_plan(document_boundaries=True), tmp_path)
    for rank in (0, 4):
        manifest = RankManifest.of(*read_rank(tmp_path, rank))
        assert "cu_seqlens" in manifest.streams["train"].needs
        assert "cu_seqlens" in manifest.streams["valid"].needs


def test_a_rank_is_read_from_the_plan_alone(tmp_path):
    plan = a_plan()
    write_plan(plan, tmp_path)
    for path in tmp_path.iterdir():
        if path.name != PLAN_NAME:
            path.unlink()
    for path in (tmp_path, tmp_path / PLAN_NAME):
        assert read_rank(path, 5) == (plan, 5)
    assert [type(error) for _, error in check_ranks(plan, str(tmp_path))] == [MissingFileError] * 8


def test_a_rank_must_be_said_and_be_there(tmp_path):
    write_plan(a_plan(), tmp_path)
    with pytest.raises(UsageError, match="the rank is required"):
        read_rank(tmp_path)
    with pytest.raises(UsageError, match="rank must be from 0 to 7, got 8"):
        read_rank(tmp_path, 8)
    with pytest.raises(UsageError, match=r"must be 3, .* got 2"):
        read_rank(tmp_path / rank_name(3), 2)
    (tmp_path / rank_name(3)).unlink()
    with pytest.raises(MissingFileError, match=r"rank manifest not found: .*rank-00003\.json"):
        read_rank(tmp_path / rank_name(3))
    with pytest.raises(MissingFileError, match="plan not found"):
        read_rank(tmp_path / "no", 3)


CHANGES = {
    "rank": lambda value: value.update(rank=2),
    "plan_id": lambda value: value.update(plan_id="0" * 64),
    "plan": lambda value: value.update(plan="../plan.json"),
    "schema": lambda value: value.update(schema="tokshard.rank/3"),
    "coordinates": lambda value: value["coordinates"].update(dp=1),
    "more": lambda value: value.update(more=1),
    "no streams": lambda value: value.pop("streams"),
    "stream": lambda value: value["streams"].pop("valid"),
    "list": lambda value: value.update(streams=[]),
    "needs": lambda value: value["streams"]["train"].update(needs=["tokens"]),
    "steps": lambda value: value["streams"]["train"].update(steps=1),
    "positions": lambda value: value["streams"]["train"]["positions"][0].update(start=1),
    "reads": lambda value: value["streams"]["train"].update(reads=[3]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_manifest_that_does_not_follow_from_the_plan_is_refused(tmp_path, change):
    write_plan(a_plan(), tmp_path)
    edit(tmp_path / rank_name(0), change)
    with pytest.raises(IntegrityError, match=r"rank-00000\.json"):
        read_rank(tmp_path, 0)


def test_the_manifest_of_another_plan_is_refused(tmp_path):
    write_plan(a_plan(), tmp_path / "a")
    write_plan(a_plan(micro_batch_size=2), tmp_path / "b")
    (tmp_path / "b" / rank_name(0)).replace(tmp_path / "a" / rank_name(0))
    with pytest.raises(IntegrityError, match="belongs to another plan"):
        read_rank(tmp_path / "a", 0)


@pytest.mark.parametrize("mode", ["contiguous", "chunked"])
@pytest.mark.parametrize("shuffle", ["none", "shards"])
@pytest.mark.parametrize("split", [None, "10,85,5"])
def test_ranges_hold_exactly_the_documents_that_a_rank_reads(tmp_path, mode, shuffle, split):
    write_mixture(tmp_path / "src")
    prefixes = [str(tmp_path / "src/data/web"), str(tmp_path / "src/data/code")]
    name = "train" if split is None else "valid"
    sources = open_sources(prefixes, RequestedSamples(documents=True, split=split))
    plan = plan_of({"train": sources[name]}, 5, mode=mode, shuffle=shuffle)
    write_plan(plan, tmp_path / "plan")
    locator = Locator(sources[name])
    for rank, ids in enumerate(everything(plan.streams["train"])):
        manifest = json.loads((tmp_path / "plan" / rank_name(rank)).read_text())
        ranges = [
            (read["dataset"], document)
            for read in manifest["streams"]["train"]["reads"]
            for document in range(read["first"], read["stop"])
        ]
        assert ranges == list(zip(*map(np.ndarray.tolist, locator.locate(ids)), strict=True))


@pytest.mark.parametrize("mode", ["single", "sequential", "contiguous", "chunked"])
@pytest.mark.parametrize("tail", ["drop", "pad"])
def test_the_formula_of_positions_is_what_a_rank_reads(mode, tail):
    for total, ranks, size in ((5, 4, 1), (40, 3, 2), (41, 3, 2), (7, 1, 3), (100, 6, 5)):
        if tail == "drop" and total < ranks * size:
            continue
        source = document_source([total])
        plan = plan_of({"train": source}, ranks, mode=mode, tail=tail, micro_batch_size=size)
        assignment = plan.streams["train"].assignment
        for rank in range(ranks):
            formula = RankPositions.of(assignment.epoch_ranges[0], rank)
            start, run, stride = formula.start, formula.run, formula.stride
            found = [start + i // run * stride + i % run for i in range(formula.count)]
            read = assignment.ids(rank, 0, assignment.samples_per_rank).tolist()
            assert found == read[: len(found)]
            assert len(found) + formula.repeated == len(read)


def test_what_is_spread_over_all_datasets_has_no_ranges(tmp_path):
    source = blend_sources(tmp_path)["train"]
    spread = [
        plan_of({"train": source}, mode="contiguous"),
        plan_of({"train": document_source([40])}),
        plan_of({"train": document_source([40])}, mode="contiguous", shuffle="samples"),
        plan_of({"train": document_source([40])}, mode="contiguous", epochs=2),
    ]
    for plan in spread:
        stream = plan.streams["train"]
        assert ranges_of(stream.assignment, stream.source, 0) is None


def test_a_thousand_ranks_over_a_billion_samples_are_small(tmp_path):
    source = index_source(250_000_000, datasets=4, blended=True)
    ranks = {"tensor_parallel": 8, "pipeline_parallel": 4, "context_parallel": 2}
    plan = plan_of({"train": source}, 1024, **ranks, micro_batch_size=2, global_batch_size=1024)
    sizes = write_plan(plan, tmp_path)
    assert len(sizes) == 1025
    assert sum(sizes.values()) < 2_000_000
    assert read_rank(tmp_path, 1023)[0].plan_id == plan.plan_id
    assert plan.streams["train"].assignment.steps == 10**9 // 1024


def test_another_plan_is_replaced_only_when_asked(tmp_path):
    write_plan(a_plan(), tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    other = plan_of({"train": index_source(64)}, 2)
    with pytest.raises(OutputExistsError, match="another plan"):
        write_plan(other, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    inodes = {path.name: path.stat().st_ino for path in tmp_path.iterdir()}
    write_plan(a_plan(), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    assert {path.name: path.stat().st_ino for path in tmp_path.iterdir()} == inodes
    (tmp_path / rank_name(3)).write_text('{"schema": "tokshard.rank/2"')
    write_plan(a_plan(), tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    write_plan(other, tmp_path, force=True)
    assert names_in(tmp_path) == [PLAN_NAME, rank_name(0), rank_name(1)]
    (tmp_path / PLAN_NAME).write_text("{")
    with pytest.raises(OutputExistsError, match="another plan"):
        write_plan(other, tmp_path)
    write_plan(other, tmp_path, force=True)
    assert read_rank(tmp_path, 1)[0].plan_id == other.plan_id


def test_strangers_stay_and_what_a_killed_run_left_goes(tmp_path):
    strangers = ["rank-2.json", "rank-00001.json.bak", "notes.txt", ".rank-00001.json.swp", "order.npy"]
    (tmp_path / ".plan.work").mkdir()
    for name in [*strangers, f".plan.work/{rank_name(1)}", f".plan.work/.{PLAN_NAME}.77-3.tokshard-tmp"]:
        (tmp_path / name).write_text(name)
    write_plan(a_plan(), tmp_path)
    assert set(names_in(tmp_path)) == {*strangers, PLAN_NAME, *(rank_name(rank) for rank in range(8))}


def test_a_second_writer_is_told_of_the_first(tmp_path):
    with WriterLock(str(tmp_path / LOCK_NAME)), pytest.raises(LockedError):
        write_plan(a_plan(), tmp_path)
    assert names_in(tmp_path) == []


def test_writers_at_the_same_time_leave_one_whole_plan(tmp_path):
    plans = [a_plan(micro_batch_size=size) for size in (1, 2, 4)]

    def write(plan):
        try:
            write_plan(plan, tmp_path, force=True)
        except LockedError:
            return False
        return True

    with ThreadPoolExecutor(6) as executor:
        assert any(executor.map(write, plans * 4))
    found = read_plan(tmp_path).plan_id
    assert found in {plan.plan_id for plan in plans}
    assert {read_rank(tmp_path, rank)[0].plan_id for rank in range(8)} == {found}


def test_a_file_of_a_plan_is_recognised(tmp_path):
    write_plan(a_plan(), tmp_path)
    for path in (tmp_path, tmp_path / PLAN_NAME, tmp_path / rank_name(2)):
        assert kind_of(str(path)) in {"plan", "rank"}
    for path in (tmp_path.parent, tmp_path / "rank-2.json", tmp_path / rank_name(9)):
        assert kind_of(str(path)) not in {"plan", "rank"}
