"""Packed samples in micro-batches, and each of their documents padded to a multiple (P48)."""

import pickle
from itertools import accumulate, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.assignments import topology_of
from support.loader_plans import (
    EOD,
    open_plan,
    plan_for,
    reference_of,
    same,
    slow_inputs,
    source_of,
    write_documents,
)
from support.restored_loaders import assert_same_after_restore
from tokshard.errors import IntegrityError, UsageError
from tokshard.loader import BatchOptions
from tokshard.loader.assembly import SampleShape
from tokshard.loader.memory import Memory
from tokshard.loader.padding import PaddedSampleAssembly
from tokshard.loader.reader import make_assembly
from tokshard.ranks.links import Bucketing
from tokshard.ranks.locator import open_sort_key
from tokshard.ranks.sources import SampleSource
from tokshard.ranks.topology import FIELDS, Coordinates
from tokshard.samples.index.packing import Packing
from tokshard.samples.index.samples import GPTSamples, Sample

READ = FIELDS[:-2]
EVERY = (*READ, "cu_seqlens")


def slow_parts(index, documents):
    """Return for each sample the parts of its documents, (number, tokens), and the token after them."""
    rows, order = index.sample_index.tolist(), index.document_index.tolist()
    for row in index.shuffle_index.tolist():
        (first, offset), (last, stop) = rows[row : row + 2]
        ends = {position: len(documents[order[position]]) for position in range(first, last)}
        ends |= {last: stop} if stop else {}
        numbers = [order[position] for position in ends]
        starts = [offset] + [0] * len(numbers)
        parts = [
            (number, documents[number][start:end])
            for number, start, end in zip(numbers, starts, ends.values(), strict=False)
        ]
        yield parts, documents[order[last]][stop]


def slow_sample(parts, following, length, extra, pad, *, multiple=None, eod_mask_loss=False):
    """Return the fields of a sample, token by token; with a multiple each document is padded to it."""
    sizes = [len(tokens) for _, tokens in parts]
    own = [token for _, tokens in parts for token in tokens]
    rest = length - len(own)
    text = (own + [following] * extra + [pad] * rest)[: length + extra]
    values = slow_inputs(
        text, extra=extra, pad=pad, eod=EOD, reset_position_ids=0, eod_mask_loss=eod_mask_loss
    )
    places = [k for size in sizes for k in range(size)] + [0] * rest
    numbers = [number for number, tokens in parts for _ in tokens] + [-1] * rest
    if multiple is None:
        whole = [*sizes[:-1], sizes[-1] + rest] if extra else [*sizes, rest]
        bounds = {"cu_seqlens": whole, "max_seqlen": max(whole)}
        places = [k for size in whole for k in range(size)]
        columns = [*zip(*values[:3], places, numbers, strict=True)]
    else:
        padded = [-(-size // multiple) * multiple for size in sizes]
        padded[-1] += length - sum(padded)
        real, columns = iter(zip(*values[:3], places, numbers, strict=True)), []
        for size, room in zip(sizes, padded, strict=True):
            columns += [next(real) for _ in range(size)] + [(0, 0, 0.0, 0, -1)] * (room - size)
        bounds = {"cu_seqlens": sizes, "cu_seqlens_padded": padded, "max_seqlen": max(padded)}
    for name in bounds.keys() - {"max_seqlen"}:
        edges = [0, *accumulate(bounds[name])]
        bounds[name] = (edges + edges[-1:] * length)[: length + 1]
    names = ("tokens", "labels", "loss_mask", "position_ids", "document_ids")
    return dict(zip(names, map(list, zip(*columns, strict=True)), strict=True)) | bounds


def slow_slice(padded_edges, context, rank):
    """Return the places of a context-parallel rank, as the kernel of Transformer Engine finds them."""
    places = []
    for start, stop in pairwise(padded_edges):
        size = (stop - start) // context
        for place in range(size):
            chunk = rank if place < size // 2 else (context - 1) * 2 - rank
            places.append(start + place + size // 2 * chunk)
    return places


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("packed")


@st.composite
def packed_cases(draw):
    """Return documents with many ends and pad tokens among them, and a way to pack and to read them."""
    context = draw(st.sampled_from([1, 1, 2, 3]))
    multiple = draw(st.integers(1, 3)) * 2 * context if context > 1 else draw(st.integers(2, 4))
    room = multiple * draw(st.integers(1, 2))
    length = room * draw(st.integers(1, 4))
    lengths = draw(st.lists(st.integers(1, length) | st.integers(1, 3 * length), min_size=1, max_size=20))
    pad = draw(st.sampled_from([-1, EOD, 3]))
    tokens = np.random.RandomState(draw(st.integers(0, 99))).randint(0, 5, sum(lengths))
    documents = [part.tolist() for part in np.split(tokens, np.cumsum(lengths)[:-1])]
    packing = Packing(max_documents=draw(st.sampled_from([None, 3])), pad_multiple=room)
    options = {"pad_id": pad, "cu_seqlens": True, "document_ids": True, "num_tokens": True}
    options |= {"eod_mask_loss": draw(st.booleans()), "eod_id": EOD}
    return documents, packing, length, draw(st.booleans()), context, multiple, options


@given(case=packed_cases(), mmap=st.booleans())
@settings(max_examples=25, deadline=None)
def test_packed_samples_and_their_padded_documents_equal_those_of_a_slow_twin(directory, case, mmap):
    documents, packing, length, extra, context, multiple, options = case
    prefix = write_documents(directory, "data", documents)
    reference = reference_of(
        directory, prefix, sequence_length=length, packing=packing, extra_token=extra, num_samples=7
    )
    index = reference.open_index()
    samples = GPTSamples(reference.open_dataset(mmap=mmap), index, pad_id=options["pad_id"])
    found = [samples.read(k) for k in range(len(samples))]
    source = SampleSource("index", "train", len(samples), (reference,))
    how = {"eod_mask_loss": options["eod_mask_loss"]}

    def batch_of(rank, **more):
        assembly = make_assembly(
            source, EVERY, BatchOptions(**options, **more), topology_of(context, context=context), rank
        )
        return assembly.micro_batch(found, np.zeros(len(found), np.int16), Memory())

    ranks = [Coordinates(dp=0, tp=0, pp=0, cp=cp) for cp in range(context)]
    padded = [batch_of(rank, pad_to_multiple=multiple) for rank in ranks]
    plain = batch_of(ranks[0]) if context == 1 else None
    twins = list(slow_parts(index, documents))
    assert len(twins) == len(samples) >= 7
    for k, (parts, following) in enumerate(twins):
        twin = slow_sample(parts, following, length, extra, options["pad_id"], **how)
        if plain is not None:
            assert {name: plain[name][k].tolist() for name in twin} == twin
            assert plain["num_tokens"][k] == sum(twin["loss_mask"])
        apart = slow_sample(parts, following, length, extra, options["pad_id"], multiple=multiple, **how)
        assert sum(apart["loss_mask"]) == sum(twin["loss_mask"]) == padded[0]["num_tokens"][k]
        for rank, batch in enumerate(padded):
            assert set(batch) == {*apart, "dataset_ids", "num_tokens"}
            assert not batch["loss_mask"][batch["document_ids"] < 0].any()
            for name in apart:
                values = apart[name]
                if name in {*READ, "document_ids"} and context > 1:
                    mine = slow_slice(apart["cu_seqlens_padded"], context, rank)
                    values = [values[place] for place in mine]
                assert batch[name][k].tolist() == values, name
    expected = [np.int64] * 5 + [np.float32] + [np.int32] * 3
    names = ["tokens", "labels", "position_ids", "document_ids", "num_tokens", "loss_mask"]
    names += ["cu_seqlens", "cu_seqlens_padded", "max_seqlen"]
    assert [padded[0][name].dtype for name in names] == expected


ROOM = Packing(pad_multiple=8)


@pytest.fixture(scope="module")
def packed(directory):
    """Samples of 16 tokens with room for documents padded to multiples of 8, and their slow twins."""
    documents = [[*[2 + number % 50] * (number * 7 % 40), EOD] for number in range(60)]
    prefix = write_documents(directory, "many", documents)
    reference = reference_of(directory, prefix, number=1, sequence_length=16, packing=ROOM, num_samples=180)
    source = SampleSource("index", "train", reference.samples, (reference,))
    return source, list(slow_parts(reference.open_index(), documents))


PADDED = BatchOptions(cu_seqlens=True, pad_to_multiple=4, document_ids=True)


def test_every_rank_reads_its_fields_and_its_chunks_of_each_document(directory, packed):
    source, parts = packed
    topology = topology_of(12, context=2, pipeline=3)
    path = plan_for(directory, source=source, topology=topology, micro=6)
    stages = [("tokens", "position_ids"), (), ("labels", "loss_mask")]
    for rank in range(12):
        place = topology.coordinates(rank)
        loader = open_plan(path, rank, options=PADDED)
        bounds = ("cu_seqlens", "cu_seqlens_padded", "max_seqlen")
        assert set(loader[0]) == {*stages[place.pp], *bounds, "document_ids", "dataset_ids"}
        for number in range(0, len(loader), 4):
            batch = loader[number]
            for row, sample in enumerate(loader.sample_ids(number)):
                twin = slow_sample(*parts[sample], 16, 1, -1, multiple=4)
                mine = slow_slice(twin["cu_seqlens_padded"], 2, place.cp)
                for name in (*stages[place.pp], "document_ids"):
                    assert batch[name][row].tolist() == [twin[name][k] for k in mine]
                for name in bounds:
                    assert batch[name][row].tolist() == twin[name]


def test_padded_samples_resume_at_any_position_and_cross_processes(directory, packed):
    path = plan_for(directory, source=packed[0], topology=topology_of(2), micro=12, mode="cyclic", epochs=2)
    loader = open_plan(path, 1, options=PADDED)
    batches = [{name: array.copy() for name, array in batch.items()} for batch in loader.clone()]
    assert (
        assert_same_after_restore(loader, fresh=lambda: open_plan(path, 1, options=PADDED))
        == len(batches) + 1
    )
    loader.seek(2 * 12 * 7)
    assert same(next(pickle.loads(pickle.dumps(loader))), batches[7])
    whole = loader.batch(3)
    micro = len(loader.micro_batches(3))
    joined = batches[3 * micro : 4 * micro]
    assert same(whole, {name: np.concatenate([batch[name] for batch in joined]) for name in whole})


def test_samples_with_similar_numbers_of_documents_come_together(directory, packed):
    source, parts = packed
    links = (Bucketing(source.total, 96, 8, 7, per_epoch=True),)
    path = plan_for(
        directory, source=source, topology=topology_of(2), micro=4, links=links, sort_key="pieces"
    )
    seen, spread = [], []
    for rank in range(2):
        loader = open_plan(path, rank, options=BatchOptions(cu_seqlens=True))
        for number, batch in enumerate(loader):
            ids = loader.sample_ids(number)
            counts = [len(parts[sample][0]) for sample in ids]
            assert np.count_nonzero(np.diff(batch["cu_seqlens"]), axis=1).tolist() == counts
            assert open_sort_key(source, "pieces")(np.array(ids)).tolist() == counts
            spread.append(max(counts) - min(counts))
            seen += ids
    assert len(set(seen)) == len(seen) == source.total // 8 * 8
    assert sum(spread) < len(spread) / 2


def test_padding_without_room_is_refused(directory, packed):
    source, _ = packed
    concatenated = source_of(directory, sequence_length=16)
    tight = source_of(directory, sequence_length=16, packing=Packing(max_documents=3))
    for other, options, message in (
        (concatenated, {}, "pad_to_multiple=8 requires room .* of .*data0 was built with --pack concat"),
        (tight, {}, "built with --pack best-fit, at most 3 documents per sample"),
        (source, {"pad_to_multiple": 16}, "best-fit, room for documents padded to multiples of 8 tokens"),
        (source, {"pad_to_multiple": 4, "context": 4}, "divisible by 2 x context-parallel size = 8, got 4"),
        (source, {"cu_seqlens": False}, "requires cu_seqlens: without them, tokens attend to the padding"),
    ):
        chosen = {"pad_to_multiple": 8, "cu_seqlens": True} | options
        context = chosen.pop("context", 1)
        path = plan_for(directory, source=other, topology=topology_of(context, context=context))
        with pytest.raises(UsageError, match=message) as caught:
            open_plan(path, options=BatchOptions(**chosen))
        if "--pack" in message or "best-fit" in message:
            multiple = chosen["pad_to_multiple"]
            assert f"--pack best-fit --pad-multiple {multiple}" in caught.value.hint


def test_a_sample_whose_documents_do_not_fit_with_padding_is_an_error():
    options = BatchOptions(cu_seqlens=True, pad_to_multiple=4)
    assembly = PaddedSampleAssembly(SampleShape(8, True, EVERY), options)
    text = np.arange(9)
    for lengths in ([3, 2, 3], [5, 3], [1, 1, 1]):
        sample = Sample(text, np.arange(len(lengths)), np.array(lengths))
        with pytest.raises(IntegrityError, match="padded to multiples of 4, do not fit into a sample of 8"):
            assembly.micro_batch([sample], np.zeros(1, np.int16), Memory())


def test_a_blend_of_packed_and_concatenated_samples_has_the_boundaries_of_each(directory):
    documents = [[number + 1] * (number % 13 + 1) for number in range(40)]
    prefix = write_documents(directory, "both", documents)
    references = [
        reference_of(directory, prefix, number=number, sequence_length=16, packing=packing)
        for number, packing in ((2, None), (3, Packing()))
    ]
    sizes = [reference.samples for reference in references]
    source = SampleSource("index", "train", sum(sizes), tuple(references))
    path = plan_for(directory, source=source, micro=1, topology=topology_of(1))
    loader = open_plan(path, options=BatchOptions(cu_seqlens=True, document_ids=True))
    parts = list(slow_parts(references[1].open_index(), documents))
    for number, batch in enumerate(loader):
        if number < sizes[0]:
            ends = np.flatnonzero(np.diff(batch["tokens"][0])) + 1  # documents have tokens of their own
            assert batch["cu_seqlens"][0, : len(ends) + 2].tolist() == [0, *ends.tolist(), 16]
            assert (batch["document_ids"] == batch["tokens"] - 1).all()
        else:
            twin = slow_sample(*parts[number - sizes[0]], 16, 1, -1)
            assert {name: batch[name][0].tolist() for name in twin} == twin
    with pytest.raises(UsageError, match="--pack concat"):
        open_plan(path, options=BatchOptions(cu_seqlens=True, pad_to_multiple=2))
