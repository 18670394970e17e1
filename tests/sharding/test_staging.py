"""Lists of files for nodes: everything that the nodes read is in them."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from support.replanned_plans import write_blend
from tokshard.errors import IntegrityError, UsageError
from tokshard.sharding.discovery import RequestedSamples, open_sources
from tokshard.sharding.disk_reads import Simulation
from tokshard.sharding.planning import plan_shards
from tokshard.sharding.requests import PlanRequest, StreamRequest
from tokshard.sharding.schedule import BatchSchedule
from tokshard.sharding.staging import NodeStaging, find_files, write_lists
from tokshard.sharding.topology import Topology

GOLDEN = Path(__file__).parents[1] / "golden" / "formats"
TOKENS = {"web": 350_000, "code": 210_000}


@pytest.fixture
def plan(tmp_path):
    path = write_blend(tmp_path, {"web": 0.7, "code": 0.3}, 4_000, tokens=TOKENS)
    source = open_sources([str(path)], RequestedSamples())["train"]
    train = StreamRequest(schedule=BatchSchedule.constant(8))
    return plan_shards({"train": source}, Topology(8, tensor=2), PlanRequest(train=train))


def test_every_byte_that_a_node_reads_is_in_its_ranges(plan):
    simulation = Simulation(plan, "train", ranks_per_node=4)
    nodes = find_files(plan, "train", 2, 5, ranks_per_node=4)
    assert len(nodes) == 2
    for node, readers in zip(nodes, simulation.nodes, strict=True):
        ranges = {file.path: file.ranges for file in node.files}
        assert sorted(ranges) == [file.path for file in node.files]
        used = set()
        for rank in readers:
            for step in (2, 3, 4):
                _, pieces = simulation.extents(rank, step)
                for number, first, size in zip(
                    pieces.dataset.tolist(), pieces.first.tolist(), pieces.size.tolist(), strict=True
                ):
                    prefix = plan.streams["train"].source.datasets[number].prefix
                    used.add(prefix)
                    inside = ranges[f"{prefix}.bin"].index(np.array([first, first + size - 1]))
                    assert inside[1] - inside[0] == size - 1
        assert sum(path.endswith(".bin") for path in ranges) == len(used)
        assert sum(path.endswith(".npy") for path in ranges) == 2 + 3 * len(used)
        for file in node.files:
            if not file.path.endswith(".bin"):
                assert file.ranges.to_json_value() == [[0, file.size_bytes]]
        assert 0 < node.read_bytes < node.size_bytes


def test_ranges_are_one_where_they_are_close_and_apart_where_they_are_not(plan):
    simulation = Simulation(plan, "train", ranks_per_node=8)
    (node,) = find_files(plan, "train", 2, 3, ranks_per_node=8)
    ranges = {file.path: file.ranges.to_json_value() for file in node.files}
    runs = {}
    for rank in set(simulation.nodes[0]):
        _, pieces = simulation.extents(rank, 2)
        for number, first, size in zip(
            pieces.dataset.tolist(), pieces.first.tolist(), pieces.size.tolist(), strict=True
        ):
            prefix = plan.streams["train"].source.datasets[number].prefix
            runs.setdefault(f"{prefix}.bin", []).append((first, first + size))
    for path, found in runs.items():
        merged = []
        for first, stop in sorted(found):
            if merged and first <= merged[-1][1] + 65536:
                merged[-1][1] = max(merged[-1][1], stop)
            else:
                merged.append([first, stop])
        assert ranges[path] == merged
    assert max(len(ranges[path]) for path in runs) > 1


def test_the_lists_are_what_rsync_and_s5cmd_take(plan, tmp_path):
    nodes = find_files(plan, "train", 0, 3, ranks_per_node=3)
    names = write_lists(nodes, tmp_path / "lists", remote="s3://bucket/data/")
    assert len(names) == 9
    listed = (tmp_path / "lists/node-0001.files").read_text().splitlines()
    assert listed == [file.path for file in nodes[1].files]
    commands = (tmp_path / "lists/node-0001.s5cmd").read_text().splitlines()
    assert commands == [f'cp "s3://bucket/data{path}" "{path}"' for path in listed]
    value = json.loads((tmp_path / "lists/node-0001.json").read_text())
    assert (value["schema"], value["plan_id"], value["node"]) == ("tokshard.staging/1", plan.plan_id, 1)
    assert [file["path"] for file in value["files"]] == listed
    assert value["read_bytes"] == sum(
        stop - first for file in value["files"] for first, stop in file["ranges"]
    )
    assert not any(name.endswith(".s5cmd") for name in write_lists(nodes, tmp_path / "x"))


def test_what_cannot_be_listed_is_refused(plan, tmp_path):
    with pytest.raises(UsageError, match="no steps"):
        find_files(plan, "train", 10**6, 10**6 + 1)
    (node, *_) = find_files(plan, "train", 0, 1)
    odd = replace(node, files=(replace(node.files[0], path="/data/a\nb.bin"), *node.files[1:]))
    with pytest.raises(UsageError, match="list"):
        write_lists([odd], tmp_path / "lists")
    assert not (tmp_path / "lists").exists()


def test_the_format_of_lists_is_frozen():
    path = GOLDEN / "staging-1.json"
    node = NodeStaging.from_bytes(path.read_bytes(), str(path))
    assert [file.read_bytes for file in node.files] == [70000, 1234]
    assert node.to_bytes() == path.read_bytes()
    for field, value in (("read_bytes", 1), ("node", -1), ("plan_id", "x"), ("files", [{}])):
        changed = json.loads(path.read_bytes()) | {field: value}
        with pytest.raises(IntegrityError, match=field):
            NodeStaging.from_json(changed, "node-0003.json")
