"""Comparing plans: against lists of everything that both read."""

import random
from collections import Counter

import pytest

from support.replanned_plans import continued, plan_of, samples_of, source_of, write_blend
from tokshard.checks.diff.options import DiffOptions
from tokshard.checks.diff.plans import diff_plans, shared_order
from tokshard.checks.diff.report import FieldDifference, StepDifference
from tokshard.ranks.choices import Shuffling
from tokshard.ranks.discovery import RequestedSamples, open_sources
from tokshard.ranks.publication import write_plan

MODES = ["single", "sequential", "contiguous", "chunked", "cyclic"]


def listed(plan, start):
    """List (dataset, sample) of each step that begins at or after the start, with its bounds."""
    order = plan.streams["train"].order
    steps = []
    for step, reads in enumerate(samples_of(plan)):
        begin = order.consumed_after(step)
        if begin >= start:
            steps.append((begin, order.consumed_after(step + 1), reads))
    return steps


def slow_difference(first, second):
    """Return the place of the first step that differs or None, and (reads in A, reads in B) by dataset."""
    place = None
    for number, (a, b) in enumerate(zip(first, second, strict=False)):
        if (a[0], a[1], sorted(a[2])) != (b[0], b[1], sorted(b[2])):
            place = number
            break
    counts = [Counter(path for *_, reads in steps for path, _ in reads) for steps in (first, second)]
    return place, {path: (counts[0][path], counts[1][path]) for path in counts[0] | counts[1]}


def check(a, b):
    difference = diff_plans(a, b)
    stream = difference.parts[0]
    start = max(plan.streams["train"].order.consumed_samples for plan in (a, b))
    assert stream.start == start
    first, second = listed(a, start), listed(b, start)
    place, counts = slow_difference(first, second)
    if place is None:
        assert stream.first_step is None
    else:
        found = stream.first_step
        assert found.consumed_samples == first[place][0]
        last_a, last_b = (plan.streams["train"].order.steps for plan in (a, b))
        assert found.a == last_a - len(first) + place
        assert found.b == last_b - len(second) + place
        reads = [Counter(steps[place][2]) for steps in (first, second)]
        for read, only in ((found.read_a, reads[0] - reads[1]), (found.read_b, reads[1] - reads[0])):
            assert (read is None) == (not only)
            assert read is None or (read.dataset, read.dataset_sample) in only
    assert stream.is_exact
    shown = [(each.dataset, each.a, each.b) for each in stream.datasets if each.a or each.b]
    assert sorted(shown) == sorted((path, *both) for path, both in counts.items())
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
    stream = diff_plans(a, b).parts[0]
    assert [(each.a, each.b) for each in stream.datasets] == [(30, 30), (50, 58)]
    assert stream.first_step.consumed_samples == 28


def test_a_replanned_plan_differs_in_nothing_but_the_world_size():
    plan = plan_of(source_of(300), 4, batch=24)
    after = continued(plan, 96, 6)
    stream = check(plan, after)
    assert (stream.first_step, stream.compared) == (None, (288, 288))
    assert [(each.a, each.b) for each in stream.datasets] == [(192, 192)]
    assert {field.field: (field.a, field.b) for field in stream.fields} == {
        "data_parallel": (4, 6),
        "steps": (12, 8),
        "consumed_samples": (0, 96),
    }
    smaller = continued(plan, 96, global_batch_size=12)
    stream = check(plan, smaller)
    assert stream.first_step == StepDifference(4, 0, 96, stream.first_step.read_a, None)
    assert [(each.a, each.b) for each in stream.datasets] == [(192, 204)]
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


def test_a_plan_that_begins_later_is_the_end_of_the_whole_one():
    whole = plan_of(source_of(150, 250), 2, batch=8)
    late = plan_of(source_of(150, 250), 4, batch=8, consumed_samples=80)
    for pair in ((whole, late), (late, whole)):
        stream = check(*pair)
        assert stream.first_step is None
        assert [(each.a, each.b) for each in stream.datasets] == [(70, 70), (250, 250)]


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


def test_some_steps_are_compared():
    a, b = (
        plan_of(source_of(400), 2, batch=8),
        plan_of(source_of(400), 2, batch=8, shuffle=Shuffling("samples")),
    )
    stream = diff_plans(a, b, DiffOptions(steps=5)).parts[0]
    assert stream.compared == (40, 40)
    assert (stream.first_step.a, stream.first_step.read_a.sample) == (0, 0)
    assert [(each.a, each.b) for each in stream.datasets] == [(40, 40)]


def test_other_weights_add_and_remove_samples_by_source(tmp_path):
    tokens = {"web": 700, "code": 350}
    path = write_blend(tmp_path, {"web": 0.7, "code": 0.3}, 120, tokens=tokens)
    plan = plan_of(open_sources([str(path)], RequestedSamples())["train"], 4, batch=8)
    blend = f"0.2 {tmp_path}/web 0.8 {tmp_path}/code"
    after = continued(plan, 40, output=tmp_path / "plan2", blend=blend)
    write_plan(after, tmp_path / "plan2")
    stream = check(plan, after)
    web, code = stream.datasets
    assert (web.a - web.b, code.b - code.a) == (40, 40)
    found = stream.first_step
    assert (found.a, found.b, found.consumed_samples) == (5, 0, 40)
    assert found.read_a.dataset == web.dataset
    assert found.read_b.dataset == code.dataset
