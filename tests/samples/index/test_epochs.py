import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from support.index_twins import slow_epochs, slow_samples
from tokshard.errors import InputError, UsageError
from tokshard.samples.index.epochs import plan_epochs, warnings_of


def planned(**changes):
    return plan_epochs(
        **{"sequences": 100, "tokens_per_epoch": 1000, "sequence_length": 64, "num_samples": None} | changes
    )


@given(
    st.integers(1, 300),
    st.integers(1, 40),
    st.none() | st.integers(0, 400),
    st.booleans(),
    st.booleans(),
)
def test_epochs_and_samples_are_those_of_the_loop(tokens, length, wanted, extra, drop):
    assume(wanted is not None or tokens >= length + extra)
    plan = planned(
        tokens_per_epoch=tokens,
        sequence_length=length,
        num_samples=wanted,
        extra_token=extra,
        drop_last_partial=drop,
    )
    epochs = slow_epochs(tokens, wanted, length, extra)
    assert plan.epochs == epochs
    assert plan.samples == slow_samples(epochs * tokens, length, extra, drop_last_partial=drop)
    assert plan.samples == plan.exact_samples >= (wanted or 0)
    assert plan.samples_of_epochs(epochs) == (epochs * tokens - extra) // length
    if epochs == 1:
        assert (plan.separate_final_epoch, plan.samples_before_final) == (False, 0)
        return
    before = ((epochs - 1) * tokens - extra) // length
    assert plan.samples_before_final == before < wanted
    whole = (tokens - extra) // length
    assert plan.separate_final_epoch == (wanted - before < int(0.8 * whole))


@pytest.mark.parametrize(("whole_epoch", "border"), [(100, 80), (99, 79), (5, 4), (4, 3), (1, 0)])
def test_eighty_percent_of_an_epoch_decide_whether_it_is_shuffled_alone(whole_epoch, border):
    for beyond_the_first in range(1, whole_epoch + 1):
        plan = planned(tokens_per_epoch=64 * whole_epoch + 1, num_samples=whole_epoch + beyond_the_first)
        assert (plan.epochs, plan.samples_before_final) == (2, whole_epoch)
        assert plan.separate_final_epoch == (beyond_the_first < border)


@pytest.mark.parametrize(
    ("usable", "length", "samples", "exact"),
    [
        (33_558_529, 4096, 8193, 8194),
        (2_147_483_831, 64, 33_554_436, 33_554_435),
        (2**31 + 129, 64, 33_554_436, 33_554_435),
        (2**53 + 1, 2**10, 2**43, 2**43 + 1),
    ],
)
def test_a_kept_partial_sample_is_counted_in_single_precision_and_said(usable, length, samples, exact):
    plan = planned(tokens_per_epoch=usable + 1, sequence_length=length, drop_last_partial=False)
    assert plan.samples == slow_samples(usable + 1, length, 1, drop_last_partial=False) == samples
    assert plan.exact_samples == exact
    (warning,) = warnings_of(plan)
    assert f"computes {samples:,} samples in single precision instead of {exact:,}" in warning
    assert f"loading computes {exact:,} " in warning or usable > 2**53


def test_an_integer_is_rounded_to_single_precision_once():
    # By way of double precision, this number would become a half first, and be rounded down.
    usable = 2**60 + 2**36 + 1
    plan = planned(tokens_per_epoch=usable + 1, sequence_length=1, drop_last_partial=False)
    assert plan.samples == 2**60 + 2**37


def test_nothing_is_said_about_an_ordinary_plan():
    assert warnings_of(planned(num_samples=100)) == []
    assert warnings_of(planned(drop_last_partial=False)) == []


def test_a_sample_may_be_longer_than_an_epoch_if_there_are_several():
    plan = planned(tokens_per_epoch=10, num_samples=3)
    assert (plan.epochs, plan.samples) == (20, 3)
    assert "fewer than a sample of 64: sequences repeat" in warnings_of(plan)[0]


def test_an_epoch_without_a_sample_is_an_error_unless_nothing_was_asked_for():
    with pytest.raises(UsageError, match="has no samples: one epoch has 64 tokens, and a sample needs 65"):
        planned(tokens_per_epoch=64)
    assert planned(tokens_per_epoch=64, extra_token=False).samples == 1
    plan = planned(tokens_per_epoch=64, num_samples=0)
    assert (plan.epochs, plan.samples) == (1, 0)
    assert "the split has no samples: one epoch has 64 tokens" in warnings_of(plan)[0]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"sequences": 0, "tokens_per_epoch": 0}, InputError, "has no sequences"),
        ({"tokens_per_epoch": 0}, InputError, "100 sequences of the split have no tokens"),
        ({"tokens_per_epoch": 0, "num_samples": 0}, InputError, "have no tokens"),
        ({"sequence_length": 0}, UsageError, "sequence_length must be from 1 to 2147483646, got 0"),
        ({"sequence_length": 2**31 - 1}, UsageError, "from 1 to 2147483646"),
        ({"num_samples": -1}, UsageError, "num_samples must be at least 0, or None for one epoch, got -1"),
        ({"sequences": 2**31}, InputError, "at most 2,147,483,647 sequences"),
        ({"tokens_per_epoch": 1, "num_samples": 2**31}, InputError, "epochs of 1 tokens"),
        (
            {"tokens_per_epoch": 2**50, "num_samples": 2**58},
            InputError,
            "epochs of 1,125,899,906,842,624 tokens",
        ),
    ],
)
def test_what_cannot_be_planned_is_refused_with_the_numbers(changes, error, message):
    with pytest.raises(error, match=re.escape(message)):
        planned(**changes)


def test_the_limits_themselves_are_legal():
    assert planned(sequences=2**31 - 1).sequences == 2**31 - 1
    assert planned(sequence_length=2**31 - 1, extra_token=False, num_samples=1).samples == 1
    assert planned(tokens_per_epoch=2**63 - 1, sequence_length=2**20).samples == (2**63 - 2) // 2**20


def test_a_count_that_would_lead_outside_the_index_is_refused():
    # Near 6e9 single precision counts in steps of 512, more than an epoch of 100 has.
    changes = {"tokens_per_epoch": 100, "sequence_length": 1, "drop_last_partial": False}
    epochs = next(
        epochs
        for epochs in range(6 * 10**7, 6 * 10**7 + 100)
        if slow_samples(epochs * 100, 1, 1, drop_last_partial=False) < (epochs - 1) * 100 - 1
    )
    with pytest.raises(InputError, match="would read outside its index"):
        planned(num_samples=(epochs - 1) * 100 + 3, **changes)
