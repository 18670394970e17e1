import os
import pickle
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.assignments import topology_of
from support.loader_plans import (
    EOD,
    LENGTH,
    open_plan,
    plan_for,
    same,
    slow_inputs,
    some_documents,
    source_of,
    stream_of,
    write_documents,
    write_streams,
)
from support.replanned_plans import continued
from support.restored_loaders import assert_same_after_restore
from tokshard.errors import IntegrityError, MissingFileError, ResumeMismatchError, UsageError
from tokshard.loader import BatchOptions, RankLoader
from tokshard.ranks.links import Bucketing
from tokshard.ranks.locator import Locator
from tokshard.ranks.manifests import read_rank
from tokshard.ranks.plan import StoppedPlan, read_plan
from tokshard.ranks.publication import write_plan
from tokshard.ranks.schedule import BatchSchedule
from tokshard.samples.index.samples import GPTSamples


@pytest.fixture(scope="module")
def blend(tmp_path_factory):
    """Samples of a blend of three datasets, and their texts as GPTSamples reads them one by one."""
    directory = tmp_path_factory.mktemp("blend")
    source = source_of(directory, datasets=3, documents=90, weights=[0.5, 0.3, 0.2], size=96)
    readers = [GPTSamples(dataset.open_dataset(), dataset.open_index()) for dataset in source.datasets]
    located = zip(*Locator(source).locate(np.arange(source.total)), strict=True)
    texts = [readers[int(dataset)].read(int(sample)) for dataset, sample in located]
    return directory, source, texts


MODES = {
    "single": {"mode": "single"},
    "cyclic": {"mode": "cyclic", "epochs": 2},
    "contiguous": {"mode": "contiguous", "shuffle": "samples", "epochs": 2},
    "chunked": {"mode": "chunked", "tail": "pad"},
    "growing": {"mode": "single", "schedule": BatchSchedule.parse("0:12 24:24"), "steps": 4},
    "bucketed": {"mode": "sequential", "sort_key": "pieces"},
}


def numbers_of(loader, step):
    """Return the numbers of the micro-batches of a step over all steps."""
    first = sum(len(loader.micro_batches(earlier)) for earlier in range(step))
    return range(first, first + len(loader.micro_batches(step)))


def planned(blend, name, ranks):
    directory, source, _ = blend
    options = dict(MODES[name])
    if name == "bucketed":
        options["links"] = (Bucketing(source.total, 24, 6, 3, per_epoch=True),)
    return plan_for(directory, topology=topology_of(ranks), source=source, **options)


@pytest.mark.parametrize("name", MODES)
@pytest.mark.parametrize("ranks", [1, 3])
def test_micro_batches_are_the_samples_of_the_plan(blend, name, ranks):
    path = planned(blend, name, ranks)
    seen = []
    for rank in range(ranks):
        loader = open_plan(path, rank, options=BatchOptions(eod_id=EOD, reset_position_ids=True))
        batches = list(loader)
        assert len(batches) == len(loader) > 2
        for number, batch in enumerate(batches):
            ids = loader.sample_ids(number)
            seen += ids
            assert list(batch) == ["tokens", "position_ids", "labels", "loss_mask"]
            for row, sample_id in enumerate(ids):
                options = {"extra": 1, "pad": -1, "eod": EOD, "eod_mask_loss": False}
                text = blend[2][sample_id].tokens.tolist()
                tokens, labels, mask, positions, _ = slow_inputs(text, reset_position_ids=True, **options)
                for field, expected in zip(batch, (tokens, positions, labels, mask), strict=True):
                    assert batch[field][row].tolist() == expected
    assert len(seen) == loader.order.samples
    if name in {"single", "growing"}:
        assert sorted(seen) == list(range(len(seen)))


@pytest.mark.parametrize("name", ["chunked", "single", "cyclic"])
def test_samples_that_fill_the_last_batch_are_marked(blend, name):
    path, total = planned(blend, name, 5), len(blend[2])
    first_read, marked = [], 0
    for rank in range(5):
        loader = open_plan(path, rank, options=BatchOptions(repeated=True))
        for step in range(loader.steps):
            whole = loader.batch(step)["repeated"]
            numbers = numbers_of(loader, step)
            parts = [loader[number]["repeated"] for number in numbers]
            assert all((part.dtype, part.shape) == (np.bool_, (2,)) for part in parts)
            assert np.concatenate(parts).tolist() == whole.tolist()
            ids = [sample_id for number in numbers for sample_id in loader.sample_ids(number)]
            first_read += [sample_id for sample_id, again in zip(ids, whole, strict=True) if not again]
            marked += int(whole.sum())
    if name == "chunked":
        assert sorted(first_read) == list(range(total))
        assert marked == loader.order.samples - total > 0
    else:
        assert marked == 0
    assert "repeated" not in open_plan(path, 0)[0]


@pytest.mark.parametrize("name", MODES)
def test_any_step_and_any_micro_batch_can_be_asked_for(blend, name):
    loader = open_plan(planned(blend, name, 3), 1)
    batches = list(loader.clone())
    assert loader.position == 0
    for number in np.random.RandomState(1).permutation(len(loader)).tolist():
        assert same(loader[number], batches[number])
    numbers = []
    for step in range(loader.steps):
        micro = numbers_of(loader, step)
        numbers += micro
        whole = loader.batch(step)
        assert loader.micro_batches(step) == range(len(micro))
        parts = [loader.batch(step, number) for number in loader.micro_batches(step)]
        assert all(same(part, batches[number]) for part, number in zip(parts, micro, strict=True))
        joined = {field: np.concatenate([part[field] for part in parts]) for field in whole}
        assert same(whole, joined)
    assert numbers == list(range(len(loader)))


@pytest.mark.parametrize("name", MODES)
def test_a_state_saved_at_any_position_resumes_there(blend, name):
    path = planned(blend, name, 3)
    loader = open_plan(path, 2)
    assert assert_same_after_restore(loader, fresh=lambda: open_plan(path, 2)) == len(loader) + 1
    assert_same_after_restore(open_plan(path, 0, readahead=0))


def test_a_state_of_a_position_beyond_the_plan_is_refused(blend):
    loader = open_plan(planned(blend, "growing", 3), 1)
    end = len(loader)
    assert loader.state_dict(end)["consumed_samples"] == loader.order.samples
    for position in (-1, end + 1):
        with pytest.raises(UsageError, match=f"position must be from 0 to {end}, got {position}"):
            loader.state_dict(position)


def test_counts_follow_the_reading(blend):
    loader = open_plan(planned(blend, "growing", 3), 1)
    expected = [(0, 0), (0, 6), (1, 12), (1, 18), (2, 24), (2, 30), (2, 36), (2, 42), (3, 48)]
    for step, consumed in expected:
        assert (loader.step, loader.consumed_samples, loader.epoch) == (step, consumed, 0)
        assert loader.state_dict()["consumed_samples"] == consumed
        next(loader)
    loader = open_plan(planned(blend, "cyclic", 3), 1)
    epochs = []
    while loader.position < len(loader):
        epochs.append(loader.epoch)
        next(loader)
    assert epochs == [0] * 16 + [1] * 16
    assert (loader.epoch, loader.step) == (1, loader.steps)


def test_rewinding_goes_back_whole_steps(blend):
    loader = open_plan(planned(blend, "growing", 1), 0)
    starts = [numbers_of(loader, step).start for step in range(4)]
    for position in range(starts[3], len(loader)):
        for steps in range(4):
            loader.seek(position * 2)
            loader.rewind(steps)
            assert loader.position == starts[3 - steps]
    loader.rewind()
    assert loader.position == 0
    with pytest.raises(UsageError, match="go back by 1 from step 0"):
        loader.rewind(1)


def test_an_end_that_was_reached_restarts_and_one_that_was_loaded_does_not(blend):
    path = planned(blend, "single", 3)
    loader = open_plan(path, 0)
    first = list(loader)
    state = loader.state_dict()
    again = list(loader)
    assert len(again) == len(first)
    assert all(map(same, again, first))
    other = open_plan(path, 0)
    other.load_state_dict(state)
    assert list(other) == []
    assert len(list(other)) == len(first)


@pytest.mark.parametrize(
    ("mode", "consumed"), [("single", -6), ("single", 600), ("chunked", 1), ("cyclic", 3)]
)
def test_positions_between_micro_batches_are_refused(blend, mode, consumed):
    loader = open_plan(planned(blend, mode, 3), 0)
    with pytest.raises(UsageError, match=f"must be the start of a micro-batch, got {consumed}"):
        loader.seek(consumed)


def test_what_there_is_not_raises(blend):
    path = planned(blend, "single", 3)
    loader = open_plan(path, 0)
    for wrong in (-1, len(loader)):
        with pytest.raises(IndexError):
            loader[wrong]
        with pytest.raises(IndexError):
            loader.batch(wrong)
        with pytest.raises(IndexError):
            loader.batch(0, wrong)
    with pytest.raises(IndexError, match=f"step must be from 0 to {loader.steps - 1}, got {loader.steps}"):
        loader.batch(loader.steps)
    with pytest.raises(UsageError, match="the stream must be train, got 'valid'"):
        open_plan(path, 0, stream="valid")
    with pytest.raises(UsageError, match="rank must be from 0 to 2, got 3"):
        open_plan(path, 3)
    with pytest.raises(UsageError, match="at least 0, got 0, 8"):
        open_plan(path, 0, max_open_files=0)
    with pytest.raises(UsageError, match="max_length requires a plan of documents"):
        open_plan(path, 0, options=BatchOptions(max_length=8))
    with pytest.raises(UsageError, match="the rank is required"):
        RankLoader.open(path)


def test_a_rank_opens_its_own_manifest(blend):
    path = planned(blend, "single", 3)
    loader = RankLoader.open(os.path.join(path, "rank-00002.json"))
    assert same(loader[1], open_plan(path, 2)[1])


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_in_mode_single_a_state_resumes_at_another_world_size(blend, data):
    worlds = st.sampled_from([(ranks, micro) for ranks in (1, 2, 3, 4, 6) for micro in (1, 2, 4)])
    worlds = worlds.filter(lambda world: 24 % (world[0] * world[1]) == 0)
    directory, source, _ = blend
    (here, here_micro), (there, there_micro) = data.draw(worlds), data.draw(worlds)
    kept = {"source": source, "mode": "single", "batch": 24, "epochs": data.draw(st.integers(1, 2))}
    old = plan_for(directory, topology=topology_of(here), micro=here_micro, **kept)
    new = plan_for(directory, topology=topology_of(there), micro=there_micro, **kept)
    steps = data.draw(st.integers(0, open_plan(old, 0).steps))

    def samples(path, ranks, first, last, state=None):
        found = []
        loaders = [open_plan(path, rank) for rank in range(ranks)]
        for step in range(first, last):
            for loader in loaders:
                if state is not None:
                    loader.load_state_dict(state)
                    assert loader.step == first
            numbers = [numbers_of(loader, step) for loader in loaders]
            for micro in zip(*numbers, strict=True):
                found += [
                    sample_id
                    for loader, m in zip(loaders, micro, strict=True)
                    for sample_id in loader.sample_ids(m)
                ]
        return found

    stopped = open_plan(old, here - 1)
    stopped.seek(steps * 24)
    state = stopped.state_dict()
    before = samples(old, here, 0, steps)
    after = samples(new, there, steps, open_plan(new, 0).steps, state)
    assert before + after == list(range(96)) * kept["epochs"]


def test_other_plans_states_are_refused(blend, tmp_path):
    directory, source, _ = blend
    single = plan_for(directory, source=source, topology=topology_of(2))
    cyclic = planned(blend, "cyclic", 2)
    shuffled = plan_for(directory, source=source, topology=topology_of(3), shuffle="samples")
    state = open_plan(single, 0).state_dict()
    with pytest.raises(ResumeMismatchError, match="only in mode single") as caught:
        open_plan(cyclic, 0).load_state_dict(state)
    assert "--consumed-samples 0" in caught.value.hint
    with pytest.raises(ResumeMismatchError, match="same samples in the same order"):
        open_plan(shuffled, 0).load_state_dict(state)
    with pytest.raises(ResumeMismatchError, match="stream 'train', got 'valid'"):
        open_plan(single, 0).load_state_dict(state | {"stream": "valid"})
    for wrong in ({}, state | {"epoch": "0"}, state | {"schema": "tokshard.loader/3"}, [], None):
        with pytest.raises(UsageError, match="state"):
            open_plan(single, 0).load_state_dict(wrong)
    # In the middle of a step, where no micro-batch of the other world starts.
    whole = plan_for(directory, source=source, topology=topology_of(2), batch=24)
    loader = open_plan(whole, 0)
    next(loader)
    other = plan_for(directory, source=source, topology=topology_of(3), batch=24)
    with pytest.raises(UsageError, match="at 4 consumed samples is inside a step, and no micro-batch of 6"):
        open_plan(other, 0).load_state_dict(loader.state_dict())


def test_a_plan_continues_where_the_one_before_it_stopped(blend):
    directory, source, _ = blend
    old = plan_for(directory, source=source, topology=topology_of(2), mode="contiguous")
    loader = open_plan(old, 1)
    for _ in range(3):
        next(loader)
    state = loader.state_dict()
    topology = topology_of(1)
    stream = stream_of(source, topology, mode="contiguous", consumed_samples=12, skipped=12)
    history = (StoppedPlan(loader.plan_id, {}),)
    new = open_plan(write_streams(directory, topology, history=history, train=stream), 0)
    new.load_state_dict(state)
    assert (new.position, new.consumed_samples) == (0, 12)
    with pytest.raises(ResumeMismatchError, match="starts at 12 consumed samples, but the state is at 8"):
        new.load_state_dict(state | {"consumed_samples": 8, "step_start": 8, "position": 8})


@pytest.fixture(scope="module")
def long_blend(tmp_path_factory):
    directory = tmp_path_factory.mktemp("long_blend")
    return directory, source_of(directory, datasets=3, documents=180, weights=[0.5, 0.3, 0.2], size=192)


@pytest.mark.parametrize("mode", ["single", "cyclic", "contiguous", "sequential", "chunked"])
def test_a_state_resumes_in_the_plan_that_was_made_for_it(long_blend, mode):
    directory, source = long_blend
    path = plan_for(directory, source=source, topology=topology_of(6), micro=1, batch=24, mode=mode)
    consumed, seen = 0, []
    state = None
    for ranks, steps in ((6, 3), (4, 2), (12, 3)):
        if state is not None:
            target = os.path.join(directory, f"{mode}-{ranks}")
            write_plan(continued(read_plan(path), consumed, ranks), target)
            with pytest.raises(ResumeMismatchError, match="starts at"):
                open_plan(target, 0).load_state_dict(state | {"consumed_samples": consumed - 24})
            path = target
        loaders = [open_plan(path, rank) for rank in range(ranks)]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
            assert loader.consumed_samples == consumed
            for _ in range(numbers_of(loader, steps - 1).stop):
                seen += loader.sample_ids(loader.position)
                next(loader)
        state, consumed = loaders[-1].state_dict(), loaders[-1].consumed_samples
        assert consumed == len(seen)
    assert sorted(seen) == list(range(192))


def test_pipeline_stages_and_tensor_ranks_get_what_they_need(blend):
    directory, source, _ = blend
    topology = topology_of(12, tensor=2, pipeline=3)
    path = plan_for(directory, source=source, topology=topology)
    names = [set(next(open_plan(path, rank))) for rank in range(12)]
    first, last = {"tokens", "position_ids"}, {"labels", "loss_mask"}
    assert names == [first, set()] * 2 + [set()] * 4 + [last, set()] * 2
    assert len({len(list(open_plan(path, rank))) for rank in range(12)}) == 1
    options = BatchOptions(cu_seqlens=True)
    asked = [set(next(open_plan(path, rank, options=options))) for rank in range(12)]
    bounds = {"cu_seqlens", "max_seqlen"}
    assert asked == [first | bounds, set()] * 2 + [bounds, set()] * 2 + [last | bounds, set()] * 2


def test_a_plan_with_boundaries_gives_them_unasked(blend):
    directory, source, texts = blend
    path = plan_for(directory, source=source, topology=topology_of(1), document_boundaries=True)
    loader = open_plan(path)
    for number, batch in zip(range(5), loader, strict=False):
        for row, sample_id in enumerate(loader.sample_ids(number)):
            ends = np.cumsum(texts[sample_id].lengths)[:-1]
            assert set(ends[ends < LENGTH]) | {0, LENGTH} == set(batch["cu_seqlens"][row].tolist())
    with pytest.raises(UsageError, match="uses cu_seqlens"):
        open_plan(path, options=BatchOptions(create_attention_mask=True))


def test_context_parallel_ranks_together_have_every_token(blend):
    directory, source, _ = blend
    path = plan_for(directory, source=source, topology=topology_of(4, context=2))
    whole = plan_for(directory, source=source, topology=topology_of(2))
    for dp in range(2):
        full = open_plan(whole, dp)[1]
        first, second = (open_plan(path, 2 * dp + cp)[1] for cp in range(2))
        for name in full:
            parts = [first[name][:, :2], second[name], first[name][:, 2:]]
            assert np.array_equal(np.concatenate(parts, axis=1), full[name])


def test_documents_are_told_by_dataset_and_number(blend):
    directory, source, texts = blend
    path = plan_for(directory, source=source)
    loader = open_plan(path, options=BatchOptions(document_ids=True, num_tokens=True))
    located = Locator(source).locate(np.arange(source.total))[0]
    for number, batch in enumerate(loader):
        ids = loader.sample_ids(number)
        assert batch["dataset_ids"].tolist() == located[ids].tolist()
        for row, sample_id in enumerate(ids):
            owners = np.repeat(texts[sample_id].document_ids, texts[sample_id].lengths)[:LENGTH]
            assert batch["document_ids"][row].tolist() == owners.tolist()
        assert batch["num_tokens"].tolist() == [LENGTH] * len(ids)


def test_clones_share_files_and_move_alone(blend):
    loader = open_plan(planned(blend, "single", 3), 0)
    next(loader)
    chunks = [loader.clone() for _ in range(2)]
    rest = [list(chunk) for chunk in chunks]
    assert loader.position == 1
    assert len(rest[0]) == len(loader) - 1
    assert all(map(same, *rest))
    assert same(next(loader), rest[0][0])


def test_a_loader_crosses_processes_with_its_state(blend):
    loader = open_plan(planned(blend, "single", 3), 1)
    next(loader)
    other = pickle.loads(pickle.dumps(loader))
    assert other.state_dict() == loader.state_dict()
    assert same(next(other), next(loader))
    with pytest.raises(UsageError, match="opened by path"):
        pickle.dumps(RankLoader(loader.plan, 1))


def test_threads_that_read_out_of_order_share_a_loader(blend):
    """As Grain reads, also where only one dataset may be open."""
    plan = planned(blend, "cyclic", 2)
    expected = list(open_plan(plan, 0))
    loader = open_plan(plan, 0, max_open_files=6)
    numbers = [number * 5 % len(expected) for number in range(10 * len(expected))]
    with ThreadPoolExecutor(8) as threads:
        for number, batch in zip(numbers, threads.map(loader.__getitem__, numbers), strict=True):
            assert same(batch, expected[number])
    assert loader.position == 0


def fresh_plan(directory, **options):
    return plan_for(directory, source=source_of(directory, datasets=2, documents=60), **options)


@pytest.mark.parametrize("mmap", [True, False])
def test_files_that_changed_under_the_plan_are_told(tmp_path, mmap):
    path = fresh_plan(tmp_path)
    loader = open_plan(path, mmap=mmap)
    next(loader)
    os.remove(f"{tmp_path}/data1.bin")
    with pytest.raises(MissingFileError, match=r"file of the plan not found: .*data1\.bin"):
        list(loader)
    write_documents(tmp_path, "data1", some_documents(77, 60))
    with pytest.raises(IntegrityError, match=r"data1\.\w+ has changed since the plan was built"):
        list(open_plan(path, mmap=mmap))
    write_documents(tmp_path, "data1", some_documents(1, 60))
    assert len(list(open_plan(path, mmap=mmap))) == len(loader)
    index = next(tmp_path.glob("*shuffle_index.npy"))
    # As tools change a file: another takes its name. A thread that still reads ahead has the old one mapped.
    other = tmp_path / "other.npy"
    other.write_bytes(index.read_bytes()[:-4] + bytes(4))
    other.replace(index)
    with pytest.raises(IntegrityError, match=r"shuffle_index\.npy has changed since the plan was built"):
        list(open_plan(path, mmap=mmap))


def test_files_are_compared_again_when_a_state_is_loaded(tmp_path):
    loader = open_plan(fresh_plan(tmp_path))
    assert len(list(loader)) == len(loader)
    state = loader.state_dict(3)
    path = tmp_path / "data1.bin"
    content = path.read_bytes()
    path.write_bytes(bytes(len(content)))
    loader.load_state_dict(state)
    with pytest.raises(IntegrityError, match=r"data1\.bin has changed since the plan was built"):
        list(loader)
    path.write_bytes(content)
    loader.load_state_dict(state)
    assert len(list(loader)) == len(loader) - 3


def test_a_file_that_is_replaced_while_it_is_open_is_read_as_it_was(tmp_path):
    loader = open_plan(fresh_plan(tmp_path))
    expected = [loader[number] for number in range(len(loader))]
    other = tmp_path / "other.bin"
    other.write_bytes(bytes((tmp_path / "data0.bin").stat().st_size))
    other.replace(tmp_path / "data0.bin")
    assert all(same(loader[number], batch) for number, batch in enumerate(expected))


def test_data_that_moved_is_found_by_its_roots(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    (here / "data").mkdir(parents=True)
    plans = tmp_path / "plans"
    plans.mkdir()
    source = source_of(here / "data")
    path = write_streams(plans, topology_of(1), train=stream_of(source, topology_of(1)))
    expected = list(open_plan(path))
    here.rename(there)
    with pytest.raises(MissingFileError):
        next(open_plan(path))
    moved = list(open_plan(path, roots={str(here): str(there)}))
    assert all(map(same, moved, expected))


def test_a_stage_without_needs_opens_no_file(tmp_path):
    path = fresh_plan(tmp_path, topology=topology_of(2, tensor=2))
    for file in tmp_path.glob("data*"):
        file.unlink()
    batches = list(open_plan(path, 1))
    assert batches
    assert not any(batches)
    with pytest.raises(MissingFileError):
        list(open_plan(path, 0))


def test_each_stream_has_its_own_loader_and_count(blend):
    directory, source, _ = blend
    topology = topology_of(2)
    train = stream_of(source, topology)
    valid = stream_of(source, topology, mode="full-validation", micro=1, tail="pad")
    path = write_streams(directory, topology, **{"train": train, "valid.0": valid})
    loader = open_plan(path, 0, stream="valid.0")
    assert len(loader) == 48
    next(loader)
    assert (loader.consumed_samples, open_plan(path, 0).consumed_samples) == (2, 0)


def test_what_was_consumed_before_the_plan_counts(blend):
    directory, source, _ = blend
    topology = topology_of(2)
    whole = open_plan(plan_for(directory, source=source, topology=topology), 1)
    path = plan_for(directory, source=source, topology=topology, consumed_samples=8, skipped=8)
    loader = open_plan(path, 1)
    assert loader.consumed_samples == 8
    assert all(map(same, loader, list(whole)[2:]))
    # The first plan's state at any place from there on is good for the second, and the other way round.
    whole.seek(16)
    loader.load_state_dict(whole.state_dict())
    assert loader.position == 2
    whole.rewind()
    whole.load_state_dict(loader.state_dict())
    assert whole.position == 4


def test_reading_ahead_changes_nothing_and_its_thread_ends(blend):
    path = planned(blend, "contiguous", 3)
    before = set(threading.enumerate())
    loader, plain = open_plan(path, 0, readahead=5, max_open_files=6), open_plan(path, 0, readahead=0)
    assert all(map(same, loader, plain))
    threads = [thread for thread in threading.enumerate() if thread not in before]
    assert [thread.name for thread in threads] == ["tokshard-readahead"]
    del loader
    threads[0].join(240)
    assert not threads[0].is_alive()


def test_a_view_of_a_rank_makes_the_same_loader(blend):
    path = planned(blend, "single", 3)
    assert same(RankLoader(*read_rank(path, 1))[2], open_plan(path, 1)[2])


def test_a_forked_process_waits_for_no_thread_that_it_does_not_have(blend):
    """As a torch worker does: the locks may be held at the moment of the fork."""
    loader = open_plan(planned(blend, "contiguous", 3), 0)
    expected = [next(loader), *loader.clone()]
    with loader._reader._shards._lock, loader._reader.schedule._lock:
        child = os.fork()
        if child == 0:
            signal.alarm(240)
            good = all(map(same, loader, expected[1:])) and same(loader[0], expected[0])
            os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert loader.position == 1
    assert all(map(same, loader, expected[1:]))
