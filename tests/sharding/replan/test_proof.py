"""Proofs that are wrong are found to be wrong."""

import json
from dataclasses import replace

import numpy as np
import pytest

from support.replanned_plans import continued, plan_of, source_of, write_blend
from tokshard.core.codec import decode, encode
from tokshard.errors import IntegrityError
from tokshard.sharding.assignment import Assignment, EpochRange
from tokshard.sharding.discovery import RequestedSamples, open_sources
from tokshard.sharding.history import StoppedPlan
from tokshard.sharding.intervals import Intervals
from tokshard.sharding.layouts import Striped
from tokshard.sharding.order import SampleOrder, Selection
from tokshard.sharding.plan import Plan, read_plan
from tokshard.sharding.publication import write_plan
from tokshard.sharding.replan.proof import verify_replan
from tokshard.sharding.replan.reweighting import OrderFiles, ReweightedOrder
from tokshard.sharding.replan.source_progress import SourceEpochTable, progress_of_rows
from tokshard.sharding.schedule import BatchSchedule


@pytest.fixture
def stopped():
    return plan_of(source_of(300, 100), 4, batch=8, epochs=2)


@pytest.fixture
def after(stopped):
    return continued(stopped, 96, 2)


def with_train(plan, assignment):
    streams = {"train": replace(plan.streams["train"], assignment=assignment)}
    return Plan(plan.topology, streams, plan.history)


def with_history(plan, change):
    value = json.loads(json.dumps(encode(plan.history[-1])))
    change(value["streams"]["train"])
    last = decode(StoppedPlan, value, "plan.json")
    return Plan(plan.topology, plan.streams, (*plan.history[:-1], last))


def codes(plan, **options):
    return {finding.code for finding in verify_replan(plan, **options)}


def rest_of(pairs, consumed=96, total=400):
    kept = Intervals.of(pairs)
    order = SampleOrder(total, (Selection(total, kept),))
    epoch_range = EpochRange(order, Striped(kept.count, 2, 1, kept.count // 8 * 4))
    return Assignment((epoch_range,), 1, BatchSchedule.constant(8), kept.count // 8, consumed)


def test_a_right_proof_has_no_findings(stopped, after):
    assert verify_replan(after, parent=stopped, deep=True) == []
    assert verify_replan(stopped, deep=True) == []


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        (rest_of([(96, 400)]), set()),
        (rest_of([(96, 400)], consumed=104), {"not-continued"}),
        (rest_of([(88, 400)]), {"read-twice", "wrong-count"}),
        (rest_of([(95, 399)]), {"read-twice", "wrong-count"}),
        (rest_of([(0, 8), (104, 400)]), {"read-twice"}),
        (rest_of([(104, 400)]), {"read-twice", "wrong-count"}),
    ],
)
def test_other_samples_than_the_unread_ones_are_found(assignment, expected):
    stopped = plan_of(source_of(300, 100), 4, batch=8)
    after = continued(stopped, 96, 2)
    found = with_train(after, assignment)
    assert codes(found) == expected
    if assignment.epoch_ranges[0].order.ids(np.array([0]), 0)[0] < 96:
        assert any("had already been read" in finding.message for finding in verify_replan(found, deep=True))


def test_an_epoch_that_is_read_again_is_found(after):
    assignment = after.streams["train"].assignment
    first, second = assignment.epoch_ranges
    again = replace(assignment, epoch_ranges=(first, replace(second, epochs=2)))
    assert codes(with_train(after, again)) == {"read-twice"}
    again = replace(assignment, epoch_ranges=(second,), steps=5)
    assert "wrong-count" in codes(with_train(after, again))


@pytest.mark.parametrize("name", ["samples", "read_earlier", "read", "planned", "unread"])
def test_a_wrong_count_is_found(after, name):
    def change(stream):
        stream["proof"]["sources"][0][name] += 1

    assert codes(with_history(after, change)) == {"wrong-count"}


def test_a_history_that_was_damaged_is_found(after):
    def change(stream):
        stream["step"] += 1

    with pytest.raises(IntegrityError, match=r"plan\.json"):
        with_history(after, change)
    for value in (None, {}, {"plan_id": "0" * 64}, {"plan_id": "x", "streams": {}}):
        with pytest.raises(IntegrityError, match=r"plan\.json"):
            decode(StoppedPlan, value, "plan.json")
    good = json.loads(json.dumps(encode(after.history[-1])))
    assert encode(decode(StoppedPlan, good, "plan.json")) == good


@pytest.fixture
def mixed(tmp_path):
    path = write_blend(tmp_path, {"web": 0.5, "code": 0.5}, 60, tokens={"web": 350, "code": 280})
    plan = plan_of(open_sources([str(path)], RequestedSamples())["train"], 2, batch=4)
    blend = f"1 {tmp_path}/web 3 {tmp_path}/code"
    after = continued(plan, 24, output=tmp_path / "plan2", blend=blend)
    write_plan(after, tmp_path / "plan2")
    return plan, after, tmp_path


def rewritten(mixed, change):
    """Write the plan again with changed arrays, and fingerprints that fit them."""
    _, after, directory = mixed
    stream = after.streams["train"]
    (continued,) = after.history
    stopped = continued.streams["train"]
    record = stopped.reweighting
    arrays = {name: np.array(array) for name, array in stream.source.order.open().items()}
    for name in ("unread", "source_epochs"):
        arrays[name] = np.load(stream.source.order.path(name))
    change(arrays)
    sizes = [dataset.index.epochs.samples for dataset in stream.source.datasets]
    table = SourceEpochTable(arrays["source_epochs"], stream.source.total)
    order = ReweightedOrder(arrays["dataset_index"], arrays["dataset_sample_index"], table)
    progress = progress_of_rows(arrays["unread"], sizes, record.next_source_epochs, "unread")
    made = OrderFiles.of(
        order,
        progress,
        record.weights,
        record.seed,
        directory=str(directory / "plan2"),
        stream="train",
        made_from="a test",
    )
    made.write()
    history = replace(continued, streams={"train": replace(stopped, reweighting=made.record)})
    source = replace(stream.source, order=made.blend)
    return Plan(after.topology, {"train": replace(stream, source=source)}, (history,))


def test_a_right_mixture_has_no_findings(mixed):
    before, after, directory = mixed
    assert verify_replan(after, parent=before, deep=True) == []
    assert verify_replan(read_plan(directory / "plan2"), parent=before) == []
    assert verify_replan(rewritten(mixed, lambda _: None), parent=before) == []


def test_a_sample_that_was_read_before_is_found(mixed):
    def read_again(arrays):
        arrays["dataset_sample_index"][0] = 0

    def twice(arrays):
        first, second = np.flatnonzero(arrays["dataset_index"] == 0)[:2]
        arrays["dataset_sample_index"][second] = arrays["dataset_sample_index"][first]

    def other_source(arrays):
        place = np.flatnonzero(arrays["dataset_index"] == 0)[3]
        arrays["dataset_index"][place] = 1

    for change in (read_again, twice):
        assert "read-twice" in codes(rewritten(mixed, change))
    assert codes(rewritten(mixed, other_source)) & {"read-twice", "wrong-count"}


def test_unread_samples_that_the_plan_before_has_read_are_found(mixed):
    def unread_again(arrays):
        arrays["unread"][0, 2] -= 1

    found = rewritten(mixed, unread_again)
    assert codes(found) == {"wrong-count"}
    assert codes(found, parent=mixed[0]) == {"wrong-count", "wrong-progress"}


def test_files_that_have_changed_are_found(mixed):
    _, after, _ = mixed
    path = after.streams["train"].source.order.path("source_epochs")
    with open(path, "r+b") as file:
        file.seek(130)
        file.write(b"\x01")
    assert codes(after) == {"unreadable"}


def test_rows_that_cannot_be_are_integrity_errors():
    good = np.array([[0, 0, 2, 5], [0, 1, 0, 7], [1, 0, 3, 4]], dtype=np.int64)
    assert [row.unread for row in progress_of_rows(good, [7, 9], [2, 1], "f")] == [10, 1]
    for place, value in [((0, 0), -1), ((0, 0), 2), ((0, 2), 5), ((1, 3), 8), ((1, 1), 2), ((2, 0), 0)]:
        wrong = good.copy()
        wrong[place] = value
        with pytest.raises(IntegrityError, match="unread"):
            progress_of_rows(wrong, [7, 9], [2, 1], "f")
    source_epochs = np.array([[0, 0, 0], [0, 1, 5], [2, 3, 1]], dtype=np.int64)
    assert SourceEpochTable.checked(source_epochs, 9, "f").of(
        np.array([4, 5, 8]), np.array([0, 0, 2])
    ).tolist() == [
        0,
        1,
        3,
    ]
    for place, value in [((0, 2), 9), ((1, 2), 0), ((1, 1), 0), ((0, 0), -1), ((2, 0), 0)]:
        wrong = source_epochs.copy()
        wrong[place] = value
        with pytest.raises(IntegrityError, match="source epochs"):
            SourceEpochTable.checked(wrong, 9, "f")
