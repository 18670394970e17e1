"""``plan.json``: what is written is read again, and nothing else is."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokshard.ranks.history import StoppedPlan
from tokshard.ranks.summary import Composition

from support.assignments import planned, topology_of
from support.sample_sources import blend_sources, document_source, everything, index_source
from tokshard.dataset.products import PLAN_NAME
from tokshard.errors import IntegrityError, MissingFileError, TokshardError, UsageError
from tokshard.ranks.plan import Plan, PlanWarning, read_plan
from tokshard.ranks.publication import write_plan
from tokshard.ranks.schedule import BatchSchedule

PATH = "/runs/plan/plan.json"
NOT_READ = {"tool", "history", "warnings", "fingerprint", "path_prefix", "directory"}
"""Fields that do not determine what is read: any value of their kind is accepted."""


train_options = st.builds(
    dict,
    st.sampled_from(["none", "shards", "samples"]).map(lambda shuffle: {"shuffle": shuffle})
    | st.builds(dict, shuffle=st.just("windows"), shuffle_block=st.integers(1, 30)),
    mode=st.sampled_from(["single", "contiguous", "sequential", "chunked"]),
    tail=st.sampled_from(["drop", "pad"]),
    seed=st.integers(0, 2**32),
    shuffle_per_epoch=st.booleans(),
    micro_batch_size=st.integers(1, 3),
    epochs=st.integers(1, 3),
    bucket_buffer=st.sampled_from([None, 36, 72]),
    document_boundaries=st.booleans(),
)
ranks_options = st.fixed_dictionaries(
    dict.fromkeys(
        ("data_parallel", "tensor_parallel", "pipeline_parallel", "context_parallel"), st.integers(1, 3)
    )
    | {"order": st.sampled_from(["tp-cp-ep-dp-pp", "tp-dp-cp-ep-pp"])}
)


def small_plan(**options):
    sources = {
        "train": document_source([40, 23]),
        "valid": document_source([30], name="valid"),
    }
    return planned(sources, world_size=4, tensor_parallel=2, **options)


def written(plan):
    return json.loads(json.dumps(plan.stored_in("/runs/plan").to_json()))


def opened(value):
    return Plan.from_json(value, PATH).opened_from(PATH)


@settings(max_examples=80)
@given(ranks=ranks_options, train=train_options)
def test_a_plan_is_read_as_it_was_written(ranks, train):
    sources = {
        "train": document_source([40, 0, 41]),
        "valid.0": index_source(50, sequence_length=36, datasets=2, blended=True, name="valid.0"),
        "test": index_source(40, sequence_length=36, name="test"),
    }
    plan = planned(sources, **ranks, **train, eval_micro_batch_size=1)
    again = opened(written(plan))
    assert again == plan
    assert again.plan_id == plan.plan_id
    assert written(again) == written(plan)


def test_the_order_of_composition_is_fixed():
    plan = small_plan(shuffle="shards", bucket_buffer=20)
    shown = {name: dict(Composition.of(stream).lines()) for name, stream in plan.streams.items()}
    train = shown.pop("train")
    assert tuple(train) == ("sample", "blend", "shuffle", "bucketing", "assignment")
    assert all(tuple(lines) == ("sample", "blend", "shuffle", "assignment") for lines in shown.values())
    assert train["shuffle"].startswith("2 datasets in random order by tokshard.sorted/1")
    assert train["bucketing"].endswith("sorted by length")
    assert train["blend"] == "none: 63 samples of 2 datasets, concatenated"


CHANGES = [None, True, -1, 0, 1, 2, 7, 2**62, 2**63 - 1, 10**30, 1.5, "", "x", "train", [], [1], {}, {"a": 1}]


def leaves(value, path=()):
    yield path
    if isinstance(value, dict):
        for name, member in value.items():
            yield from leaves(member, (*path, name))
    elif isinstance(value, list):
        for place, element in enumerate(value):
            yield from leaves(element, (*path, place))


def changed(value, path, new):
    value = copy.deepcopy(value)
    inner = value
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = new
    return value


@pytest.mark.parametrize("kind", ["documents", "blend"])
def test_every_changed_field_is_refused_unless_nothing_depends_on_it(kind):
    source = document_source([5, 3]) if kind == "documents" else index_source(8, datasets=2, blended=True)
    options = {"shuffle": "windows", "shuffle_block": 3, "shuffle_window": 2, "bucket_buffer": 4}
    plan = planned({"train": source}, world_size=2, **options)
    value, tried = written(plan), 0
    for path in leaves(value):
        for new in CHANGES if path else ():
            mutant = changed(value, path, new)
            if json.dumps(mutant) == json.dumps(value):
                continue
            tried += 1
            try:
                found = opened(mutant)
            except IntegrityError:
                continue
            assert NOT_READ & set(path), path
            assert found.plan_id == plan.plan_id
    assert tried > 1500


def test_every_missing_and_every_additional_field_is_refused():
    value = written(small_plan(shuffle="shards"))
    free = {"tool", "fingerprint"}
    for path in leaves(value):
        inner = value
        for step in path:
            inner = inner[step]
        if not isinstance(inner, dict) or free & set(path):
            continue
        for name in [*inner, "unknown"]:
            mutant = copy.deepcopy(value)
            target = mutant
            for step in path:
                target = target[step]
            if name == "unknown":
                target[name] = 1
            else:
                del target[name]
            if path == ("streams",) and name == "valid":
                continue
            with pytest.raises(IntegrityError):
                opened(mutant)


def test_a_stream_taken_away_changes_the_plan():
    value = written(small_plan())
    del value["streams"]["valid"]
    with pytest.raises(IntegrityError, match="plan_id contradicts the other fields"):
        opened(value)


@pytest.mark.parametrize(
    "name", ["evaluation", "valid.", "valid.x", "train.0", "../train", "", "valid.123456"]
)
def test_streams_have_known_names(name):
    plan = small_plan()
    with pytest.raises(UsageError, match="invalid stream name"):
        Plan.of(plan.topology, {name: plan.streams["train"]})


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b'{"schema": "tokshard.plan/2"}',
        b'{"schema": "tokshard.plan/3"}',
        b'{"schema": "tokshard.plan/2", "schema": "tokshard.plan/2"}',
        b"[" * 100,
        b'{"schema": NaN}',
    ],
)
def test_what_is_no_plan_is_said_to_be_none(tmp_path, content):
    (tmp_path / PLAN_NAME).write_bytes(content)
    with pytest.raises(IntegrityError, match=r"plan\.json"):
        read_plan(tmp_path)


def test_a_cut_plan_is_refused_at_every_length(tmp_path):
    content = json.dumps(written(small_plan())).encode()
    for length in range(0, len(content) - 1, 37):
        (tmp_path / PLAN_NAME).write_bytes(content[:length])
        with pytest.raises(IntegrityError):
            read_plan(tmp_path)


def test_a_plan_that_is_not_there_is_said_with_a_hint(tmp_path):
    for path in (tmp_path, tmp_path / "no", tmp_path / "plan.json"):
        with pytest.raises(MissingFileError, match="plan not found:") as caught:
            read_plan(path)
        assert caught.value.hint == "build it with tokshard shard-plan"


def test_the_plan_id_depends_on_what_is_read_and_on_nothing_else():
    first = small_plan()
    assert first.plan_id == small_plan().plan_id
    different = [
        small_plan(seed=7, shuffle="samples"),
        small_plan(shuffle="samples"),
        small_plan(mode="contiguous"),
        small_plan(micro_batch_size=2),
        small_plan(document_boundaries=True),
        small_plan(consumed_samples=2),
        small_plan(steps=3),
        Plan.of(topology_of(8, tensor=4), first.streams),
        Plan.of(first.topology, {"train": first.streams["train"]}),
    ]
    assert len({plan.plan_id for plan in [first, *different]}) == len(different) + 1
    same = Plan.of(
        first.topology, first.streams, (StoppedPlan("a" * 64, {}),), (PlanWarning("no-bucketing"),)
    )
    assert same.plan_id == first.plan_id


def test_a_moved_plan_reads_the_data_that_moved_with_it_and_maps_the_rest(tmp_path):
    sources = blend_sources(tmp_path / "old")
    plan = planned(sources, world_size=2)
    write_plan(plan, tmp_path / "old")
    (tmp_path / "old").rename(tmp_path / "new")
    found = read_plan(tmp_path / "new")
    assert found.plan_id == plan.plan_id
    prefixes = [dataset.path_prefix for dataset in found.streams["train"].source.datasets]
    assert prefixes == [str(tmp_path / "new/data/web"), str(tmp_path / "new/data/code")]
    assert found.streams["train"].source.datasets[0].open_dataset().document_count == 60
    write_plan(plan, tmp_path / "elsewhere")
    with pytest.raises(MissingFileError):
        read_plan(tmp_path / "elsewhere").streams["train"].source.datasets[0].open_dataset()
    mapped = read_plan(tmp_path / "elsewhere", roots={str(tmp_path / "old"): str(tmp_path / "new")})
    assert mapped.streams["train"].source == found.streams["train"].source
    np.testing.assert_array_equal(everything(mapped.streams["train"]), everything(plan.streams["train"]))


def test_a_stream_whose_parts_do_not_fit_is_refused():
    plan = small_plan(bucket_buffer=20)
    stream = plan.streams["train"]
    with pytest.raises(UsageError, match="must have 64 samples, got 63"):
        replace(stream, source=document_source([64]), sort_key="length")
    with pytest.raises(UsageError, match="requires a sort key"):
        replace(stream, sort_key=None)
    with pytest.raises(UsageError, match="data-parallel size 4"):
        Plan.of(topology_of(4), {"train": stream})
    with pytest.raises(UsageError, match="at least 1 stream"):
        Plan.of(topology_of(4), {})


@given(st.binary(max_size=300))
def test_any_bytes_at_all_raise_nothing_but_our_errors(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "bytes.json"
    path.write_bytes(content)
    with pytest.raises(TokshardError):
        read_plan(path)


def test_schedules_come_back(tmp_path):
    sizes = {"rampup_batch_size": (4, 4, 30), "global_batch_size": 16}
    plan = planned({"train": document_source([90])}, world_size=2, **sizes)
    write_plan(plan, tmp_path)
    assert read_plan(tmp_path).streams["train"].assignment.schedule == BatchSchedule.rampup(4, 4, 30, 16)
