"""A plan with another world size: what all ranks together read, from states and with sizes of others."""

import os
import pickle
from types import SimpleNamespace

import numpy as np
import pytest

from support.assignments import topology_of
from support.loader_plans import open_plan, plan_for, same, source_of
from tokshard.errors import ResumeMismatchError, UsageError
from tokshard.loader import BatchOptions, RankLoader
from tokshard.ranks.links import Bucketing
from tokshard.ranks.schedule import BatchSchedule

WORLD = {"data_parallel": 3, "micro_batch_size": 2, "global_batch_size": 12}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Blends of 2,000 and 1,000 samples, and a cache of plans over them."""
    directory = tmp_path_factory.mktemp("worlds")
    sources = {}
    for size in (2000, 1000):
        place = directory / str(size)
        place.mkdir()
        sources[size] = source_of(
            place, datasets=3, documents=size, weights=[0.5, 0.3, 0.2], size=size, sequence_length=4
        )
    made = {}

    def plan(size, ranks, micro, batch, **options):
        key = (size, ranks, micro, batch, str(options))
        if key not in made:
            made[key] = plan_for(
                directory,
                source=sources[size],
                topology=topology_of(ranks),
                micro=micro,
                batch=batch,
                **options,
            )
        return made[key]

    return SimpleNamespace(plan=plan, directory=directory, sources=sources)


def state_at(path, consumed, rank=0):
    """Return the state of a rank of a plan after some consumed samples."""
    loader = open_plan(path, rank)
    loader.seek(consumed)
    return loader.state_dict()


def read(loaders, micro_batches=None):
    """Return the ids that all ranks read from where they stand; compare the first and last batches."""
    ids = []
    start = loaders[0].position
    stop = len(loaders[0]) if micro_batches is None else start + micro_batches
    for number in range(start, stop):
        step = loaders[0].step
        for loader in loaders:
            assert (loader.position, loader.step) == (number, step)
            ids += loader.sample_ids(number)
            if number in {start, stop - 1}:
                assert same(next(loader), loader[number])
            else:
                loader.skip()
    return ids


def continued(path, ranks, state, **settings):
    """Return the loaders of all ranks, which continue from a state."""
    loaders = [RankLoader.open(path, rank, **settings) for rank in range(ranks)]
    for loader in loaders:
        loader.load_state_dict(state)
    return loaders


def rest_of_epochs(data, size, point, batch, epochs, **options):
    """Return the ids from a point on: the rest of its epoch and the next ones in whole batches."""
    whole = open_plan(data.plan(size, 1, 1, 1, epochs=epochs, **options))
    order = whole.order
    ids = order.ids(np.arange(order.samples), whole.plan.streams["train"].open_sort_key()).tolist()
    epoch, position = point
    expected = []
    while epoch < epochs:
        count = (size - position) // batch * batch
        first = epoch * size + position
        expected += ids[first : first + count]
        epoch += 1
        position = 0
    return expected


@pytest.mark.parametrize("way", ["plan", "open"])
def test_three_ranks_read_what_four_have_left(data, way):
    fours = data.plan(2000, 4, 2, 8)
    before = read([open_plan(fours, rank) for rank in range(4)], 100)
    state = state_at(fours, 800, rank=3)
    path = data.plan(2000, 3, 2, 12) if way == "plan" else fours
    loaders = continued(path, 3, state, **({} if way == "plan" else WORLD))
    first = loaders[0]
    assert (first.step, first.steps, first.consumed_samples, len(first)) == (0, 100, 800, 200)
    assert first.micro_batches(0) == range(2)
    after = read(loaders)
    assert before == list(range(800))
    assert after == list(range(800, 2000))
    assert {loader.consumed_samples for loader in loaders} == {2000}
    # Their own states mean the same everywhere.
    assert loaders[2].state_dict() == first.state_dict()
    first.seek(812)
    assert (first.step, first.position, first.sample_ids(2)) == (1, 2, [812, 813])
    assert first.batch(1)["tokens"].shape[0] == 4


@pytest.mark.parametrize("consumed", [800, 803, 996])
def test_consumed_samples_are_a_position_in_any_world(data, consumed):
    """What Megatron's checkpoint has is the number alone, at the end of a step of some world."""
    threes = data.plan(2000, 3, 2, 12)
    loaders = [open_plan(threes, rank) for rank in range(3)]
    for loader in loaders:
        loader.seek(consumed)
    step = 0 if consumed % 12 else consumed // 12
    assert {(loader.consumed_samples, loader.step) for loader in loaders} == {(consumed, step)}
    expected = list(range(consumed, consumed + (2000 - consumed) // 12 * 12))
    assert read(loaders) == expected
    for loader in loaders:
        loader.seek(24)
    assert loaders[0].step == 2
    assert read(loaders, 2) == list(range(24, 36))


def test_another_world_from_the_start_is_that_of_a_plan_for_it(data):
    fours = data.plan(2000, 4, 2, 8)
    planned = data.plan(2000, 3, 2, 12)
    for rank in range(3):
        sizes = {name: np.int64(size) for name, size in WORLD.items()}
        loader = RankLoader.open(fours, np.int64(rank), **sizes)
        expected = open_plan(planned, rank)
        assert loader.order == expected.order
        assert same(loader[7], expected[7])
        assert same(loader.batch(9), expected.batch(9))


ORDERS = {
    "in order": {},
    "windows": {"shuffle": "windows"},
    "bucketing": {"links": (Bucketing(1000, 60, 12, 3, per_epoch=True),), "sort_key": "pieces"},
}


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("consumed", [492, 984, 996, 996 + 492, 2 * 996, 2 * 996 + 984])
def test_epochs_go_on_in_whole_batches_of_the_new_world(data, name, consumed):
    options = ORDERS[name]
    fours = data.plan(1000, 4, 3, 12, epochs=3, **options)
    threes = data.plan(1000, 3, 3, 9, epochs=3, **options)
    state = state_at(fours, consumed)
    point = divmod(consumed, 996)
    assert (state["epoch"], state["position"]) == point
    expected = rest_of_epochs(data, 1000, point, 9, 3, **options)
    loaders = continued(threes, 3, state)
    assert loaders[0].consumed_samples == consumed
    if consumed % 9 or point[0]:
        assert loaders[0].step == 0
    assert loaders[0].consumed_samples + len(expected) == loaders[0].order.consumed_after(loaders[0].steps)
    assert read(loaders) == expected


def test_a_world_may_change_twice_and_inside_a_step(data):
    state = state_at(data.plan(1000, 4, 3, 12, epochs=3), 996 + 492)
    loaders = continued(data.plan(1000, 3, 3, 9, epochs=3), 3, state)
    assert read(loaders, 10) == list(range(492, 582))
    # Two micro-batches of three in a step of 16.
    pairs = continued(data.plan(1000, 2, 2, 16, epochs=3), 2, loaders[1].state_dict())
    assert (pairs[0].step, pairs[0].steps) == (0, (1000 - 582) // 16 + 1000 // 16)
    assert read(pairs, 4 + 2) == list(range(582, 606))
    state = pairs[0].state_dict()
    assert (state["step_start"], state["consumed_samples"]) == (996 + 582 + 16, 996 + 582 + 24)
    # Of one rank, steps are counted from the start of the step under way.
    single = continued(data.plan(1000, 1, 4, 8, epochs=3), 1, state)
    assert (single[0].step, single[0].position) == (1, 2)
    assert read(single) == [*range(606, 606 + (1000 - 598) // 8 * 8 - 8), *range(1000)]
    with pytest.raises(UsageError, match="is inside a step, and no micro-batch of 9 samples"):
        continued(data.plan(1000, 3, 3, 9, epochs=3), 1, state)


def test_a_step_under_way_goes_on_at_its_micro_batch(data):
    loader = open_plan(data.plan(1000, 4, 2, 24))
    loader.seek(24 + 8)
    pairs = continued(data.plan(1000, 2, 2, 16), 2, loader.state_dict())
    assert (pairs[0].step, pairs[0].position, pairs[0].consumed_samples) == (0, 2, 32)
    assert pairs[0].state_dict()["step_start"] == 24
    assert read(pairs) == list(range(32, 24 + (1000 - 24) // 16 * 16))


def test_ramp_up_goes_on_by_consumed_samples(data):
    fours = data.plan(1000, 4, 2, 8, schedule=BatchSchedule.parse("0:8 80:16"))
    schedule = BatchSchedule.parse("0:6 90:18")
    threes = data.plan(1000, 3, 2, 18, schedule=schedule)
    for consumed in (40, 80, 96, 400):
        loaders = continued(threes, 3, state_at(fours, consumed))
        first = loaders[0]
        start = first.consumed_samples
        assert start == consumed
        for step in range(first.step, first.step + 12):
            count = sum(len(loader.sample_ids(0)) for loader in loaders) * len(first.micro_batches(step))
            assert count == schedule.size_at(start)
            start += count
        ids = read(loaders)
        assert ids == list(range(consumed, consumed + len(ids)))
        assert 1000 - 18 < consumed + len(ids) <= 1000


def refused(path, state, error=ResumeMismatchError, **settings):
    """Return the error of a state that cannot be loaded, whose hint is the command that continues it."""
    loader = RankLoader.open(path, 0, **settings)
    before = loader.state_dict()
    with pytest.raises(error) as caught:
        loader.load_state_dict(state)
    assert "tokshard replan OLD_PLAN" in caught.value.hint
    assert f"--consumed-samples {state['consumed_samples']} " in caught.value.hint
    assert loader.state_dict() == before
    return str(caught.value)


def test_what_cannot_be_continued_names_replan(data):
    state = state_at(data.plan(2000, 4, 2, 8), 800)
    contiguous = data.plan(2000, 3, 2, 12, mode="contiguous")
    assert "independent of the world size only in mode single" in refused(contiguous, state)
    own_parts = state_at(data.plan(2000, 4, 2, 8, mode="contiguous"), 800)
    assert "only in mode single" in refused(data.plan(2000, 3, 2, 12), own_parts)
    shuffled = data.plan(2000, 3, 2, 12, shuffle="windows")
    assert "do not read the same samples in the same order" in refused(shuffled, state)
    later = data.plan(2000, 3, 2, 12, consumed_samples=1200, skipped=1200)
    assert "the plan starts at 1200 consumed samples, but the state is at 800" in refused(later, state)
    end = state_at(data.plan(1000, 4, 3, 12, epochs=2), 2 * 996)
    left = refused(data.plan(1000, 3, 3, 9, epochs=2), end, error=UsageError)
    assert "(4) are fewer than one batch of 9" in left


def test_a_loader_in_another_world_crosses_processes(data):
    state = state_at(data.plan(2000, 4, 2, 8), 800)
    for path, settings in ((data.plan(2000, 3, 2, 12), {}), (data.plan(2000, 4, 2, 8), WORLD)):
        (loader,) = continued(path, 1, state, **settings)
        for _ in range(3):
            next(loader)
        other = pickle.loads(pickle.dumps(loader))
        assert (other.position, other.step, other.consumed_samples) == (3, 1, 818)
        assert (other.order, other.origin) == (loader.order, loader.origin)
        assert same(next(other), next(loader))
        again = pickle.loads(pickle.dumps(other.clone()))
        assert again.state_dict() == loader.state_dict()


def test_a_padding_sample_has_no_loss(data):
    options = BatchOptions(num_tokens=True, document_ids=True)
    for settings in ({}, WORLD):
        loader = RankLoader.open(data.plan(2000, 4, 2, 8), 1, options=options, **settings)
        batch = loader[None]
        assert batch["tokens"].tolist() == open_plan(data.plan(2000, 4, 2, 8))[0]["tokens"][:1].tolist()
        assert batch["loss_mask"].tolist() == [[0.0] * 4]
        assert batch["num_tokens"].tolist() == [0]
        assert loader.position == 0
    bare = RankLoader.open(data.plan(2000, 4, 2, 8), 1, options=BatchOptions(tokens_only=True))
    with pytest.raises(UsageError, match="requires a loss mask") as caught:
        bare[None]
    assert caught.value.hint == "omit tokens_only"


def test_sizes_of_another_world_are_checked(data):
    path = data.plan(2000, 4, 2, 8)

    def wrong(rank=0, place=path, **settings):
        with pytest.raises(UsageError) as caught:
            RankLoader.open(place, rank, **settings)
        return caught.value

    assert str(wrong(**WORLD | {"global_batch_size": 8})) == (
        "the global batch size must be divisible by micro-batch size x data-parallel size = 2 x 3 = 6, got 8"
    )
    assert "rank must be from 0 to 2, got 3" in str(wrong(3, **WORLD))
    assert "the rank is required" in str(wrong(None, **WORLD))
    assert "the stream must be train, got 'valid'" in str(wrong(stream="valid", **WORLD))
    for name in ("data_parallel", "micro_batch_size", "global_batch_size"):
        assert "must be at least 1" in str(wrong(**{name: 0}))
    contiguous = data.plan(2000, 4, 2, 8, mode="contiguous")
    owned = wrong(place=contiguous, **WORLD)
    assert "require mode single: in mode contiguous each rank has its own part" in str(owned)
    assert "tokshard replan" in owned.hint
    manifest = wrong(0, os.path.join(path, "rank-00000.json"), **WORLD)
    assert "rank-00000.json is the manifest of a rank of the planned world size" in str(manifest)
    assert manifest.hint == "pass the directory of the plan, and the rank"
