"""Draws from sources with any progress, against queues of samples."""

import os
import random
from pathlib import Path

import numpy as np
import pytest
from tokshard.ranks.intervals import Intervals
from tokshard.ranks.replan.reweighting import OrderFiles, reweight
from tokshard.ranks.replan.source_progress import (
    OpenEpoch,
    SourceEpochTable,
    SourceProgress,
    progress_of_rows,
)

from tokshard.errors import UsageError
from tokshard.ranks.replan import reweighting

GOLDEN = Path(__file__).parents[2] / "golden" / "formats" / "reweighted-1"


def random_progress(generator):
    samples, epoch = generator.randint(1, 12), generator.randint(0, 2)
    epochs = []
    for _ in range(generator.randint(0, 2)):
        unread = sorted(generator.sample(range(samples), generator.randint(1, samples)))
        epochs.append(OpenEpoch(epoch, Intervals.of_members(np.array(unread))))
        epoch += generator.randint(1, 2)
    return SourceProgress(samples, tuple(epochs), epoch)


def members(intervals):
    return intervals.nth(np.arange(intervals.count)).tolist()


@pytest.mark.parametrize("block", [7, 1 << 22])
def test_sources_are_drawn_from_their_next_unread_sample_on_and_then_epoch_by_epoch(monkeypatch, block):
    monkeypatch.setattr(reweighting, "_BLOCK", block)
    for seed in range(60):
        generator = random.Random(seed)
        sources = [random_progress(generator) for _ in range(generator.randint(1, 4))]
        weights = [generator.random() + 0.01 for _ in sources]
        total = generator.randint(1, 200)
        order = reweight(weights, sources, total, seed)
        epochs = order.source_epochs.of(np.arange(total), order.dataset_index)
        drawn = [[] for _ in sources]
        for source, epoch, sample in zip(
            order.dataset_index.tolist(), epochs.tolist(), order.dataset_sample_index.tolist(), strict=True
        ):
            drawn[source].append((epoch, sample))
        for source, found in zip(sources, drawn, strict=True):
            queue = [
                (open_epoch.epoch, sample)
                for open_epoch in source.open_epochs
                for sample in members(open_epoch.unread)
            ]
            assert found[: len(queue)] == queue[: len(found)]
            later = found[len(queue) :]
            for number in range(0, len(later), source.samples):
                epoch = later[number : number + source.samples]
                assert {epoch_number for epoch_number, _ in epoch} == {
                    source.next_epoch + number // source.samples
                }
                assert len({sample for _, sample in epoch}) == len(epoch)
                assert {sample for _, sample in epoch} <= set(range(source.samples))


def test_source_epochs_are_orders_of_their_own():
    progress = SourceProgress(1000, (), 3)
    draws = np.arange(2000)
    first = progress.samples_of(draws, seed=1, source=0)
    assert not np.array_equal(first[:1000], first[1000:])
    assert not np.array_equal(first, progress.samples_of(draws, seed=2, source=0))
    assert not np.array_equal(first, progress.samples_of(draws, seed=1, source=1))
    later = SourceProgress(1000, (), 4)
    assert np.array_equal(first[1000:], later.samples_of(draws[:1000], seed=1, source=0))
    # Frozen: a plan that was written must be read the same for ever.
    assert first[:6].tolist() == [180, 622, 637, 554, 906, 985]


def test_nothing_to_draw_is_refused():
    with pytest.raises(UsageError, match="no unread samples remain"):
        reweight([1.0], [SourceProgress.at_start(5)], 0, 1)
    with pytest.raises(UsageError, match="has no sample"):
        reweight([1.0, 1.0], [SourceProgress.at_start(5), SourceProgress.at_start(0)], 3, 1)


def golden_order():
    """Return a small re-weighted order, the progress before it, and its weights."""
    progress = (
        SourceProgress(5, (OpenEpoch(0, Intervals.of([(1, 2), (3, 5)])),), next_epoch=1),
        SourceProgress.at_start(3),
        SourceProgress(4, (OpenEpoch(2, Intervals.of([(0, 4)])),), next_epoch=3),
    )
    return reweight([0.5, 0.5], progress[:2], 12, seed=7), progress, [0.5, 0.5, 0.0]


def test_the_files_of_a_reweighted_blend_are_frozen(tmp_path):
    order, progress, weights = golden_order()
    made = OrderFiles.of(
        order, progress, weights, 7, directory=str(tmp_path), stream="train", made_from="a test"
    )
    assert not os.listdir(tmp_path)
    made.write()
    files, record = made.blend, made.record
    written = {path.name: path.read_bytes() for path in tmp_path.glob("*.npy")}
    assert written == {path.name: path.read_bytes() for path in GOLDEN.glob("*.npy")}
    assert len(written) == 4
    arrays = {
        name: np.load(GOLDEN / f"{files.hash}-BlendedDataset-train-{name}.npy")
        for name in ("dataset_index", "dataset_sample_index", "unread", "source_epochs")
    }
    assert progress_of_rows(arrays["unread"], [5, 3, 4], record.next_source_epochs, "f") == progress
    table = SourceEpochTable.checked(arrays["source_epochs"], 12, "f")
    assert table.of(np.arange(12), arrays["dataset_index"]).tolist() == [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]
    assert (record.next_source_epochs, record.seed, record.weights) == ((1, 1, 3), 7, (0.5, 0.5, 0.0))
