import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.blends import mixture_of
from tokshard.errors import UsageError
from tokshard.samples.blend.recipe import Source
from tokshard.samples.blend.weights import resolve, samples_of, share_out, smallest_surplus, with_surplus
from tokshard.samples.index.epochs import plan_epochs
from tokshard.samples.index.packing import PackedEpoch, Packing


def epoch_of(tokens, extra_token=True, packed_samples=None):
    """Return the plan of an epoch of samples of 8 tokens."""
    packed = (
        None
        if packed_samples is None
        else PackedEpoch(
            packing=Packing(),
            documents=1,
            samples=packed_samples,
            cut_documents=0,
            cut_tokens=0,
            concat_cut_documents=0,
            concat_cut_tokens=0,
        )
    )
    return plan_epochs(
        sequences=1, tokens_per_epoch=tokens, sequence_length=8, num_samples=0, extra_token=extra_token,
        packed=packed,
    )  # fmt: skip


def capped_case():
    source = st.tuples(
        st.floats(0.05, 1), st.integers(20, 400), st.one_of(st.none(), st.sampled_from([0.5, 1, 2, 3.5]))
    )
    return st.lists(source, min_size=2, max_size=6)


@given(case=capped_case(), size=st.integers(1, 400), temperature=st.sampled_from([1.0, 0.5, 3.0]))
@settings(max_examples=150, deadline=None)
def test_no_share_exceeds_its_cap_and_the_others_keep_their_proportions(case, size, temperature):
    epochs = [epoch_of(tokens * 8) for _, tokens, _ in case]
    mixture = mixture_of(
        *(Source(f"s{number}", weight, max_epochs=cap) for number, (weight, _, cap) in enumerate(case)),
        temperature=temperature,
    )
    caps = [
        math.inf if cap is None else samples_of(epoch, cap)
        for epoch, (_, _, cap) in zip(epochs, case, strict=True)
    ]
    if sum(caps) < size:
        with pytest.raises(UsageError, match=f"cannot have {size} samples: the caps of its sources are"):
            resolve(mixture, size, epochs)
        return
    resolved = resolve(mixture, size, epochs)
    assert resolved.size == size
    parts = np.array(resolved.weights) / sum(resolved.weights) * size
    powers = np.array([weight for weight, _, _ in case]) ** (1 / temperature)
    is_capped = parts >= np.array(caps) * (1 - 1e-9)
    assert parts == pytest.approx(np.minimum(parts, caps))
    for first, second in itertools.pairwise(np.flatnonzero(~is_capped)):
        assert parts[first] / parts[second] == pytest.approx(powers[first] / powers[second])
    for capped, other in itertools.product(np.flatnonzero(is_capped), np.flatnonzero(~is_capped)):
        assert parts[capped] / parts[other] <= powers[capped] / powers[other] * (1 + 1e-9)


def test_a_cap_of_a_single_source_is_kept():
    mixture = mixture_of(Source("a", max_epochs=2))
    assert resolve(mixture, 199, [epoch_of(800)]).weights is None
    with pytest.raises(UsageError, match="cannot have 200 samples: the caps of its sources are 'a' 199"):
        resolve(mixture, 200, [epoch_of(800)])


def test_caps_of_a_split_without_samples_have_no_effect():
    mixture = mixture_of(Source("a", 3, max_epochs=2), Source("b", 1))
    assert resolve(mixture, 0, [epoch_of(800)] * 2).weights == (3, 1)


def test_shares_beyond_caps_go_to_the_others():
    assert share_out([1, 1], [None, None], 10) == [5, 5]
    assert share_out([8, 1, 1], [2, None, None], 10) == [2, 4, 4]
    assert share_out([8, 1, 1], [2, 3, None], 10) == [2, 3, 5]
    assert share_out([8, 1, 1], [2, 3, 4], 10) is None
    assert share_out([8, 1, 1], [2, 3, 5], 10) == [2, 3, 5]


@example(target=100, missing=11)  # 100 * (1 + 0.1) is rounded to more than 110
@given(target=st.integers(1, 10**6) | st.integers(1, 10**14), missing=st.integers(0, 10**6))
def test_the_smallest_surplus_is_the_first_that_is_enough(target, missing):
    surplus = smallest_surplus(target, target + missing)
    assert with_surplus(target, surplus) >= target + missing
    before = (round(surplus * 10**6) - 1) / 10**6  # surplus - 1e-6 is mostly another number
    assert surplus == 0 or with_surplus(target, before) < target + missing


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_amounts_of_tokens_are_drawn_of_packed_sources_too(temperature):
    """Padding takes room, so that a source whose packs are half empty gets twice the samples."""
    sources = [
        epoch_of(8_000),
        epoch_of(8_000, packed_samples=2_000),
        epoch_of(9_000, packed_samples=1_500),
    ]
    amounts = (4_000, 8_000, 16_000)
    mixture = mixture_of(
        *(Source(f"s{number}", amount) for number, amount in enumerate(amounts)),
        unit="tokens",
        temperature=temperature,
    )
    found = resolve(mixture, None, sources)
    shares = np.array(found.weights) / sum(found.weights)
    per_sample = np.array([8, 4, 6])
    wanted = np.array(amounts) ** (1 / temperature)
    tokens = shares * found.size * per_sample
    assert tokens == pytest.approx(wanted / wanted.sum() * sum(amounts), abs=8)
    concat = resolve(mixture, None, [epoch_of(8_000)] * 3)
    assert concat.size == sum(amounts) // 8
    assert sum(concat.weights) == sum(amounts) or temperature != 1.0


def test_sources_without_weights_are_read_in_proportion_to_their_samples():
    """Each source as often as the others, whatever is padding."""
    sources = [epoch_of(8_000, False), epoch_of(8_000, False, packed_samples=3_000)]
    mixture = mixture_of(Source("a", max_epochs=2), Source("b", max_epochs=2))
    found = resolve(mixture, 4_000, sources)
    assert found.weights[1] / found.weights[0] == pytest.approx(3)
