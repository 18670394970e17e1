"""Options of planning and replanning: numbers that ``plan.json`` cannot hold are refused."""

import pytest

from support.assignments import options_of
from tokshard.errors import UsageError
from tokshard.ranks.choices import Shuffling
from tokshard.ranks.options import ReplanOptions


def replan_options(**options):
    return ReplanOptions(plan="a", output="b", **options)


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (lambda number: options_of(data_parallel=1, bucket_buffer=number), "bucket-buffer"),
        (lambda number: options_of(data_parallel=1, eval_micro_batch_size=number), "eval-micro-batch-size"),
        (lambda number: replan_options(consumed_samples=8, steps=number), "steps"),
    ],
)
def test_numbers_that_no_plan_can_hold_are_refused(make, option):
    make(2**63 - 1)
    with pytest.raises(UsageError, match=rf"--{option} must be at least 1, got 0"):
        make(0)
    with pytest.raises(UsageError, match=rf"--{option} must be at most {2**63 - 1}, got {2**63}"):
        make(2**63)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"consumed_samples": -1}, "--consumed-samples must be at least 0, got -1"),
        ({"seed": -1, "blend": "mix"}, "--seed must be at least 0, got -1"),
        ({"consumed_valid_samples": (3, -2)}, "--consumed-valid-samples must be at least 0, got -2"),
        ({"seed": 7}, "--seed requires --blend"),
    ],
)
def test_replan_options_that_are_invalid_are_refused(options, message):
    with pytest.raises(UsageError, match=f"^{message}"):
        replan_options(**{"consumed_samples": 0} | options)


@pytest.mark.parametrize(
    ("text", "shuffling"),
    [
        ("none", Shuffling()),
        ("samples", Shuffling("samples")),
        ("datasets", Shuffling("datasets")),
        ("windows", Shuffling("windows", 256, 4096)),
        ("windows:16:4", Shuffling("windows", 16, 4)),
    ],
)
def test_a_shuffle_is_a_word_with_the_sizes_of_windows(text, shuffling):
    assert options_of(data_parallel=1, shuffle=text).shuffle == shuffling
    assert Shuffling.parse(str(shuffling)) == shuffling


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *(
            (text, "must be one of none, samples, datasets, windows or windows:BLOCK:WINDOW, got")
            for text in ("all", "", "shards", "samples:3:4", "windows:16", "windows:16:4:2", "Windows")
        ),
        *(
            (text, "must be windows:BLOCK:WINDOW with numbers of at least 1, got")
            for text in ("windows:0:4", "windows:16:-1", "windows:a:4", "windows::", f"windows:1:{2**63}")
        ),
    ],
)
def test_a_word_that_is_no_shuffle_is_refused(text, message):
    with pytest.raises(UsageError, match=f"^--shuffle {message} '{text}'$"):
        options_of(data_parallel=1, shuffle=text)
