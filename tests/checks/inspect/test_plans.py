"""Plans: from the index of a rank to the sample and its dataset, and all the way back."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

from support.assignments import planned
from support.mixture_data import write_mixture
from support.pages import build
from support.plain_datasets import Plain
from support.sample_sources import blend_sources, document_source, everything, index_source
from tokshard.checks.commands.inspect import inspect, write_inspection_page
from tokshard.checks.inspect import plan_charts
from tokshard.checks.inspect.options import InspectOptions
from tokshard.checks.inspect.plan_facts import describe_plan
from tokshard.checks.inspect.planned import count_by_rank
from tokshard.checks.inspect.plans import (
    PlanSummary,
    find_dataset_sample,
    find_sample,
    inspect_rank,
    inspect_sample,
)
from tokshard.checks.products import open_product
from tokshard.errors import InputError, StorageError, UsageError
from tokshard.ranks.choices import Shuffling
from tokshard.ranks.discovery import RequestedSamples, open_sources
from tokshard.ranks.locator import Locator
from tokshard.ranks.options import ReplanOptions
from tokshard.ranks.plan import read_plan
from tokshard.ranks.publication import write_plan
from tokshard.ranks.replan import continue_plan


def plan_of(sources, world_size=3, **options):
    return planned(sources, world_size=world_size, **options)


def documents_in(directory):
    write_mixture(directory)
    prefixes = [str(directory / "data/web"), str(directory / "data/code")]
    return open_sources(prefixes, RequestedSamples(documents=True))


REQUESTS = [
    {},
    {"micro_batch_size": 2, "rampup_batch_size": (6, 6, 18), "global_batch_size": 12},
    {"mode": "contiguous", "shuffle": Shuffling("datasets")},
    {"mode": "chunked", "tail": "pad", "shuffle": Shuffling("windows", 5, 2)},
    {"shuffle": Shuffling("windows", 7, 2)},
    {"mode": "cyclic", "steps": 50},
    {"mode": "sequential", "bucket_buffer": 30, "epochs": 2},
    {"consumed_samples": 18, "micro_batch_size": 3},
]


@pytest.mark.parametrize("request_", REQUESTS)
@pytest.mark.parametrize("kind", ["documents", "blend"])
def test_every_index_of_every_rank_is_found_again(tmp_path, kind, request_):
    if kind == "blend" and request_.get("shuffle") == Shuffling("datasets"):
        request_ = {**request_, "shuffle": Shuffling("samples")}
    sources = documents_in(tmp_path) if kind == "documents" else blend_sources(tmp_path)
    plan = plan_of({"train": sources["train"]}, **request_)
    write_plan(plan, tmp_path / "plan")
    seen = set()
    for rank in range(3):
        for index in range(0, plan.streams["train"].order.samples_per_rank, 7):
            (place,) = inspect_rank(str(tmp_path / "plan"), rank, index=index).places
            assert (place.data_parallel_rank, place.index) == (rank, index)
            again = find_sample(plan, "train", place.sample, epoch=place.epoch)
            if (place.sample, place.epoch) not in seen and request_.get("tail") != "pad":
                assert again == place
            assert (again.dataset, again.dataset_sample) == (place.dataset, place.dataset_sample)
            assert find_dataset_sample(plan, "train", place.dataset, place.dataset_sample) == (place.sample,)
            seen.add((place.sample, place.epoch))


def test_a_step_is_its_micro_batches_in_order(tmp_path):
    plan = plan_of(documents_in(tmp_path), micro_batch_size=2, global_batch_size=12)
    write_plan(plan, tmp_path / "plan")
    summary = inspect_rank(str(tmp_path / "plan"), 1, step=3)
    rows = [(place.sample, place.micro_batch, place.row, place.step) for place in summary.places]
    assert rows == [(38, 0, 0, 3), (39, 0, 1, 3), (44, 1, 0, 3), (45, 1, 1, 3)]
    assert [place.index for place in summary.places] == [12, 13, 14, 15]
    assert summary.to_json()["schema"] == "tokshard.inspect-rank/2"


def test_ranks_that_share_samples_show_the_same(tmp_path):
    plan = plan_of(documents_in(tmp_path), 6, tensor_parallel=2)
    write_plan(plan, tmp_path / "plan")
    first, second = (inspect_rank(str(tmp_path / "plan"), rank, step=0).places for rank in (2, 3))
    assert first == second


def test_a_dropped_sample_is_read_by_nobody():
    plan = plan_of({"train": document_source([10])}, micro_batch_size=3)
    place = find_sample(plan, "train", 9)
    assert (place.data_parallel_rank, place.index, place.step, place.row) == (None, None, None, None)
    assert (place.dataset, place.dataset_sample) == (0, 9)


def test_documents_of_a_split_keep_their_numbers():
    plan = plan_of({"train": document_source([5, 5], firsts=[100, 200])}, 1)
    assert find_dataset_sample(plan, "train", 1, 203) == (8,)
    assert find_sample(plan, "train", 8).dataset_sample == 203
    with pytest.raises(UsageError, match="must be 100 to 104, got 203"):
        find_dataset_sample(plan, "train", 0, 203)


def test_the_epoch_of_an_index_is_counted_from_the_first_pass_on(tmp_path):
    plan = plan_of({"train": document_source([12])}, epochs=3, consumed_samples=6)
    write_plan(plan, tmp_path)
    epochs = [inspect_rank(str(tmp_path), 0, index=index).places[0].epoch for index in range(10)]
    assert epochs == [0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
    assert find_sample(plan, "train", 0).data_parallel_rank is None
    assert find_sample(plan, "train", 0, epoch=1).index == 2
    with pytest.raises(UsageError, match="epoch 3 is not read"):
        find_sample(plan, "train", 0, epoch=3)


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"rank": 3}, "rank must be from 0 to 2, got 3"),
        ({"rank": 0, "step": 4}, "the step of train must be 0 to 3, got 4"),
        ({"rank": 0, "step": -1}, "must be 0 to 3, got -1"),
        ({"rank": 0, "index": 4}, "the index must be 0 to 3, got 4"),
        ({"rank": 0, "stream": "valid"}, "the stream must be train, got 'valid'"),
        ({"rank": None, "step": 0}, "the rank is required"),
    ],
)
def test_a_question_that_has_no_answer_is_refused(tmp_path, question, message):
    write_plan(plan_of({"train": index_source(12)}), tmp_path)
    with pytest.raises(UsageError, match=message):
        inspect_rank(str(tmp_path), question.pop("rank"), **question)


def test_samples_and_datasets_that_are_not_there_are_refused():
    plan = plan_of({"train": document_source([12])})
    for sample in (-1, 12):
        with pytest.raises(UsageError, match="must be 0 to 11"):
            find_sample(plan, "train", sample)
    for dataset in (-1, 1):
        with pytest.raises(UsageError, match="dataset must be 0 to 0, got "):
            find_dataset_sample(plan, "train", dataset, 0)


def test_the_summary_tells_shards_batches_and_tails(tmp_path):
    plan = plan_of({"train": document_source([7, 4])}, 2, global_batch_size=4)
    write_plan(plan_of({"train": index_source(12)}), tmp_path)
    assert inspect(tmp_path).to_json()["schema"] == "tokshard.inspect-plan/2"
    stream = PlanSummary.of(plan).to_json()["streams"]["train"]
    assert [(shard["samples"], shard["ids"]) for shard in stream["datasets"]] == [(7, [0, 7]), (4, [7, 11])]
    assert (stream["steps"], stream["batch_sizes"]) == (2, [[0, 0, 4]])
    assert stream["epoch_ranges"] == [{"first_epoch": 0, "epochs": 1, "read": 8, "dropped": 3, "repeated": 0}]
    assert (stream["mode"], stream["tail"], stream["shuffle"], stream["remaining"]) == (
        "single",
        "drop",
        [],
        0,
    )
    blended = plan_of({"train": index_source(6, datasets=2, blended=True)})
    assert PlanSummary.of(blended).to_json()["streams"]["train"]["datasets"][1]["ids"] is None


def facts_of(plan):
    """Return the facts about the stream for training, as ``shard-plan`` shows them."""
    _, stream, _ = describe_plan(plan, charts=False)
    (facts,) = stream.blocks
    return dict(facts.facts)


def test_the_way_from_the_data_to_the_ranks_is_described():
    source = document_source([30, 20])
    shuffle = Shuffling("windows", 4, 2)
    options = {"tail": "pad", "global_batch_size": 12, "bucket_buffer": 6, "epochs": 2}
    facts = facts_of(plan_of({"train": source}, mode="chunked", shuffle=shuffle, **options))
    seeded = "by tokshard.feistel/1, seed 1234, the same in each epoch"
    assert facts == {
        "samples": "120 planned, 50 in the data",
        "steps": "10 with a global batch size of 12",
        "each rank": "40 samples in micro-batches of 1",
        "sample": "one document",
        "blend": "none: 50 samples of 2 datasets, concatenated",
        "shuffle": (
            f"blocks of 4 samples in random order {seeded}, then windows of 8 samples shuffled {seeded}"
        ),
        "bucketing": (
            "windows of 6 samples in packs of 3 by tokshard.bucketing/1, seed 1234, different in each epoch, "
            "sorted by length"
        ),
        "assignment": ("chunked: 50 samples over 3 data-parallel ranks, runs of 17, 20 per rank; tail pad"),
        "repeated": "10 samples in each epoch",
    }


def test_a_plan_that_continues_describes_what_is_left():
    sizes = {"micro_batch_size": 2, "global_batch_size": 12, "steps": 3}
    source = document_source([30, 20])
    stopped = plan_of({"train": source}, mode="contiguous", shuffle=Shuffling("datasets"), **sizes)
    facts = facts_of(stopped)
    datasets = "2 datasets in random order by tokshard.sorted/1, seed 1234, the same in each epoch"
    assert facts["shuffle"] == datasets
    assert facts["remaining"] == "12 samples could be read after the last step"
    earlier = f"{datasets}, then runs of 16 samples for each of 3 data-parallel ranks"
    size = {"data_parallel": 2, "global_batch_size": 8}
    for mode, shuffle, how in (
        (None, earlier, "2 samples at a time, round-robin"),
        ("contiguous", f"{earlier}, then the remaining 38 of 50 samples", "runs of 19"),
    ):
        options = ReplanOptions(plan="plan", output="plan2", consumed_samples=12, mode=mode, **size)
        plan = continue_plan(stopped, options).plan
        facts = facts_of(plan)
        assert facts["shuffle"] == shuffle
        assignment = f"contiguous: 38 samples over 2 data-parallel ranks, {how}, 16 per rank; tail drop"
        assert facts["assignment"] == assignment
        assert facts["consumed"] == "12 samples before step 0"
        assert (facts["dropped"], facts["remaining"][:2]) == ("6 samples in each epoch", "8 ")
        summary = PlanSummary.of(plan)
        assert summary.continues == (stopped.plan_id,)
        assert (", then ".join(summary.streams["train"].shuffle), summary.streams["train"].remaining) == (
            shuffle,
            8,
        )


def test_a_sample_is_found_by_its_id_or_by_its_dataset(tmp_path):
    plan = plan_of({"train": index_source(12)})
    write_plan(plan, tmp_path)
    place = find_sample(plan, "train", 5)
    for question in ({"sample": 5}, {"dataset_sample": (place.dataset, place.dataset_sample)}):
        assert inspect_sample(str(tmp_path), **question).places == (place,)
    for path in (tmp_path, tmp_path / "plan.json", tmp_path / "rank-00002.json"):
        found = inspect(InspectOptions(path=path, sample=5))
        assert (found.plan_id, found.stream, found.places) == (plan.plan_id, "train", (place,))


def test_a_rank_manifest_is_its_rank_and_a_plan_is_the_plan(tmp_path):
    write_plan(plan_of({"train": index_source(12)}), tmp_path)
    assert inspect(tmp_path / "rank-00002.json").rank == 2
    assert inspect(InspectOptions(path=tmp_path, rank=1)).rank == 1
    assert inspect(tmp_path / "plan.json").topology.world_size == 3
    with pytest.raises(InputError, match="no dataset or file found"):
        inspect(tmp_path / "rank-00003.json")


def test_no_plan_is_both_a_blend_and_a_plan(tmp_path):
    write_plan(plan_of({"train": index_source(12)}), tmp_path)
    (tmp_path / "blend.json").touch()
    with pytest.raises(UsageError, match=r"holds plan\.json and blend\.json"):
        inspect(tmp_path)


@pytest.mark.parametrize(
    ("questions", "message"),
    [
        ({"step": 1, "sample": 2}, "--step cannot be used with --sample"),
        ({"rank": 1, "sample": 2}, "--rank cannot be used with --sample: the ranks that"),
        ({"epoch": 1}, "--epoch requires"),
        ({"dataset_sample": "1"}, "must be D:N, got '1'"),
    ],
)
def test_options_that_exclude_each_other_are_refused(questions, message):
    with pytest.raises(UsageError, match=message):
        InspectOptions(path="plan", **questions)


def test_options_that_have_no_meaning_for_a_product_are_refused(tmp_path):
    write_plan(plan_of({"train": index_source(12)}), tmp_path)
    with pytest.raises(UsageError, match="--document requires a dataset"):
        inspect(InspectOptions(path=tmp_path, document=0))
    with pytest.raises(UsageError, match="the rank is required"):
        inspect(InspectOptions(path=tmp_path, stream="valid"))
    with pytest.raises(UsageError, match="--html shows the whole product and cannot be used with --stream"):
        write_inspection_page(tmp_path / "page.html", InspectOptions(path=tmp_path, stream="valid"))
    Plain("uint16", [[[0, 1, 2]]]).write(tmp_path / "web")
    with pytest.raises(UsageError, match=r"--stream requires a plan, got .*web \(indexed dataset\)"):
        inspect(InspectOptions(path=tmp_path / "web", stream="valid"))


@pytest.fixture
def plans(tmp_path):
    paths = build(tmp_path)
    return {kind: read_plan(paths[kind]) for kind in ("plan", "runs")}


def test_the_shares_of_ranks_are_those_of_the_samples_that_they_read(plans):
    for plan in plans.values():
        for name, stream in plan.streams.items():
            read = everything(stream)
            counts, exact = count_by_rank(stream, range(stream.order.ranks))
            datasets, _ = Locator(stream.source).locate(read.ravel())
            looked_up = [np.bincount(row, minlength=2) for row in datasets.reshape(read.shape)]
            assert exact
            assert np.array_equal(counts, looked_up)
            summary = PlanSummary.of(plan).streams[name]
            by_rank = [dataset.planned_by_rank for dataset in summary.datasets]
            assert np.array_equal(np.transpose(by_rank), looked_up)
            estimated, exact = count_by_rank(stream, (1, 0), limit=2 * stream.order.samples_per_rank - 1)
            assert not exact
            assert np.abs(estimated - counts[[1, 0]]).max() < stream.order.samples_per_rank / 2


def test_a_rank_is_described_by_its_first_and_last_sample_and_its_datasets(plans, tmp_path):
    for name, plan in plans.items():
        write_plan(plan, tmp_path / f"copy-{name}")
        for rank in range(plan.topology.world_size):
            reads = inspect(InspectOptions(path=tmp_path / f"copy-{name}", rank=rank)).streams["train"]
            stream = plan.streams["train"]
            ids = everything(stream)[plan.topology.coordinates(rank).dp]
            assert (reads.first.sample, reads.last.sample) == (ids[0], ids[-1])
            assert (reads.first.index, reads.last.index) == (0, len(ids) - 1)
            assert reads.last == find_read(plan, rank, len(ids) - 1)
            assert sum(part.samples for part in reads.datasets) == len(ids) == reads.manifest.samples


def find_read(plan, rank, index):
    """Return a sample of a rank as a question for this sample alone is answered."""
    stream = plan.streams["train"]
    numbers = stream.order.numbers(rank, index, 1)
    (sample,) = stream.order.ids(numbers, stream.open_sort_key())
    return find_sample(plan, "train", int(sample), epoch=int(stream.order.epochs(numbers)[0]))


def test_a_rank_without_its_data_is_described_without_its_samples(plans, tmp_path):
    plan = plans["plan"]
    write_plan(plan, tmp_path / "copy")
    Path(plan.streams["train"].source.order.array_path("dataset_index")).unlink()
    options = InspectOptions(path=tmp_path / "copy", rank=0)
    reads = inspect(options).streams["train"]
    assert (reads.first, reads.last, reads.datasets) == (None, None, None)
    assert reads.problem.startswith("file of the plan not found: ")
    assert "its first and last sample and its datasets: file of the plan not found" in repr(
        open_product(options.path).sections(options)
    )


@pytest.mark.parametrize("tail", ["drop", "pad"])
@pytest.mark.parametrize("mode", ["contiguous", "chunked"])
@pytest.mark.parametrize("shuffle", ["none", "datasets"])
@pytest.mark.parametrize("sizes", [[13, 0, 7, 5], [1, 1]])
def test_the_lane_of_a_rank_has_the_samples_that_it_reads(mode, tail, shuffle, sizes):
    source = document_source(sizes)
    batch = {"micro_batch_size": 2, "tail": "pad"} if sum(sizes) < 6 else {"tail": tail}
    plan = plan_of({"train": source}, mode=mode, shuffle=Shuffling(shuffle), **batch)
    stream = plan.streams["train"]
    for rank, ids in enumerate(everything(stream)):
        ((lane,),) = (chart.lanes for chart in plan_charts.rank_chart(stream, rank))
        spans = [(round(span.start * source.total), round(span.stop * source.total)) for span in lane.spans]
        assert {sample for first, stop in spans for sample in range(first, stop)} == {*ids.tolist()}
        for span, (first, stop) in zip(lane.spans, spans, strict=True):
            assert source.bounds[span.color] <= first < stop <= source.bounds[span.color + 1]


def test_a_failing_disk_is_named_on_the_terminal_and_absent_data_only_on_the_page(plans, monkeypatch):
    plan = plans["plan"]
    Path(plan.streams["train"].source.order.array_path("dataset_index")).unlink()
    texts = repr([section.blocks for section in describe_plan(plan)])
    assert "Planned samples per dataset are unknown" not in texts
    hidden = repr([section.page_only for section in describe_plan(plan)])
    assert "Planned samples per dataset are unknown: file of the plan not found: " in hidden

    def failing(*_):
        raise StorageError("read", "x.npy", OSError(errno.EIO, "Input/output error"))

    monkeypatch.setattr(plan_charts, "count_planned", failing)
    monkeypatch.setattr(Locator, "locate", failing)
    texts = repr([section.blocks for section in describe_plan(plan)])
    assert "Planned samples per dataset are unknown: cannot read x.npy: Input/output error" in texts
