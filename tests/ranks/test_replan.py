"""Continuing a plan: other world sizes, every mode, chains of stops, and other weights."""

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.assignments import planned
from support.replanned_plans import (
    continued,
    fault_of,
    flat,
    plan_of,
    reads_of,
    samples_of,
    source_of,
    with_epochs,
    write_blend,
)
from tokshard.errors import IntegrityError, MissingFileError, UsageError
from tokshard.ranks.discovery import RequestedSamples, open_sources
from tokshard.ranks.options import ReplanOptions
from tokshard.ranks.plan import read_plan
from tokshard.ranks.publication import LOCK_NAME, write_plan
from tokshard.ranks.replan import replan

MODES = ["single", "sequential", "contiguous", "chunked", "cyclic"]
WORLDS = [1, 2, 3, 4, 6, 8, 12, 16, 24, 48]


@pytest.mark.parametrize("mode", MODES)
def test_another_world_size_reads_the_same_batches_after_any_stop(mode):
    # 5 modes x 10 worlds x 9 other worlds x 2 of 5 stops = 900 triples.
    samples = 48 * 6 + 17
    for ranks in WORLDS:
        plan = plan_of(source_of(200, samples - 200), ranks, batch=48, mode=mode)
        batches = [sorted(step) for step in reads_of(plan)]
        for number, other in enumerate(WORLDS):
            if other != ranks:
                check_other_world(plan, batches, other, stops=(1 + number % 5, 1 + (number + 2) % 5))


def check_other_world(plan, batches, other, stops):
    for stop in stops:
        after = continued(plan, stop * 48, other)
        assert [sorted(step) for step in reads_of(after)] == batches[stop:]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dealt", [None, "contiguous", "single"])
def test_24_then_16_then_48_ranks_read_every_sample_once_through_files(tmp_path, mode, dealt):
    plan, read = plan_of(source_of(1499, 1, 701), 24, batch=48, mode=mode), []
    for number, (ranks, steps) in enumerate([(16, 7), (48, 9), (24, 11)]):
        write_plan(plan, tmp_path / f"{number}")
        plan = read_plan(tmp_path / f"{number}")
        read += flat(reads_of(plan, steps=steps))
        consumed = plan.streams["train"].order.consumed_after(steps)
        assert consumed == len(read)
        parent, plan = plan, continued(plan, consumed, ranks, mode=dealt)
        planned = flat(reads_of(plan))
        assert len(set(read) | set(planned)) == len(read) + len(planned) == 2201 - 2201 % 48
    assert [stopped.plan_id for stopped in plan.history][-1] == parent.plan_id
    assert len(plan.history) == 3


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_each_sample_is_read_once_in_each_epoch_or_reported_as_dropped_or_left(data):
    draw = lambda low, high: data.draw(st.integers(low, high))  # noqa: E731 - as short as a name
    sizes = [draw(1, 60) for _ in range(draw(1, 3))]
    ranks, size, groups = draw(1, 5), draw(1, 3), draw(1, 3)
    epochs = draw(1, 3)
    batch = ranks * size * groups
    mode = data.draw(st.sampled_from(MODES))
    shuffle = "none" if mode == "cyclic" else data.draw(st.sampled_from(["none", "samples", "windows"]))
    if shuffle == "windows":
        shuffle = f"windows:{draw(1, 9)}:{draw(1, 4)}"
    total = sum(sizes)
    if total < batch:
        return
    options = {"mode": mode, "shuffle": shuffle, "epochs": epochs, "shuffle_per_epoch": True}
    plan = plan_of(source_of(*sizes), ranks, batch=batch, size=size, **options)
    assert fault_of(with_epochs(plan), plan, total, batch) is None
    read, largest = [], batch
    for _ in range(draw(1, 3)):
        order = plan.streams["train"].order
        step = draw(0, order.steps)
        ranks, size = draw(1, 5), draw(1, 3)
        batch = ranks * size * draw(1, 3)
        changes = {"micro_batch_size": size, "global_batch_size": batch}
        dealt = data.draw(st.sampled_from([None, "single", "contiguous", "sequential", "chunked"]))
        consumed = order.consumed_after(step)
        try:
            after = continued(plan, consumed, ranks, mode=dealt, **changes)
        except UsageError:
            with pytest.raises(UsageError, match=r"fewer than one batch|0 steps are left"):
                continued(plan, consumed, ranks, mode=dealt, **changes)
            break
        read += with_epochs(plan, step)
        largest = max(largest, batch)
        assert fault_of(read + with_epochs(after), after, total, largest) is None
        plan = after


def test_a_plan_in_the_middle_of_a_run_is_continued_too():
    plan = plan_of(source_of(100), 2, batch=4, consumed_samples=24)
    after = continued(plan, 32, 4)
    assert flat(reads_of(after)) == list(range(32, 100))
    ragged = plan_of(source_of(100), 2, batch=4, consumed_samples=25)
    after = continued(ragged, 33, 4)
    assert flat(reads_of(after)) == list(range(33, 97))


def test_steps_that_were_asked_for_are_not_exceeded():
    plan = plan_of(source_of(1000), 4, batch=8, steps=20)
    assert continued(plan, 80, 2).streams["train"].order.steps == 10
    assert continued(plan, 80, 2, steps=50).streams["train"].order.steps == 50
    bigger = continued(plan, 80, 2, global_batch_size=32)
    assert bigger.streams["train"].order.steps == 2
    with pytest.raises(UsageError, match="500"):
        continued(plan, 80, 2, steps=500)


def test_consumed_samples_that_end_no_step_are_refused():
    plan = plan_of(source_of(1000), 4, batch=8)
    with pytest.raises(UsageError, match="must be at the end of a step"):
        continued(plan, 84, 2)
    with pytest.raises(UsageError, match=r"at most 1000, .* got 1008"):
        continued(plan, 1008, 2)
    with pytest.raises(UsageError, match="must be divisible"):
        continued(plan, 80, 3)
    with pytest.raises(UsageError, match="are fewer than one batch of"):
        continued(plan, 1000, 2)


def test_validation_continues_from_its_own_count():
    sizes = {"train": 400, "valid": 50, "test": 9}
    sources = {name: source_of(size, name=name) for name, size in sizes.items()}
    train = {"data_parallel": 8, "micro_batch_size": 1, "global_batch_size": 8}
    plan = planned(sources, **train)
    after = continued(plan, 40, 4, consumed_valid_samples=(16,))
    assert flat(reads_of(after, "valid"))[0] == 16
    assert flat(reads_of(after, "test"))[0] == 0
    assert flat(reads_of(after, "train"))[0] == 40
    assert flat(reads_of(continued(plan, 40, 4), "valid"))[0] == 0
    full = planned(sources, **train, full_validation=True)
    after = continued(full, 40, 3, global_batch_size=9, eval_global_batch_size=9)
    assert sorted(set(flat(reads_of(after, "valid")))) == list(range(50))
    assert after.streams["valid"].order.steps == 17


TOKENS = {"web": 700, "code": 350, "books": 210}
"""Tokens of datasets; a sample has 8, so that they have about 87, 43 and 26 samples an epoch."""


def blended_plan(directory, weights, samples, ranks, **options):
    path = write_blend(directory, weights, samples, tokens=TOKENS)
    return plan_of(open_sources([str(path)], RequestedSamples())["train"], ranks, **options)


def reweighted(plan, directory, consumed, blend, ranks=2, **changes):
    after = continued(plan, consumed, ranks, output=directory, blend=str(blend), **changes)
    write_plan(after, directory)
    return read_plan(directory)


def by_name(steps):
    """List the samples of each dataset, in the order in which they are read."""
    found = {}
    for path, sample in flat(steps):
        found.setdefault(path.rpartition("/")[2], []).append(sample)
    return found


def test_other_weights_continue_at_the_next_unread_sample_of_each_source(tmp_path):
    plan = blended_plan(tmp_path, {"web": 0.7, "code": 0.3}, 120, 4, batch=8)
    before = by_name(samples_of(plan, steps=5))
    recipe = f"0.25 {tmp_path}/web 0.75 {tmp_path}/code"
    after = reweighted(plan, tmp_path / "plan2", 40, recipe)
    now = by_name(samples_of(after))
    assert (len(before["web"]), len(before["code"])) == (28, 12)
    assert (len(now["web"]), len(now["code"])) == (20, 60)
    assert now["web"] == list(range(28, 48))
    available = after.streams["train"].source.datasets[1].samples
    assert now["code"][: available - 12] == list(range(12, available))
    new_epoch = now["code"][available - 12 :]
    assert len(new_epoch) == len(set(new_epoch)) > 0
    assert new_epoch != sorted(new_epoch)


def test_new_weights_take_new_sources_drop_others_and_take_them_up_again(tmp_path):
    plan = blended_plan(tmp_path, {"web": 0.5, "code": 0.5}, 96, 4, batch=8)
    with_books = write_blend(tmp_path, {"books": 0.5, "web": 0.5}, 500, tokens=TOKENS, name="new")
    second = reweighted(plan, tmp_path / "plan2", 48, with_books)
    now = by_name(samples_of(second, steps=3))
    assert set(now) == {"books", "web"}
    assert now["web"] == list(range(24, 24 + len(now["web"])))
    assert now["books"] == list(range(len(now["books"])))
    third = reweighted(second, tmp_path / "plan3", 72, f"3 {tmp_path}/code 1 {tmp_path}/books")
    last = by_name(samples_of(third))
    assert set(last) == {"books", "code"}
    assert last["code"][0] == 24
    assert last["books"][0] == len(now["books"])
    fourth = continued(third, 80, 8, output=tmp_path / "plan4")
    assert samples_of(fourth)[0] == samples_of(third)[1]
    write_plan(fourth, tmp_path / "plan4")
    assert read_plan(tmp_path / "plan4") == fourth


def test_a_changed_dataset_is_a_warning(tmp_path):
    plan = blended_plan(tmp_path, {"web": 0.5, "code": 0.5}, 96, 4, batch=8)
    assert plan.warnings == ()
    for suffix in (".bin", ".idx"):
        (tmp_path / f"code{suffix}").unlink()
    changed = write_blend(
        tmp_path, {"web": 0.5, "code": 0.5}, 96, tokens={"code": 490}, name="new", cache="new-cache"
    )
    after = reweighted(plan, tmp_path / "plan2", 48, changed)
    data = f"the data of plan {plan.plan_id[:12]}, {tmp_path}/web, {tmp_path}/code"
    assert after.warnings == (
        f"{tmp_path}/code has changed since the earlier plan read it, and is read from its start",
        f"the tokenizers of {data} are unknown and were not compared",
    )
    assert by_name(samples_of(after))["code"][0] == 0


@pytest.mark.parametrize(
    "options", [{"mode": "contiguous"}, {"mode": "cyclic"}, {"shuffle": "samples"}, {"bucket_buffer": 16}]
)
def test_a_plan_that_does_not_read_its_blend_in_order_gets_no_other_weights(tmp_path, options):
    plan = blended_plan(tmp_path, {"web": 0.5, "code": 0.5}, 96, 4, batch=8, **options)
    with pytest.raises(UsageError, match="requires a plan of mode single without shuffle and") as caught:
        reweighted(plan, tmp_path / "plan2", 48, f"1 {tmp_path}/web 3 {tmp_path}/code")
    assert caught.value.hint == "build a new blend and a new plan for the samples that follow"
    assert not (tmp_path / "plan2").exists()


def test_no_sample_is_read_again_before_all_others_of_its_source(tmp_path):
    plan = blended_plan(tmp_path, {"web": 2, "code": 1, "books": 1}, 96, 4, batch=8)
    read, generator = [], random.Random(1)
    for number in range(4):
        for ranks in (2, 4):
            steps = generator.randint(1, 3)
            read += flat(samples_of(plan, steps=steps))
            consumed = plan.streams["train"].order.consumed_after(steps)
            if ranks == 2:
                plan = continued(plan, consumed, ranks)
        weights = [generator.randint(1, 9) for _ in TOKENS]
        recipe = " ".join(f"{weight} {tmp_path}/{name}" for weight, name in zip(weights, TOKENS, strict=True))
        steps = 40 if number == 3 else 12
        plan = reweighted(plan, tmp_path / f"to{number}", consumed, recipe, 4, steps=steps)
    read += flat(samples_of(plan))
    for dataset in plan.streams["train"].source.datasets:
        times = np.zeros(dataset.samples, dtype=int)
        np.add.at(times, [sample for path, sample in read if path == dataset.path_prefix], 1)
        assert times.max() - times.min() <= 1
        assert times.max() >= 2


def test_the_seed_of_source_epochs_stays_that_of_the_first_change(tmp_path):
    plan = blended_plan(tmp_path, {"web": 0.5, "code": 0.5}, 96, 4, batch=8)
    blend = f"1 {tmp_path}/web 3 {tmp_path}/code"
    second = reweighted(plan, tmp_path / "plan2", 48, blend, seed=7)
    third = reweighted(second, tmp_path / "plan3", 56, blend)
    assert [plan.reweighting_of("train").seed for plan in (second, third)] == [7, 7]
    assert reweighted(second, tmp_path / "plan3", 56, blend, seed=7) == third
    with pytest.raises(UsageError, match="--seed must be 7, as in the plan that continues, got 8"):
        reweighted(second, tmp_path / "plan4", 56, blend, seed=8)


def test_a_rest_of_several_epochs_continues_in_the_source_epoch(tmp_path):
    plan = blended_plan(tmp_path, {"web": 0.5, "code": 0.5}, 40, 2, batch=8, epochs=3)
    after = reweighted(plan, tmp_path / "plan2", 56, f"1 {tmp_path}/web 1 {tmp_path}/code")
    now = by_name(samples_of(after))
    assert (now["web"][0], now["code"][0]) == (8, 8)
    assert after.streams["train"].order.steps == 8


def test_a_reweighted_plan_with_a_changed_file_is_not_continued(tmp_path):
    plan = blended_plan(tmp_path, {"web": 0.5, "code": 0.5}, 60, 2, batch=4)
    after = reweighted(plan, tmp_path / "plan2", 24, f"1 {tmp_path}/web 3 {tmp_path}/code")
    with open(after.streams["train"].source.order.array_path("dataset_sample_index"), "r+b") as file:
        file.seek(130)
        file.write(b"\x01")
    with pytest.raises(IntegrityError, match=r"dataset_sample_index\.npy"):
        reweighted(after, tmp_path / "plan3", 32, f"1 {tmp_path}/web 1 {tmp_path}/code")


def test_weights_that_cannot_be_are_refused(tmp_path):
    plan = blended_plan(tmp_path, {"web": 0.5, "code": 0.5}, 40, 2, batch=8)
    for blend, message in [
        (f"1 {tmp_path}/web 1 {tmp_path}/books", "not read"),
        (f"{tmp_path}/web {tmp_path}/code", "must be pairs of weight and dataset"),
    ]:
        with pytest.raises(UsageError, match=message):
            reweighted(plan, tmp_path / "plan2", 8, blend)
    with pytest.raises(UsageError, match="has no steps after"):
        reweighted(plan, tmp_path / "plan2", 40, f"1 {tmp_path}/web 1 {tmp_path}/code")
    documents = open_sources([str(tmp_path / "web")], RequestedSamples(documents=True))["train"]
    with pytest.raises(UsageError, match="documents"):
        reweighted(plan_of(documents, 2, batch=8), tmp_path / "plan3", 8, f"1 {tmp_path}/web")
    assert not (tmp_path / "plan2").exists()


def test_counts_of_validation_sets_that_do_not_fit_are_refused():
    plan = plan_of(source_of(100), 2, batch=4)
    with pytest.raises(UsageError, match=r"one for each validation set .0., got 2"):
        continued(plan, 16, 2, consumed_valid_samples=(1, 2))


def tree_of(directory):
    return {path: path.read_bytes() if path.is_file() else None for path in directory.rglob("*")}


@pytest.mark.parametrize("weighted", [False, True])
def test_a_dry_run_writes_nothing_and_is_the_plan_that_is_written(tmp_path, weighted):
    write_plan(blended_plan(tmp_path, {"web": 0.7, "code": 0.3}, 120, 4, batch=8), tmp_path / "plan")
    options = ReplanOptions(
        plan=str(tmp_path / "plan"),
        output=str(tmp_path / "plan2"),
        consumed_samples=40,
        data_parallel=2,
        blend=f"0.25 {tmp_path}/web 0.75 {tmp_path}/code" if weighted else None,
    )
    before = tree_of(tmp_path)
    dry = replan(options, dry_run=True).plan
    assert tree_of(tmp_path) == before
    if weighted:
        with pytest.raises(MissingFileError, match=r"file of the plan not found: .*dataset_index\.npy"):
            write_plan(dry, options.output)
        assert not [path for path in Path(options.output).iterdir() if path.name != LOCK_NAME]
    report = replan(options)
    assert read_plan(options.output) == dry
    assert report.plan == dry
    assert report.files == 4
