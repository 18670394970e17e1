"""Reading of micro-batches: tokens alone, padding samples, open datasets, and reading ahead."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.assignments import topology_of
from support.loader_plans import LENGTH, open_plan, plan_for, same, source_of
from tokshard.errors import MissingFileError, UsageError
from tokshard.loader import BatchOptions
from tokshard.loader import schedule as schedule_module
from tokshard.loader.reader import FILES_PER_SHARD, Readahead, Shard
from tokshard.ranks import sources as source_module
from tokshard.ranks.locator import Locator
from tokshard.samples.index.samples import GPTSamples

TOKENS = BatchOptions(tokens_only=True)


def text_of(source, sample_id, pad_id=-1):
    """Return the tokens of a sample as GPTSamples reads it alone."""
    dataset, sample = (int(array[0]) for array in Locator(source).locate(np.array([sample_id])))
    reference = source.datasets[dataset]
    samples = GPTSamples(reference.open_dataset(), reference.open_index(), pad_id=pad_id)
    return samples.read(sample).tokens.tolist()


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize(("weights", "extra"), [(None, True), (None, False), ([0.5, 0.3, 0.2], True)])
def test_tokens_alone_are_the_samples_as_they_are_stored(tmp_path, weights, extra, mmap):
    size = None if weights is None else 60
    options = {"extra_token": extra, "drop_last_partial": False}
    source = source_of(tmp_path, datasets=3, documents=50, weights=weights, size=size, **options)
    path = plan_for(tmp_path, source=source, micro=2, topology=topology_of(2), tail="pad")
    for pad_id in (-1, 7):
        options = BatchOptions(tokens_only=True, repeated=True, pad_id=pad_id)
        for rank in range(2):
            loader = open_plan(path, rank, options=options, mmap=mmap)
            assert loader.fields == ("tokens",)
            for number, batch in enumerate(loader):
                assert list(batch) == ["tokens", "repeated"]
                assert (batch["tokens"].dtype, batch["tokens"].shape) == (np.int64, (2, LENGTH + extra))
                ids = loader.sample_ids(number)
                assert batch["tokens"].tolist() == [text_of(source, k, pad_id) for k in ids]
    whole = loader.batch(1)["tokens"]
    assert whole.tolist() == [
        row for number in loader.micro_batches(1) for row in loader.batch(1, number)["tokens"].tolist()
    ]


def test_ranks_that_read_nothing_get_no_tokens(tmp_path):
    path = plan_for(tmp_path, topology=topology_of(6, tensor=2, pipeline=3))
    names = [list(open_plan(path, rank, options=TOKENS)[0]) for rank in range(6)]
    assert names == [["tokens"], [], [], [], ["tokens"], []]


@pytest.mark.parametrize(
    ("kind", "topology", "stream", "message"),
    [
        ("index", {"ranks": 2, "context": 2}, {}, "whole samples .* context parallelism would divide them"),
        ("documents", {"ranks": 1}, {}, "samples of a fixed length: this is a plan of documents"),
        ("index", {"ranks": 1}, {"document_boundaries": True}, "cu_seqlens, which excludes tokens_only"),
    ],
)
def test_tokens_alone_are_refused_where_samples_are_cut(tmp_path, kind, topology, stream, message):
    ranks = topology.pop("ranks")
    source = source_of(tmp_path, kind=kind)
    path = plan_for(tmp_path, source=source, topology=topology_of(ranks, **topology), **stream)
    with pytest.raises(UsageError, match=message) as caught:
        open_plan(path, options=TOKENS)
    assert "omit tokens_only" in caught.value.hint


@pytest.mark.parametrize("weights", [None, [0.5, 0.3, 0.2]])
def test_a_padding_sample_is_the_first_of_the_data_without_loss(tmp_path, weights):
    size = None if weights is None else 60
    source = source_of(tmp_path, datasets=3, documents=50, weights=weights, size=size)
    path = plan_for(tmp_path, source=source, topology=topology_of(2), shuffle="samples")
    text = text_of(source, 0)
    options = BatchOptions(num_tokens=True, repeated=True, document_ids=True)
    for rank in range(2):
        loader = open_plan(path, rank, options=options)
        batch = loader._reader.padding()
        assert list(batch) == list(loader[0])
        assert (batch["tokens"].tolist(), batch["labels"].tolist()) == ([text[:-1]], [text[1:]])
        assert (batch["loss_mask"].shape, batch["loss_mask"].any()) == ((1, LENGTH), False)
        assert (batch["num_tokens"].tolist(), batch["repeated"].tolist()) == ([0], [False])
    with pytest.raises(UsageError, match="a padding sample requires a loss mask, and tokens_only omits it"):
        open_plan(path, options=TOKENS)._reader.padding()


def test_ranks_get_the_fields_of_their_stage_of_a_padding_sample(tmp_path):
    path = plan_for(tmp_path, topology=topology_of(3, pipeline=3))
    names = [set(open_plan(path, rank)._reader.padding()) for rank in range(3)]
    assert names == [{"tokens", "position_ids"}, set(), {"labels", "loss_mask"}]


@pytest.mark.parametrize("readahead", [0, 1, 3])
@pytest.mark.parametrize("capacity", [1, 2, 20])
@pytest.mark.parametrize("kind", ["index", "documents"])
def test_contiguous_reading_opens_each_dataset_once_in_an_epoch(
    tmp_path, monkeypatch, readahead, capacity, kind
):
    source = source_of(tmp_path, datasets=8, documents=14, kind=kind)
    options = {"mode": "contiguous", "shuffle": "datasets", "epochs": 1}
    path = plan_for(tmp_path, source=source, topology=topology_of(2), **options)
    plain = [list(open_plan(path, rank, readahead=0)) for rank in range(2)]
    opened = []
    original = source_module.DatasetReference.open_dataset

    def recording(reference, **arguments):
        opened.append(reference.path_prefix)
        return original(reference, **arguments)

    monkeypatch.setattr(source_module.DatasetReference, "open_dataset", recording)
    for rank in range(2):
        opened.clear()
        before = set(threading.enumerate())
        loader = open_plan(path, rank, readahead=readahead, max_open_files=capacity * FILES_PER_SHARD)
        assert all(map(same, loader, plain[rank]))
        del loader
        for thread in set(threading.enumerate()) - before:
            thread.join()  # or it might open files for the next one
        assert len(opened) == len(set(opened))
        assert 3 < len(opened) < 8


def test_extents_are_where_the_tokens_of_a_sample_lie(tmp_path):
    (reference,) = source_of(tmp_path, documents=60).datasets
    dataset = reference.open_dataset()
    samples = GPTSamples(dataset, reference.open_index())
    shard = Shard(dataset, samples)
    content = np.fromfile(f"{reference.path_prefix}.bin", np.uint16)
    order = np.random.RandomState(1).permutation(len(samples))
    expected = [samples.read(number).tokens.tolist() for number in order]
    firsts, sizes = shard.extents(order)
    assert len(firsts) == sum(len(samples.read(number).lengths) for number in order)
    assert tokens(content, firsts, sizes) == [token for text in expected for token in text]
    documents = Shard(dataset, None)
    order = np.arange(dataset.document_count)[::-1]
    expected = [dataset.document_tokens(number).tolist() for number in order]
    assert tokens(content, *documents.extents(order)) == [token for text in expected for token in text]


def tokens(content, firsts, sizes):
    extents = zip(firsts.tolist(), sizes.tolist(), strict=True)
    return [token for first, size in extents for token in content[first // 2 : (first + size) // 2].tolist()]


@pytest.mark.parametrize("least", [1, 96])
@pytest.mark.parametrize("kind", ["index", "documents"])
@pytest.mark.parametrize("mmap", [True, False])
def test_reading_ahead_asks_for_the_tokens_of_samples(tmp_path, monkeypatch, kind, least, mmap):
    """Both where ranges of tokens are known, and where samples of short pieces are read one by one."""
    monkeypatch.setattr(schedule_module, "TOKENS_WORTH_A_COPY", least)
    source = source_of(tmp_path, datasets=2, documents=60, kind=kind)
    loader = open_plan(plan_for(tmp_path, source=source, micro=2, shuffle="samples"), mmap=mmap)
    reader = loader._reader
    asked = {dataset: [] for dataset in range(2)}
    for dataset, extents in asked.items():
        file = reader._shards.get(dataset)._file
        monkeypatch.setattr(
            file, "prefetch", lambda first, size, extents=extents: extents.append((first, size))
        )
    for numbers in (range(1), range(1, 5), range(5, 25), range(20, len(loader))):
        chunk, rows = reader._rows(numbers.start, len(numbers))
        reader.advise(numbers)
        for dataset, own in chunk.by_dataset(rows).items():
            firsts, sizes = reader._shards.get(dataset).extents(chunk.samples[list(own)])
            expected = [pair for pair in zip(firsts.tolist(), sizes.tolist(), strict=True) if pair[1]]
            assert sorted(pair for pair in asked[dataset] if pair[1]) == sorted(expected)
            asked[dataset].clear()


class Advice:
    """Collects what is advised, and can wait for it."""

    def __init__(self, fails=()):
        self.seen, self.fails, self.changed = [], set(fails), threading.Condition()

    def __call__(self, numbers):
        with self.changed:
            self.seen += numbers
            self.changed.notify_all()
        if self.fails & set(numbers):
            raise MissingFileError("gone", path="x")

    def wait_for(self, count):
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.seen) >= count, 240), self.seen


@settings(max_examples=60, deadline=None)
@given(jumps=st.lists(st.integers(0, 30), min_size=1, max_size=4), ahead=st.integers(1, 4))
def test_what_comes_next_is_advised_once_and_in_order(jumps, ahead):
    advice = Advice()
    readahead = Readahead(advice, ahead, 30)
    expected, reached = [], 0
    for start in jumps:
        for number in range(start, min(start + 5, 30)):
            if not number + 1 <= reached <= number + 1 + ahead:
                reached = number + 1
            if reached - number - 1 <= ahead // 2:
                expected += range(reached, min(number + 1 + ahead, 30))
                reached = number + 1 + ahead
            readahead.follow(number)
            assert (
                ahead // 2 <= len([micro_batch for micro_batch in expected if micro_batch > number])
                or number + ahead >= 30
            )
    advice.wait_for(len(expected))
    assert advice.seen == expected


def test_a_failure_ahead_is_left_to_the_reader():
    advice = Advice(fails=[1, 2])
    readahead = Readahead(advice, 3, 10)
    readahead.follow(0)
    advice.wait_for(3)
    readahead.follow(2)
    advice.wait_for(5)
    assert advice.seen == [1, 2, 3, 4, 5]


def test_nothing_is_started_for_nothing_ahead():
    before = set(threading.enumerate())
    readahead = Readahead(Advice(), 0, 10)
    readahead.follow(0)
    assert set(threading.enumerate()) <= before
