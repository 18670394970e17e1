"""Comparing plans: against lists of everything that both read."""

import random

import pytest

from support.replanned_plans import continued, plan_of, samples_of, source_of, write_blend
from tokshard.checks.diff.options import DiffOptions
from tokshard.checks.diff.plans import diff_plans, shared_order
from tokshard.checks.diff.report import FieldDifference, StepDifference
from tokshard.ranks.choices import Shuffling
from tokshard.ranks.discovery import RequestedSamples, open_sources
from tokshard.ranks.publication import write_plan

MODES = ["single", "sequential", "contiguous", "chunked", "cyclic"]


def listed(plan, start, epochs=None):
    """List (dataset, epoch, sample) of each step that begins at or after the start, with its bounds."""
    order = plan.streams["train"].order
    epochs = {} if epochs is None else epochs
    sizes = {each.path_prefix: each.samples for each in plan.streams["train"].source.datasets}
    steps = []
    for step, reads in enumerate(samples_of(plan)):
        named = []
        for path, sample in reads:
            epoch, seen = epochs.setdefault(path, (0, set()))
            if len(seen) == sizes[path]:
                epoch, seen = epochs[path] = (epoch + 1, set())
            seen.add(sample)
            named.append((path, epoch, sample))
        begin = order.consumed_after(step)
        if begin >= start:
            steps.append((begin, order.consumed_after(step + 1), named))
    return steps


def slow_difference(first, second):
    """Return (place of the first step that differs or None, counts by dataset)."""
    place = None
    for number, (a, b) in enumerate(zip(first, second, strict=False)):
        if (a[0], a[1], sorted(a[2])) != (b[0], b[1], sorted(b[2])):
            place = number
            break
    where = {read: (begin, end) for begin, end, reads in second for read in reads}
    counts = {}
    known = set()
    for begin, end, reads in first:
        for read in reads:
            known.add(read)
            found = where.get(read)
            if found is None:
                kind = "removed"
            else:
                inside = (found[0] <= begin and end <= found[1]) or (begin <= found[0] and found[1] <= end)
                kind = "same" if inside else "moved"
            counts[read[0], kind] = counts.get((read[0], kind), 0) + 1
    for read in where:
        if read not in known:
            counts[read[0], "added"] = counts.get((read[0], "added"), 0) + 1
    return place, counts


def check(a, b, epochs=None, entries=50):
    difference = diff_plans(a, b, entries=entries)
    stream = difference.parts[0]
    start = max(plan.streams["train"].order.consumed_samples for plan in (a, b))
    assert stream.start == start
    first, second = listed(a, start, None), listed(b, start, epochs)
    place, counts = slow_difference(first, second)
    if place is None:
        assert stream.first_step is None
    else:
        assert stream.first_step.consumed_samples == first[place][0]
        last_a, last_b = (plan.streams["train"].order.steps for plan in (a, b))
        assert stream.first_step.a == last_a - len(first) + place
        assert stream.first_step.b == last_b - len(second) + place
    for source in stream.sources:
        for kind in ("same", "moved", "added", "removed"):
            assert getattr(source, kind) == counts.get((source.dataset, kind), 0)
    return stream


def random_plan(generator, source):
    ranks, size = generator.randint(1, 4), generator.randint(1, 2)
    batch = ranks * size * generator.randint(1, 2)
    return plan_of(source, ranks, size=size, batch=batch, mode=generator.choice(MODES))


@pytest.mark.parametrize("seed", range(40))
def test_plans_of_the_same_samples_are_compared_read_by_read(seed):
    generator = random.Random(seed)
    source = source_of(generator.randint(20, 60), generator.randint(20, 40))
    check(random_plan(generator, source), random_plan(generator, source))


@pytest.mark.parametrize("seed", range(20))
def test_plans_of_other_samples_are_compared_by_their_data(seed):
    generator = random.Random(seed)
    a, b = source_of(30, 50), source_of(30, 50, 20)
    stream = check(random_plan(generator, a), random_plan(generator, b))
    assert stream.fields[0].field == "source"


def test_a_dataset_that_has_changed_is_another_one():
    a, b = plan_of(source_of(30, 50), 2, batch=4), plan_of(source_of(30, 60), 2, batch=4)
    first, old, new = diff_plans(a, b).parts[0].sources
    assert (first.same, old.removed, new.added) == (30, 50, 58)
    assert old.dataset == new.dataset


def test_a_replanned_plan_differs_in_nothing_but_the_world_size():
    plan = plan_of(source_of(300), 4, batch=24)
    after = continued(plan, 96, 6)
    stream = check(plan, after)
    assert (stream.first_step, stream.compared) == (None, (288, 288))
    assert stream.sources[0].same == 192
    assert {field.field: (field.a, field.b) for field in stream.fields} == {
        "data_parallel": (4, 6),
        "steps": (12, 8),
        "consumed_samples": (0, 96),
    }
    smaller = continued(plan, 96, global_batch_size=12)
    stream = check(plan, smaller)
    assert stream.first_step == StepDifference(4, 0, 96)
    assert stream.sources[0].same == 192
    assert diff_plans(plan, plan).same_plan
    assert not diff_plans(plan, after).same_plan
    assert diff_plans(plan, after).fields == (FieldDifference("world_size", 4, 6),)


@pytest.mark.parametrize("steps", [(20, None), (None, 20), (7, 9)])
def test_a_plan_that_ends_before_the_other_one_has_fewer_samples(steps):
    source = source_of(150, 250)
    a, b = (plan_of(source, ranks, batch=8, steps=count) for ranks, count in zip((2, 4), steps, strict=True))
    stream = check(a, b)
    assert stream.first_step is None
    assert not diff_plans(a, b).reads_same
    assert sum(counts.moved for counts in stream.sources) == 0


def test_a_plan_that_begins_later_is_the_end_of_the_whole_one():
    whole = plan_of(source_of(150, 250), 2, batch=8)
    late = plan_of(source_of(150, 250), 4, batch=8, consumed_samples=80)
    for pair in ((whole, late), (late, whole)):
        stream = check(*pair)
        assert stream.first_step is None
        assert [(source.same, source.moved) for source in stream.sources] == [(70, 0), (250, 0)]


def test_plans_share_an_order_if_their_samples_follow_from_the_consumed_samples():
    def shared(ranks=2, **options):
        return shared_order(plan_of(source_of(400), ranks, batch=8, **options).streams["train"].order)

    assert shared() == shared(4) == shared(consumed_samples=80) == shared(steps=3)
    assert shared(mode="contiguous") == shared(mode="contiguous", consumed_samples=80)
    assert shared(shuffle=Shuffling("samples")) not in {None, shared()}
    assert shared(mode="contiguous") not in {None, shared(), shared(4, mode="contiguous")}
    assert shared(epochs=2) is None
    assert shared(16 // 2, mode="contiguous", micro_batch_size=1, tail="pad") is not None
    plan = plan_of(source_of(400), 2, batch=8)
    after = continued(plan, 80, 4)
    assert shared_order(after.streams["train"].order) == shared()


def test_comparing_can_stop_early():
    a, b = (
        plan_of(source_of(400), 2, batch=8),
        plan_of(source_of(400), 2, batch=8, shuffle=Shuffling("samples")),
    )
    stream = diff_plans(a, b, DiffOptions(first_only=True)).parts[0]
    assert (stream.first_step, stream.sources) == (StepDifference(0, 0, 0), ())
    stream = diff_plans(a, b, DiffOptions(steps=5)).parts[0]
    assert stream.compared == (40, 40)
    assert sum(source.removed + source.moved + source.same for source in stream.sources) == 40


def test_other_weights_add_and_remove_samples_by_source(tmp_path):
    tokens = {"web": 700, "code": 350}
    path = write_blend(tmp_path, {"web": 0.7, "code": 0.3}, 120, tokens=tokens)
    plan = plan_of(open_sources([str(path)], RequestedSamples())["train"], 4, batch=8)
    blend = f"0.2 {tmp_path}/web 0.8 {tmp_path}/code"
    after = continued(plan, 40, output=tmp_path / "plan2", blend=blend)
    write_plan(after, tmp_path / "plan2")
    epochs = {}
    sizes = {each.path_prefix: each.samples for each in after.streams["train"].source.datasets}
    for path, sample in (read for step in samples_of(plan, steps=5) for read in step):
        epochs.setdefault(path, (0, set()))[1].add(sample)
    stream = check(plan, after, epochs)
    web, code = stream.sources
    assert (web.removed, web.added) == (40, 0)
    assert (code.removed, code.added) == (0, 40)
    assert sizes[code.dataset] < 12 + 64
    assert stream.first_step == StepDifference(5, 0, 40)
