from dataclasses import replace

import pytest

from tokshard.errors import UsageError
from tokshard.samples.index.sizes import Sizes, TrainingOptions

BASE = TrainingOptions(train_iters=1000, global_batch_size=16, eval_interval=300, eval_iters=5)


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        ({}, Sizes(16000, 4 * 5 * 16, 80)),
        ({"train_iters": 900}, Sizes(14400, 4 * 5 * 16, 80)),
        ({"train_iters": 899}, Sizes(14384, 3 * 5 * 16, 80)),
        ({"train_samples": 777}, Sizes(777, 4 * 5 * 16, 80)),
        ({"train_samples": 0}, Sizes(16000, 4 * 5 * 16, 80)),
        ({"train_iters": None, "train_samples": 4815}, Sizes(4815, 2 * 5 * 16, 80)),
        ({"eval_global_batch_size": 4}, Sizes(16000, 4 * 5 * 4, 20)),
        ({"start_eval_at_iter": 300}, Sizes(16000, 3 * 5 * 16, 80)),
        ({"start_eval_at_iter": 299}, Sizes(16000, 4 * 5 * 16, 80)),
        ({"start_eval_at_iter": 5000}, Sizes(16000, 0, 80)),
        ({"full_validation": True, "eval_interval": None}, Sizes(16000, None, 80)),
        ({"skip_train": True, "eval_interval": None}, Sizes(16000, 5 * 16, 80)),
        ({"eval_iters": 0}, Sizes(16000, 0, 0)),
    ],
)
def test_sizes_are_megatrons_sums(changes, sizes):
    assert replace(BASE, **changes).sizes() == sizes


def test_only_megatron_015_has_a_default_interval_and_validates_without_training():
    bare = replace(BASE, train_iters=2500, eval_interval=None)
    by_default, checks_only = Sizes(40000, 3 * 5 * 16, 80), Sizes(40000, 5 * 16, 80)
    for version in ("0.15", "0.15.3", "core_v0.15.0"):
        assert bare.sizes(version) == replace(bare, skip_train=True).sizes(version) == by_default
        assert replace(bare, eval_interval=1250).sizes(version) == by_default
    for version in (None, "0.16", "0.19", "main-20260822"):
        assert replace(bare, skip_train=True).sizes(version) == checks_only
        with pytest.raises(UsageError, match="the validation interval is required") as error:
            bare.sizes(version)
        assert error.value.hint == "pass the job's --eval-interval (1000 is the default of Megatron 0.15)"
    with pytest.raises(UsageError, match="--eval-interval must be at least 1, got 0"):
        replace(bare, eval_interval=0).sizes("0.15")


@pytest.mark.parametrize(
    ("iteration", "train"), [(0, 160), (9, 160), (10, 480), (39, 480), (40, 360), (62, 360)]
)
def test_a_phase_of_training_has_its_own_size(iteration, train):
    options = replace(BASE, train_samples=1000)
    assert options.sizes(phases=(10, 40), iteration=iteration).train == train


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_iters": None}, "--global-batch-size requires --train-iters or --train-samples"),
        ({"global_batch_size": None}, "--train-iters requires --global-batch-size"),
        ({"train_iters": 0, "train_samples": 0}, "the number of training steps or samples is required"),
        ({"global_batch_size": 0}, "--global-batch-size must be at least 1, got 0"),
        ({"eval_global_batch_size": 0}, "--eval-global-batch-size must be at least 1, got 0"),
        ({"eval_interval": 0}, "--eval-interval must be at least 1, got 0"),
        ({"eval_interval": None}, "the validation interval is required"),
        ({"eval_interval": None, "eval_iters": 0}, "the validation interval is required"),
        ({"eval_iters": -1}, "--eval-iters must be at least 0, got -1"),
        ({"train_iters": 2**62}, "the arguments of the job request too many samples: train must be at most"),
        ({"train_samples": -1}, "--train-samples must be at least 0, got -1"),
    ],
)
def test_impossible_arguments_are_named(changes, message):
    with pytest.raises(UsageError, match=message):
        replace(BASE, **changes).sizes()


def test_phases_that_do_not_contain_the_iteration_are_refused():
    with pytest.raises(UsageError, match="--phase-transition-iterations requires the number of training"):
        BASE.sizes(phases=(10,))
    with pytest.raises(UsageError, match=r"would start at sample 800, after its last \(800\)"):
        replace(BASE, train_samples=800).sizes(phases=(10,), iteration=50)
