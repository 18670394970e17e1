"""P49, P50: packed indexes equal those of a slow packer, and every token is counted."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokshard.errors import InputError, UsageError
from tokshard.samples.index import best_fit
from tokshard.samples.index.best_fit import EpochPacks
from tokshard.samples.index.index import GPTDatasetIndex
from tokshard.samples.index.packing import MAX_PACKED_SEQUENCE_LENGTH, Packing, packing_of
from tokshard.samples.index.spans import SampleSpans
from tokshard.storage.compilation import has_numba

WAYS = [pytest.param(False, id="numpy")]
if has_numba():
    WAYS.append(pytest.param(True, id="compiled"))


def slow_packs(documents, size, most, multiple):
    """Best-fit decreasing, a document at a time; returns the packs, as lists of places in ``documents``."""
    padded = [-(-((n - 1) % size + 1) // multiple) * multiple for n in documents]
    by_size = sorted(range(len(documents)), key=lambda d: (documents[d] <= size, -padded[d]))
    packs, spaces, since = [], [], []
    for clock, document in enumerate(by_size):
        fits = [
            pack
            for pack, members in enumerate(packs)
            if documents[document] <= size and padded[document] <= spaces[pack] and len(members) < most
        ]
        pack = min(fits, key=lambda pack: (spaces[pack], since[pack]), default=len(packs))
        if pack == len(packs):
            packs, spaces, since = [*packs, []], [*spaces, size], [*since, 0]
        packs[pack].append(document)
        spaces[pack] -= padded[document]
        since[pack] = clock
    return [sorted(pack, key=lambda d: (documents[d] <= size, d)) for pack in packs]


def slow_index(lengths, size, seed, epochs, packing):
    """Return the three arrays as lists, built a document at a time."""
    stream = np.random.RandomState(seed)
    order, rows, shuffle = [], [], []
    for _ in range(epochs):
        documents = np.array([d for d, n in enumerate(lengths) if n], np.int32)
        stream.shuffle(documents)
        sizes = [int(lengths[d]) for d in documents]
        samples = len(rows)
        for pack in slow_packs(
            sizes, size, packing.max_documents or len(documents), packing.pad_multiple or 1
        ):
            rows += [[len(order), offset] for offset in range(0, sizes[pack[0]], size)]
            order += [int(documents[d]) for d in pack]
        numbers = np.arange(samples, len(rows), dtype=np.uint32)
        stream.shuffle(numbers)
        shuffle += numbers.tolist()
    return [*order, order[0]], [*rows, [len(order), 0]], shuffle


@st.composite
def cases(draw, longest=12):
    multiple = draw(st.sampled_from([None, 1, 2, 3]))
    size = draw(st.integers(1, longest)) * (multiple or 1)
    special = st.sampled_from([0, 1, size, size + 1, 2 * size, 3 * size])
    lengths = draw(
        st.lists(special | st.integers(0, size) | st.integers(0, 5 * size), min_size=1, max_size=40)
    )
    packing = Packing(max_documents=draw(st.sampled_from([None, 1, 2, 3])), pad_multiple=multiple)
    return np.array(lengths, np.int32), size, packing


@pytest.mark.parametrize("way", WAYS)
@given(
    case=cases() | cases(longest=2000),
    seed=st.integers(0, 9),
    num_samples=st.sampled_from([None, 1, 30]),
    extra=st.booleans(),
)
def test_arrays_equal_those_of_a_slow_packer(way, monkeypatch_once, case, seed, num_samples, extra):
    monkeypatch_once.setattr(best_fit, "WORTH_COMPILING", 0 if way else 10**9)
    monkeypatch_once.setattr(best_fit, "_PIECE", 7)
    lengths, size, packing = case
    if not lengths.any():
        with pytest.raises(InputError, match="have no tokens"):
            _build(lengths, size, packing, seed, num_samples, extra)
        return
    index = _build(lengths, size, packing, seed, num_samples, extra)
    plan = index.plan
    arrays = slow_index(lengths, size, seed, plan.epochs, packing)
    assert (
        index.document_index.tolist(),
        index.sample_index.tolist(),
        index.shuffle_index.tolist(),
    ) == arrays
    assert plan.samples == plan.epochs * plan.packed.samples == len(arrays[2])
    assert plan.samples >= (num_samples or 1) > plan.samples - plan.packed.samples


def _build(lengths, size, packing, seed, num_samples, extra):
    return GPTDatasetIndex.build(
        lengths,
        range(len(lengths)),
        sequence_length=size,
        seed=seed,
        num_samples=num_samples,
        extra_token=extra,
        packing=packing,
    )


@pytest.fixture(scope="module")
def monkeypatch_once():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@given(case=cases(), extra=st.booleans())
def test_each_token_is_an_input_once_per_epoch_and_no_short_document_is_cut(case, extra):
    lengths, size, packing = case
    if not lengths.any():
        return
    index = _build(lengths, size, packing, 1, 50, extra)
    spans = SampleSpans(index, lengths).of_samples(np.arange(index.plan.samples))
    read = Counter()
    for sample in range(index.plan.samples):
        epoch = sample // index.plan.packed.samples
        mine = np.flatnonzero(spans.owners == sample)
        counts = spans.counts[mine]
        counts[-1] -= extra  # the last label
        pieces = [
            (int(document), int(first), int(count))
            for document, first, count in zip(spans.sequences[mine], spans.firsts[mine], counts, strict=True)
            if count
        ]
        multiple = packing.pad_multiple or 1
        assert sum(-(-count // multiple) * multiple for _, _, count in pieces) <= size
        assert len(pieces) <= (packing.max_documents or len(pieces))
        for place, (document, first, count) in enumerate(pieces):
            read.update((epoch, document, token) for token in range(first, first + count))
            assert count == lengths[document] or (
                lengths[document] > size
                and place == 0
                and first % size == 0
                and (count == size or first + count == lengths[document])
            )
    everything = {
        (epoch, document, token)
        for epoch in range(index.plan.epochs)
        for document, count in enumerate(lengths.tolist())
        for token in range(count)
    }
    assert set(read) == everything
    assert set(read.values()) == {1}


def test_epochs_that_come_later_do_not_change_the_earlier_ones():
    lengths = np.arange(60, dtype=np.int32) % 17
    one, three = (_build(lengths, 16, Packing(), 5, samples, extra=True) for samples in (None, 90))
    documents, samples = one.plan.packed.documents, one.plan.samples
    assert three.plan.epochs == 4
    assert three.document_index[:documents].tolist() == one.document_index[:-1].tolist()
    assert three.sample_index[:samples].tolist() == one.sample_index[:-1].tolist()
    assert three.shuffle_index[:samples].tolist() == one.shuffle_index.tolist()
    second = slice(documents, 2 * documents)
    assert three.document_index[second].tolist() != one.document_index[:-1].tolist()


def test_the_algorithm_of_this_name_is_frozen():
    assert Packing.ALGORITHM == "tokshard.best-fit/1"
    lengths = np.array([5, 0, 17, 3, 8, 1, 9, 26, 2, 3, 8, 12, 4, 4], np.int32)
    index = GPTDatasetIndex.build(
        lengths, range(14), sequence_length=8, seed=1234, num_samples=None, packing=Packing(max_documents=3)
    )
    assert index.document_index.tolist() == [11, 13, 7, 0, 5, 2, 3, 12, 6, 8, 9, 10, 4, 11]
    rows = [[0, 0], [0, 8], [2, 0], [2, 8], [2, 16], [2, 24], [5, 0], [5, 8], [5, 16], [8, 0], [8, 8]]
    assert index.sample_index.tolist() == [*rows, [11, 0], [12, 0], [13, 0]]
    assert index.shuffle_index.tolist() == [7, 11, 2, 3, 1, 9, 5, 4, 0, 8, 6, 10, 12]


def test_only_the_documents_of_the_split_are_packed():
    lengths = np.array([9, 3, 0, 4, 1, 9], np.int32)
    packs = EpochPacks.of(lengths, range(1, 5), 8, Packing())
    assert (packs.packs, packs.size.packed.samples, packs.documents, packs.size.tokens) == (1, 1, 3, 8)
    index = GPTDatasetIndex.build(
        lengths, range(1, 5), sequence_length=8, seed=1, num_samples=None, packing=Packing()
    )
    assert sorted(index.document_index[:-1].tolist()) == [1, 3, 4]
    assert index.sample_index.tolist() == [[0, 0], [3, 0]]


def test_the_packs_leave_no_room_that_the_lengths_do_not_enforce():
    # Not every order of packing fills these: first-fit in the order of the corpus needs 3 samples.
    packs = EpochPacks.of(np.array([4, 5, 3, 4], np.int32), range(4), 8, Packing())
    assert packs.size.packed.samples == 2


@given(case=cases())
def test_packs_equal_those_of_a_slow_packer(case):
    lengths, size, packing = case
    if not lengths.any():
        return
    packs = EpochPacks.of(lengths, range(len(lengths)), size, packing)
    slow = slow_packs(
        [int(n) for n in lengths if n], size, packing.max_documents or len(lengths), packing.pad_multiple or 1
    )
    full = sum((int(n) - 1) // size for n in lengths if n)
    assert np.bincount(packs.pack_of_documents()).tolist() == [len(pack) for pack in slow]
    assert packs.size.packed.samples == len(slow) + full


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("concat", 3, None), "--max-documents-per-sample requires --pack best-fit"),
        (("concat", None, 3), "--pad-multiple requires --pack best-fit"),
        (("best-fit", 0, None), "max_documents must be at least 1, got 0"),
        (("best-fit", None, 0), "pad_multiple must be at least 1, got 0"),
    ],
)
def test_options_that_cannot_be(options, message):
    with pytest.raises(UsageError, match=f"^{message}$"):
        packing_of(*options)
    assert packing_of("concat", None, None) is None
    assert packing_of("best-fit", 3, 2) == Packing(max_documents=3, pad_multiple=2)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (MAX_PACKED_SEQUENCE_LENGTH + 2, "packed samples must be at most 16,777,216, got 16,777,218"),
        (7, "the sequence length 7 must be a multiple of --pad-multiple 2"),
    ],
)
def test_sequence_lengths_that_cannot_be_packed(size, message):
    with pytest.raises(UsageError, match=message):
        EpochPacks.of(np.array([1], np.int32), range(1), size, Packing(pad_multiple=2))
