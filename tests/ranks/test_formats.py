"""Files of plans: golden files are read, and mean what they always meant."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from tokshard.core.codec import decode
from tokshard.dataset.products import PLAN_NAME
from tokshard.errors import IntegrityError
from tokshard.loader.worlds import LoaderState
from tokshard.ranks.manifests import RankManifest
from tokshard.ranks.plan import Plan, StoppedPlan, read_plan
from tokshard.ranks.sources import SOURCES_NAME
from tokshard.samples.index.packing import Packing

GOLDEN = Path(__file__).parents[1] / "golden/formats"
HISTORY = GOLDEN / "plan-history-2.json"


def copied(directory, plan, name, described_in):
    """Copy a golden plan and the file that describes its samples to where they belong; return the plan."""
    (directory / "plan").mkdir()
    shutil.copy(GOLDEN / plan, directory / "plan" / PLAN_NAME)
    (directory / described_in).parent.mkdir(exist_ok=True)
    shutil.copy(GOLDEN / name, directory / described_in)
    return read_plan(directory / "plan", roots={"/corpus": str(directory)})


def golden_plan(name):
    return Plan.from_bytes((GOLDEN / name).read_bytes(), name)


def test_the_golden_plan_reads_the_same_samples(tmp_path):
    plan = copied(tmp_path, "plan-2.json", "sources-2.json", f"plan/{SOURCES_NAME}")
    order = plan.streams["train"].order
    links = [link.TAG[1] for link in order.epoch_ranges[0].links]
    assert links == ["interleave", "bucketing", "shuffle"]
    ids = order.ids(np.arange(8), lambda samples: samples % 5)
    assert ids.tolist() == [16, 114, 121, 73, 13, 21, 113, 46]
    assert [plan.streams[name].source.kind for name in plan.streams] == ["blend", "index", "documents"]
    assert RankManifest.of(plan, 2).to_bytes() == (GOLDEN / "rank-2.json").read_bytes()


def test_a_golden_plan_of_the_windowed_shuffle_reads_the_same_samples():
    order = golden_plan("plan-windows-2.json").streams["train"].order
    assert [link.TAG[1] for link in order.epoch_ranges[0].links] == ["shuffle", "block-shuffle"]
    assert order.ids(order.numbers(1, 0, 8)).tolist() == [210, 77, 43, 18, 28, 22, 36, 70]
    assert order.ids(order.numbers(3, 100, 4)).tolist() == [197, 193, 207, 206]  # of the second epoch


def test_the_golden_state_of_a_loader_is_in_that_plan():
    plan = golden_plan("plan-windows-2.json")
    state = LoaderState.of(plan, "train", plan.streams["train"].order, 224)
    assert state.to_bytes() == (GOLDEN / "loader-2.json").read_bytes()


def test_a_golden_plan_names_its_blend(tmp_path):
    plan = copied(tmp_path, "plan-packed-2.json", "blend-2-packed.json", "mix/blend.json")
    web, code = plan.streams["train"].source.datasets
    assert (web.packing, code.packing) == (Packing(max_documents=8, pad_multiple=4), None)
    assert plan.sources.blend_id == json.loads((GOLDEN / "blend-2-packed.json").read_bytes())["id"]


@pytest.mark.parametrize("name", ["plan-tokenizer-2.json", "plan-mixed-2.json"])
def test_a_golden_plan_with_tokenizers_is_the_same_plan(name):
    plan = golden_plan(name)
    assert plan.plan_id == golden_plan("plan-2.json").plan_id
    assert (plan.tokenizer is None) == bool(plan.tokenizer_mismatches) == (name == "plan-mixed-2.json")
    repeated = [message for message in plan.messages if "--allow-tokenizer-mismatch" in message]
    assert len(repeated) == (name == "plan-mixed-2.json")


def test_golden_sources_are_those_of_the_golden_plan():
    content = (GOLDEN / "sources-2.json").read_bytes()
    assert golden_plan("plan-2.json").sources.sha256 == hashlib.sha256(content).hexdigest()


def test_the_golden_history_is_that_of_a_stop_between_steps():
    stopped = decode(StoppedPlan, json.loads(HISTORY.read_bytes()), str(HISTORY))
    train = stopped.streams["train"]
    assert (train.order.step_at(train.consumed_samples), train.consumed_samples) == (12, 96)
    assert (train.reweighting.draws, stopped.streams["valid"].reweighting) == ((61, 35), None)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda train: train.update(consumed_samples=97), "97"),
        (lambda train: train.update(consumed_samples=10**6), "consumed samples must be at most 800"),
        (lambda train: train.pop("consumed_samples"), "consumed_samples"),
        (lambda train: train.update(consumed_samples=-1), "consumed_samples"),
        (lambda train: train["reweighting"].update(weights=[1.0]), "draws and keys must have 1 items"),
        (lambda train: train["reweighting"].update(keys=[0]), "got 2 and 1"),
        (lambda train: train["reweighting"].update(draws=[-1, 0]), "draws"),
        (lambda train: train["reweighting"].update(weights=["1", "2"]), "weights"),
        (lambda train: train["reweighting"].update(algorithm="another"), "algorithm"),
        (lambda train: train.update(extra=1), "extra"),
    ],
)
def test_records_that_contradict_themselves_are_refused(change, field):
    value = json.loads(HISTORY.read_bytes())
    change(value["streams"]["train"])
    with pytest.raises(IntegrityError, match=field):
        decode(StoppedPlan, value, "plan.json")
