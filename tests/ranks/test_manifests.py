"""Plans in files: manifests of ranks that follow from the plan, published with it, and small."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.assignments import planned
from support.loader_plans import source_of
from support.sample_sources import index_source
from tokshard.dataset.products import PLAN_NAME, kind_of, rank_name
from tokshard.errors import IntegrityError, LockedError, MissingFileError, OutputExistsError, UsageError
from tokshard.loader import RankLoader
from tokshard.ranks.manifests import RankManifest, check_ranks, read_rank
from tokshard.ranks.plan import read_plan
from tokshard.ranks.publication import LOCK_NAME, write_plan
from tokshard.ranks.sources import SOURCES_NAME
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
    plan = a_plan(output=str(tmp_path))
    sizes = write_plan(plan, tmp_path)
    ranks = [rank_name(rank) for rank in range(8)]
    assert names_in(tmp_path) == sorted([PLAN_NAME, SOURCES_NAME, *ranks])
    assert sizes == {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    for rank in range(8):
        for path in (tmp_path, tmp_path / PLAN_NAME, tmp_path / ranks[rank]):
            assert read_rank(path, rank) == (plan, rank)
        manifest = RankManifest.of(plan, rank)
        assert manifest.coordinates == plan.topology.coordinates(rank)
        assert manifest.streams["train"].fields == plan.topology.needs(rank)
    assert read_rank(tmp_path / rank_name(3))[1] == 3


def test_ranks_that_read_nothing_say_so(tmp_path):
    write_plan(a_plan(), tmp_path)
    manifest = json.loads((tmp_path / rank_name(1)).read_text())
    assert manifest["coordinates"]["tp"] == 1
    for stream in manifest["streams"].values():
        assert (stream["fields"], stream["samples"], stream["count"]) == ([], 0, 0)
        assert stream["steps"] > 0


def test_boundaries_are_read_by_every_stage(tmp_path):
    write_plan(a_plan(document_boundaries=True), tmp_path)
    for rank in (0, 4):
        manifest = RankManifest.of(*read_rank(tmp_path, rank))
        assert "cu_seqlens" in manifest.streams["train"].fields
        assert "cu_seqlens" in manifest.streams["valid"].fields


def test_a_rank_is_read_from_the_plan_and_its_sources_alone(tmp_path):
    plan = a_plan(output=str(tmp_path))
    write_plan(plan, tmp_path)
    for path in tmp_path.iterdir():
        if path.name not in {PLAN_NAME, SOURCES_NAME}:
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


UNREADABLE = {
    "plan_id": lambda value: value.update(plan_id="0" * 64),
    "plan": lambda value: value.update(plan="../plan.json"),
    "schema": lambda value: value.update(schema="tokshard.rank/3"),
    "more": lambda value: value.update(more=1),
    "no streams": lambda value: value.pop("streams"),
    "list": lambda value: value.update(streams=[]),
    "count": lambda value: value["streams"]["train"].update(count=[3]),
    "run": lambda value: value["streams"]["train"].update(run=0),
}
WRONG = {
    "rank": lambda value: value.update(rank=2),
    "coordinates": lambda value: value["coordinates"].update(dp=1),
    "stream": lambda value: value["streams"].pop("valid"),
    "fields": lambda value: value["streams"]["train"].update(fields=["tokens"]),
    "steps": lambda value: value["streams"]["train"].update(steps=1),
    "start": lambda value: value["streams"]["train"].update(start=1),
    "stride": lambda value: value["streams"]["train"].update(stride=3),
}


@pytest.mark.parametrize("name", [*UNREADABLE, *WRONG])
def test_a_manifest_that_does_not_follow_from_the_plan_is_refused(tmp_path, name):
    plan = a_plan()
    write_plan(plan, tmp_path)
    edit(tmp_path / rank_name(0), (UNREADABLE | WRONG)[name])
    [(rank, error)] = check_ranks(plan, str(tmp_path))
    assert (rank, type(error)) == (0, IntegrityError)
    assert rank_name(0) in error.message
    if name in UNREADABLE:
        with pytest.raises(IntegrityError, match=r"rank-00000\.json"):
            read_rank(tmp_path, 0)


def test_the_manifest_of_another_plan_is_refused(tmp_path):
    write_plan(a_plan(), tmp_path / "a")
    write_plan(a_plan(micro_batch_size=2), tmp_path / "b")
    (tmp_path / "b" / rank_name(0)).replace(tmp_path / "a" / rank_name(0))
    with pytest.raises(IntegrityError, match="belongs to another plan"):
        read_rank(tmp_path / "a", 0)


def owned(link, consumed):
    """Return the position that a rank reads, by the formula of an interleave in the documentation."""
    group = link["ranks"] * link["micro_batch_size"]
    rank = consumed % group // link["micro_batch_size"]
    local = consumed // group * link["micro_batch_size"] + consumed % link["micro_batch_size"]
    if link["run"]:
        return min(rank * link["run"] + min(local, link["run"] - 1), link["total"] - 1)
    return min(local * link["ranks"] + rank, link["total"] - 1)


def read_without_tokshard(directory, rank):
    """List the sample ids of a rank from two files of JSON."""
    reads = json.loads((directory / rank_name(rank)).read_bytes())["streams"]["train"]
    order = json.loads((directory / PLAN_NAME).read_bytes())["streams"]["train"]["order"]
    assert reads["samples"] == reads["count"] * reads["run"]
    ids = []
    for i in range(reads["samples"]):
        number = reads["start"] + i // reads["run"] * reads["stride"] + i % reads["run"]
        position = number - order["consumed_samples"] + order["skipped"]
        for epochs in order["epoch_ranges"]:
            if position < epochs["read"] * epochs["epochs"]:
                break
            position -= epochs["read"] * epochs["epochs"]
        position %= epochs["read"]
        if epochs["links"]:
            [link] = epochs["links"]
            position = owned(link, position)
        ids.append(min(position, epochs["total"] - 1))
    return ids


@pytest.mark.parametrize("mode", ["single", "sequential", "contiguous", "chunked"])
@pytest.mark.parametrize("tail", ["drop", "pad"])
@pytest.mark.parametrize("consumed", [0, 12, 42])
def test_the_formula_of_a_manifest_is_what_the_loader_reads(tmp_path, mode, tail, consumed):
    source = source_of(str(tmp_path))
    options = {"mode": mode, "tail": tail, "micro_batch_size": 2, "epochs": 3, "consumed_samples": consumed}
    plan = plan_of({"train": source}, 6, tensor_parallel=2, **options)
    write_plan(plan, tmp_path / "plan")
    for rank in range(6):
        loader = RankLoader.open(tmp_path / "plan", rank)
        found = [sample for number in range(len(loader)) for sample in loader.sample_ids(number)]
        expected = read_without_tokshard(tmp_path / "plan", rank)
        assert expected == (found if rank % 2 == 0 else [])


def test_a_thousand_ranks_over_a_billion_samples_are_small(tmp_path):
    source = index_source(250_000_000, datasets=4, blended=True)
    ranks = {"tensor_parallel": 8, "pipeline_parallel": 4, "context_parallel": 2}
    plan = plan_of({"train": source}, 1024, **ranks, micro_batch_size=2, global_batch_size=1024)
    sizes = write_plan(plan, tmp_path)
    assert len(sizes) == 1026
    assert sizes[PLAN_NAME] < 2_000
    assert sum(sizes.values()) < 1_000_000
    assert read_rank(tmp_path, 1023)[0].plan_id == plan.plan_id
    assert plan.streams["train"].order.steps == 10**9 // 1024


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
    assert names_in(tmp_path) == [PLAN_NAME, rank_name(0), rank_name(1), SOURCES_NAME]
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
    ours = {PLAN_NAME, SOURCES_NAME, *(rank_name(rank) for rank in range(8))}
    assert set(names_in(tmp_path)) == {*strangers, *ours}


@pytest.mark.parametrize("name", [SOURCES_NAME, rank_name(5)])
def test_files_of_other_programs_under_our_names_stay_unless_forced(tmp_path, name):
    (tmp_path / name).write_text('{"sources": []}')
    with pytest.raises(OutputExistsError, match=f"{name} belongs to another program") as caught:
        write_plan(a_plan(), tmp_path)
    assert caught.value.hint == "pass another --output, or --force to replace it"
    assert names_in(tmp_path) == [name]
    assert (tmp_path / name).read_text() == '{"sources": []}'
    write_plan(a_plan(), tmp_path, force=True)
    assert read_rank(tmp_path, 5)[0].plan_id == a_plan().plan_id


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
