"""Plans that start after any number of consumed samples lose no step that the samples left can fill."""

import pytest

from support.assignments import stream_of
from support.sample_sources import document_source, everything
from support.slow_samplers import single_sampler
from tokshard.errors import UsageError

# Documents, ranks, micro batch size, micro-batches of a step. The first world lost steps in version 1.
WORLDS = [(359, 5, 4, 3), (359, 1, 7, 4), (96, 3, 2, 4), (97, 2, 1, 6), (120, 4, 5, 3)]


def planned(total, ranks, size, rounds, consumed, **options):
    return stream_of(
        document_source([total]),
        data_parallel=ranks,
        micro_batch_size=size,
        global_batch_size=ranks * size * rounds,
        consumed_samples=consumed,
        **options,
    )


@pytest.mark.parametrize(("total", "ranks", "size", "rounds"), WORLDS)
def test_single_has_every_step_of_the_pretraining_sampler(total, ranks, size, rounds):
    batch = ranks * size * rounds
    for consumed in range(total - batch + 1):
        expected = [single_sampler(total, consumed, size, rank, ranks) for rank in range(ranks)]
        stream = planned(total, ranks, size, rounds, consumed)
        assert stream.order.steps == len(expected[0]) // rounds
        read = everything(stream).reshape(ranks, -1, size)
        assert read.tolist() == [batches[: read.shape[1]] for batches in expected]


@pytest.mark.parametrize("mode", ["single", "sequential", "contiguous", "chunked"])
@pytest.mark.parametrize("tail", ["drop", "pad"])
@pytest.mark.parametrize(("total", "ranks", "size", "rounds"), WORLDS)
def test_every_mode_fills_as_many_steps_as_samples_are_left(total, ranks, size, rounds, mode, tail):
    batch, group = ranks * size * rounds, ranks * size
    start = everything(planned(total, ranks, size, rounds, 0, mode=mode, tail=tail))
    for consumed in range(0, total - batch + 1, group):
        stream = planned(total, ranks, size, rounds, consumed, mode=mode, tail=tail)
        left = total - consumed
        assert stream.order.steps == (-(-left // batch) if tail == "pad" else left // batch)
        read, skipped = everything(stream), consumed // ranks
        shared = min(start.shape[1] - skipped, read.shape[1])
        assert (read[:, :shared] == start[:, skipped : skipped + shared]).all()
        fresh = set(read.ravel().tolist())
        assert not fresh & set(start[:, :skipped].ravel().tolist()) or tail == "pad"
        assert len(fresh) == read.size or tail == "pad"
        if tail == "pad":
            assert fresh | set(start[:, :skipped].ravel().tolist()) == set(range(total))


def test_a_later_epoch_that_starts_within_a_batch_loses_no_step():
    whole = planned(359, 5, 4, 3, 0, epochs=3)
    per_epoch = whole.order.samples_per_rank // 3 * 5
    for consumed in range(per_epoch, 2 * per_epoch, 20):
        stream = planned(359, 5, 4, 3, consumed, epochs=3)
        assert stream.order.steps == (359 - consumed % per_epoch) // 60 + 5
        assert everything(stream)[0, 0] == consumed % per_epoch


def test_nothing_is_left_after_the_last_whole_batch():
    for consumed in (300, 320, 340):
        with pytest.raises(UsageError, match="0 steps are left"):
            planned(359, 5, 4, 3, consumed)
