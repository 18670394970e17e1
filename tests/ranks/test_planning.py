"""Plans of every mode, counted sample by sample; Megatron's sampler orders, shuffles and tails by name."""

from itertools import product
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support import slow_samplers
from support.assignments import planned as plan_of
from support.assignments import stream_of
from support.sample_sources import document_source, everything, index_source
from tokshard.errors import UsageError
from tokshard.ranks.choices import ShuffleName, Shuffling, TrainingMode
from tokshard.ranks.consumption import EpochRange
from tokshard.ranks.modes import ReadingMode
from tokshard.ranks.shuffles import shuffle_links

MODES = get_args(TrainingMode)
SHUFFLES = get_args(ShuffleName)


def planned(total=60, ranks=3, source=None, **options):
    return stream_of(source or document_source([total]), data_parallel=ranks, **options)


def lengths_of(ids):
    return ids * 7919 % 101


def shuffle_is_possible(mode, shuffle):
    return shuffle == "none" or mode != "cyclic"


CASES = [
    case
    for case in product(MODES, SHUFFLES, ("drop", "pad"), (False, True))
    if shuffle_is_possible(*case[:2]) and not (case[0] == "cyclic" and case[2] == "pad")
]


@pytest.mark.parametrize(("mode", "shuffle", "tail", "bucket"), CASES)
def test_every_sample_is_read_once_apart_from_the_tail(mode, shuffle, tail, bucket):
    for sizes, ranks, size in product(([5, 0, 12], [1, 30, 9]), (1, 2, 3, 5), (1, 2)):
        batch = ranks * size
        if sum(sizes) < 2 * batch:
            continue
        stream = planned(
            source=document_source(sizes),
            ranks=ranks,
            mode=mode,
            shuffle=Shuffling(shuffle, 4, 2),
            tail=tail,
            micro_batch_size=size,
            global_batch_size=batch,
            bucket_buffer=3 * batch if bucket else None,
        )
        key_of = lengths_of if bucket else None
        read = everything(stream, key_of)
        (epochs,) = stream.order.epoch_ranges
        ids, times = np.unique(read, return_counts=True)
        total = sum(sizes)
        steps = -(-total // batch) if tail == "pad" else total // batch
        assert read.shape == (ranks, steps * size)
        assert times.sum() - ids.size == epochs.repeated == (steps * batch - total if tail == "pad" else 0)
        dropped = np.setdiff1d(np.arange(total), ids)
        assert dropped.size == epochs.dropped == max(0, total - steps * batch)
        behind = epochs.ids(np.arange(epochs.read, epochs.positions), 0, key_of)
        assert sorted(behind.tolist()) == dropped.tolist()
        order = stream.order
        numbers = np.arange(order.samples)
        again = order.ids(numbers, key_of)[order.repeated(numbers)]
        assert np.array_equal(np.sort(again), np.repeat(ids, times - 1))


@given(
    total=st.integers(1, 400),
    ranks=st.integers(1, 6),
    size=st.integers(1, 4),
    data=st.data(),
)
def test_megatrons_sampler_continues_from_any_number_of_consumed_samples(total, ranks, size, data):
    group = ranks * size
    if total < group:
        return
    consumed = data.draw(st.integers(0, total - group))
    stream = planned(total, ranks, micro_batch_size=size, consumed_samples=consumed)
    slow = [[] for _ in range(ranks)]
    for first in range(consumed, total - group + 1, group):
        for rank in range(ranks):
            slow[rank] += range(first + rank * size, first + (rank + 1) * size)
    assert everything(stream).tolist() == slow
    assert stream.order.consumed_samples == consumed


@settings(max_examples=60)
@given(
    mode=st.sampled_from(MODES),
    shuffle=st.sampled_from(SHUFFLES),
    ranks=st.integers(1, 4),
    size=st.integers(1, 3),
    epochs=st.integers(1, 3),
    data=st.data(),
)
def test_what_is_left_after_consumed_samples_is_the_end_of_the_whole(
    mode, shuffle, ranks, size, epochs, data
):
    if not shuffle_is_possible(mode, shuffle):
        return
    options = {
        "source": document_source([40, 17]),
        "ranks": ranks,
        "mode": mode,
        "shuffle": Shuffling(shuffle, 8, 3),
        "shuffle_per_epoch": True,
        "micro_batch_size": size,
        "epochs": epochs,
    }
    whole = planned(**options)
    steps = whole.order.steps
    step = data.draw(st.integers(0, steps - 1))
    consumed = step * ranks * size
    rest = planned(**options, consumed_samples=consumed)
    assert rest.order.steps == steps - step
    np.testing.assert_array_equal(everything(rest), everything(whole)[:, step * size :])


def test_a_middle_of_a_micro_batch_is_refused_where_it_has_no_meaning():
    for mode in ("cyclic", "contiguous", "sequential", "chunked"):
        with pytest.raises(UsageError, match=r"7 consumed samples .* 2 x 3 = 6") as caught:
            planned(mode=mode, micro_batch_size=2, consumed_samples=7)
        assert "tokshard replan PLAN" in caught.value.hint
    with pytest.raises(UsageError, match=r"61 consumed"):
        planned(mode="single", micro_batch_size=2, consumed_samples=61, epochs=2)


def test_a_later_epoch_follows_a_first_one_that_began_in_its_middle():
    stream = planned(10, ranks=2, consumed_samples=3, epochs=2)
    assert everything(stream).T.ravel().tolist() == [*range(3, 9), *range(10)]


def test_cyclic_reads_as_many_epochs_as_its_steps_need():
    stream = planned(20, ranks=2, mode="cyclic", micro_batch_size=2, steps=23)
    assert stream.order.samples_per_rank == 46
    assert [epochs.epochs for epochs in stream.order.epoch_ranges] == [None]
    assert sorted(everything(stream)[0, :10].tolist()) == list(range(10))
    with pytest.raises(
        UsageError, match="5 steps are left in an epoch of 20 samples after 0 consumed samples"
    ):
        planned(20, ranks=2, mode="cyclic", micro_batch_size=2, steps=6, epochs=1)


def test_the_ragged_end_of_megatrons_unsharded_sampler_is_refused_or_cut():
    options = {"total": 22, "ranks": 3, "mode": "cyclic", "data_sharding": False, "micro_batch_size": 2}
    with pytest.raises(UsageError, match="Megatron gives some ranks 4 and others 3"):
        planned(**options)
    stream = planned(**options, equal_counts=True)
    assert everything(stream).shape == (3, 6)
    assert np.unique(everything(stream)).size == 18


def test_batches_grow_and_every_rank_takes_as_many_steps():
    stream = planned(100, ranks=2, micro_batch_size=2, step_batch_size_schedule="0:4 20:8 36:16")
    timeline = stream.order.timeline
    assert [timeline.batch_size(step) for step in range(stream.order.steps)] == [4] * 5 + [8] * 2 + [16] * 4
    assert (stream.order.samples, stream.order.samples_per_rank) == (100, 50)


def test_too_many_steps_are_refused_with_the_numbers():
    with pytest.raises(
        UsageError,
        match=r"20 steps are left in an epoch of 60 samples after 0 consumed samples .*batch size 3\), "
        r"fewer than the .* 21",
    ) as caught:
        planned(60, ranks=3, steps=21)
    assert "--epochs" in caught.value.hint
    assert planned(60, ranks=3, steps=21, epochs=2).order.steps == 21
    with pytest.raises(UsageError, match=r"0 steps are left after 60 consumed"):
        planned(60, ranks=3, consumed_samples=60)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"micro_batch_size": 2, "global_batch_size": 8}, r"2 x 3 = 6, got 8"),
        ({"global_batch_size": 61 * 3}, "60 samples are fewer than one batch of 183"),
        (
            {"mode": "cyclic", "shuffle": "samples"},
            "has its own order .* --shuffle samples",
        ),
        ({"mode": "cyclic", "tail": "pad"}, "requires --tail drop .*, got pad"),
        ({"mode": "random"}, "--mode must be one of single, cyclic, .*, got 'random'"),
        ({"mode": "full-validation"}, "--mode must be one of .* got 'full-validation'"),
        ({"tail": "cut"}, "--tail must be one of drop, pad, got 'cut'"),
        ({"shuffle": "datasets"}, "requires several datasets: only one dataset was given"),
        (
            {"bucket_buffer": 10},
            "must be a positive multiple of the pack, got a buffer of 10 samples and a pack of 3",
        ),
        ({"bucket_pack": 3}, "--bucket-pack requires --bucket-buffer"),
        ({"bucket_buffer": 12, "bucket_by": "pieces"}, "do not support the sort key 'pieces'"),
        ({"bucket_buffer": 12, "bucket_by": "color"}, "--bucket-by must be one of length, .* got 'color'"),
        ({"steps": 0}, "--steps must be at least 1, got 0"),
        ({"consumed_samples": -3}, "--consumed-samples must be at least 0, got -3"),
    ],
)
def test_what_cannot_be_planned_is_refused_with_the_numbers(request_, message):
    with pytest.raises(UsageError, match=message):
        planned(60, ranks=3, **request_)


def test_a_blend_has_no_datasets_to_shuffle_but_windows():
    source = index_source(50, datasets=2, blended=True)
    with pytest.raises(UsageError, match="the samples of a blend are already mixed"):
        planned(source=source, shuffle="datasets")
    windowed = planned(source=source, ranks=2, shuffle="windows:7:2")
    assert np.unique(everything(windowed)).size == 100


def test_streams_have_batches_and_counters_of_their_own():
    sources = {
        "train": index_source(100),
        "valid.0": index_source(40, name="valid.0"),
        "valid.1": index_source(30, name="valid.1"),
        "test": index_source(20, name="test"),
    }
    train = {"data_parallel": 2, "micro_batch_size": 2, "global_batch_size": 20, "consumed_samples": 40}
    plan = plan_of(sources, **train, eval_global_batch_size=4, consumed_valid_samples=(8, 4))
    found = {
        name: (
            stream.order.consumed_samples,
            stream.order.steps,
            stream.order.timeline.batch_size(0),
        )
        for name, stream in plan.streams.items()
    }
    assert found == {"train": (40, 3, 20), "valid.0": (8, 8, 4), "valid.1": (4, 6, 4), "test": (0, 5, 4)}
    with pytest.raises(UsageError, match=r"one for each validation set .2., got 3"):
        plan_of(sources, **train, consumed_valid_samples=(1, 2, 3), eval_global_batch_size=4)
    with pytest.raises(UsageError, match=r"^test: 20 samples are fewer than one batch of 24"):
        plan_of(sources, **train, eval_global_batch_size=24)


def test_full_validation_reads_everything_on_ranks_of_any_number():
    sources = {"train": index_source(100), "valid": index_source(7, name="valid")}
    plan = plan_of(sources, data_parallel=3, micro_batch_size=4, full_validation=True)
    assert everything(plan.streams["valid"]).tolist() == [[0, 3, 6], [1, 4, 1], [2, 5, 2]]


def test_a_sequence_that_context_parallelism_does_not_divide_is_refused():
    sources = {"train": index_source(100, sequence_length=36)}
    ranks = {"world_size": 4, "context_parallel": 4}
    with pytest.raises(UsageError, match=r"sequence length must be divisible by .* 8, got 36"):
        plan_of(sources, **ranks)
    plan_of({"train": index_source(100, sequence_length=40)}, **ranks)
    documents = plan_of({"train": document_source([100])}, **ranks)
    assert documents.warnings == ("the documents of train must be padded to multiples of 8 tokens",)


def stream_read(stream, size):
    """Return the micro-batches of each rank."""
    return everything(stream).reshape(stream.order.ranks, -1, size).tolist()


def test_single_reads_in_the_order_of_the_pretraining_sampler():
    for generator, total, size, ranks in slow_samplers.random_worlds(300, seed=1):
        consumed = generator.randint(0, total - size * ranks)
        stream = planned(total, ranks, micro_batch_size=size, consumed_samples=consumed)
        assert stream_read(stream, size) == [
            slow_samplers.single_sampler(total, consumed, size, rank, ranks) for rank in range(ranks)
        ]


@pytest.mark.parametrize("sharded", [True, False])
def test_cyclic_reads_in_the_order_of_the_random_sampler(sharded):
    compared = ragged = 0
    for generator, total, size, ranks in slow_samplers.random_worlds(110, seed=2):
        group = ranks * size
        consumed = generator.randint(0, 3 * (total // group)) * group
        options = {"mode": "cyclic", "data_sharding": sharded, "micro_batch_size": size}
        counts = {
            len(slow_samplers.cyclic_sampler(total, 0, size, rank, ranks, sharded)) for rank in range(ranks)
        }
        if len(counts) > 1:
            ragged += 1
            with pytest.raises(UsageError, match="it hangs"):
                planned(total, ranks, **options)
            continue
        stream = planned(total, ranks, consumed_samples=consumed, epochs=6, **options)
        for rank, batches in enumerate(stream_read(stream, size)):
            expected = [
                batch
                for epoch in range(3)
                for batch in sampler(total, consumed, epoch, size, rank, ranks, sharded)
            ]
            assert batches[: len(expected)] == expected[: len(batches)]
        compared += 1
    assert compared >= 75
    assert bool(ragged) == (not sharded)


def sampler(total, consumed, epoch, size, rank, ranks, sharded):
    """What the sampler yields in the epoch of a position, or in one of the next from its start."""
    active = total - total % (size * ranks)
    start = consumed if epoch == 0 else (consumed // active + epoch) * active
    return slow_samplers.cyclic_sampler(total, start, size, rank, ranks, sharded)


def test_the_ragged_case_has_equal_counts_where_they_are_asked_for():
    for _, total, size, ranks in slow_samplers.random_worlds(200, seed=3):
        options = {"mode": "cyclic", "data_sharding": False, "equal_counts": True}
        stream = planned(total, ranks, micro_batch_size=size, **options)
        assert stream_read(stream, size) == [
            slow_samplers.cyclic_sampler(total, 0, size, rank, ranks, sharded=False, truncated=True)
            for rank in range(ranks)
        ]


def test_the_ragged_case_of_22_samples_is_named():
    with pytest.raises(UsageError, match="some ranks 4 and others 3 micro-batches of 22 samples") as caught:
        ReadingMode(3, 2, 6, "cyclic", sharded=False).cyclic_links(22)
    assert caught.value.hint == "pass --equal-counts, or omit --no-data-sharding"


def test_contiguous_ranks_read_runs_of_neighbors():
    stream = planned(11, mode="contiguous")
    assert everything(stream).tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert stream.order.epoch_ranges[0].ids(np.arange(9, 11), 0).tolist() == [9, 10]


def shuffled(kind, sizes, seed, **options):
    total = sum(sizes)
    links = shuffle_links(Shuffling(kind, 50, 2), total, seed, dataset_sizes=sizes, **options)
    return EpochRange(total, links, total, 0, None)


@pytest.mark.parametrize("kind", SHUFFLES)
def test_shuffles_read_every_sample_once_and_differ_by_seed_and_epoch(kind):
    sizes = (40, 1, 0, 77, 82)
    order = shuffled(kind, sizes, 7)
    orders = [order.ids(np.arange(200), epoch) for epoch in range(3)]
    for epoch, ids in enumerate(orders):
        assert np.array_equal(np.sort(ids), np.arange(200))
        assert np.array_equal(order.find(ids, epoch), np.arange(200))
    once = shuffled(kind, sizes, 7, per_epoch=False)
    assert np.array_equal(once.ids(np.arange(200), 5), orders[0])
    if kind == "none":
        assert orders[0].tolist() == list(range(200))
    else:
        other = shuffled(kind, sizes, 8).ids(np.arange(200), 0)
        different = {tuple(ids.tolist()) for ids in [*orders, other]}
        # Four orders of four datasets that are not empty may meet by chance; those of samples cannot.
        assert len(different) >= (2 if kind == "datasets" else 4)


def test_shuffled_datasets_keep_their_samples_in_order_and_together():
    ids = shuffled("datasets", (10, 20, 0, 30), 3).ids(np.arange(60), 0)
    starts = [place for place in range(60) if place == 0 or ids[place] != ids[place - 1] + 1]
    assert {int(ids[place]) for place in starts} <= {0, 10, 30}
    assert ids.tolist() != list(range(60))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: ReadingMode(3, 2, 6).read(5), "5 samples are fewer than one batch of 6"),
        (lambda: ReadingMode(3, 2, 6, "full-validation"), "requires a batch of 1 sample per rank"),
        (lambda: ReadingMode(3, 2, 16), "the global batch size must be divisible .* = 2 x 3 = 6, got 16"),
        (lambda: ReadingMode(0, 2, 2), "must be at least 1, got 0 and"),
        (lambda: ReadingMode(3, 2, 6, "cyclic", "pad"), "requires --tail drop .*, got pad"),
        (
            lambda: EpochRange(10, shuffled("datasets", (4, 5), 0).links, 10, 0, None),
            "dataset-shuffle must have 10 samples, got 9",
        ),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(call, said):
    with pytest.raises(UsageError, match=said):
        call()


def test_the_tail_is_measured_by_the_batch():
    for mode in MODES:
        options = {"mode": mode, "micro_batch_size": 2, "global_batch_size": 12}
        (epochs,) = planned(35, ranks=2, **options).order.epoch_ranges
        # Megatron's cyclic sampler drops less than a micro-batch of each rank.
        read = 32 if mode == "cyclic" else 24
        assert (epochs.read, epochs.dropped) == (read, 35 - read)
    padded = planned(35, ranks=2, tail="pad", micro_batch_size=2, global_batch_size=12)
    assert padded.order.epoch_ranges[0].read == 36
