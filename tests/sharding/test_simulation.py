"""Byte ranges of a window of steps and the mixing of steps: against counts of single bytes and samples."""

from pathlib import Path

import numpy as np
import pytest

from support.blends import write_dataset
from support.replanned_plans import write_blend
from tokshard.errors import UsageError
from tokshard.sharding.discovery import RequestedSamples, open_sources
from tokshard.sharding.disk_reads import Simulation, merge_ranges
from tokshard.sharding.mixing import design_effect
from tokshard.sharding.options import SimulateOptions
from tokshard.sharding.planning import plan_shards
from tokshard.sharding.requests import PlanRequest, StreamRequest
from tokshard.sharding.schedule import BatchSchedule
from tokshard.sharding.simulation import measure_mixing, simulate_plan, stage_window
from tokshard.sharding.topology import Topology

GAP = 65536
SIZES = {"web": 250, "code": 110, "books": 40}


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    """Documents of 10 to 14 kB."""
    directory = tmp_path_factory.mktemp("documents")
    for name, count in SIZES.items():
        write_dataset(str(directory / name), [5000 + number * 97 % 2000 for number in range(count)])
    return open_sources([str(directory / name) for name in SIZES], RequestedSamples(documents=True))["train"]


def plan_of(source, ranks=4, tensor=1, batch=16, **options):
    train = StreamRequest(micro_batch_size=2, schedule=BatchSchedule.constant(batch), **options)
    return plan_shards({"train": source}, Topology(ranks * tensor, tensor=tensor), PlanRequest(train=train))


def slow_ranges(source, ids):
    """Mark every byte of the documents, and count the runs of marks with gaps of up to 64 KiB."""
    marks = {dataset.prefix: np.zeros(dataset.bin.size_bytes, np.bool_) for dataset in source.datasets}
    starts = np.cumsum([0, *(dataset.samples for dataset in source.datasets)])
    for sample in ids:
        number = int(np.searchsorted(starts, sample, side="right")) - 1
        dataset = source.datasets[number]
        lengths = dataset.open_dataset().index.sequence_lengths.tolist()
        document = sample - int(starts[number])
        first = sum(lengths[:document]) * 2
        marks[dataset.prefix][first : first + lengths[document] * 2] = True
    ranges = size = 0
    for marked in marks.values():
        stop = None
        for byte in (
            np.flatnonzero(np.diff(marked.astype(np.int8), prepend=0, append=0)).reshape(-1, 2).tolist()
        ):
            if stop is None or byte[0] > stop + GAP:
                ranges, size = ranges + 1, size + byte[1] - byte[0]
            else:
                size += byte[1] - stop
            stop = byte[1]
    return ranges, size


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"shuffle": "windows", "block": 5, "window": 8}, 3),
        ({"shuffle": "windows", "block": 7, "window": 3, "mode": "contiguous"}, 4),
        ({"shuffle": "samples", "tail": "pad"}, 25),
        ({}, 2),
    ],
)
def test_the_ranges_of_a_window_are_those_of_its_bytes(documents, options, steps):
    plan = plan_of(documents, tensor=2, **options)
    assignment = plan.streams["train"].assignment
    window = stage_window(Simulation(plan, "train", ranks_per_node=4), steps)
    ids = [
        [sample for step in range(steps) for sample in assignment.step_ids(rank, step).ravel().tolist()]
        for rank in range(4)
    ]
    everything = [sample for of_rank in ids for sample in of_rank]
    found = window.all_nodes.plan
    assert (found.ranges, found.size_bytes) == slow_ranges(documents, everything)
    assert (window.steps, window.all_nodes.samples) == (steps, len(everything))
    nodes = [slow_ranges(documents, ids[0] + ids[1]), slow_ranges(documents, ids[2] + ids[3])]
    node = window.node.plan
    assert (node.ranges, node.size_bytes) in nodes
    assert node.ranges == max(ranges for ranges, _ in nodes)
    assert (window.node.samples, window.steps) == (len(everything) // 2, steps)
    full = plan_of(documents, shuffle="samples", seed=0).streams["train"].assignment.epoch_ranges[0].order
    for compared in (window.all_nodes, window.node):
        drawn = full.ids(np.arange(compared.samples), 0).tolist()
        ranges = compared.full_shuffle
        assert (ranges.ranges, ranges.size_bytes) == slow_ranges(documents, drawn)
        assert compared.fewer == 1 - compared.plan.ranges / ranges.ranges


def test_ranges_of_nothing_are_none_and_overlapping_ones_are_one():
    nothing = np.empty(0, dtype=np.int64)
    assert merge_ranges(nothing, nothing).to_json_value() == []
    runs = merge_ranges(np.array([70_000, 0, 10]), np.array([5, 4464, 4]))
    assert runs.to_json_value() == [[0, 70_005]]
    runs = merge_ranges(np.array([70_001, 0]), np.array([5, 4464]))
    assert runs.to_json_value() == [[0, 4464], [70_001, 70_006]]


@pytest.mark.parametrize("shuffle", ["none", "windows", "samples"])
def test_the_mixing_is_the_design_effect_of_datasets_and_hundredths(documents, shuffle):
    plan = plan_of(documents, shuffle=shuffle, **({"block": 4, "window": 10} if shuffle == "windows" else {}))
    found = measure_mixing(Simulation(plan, "train"))
    assignment = plan.streams["train"].assignment
    ends = np.cumsum(list(SIZES.values()))
    tables = [dataset.open_dataset().index for dataset in documents.datasets]
    firsts = np.concatenate([table.sequence_pointers for table in tables])
    before = np.cumsum([0, *(dataset.bin.size_bytes for dataset in documents.datasets)])
    steps, datasets, parts = [], [], []
    for step in range(assignment.steps):
        for rank in range(4):
            for sample in assignment.step_ids(rank, step).ravel().tolist():
                number = int(np.searchsorted(ends, sample, side="right"))
                steps.append(step)
                datasets.append(number)
                parts.append(int((before[number] + firsts[sample]) * 100 // before[-1]))
    assert (found.steps, found.samples) == (assignment.steps, len(steps))
    steps = np.array(steps)
    assert found.datasets.design_effect == pytest.approx(design_effect(steps, np.array(datasets)))
    assert found.hundredths.design_effect == pytest.approx(design_effect(steps, np.array(parts)))
    assert (found.datasets.groups, found.hundredths.groups) == (3, len(set(parts)))
    assert 0.5 < found.hundredths.full_shuffle < 1.5
    if shuffle == "none":
        assert found.datasets.design_effect > 12


def test_a_window_of_whole_blocks_has_a_hundredth_of_the_ranges_and_mixes_as_its_blocks(tmp_path):
    # 64,000 documents of 100 kB: a file without content. The window has 40 blocks of 200 documents.
    count = 64_000
    prefix = write_dataset(str(tmp_path / "empty"), [50_000])
    lengths = np.full(count, 50_000)
    header = Path(f"{prefix}.idx").read_bytes()[:18] + np.array([count, count + 1], "<u8").tobytes()
    Path(f"{prefix}.idx").write_bytes(
        header
        + lengths.astype("<i4").tobytes()
        + (np.arange(count) * 100_000).astype("<i8").tobytes()
        + np.arange(count + 1, dtype="<i8").tobytes()
    )
    with open(f"{prefix}.bin", "r+b") as file:
        file.truncate(count * 100_000)
    source = open_sources([prefix], RequestedSamples(documents=True))["train"]
    plan = plan_of(source, batch=80, shuffle="windows", block=200, window=40)
    report = simulate_plan(plan, SimulateOptions(steps=1))
    assert (report.window.steps, report.window.all_nodes.samples) == (100, 8000)
    order = plan.streams["train"].assignment.epoch_ranges[0].order
    blocks = np.unique(order.ids(np.arange(8000), 0) // 200)
    assert blocks.size == 40
    assert report.window.all_nodes.plan.ranges == 1 + np.count_nonzero(np.diff(blocks) > 1)
    assert report.window.all_nodes.plan.size_bytes == 8000 * 100_000
    assert report.window.all_nodes.full_shuffle.ranges > 6900
    assert report.window.all_nodes.fewer > 0.99
    assert report.mixing.datasets is None
    # A step draws 80 samples from 40 blocks: 1 + 80 / 40, and less the closer the blocks are to all of them.
    assert 2 < report.mixing.hundredths.design_effect < 3.1
    more = plan_of(source, batch=80, shuffle="windows", block=20, window=1600)
    assert simulate_plan(more, SimulateOptions(steps=1)).mixing.hundredths.design_effect < 1.1


def test_the_first_token_of_a_sample_of_an_index_is_where_it_starts(tmp_path):
    path = write_blend(tmp_path, {"web": 0.7, "code": 0.3}, 800, tokens={"web": 7000, "code": 3500})
    source = open_sources([str(path)], RequestedSamples())["train"]
    simulation = Simulation(plan_of(source), "train")
    ids = np.arange(source.total)[::7]
    datasets, first = simulation.reader.starts(ids)
    for number, sample in enumerate(ids):
        pieces = simulation.reader.extents(np.array([sample]))
        assert (datasets[number], first[number]) == (pieces.dataset[0], pieces.first[0])
    assert measure_mixing(simulation).datasets.design_effect < 0.2, "a blend is more even than chance"


def test_more_samples_than_fit_into_memory_are_refused(monkeypatch, documents):
    monkeypatch.setattr("tokshard.sharding.simulation._MOST_REQUESTED_SAMPLES", 47)
    simulation = Simulation(plan_of(documents), "train")
    assert stage_window(simulation, 2).steps == 2
    with pytest.raises(UsageError, match="at most 47 samples can be counted, but 3 steps have 48"):
        stage_window(simulation, 3)


def test_one_step_has_ranges_and_no_mixing(documents):
    report = simulate_plan(plan_of(documents, steps=1), SimulateOptions(window=9))
    assert (report.window.steps, report.mixing) == (1, None)
