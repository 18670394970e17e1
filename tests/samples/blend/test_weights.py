import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.blends import greedy, mixture_of
from tokshard.errors import UsageError
from tokshard.samples.blend.recipe import Source
from tokshard.samples.blend.weights import (
    SourceTokens,
    resolve,
    share_out,
    smallest_surplus,
    source_sizes,
    with_surplus,
)


def capped_case():
    source = st.tuples(
        st.floats(0.05, 1), st.integers(20, 400), st.one_of(st.none(), st.sampled_from([0.5, 1, 2, 3.5]))
    )
    return st.lists(source, min_size=2, max_size=6)


@given(case=capped_case(), size=st.integers(1, 400), temperature=st.sampled_from([1.0, 0.5, 3.0]))
@settings(max_examples=150, deadline=None)
def test_no_source_is_drawn_beyond_its_cap_and_the_rest_keep_their_proportions(case, size, temperature):
    source_tokens = [SourceTokens(tokens * 8, 8, 1) for _, tokens, _ in case]
    mixture = mixture_of(
        *(Source(f"s{i}", weight, max_epochs=cap) for i, (weight, _, cap) in enumerate(case)),
        temperature=temperature,
    )
    caps = [
        None if cap is None else tokens_of_source.samples_of(cap)
        for tokens_of_source, (_, _, cap) in zip(source_tokens, case, strict=True)
    ]
    try:
        found = resolve(mixture, size, source_tokens)
    except UsageError:
        # Only where all are capped, and the caps hold hardly more than is asked for, if that.
        assert None not in caps
        assert sum(caps) <= size + len(caps) ** 2 or min(caps) == 0
        return
    assert found.size == size
    shares = np.array(found.weights) / sum(found.weights)
    total = sum(source_sizes(shares.tolist(), size, 0.0).targets)
    drawn = greedy((shares / shares.sum()).tolist(), total)[0]
    for place, cap in enumerate(caps):
        assert cap is None or drawn.count(place) <= cap
    wanted = [weight ** (1 / temperature) for weight, _, _ in case]
    free = [place for place, cap in enumerate(caps) if cap is None]
    for first, second in itertools.pairwise(free):
        assert found.weights[first] / found.weights[second] == pytest.approx(wanted[first] / wanted[second])


def test_shares_beyond_caps_go_to_the_others():
    assert share_out([1, 1], [None, None], 10) == [5, 5]
    assert share_out([8, 1, 1], [2, None, None], 10) == [2, 4, 4]
    assert share_out([8, 1, 1], [2, 3, None], 10) == [2, 3, 5]
    assert share_out([8, 1, 1], [2, 3, 4], 10) is None
    assert share_out([8, 1, 1], [2, 3, 5], 10) == [2, 3, 5]


@given(target=st.integers(1, 10**6), needed=st.integers(0, 10**6))
def test_the_smallest_surplus_is_the_first_that_fits(target, needed):
    found = smallest_surplus(lambda surplus: with_surplus(target, surplus) >= target + needed)
    if found is None:
        assert needed / target > 10**5
        return
    assert with_surplus(target, found) >= target + needed
    before = (round(found * 10**6) - 1) / 10**6  # found - 1e-6 is mostly another number
    assert found == 0 or with_surplus(target, before) < target + needed


@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_amounts_of_tokens_are_drawn_of_packed_sources_too(temperature):
    """Padding takes room, so that a source whose packs are half empty gets twice the samples."""
    sources = [
        SourceTokens(8_000, 8, 1),
        SourceTokens(8_000, 8, 1, packed_samples=2_000),
        SourceTokens(9_000, 8, 1, packed_samples=1_500),
    ]
    amounts = (4_000, 8_000, 16_000)
    mixture = mixture_of(
        *(Source(f"s{place}", amount) for place, amount in enumerate(amounts)),
        unit="tokens",
        temperature=temperature,
    )
    found = resolve(mixture, None, sources)
    shares = np.array(found.weights) / sum(found.weights)
    per_sample = np.array([8, 4, 6])
    wanted = np.array(amounts) ** (1 / temperature)
    tokens = shares * found.size * per_sample
    assert tokens == pytest.approx(wanted / wanted.sum() * sum(amounts), abs=8)
    concat = resolve(mixture, None, [SourceTokens(8_000, 8, 1)] * 3)
    assert concat.size == sum(amounts) // 8
    assert sum(concat.weights) == sum(amounts) or temperature != 1.0


def test_sources_without_weights_are_read_in_proportion_to_their_samples():
    """Each source as often as the others, whatever is padding."""
    sources = [SourceTokens(8_000, 8, 0), SourceTokens(8_000, 8, 0, packed_samples=3_000)]
    mixture = mixture_of(Source("a", max_epochs=2), Source("b", max_epochs=2))
    found = resolve(mixture, 4_000, sources)
    assert found.weights[1] / found.weights[0] == pytest.approx(3)
