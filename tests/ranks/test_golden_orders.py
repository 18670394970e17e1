"""Orders of plans, and of plans that continue them, against those that are kept."""

import collections

import pytest

from support.golden_orders import blended_in_stages, kept, read_in_stages

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
    assert len(blends) >= 60
    for number, case in enumerate(blends):
        stages = case.pop("stages")
        assert blended_in_stages(case, tmp_path / str(number)) == stages, case
