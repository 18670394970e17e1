"""Records of the plans that a plan continues."""

import json
from pathlib import Path

import pytest
from tokshard.ranks.history import StoppedPlan, reweighting_of, stops_of

from tokshard.core.codec import decode, encode
from tokshard.core.json_text import dump_json
from tokshard.errors import IntegrityError

GOLDEN = Path(__file__).parents[1] / "golden" / "formats" / "plan-history-2.json"


def golden():
    return decode(StoppedPlan, json.loads(GOLDEN.read_bytes()), str(GOLDEN))


def test_the_records_of_a_history_are_frozen():
    stopped = golden()
    assert dump_json(encode(stopped)) == GOLDEN.read_bytes()
    train = stopped.streams["train"]
    assert (train.step, train.consumed_samples) == (12, 96)
    assert train.reweighting.next_source_epochs == (1, 3)


def test_stops_are_listed_by_stream_and_the_last_reweighting_counts():
    stopped = golden()
    plain = StoppedPlan("0" * 64, {"valid": stopped.streams["valid"]})
    assert stops_of((stopped, plain), "train") == (stopped.streams["train"],)
    assert len(stops_of((stopped, plain), "valid")) == 2
    assert reweighting_of(stops_of((stopped,), "train")) == stopped.streams["train"].reweighting
    assert reweighting_of(stops_of((stopped, plain), "valid")) is None


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda train: train.update(step=13), "consumed_samples"),
        (lambda train: train.update(step=10**6), "step"),
        (lambda train: train.pop("step"), "step"),
        (lambda train: train.update(consumed_samples=-1), "consumed_samples"),
        (lambda train: train["reweighting"].update(weights=[1.0]), "next_source_epochs"),
        (lambda train: train["reweighting"].update(weights=["1", "2"]), "weights"),
        (lambda train: train["reweighting"].update(algorithm="another"), "algorithm"),
        (lambda train: train.update(extra=1), "extra"),
    ],
)
def test_records_that_contradict_themselves_are_refused(change, field):
    value = json.loads(GOLDEN.read_bytes())
    change(value["streams"]["train"])
    with pytest.raises(IntegrityError, match=field):
        decode(StoppedPlan, value, "plan.json")
