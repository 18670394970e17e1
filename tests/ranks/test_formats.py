"""Files of plans: version 1 of each format is frozen in a golden file."""

import json
from pathlib import Path

import pytest

from tokshard.ranks.plan import Plan
from tokshard.samples.index.packing import Packing

GOLDEN = Path(__file__).parents[1] / "golden/formats"


def test_the_golden_plan_has_its_plan_id():
    value = json.loads((GOLDEN / "plan-2.json").read_text())
    plan = Plan.from_json({**value, "plan_id": value["plan_id"]}, "plan.json")
    assert plan.plan_id == value["plan_id"]
    assert {
        transform.TAG[1] for transform in plan.streams["train"].assignment.epoch_ranges[0].order.transforms
    } == {
        "bucketing",
        "shuffle",
    }


def test_a_golden_plan_of_the_windowed_shuffle_reads_the_same_samples():
    path = GOLDEN / "plan-windows-2.json"
    plan = Plan.from_bytes(path.read_bytes(), str(path))
    assert plan.to_bytes() == path.read_bytes()
    assignment = plan.streams["train"].assignment
    transforms = assignment.epoch_ranges[0].order.transforms
    assert [transform.TAG[1] for transform in transforms] == ["shuffle", "block-shuffle"]
    assert assignment.ids(1, 0, 8).tolist() == [210, 77, 43, 18, 28, 22, 36, 70]
    assert assignment.ids(3, 100, 4).tolist() == [197, 193, 207, 206]  # of the second epoch


def test_a_golden_plan_of_packed_samples_is_read_and_written_byte_for_byte():
    path = GOLDEN / "plan-packed-2.json"
    plan = Plan.from_bytes(path.read_bytes(), str(path))
    assert plan.to_bytes() == path.read_bytes()
    web, code = plan.streams["train"].source.datasets
    assert (web.packing, code.packing) == (Packing(max_documents=8, pad_multiple=4), None)


@pytest.mark.parametrize("name", ["plan-tokenizer-2.json", "plan-mixed-2.json"])
def test_a_golden_plan_with_tokenizers_is_the_same_plan(name):
    path = GOLDEN / name
    plan = Plan.from_bytes(path.read_bytes(), str(path))
    assert plan.to_bytes() == path.read_bytes()
    assert plan.plan_id == json.loads((GOLDEN / "plan-2.json").read_text())["plan_id"]
    assert (plan.tokenizer is None) == bool(plan.tokenizer_mismatches) == (name == "plan-mixed-2.json")
    repeated = [message for message in plan.messages if "--allow-tokenizer-mismatch" in message]
    assert len(repeated) == (name == "plan-mixed-2.json")
