"""``plan.json`` and ``sources.json``: what is written is read again, and nothing else is."""

import copy
import hashlib
import json
import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.assignments import plan_with, planned, topology_of
from support.sample_sources import blend_directory, blend_sources, document_source, everything, index_source
from tokshard.dataset.products import PLAN_NAME, rank_name
from tokshard.errors import IntegrityError, MissingFileError, TokshardError, UsageError
from tokshard.ranks.choices import Shuffling
from tokshard.ranks.options import ShardPlanOptions
from tokshard.ranks.plan import Plan, StoppedPlan, read_plan
from tokshard.ranks.planning import shard_plan
from tokshard.ranks.publication import write_plan
from tokshard.ranks.schedule import BatchSchedule
from tokshard.ranks.sources import SOURCES_NAME, PlanSources, SourcesFile

NOT_READ = {"tool", "history", "warnings", "fingerprint", "path_prefix"}
"""Fields that do not determine what is read: any value of their kind is accepted."""


train_options = st.builds(
    dict,
    shuffle=st.sampled_from(["none", "datasets", "samples"])
    | st.builds(Shuffling, st.just("windows"), st.integers(1, 30)),
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


def sources_of(plan):
    return PlanSources({name: stream.source for name, stream in plan.streams.items()})


def written(plan):
    """Return the JSON of ``plan.json`` and of ``sources.json``."""
    value = json.loads(plan.to_bytes())
    value["sources"]["path"] = SOURCES_NAME
    return value, json.loads(sources_of(plan).stored_in("plan"))


def opened(directory, value, sources, *, seals=False):
    """Read the files of a plan; with ``seals`` after ``plan.json`` has got the digest of the sources."""
    content = json.dumps(sources).encode()
    if seals:
        digest = hashlib.sha256(content).hexdigest()
        value = value | {"sources": value["sources"] | {"sha256": digest}}
    (directory / PLAN_NAME).write_text(json.dumps(value))
    (directory / SOURCES_NAME).write_bytes(content)
    return read_plan(directory)


@settings(max_examples=80)
@given(ranks=ranks_options, train=train_options)
def test_a_plan_is_read_as_it_was_written(tmp_path_factory, ranks, train):
    sources = {
        "train": document_source([40, 0, 41]),
        "valid.0": index_source(50, sequence_length=36, datasets=2, blended=True, name="valid.0"),
        "test": index_source(40, sequence_length=36, name="test"),
    }
    directory = tmp_path_factory.getbasetemp() / "written"
    plan = planned(sources, **ranks, **train, eval_micro_batch_size=1, output=str(directory))
    write_plan(plan, directory, force=True)
    again = read_plan(directory)
    assert again == plan
    assert again.plan_id == plan.plan_id
    assert sources_of(again) == sources_of(plan)
    assert json.loads((directory / PLAN_NAME).read_bytes()) == written(again)[0]


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


def mutants(value):
    """Yield each path in a value, and the value with something else there."""
    for path in leaves(value):
        for new in CHANGES if path else ():
            mutant = changed(value, path, new)
            if json.dumps(mutant) != json.dumps(value):
                yield path, mutant


@pytest.mark.parametrize("kind", ["documents", "blend"])
def test_every_changed_field_is_refused_unless_nothing_depends_on_it(tmp_path, kind):
    source = document_source([5, 3]) if kind == "documents" else index_source(8, datasets=2, blended=True)
    plan = planned({"train": source}, world_size=2, shuffle="windows:3:2", bucket_buffer=4)
    value, sources = written(plan)
    cases = [(path, mutant, sources) for path, mutant in mutants(value)]
    cases += [(path, value, mutant) for path, mutant in mutants(sources)]
    assert len(cases) > 1500
    for path, of_plan, of_sources in cases:
        try:
            found = opened(tmp_path, of_plan, of_sources, seals=of_plan is value)
        except (IntegrityError, MissingFileError):
            continue
        assert NOT_READ & set(path), path
        assert found.plan_id == plan.plan_id


def test_every_missing_and_every_additional_field_is_refused(tmp_path):
    value, sources = written(small_plan(shuffle="datasets"))
    for number, whole in enumerate((value, sources)):
        for path in leaves(whole):
            part = whole
            for step in path:
                part = part[step]
            if not isinstance(part, dict) or {"tool", "fingerprint"} & set(path):
                continue
            for name in [*part, "unknown"]:
                mutant = copy.deepcopy(whole)
                target = mutant
                for step in path:
                    target = target[step]
                if name == "unknown":
                    target[name] = 1
                else:
                    del target[name]
                files = [value, sources]
                files[number] = mutant
                with pytest.raises(IntegrityError):
                    opened(tmp_path, *files, seals=number == 1)


def test_a_stream_taken_away_changes_the_plan(tmp_path):
    value, sources = written(small_plan())
    del value["streams"]["valid"]
    with pytest.raises(IntegrityError, match="plan_id contradicts the other fields"):
        opened(tmp_path, value, sources)


def test_sources_that_changed_or_went_are_said_with_a_hint(tmp_path):
    write_plan(small_plan(), tmp_path)
    path = tmp_path / SOURCES_NAME
    path.write_bytes(path.read_bytes() + b" ")
    with pytest.raises(IntegrityError, match=r"sources\.json has changed since the plan was built") as caught:
        read_plan(tmp_path)
    assert caught.value.hint == "restore the file, or run tokshard shard-plan again with --force"
    path.unlink()
    with pytest.raises(MissingFileError, match=r"file of the plan not found: .*sources\.json") as caught:
        read_plan(tmp_path)
    assert "--moved OLD=NEW" in caught.value.hint


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (lambda path: path.unlink(), MissingFileError, r"file of the plan not found: .*blend\.json"),
        (
            lambda path: path.write_bytes(path.read_bytes() + b" "),
            IntegrityError,
            r"blend\.json has changed since the plan was built",
        ),
    ],
)
def test_a_blend_that_changed_or_went_is_said(tmp_path, change, error, said):
    blend = blend_directory(tmp_path)
    options = {"sources": (str(blend),), "output": str(tmp_path / "plan"), "data_parallel": 2}
    plan = shard_plan(ShardPlanOptions(**options)).plan
    assert sorted(os.listdir(tmp_path / "plan")) == [PLAN_NAME, rank_name(0), rank_name(1)]
    assert read_plan(tmp_path / "plan") == plan
    assert plan.sources.path == str(blend / "blend.json")
    change(blend / "blend.json")
    with pytest.raises(error, match=said) as caught:
        read_plan(tmp_path / "plan")
    assert caught.value.hint


def test_the_sources_of_another_plan_are_refused(tmp_path):
    value, _ = written(small_plan())
    _, others = written(planned({"train": document_source([40, 24])}, world_size=2))
    with pytest.raises(IntegrityError, match="samples of train are not those that the plan was built for"):
        opened(tmp_path, value, others, seals=True)


def test_a_plan_of_a_trillion_samples_is_small():
    source = index_source(10**9, datasets=1000)
    options = {"world_size": 16_384, "tensor_parallel": 8, "shuffle": "windows", "epochs": 3}
    plan = planned({"train": source}, global_batch_size=4096, **options)
    assert plan.streams["train"].source.total == 10**12
    assert len(plan.to_bytes()) < 10_000


@pytest.mark.parametrize(
    "name", ["evaluation", "valid.", "valid.x", "train.0", "../train", "", "valid.123456"]
)
def test_streams_have_known_names(name):
    plan = small_plan()
    with pytest.raises(UsageError, match="invalid stream name"):
        plan_with(plan.topology, {name: plan.streams["train"]})


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
    content = small_plan().to_bytes()
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
        plan_with(topology_of(8, tensor=4), first.streams),
        plan_with(first.topology, {"train": first.streams["train"]}),
    ]
    assert len({plan.plan_id for plan in [first, *different]}) == len(different) + 1
    elsewhere = SourcesFile("/mix/blend.json", "b" * 64, "c" * 64)
    history = (StoppedPlan("a" * 64, {}),)
    same = Plan.of(first.topology, elsewhere, first.streams, history, ("a warning",))
    assert same.plan_id == first.plan_id


def test_a_moved_plan_reads_the_data_that_moved_with_it_and_maps_the_rest(tmp_path):
    sources = blend_sources(tmp_path / "old")
    plan = planned(sources, world_size=2, output=str(tmp_path / "old"))
    write_plan(plan, tmp_path / "old")
    (tmp_path / "old").rename(tmp_path / "new")
    found = read_plan(tmp_path / "new")
    assert found.plan_id == plan.plan_id
    prefixes = [dataset.path_prefix for dataset in found.streams["train"].source.datasets]
    assert prefixes == [str(tmp_path / "new/data/web"), str(tmp_path / "new/data/code")]
    assert found.streams["train"].source.datasets[0].open_dataset().document_count == 60
    write_plan(planned(sources, world_size=2), tmp_path / "elsewhere")
    with pytest.raises(MissingFileError):
        read_plan(tmp_path / "elsewhere").streams["train"].source.datasets[0].open_dataset()
    mapped = read_plan(tmp_path / "elsewhere", roots={str(tmp_path / "old"): str(tmp_path / "new")})
    assert mapped.streams["train"].source == found.streams["train"].source
    np.testing.assert_array_equal(everything(mapped.streams["train"]), everything(plan.streams["train"]))


def test_a_stream_whose_parts_do_not_fit_is_refused():
    plan = small_plan(bucket_buffer=20)
    stream = plan.streams["train"]
    with pytest.raises(UsageError, match="must have 64 samples, got 63"):
        stream.over(document_source([64]))
    with pytest.raises(UsageError, match="do not support the sort key 'length'") as caught:
        stream.over(index_source(63))
    assert caught.value.hint == "use one of pieces"
    with pytest.raises(UsageError, match="requires a sort key"):
        replace(stream, sort_key=None)
    with pytest.raises(UsageError, match="ranks of train must be the data-parallel size 4, got 2"):
        plan_with(topology_of(4), {"train": stream})
    with pytest.raises(UsageError, match="at least 1 stream"):
        plan_with(topology_of(4), {})


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
    assert read_plan(tmp_path).streams["train"].order.schedule == BatchSchedule.rampup(4, 4, 30, 16)
