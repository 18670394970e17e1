"""Reads of steps, ranks and nodes: against the bytes themselves."""

import json
import subprocess
import sys
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pytest

from support.blends import write_dataset
from support.replanned_plans import plan_of, write_blend
from tokshard.errors import MissingFileError, UsageError
from tokshard.gpt_index.samples import GPTSamples
from tokshard.sharding.discovery import RequestedSamples, open_sources
from tokshard.sharding.disk_reads import PAGE_BYTES, ExtentReader, Extents, ReadSummary, Simulation
from tokshard.sharding.locator import Locator
from tokshard.sharding.options import SimulateOptions
from tokshard.sharding.planning import plan_shards
from tokshard.sharding.requests import PlanRequest, StreamRequest
from tokshard.sharding.schedule import BatchSchedule
from tokshard.sharding.topology import Topology

TOKENS = {"web": 70_000, "code": 35_000}


@pytest.fixture
def source(tmp_path):
    path = write_blend(tmp_path, {"web": 0.7, "code": 0.3}, 2_000, tokens=TOKENS)
    return open_sources([str(path)], RequestedSamples())["train"]


def test_the_pieces_of_a_sample_hold_its_tokens(source):
    reader, locator = ExtentReader(source), Locator(source)
    readers = [GPTSamples(reference.open_dataset(), reference.open_index()) for reference in source.datasets]
    for number in range(300):
        ids = np.array([number])
        (dataset,), (sample,) = locator.locate(ids)
        expected = readers[dataset].read(int(sample))
        pieces = reader.extents(ids)
        content = Path(f"{source.datasets[dataset].prefix}.bin").read_bytes()
        parts = zip(pieces.first.tolist(), pieces.size.tolist(), strict=True)
        tokens = np.frombuffer(b"".join(content[first : first + size] for first, size in parts), "<u2")
        assert tokens.tolist() == expected.tokens.tolist()
        assert pieces.size.size == np.count_nonzero(expected.lengths)


def test_the_pieces_of_documents_are_whole_documents(tmp_path, source):
    prefix = str(tmp_path / "code")
    documents = open_sources([prefix], RequestedSamples(documents=True))["train"]
    pieces = ExtentReader(documents).extents(np.array([0, 7, documents.total - 1]))
    assert pieces.size.tolist() == [14, 14, 14]
    assert pieces.first.tolist() == [0, 98, 70_000 - 14]


def test_more_datasets_than_files_may_be_open_are_followed(tmp_path):
    """Each needs a file, and the process may have fewer than there are datasets."""
    for number in range(60):
        write_dataset(str(tmp_path / f"d{number:02}"), [3, 1, 4, 1, 5])
    command = f"ulimit -n 40; exec '{sys.executable}' -c 'from tokshard.cli.main import main; main()' "
    command += "shard-plan 'd*' --documents --data-parallel 4 -o plan --simulate --simulate-steps 75 --json"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["simulation"]["rank"]["pieces"]["mean"] == 1


def test_pieces_do_not_depend_on_how_many_datasets_are_open(source):
    ids = np.random.RandomState(1).permutation(source.total)[:60].reshape(20, 3)
    reader, all_of_them = ExtentReader(source, capacity=1), ExtentReader(source)
    for some in ids:
        for found, expected in zip(
            columns(reader.extents(some)), columns(all_of_them.extents(some)), strict=True
        ):
            assert found.tolist() == expected.tolist()


def slow_pages(pieces):
    return len(
        {
            (dataset, byte // PAGE_BYTES)
            for dataset, first, size in zip(*(column.tolist() for column in columns(pieces)), strict=True)
            for byte in range(first, first + size)
        }
    )


def columns(pieces):
    return pieces.dataset, pieces.first, pieces.size


def test_pages_are_counted_once():
    generator = np.random.RandomState(3)
    for _ in range(50):
        count = generator.randint(1, 20)
        pieces = Extents(
            generator.randint(0, 3, count),
            generator.randint(0, 60_000, count),
            generator.randint(1, 9_000, count),
        )
        assert pieces.count_pages() == slow_pages(pieces)
    nothing = np.empty(0, dtype=np.int64)
    assert Extents(nothing, nothing, nothing).count_pages() == 0


def test_steps_ranks_and_nodes_add_up(source):
    train = StreamRequest(micro_batch_size=2, schedule=BatchSchedule.constant(32))
    topology = Topology(32, tensor=2, pipeline=2)
    plan = plan_shards({"train": source}, topology, PlanRequest(train=train))
    simulation = Simulation(plan, "train", ranks_per_node=8, bandwidth=1e6)
    loads = list(simulation.steps(3, 5))
    assert [load.step for load in loads] == [3, 4]
    for load in loads:
        assert [rank.samples for rank in load.ranks] == [4] * 8
        assert [rank.size_bytes for rank in load.ranks] == [4 * 9 * 2] * 8
        # 8 ranks of a node are 4 of data parallelism, and of each the first of the 2 tensor ranks reads.
        assert [node.samples for node in load.nodes] == [4 * 4] * 4
        for number, node in enumerate(load.nodes):
            reads = [simulation.extents(rank, load.step)[1] for rank in set(simulation.nodes[number])]
            assert node.pages == slow_pages(Extents.joined(reads))
            assert node.seconds == node.pages * PAGE_BYTES / 1e6
            assert node.size_bytes == 4 * 4 * 9 * 2
            assert node.files in {2 + 5, 2 + 10}
    summary = ReadSummary.of([rank for load in loads for rank in load.ranks])
    assert astuple(summary.samples) == (4, 4, 4)
    assert ReadSummary.of([next(Simulation(plan, "train").steps(0, 1)).ranks[0]]).seconds is None
    assert ReadSummary.of([]) is None


def test_what_cannot_be_simulated_is_refused(source, tmp_path):
    plan = plan_of(source, 2, batch=8)
    for options in ({"ranks_per_node": 0}, {"bandwidth": 0}, {"steps": 0}):
        with pytest.raises(UsageError):
            SimulateOptions(**options)
    with pytest.raises(UsageError, match="no stream"):
        Simulation(plan, "valid")
    (tmp_path / "web.bin").rename(tmp_path / "gone.bin")
    with pytest.raises(MissingFileError, match=r"web\.bin"):
        list(Simulation(plan, "train").steps(0, 1))
