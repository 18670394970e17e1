"""Orders of plans, and of plans that continue them, against those that are kept."""

import collections

import pytest

from support.golden_orders import blend_of, blended_in_stages, draws_of, kept, read_in_stages

KINDS = (
    "single",
    "cyclic",
    "cyclic without sharding",
    "contiguous",
    "sequential",
    "chunked",
    "full validation",
    "validation",
)


@pytest.fixture(scope="module")
def cases():
    return kept("orders")


@pytest.mark.parametrize("kind", KINDS)
def test_plans_read_the_samples_that_they_always_read(cases, kind):
    chosen = [case for case in cases if case["kind"] == kind]
    assert len(chosen) >= 60
    different = []
    for case in chosen:
        stages = case.pop("stages")
        found = read_in_stages(case)
        if found != stages:
            different.append((case, stages, found))
    assert not different, f"{len(different)} of {len(chosen)} plans, the first one: {different[0]}"


def test_the_cases_have_every_start_epoch_and_number_of_changes(cases):
    assert {case["kind"] for case in cases} == set(KINDS)
    assert len(cases) >= 2500
    changes = collections.Counter(len(case["changes"]) for case in cases)
    assert min(changes[0], changes[1], changes[2]) >= 700


def test_other_weights_draw_the_samples_that_they_always_drew(tmp_path):
    blends = kept("blends")
    assert len(blends) == 64
    again = []
    for number, case in enumerate(blends):
        first, *later = case.pop("stages")
        plans = blended_in_stages(case, tmp_path / str(number))
        assert blend_of(plans[1]) == first, case
        stops = [change["consumed_samples"] for change in case["changes"]]
        draws = [
            draw for plan, stop in zip(plans, [*stops, None], strict=True) for draw in draws_of(plan, stop)
        ]
        assert len(set(draws)) == len(draws), case
        # Source epochs after the first one keep the keys of the plan before, which they did not once.
        if later and not any(epoch for _, epoch, _ in draws_of(plans[2])):
            again.append(blend_of(plans[2]) == later[0])
    assert again == [True] * 18
