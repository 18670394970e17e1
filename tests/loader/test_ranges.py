"""Micro-batches that are copied from ranges looked up for many samples, against samples read one by one."""

import numpy as np
import pytest

from support.assignments import topology_of
from support.loader_plans import LENGTH, open_plan, plan_for, same, source_of
from tokshard.errors import IntegrityError
from tokshard.loader import BatchOptions, schedule
from tokshard.samples.index.samples import GPTSamples


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch):
    """Pieces of the small datasets count as long enough to be copied."""
    monkeypatch.setattr(schedule, "TOKENS_WORTH_A_COPY", 1)


def one_by_one(path, rank=0, **settings):
    """Return all micro-batches, read backwards, so that each is looked up by itself, without a map."""
    loader = open_plan(path, rank, mmap=False, **settings)
    return [loader[number] for number in reversed(range(len(loader)))][::-1]


@pytest.mark.parametrize("micro", [1, 2, 9])
@pytest.mark.parametrize("weights", [None, [0.5, 0.3, 0.2]])
@pytest.mark.parametrize("capacity", [1, 100])
def test_batches_are_those_of_samples_read_one_by_one(tmp_path, monkeypatch, micro, weights, capacity):
    size = None if weights is None else 60
    source = source_of(tmp_path, datasets=3, documents=50, weights=weights, size=size)
    path = plan_for(tmp_path, source=source, topology=topology_of(2), micro=micro, epochs=2)
    single = []
    read = GPTSamples.read_batch
    for options in (BatchOptions(), BatchOptions(eod_id=0, eod_mask_loss=True, pad_id=7, num_tokens=True)):
        for rank in range(2):
            expected = one_by_one(path, rank, options=options)
            assert len(expected) > 2
            with monkeypatch.context() as patch:
                patch.setattr(GPTSamples, "read_batch", lambda *a: single.append(a) or read(*a))
                kept = list(open_plan(path, rank, options=options, max_open_files=6 * capacity))
            assert all(map(same, kept, expected))
    # All but the first micro-batch, and the padded last sample of an epoch, were copied.
    assert len(single) < 4 * len(expected) * micro / 2


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64", "float32", "float64"])
def test_tokens_of_every_dtype_are_copied(tmp_path, dtype):
    path = plan_for(tmp_path, source=source_of(tmp_path, documents=40, dtype=dtype), micro=1)
    assert all(map(same, open_plan(path), one_by_one(path)))


def test_samples_of_another_index_raise_where_they_are_read(tmp_path):
    (reference,) = source_of(tmp_path, documents=60).datasets
    path = plan_for(tmp_path, source=source_of(tmp_path, documents=60), micro=1)
    loader = open_plan(path, readahead=0)
    good = [batch["tokens"].tolist() for batch in open_plan(path)]
    next(loader)
    samples = GPTSamples(reference.open_dataset(), reference.open_index())
    order = samples.index.shuffle_index.copy()
    order[5] = len(samples) + 7
    samples = GPTSamples(samples.dataset, type(samples.index)(**vars_of(samples.index, order)))
    loader.rewind()
    loader._reader._shards.get(0).samples = samples
    for number in range(len(good)):
        if number == 5:
            with pytest.raises(IntegrityError, match="sample 5 of the index does not fit"):
                next(loader)
            loader.skip()
        else:
            assert next(loader)["tokens"].tolist() == good[number]


def vars_of(index, order):
    names = ("plan", "document_index", "sample_index")
    return {name: getattr(index, name) for name in names} | {"shuffle_index": order}


def test_two_readers_at_different_places_get_their_own(tmp_path):
    path = plan_for(tmp_path, source=source_of(tmp_path, documents=200), micro=1)
    expected = one_by_one(path)
    loader = open_plan(path)
    other = loader.clone()
    other.skip(len(expected) // 2)
    for number in range(len(expected) // 2):
        assert same(next(loader), expected[number])
        assert same(next(other), expected[number + len(expected) // 2])


def test_labels_and_tokens_do_not_share_memory(tmp_path):
    path = plan_for(tmp_path, micro=2)
    for batch in open_plan(path):
        assert all(array.flags.c_contiguous and array.flags.writeable for array in batch.values())
        tokens = batch["tokens"].copy()
        assert np.array_equal(tokens[:, 1:], batch["labels"][:, : LENGTH - 1])
        batch["labels"][:] = -100
        batch["loss_mask"][:] = 0
        assert np.array_equal(batch["tokens"], tokens)
