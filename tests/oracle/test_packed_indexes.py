"""What an unmodified Megatron does with a packed index: the facts that packing by index relies on.

The arrays are those of a slow packer (``oracle.packs``), under the names of Megatron's cache. A *pack* is one
document of any length, which is cut into full samples and a remainder, and the documents that fill the sample
of the remainder. Each test states a fact in its docstring; each is true of megatron-core 0.16.1 and 0.19.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from oracle.packs import (
    EOD,
    NO_PAD,
    PAD,
    Packed,
    S,
    check,
    check_sample,
    entry_of,
    expected,
    found,
    has_inter_document_masking,
    packed_source,
    random_lengths,
    start,
    write_documents,
)
from oracle.reference import Megatron, items

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module")
def megatron():
    return Megatron()


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """Run in a directory of its own: prefixes are relative, as their text is in the names of the files."""
    monkeypatch.chdir(tmp_path)


def read(dataset, number):
    """Return all fields of a sample, read as the first (see oracle.reference.items)."""
    dataset.masks_and_position_ids_are_cached = False
    return {name: value.numpy() for name, value in dataset[number].items()}


CASES = {
    "one-short-document": [5],
    "one-token": [1],
    "a-full-sample": [S],
    "whole-samples": [3 * S],
    "a-remainder-of-one": [2 * S + 1],
    "one-pack": [2 * S + 3, 2, 0, 3],
    "all-full": [S, 5, 3, 2 * S, 2, 6],
    "empty-at-both-ends": [0, 3, 0, 11, 0],
}


@pytest.mark.parametrize("extra_token", [True, False], ids=["extra-token", "no-extra-token"])
@pytest.mark.parametrize("lengths", CASES.values(), ids=list(CASES))
def test_a_sample_is_the_documents_of_its_pack(megatron, lengths, extra_token):
    """A cache with packed arrays is a hit: nothing is written, ``__len__`` is rows - 1, every sample is read.

    A sample is the tokens of its documents, one borrowed token and pad tokens. The borrowed token is the
    first of the next pack (of the first one after the last, so that a single pack borrows from itself); with
    ``add_extra_token_to_sequence=False`` there is none. In a short sample it is also an input, with a pad
    token as its label. The loss of labels that are padding is masked. Pad tokens are given as 0.
    """
    packed = packed_source("data/a", lengths, S)
    (dataset, *_) = found(
        megatron, S, [None] * 3, blend=(["data/a"], None), add_extra_token_to_sequence=extra_token
    )
    check(dataset, packed, extra_token=extra_token)


def test_random_documents_are_read(megatron):
    """The same with any lengths, splits, seeds and several epochs, with a pad token and without one."""
    for seed in range(24):
        draw = np.random.RandomState(seed)
        length, pad, extra = int(draw.choice([2, 3, 8, 17])), [None, PAD][seed % 2], seed % 3 > 0
        prefix, epochs, split = f"data/{seed}", int(draw.randint(1, 4)), ["1", "1,1,0"][seed % 2]
        half = int(draw.randint(1, 31))
        documents = write_documents(
            prefix, random_lengths(draw, length, half) + random_lengths(draw, length, half)
        )
        parts = [range(2 * half)] if split == "1" else [range(half), range(half, 2 * half)]
        packs = [
            Packed.random(documents, length, epochs=epochs, seed=seed, sequences=part, most=2 + seed % 5)
            for part in parts
        ]
        sizes = [len(packed.order) - int(draw.randint(2)) for packed in packs] + [0] * (3 - len(parts))
        for packed, size, name in zip(packs, sizes, ("train", "valid"), strict=False):
            packed.write(entry_of(prefix, length, size, split=split, name=name))
        datasets = found(
            megatron,
            length,
            sizes,
            blend=([prefix], None),
            split=split,
            pad=pad,
            add_extra_token_to_sequence=extra,
            drop_last_partial_validation_sequence=seed % 4 > 0,
        )
        for dataset, packed in zip(datasets, packs, strict=False):
            check(dataset, packed, pad=NO_PAD if pad is None else pad, extra_token=extra)


@pytest.mark.parametrize("extra_token", [True, False], ids=["extra-token", "no-extra-token"])
def test_every_token_is_an_input_and_a_label_once_an_epoch(megatron, extra_token):
    """Trained inputs are each token of the split once an epoch, and so are trained labels.

    The borrowed token makes it so: the first token of a pack is a label in the sample before, and that of the
    first pack in the last sample, through the copy of entry 0 that closes ``document_index``. As an input, a
    borrowed token is never trained. With ``add_extra_token_to_sequence=False`` the last token of each sample
    has no label, so that it is not trained, and the first token of each is no label.
    """
    for seed, epochs in [(0, 1), (1, 3), (2, 2)]:
        lengths = random_lengths(np.random.RandomState(seed), S, 20)
        packed = packed_source(f"data/{seed}", lengths, S, epochs=epochs, seed=seed)
        (dataset, *_) = found(
            megatron, S, [None] * 3, blend=([f"data/{seed}"], None), add_extra_token_to_sequence=extra_token
        )
        every = Counter(range(1, sum(lengths) + 1))
        once = Counter(dict.fromkeys(every, epochs))
        inputs, trained, labels = Counter(), Counter(), Counter()
        for number in range(len(dataset)):
            item = items(dataset, number)
            kept = item.loss_mask > 0
            inputs.update(item.tokens.tolist())
            trained.update(item.tokens[kept].tolist())
            labels.update(item.labels[kept].tolist())
        samples = packed.samples()
        if extra_token:
            short = [sample for sample in samples if len(sample.own) < S]
            assert trained == labels == once
            assert inputs - Counter({0: inputs[0]}) == once + Counter(sample.borrowed for sample in short)
        else:
            assert inputs - Counter({0: inputs[0]}) == once
            assert trained == once - Counter(sample.own[-1] for sample in samples)
            assert labels == once - Counter(sample.own[0] for sample in samples)


def test_a_token_that_is_the_pad_token_is_never_trained(megatron):
    """A document's token with the id of the pad token is 0 as an input and never trained as a label.

    So it is in every sample of Megatron, packed or not, also if the borrowed token is the pad token. Where
    the pad token is the EOD token, Megatron pads with -1 and trains every EOD token; with
    ``allow_ambiguous_pad_tokens`` all EOD tokens are 0 and none is trained.
    """
    packed = packed_source("data/a", [5, 0, 3, 11, 2], S, eod=True)
    job = {"blend": (["data/a"], None)}
    first = int(packed.documents[packed.packs[0][0]][0])  # the one that the last sample borrows
    assert packed.samples()[-1].borrowed == first
    for pad, effective, options in [
        (first, first, {}),
        (EOD, NO_PAD, {}),
        (EOD, EOD, {"allow_ambiguous_pad_tokens": True}),
    ]:
        (dataset, *_) = found(megatron, S, [None] * 3, pad=pad, **job, **options)
        check(dataset, packed, pad=effective)
        labels = np.concatenate([items(dataset, number).labels for number in range(len(dataset))])
        assert (labels == EOD).any() == (effective != EOD)


@pytest.mark.parametrize("option", ["reset_position_ids", "reset_attention_mask", "eod_mask_loss", None])
def test_padding_of_the_first_sample_masks_all_later_ones(megatron, option):
    """Without one of three options, the padding of the first sample read is not trained in any later sample.

    A ``GPTDataset`` keeps the loss mask of the first sample that it reads, then masks the padding in place;
    later samples start from a copy. Each worker process of the data loader has a first sample of its own for
    each dataset of a blend. Concatenated samples have no padding (except the last of a validation split),
    packed ones do: a nearly empty first pack leaves nearly all later labels of that worker untrained. Each of
    ``reset_position_ids``, ``reset_attention_mask`` and ``eod_mask_loss`` avoids it, with or without EOD
    tokens in the data; inter-document masking does not.
    """
    packed = packed_source("data/a", [S, 3, S], S)
    lengths = [len(sample.own) for sample in packed.shuffled()]
    short, full = lengths.index(3), lengths.index(S)
    jobs = [{option: True} if option else {}]
    if option is None and has_inter_document_masking(megatron):
        jobs.append({"inter_document_masking": True})
    for options in jobs:
        (dataset, *_) = found(megatron, S, [None] * 3, blend=(["data/a"], None), **options)
        first = dataset[short]["loss_mask"].tolist()
        assert first == [1] * 3 + [0] * (S - 3)
        assert dataset[full]["loss_mask"].tolist() == ([1] * S if option else first)
        (dataset, *_) = found(megatron, S, [None] * 3, blend=(["data/a"], None), **options)
        assert dataset[full]["loss_mask"].tolist() == [1] * S
        assert dataset[short]["loss_mask"].tolist() == first
        assert dataset[full]["loss_mask"].tolist() == [1] * S


def runs(parts, length):
    """Return for each position of a sample the number of its document; padding is that of one more."""
    owners = np.repeat(np.arange(len(parts)), parts)
    return np.append(owners, np.full(length - len(owners), len(parts)))


def restarts(owners):
    """Return positions that restart where the document changes."""
    starts = np.flatnonzero(np.diff(owners, prepend=-1))
    return np.arange(len(owners)) - np.repeat(starts, np.diff(np.append(starts, len(owners))))


def test_positions_attention_and_loss_restart_at_eod_tokens(megatron):
    """With an EOD token at the end of each document, the options restart positions and attention at each.

    Padding and the borrowed input before it are then a document of their own. A sample that continues a cut
    document starts at position 0, as all do. ``eod_mask_loss`` masks the loss of EOD inputs, whose labels are
    the first tokens of the next documents: then none of these is trained, and no borrowed token. A document
    without an EOD token at its end is not separated from the next one.
    """
    for seed, eod in [(0, True), (1, True), (2, False)]:
        lengths = random_lengths(np.random.RandomState(seed), S, 20)
        packed = packed_source(f"data/{seed}", lengths, S, eod=eod, seed=seed)
        options = {"reset_position_ids": True, "reset_attention_mask": True, "eod_mask_loss": True}
        (dataset, *_) = found(
            megatron, S, [None] * 3, blend=([f"data/{seed}"], None), create_attention_mask=True, **options
        )
        for number, sample in enumerate(packed.shuffled()):
            item = read(dataset, number)
            owners = runs(sample.parts, S) if eod else np.zeros(S, int)
            assert item["position_ids"].tolist() == restarts(owners).tolist()
            visible = (owners[:, None] == owners) & np.tri(S, dtype=bool)
            assert (~item["attention_mask"][0] == visible).all()
            own = len(sample.own)
            trained = [k < own and item["tokens"][k] != EOD for k in range(S)]
            assert item["loss_mask"].tolist() == trained


@pytest.mark.parametrize("extra_token", [True, False], ids=["extra-token", "no-extra-token"])
def test_inter_document_masking_has_the_boundaries_of_the_documents(megatron, extra_token):
    """Boundaries are those of the documents in a sample, cut ones among them, with or without EOD tokens.

    The borrowed token adds no boundary. In a short sample the rest (the borrowed input and the padding)
    belongs to the last document, whose attention and positions continue; also if the borrowed token is the
    pad token. With ``add_extra_token_to_sequence=False`` the rest is a document of its own. ``cu_seqlens``
    has S + 1 entries, of which the last ones repeat S. The loss is not masked at boundaries: the label of a
    document's last token is the first token of the next one.
    """
    if not has_inter_document_masking(megatron):
        pytest.skip("this megatron-core has no inter-document masking")
    short = 0
    for seed in range(6):
        lengths = random_lengths(np.random.RandomState(seed), S, 20)
        packed = packed_source(f"data/{seed}", lengths, S, eod=seed % 2 == 0, seed=seed)
        samples = packed.shuffled()
        borrowed = [sample.borrowed for sample in samples if len(sample.own) < S]
        (dataset, *_) = found(
            megatron,
            S,
            [None] * 3,
            blend=([f"data/{seed}"], None),
            pad=borrowed[0] if seed > 3 else PAD,
            inter_document_masking=True,
            add_extra_token_to_sequence=extra_token,
        )
        for number, sample in enumerate(samples):
            item = read(dataset, number)
            rest = S - sum(sample.parts)
            short += rest > 0
            parts = list(sample.parts)
            if extra_token:
                parts[-1] += rest
            else:
                parts += [rest] * (rest > 0)
            boundaries = np.cumsum([0, *parts]).tolist()
            assert item["cu_seqlens"].tolist() == boundaries + [S] * (S + 1 - len(boundaries))
            assert item["max_seqlen"] == max(parts)
            assert item["position_ids"].tolist() == [k for part in parts for k in range(part)]
            assert item["loss_mask"].tolist() == expected(sample, S, dataset._pad_token_id, extra_token)[2]
    assert short > 10


def test_a_length_that_is_not_of_the_index(megatron):
    """With ``defer_npy_index_mmap`` the length of a dataset is that which concatenated samples would have.

    With ``num_samples`` None some packs are never read. With a number the length can exceed the samples of
    the index; reading beyond them is an IndexError. Each sample below both lengths is its pack: a job that
    reads no more samples than it asked for (``--dataloader-type single``) reads packs.
    """
    lengths = [5] * 6
    tokens, packs = sum(lengths), len(lengths)
    options = {"blend": (["data/a"], None), "defer_npy_index_mmap": True}
    packed = packed_source("data/a", lengths, S)
    (dataset, *_) = found(megatron, S, [None] * 3, **options)
    assert len(dataset) == (tokens - 1) // S == 3 < packs
    packed.write(entry_of("data/a", S, packs))
    (dataset, *_) = found(megatron, S, [packs, 0, 0], **options)
    assert len(dataset) == (2 * tokens - 1) // S == 7 > packs
    for number, sample in enumerate(packed.shuffled()):
        check_sample(items(dataset, number), sample, S)
    with pytest.raises(IndexError):
        dataset[packs]


def test_too_few_packs_fail_at_the_start(megatron):
    """A dataset without a blend whose index has fewer samples than the job asks for is an AssertionError."""
    packed = packed_source("data/a", [5] * 6, S)
    packed.write(entry_of("data/a", S, 7))
    with pytest.raises(AssertionError):
        start(megatron, S, [7, 0, 0], blend=(["data/a"], None))
    packed.write(entry_of("data/a", S, 3))
    (dataset, *_) = found(megatron, S, [3, 0, 0], blend=(["data/a"], None))
    check(dataset, packed)


def test_an_empty_sequence_lends_a_token_that_is_not_its_own(megatron):
    """Megatron borrows from an empty sequence what is stored after it, and fails where nothing is.

    Therefore packed indexes leave empty sequences out; concatenated ones never borrow from one.
    """
    documents = write_documents("data/a", [5, 0, 7])
    entry = entry_of("data/a", S, None)
    Packed([*documents], S, [[[0], [2]]], np.arange(2)).write(entry)
    np.save(entry.array_path("document_index"), np.array([0, 2, 1], np.int32))
    (dataset, *_) = found(megatron, S, [None] * 3, blend=(["data/a"], None))
    assert items(dataset, 1).tokens.tolist() == [*documents[2].tolist(), int(documents[2][0])]
    documents = write_documents("data/b", [5, 7, 0])
    entry = entry_of("data/b", S, None)
    Packed([*documents], S, [[[0], [1]]], np.arange(2)).write(entry)
    np.save(entry.array_path("document_index"), np.array([0, 1, 2], np.int32))
    (dataset, *_) = found(megatron, S, [None] * 3, blend=(["data/b"], None))
    with pytest.raises(ValueError, match="buffer"):
        dataset[1]
